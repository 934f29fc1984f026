"""What passes for right, and what does not, whatever the kernel."""

import math
from dataclasses import replace

import pytest
import torch
from fusionplan.planner.graph.graph import Graph, Node, Ref, Symbol, TensorType
from fusionplan.tuner.gate.check import check, compare
from fusionplan.tuner.gate.perturbed import Noise, disturbed
from fusionplan.tuner.gate.reference import Expected, deepest, expected, references
from fusionplan.tuner.gate.slices import SliceLimits
from fusionplan.tuner.trial.evaluate import evaluate
from fusionplan.tuner.trial.inputs import DATA_SETS, empty, is_poison, make, poison
from tuner_graphs import dense, looked_up, pointwise, softmax

CPU = torch.device("cpu")


def judged(group: Graph, data_set: str, change=lambda out: out) -> str | None:
    inputs = make(group, data_set, CPU, seed=3)
    wanted = expected(group, inputs, CPU)
    actual = change(evaluate(group, inputs, CPU)[0].clone())
    return check(wanted, [actual], data_set)


GROUPS = [
    pointwise(),
    pointwise(dtype="bfloat16"),
    softmax(),
    softmax(dtype="float16"),
    softmax(33, 127, dtype="bfloat16"),
]


@pytest.mark.parametrize("data_set", DATA_SETS)
@pytest.mark.parametrize("group", GROUPS, ids=lambda g: f"{g.nodes[0].type}")
def test_eager_itself_passes(group: Graph, data_set: str):
    assert judged(group, data_set) is None


@pytest.mark.parametrize("group", GROUPS, ids=lambda g: f"{g.nodes[0].type}")
def test_what_passes_by_eagers_error_alone_takes_no_more_evaluations(
    group: Graph, monkeypatch: pytest.MonkeyPatch
):
    made: list[Noise] = []

    def counted(graph: Graph, inputs: object, device: object, noise: Noise) -> object:
        made.append(noise)
        return disturbed(graph, inputs, device, noise)

    monkeypatch.setattr("fusionplan.tuner.gate.reference.disturbed", counted)
    inputs = make(group, "random", CPU, seed=3)
    wanted = references(group, inputs, CPU)
    (right,) = evaluate(group, inputs, CPU)
    assert check(wanted, [right], "random") is None
    assert made == []
    assert check(wanted, [right * 1.3], "random") == check(
        expected(group, inputs, CPU), [right * 1.3], "random"
    )
    assert made


@pytest.mark.parametrize("data_set", DATA_SETS)
@pytest.mark.parametrize("group", GROUPS, ids=lambda g: f"{g.nodes[0].type}")
def test_eagers_error_alone_allows_no_more_than_the_whole_rule(group: Graph, data_set: str):
    (one,) = references(group, make(group, data_set, CPU, seed=3), CPU)
    quick, whole = one.quick.limits, one.expected.limits
    assert bool((quick.largest <= whole.largest).all())
    assert bool((quick.typical <= whole.typical).all())
    assert bool((quick.scale <= whole.scale).all())


@pytest.mark.slow
def test_another_order_of_summation_passes():
    group = softmax(16, 4096)
    inputs = make(group, "random", CPU, seed=0)
    wanted = expected(group, inputs, CPU)
    e = torch.exp(inputs[0] - inputs[0].amax(1, True))
    total = torch.zeros(16, 1)
    for column in range(0, 4096, 64):
        total += e[:, column : column + 64].flip(1).cumsum(1)[:, -1:]
    assert check(wanted, [e / total], "random") is None


@pytest.mark.parametrize("group", GROUPS, ids=lambda g: f"{g.nodes[0].type}")
@pytest.mark.parametrize("data_set", ["random", "tiny", "constant"])
def test_one_wrong_element_is_found_and_named(group: Graph, data_set: str):
    def change(out: torch.Tensor) -> torch.Tensor:
        out[3, 5] = out[3, 5] * 1.3 + 0.2
        return out

    reason = judged(group, data_set, change)
    assert reason is not None
    assert f"output 0 on {data_set}" in reason
    assert "[3, 5]" in reason


