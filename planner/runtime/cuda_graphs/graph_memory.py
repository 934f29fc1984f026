"""Memory of CUDA graphs: each has a pool of its own, or graphs of several sizes share a few.

A graph holds addresses, so that its memory stays where it is. Of graphs that share a pool, each may
use all of it: a replay writes over whatever the last one gave. So a pool knows whose results lie in
it, and is not replayed in while somebody holds one. To PyTorch's allocator such a pool is empty as
soon as a graph is captured, and the next graph is laid over the first; its segments grow where they
are, so that it becomes as large as its largest graph needs, in whatever order sizes come.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch

from ...collector import paused
from ...lowerings.base import Boxed

IN_TURN = 2
"""Pools that sizes share, and graphs for the same addresses: a loop holds its last result while it
computes the next."""


class RecordedCall(NamedTuple):
    """A captured call. moved: by place, where the graph reads the inputs that move. outputs: what
    each replay fills. nbytes: of the graph's own memory. left: bytes that are then free on the
    device."""

    replay: Callable[[], None]
    moved: tuple[tuple[int, torch.Tensor], ...]
    outputs: list[Any]
    nbytes: int = 0
    left: float = math.inf


class Held(Protocol):
    """The results of a replay."""

    @property
    def is_held(self) -> bool: ...


@dataclass(slots=True, eq=False)
class GraphPool:
    """The memory of one graph, or of several in turn. is_shared: of several. last: what the last
    replay gave. graph: one of those in a shared pool, which keeps PyTorch's pool alive. stream:
    that of the last replay."""

    is_shared: bool = False
    last: Held | None = None
    graph: Any = None
    stream: int | None = None

    @property
    def is_held(self) -> bool:
        """Whether somebody still holds what the last replay wrote."""
        return self.last is not None and self.last.is_held


@dataclass(frozen=True, slots=True)
class SharedPools:
    """The pools that the graphs of all sizes share."""

    pools: tuple[GraphPool, ...] = field(
        default_factory=lambda: tuple(GraphPool(is_shared=True) for _ in range(IN_TURN))
    )

    def next_to(self, used: Sequence[GraphPool]) -> GraphPool | None:
        """A pool besides these, one that nobody holds where there is any; None: all are used."""
        left = [pool for pool in self.pools if not any(pool is each for each in used)]
        return min(left, key=lambda pool: pool.is_held, default=None)


class GraphRecorder(Protocol):
    """Captures a call. inputs: as the call is given them; moving: those, by place, that the graph
    reads in memory of its own."""

    def __call__(
        self, call: Boxed, inputs: list[Any], moving: Sequence[int], pool: GraphPool
    ) -> RecordedCall: ...


class CudaRecorder:
    """Captures CUDA graphs on a device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __call__(
        self, call: Boxed, inputs: list[Any], moving: Sequence[int], pool: GraphPool
    ) -> RecordedCall:
        shared = pool.is_shared and _can_share()
        with torch.cuda.device(self._device):
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            handle = None if pool.graph is None else pool.graph.pool()
            segments = _growing_segments() if shared else nullcontext()
            with segments, _own_workspace(), _captured(graph, handle):
                before = torch.cuda.memory_reserved(self._device)
                placed = list(inputs)
                for place in moving:
                    placed[place] = torch.empty_like(inputs[place])
                outputs = list(call(list(placed)))
                nbytes = max(0, torch.cuda.memory_reserved(self._device) - before)
            if shared:
                pool.graph = graph
                _keep_till_idle(graph, self._device)
                placed, outputs = _lent(graph, inputs, placed, outputs)
        moved = tuple((place, placed[place]) for place in moving)
        left, _ = torch.cuda.mem_get_info(self._device)
        return RecordedCall(_replay(graph, pool, self._device), moved, outputs, nbytes, left)


@contextmanager
def _captured(graph: Any, handle: Any) -> Iterator[None]:
    """Captures what this thread launches within. What other threads do meanwhile, such as compile,
    does not end the capture, and the collector waits: a graph that it deletes would."""
    with paused(), torch.cuda.graph(graph, pool=handle, capture_error_mode="thread_local"):
        yield


