"""The gate of whole plans: each fault that it once let through, and what is right though eager
differs."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fusionplan.planner.costs.device import builtin
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.graph.graph import Graph, Node, Ref, TensorType
from fusionplan.planner.plan import Plan
from fusionplan.planner.runtime.execution.executor import Executor
from fusionplan.tuner.gate import gate, reference
from fusionplan.tuner.gate.any_address import may_lie_anywhere
from fusionplan.tuner.gate.check import compare
from fusionplan.tuner.gate.gate import Failed, GateCase, Passed, case, cases, judge
from fusionplan.tuner.gate.reference import Expected
from fusionplan.tuner.gate.slices import loose
from tuner_fakes import captured

CPU = torch.device("cpu")


def judged(function: Callable, *inputs: torch.Tensor, plant: Callable) -> str | None:
    """What the gate says of eager's own outputs with a fault in the first of them."""
    return fault_of(case(captured(function, *inputs), inputs), plant)


def fault_of(given: GateCase, plant: Callable) -> str | None:
    def run(*args: torch.Tensor) -> list[torch.Tensor]:
        first, *rest = (x.clone() for x in given.eager)
        plant(first)
        return [first, *rest]

    return gate.fault(run, given)


def setting(*index: object, to: float) -> Callable:
    def plant(out: torch.Tensor) -> None:
        out[index] = to

    return plant


def nothing(out: torch.Tensor) -> None:
    pass


ROWS = torch.rand(64, 512, generator=torch.Generator().manual_seed(0)) + 1


FAULTS = {
    "infinity for ordinary numbers": lambda out: out.fill_(math.inf),
    "an infinity": setting(5, 7, to=math.inf),
    "a NaN": setting(5, 7, to=math.nan),
    "an element": setting(5, 7, to=5.0),
    "a row of zeros": setting(5, to=0.0),
    "a ragged edge": lambda out: out[:, -1].mul_(1.5),
    "another row": lambda out: out[9].copy_(out[10]),
    "all by 5%": lambda out: out.mul_(1.05),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_wrong_floats_are_found(dtype):
    x = ROWS.to(dtype)
    given = case(captured(lambda x: torch.exp(x) * 0.5, x), (x,))
    assert fault_of(given, nothing) is None
    assert [name for name, plant in FAULTS.items() if fault_of(given, plant) is None] == []


def test_a_small_row_counts_as_much_as_large_ones():
    x = ROWS.clone()
    x[5] *= 1e-6
    assert judged(lambda x: x * 1.1, x, plant=setting(5, to=0.0)) is not None


@pytest.mark.slow
def test_one_wrong_element_of_two_million():
    eager = torch.rand(2_000_000)
    wanted = Expected(eager, eager, loose(eager, 2e-6, 1e-6))
    assert compare(wanted, eager) is None
    found = eager.clone()
    found[1_654_321] += 1e-4
    reason = compare(wanted, found) or ""
    assert "1 of 2000000 element beyond it" in reason
    assert "at [1654321]" in reason


@pytest.mark.parametrize(
    "to, found", [(math.inf, None), (math.nan, "not finite"), (1.0, "not finite")]
)
def test_an_infinity_is_nothing_else(to, found):
    x = torch.full((4, 300), 100.0).half()
    reason = judged(torch.exp, x, plant=setting(2, 5, to=to))
    assert (reason is None) if found is None else (found in (reason or ""))


@pytest.mark.parametrize("to", [1.0, math.inf])
def test_a_nan_is_nothing_else(to):
    x = -torch.rand(4, 300) - 1
    assert judged(torch.sqrt, x, plant=nothing) is None
    assert "not finite" in (judged(torch.sqrt, x, plant=setting(2, 5, to=to)) or "")


def test_a_zero_has_its_sign():
    x = torch.randn(4, 300)
    assert judged(lambda x: -torch.relu(x), x, plant=nothing) is None
    reason = judged(lambda x: -torch.relu(x), x, plant=lambda out: out.add_(0.0))
    assert "the wrong sign" in (reason or "")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * 8).long(),
        lambda x: x + 1 > 1.3,
        lambda x: (x * 1.3).argmax(-1),
        lambda x: (x * 1.3 > 0.4).sum(-1),
    ],
)
def test_integers_and_booleans_are_exact(dtype, function):
    x = torch.rand(64, 512).to(dtype)
    assert judged(function, x, plant=nothing) is None

    def one(out):
        out.view(-1)[17] = ~out.view(-1)[17] if out.dtype is torch.bool else 1000

    assert "1 of" in (judged(function, x, plant=one) or "")

    def half(out):
        out[:32] = out[:32].flip(-1).logical_not() if out.dtype is torch.bool else out[:32] + 3

    assert judged(function, x, plant=half) is not None