@pytest.mark.parametrize("data_set", ["random", "large"])
def test_a_large_result_is_judged_in_pieces(data_set: str, monkeypatch: pytest.MonkeyPatch):
    def change(out: torch.Tensor) -> torch.Tensor:
        out[2, 7] = out[2, 7] * 1.3 + 0.2
        return out

    group = softmax(33, 127, dtype="bfloat16")
    inputs = make(group, data_set, CPU, seed=3)
    (whole,) = expected(group, inputs, CPU)
    reason = judged(group, data_set, change)
    monkeypatch.setattr("fusionplan.tuner.gate.slices._PIECE", 700)
    (pieces,) = expected(group, inputs, CPU)
    for name in ("largest", "typical", "scale"):
        torch.testing.assert_close(getattr(pieces.limits, name), getattr(whole.limits, name))
    assert pieces.differing == whole.differing
    assert reason is not None
    assert judged(group, data_set, change) == reason
    assert judged(group, data_set) is None


def test_a_small_error_everywhere_is_found():
    assert judged(softmax(32, 64), "random", lambda out: out * (1 + 1e-4)) is not None
    assert judged(softmax(32, 64), "random", lambda out: out * (1 + 1e-7)) is None


def test_the_root_mean_square_of_a_slice_has_a_limit_of_its_own():
    """Errors of which none is too large by itself; in one slice of four."""
    value = torch.ones(4, 512, dtype=torch.float64)
    per_slice = torch.full((4, 1), 1.0)
    limits = SliceLimits(512, per_slice, 0.1 * per_slice, 0.01 * per_slice)
    wanted = Expected(value, value.float(), limits)
    found = value.float()
    found[2, ::64] += 0.1
    assert compare(wanted, found) is None
    found[2] = 1.1
    reason = compare(wanted, found) or ""
    assert "512 of 2048 elements beyond it: error 0.05 (root mean square of a slice)" in reason


def test_rounding_at_random_errs_as_eager_does():
    """And not where nothing is rounded."""
    group = softmax(33, 300, dtype="bfloat16")
    inputs = make(group, "random", CPU, seed=3)
    value = evaluate(group, inputs, CPU, wide=torch.float64)[0]
    eager = evaluate(group, inputs, CPU)[0].double()
    rough = disturbed(group, inputs, CPU, Noise(narrow=True))[0]
    fine = disturbed(group, inputs, CPU, Noise(narrow=False))[0]
    own = float((eager - value).norm())
    assert 1.1 < float((rough - value).norm()) / own < 1.8
    assert 0 < float((fine - value).norm()) / own < 1e-2
    exact = looked_up("aten.abs.default", dense(6))
    inputs = make(exact, "random", CPU, seed=0)
    assert torch.equal(
        disturbed(exact, inputs, CPU, Noise(narrow=True))[0],
        evaluate(exact, inputs, CPU, wide=torch.float64)[0],
    )


def test_an_element_nobody_wrote_is_found():
    def change(out: torch.Tensor) -> torch.Tensor:
        unwritten = torch.empty_like(out)
        poison(unwritten)
        out[-1, -1] = unwritten[-1, -1]
        return out

    assert "not finite" in (judged(pointwise(), "random", change) or "")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("data_set", ["random", "zeros"])
def test_what_is_not_finite_never_passes_where_the_reference_is(bad: float, data_set: str):
    def change(out: torch.Tensor) -> torch.Tensor:
        out[0, 0] = bad
        return out

    assert judged(softmax(), data_set, change) is not None


def test_an_infinity_must_match():
    def finite(out: torch.Tensor) -> torch.Tensor:
        return out.nan_to_num()

    assert judged(pointwise(), "large") is None
    assert "not finite where" in (judged(pointwise(), "large", finite) or "")


def test_a_masked_row_is_nan_where_eager_and_float64_have_nan():
    out = evaluate(softmax(), make(softmax(), "masked", CPU, seed=3), CPU)[0]
    assert out.isnan().any()
    assert "not finite" in (judged(softmax(), "masked", lambda out: out.nan_to_num()) or "")


def test_booleans_and_integers_are_exact():
    t, b = dense(8, 8), dense(8, 8, dtype="bool")
    group = Graph(
        (Node(0, "x", "input", type=t), Node(1, "p", "aten.gt.Scalar", (Ref(0), 0.0), type=b)),
        (1,),
    )
    assert judged(group, "random") is None
    assert judged(group, "random", lambda out: ~out) is not None

    def unwritten(out: torch.Tensor) -> torch.Tensor:
        poison(out)
        return out

    assert "not written" in (judged(group, "random", unwritten) or "")


