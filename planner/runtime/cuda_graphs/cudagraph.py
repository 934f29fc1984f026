"""An executor's call as a CUDA graph.

A graph holds addresses. One is captured for a set of input addresses that comes twice; where a few
inputs are elsewhere in every call, as a batch is, or now here and now there, they are copied to a
place of their own first. The outputs stand in the graph's own memory and are handed out as they
are; while somebody still holds one, the call runs by another graph or without any, so that a result
that was given out is never written over. Small outputs of a graph of several kernels are handed out
as copies where that costs less: where a second graph would need much memory, or where the results
of all graphs are held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...capture.capture import Captured
from ...cures import warn
from ...errors import FusionplanError
from ...groups.unwritten import unwritten
from ..execution.executor import Executor
from ..execution.profiled import by_launches, is_profiled
from .graph_memory import IN_TURN, CudaRecorder, GraphPool, GraphRecorder, RecordedCall, SharedPools

SMALL = 1 << 20
"""Bytes up to which an output may be handed out as a copy: about what a launch costs."""

SECOND = 64 << 20
"""Bytes of a graph's own memory up to which others are recorded rather than small outputs copied,
for inference. A copy costs the host four microseconds and the device two in each call."""

AS_MANY = 10
"""So many graphs as large as the last one must fit into what is free, for one of other addresses to
be recorded beside it. Each has memory of its own: with a large intermediate, as where a group is
left to ATen, the graphs of a few sets of inputs would fill a device."""

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
    given: tuple[tuple[int, int], ...]  # outputs that are views of moved inputs, and of which
    pool: GraphPool
    all_out: bool  # whether all outputs are small, and handed out as they are

    @property
    def is_held(self) -> bool:
        """Whether somebody still holds what the last replay wrote."""
        return any(_use_count(storage) > idle for storage, idle in self.shared)


@dataclass(frozen=True, slots=True)
class _Spot:
    """The graphs recorded for inputs that lie at these addresses. places: of the inputs that
    count; the graphs copy the others."""

    addresses: list[Any]
    places: list[int]
    known: list[_Recorded]


@dataclass(frozen=True, slots=True)
class Replay:
    """Calls with other values for some of the inputs, while all others stay what and where they
    are. still: those values, by number, that must lie at an address; moved: those that are copied,
    and for each graph its buffers."""

    own: GraphedExecutor
    known: tuple[_Recorded, ...]
    still: tuple[tuple[int, int], ...]
    moved: tuple[int, ...]

    def __call__(self, values: Sequence[Any]) -> list[Any] | None:
        """The outputs; None where a value lies elsewhere, or all graphs' results are held."""
        for number, address in self.still:
            if values[number].data_ptr() != address:
                return None
        for found in self.known:
            if not found.pool.is_held:
                return self.own.replayed(found, [values[number] for number in self.moved])
        return None


