"""PyTorch's own samples of its operations, one at a time: through our backend by a modelled plan,
in eager and in float64, forward and backward."""

from __future__ import annotations

import math
import sys
import types
import unittest
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
from torch._dynamo.backends.common import aot_autograd
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from ..api import Options, dispatcher_for
from ..planner.capture.capture import decompositions
from ..planner.errors import summary_of
from ..planner.graph.ops import is_input, overload, row
from ..planner.runtime.dispatch.dispatch import Dispatcher

SampleStatus = Literal["ours", "not ours", "random", "left out", "failed"]
"""ours: a generated kernel ran, and all results are right. not ours: no generated kernel, which
says nothing. random: eager gives other numbers each time. left out: eager refuses the sample, or
nothing can capture it (its shapes depend on its data). failed: wrong, or fell back."""

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True, slots=True)
class SampleOutcome:
    """kernels: launches of ours, forward and backward. message: why it failed or was left out.
    opaque: operations of its graphs that no generated kernel holds."""

    status: SampleStatus
    kernels: int = 0
    message: str = ""
    opaque: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class CallResults:
    """The results of one way of running: outputs, gradients (None: there is none), and the inputs
    afterwards, which the operation may have written to."""

    outputs: tuple[torch.Tensor, ...]
    gradients: tuple[torch.Tensor | None, ...]
    inputs: tuple[torch.Tensor, ...]


@cache
def operations() -> dict[str, Any]:
    """torch's OpInfo by name, the variant behind a dot."""
    # op_db's module wants the base class of its golden tests, which nothing here runs.
    if "expecttest" not in sys.modules:
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stand_in
    from torch.testing._internal import common_utils
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.opinfo import core

    # Each list of samples looks for the test that asks for it, one of unittest's, in all modules
    # of all callers: as long as all else that a sample takes.
    for module in (common_utils, core):
        vars(module)["extract_test_fn"] = lambda: None
    return {f"{o.name}.{o.variant_test_name}".rstrip("."): o for o in op_db}


def samples(info: Any, dtype: torch.dtype, device: str, limit: int | None) -> Iterator[Any]:
    """The operation's samples in this dtype; none where it does not take the dtype."""
    if dtype not in info.supported_dtypes(device):
        return
    wants_grad = dtype.is_floating_point and dtype in info.supported_backward_dtypes(device)
    torch.manual_seed(0)
    for number, sample in enumerate(info.sample_inputs(device, dtype, requires_grad=wants_grad)):
        if number == limit:
            return
        yield sample


@dataclass(frozen=True, slots=True)
class SampledCall:
    """An operation applied to a sample, as a function of the sample's tensors alone.

    inside: every float that it takes, and all that it gives, is negated twice, which changes no
    bit: then a view stands between computations, and is part of a kernel if it can be."""

    info: Any
    sample: Any
    tensors: tuple[torch.Tensor, ...]
    leaves: tuple[Any, ...]
    spec: Any
    inside: bool = False

    @staticmethod
    def of(info: Any, sample: Any, inside: bool = False) -> SampledCall:
        leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
        tensors = tuple(x for x in leaves if isinstance(x, torch.Tensor))
        return SampledCall(info, sample, tensors, tuple(leaves), spec, inside)

    def __call__(self, *tensors: torch.Tensor, wide: bool = False) -> tuple[torch.Tensor, ...]:
        given = iter(map(_twice_negated, tensors) if self.inside else tensors)
        leaves = [
            next(given) if isinstance(x, torch.Tensor) else _wide(x) if wide else x
            for x in self.leaves
        ]
        first, args, kwargs = tree_unflatten(leaves, self.spec)
        result = self.info.op(first, *args, **kwargs)
        if self.sample.output_process_fn_grad is not None:
            result = self.sample.output_process_fn_grad(result)
        found = (x for x in tree_leaves(result) if isinstance(x, torch.Tensor))
        return tuple(map(_twice_negated, found) if self.inside else found)

    @property
    def odd(self) -> str:
        """Why no kernel could hold the sample, whatever its operation; "" if one may."""
        for tensor in self.tensors:
            if tensor.layout is not torch.strided or tensor.is_complex():
                return f"a {tensor.layout} tensor of {tensor.dtype}"
        return "" if self.tensors else "no tensor"


