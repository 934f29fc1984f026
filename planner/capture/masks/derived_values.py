"""Values of an FX graph that follow from positions and numbers alone.

A mask that a model makes for itself has no tensor among its sources: it compares positions, or is
a number everywhere. `known` finds such values without computing them: an integer as an affine
*form* of the indices, any other value as *cases*, a number for each outcome of a few comparisons
of forms.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from .positions import Cases, Known, PositionForm, aligned, padded, simplest

aten = torch.ops.aten

MOST_ATOMS = 6
"""Comparisons of one value; each doubles its cases."""


def known(graph: fx.Graph) -> dict[fx.Node, Known]:
    """The values that follow from positions and numbers alone. Every value of the graph must have
    a static shape."""
    found: dict[fx.Node, Known] = {}
    with _disable_current_modes():
        for node in graph.nodes:
            value = node.meta.get("val")
            if node.op != "call_function" or not isinstance(value, torch.Tensor):
                continue
            if value.numel() == 0 or value.dtype.is_complex:
                continue
            result = _evaluated(node, found)
            if result is not None:
                found[node] = result
    return found


def _evaluated(node: fx.Node, found: dict[fx.Node, Known]) -> Known | None:
    target = node.target
    if target in MADE:
        return MADE[target](node)
    if not all(n in found for n in node.all_input_nodes):
        return _of_joined(node, found)
    if target in _RULES:
        return _RULES[target](node, found)
    if not isinstance(target, torch._ops.OpOverload):
        return None
    if target in _SAME:
        return _elementwise(node, found)
    if target in _AS_VIEWS or (target.is_view and target not in _NO_PLAIN_VIEWS):
        return _of_joined(node, found) or _viewed(node, found)
    if torch.Tag.pointwise in target.tags and not _is_random(target):
        return _arithmetic(node, found) or _elementwise(node, found)
    return None


def _is_random(target: torch._ops.OpOverload) -> bool:
    return torch.Tag.nondeterministic_seeded in target.tags or target._schema.is_mutable


# --- numbers and positions ---


def _filled(place: int) -> Callable[[fx.Node], Known | None]:
    def rule(node: fx.Node) -> Known | None:
        number = node.args[place]
        if not isinstance(number, (bool, int, float)):
            return None
        dtype = value_of(node).dtype
        return Cases((), (torch.full((), number, dtype=dtype).item(),))

    return rule


def _counted(node: fx.Node) -> Known | None:
    start, end, step, *_ = (*node.args, 1, 1)
    if node.target is not aten.arange.start_step:
        start, end, step = (0, start, 1) if node.target is aten.arange.default else (start, end, 1)
    dtype = value_of(node).dtype
    if not isinstance(start, int) or not isinstance(step, int):
        return None
    return _fitting(PositionForm(start, (step,)), node) if dtype in _INTEGERS else None


MADE: dict[Any, Callable[[fx.Node], Known | None]] = {
    aten.full.default: _filled(1),
    aten.full_like.default: _filled(1),
    aten.scalar_tensor.default: _filled(0),
    aten.arange.default: _counted,
    aten.arange.start: _counted,
    aten.arange.start_step: _counted,
}
"""Operations that make a tensor of numbers; the tensor that one of them takes is not read."""

_INTEGERS = (torch.int64, torch.int32)

_LARGEST = 2**31 - 1
"""Of numbers beside positions; a larger one wraps beside integers of 32 bits."""


def _fitting(form: PositionForm, node: fx.Node) -> PositionForm | None:
    """The form, if its integers do not wrap in the node's dtype."""
    value = value_of(node)
    steps = padded(form.steps, value.dim())
    form = PositionForm(
        form.constant, tuple(s if n > 1 else 0 for s, n in zip(steps, value.shape, strict=True))
    )
    limits = torch.iinfo(value.dtype)
    low, high = form.range(value.shape)
    return form if limits.min <= low and high <= limits.max else None


# --- elementwise operations ---


