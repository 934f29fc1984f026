"""An executor's call as a CUDA graph.

A graph holds addresses. One is captured for a set of input addresses that comes twice; where a few
inputs are elsewhere in every call, as a batch is, or now here and now there, they are copied to a
place of their own first. The outputs stand in the graph's own memory and are handed out as they
are; while somebody still holds one, the call runs by another graph or without any, so that a result
that was given out is never written over. Small outputs of a graph of several kernels are handed out
as copies instead: there a copy costs less than the launches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..capture.capture import Captured
from ..cures import warn
from ..errors import FusionplanError
from ..groups.unwritten import unwritten
from .executor import Executor
from .graph_memory import IN_TURN, CudaRecorder, GraphPool, GraphRecorder, RecordedCall, SharedPools
from .profiled import by_launches, is_profiled

SMALL = 1 << 20
"""Bytes up to which an output may be handed out as a copy: about what a launch costs."""

MOVED, MOVED_EACH = 8 << 20, 1 << 20
"""Bytes of inputs that a call may copy to where its graph reads them, or for each kernel that its
graph spares the host, where that is more: half a microsecond, where a launch takes several."""

_FEW, _LAUNCHES = 4, 8
"""Inputs that are copied besides one for each launch that a graph spares; launches for each input,
where they are large."""

_STALE = 16
"""Calls in a row that no graph fits before all make room for others; twice as many each time."""

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Recorded:
    replay: Callable[[], None]
    outputs: tuple[Any, ...]
    shared: tuple[tuple[int, int], ...]  # storage of each large output, and its holders when idle
    hands: tuple[Callable[[Any], Any] | None, ...]  # how each output is handed out; None: `.data`
    moved: tuple[tuple[int, torch.Tensor], ...]  # inputs by place, and where the graph reads them
    given: tuple[int | None, ...]  # of each output, the moved input that it is a view of
    pool: GraphPool

    @property
    def is_held(self) -> bool:
        """Whether somebody still holds what the last replay wrote."""
        count = torch._C._storage_Use_Count
        return any(count(storage) > idle for storage, idle in self.shared)


class GraphedExecutor:
    """`executor`, replayed. `boxed` and the call are as the executor's; `replays` counts.

    graphs: most graphs at a time; calls for which there is none run plainly. copies: how
    many of the outputs, from the first on, may be handed out as copies; None: all of them. What a
    forward graph saves for its backward graph must stay where it is, for that one's sake. patience:
    calls with other addresses after which inputs are copied: those of a backward graph stay in
    place once its forward graph is replayed. pools: what its graphs share with those of other
    sizes; None: each graph has memory of its own.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        graphs: int = 4,
        copies: int | None = None,
        patience: int = 0,
        pools: SharedPools | None = None,
        record: GraphRecorder | None = None,
    ):
        self.executor = executor
        self.plan, self.text, self.captured = executor.plan, executor.text, executor.captured
        self.kernels_per_call = executor.kernels_per_call
        self.replays = 0
        self._record = record or CudaRecorder(executor.device)
        self._pools = pools
        self._room, self._copies, self._patience = graphs, copies, patience
        self._missed, self._stale = 0, _STALE
        nodes = executor.captured.graph.nodes
        self._stay = written(executor.captured)
        """The inputs, by place, that the graph writes. It must write the caller's own, no copy."""
        self._all_tensors = all(nodes[i].type is not None for i in executor.captured.graph.inputs)
        self._again = max(1, patience)
        self._recorded: dict[Key, list[_Recorded]] = {}
        self._moving: tuple[int, ...] = ()
        """The inputs that are elsewhere in every call, by place."""
        self._seen: Key = ()
        if by_launches():
            self.boxed = self._launched_if_profiled  # type: ignore[method-assign]

    def __call__(self, *inputs: Any) -> list[Any]:
        with torch.no_grad():
            return list(self.boxed(list(inputs)))

    @property
    def _several(self) -> bool:
        """Whether a call launches several kernels, of ours or of others."""
        others = any(group.config is None for group in self.plan.groups)
        return self.kernels_per_call > 1 or others

    @property
    def calls(self) -> int:
        """How often it ran, in either way."""
        return self.executor.calls + self.replays

    def boxed(self, args: list[Any]) -> Sequence[Any]:
        """As `Executor.boxed`."""
        key = self._key(args)
        known = self._recorded.get(key)
        if known is None and self._moving:
            key = self._fixed(key)
            known = self._recorded.get(key)
        if known is None:
            return self._plain(args, key)
        for found in known:
            if not found.pool.is_held:
                return self._replayed(found, args)
        if self._room > 0 and len(known) < IN_TURN:
            self._capture(args, key)
        return self.executor.boxed(args)

    def replay_at(self, args: Sequence[Any]) -> Callable[[], Sequence[Any]] | None:
        """Calls with inputs at these very addresses, which are not looked at again; None where no
        graph is recorded for them."""
        if by_launches():
            return None
        known, kept = self._recorded.get(self._key(args)), tuple(args)
        if known is None:
            return None

        def again() -> Sequence[Any]:
            for found in known:
                if not found.pool.is_held:
                    return self._replayed(found, list(kept))
            return self.boxed(list(kept))

        return again

    def _launched_if_profiled(self, args: list[Any]) -> Sequence[Any]:
        if is_profiled():
            return self.executor.boxed(args)
        return GraphedExecutor.boxed(self, args)

    def _key(self, args: Sequence[Any]) -> Key:
        """Addresses of tensors, and what is none as it is."""
        if self._all_tensors:
            return tuple(map(_address, args))
        return tuple([_address(a) if isinstance(a, torch.Tensor) else a for a in args])

    def _replayed(self, found: _Recorded, args: list[Any]) -> Sequence[Any]:
        own: dict[int, torch.Tensor] = {}
        for place, buffer in found.moved:
            own[place] = args[place]
            buffer.copy_(args[place])
        args.clear()
        self.replays += 1
        self._patience = self._again  # Only what misses its graph again and again is copied.
        self._missed = 0
        found.pool.last = found
        found.replay()
        results = [
            o.data if hand is None else hand(o)
            for o, hand in zip(found.outputs, found.hands, strict=True)
        ]
        if own:  # A view of an input is one of the caller's own.
            for number, source in enumerate(found.given):
                if source is not None:
                    results[number] = _same_view(results[number], own[source])
        return results

    def _plain(self, args: list[Any], key: Key) -> Sequence[Any]:
        before, self._seen = self._seen, key
        self._missed += 1
        if self._room <= 0 and self._missed >= self._stale:
            self._room += sum(map(len, self._recorded.values()))
            self._stale *= 2
            self._recorded.clear()
        if self._room > 0 and len(before) == len(key):
            elsewhere = tuple(i for i, (a, b) in enumerate(zip(before, key, strict=True)) if a != b)
            if elsewhere:
                self._move(args, key, elsewhere)
            else:
                self._settled(args, key)
        return self.executor.boxed(args)

    def _settled(self, args: list[Any], key: Key) -> None:
        """Capture a graph for addresses that came twice. Of a few inputs that the graphs there are
        have elsewhere, it is not the last place either: they are copied. With patience only from
        the third place on."""
        places = self._strayed(key)
        known = len(self._recorded) > (self._again > 1)
        if places and known and self._may_copy(args, places):
            self._copy_too(places, key)
        self._capture(args, self._seen)

    def _strayed(self, key: Key) -> tuple[int, ...]:
        """The inputs, few if any, that the graph nearest to these addresses has elsewhere."""
        known = [k for k in self._recorded if len(k) == len(key)]
        stay = [i for i in range(len(key)) if i not in self._moving]
        strayed = (tuple(i for i in stay if k[i] != key[i]) for k in known)
        return min((s for s in strayed if len(s) <= _FEW), key=len, default=())

    def _move(self, args: Sequence[Any], key: Key, places: tuple[int, ...]) -> None:
        """Copy these inputs from now on, if patience is over and that costs little."""
        if not self._may_copy(args, places):
            return
        self._patience -= 1
        if self._patience < 0:
            self._patience = self._again
            self._copy_too(places, key)

    def _may_copy(self, args: Sequence[Any], places: tuple[int, ...]) -> bool:
        """Whether to copy these inputs, too, costs little, and none of them is written."""
        if not self._stay.isdisjoint(places):
            return False
        return _may_move([args[i] for i in sorted({*self._moving, *places})], self._launches)

    def _copy_too(self, places: tuple[int, ...], key: Key) -> None:
        """Copy these inputs from now on; graphs that copy fewer make room."""
        self._moving = tuple(sorted({*self._moving, *places}))
        self._seen = self._fixed(key)
        for known in [k for k in self._recorded if None in k or self._fixed(k) == self._seen]:
            self._room += len(self._recorded.pop(known))

    @property
    def _launches(self) -> int:
        """Kernels that a call launches at least."""
        return self.kernels_per_call + sum(g.config is None for g in self.plan.groups)

    def _fixed(self, key: Key) -> Key:
        """The key without what moves."""
        return tuple(None if i in self._moving else k for i, k in enumerate(key))

    def _capture(self, args: list[Any], key: Key) -> None:
        known = [found.pool for found in self._recorded.get(key, ())]
        pool = GraphPool() if self._pools is None else self._pools.next_to(known)
        if pool is None:
            return
        self._room -= 1
        moving = self._moving if any(key[i] is None for i in self._moving) else ()
        before = self.executor.calls
        try:
            recording = self._record(self.executor.boxed, list(args), moving, pool)
        except (RuntimeError, FusionplanError) as error:
            self._room = 0
            warn("no-cudagraph", f"runs without a CUDA graph: {error}")
            return
        finally:
            self.executor.discount(self.executor.calls - before)
        found = self._described(recording, args, pool)
        self._recorded.setdefault(key, []).append(found)

    def _described(
        self, recording: RecordedCall, args: Sequence[Any], pool: GraphPool
    ) -> _Recorded:
        moved, outputs = recording.moved, recording.outputs
        buffers = {buffer.untyped_storage()._cdata: place for place, buffer in moved}
        own, each = {*_storages(args), *buffers}, Counter(_storages(outputs))
        hands: list[Callable[[Any], Any] | None] = []
        shared: list[tuple[int, int]] = []
        given_by: list[int | None] = []
        for number, value in enumerate(outputs):
            tensor = isinstance(value, torch.Tensor)
            storage = value.untyped_storage()._cdata if tensor else None
            # What is an input, or a view of one, is the caller's own memory.
            given = not tensor or storage in own
            small = not given and value.untyped_storage().nbytes() <= SMALL
            small = small and (self._copies is None or number < self._copies)
            given_by.append(None if storage is None else buffers.get(storage))
            if storage is None:
                hands.append(_as_it_is)
            elif small and self._several:
                hands.append(torch.Tensor.clone)
            else:
                # What shares memory shares its version, too: autograd asks whether it was written.
                is_alone = not given and each[storage] == 1
                hands.append(None if is_alone else torch.Tensor.detach)
                if not given:
                    shared.append((storage, torch._C._storage_Use_Count(storage)))
        handed = tuple(shared), tuple(hands)
        return _Recorded(recording.replay, tuple(outputs), *handed, moved, tuple(given_by), pool)