def _replay(graph: Any, pool: GraphPool, device: torch.device) -> Callable[[], None]:
    """Replays on the current stream, after all that was begun on the stream of the last replay in
    this memory: it may still be read there."""
    index = torch.cuda._utils._get_device_index(device, optional=True)
    current: Callable[[int], int] = torch._C._cuda_getCurrentRawStream
    replay: Callable[[], None] = super(torch.cuda.CUDAGraph, graph).replay

    def replayed() -> None:
        stream = current(index)
        if stream != pool.stream:
            if pool.stream is not None:
                last: Any = torch.cuda.ExternalStream(pool.stream, device=device)  # type: ignore[no-untyped-call]
                torch.cuda.current_stream(device).wait_stream(last)
            pool.stream = stream
        replay()

    return replayed


@contextmanager
def _own_workspace() -> Iterator[None]:
    """cuBLAS keeps one workspace for each stream, and all graphs are captured on the same. Without
    this the first graph's would be written by the others, even after that graph and its memory are
    gone. So each captures a new one, in the graph's own memory."""
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


def _can_share() -> bool:
    """Whether the allocator is PyTorch's own, whose pools outlive what is allocated in them."""
    return bool(torch.cuda.get_allocator_backend() == "native")


_GROWING = "expandable_segments"


@contextmanager
def _growing_segments() -> Iterator[None]:
    """Within it, what is allocated anew is a segment that grows where it is, so that a larger
    graph takes the memory of a smaller one and some more. Without it, as where a platform has no
    such segments, nothing of the smaller one's would be large enough."""
    before = _allocator_settings()
    choose: Any = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    choose = choose or getattr(torch._C, "_cuda_cudaCachingAllocator_set_allocator_settings", None)
    if choose is None or f"{_GROWING}:true" in before.lower().replace(" ", ""):
        yield
        return
    # What is not named is set to its default.
    others = [each for each in _options(before) if not each.strip().startswith(_GROWING)]
    choose(",".join([*others, f"{_GROWING}:True"]))
    try:
        yield
    finally:
        choose(",".join([*others, f"{_GROWING}:False"]))


def _options(settings: str) -> list[str]:
    """The options in a text of the allocator's settings; a list in brackets is one of them."""
    found, depth = [""], 0
    for sign in settings:
        depth += (sign == "[") - (sign == "]")
        if sign == "," and not depth:
            found.append("")
        else:
            found[-1] += sign
    return [each for each in found if each.strip()]


def _allocator_settings() -> str:
    told = getattr(torch._C, "_accelerator_getAllocatorSettings", None)
    if told is not None:
        return str(told())
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    return next((os.environ[name] for name in names if name in os.environ), "")


def _keep_till_idle(graph: Any, device: torch.device) -> None:
    """When the graph goes, waits for the device: such memory may be unmapped at once."""
    weakref.finalize(graph, torch.cuda.synchronize, device).atexit = False


class _Lent:
    """Bytes of a graph's memory, which lives as long as somebody holds them."""

    def __init__(self, graph: Any, address: int, size: int) -> None:
        self.graph = graph
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 2,
        }


def _lent(
    graph: Any, inputs: Sequence[Any], placed: Sequence[Any], outputs: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """The tensors in the graph's memory, in storages that the allocator does not know of: to it
    this memory is free for the next graph as soon as the given ones are gone."""
    own = {t.untyped_storage()._cdata for t in inputs if isinstance(t, torch.Tensor)}
    lent: dict[int, torch.UntypedStorage] = {}

    def again(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.untyped_storage()._cdata in own:
            return value
        storage = value.untyped_storage()
        if storage._cdata not in lent:
            memory = _Lent(graph, storage.data_ptr(), storage.nbytes())
            lent[storage._cdata] = torch.as_tensor(memory, device=value.device).untyped_storage()
        empty = torch.empty(0, dtype=value.dtype, device=value.device)
        place = value.storage_offset(), value.shape, value.stride()
        return empty.set_(lent[storage._cdata], *place)

    with torch.no_grad():
        return list(map(again, placed)), list(map(again, outputs))