def test_wide_evaluation_ignores_casts_to_narrow_floats_only():
    t, h, i = dense(4, 4), dense(4, 4, dtype="bfloat16"), dense(4, 4, dtype="int32")
    group = Graph(
        (
            Node(0, "x", "input", type=t),
            Node(
                1,
                "h",
                "aten._to_copy.default",
                (Ref(0),),
                (("dtype", Symbol("dtype", "bfloat16")),),
                h,
            ),
            Node(
                2,
                "i",
                "aten._to_copy.default",
                (Ref(1),),
                (("dtype", Symbol("dtype", "int32")),),
                i,
            ),
        ),
        (1, 2),
    )
    x = torch.full((4, 4), 1.001)
    wide, whole = evaluate(group, [x], CPU, wide=torch.float64)
    assert wide.dtype is torch.float64
    assert float(wide[0, 0]) == pytest.approx(1.001, abs=1e-7)
    assert whole.dtype is torch.int32
    assert evaluate(group, [x], CPU)[0].dtype is torch.bfloat16
    assert torch.get_default_dtype() is torch.float32


def test_the_longest_reduction_counts():
    assert deepest(softmax(6, 40)) == 40
    assert deepest(pointwise()) == 0


STRIDED = [
    TensorType((4, 6), (1, 4), "float32"),
    TensorType((4, 6), (0, 1), "bfloat16"),
    TensorType((4, 6), (12, 2), "float32"),
    TensorType((), (), "float32"),
    TensorType((5,), (1,), "int64"),
    TensorType((5, 3), (3, 1), "bool"),
    TensorType((0, 3), (3, 1), "float32"),
]


@pytest.mark.parametrize("kind", STRIDED, ids=str)
@pytest.mark.parametrize("data_set", DATA_SETS)
def test_inputs_have_the_strides_and_exactly_the_storage(kind: TensorType, data_set: str):
    group = Graph((Node(0, "x", "input", type=kind),), (0,))
    (made,) = make(group, data_set, CPU, seed=1)
    (again,) = make(group, data_set, CPU, seed=1)
    assert (tuple(made.shape), made.stride()) == (kind.shape, kind.stride)
    assert made.untyped_storage().nbytes() == empty(kind, CPU).untyped_storage().nbytes()
    assert torch.equal(made, again)
    assert not made.double().isnan().any()


def test_a_float16_input_is_never_infinite_by_being_large():
    group = Graph((Node(0, "x", "input", type=dense(64, 64, dtype="float16")),), (0,))
    (made,) = make(group, "large", CPU, seed=1)
    assert made.isfinite().all()


def test_poison_is_seen():
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
        tensor = torch.zeros(3, 4, dtype=dtype)
        assert not is_poison(tensor).any()
        poison(tensor)
        assert is_poison(tensor).all()


def test_made_up_indices_lie_inside_what_they_are_indices_of():
    ids = dense(6, dtype="int64")
    group = Graph(
        (
            Node(0, "w", "input", type=dense(40, 8)),
            Node(1, "i", "input", type=ids),
            Node(2, "j", "input", type=ids),
            Node(3, "k", "input", type=ids),
            Node(4, "sum", "aten.add.Tensor", (Ref(1), Ref(2)), type=ids),
            Node(5, "rows", "aten.embedding.default", (Ref(0), Ref(4)), type=dense(6, 8)),
        ),
        (5,),
    )
    for seed in range(20):
        table, i, j, k = make(group, "random", CPU, seed=seed)
        assert int(i.min() + j.min()) >= 0
        assert int(i.max() + j.max()) < 40
        assert evaluate(group, [table, i, j, k], CPU)[0].shape == (6, 8)
        assert int(k.min()) >= -8  # no index, and any number


@pytest.mark.parametrize("data_set", DATA_SETS)
def test_an_index_may_be_computed_from_floats(data_set: str):
    group = looked_up("aten.abs.default", dense(6))
    table, x = make(group, data_set, CPU, seed=0)
    (wanted,) = expected(group, [table, x], CPU)
    assert torch.equal(wanted.eager, table[x.long()])
    # Had the numbers been disturbed, other rows would be near enough.
    table[:] = torch.randn(40, 8)
    (wanted,) = expected(group, [table, x], CPU)
    assert compare(wanted, table[x.long() - 1]) is not None


def test_an_index_outside_is_said():
    group = looked_up("aten.square.default", dense(6))
    with pytest.raises(IndexError, match=r"rows wants element \d+ of 40"):
        expected(group, make(group, "random", CPU, seed=0), CPU)


