"""Index expressions, masks and shapes of tiles as Triton text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..nests.linear_forms import Access, Affine, Term
from ..tiles.blocks import Blocks, Bound, TileDims
from ..tiles.descriptors import Described
from ..tiles.instructions import Moved
from .numbers import Numbers


def is_taken_for_dot(factors: Sequence[TileDims], dims: TileDims) -> bool:
    """Whether Triton might take a sum of the product of two factors, which have these of the
    dimensions `dims`, for a product of matrices. It does so with `x[:, :, None] * y[None, :, :]` in
    float32, computes that in TF32, and does not look along which axis is summed (3.6, 3.7; its
    pattern CombineBroadcastMulReduce). With the factors in the other order it stays a sum."""

    def last_missing(own: TileDims) -> int:
        return max((place for place, d in enumerate(dims) if own and d not in own), default=-1)

    return [last_missing(own) for own in factors] == [2, 0]


@dataclass(frozen=True, slots=True)
class Text:
    """Writes what depends on the blocks. numbers: the arguments that stand for sizes that vary."""

    blocks: Blocks
    numbers: Numbers
    ends: int | None = None
    """The axis of which there are the lanes of rows' ends alone."""
    once: tuple[int, int] | None = None
    """An axis, and the neighbours along it of which only the first is meant."""

    def shape(self, dims: TileDims) -> str:
        sizes = (self.blocks.sizes[d] // self._alike(d) for d in dims)
        return f"[{', '.join(map(str, sizes))}]"

    def _alike(self, axis: int) -> int:
        """Neighbours along an axis that are one here."""
        return self.once[1] if self.once is not None and self.once[0] == axis else 1

    @staticmethod
    def broadcast(text: str, own: TileDims, dims: TileDims) -> str:
        """A value of dimensions `own` placed among `dims`; a scalar needs no place."""
        if not own or own == dims:
            return text
        return f"{text}[{', '.join(':' if d in own else 'None' for d in dims)}]"

    def reshaped(self, text: str, own: TileDims, dims: TileDims) -> str:
        """The same, by a shape that has 1 where a dimension lacks."""
        if not own or own == dims:
            return text
        sizes = ", ".join(str(self.blocks.sizes[d]) if d in own else "1" for d in dims)
        return f"tl.reshape({text}, [{sizes}])"

    def index(self, axis: int, dims: TileDims, suffix: str = "") -> str:
        """The index along an axis (or, with suffix "_in", whether it is inside)."""
        name = self.blocks.nest.axes[axis].name
        if axis == self.ends:
            name = f"{name}_end_in" if suffix else f"({name}_end_lane - {name}_skip)"
        else:
            name += f"_by{self._alike(axis)}" * (self._alike(axis) > 1) + suffix
        return self.broadcast(name, self.blocks.dims((axis,)), dims)

    def affine(self, form: Affine, dims: TileDims) -> str:
        parts = [self.term(term, dims) for term in form.terms]
        if form.base or not parts:
            parts.append(self.numbers.text(form.base))
        return " + ".join(parts)

    def term(self, term: Term, dims: TileDims) -> str:
        text, number = self.index(term.axis, dims), self.numbers.text
        if self._alike(term.axis) > 1:
            term = replace(term, div=1)
        if term.div > 1:
            text = f"{text} // {number(term.div)}"
        if term.mod:
            mod = number(term.mod)
            text = f"({text}) % {mod}" if term.div > 1 else f"{text} % {mod}"
        if term.scale != 1:
            joined, scale = term.div > 1 or term.mod, number(term.scale)
            text = f"({text}) * {scale}" if joined else f"{text} * {scale}"
        return text

    def pointer(
        self, buffer: str, access: Access, dims: TileDims, places: Sequence[str] = ()
    ) -> str:
        """An address; places: the terms of its offset that values give."""
        text = self.affine(access.offset, dims)
        if places:
            text = " + ".join([*places, *([text] if text != "0" else [])])
        return buffer if text == "0" else f"{buffer} + ({text})"

    def masks(self, access: Access, dims: TileDims, moved: Moved | None = None) -> list[str]:
        """Conditions under which the access is in bounds; none when it always is. moved: how it
        moves from turn to turn, whose number is `lap`."""
        if moved is None:
            return [self._bound(bound, dims) for bound in self.blocks.bounds(access)]
        ends = self.blocks.bounds(replace(access, guards=()))
        found = [self._bound(bound, dims) for bound in ends]
        for guard, by in zip(access.guards, moved.guards, strict=True):
            if not by:
                bounds = self.blocks.bounds(replace(access, guards=(guard,)))[len(ends) :]
                found += [self._bound(bound, dims) for bound in bounds]
                continue
            form, limit = guard
            index = f"{self.affine(form, dims)} + lap * {by}"
            found += [f"({index} >= 0)", f"({index} < {limit})"]
        return found

    def _bound(self, bound: Bound, dims: TileDims) -> str:
        if bound.form is None:
            assert bound.axis is not None
            return self.index(bound.axis, dims, "_in")
        text = self.affine(bound.form, dims)
        if bound.limit is None:
            return f"({text} >= 0)"
        return f"({text} < {self.numbers.text(bound.limit)})"

    def coordinates(self, found: Described, starts: dict[int, str]) -> str:
        """The first row and column of a descriptor's block, as 32-bit integers."""
        texts = []
        for axis, terms in ((found.rows, found.row_terms), (found.columns, found.column_terms)):
            parts = [starts[axis]] if starts[axis] != "0" or not terms else []
            parts += [self.term(term, ()) for term in terms]
            text = " + ".join(parts)
            texts.append(f"tl.cast({text}, tl.int32)" if self.blocks.wide else text)
        return f"[{', '.join(texts)}]"
