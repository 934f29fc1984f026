"""A graph as a page shows it: what its templates ask for, in words and places."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property

from ..planner.explanation import Explanation, GroupExplanation, Kernel, Otherwise
from ..planner.lowerings.registry import LOWERINGS
from ..terminal import duration
from .data import Border, GraphReport, Roof, SearchReport, StepReport, Stored, Tried
from .plots import Plot, history_plot, on_roofline, roofline, search_plot, strip
from .predicted import FigureRow, figures
from .rows import DrawnRow, kind, label, lanes_width, rows
from .spent import Spent, identity, spent

_DEAREST = 12
"""Borders that are listed for the whole graph."""
_LONGEST = 10
"""Kinds of steps that are listed as the longest."""
_TRIALS = 120
"""Trials that are listed for a group, the last ones."""
_FAILURES = 30
"""Failures that are listed for a group, those of one reason once."""


_KINDS = {
    "generated": "generated kernel ({})",
    "region": "a region of several graphs ({})",
    "compiled": "torch.compile's kernels ({})",
    "call": "a call of the vendor or of ATen ({})",
}
"""For people, with the names of the lowerings of a kind."""


@dataclass(frozen=True, slots=True)
class Detail:
    """A row with what a click shows. name: of its part of the page; same: the name of what it
    shares with equal groups."""

    name: str
    row: DrawnRow
    group: GroupExplanation | None
    figures: tuple[FigureRow, ...]
    same: str | None

    @property
    def is_measured(self) -> bool:
        return any(figure.measured is not None for figure in self.figures)


@dataclass(frozen=True, slots=True)
class Same:
    """Equal groups, which share kernels and search. group: the first of them; count: of them."""

    name: str
    group: GroupExplanation
    search: SearchReport | None
    plot: Plot | None
    count: int = 1

    @staticmethod
    def body(kernel: Kernel) -> str:
        """The nest without its axes, which stand in a table."""
        lines = kernel.nest.splitlines()
        return "\n".join(line for line in lines if not line.startswith("axis "))

    @property
    def outcomes(self) -> list[tuple[str, int]]:
        """The number of trials with each outcome, the most frequent first."""
        trials = self.search.trials if self.search else ()
        return Counter(trial.outcome for trial in trials).most_common()

    @property
    def trials(self) -> list[tuple[int, Tried]]:
        """The last trials with their numbers in the plot."""
        found = list(enumerate(self.search.trials if self.search else (), 1))
        return found[-_TRIALS:]

    @property
    def listed(self) -> int:
        return len(self.trials)

    @property
    def failures(self) -> list[tuple[Tried, int]]:
        """A trial for each way to fail, with how many failed so."""
        found: dict[tuple[str, str], list[Tried]] = {}
        for trial in self.search.trials if self.search else ():
            if trial.seconds is None:
                found.setdefault((trial.outcome, trial.reason), []).append(trial)
        return [(trials[0], len(trials)) for trials in found.values()][:_FAILURES]

    @property
    def sections(self) -> list[tuple[str, list[str]]]:
        """Titles with lines."""
        group = self.group
        largest = [f"{t}" for t in group.temporaries]
        proofs = [f"{d.fold}, {d.rule}: {d.formula}" for d in group.derived]
        sections = [
            ("Between its kernels", largest),
            ("Derived, so that reductions share one sweep", proofs),
            ("A sweep of its own", [str(d) for d in group.denied]),
            ("Layouts that it does not have", [str(d) for d in group.layouts]),
            ("Runs instead of the region", [_body(*body) for body in group.bodies]),
        ]
        return [(title, lines) for title, lines in sections if lines]


class GraphPage:
    """One graph of a report; `number` tells it from the others of the page."""

    def __init__(self, number: int, graph: GraphReport, roof: Roof) -> None:
        self.number, self.graph = number, graph
        found = rows(graph)
        self.width = lanes_width(found)
        self.roofline: Plot | None = roofline(graph, roof)
        self.strip: Plot | None = strip(graph.steps)
        self.history: Plot | None = history_plot(graph.runs)
        same: dict[str, Same] = {}
        self.details = tuple(self._detail(row, same) for row in found)
        self.same = tuple(same.values())

    def _detail(self, row: DrawnRow, same: dict[str, Same]) -> Detail:
        step, name = row.step, f"step-{self.number}-{row.step.place}"
        if step.group is None:
            return Detail(name, row, None, (), None)
        group = self.graph.explanation.groups[step.group]
        content = step.search or f"group {step.group}"
        key = f"{content} {group.lowering} {group.config} {group.options}"
        if key in same:
            same[key] = replace(same[key], count=same[key].count + 1)
        else:
            search = next((s for s in self.graph.searches if s.key == step.search), None)
            plot = None if search is None else search_plot(search)
            same[key] = Same(f"same-{self.number}-{len(same)}", group, search, plot)
        return Detail(name, row, group, figures(group), same[key].name)

    # --- the graph as a whole ---

    @property
    def open(self) -> int | None:
        """The place of the step that is shown first: the longest group, for there is most to see
        of groups."""
        steps = self.graph.steps
        longest = max(steps, key=lambda s: (s.group is not None, s.seconds or 0.0), default=None)
        return None if longest is None else longest.place

    @property
    def gone(self) -> int:
        return sum(len(step.gone) for step in self.graph.steps)

    @property
    def gone_bytes(self) -> int:
        return sum(value.nbytes for step in self.graph.steps for value in step.gone)

    @property
    def operations(self) -> int:
        return len({node for step in self.graph.steps for node in self._nodes(step)})

    def _nodes(self, step: StepReport) -> list[int]:
        if step.group is None:
            return [] if step.node is None else [step.node]
        return [o.node for o in self.graph.explanation.groups[step.group].operations]

    @property
    def kernels(self) -> int:
        """Launches of generated kernels."""
        return sum(s.kernels for s in self.graph.steps if LOWERINGS[s.lowering].generated)

    @property
    def others(self) -> int:
        """Steps that are not generated."""
        return sum(not LOWERINGS[s.lowering].generated for s in self.graph.steps)

    @property
    def any_measured(self) -> bool:
        return any(step.measured_s is not None for step in self.graph.steps)

    @property
    def unknown(self) -> int:
        """Steps of which the model knows no time."""
        return sum(step.seconds is None for step in self.graph.steps)

    @property
    def kinds(self) -> list[tuple[str, str]]:
        """The kinds of steps that there are, each with the names of its lowerings."""
        found: dict[str, dict[str, None]] = {}
        for row in (detail.row for detail in self.details):
            found.setdefault(row.kind, {})[row.step.lowering] = None
        return [(kind, _KINDS[kind].format(", ".join(names))) for kind, names in found.items()]

    def over(self, nbytes: int) -> str:
        """Beside the bytes of the plan."""
        plan = self.graph.traffic.plan_bytes
        if not plan:
            return ""
        times = nbytes / plan
        return f"{times:.2f}x" if times >= 0.01 else f"{times:.1g}x"

    @cached_property
    def dearest(self) -> list[tuple[str, Border, int]]:
        """Each border once, with the label of its first step; equal ones, such as those of a
        model's layers, together with their number. What one of them costs most comes first."""
        steps = self.graph.steps
        found: dict[tuple[object, ...], tuple[str, Border, int]] = {}
        for step in steps:
            for border in step.borders:
                if step.place > border.other:
                    continue
                ends = identity(step), identity(steps[border.other])
                key = *ends, border.spared_bytes, self.why(border)
                first = found.get(key, (self.label(step.place), border, 0))
                found[key] = *first[:2], first[2] + 1
        return sorted(found.values(), key=lambda each: -each[1].spared_s)[:_DEAREST]

    @property
    def seconds(self) -> float:
        """Of one call: measured, else predicted."""
        measured = self.graph.explanation.measured_s
        return self.graph.predicted_s if measured is None else measured

    @cached_property
    def longest_steps(self) -> tuple[Spent, ...]:
        """Equal steps together, those that take most of the time first."""
        return spent(self.graph.steps)[:_LONGEST]

    @staticmethod
    def percent(share: float) -> str:
        return f"{share:.0%}" if share >= 0.005 else "under 1%"

    @property
    def known_s(self) -> float:
        return sum(step.seconds or 0.0 for step in self.graph.steps)

    # --- a step ---

    @staticmethod
    def kind(step: StepReport) -> str:
        return kind(step.lowering)

    @staticmethod
    def brief(seconds: float) -> str:
        return duration(seconds) if seconds >= 1e-9 else "under 1 ns"

    def label(self, place: int) -> str:
        return label(self.graph.steps[place])

    def times(self, step: StepReport) -> list[tuple[str, str, float]]:
        """Name, kind and seconds of the bars of a step."""
        found = [
            ("measured", "plan", step.measured_s),
            ("predicted", "apart" if step.measured_s is not None else "plan", step.predicted_s),
            ("the device's least", "least", step.least.seconds),
        ]
        return [(name, kind, seconds) for name, kind, seconds in found if seconds is not None]

    def longest(self, step: StepReport) -> float:
        return max(seconds for _, _, seconds in self.times(step)) or 1.0

    def read_by(self, tensor: Stored) -> str:
        names = list(dict.fromkeys(self.label(reader) for reader in tensor.readers))
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        told = [f"read by {', '.join(names[:4])}{more}"] if names else []
        told += ["a result"] if tensor.result else []
        return "".join(f", {text}" for text in told)

    def given(self, step: StepReport) -> list[tuple[str, Stored]]:
        """The tensors that a step reads of other steps, with the labels of those."""
        read = [t for t in self.graph.stored if step.place in t.readers]
        return [(self.label(tensor.writer), tensor) for tensor in read]

    def touched(self, step: StepReport) -> str:
        """Numbers of the tensors that a step reads or writes."""
        found = enumerate(self.graph.stored)
        return " ".join(str(i) for i, t in found if step.place in (t.writer, *t.readers))

    def on_roofline(self, step: StepReport) -> str | None:
        return on_roofline(step, self.graph)

    def alone(self, step: StepReport) -> Otherwise | None:
        """Why an operation is in no group."""
        found = self.graph.explanation.alone
        return next((a.otherwise for a in found if a.operation.node == step.node), None)

    def otherwise(self, otherwise: Otherwise) -> str:
        if otherwise.refusal is not None:
            return f"{otherwise.refusal.rule}: {otherwise.refusal.reason}"
        ours, aten = duration(otherwise.generated_s), duration(otherwise.aten_s)
        return f"The cost model expects {ours} of the best generated kernel, {aten} as ATen."

    def why(self, border: Border) -> str:
        if border.refusal is not None:
            return f"{border.refusal.rule}: {border.refusal.reason}"
        together = f"the cost model expects {duration(border.together_s)} of one kernel"
        if border.apart_s is None:
            return f"{together}, and has no figure for two"
        return f"{together}, {duration(border.apart_s)} of both apart"


def _body(times: int, body: Explanation) -> str:
    groups = "; ".join(
        f"{g.lowering}: {' '.join(o.name for o in g.operations[:6])}" for g in body.groups
    )
    return f"{times} times in a call: {groups or 'no group'}; {len(body.alone)} operations by ATen"