def test_a_mask_stands_for_all_its_dimensions():
    """What follows it is an index of the dimension behind them."""
    kinds = dense(4, 5, 30), dense(4, 5, dtype="bool"), dense(20, dtype="int64")
    group = Graph(
        (
            Node(0, "x", "input", type=kinds[0]),
            Node(1, "mask", "input", type=kinds[1]),
            Node(2, "i", "input", type=kinds[2]),
            Node(3, "y", "aten.index.Tensor", (Ref(0), (Ref(1), Ref(2))), type=dense(20)),
        ),
        (3,),
    )
    (*_, made) = make(group, "random", CPU, seed=0)
    assert int(made.min()) >= 30 // 4  # a quarter of the last dimension, not of the second
    inputs = [torch.randn(4, 5, 30), torch.ones(4, 5, dtype=torch.bool), torch.full((20,), 29)]
    assert evaluate(group, inputs, CPU, within=True)[0].shape == (20,)
    with pytest.raises(IndexError, match="element 30 of 30"):
        evaluate(group, [*inputs[:2], inputs[2] + 1], CPU, within=True)


def test_indices_of_few_bits_do_not_wrap():
    group = looked_up("aten.abs.default", dense(6, dtype="int8"))
    wide = replace(group, nodes=(replace(group.nodes[0], type=dense(1000, 8)), *group.nodes[1:]))
    _, index = make(wide, "random", CPU, seed=0)
    assert int(index.min()) >= 0


def test_what_overflows_in_float32_may_overflow(monkeypatch: pytest.MonkeyPatch):
    """A tensor core's sum of a few products does not overflow halfway, one after the other does."""
    exact = torch.full((100,), 3e38, dtype=torch.float64)
    late = exact.float()
    late[:3] = math.inf

    def evaluated(
        *_: object, wide: torch.dtype | None = None, within: bool = False
    ) -> list[torch.Tensor]:
        by = {None: exact.bfloat16(), torch.float64: exact, torch.float32: late}
        return [by[wide]]

    monkeypatch.setattr("fusionplan.tuner.gate.reference.evaluate", evaluated)
    monkeypatch.setattr("fusionplan.tuner.gate.reference.disturbed", lambda *_: [exact])
    group = pointwise()
    (wanted,) = expected(group, make(group, "random", CPU, seed=0), CPU)
    assert wanted.differing == 3
    for count, passes in ((6, True), (7, False)):
        found = exact.bfloat16()
        found[-count:] = -math.inf
        assert (compare(wanted, found) is None) == passes


def test_float64_is_not_judged_by_float32():
    t = dense(6, 40, dtype="float64")
    nodes = [Node(0, "x", "input", type=t)]
    for i in (1, 2):
        nodes.append(Node(i, f"m{i}", "aten.mul.Tensor", (Ref(i - 1), 1e20), type=t))
    group = Graph(tuple(nodes), (2,))
    assert judged(group, "random") is None
    assert judged(group, "random", lambda out: out * math.nan) is not None
    assert judged(group, "random", lambda out: out * math.inf) is not None


def near_ties(
    rows: int = 256, columns: int = 300
) -> tuple[Graph, list[torch.Tensor], torch.Tensor]:
    """Whether exp(x) is more than y, as 1 or -1; inputs with a tie in each eighth row that float64
    and float32 both decide for 1, by half a unit in the last place; and where the ties are."""
    t, b = dense(rows, columns), dense(rows, columns, dtype="bool")
    group = Graph(
        (
            Node(0, "x", "input", type=t),
            Node(1, "y", "input", type=t),
            Node(2, "exp", "aten.exp.default", (Ref(0),), type=t),
            Node(3, "more", "aten.gt.Tensor", (Ref(2), Ref(1)), type=b),
            Node(4, "out", "aten.where.ScalarOther", (Ref(3), Ref(2), -1.0), type=t),
        ),
        (4,),
    )
    x, y = make(group, "random", CPU, seed=5)
    exact, float32 = x.double().exp(), x.exp()
    y.copy_(torch.where(y > 0, float32 * 2, float32 / 2))
    ties = torch.zeros(rows, columns, dtype=torch.bool)
    below = torch.nextafter(float32, torch.zeros(()))
    for row in range(0, rows, 8):
        column = int((float32[row].double() > exact[row]).int().argmax())
        ties[row, column] = True
        y[row, column] = below[row, column]
    return group, [x, y], ties


Tied = tuple[Expected, torch.Tensor, torch.Tensor]


@pytest.fixture(scope="module")
def tied() -> Tied:
    """What is expected of the group with near ties, what eager computes, and where the ties are.
    Other evaluations of it are kept from one test to the next, as from candidate to candidate."""
    group, inputs, ties = near_ties()
    (wanted,) = expected(group, inputs, CPU)
    (eager,) = evaluate(group, inputs, CPU)
    return wanted, eager, ties


