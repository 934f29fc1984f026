"""Factors, windows and accesses against numpy's and torch's own index arithmetic."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from corpus import graph_of
from fusionplan.planner.config import NATURAL
from fusionplan.planner.errors import Refused
from fusionplan.planner.nests.nest import Access, Affine, Nest, schedule
from fusionplan.planner.trace.trace import trace
from fusionplan.planner.trace.windows import split_windows
from fusionplan.planner.values.axes import Factors, FactorSpace
from fusionplan.planner.values.values import Load, Window
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import whole_group

pytestmark = pytest.mark.dynamo

# --- factors -----------------------------------------------------------------------------------


def split(number: int, draw) -> tuple[int, ...]:
    """A random ordered factorisation."""
    sizes = []
    while number > 1:
        divisor = draw(st.sampled_from([d for d in range(2, number + 1) if number % d == 0]))
        sizes.append(divisor)
        number //= divisor
    return tuple(sizes)


def index_of(space: FactorSpace, dims: list[Factors], at: dict[int, int]) -> tuple[int, ...]:
    """The index along every dimension, given the index of every factor."""
    found = []
    for dim in dims:
        index = 0
        for factor in space.resolve(dim):
            index = index * space.extent(factor) + at[factor]
        found.append(index)
    return tuple(found)


def points(space: FactorSpace, factors: Factors):
    for place in itertools.product(*(range(space.extent(f)) for f in factors)):
        yield dict(zip(factors, place, strict=True))


@given(st.data())
@settings(deadline=None)
def test_reshapes_evaluate_as_numpys(data: st.DataObject) -> None:
    number = data.draw(st.sampled_from([8, 12, 24, 36, 60]))
    space = FactorSpace()
    shape = split(number, data.draw)
    dims = [space.fresh(n) for n in shape]
    array = np.arange(number).reshape(shape)
    steps = []
    for _ in range(data.draw(st.integers(1, 4))):
        wanted = split(number, data.draw)
        try:
            steps.append((space.regroup([f for d in dims for f in d], wanted), wanted))
        except Refused:
            break
    factors = space.resolve([f for d in dims for f in d])
    assert space.size(factors) == number
    for at in points(space, factors):
        element = array[index_of(space, dims, at)]
        for result, wanted in steps:
            assert array.reshape(wanted)[index_of(space, list(result), at)] == element


@given(st.data())
@settings(deadline=None)
def test_unified_dimensions_are_one(data: st.DataObject) -> None:
    number = data.draw(st.sampled_from([8, 12, 24, 36]))
    space = FactorSpace()
    parts = [split(number, data.draw) for _ in range(3)]
    sides = [tuple(f for n in sizes for f in space.fresh(n)) for sizes in parts]
    try:
        for left, right in itertools.pairwise(sides):
            space.unify(left, right)
    except Refused:
        return
    assert len({space.resolve(side) for side in sides}) == 1
    common = space.resolve(sides[0])
    assert space.size(common) == number
    # Every boundary of each side is one of the common factors'.
    inner = {math.prod(map(space.extent, common[i:])) for i in range(len(common) + 1)}
    for sizes in parts:
        assert {math.prod(sizes[i:]) for i in range(len(sizes) + 1)} <= inner


def test_a_dimension_of_one_has_no_factors() -> None:
    space = FactorSpace()
    assert space.fresh(1) == ()
    assert space.regroup(space.fresh(6), (1, 2, 1, 3))[::2] == ((), ())


def test_a_reshape_of_no_elements_is_refused() -> None:
    space = FactorSpace()
    with pytest.raises(Refused, match="no elements"):
        space.regroup((*space.fresh(5), *space.fresh(0)), (5, 0))


def test_a_split_reaches_what_was_unified_before() -> None:
    space = FactorSpace()
    a, b, c = space.fresh(12), space.fresh(12), space.fresh(12)
    space.unify(a, b)
    space.unify(b, c)
    space.regroup(c, (3, 4))
    assert [space.extent(f) for f in space.resolve(a)] == [3, 4]
    assert space.resolve(a) == space.resolve(b) == space.resolve(c)


# --- windows -----------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 12), st.integers(1, 3)), max_size=4))
def test_windows_compose_as_slices(slices: list[tuple[int, int, int]]) -> None:
    indices = np.arange(40)
    window = Window(0, 1, 40)
    for start, count, step in slices:
        picked = range(len(indices))[start : start + count * step : step]
        if not len(picked):
            return
        indices = indices[picked.start : picked.stop : picked.step]
        window = window.inside(Window(picked.start, picked.step, len(picked)))
    assert window.size == len(indices)
    assert [window.start + window.step * i for i in range(window.size)] == indices.tolist()
    assert window.is_whole(40) == (len(indices) == 40)


# --- accesses ----------------------------------------------------------------------------------


def grid(nest: Nest) -> list[np.ndarray]:
    """The index along each tile axis, at every point of the iteration space."""
    return list(np.indices([axis.extent for axis in nest.axes], sparse=False))


def value_of(form: Affine, at: list[np.ndarray]) -> np.ndarray:
    total = np.full(at[0].shape if at else (), form.base)
    for term in form.terms:
        index = at[term.axis] // term.div
        total = total + (index % term.mod if term.mod else index) * term.scale
    return total


def loaded(access: Access, storage: np.ndarray, at: list[np.ndarray]) -> np.ndarray:
    """What the access reads at every point; 0 where a guard says no."""
    inside = np.full(at[0].shape if at else (), True)
    for index, limit in access.guards:
        inside &= (value_of(index, at) >= 0) & (value_of(index, at) < limit)
    offset = value_of(access.offset, at)
    assert ((offset >= 0) & (offset < storage.size))[inside].all()
    return np.where(inside, storage[np.clip(offset, 0, storage.size - 1)], 0)


def moved(function, x: torch.Tensor) -> torch.Tensor:
    """What `function(x)`, a chain of views and then `* 1`, would store: loads and stores of its
    nest done by numpy."""
    meta = torch.empty_strided(x.shape, x.stride(), device="meta")
    part = whole_group(graph_of(lambda t: function(t) * 1, [meta])).graph
    nest = schedule(part, NATURAL)
    assert isinstance(nest, Nest), nest
    at = grid(nest)
    left = x.untyped_storage().nbytes() // x.itemsize - x.storage_offset()
    storage = torch.as_strided(x, (left,), (1,), x.storage_offset()).numpy()
    (out,) = nest.outputs
    (load,) = (v for v in nest.values if isinstance(v.kind, Load))
    offsets = value_of(nest.stores[out.index].offset, at)
    values = loaded(nest.loads[load.id], storage, at)
    written = np.full(out.type.numel, -1.0, dtype=np.float32)
    written[np.ravel(offsets)] = np.ravel(values)
    return torch.as_strided(torch.from_numpy(written), out.type.shape, out.type.stride)


VIEWS = {
    "plain": lambda t: t,
    "transpose": lambda t: t.transpose(0, 2),
    "permute_reshape": lambda t: t.permute(2, 0, 1).reshape(6, 20),
    "split": lambda t: t.reshape(4, 5, 2, 3).transpose(1, 2),
    "merge_and_split": lambda t: t.reshape(20, 6).reshape(2, 2, 5, 6),
    "slice": lambda t: t[1:, ::2, 2:5],
    "slice_of_a_slice": lambda t: t[:, 1:][:, ::2][1:, 1:],
    "select": lambda t: t[:, 3].transpose(0, 1),
    "expand": lambda t: t[:, :1].expand(4, 7, 6),
    "unsqueeze": lambda t: t.unsqueeze(1).transpose(0, 3),
    "flatten": lambda t: t.reshape(-1),
}
STRIDES = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "offset": lambda x: torch.cat([x, x])[2:6],
    "spread": lambda x: torch.cat([x, x], -1)[..., ::2],
}


@pytest.mark.parametrize("strides", STRIDES)
@pytest.mark.parametrize("view", VIEWS)
def test_accesses_read_what_torch_reads(view: str, strides: str) -> None:
    x = STRIDES[strides](torch.arange(120.0).reshape(4, 5, 6))
    want = VIEWS[view](x)
    assert torch.equal(moved(VIEWS[view], x).reshape(want.shape), want)


SPLIT = {
    "pairs": lambda t: t.view(4, 6, 4, 2)[..., 1],
    "halves": lambda t: t.view(4, 6, 2, 4)[:, :, 1],
    "of_three": lambda t: t.view(4, 6, 2, 2, 2)[:, :, 1, :, 0],
    "some_pairs": lambda t: t.view(4, 6, 4, 2)[:, :, 1:3],
    "steps_of_pairs": lambda t: t.view(4, 6, 4, 2)[:, 1::2, ::2, 1],
    "rows_and_pairs": lambda t: t.view(2, 2, 6, 4, 2)[1, :, :, :, 0],
    "with_ones": lambda t: t.view(4, 6, 1, 4, 1, 2)[..., 1],
    "turned": lambda t: t.view(4, 6, 4, 2)[..., 0].transpose(0, 2),
}


@pytest.mark.parametrize("view", SPLIT)
def test_parts_of_what_is_computed_are_read_through_a_reshape(view: str) -> None:
    """No view of memory, whose strides say it all."""
    x = torch.arange(192.0).reshape(4, 6, 8)
    want = SPLIT[view](x)
    assert torch.equal(moved(lambda t: SPLIT[view](t * 1), x).reshape(want.shape), want)


@pytest.mark.parametrize("start, stop, step", [(0, 4, 2), (-1, 2, 1)])
def test_windows_that_are_none_of_the_source_are_told(start: int, stop: int, step: int) -> None:
    """Every second pair is no window of a row, nor is what lies before it."""
    window = Window(start, step, len(range(start, stop, step)))
    assert split_windows((8,), (4, 2), (window, None)) is None
    assert split_windows((8,), (4, 2), (Window(1, 1, 2), None)) == (Window(2, 1, 4),)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("permute"), st.permutations([0, 1, 2])),
        st.tuples(st.just("slice"), st.integers(0, 2), st.integers(0, 2), st.integers(1, 2)),
        st.tuples(st.just("split"), st.integers(0, 2)),
    ),
    min_size=1,
    max_size=4,
)


@given(steps)
@settings(max_examples=25, deadline=None)
def test_random_views_read_what_torch_reads(chain: list[tuple]) -> None:
    def view(t: torch.Tensor) -> torch.Tensor:
        for step in chain:
            if step[0] == "permute":
                t = t.permute(step[1])
            elif step[0] == "slice":
                _, dim, start, stride = step
                if t.shape[dim] > start + 1:
                    t = t.transpose(0, dim)[start::stride].transpose(0, dim)
            elif t.shape[step[1]] % 2 == 0:
                # In two and back again, the halves swapped with what follows.
                t = t.unflatten(step[1], (2, -1)).movedim(step[1], 0)[1]
        return t

    x = torch.arange(4 * 6 * 8.0).reshape(4, 6, 8)
    want = view(x)
    try:
        got = moved(view, x)
    except AssertionError as error:
        if "window" in str(error):  # A reshape between a slice and its source is refused.
            return
        raise
    assert torch.equal(got.reshape(want.shape), want)


def test_a_concatenation_is_guarded_loads() -> None:
    graph = graph_of(
        lambda a, b: torch.cat([a, b * 2], 1) + 1,
        [torch.empty(3, 4, device="meta"), torch.empty(3, 5, device="meta")],
    )
    nest = schedule(whole_group(graph).graph, NATURAL)
    assert isinstance(nest, Nest)
    at = grid(nest)
    limits = []
    for value, access in nest.loads.items():
        kind = nest.values[value].kind
        assert isinstance(kind, Load)
        width = access.guards[0][1]
        limits.append(width)
        data = np.arange(1.0, 3 * width + 1)
        got = loaded(access, data, at).reshape(3, 9)
        want = np.zeros((3, 9))
        where = slice(0, 4) if width == 4 else slice(4, 9)
        want[:, where] = data.reshape(3, width)
        assert np.array_equal(got, want)
    assert sorted(limits) == [4, 5]


def test_a_vector_that_both_operands_of_a_product_repeat_has_two_axes() -> None:
    """What one of them sums the other keeps: an input is loaded for each, and what is computed
    another kernel stores first."""

    def squared(x: torch.Tensor) -> torch.Tensor:
        return x.expand(12, 12) @ x.expand(12, 12)

    of_input = whole_group(graph_of(squared, [torch.randn(12)])).graph
    assert sum(isinstance(value.kind, Load) for value in trace(of_input).values) == 2
    computed = whole_group(graph_of(lambda x: squared(x * 2), [torch.randn(12)])).graph
    with pytest.raises(Refused, match="together with its transpose"):
        trace(computed)
