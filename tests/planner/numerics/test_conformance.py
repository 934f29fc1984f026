"""A sample of PyTorch's own samples through the backend: the full run is scripts/conformance."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fake_jobs import LOST, fake
from fusionplan.bench import conformance
from fusionplan.bench.conformance import DTYPES, ConformanceReport, run
from fusionplan.bench.conformance_jobs import ConformanceRecord, Failure, OperationJob, records
from fusionplan.bench.samples import (
    CallResults,
    SampledCall,
    difference,
    judge,
    operations,
    samples,
)
from oracle import DEVICE

pytestmark = [pytest.mark.interpreter, pytest.mark.usefixtures("large_groups")]


def names(text: str) -> list[str]:
    return text.split()


POINTWISE = names(
    """
    abs acos acosh add addcdiv addcmul asin asinh atan atan2 atanh ceil clamp copysign cos cosh
    deg2rad div.floor_rounding div.no_rounding_mode div.trunc_rounding erf erfc erfinv exp exp2
    expm1 float_power floor floor_divide fmax fmin fmod frac ge heaviside hypot isfinite ldexp
    lerp lgamma log log10 log1p log2 logaddexp logical_and logit masked_fill maximum mul
    nan_to_num neg nn.functional.celu nn.functional.elu nn.functional.gelu nn.functional.glu
    nn.functional.hardshrink nn.functional.hardsigmoid nn.functional.hardswish
    nn.functional.hardtanh nn.functional.leaky_relu nn.functional.logsigmoid nn.functional.mish
    nn.functional.prelu nn.functional.relu6 nn.functional.selu nn.functional.silu
    nn.functional.softplus nn.functional.softshrink nn.functional.threshold pow reciprocal
    remainder round.decimals_3 rsqrt sgn sigmoid sign signbit sin sinc sinh special.bessel_j0
    special.entr special.i1 special.xlog1py sqrt square sub tan tanh trunc where xlogy
    """
)

REDUCTIONS = names(
    """
    all amax amin any argmax argmin count_nonzero cross linalg.vector_norm log_softmax
    logcumsumexp logsumexp mean nanmean nansum nn.functional.huber_loss nn.functional.kl_div
    nn.functional.mse_loss nn.functional.nll_loss nn.functional.soft_margin_loss norm prod softmax
    std std_mean sum var var_mean
    """
)

VIEWS = names(
    """
    block_diag broadcast_to cat chunk constant_pad_nd diag_embed diagonal diff flip hstack
    nn.functional.pad.constant nn.functional.pad.reflect permute repeat roll rot90 select slice
    split stack tile tril triu unbind unfold
    """
)

LOOKUPS = names(
    """
    gather index_select take nn.functional.embedding nn.functional.avg_pool1d
    nn.functional.max_pool1d nn.functional.pad.replicate nn.functional.interpolate.nearest
    """
)

INTEGERS = names(
    """
    bitwise_and bitwise_left_shift bitwise_not div.floor_rounding div.trunc_rounding eq floor
    floor_divide logical_xor maximum remainder sign sum
    """
)

CASES = [
    *((name, dtype, False) for name in POINTWISE + REDUCTIONS for dtype in ("float32", "bfloat16")),
    *((name, "float32", True) for name in VIEWS),
    *((name, "float32", False) for name in LOOKUPS),
    *((name, "int64", False) for name in INTEGERS),
]


def is_of_kernels(name: str, dtype: str) -> bool:
    return DTYPES[dtype] in operations()[name].supported_dtypes(DEVICE)


@pytest.mark.parametrize("name, dtype, inside", CASES, ids=str)
def test_samples_of_an_operation(name: str, dtype: str, inside: bool) -> None:
    """The first sample that a kernel of ours runs is right; one of the first few is such a one."""
    if not is_of_kernels(name, dtype):
        pytest.skip(f"eager has no {name} of {dtype}")
    told = []
    for sample in samples(operations()[name], DTYPES[dtype], DEVICE, 4):
        outcome = judge(SampledCall.of(operations()[name], sample, inside))
        told.append(outcome)
        assert outcome.status != "failed", outcome.message
        if outcome.status == "ours":
            assert outcome.kernels > 0
            return
    pytest.fail(f"no kernel of ours in {told}")


def first(name: str) -> SampledCall:
    info = operations()[name]
    return SampledCall.of(info, next(iter(samples(info, torch.float32, DEVICE, 1))))


def changed(call: SampledCall, change: Callable[[torch.Tensor], torch.Tensor]) -> SampledCall:
    """The call, with other numbers where it is compiled: as a wrong kernel would give them."""

    class Wrong:
        def __getattr__(self, name: str) -> object:
            return getattr(call.info, name)

        def op(self, *args: object, **kwargs: object) -> torch.Tensor:
            result = call.info.op(*args, **kwargs)
            return change(result) if torch.compiler.is_compiling() or is_traced(result) else result

    return dataclasses.replace(call, info=Wrong())


def is_traced(tensor: torch.Tensor) -> bool:
    return type(tensor) is not torch.Tensor


@pytest.mark.parametrize(
    "name, number",
    [
        ("nn.functional.normalize", 2),
        ("nn.functional.layer_norm", 2),
        ("nn.functional.scaled_dot_product_attention", 1),  # rows with one weight of nearly 1
    ],
)
def test_what_should_vanish_in_float64_is_as_near_0_as_rounding_makes_it(
    name: str, number: int
) -> None:
    """Eager is the reference there, and its own 1e-16 is no more right than another."""
    info = operations()[name]
    *_, sample = samples(info, torch.float64, DEVICE, number + 1)
    call = SampledCall.of(info, sample)
    assert judge(call).status == "ours"
    assert judge(changed(call, lambda y: y * (1 + 1e-9))).status == "failed"


def test_a_wrong_number_is_a_failure() -> None:
    outcome = judge(changed(first("exp"), lambda y: y * 1.001))
    assert outcome.status == "failed"
    assert "error" in outcome.message
    assert judge(first("exp")).status == "ours"


def test_what_no_kernel_of_ours_computes_is_no_pass() -> None:
    outcome = judge(first("digamma"))
    assert (outcome.status, outcome.kernels) == ("not ours", 0)


def test_what_torch_cannot_trace_is_left_out() -> None:
    outcome = judge(first("cov"))
    assert (outcome.status, outcome.kernels) == ("left out", 0)
    assert "torch cannot trace it" in outcome.message


@pytest.mark.parametrize("name", ["pow", "__rpow__"])
def test_powers_of_integers_are_exact(name: str) -> None:
    record = run(OperationJob(name, "int64", DEVICE, None, 60.0))
    assert not record.failures
    assert record.samples > 5


def test_nan_and_infinity_must_be_where_eager_has_them() -> None:
    inf, nan = float("inf"), float("nan")

    def results(*numbers: float) -> CallResults:
        return CallResults((torch.tensor(numbers),), (), ())

    eager = results(1.0, inf, nan)
    exact = CallResults((torch.tensor([1.0, inf, nan], dtype=torch.float64),), (), ())
    assert not difference(results(1.0, inf, nan), eager, exact, 1)
    for wrong in ((nan, inf, nan), (1.0, 2.0, nan), (1.0, inf, 3.0), (inf, inf, nan)):
        assert difference(results(*wrong), eager, exact, 1)


def test_the_report_names_failures_and_counts_kernels(tmp_path: Path) -> None:
    good = run(OperationJob("exp", "float32", DEVICE, 2, 60.0))
    assert good.counts.get("ours", 0) > 0
    assert good.kernels > 0
    bad = ConformanceRecord(
        "sin", "bool", dict(Counter(failed=1)), 1, (Failure("bool", 0, "a|b"),), 0.1, {}
    )
    text = ConformanceReport("scripts/conformance", "a device", [good, bad]).markdown()
    assert f"exp {good.counts['ours']}/{good.samples}" in text
    (row,) = (line for line in text.splitlines() if line.startswith("| float32 |"))
    assert f"| {good.counts['ours']} | {good.kernels} | 0 |" in row
    assert "| sin | bool | 0 | a\\|b |" in text
    page, records = tmp_path / "page.md", tmp_path / "records.json"
    page.write_text("before\n<!-- conformance: start -->\nold\n<!-- conformance: end -->\nafter\n")
    asked = ["--ops", "exp", "--dtypes", "float32", "--limit", "1", "--device", DEVICE]
    assert conformance.main([*asked, "--json", str(records), "--markdown", str(page)]) == 0
    assert json.loads(records.read_text())[0]["kernels"] > 0
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text


def test_a_run_goes_on_where_another_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "records.json"
    asked = ["--dtypes", "float32", "--limit", "1", "--device", DEVICE, "--json", str(file)]
    assert conformance.main([*asked, "--ops", "exp"]) == 0
    (first,) = json.loads(file.read_text())
    assert conformance.main([*asked, "--ops", "exp,sin", "--resume"]) == 0
    again = json.loads(file.read_text())
    assert [r["name"] for r in again] == ["exp", "sin"]
    assert again[0] == first, "it ran again"
    capsys.readouterr()
    assert conformance.main([*asked, "--ops", "exp,sin,cos", "--resume", "--until", "0"]) == 0
    assert "2 of 3 were run" in capsys.readouterr().out
    assert conformance.main(["--ops", "exp", "--resume", "--device", DEVICE]) == 2


def raising(message: str, at: int) -> Callable[[SampledCall], object]:
    """`judge`, but for the sample of this number."""
    count = iter(range(1000))

    def judged(call: SampledCall) -> object:
        if next(count) == at:
            raise RuntimeError(message)
        return judge(call)

    return judged


def test_an_error_costs_one_sample_and_one_of_cuda_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = OperationJob("exp", "float32", DEVICE, 3, 60.0)
    monkeypatch.setattr(conformance, "judge", raising("odd", 1))
    record = run(job)
    assert [(f.sample, f.message) for f in record.failures] == [(1, "RuntimeError: odd")]
    assert (record.samples, record.unseen, record.broken) == (3, False, False)
    monkeypatch.setattr(conformance, "judge", raising(LOST, 1))
    record = run(job)
    assert [(f.sample, f.message) for f in record.failures] == [(1, f"RuntimeError: {LOST}")]
    assert (record.samples, record.unseen, record.broken) == (2, True, True)


def test_an_error_of_cuda_is_neither_left_out_nor_taken_for_a_wrong_number() -> None:
    def lost(y: torch.Tensor) -> torch.Tensor:
        raise RuntimeError(LOST)

    with pytest.raises(RuntimeError, match="CUDA error"):
        judge(changed(first("exp"), lost))
    eager = dataclasses.replace(first("exp"), info=dataclasses.make_dataclass("Info", ["op"])(lost))
    with pytest.raises(RuntimeError, match="CUDA error"):
        judge(eager)


def test_a_process_that_breaks_or_dies_costs_its_own_job_alone() -> None:
    order = ["first", "second", "breaks", "third", "dies", "fourth", "raises", "fifth"]
    jobs = [OperationJob(name, "float32", "cuda", None, 60.0) for name in order]
    found = {r.name: r for r in records(jobs, 1, fake)}
    assert found.keys() == set(order)
    failed = {n: r.failures[0].message for n, r in found.items() if r.failures}
    assert failed.keys() == {"dies", "raises"}
    assert "terminated" in failed["dies"]
    assert failed["raises"] == f"RuntimeError: {LOST}"
    process = {name: record.kernels for name, record in found.items()}
    assert process["first"] == process["second"] == process["breaks"]
    assert len({process[n] for n in ("first", "third", "fourth", "fifth")}) == 4
