"""The gate: whether a way to run a whole graph computes what the graph does.

`cases` gives the inputs on which it is tried: those that came with the graph, the same numbers in
another order, and for a small graph every data set of `inputs`. `judge` runs it on each and
compares with float64 and eager by the rule for kernels (`check`). Outputs are poisoned first, and
inputs that only kernels of ours read also lie at addresses that are no multiple of 16. Only what
`judge` passed may become a measured plan (`measured`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from ...planner.capture.capture import Captured
from ...planner.errors import FusionplanError
from ...planner.graph.graph import INPUT, Graph
from ...planner.graph.ops import is_compute
from ...planner.plan import Contest, Plan
from ...planner.runtime.dispatch.whole_way import whole_way
from ...planner.runtime.execution.executor import Executor
from ..trial.evaluate import Outside, seeded
from ..trial.inputs import DATA_SETS, OTHER_POISON, POISON, make, poison, shifted, unwritten
from .any_address import may_lie_anywhere
from .check import compare, doubtful, passes
from .reference import Expected, Reference, by_eager, references

CheckedRun = Callable[..., Sequence[Any]]

GIVEN, FRESH = "given", "fresh"

COPIED = 1 << 30
"""Bytes of inputs that are laid out anew: the same numbers in another order or at other places."""

MADE_UP, FEW = 1 << 26, 24
"""Bytes of inputs, and operations, of a graph for which inputs are made up. Numbers that are not a
trained model's overflow on their way through a deep one, and eager's as well as ours."""

_UNKNOWN = (FusionplanError, RuntimeError, Outside, AttributeError)
"""Raised where a graph cannot be evaluated in float64, or there is no memory for it."""

_SEED = 2000
"""Of inputs that no search has seen."""


@dataclass(frozen=True)
class GateCase:
    """A graph, its inputs, and the outputs that eager gives for them. name: of the data set."""

    captured: Captured
    inputs: Sequence[Any]
    eager: Sequence[Any]
    name: str = GIVEN
    without: list[Expected | Reference] = field(default_factory=list, compare=False)
    """What had to be compared with eager alone."""

    @cached_property
    def expected(self) -> tuple[tuple[int, Expected | Reference], ...]:
        """The reference of each tensor among the outputs, with its place. Where there is no float64
        (no memory for it, an operation that cannot be evaluated by itself), it is eager's own
        result."""
        graph = self.captured.graph
        states = _states(graph)
        places = [
            i
            for i, o in enumerate(graph.outputs)
            if o is not None and i not in states and isinstance(self.eager[i], torch.Tensor)
        ]
        tensors = [self.eager[i] for i in places]
        try:
            opened, constants = _opened(self.captured)
            opened = Graph(opened.nodes, tuple(graph.outputs[i] for i in places))
            inputs = _in_order(opened, graph, self.inputs, constants)
            found: Sequence[Expected | Reference]
            found = references(opened, inputs, self.captured.device, tensors)
        except _UNKNOWN as error:
            _let_go(error)
            found = tuple(by_eager(graph, tensor) for tensor in tensors)
        return tuple(zip(places, found, strict=True))

    def reasons(self, outputs: Sequence[torch.Tensor]) -> Iterator[tuple[int, str]]:
        """The places of outputs that are not acceptable, and why. Where there is no memory for more
        evaluations, one is compared with eager's alone."""
        places, wanted = zip(*self.expected, strict=True) if self.expected else ((), ())
        for number, one in doubtful(wanted, [outputs[place] for place in places], _passes):
            reason = self._reason(one, outputs[places[number]])
            if reason is not None:
                yield places[number], reason

    def _reason(self, wanted: Expected | Reference, output: torch.Tensor) -> str | None:
        try:
            return compare(wanted.expected if isinstance(wanted, Reference) else wanted, output)
        except _UNKNOWN as error:
            _let_go(error)
        self.without.append(wanted)
        return compare(by_eager(self.captured.graph, wanted.eager), output)

    @property
    def is_loose(self) -> bool:
        """Whether some output was compared with eager alone."""
        return bool(self.without) or any(one.by_eager for _, one in self.expected)


@dataclass(frozen=True, slots=True)
class Passed:
    """A way to run a graph that the gate found right; made by `judge` alone. data_sets: on which.
    by_eager: those on which some output was compared with eager alone, within a tolerance."""

    data_sets: tuple[str, ...]
    by_eager: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """The reason why a plan is not right: output, data set and element."""

    reason: str


