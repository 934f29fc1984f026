"""A table that fits where it is printed: words stay whole, so that keys can be copied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from ..terminal import escaped

_GAP = 2
"""Columns of the terminal between two columns of a table."""

_LEAST, _WORD = 14, 40
"""Columns of the terminal that a wide column has at least, and those of the longest word for which
it is made wider."""


@dataclass(slots=True)
class Table:
    """Rows of cells. right: columns of figures. wide: columns of prose, which alone are wrapped
    where the terminal is narrow. extra: columns that it may do without, the last first; what is
    left out is said below. Where even that is too wide, each row is a card: one line for each
    column, with its name in front."""

    columns: Sequence[str]
    right: frozenset[str] = frozenset()
    wide: frozenset[str] = frozenset()
    extra: Sequence[str] = ()
    rows: list[tuple[str, ...]] = field(default_factory=list)
    styles: dict[str, str] = field(default_factory=dict)
    """The style of a cell, by its text."""

    def add_row(self, *cells: str) -> None:
        # Here and not in the console, so that a cell is as wide as what is shown of it.
        self.rows.append(tuple(map(escaped, cells)))

    def widths(self) -> dict[str, int]:
        """Of each column, what its longest cell takes."""
        return {
            name: max(cell_len(line) for line in (name, *(row[place] for row in self.rows)))
            for place, name in enumerate(self.columns)
        }

    def least_widths(self) -> dict[str, int]:
        """Of each column, what it needs so that no word of it is broken."""
        least = self.widths()
        for place, name in enumerate(self.columns):
            if name in self.wide:
                words = [word for row in self.rows for word in row[place].split()]
                longest = min(_WORD, max(map(cell_len, words), default=0))
                least[name] = min(least[name], max(_LEAST, longest))
        return least

    def least_width(self, left_out: Sequence[str] = ()) -> int:
        """Columns of the terminal that it takes without those columns of its own."""
        least = [w for name, w in self.least_widths().items() if name not in left_out]
        return sum(least) + _GAP * len(least)

    def left_out(self, width: int) -> Sequence[str] | None:
        """What is left out to fit into so many columns; None where that is not enough."""
        for count in range(len(self.extra) + 1):
            without = self.extra[len(self.extra) - count :]
            if self.least_width(without) <= width:
                return without
        return None

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        whole = sum(self.widths().values()) + _GAP * len(self.columns)
        most = options.max_width
        return Measurement(min(self.least_width(), most), min(whole, most))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        without = self.left_out(options.max_width)
        if without is None:
            yield from self._cards()
            return
        yield self._made([name for name in self.columns if name not in without])
        if without:
            yield Text(f"too narrow for {', '.join(without)}; --json has all", "dim")

    def _made(self, shown: Sequence[str]) -> RichTable:
        made = RichTable(
            box=SIMPLE_HEAD, pad_edge=False, padding=(0, _GAP - 1, 0, 0), header_style="bold"
        )
        least = self.least_widths()
        for name in shown:
            wraps = name in self.wide
            made.add_column(
                Text(name),
                justify="right" if name in self.right else "left",
                overflow="fold",
                no_wrap=not wraps,
                min_width=least[name] if wraps else None,
            )
        places = [self.columns.index(name) for name in shown]
        for row in self.rows:
            made.add_row(*(Text(row[i], self.styles.get(row[i], "")) for i in places))
        return made

    def _cards(self) -> RenderResult:
        widest = max(map(cell_len, self.columns))
        for row in self.rows:
            yield Text()
            for name, cell in zip(self.columns, row, strict=True):
                if cell:
                    style = self.styles.get(cell, "")
                    yield Text.assemble((name.ljust(widest + 2), "bold"), (cell, style))
        yield Text()
