"""What one call cannot show: several models at once, threads, exceptions, modes, copies."""

from __future__ import annotations

import copy
import gc
import io
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from fusionplan import executors
from fusionplan.backend import planner
from torch import Tensor, nn

from hostile.judge import OPTIONS, Wrong


@dataclass(slots=True)
class World:
    """Compiles by our backend on a device, and counts launches of ours."""

    device: str
    compiled: list[Any] = field(default_factory=list)

    def compile(self, function: Any, **options: Any) -> Any:
        found = torch.compile(function, backend=planner, options=OPTIONS, **options)
        self.compiled.append(found)
        return found

    def numbers(self, *shape: int, seed: int = 0) -> Tensor:
        drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        return drawn.to(self.device)

    @property
    def kernels(self) -> int:
        return sum(r.kernels_per_call * r.calls for c in self.compiled for r in executors(c))


@dataclass(frozen=True, slots=True)
class Scenario:
    """As a case: `play` raises where something is wrong."""

    name: str
    play: Callable[[World], None]
    family: str = "scenarios"
    ours: bool = True
    fails: bool = False
    cpu: bool = False
    cuda: bool = False

    def __str__(self) -> str:
        return f"{self.family}/{self.name}"

    def run(self, device: str) -> int:
        """Launches of our kernels."""
        torch._dynamo.reset()
        world = World(device)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.filterwarnings("error", message="fusionplan")
            self.play(world)
        if self.ours and not world.kernels:
            raise Wrong("no kernel of ours ran")
        return world.kernels


SCENARIOS: list[Scenario] = []


def scenario(play: Callable[[World], None]) -> Callable[[World], None]:
    SCENARIOS.append(Scenario(play.__name__, play))
    return play


def on_a_gpu(play: Callable[[World], None]) -> Callable[[World], None]:
    """A scenario that Triton's interpreter cannot play."""
    SCENARIOS.append(Scenario(play.__name__, play, cuda=True))
    return play


def same(mine: Any, eager: Any) -> None:
    torch.testing.assert_close(mine, eager, rtol=1e-5, atol=1e-6)


class Block(nn.Module):
    def __init__(self, width: int = 8, scale: float = 2.0) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)
        self.scale = scale
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(F.gelu(self.linear(self.norm(x)))) * self.scale + x


def block(w: World, scale: float = 2.0, seed: int = 0) -> Block:
    torch.manual_seed(seed)
    return Block(scale=scale).to(w.device).eval()


def in_threads(work: Callable[[int], None], count: int = 4) -> None:
    """Raises what one of them raised."""
    errors: list[BaseException] = []
    start = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            start.wait(60)
            work(number)
        except BaseException as error:  # noqa: BLE001 - it is raised again below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    if errors:
        raise errors[0]


@scenario
def two_models_that_differ_in_a_constant(w: World) -> None:
    x = w.numbers(5, 8)
    models = [block(w, scale) for scale in (2.0, 3.0)]
    compiled = [w.compile(m) for m in models]
    for _ in range(2):
        for mine, model in zip(compiled, models, strict=True):
            with torch.no_grad():
                same(mine(x), model(x))


@scenario
def two_models_that_differ_in_weights(w: World) -> None:
    x = w.numbers(5, 8)
    models = [block(w, seed=seed) for seed in (1, 2)]
    compiled = [w.compile(m) for m in models]
    with torch.no_grad():
        for mine, model in zip(compiled, models, strict=True):
            same(mine(x), model(x))
        same(compiled[0](x), models[0](x))


@scenario
def one_inside_another(w: World) -> None:
    inner = w.compile(lambda x: F.softmax(x, -1) * 2)
    outer = w.compile(lambda x: inner(x + 1).sum(0))
    x = w.numbers(5, 8)
    same(outer(x), (F.softmax(x + 1, -1) * 2).sum(0))


@scenario
def threads_call_one_function(w: World) -> None:
    def function(x: Tensor) -> Tensor:
        return F.layer_norm(x, (8,)).exp() * 2

    mine = w.compile(function)
    mine(w.numbers(5, 8))

    def work(number: int) -> None:
        for call in range(5):
            x = w.numbers(5, 8, seed=10 * number + call)
            same(mine(x), function(x))

    in_threads(work)


@scenario
def threads_compile_at_once(w: World) -> None:
    def work(number: int) -> None:
        def function(x: Tensor) -> Tensor:
            return F.softmax(x * (number + 1), -1) + number

        x = w.numbers(5, 8, seed=number)
        same(w.compile(function)(x), function(x))

    in_threads(work, 3)


@scenario
def threads_run_backward_passes(w: World) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return (F.softmax(x, -1) * y.tanh()).sum()

    mine = w.compile(function)

    def gradients(call: Any, seed: int) -> Any:
        x, y = (w.numbers(5, 8, seed=seed + i).requires_grad_() for i in (0, 100))
        return torch.autograd.grad(call(x, y), (x, y))

    gradients(mine, 0)

    def work(number: int) -> None:
        for call in range(3):
            seed = 7 * number + call
            same(gradients(mine, seed), gradients(function, seed))

    in_threads(work)


