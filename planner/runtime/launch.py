"""Launching a kernel with as little Python as can be.

Triton's own path from `kernel[grid](...)` binds, hashes and specialises arguments on every call.
A generated kernel has only pointers and one grid, so everything is settled once, and a call goes
straight to Triton's C launcher with the pointers as plain integers.

The C launcher's arguments are private to Triton and differ between versions: 3.6 takes the
scratch buffers before the metadata and the pointers one by one; 3.7 takes them after it, then how
to read the arguments, and the pointers as one tuple. An unknown layout goes the public way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton

from ..codegen.source import KernelSource
from ..errors import DeviceError
from .compile import Compiled, compile_kernel, interpreted, jit_function

Launch = Callable[..., None]
"""`launch(stream, *pointers)`."""

_COMMON = ("launch", "launch_cooperative_grid", "launch_pdl")
_SCRATCH = ("global_scratch_size", "profile_scratch_size")


def bind(kernel: Any, grid: int, version: str = triton.__version__) -> Launch:
    """The shortest launch of a loaded kernel that this Triton has."""
    run = kernel.run
    known = all(hasattr(run, name) for name in (*_COMMON, *_SCRATCH))
    if known and not any(getattr(run, name) for name in _SCRATCH):
        if version.startswith("3.6."):
            return _bind_3_6(kernel, run, grid)
        if version.startswith("3.7.") and hasattr(run, "kernel_signature"):
            return _bind_3_7(kernel, run, grid)
    return _bind_public(kernel, grid)


def _bind_3_6(kernel: Any, run: Any, grid: int) -> Launch:
    launch, function, metadata = run.launch, kernel.function, kernel.packed_metadata
    cooperative, dependent = run.launch_cooperative_grid, run.launch_pdl

    def call(stream: int, *pointers: int) -> None:
        launch(
            *(grid, 1, 1, stream, function, cooperative, dependent),
            *(None, None, metadata, None, None, None),
            *pointers,
        )

    return call


def _bind_3_7(kernel: Any, run: Any, grid: int) -> Launch:
    launch, function, metadata = run.launch, kernel.function, kernel.packed_metadata
    cooperative, dependent = run.launch_cooperative_grid, run.launch_pdl
    annotations, signature = run.arg_annotations, run.kernel_signature

    # One positional call, no unpacking: this is the hottest line of the run time.
    def call(stream: int, *pointers: int) -> None:
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
            pointers,
        )

    return call


def _bind_public(kernel: Any, grid: int) -> Launch:
    run = kernel[(grid, 1, 1)]

    def call(stream: int, *pointers: int) -> None:
        run(*pointers, stream=stream)

    return call


class Launcher:
    """One kernel on one device, in two variants.

    `aligned(stream, *pointers)` asks for pointers that are multiples of 16 and lets the compiler
    use wide loads; `unaligned` takes any, and is compiled when it is first called. In Triton's
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
            self.compiled = compile(source)
            self.aligned = self._load(self.compiled)

    def unaligned(self, stream: int, *pointers: int) -> None:
        """Launch with pointers of any alignment."""
        if self._unaligned is None:
            self._unaligned = self._load(compile_kernel(self.source, aligned=False))
        self._unaligned(stream, *pointers)

    def _load(self, compiled: Compiled) -> Launch:
        # A module is loaded into the current device's context.
        with torch.cuda.device(self._device):
            return bind(compiled.kernel, self.source.grid)


def _interpret(source: KernelSource) -> Launch:
    kernel = jit_function(source)[(source.grid,)]

    def call(_stream: int, *tensors: Any) -> None:
        kernel(*tensors)

    return call
