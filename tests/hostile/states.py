"""What happens to a model after it was compiled: switches, loads, moves, copies; and what its calls
are given: modes, arguments of every kind, tensors that share memory, other devices, threads."""

from __future__ import annotations

import copy
import enum
import functools
import gc
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from hostile.judge import Wrong
from hostile.modules import twins
from hostile.scenarios import Block, World, block, same, scenario


class Trained(nn.Module):
    """Normalised, dropped out, with a buffer that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(8), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.layer(x)).relu()
        if self.training:
            self.calls += 1
            self.mean.lerp_(y.detach().mean(0), 0.25)
        return y - self.mean


def alike(w: World, models: Any, calls: Any, *given: Tensor) -> None:
    """The same results and, where something asks for them, the same gradients and buffers."""
    results = []
    for model, call in zip(models, calls, strict=True):
        model.zero_grad()
        y = call(*given)
        if y.requires_grad:
            y.square().sum().backward()
        results.append(
            (y.detach(), [p.grad for p in model.parameters()], dict(model.named_buffers()))
        )
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


@scenario
def modes_in_every_order(w: World) -> None:
    models = twins(w, Trained)
    calls = (w.compile(models[0]), models[1])
    for train, mode in ((True, None), (False, None), (False, torch.no_grad), (True, torch.no_grad)):
        for model in models:
            model.train(train)
        with (mode or torch.enable_grad)():
            alike(w, models, calls, w.numbers(6, 8, seed=int(train)) + 1)


class Ring(nn.Module):
    """Its last results, in a buffer that is written where a counter says."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("kept", torch.zeros(2, 8))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        self.kept[self.calls % 2] = y.detach()[0]
        self.calls += 1
        return y.relu() + self.kept.sum(0)


@scenario
def what_is_kept_asks_for_no_gradient(w: World) -> None:
    models = twins(w, Ring)
    calls = (w.compile(models[0]), models[1])
    for i in range(3):
        alike(w, models, calls, w.numbers(6, 8, seed=i))
        assert not models[0].kept.requires_grad


@scenario
def a_state_dict_is_loaded_later(w: World) -> None:
    models = twins(w, Trained)
    calls = (w.compile(models[0]), models[1])
    alike(w, models, calls, w.numbers(6, 8))
    torch.manual_seed(5)
    other = Trained().to(w.device).state_dict()
    for model, assign in zip(models, (True, False), strict=True):
        model.load_state_dict(copy.deepcopy(other), assign=assign)
    alike(w, models, calls, w.numbers(6, 8, seed=1))


@scenario
def another_type_after_compiling(w: World) -> None:
    models = twins(w, lambda: Block().eval())
    calls = (w.compile(models[0]), models[1])
    alike(w, models, calls, w.numbers(5, 8))
    for dtype in (torch.float64, torch.float32):
        for model in models:
            model.to(dtype)
        alike(w, models, calls, w.numbers(5, 8, seed=2).to(dtype))


@scenario
def a_parameter_is_replaced(w: World) -> None:
    models = twins(w, lambda: Block().eval())
    calls = (w.compile(models[0]), models[1])
    alike(w, models, calls, w.numbers(5, 8))
    for model in models:
        model.linear.weight = nn.Parameter(model.linear.weight.detach().t().clone().t() * 2)
    alike(w, models, calls, w.numbers(5, 8))
    for model in models:
        model.linear.bias = None
        model.norm = nn.Identity()
    alike(w, models, calls, w.numbers(5, 8))


@scenario
def data_of_parameters_is_swapped(w: World) -> None:
    models = twins(w, lambda: Block().eval())
    calls = (w.compile(models[0]), models[1])
    x = w.numbers(5, 8)
    for step in range(3):
        for model in models:
            for p in model.parameters():
                p.data = p.data.clone().mul_(0.5) if step % 2 else p.data + 0.1
        alike(w, models, calls, x)


@scenario
def a_module_is_added_and_removed(w: World) -> None:
    models = twins(w, lambda: nn.Sequential(nn.Linear(8, 8), nn.GELU()))
    calls = (w.compile(models[0]), models[1])
    alike(w, models, calls, w.numbers(5, 8))
    for model in models:
        torch.manual_seed(1)
        model.append(nn.LayerNorm(8).to(w.device))
        model[1] = nn.SiLU()
    alike(w, models, calls, w.numbers(5, 8))


