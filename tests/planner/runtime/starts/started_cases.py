"""A model that starts by what an earlier process traced, and everything that sends it to Dynamo."""

from __future__ import annotations

import copy
import enum
import os
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from os import getenv
from typing import Any

import fusionplan
import pytest
import torch
import torch.nn.functional as F
from fusionplan.api import executors
from fusionplan.planner.runtime.starts import remembered, started
from torch import nn
from triton import knobs

pytestmark = pytest.mark.interpreter

SCALE = 2.0
LIMITS = {"low": -3.0, "high": 3.0}


class Gain:
    factor = 1.0


class Mode(enum.Enum):
    ON = 1.0


def shifted(x: torch.Tensor) -> torch.Tensor:
    return x + shifted.by * max(Gain.factor, 0.5) * Mode.ON.value


shifted.by = 1.0


class Wide(nn.Module):
    offset = 0.0


def scaled(x: torch.Tensor, by: float = 1.0) -> torch.Tensor:
    return (x * SCALE * by).clamp(LIMITS["low"], LIMITS["high"])


@dataclass
class Settings:
    gain: float = 1.5
    steps: list[int] = field(default_factory=lambda: [1, 2])


class Block(Wide):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)
        self.register_buffer("shift", torch.ones(width))
        self.settings = Settings()
        self.repeats = 2

    def forward(self, x: torch.Tensor, flag: bool) -> torch.Tensor:
        for _ in range(self.repeats):
            x = (
                shifted(x)
                + self.offset
                + scaled(F.gelu(self.linear(self.norm(x)))) * self.settings.gain
            )
        return x + self.shift * sum(self.settings.steps) if flag else x


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([Block(16), Block(16)])
        self.act: Callable[..., Any] = F.silu

    def forward(self, x: torch.Tensor, flag: bool = True, *, extra: Any = None) -> Any:
        for block in self.blocks:
            x = block(x, flag)
        x = self.act(x)
        return {"out": x, "rows": x.shape[0]} if extra is None else (x, x + extra["bias"])


@pytest.fixture(scope="module", autouse=True)
def at_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLANNER_START", "remembered")
        patch.setattr(knobs.cache, "dir", str(tmp_path_factory.mktemp("cache")))
        yield


def given() -> torch.Tensor:
    return torch.linspace(-1, 1, 64).reshape(4, 16)


@pytest.fixture(scope="module", autouse=True)
def traced(at_once: None) -> Model:
    """What one process traces: the model as it is, which others remember."""
    model = Model()
    with torch.no_grad():
        fast = fusionplan.load(model, on_miss="model")
        fast(given())
        fast(given(), extra={"bias": torch.ones(16)})
    assert isinstance(fast, torch._dynamo.eval_frame.OptimizedModule)
    assert len(remembered.find(remembered.model_key(model))) == 2
    return model


class Traced(Exception):
    """The model is sent to torch.compile."""