@scenario
def an_exception_of_the_user_leaves_it_whole(w: World) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return (x @ y).relu() + 1

    mine = w.compile(function)
    x, y = w.numbers(5, 8), w.numbers(8, 3)
    same(mine(x, y), function(x, y))
    for _ in range(2):
        try:
            mine(x, w.numbers(7, 3))
        except Exception:  # noqa: BLE001 - the kind is torch's to choose
            pass
        else:
            raise Wrong("a product of wrong sizes is accepted")
        same(mine(x, y), function(x, y))


@scenario
def an_exception_in_the_middle(w: World) -> None:
    def function(x: Tensor, fail: bool) -> Tensor:
        y = x.exp() * 2
        if fail:
            raise KeyError("the user's own")
        return y + 1

    mine = w.compile(function)
    x = w.numbers(5, 8)
    same(mine(x, False), function(x, False))
    try:
        mine(x, True)
    except KeyError:
        pass
    else:
        raise Wrong("the user's exception is lost")
    same(mine(x, False), function(x, False))


@scenario
def an_exception_in_a_backward_hook(w: World) -> None:
    def fail(_: Tensor) -> Tensor:
        raise KeyError("the user's own")

    mine = w.compile(lambda x: (x.sin() * 2).sum())
    x = w.numbers(5, 8).requires_grad_()
    handle = x.register_hook(fail)
    try:
        mine(x).backward()
    except KeyError:
        pass
    else:
        raise Wrong("the hook's exception is lost")
    handle.remove()
    mine(x).backward()
    same(x.grad, 2 * x.detach().cos())


@scenario
def a_deep_copy_of_a_compiled_model(w: World) -> None:
    model, x = block(w), w.numbers(5, 8)
    mine = w.compile(model)
    with torch.no_grad():
        same(mine(x), model(x))
        again = copy.deepcopy(mine)
        again._orig_mod.linear.weight.mul_(2)
        same(mine(x), model(x))
        same(again(x), again._orig_mod(x))
        if torch.equal(again(x), mine(x)):
            raise Wrong("the copy shares its weights")


@scenario
def weights_saved_and_loaded(w: World) -> None:
    model, other, x = block(w), block(w, seed=9), w.numbers(5, 8)
    mine = w.compile(model)
    with torch.no_grad():
        mine(x)
        file = io.BytesIO()
        torch.save(other.state_dict(), file)
        file.seek(0)
        model.load_state_dict(torch.load(file, weights_only=True))
        same(mine(x), other(x))


@scenario
def weights_written_in_place_and_replaced(w: World) -> None:
    model, x = block(w), w.numbers(5, 8)
    mine = w.compile(model)
    with torch.no_grad():
        for change in (
            lambda: model.linear.weight.mul_(3),
            lambda: setattr(model.linear, "bias", nn.Parameter(w.numbers(8, seed=5))),
            lambda: setattr(model, "scale", -1.5),
        ):
            same(mine(x), model(x))
            change()
            same(mine(x), model(x))


@scenario
def training_steps(w: World) -> None:
    models = [block(w).train() for _ in range(2)]
    for model in models:
        model.drop.p = 0.0
    mine = w.compile(models[0])
    optimisers = [torch.optim.SGD(m.parameters(), 0.1, momentum=0.9) for m in models]
    for step in range(3):
        x = w.numbers(5, 8, seed=step)
        for call, optimiser in zip((mine, models[1]), optimisers, strict=True):
            optimiser.zero_grad()
            call(x).square().mean().backward()
            optimiser.step()
    same(models[0].state_dict(), models[1].state_dict())


@scenario
def gradients_add_up(w: World) -> None:
    models = [block(w) for _ in range(2)]
    mine = w.compile(models[0])
    for seed in range(2):
        for call in (mine, models[1]):
            call(w.numbers(5, 8, seed=seed)).sum().backward()
    pairs = zip(models[0].parameters(), models[1].parameters(), strict=True)
    for a, b in pairs:
        same(a.grad, b.grad)


@scenario
def the_backward_pass_twice(w: World) -> None:
    x = w.numbers(5, 8).requires_grad_()
    y = w.compile(lambda x: (x.sin() * x).sum())(x)
    first = torch.autograd.grad(y, x, retain_graph=True)
    same(torch.autograd.grad(y, x), first)


@scenario
def train_and_eval_in_turn(w: World) -> None:
    model, x = block(w), w.numbers(64, 8)
    mine = w.compile(model)
    with torch.no_grad():
        same(mine(x), model(x))
        model.train()
        if torch.equal(mine(x), mine(x)):
            raise Wrong("dropout drops the same twice")
        model.eval()
        same(mine(x), model(x))


@scenario
def with_and_without_gradients_in_turn(w: World) -> None:
    def function(x: Tensor) -> Tensor:
        return F.layer_norm(x, (8,)).sin()

    mine = w.compile(function)
    for asks in (False, True, False, True):
        x = w.numbers(5, 8).requires_grad_(asks)
        got = mine(x)
        same(got, function(x))
        if got.requires_grad != asks:
            raise Wrong(f"requires_grad is {got.requires_grad}")
    with torch.inference_mode():
        same(mine(w.numbers(5, 8)), function(w.numbers(5, 8)))


