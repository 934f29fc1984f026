"""docs/search-economy.md and its plots, from searches that were made (see `economy`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..planner.errors import FusionplanError

if TYPE_CHECKING:
    from .replay import Economy

AFTER = (5, 10, 30)
CLOSE = 1.03

_HEAD = """\
# Search economy

A space here is a number of configs of a workload's largest kernel, at even distances among all that
the compiler would be given: good ones and bad. All of them were measured, each by itself. The
search then looked among them, with its own seeds and its own proposals, and so did random searches
that try no config twice; of those the median is told. Quality is the time of the best config of the
space over that of the best so far: 1 is as good as exhaustive search. The seconds are those of a
search that compiles and measures one config at a time.

{machine}

```sh
scripts/search_economy                          # measures, on a GPU, and writes this file
scripts/search_economy --replay economy.json    # searches again among what was measured, anywhere
```
"""


def write(found: Sequence[Economy], machine: str, folder: Path) -> None:
    """The report and a plot for each space. Raises FusionplanError without matplotlib."""
    folder.mkdir(parents=True, exist_ok=True)
    plots = [_plot(one, folder) for one in found]
    text = "\n".join([_HEAD.format(machine=machine), *_table(found), "", *plots, ""])
    (folder / "search-economy.md").write_text(text, encoding="utf-8")


def quality(best_s: float, seconds: float) -> float:
    """Of a search that has found something of these seconds; 0 before it has."""
    return best_s / seconds


def reached(best_s: float, seconds: Sequence[float]) -> int | None:
    """Trials until within 3% of the best of all; None where that was not reached."""
    return next((n for n, s in enumerate(seconds, 1) if s <= best_s * CLOSE), None)


def _table(found: Sequence[Economy]) -> list[str]:
    after = [n for n in AFTER if all(n <= len(one.ours) for one in found)]
    heads = [f"{who} after {n}" for n in after for who in ("search", "random")]
    heads += ["within 3%: search", "random"]
    rows = [
        "| space | configs | exhaustive best | " + " | ".join(heads) + " |",
        "|---|---|---|" + "---|" * len(heads),
    ]
    for one in found:
        cells = [one.name, str(one.configs), f"{one.best_s * 1e6:.1f} us"]
        for n in after:
            cells += [f"{quality(one.best_s, side[n - 1]):.3f}" for side in (one.ours, one.random)]
        cells.append(_until(one.best_s, one.ours, one.ours_clock))
        cells.append(_until(one.best_s, one.random, one.random_clock))
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def _until(best_s: float, seconds: Sequence[float], clock: Sequence[float]) -> str:
    """Trials, and the seconds they take one after another."""
    trials = reached(best_s, seconds)
    return "not reached" if trials is None else f"{trials} ({clock[trials - 1]:.1f} s)"


def _plot(one: Economy, folder: Path) -> str:
    """Quality by trials and by seconds; the line that shows it in the report."""
    figure, (left, right) = _figure()
    for name, seconds, clock in (
        ("search", one.ours, one.ours_clock),
        ("random, median", one.random, one.random_clock),
    ):
        values = [quality(one.best_s, s) for s in seconds]
        left.step(range(1, len(values) + 1), values, where="post", label=name)
        right.step(clock, values, where="post", label=name)
    for axes, label in ((left, "trials"), (right, "seconds, one config at a time")):
        axes.set_xlabel(label)
        axes.set_ylim(0, 1.05)
        axes.grid(alpha=0.3)
    left.set_ylabel("quality")
    left.legend(loc="lower right")
    figure.suptitle(one.name)
    (folder / "search").mkdir(exist_ok=True)
    figure.savefig(folder / "search" / f"{one.name}.svg", metadata={"Date": None})
    return f"![Quality by trials and by seconds](search/{one.name}.svg)"


def _figure() -> tuple[Any, tuple[Any, Any]]:
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise FusionplanError("plots need matplotlib: pip install fusionplan[plots]") from error
    # The same data give the same file.
    matplotlib.rcParams["svg.hashsalt"] = "fusionplan"
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    return figure, (left, right)
