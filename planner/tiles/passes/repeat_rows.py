"""Make a loop over the rows of a filter, in place of the same instructions for each of its rows.

A filter's taps are written out, so that pixels stay in registers from tap to tap. Of 49 taps that
is straight-line code of 60 KB, which an SM fetches again for every program, and the compiler holds
what many rows load. Where each row does the same at other places, one row is a turn of a loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from ...graph.graph import Ref
from ...graph.op import Op
from ...graph.sizes import varies
from ...nests.linear_forms import Access, Affine, Term
from ...nests.nest import Nest
from ...values.values import Compute, Literal
from ..instructions import (
    Body,
    Moved,
    RepeatedSum,
    TileCompute,
    TileLoad,
    TilePlace,
    TileRepeat,
)
from ..program import TileProgram

_LEAST_TURNS = 4
"""Of fewer rows the code is short."""

_Step: TypeAlias = TileLoad | TileCompute


def repeat_rows(program: TileProgram) -> TileProgram:
    """Where neighbours along an axis are values of their own."""
    if all(output.part is None for output in program.nest.outputs):
        return program
    return program.remembering("repeated", lambda: _repeated(program.nest, program.body))


def _repeated(nest: Nest, body: Body) -> Body:
    first = next((i for i, each in enumerate(body) if isinstance(each, TileLoad)), len(body))
    taken = [i for i, each in enumerate(body) if _product(nest, each) is not None]
    steps = body[first : taken[-1] + 1] if taken else ()
    own = [each for each in steps if isinstance(each, (TileLoad, TileCompute))]
    if len(own) < len(steps):
        return body
    before = (*body[:first], *(each for each in own if _is_number(nest, each)))
    own = [each for each in own if not _is_number(nest, each)]
    for turns in range(len(own), _LEAST_TURNS - 1, -1):
        if len(own) % turns == 0:
            found = _Rows(nest, own, turns).repeat()
            if found is not None:
                return (*before, found, *body[first + len(steps) :])
    return body


def _is_number(nest: Nest, each: _Step) -> bool:
    return isinstance(nest.values[each.value].kind, Literal)


def _product(nest: Nest, each: object) -> Compute | None:
    """A product that is added to a sum."""
    if not isinstance(each, TileCompute) or each.rounded or each.bits is not None:
        return None
    kind = nest.values[each.value].kind
    return kind if isinstance(kind, Compute) and kind.op is Op.FMA else None


class _Rows:
    """Instructions cut into turns of the same number of them."""

    def __init__(self, nest: Nest, steps: Sequence[_Step], turns: int) -> None:
        self.nest = nest
        each = len(steps) // turns
        self.turns = [steps[n * each : (n + 1) * each] for n in range(turns)]
        self.place = {
            step.value: (n, at) for n, turn in enumerate(self.turns) for at, step in enumerate(turn)
        }

    def repeat(self) -> TileRepeat | None:
        """The loop; None where a turn differs from the others in more than its places."""
        body: list[_Step] = []
        sums: dict[int, None] = {}
        for steps in zip(*self.turns, strict=True):
            if all(isinstance(step, TileLoad) for step in steps):
                load = _moved([step for step in steps if isinstance(step, TileLoad)])
                if load is None:
                    return None
                body.append(load)
                continue
            kinds = [_product(self.nest, step) for step in steps]
            found = [None if k is None else self._operands(k, n) for n, k in enumerate(kinds)]
            addend = self._addend(found, kinds)
            if addend is None or not isinstance(steps[1], TileCompute):
                return None
            if addend[0] == -1:
                sums[addend[1]] = None
            body.append(steps[1])
        values = [[turn[at].value for turn in self.turns] for at in sums]
        repeated = tuple(RepeatedSum(own[0], own[1], own[-1]) for own in values)
        if not sums or not self._is_apart({s.last for s in repeated}):
            return None
        return TileRepeat(len(self.turns), tuple(body), repeated)

    def _operands(self, kind: Compute, turn: int) -> dict[str, tuple[int, int] | object]:
        """Each operand by the turn that gives it, counted from this one, and its place there; what
        no turn gives as it is."""
        found: dict[str, tuple[int, int] | object] = {}
        for name, operand in kind.operands:
            given = self.place.get(operand.node) if isinstance(operand, Ref) else None
            found[name] = operand if given is None else (given[0] - turn, given[1])
        return found

    def _addend(
        self,
        found: Sequence[dict[str, tuple[int, int] | object] | None],
        kinds: Sequence[Compute | None],
    ) -> tuple[int, int] | None:
        """Where what the steps at one place of all turns add to is given; None where they do not
        all do the same. In the first turn what the turn before would have given is 0."""
        if any(own is None for own in found) or any(k is None for k in kinds):
            return None
        first, *others = (dict(own) for own in found if own is not None)
        if any(own != others[0] for own in others) or "addend" not in others[0]:
            return None
        alike = {(k.op, k.result, k.working, k.accuracy) for k in kinds[1:] if k is not None}
        addend = others[0].pop("addend")
        if len(alike) != 1 or not isinstance(addend, tuple) or addend[0] not in (0, -1):
            return None
        begins = self._is_zero(first["addend"]) if addend[0] == -1 else first["addend"] == addend
        del first["addend"]
        return addend if begins and first == others[0] else None

    def _is_zero(self, operand: object) -> bool:
        if not isinstance(operand, Ref):
            return False
        kind = self.nest.values[operand.node].kind
        return isinstance(kind, Literal) and kind.number == 0.0

    def _is_apart(self, given: set[int]) -> bool:
        """Whether all that others read of the turns is what the last one gives."""
        inside = self.place.keys()
        stored = {output.value for output in self.nest.outputs}
        later = (
            read for value in self.nest.values if value.id not in inside for read in value.reads
        )
        return {*stored, *later} & inside <= given


def _moved(loads: Sequence[TileLoad]) -> TileLoad | None:
    """The load of all turns, each at a fixed distance from the one before."""
    first, second = loads[:2]
    if {load.place for load in loads} != {TilePlace.REGISTERS} or any(
        load.access.at or load.via or load.joined or load.twice for load in loads
    ):
        return None
    bases = [load.access.offset.base for load in loads]
    if any(map(varies, bases)):
        return None
    step = bases[1] - bases[0]
    alike = {(lo.input, lo.rows, lo.in_pairs, lo.repeats, lo.access.type.dtype) for lo in loads}
    alike_terms = {load.access.offset.terms for load in loads}
    if len(alike) != 1 or len(alike_terms) != 1 or not _is_even(bases, step):
        return None
    guards = _guards([load.access for load in loads], step)
    if guards is None:
        return None
    forms = tuple((form, limit) for form, limit, _ in guards)
    access = replace(first.access, guards=forms)
    return replace(second, access=access, moved=Moved(step, tuple(by for *_, by in guards)))


def _is_even(bases: Sequence[int], step: int) -> bool:
    return all(base == bases[0] + n * step for n, base in enumerate(bases))


def _guards(accesses: Sequence[Access], step: int) -> list[tuple[Affine, int, int]] | None:
    """The guards of the first turn, each with what its index moves by. A turn whose index is never
    outside has no guard."""
    known: dict[tuple[tuple[Term, ...], int], dict[int, int]] = {}
    for turn, access in enumerate(accesses):
        for form, limit in access.guards:
            if varies(form.base) or varies(limit) or not form.terms:
                return None
            own = known.setdefault((form.terms, limit), {})
            if turn in own:
                return None
            own[turn] = form.base
    found = []
    for (terms, limit), bases in known.items():
        by = _step_of(accesses[0], terms, bases, step, len(accesses))
        if by is None:
            return None
        turn, base = next(iter(bases.items()))
        found.append((Affine(terms, base - turn * by), limit, by))
    return found


def _step_of(
    access: Access, terms: Sequence[Term], bases: Mapping[int, int], step: int, turns: int
) -> int | None:
    """What a guard's index moves by in a turn, of which the bases of some turns are known."""
    if len(bases) == turns and len({*bases.values()}) == 1:
        return 0
    inner = terms[0]
    own = next((t for t in access.offset.terms if t.axis == inner.axis), None)
    if own is None or own.scale % inner.scale:
        return None
    stride = own.scale // inner.scale  # elements from one index to the next
    if not stride or step % stride:
        return None
    by = step // stride
    turn, base = next(iter(bases.items()))
    return by if all(b == base + (n - turn) * by for n, b in bases.items()) else None