def measured(
    plan: Plan,
    passed: Passed,
    seconds: float,
    baselines: Sequence[tuple[str, float]] = (),
    contest: Contest | None = None,
) -> Plan:
    """The plan with its measured seconds, which only one that passed the gate can have."""
    if not isinstance(passed, Passed):
        raise TypeError(f"a plan that did not pass the gate cannot be measured: {passed}")
    return replace(
        plan, evidence="measured", measured=seconds, baselines=tuple(baselines), contest=contest
    )


def as_baseline(plan: Plan, graph: Graph) -> Passed:
    """For a plan without a kernel of ours: the whole graph as eager or a mode of torch.compile has
    it, which the user takes for right. Raises TypeError for any other."""
    if whole_way(replace(plan, cudagraph=False), graph) is None:
        raise TypeError("a plan with kernels of ours has to pass the gate")
    return Passed(("as the baseline",))


def _let_go(error: Exception) -> None:
    if isinstance(error, torch.OutOfMemoryError):
        torch.cuda.empty_cache()


def _passes(wanted: Reference, output: torch.Tensor) -> bool:
    """Whether it does without more evaluations; not so where there is no memory to find out."""
    try:
        return passes(wanted, output)
    except _UNKNOWN as error:
        _let_go(error)
        return False


def case(captured: Captured, inputs: Sequence[Any], name: str = GIVEN) -> GateCase:
    """Runs the graph as it was captured."""
    with seeded(captured.device), torch.no_grad():
        return GateCase(captured, inputs, list(captured.gm(*inputs)), name)


def cases(captured: Captured, inputs: Sequence[Any]) -> tuple[GateCase, ...]:
    """The inputs on which a plan is checked: those given and, where memory allows it, others."""
    found = [case(captured, inputs)]
    for name, others in _others(captured, inputs):
        try:
            found.append(case(captured, others, name))
        except (RuntimeError, IndexError):  # eager refuses them: an index outside
            continue
    return tuple(found)


def judge(run: CheckedRun, given: Sequence[GateCase]) -> Passed | Failed:
    """Whether a call computes what the graph does, on all of these."""
    for one in given:
        reason = fault(run, one)
        if reason is not None:
            return Failed(reason)
    loose = tuple(one.name for one in given if one.is_loose)
    return Passed(tuple(one.name for one in given), loose)


def fault(run: CheckedRun, given: GateCase) -> str | None:
    """Why a call does not compute what the graph does, or None."""
    reason = _fault(run, given, given.inputs)
    small = sum(x.nbytes for x in given.inputs if isinstance(x, torch.Tensor)) <= COPIED
    if reason is None and small and isinstance(run, Executor) and run.launchers:
        anywhere = may_lie_anywhere(given.captured.graph, run.plan)
        moved = [
            shifted(x) if place in anywhere and isinstance(x, torch.Tensor) else x
            for place, x in enumerate(given.inputs)
        ]
        reason = _fault(run, given, moved)
        return None if reason is None else f"with inputs at odd addresses: {reason}"
    return reason


def _fault(run: CheckedRun, given: GateCase, inputs: Sequence[Any]) -> str | None:
    _spoil(run, given, inputs)
    outputs = _outputs(run, given, inputs, POISON)
    if len(outputs) != len(given.eager):
        return f"{len(outputs)} outputs instead of {len(given.eager)}"
    for index, (got, want) in enumerate(zip(outputs, given.eager, strict=True)):
        same = isinstance(got, torch.Tensor) if isinstance(want, torch.Tensor) else got == want
        if not same:
            return f"output {index} is {got!r}, not {want!r}"
    places = [place for place, _ in given.expected]

    def again(byte: int) -> list[torch.Tensor]:
        later = _outputs(run, given, inputs, byte)
        return [later[place] for place in places]

    reason = unwritten([outputs[place] for place in places], again)
    if reason is not None:
        return f"{reason} on {given.name} inputs"
    for place, reason in given.reasons(outputs):
        return f"output {place} on {given.name} inputs: {reason}"
    return None


def _outputs(run: CheckedRun, given: GateCase, inputs: Sequence[Any], byte: int) -> list[Any]:
    filled = run.filled(byte) if isinstance(run, Executor) else nullcontext()
    with seeded(given.captured.device), filled:
        return list(run(*inputs))


def _spoil(run: CheckedRun, given: GateCase, inputs: Sequence[Any]) -> None:
    """Let it run, and overwrite what it gave: a replay that computes nothing would give the same
    memory again."""
    with seeded(given.captured.device):
        outputs = run(*inputs)
    kept = {x.untyped_storage().data_ptr() for x in _tensors(given.captured, inputs)}
    for output in outputs:
        own = isinstance(output, torch.Tensor)
        if own and output.untyped_storage().data_ptr() not in kept:
            poison(output.detach(), OTHER_POISON)


