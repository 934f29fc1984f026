"""A sample of the drawn programs, in Triton's interpreter; more: `tests/hostile/drawn.py`."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from shrinking import shrunk

from hostile import drawn
from hostile.drawn import Program, check, compare, reductions
from hostile.judge import Results, Wrong

pytestmark = pytest.mark.usefixtures("few_looks")


@pytest.mark.interpreter
@pytest.mark.parametrize("seed", [156, 157, 158])
def test_drawn_programs_are_right(seed: int) -> None:
    assert check(drawn.drawn(seed), seed) > 0


def test_a_seed_gives_one_program_that_eager_runs() -> None:
    program = drawn.drawn(158)
    assert str(program) == str(drawn.drawn(158)) != str(drawn.drawn(157))
    assert drawn.runs(program, 158)
    assert not drawn.runs(replace(program, outputs=("nothing",)), 158)


def test_what_differs_is_told() -> None:
    x = torch.rand(3, 4)

    def results(y: torch.Tensor) -> Results:
        return Results([y], [], [], [-1], [False])

    compare(results(x * (1 + 1e-7)), results(x), [results(x)])
    for other in (x * 1.001, x.double(), x.t().contiguous().t(), x.where(x > 0.5, torch.nan)):
        with pytest.raises(Wrong):
            compare(results(other), results(x), [results(x)])
    # Where roundings alone move it so far, it is no difference.
    compare(results(x * 1.001), results(x), [results(x * 1.0002)])
    with pytest.raises(Wrong, match="share memory"):
        compare(results(x), Results([x], [], [], [0], [False]), [])


def test_a_failure_is_made_smaller() -> None:
    lines = ("v0 = a0 + 1", "v1 = a0.exp()", "v2 = v1 * v0")
    program = Program(("f32[3]",), lines, ("v2", "v0"), grad=True)
    found = shrunk(program, lambda one: any("exp" in line for line in one.lines), reductions)
    assert found.lines == ("v1 = a0.exp()",)
    assert not found.grad
