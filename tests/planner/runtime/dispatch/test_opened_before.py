"""A graph that another process has opened is not opened again, and only where it would be the same.

A process to come is a new dispatcher here, after Dynamo has forgotten all.
"""

import gc
import hashlib
import json
import weakref

import pytest
import torch
import torch.nn.functional as F
from fusionplan.planner.capture import aot_front
from fusionplan.planner.capture.source_lines import source_texts
from fusionplan.planner.costs.device import profile_of
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.cures import FusionplanWarning
from fusionplan.planner.graph.graph import from_json, key
from fusionplan.planner.plan import GroupPlan, Plan
from fusionplan.planner.runtime.dispatch import kept_files, opened_before
from fusionplan.planner.runtime.dispatch.dispatch import Dispatcher
from fusionplan.planner.runtime.dispatch.opened_before import OpenedBefore
from fusionplan.planner.runtime.dispatch.plan_runners import Policy, Sources
from torch import nn
from triton import knobs

pytestmark = pytest.mark.dynamo


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(8), nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.linear(self.norm(x)).split(8, -1)
        q, k, v = (y.view(2, 3, 2, 4).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + y.transpose(1, 2).reshape(2, 3, 8), q.float()


def of_kernels(captured):
    return modelled_plan(captured.graph, profile_of(captured.device))


class Start:
    """A start of a process that runs a function by its plan. opened: how often AOTAutograd opened
    a graph; captured: what plans were asked for."""

    def __init__(self, monkeypatch):
        self.opened, self.captured = 0, []
        self._front = aot_front.by_aot_autograd
        monkeypatch.setattr(aot_front, "by_aot_autograd", self._open)

    def _open(self, *args, **given):
        self.opened += 1
        return self._front(*args, **given)

    def __call__(self, function, *inputs, make=of_kernels, **policy):
        """The results of the last call, and the dispatcher."""

        def find(captured):
            self.captured.append(captured)
            return make(captured)

        torch._dynamo.reset()
        dispatcher = Dispatcher(Policy(remembers=True, **policy), Sources(find))
        fast = torch.compile(function, backend=dispatcher, dynamic=False)
        self.opened = 0
        for _ in range(2):
            results = fast(*inputs)
        return results, dispatcher


@pytest.fixture
def start(monkeypatch, tmp_path):
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))
    monkeypatch.delenv(opened_before.VARIABLE)
    with torch.no_grad():
        yield Start(monkeypatch)


def files(folder):
    return sorted(folder.glob("fusionplan/*.graph.json"))


def chain(x, y):
    return (x + y).relu() * 2


def pair(*shape):
    return torch.randn(*(shape or (4, 6))), torch.randn(*(shape or (4, 6)))


def test_the_next_process_opens_nothing_and_computes_the_same(start, tmp_path):
    torch.manual_seed(0)
    block, x = Block(), torch.randn(2, 3, 8)
    first, one = start(block, x)
    assert start.opened == 1
    (file,) = files(tmp_path)
    written = file.read_bytes()
    second, other = start(block, x)
    assert start.opened == 0
    assert file.read_bytes() == written
    for a, b, c in zip(first, second, block(x), strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, c)
    (mine,), (theirs,) = one.live.values(), other.live.values()
    assert mine.runner.kernels_per_call == theirs.runner.kernels_per_call > 1
    assert mine.plan == theirs.plan
    assert mine.runner.text == theirs.runner.text


def test_what_is_kept_is_the_graph_that_was_captured(start):
    block, x = Block(), torch.randn(2, 3, 8)
    start(block, x)
    start(block, x)
    assert start.opened == 0
    long, kept = start.captured
    assert long is not kept
    assert long.graph == kept.graph  # names, too, for they stand in the text of kernels
    assert long.device == kept.device
    assert source_texts(long.fx_nodes) == source_texts(kept.fx_nodes) != {}
    for a, b in zip(long.fx_nodes, kept.fx_nodes, strict=True):
        assert (a.op, a.target) == (b.op, b.target) or a.op == "placeholder"
        if a.op == "placeholder":
            assert a.meta["val"].stride() == b.meta["val"].stride()