def test_nearly_equal_floats_may_compare_either_way():
    """A kernel that does not round in between is right as well, element by element."""
    torch.manual_seed(0)
    x, y = torch.randn(64, 512).bfloat16(), torch.randn(64, 512).bfloat16()

    def eager(x, y):
        return torch.sigmoid(x) * y + x > 0.25

    given = case(captured(eager, x, y), (x, y))
    found = eager(x.float(), y.float())
    partly = torch.sigmoid(x) * y.float() + x.float() > 0.25
    assert not torch.equal(found, given.eager[0])
    assert not torch.equal(partly, found)
    for each in (found, partly):
        assert gate.fault(lambda *_, each=each: [each.clone()], given) is None
    sure = int((torch.sigmoid(x.float()) * y.float() + x.float() - 0.25).abs().argmax())
    found.view(-1)[sure] ^= True
    reason = gate.fault(lambda *_: [found.clone()], given)
    assert reason is not None
    assert reason.startswith("output 0 on given inputs: 1 of 32768 element differ")


def test_the_largest_of_nearly_equal_floats_may_be_either():
    """A third that is as near as the two that eager and float64 choose; but no other."""
    x = torch.rand(8, 512)
    x[:, 100], x[:, 200], x[:, 300] = 3.0, 3.0 + 1e-6, 3.0 + 2e-6

    def function(x):
        return (torch.exp(x) * 1.7).argmax(-1)

    given = case(captured(function, x), (x,))
    places = [i for i in (100, 101, 200, 300, 600) if not fault_of(given, setting(..., to=i))]
    assert places == [100, 200, 300]


def test_what_compares_inputs_has_no_excuse():
    x = torch.rand(64, 64)
    y = torch.nextafter(x, x + 1)
    reason = judged(lambda x, y: x < y, x, y, plant=setting(3, 3, to=False))
    assert "1 of 4096" in (reason or "")


def runs_in_place_of(function: Callable, *inputs: torch.Tensor) -> tuple[Executor, GateCase]:
    """An executor of a graph as ATen, and the case; a test changes what it allocates with."""
    given = captured(function, *inputs)
    return Executor(given, Plan("", "d", (), "modelled", ()), CPU), case(given, inputs)


def test_integers_that_nobody_writes_are_found():
    """Two of two million, and eager has -1 in both of their places."""
    x = torch.zeros(2_000_000, dtype=torch.int64)
    _, given = runs_in_place_of(lambda x: x - 1, x)

    class Kernel(Executor):
        """Writes all but two elements of what it allocates."""

        def __call__(self, *inputs):
            out = self._module["empty"]((2_000_000,), (1,), dtype=torch.int64)
            out[:-2] = -1
            return [out]

    fused = modelled_plan(given.captured.graph, builtin("h200"))
    kernel = Kernel(given.captured, fused, CPU)
    assert "2 of 2000000 elements were not written" in (gate.fault(kernel, given) or "")
    assert gate.fault(lambda *_: [x - 1], given) is None


def test_a_replay_that_computes_nothing_is_found():
    x = torch.randn(64, 300)
    given = case(captured(lambda x: x * 2, x), (x,))
    result = x * 2
    assert gate.fault(lambda *_: [result], given) is not None


@pytest.mark.interpreter
def test_a_plan_of_kernels_passes_on_other_inputs_too():
    x, y = torch.randn(4, 40), torch.randn(4, 40)
    given = captured(lambda x, y: torch.softmax(x * y, -1), x, y)
    executor = Executor(given, modelled_plan(given.graph, builtin("h200")), CPU)
    assert executor.kernels_per_call == 1
    passed = judge(executor, cases(given, (x, y)))
    names = ("given", "fresh", "random", "masked", "large", "tiny", "constant", "zeros")
    assert passed == Passed(names)


@pytest.mark.parametrize("data_set", ["fresh", "masked", "zeros"])
def test_a_plan_that_is_right_on_the_given_inputs_only(data_set):
    x = torch.randn(16, 40)
    given = captured(lambda x: torch.softmax(x * 2, -1), x)
    known = {one.name: one for one in cases(given, (x,))}

    def run(x):
        wrong = torch.equal(x, known[data_set].inputs[0])
        return [torch.softmax(x * 2, -1) + wrong]

    assert gate.fault(run, known["given"]) is None
    verdict = judge(run, list(known.values()))
    assert isinstance(verdict, Failed)
    assert f"on {data_set} inputs" in verdict.reason


