"""Captures of earlier processes: what a call of a model was traced to, under what conditions.

They are kept beside the machine code that Triton keeps, one file for each kind of model. A file is
data: a graph as the store holds it, and texts to compare. Plans are looked up as for any graph.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from triton import knobs

from ... import capture
from ...graph.graph import Numerics
from ...versions import versions
from .code import TracedCode

FORMAT = 1
MOST = 16
"""Calls of one kind of model that are kept, the newest first."""
_LARGEST = 64 * 2**20
_FOLDER = "fusionplan/starts"


@dataclass(frozen=True, slots=True)
class RememberedCall:
    """made_by, state: versions and torch's state, by name. traced, facts: see `facts`. call: the
    arguments (`trees.called`). graph: what was captured, as JSON. inputs: where each of its inputs
    comes from: ("argument", number) of the tensors passed, or ("model", module, name). result: from
    the graph's outputs, by number (`trees.flattened`)."""

    made_by: dict[str, str]
    state: dict[str, str]
    traced: tuple[TracedCode, ...]
    facts: tuple[str, ...]
    call: Any
    graph: dict[str, Any]
    inputs: tuple[tuple[str | int, ...], ...]
    result: Any


_FILE: TypeAdapter[tuple[RememberedCall, ...]] = TypeAdapter(tuple[RememberedCall, ...])


def made_by(numerics: Numerics) -> dict[str, str]:
    """What else decides what is captured."""
    cuda: Any = torch.cuda
    return {
        **versions(),
        # What is captured may depend on it, and on a shared folder it may be another one.
        "GPU": cuda.get_device_name() if cuda.is_initialized() else "none",
        "python": sys.version,
        "capture": _capture(),
        "numerics": numerics,
    }


@cache
def _capture() -> str:
    """A digest of the code that captures graphs: one that it would capture otherwise now is not
    what was remembered."""
    found = hashlib.sha256()
    for folder in (Path(capture.__file__).parent, Path(__file__).parent):
        for file in sorted(folder.rglob("*.py")):
            found.update(f"{file.name}\0".encode())
            found.update(file.read_bytes())
    return found.hexdigest()[:16]


def state() -> dict[str, str]:
    """torch's state that a trace depends on, for another process; see also `GlobalStateGuard`."""
    kinds = ("cpu", "cuda")
    autocast = [(torch.is_autocast_enabled(k), str(torch.get_autocast_dtype(k))) for k in kinds]
    return {
        "gradients": str(torch.is_grad_enabled()),
        "inference": str(torch.is_inference_mode_enabled()),
        "autocast": str(autocast),
        "default dtype": str(torch.get_default_dtype()),
        "ranks": str(_ranks()),
        "device": str(_device()),
        "modes": str(modes()),
    }


def _device() -> int | None:
    cuda: Any = torch.cuda
    return cuda.current_device() if cuda.is_initialized() else None


def _ranks() -> tuple[int, int]:
    """How many there are, and which this is."""
    distributed: Any = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return 1, 0
    return distributed.get_world_size(), distributed.get_rank()


def modes() -> tuple[int, int, bool]:
    """Modes of torch under which a call means something else."""
    functions: Any = torch._C
    functorch: Any = torch._C._functorch
    inner = functorch.peek_interpreter_stack() is not None
    return functions._len_torch_function_stack(), functions._len_torch_dispatch_stack(), inner


def has_global_hooks() -> bool:
    modules: Any = torch.nn.modules.module
    return bool(modules._has_any_global_hook())


def model_key(model: torch.nn.Module) -> str:
    """By which the calls of a model are looked for: its class, and the names and sizes of its
    parameters. Whether they fit is asked then."""
    kind = type(model)
    sizes = [(name, list(p.shape), str(p.dtype)) for name, p in model.named_parameters()]
    text = json.dumps([kind.__module__, kind.__qualname__, torch.__version__, sizes])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def find(key: str) -> tuple[RememberedCall, ...]:
    """The calls of a kind of model, the newest first; none where they cannot be read."""
    place = _place(key)
    try:
        if place.stat().st_size > _LARGEST:
            return ()
        data = json.loads(place.read_text())
        if data["format"] != FORMAT:
            return ()
        return _FILE.validate_python(data["calls"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError, ValidationError):
        return ()


def keep(key: str, call: RememberedCall) -> None:
    """Write a call to those of its kind of model, in place of one like it."""
    others = (each for each in find(key) if not _alike(each, call))
    calls = [_shown(each) for each in (call, *others)][:MOST]
    place = _place(key)
    with suppress(OSError):  # Then the next process traces the model, as this one did.
        place.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=place.parent, prefix=".start-")
        with os.fdopen(handle, "w") as file:
            json.dump({"format": FORMAT, "calls": calls}, file)
        os.replace(name, place)


def _alike(one: RememberedCall, other: RememberedCall) -> bool:
    same = replace(one, graph={}, inputs=(), result=None, traced=(), facts=())
    return same == replace(other, graph={}, inputs=(), result=None, traced=(), facts=())


def _shown(call: RememberedCall) -> Mapping[str, Any]:
    return asdict(call)


def differences(call: RememberedCall, found: Sequence[str]) -> str:
    """The first line in which what is remembered differs from the facts of today."""
    for before, now in zip(call.facts, found, strict=False):
        if before != now:
            return f"{now[:120]!r} was {before[:120]!r}"
    return f"{len(found)} facts were {len(call.facts)}"


def _place(key: str) -> Path:
    return Path(knobs.cache.dir) / _FOLDER / f"{key}.json"
