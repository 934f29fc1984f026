"""Which form an operation takes, by what is seen of its result."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from corpus import graph_of, tensor
from fusionplan.planner.codegen.source import Program
from fusionplan.planner.config import Config
from fusionplan.planner.lower import lower
from fusionplan.planner.runtime.machine_code.compile import interpreted
from oracle import DEVICE, captured, check, run_program, whole_group

pytestmark = pytest.mark.dynamo

HELD = Config((("x0", 2),), num_warps=1, num_stages=1)
LOOP = Config((("r0", 16), ("x0", 2)), num_warps=1, num_stages=1, reduction="loop")
WIDE = Config((("r0", 1024),), num_warps=4, num_stages=1, reduction="loop")


def kernel(function: Callable[..., object], config: Config, *inputs: torch.Tensor) -> str:
    found = lower(whole_group(graph_of(function, inputs)).graph, config)
    assert isinstance(found, Program), found
    (one,) = found.kernels
    return one.text[one.text.rindex("@triton.jit") :]


def data(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(*shape, generator=generator).to(DEVICE, dtype)


def relative(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x - x.amax(-1, keepdim=True)).sum(-1)


def plain(x: torch.Tensor) -> torch.Tensor:
    e = torch.exp(x.float())
    return (e / e.sum(-1, keepdim=True)).to(x.dtype)


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


@pytest.mark.parametrize(
    "function, quick",
    [
        (lambda x: torch.logsumexp(x, -1), True),
        (lambda x: torch.log_softmax(x, -1), True),
        (softmax, False),
        (relative, False),
    ],
    ids=["logsumexp", "log_softmax", "softmax", "sum"],
)
def test_exponentials_whose_sum_only_a_logarithm_sees_are_quick(
    function: Callable[..., object], quick: bool
) -> None:
    text = kernel(function, HELD, tensor(6, 100))
    assert (" fast_exp(" in text) is quick
    assert (" exp(" in text) is not quick
    for config in (HELD, LOOP):
        assert check(function, [data(6, 100) * 20], [config]) == 1


def weighted(x: torch.Tensor) -> torch.Tensor:
    e = torch.exp(x.float() - x.float().amax(-1, keepdim=True))
    return ((e * 0.5).sum(-1) / e.sum(-1)).to(x.dtype)


def test_beside_the_largest_the_smallest_exponentials_of_a_sum_may_be_nothing() -> None:
    half = tensor(6, 100, dtype=torch.bfloat16)
    assert " fast_exp(" in kernel(weighted, HELD, half)
    for shown in (softmax, plain):
        assert " fast_exp(" not in kernel(shown, HELD, half)
    # What is known to be at most 1 is kept in fewer instructions.
    assert " exp_below_one(" in kernel(softmax, HELD, half)
    assert " exp_below_one(" not in kernel(plain, HELD, half)
    # Alone they are all there is: below 2**-126 each, and their quotients are not.
    far = data(6, 100, dtype=torch.bfloat16) * 0.1 - 90
    for config in (HELD, LOOP):
        assert check(plain, [far], [config]) == 1
        assert check(softmax, [data(6, 100, dtype=torch.bfloat16) * 60], [config]) == 1


def test_a_loop_that_only_sums_exponentials_leaves_out_the_smallest() -> None:
    def shifted(x: torch.Tensor) -> torch.Tensor:
        """Of a sum that may be small altogether."""
        e = torch.exp(x - x[:, :1])
        return e / e.sum(-1, keepdim=True)

    config = replace(WIDE, blocks=(("r0", 1024), ("x0", 1)))
    for function, flushed in ((softmax, True), (shifted, False)):
        text = kernel(function, config, tensor(2, 8192, dtype=torch.bfloat16))
        summed, divided = text.split("for ")[1:]
        assert (" fast_exp(" in summed) is flushed
        assert " fast_exp(" not in divided
    assert check(softmax, [data(2, 8192, dtype=torch.bfloat16) * 20], [config]) == 1


def test_stored_logits_are_read_as_they_are_stored() -> None:
    def loss(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = x + y
        return logits.float().logsumexp(-1), logits

    def alone(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return loss(x, y)[0]

    half = tensor(6, 100, dtype=torch.bfloat16)
    text = kernel(loss, HELD, half, half)
    added = next(line.split()[0] for line in text.splitlines() if "# add [2, 128]" in line)
    _, *readers = [line for line in text.splitlines() if re.search(rf"[( ]{added}[) ]", line)]
    assert len(readers) == 1
    assert "as_bfloat16(" in readers[0]
    assert "as_bfloat16(" not in kernel(loss, HELD, *[tensor(6, 100)] * 2)
    assert check(loss, [data(6, 100, dtype=torch.bfloat16)] * 2, [HELD]) == 1
    assert check(alone, [data(6, 100, dtype=torch.bfloat16)] * 2, [HELD]) == 1


def entropy_and_logarithm(p: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum is of float32, its terms are what eager rounds."""
    wide = p.float()
    logarithm = wide.log()
    terms = torch.ops.prims.convert_element_type(wide * logarithm, p.dtype)
    return terms.sum(-1, dtype=torch.float32), logarithm


