"""Programs of calls that users write, drawn at random, by our kernels and in eager.

    python tests/hostile/drawn.py --programs 500 --seed 0

Each seed gives a program: a few inputs of odd types and layouts, then calls of `drawn_calls.py` and
`drawn_views.py` one after another, writes in place and views among them. What eager refuses while
it is written is no part of it. Compared are values, gradients, what inputs hold afterwards, types,
shapes, strides and what shares memory. How far a float may be off is measured: eager runs again
with every result of ATen moved by a rounding. A failure is told where `aot_eager` has none.
"""

from __future__ import annotations

import argparse
import gc
import logging
import math
import os
import random
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"
    tests = Path(__file__).parents[1]
    sys.path[:0] = [str(tests), str(tests / "planner")]
    logging.disable()

import torch
import torch.nn.functional as F
from shrinking import shrunk
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from hostile import drawn_calls, drawn_views
from hostile.cases import DTYPES, Case
from hostile.judge import Compiled, Results, Wrong, call, strides

SIZES = (1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8, 9, 16, 17)
NUMBERS = ("2", "-1", "0.5", "1.5", "-2.5", "0", "3", "0.1", "True", "1e-3", "1.0", "7", "-0.0")
LARGEST = 3000
KINDS = {
    "f": lambda x: x.is_floating_point(),
    "i": lambda x: not x.is_floating_point() and x.dtype != torch.bool,
    "b": lambda x: x.dtype == torch.bool,
    "n": lambda x: x.dtype != torch.bool,
    "a": lambda x: True,
}
_PLACE = re.compile(r"(?<![.\w'])([xyufibosdejkmpzctwrg])(?![\w'])(?!=[^=])")
_TEXTS = ((drawn_calls.POINTWISE, 8), (drawn_calls.REDUCTIONS, 5), (drawn_views.VIEWS, 6))
_MORE = ((drawn_views.PRODUCTS, 2), (drawn_views.WRITES, 4))
FAMILIES = [(texts.strip().splitlines(), weight) for texts, weight in (*_TEXTS, *_MORE)]
WRITES = FAMILIES[-1][0]


@dataclass(frozen=True, slots=True)
class Program:
    """words: inputs, as `cases.py` writes them. lines: statements; outputs: expressions."""

    words: tuple[str, ...]
    lines: tuple[str, ...]
    outputs: tuple[str, ...]
    grad: bool = False

    def __str__(self) -> str:
        given = ", ".join(f"a{i}" for i in range(len(self.words)))
        body = "".join(f"    {line}\n" for line in self.lines)
        told = f"# {' '.join(self.words)}{', gradients' if self.grad else ''}\n"
        return f"{told}def program({given}):\n{body}    return {', '.join(self.outputs)},\n"

    def function(self) -> Callable[..., Any]:
        names: dict[str, Any] = {"torch": torch, "F": F, "inf": math.inf}
        exec(compile(str(self), "<drawn program>", "exec"), names)
        return names["program"]

    def case(self, *, dynamo: bool = False) -> Case:
        words = " ".join(self.words)
        return Case("drawn", "one", (words,), self.function(), grad=self.grad, dynamo=dynamo)


