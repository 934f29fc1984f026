"""Numbers as kernel text: literals, and arguments where they vary."""

from __future__ import annotations

import re

from ..graph.sizes import ALIGNED, Amount, Size, plain, varies
from .source import Scalar


class Numbers:
    """The arguments of one kernel that stand for varying numbers, in order of first use."""

    def __init__(self) -> None:
        self._names: dict[object, str] = {}
        self._scalars: dict[str, Scalar] = {}

    def text(self, number: int | float, tells: bool = True) -> str:
        """The number, or the name of the argument that it is: the same one for all numbers that
        agree here and at the probes. tells: whether 16 divides it decides how wide accesses are;
        if none of its uses tells, all such numbers have one kernel."""
        if not varies(number):
            return str(number)
        assert isinstance(number, (Size, Amount))
        identity = plain(number), number.probes
        name = self._names.setdefault(identity, f"n{len(self._names)}")
        aligned = tells and isinstance(number, Size) and number.divisor % ALIGNED == 0
        known = self._scalars.get(name)
        self._scalars[name] = Scalar(
            plain(number), aligned or (known is not None and known.aligned)
        )
        return name

    def used(self, text: str) -> dict[str, Scalar]:
        """The arguments that occur in the text, by name."""
        return {n: s for n, s in self._scalars.items() if re.search(rf"\b{n}\b", text)}
