"""Modules and training: hooks, copies, buffers, tied weights, random numbers, threads."""

from __future__ import annotations

import copy
import io
import warnings
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from hostile.judge import Wrong
from hostile.scenarios import World, block, in_threads, on_a_gpu, same, scenario


def twins(w: World, make: Any, seed: int = 0) -> tuple[nn.Module, nn.Module]:
    """Two models of the same numbers."""
    torch.manual_seed(seed)
    model = make().to(w.device)
    return model, copy.deepcopy(model)


def steps(calls: Any, models: Any, given: Any, count: int = 3) -> None:
    optimisers = [torch.optim.SGD(m.parameters(), 0.1, momentum=0.9) for m in models]
    for step in range(count):
        for call, optimiser in zip(calls, optimisers, strict=True):
            optimiser.zero_grad()
            call(*given(step)).square().mean().backward()
            optimiser.step()
    torch.testing.assert_close(models[0].state_dict(), models[1].state_dict(), rtol=1e-4, atol=1e-5)


@scenario
def weights_tied_and_trained(w: World) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, t: Tensor) -> Tensor:
            return self.head(F.gelu(self.embed(t)))

    models = twins(w, Tied)
    mine = w.compile(models[0])
    steps((mine, models[1]), models, lambda s: (torch.arange(5, device=w.device) + s,))
    if models[0].head.weight is not models[0].embed.weight:
        raise Wrong("the weights are no longer tied")


@scenario
def batch_norm_statistics_in_training(w: World) -> None:
    models = twins(w, lambda: nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU()))
    mine = w.compile(models[0])
    steps((mine, models[1]), models, lambda s: (w.numbers(9, 8, seed=s) + 1,))
    for model in (*models, mine):
        model.eval()
    with torch.no_grad():
        same(mine(w.numbers(9, 8)), models[1](w.numbers(9, 8)))
    if int(models[0][1].num_batches_tracked) != 3:
        raise Wrong("the batches are counted wrong")


@scenario
def a_buffer_that_moves(w: World) -> None:
    class Moving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(8))
            self.register_buffer("count", torch.zeros((), dtype=torch.long))

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.mean.lerp_(x.mean(0), 0.1)
                self.count += 1
            return (x - self.mean) * self.count

    models = twins(w, Moving)
    mine = w.compile(models[0])
    for seed in range(3):
        x = w.numbers(5, 8, seed=seed)
        same(mine(x), models[1](x))
    same(models[0].state_dict(), models[1].state_dict())


@scenario
def hooks_that_change_what_passes(w: World) -> None:
    models = [block(w) for _ in range(2)]
    for model in models:
        model.linear.register_forward_hook(lambda _m, _i, out: out * 2 + 1)
        model.norm.register_forward_pre_hook(lambda _m, given: (given[0] - 1,))
    mine, x = w.compile(models[0]), w.numbers(5, 8)
    same(mine(x), models[1](x))


@scenario
def a_hook_is_added_later(w: World) -> None:
    models = [block(w) for _ in range(2)]
    mine, x = w.compile(models[0]), w.numbers(5, 8)
    same(mine(x), models[1](x))
    handles = [m.register_forward_hook(lambda _m, _i, out: out * 3) for m in models]
    same(w.compile(models[0])(x), models[1](x))
    for handle in handles:
        handle.remove()
    same(mine(x), models[1](x))


def _doubled(p: Tensor) -> None:
    assert p.grad is not None
    p.grad.mul_(2)


@scenario
def hooks_on_gradients(w: World) -> None:
    models = [block(w) for _ in range(2)]
    for model in models:
        model.linear.weight.register_hook(lambda g: g.clamp(-0.1, 0.1))
        model.linear.bias.register_post_accumulate_grad_hook(_doubled)
    mine, x = w.compile(models[0]), w.numbers(5, 8)
    for call in (mine, models[1]):
        call(x).sum().backward()
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        same(a.grad, b.grad)


@scenario
def a_full_backward_hook(w: World) -> None:
    models = [block(w) for _ in range(2)]
    seen: list[int] = []
    for model in models:
        model.linear.register_full_backward_hook(lambda _m, _i, _o: seen.append(1))
    mine = w.compile(models[0])
    for call in (mine, models[1]):
        call(w.numbers(5, 8)).sum().backward()
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        same(a.grad, b.grad)


