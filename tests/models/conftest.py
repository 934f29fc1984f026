"""Whole models and odd programs through `torch.compile(backend="planner")`, in the interpreter."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from fusionplan import executors, plans
from fusionplan.backend import planner
from fusionplan.planner.cures import FusionplanWarning
from fusionplan.planner.runtime.dispatch.plan_runners import Runner
from torch.utils._pytree import tree_leaves

OPTIONS = {"on_miss": "model", "evidence": "any"}


@pytest.fixture(autouse=True)
def _world(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[None]:
    """No store, one thread, a fresh Dynamo; a fall-back of ours is an error."""
    monkeypatch.setenv("PLANNER_STORE", str(tmp_path / "none.db"))
    torch._dynamo.reset()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FusionplanWarning)
        yield
    torch._dynamo.reset()


@dataclass(frozen=True)
class Ran:
    """A compiled function with what it gave: by ours, by eager, and in float64."""

    compiled: Any
    mine: list[Any]
    eager: list[Any]
    exact: list[Any]

    @property
    def runners(self) -> list[Runner]:
        return executors(self.compiled)

    @property
    def kernels(self) -> int:
        """Launches of our kernels in all calls."""
        return sum(r.kernels_per_call * r.calls for r in self.runners)


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors in an output, in order."""
    if hasattr(value, "to_tuple"):  # transformers' outputs
        value = value.to_tuple()
    return [x for x in tree_leaves(value) if isinstance(x, torch.Tensor)]


def step(call: Any, module: torch.nn.Module, inputs: dict[str, Any]) -> list[torch.Tensor]:
    """Outputs and gradients of a training step."""
    outputs = [t for t in tensors(call(**inputs)) if t.is_floating_point()]
    losses = [t.square().sum() for t in outputs if t.requires_grad]
    sum(losses[1:], losses[0]).backward()
    grads = [p.grad for p in module.parameters() if p.grad is not None]
    return [*(t.detach() for t in outputs), *grads]


def ran(module: torch.nn.Module, inputs: dict[str, Any], *, training: bool) -> Ran:
    """One call, or one training step, in the three ways."""
    module.train(training)
    single, double = copy.deepcopy(module), copy.deepcopy(module).double()
    compiled = torch.compile(module, backend=planner, options=OPTIONS)
    wide = {
        k: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v
        for k, v in inputs.items()
    }
    found = []
    for call, own, given in (
        (compiled, module, inputs),
        (single, single, inputs),
        (double, double, wide),
    ):
        if training:
            found.append(step(call, own, given))
        else:
            with torch.no_grad():
                found.append(tensors(call(**given)))
    return Ran(compiled, *found)


def assert_accurate(
    mine: Sequence[torch.Tensor], eager: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]
) -> None:
    """Within twice eager's own error, and rounding at the size of the largest value: a gradient
    that is zero but for rounding has no size of its own."""
    assert len(mine) == len(eager) == len(exact)
    floats = [e for e in exact if e.is_floating_point() and e.numel()]
    scale = max((e.abs().max().item() for e in floats), default=0.0)
    for i, (a, b, c) in enumerate(zip(mine, eager, exact, strict=True)):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), i
        if not a.is_floating_point():
            assert torch.equal(a, b), i
            continue
        assert torch.equal(a.isnan(), b.isnan()), i
        error = (a.double() - c).abs().max().item() if a.numel() else 0.0
        own = (b.double() - c).abs().max().item() if a.numel() else 0.0
        limit = 2 * own + 16 * torch.finfo(a.dtype).eps * scale
        assert error <= limit, f"output {i}: error {error:.3g}, eager's {own:.3g}"


Check = Callable[..., Any]


@pytest.fixture
def same() -> Check:
    """Compiles a function, compares a call with eager's on equal inputs; gives what compiled."""

    def check(
        function: Callable[..., Any],
        *inputs: Any,
        kernels: bool = True,
        compiled: Any = None,
        **options: Any,
    ) -> Any:
        if compiled is None:
            compiled = torch.compile(function, backend=planner, options=OPTIONS, **options)
        mine, own = copy.deepcopy(inputs), copy.deepcopy(inputs)
        before = launches(compiled)
        got, want = compiled(*mine), function(*own)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(mine, own)  # what it wrote to
        assert (launches(compiled) > before) == kernels
        return compiled

    return check


def launches(compiled: Any) -> int:
    return sum(r.kernels_per_call * r.calls for r in executors(compiled))


@pytest.fixture
def count() -> Callable[[Any], tuple[int, int]]:
    """The graphs that a compiled function runs by, and the launches of our kernels so far."""
    return lambda compiled: (len(plans(compiled)), launches(compiled))


@pytest.fixture
def run() -> Callable[..., Ran]:
    return ran


@pytest.fixture
def accurate() -> Callable[..., None]:
    return assert_accurate