def test_other_inputs_and_settings_are_opened_again(start, monkeypatch):
    x, y = pair()
    start(chain, x, y)
    start(chain, x, y)
    assert start.opened == 0
    for given in (
        pair(4, 5),
        (x.t(), y.t()),
        (x.double(), y.double()),
        (x, x),
        (x, x.view(4, 6)),
        (x.requires_grad_(), y),
        (nn.Parameter(y, requires_grad=False), y),
    ):
        start(chain, *given)
        assert start.opened == 1, given
    x = x.detach()
    for function in (lambda x, y: (x + y).relu() * 3, lambda x, y: (x + y).relu() * 2.0):
        start(function, x, y)
        assert start.opened == 1
    start(chain, x, y, numerics="eager")
    assert start.opened == 1
    with torch._functorch.config.patch(static_weight_shapes=False):
        start(chain, x, y)
    assert start.opened == 1
    torch.use_deterministic_algorithms(True)
    try:
        start(chain, x, y)
        assert start.opened == 1
    finally:
        torch.use_deterministic_algorithms(False)
    with torch.enable_grad():
        start(chain, x, y)
    assert start.opened == 1
    for owner, name, other in (
        (opened_before, "versions", lambda: {"torch": "another"}),
        (kept_files, "stamp", lambda: "another"),
    ):
        with monkeypatch.context() as changed:
            changed.setattr(owner, name, other)
            start(chain, x, y)
        assert start.opened == 1, name
    with monkeypatch.context() as changed:
        changed.setattr(torch.version, "git_version", "another")
        start(chain, x, y)
    assert start.opened == 1
    monkeypatch.setenv(opened_before.VARIABLE, "again")
    start(chain, x, y)
    assert start.opened == 1
    monkeypatch.delenv(opened_before.VARIABLE)
    start(chain, x, y)
    assert start.opened == 0


def narrow(x, y):
    with torch.autocast("cpu", enabled=False), torch.no_grad():
        return (x * torch.tensor([0.5, 1.5, 2.0, 3.0, 0.25, 7.0])).exp() + torch.cat(
            (torch.tensor([]), y.flatten())
        ).view(4, 6)


def test_constants_and_modes_within_a_graph_are_kept(start):
    """A cache of transformers begins with an empty tensor; rotary embeddings leave autocast."""
    x, y = pair()
    first, _ = start(narrow, x, y)
    second, dispatcher = start(narrow, x, y)
    assert start.opened == 0
    assert torch.equal(first, second)
    torch.testing.assert_close(second, narrow(x, y))
    (live,) = dispatcher.live.values()
    assert live.runner.kernels_per_call > 0


def writes(x, y):
    x.add_(y)
    return x * 2


@pytest.mark.parametrize(
    "function",
    [
        writes,
        lambda x, y: (x.view(-1), x * y),
        lambda x, y: F.dropout(x, 0.5) * y,
        lambda x, y: x + torch.rand(6) * y,
        lambda x, y: x.to(torch.complex64) * (1j * y),
        lambda x, y: x * torch.tensor([1j, 2.0, 3.0, 1.0, 2.0, 3.0]) + y,
        lambda x, y: x * torch.tensor([0.5] * 2000)[:6] + y,
    ],
)
def test_what_writes_is_random_or_more_than_data_is_opened_in_every_process(
    function, start, tmp_path
):
    for _ in range(2):
        x, y = pair()
        start(function, x, y)
        assert start.opened == 1
    for file in files(tmp_path):
        assert file.read_text().endswith("\nnull")