@scenario
def parametrised_later_and_back(w: World) -> None:
    models = twins(w, lambda: nn.Sequential(nn.Linear(8, 8), nn.Tanh()))
    calls = (w.compile(models[0]), models[1])
    alike(w, models, calls, w.numbers(5, 8))
    for model in models:
        parametrizations.weight_norm(model[0])
    alike(w, models, calls, w.numbers(5, 8))
    for model in models:
        parametrize.remove_parametrizations(model[0], "weight")
    alike(w, models, calls, w.numbers(5, 8))


@scenario
def an_orthogonal_weight(w: World) -> None:
    models = twins(
        w, lambda: nn.Sequential(parametrizations.orthogonal(nn.Linear(6, 6)), nn.ReLU())
    )
    alike(w, models, (w.compile(models[0]), models[1]), w.numbers(5, 6))


@scenario
def spectral_norm_moves_its_vectors(w: World) -> None:
    models = twins(
        w, lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(8, 6)), nn.ReLU())
    )
    calls = (w.compile(models[0]), models[1])
    for seed in range(2):
        alike(w, models, calls, w.numbers(5, 8, seed=seed))
    for model in models:
        model.eval()
    alike(w, models, calls, w.numbers(5, 8))


@scenario
def a_copy_of_what_is_compiled_lives_on(w: World) -> None:
    model, x = block(w), w.numbers(5, 8)
    mine = w.compile(model)
    wanted = model(x).detach()
    same(mine(x).detach(), wanted)
    other = copy.deepcopy(mine)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    del model, mine
    gc.collect()
    same(other(x).detach(), wanted)


@scenario
def compiled_in_place(w: World) -> None:
    models = [block(w) for _ in range(2)]
    models[0].compile(backend="planner", options={"on_miss": "model", "evidence": "any"})
    w.compiled.append(models[0])
    alike(w, models, models, w.numbers(5, 8))
    if list(models[0].state_dict()) != list(models[1].state_dict()):
        raise Wrong("the names of the weights have changed")