def _arithmetic(node: fx.Node, found: dict[fx.Node, Known]) -> Known | None:
    """Sums, multiples and comparisons of forms; None for anything else."""
    packet = node.target.overloadpacket  # type: ignore[union-attr]
    operands = [_form(a, found) for a in node.args[:2]]
    if any(form is None for form in operands) or not operands:
        return None
    left, *rest = (form for form in operands if form is not None)
    right = rest[0] if rest else PositionForm(0, ())
    alpha = node.args[2] if len(node.args) > 2 else node.kwargs.get("alpha", 1)
    if value_of(node).dtype == torch.bool:
        differing = left.plus(right, -1)
        compare = _COMPARED.get(packet)
        return None if compare is None else simplest(compare(differing), value_of(node).shape)
    if value_of(node).dtype not in _INTEGERS or not isinstance(alpha, int):
        return None
    if packet is aten.add:
        return _fitting(left.plus(right, alpha), node)
    if packet is aten.sub:
        return _fitting(left.plus(right, -alpha), node)
    if packet is aten.rsub:
        return _fitting(right.plus(left, -alpha), node)
    if packet is aten.neg:
        return _fitting(left.times(-1), node)
    if packet is aten.mul and (left.is_constant or right.is_constant):
        moving, number = (right, left) if left.is_constant else (left, right)
        return _fitting(moving.times(number.constant).plus(PositionForm(0, number.steps)), node)
    return None


def _at_least(form: PositionForm) -> Cases:
    return Cases((form,), (False, True))


def _equal(form: PositionForm) -> Cases:
    return Cases((form, form.times(-1)), (False, False, False, True))


def _not(cases: Cases) -> Cases:
    return replace(cases, values=tuple(not v for v in cases.values))


_COMPARED: dict[Any, Callable[[PositionForm], Cases]] = {
    aten.ge: _at_least,
    aten.lt: lambda form: _not(_at_least(form)),
    aten.le: lambda form: _at_least(form.times(-1)),
    aten.gt: lambda form: _not(_at_least(form.times(-1))),
    aten.eq: _equal,
    aten.ne: lambda form: _not(_equal(form)),
}
"""By comparison, where it holds of the difference of its operands."""


def _elementwise(node: fx.Node, found: dict[fx.Node, Known]) -> Known | None:
    """By running the operation once on all cases of its operands."""
    value, atoms = value_of(node), dict[PositionForm, None]()
    if node.target in _SAME and value.dtype in _INTEGERS:
        form = _form(node.args[0], found)
        if form is not None:
            return _fitting(form, node)
    operands: dict[fx.Node, Cases] = {}
    for source in node.all_input_nodes:
        cases = _cases(found[source])
        if cases is None:
            return None
        operands[source] = cases
        atoms.update(dict.fromkeys(aligned(a, value.dim()) for a in cases.atoms))
    order = tuple(atoms)
    if len(order) > MOST_ATOMS:
        return None
    rows = {n: _spread(cases, order, value_of(n), value.dim()) for n, cases in operands.items()}
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: rows[n])
    kwargs = {k: v for k, v in kwargs.items() if k not in _PLACEMENT}
    result = node.target(*args, **kwargs)  # type: ignore[operator]
    if not isinstance(result, torch.Tensor) or result.dtype != value.dtype:
        return None
    numbers = result.expand(1 << len(order)).tolist()
    return simplest(Cases(order, tuple(numbers)), value.shape)


_PLACEMENT = ("device", "layout", "pin_memory", "memory_format", "non_blocking")


def _spread(
    cases: Cases, order: Sequence[PositionForm], like: torch.Tensor, rank: int
) -> torch.Tensor:
    """The value of the cases for every outcome of a longer list of atoms."""
    places = [order.index(aligned(a, rank)) for a in cases.atoms]
    values = []
    for outcome in range(1 << len(order)):
        own = sum((outcome >> place & 1) << k for k, place in enumerate(places))
        values.append(cases.values[own])
    # A tensor without dimensions takes part in type promotion otherwise than one with.
    if like.dim() == 0 and not places:
        return torch.tensor(values[0], dtype=like.dtype, device="cpu")
    return torch.tensor(values, dtype=like.dtype, device="cpu")