def written(captured: Captured) -> frozenset[int]:
    """The inputs, by place, that a graph writes in place or updates at its end."""
    inputs, kept = captured.graph.inputs, unwritten(captured.graph)
    own = {place for place, node in enumerate(inputs) if node not in kept}
    return frozenset(own | {update.place for update in captured.updates})


_address: Callable[[torch.Tensor], int] = torch.Tensor.data_ptr


def _as_it_is(value: Any) -> Any:
    return value


def _same_view(view: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Of a tensor what `view` is of a buffer that begins as the tensor does."""
    offset = source.storage_offset() + view.storage_offset()
    return source.detach().as_strided(view.shape, view.stride(), offset)


def _may_move(values: Sequence[Any], launches: int) -> bool:
    """Whether to copy these inputs in each call costs little beside so many launches."""
    if not all(isinstance(v, torch.Tensor) for v in values):
        return False
    # A copy of what lies in memory more than once, or with holes, has other strides.
    if any(torch.empty_like(v, device="meta").stride() != v.stride() for v in values):
        return False
    size = sum(v.nbytes for v in values)
    if size <= MOVED:
        return len(values) <= _FEW + launches
    return size <= MOVED_EACH * launches and _LAUNCHES * len(values) <= launches


def _storages(values: Sequence[Any]) -> Iterator[int]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value.untyped_storage()._cdata
