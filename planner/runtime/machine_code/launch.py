"""Launching a kernel with as little Python as can be.

Triton's own path from `kernel[grid](...)` binds, hashes and specialises arguments on every call.
A generated kernel has only pointers and one grid, so everything is settled once, and a call goes
straight to Triton's C launcher with the pointers as plain integers.

The C launcher's arguments are private to Triton and differ between versions: 3.6 takes the
scratch buffers before the metadata and the pointers one by one; 3.7 takes them after it, then how
to read the arguments, and the pointers as one tuple. An unknown layout goes the public way.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import torch
import triton
import triton.backends.nvidia.driver as nvidia
from triton.runtime.errors import OutOfResources
from triton.tools.tensor_descriptor import TensorDescriptor

from ...codegen.source import Buffer, KernelSource, Scalar
from ...errors import DeviceError
from ..phases import phase
from .compile import Compiled, CompileFailed, compile_kernel, interpreted, jit_function

log = logging.getLogger(__name__)

Launch = Callable[..., None]
"""`launch(stream, *pointers)`."""

_COMMON = ("launch", "launch_cooperative_grid")
_SCRATCH = ("global_scratch_size", "profile_scratch_size")

_KEPT = 64
"""Encoded descriptors kept for an argument; the allocator gives the same few addresses again."""


def bind(
    kernel: Any,
    grid: int,
    version: str = triton.__version__,
    buffers: Sequence[Buffer] = (),
    scalars: Sequence[Scalar] = (),
    dependent: bool = False,
) -> Launch:
    """The shortest launch of a loaded kernel that this Triton has. buffers: its arguments, needed
    only when some of them are descriptors. scalars: numbers that it takes after them. dependent:
    it begins while the kernel before it ends (not by the public way, which then is slower)."""
    run = kernel.run
    numbers = tuple(s.value for s in scalars)
    described = any(b.descriptor for b in buffers)
    launch = getattr(run, "launch", None)
    if described:
        launch = _unwrapped(launch)
    known = launch is not None and all(hasattr(run, name) for name in (*_COMMON, *_SCRATCH))
    if known and not any(getattr(run, name) for name in _SCRATCH):
        encoded = _encoders(kernel, buffers) if described else None
        if version.startswith("3.6.") and buffers and not described:
            return _counted_3_6(kernel, run, launch, grid, dependent, len(buffers), numbers)
        if version.startswith("3.6."):
            call = _bind_3_6(kernel, run, launch, grid, dependent)
            return _expanded(_numbered(call, numbers), encoded)
        if version.startswith("3.7.") and hasattr(run, "kernel_signature"):
            call = _bind_3_7(kernel, run, launch, grid, dependent)
            return _expanded(_numbered(call, numbers), encoded)
    objects = [_kept(b, lambda d: (d,)) for b in buffers] if described else None
    return _expanded(_numbered(_bind_public(kernel, grid), numbers), objects)


def _numbered(call: Launch, numbers: tuple[int | float, ...]) -> Launch:
    if not numbers:
        return call

    def numbered(stream: int, *pointers: Any) -> None:
        call(stream, *pointers, *numbers)

    return numbered


def _bind_3_6(kernel: Any, run: Any, launch: Any, grid: int, dependent: bool) -> Launch:
    function, metadata = kernel.function, kernel.packed_metadata
    cooperative = run.launch_cooperative_grid

    def call(stream: int, *arguments: Any) -> None:
        launch(
            *(grid, 1, 1, stream, function, cooperative, dependent),
            *(None, None, metadata, None, None, None),
            *arguments,
        )

    return call


def _counted_3_6(
    kernel: Any,
    run: Any,
    launch: Any,
    grid: int,
    dependent: bool,
    pointers: int,
    numbers: tuple[int | float, ...],
) -> Launch:
    """As `_bind_3_6`, for so many pointers: a call that packs no arguments takes half the time."""
    make = _writer_3_6(pointers, len(numbers))
    function, metadata = kernel.function, kernel.packed_metadata
    cooperative = run.launch_cooperative_grid
    found: Launch = make(launch, grid, function, cooperative, dependent, metadata, *numbers)
    return found


@lru_cache(maxsize=_KEPT)
def _writer_3_6(pointers: int, numbers: int) -> Callable[..., Launch]:
    """Makes launches of so many pointers and numbers."""
    taken = "".join(f", p{i}" for i in range(pointers))
    fixed = "".join(f", n{i}" for i in range(numbers))
    lines = [
        f"def make(launch, grid, function, cooperative, dependent, metadata{fixed}):",
        f"    def call(stream{taken}):",
        "        launch(grid, 1, 1, stream, function, cooperative, dependent,",
        f"            None, None, metadata, None, None, None{taken}{fixed})",
        "    return call",
    ]
    names: dict[str, Any] = {}
    exec(compile("\n".join(lines), "<fusionplan launch>", "exec"), names)
    made: Callable[..., Launch] = names["make"]
    return made


def _bind_3_7(kernel: Any, run: Any, launch: Any, grid: int, dependent: bool) -> Launch:
    function, metadata = kernel.function, kernel.packed_metadata
    cooperative = run.launch_cooperative_grid
    annotations, signature = run.arg_annotations, run.kernel_signature

    # One positional call, no unpacking: this is the hottest line of the run time.
    def call(stream: int, *arguments: Any) -> None:
        launch(
            grid,
            1,
            1,
            stream,
            function,
            cooperative,
            dependent,
            metadata,
            None,
            None,
            None,
            None,
            None,
            annotations,
            signature,
            arguments,
        )

    return call


def _bind_public(kernel: Any, grid: int) -> Launch:
    run = kernel[(grid, 1, 1)]

    def call(stream: int, *arguments: Any) -> None:
        run(*arguments, stream=stream)

    return call


Expand = Callable[[int], tuple[Any, ...]]
"""From the address of a buffer to what stands for it among a launcher's arguments."""


