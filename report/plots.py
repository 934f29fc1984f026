"""The plots of a page, as figures of plotly.

A figure is plain data; the page's script has plotly draw it. Colours are the names of the page's
own colours ("--ours"), which the script looks up, since they differ between light, dark and print.
Plotly reads tags in texts: every text from a model or a store goes through `_text`.
"""

from __future__ import annotations

import gzip
import html
import math
import textwrap
from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from itertools import accumulate
from typing import Any, NamedTuple

from ..terminal import count, duration, escaped
from .data import GraphReport, HistoryEntry, Roof, SearchReport, StepReport, Tried
from .rows import kind, label

MISSING = "there are no plots, because plotly is not installed (pip install plotly)"
"""What the command and a page say that was made without the library."""

Part = dict[str, Any]
"""A piece of a figure, in plotly's own names."""

_COLOURS = {
    "generated": "--ours",
    "region": "--region",
    "compiled": "--inductor",
    "call": "--vendor",
}
"""Of the kinds of steps, as in the templates."""

_LONGEST, _LINES = 90, 6
"""What is shown under the mouse has at most so many characters in a line, and so many lines. The
tables have the whole text."""


class Library(NamedTuple):
    """The text of plotly.js for a page. packed: by gzip, in base64; digest: of the text, SHA-256 in
    base64, by which the page lets it run."""

    packed: str
    digest: str