class GraphedExecutor:
    """`executor`, replayed. `boxed` and the call are as the executor's; `replays` counts.

    graphs: most graphs at a time, of one set of addresses where they need much of the device's
    memory; calls for which there is none run plainly. copies: how
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
        self._large = False
        """Whether the last graph needs much of the device's memory."""
        self._seen: Key = ()
        self._last: _Spot | None = None
        """Where the inputs of the last replay lay."""
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
        """The number of calls, launched one by one or replayed."""
        return self.executor.calls + self.replays

    def boxed(self, args: list[Any]) -> Sequence[Any]:
        """As `Executor.boxed`."""
        spot = self._last
        if spot is None or not _lie_at(args, spot.addresses, spot.places):
            spot = self._spot(args)
            if spot is None:
                return self._plain(args, self._seen_as(self._key(args)))
        known = spot.known
        for found in known:
            if not found.pool.is_held:
                self._last = spot if self._all_tensors else None
                moved = [args[place] for place, _ in found.moved]
                args.clear()
                return self.replayed(found, moved)
        if self._room > 0 and len(known) < self._most(known):
            self._capture(args, self._seen_as(self._key(args)))
        return self.executor.boxed(args)

    def replay_at(self, args: Sequence[Any], own: Mapping[int, int]) -> Replay | None:
        """Calls with inputs as these, which are not looked at again. own: by place, the numbers of
        the values that such calls are given. None where no graph is recorded for them."""
        spot = None if by_launches() else self._spot(args)
        if spot is None:
            return None
        moved = [place for place, _ in spot.known[0].moved]
        if not own.keys() >= set(moved):
            return None
        still = [(own[i], spot.addresses[i]) for i in spot.places if i in own]
        return Replay(self, tuple(spot.known), tuple(still), tuple(own[i] for i in moved))

    def _spot(self, args: Sequence[Any]) -> _Spot | None:
        """The graphs for inputs that lie where these do."""
        key = self._key(args)
        known = self._recorded.get(key)
        if known is None and self._moving:
            key = self._fixed(key)
            known = self._recorded.get(key)
        if known is None:
            return None
        return _Spot(list(key), [i for i, at in enumerate(key) if at is not None], known)

    def _seen_as(self, key: Key) -> Key:
        """The key by which graphs for such inputs are recorded."""
        if key in self._recorded or not self._moving:
            return key
        return self._fixed(key)

    def _most(self, known: Sequence[_Recorded]) -> int:
        """Graphs for the same addresses. Where small results of all are held, one more gives
        copies, which nobody can hold."""
        return IN_TURN + (len(known) == IN_TURN and all(found.all_out for found in known))

    def _launched_if_profiled(self, args: list[Any]) -> Sequence[Any]:
        if is_profiled():
            return self.executor.boxed(args)
        return GraphedExecutor.boxed(self, args)

    def _key(self, args: Sequence[Any]) -> Key:
        """Addresses of tensors, and what is none as it is."""
        if self._all_tensors:
            return tuple(map(_address, args))
        return tuple([_address(a) if isinstance(a, torch.Tensor) else a for a in args])

    def replayed(self, found: _Recorded, moved: Sequence[Any]) -> list[Any]:
        """The outputs of a graph. moved: the inputs that it copies."""
        for (_, buffer), value in zip(found.moved, moved, strict=True):
            buffer.copy_(value)
        self.replays += 1
        self._patience = self._again  # Only what misses its graph again and again is copied.
        self._missed = 0
        found.pool.last = found
        found.replay()
        results = [
            o.data if hand is None else hand(o)
            for o, hand in zip(found.outputs, found.hands, strict=True)
        ]
        if moved:  # A view of an input is one of the caller's own.
            for number, source in found.given:
                results[number] = _same_view(results[number], moved[source])
        return results

    def _plain(self, args: list[Any], key: Key) -> Sequence[Any]:
        before, self._seen = self._seen, key
        self._missed += 1
        if not self._has_room and self._missed >= self._stale:
            self._room += sum(map(len, self._recorded.values()))
            self._stale *= 2
            self._recorded.clear()
            self._last = None
        if self._room > 0 and len(before) == len(key):
            elsewhere = tuple(i for i, (a, b) in enumerate(zip(before, key, strict=True)) if a != b)
            if elsewhere:
                self._move(args, key, elsewhere)
            elif self._has_room:
                self._settled(args, key)
        return self.executor.boxed(args)

    @property
    def _has_room(self) -> bool:
        """Whether a graph for other addresses may be recorded beside those that there are."""
        return self._room > 0 and not (self._large and self._recorded)

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
        self._last = None
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
        self._large = self._pools is None and AS_MANY * recording.nbytes > recording.left
        found = self._described(recording, args, pool, len(known))
        self._recorded.setdefault(key, []).append(found)

    def _described(
        self, recording: RecordedCall, args: Sequence[Any], pool: GraphPool, before: int
    ) -> _Recorded:
        """before: the graphs that there are for these addresses."""
        out = self._several and self._copies is None and self._pools is None
        out = out and recording.nbytes <= SECOND and before < IN_TURN
        moved, outputs = recording.moved, recording.outputs
        places = {buffer.untyped_storage()._cdata: i for i, (_, buffer) in enumerate(moved)}
        own, each = {*_storages(args), *places}, Counter(_storages(outputs))
        hands: list[Callable[[Any], Any] | None] = []
        shared: list[tuple[int, int]] = []
        given_by: list[tuple[int, int]] = []
        all_out = out
        for number, value in enumerate(outputs):
            tensor = isinstance(value, torch.Tensor)
            storage = value.untyped_storage()._cdata if tensor else None
            # What is an input, or a view of one, is the caller's own memory.
            given = not tensor or storage in own
            small = not given and value.untyped_storage().nbytes() <= SMALL
            small = small and (self._copies is None or number < self._copies)
            all_out = all_out and (given or small)
            if storage in places:
                given_by.append((number, places[storage]))
            if storage is None:
                hands.append(_as_it_is)
            elif small and self._several and not out:
                hands.append(torch.Tensor.clone)
            else:
                # What shares memory shares its version, too: autograd asks whether it was written.
                is_alone = not given and each[storage] == 1
                hands.append(None if is_alone else torch.Tensor.detach)
                if not given:
                    shared.append((storage, torch._C._storage_Use_Count(storage)))
        handed = tuple(shared), tuple(hands)
        return _Recorded(
            recording.replay, tuple(outputs), *handed, moved, tuple(given_by), pool, all_out
        )


def written(captured: Captured) -> frozenset[int]:
    """The inputs, by place, that a graph writes in place or updates at its end."""
    inputs, kept = captured.graph.inputs, unwritten(captured.graph)
    own = {place for place, node in enumerate(inputs) if node not in kept}
    return frozenset(own | {update.place for update in captured.updates})


_address: Callable[[torch.Tensor], int] = torch.Tensor.data_ptr
_use_count: Callable[[int], int] = torch._C._storage_Use_Count


def _lie_at_each(values: Sequence[Any], addresses: Sequence[Any], places: Sequence[int]) -> bool:
    """Whether the values at these places lie at their addresses."""
    return all(values[i].data_ptr() == addresses[i] for i in places)


_lie_at: Callable[[list[Any], list[Any], list[int]], bool] = getattr(
    torch._C, "_tensors_data_ptrs_at_indices_equal", _lie_at_each
)
"""Torch has it in builds with CUDA alone. It takes some 10 ns a tensor."""


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
