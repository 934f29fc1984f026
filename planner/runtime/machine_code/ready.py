"""Machine code that was made before: kernels that this process need not compile.

A kernel is looked for by a digest of its freshly generated text and of all else that its
compilation depends on, so that what is found is what Triton would make of that very text. Whoever
adds machine code vouches for it: it comes from the user's own compiler, or bears a signature that
the user trusts.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton import knobs
from triton._C.libtriton import get_cache_invalidating_env_vars
from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel, make_backend

from ...versions import CODEGEN


@dataclass(frozen=True, slots=True)
class MachineCode:
    """key: see `code_key`. metadata: what Triton knows of the kernel, as plain JSON data."""

    key: str
    name: str
    metadata: Mapping[str, Any]
    cubin: bytes


_READY: dict[str, MachineCode] = {}


def add(code: Iterable[MachineCode]) -> None:
    """From now on these kernels are not compiled in this process."""
    _READY.update((each.key, each) for each in code)


def find(key: str) -> MachineCode | None:
    return _READY.get(key)


def code_key(parts: tuple[object, ...]) -> str:
    """A digest of what the compilation of a kernel depends on, but for `maker`. parts: nested
    tuples of plain values."""
    text = json.dumps(parts, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def maker() -> dict[str, str]:
    """What makes machine code here, by name; other machine code may come of another value."""
    found = {"triton": str(triton.__version__), "codegen": CODEGEN}
    with suppress(RuntimeError, ValueError, OSError):  # Then Triton itself compiles nothing.
        # What its settings make of no options at all: PTXAS_OPTIONS, say, or another libdevice.
        # The GPU does not matter: a kernel's own is in its key.
        options = make_backend(GPUTarget("cuda", 90, 32)).parse_options({})
        given = getattr(options, "ptx_options", None)
        found["triton options"] = options.hash()[:16] + (f" ({given})" if given else "")
    changed = get_cache_invalidating_env_vars()
    if changed:
        found["triton settings"] = " ".join(f"{name}={changed[name]}" for name in sorted(changed))
    with suppress(RuntimeError):  # There is none, and machine code that is ready needs none.
        found["ptxas"] = str(knobs.nvidia.ptxas.version)
    return found


def taken(key: str, name: str, kernel: Any) -> MachineCode:
    """The machine code of a kernel that Triton has compiled."""
    metadata = json.loads(json.dumps(kernel.metadata._asdict(), default=vars))
    return MachineCode(key, name, metadata, kernel.asm["cubin"])


def built(code: MachineCode, source: Any) -> Any:
    """Triton's CompiledKernel of it. source: the ASTSource of the kernel's text. Raises OSError
    where there is no folder for temporary files, ValueError for metadata that Triton does not know.
    """
    with tempfile.TemporaryDirectory(prefix="fusionplan-") as folder:
        # Triton reads both from files; their names are ours, whatever the kernel is called.
        metadata, cubin = Path(folder, "kernel.json"), Path(folder, "kernel.cubin")
        metadata.write_text(json.dumps(dict(code.metadata)))
        cubin.write_bytes(code.cubin)
        try:
            return CompiledKernel(source, {p.name: str(p) for p in (metadata, cubin)}, code.key)
        except (KeyError, TypeError, AttributeError, AssertionError) as error:
            raise ValueError(f"machine code of {code.name} cannot be read: {error!r}") from error