def test_a_near_tie_may_be_decided_otherwise_in_any_slice(tied: Tied):
    """Of 32 ties the one evaluation that the limits have seen decides some as float64 and eager do.
    A kernel that decides all of them otherwise is right: its function errs by a unit."""
    wanted, eager, ties = tied
    other = torch.where(ties, -1.0, eager)
    assert bool((eager[ties] > 0).all())
    assert compare(replace(wanted, doubt=None), other) is not None
    assert compare(wanted, other) is None


@pytest.mark.parametrize("tie", [False, True])
def test_a_wrong_element_beside_near_ties_is_found(tied: Tied, tie: bool):
    """Also in the row of a tie, and a tie whose result is neither of the two."""
    wanted, eager, ties = tied
    other = torch.where(ties, -1.0, eager)
    row, column = 8, int(ties[8].int().argmax())
    if not tie:
        column = (column + 1) % ties.shape[1]
        other[row, column] = -1.0 if eager[row, column] > 0 else 1.0
    else:
        other[row, column] = -9.0
    reason = compare(wanted, other)
    assert reason is not None
    assert reason.startswith("1 of")
    assert f"[{row}, {column}]" in reason


def test_no_evaluation_is_spent_on_what_is_wrong_everywhere(
    tied: Tied, monkeypatch: pytest.MonkeyPatch
):
    wanted, eager, _ = tied
    monkeypatch.setattr("fusionplan.tuner.gate.rounding_flips.Doubt.evaluated", None)
    assert compare(wanted, -eager) is not None


def test_a_slice_that_errs_too_much_everywhere_is_found():
    """Other evaluations do not lift the limit of a slice's root mean square."""
    group = softmax(16, 512, dtype="bfloat16")
    inputs = make(group, "random", CPU, seed=3)
    (wanted,) = expected(group, inputs, CPU)
    rough = evaluate(group, inputs, CPU)[0].float()
    signs = 2 * torch.randint(0, 2, (512,), generator=torch.Generator().manual_seed(1)) - 1
    of = wanted.limits
    assert of is not None
    rough[7] += 1.25 * float(of.typical[7]) * (rough[7].abs() + float(of.scale[7])) * signs
    reason = compare(wanted, rough.bfloat16())
    assert reason is not None
    assert "root mean square" in reason


def clipped_product(rows: int) -> Graph:
    """relu(x.bfloat16() @ w + c): the product's operand is rounded, and itself it need not be."""

    def of(*shape: int, dtype: str = "bfloat16") -> TensorType:
        return dense(*shape, dtype=dtype)

    bfloat16 = Symbol("dtype", "bfloat16")
    cast, out = "prims.convert_element_type.default", of(rows, 256)
    return Graph(
        (
            Node(0, "x", "input", type=of(rows, 64, dtype="float32")),
            Node(1, "w", "input", type=of(64, 256)),
            Node(2, "c", "input", type=out),
            Node(3, "cast", cast, (Ref(0), bfloat16), type=of(rows, 64)),
            Node(4, "mm", "aten.mm.default", (Ref(3), Ref(1)), type=out),
            Node(5, "add", "aten.add.Tensor", (Ref(4), Ref(2)), type=out),
            Node(6, "out", "aten.relu.default", (Ref(5),), type=out),
        ),
        (6,),
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 5, 9])
def test_a_relu_that_leaves_few_elements_refuses_no_right_kernel(seed: int):
    """The kernel rounds the operand after other operations than eager (one unit in the last place
    of float32 moves a few of 65,536 numbers to their neighbours) and does not round the product.
    One element of 512 is not zero, so that a slice has few errors to compare with."""
    torch.manual_seed(seed)
    group = clipped_product(1024)
    x, w = torch.randn(1024, 64), (torch.randn(64, 256) / 8).bfloat16()
    c = (torch.full((1024, 256), -3.3) + 0.1 * torch.randn(1024, 256)).bfloat16()
    wanted = references(group, [x, w, c], CPU)
    near = (x.double() * (1 + 2e-7 * torch.randn(1024, 64).double())).bfloat16()
    product = near.double() @ w.double() + c.double()
    right = torch.relu(product).bfloat16()
    assert check(wanted, [right], "random") is None
    # A quarter of the product's size in one element, and in one where relu leaves nothing.
    for place in (int(product.argmax()), int(product.argmin())):
        wrong = right.clone()
        wrong.view(-1)[place] += 0.25 * 3.3
        assert "1 of 262144 element" in (check(wanted, [wrong], "random") or "")