# --- views, joins, lookups ---


def _viewed(node: fx.Node, found: dict[fx.Node, Known]) -> Known | None:
    source = node.args[0]
    if not isinstance(source, fx.Node) or value_of(source).dtype != value_of(node).dtype:
        return None
    target: Any = _AS_VIEWS.get(node.target, node.target)

    def moved(form: PositionForm) -> PositionForm | None:
        """The form at the indices of the view: strides follow a view as steps do."""
        before = aligned(form, value_of(source).dim())
        parts = []
        for sign in (1, -1):  # a stride is never negative
            strides = [max(0, sign * s) for s in before.steps]
            tensor = torch.empty_strided(
                value_of(source).shape, strides, dtype=torch.uint8, device="meta"
            )
            try:
                view = target(tensor, *node.args[1:], **node.kwargs)
            except (RuntimeError, ValueError, IndexError):
                return None  # dimensions are joined that no one step walks
            parts.append(PositionForm(view.storage_offset(), tuple(view.stride())))
        steps = PositionForm(before.constant, ()).plus(parts[0]).plus(parts[1], -1).steps
        constant = before.constant + parts[0].constant - parts[1].constant
        shape = value_of(node).shape
        return PositionForm(
            constant, tuple(s if n > 1 else 0 for s, n in zip(steps, shape, strict=True))
        )

    return _mapped(found[source], moved, value_of(node).shape)


def _mapped(
    value: Known, moved: Callable[[PositionForm], PositionForm | None], shape: Sequence[int]
) -> Known | None:
    """The value with each of its forms replaced."""
    if isinstance(value, PositionForm):
        return moved(value)
    atoms = [moved(atom) for atom in value.atoms]
    if any(atom is None for atom in atoms):
        return None
    return simplest(replace(value, atoms=tuple(a for a in atoms if a is not None)), shape)


def _shifted(value: Known, dim: int, by: int, shape: Sequence[int]) -> Known | None:
    """The value of which index i along a dimension is index i + by of this one."""

    def moved(form: PositionForm) -> PositionForm:
        form = aligned(form, len(shape))
        return PositionForm(form.constant + by * form.steps[dim], form.steps)

    return _mapped(value, moved, shape)


def _joined(node: fx.Node, found: dict[fx.Node, Known]) -> Known | None:
    """A concatenation of pieces that one form, or the same cases, describe."""
    pieces, dim = _pieces(node)
    shape = value_of(node).shape
    starts = list(itertools.accumulate((value_of(p).shape[dim] for p in pieces), initial=0))
    parts = [(p, start) for p, start in zip(pieces, starts, strict=False) if value_of(p).numel()]
    longest, start = max(parts, key=lambda part: value_of(part[0]).shape[dim])
    whole = _shifted(found[longest], dim, -start, shape)
    for piece, start in parts:
        own = value_of(piece).shape
        if whole is None or _shifted(whole, dim, start, own) is None:
            return None
        seen = _shifted(whole, dim, start, own)
        if _over(seen, own) != _over(found[piece], own):
            return None
    return whole


def _pieces(node: fx.Node) -> tuple[Sequence[fx.Node], int]:
    """What a concatenation joins, and along which dimension."""
    given: list[Any] = [*node.args, 0]
    return given[0], given[1] % value_of(node).dim()


def _over(value: Known | None, shape: Sequence[int]) -> Known | None:
    """The value as it looks over a shape: an index along a dimension of length 1 is 0."""

    def moved(form: PositionForm) -> PositionForm:
        steps = padded(form.steps, len(shape))
        return PositionForm(
            form.constant, tuple(s if n > 1 else 0 for s, n in zip(steps, shape, strict=True))
        )

    return None if value is None else _mapped(value, moved, shape)