@dataclass(slots=True)
class Writer:
    """Writes a program, and runs it in eager while it does."""

    pick: random.Random
    longest: int
    grad: bool
    words: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    values: dict[str, torch.Tensor] = field(default_factory=dict)

    def program(self, seed: int) -> Program:
        self._inputs()
        case = Case("drawn", "one", (" ".join(self.words),), lambda: None, grad=self.grad)
        made = case.make(0, seed, "cpu")
        self.values = {f"a{i}": x for i, x in enumerate(made)}
        for _ in range(self.longest * 6):
            if len(self.lines) < self.longest:
                self._step()
        names = [n for n in self.values if n.startswith("v")] or ["a0"]
        few = self.pick.sample(names, min(len(names), self.pick.choice((1, 2, 3, 5))))
        last = names[-1]
        return Program(
            tuple(self.words), tuple(self.lines), tuple(dict.fromkeys([last, *few])), self.grad
        )

    def _inputs(self) -> None:
        pick = self.pick
        sizes = [pick.choice(SIZES) for _ in range(3)]
        if pick.randrange(25) == 0:
            sizes[pick.randrange(3)] = 0
        for number in range(pick.choice((2, 3, 4))):
            dtype = pick.choice(("f32", "f32", "f32", "bf16", "f16", "f64"))
            if number > 1 or pick.randrange(5) == 0:
                dtype = pick.choice((*DTYPES, "i64", "bool"))
            shape = sizes[pick.choice((0, 0, 1, 1, 2)) :]
            shape = [1 if pick.randrange(8) == 0 else n for n in shape]
            if pick.randrange(12) == 0:
                shape = []
            words = {"b": (""), "i": ("", "full", "nonzero", "<5"), "u": ("", "full")}
            kinds = words.get(dtype[0], ("", "", "", "pos", "steps", "ties", "special", "unit"))
            if dtype == "bf16":
                kinds = ("", "pos", "ties", "special")
            kind = pick.choice(kinds) if kinds else ""
            lies = pick.choice(("", "", "", "t", "s", "o", "r", "e" if shape else ""))
            self.words.append(
                f"{dtype}[{','.join(map(str, shape))}]"
                + (f"!{kind}" if kind else "")
                + (f"@{lies}" if lies else "")
            )

    def _step(self) -> None:
        texts, weights = zip(*FAMILIES, strict=True)
        family = self.pick.choices(texts, weights)[0]
        kind, _, text = self.pick.choice(family).partition(" ")
        try:
            filled = self._filled(kind, text)
        except LookupError:
            return
        name = f"v{len(self.lines)}"
        line = filled if family is WRITES else f"{name} = {filled}"
        names: dict[str, Any] = {"torch": torch, "F": F, "inf": math.inf, **self.values}
        try:
            exec(line, names)
        except Exception:  # noqa: BLE001 - eager refuses it
            return
        if family is not WRITES:
            value = names[name]
            if not isinstance(value, torch.Tensor) or not self._fit(value):
                return
            self.values[name] = value
        self.lines.append(line)

    def _fit(self, value: torch.Tensor) -> bool:
        if value.numel() > LARGEST or value.is_complex() or value.is_sparse:
            return False
        if not value.numel():
            return self.pick.randrange(4) == 0
        if value.is_floating_point() and self.pick.randrange(4):
            return bool(value.detach().double().abs().max() < 1e4)
        return True

    def _filled(self, kind: str, text: str) -> str:
        of = [n for n, v in self.values.items() if KINDS[kind](v)]
        if not of:
            raise LookupError(kind)
        # What was made last is read more often.
        main = self.pick.choice(of[-3:] if self.pick.randrange(3) else of)
        known: dict[str, str] = {"x": main}
        parts = re.split(r"('[^']*')", text)
        for number in range(0, len(parts), 2):
            parts[number] = _PLACE.sub(
                lambda found: self._place(found[1], known, kind), parts[number]
            )
        return "".join(parts)

    def _place(self, letter: str, known: dict[str, str], kind: str) -> str:
        if letter in "km":
            return self.pick.choice(NUMBERS if letter == "k" else NUMBERS[:3])
        if letter not in known:
            known[letter] = self._choice(letter, known, kind)
        return known[letter]

    def _choice(self, letter: str, known: dict[str, str], kind: str) -> str:
        pick, x = self.pick, self.values[known["x"]]
        if letter in "de":
            return str(pick.randrange(-x.dim(), x.dim()) if x.dim() else pick.choice((0, -1)))
        if letter in "pzct":
            choices = {"p": (1, 2, 3), "z": (0, 1, 2), "c": (2, -1, 3, 7, 100), "t": (True, False)}
            return str(pick.choice(choices[letter]))
        if letter in "wrg":
            groups = {"w": tuple(DTYPES.values())}
            groups["r"] = tuple(d for d in groups["w"] if d.is_floating_point)
            groups["g"] = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
            return str(pick.choice(groups[letter]))
        if letter == "j":
            known.setdefault("d", self._choice("d", known, kind))
            one = self._of("i", x, any_shape=True)
            return f"({one}.reshape(-1)[:5].long() % {known['x']}.shape[{known['d']}])"
        if letter == "s":
            one = self._of("n", x, any_shape=True)
            return f"{one}.reshape(-1)[0]"
        like = {"y": kind, "u": kind, "o": "a"}.get(letter, letter)
        return self._of(like, x, any_shape=letter in "fi")

    def _of(self, kind: str, x: torch.Tensor, any_shape: bool) -> str:
        of = [n for n, v in self.values.items() if KINDS[kind](v)]
        if not of:
            raise LookupError(kind)
        if not any_shape:
            good = [n for n in of if _goes(self.values[n], x)]
            same = [n for n in good if self.values[n].shape == x.shape]
            if self.pick.randrange(2) and same:
                good = same
            of = good or of
        return self.pick.choice(of)