@dataclass(frozen=True, slots=True)
class Address:
    """As much of a tensor as Triton asks of a descriptor's base."""

    address: int
    dtype: torch.dtype

    def data_ptr(self) -> int:
        return self.address


def _expanded(call: Launch, expands: Sequence[Expand | None] | None) -> Launch:
    """The same launch, from addresses alone."""
    if expands is None:
        return call
    each = tuple(expands)

    # The allocator gives the same addresses again: mostly all of them were seen together.
    @lru_cache(maxsize=_KEPT)
    def expanded(*pointers: int) -> tuple[Any, ...]:
        found: list[Any] = []
        for pointer, expand in zip(pointers, each, strict=True):
            found += (pointer,) if expand is None else expand(pointer)
        return tuple(found)

    def described(stream: int, *pointers: int) -> None:
        call(stream, *expanded(*pointers))

    return described


def _kept(buffer: Buffer, encode: Callable[[Any], Sequence[Any]]) -> Expand | None:
    """How an argument is expanded; None for a pointer, which stands for itself."""
    described = buffer.descriptor
    if described is None:
        return None
    dtype = getattr(torch, buffer.dtype)
    begin = described.offset * dtype.itemsize
    layout = [list(of) for of in (described.shape, described.stride, described.block)]

    # What is encoded is an address, not what lies there: a kept descriptor never grows stale.
    @lru_cache(maxsize=_KEPT)
    def expand(pointer: int) -> tuple[Any, ...]:
        return tuple(encode(TensorDescriptor(Address(pointer + begin, dtype), *layout)))

    return expand


def _encoders(kernel: Any, buffers: Sequence[Buffer]) -> list[Expand | None]:
    """By Triton's own encoding: the opaque value, then its sizes and strides. A target without
    such values has no `tensordesc_meta`, and gets the address and the sizes instead."""
    metas = iter(getattr(kernel.metadata, "tensordesc_meta", None) or ())
    found = []
    for buffer in buffers:
        meta = None if buffer.descriptor is None else next(metas, None)
        found.append(_kept(buffer, partial(nvidia.make_tensordesc_arg, metadata=meta)))
    return found


def _unwrapped(launch: Any) -> Any:
    """The C launcher inside Triton's wrapper that encodes descriptors; None when this Triton has
    it elsewhere."""
    names = getattr(getattr(launch, "__code__", None), "co_freevars", ())
    if "launcher" not in names or not hasattr(nvidia, "make_tensordesc_arg"):
        return None
    return launch.__closure__[names.index("launcher")].cell_contents


def arguments(source: KernelSource, tensors: Sequence[torch.Tensor]) -> list[Any]:
    """The arguments of Triton's public launch for these tensors: Triton's descriptor objects where
    the kernel wants descriptors, else the tensors themselves; then the kernel's numbers."""
    given: list[Any] = []
    for buffer, tensor in zip(source.buffers, tensors, strict=True):
        found = buffer.descriptor
        if found is None:
            given.append(tensor)
            continue
        begin = tensor.storage_offset() + found.offset
        base = tensor.as_strided(found.shape, found.stride, begin)
        layout = [list(of) for of in (found.shape, found.stride, found.block)]
        given.append(TensorDescriptor(base, *layout))
    return [*given, *(s.value for s in source.scalars)]