def test_training_and_autocast_are_opened_in_every_process(start, tmp_path):
    x, y = pair()
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            start(chain, x, y)
        assert start.opened == 1
        with torch.enable_grad():
            start(chain, x.detach().requires_grad_(), y)
        assert start.opened == 1
    assert files(tmp_path) == []


def test_sizes_that_vary_are_opened_in_every_process(start, tmp_path):
    x, y = pair()
    torch._dynamo.mark_dynamic(x, 0)
    torch._dynamo.mark_dynamic(y, 0)
    for _ in range(2):
        torch._dynamo.reset()
        dispatcher = Dispatcher(Policy(remembers=True), Sources(of_kernels))
        start.opened = 0
        torch.compile(chain, backend=dispatcher, dynamic=True)(x, y)
        assert start.opened == 1
    assert files(tmp_path) == []


def test_what_cannot_be_kept_is_looked_at_once(start, monkeypatch, tmp_path):
    looked = []
    text = OpenedBefore._text
    monkeypatch.setattr(OpenedBefore, "_text", lambda *a: looked.append(1) or text(*a))
    for _ in range(3):
        start(lambda x, y: x + torch.rand(6) * y, *pair())
    assert looked == [1]


def changed(file, change):
    """The file with other contents under a digest that fits."""
    head, _, text = file.read_text().partition("\n")
    data = json.loads(text)
    change(data)
    text = json.dumps(data)
    head = json.loads(head) | {"sha256": hashlib.sha256(text.encode()).hexdigest()}
    file.write_text(f"{json.dumps(head)}\n{text}")


def other_inputs(data):
    for node in data["graph"]["nodes"]:
        if node["op"] == "input":
            node["type"] = [[4, 6], [1, 4], "float32"]
    _sign(data)


def other_results(data):
    data["graph"]["outputs"] *= 2
    _sign(data)


def other_operation(name):
    def change(data):
        data["graph"]["nodes"][2]["op"] = name
        _sign(data)

    return change


def _sign(data):
    data["graph_key"] = key(from_json(data["graph"]))


def wrong_graph(data):
    data["graph"]["nodes"][2]["op"] = "aten.sub.Tensor"