def _goes(one: torch.Tensor, other: torch.Tensor) -> bool:
    try:
        return torch.broadcast_shapes(one.shape, other.shape) == other.shape
    except RuntimeError:
        return False


def drawn(seed: int) -> Program:
    """The program of a seed, one that eager runs, its backward pass too."""
    pick = random.Random(seed)
    while True:
        grad = pick.randrange(3) == 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            program = Writer(pick, pick.choice((6, 10, 16, 24)), grad).program(seed)
            if runs(program, seed):
                return program


def runs(program: Program, seed: int) -> bool:
    case = program.case()
    try:
        call(case.function, case.make(0, seed, "cpu"))
    except Exception:  # noqa: BLE001 - eager refuses it
        return False
    return True


_MOVES = """
clone copy_ cat stack gather index index_select where masked_fill relu abs neg maximum
minimum max min amax amin sort topk flip roll constant_pad_nd scatter fill_ zero_ ones_like
zeros_like full _to_copy embedding new_zeros new_ones full_like scalar_tensor repeat
_unsafe_view tril triu index_put_ masked_fill_ empty empty_like new_empty detach sign round
floor ceil trunc new_full unfold_backward select_backward slice_backward zeros ones arange
clamp clamp_min clamp_max cummax cummin median kthvalue lift_fresh frexp set_ heaviside sgn
hardtanh fmax fmin take index_copy_ nan_to_num diagonal_backward
"""
MOVES = frozenset(_MOVES.split())
"""Operations that give the numbers they take, or exact ones."""

EVALUATIONS = 8
"""Of eager, with roundings, for what is not as eager has it at once."""


