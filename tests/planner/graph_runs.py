"""A random program by our kernels, and whether its results are right.

A program comes to a plan through a door:

    recorded    its operations are written down while they run: the quickest
    traced      AOTAutograd, as the backend calls it: for programs that write in place
    gradients   AOTAutograd, and what is compared are outputs and gradients of its inputs
    dynamo      torch.compile with the backend, plans by the cost model
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from fusionplan import executors
from fusionplan.backend import planner as backend
from fusionplan.planner.capture.capture import capture, decompositions
from fusionplan.planner.capture.saving import partition
from fusionplan.planner.graph.graph import key
from fusionplan.planner.graph.parse import parse
from fusionplan.planner.runtime.execution.executor import Executor
from graph_covers import Planner
from graph_recording import CannotRecord, recorded
from oracle import DEVICE, as_tuple, assert_close
from random_programs import Program
from torch._functorch.aot_autograd import aot_function
from torch.utils._python_dispatch import _disable_current_modes

Door = Literal["recorded", "traced", "gradients", "dynamo"]
DRAWS = 48
"""Inputs drawn before a result is called wrong: where eager happens to round to the true number,
other numbers tell what its error is. A result of one number needs as many."""
OPTIONS = {"on_miss": "model", "evidence": "any", "baseline": "eager"}

Results = Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


@dataclass(slots=True)
class Ran:
    """A program compiled by a plan. groups, kernels: of all its graphs."""

    program: Program
    planner: Planner
    door: Door = "traced"
    groups: int = 0
    kernels: int = 0
    call: Callable[..., object] = field(init=False)

    def __post_init__(self) -> None:
        function = self._function()
        if self.door == "recorded" and DEVICE == "cpu":
            try:
                gm = recorded(function, self._data(0))
            except CannotRecord:
                self.door = "traced"
            else:
                self.call = self._compile(gm, None, boxed=False)
                return
        if self.door == "dynamo":
            torch._dynamo.reset()
            self.call = torch.compile(function, backend=backend, options=OPTIONS)
        else:
            self.call = aot_function(
                function,
                self._compile,
                decompositions=decompositions(),
                partition_fn=partition,
            )

    def _function(self, *, wide: bool = False) -> Callable[..., tuple[torch.Tensor, ...]]:
        function = self.program.function(wide=wide)
        if self.door != "gradients":
            return function
        # AOTAutograd gives wrong gradients of windows that overlap: see `results_overlap`.
        return lambda *given: tuple(o.contiguous() for o in function(*given))

    def _data(self, seed: int) -> list[torch.Tensor]:
        return [x.to(DEVICE) for x in self.program.data(seed)]

    def _compile(
        self, gm: torch.fx.GraphModule, _: object, *, boxed: bool = True
    ) -> Callable[..., object]:
        with _disable_current_modes():  # as the dispatcher does: numbers are computed on the way
            captured = capture(gm)
            assert key(parse(str(captured.graph))) == key(captured.graph)
            plan = self.planner(captured.graph)
            executor = Executor(captured, plan, torch.device(DEVICE))
        self.groups += len(plan.groups)
        self.kernels += executor.kernels_per_call
        if not boxed:
            return lambda *inputs: executor.boxed(list(inputs))
        executor.boxed._boxed_call = True  # type: ignore[attr-defined]
        return executor.boxed

    def results(self, seed: int) -> Results:
        """Ours, the exact one and eager's, of each output, and of each gradient."""
        data = self._data(seed)
        wide = [x.double() if x.is_floating_point() else x for x in data]
        called: tuple[tuple[Callable[..., object], list[torch.Tensor]], ...] = (
            (self.call, data),
            (self._function(wide=True), wide),
            (self._function(), data),
        )
        if self.door == "gradients":
            found = [tuple(graded(function, given, seed)) for function, given in called]
        else:
            with torch.no_grad():
                found = [as_tuple(function(*given)) for function, given in called]
        if self.door == "dynamo":
            runners = executors(self.call)
            self.kernels = self.groups = sum(r.kernels_per_call for r in runners)
        return zip(*found, strict=True)

    def name(self, number: int) -> str:
        """Of a result."""
        names = self.program.outputs
        return names[number] if number < len(names) else f"gradient {number - len(names)}"


