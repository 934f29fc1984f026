"""A model called as a step: it computes what the model does, and asks Dynamo once."""

import fusionplan
import pytest
import torch
from fusionplan.planner.errors import FusionplanError
from fusionplan.planner.runtime.cuda_graphs.step import WATCH, Step, _Kind
from oracle import DEVICE
from torch import nn

pytestmark = [
    pytest.mark.dynamo,
    pytest.mark.interpreter,
    pytest.mark.skipif(DEVICE != "cpu", reason="runs on CPU tensors, in the interpreter"),
]


class Counted(nn.Module):
    """Adds to a cache at a position that lies in a tensor. frames: how often its code runs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, generator=torch.Generator().manual_seed(0)))
        self.cache = nn.Buffer(torch.zeros(4, 8))

    def forward(self, x: torch.Tensor, position: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        self.cache.index_copy_(0, position, (x * self.weight)[None])
        return torch.relu(self.cache.sum(0) * scale)


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows at each call that goes through torch.compile's front end."""
    calls: list[int] = []
    before = Step._first

    def first(self, *given):
        calls.append(len(calls))
        return before(self, *given)

    monkeypatch.setattr(Step, "_first", first)
    return calls


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    torch._dynamo.reset()


def stepped(model: nn.Module) -> Step:
    return fusionplan.step(model, on_miss="model", evidence="any")


@torch.no_grad()
def test_later_calls_go_to_the_graph_and_write_the_models_own_cache(frames: list[int]) -> None:
    model, other = Counted(), Counted()
    step = stepped(model)
    x, position = torch.ones(8), torch.tensor([0])
    for turn in range(4):
        assert torch.allclose(step(x, position), other(x, position))
        assert torch.allclose(model.cache, other.cache)
        x.add_(turn)
        position.add_(turn < 3)
    assert len(frames) == 1
    assert step.kinds == 1
    assert sum(each.kernels_per_call for each in fusionplan.executors(step)) >= 1


@torch.no_grad()
def test_other_tensors_of_the_same_kind_need_no_front_end(frames: list[int]) -> None:
    model, other = Counted(), Counted()
    step = stepped(model)
    for place in (0, 2, 1, 3):
        x, position = torch.full((8,), float(place)), torch.tensor([place])
        assert torch.allclose(step(x, position), other(x, position))
    assert len(frames) == 1


@torch.no_grad()
def test_another_kind_of_argument_is_another_graph(frames: list[int]) -> None:
    model, other = Counted(), Counted()
    step = stepped(model)
    x, position = torch.ones(8), torch.tensor([1])
    for scale in (1.0, 2.0, 1.0, 2.0):
        wanted = other(x, position, scale=scale)
        assert torch.allclose(step(x, position, scale=scale), wanted)
    assert torch.allclose(step(x, position), other(x, position))
    assert len(frames) == 3


@torch.no_grad()
def test_parameters_written_in_place_are_seen() -> None:
    model = Counted()
    step = stepped(model)
    x, position = torch.ones(8), torch.tensor([0])
    step(x, position)
    model.weight.fill_(3.0)
    assert torch.equal(step(x, position), torch.full((8,), 3.0))


def test_with_gradients_each_call_goes_through_torch_compile(frames: list[int]) -> None:
    step = stepped(nn.Linear(8, 8))
    for _ in range(2):
        step(torch.ones(2, 8)).sum().backward()
    assert len(frames) == 2
    assert step.kinds == 0


class Several(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, object]:
        return {"twice": x * 2, "same": x, "number": 3}


@torch.no_grad()
def test_the_result_is_put_together_as_the_model_gives_it(frames: list[int]) -> None:
    step = stepped(Several())
    for value in (1.0, 2.0):
        x = torch.full((8,), value)
        found = step(x)
        assert list(found) == ["twice", "same", "number"]
        assert torch.equal(found["twice"], x * 2)
        assert found["same"] is x
        assert found["number"] == 3
    assert len(frames) == 1


class Viewed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 2).sum(0), x[0]


@torch.no_grad()
def test_what_a_graph_does_not_give_keeps_the_front_end(frames: list[int]) -> None:
    step = stepped(Viewed())
    for value in (1.0, 2.0):
        x = torch.full((2, 8), value)
        total, view = step(x)
        assert torch.equal(total, torch.full((8,), 4 * value))
        assert torch.equal(view, x[0])
    assert len(frames) == 2
    assert step.kinds == 0


class Broken(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1


@torch.no_grad()
def test_a_model_of_several_graphs_is_refused_by_torch_compile() -> None:
    with pytest.raises(torch._dynamo.exc.Unsupported):
        stepped(Broken())(torch.ones(4))
    assert WATCH.runs is None


def test_an_option_that_is_not_possible_is_told_at_once() -> None:
    with pytest.raises(FusionplanError, match="on_miss"):
        fusionplan.step(nn.Linear(2, 2), on_miss="never")


def test_arguments_of_a_kind_are_told_from_all_others() -> None:
    x = torch.ones(2, 3)
    kind = _Kind(x)
    assert kind.has(x)
    assert kind.has(torch.zeros(2, 3))
    others = [
        torch.ones(3, 2),
        torch.ones(3, 2).t(),
        torch.ones(2, 3, dtype=torch.float64),
        torch.ones(2, 3, requires_grad=True),
        nn.Parameter(x, requires_grad=False),
        torch.ones(2, 3, device="meta"),
        3.0,
    ]
    assert not any(map(kind.has, others))
    assert _Kind(1).has(1)
    assert not _Kind(1).has(True)
    assert not _Kind(1).has(2)
    names = ["a"]
    assert _Kind(names).has(names)
    assert not _Kind(names).has(["a"])


@torch.no_grad()
def test_an_argument_that_changed_its_shape_in_place_is_another_kind(frames: list[int]) -> None:
    step, x = stepped(Several()), torch.ones(6)
    for _ in range(2):
        step(x)
    x.resize_(2, 3)
    assert torch.equal(step(x)["twice"], torch.full((2, 3), 2.0))
    assert len(frames) == 2