class Noisy(TorchDispatchMode):
    """Moves each result that is a number by a rounding, up or down at random."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func._schema.name.removeprefix("aten::") in MOVES or func.is_view:
            return result
        return tree_map_only(torch.Tensor, self.moved, result)

    def moved(self, x: torch.Tensor) -> torch.Tensor:
        if not x.is_floating_point() or not x.numel() or 0 in x.stride() or x._is_zerotensor():
            return x
        size = torch.finfo(x.dtype).eps
        drawn = torch.rand(x.shape, generator=self.generator, dtype=torch.float64) * 2 - 1
        return x.copy_((x.double() * (1 + size * drawn)).to(x.dtype))


def noisy(case: Case, seed: int, number: int) -> Results:
    mode = Noisy(number)
    inputs = case.make(0, seed, "cpu")
    if number % 2:
        with torch.no_grad():
            for x in inputs:
                mode.moved(x.detach())
    with mode:
        return call(case.function, inputs)


def check(program: Program, seed: int, *, dynamo: bool = False) -> int:
    """Kernels that ran. Raises Wrong, or what ours ends in."""
    case = program.case(dynamo=dynamo)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", message="fusionplan")
        compiled = Compiled(case)
        mine = call(compiled.function, case.make(0, seed, "cpu"))
        _judge(mine, case, seed)
    return compiled.kernels


def _judge(mine: Results, case: Case, seed: int) -> None:
    eager = call(case.function, case.make(0, seed, "cpu"))
    try:
        compare(mine, eager, [eager])
    except Wrong:
        near = [noisy(case, seed, n) for n in range(EVALUATIONS)]
        compare(mine, eager, near, traced(case, seed))


def as_torch_does(program: Program, seed: int) -> bool:
    """Whether torch.compile without a compiler gives what eager gives."""
    case = program.case(dynamo=True)
    torch._dynamo.reset()
    try:
        compiled = torch.compile(case.function, backend="aot_eager")
        _judge(call(compiled, case.make(0, seed, "cpu")), case, seed)
    except Exception:  # noqa: BLE001 - torch's own failure
        return False
    return True


def traced(case: Case, seed: int) -> list[str]:
    """Types, shapes and strides of the outputs as torch itself has them while it traces, which are
    not always those of eager: nothing that is compiled can have both."""
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            inputs = [mode.from_tensor(x.detach()) for x in case.make(0, seed, "cpu")]
            found = tree_leaves(case.function(*inputs))
    except Exception:  # noqa: BLE001 - it depends on data
        return []
    return [f"{str(x.dtype)[6:]}{list(x.shape)} strides {strides(x)}" for x in found]


def compare(
    mine: Results, eager: Results, near: Sequence[Results], allowed: Sequence[str] = ()
) -> None:
    if mine.shared != eager.shared:
        raise Wrong(f"outputs share memory with {mine.shared}, eager's with {eager.shared}")
    for kind in ("outputs", "gradients", "inputs"):
        ours, own = getattr(mine, kind), getattr(eager, kind)
        if len(ours) != len(own):
            raise Wrong(f"{len(ours)} {kind}, eager has {len(own)}")
        for i, (a, b) in enumerate(zip(ours, own, strict=True)):
            others = [getattr(n, kind)[i] for n in near]
            if a is None or b is None:
                if a is not b:
                    raise Wrong(f"{kind[:-1]} {i} is there for one of ours and eager alone")
                continue
            _compare(f"{kind[:-1]} {i}", a, b, [o for o in others if o is not None], allowed)


def _compare(
    name: str,
    a: torch.Tensor,
    b: torch.Tensor,
    near: Sequence[torch.Tensor],
    allowed: Sequence[str] = (),
) -> None:
    told = [f"{str(x.dtype)[6:]}{list(x.shape)}" for x in (a, b)]
    if not name.startswith("gradient"):
        told = [f"{text} strides {strides(x)}" for text, x in zip(told, (a, b), strict=True)]
    if told[0] != told[1] and (told[0] not in allowed):
        raise Wrong(f"{name} is {told[0]}, eager's {told[1]}")
    if not a.numel():
        return
    same = (a == b) | ((a != a) & (b != b))
    for n in near:
        if n.shape == a.shape:
            same |= (a == n) | ((a != a) & (n != n))
    if not a.is_floating_point():
        steady = torch.stack([n == b for n in near]).all(0)
        wrong = ~same & (steady | (a.dtype == torch.bool))
        _none(wrong, name, a, b)
        return
    info = torch.finfo(a.dtype)
    x, y = a.double(), b.double()
    spread = torch.stack([(n.double() - y).abs().nan_to_num(0, 0, 0) for n in near]).amax(0)
    finite = y[y.isfinite()]
    size = finite.square().mean().sqrt() if finite.numel() else 0.0
    units = 512 if a.dtype == torch.float64 else 16
    limit = 12 * spread + units * info.eps * (y.abs() + size) + info.tiny
    same |= (x - y).abs() <= limit
    _none(~same, name, a, b)


def _none(wrong: torch.Tensor, name: str, a: torch.Tensor, b: torch.Tensor) -> None:
    if bool(wrong.any()):
        place = tuple(int(i) for i in wrong.nonzero()[0])
        told = f"ours {a[place].item()}, eager {b[place].item()}"
        raise Wrong(
            f"{name} differs in {int(wrong.sum())} of {a.numel()}, at {list(place)}: {told}"
        )


def reductions(program: Program) -> Iterator[Program]:
    """The same with fewer lines or outputs, or without gradients."""
    for i in range(len(program.outputs)):
        if len(program.outputs) > 1:
            rest = program.outputs[:i] + program.outputs[i + 1 :]
            yield replace(program, outputs=rest)
    for i in reversed(range(len(program.lines))):
        yield replace(program, lines=program.lines[:i] + program.lines[i + 1 :])
    if program.grad:
        yield replace(program, grad=False)
    for i in range(len(program.lines)):
        name = program.lines[i].partition(" = ")[0]
        if re.fullmatch(r"v\d+", name) and (name,) != program.outputs:
            yield replace(program, outputs=(name,), lines=program.lines[: i + 1])


def failure(program: Program, seed: int, *, dynamo: bool) -> str:
    """What is wrong with it, "" if nothing is."""
    try:
        check(program, seed, dynamo=dynamo)
    except Exception as error:  # noqa: BLE001 - whatever it is
        lines = str(error).strip().splitlines() or ["no message"]
        return f"{type(error).__name__}: {lines[0]}"[:300]
    return ""


def prepared() -> None:
    """What makes the programs of a process run in less time."""
    from few_looks import look_little
    from quick_dynamo import quicken as quicken_dynamo
    from quick_interpreter import quicken

    quicken()
    quicken_dynamo()
    look_little(setattr)
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def by_plans(seed: int) -> None:
    """Plans of the largest groups for some seeds, of any groups for others, and of the model's."""
    from fusionplan import api
    from graph_covers import PLANNERS

    plan = PLANNERS["modelled" if seed % 16 == 0 else ("largest", "any")[seed % 2]]
    api._model = lambda captured: plan(captured.graph)