def _of_joined(node: fx.Node, found: dict[fx.Node, Known]) -> Known | None:
    """A slice of a concatenation that lies inside one piece, as that undoes a padding."""
    source = node.args[0] if node.args else None
    if node.target is not aten.slice.Tensor or not isinstance(source, fx.Node):
        return None
    if source.target is not aten.cat.default:
        return None
    pieces, axis = _pieces(source)
    shape = value_of(node).shape
    given: list[Any] = [*node.args[1:], *(0, None, None, 1)[len(node.args) - 1 :]]
    if given[0] % len(shape) != axis or given[3] != 1:
        return None
    low = given[1] or 0
    first = low if low >= 0 else low + value_of(source).shape[axis]
    start = 0
    for piece in pieces:
        size = value_of(piece).shape[axis]
        if piece in found and start <= first and first + shape[axis] <= start + size:
            return _over(_shifted(found[piece], axis, first - start, shape), shape)
        start += size
    return None


def _summed(node: fx.Node, found: dict[fx.Node, Known]) -> Known | None:
    """The running sum of one integer."""
    source, dim, *_ = node.args
    form = _form(source, found)
    if form is None or not form.is_constant or value_of(node).dtype not in _INTEGERS:
        return None
    rank = value_of(node).dim()
    steps = [0] * rank
    if rank:
        steps[int(dim) % rank] = form.constant  # type: ignore[arg-type]
    return _fitting(PositionForm(form.constant, tuple(steps)), node)


def _indexed(node: fx.Node, found: dict[fx.Node, Known]) -> Known | None:
    """A known value at known positions, one for each of its dimensions."""
    source, indices = node.args
    assert isinstance(source, fx.Node)
    assert isinstance(indices, (list, tuple))
    shape = value_of(node).shape
    value = found[source]
    if isinstance(value, Cases) and not value.atoms:
        return value
    if len(indices) != value_of(source).dim():
        return None
    places: list[PositionForm] = []
    for index, size in zip(indices, value_of(source).shape, strict=True):
        form = None if index is None else _form(index, found)
        if form is None or value_of(index).dtype == torch.bool:
            return None
        low, high = form.range(value_of(index).shape)
        if low < 0 or high >= size:
            return None
        places.append(form)

    def moved(form: PositionForm) -> PositionForm:
        at = PositionForm(form.constant, (0,) * len(shape))
        for step, place in zip(form.steps, places, strict=True):
            at = at.plus(place, step)
        return at

    return _over(_mapped(_rank(value, len(places)), moved, shape), shape)


def _rank(value: Known, rank: int) -> Known:
    if isinstance(value, PositionForm):
        return aligned(value, rank)
    return replace(value, atoms=tuple(aligned(a, rank) for a in value.atoms))


_RULES: dict[Any, Callable[[fx.Node, dict[fx.Node, Known]], Known | None]] = {
    aten.cat.default: _joined,
    aten.cumsum.default: _summed,
    aten.index.Tensor: _indexed,
    aten._unsafe_index.Tensor: _indexed,
}

_SAME = (aten._to_copy.default, aten.clone.default, aten.copy.default)

_AS_VIEWS: dict[Any, Any] = {aten._unsafe_view.default: aten.view.default}
"""Operations that are views but for their name, and which."""

_NO_PLAIN_VIEWS = (aten.as_strided.default,)


# --- forms and cases ---


def _form(argument: Any, found: dict[fx.Node, Known]) -> PositionForm | None:
    """An integer operand as a form."""
    if isinstance(argument, fx.Node):
        value = found.get(argument)
        if isinstance(value, PositionForm) or value is None:
            return value
        if value_of(argument).dtype.is_floating_point or value.atoms:
            return None
        return PositionForm(int(value.values[0]), (0,) * value_of(argument).dim())
    if not isinstance(argument, int) or abs(argument) > _LARGEST:
        return None
    return PositionForm(int(argument), ())


def _cases(value: Known) -> Cases | None:
    if isinstance(value, Cases):
        return value
    return Cases((), (value.constant,)) if value.is_constant else None


def value_of(node: Any) -> torch.Tensor:
    value = node.meta["val"]
    assert isinstance(value, torch.Tensor)
    return value
