"""The contents of a bundle as data: records of a store and machine code, to and from its
document.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ..db.records import Snapshot
from ..planner.costs.device import DeviceProfile
from ..planner.errors import BundleError
from ..planner.graph.graph import from_json, kernel_key, key
from ..planner.origin import without_sources
from ..planner.plan import Plan
from ..planner.runtime.machine_code.host_code import HostModule
from ..planner.runtime.machine_code.ready import MachineCode
from .container import Sealed, read, seal
from .files import write_whole
from .signing import Private

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Code:
    """maker: what made it; see `ready.maker`. host: modules of C that Triton launches by."""

    maker: Mapping[str, str]
    kernels: tuple[MachineCode, ...]
    host: tuple[HostModule, ...] = ()


@dataclass(frozen=True, slots=True)
class Contents:
    """records: plans with what belongs to them. code: None of a bundle that has no machine code.
    about: who made it and when, for people. signer: of a bundle that was read. opened: the graphs
    of the model as AOTAutograd gave them, as text, by what they follow from (see
    `planner/runtime/dispatch/opened_before.py`)."""

    records: Snapshot
    code: Code | None = None
    about: Mapping[str, str] = field(default_factory=dict)
    signer: str = ""
    opened: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _BundledKernel:
    key: str
    name: str
    metadata: dict[str, Any]
    cubin: str


@dataclass(frozen=True, slots=True)
class _Host:
    folder: str
    name: str
    data: str


@dataclass(frozen=True, slots=True)
class _Code:
    maker: dict[str, str]
    kernels: tuple[_BundledKernel, ...]
    host: tuple[_Host, ...]


@dataclass(frozen=True, slots=True)
class _Opened:
    key: str
    text: str


@dataclass(frozen=True, slots=True)
class _Document:
    """Blobs stand in it by their SHA-256."""

    format: int
    about: dict[str, str]
    records: Snapshot
    code: _Code | None
    opened: tuple[_Opened, ...] = ()
    """What earlier versions wrote has none."""


_DOCUMENT: TypeAdapter[_Document] = TypeAdapter(_Document)


def write(path: Path, contents: Contents, private: Private) -> int:
    """Write the bundle, in place of a file of that name; its size in bytes. Raises BundleError."""
    try:
        check(contents.records)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise BundleError(f"{error}: no bundle would be read; name the plans to write") from error
    records = _to_give(contents.records)
    about = {"made": datetime.now(UTC).isoformat(timespec="seconds"), **contents.about}
    code = None if contents.code is None else _code(contents.code)
    texts = {key: text.encode() for key, text in contents.opened.items()}
    opened = tuple(_Opened(key, _digest(text)) for key, text in sorted(texts.items()))
    document = _DOCUMENT.dump_python(_Document(FORMAT, about, records, code, opened), mode="json")
    data = seal(document, (*_blobs(contents.code), *texts.values()), private)
    try:
        write_whole(path, data)
    except OSError as error:
        raise BundleError(f"{path} cannot be written: {error.strerror or error}") from error
    return len(data)


def _to_give(records: Snapshot) -> Snapshot:
    """A bundle goes to others: the lines of the model's code stay with who tuned it."""
    plans = (replace(plan, payload=without_sources(plan.payload)) for plan in records.plans)
    return replace(records, plans=tuple(plans))


def open_bundle(path: Path, trusted: Collection[bytes]) -> Contents:
    """What the bundle in a file holds; see `check`. Raises BundleError."""
    sealed = read(path, trusted)
    try:
        return contents(sealed)
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise BundleError(
            f"{path} is signed, but damaged: {error}; nothing of it was used"
        ) from error


def contents(sealed: Sealed) -> Contents:
    """Raises ValueError, KeyError, TypeError or IndexError for a document that is none."""
    if sealed.document.get("format") != FORMAT:
        raise ValueError(
            f"its format is not {FORMAT}: it was made by another version of fusionplan"
        )
    try:
        found = _DOCUMENT.validate_python(sealed.document)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    check(found.records)
    code = None
    if found.code is not None:
        kernels = (
            MachineCode(k.key, k.name, k.metadata, sealed.blobs[k.cubin])
            for k in found.code.kernels
        )
        host = (HostModule(h.folder, h.name, sealed.blobs[h.data]) for h in found.code.host)
        code = Code(found.code.maker, tuple(kernels), tuple(host))
    opened = {each.key: sealed.blobs[each.text].decode() for each in found.opened}
    return Contents(found.records, code, found.about, sealed.signer, opened)


def check(records: Snapshot) -> None:
    """Raises ValueError where a record is not what its key says, or refers to one that is not
    there. A trial has no key, and a kernel's record may have nothing but one."""
    devices, graphs = {d.key for d in records.devices}, {g.key for g in records.graphs}
    subjects = graphs | {k.key for k in records.kernels}
    for each in (*devices, *subjects, *(p.key for p in records.plans)):
        _require(_KEY.fullmatch(each) is not None, f"{each!r} is no key")
    for device in records.devices:
        same = DeviceProfile.from_json(device.profile).key == device.key
        _require(same, f"device {device.key} is another")
    for graph in records.graphs:
        _require(key(from_json(graph.payload)) == graph.key, f"graph {graph.key} is another")
        _require(len(graph.name) <= _NAME, f"the name of graph {graph.key} is too long")
    for kernel in records.kernels:
        _require(kernel.graph_key in graphs, f"kernel {kernel.key} is of no graph in it")
        payload = kernel.payload
        same = not payload or kernel_key(from_json(payload["graph"])) == kernel.key
        _require(same, f"kernel {kernel.key} is another")
    for trial in records.trials:
        _require(trial.device_key in devices, f"a trial is of device {trial.device_key}")
        _require(trial.subject in subjects, f"a trial is of {trial.subject}, which is not in it")
        _require(len(trial.study) <= _NAME, "the name of a study is too long")
    for record in records.plans:
        plan = Plan.from_json(record.payload)
        same = (plan.graph_key, plan.device, plan.evidence) == (
            record.graph_key,
            record.device_key,
            record.evidence,
        )
        _require(same and dict(plan.versions) == record.versions, f"plan {record.key} is another")
        _require(record.graph_key in graphs, f"plan {record.key} is of no graph in it")
        _require(record.device_key in devices, f"plan {record.key} is of no device in it")
        _require(len(record.name) <= _NAME, f"the name of plan {record.key} is too long")


_KEY = re.compile(r"[\w.-]{1,128}")
_NAME = 255
"""Characters that a store has for a name."""


def _require(holds: bool, fault: str) -> None:
    if not holds:
        raise ValueError(fault)


def _code(code: Code) -> _Code:
    kernels = (
        _BundledKernel(k.key, k.name, dict(k.metadata), _digest(k.cubin)) for k in code.kernels
    )
    host = (_Host(h.folder, h.name, _digest(h.data)) for h in code.host)
    return _Code(dict(code.maker), tuple(kernels), tuple(host))


def _blobs(code: Code | None) -> Iterator[bytes]:
    if code is not None:
        yield from (kernel.cubin for kernel in code.kernels)
        yield from (module.data for module in code.host)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def plan_kernels(payloads: Iterable[Mapping[str, Any]]) -> set[str]:
    """The keys of the kernels that plans name."""
    found: set[str] = set()
    waiting = [Plan.from_json(payload) for payload in payloads]
    while waiting:
        for group in waiting.pop().groups:
            found |= {group.kernel_key} if group.kernel_key else set()
            waiting += group.bodies
    return found
