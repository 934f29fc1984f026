"""The agreement of ranks on how a graph with collectives runs.

Ranks that hold parts of one model must compute what they all hold in the same way: by different
plans their copies would be rounded differently, and drift apart. So before a graph with collectives
runs by a plan, each rank posts a digest of that plan in the key-value store of each process group
that the graph names, and reads what the others have posted. All run by the plan, or all fall back.

No collective is used for it: a rank that compiles a graph which the others have compiled already
would wait for ever, and with it the device. It waits for `PATIENCE_S` instead. Then this process
group is done with plans: who is late reads that too. What is decided is one value, which the first
rank to decide sets for all (compare and set). The order of a graph's collectives does not depend on
the plan, so that ranks which have decided at different times do not wait for each other for ever.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch.distributed as dist

from ...graph.graph import digest
from ...plan import Plan

PATIENCE_S = 300.0
"""Seconds for which a rank waits for the others: they may still compile kernels that it has."""

_POLL_S, _POLL_MOST_S = 0.001, 0.1
"""Seconds between two looks, at first and at most."""

_FIGURES = ("evidence", "device", "predicted", "measured", "peers", "chosen", "contest")
"""What a plan says of its speed: no part of how the graph runs."""

# Private to torch: which group has a name, and the store that its ranks met by.
_c10d: Any = dist.distributed_c10d

_APART, _TOGETHER, _NONE = "apart", "together", "none"
_LATE = "fusionplan/apart"


class RankStore(Protocol):
    """The part of `torch.distributed.Store` that is used."""

    def set(self, key: str, value: str) -> Any: ...
    def get(self, key: str) -> bytes: ...
    def check(self, keys: list[str]) -> bool: ...
    def compare_set(self, key: str, expected: str, desired: str) -> bytes: ...


@dataclass(slots=True)
class Ranks:
    """The ranks of one process group. rank: this one's place among `size`. posted: how often it
    has asked the others so far."""

    store: RankStore
    rank: int
    size: int
    patience_s: float = PATIENCE_S
    posted: int = field(default=0, init=False)
    _apart: bool = field(default=False, init=False)

    def agree(self, value: str) -> str:
        """Why the ranks do not all run by the plan of this digest; empty where they do. value: of
        this rank, empty where it has no plan."""
        name = f"fusionplan/{self.posted}"
        self.posted += 1
        self.store.set(f"{name}/{self.rank}", value or _NONE)
        keys = [f"{name}/{rank}" for rank in range(self.size)]
        if not self._wait(keys):
            self.store.set(_LATE, _LATE)
        late = self.store.check([_LATE])
        values = set() if late else {self.store.get(key).decode() for key in keys}
        alike = len(values) == 1 and bool(value)
        wanted = _TOGETHER if alike else _APART
        decided = self.store.compare_set(f"{name}/decided", "", wanted).decode()
        if decided == _TOGETHER and (alike or late):
            return ""
        if late:
            return f"a rank of its process group did not answer within {self.patience_s:.0f} s"
        if _NONE in values:
            return "a rank of its process group has no plan that it can run by"
        return "the ranks of its process group have different graphs or plans"

    def _wait(self, keys: list[str]) -> bool:
        """Whether all of these keys came before the patience was over, this rank's or another's."""
        end, pause = time.monotonic() + self.patience_s, _POLL_S
        while not self.store.check(keys):
            if time.monotonic() > end:
                return False
            if self.store.check([_LATE]):
                return True
            time.sleep(pause)
            pause = min(2 * pause, _POLL_MOST_S)
        return True


_known: dict[str, tuple[Any, Ranks]] = {}
"""The ranks of each process group, with the group: another may come to have its name."""


def ranks_of(group: str) -> Ranks | None:
    """The ranks of the process group of this name; None where no other process takes part: there
    is one rank, or a fake group that stands for more."""
    made = _c10d._resolve_process_group(group)
    size = dist.get_world_size(made)
    if size == 1 or dist.get_backend(made) == "fake":
        return None
    if group not in _known or _known[group][0] is not made:
        store = _c10d._get_process_group_store(made)
        _known[group] = made, Ranks(store, dist.get_rank(made), size)
    return _known[group][1]


def disagreement(groups: Sequence[str], plan: Plan | None) -> str:
    """Why the ranks of these process groups do not all run by this plan; empty where they do.
    plan: None where this rank has none. Every rank of each group must call it."""
    value, why = "" if plan is None else digest(_course(plan)), ""
    for group in groups:
        ranks = ranks_of(group)
        # Who falls back with one group tells the next, so that all who are joined to it do.
        why = (ranks.agree("" if why else value) if ranks is not None else "") or why
    return why


def _course(plan: Plan) -> dict[str, Any]:
    """How a graph runs by the plan, without the figures."""

    def without(data: Any) -> Any:
        if isinstance(data, dict):
            return {name: without(each) for name, each in data.items() if name not in _FIGURES}
        return [without(each) for each in data] if isinstance(data, list) else data

    course: dict[str, Any] = without(plan.to_json())
    return course