@scenario
def gradients_of_results_kept(w: World) -> None:
    mine = w.compile(lambda x: x.sin() * 2)
    x = w.numbers(5, 8).requires_grad_()
    y = mine(x)
    y.retain_grad()
    (y * y).sum().backward()
    same(y.grad, 2 * y.detach())
    same(x.grad, 2 * y.detach() * 2 * x.detach().cos())


@scenario
def a_second_derivative_is_refused_or_right(w: World) -> None:
    def function(x: Tensor) -> Tensor:
        return (x.sin() * x).sum()

    mine, x = w.compile(function), w.numbers(5).requires_grad_()
    try:
        (first,) = torch.autograd.grad(mine(x), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
    except RuntimeError as error:
        if "double backward" not in str(error) and "grad" not in str(error):
            raise
        return
    (wanted,) = torch.autograd.grad(function(x), x, create_graph=True)
    same(second, torch.autograd.grad(wanted.sum(), x)[0])


@scenario
def parametrised_weights(w: World) -> None:
    models = twins(
        w,
        lambda: nn.Sequential(
            parametrizations.weight_norm(nn.Linear(8, 8)),
            nn.Tanh(),
            parametrizations.spectral_norm(nn.Linear(8, 4)),
        ),
    )
    mine = w.compile(models[0])
    steps((mine, models[1]), models, lambda s: (w.numbers(5, 8, seed=s),), 2)


@scenario
def a_recurrent_cell(w: World) -> None:
    class Walk(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(4, 6)

        def forward(self, x: Tensor) -> Tensor:
            h = x.new_zeros(x.shape[1], 6)
            for row in x:
                h = self.cell(row, h)
            return h.softmax(-1)  # A GPU has one call for a cell.

    models = twins(w, Walk)
    mine = w.compile(models[0])
    steps((mine, models[1]), models, lambda s: (w.numbers(3, 5, 4, seed=s),), 2)


@scenario
def a_multi_head_attention(w: World) -> None:
    models = twins(w, lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True))
    mine = w.compile(models[0])
    x = w.numbers(2, 5, 8)
    mask = torch.zeros(2, 5, dtype=torch.bool, device=w.device)
    mask[0, 3:] = True
    got, wanted = (m(x, src_key_padding_mask=mask) for m in (mine, models[1]))
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


@scenario
def dropout_drops_the_same_backwards(w: World) -> None:
    mine = w.compile(lambda x: F.dropout(x.exp(), 0.5, training=True))
    x = w.numbers(64, 8).requires_grad_()
    y = mine(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    if not torch.equal(gradient == 0, y == 0):
        raise Wrong("the backward pass drops others")
    kept = float((y != 0).float().mean())
    if not 0.3 < kept < 0.7:
        raise Wrong(f"{kept} is kept, where half should")
    same(y[y != 0], (2 * x.exp())[y != 0])


@scenario
def dropout_follows_the_seed(w: World) -> None:
    mine, x = w.compile(lambda x: F.dropout(x + 5, 0.5, training=True)), w.numbers(64, 8)
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(mine(x))
    if not torch.equal(found[0], found[1]) or torch.equal(found[0], found[2]):
        raise Wrong("dropout does not follow torch.manual_seed")


@scenario
def random_numbers_are_random(w: World) -> None:
    mine = w.compile(lambda x: (torch.rand_like(x) + x * 0, torch.randn_like(x) * 2 + x * 0))
    u, n = mine(w.numbers(100, 40))
    if not (0 <= float(u.min()) < 0.01 and 0.99 < float(u.max()) < 1):
        raise Wrong(f"uniform numbers from {float(u.min())} to {float(u.max())}")
    if abs(float(n.mean())) > 0.2 or abs(float(n.std()) - 2) > 0.2:
        raise Wrong(f"normal numbers of mean {float(n.mean())} and deviation {float(n.std())}")


@dataclass
class Output:
    logits: Tensor
    loss: Tensor | None = None


@scenario
def a_data_class_as_result(w: World) -> None:
    def function(x: Tensor, *, target: Tensor | None = None) -> Output:
        y = x.log_softmax(-1)
        return Output(y, None if target is None else F.nll_loss(y, target))

    mine, x = w.compile(function), w.numbers(5, 8)
    target = torch.arange(5, device=w.device)
    for given in (None, target):
        got, wanted = mine(x, target=given), function(x, target=given)
        same(got.logits, wanted.logits)
        if given is None and got.loss is not None:
            raise Wrong(f"the loss is {got.loss}")
        if given is not None:
            same(got.loss, wanted.loss)


@scenario
def keywords_and_stars(w: World) -> None:
    def function(x: Tensor, /, *more: Tensor, scale: float = 2.0, **named: Tensor) -> Tensor:
        return sum(((x * scale).exp(), *more, *named.values()))  # type: ignore[return-value]

    mine = w.compile(function)
    x, y, z = (w.numbers(5, 8, seed=s) for s in range(3))
    same(mine(x), function(x))
    same(mine(x, y, scale=0.5), function(x, y, scale=0.5))
    same(mine(x, y, y, z=z), function(x, y, y, z=z))


@scenario
def a_list_and_a_dict_that_are_changed(w: World) -> None:
    def function(cache: list[Tensor], table: dict[str, Tensor], x: Tensor) -> Tensor:
        cache.append(x * 2)
        table["sum"] = x.sum() + len(cache)
        return torch.cat(cache).softmax(-1)

    mine = w.compile(function)
    ours: tuple[list[Tensor], dict[str, Tensor]] = ([], {})
    theirs: tuple[list[Tensor], dict[str, Tensor]] = ([], {})
    for seed in range(2):
        x = w.numbers(3, 8, seed=seed)
        same(mine(*ours, x), function(*theirs, x))
        same(ours, theirs)


@scenario
def inputs_that_ask_for_gradients_without_grad(w: World) -> None:
    mine = w.compile(lambda x: (x.sin() * 2, x.detach().cos()))
    x = w.numbers(5, 8).requires_grad_()
    with torch.no_grad():
        y, _ = mine(x)
    if y.requires_grad:
        raise Wrong("a result asks for gradients under no_grad")
    y, z = mine(x)
    if not y.requires_grad or z.requires_grad:
        raise Wrong("gradients are asked for wrongly")
    y.sum().backward()
    same(x.grad, 2 * x.detach().cos())


@scenario
def inference_mode_and_training_in_turn(w: World) -> None:
    model = block(w)
    mine, x = w.compile(model), w.numbers(5, 8)
    for _ in range(2):
        with torch.inference_mode():
            same(mine(x), model(x))
        model.zero_grad()
        mine(x).sum().backward()
        got = model.linear.weight.grad.clone()
        model.zero_grad()
        model(x).sum().backward()
        same(got, model.linear.weight.grad)


@scenario
def a_model_saved_and_loaded_whole(w: World) -> None:
    model, x = block(w), w.numbers(5, 8)
    mine = w.compile(model)
    with torch.no_grad():
        wanted = mine(x)
        file = io.BytesIO()
        torch.save(mine._orig_mod, file)
        file.seek(0)
        again = torch.load(file, weights_only=False)
        same(w.compile(again)(x), wanted)


@scenario
def a_copy_is_trained_apart(w: World) -> None:
    model, x = block(w), w.numbers(5, 8)
    mine = w.compile(model)
    mine(x).sum().backward()
    other = copy.deepcopy(mine)
    with torch.no_grad():
        before = mine(x).clone()
        for p in other.parameters():
            p.add_(1)
        same(mine(x), before)
        same(other(x), other._orig_mod(x))


@scenario
def clipped_and_scaled_gradients(w: World) -> None:
    models = [block(w) for _ in range(2)]
    mine = w.compile(models[0])
    norms = []
    for call, model in zip((mine, models[1]), models, strict=True):
        (call(w.numbers(5, 8)).square().sum() * 1024).backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
    same(norms[0], norms[1])
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        same(a.grad, b.grad)


@scenario
def frozen_and_thawed(w: World) -> None:
    models = [block(w) for _ in range(2)]
    mine, x = w.compile(models[0]), w.numbers(5, 8)
    # torch 2.11 notices that a parameter has no gradient any more, but not that it has one again
    # where it had none when the model was compiled.
    for frozen in (True, True, False, False, True):
        for call, model in zip((mine, models[1]), models, strict=True):
            model.linear.requires_grad_(not frozen)
            model.zero_grad()
            call(x).square().sum().backward()
        for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)


@scenario
def anomalies_are_looked_for(w: World) -> None:
    mine = w.compile(lambda x: F.layer_norm(x, (8,)).sin().sum())
    x = w.numbers(5, 8).requires_grad_()
    with torch.autograd.set_detect_anomaly(True):
        mine(x).backward()
    wanted = torch.autograd.grad(F.layer_norm(x, (8,)).sin().sum(), x)[0]
    same(x.grad, wanted)


@scenario
def many_models_in_many_threads(w: World) -> None:
    models = [block(w, scale=1.0 + n, seed=n) for n in range(3)]
    compiled = [w.compile(m) for m in models]

    def work(number: int) -> None:
        x = w.numbers(5, 8, seed=number)
        for _ in range(2):
            with torch.no_grad():
                same(compiled[number](x), models[number](x))

    in_threads(work, 3)


@scenario
def one_function_of_two_types_in_threads(w: World) -> None:
    def function(x: Tensor) -> Tensor:
        return (x * 2).softmax(-1) + 1

    mine = w.compile(function)

    def work(number: int) -> None:
        x = w.numbers(5, 8, seed=number)
        x = x.double() if number % 2 else x
        for _ in range(3):
            same(mine(x), function(x))

    in_threads(work, 4)


@triton.jit
def _scaled(source, result, size, by: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.program_id(0) * block + tl.arange(0, block)
    x = tl.load(source + place, mask=place < size)
    tl.store(result + place, x * by, mask=place < size)


@on_a_gpu
def a_triton_kernel_of_the_users(w: World) -> None:
    def function(x: Tensor) -> Tensor:
        y = (x + 1).contiguous()
        z = torch.empty_like(y)
        _scaled[(triton.cdiv(y.numel(), 64),)](y, z, y.numel(), 3.0, 64)
        return z.softmax(-1) * 2

    x = w.numbers(5, 8)
    same(w.compile(function)(x), ((x + 1) * 3).softmax(-1) * 2)


@scenario
def nested_tensors_are_left_to_torch(w: World) -> None:
    def function(x: Tensor) -> Tensor:
        return (x * 2).sin()

    parts = [w.numbers(n, 4, seed=n) for n in (2, 5, 1)]
    jagged = torch.nested.nested_tensor(parts, layout=torch.jagged, device=w.device)
    same(w.compile(function)(w.numbers(5, 8)), function(w.numbers(5, 8)))
    mine, wanted = w.compile(function), function(jagged)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        got = mine(jagged)
    if not any("nested tensor" in str(each.message) for each in told):
        raise Wrong("nobody is told that torch runs it")
    same(got.values(), wanted.values())


@scenario
def sparse_inputs_are_left_to_torch(w: World) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return (x @ y).relu() + 1

    x = w.numbers(5, 5).relu()
    y = w.numbers(5, 3)
    mine = w.compile(function)
    same(mine(x, y), function(x, y))
    same(mine(x.to_sparse(), y), function(x.to_sparse(), y))


@scenario
def an_optimiser_step_is_compiled(w: World) -> None:
    models = [block(w) for _ in range(2)]
    optimisers = [torch.optim.Adam(m.parameters(), 0.01) for m in models]
    mine = w.compile(optimisers[0].step)
    for step in range(2):
        for model in models:
            model.zero_grad()
            model(w.numbers(5, 8, seed=step)).sum().backward()
        mine()
        optimisers[1].step()
    torch.testing.assert_close(models[0].state_dict(), models[1].state_dict(), rtol=1e-4, atol=1e-5)


@scenario
def a_function_compiled_inside_no_grad(w: World) -> None:
    def function(x: Tensor) -> Tensor:
        return x.sin() * 2

    mine, x = w.compile(function), w.numbers(5, 8).requires_grad_()
    with torch.no_grad():
        mine(x)
    mine(x).sum().backward()
    same(x.grad, 2 * x.detach().cos())
    with torch.no_grad():
        if mine(x).requires_grad:
            raise Wrong("a result asks for gradients under no_grad")


@scenario
def results_written_to_by_the_user(w: World) -> None:
    mine, x = w.compile(lambda x: (x.sin(), x.softmax(-1))), w.numbers(5, 8)
    first = mine(x)
    kept = [y.clone() for y in first]
    first[0].mul_(0)
    first[1].fill_(7)
    same(mine(x), tuple(kept))
