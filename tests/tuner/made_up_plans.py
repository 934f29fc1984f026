"""Right and wrong plans of made-up graphs, to count how the gate judges them.

    python -m made_up_plans [--graphs N] [--plans N] [--evaluations N]

A right plan rounds to nearest, at operations that are chosen for it at random, as a plan does whose
kernels hold the rest in float32; its sums err as sums of another order do. A wrong one is such a
plan in which one operation has a fault. Some of the graphs decide by near ties, or leave few
elements of a slice, where rounding alone makes large errors. Evaluations: how many a failing slice
is judged by, in place of as many as there are for a graph of that size.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from fusionplan.planner.graph.graph import Graph
from fusionplan.tuner.gate import more_samples
from fusionplan.tuner.gate.check import compare
from fusionplan.tuner.gate.gate import GateCase, case
from fusionplan.tuner.gate.perturbed import Disturbed, Noise
from tuner_fakes import captured

CPU = torch.device("cpu")
Made = tuple[Callable[..., object], tuple[torch.Tensor, ...]]


class MadeUpPlan(Disturbed):
    """Outputs of a plan. fault: None of a right one; else spoils the result of one operation that
    computes floats."""

    def __init__(self, graph: Graph, seed: int, fault: Callable[..., Any] | None = None) -> None:
        super().__init__(graph, CPU, Noise(narrow=True, seed=seed, mixed=True))
        self.fault = fault
        floats = [n.id for n in graph.nodes if n.inputs and n.type and "float" in n.type.dtype]
        self._at = Random(seed).choice(floats)

    def apply(self, node: int, function: Any, args: Any, named: Any) -> Any:
        found = super().apply(node, function, args, named)
        if self.fault is None or node != self._at:
            return found
        found = found.contiguous().clone()
        self.fault(found)
        return found

    def _rounded(self, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        to = self._precision(dtype)
        return value if to is torch.float64 else value.to(to).to(value.dtype)


def numbers(dice: torch.Generator, *shape: int, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(*shape, generator=dice) * scale).bfloat16()


def layers(dice: torch.Generator) -> Made:
    weights = [numbers(dice, 64, 64, scale=1 / 8) for _ in range(6)]

    def model(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            x = torch.relu(x @ weight)
        return x

    return model, (numbers(dice, 64, 64), *weights)


def few_left(dice: torch.Generator) -> Made:
    """A relu leaves one element of hundreds."""
    shift = -3.1 + 0.1 * numbers(dice, 128, 256)

    def model(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return torch.relu(F.gelu(x @ v) * 2 @ w + c)

    given = numbers(dice, 128, 64), numbers(dice, 64, 64, scale=1 / 8)
    return model, (*given, numbers(dice, 64, 256, scale=1 / 8), shift)


def block(dice: torch.Generator) -> Made:
    """A block of a transformer."""
    square = [numbers(dice, 64, 64, scale=1 / 8) for _ in range(4)]
    up, down = numbers(dice, 64, 128, scale=1 / 8), numbers(dice, 128, 64, scale=1 / 11)

    def model(x: torch.Tensor, *w: torch.Tensor) -> torch.Tensor:
        h = F.layer_norm(x, (64,))
        scores = torch.softmax((h @ w[0]) @ (h @ w[1]).t() / 2, -1)
        x = x + (scores @ (h @ w[2])) @ w[3]
        return x + F.gelu(F.layer_norm(x, (64,)) @ w[4]) @ w[5]

    return model, (numbers(dice, 64, 64), *square, up, down)


def sharp(dice: torch.Generator) -> Made:
    """Attention whose scores are far apart: near ties choose the row."""

    def model(x: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.softmax((x @ q) @ (x @ k).t(), -1) @ (x @ v))

    return model, (numbers(dice, 128, 64), *(numbers(dice, 64, 64) for _ in range(3)))


def images(dice: torch.Generator) -> Made:
    weights = [numbers(dice, 8, 8, 3, 3, scale=0.12) for _ in range(4)]

    def model(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            x = torch.relu(F.conv2d(x, weight, padding=1) + x)
        return x

    return model, (numbers(dice, 2, 8, 12, 12), *weights)


def decisions(dice: torch.Generator) -> Made:
    """What is above a limit is kept, and clamped."""

    def model(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.relu(x @ w) @ u
        return y * (y > 1.0), (y @ u.t()).clamp(0, 1)

    given = numbers(dice, 128, 64), numbers(dice, 64, 64, scale=1 / 8)
    return model, (*given, numbers(dice, 64, 128, scale=1 / 8))


GRAPHS = (layers, few_left, block, sharp, images, decisions)


def ragged(out: torch.Tensor) -> None:
    """The last column is as if one more than there is were added."""
    out[..., -1] = out[..., -1] * 1.5 + out.square().mean().sqrt()


def another_row(out: torch.Tensor) -> None:
    out[0] = out[-1]


def unwritten_row(out: torch.Tensor) -> None:
    out[-1] = 0.0


def scaled(out: torch.Tensor) -> None:
    """As a wrong constant, or a sum without some of its elements."""
    out *= 0.9


def shifted(out: torch.Tensor) -> None:
    """One row reads its neighbour's columns."""
    out[0] = out[0].roll(1, -1)