def is_fatal(error: BaseException) -> bool:
    """Whether the process can use its GPU no more, whatever it goes on to do."""
    kind = getattr(torch, "AcceleratorError", None)
    told = str(error)
    return (kind is not None and isinstance(error, kind)) or any(
        each in told for each in ("CUDA error", "Triton Error [CUDA]")
    )


def judge(call: SampledCall) -> SampleOutcome:
    """Runs a sample in all ways and compares. Raises what is fatal."""
    if call.odd:
        return SampleOutcome("left out", message=call.odd)
    try:
        eager, again = (_run(call, call.tensors, seed=s) for s in (1, 2))
        exact = _run(lambda *t: call(*t, wide=True), call.tensors, wide=True)
    except Exception as error:
        if is_fatal(error):
            raise
        # Samples may be for what eager refuses.
        return SampleOutcome("left out", message=f"eager: {summary_of(error)}")
    if any(t.layout is not torch.strided or t.is_complex() for t in eager.outputs):
        return SampleOutcome("left out", message="a result that is complex or not strided")
    if call.info.name in _UNDEFINED or not _alike(eager, again):
        return SampleOutcome("random")
    dispatcher = dispatcher_for(Options("model", evidence="any", baseline="eager", store=_NO_STORE))
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            mine = _run(_Compiled(call, dispatcher), call.tensors)
    except Exception as error:
        if is_fatal(error):
            raise
        if not _is_traceable(call):
            return SampleOutcome(
                "left out", message="its shapes or its control flow depend on its data"
            )
        return SampleOutcome("failed", message=summary_of(error))
    kernels = launches(dispatcher)
    warned = [str(w.message) for w in told if "fusionplan" in str(w.message)]
    if warned:
        if is_fatal(told_of := RuntimeError(warned[0])):
            raise told_of
        if not kernels and not _is_traceable(call):
            return SampleOutcome("left out", message=f"torch cannot trace it: {warned[0]}")
        return SampleOutcome("failed", kernels, warned[0])
    left = opaque(dispatcher)
    if not kernels:
        return SampleOutcome("not ours", 0, "", left)
    if any(map(_is_random, left)):
        return SampleOutcome("random", kernels, "", left)
    depth = max((t.numel() for t in call.tensors), default=1)
    wrong = difference(mine, eager, exact, depth)
    if _INEXACT in wrong and _is_rounding(call, mine, exact, depth):
        wrong = ""
    if wrong:
        return SampleOutcome("failed", kernels, wrong, left)
    return SampleOutcome("not ours" if call.inside and left else "ours", kernels, "", left)


_UNDEFINED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty"} | {
    "new_empty_strided"
}
"""Operations whose results are whatever lay in memory."""

_NO_STORE = "/nonexistent/fusionplan/none.db"


def _is_rounding(call: SampledCall, mine: CallResults, exact: CallResults, depth: int) -> bool:
    """Whether float64 is as far off when its inputs and all results on the way are by a last
    place. There eager is the reference, and shows no error of its own: a gradient that should
    vanish, or is what is left of large ones, is anything near it."""
    if all(t.dtype != torch.float64 for t in call.tensors):
        return False
    moved = (_run(call, call.tensors, moved=seed) for seed in range(1, _MOVES + 1))
    return any(not difference(mine, each, exact, depth) for each in moved)


_MOVES = 4


