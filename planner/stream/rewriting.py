"""Values under rewriting, and what of them varies along a looped axis (see `online.py`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

from ..graph.dtypes import INDICES
from ..graph.graph import Arg, Ref
from ..graph.op import Op
from ..graph.ops import MAX, MIN
from ..values.values import (
    Compute,
    Dims,
    Fold,
    Literal,
    Value,
    ValueKind,
    Values,
    compute,
    conversion,
    depends,
    mapped,
    written,
)


class Rewriting:
    """Values to which new ones are appended and in which a slot may change its kind: what read
    the slot reads the new kind. `sweeps[f]` numbers the sweep over the loop in which the carried
    fold f is under way; `now` is that of the fold in hand, `along` the factors it reduces."""

    def __init__(self, given: Values, over: frozenset[int]) -> None:
        self.given = given
        self.over = over
        self.values = list(given.values)
        self.sweeps: dict[int, int] = {}
        self.now = 0
        self.along = over
        self.changed = False
        self._forget()

    def _forget(self) -> None:
        self._varies: dict[int, frozenset[int]] = {}
        self._carried: dict[int, frozenset[int]] = {}
        self._same = {self._identity(v.kind, v.dims, v.dtype): v.id for v in self.values}

    @staticmethod
    def _identity(kind: ValueKind, dims: Dims, dtype: str) -> object:
        return kind, written(kind), frozenset(f for dim in dims for f in dim), dtype

    def add(self, kind: ValueKind, dims: Dims, dtype: str, origin: str) -> int:
        """A new value, or the one there is of this kind."""
        key = self._identity(kind, dims, dtype)
        if key not in self._same:
            self._same[key] = len(self.values)
            self.values.append(Value(len(self.values), kind, dims, dtype, origin))
        return self._same[key]

    def copied(self, slot: int) -> int:
        """What is in a slot, as another value, which the slot may read."""
        self.values.append(replace(self.values[slot], id=len(self.values)))
        return len(self.values) - 1

    def there(self, kind: ValueKind, like: int) -> int | None:
        """The value that there is of a kind, of the shape and dtype of another value."""
        return self._same.get(self._identity(kind, self.values[like].dims, self.values[like].dtype))

    def number(self, number: float, dtype: str) -> int:
        return self.add(Literal(number), (), dtype, repr(number))

    def cast(self, value: int, dtype: str) -> int:
        source = self.values[value]
        if source.dtype == dtype:
            return value
        return self.add(conversion(source, dtype), source.dims, dtype, source.origin)

    def compute(self, op: Op, like: int, /, **operands: Arg) -> int:
        """A new value of an operation in the dtype of another value, and of its shape."""
        own = self.values[like]
        kind = compute(op, own.dtype, **operands)
        return self.add(kind, own.dims, kind.result, own.origin)

    def with_operands(self, value: int, operands: Mapping[str, int]) -> Compute:
        """The computation of a value with some of its operands changed."""
        kind = self.values[value].kind
        assert isinstance(kind, Compute)
        new = tuple((n, Ref(operands[n]) if n in operands else a) for n, a in kind.operands)
        return replace(kind, operands=new)

    def rebuilt(self, value: int, operands: Mapping[str, int]) -> int:
        """A value computed with other operands."""
        old = self.values[value]
        return self.add(self.with_operands(value, operands), old.dims, old.dtype, old.origin)

    def put(self, slot: int, result: int) -> None:
        """Let all that reads the slot read what `result` computes."""
        self.values[slot] = replace(self.values[slot], kind=self.values[result].kind)
        self.changed = True
        self._forget()

    def is_carried(self, kind: ValueKind) -> bool:
        return isinstance(kind, Fold) and bool(self.over) and self.over <= set(kind.reduced)

    def varies(self, value: int) -> frozenset[int]:
        """The factors on which a value really depends."""
        for each in self.operands_first([value], self._varies):
            self._varies[each] = depends(self.values[each], self._varies)
        return self._varies[value]

    def carried(self, value: int) -> frozenset[int]:
        """The carried folds that a value reads before any other, itself where it is one."""
        for each in self.operands_first([value], self._carried):
            reads = self.values[each].reads
            self._carried[each] = (
                frozenset({each})
                if self.is_carried(self.values[each].kind)
                else frozenset[int]().union(*(self._carried[r] for r in reads))
            )
        return self._carried[value]

    def streams(self, argument: Arg) -> bool:
        """Whether an operand varies over what the fold in hand reduces."""
        return isinstance(argument, Ref) and not self.along.isdisjoint(self.varies(argument.node))

    def waits(self, value: int) -> frozenset[int]:
        """The carried folds in a value that are under way in the sweep of the fold in hand."""
        return frozenset(f for f in self.carried(value) if self.sweeps[f] == self.now)

    def is_extremum(self, value: int) -> bool:
        kind = self.values[value].kind
        return isinstance(kind, Fold) and kind.monoid in (MAX, MIN) and bool(self.waits(value))

    def constant(self, argument: Arg) -> float | None:
        """The number that an operand is everywhere, if it is one."""
        if isinstance(argument, (bool, int, float)):
            return float(argument)
        if isinstance(argument, Ref):
            match self.values[argument.node].kind:
                case Literal(number=number):
                    return float(number)
                case Compute(op=Op.CONVERT, operands=((_, inner),)):
                    return self.constant(inner)
        return None

    def uncopied(self, value: int) -> int:
        """The index behind its conversions."""
        match self.values[value]:
            case Value(kind=Compute(op=Op.CONVERT, operands=((_, Ref(inner)),)), dtype=dtype):
                return self.uncopied(inner) if dtype in INDICES else value
        return value

    def unconverted(self, value: int) -> int:
        """The value behind conversions that change nothing: what the user has rounded to a shorter
        type is kept in the working one."""
        match self.values[value]:
            case Value(kind=Compute(op=Op.CONVERT, operands=((_, Ref(inner)),)), dtype=dtype):
                return self.unconverted(inner) if self.values[inner].dtype == dtype else value
        return value

    def names(self, values: Sequence[int] | frozenset[int]) -> str:
        return ", ".join(self.values[v].origin for v in sorted(values))

    def live(self) -> list[int]:
        """All that the outputs read, every value after its operands."""
        return self.operands_first(sorted({o.value for o in self.given.outputs}))

    def operands_first(self, wanted: Sequence[int], known: Container[int] = ()) -> list[int]:
        """The wanted values and all that they read, but for what is known and what only that
        reads, every value after its operands."""
        order: dict[int, None] = {}
        pending = [value for value in reversed(wanted) if value not in known]
        while pending:
            reads = sorted(self.values[pending[-1]].reads)
            missing = [read for read in reads if read not in order and read not in known]
            if missing:
                pending.extend(reversed(missing))
            else:
                order[pending.pop()] = None
        return list(order)

    def readers(self) -> Counter[int]:
        """By value, how many others read it, stores included."""
        found = Counter(o.value for o in self.given.outputs)
        for value in self.live():
            found.update(self.values[value].reads)
        return found

    def finish(self) -> tuple[Values, Mapping[int, int]]:
        """The live values, numbered densely, and their new ids."""
        if not self.changed:
            return self.given, {v.id: v.id for v in self.given.values}
        order = self.live()
        renamed = {old: new for new, old in enumerate(order)}
        values = tuple(
            replace(
                self.values[old], id=new, kind=mapped(self.values[old].kind, renamed.__getitem__)
            )
            for old, new in renamed.items()
        )
        outputs = tuple(replace(o, value=renamed[o.value]) for o in self.given.outputs)
        return Values(values, outputs, self.given.extents), renamed


def unless_zero(work: Rewriting, total: int, result: int) -> int:
    """A sum of zeros selected by a mask stays 0 where its multiplier is infinite or NaN: the row
    that a softmax has masked altogether."""
    empty = work.compute(Op.EQ, total, self=Ref(total), other=0)
    return work.compute(Op.WHERE, total, condition=Ref(empty), self=Ref(total), other=Ref(result))