def start(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The model as `load` gives it, where tracing it is an error."""

    def compiled(*_: Any) -> Any:
        raise Traced

    monkeypatch.setattr("fusionplan.api._compiled", compiled)
    return fusionplan.load(model, on_miss="model")


def test_a_remembered_call_runs_our_kernels_and_traces_nothing(monkeypatch):
    model = Model()
    fast = start(model, monkeypatch)
    with torch.no_grad():
        found, wanted = fast(given()), model(given())
    assert found["rows"] == wanted["rows"] == 4
    torch.testing.assert_close(found["out"], wanted["out"])
    assert [each.calls for each in executors(fast)] == [1]
    assert executors(fast)[0].kernels_per_call > 0
    assert len(fusionplan.plans(fast)) == 1


def test_it_uses_the_weights_of_today(monkeypatch):
    model = Model()
    fast = start(model, monkeypatch)
    with torch.no_grad():
        before = fast(given())["out"]
        model.blocks[0].linear.weight.mul_(2.0)
        torch.testing.assert_close(fast(given())["out"], model(given())["out"])
        model.blocks[1].linear.weight = nn.Parameter(torch.zeros(16, 16))
        torch.testing.assert_close(fast(given())["out"], model(given())["out"])
    assert not torch.equal(before, fast.blocks[0](given(), True))
    assert [each.calls for each in executors(fast)][-1] >= 1


def test_nested_arguments_and_results(monkeypatch):
    model = Model()
    fast = start(model, monkeypatch)
    bias = torch.full((16,), 3.0)
    with torch.no_grad():
        found, wanted = fast(given(), extra={"bias": bias}), model(given(), extra={"bias": bias})
    assert isinstance(found, tuple)
    torch.testing.assert_close(found, wanted)


def other_forward(self: Block, x: torch.Tensor, flag: bool) -> torch.Tensor:
    return x


CHANGES: dict[str, Callable[[Model, pytest.MonkeyPatch], Any]] = {
    "training": lambda m, _: m.eval(),
    "an attribute": lambda m, _: setattr(m.blocks[1], "repeats", 3),
    "its type": lambda m, _: setattr(m.blocks[1], "repeats", 2.0),
    "a new attribute": lambda m, _: setattr(m.blocks[1], "more", 3),
    "a field of an object": lambda m, _: setattr(m.blocks[0].settings, "gain", 2.0),
    "an item of a list": lambda m, _: m.blocks[0].settings.steps.append(5),
    "a function": lambda m, _: setattr(m, "act", F.relu),
    "a global": lambda _, p: p.setitem(globals(), "SCALE", 3.0),
    "an item of a global": lambda _, p: p.setitem(LIMITS, "high", 9.0),
    "a traced function": lambda _, p: p.setitem(globals(), "scaled", lambda x: x),
    "its default": lambda _, p: p.setattr(scaled, "__defaults__", (2.0,)),
    "its code": lambda _, p: p.setattr(scaled, "__code__", (lambda x, by=1.0: x).__code__),
    "a method": lambda _, p: p.setattr(Block, "forward", other_forward),
    "a method of the object": lambda m, _: setattr(
        m.blocks[0], "forward", types.MethodType(other_forward, m.blocks[0])
    ),
    "a method of torch's": lambda _, p: p.setattr(nn.Linear, "forward", lambda self, x: x),
    "a function of torch's": lambda _, p: p.setattr(F, "gelu", lambda x: x),
    "an attribute of a class": lambda _, p: p.setattr(Gain, "factor", 2.0),
    "the value of an enum": lambda _, p: p.setattr(Mode.ON, "_value_", 3.0),
    "an attribute of a function": lambda _, p: p.setattr(shifted, "by", 3.0),
    "an attribute before that of a base": lambda _, p: p.setattr(
        Block, "offset", 2.0, raising=False
    ),
    "a built-in": lambda _, p: p.setitem(globals(), "max", min),
    "another module": lambda m, _: setattr(m.blocks[0], "norm", nn.Identity()),
    "a module less": lambda m, _: m.blocks.pop(1),
    "a type of a parameter": lambda m, _: m.half(),
    "strides of a parameter": lambda m, _: setattr(
        m.blocks[0].linear.weight, "data", torch.zeros(16, 16).t()[:, :]
    ),
    "a frozen parameter": lambda m, _: m.blocks[0].linear.weight.requires_grad_(False),
    "a parameter less": lambda m, _: setattr(m.blocks[0].linear, "bias", None),
    "tied parameters": lambda m, _: setattr(
        m.blocks[0].linear, "weight", m.blocks[1].linear.weight
    ),
    "a buffer of another size": lambda m, _: setattr(m.blocks[0], "shift", torch.ones(1)),
    "a kind of tensor": lambda m, _: setattr(
        m.blocks[0].linear, "weight", nn.Parameter(torch.ones(16, 16).as_subclass(Marked))
    ),
    "a hook": lambda m, _: m.blocks[0].register_forward_hook(lambda *_: None),
    "a hook before": lambda m, _: m.blocks[0].register_forward_pre_hook(lambda *_: None),
    "a lock": lambda m, _: setattr(m, "lock", __import__("threading").Lock()),
}


class Marked(torch.Tensor):
    pass


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_is_another_is_traced(change, monkeypatch):
    model = Model()
    CHANGES[change](model, monkeypatch)
    fast = start(model, monkeypatch) if remembered.find(remembered.model_key(model)) else None
    if fast is not None:
        with torch.no_grad(), pytest.raises(Traced):
            fast(given())


def replaced(name: str) -> Any:
    return lambda _, p: p.setattr(F, name, lambda x, *_, **__: x)


WATCHED = [name for name in CHANGES if name != "the value of an enum"]
CHANGES["a function that torch calls"] = replaced("layer_norm")


@pytest.mark.parametrize("change", WATCHED)
def test_a_model_that_changes_after_a_call_is_traced(change, monkeypatch):
    model = Model()
    with torch.no_grad():
        fast = start(model, monkeypatch)
        fast(given())
        CHANGES[change](model, monkeypatch)
        with pytest.raises(Traced):
            fast(given())


def test_other_tensors_in_the_same_places_are_taken(monkeypatch):
    """What the tensors hold is no matter, nor which they are."""
    model = Model()
    with torch.no_grad():
        fast = start(model, monkeypatch)
        fast(given())
        model.load_state_dict(Model().state_dict(), assign=True)
        for parameter in model.parameters():
            parameter.data = parameter.data * 1.5
        torch.testing.assert_close(fast(given())["out"], model(given())["out"])


INPUTS: dict[str, Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "another size": lambda: ((torch.ones(5, 16),), {}),
    "another type": lambda: ((given().double(),), {}),
    "other strides": lambda: ((torch.ones(16, 4).t(),), {}),
    "a gradient": lambda: ((given().requires_grad_(),), {}),
    "a parameter": lambda: ((nn.Parameter(given()),), {}),
    "a kind of tensor": lambda: ((given().as_subclass(Marked),), {}),
    "another flag": lambda: ((given(), False), {}),
    "an equal flag": lambda: ((given(), 1), {}),
    "by name": lambda: ((), {"x": given()}),
    "an object": lambda: ((given(),), {"extra": Settings()}),
    "a size that varies": lambda: ((marked(),), {}),
}


def marked() -> torch.Tensor:
    x = given()
    torch._dynamo.mark_dynamic(x, 0)
    return x


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("called", [False, True])
def test_a_call_of_another_kind_is_traced(inputs, called, monkeypatch):
    fast = start(Model(), monkeypatch)
    args, kwargs = INPUTS[inputs]()
    with torch.no_grad():
        if called:
            fast(given())
        with pytest.raises(Traced):
            fast(*args, **kwargs)


def autocast() -> Any:
    return torch.autocast("cpu", dtype=torch.bfloat16)


class Deterministic:
    def __enter__(self) -> None:
        torch.use_deterministic_algorithms(True)

    def __exit__(self, *_: object) -> None:
        torch.use_deterministic_algorithms(False)


STATES: dict[str, Callable[[], Any]] = {
    "gradients": torch.enable_grad,
    "inference": torch.inference_mode,
    "autocast": autocast,
    "a device": lambda: torch.device("cpu"),
    "deterministic": Deterministic,
    "a mode": lambda: torch.utils.flop_counter.FlopCounterMode(display=False),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("called", [False, True])
def test_another_state_of_torch_is_traced(state, called, monkeypatch):
    fast = start(Model(), monkeypatch)
    with torch.no_grad():
        if called:
            fast(given())
        with STATES[state](), pytest.raises(Traced):
            fast(given())


def test_hooks_of_all_modules_are_traced(monkeypatch):
    fast = start(Model(), monkeypatch)
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    with torch.no_grad(), pytest.raises(Traced):
        fast(given())
    handle.remove()


def test_what_is_traced_after_all_is_torch_compiles_module():
    model = Model()
    fast = fusionplan.load(model, on_miss="baseline", baseline="eager")
    assert isinstance(fast, started.StartedModule)
    assert fast.state_dict().keys() == torch.compile(model).state_dict().keys()
    with torch.no_grad(), pytest.warns(fusionplan.planner.cures.FusionplanWarning):
        found = fast(torch.ones(7, 16))["out"]
    torch.testing.assert_close(found, model(torch.ones(7, 16))["out"])
    assert isinstance(fast, torch._dynamo.eval_frame.OptimizedModule)
    assert fast._orig_mod is model


def test_a_started_model_is_a_module_as_torch_compiles_is(monkeypatch):
    model = Model()
    fast = start(model, monkeypatch)
    assert fast.blocks is model.blocks
    assert fast.training
    fast.eval()
    assert not model.training
    fast.note = 3
    assert model.note == 3
    assert next(name for name, _ in fast.named_parameters()).startswith("_orig_mod.blocks.0")
    with pytest.raises(Traced):
        copy.deepcopy(fast)


def test_a_damaged_memory_is_none(monkeypatch):
    model = Model()
    place = remembered._place(remembered.model_key(model))
    kept = place.read_bytes()
    try:
        for data in (
            b"",
            b"{",
            b'{"format": 9, "calls": []}',
            kept[:-9],
            kept.replace(b'"facts"', b'"fact"'),
        ):
            place.write_bytes(data)
            assert remembered.find(remembered.model_key(model)) == ()
        place.write_bytes(kept.replace(b"aten.add.Tensor", b"aten.adx.Tensor"))
        fast = start(model, monkeypatch)
        with torch.no_grad(), pytest.raises(Traced):
            fast(given())
    finally:
        place.write_bytes(kept)


class Odd:
    @property
    def __dict__(self) -> Any:
        raise KeyError("nothing is here")


def test_what_cannot_be_looked_at_is_traced(monkeypatch):
    model = Model()
    model.odd = Odd()
    with torch.no_grad(), pytest.raises(Traced):
        start(model, monkeypatch)(given())


def test_two_threads_trace_it_once(monkeypatch):
    model = Model()
    fast = fusionplan.load(model, on_miss="baseline", baseline="eager")
    made: list[Any] = []
    begin = fast.__dict__[started._START]
    monkeypatch.setattr(begin, "compiled", lambda: made.append(1) or torch.compile(model))
    threads = [threading.Thread(target=fast.trace) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(made) == 1
    assert isinstance(fast, torch._dynamo.eval_frame.OptimizedModule)


def test_a_memory_of_other_versions_is_not_used(monkeypatch):
    monkeypatch.setattr(remembered, "_capture", lambda: "another")
    fast = start(Model(), monkeypatch)
    with torch.no_grad(), pytest.raises(Traced):
        fast(given())


@pytest.mark.parametrize("setting", [None, "", "traced", "1"])
def test_it_is_off_unless_asked_for(setting, monkeypatch):
    monkeypatch.delenv("PLANNER_START")
    if setting is not None:
        monkeypatch.setenv("PLANNER_START", setting)
    with pytest.raises(Traced):
        start(Model(), monkeypatch)


COUNT = [0]


class Forgotten(nn.Module):
    """Models of which no call may be remembered."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(()))
        self.count = 0


class Counts(Forgotten):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return F.gelu(self.linear(x))


class Writes(Forgotten):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return F.gelu(self.linear(x))


class Breaks(Forgotten):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.gelu(self.linear(x))
        torch._dynamo.graph_break()
        return y


class Appends(Forgotten):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        COUNT.append(1)
        return F.gelu(self.linear(x))


class Asks(Forgotten):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.linear(x)) * globals()["SCALE"]