def test_what_a_forward_pass_saved_stays_as_it_is_in_a_backward_graph():
    """Logarithms of sums that are not those of the scores would make attention's weights anything,
    and their gradients numbers of which rounding decides."""
    saved, total, upstream = torch.randn(16, 40), torch.randn(16, 1), torch.ones(40, 16).T
    given = captured(lambda s, t, u: torch.exp(s - t) * u, saved, total, upstream)
    *_, last = given.gm.graph.find_nodes(op="placeholder")
    last.target = "tangents_1"
    fresh = next(one for one in cases(given, (saved, total, upstream)) if one.name == "fresh")
    assert fresh.inputs[0] is saved
    assert fresh.inputs[1] is total
    assert fresh.inputs[2].std() > 0.5
    assert fresh.inputs[2].abs().max() < 6
    assert fresh.inputs[2].stride() == upstream.stride()


@pytest.mark.interpreter
def test_an_executors_unaligned_variants_are_tried():
    x = torch.randn(16, 40)
    given = captured(lambda x: torch.softmax(x * 2, -1), x)
    executor = Executor(given, modelled_plan(given.graph, builtin("h200")), CPU)
    seen = []

    class Watched(Executor):
        def __call__(self, *inputs):
            seen.append([t.data_ptr() % 16 for t in inputs])
            result = super().__call__(*inputs)
            return [r + 1 for r in result] if seen[-1] != [0] else result

    watched = Watched(given, executor.plan, CPU)
    reason = gate.fault(watched, case(given, (x,)))
    assert (reason or "").startswith("with inputs at odd addresses: output 0 on given inputs")
    assert gate.fault(executor, case(given, (x,))) is None


@pytest.mark.interpreter
def test_what_a_library_reads_stays_where_it_is():
    """At such an address cuDNN may end the device's context, and the user's own code with it."""
    x, w = torch.randn(16, 40), torch.randn(24, 16)
    given = captured(lambda x, w: (torch.softmax(x * 2, -1), torch.sort(w.t(), -1)[0], w + 1), x, w)
    plan = modelled_plan(given.graph, builtin("h200"))
    assert may_lie_anywhere(given.graph, plan) == {0}
    assert may_lie_anywhere(given.graph, replace(plan, groups=())) == set()
    seen = []

    class Watched(Executor):
        def __call__(self, *inputs):
            seen.append([t.data_ptr() % 16 for t in inputs])
            return super().__call__(*inputs)

    assert gate.fault(Watched(given, plan, CPU), case(given, (x, w))) is None
    odd = x.element_size()
    assert [odd, 0] in seen
    assert {w for _, w in seen} == {0}


def test_only_what_passed_may_be_measured():
    plan = Plan("k", "d", (), "modelled", ())
    kept = gate.measured(plan, Passed(("given",)), 1.5, [("eager", 2.0)])
    assert (kept.evidence, kept.measured, kept.baselines) == ("measured", 1.5, (("eager", 2.0),))
    with pytest.raises(TypeError, match="did not pass the gate"):
        gate.measured(plan, Failed("output 0"), 1.5)


@pytest.mark.slow
def test_a_baseline_needs_no_gate_and_kernels_of_ours_do():
    x = torch.randn(4, 40)
    given = captured(lambda x: torch.softmax(x, -1), x)
    assert gate.as_baseline(Plan("k", "d", (), "modelled", ()), given.graph)
    with pytest.raises(TypeError, match="has to pass the gate"):
        gate.as_baseline(modelled_plan(given.graph, builtin("h200")), given.graph)


def test_nobody_else_says_that_a_plan_passed():
    root = Path(gate.__file__).resolve().parents[2]
    files = [f for of in ("tuner", "planner", "bench", "cli") for f in (root / of).rglob("*.py")]
    files += root.glob("*.py")
    found = {f.name for f in files if "Passed(" in f.read_text()}
    assert found == {"gate.py"}
    measured = re.compile(r"evidence=\"measured\"")
    assert {f.name for f in files if measured.search(f.read_text())} == {"gate.py"}


