"""Text for people: control characters made visible, durations, and a console for data.

What comes from a model or a store is data. It must not be read as markup, nor move the cursor,
change colours or hide text in the terminal of whoever reads it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_KEPT = "\n\t"


def escaped(text: str) -> str:
    """The text with every control and direction character but newline and tab written as its
    escape, so that ESC is shown as \\x1b."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_shown, text))


def _shown(character: str) -> str:
    # Cc: control. Cf: format, such as those that turn the direction of writing. Cs: half a pair.
    if character in _KEPT or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return character
    return character.encode("unicode_escape").decode("ascii")


def duration(seconds: float | None) -> str:
    """Three figures with a unit; a dash for what is not known."""
    if seconds is None:
        return "-"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def size(nbytes: float | None) -> str:
    """Bytes in units of 1024; a dash for what is not known."""
    if nbytes is None:
        return "-"
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes >= 1 << power:
            return f"{nbytes / (1 << power):.1f} {unit}"
    return f"{nbytes:.0f} B"


def count(number: float) -> str:
    """Three figures with a unit of thousands."""
    for scale, unit in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= scale:
            return f"{number / scale:.3g} {unit}"
    return f"{number:.3g}"


def data_console(file: IO[str], width: int | None = None) -> Console:
    """A console to which everything is data: nothing in it is markup, and no control character
    of it reaches the terminal. width: None is the terminal's."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class DataConsole(Console):
        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                if segment.control is not None:
                    yield segment
                    continue
                # rich drops colours alone for NO_COLOR, and leaves bold.
                style = None if self.no_color else segment.style
                yield segment._replace(text=escaped(segment.text), style=style)

    return DataConsole(file=file, width=width, highlight=False, markup=False, emoji=False)
