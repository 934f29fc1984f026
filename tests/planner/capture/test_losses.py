"""Losses, extrema and what else is opened into rows of the table: forward and backward, in the
kernels of every layout, against eager and float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fusionplan.planner.capture.capture import Captured, capture, decompositions
from fusionplan.planner.config import Config
from fusionplan.planner.costs.device import H200
from fusionplan.planner.covers.cover import partition
from fusionplan.planner.errors import Refusal
from fusionplan.planner.graph import ops
from fusionplan.planner.groups.group import Subgraph, subgraph
from fusionplan.planner.lower import lower
from fusionplan.planner.runtime.machine_code.compile import interpreted
from fusionplan.planner.space.space import Space, space_of
from oracle import DEVICE, as_tuple, assert_close, run_program
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition

pytestmark = [pytest.mark.dynamo, pytest.mark.usefixtures("few_ranked")]

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
INF, NAN = math.inf, math.nan


def data(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def classes(*targets: int) -> torch.Tensor:
    return torch.tensor(targets, device=DEVICE)


@dataclass
class Kernels:
    """Runs captured graphs by generated kernels only. `turn` says which layout of each group."""

    turn: int = 0
    kernels: int = 0
    layouts: int = 1
    graphs: list[Captured] = field(default_factory=list)
    opaque: list[str] = field(default_factory=list)

    def compiler(self, gm: fx.GraphModule, _: object) -> Callable[..., object]:
        found = capture(gm)
        self.graphs.append(found)
        self.opaque += [
            n.op for n in found.graph.nodes if not ops.is_input(n) and ops.row(n) is None
        ]
        choices = [(part, layouts(part)) for part in groups(found)]
        self.layouts = max([self.layouts, *(len(each) for _, each in choices)])

        def run(arguments: list[Any]) -> object:
            return self.run(found, choices, arguments)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def run(
        self, found: Captured, choices: list[tuple[Subgraph, list[Config]]], arguments: list[Any]
    ) -> list[Any]:
        values: dict[int, Any] = dict(zip(found.graph.inputs, arguments, strict=True))
        made_by = {o: (part, each) for part, each in choices for o in part.outputs}

        def value(node: int) -> Any:
            if node in values:
                return values[node]
            if node in made_by:
                part, each = made_by[node]
                program = lower(part.graph, each[self.turn % len(each)], interpreted=interpreted())
                assert not isinstance(program, Refusal), program
                results = run_program(program, part, [value(i) for i in part.inputs])
                values.update(zip(part.outputs, results, strict=True))
                self.kernels += len(program.kernels)
            else:
                row = ops.row(found.graph.nodes[node])
                assert row is None or ops.is_free(found.graph.nodes[node])
                number = {n: i for i, n in enumerate(found.fx_nodes)}
                given = found.fx_nodes[node]
                args, kwargs = fx.map_arg((given.args, given.kwargs), lambda n: value(number[n]))
                assert callable(given.target)
                values[node] = given.target(*args, **kwargs)
            return values[node]

        return [None if o is None else value(o) for o in found.graph.outputs]


def groups(found: Captured) -> list[Subgraph]:
    """The largest groups."""
    return [subgraph(found.graph, nodes) for nodes in partition(found.graph, frozenset())]


def layouts(part: Subgraph) -> list[Config]:
    """The model's best config of every layout, and one of tiny blocks."""
    space = space_of(part.graph, H200)
    assert isinstance(space, Space), space
    best: dict[tuple[str, str, int], Config] = {}
    for config, _ in space.seeds(200):
        best.setdefault((config.tiling, config.reduction, config.split), config)
    assert best
    return list(best.values())


def compiled_by(runner: Kernels, function: Callable[..., Any]) -> Callable[..., Any]:
    backend = aot_autograd(
        fw_compiler=runner.compiler,
        bw_compiler=runner.compiler,
        decompositions=decompositions(),
        partition_fn=min_cut_rematerialization_partition,
    )
    torch._dynamo.reset()
    return torch.compile(function, backend=backend, dynamic=False)


def verify(
    function: Callable[..., Any], inputs: Sequence[torch.Tensor], opaque: Sequence[str] = ()
) -> Kernels:
    """Results, and gradients of the inputs that require them, are as accurate as eager's in every
    layout; nothing but `opaque` is left to ATen."""
    runner = Kernels()
    compiled = compiled_by(runner, function)
    doubles = [x.detach().double() if x.is_floating_point() else x for x in inputs]
    wide = [d.requires_grad_(x.requires_grad) for d, x in zip(doubles, inputs, strict=True)]
    exact, eager = step(function, wide), step(function, inputs)
    while runner.turn < runner.layouts:
        mine = step(compiled, inputs)
        for a, b, c in zip(mine, exact, eager, strict=True):
            assert_close(a, b, c, f"layout {runner.turn} of {function}")
        runner.turn += 1
    assert runner.opaque == list(opaque)
    assert runner.kernels >= len(runner.graphs) * runner.layouts > 0
    return runner