def test_where_float64_cannot_be_had_each_element_is_near_eagers(monkeypatch):
    def no_memory(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(gate, "references", no_memory)
    x = torch.randn(64, 512)
    assert judged(torch.exp, x, plant=nothing) is None
    for plant in (setting(3, 4, to=math.inf), setting(3, 4, to=9.0), setting(3, to=0.0)):
        assert judged(torch.exp, x, plant=plant) is not None
    given = case(captured(torch.exp, x), (x,))
    assert judge(lambda x: [torch.exp(x)], [given]) == Passed(("given",), ("given",))


def test_without_memory_for_evaluations_with_errors_eagers_result_decides(monkeypatch):
    def no_memory(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(reference, "disturbed", no_memory)
    x = torch.randn(64, 512)
    given = case(captured(torch.exp, x), (x,))
    assert judge(lambda x: [torch.exp(x)], [given]) == Passed(("given",))
    assert judge(lambda x: [torch.exp(x) * 1.001], [given]) == Passed(("given",), ("given",))
    assert isinstance(judge(lambda x: [torch.exp(x) * 1.1], [given]), Failed)


def test_random_numbers_are_compared_with_eagers():
    x = torch.rand(64, 512) + 1

    def function(x):
        return x * torch.rand(64, 512)

    given = captured(function, x)
    executor = Executor(given, Plan("", "d", (), "modelled", ()), CPU)
    assert judge(executor, [case(given, (x,))]) == Passed(("given",), ("given",))
    assert judged(function, x, plant=lambda out: out[3].copy_(out[4])) is not None


def test_a_callers_random_numbers_go_on():
    x = torch.randn(64, 300)
    given = captured(lambda x: x * 2, x)
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    judge(lambda x: [x * 2], cases(given, (x,)))
    assert torch.equal(torch.rand(3), wanted)


def test_outputs_that_are_no_tensors_and_their_number():
    x = torch.randn(8, 8)
    given = case(captured(lambda x: (x * 2, x + 1), x), (x,))
    assert "1 outputs instead of 2" in (gate.fault(lambda x: [x * 2], given) or "")
    assert "is None" in (gate.fault(lambda x: [x * 2, None], given) or "")
    assert "float16" in (gate.fault(lambda x: [x * 2, (x + 1).half()], given) or "")


@pytest.mark.parametrize(
    "found, eager, fault",
    [
        (1.0, 1.08, False),  # eager strays, the plan does not
        (1.2, 1.08, True),  # both, the plan more
        (1.15, 1.2, False),  # both, the plan less
        (1.6, 1.2, True),
        (1.5, 1.0, True),  # the plan alone
        (1.0, 1.5, True),  # eager so far that nobody knows what is right
    ],
)
def test_eager_that_strays_is_judged_by_float64(found, eager, fault):
    x = torch.rand(64) + 1
    given = captured(lambda x: torch.exp(x).bfloat16(), x)
    exact = torch.exp(x)
    known = GateCase(given, (x,), [(exact * eager).bfloat16()])
    reason = gate.fault(lambda *_: [(exact * found).bfloat16()], known)
    assert (reason is not None) == fault


@pytest.mark.parametrize("times, fault", [(1.3, False), (0.1, False), (2.5, True)])
def test_rounding_alone_may_be_as_large_as_eagers(times, fault):
    """A gradient that vanishes in truth: both results are noise."""
    x = torch.rand(64) + 1
    given = captured(lambda x: (torch.exp(x) - torch.exp(x)).bfloat16(), x)
    noise = torch.randn(64) * 1e-4
    known = GateCase(given, (x,), [noise.bfloat16()])
    reason = gate.fault(lambda *_: [(noise * times).bfloat16()], known)
    assert (reason is not None) == fault


@pytest.mark.parametrize("times", [0.0, 3.0])
def test_where_eager_overflows_a_plan_must_still_be_right(times):
    x = torch.cat([torch.tensor([1100.0]), torch.rand(63) + 1]).half()
    given = captured(lambda x: x * x, x)
    eager = x * x
    known = GateCase(given, (x,), [eager])
    assert not eager.isfinite().all()
    assert gate.fault(lambda *_: [eager * times], known) is not None
    assert gate.fault(lambda *_: [eager.clone()], known) is None


def test_the_state_of_random_numbers_is_not_compared():
    """Without dropout nobody writes it."""
    t = TensorType((4,), (1,), "float32")
    seed = TensorType((), (), "int64")
    call = "aten._scaled_dot_product_efficient_attention.default"
    nodes = (
        Node(0, "q", "input", type=t),
        Node(1, "call", call, (Ref(0),)),
        Node(2, "out", "operator.getitem", (Ref(1), 0), type=t),
        Node(3, "seed", "operator.getitem", (Ref(1), 2), type=seed),
        Node(4, "words", "aten.argmax.default", (Ref(2),), type=seed),
    )
    assert gate._states(Graph(nodes, (2, 3, None, 4))) == {1}


def test_results_of_float8_are_judged() -> None:
    def quantised(x: torch.Tensor) -> torch.Tensor:
        scale = x.abs().amax(-1, keepdim=True) / 448.0
        return (x / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)

    assert judged(quantised, ROWS, plant=nothing) is None
    assert judged(quantised, ROWS * 1e-5, plant=nothing) is None
    found = judged(quantised, ROWS, plant=lambda out: out[9].copy_(out[10]))
    assert found is not None
    assert "beyond" in found
