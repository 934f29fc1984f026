"""`Tuned`, the result of `tune`: the plans of a model, and what runs it by them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .db.records import PlanRecord
from .markup.plan_card import cards_html
from .planner.errors import PlanError
from .planner.graph.graph import short_names
from .planner.plan import Plan
from .tuner.capture.capture_model import CapturedModel
from .tuner.session.place import Place


@dataclass(frozen=True, slots=True, repr=False)
class Tuned:
    """The result of `tune`. Call it to run the model by its plans.

    If the plans are for a GPU that is not here, a call runs the model as it is.
    """

    plans: tuple[Plan, ...]
    """One plan for each different graph, in the order of `captured.parts`."""
    records: tuple[PlanRecord, ...]
    """The same plans as the store has them."""
    captured: CapturedModel
    """The graphs of the model."""
    place: Place
    """The device that the model runs on, and the one that it is planned for."""
    interrupted: bool
    """Whether Ctrl-C, or the loss of the GPU, ended the search. The plans are then the best so far,
    and a graph that was not begun has none."""
    _run: Callable[..., Any] = field(repr=False)
    unloadable: str | None = None
    """Why plans for a GPU that is not here cannot be loaded there; None if they can."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(*args, **kwargs)

    def __repr__(self) -> str:
        evidence = sorted({plan.evidence for plan in self.plans})
        names = ", ".join(dict.fromkeys(record.name for record in self.records))
        about = [*([names] if names else []), self.place.profile.name, *evidence]
        about += [f"{self.speedup:.2f}x"] if self.speedup is not None else []
        about += ["interrupted"] if self.interrupted else []
        count = len(self.plans)
        return f"<Tuned: {count} plan{'s' * (count != 1)}; {'; '.join(about)}>"

    def _repr_html_(self) -> str:
        parts = self.captured.parts
        cards = []
        for plan, record, part in zip(self.plans, self.records, parts, strict=False):
            graph = part.captured.graph
            names = [" ".join(short_names(graph, group.nodes)) for group in plan.groups]
            cards.append(plan.card(record.name, names))
        notes = list(self.captured.notes)
        notes += ["Interrupted: the plans are the best until then."] if self.interrupted else []
        return cards_html(cards, notes)

    @property
    def plan(self) -> Plan:
        """The plan of the graph that takes the most time. Raises PlanError if there is no plan."""
        if not self.plans:
            raise PlanError("torch.compile took no graph from the model: there is nothing to plan")
        return max(self.plans, key=lambda p: p.measured or p.predicted or 0.0)

    @property
    def speedup(self) -> float | None:
        """The time of the fastest baseline divided by ours, for all graphs together. None if it was
        not measured."""
        times = [part.times for part in self.captured.parts]
        baselines: dict[str, float] = {}
        ours = 0.0
        for plan, count in zip(self.plans, times, strict=False):
            if plan.measured is None or not plan.baselines:
                return None
            ours += plan.measured * count
            for name, seconds in plan.baselines:
                baselines[name] = baselines.get(name, 0.0) + seconds * count
        return min(baselines.values()) / ours if ours else None