@scenario
def autocast(w: World) -> None:
    model, x = block(w), w.numbers(5, 8)
    mine = w.compile(model)
    with torch.no_grad(), torch.autocast(w.device, torch.bfloat16):
        torch.testing.assert_close(mine(x), model(x), rtol=2e-2, atol=2e-2)
    with torch.no_grad():
        same(mine(x), model(x))


@scenario
def a_break_in_the_middle(w: World) -> None:
    def function(x: Tensor) -> Tensor:
        y = x.exp() * 2
        torch._dynamo.graph_break()
        return F.softmax(y, -1) + y.sum()

    x = w.numbers(5, 8)
    same(w.compile(function)(x), function(x))


@scenario
def a_branch_on_data(w: World) -> None:
    def function(x: Tensor) -> Tensor:
        y = x * 2 + 1
        return y.sin() if y.sum() > 0 else y.cos() * 3

    mine = w.compile(function)
    for sign in (1, -1, 1):
        x = w.numbers(5, 8).abs() * sign * 3
        same(mine(x), function(x))


@scenario
def a_closure_that_changes(w: World) -> None:
    state = {"scale": 2.0, "shift": w.numbers(8, seed=3)}

    def function(x: Tensor) -> Tensor:
        return (x * state["scale"]).tanh() + state["shift"]

    mine, x = w.compile(function), w.numbers(5, 8)
    for scale in (2.0, 3.0, 2.0):
        state["scale"] = scale
        state["shift"] = w.numbers(8, seed=int(scale))
        same(mine(x), function(x))


@scenario
def arguments_and_results_of_every_kind(w: World) -> None:
    def function(x: Tensor, *more: Any, scale: float = 1.0, table: Any = None) -> Any:
        y = (x * scale + more[0]).exp()
        return {"y": y, "none": None, "n": [3, (y.sum(), "text")], "t": table["t"] * 2}

    x, t = w.numbers(5, 8), w.numbers(3)
    mine = w.compile(function)(x, 1.5, scale=0.5, table={"t": t})
    wanted = function(x, 1.5, scale=0.5, table={"t": t})
    same((mine["y"], mine["n"][1][0], mine["t"]), (wanted["y"], wanted["n"][1][0], wanted["t"]))
    if (mine["none"], mine["n"][0], mine["n"][1][1]) != (None, 3, "text"):
        raise Wrong(f"results are {mine}")


@scenario
def the_random_state_stays_the_users(w: World) -> None:
    mine, x = w.compile(lambda x: F.softmax(x, -1) * 2), w.numbers(5, 8)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    mine(x)
    if not torch.equal(before, torch.get_rng_state()):
        raise Wrong("the random state moved")


@scenario
def buffers_are_updated_once_a_call(w: World) -> None:
    models = [nn.BatchNorm1d(8).to(w.device) for _ in range(2)]
    mine = w.compile(models[0])
    for seed in range(3):
        x = w.numbers(7, 8, seed=seed) + 1
        same(mine(x), models[1](x))
    same(models[0].state_dict(), models[1].state_dict())
    if int(models[0].num_batches_tracked) != 3:
        raise Wrong(f"{int(models[0].num_batches_tracked)} batches tracked in three calls")


@scenario
def what_is_let_go_is_freed(w: World) -> None:
    def call() -> Any:
        mine = w.compile(lambda x: F.softmax(x, -1) * 2)
        x = w.numbers(5, 8)
        y = mine(x)
        return weakref.ref(x), weakref.ref(y)

    references = call()
    gc.collect()
    if any(r() is not None for r in references):
        raise Wrong("an input or a result is kept alive")


@scenario
def a_hook_on_a_module(w: World) -> None:
    model, x, seen = block(w), w.numbers(5, 8), []
    model.linear.register_forward_hook(lambda _m, _i, out: out * 2)
    model.norm.register_forward_pre_hook(lambda _m, given: seen.append(1))
    mine = w.compile(model)
    with torch.no_grad():
        same(mine(x), model(x))


@scenario
def recomputed_in_the_backward_pass(w: World) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(
            lambda y: F.gelu(y) * y.sin(), x, use_reentrant=False
        ).sum()

    x = w.numbers(5, 8).requires_grad_()
    got = torch.autograd.grad(w.compile(function)(x), x)
    same(got, torch.autograd.grad(function(x), x))


@scenario
def a_loop_of_many_calls(w: World) -> None:
    mine, x = w.compile(lambda x: (x * 0.99).tanh() + 0.01), w.numbers(5, 8)
    y = x
    for _ in range(50):
        x, y = mine(x), (y * 0.99).tanh() + 0.01
    same(x, y)


@contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@scenario
def another_default_type(w: World) -> None:
    def function(x: Tensor) -> Tensor:
        return x * 0.1 + torch.ones(8, device=x.device) * 0.3 + torch.arange(8, device=x.device)

    mine, x = w.compile(function), w.numbers(5, 8)
    same(mine(x), function(x))
    with _default(torch.float64):
        same(mine(x), function(x))
        same(mine(x.double()), function(x.double()))