def entropy(p: torch.Tensor) -> torch.Tensor:
    return entropy_and_logarithm(p)[0]


@pytest.mark.parametrize(
    "function, dtype, form",
    [
        (entropy, torch.bfloat16, "fast_log("),
        (entropy, torch.float16, "quick_log("),
        (entropy, torch.float32, "tl.log("),
        (entropy_and_logarithm, torch.bfloat16, "tl.log("),
    ],
    ids=["bfloat16", "float16", "float32", "shown"],
)
def test_a_function_is_as_exact_as_a_rounding_on_the_way_shows(
    function: Callable[..., object], dtype: torch.dtype, form: str
) -> None:
    text = kernel(function, HELD, tensor(6, 100, dtype=dtype))
    assert re.findall(r"\S*log\(", text) == [form]
    for config in (HELD, LOOP):
        assert check(function, [data(6, 100, dtype=dtype).abs()], [config]) == 1


@pytest.mark.parametrize("function", [torch.log, torch.tanh], ids=["log", "tanh"])
def test_what_is_computed_in_float64_has_no_form_of_float32(
    function: Callable[..., object],
) -> None:
    """The compiler refuses `fast_log` of float64; its own instruction would be of 10 bits."""
    text = kernel(lambda x: function(x.double()).bfloat16(), HELD, tensor(6, dtype=torch.bfloat16))
    assert f"{function.__name__}(" in text
    assert f"fast_{function.__name__}(" not in text


