"""Runs a case by our kernels, in eager and in float64, and says what is wrong."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from fusionplan import executors
from fusionplan.api import Options, dispatcher_for
from fusionplan.backend import planner
from torch.utils._pytree import tree_leaves

from hostile.cases import Case

DRAWS = 6
"""Inputs drawn before an error is called too large: where eager happens to round to the true
number, other numbers tell what its error is."""

OPTIONS: dict[str, Any] = {"on_miss": "model", "evidence": "any", "baseline": "eager"}


class Wrong(AssertionError):
    """Ours is not what it has to be; the text says how."""


@dataclass(frozen=True, slots=True)
class Results:
    """Of one call: outputs, gradients of the inputs (None: there is none), inputs afterwards,
    which tensor each output shares its memory with (an input or an earlier output; -1: none), and
    which outputs ask for gradients."""

    outputs: list[torch.Tensor]
    gradients: list[torch.Tensor | None]
    inputs: list[torch.Tensor]
    shared: list[int]
    asking: list[bool]


def call(function: Callable[..., Any], inputs: list[torch.Tensor]) -> Results:
    """One call, and the gradients of its floats weighted by fixed numbers."""
    torch.manual_seed(0)
    with torch.set_grad_enabled(any(x.requires_grad for x in inputs)):
        outputs = [x for x in tree_leaves(function(*inputs)) if isinstance(x, torch.Tensor)]
    wanted = [x for x in inputs if x.requires_grad]
    asking = [o.requires_grad for o in outputs]
    reached = [o for o in outputs if o.requires_grad]
    gradients: list[torch.Tensor | None] = []
    if wanted and reached:
        weights = [_weights(o, i) for i, o in enumerate(reached)]
        gradients = list(torch.autograd.grad(reached, wanted, weights, allow_unused=True))
    memory = [x.untyped_storage().data_ptr() if x.numel() else 0 for x in (*inputs, *outputs)]
    shared = [
        memory.index(m) if m and memory.index(m) < i + len(inputs) else -1
        for i, m in enumerate(memory[len(inputs) :])
    ]
    outputs = [o.detach() for o in outputs]
    return Results(outputs, gradients, [x.detach() for x in inputs], shared, asking)


def _weights(output: torch.Tensor, number: int) -> torch.Tensor:
    """Numbers of bfloat16, so that they are the same in every dtype."""
    generator = torch.Generator().manual_seed(number)
    drawn = torch.randn(output.shape, generator=generator).to(torch.bfloat16)
    return drawn.to(output.device, output.dtype)


@dataclass(slots=True)
class Compiled:
    """A case's function by our backend, its plans by the cost model, and its launches of ours."""

    case: Case
    function: Callable[..., Any] = field(init=False)
    _dispatcher: Any = None

    def __post_init__(self) -> None:
        torch._dynamo.reset()
        if self.case.dynamo:
            dynamic = self.case.dynamic or None
            compiled = torch.compile(
                self.case.function, backend=planner, options=OPTIONS, dynamic=dynamic
            )
            self.function = compiled
            return
        self._dispatcher = dispatcher_for(Options(**OPTIONS, store="/nonexistent/none.db"))
        self.function = self._captured

    def _captured(self, *inputs: torch.Tensor) -> Any:
        module = _Module(self.case.function)
        # Captured anew in each call: AOTAutograd alone guards nothing.
        return self._dispatcher(module, inputs)(*inputs)

    @property
    def kernels(self) -> int:
        if self._dispatcher is None:
            return sum(r.kernels_per_call * r.calls for r in executors(self.function))
        found = [live.runner for live in self._dispatcher.live.values() if live.runner]
        return sum(r.kernels_per_call * r.calls for r in found)