def looked_at(seed: int, whole: bool) -> tuple[int, str]:
    """Kernels of a seed's program, and what is wrong with it in so small a form as can be."""
    program = drawn(seed)
    try:
        return check(program, seed), ""
    except Exception:  # noqa: BLE001 - it is told below
        why = failure(program, seed, dynamo=False)
    # AOTAutograd alone takes less than Dynamo does, which may cut the graph.
    real = failure(program, seed, dynamo=True)
    if not real or not as_torch_does(program, seed):
        return 0, ""
    kind = real.partition(":")[0]
    dynamo = kind != why.partition(":")[0]

    def fails(one: Program) -> bool:
        return runs(one, seed) and failure(one, seed, dynamo=dynamo).startswith(kind)

    if not whole:
        program = shrunk(program, fails, reductions)
    return 0, f"seed {seed}: {failure(program, seed, dynamo=dynamo)}\n{program}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Drawn programs by our kernels and in eager.")
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin none after so many")
    parser.add_argument("--whole", action="store_true", help="do not make failures smaller")
    given = parser.parse_args()
    prepared()
    start, failed, kernels, done = time.monotonic(), 0, 0, 0
    for seed in range(given.seed, given.seed + given.programs):
        if time.monotonic() - start > given.seconds:
            break
        by_plans(seed)
        ran, wrong = looked_at(seed, given.whole)
        done, kernels, failed = done + 1, kernels + ran, failed + bool(wrong)
        if wrong:
            print(wrong, flush=True)
        if done % 50 == 0:
            print(f"{done} programs, {kernels} kernels, {failed} failed", flush=True)
    print(f"{done} programs, {kernels} kernels, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
