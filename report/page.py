"""The page of a report: one HTML file that fetches nothing."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..markup import render, text_of
from ..planner.errors import FusionplanError
from ..planner.plan import RANK, Evidence, is_kept
from .data import Report
from .gain import runs_as
from .plots import MISSING, library
from .view import GraphPage

LIMIT = 3_000_000
"""A page has at most so many bytes."""


@dataclass(frozen=True, slots=True)
class Shown:
    """The amount of detail for which a page has room, for all groups."""

    kernels: bool = True
    operations: bool = True
    plots: bool = True
    details: bool = True

    @property
    def left_out(self) -> tuple[str, ...]:
        names = (
            ("the text of the kernels (planner show --source prints it)", self.kernels),
            ("the tables of operations (planner explain prints them)", self.operations),
            ("the plots (planner report --json has their data)", self.plots),
            ("all that a click on a group shows (planner explain --group prints it)", self.details),
        )
        return tuple(name for name, has in names if not has)


LEVELS = (
    Shown(),
    Shown(kernels=False),
    Shown(kernels=False, operations=False),
    Shown(kernels=False, operations=False, plots=False),
    Shown(kernels=False, operations=False, plots=False, details=False),
)
"""From everything to what a model of very many groups has room for."""


class Verdict(NamedTuple):
    """One sentence, and how it begins."""

    times: str
    rest: str


def page(report: Report, limit: int = LIMIT) -> str:
    """The report as HTML of at most so many bytes: of a model for which that is too little, less is
    shown of its groups, and the page says what. Raises FusionplanError where that is no help."""
    graphs = [GraphPage(n, graph, report.roof) for n, graph in enumerate(report.graphs)]
    for shown in LEVELS:
        text = _rendered(report, graphs, shown)
        if len(text.encode()) <= limit:
            return text
    raise FusionplanError(
        f"the report of {len(graphs)} graphs takes more than {limit} bytes: report one plan by its "
        "key (planner plans lists them)"
    )


def _rendered(report: Report, graphs: Sequence[GraphPage], shown: Shown) -> str:
    script = text_of("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    contests = {graph.contest for graph in report.graphs}
    return render(
        "report.html",
        report=report,
        graphs=graphs,
        shown=shown,
        verdict=verdict(report),
        evidence=_evidence(report),
        measured=any(way.measured for way in report.gain.ways),
        unknown=sum(graph.unknown for graph in graphs),
        contest=next(iter(contests)) if len(contests) == 1 else None,
        compared=bool(contests - {None}),
        larger=_larger(report),
        library=library() if shown.plots else None,
        has_library=library() is not None,
        missing=MISSING,
        script=script,
        script_digest=digest,
    )


def _larger(report: Report) -> int | None:
    """The graphs that ran in each call of the contest, where the page does not show all of them."""
    graphs = report.gain.graphs
    return None if graphs == sum(graph.times for graph in report.graphs) else graphs


def _evidence(report: Report) -> Evidence:
    """The weakest of the graphs."""
    found = [graph.explanation.evidence for graph in report.graphs]
    return min(found, key=lambda evidence: RANK[evidence], default="modelled")


def verdict(report: Report) -> Verdict | None:
    """The gain, in a sentence; None where there is nothing to compare with."""
    gain, as_whole = report.gain, runs_as(report.graphs)
    if as_whole is not None and any(way.measured for way in gain.ways):
        return Verdict("No gain:", f"{is_kept(as_whole, gain.timing is not None)} (measured).")
    if gain.times is None:
        return None
    least = next((way.seconds for way in gain.ways if way.kind == "least"), None)
    plan = next(way for way in gain.ways if way.kind == "plan")
    beside = (
        f" It takes {plan.seconds / least:.1f} times the device's least (by the model)."
        if least
        else ""
    )
    times, larger = f"{gain.times:.2f}x", _larger(report)
    measured = "measured" if larger is None else f"measured, the whole model of {larger} graphs"
    if gain.best is None:
        rest = "as fast as each operation by itself (by the cost model)."
    elif gain.times > 1.0:
        compared = " that was compared" if gain.left_out else ""
        rest = f"as fast as {gain.best}, the fastest baseline{compared} ({measured})."
    else:
        rest = f"the speed of {gain.best}, the fastest baseline ({measured}): no gain."
    return Verdict(times, rest + beside)