class _LastPlaces(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Moves each new result in float64 by up to its last place, up or down at random."""

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if any(r.alias_info is not None for r in func._schema.returns):
            return found  # a view, or written in place: no new number
        return tree_map_only(torch.Tensor, lambda x: _moved(x, self._generator), found)


def _moved(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Numbers of float64 by up to their last place; others as they are."""
    if tensor.dtype != torch.float64:
        return tensor
    by = torch.rand(tensor.shape, dtype=torch.float64, generator=generator) * 2 - 1
    return tensor * (1 + torch.finfo(torch.float64).eps * by.to(tensor.device))


class _Compiled:
    """The call by our backend: compiled for the tensors of the first call."""

    def __init__(self, call: SampledCall, dispatcher: Dispatcher) -> None:
        self._call, self._dispatcher = call, dispatcher

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        compiled: Any = self._dispatcher(_Module(self._call), tensors)  # type: ignore[arg-type]
        return tuple(compiled(*tensors))


class _Module(torch.nn.Module):
    def __init__(self, call: Callable[..., tuple[torch.Tensor, ...]]) -> None:
        super().__init__()
        self._function = call

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self._function(*tensors)


def launches(dispatcher: Dispatcher) -> int:
    """Of our kernels, in all graphs so far."""
    runners = [live.runner for live in dispatcher.live.values() if live.runner is not None]
    return sum(r.kernels_per_call * r.calls for r in runners)


def opaque(dispatcher: Dispatcher) -> frozenset[str]:
    """Operations, of all graphs so far with a kernel of ours, that no generated kernel holds."""
    runners = [live.runner for live in dispatcher.live.values() if live.runner is not None]
    nodes = [n for r in runners for n in r.captured.graph.nodes]
    return frozenset(n.op for n in nodes if not is_input(n) and row(n) is None) - _NO_WORK


def _is_random(op: str) -> bool:
    """Whether an operation draws random numbers."""
    return op.startswith("aten.") and torch.Tag.nondeterministic_seeded in overload(op).tags


_NO_WORK = {"_operator.getitem", "operator.getitem", "constant"}


def _twice_negated(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.neg().neg() if tensor.is_floating_point() else tensor


def _is_traceable(call: SampledCall) -> bool:
    """Whether torch's own tracing takes the sample, with nothing of ours but decompositions."""

    def nothing(gm: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        return gm

    try:
        backend: Any = aot_autograd(fw_compiler=nothing, decompositions=decompositions())
        backend(_Module(call), _copies(call.tensors, False))
    except Exception:  # noqa: BLE001 - whatever it is, it is torch's
        return False
    return True


def _run(
    function: Callable[..., tuple[torch.Tensor, ...]],
    tensors: Tensors,
    *,
    wide: bool = False,
    seed: int = 1,
    moved: int = 0,
) -> CallResults:
    """One run on copies of the tensors; gradients of the outputs weighted by fixed numbers. moved:
    the seed by which numbers of float64, the inputs' and all on the way, are moved in their last
    place; 0 leaves them."""
    inputs = _copies(tensors, wide, moved)
    torch.manual_seed(seed)
    found: Sequence[torch.Tensor | None] = ()
    with _LastPlaces(moved) if moved else nullcontext():
        outputs = function(*inputs)
        wanted = [x for x in inputs if x.requires_grad]
        reached = [o for o in outputs if o.requires_grad]
        if wanted and reached:
            weights = [_weights(o, i) for i, o in enumerate(reached)]
            found = torch.autograd.grad(reached, wanted, weights, allow_unused=True)
    after = tuple(x.detach() for x in inputs)
    return CallResults(tuple(o.detach() for o in outputs), tuple(found), after)


def _copies(tensors: Tensors, wide: bool, moved: int = 0) -> list[torch.Tensor]:
    """Fresh leaves of the same strides, floats as float64 when wide. moved: see `_run`."""
    found, generator = [], torch.Generator().manual_seed(moved)
    for tensor in tensors:
        elements = tensor.untyped_storage().nbytes() // tensor.itemsize
        memory = tensor.detach().as_strided((elements,), (1,), 0)
        widened = wide and tensor.is_floating_point()
        memory = memory.to(torch.float64 if widened else memory.dtype, copy=True)
        if moved:
            memory = _moved(memory, generator)
        copy = memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        found.append(copy.detach().requires_grad_(tensor.requires_grad))
    return found


def _weights(output: torch.Tensor, number: int) -> torch.Tensor:
    """Numbers of bfloat16, so that they are the same in every dtype."""
    generator = torch.Generator().manual_seed(number)
    drawn = torch.randn(output.shape, generator=generator).to(torch.bfloat16)
    return drawn.to(output.device, output.dtype)


def _wide(value: Any) -> Any:
    """An argument of the run in float64."""
    if isinstance(value, torch.dtype) and value.is_floating_point:
        return torch.float64
    return value


def _alike(left: CallResults, right: CallResults) -> bool:
    pairs = zip((*left.outputs, *left.gradients), (*right.outputs, *right.gradients), strict=True)
    return all(
        (a is None) == (b is None)
        and (a is None or b is None or bool(((a == b) | ((a != a) & (b != b))).all()))
        for a, b in pairs
    )


# --- the accuracy rule, as in `tuner/gate/check.py` ---

FACTOR = 2.0
_UNITS = {torch.float64: 8.0, torch.float32: 16.0}


def difference(mine: CallResults, eager: CallResults, exact: CallResults, depth: int) -> str:
    """What is wrong, or "": the first output, gradient or changed input that is not as accurate
    as eager's. depth: elements that at most go into one sum."""
    for kind in ("outputs", "gradients", "inputs"):
        ways = [getattr(way, kind) for way in (mine, eager, exact)]
        if len({len(each) for each in ways}) != 1:
            return f"{len(ways[0])} {kind}, eager has {len(ways[1])}"
        for number, (a, b, c) in enumerate(zip(*ways, strict=True)):
            wrong = _wrong(a, b, c, depth)
            if wrong:
                return f"{kind[:-1]} {number} {wrong}"
    return ""


def _wrong(
    mine: torch.Tensor | None,
    eager: torch.Tensor | None,
    exact: torch.Tensor | None,
    depth: int,
) -> str:
    if mine is None or eager is None or exact is None:
        return "" if mine is eager else "is missing, or is not in eager"
    if (mine.dtype, mine.shape) != (eager.dtype, eager.shape):
        return f"is {mine.dtype} {tuple(mine.shape)}, eager's {eager.dtype} {tuple(eager.shape)}"
    if not mine.numel() or torch.equal(mine, eager):
        return ""
    if not mine.is_floating_point():
        other = (mine != eager) & (mine != exact)
        return _at(other, mine, eager, exact, "differs") if bool(other.any()) else ""
    got, own = mine.double(), eager.double()
    ideal = exact.to(mine.dtype).double()  # what overflows the dtype is infinite
    as_eager = (mine == eager) | (mine.isnan() & eager.isnan())
    as_ideal = (got == ideal) | (got.isnan() & ideal.isnan())
    odd = ~(got.isfinite() & own.isfinite() & ideal.isfinite()) & ~as_eager & ~as_ideal
    # Where only eager overflows on the way, the finite truth is welcome too.
    odd &= ~(got.isfinite() & ideal.isfinite())
    if bool(odd.any()):
        return _at(odd, mine, eager, exact, "is not as finite as eager's")
    judged = got.isfinite() & own.isfinite() & ideal.isfinite()
    if not bool(judged.any()):
        return ""
    got, own, true = got[judged], own[judged], exact.double()[judged]
    size = true.abs() + _rms(true)
    size = torch.where(size > 0, size, 1.0)
    error, limit = (got - true).abs() / size, float(((own - true).abs() / size).max())
    rounding = torch.finfo(mine.dtype).eps * _UNITS.get(mine.dtype, 1.0)
    summed = torch.float64 if mine.dtype == torch.float64 else torch.float32
    limit = FACTOR * limit + rounding + math.sqrt(depth) * torch.finfo(summed).eps
    if float(error.max()) <= limit:
        return ""
    place = torch.zeros_like(judged)
    place[judged] = error == error.max()
    return _at(place, mine, eager, exact, f"{_INEXACT} {float(error.max()):.3g} > {limit:.3g}")


_INEXACT = "has error"


def _rms(values: torch.Tensor) -> float:
    largest = float(values.abs().max())
    return largest * float(((values / largest) ** 2).mean().sqrt()) if largest else 0.0


def _at(
    where: torch.Tensor,
    mine: torch.Tensor,
    eager: torch.Tensor,
    exact: torch.Tensor,
    what: str,
) -> str:
    place = tuple(int(i) for i in where.nonzero()[0])
    numbers = (f"{x[place].item():.9g}" for x in (mine, eager, exact))
    return f"{what} in {int(where.sum())}, at {place}: {', eager '.join(list(numbers)[:2])}" + (
        f", exact {exact[place].item():.9g}"
    )