def _tensors(captured: Captured, inputs: Sequence[Any]) -> Iterator[torch.Tensor]:
    """What belongs to others: the inputs and the graph's constants."""
    yield from (x for x in inputs if isinstance(x, torch.Tensor))
    yield from (x for x in _constants(captured).values() if isinstance(x, torch.Tensor))


def _constants(captured: Captured) -> dict[int, Any]:
    """The values of the model's constants, by node."""
    found = {}
    for node, fx_node in zip(captured.graph.nodes, captured.fx_nodes, strict=True):
        if fx_node.op == "get_attr":
            value: Any = captured.gm
            for name in str(fx_node.target).split("."):
                value = getattr(value, name)
            found[node.id] = value
    return found


def _opened(captured: Captured) -> tuple[Graph, dict[int, Any]]:
    """The graph with the model's constants as inputs, and their values."""
    constants = _constants(captured)
    nodes = tuple(
        replace(n, op=INPUT, args=(), kwargs=()) if n.id in constants else n
        for n in captured.graph.nodes
    )
    return Graph(nodes, captured.graph.outputs), constants


def _in_order(
    opened: Graph, graph: Graph, inputs: Sequence[Any], constants: dict[int, Any]
) -> list[Any]:
    values = dict(zip(graph.inputs, inputs, strict=True)) | constants
    return [values[node] for node in opened.inputs]


def _others(captured: Captured, inputs: Sequence[Any]) -> Iterator[tuple[str, list[Any]]]:
    """Other inputs of the same types. In another order the numbers are as large as they were, and
    as many of a sign, so that a trained model computes nothing unusual. Integers stay: they may be
    places, lengths or an order. In a backward graph what the forward pass saved stays as well: with
    scores that are not those of its logarithms of sums, attention's weights would be anything."""
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    size, graph = sum(x.nbytes for x in tensors), captured.graph
    if size <= COPIED:
        yield FRESH, _fresh(captured, inputs)
    known = all(graph.nodes[i].type is not None for i in graph.inputs)
    few = sum(map(is_compute, graph.nodes)) <= FEW
    if known and few and len(tensors) == len(inputs) and size <= MADE_UP:
        for position, name in enumerate(DATA_SETS):
            yield name, list(make(graph, name, captured.device, _SEED + position))


def _fresh(captured: Captured, inputs: Sequence[Any]) -> list[Any]:
    upstream = _upstream(captured)
    if not upstream:
        return [_reordered(x, place) for place, x in enumerate(inputs)]
    return [_drawn(x, place) if place in upstream else x for place, x in enumerate(inputs)]


def _upstream(captured: Captured) -> frozenset[int]:
    """The inputs of a backward graph, by place, that are the gradients of the forward pass's
    results: AOTAutograd names them so. It is linear in them."""
    names = [str(node.target) for node in captured.gm.graph.find_nodes(op="placeholder")]
    return frozenset(place for place, name in enumerate(names) if "tangents" in name)


def _drawn(value: Any, seed: int) -> Any:
    """A normal distribution with the value's root mean square: gradients often are all alike."""
    if not _may_change(value):
        return value
    wide = torch.randn(value.shape, generator=_generator(value, seed), device=value.device)
    return _as_laid_out(wide * value.detach().float().square().mean().sqrt(), value)


def _reordered(value: Any, seed: int) -> Any:
    if not _may_change(value):
        return value
    generator = _generator(value, seed)
    order = torch.randperm(value.numel(), generator=generator, device=value.device)
    return _as_laid_out(value.detach().reshape(-1)[order].view(value.shape), value)


def _may_change(value: Any) -> bool:
    """Whether it is a tensor of floats of which each element has a place of its own."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return False
    return all(s or n == 1 for n, s in zip(value.shape, value.stride(), strict=True))


def _generator(value: torch.Tensor, seed: int) -> torch.Generator:
    return torch.Generator(device=value.device).manual_seed(_SEED + seed)


def _as_laid_out(numbers: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    found = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
    return found.copy_(numbers)


def _states(graph: Graph) -> set[int]:
    """Outputs, by place, that are the state of an attention's random numbers: without dropout
    nobody reads or writes them, and what lies in that memory is chance."""
    found = set()
    for place, output in enumerate(graph.outputs):
        node = graph.nodes[output] if output is not None else None
        if node is None or node.type is None or "float" in node.type.dtype or not node.inputs:
            continue
        if "getitem" in node.op and "attention" in graph.nodes[node.inputs[0]].op:
            found.add(place)
    return found