class Views(Forgotten):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return F.gelu(self.linear(x)), x[1:]


class Decorated(Forgotten):
    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.linear(x))


class Inner(Forgotten):
    """Of a function with a default of another one's."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = lambda x, by=2.0: x * by

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gain(F.gelu(self.linear(x)))


class Environment(Forgotten):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.linear(x)) * len(getenv("PLANNER_START", ""))


class Hashes(Forgotten):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.linear(x)) * (hash("a") % 7)


class Backend(Forgotten):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.gelu(self.linear(x))
        return y * 2 if torch.backends.cudnn.benchmark else y


class Kind(type):
    def __instancecheck__(cls, _: object) -> bool:
        return bool(SCALE)


class Anything(metaclass=Kind):
    pass


class Checks(Forgotten):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.gelu(self.linear(x))
        return y * 2 if isinstance(self, Anything) else y


def asked(module: Any, x: torch.Tensor) -> torch.Tensor:
    return x * module.SCALE


class Passes(Forgotten):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return asked(HERE, F.gelu(self.linear(x))) * getattr(self, "count", 1)


HERE = sys.modules[__name__]
PURE = [Inner, Environment, Hashes, Backend, Checks, Passes]


def test_a_tensor_of_the_model_that_is_passed_is_not_remembered():
    """The graph has one input for both."""
    model = Sums()
    with torch.no_grad():
        fusionplan.load(model, on_miss="model")(model.shift)
    assert remembered.find(remembered.model_key(model)) == ()


class Sums(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.ones(3, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x) + self.shift


@pytest.mark.parametrize("kind", PURE)
def test_a_call_that_depends_on_more_is_not_remembered(kind):
    test_a_call_that_is_more_than_a_graph_is_not_remembered(kind)


def test_hooks_of_the_loaded_model_run(monkeypatch):
    model = Model()
    fast = fusionplan.load(model, on_miss="baseline", baseline="eager")
    assert isinstance(fast, started.StartedModule)
    fast.register_forward_hook(lambda _, __, result: result["rows"])
    with torch.no_grad(), pytest.warns(fusionplan.planner.cures.FusionplanWarning):
        assert fast(torch.ones(6, 16)) == 6
    assert not model._forward_hooks


@pytest.mark.parametrize("kind", [Counts, Writes, Breaks, Appends, Asks, Views, Decorated])
def test_a_call_that_is_more_than_a_graph_is_not_remembered(kind):
    model = kind()
    fast = fusionplan.load(model, on_miss="model")
    with torch.no_grad():
        fast(torch.ones(3, 8))
    assert remembered.find(remembered.model_key(model)) == ()


PROCESS = """
import sys
sys.path[:0] = {paths!r}
import torch, fusionplan
import {module} as tests
fast = fusionplan.load(tests.Model(), on_miss="model")
with torch.no_grad():
    found = fast(tests.given())
assert found["rows"] == 4
assert sum(each.kernels_per_call for each in fusionplan.executors(fast)) > 0
assert not {{"torch._dynamo", "torch._inductor", "sympy"}} & {{*sys.modules}}
"""


@pytest.mark.process
def test_a_new_process_imports_no_dynamo():
    environment = dict(os.environ, TRITON_CACHE_DIR=str(knobs.cache.dir), TRITON_INTERPRET="1")
    environment["PLANNER_START"] = "remembered"
    text = PROCESS.format(paths=sys.path, module=Model.__module__)
    done = subprocess.run(
        [sys.executable, "-c", text], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
