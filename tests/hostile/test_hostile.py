"""A sample of the hostile cases, in Triton's interpreter; all of them: `scripts/hostile`.

Counted too: a family of which too few cases run by kernels of ours fails, so that a silent
fall-back is seen."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch

from hostile import sweep
from hostile.cases import DTYPES, Case, Maker
from hostile.judge import Wrong, judge
from hostile.known import KNOWN
from hostile.sweep import Verdict, chosen, fell_back, main, report
from hostile.table import CASES

pytestmark = [pytest.mark.interpreter, pytest.mark.usefixtures("few_looks")]

FAMILIES = sorted({case.family for case in CASES.values()})
_SAMPLE = chosen(3 * len(FAMILIES), 20, "cpu", without=KNOWN)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sample_of_a_family(family: str) -> None:
    cases = [case for case in _SAMPLE if case.family == family]
    assert len(cases) >= 3
    found = [sweep.verdict(str(case), "cpu") for case in cases]
    wrong = [f"{v.name}: {v.wrong}" for v in found if v.wrong]
    assert not wrong, "\n".join(wrong)
    assert not fell_back(found)


def test_there_are_many_cases_of_every_type() -> None:
    assert len(CASES) >= 400
    cases = [case for case in CASES.values() if isinstance(case, Case)]
    words = Counter(
        word.split("[")[0]
        for case in cases
        for given in case.inputs
        if isinstance(given, str)
        for word in given.split()
    )
    assert words.keys() == DTYPES.keys()
    assert min(words.values()) >= 5
    assert sum(case.grad for case in cases) >= 80
    assert set(KNOWN) <= CASES.keys()


CASE = CASES["constants/divide_by_constant"]


@pytest.mark.parametrize(
    "change, told",
    [
        (lambda y: y * 1.0001, "error"),
        (lambda y: y.where(y < 1, float("inf")), "inf"),
        (lambda y: y.where(y < 1, float("nan")), "nan"),
        (lambda y: y.double(), "float64"),
        (lambda y: y[1:], r"\[63\]"),
        (lambda y: y.new_zeros(64, 2)[:, 0].copy_(y), r"strides \(2,\)"),
    ],
)
def test_what_is_wrong_is_told(change: object, told: str) -> None:
    """The change is made where it is compiled, as a wrong kernel would."""

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x / 3
        return y if type(x) is torch.Tensor else change(y)  # type: ignore[operator]

    case = replace(CASE, function=function)
    with pytest.raises(Wrong, match=told):
        judge(case, "cpu")
    assert judge(replace(CASE, function=lambda x: x / 3), "cpu") > 0


def test_integers_are_exact_and_gradients_are_compared() -> None:
    def off(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if type(x) is torch.Tensor else x + 2

    with pytest.raises(Wrong, match="differs in 64"):
        judge(replace(CASES["integers/uint8_minus_is_no_negative"], function=off), "cpu")

    def no_gradient(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if type(x) is torch.Tensor else x + x.detach()

    graded = replace(CASE, function=no_gradient, grad=True)
    with pytest.raises(Wrong, match="gradient 0"):
        judge(graded, "cpu")


def test_a_fall_back_is_no_pass() -> None:
    opaque = replace(CASE, function=lambda x: x.digamma())
    with pytest.raises(Wrong, match="no kernel of ours"):
        judge(opaque, "cpu")
    names = [str(c) for c in CASES.values() if c.family == "constants"][:4]
    told = [Verdict("constants", name, i == 0, 0.1, "") for i, name in enumerate(names)]
    assert fell_back(told) == ["constants"]
    assert not fell_back(told[:1])


def test_the_script_tells_what_fails(monkeypatch: pytest.MonkeyPatch, capsys: object) -> None:
    assert main(["--only", "constants/divide_by_constant"]) == 0
    assert main(["--only", "no such case"]) == 2
    broken = replace(CASE, function=lambda x: x.digamma())
    monkeypatch.setitem(CASES, str(CASE), broken)
    assert main(["--only", str(CASE)]) == 1
    assert "no kernel of ours ran" in report([sweep.verdict(str(CASE), "cpu")])


def test_a_sample_is_the_same_each_time_and_of_all_families() -> None:
    first, again = (list(map(str, chosen(40, 3, "cpu"))) for _ in range(2))
    assert first == again
    assert first != list(map(str, chosen(40, 4, "cpu")))
    assert {case.family for case in chosen(4 * len(FAMILIES), 3, "cpu")} == set(FAMILIES)


def test_inputs_are_what_their_words_say() -> None:
    m = Maker(0, "cpu")
    x = m("f16[4,6]!special@t")
    assert (x.dtype, x.shape, x.stride()) == (torch.float16, (4, 6), (1, 4))
    assert x.isnan().any()
    assert m("f32[5]@o").storage_offset() == 1
    assert m("f32[3,4]@e").stride() == (0, 1)
    assert m("f32[3,4]@s").stride() == (8, 2)
    assert m("i8[9]!full").min() == -128
    assert m("i64[50]!<7").max() < 7
    wide = Maker(0, "cpu", wide=True)("bf16[9]")
    assert wide.dtype == torch.float64
    assert torch.equal(wide, wide.bfloat16().double())