def step(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Outputs, and the gradients of their sum of squares."""
    outputs = as_tuple(function(*inputs))
    wanted = [x for x in inputs if x.requires_grad]
    losses = [o.square().sum() for o in outputs if o.requires_grad]
    grads = torch.autograd.grad(sum(losses), wanted) if wanted and losses else ()
    return [*(o.detach() for o in outputs), *grads]


TARGETS = classes(3, 0, -100, 40, 7, -100)

CROSS_ENTROPY: dict[str, dict[str, Any]] = {
    "mean": {},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none"},
    "ignored_class": {"ignore_index": 7},
    "smoothed": {"label_smoothing": 0.1},
    "smoothed_sum": {"label_smoothing": 0.2, "reduction": "sum"},
}


@pytest.mark.parametrize("name", CROSS_ENTROPY)
def test_cross_entropy(name: str) -> None:
    x = data(6, 41).requires_grad_()
    targets = TARGETS.clamp_min(0) if name == "ignored_class" else TARGETS
    verify(lambda x, t: F.cross_entropy(x * 2, t, **CROSS_ENTROPY[name]), [x, targets])


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_cross_entropy_in_16_bits(dtype: torch.dtype) -> None:
    x = data(6, 41, dtype=dtype).requires_grad_()
    verify(F.cross_entropy, [x, TARGETS])
    verify(lambda x, t: F.cross_entropy(x.float(), t), [x, TARGETS])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_class_weights(reduction: str) -> None:
    x, weight = data(6, 41).requires_grad_(), data(41, seed=1).abs()
    verify(lambda x, t, w: F.cross_entropy(x, t, w, reduction=reduction), [x, TARGETS, weight])


def test_smoothed_class_weights() -> None:
    x, weight = data(6, 41).requires_grad_(), data(41, seed=1).abs()
    verify(lambda x, t, w: F.cross_entropy(x, t, w, label_smoothing=0.1), [x, TARGETS, weight])


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_of_stored_probabilities_one_a_row_is_read(reduction: str) -> None:
    x = data(6, 41).log_softmax(-1).requires_grad_()
    runner = verify(lambda x, t: F.nll_loss(x, t, reduction=reduction), [x, TARGETS])
    assert any("gather" in n.op for n in runner.graphs[0].graph.nodes)


def test_images_and_a_single_row_have_classes_too() -> None:
    targets = torch.arange(30, device=DEVICE).reshape(2, 3, 5) % 7
    verify(F.cross_entropy, [data(2, 7, 3, 5).requires_grad_(), targets])
    verify(F.cross_entropy, [data(2, 7, 15).requires_grad_(), targets.flatten(1)])
    verify(F.cross_entropy, [data(9).requires_grad_(), classes(4)[0]])
    verify(
        lambda x, t: F.nll_loss(torch.log_softmax(x, 1), t, reduction="none"),
        [data(4, 3).requires_grad_(), classes(0, 2, 1, 1)],
    )


def test_a_batch_with_every_target_ignored_has_no_mean() -> None:
    x = data(4, 9).requires_grad_()
    nothing = torch.full((4,), -100, device=DEVICE)
    verify(lambda x, t: F.cross_entropy(x, t, reduction="sum"), [x, nothing])
    verify(F.cross_entropy, [x.detach(), nothing])
    assert F.cross_entropy(x, nothing).isnan()


def test_a_margin_has_the_type_of_the_input() -> None:
    x, target = data(3, 5, dtype=torch.bfloat16), data(3, 5, seed=2).sign()
    verify(lambda x, y: F.soft_margin_loss(x, y, reduction="none"), [x, target])


def test_impossible_classes_beside_the_target_give_no_nan() -> None:
    x = data(4, 9)
    x[:, 5] = -INF
    x[2, 1] = -INF
    verify(lambda x, t: F.cross_entropy(x, t, reduction="none"), [x, classes(0, 1, 1, 8)])
    verify(lambda x, t: x.log_softmax(1).gather(1, t[:, None]), [x, classes(0, 5, 1, 8)])
    x[2, 1] = 0.0
    verify(F.cross_entropy, [x.requires_grad_(), classes(0, 1, 1, 8)])


# --- picking by index ---

PICKS: dict[str, Callable[..., Any]] = {
    "gather": lambda x, i: (x * 2).gather(1, i[:, None]),
    "take_along_dim": lambda x, i: torch.take_along_dim(x.exp(), i[:, None], 1) + 1,
    "log_probability": lambda x, i: x.log_softmax(-1).gather(-1, i[:, None])[:, 0],
    "outer": lambda x, i: torch.relu(x.t()).gather(0, i[None]),
}


@pytest.mark.parametrize("name", PICKS)
def test_one_element_of_each_row(name: str) -> None:
    x, index = data(5, 37).requires_grad_(), classes(0, 36, 4, 4, 11)
    verify(PICKS[name], [x, index])
    verify(PICKS[name], [data(5, 37, dtype=torch.bfloat16).requires_grad_(), index])


def test_margins_around_the_picked_class() -> None:
    verify(F.multi_margin_loss, [data(5, 37).requires_grad_(), classes(0, 36, 4, 4, 11)])


def test_gathered_integers_and_flags() -> None:
    numbers, index = (
        torch.arange(60, device=DEVICE).reshape(5, 12),
        classes(0, 11, 4, 4, 7)[:, None],
    )
    verify(lambda n, i: ((n - 30).gather(1, i), (n % 3 == 0).gather(1, i)), [numbers, index])
    verify(lambda n, i: (n.int() * 2).gather(1, i[:3]), [numbers, index])


def test_scatters_of_one_element_a_row() -> None:
    x, index = data(5, 12), classes(0, 11, 4, 4, 7)[:, None]
    value = data(5, 3, seed=2)
    verify(lambda x, i: torch.relu(x).scatter(1, i, 7.0), [x, index])
    verify(lambda x, i, v: torch.relu(x).scatter(1, i, v), [x, index, value])
    verify(lambda x, i, v: torch.relu(x).scatter_add(1, i, v * 2), [x, index, value])


def test_other_gathers_read_by_index_what_another_kernel_stored() -> None:
    x, index = data(5, 12), classes(0, 11, 4, 4, 7)
    runner = verify(lambda x, i: (x * 2).gather(1, i.expand(5, 5)) + 1, [x, index])
    assert runner.kernels == 2 * runner.layouts
    # Of a row in memory only the one element is read.
    for rows in (x, data(5, 3000)):
        runner = verify(lambda x, i: x.gather(1, i[:, None]) + 1, [rows, index])
        assert any("gather" in n.op for n in runner.graphs[0].graph.nodes)
    verify(lambda x, i: (x + 1).gather(1, i[:, None]), [data(5, 3000), index])


# --- extrema with their places ---


def ties() -> torch.Tensor:
    """Rows in which the extremum is not alone, or is NaN, infinite or a zero of either sign."""
    x = data(9, 19).round()
    x[0] = 1.0
    x[1, [4, 9]] = NAN
    x[2, [3, 8]] = INF
    x[3, [5, 6]] = -INF
    x[4] = -INF
    x[5] = torch.where(torch.arange(19, device=DEVICE) % 2 == 0, -0.0, 0.0)
    x[6] = -x[5]
    x[7] = NAN
    x[8, [0, 18]] = -NAN
    return x


EXTREMA: dict[str, Callable[..., Any]] = {
    "argmax": lambda x: (x * 2).argmax(-1),
    "argmin": lambda x: (x * 2).argmin(-1, keepdim=True),
    "outer": lambda x: ((x * 2).argmax(0), (x * 2).argmin(0)),
    "max": lambda x: (x * 2).max(-1),
    "min": lambda x: (x * 2).min(-1, keepdim=True),
}


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
@pytest.mark.parametrize("name", EXTREMA)
def test_the_first_extremum_is_found(name: str, dtype: torch.dtype) -> None:
    x = ties().to(dtype)
    verify(EXTREMA[name], [x])
    verify(EXTREMA[name], [data(1, 127).to(dtype)])


def test_the_place_among_all() -> None:
    x = data(3, 4, 5)
    verify(lambda x: ((x * 2).argmax(), (x * 2).argmin(), torch.relu(x).argmax()), [x])
    verify(lambda x: (x * 2).argmax(keepdim=True), [x])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_extrema_of_integers(dtype: torch.dtype) -> None:
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    x = torch.tensor([[3, low, high, high, low], [0, 1, 0, 1, 1]], dtype=dtype, device=DEVICE)
    verify(lambda x: (x.argmax(1), x.argmin(1), *x.max(1), *x.min(0)), [x])


@pytest.mark.parametrize("name", ["max", "min"])
def test_the_gradient_goes_to_the_first_extremum(name: str) -> None:
    x = data(6, 19).round().requires_grad_()
    verify(lambda x: getattr(x * 2, name)(-1).values, [x])
    verify(lambda x: getattr(x * 2, name)(0, keepdim=True).values * x, [x])


def test_a_split_row_finds_the_first_extremum_too() -> None:
    x = data(1, 32768).round()
    runner = verify(lambda x: (x + 1).argmax(-1), [x])
    (found,) = runner.graphs
    assert any(config.split > 1 for part in groups(found) for config in layouts(part))


# --- other losses, and what they are made of ---

PAIRS: dict[str, Callable[..., Any]] = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "smooth_l1": F.smooth_l1_loss,
    "huber": lambda x, y: F.huber_loss(x, y, delta=0.7),
    "binary": lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
    "logits": lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()),
    "kl": lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"),
    "soft_targets": lambda x, y: F.cross_entropy(x, y.softmax(-1)),
    "cosine": F.cosine_similarity,
    "cosine_embedding": lambda x, y: F.cosine_embedding_loss(x, y, torch.ones_like(x[:, 0])),
    "triplet": lambda x, y: F.triplet_margin_loss(x, y, y * 2 - x),
    "hinge": lambda x, y: F.hinge_embedding_loss(x * y, y.sign()),
    "gaussian": lambda x, y: F.gaussian_nll_loss(x, y, y * y + 1),
    "poisson": F.poisson_nll_loss,
    "logaddexp": torch.logaddexp,
    "distance": lambda x, y: torch.cdist(x, y, compute_mode="use_mm_for_euclid_dist"),
}


@pytest.mark.parametrize("name", PAIRS)
def test_losses_of_pairs(name: str) -> None:
    verify(PAIRS[name], [data(5, 19).requires_grad_(), data(5, 19, seed=1).requires_grad_()])


SINGLE: dict[str, Callable[..., Any]] = {
    "logsumexp": lambda x: torch.logsumexp(x, -1),
    "logsumexp_outer": lambda x: torch.logsumexp(x * 3, 0, keepdim=True),
    "softplus": lambda x: F.softplus(x * 8, beta=2, threshold=10),
    "log_sigmoid": F.logsigmoid,
    "normalize": F.normalize,
    "normalize_outer": lambda x: F.normalize(x, dim=0),
    "glu": lambda x: F.glu(x[:, :18]),
}


@pytest.mark.parametrize("name", SINGLE)
def test_functions_of_rows(name: str) -> None:
    verify(SINGLE[name], [data(5, 19).requires_grad_()])


def test_logsumexp_of_infinite_rows() -> None:
    x = data(5, 19)
    x[0] = -INF
    x[1, 3] = INF
    x[2, :4] = -INF
    x[3, 3] = NAN
    verify(lambda x: torch.logsumexp(x, -1), [x])
    ends = torch.tensor([INF, -INF, NAN, 0.5], device=DEVICE)
    verify(torch.logaddexp, [ends[:, None].repeat(1, 4), ends])


# --- dropout ---


def test_dropout_makes_its_own_random_numbers() -> None:
    runner = Kernels()
    x = torch.ones(24, 33, device=DEVICE, requires_grad=True)
    compiled = compiled_by(runner, lambda x: F.dropout(x, 0.25) * x)
    same_seed = []
    while runner.turn < max(runner.layouts, 2):
        torch.manual_seed(5)
        same_seed.append(step(compiled, [x]))
        runner.turn += 1
    kept = same_seed[0][0] != 0
    assert 0.7 < kept.float().mean() < 0.8
    for y, grad in same_seed:
        torch.testing.assert_close(y, kept * 4 / 3)
        torch.testing.assert_close(grad, kept * (4 / 3) ** 2 * 4)
    assert not torch.equal(step(compiled, [x])[0] != 0, kept)
    # One number is drawn; the elements' own come from it, in the kernel that drops.
    assert runner.opaque == ["aten.randint.low"]
    forward = runner.graphs[0]
    assert len(groups(forward)) == 1
    (drawn,) = [n for n in forward.graph.nodes if n.op == "aten.randint.low"]
    assert drawn.type is not None
    assert drawn.type.shape == ()


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_dropout_of_nothing_and_of_all(p: float) -> None:
    verify(lambda x: F.dropout(x * 2, p) + 1, [data(5, 9).requires_grad_()])


def test_dropout_in_16_bits_scales_as_eager_does() -> None:
    runner = Kernels()
    compiled = compiled_by(runner, lambda x: F.dropout(x, 0.5))
    x = data(40, 40, dtype=torch.bfloat16)
    y = compiled(x)
    kept = y != 0
    assert y.dtype == x.dtype
    assert torch.equal(y[kept], (x * 2)[kept])
    assert 0.45 < kept.float().mean() < 0.55
    assert runner.kernels == 1