CHANGES = {
    "another graph under its key": wrong_graph,
    "other strides of inputs": other_inputs,
    "more results": other_results,
    "an operation that writes": other_operation("aten.add_.Tensor"),
    "an operation that is random": other_operation("aten.rand_like.default"),
    "an operation of somebody's": other_operation("mkldnn._linear_pointwise.default"),
    "no operation": other_operation("os.system"),
    "another device": lambda data: data.update(device="meta"),
    "lines that are not there": lambda data: data.update(lines=[10_000] * len(data["lines"])),
    "a constant in place of an operation": lambda data: data.update(constants={"2": [1.0]}),
    "nothing": lambda data: data.clear(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_does_not_fit_is_not_used_and_is_written_again(change, start, tmp_path):
    x, y = pair()
    start(chain, x, y)
    (file,) = files(tmp_path)
    written = file.read_text()
    changed(file, CHANGES[change])
    assert file.read_text() != written
    found, _ = start(chain, x, y)
    assert start.opened == 1
    assert torch.equal(found, chain(x, y))
    assert file.read_text() == written


def test_a_damaged_file_or_one_of_another_graph_is_not_used(start, tmp_path):
    x, y = pair()
    start(lambda x, y: (x - y).relu() * 2, x, y)
    (other,) = files(tmp_path)
    start(chain, x, y)
    (file,) = {*files(tmp_path)} - {other}
    written = file.read_text()
    for text in (
        "",
        written[:-40],
        written.replace("aten.add.Tensor", "aten.sub.Tensor"),
        written.replace('"form": 2', '"form": 1'),
        other.read_text(),
        "[" * 100_000,
    ):
        file.write_text(text)
        found, _ = start(chain, x, y)
        assert start.opened == 1
        assert torch.equal(found, chain(x, y))
        assert file.read_text() == written


def test_a_function_in_the_place_of_one_of_torchs_is_not_taken_for_it(start, monkeypatch):
    x = torch.randn(4, 6)
    start(lambda x: F.normalize(x) * 2, x)

    def normalize(x):
        return x.exp()

    monkeypatch.setattr(F, "normalize", normalize)
    name = opened_before._function
    with pytest.raises(ValueError, match="in the place of torch's"):
        name(normalize)
    found, _ = start(lambda x: F.normalize(x) * 2, x)
    assert torch.allclose(found, x.exp() * 2)


def test_without_a_plan_for_it_a_graph_is_opened_again(start):
    """Then the long way says what is missing, and runs the baseline."""
    x, y = pair()
    start(chain, x, y)
    for _ in range(2):
        with pytest.warns(match="there is none"):
            found, dispatcher = start(chain, x, y, make=lambda captured: "there is none")
        assert start.opened == 1
    assert torch.equal(found, chain(x, y))
    (live,) = dispatcher.live.values()
    assert live.runner is None


@pytest.mark.parametrize("frame", [True, False])
def test_a_plan_of_eager_is_found_without_opening_the_graph(frame, start, monkeypatch):
    """What is kept for that is not enough for a plan with kernels: its wrapper was not seen."""

    def eager(captured):
        return Plan(key(captured.graph), "cpu", (), "measured", (), frame=frame)

    x, y = pair()
    for opened in (1, 0, 0):
        found, dispatcher = start(chain, x, y, make=eager)
        assert start.opened == opened
        assert torch.equal(found, chain(x, y))
        (live,) = dispatcher.live.values()
        assert live.runner is None
        assert live.plan.frame == frame
    for opened in (1, 0):
        _, dispatcher = start(chain, x, y)
        assert start.opened == opened
        (live,) = dispatcher.live.values()
        assert live.runner.kernels_per_call == 1
    found, dispatcher = start(chain, x, y, make=eager)
    assert start.opened == 0
    assert torch.equal(found, chain(x, y))


def test_groups_of_inductor_are_built_of_the_graph_itself(start):
    x, y = pair()

    def make(captured):
        work = tuple(n.id for n in captured.graph.nodes if n.op != "input")
        group = GroupPlan(work[:1], "inductor", "")
        return Plan(key(captured.graph), "cpu", (), "measured", (group,))

    start(chain, x, y)
    start(chain, x, y, make=make)
    assert start.opened == 1


@pytest.mark.parametrize("opened", [True, False])
@pytest.mark.parametrize("passes", [True, False])
def test_no_tensor_of_the_first_call_is_held(opened, passes, start):
    def function(x, y):
        return chain(x, y), *([x.view(-1)] if not passes else [])

    if not opened:
        start(function, *pair())
    torch._dynamo.reset()
    dispatcher = Dispatcher(Policy(remembers=True), Sources(of_kernels))
    fast = torch.compile(function, backend=dispatcher, dynamic=False)
    given = []
    for _ in range(2):
        x, y = pair()
        given += [weakref.ref(x), weakref.ref(y)]
        fast(x, y)
        del x, y
    gc.collect()
    assert [tensor() for tensor in given] == [None] * 4


def test_a_folder_that_cannot_be_written_costs_nothing_but_time(start, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path / "file"))
    x, y = pair()
    for _ in range(2):
        found, _ = start(chain, x, y)
        assert start.opened == 1
        assert torch.equal(found, chain(x, y))


def test_a_look_up_that_fails_is_a_miss_as_for_any_graph(start):
    x, y = pair()
    start(chain, x, y)
    assert start.opened == 1

    def fails(captured):
        raise RecursionError("deeply nested")

    with pytest.warns(FusionplanWarning, match="looking up its plan failed: .*deeply nested"):
        (result, _) = start(chain, x, y, make=fails)
    assert start.opened == 1  # it is opened again, by whoever runs it instead
    torch.testing.assert_close(result, chain(x, y))
