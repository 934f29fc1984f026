"""Functions whose graphs are hard to plan: many operations, many readers, shifted copies of one
tensor, long chains. Each gives a function and its inputs, which hold no data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from .planning_networks import (
    PlanningCase,
    attention_layers,
    attention_training,
    different_training,
    dilated,
    gru,
    lstm,
    optimizer,
    residual_blocks,
    rnn,
    scan,
    scan_with_state,
    tensor,
)

# --- shifted copies of one tensor ---


def rolls(steps: int = 6) -> PlanningCase:
    """Diffusion on a torus, five points a step."""

    def run(x: torch.Tensor) -> torch.Tensor:
        for _ in range(steps):
            near = torch.roll(x, 1, 0) + torch.roll(x, -1, 0)
            near = near + torch.roll(x, 1, 1) + torch.roll(x, -1, 1)
            x = x + 0.1 * (near - 4 * x)
        return x

    return run, [tensor(1024, 1024)]


def rolls_of_two(steps: int = 4) -> PlanningCase:
    """Reaction and diffusion of two substances: rolls along both dimensions at once."""

    def laplace(x: torch.Tensor) -> torch.Tensor:
        total = -3.0 * x
        for shift in ((0, 1), (1, 0), (0, -1), (-1, 0)):
            total = total + 0.5 * torch.roll(x, shift, (0, 1))
        for shift in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
            total = total + 0.25 * torch.roll(x, shift, (0, 1))
        return total

    def run(u: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for _ in range(steps):
            both = u * v * v
            u, v = u + 0.2 * laplace(u) - both, v + 0.1 * laplace(v) + both - 0.06 * v
        return u, v

    return run, [tensor(512, 512), tensor(512, 512)]


def game_of_life(generations: int = 3) -> PlanningCase:
    def run(x: torch.Tensor) -> torch.Tensor:
        for _ in range(generations):
            near = sum(
                torch.roll(x, (i, j), (0, 1))
                for i in (-1, 0, 1)
                for j in (-1, 0, 1)
                if (i, j) != (0, 0)
            )
            x = ((near == 3) | ((near == 2) & (x == 1))).to(x.dtype)
        return x

    return run, [tensor(1024, 1024, dtype=torch.int32)]


def game_of_life_padded(generations: int = 3) -> PlanningCase:
    """The same on a plane with edges: slices of a padded copy."""

    def run(x: torch.Tensor) -> torch.Tensor:
        height, width = x.shape
        for _ in range(generations):
            p = F.pad(x, (1, 1, 1, 1))
            near = sum(
                p[i : i + height, j : j + width]
                for i in range(3)
                for j in range(3)
                if (i, j) != (1, 1)
            )
            x = ((near == 3) | ((near == 2) & (x == 1))).to(x.dtype)
        return x

    return run, [tensor(1024, 1024, dtype=torch.int32)]


def stencil(steps: int = 3) -> PlanningCase:
    """27 points in three dimensions."""

    def run(x: torch.Tensor) -> torch.Tensor:
        a, b, c = x.shape
        for _ in range(steps):
            p = F.pad(x, (1,) * 6)
            near: Any = sum(
                (0.1 * (1 + i + j * k)) * p[i : i + a, j : j + b, k : k + c]
                for i in range(3)
                for j in range(3)
                for k in range(3)
            )
            x = near
        return x

    return run, [tensor(96, 96, 96)]


def wave(steps: int = 5) -> PlanningCase:
    """Seven points in three dimensions by rolls, two time levels."""

    def run(u: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        for _ in range(steps):
            near = sum(torch.roll(u, s, d) for d in range(3) for s in (1, -1))
            u, before = 2 * u - before + 0.1 * (near - 6 * u), u
        return u

    return run, [tensor(96, 96, 96), tensor(96, 96, 96)]


def shifts_of_one_row(count: int = 32) -> PlanningCase:
    """A causal convolution written as a sum of shifted copies."""

    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        total = w[0] * x
        for i in range(1, count):
            total = total + w[i] * F.pad(x, (i, 0))[:, : x.shape[1]]
        return torch.tanh(total)

    return run, [tensor(512, 4096), tensor(count)]


def interleaved(levels: int = 5) -> PlanningCase:
    """A Haar transform and its inverse: even and odd elements, level by level."""

    def run(x: torch.Tensor) -> torch.Tensor:
        details = []
        for _ in range(levels):
            even, odd = x[:, ::2], x[:, 1::2]
            details.append((even - odd) * 0.7071)
            x = (even + odd) * 0.7071
        for detail in reversed(details):
            x = torch.stack(((x + detail) * 0.7071, (x - detail) * 0.7071), -1).flatten(1)
        return x

    return run, [tensor(512, 4096)]


# --- many operations, many readers ---


def pointwise(count: int = 600) -> PlanningCase:
    def run(x: torch.Tensor) -> torch.Tensor:
        for i in range(count):
            x = torch.sin(x) if i % 3 == 0 else x * 1.01 if i % 3 == 1 else x + 0.1
        return x

    return run, [tensor(1024, 1024, grad=True)]


def read_by_all(count: int = 150) -> PlanningCase:
    """A chain of which every value is read again at the end."""

    def run(x: torch.Tensor) -> torch.Tensor:
        found = []
        for _ in range(count):
            x = torch.tanh(x + 0.5)
            found.append(x)
        total = found[0]
        for each in found[1:]:
            total = total + each
        return total

    return run, [tensor(1024, 1024)]


def lattice(side: int = 12) -> PlanningCase:
    """Each point of a square is made of the one above and the one on its left."""

    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        above = [x + float(i) for i in range(side)]
        for _ in range(side):
            left = y
            for i in range(side):
                left = above[i] = torch.sigmoid(above[i] * left)
        return above[-1]

    return run, [tensor(1024, 1024), tensor(1024, 1024)]


def fan_in(count: int = 120) -> PlanningCase:
    def run(*inputs: torch.Tensor) -> torch.Tensor:
        total = inputs[0]
        for each in inputs[1:]:
            total = total + torch.relu(each)
        return total

    return run, [tensor(512, 512) for _ in range(count)]


def fan_out(count: int = 120) -> PlanningCase:
    def run(x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.exp(x * (0.1 * i)) for i in range(count)]

    return run, [tensor(512, 512)]


def fan_of_sums(count: int = 48) -> PlanningCase:
    """Moments of the rows and of the columns."""

    def run(x: torch.Tensor) -> list[torch.Tensor]:
        found = []
        power = x
        for i in range(count):
            found.append(power.sum(i % 2))
            power = power * x
        return found

    return run, [tensor(2048, 2048)]


def concatenated(count: int = 64) -> PlanningCase:
    def run(x: torch.Tensor) -> torch.Tensor:
        parts = [torch.sin(x[:, 16 * i : 16 * i + 16]) * (i + 1.0) for i in range(count)]
        return torch.relu(torch.cat(parts[::-1], 1)) + x

    return run, [tensor(1024, 16 * count)]


def stacked(count: int = 64) -> PlanningCase:
    def run(*inputs: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.stack([torch.tanh(x) for x in inputs], 1), 1).sum(-1)

    return run, [tensor(256, 512) for _ in range(count)]


def horner(degree: int = 100) -> PlanningCase:
    def run(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        total = c[0] * x
        for i in range(1, degree):
            total = (total + c[i]) * x
        return total

    return run, [tensor(1024, 1024), tensor(degree)]


def powers(degree: int = 60) -> PlanningCase:
    """A polynomial by its powers, each read twice."""

    def run(x: torch.Tensor) -> torch.Tensor:
        total, power = torch.ones_like(x), x
        for i in range(degree):
            total = total + power * (1.0 / (i + 1))
            power = power * x
        return total

    return run, [tensor(1024, 1024, grad=True)]


def butterfly(stages: int = 10) -> PlanningCase:
    """A Walsh-Hadamard transform."""

    def run(x: torch.Tensor) -> torch.Tensor:
        size = 1 << stages
        for stage in range(stages):
            pairs = x.reshape(-1, size >> stage + 1, 2, 1 << stage)
            a, b = pairs[:, :, 0], pairs[:, :, 1]
            x = torch.stack((a + b, a - b), 2)
        return x.reshape(-1, size)

    return run, [tensor(1024, 1 << stages)]


def fourier(stages: int = 8) -> PlanningCase:
    """A fast Fourier transform of real and imaginary parts."""

    def run(re: torch.Tensor, im: torch.Tensor, c: torch.Tensor, s: torch.Tensor) -> Any:
        size = 1 << stages
        for stage in range(stages):
            half = 1 << stage
            re, im = (v.reshape(-1, size // (2 * half), 2, half) for v in (re, im))
            wr, wi = c[:half], s[:half]
            br = re[:, :, 1] * wr - im[:, :, 1] * wi
            bi = re[:, :, 1] * wi + im[:, :, 1] * wr
            ar, ai = re[:, :, 0], im[:, :, 0]
            re = torch.cat((ar + br, ar - br), -1)
            im = torch.cat((ai + bi, ai - bi), -1)
        return re.reshape(-1, size), im.reshape(-1, size)

    size = 1 << stages
    return run, [tensor(2048, size), tensor(2048, size), tensor(size), tensor(size)]


def sorting(rounds: int = 16) -> PlanningCase:
    """An odd-even sorting network of columns."""

    def run(x: torch.Tensor) -> torch.Tensor:
        columns = list(x.unbind(1))
        for number in range(rounds):
            for i in range(number % 2, len(columns) - 1, 2):
                a, b = columns[i], columns[i + 1]
                columns[i], columns[i + 1] = torch.minimum(a, b), torch.maximum(a, b)
        return torch.stack(columns, 1)

    return run, [tensor(1 << 16, rounds)]


def newton(steps: int = 40) -> PlanningCase:
    def run(x: torch.Tensor) -> torch.Tensor:
        y = x
        for _ in range(steps):
            value = y * y * y - x
            y = torch.where(value.abs() < 1e-6, y, y - value / (3 * y * y + 1e-3))
        return y

    return run, [tensor(2048, 2048)]


CASES: dict[str, tuple[Callable[[], PlanningCase], bool]] = {
    **{
        make.__name__: (make, False)
        for make in (
            rolls,
            rolls_of_two,
            game_of_life,
            game_of_life_padded,
            stencil,
            wave,
            shifts_of_one_row,
            interleaved,
            read_by_all,
            lattice,
            fan_in,
            fan_out,
            fan_of_sums,
            concatenated,
            stacked,
            horner,
            butterfly,
            fourier,
            sorting,
            newton,
            scan,
            scan_with_state,
            rnn,
            lstm,
            residual_blocks,
            attention_layers,
            optimizer,
        )
    },
    **{
        make.__name__: (make, True)
        for make in (pointwise, powers, gru, attention_training, different_training, dilated)
    },
}
"""By name: what makes the function and its inputs, and whether it is planned with its backward
pass."""