def test_a_choice_between_results_shows_no_more_than_its_rounding() -> None:
    def chosen(x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return torch.where(wide == 0, 0.0, wide * wide.log()).to(x.dtype)

    def added(x: torch.Tensor) -> torch.Tensor:
        return (x.float().log() + 1.0).to(x.dtype)

    flat = Config((("x0", 64),), num_warps=1, num_stages=1)
    half = tensor(640, dtype=torch.bfloat16)
    assert "fast_log(" in kernel(chosen, flat, half)
    assert "fast_log(" not in kernel(added, flat, half)
    for function in (chosen, added):
        assert check(function, [data(640, dtype=torch.bfloat16).abs()], [flat]) == 1


def test_a_softmax_divides_once_for_a_row() -> None:
    half = tensor(6, 100, dtype=torch.bfloat16)
    text = kernel(softmax, HELD, half)
    assert text.count(" / ") == 1
    assert "# div [2]" in text


def spread(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    p = torch.softmax(x, -1)
    return -(p * p.log()).sum(-1), p.log()


def test_the_logarithm_of_a_softmax_is_a_difference() -> None:
    for dtype, most in ((torch.float32, 60), (torch.bfloat16, 3)):
        text = kernel(spread, HELD, tensor(6, 100, dtype=dtype))
        assert [line.split("#")[1] for line in text.splitlines() if "log(" in line] == [" log [2]"]
        x = data(6, 100, dtype=dtype) * most  # Some of float32 are so far apart that one is 0.
        x[1, 3] = float("-inf")
        x[2, 5] = float("nan")
        x[3] = float("-inf")
        for config in (HELD, LOOP):
            assert check(spread, [x], [config]) == 1
    # Without the largest taken off, the sum may be infinite.
    assert "tl.log(v" in kernel(lambda x: plain(x).log(), HELD, tensor(6, 100))


def test_only_the_sum_of_many_is_free_of_correct_rounding() -> None:
    def mean(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (torch.sigmoid(x) / (y + 3.0)).mean()

    def both(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = torch.sigmoid(x) / (y + 3.0)
        return found.mean(), found

    many, few = (tensor(n, 64) for n in (128, 16))
    assert "div_rn" not in kernel(mean, WIDE, many, many)
    assert "div_rn" in kernel(mean, WIDE, few, few)
    assert "div_rn" in kernel(both, WIDE, many, many)
    assert check(mean, [data(128, 64), data(128, 64).abs()], [WIDE]) == 1


def test_a_division_by_a_power_of_two_is_a_product() -> None:
    def halves(x: torch.Tensor) -> torch.Tensor:
        return x / 8 + x / 0.25

    def thirds(x: torch.Tensor) -> torch.Tensor:
        return x / 3

    flat = Config((("x0", 64),), num_warps=1, num_stages=1)
    assert "* 0.125" in kernel(halves, flat, tensor(640))
    assert "div_rn" not in kernel(halves, flat, tensor(640))
    # As eager on CUDA: by the inverse of 3, and rounded before anything is added.
    assert "mul_rn(v0, 0.3333333432674408)" in kernel(thirds, flat, tensor(640))
    wide = kernel(thirds, flat, torch.empty(640, dtype=torch.float64))
    assert "mul_rn(v0, tl.full([], 0.3333333333333333, tl.float64))" in wide
    assert check(halves, [data(640)], [flat]) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
@pytest.mark.parametrize("config", [HELD, LOOP], ids=["held", "loop"])
def test_nothing_is_left_of_equal_numbers_whose_mean_is_subtracted(
    config: Config, dtype: torch.dtype
) -> None:
    """Divided by its inverse, a sum of 104 equal numbers is not 104 times the number."""

    def norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, x.shape[-1:], w, b, 1e-12)

    x = data(64, 1, dtype=torch.bfloat16).to(dtype).expand(64, 104).contiguous()
    inputs = [x, data(104, dtype=dtype) + 2, data(104, dtype=dtype)]
    found, given = captured(norm, inputs)
    group = whole_group(found.graph)
    made = lower(group.graph, config, interpreted=interpreted())
    assert isinstance(made, Program), made
    (ours,) = run_program(made, group, given)
    assert torch.equal(ours, inputs[2].expand(64, 104))
    # A product would also be one operation with the difference that follows, without a rounding.
    assert re.search(r"tl\.div_rn\(\w+, 104\.0\)", made.kernels[0].text)


def inverse_root(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (x * torch.reciprocal(torch.sqrt(v.float()))).to(x.dtype)


@pytest.mark.parametrize("dtype, one", [(torch.bfloat16, True), (torch.float32, False)])
def test_an_inverse_root_that_16_bits_are_made_of_is_one_function(
    dtype: torch.dtype, one: bool
) -> None:
    config = Config((("x0", 2), ("x1", 32)), num_warps=1, num_stages=1)
    text = kernel(inverse_root, config, tensor(6, 100, dtype=dtype), tensor(100, dtype=dtype))
    assert ("tl.rsqrt(" in text) is one
    assert ("sqrt_rn(" in text) is not one
    v = data(100, dtype=dtype).abs()
    v[:6] = torch.tensor([0.0, -0.0, -1.0, torch.inf, torch.nan, 1e-30])
    assert check(inverse_root, [data(6, 100, dtype=dtype), v], [config]) == 1


def test_an_inverse_root_whose_root_is_a_result_too() -> None:
    def function(x: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        root = torch.sqrt(v.float())
        return root.to(x.dtype), (x * torch.reciprocal(root)).to(x.dtype)

    inputs = data(6, 100, dtype=torch.bfloat16), data(6, 100, dtype=torch.bfloat16).abs()
    flat = Config((("x0", 256),), num_warps=1, num_stages=1)
    assert check(function, inputs, [flat]) == 1
