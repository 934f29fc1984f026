"""An executor's call as a CUDA graph, without copying its inputs.

A graph holds addresses, so one is captured for each set of input addresses that comes twice, up
to a few. The outputs stand in the graph's own memory and are handed out as they are; while
somebody still holds one the call runs without a graph, so that a result that was given out is
never written over. Small outputs of a graph of several kernels are handed out as copies instead:
there a copy costs less than the launches.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import FusionplanError
from .executor import Executor
from .inductor import Boxed

SMALL = 1 << 20
"""Bytes up to which an output may be handed out as a copy: about what a launch costs."""

Record = Callable[[Boxed, list[Any]], tuple[Callable[[], None], list[Any]]]
"""`record(call, inputs)` gives the replay and the outputs that each replay fills."""


@dataclass(frozen=True, slots=True)
class _Recorded:
    replay: Callable[[], None]
    outputs: tuple[Any, ...]
    shared: tuple[tuple[int, int], ...]  # storage of each large output, and its holders when idle
    copied: tuple[bool, ...]


class GraphedExecutor:
    """`executor`, replayed. `boxed` and the call are as the executor's; `replays` counts.

    graphs: most graphs that are captured; calls with still other addresses run plainly.
    """

    def __init__(self, executor: Executor, *, graphs: int = 4, record: Record | None = None):
        self.executor = executor
        self.plan, self.text, self.captured = executor.plan, executor.text, executor.captured
        self.kernels_per_call = executor.kernels_per_call
        self.replays = 0
        self._record = record or _CudaRecorder(executor.device)
        self._room = graphs
        self._recorded: dict[tuple[int, ...], _Recorded] = {}
        self._seen: tuple[int, ...] = ()

    def __call__(self, *inputs: Any) -> list[Any]:
        with torch.no_grad():
            return list(self.boxed(list(inputs)))

    @property
    def calls(self) -> int:
        """How often it ran, in either way."""
        return self.executor.calls + self.replays

    def boxed(self, args: list[Any]) -> Sequence[Any]:
        """As `Executor.boxed`."""
        key = tuple([a.data_ptr() if isinstance(a, torch.Tensor) else a for a in args])
        found = self._recorded.get(key)
        if found is None:
            return self._plain(args, key)
        for storage, idle in found.shared:
            if torch._C._storage_Use_Count(storage) > idle:
                return self.executor.boxed(args)
        args.clear()
        self.replays += 1
        found.replay()
        return [
            (o.clone() if copy else o.detach()) if isinstance(o, torch.Tensor) else o
            for o, copy in zip(found.outputs, found.copied, strict=True)
        ]

    def _plain(self, args: list[Any], key: tuple[int, ...]) -> Sequence[Any]:
        again, self._seen = key == self._seen, key
        if again and self._room > 0:
            self._room -= 1
            self._capture(args, key)
        return self.executor.boxed(args)

    def _capture(self, args: list[Any], key: tuple[int, ...]) -> None:
        before = self.executor.calls
        try:
            replay, outputs = self._record(self.executor.boxed, list(args))
        except (RuntimeError, FusionplanError) as error:
            self._room = 0
            warnings.warn(f"fusionplan: runs without a CUDA graph: {error}", stacklevel=2)
            return
        finally:
            self.executor.discount(self.executor.calls - before)
        own = {a.untyped_storage()._cdata for a in args if isinstance(a, torch.Tensor)}
        copied, shared = [], []
        for value in outputs:
            tensor = isinstance(value, torch.Tensor)
            storage = value.untyped_storage()._cdata if tensor else None
            # What is an input, or a view of one, is the caller's own memory.
            given = not tensor or storage in own
            small = not given and value.untyped_storage().nbytes() <= SMALL
            copied.append(small and self.kernels_per_call > 1)
            if storage is not None and not given and not copied[-1]:
                shared.append((storage, torch._C._storage_Use_Count(storage)))
        self._recorded[key] = _Recorded(replay, tuple(outputs), tuple(shared), tuple(copied))


class _CudaRecorder:
    """Captures into one memory pool: the graphs of an executor never run at the same time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None

    def __call__(self, call: Boxed, inputs: list[Any]) -> tuple[Callable[[], None], list[Any]]:
        with torch.cuda.device(self._device):
            graph = torch.cuda.CUDAGraph()
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, pool=self._pool):
                outputs = list(call(inputs))
        return graph.replay, outputs