@cache
def library() -> Library | None:
    """None where plotly is not installed."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        return None
    text = get_plotlyjs().encode()
    packed = gzip.compress(text, mtime=0)
    return Library(b64encode(packed).decode(), b64encode(sha256(text).digest()).decode())


class Plot(NamedTuple):
    """A figure, and the sentence that names it."""

    about: str
    data: tuple[Part, ...]
    layout: Part

    @property
    def figure(self) -> Part:
        """The figure that plotly draws, as JSON data."""
        return {"data": self.data, "layout": self.layout}


# --- the search, and the history ---


def search_plot(search: SearchReport) -> Plot | None:
    """Trials in the order in which they ended, over their seconds; those that failed stand above
    all. None where nothing was timed."""
    trials = list(enumerate(search.trials, 1))
    timed = [(number, trial) for number, trial in trials if trial.seconds]
    failed = [(number, trial) for number, trial in trials if trial.seconds is None]
    chosen = [(number, trial) for number, trial in timed if trial.chosen]
    if not timed:
        return None
    crosses = _trials(failed, {"symbol": "x-thin", "size": 7, "line": _line("--bad", 1.8)})
    data = [
        _trials(timed, {"color": "--other", "size": 6}),
        _best_so_far(timed, len(trials)),
        _trials(chosen, _RING),
        {**crosses, "y": [1] * len(failed), "yaxis": "y2"},
    ]
    layout = {
        "height": 230,
        "xaxis": {"title": _title("trials, in the order in which they ended"), "tickformat": "d"},
        "yaxis": {**_SECONDS, "domain": [0, 0.9 if failed else 1]},
        "yaxis2": {"domain": [0.92, 1], "range": [0, 2], "visible": False, "fixedrange": True},
    }
    return Plot("Trials over time", tuple(trace for trace in data if trace["x"]), layout)


def _trials(trials: Sequence[tuple[int, Tried]], marker: Part) -> Part:
    return {
        "x": [number for number, _ in trials],
        "y": [trial.seconds for _, trial in trials],
        "text": [_text(f"trial {number}: {_outcome(trial)}") for number, trial in trials],
        "mode": "markers",
        "hoverinfo": "text",
        "marker": marker,
    }


def _outcome(trial: Tried) -> str:
    if trial.seconds is None:
        return f"{trial.outcome.replace('_', ' ')}: {trial.reason or trial.candidate}"
    return f"{duration(trial.seconds)}: {trial.candidate}"


def _best_so_far(timed: Sequence[tuple[int, Tried]], last: int) -> Part:
    best = math.inf
    x, y = [], []
    for number, trial in timed:
        if (seconds := trial.seconds or math.inf) < best:
            best = seconds
            x.append(number)
            y.append(best)
    return {
        "x": [*x, last],
        "y": [*y, best],
        "mode": "lines",
        "hoverinfo": "skip",
        "line": {"shape": "hv", "color": "--ours", "width": 1.8},
    }


def history_plot(runs: Sequence[HistoryEntry]) -> Plot | None:
    """Seconds of whole plans that were measured, by date. None for fewer than two."""
    timed = [run for run in runs if run.measured_s and run.same_graph]
    if len(timed) < 2:
        return None
    searched = [run for run in timed if run.key is None]
    stored = [run for run in timed if run.key is not None]
    data = (_runs(searched, {"color": "--other", "size": 7}), _runs(stored, _RING))
    layout = {"height": 230, "xaxis": {"type": "date"}, "yaxis": _SECONDS}
    return Plot("Seconds of whole plans over time", tuple(t for t in data if t["x"]), layout)


def _runs(runs: Sequence[HistoryEntry], marker: Part) -> Part:
    return {
        "x": [run.when for run in runs],
        "y": [run.measured_s for run in runs],
        "text": [_text(f"{duration(run.measured_s)}, {run.when}") for run in runs],
        "mode": "markers",
        "hoverinfo": "text",
        "marker": marker,
    }


# --- the steps ---


def roofline(graph: GraphReport, roof: Roof) -> Plot | None:
    """Operations a second over operations a byte, with the device's roofs: every step that
    calculates, by the model's operations and bytes, at its measured seconds or else the model's.
    None where there is none."""
    found = [(step, at) for step in graph.steps if (at := _position(step, graph)) is not None]
    if not found:
        return None
    low = min(0.1, *(x for _, (x, _) in found)) / 1.3
    high = max(1000.0, *(x for _, (x, _) in found)) * 1.3
    points = {
        "x": [x for _, (x, _) in found],
        "y": [y for _, (_, y) in found],
        **_clicked([step for step, _ in found]),
        "text": [_text(on_roofline(step, graph) or "") for step, _ in found],
        "mode": "markers",
    }
    points["marker"] |= {"size": 11}
    tops = (roof.tensor, "matrix units", "solid"), (roof.arithmetic, "other arithmetic", "dash")
    layout = {
        "height": 290,
        "xaxis": {
            "type": "log",
            "range": [math.log10(low), math.log10(high)],
            "dtick": 1,
            "title": _title("operations for each byte of memory"),
        },
        "yaxis": {
            "type": "log",
            "dtick": 1,
            "exponentformat": "SI extended",
            "title": _title("operations a second"),
        },
        "annotations": [_named_roof(high, top, name) for top, name, _ in tops],
    }
    roofs = [_roof(low, high, top, roof.bandwidth, dash) for top, _, dash in tops]
    return Plot("Roofline of all steps", (*roofs, points), layout)


def _roof(low: float, high: float, top: float, bandwidth: float, dash: str) -> Part:
    return {
        "x": [low, top / bandwidth, high],
        "y": [low * bandwidth, top, top],
        "mode": "lines",
        "hoverinfo": "skip",
        "line": {**_line("--ink", 1.4), "dash": dash},
    }


def _named_roof(x: float, y: float, name: str) -> Part:
    return {
        "x": math.log10(x),
        "y": math.log10(y),
        "text": name,
        "xanchor": "right",
        "yanchor": "bottom",
        "showarrow": False,
    }


def on_roofline(step: StepReport, graph: GraphReport) -> str | None:
    """The place of a step on the roofline, in words; None where it is not there."""
    at = _position(step, graph)
    if at is None:
        return None
    return f"{label(step)}: {count(at[1])} operations a second, {at[0]:.3g} a byte"


def _position(step: StepReport, graph: GraphReport) -> tuple[float, float] | None:
    """Operations a byte, and a second."""
    cost = None if step.group is None else graph.explanation.groups[step.group].predicted
    operations = step.least.flops if cost is None else cost.flops + cost.fma + cost.sfu
    if not (operations and step.hbm_bytes and step.seconds):
        return None
    return operations / step.hbm_bytes, operations / step.seconds


def strip(steps: Sequence[StepReport]) -> Plot | None:
    """All steps of known time in the order of execution, as wide as they are long. None for fewer
    than two."""
    known = [(step, step.seconds) for step in steps if step.seconds]
    if len(known) < 2:
        return None
    ends = list(accumulate(seconds for _, seconds in known))
    bars = {
        "type": "bar",
        "orientation": "h",
        "x": [seconds for _, seconds in known],
        "base": [0.0, *ends[:-1]],
        "y": [0] * len(known),
        "width": 1,
        **_clicked([step for step, _ in known]),
        "text": [
            _text(f"{label(step)}: {duration(seconds)}: {' '.join(step.operations[:8])}")
            for step, seconds in known
        ],
        "textposition": "none",
    }
    layout = {
        "height": 58,
        "xaxis": {**_IN_SECONDS, "range": [0, ends[-1]], "showgrid": False},
        "yaxis": {"visible": False, "fixedrange": True, "range": [-0.5, 0.5]},
        "margin": {"l": 4, "r": 16, "t": 0, "b": 22},
        "bargap": 0,
    }
    return Plot("All steps, as wide as they are long", (bars,), layout)


def _clicked(steps: Sequence[StepReport]) -> Part:
    """Of marks of which a click opens the step."""
    return {
        "customdata": [step.place for step in steps],
        "hoverinfo": "text",
        "marker": {
            "color": [_COLOURS[kind(step.lowering)] for step in steps],
            "line": _line("--paper", 1),
        },
        "selected": {"marker": {"opacity": 1}},
        "unselected": {"marker": {"opacity": 0.65}},
    }


# --- parts ---


def _line(colour: str, width: float) -> Part:
    return {"color": colour, "width": width}


def _title(text: str) -> Part:
    return {"text": text, "standoff": 6}


def _text(text: str) -> str:
    """A text under the mouse, shown as it stands."""
    lines = textwrap.wrap(escaped(text), _LONGEST)[:_LINES]
    return "<br>".join(html.escape(line, quote=False) for line in lines)


_IN_SECONDS: Part = {"exponentformat": "SI", "minexponent": 0, "ticksuffix": "s"}
_SECONDS: Part = {**_IN_SECONDS, "type": "log", "nticks": 6}
_RING: Part = {"color": "--paper", "size": 10, "line": _line("--ours", 2.2)}