class Launcher:
    """One kernel on one device, in two variants.

    `aligned(stream, *pointers)` asks for pointers that are multiples of 16 and lets the compiler
    use wide loads; `unaligned` takes any, and is compiled when it is first called: of a kernel
    with descriptors it is the `plain` one, and raises CompileFailed if there is none. In Triton's
    interpreter `takes_tensors` is true: both take CPU tensors in place of pointers, and ignore
    the stream.
    """

    __slots__ = ("_device", "_unaligned", "aligned", "compiled", "source", "takes_tensors")

    def __init__(
        self,
        source: KernelSource,
        device: torch.device,
        compile: Callable[..., Compiled] = compile_kernel,
    ) -> None:
        self.source = source
        self._device = device
        self._unaligned: Launch | None = None
        self.compiled: Compiled | None = None
        self.takes_tensors = interpreted()
        self.aligned: Launch
        if self.takes_tensors:
            self.aligned = self._unaligned = _interpret(source)
        else:
            if device.type != "cuda":
                raise DeviceError(
                    f"kernel {source.name} needs a CUDA device, and the tensors are on {device}; "
                    "TRITON_INTERPRET=1 runs it without one, slowly"
                )
            with self._current():
                self.compiled = compile(source)
                self.aligned = _bound(self.compiled)

    def unaligned(self, stream: int, *pointers: int) -> None:
        """Launch with pointers of any alignment."""
        if self._unaligned is None:
            source, order = plain(self.source)
            with self._current():
                load = _bound(compile_kernel(source, aligned=False))
            self._unaligned = load if order is None else _reordered(load, order)
        self._unaligned(stream, *pointers)

    def _current(self) -> AbstractContextManager[Any]:
        """Makes the device the current one: a kernel is loaded into its context."""
        return torch.cuda.device(self._device)


def _bound(compiled: Compiled) -> Launch:
    """Raises CompileFailed where the device cannot hold the kernel."""
    source = compiled.source
    try:
        with phase("load"):
            return bind(
                compiled.kernel,
                source.grid,
                buffers=source.buffers,
                scalars=source.scalars,
                dependent=compiled.dependent,
            )
    except OutOfResources as error:
        raise CompileFailed(f"kernel {source.name}: {error}") from error


def build_launcher(compiled: Compiled) -> None:
    """Put the launcher in C of a kernel into Triton's cache, in a process without a device. Triton
    3.6 builds one for each list of types of arguments, by the system's C compiler; 3.7 has one for
    all. Where it cannot be built here, it is built where the kernel is loaded."""
    if not hasattr(nvidia, "make_launcher"):
        return
    try:
        nvidia.CudaLauncher(compiled.kernel.src, compiled.kernel.metadata)
    except Exception:  # of a compiler, a linker, or another Triton's launcher
        log.debug("the launcher of %s is not built ahead", compiled.source.name, exc_info=True)


def plain(source: KernelSource) -> tuple[KernelSource, tuple[int, ...] | None]:
    """The kernel for buffers of any alignment, and the place of each of its arguments among those
    of `source` (None: they are the same)."""
    if not any(b.descriptor for b in source.buffers):
        return source.plain or source, None
    if source.plain is None or any(b.descriptor for b in source.plain.buffers):
        raise CompileFailed(
            f"kernel {source.name}: takes tensor descriptors, and has no variant for buffers that "
            "are not aligned"
        )
    places = {(b.kind, b.index): i for i, b in enumerate(source.buffers)}
    other = replace(source.plain, dependent=source.dependent)
    return other, tuple(places[b.kind, b.index] for b in other.buffers)


def _reordered(call: Launch, order: Sequence[int]) -> Launch:
    def reordered(stream: int, *pointers: Any) -> None:
        call(stream, *(pointers[i] for i in order))

    return reordered


_INTERPRETER = threading.Lock()
"""Triton's interpreter puts its own functions in place of Triton's while a kernel runs: one at a
time, whatever threads there are."""


def _interpret(source: KernelSource) -> Launch:
    kernel = jit_function(source)[(source.grid,)]
    described = [i for i, b in enumerate(source.buffers) if b.descriptor]

    def call(_stream: int, *tensors: Any) -> None:
        if any(tensors[i].data_ptr() % 16 for i in described):
            other, order = plain(source)
            return _reordered(_interpret(other), order or ())(_stream, *tensors)
        with _INTERPRETER:
            kernel(*arguments(source, tensors))

    return call