FAULTS = (ragged, another_row, unwritten_row, scaled, shifted)


@dataclass(frozen=True, slots=True)
class MadeUpGraph:
    """A graph with what its plans are judged by."""

    graph: Graph
    given: GateCase
    inputs: tuple[torch.Tensor, ...]

    @staticmethod
    def of(make: Callable[[torch.Generator], Made], seed: int) -> "MadeUpGraph":
        function, inputs = make(torch.Generator().manual_seed(seed))
        found = captured(function, *inputs)
        return MadeUpGraph(found.graph, case(found, inputs), inputs)

    def outputs(self, seed: int, fault: Callable[..., Any] | None = None) -> list[torch.Tensor]:
        return MadeUpPlan(self.graph, seed, fault)(*self.inputs)

    def is_spoiled(self, seed: int, fault: Callable[..., Any]) -> bool:
        """Whether the fault moves some element farther than the plan errs without it: some faults
        change nothing, such as another row of equal ones."""
        both = zip(self.outputs(seed), self.outputs(seed, fault), strict=True)
        for (right, wrong), (_, wanted) in zip(both, self.given.expected, strict=True):
            value = wanted.expected.value
            size = value.abs() + value.square().mean().sqrt()
            if ((wrong - right).abs() / size).max() > 2 * ((right - value).abs() / size).max():
                return True
        return False

    def refusal(self, seed: int, fault: Callable[..., Any] | None = None) -> str | None:
        """Why the plan is refused, or None."""
        outputs = self.outputs(seed, fault)
        for place, wanted in self.given.expected:
            actual = outputs[place].to(self.given.eager[place].dtype)
            reason = compare(wanted, actual)
            if reason is not None:
                return reason
        return None


def seeds(graph: int, plans: int) -> Iterator[int]:
    """Of plans; none is that of an evaluation with errors."""
    return (100_000 * (graph + 1) + plan for plan in range(plans))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--graphs", type=int, default=5)
    parser.add_argument("--plans", type=int, default=20)
    parser.add_argument("--evaluations", type=int, default=more_samples._LEAST)
    options = parser.parse_args()
    more_samples._affordable = lambda doubt: options.evaluations
    for make in GRAPHS:
        began, refused, found, tried, wrong = time.monotonic(), 0, 0, 0, 0
        for number in range(options.graphs):
            one = MadeUpGraph.of(make, number)
            for seed in seeds(number, options.plans):
                tried += 1
                refused += one.refusal(seed) is not None
                fault = FAULTS[seed % len(FAULTS)]
                if one.is_spoiled(seed, fault):
                    wrong += 1
                    found += one.refusal(seed, fault) is not None
        taken = time.monotonic() - began
        name = make.__name__.replace("_", " ")
        print(f"{name:10} right: {refused} of {tried} refused; wrong: {found} of {wrong}", end="; ")
        print(f"{taken:.0f} s", flush=True)


if __name__ == "__main__":
    main()