class _Module(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        found = tree_leaves(self._function(*inputs))
        return [x for x in found if isinstance(x, torch.Tensor)]


def judge(case: Case, device: str) -> int:
    """Launches of our kernels. Raises Wrong, or whatever the case ends in."""
    if case.fails:
        return _refused(case, device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", message="fusionplan")
        compiled = Compiled(case)
        for number in range(len(case.inputs)):
            _judge_call(case, compiled, number, device)
        if case.ours and not compiled.kernels:
            raise Wrong("no kernel of ours ran")
        return compiled.kernels


def _refused(case: Case, device: str) -> int:
    """What eager refuses, we refuse: by an error, not by a fall-back of ours that fails."""
    for function in (case.function, Compiled(case).function):
        try:
            call(function, case.make(0, 0, device))
        except Warning:
            raise
        except Exception:  # noqa: BLE001 - the kind of error is torch's to choose
            continue
        raise Wrong("it is accepted" if function is not case.function else "eager accepts it")
    return 0


def _judge_call(case: Case, compiled: Compiled, number: int, device: str) -> None:
    worst: dict[str, list[float]] = {}
    for seed in range(DRAWS):
        mine = call(compiled.function, case.make(number, seed, device))
        eager = call(case.function, case.make(number, seed, device))
        exact = call(case.function, case.make(number, seed, device, wide=True))
        if mine.shared != eager.shared:
            raise Wrong(f"outputs share memory with {mine.shared}, eager's with {eager.shared}")
        if mine.asking != eager.asking:
            raise Wrong(f"outputs ask for gradients: {mine.asking}, eager's: {eager.asking}")
        for kind in ("outputs", "gradients", "inputs"):
            ways = [getattr(way, kind) for way in (mine, eager, exact)]
            if len({len(way) for way in ways}) > 1:
                raise Wrong(f"{len(ways[0])} {kind}, eager has {len(ways[1])}")
            for i, (a, b, c) in enumerate(zip(*ways, strict=True)):
                found = _errors(a, b, c, case.by, f"{kind[:-1]} {i}")
                place = worst.setdefault(f"{kind[:-1]} {i}", [0.0] * 3)
                place[:] = map(max, place, found)
        beyond = [(n, *w) for n, w in worst.items() if w[0] > 2 * w[1] + w[2]]
        if not beyond:
            return
    name, error, own, rounding = beyond[0]
    raise Wrong(f"{name} has error {error:.3g}, eager's own {own:.3g}, rounding {rounding:.3g}")


def _errors(
    mine: torch.Tensor | None,
    eager: torch.Tensor | None,
    exact: torch.Tensor | None,
    by: str,
    name: str,
) -> Sequence[float]:
    """The largest error of ours, of eager and what rounding may add. Raises Wrong where it is no
    matter of rounding: another type or shape, an integer, NaN or an infinity of ours alone."""
    if mine is None or eager is None or exact is None:
        if mine is not eager:
            raise Wrong(f"{name} is there for one of ours and eager alone")
        return (0.0, 0.0, 0.0)
    told = [f"{str(x.dtype)[6:]}{list(x.shape)}" for x in (mine, eager)]
    if not name.startswith("gradient"):  # of whose strides autograd promises nothing
        told = [f"{text} strides {strides(x)}" for text, x in zip(told, (mine, eager), strict=True)]
    if told[0] != told[1]:
        raise Wrong(f"{name} is {told[0]}, eager's {told[1]}")
    if not mine.is_floating_point():
        _none((mine != eager) & (mine != exact.to(mine.dtype)), name, mine, eager, exact)
        return (0.0, 0.0, 0.0)
    info = torch.finfo(mine.dtype)
    ideal = exact.to(mine.dtype)
    if mine.element_size() == 1:  # float8, of which torch compares nothing
        mine, eager, ideal = mine.float(), eager.float(), ideal.float()
        exact = exact.float()
    as_eager = (mine == eager) | (mine.isnan() & eager.isnan())
    as_ideal = (mine == ideal) | (mine.isnan() & ideal.isnan())
    numbers = mine.isfinite() & ideal.isfinite()
    _none(~numbers & ~as_eager & ~as_ideal, name, mine, eager, exact)
    judged = numbers & eager.isfinite()
    if not judged.any():
        return (0.0, 0.0, 0.0)
    got, own, true = (x.double()[judged] for x in (mine, eager, exact))
    # Of float64 the reference is eager itself, which shows no error of its own.
    units = 32 if mine.dtype == torch.float64 else 4
    if by == "tensor":
        scale = true.abs().max()
        return (
            (got - true).abs().max().item(),
            (own - true).abs().max().item(),
            units * info.eps * scale.item(),
        )
    size = true.abs() + info.tiny
    return (
        ((got - true).abs() / size).max().item(),
        ((own - true).abs() / size).max().item(),
        units * info.eps,
    )


def strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Strides of the dimensions in which there is a second element to go to."""
    if not tensor.numel():
        return ()
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return tuple(s for n, s in pairs if n > 1)


def _none(
    where: torch.Tensor,
    name: str,
    mine: torch.Tensor,
    eager: torch.Tensor,
    exact: torch.Tensor,
) -> None:
    if bool(where.any()):
        place = tuple(int(i) for i in where.nonzero()[0])
        numbers = ", ".join(
            f"{whose} {x[place].item()}"
            for whose, x in (("ours", mine), ("eager", eager), ("exact", exact))
        )
        raise Wrong(f"{name} differs in {int(where.sum())}, at {list(place)}: {numbers}")