def graded(
    function: Callable[..., Any], inputs: Sequence[torch.Tensor], seed: int
) -> Iterator[torch.Tensor]:
    """The outputs, then the gradients of all inputs that have one."""
    given = [x.detach().requires_grad_(x.is_floating_point()) for x in inputs]
    outputs = as_tuple(function(*given))
    yield from (o.detach() for o in outputs)
    reached = [o for o in outputs if o.requires_grad]
    wanted = [x for x in given if x.requires_grad]
    if reached and wanted:
        weights = [_weights(o, 1000 * seed + i) for i, o in enumerate(reached)]
        found = torch.autograd.grad(reached, wanted, weights, allow_unused=True)
        yield from (g for g in found if g is not None)


def _weights(output: torch.Tensor, number: int) -> torch.Tensor:
    """Numbers of bfloat16, so that they are the same in every dtype."""
    generator = torch.Generator().manual_seed(number)
    drawn = torch.randn(output.shape, generator=generator).to(torch.bfloat16)
    return drawn.to(output.device, output.dtype)


def check(program: Program, planner: Planner, seed: int = 0, door: Door = "traced") -> int:
    """Raises AssertionError where a result is wrong. Gives the number of kernels that ran."""
    ran = Ran(program, planner, door)
    worst: dict[int, Worst] = {}
    for draws in range(1, DRAWS + 1):
        look(ran, seed + draws - 1, worst)
        if all(w.error <= w.limit * SPARE.get(draws, 0.0) for w in worst.values()):
            break
    else:
        for number, w in worst.items():
            told = f"error {w.error:.3g}, eager's own {w.own:.3g}, {w.size:.3g}"
            assert w.error <= w.limit, f"{ran.name(number)}: {told}"
    assert ran.kernels or not ran.groups, "no kernel ran"  # small ones may be one launch
    return ran.kernels


SPARE = {1: 1.0, 4: 0.5, 8: 0.5, 16: 0.5, 32: 0.5, DRAWS: 1.0}
"""After how many draws it is asked whether results are right, and how much of the limit they may
take. The first draw is judged by the accuracy rule. What fails there passes before all draws are
made only with half of the limit to spare: many looks give chance no more room than one."""


@dataclass(slots=True)
class Worst:
    """The accuracy rule over the draws of one result: its largest error, eager's own largest and
    the largest size. rounding: what rounding may add to a result of size 1."""

    rounding: float
    error: float = 0.0
    own: float = 0.0
    size: float = 0.0

    @property
    def limit(self) -> float:
        return 2 * self.own + self.rounding * self.size


def look(ran: Ran, draw: int, worst: dict[int, Worst]) -> None:
    """Compares the results of one draw. NaN and integers must be as eager has them in each."""
    for number, (mine, exact, eager) in enumerate(ran.results(draw)):
        if not mine.is_floating_point():
            assert_close(mine, exact, eager, ran.name(number))
            continue
        assert mine.dtype == eager.dtype, f"{mine.dtype} is not {eager.dtype}"
        assert mine.shape == eager.shape, f"{[*mine.shape]} is not {[*eager.shape]}"
        assert torch.equal(mine.isnan(), eager.isnan()), "NaN differs from eager's"
        finite = eager.isfinite() & exact.isfinite()
        assert torch.equal(mine.isfinite() & exact.isfinite(), finite), "infinities differ"
        assert torch.equal(mine[mine.isinf()], eager[mine.isinf()]), "infinities differ"
        place = worst.setdefault(number, Worst(_rounding(ran.program, mine.dtype)))
        if finite.any():
            sizes = (mine.double() - exact, eager.double() - exact, exact)
            found = (size[finite].abs().max().item() for size in sizes)
            held = (place.error, place.own, place.size)
            place.error, place.own, place.size = map(max, held, found)


def _rounding(program: Program, dtype: torch.dtype) -> float:
    """What rounding may add to a result of size 1. One of float64 that other floats go into has
    errors of float32, in which those are computed; else its reference is eager itself, which shows
    no error."""
    if dtype != torch.float64:
        return 4 * torch.finfo(dtype).eps
    narrower = any(name in str(program) for name in ("float32", "float16"))
    return 4 * torch.finfo(torch.float32).eps if narrower else 32 * torch.finfo(dtype).eps