@scenario
def the_whole_graph_or_an_error(w: World) -> None:
    def whole(x: Tensor) -> Tensor:
        return x.softmax(-1) * 2

    def broken(x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return x * 2

    x = w.numbers(5, 8)
    same(w.compile(whole, fullgraph=True)(x), whole(x))
    try:
        w.compile(broken, fullgraph=True)(x)
    except torch._dynamo.exc.Unsupported:
        return
    raise Wrong("a break is no error")


# --- arguments ----------------------------------------------------------------------------------


class Kind(enum.Enum):
    SUM = 1
    MEAN = 2


@dataclass(frozen=True)
class Settings:
    scale: float = 2.0
    axis: int = -1
    name: str = "softmax"


Two = namedtuple("Two", "first second")


@scenario
def settings_of_every_kind(w: World) -> None:
    def function(x: Tensor, s: Settings, kind: Kind, flag: bool, names: tuple[str, ...]) -> Tensor:
        y = x.softmax(s.axis) if s.name == "softmax" else x.sigmoid()
        y = y * s.scale * len(names)
        y = y.sum(s.axis) if kind is Kind.SUM else y.mean(s.axis)
        return -y if flag else y

    mine, x = w.compile(function), w.numbers(5, 8)
    for given in (
        (Settings(), Kind.SUM, False, ("a",)),
        (Settings(0.5), Kind.MEAN, True, ("a", "b")),
        (Settings(axis=0, name="other"), Kind.SUM, True, ()),
        (Settings(), Kind.SUM, False, ("a",)),
    ):
        same(mine(x, *given), function(x, *given))


@scenario
def numbers_that_change_from_call_to_call(w: World) -> None:
    def function(x: Tensor, a: float, n: int, s: str) -> Tensor:
        y = (x * a).cumsum(0) + n
        return y.amax(0) if s == "max" else y.clamp(max=n).softmax(0)

    mine, x = w.compile(function), w.numbers(5, 8)
    for a, n, s in ((1.5, 2, "max"), (1.5, 3, "max"), (-0.0, 0, "soft"), (float("inf"), 1, "max")):
        got, wanted = mine(x, a, n, s), function(x, a, n, s)
        torch.testing.assert_close(got, wanted, equal_nan=True)
    got, wanted = mine(x, float("nan"), -7, "max"), function(x, float("nan"), -7, "max")
    torch.testing.assert_close(got, wanted, equal_nan=True)


@scenario
def one_tensor_as_two_arguments(w: World) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return x * y

    mine = w.compile(function)
    for apart in (False, True, False):
        a, b = w.numbers(5, 8), w.numbers(5, 8)
        got = mine(a, w.numbers(5, 8, seed=1) if apart else a)
        wanted = function(b, w.numbers(5, 8, seed=1) if apart else b)
        same((got, a), (wanted, b))


@scenario
def arguments_that_overlap(w: World) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return y.softmax(-1) + x.sum()

    mine = w.compile(function)
    for first, second in (
        (slice(0, 4), slice(2, 6)),
        (slice(0, 3), slice(3, 6)),
        (slice(0, 6), slice(1, 2)),
    ):
        a, b = w.numbers(6, 8), w.numbers(6, 8)
        same((mine(a[first], a[second]), a), (function(b[first], b[second]), b))


@scenario
def results_go_back_in_as_inputs(w: World) -> None:
    def function(state: Two, x: Tensor) -> tuple[Two, Tensor]:
        first = state.first * 0.9 + x
        second = torch.maximum(state.second, first)
        return Two(first, second), (first - second).softmax(-1)

    mine = w.compile(function)
    ours = theirs = Two(w.numbers(5, 8), w.numbers(5, 8, seed=1))
    for seed in range(5):
        x = w.numbers(5, 8, seed=seed)
        ours, y = mine(ours, x)
        theirs, z = function(theirs, x)
        same((ours, y), (theirs, z))


@scenario
def ordered_and_nested_containers(w: World) -> None:
    def function(given: dict[str, Any]) -> OrderedDict[str, Any]:
        x, (y, rest) = given["x"], given["more"]
        found = OrderedDict(z=x + y, a=[r.exp() for r in rest], none=None, number=len(rest))
        found["last"] = {"deep": (x * y).sum(), 3: y}
        return found

    mine = w.compile(function)
    given = {"x": w.numbers(5, 8), "more": (w.numbers(8), [w.numbers(3), w.numbers(2)])}
    got, wanted = mine(given), function(given)
    if list(got) != list(wanted) or got["last"][3] is not given["more"][0]:
        raise Wrong("the order or an input that is handed through is lost")
    torch.testing.assert_close(got, wanted)


@scenario
def a_partial_and_a_bound_method(w: World) -> None:
    model, x = block(w), w.numbers(5, 8)
    for function in (
        functools.partial(torch.add, alpha=3),
        functools.partial(lambda x, y, *, s: (x * y).sum(s), s=0),
    ):
        same(w.compile(function)(x, x + 1), function(x, x + 1))
    with torch.no_grad():
        same(w.compile(model.forward)(x), model(x))


@scenario
def sizes_zero_and_one_among_others(w: World) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x.softmax(1), x.sum(0) + x.shape[0], x.cumsum(1)[:, -1:]

    mine = w.compile(function, dynamic=True)
    for rows, columns in ((3, 5), (0, 5), (1, 1), (1, 7), (2, 1), (17, 3), (0, 1)):
        x = w.numbers(rows, columns)
        same(mine(x), function(x))


@scenario
def a_model_is_edited_between_steps(w: World) -> None:
    edits: list[Callable[[Any], object]] = [
        lambda m: setattr(m[1], "eps", 1.0),
        lambda m: setattr(m[2], "weight", m[0].weight),
        lambda m: setattr(m[0], "bias", None),
    ]
    models = twins(w, lambda: nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8)))
    calls = (w.compile(models[0]), models[1])
    alike(w, models, calls, w.numbers(5, 8))
    for edit in edits:
        for model in models:
            edit(model)
        alike(w, models, calls, w.numbers(5, 8))
