"""Elementwise operations are opened to what eager computes on the device, to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fusionplan.planner.capture.capture import decompositions
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

pytestmark = pytest.mark.dynamo


def opened(function: Callable[[torch.Tensor], Any], x: torch.Tensor) -> list[tuple[str, Any]]:
    """Name and second argument of each operation in the traced function."""
    gm = make_fx(lambda x: [function(x)], decomposition_table=decompositions())(x)
    called = (n for n in gm.graph.nodes if n.op == "call_function")
    return [(str(n.target).split(".")[1], n.args[1:2]) for n in called]


def ran(function: Callable[[torch.Tensor], Any], x: torch.Tensor) -> list[torch.Tensor]:
    """The results of the traced function."""
    found = make_fx(lambda x: [function(x)], decomposition_table=decompositions())(x)(x)
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("exponent", [1, 1.0])
def test_a_power_of_1_is_a_copy(exponent: float) -> None:
    """A GPU's general function gives 7.0000005 for 7."""
    assert opened(lambda x: x**exponent, torch.ones(4)) == [("clone", ())]


def test_other_powers_stay() -> None:
    assert opened(lambda x: x**1.5, torch.ones(4)) == [("pow", (1.5,))]
    assert opened(lambda x: x**1, torch.arange(4)) == [("pow", (1,))]


def test_a_repeated_tensor_lies_in_order() -> None:
    """As eager's: what comes next may be a view that asks for it."""
    repeat = decompositions()[torch.ops.aten.repeat.default]
    turned, one = torch.randn(2, 3).t(), torch.randn(2, 1, 3)
    for x, count in ((turned, (4, 1, 1)), (turned, (2, 3)), (one, (2, 3, 1, 4)), (one[0, 0], (1,))):
        found, wanted = repeat(x, list(count)), x.repeat(count)
        assert torch.equal(found, wanted)
        assert found.stride() == wanted.stride()


def test_the_fraction_of_a_negative_zero_is_0() -> None:
    """x - floor(|x|) * sign(x), torch 2.11's formula, gives -0.0."""
    assert [name for name, _ in opened(torch.frac, torch.ones(4))] == ["trunc", "sub"]


def test_x_log_x_asks_only_for_zeros() -> None:
    """NaN is NaN of the product: no choice is needed."""
    names = [name for name, _ in opened(lambda x: torch.xlogy(x, x), torch.ones(4))]
    assert sorted(names) == ["eq", "full", "log", "mul", "where"]
    assert "isnan" in [name for name, _ in opened(lambda x: torch.xlogy(x, x + 1), torch.ones(4))]
    x = torch.tensor([0.0, -0.0, 1.0, 3.0, -1.0, torch.inf, -torch.inf, torch.nan, 1e-40])
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        (found,) = ran(lambda x: torch.xlogy(x, x), x.to(dtype))
        torch.testing.assert_close(found, torch.xlogy(x.to(dtype), x.to(dtype)), equal_nan=True)


def test_hardsigmoid_is_eagers_on_its_device() -> None:
    """ATen divides by 6 on CPUs, and multiplies by 1 / 6 of float32 on GPUs."""
    sixth = torch.tensor(1 / 6, dtype=torch.float32).item()
    for function in (F.hardsigmoid, F.hardswish):
        assert opened(function, torch.ones(4))[-1] == ("div", (6,))
        for dtype in (torch.float32, torch.float64):
            x = torch.ones(4, dtype=dtype, device="meta")
            assert opened(function, x)[-1] == ("mul", (sixth,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("function", [F.hardsigmoid, F.hardswish])
def test_gradients_of_hardsigmoid_and_hardswish_are_eagers(function: Any, dtype: Any) -> None:
    """ATen's factor of the first is of float32 on the CPU too, beside float64. Seven elements fill
    no vectors of a CPU, by which NaN has a NaN as its gradient, not that of what is above 3."""
    x = torch.tensor([-4, -3, -2.9, 2.9, 3, 4, torch.nan], dtype=dtype, requires_grad=True)

    def graded(x: torch.Tensor) -> torch.Tensor:
        (found,) = torch.autograd.grad(function(x).sum(), x)
        return found

    mine = make_fx(graded, decomposition_table=decompositions())(x)(x)
    assert torch.equal(mine, graded(x))


def test_a_fill_by_index_writes_one_number() -> None:
    """torch's formula spreads it over all it is written to."""
    index = torch.tensor([0, 2, -1])
    for x in (torch.ones(4, 3, 2), torch.ones(4, 3, 2).permute(2, 1, 0)):
        for value in (0.5, torch.tensor(7)):
            (name, _), *rest = reversed(opened(lambda x, v=value: x.index_fill(1, index, v), x))
            assert name == "index_put"
            assert {each for each, _ in rest} <= {"full", "_to_copy", "lift_fresh_copy"}
            assert torch.equal(
                ran(lambda x, v=value: x.index_fill(1, index, v), x)[0],
                x.index_fill(1, index, value),
            )
    one = torch.tensor(2.0)
    assert torch.equal(ran(lambda x: x.index_fill(0, index[:1], 5), one)[0], torch.tensor(5.0))


def test_a_copy_by_index_is_written_by_index_and_lies_in_order() -> None:
    """torch's formula of 2.11 writes in place into what AOTAutograd does not know."""
    index, x = torch.tensor([3, 0]), torch.arange(24.0).reshape(2, 3, 4).permute(2, 1, 0)
    source = torch.full((2, 3, 2), 7.0)
    names = [name for name, _ in opened(lambda x: x.index_copy(0, index, source), x)]
    assert names[-1] == "index_put"
    for way in (
        lambda x: x.index_copy(0, index, source),
        lambda x: x[:, :, 0].index_copy(-2, index[0], source[0, :, :1].t()),
        lambda x: x[0, 0, 0].index_copy(0, index[1:], source[0, 0, 0]),
    ):
        (mine,) = ran(way, x)
        assert torch.equal(mine, way(x))
        assert mine.stride() == way(x).stride()
    with pytest.raises((RuntimeError, IndexError)):
        opened(lambda x: x.index_copy(1, index, source), x)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_steps_of_integers_are_eagers(dtype: torch.dtype) -> None:
    """torch's own formula cuts off the ends last, and has another middle."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(8):
        first, last = (torch.rand(2, generator=generator, dtype=torch.float64) * 200 - 75).tolist()
        if dtype == torch.uint8:
            first, last = abs(first), abs(last)
        steps = int(torch.randint(0, 40, (), generator=generator))
        for ends in ((first, last), tuple(map(torch.tensor, (first, last))), (int(first), last)):
            function = lambda _, e=ends, n=steps: torch.linspace(*e, n, dtype=dtype)  # noqa: E731
            assert torch.equal(ran(function, torch.ones(1))[0], function(None)), (ends, steps)


def test_a_buffer_that_nobody_reads_has_no_part_in_the_type() -> None:
    """On a GPU; on a CPU eager refuses it, and so do we (`hostile/refused.py`)."""
    backward = torch.ops.aten.log_sigmoid_backward.default
    with FakeTensorMode():
        x = torch.empty(3, 4, dtype=torch.float16, device="cuda")
        traced = make_fx(
            lambda x, buffer: backward(x, x, buffer), decomposition_table=decompositions()
        )(x, x.bfloat16())
    nodes = [node for node in traced.graph.nodes if node.op == "call_function"]
    assert len(nodes) > 5, "it is opened"
    assert nodes[-1].meta["val"].dtype == torch.float16
