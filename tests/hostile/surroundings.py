"""What surrounds a call: other devices, modes, memory that is shared, threads, what is saved for a
backward pass."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from hostile.judge import Wrong
from hostile.scenarios import World, block, in_threads, on_a_gpu, same, scenario


@scenario
def tensors_of_the_cpu_and_of_meta_beside_others(w: World) -> None:
    def function(x: Tensor, number: Tensor, shape: Tensor) -> Tensor:
        return x.softmax(-1) * number + shape.shape[0]

    mine, x = w.compile(function), w.numbers(5, 8)
    number, shape = torch.tensor(2.5), torch.empty(3, 4, device="meta")
    same(mine(x, number, shape), function(x, number, shape))
    number.fill_(-1)
    same(mine(x, number, shape), function(x, number, shape))


@scenario
def meta_tensors_alone(w: World) -> None:
    def function(x: Tensor) -> Tensor:
        return (x.softmax(-1) * 2).sum(0)

    mine = w.compile(function)
    same(mine(w.numbers(5, 8)), function(w.numbers(5, 8)))
    got = mine(torch.empty(5, 8, device="meta"))
    if got.device.type != "meta" or got.shape != (8,):
        raise Wrong(f"it is {got.device} {tuple(got.shape)}")


@scenario
def inference_tensors_and_usual_ones(w: World) -> None:
    def function(x: Tensor) -> Tensor:
        return (x * 2).softmax(-1)

    mine = w.compile(function)
    with torch.inference_mode():
        x = w.numbers(5, 8) + 0
        y = mine(x)
        same(y, function(x))
        if not y.is_inference():
            raise Wrong("a result of inference mode is a usual tensor")
    same(mine(x), function(x))
    z = w.numbers(5, 8).requires_grad_()
    mine(z).square().sum().backward()
    wanted = torch.autograd.grad(function(z).square().sum(), z)[0]
    same(z.grad, wanted)


@scenario
def the_graph_is_kept_for_three_passes(w: World) -> None:
    mine, x = w.compile(lambda x: x.tanh().softmax(-1)), w.numbers(5, 8).requires_grad_()
    y = mine(x)
    weights = [w.numbers(5, 8, seed=s) for s in range(3)]
    got = [torch.autograd.grad(y, x, g, retain_graph=True)[0] for g in weights]
    z = x.tanh().softmax(-1)
    same(got, [torch.autograd.grad(z, x, g, retain_graph=True)[0] for g in weights])


@scenario
def what_was_saved_is_changed_before_the_backward_pass(w: World) -> None:
    mine, x = w.compile(lambda x: x.exp() * x), w.numbers(5, 8).requires_grad_()
    y = mine(x)
    with torch.no_grad():
        x.add_(1)
    try:
        y.sum().backward()
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        return
    raise Wrong("gradients of changed numbers are given")


@scenario
def gradients_for_some_inputs_alone(w: World) -> None:
    def function(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        return (x * y).softmax(-1), y.exp() * z

    mine = w.compile(function)
    for asked in ((0,), (1,), (0, 2), (2,), (0, 1, 2)):
        given = [w.numbers(5, 8, seed=i).requires_grad_(i in asked) for i in range(3)]
        wanted = [x for x in given if x.requires_grad]
        sums = [sum(o.square().sum() for o in call(*given)) for call in (mine, function)]
        same(*(torch.autograd.grad(s, wanted, allow_unused=True) for s in sums))


@scenario
def hooks_on_tensors_inside(w: World) -> None:
    seen: list[Tensor] = []

    def function(x: Tensor) -> Tensor:
        y = x.sin()
        if y.requires_grad:
            y.register_hook(lambda g: g * 2)
        return y * y

    mine, x = w.compile(function), w.numbers(5, 8).requires_grad_()
    got = torch.autograd.grad(mine(x).sum(), x)[0]
    same(got, torch.autograd.grad(function(x).sum(), x)[0])
    assert not seen


@scenario
def saved_tensors_packed(w: World) -> None:
    mine, x = w.compile(lambda x: x.exp().softmax(-1)), w.numbers(5, 8).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.double(), lambda t: t.float()):
        y = mine(x)
    got = torch.autograd.grad(y.square().sum(), x)[0]
    same(got, torch.autograd.grad(x.exp().softmax(-1).square().sum(), x)[0])


@on_a_gpu
def a_tensor_subclass_of_the_users(w: World) -> None:
    class Named(Tensor):
        pass

    def function(x: Tensor) -> Tensor:
        return x.softmax(-1) * 2

    mine = w.compile(function)
    same(mine(w.numbers(5, 8)), function(w.numbers(5, 8)))
    x = w.numbers(5, 8).as_subclass(Named)
    got = mine(x)
    if type(got) is not Named:
        raise Wrong(f"it is a {type(got).__name__}")
    same(got.as_subclass(Tensor), function(w.numbers(5, 8)))


@scenario
def the_settings_of_matmul_change(w: World) -> None:
    mine, x = w.compile(lambda x: (x @ x.t()).softmax(-1)), w.numbers(8, 8)
    before = torch.get_float32_matmul_precision()
    try:
        for precision in ("highest", "high"):
            torch.set_float32_matmul_precision(precision)
            torch.testing.assert_close(mine(x), (x @ x.t()).softmax(-1), rtol=1e-3, atol=1e-4)
    finally:
        torch.set_float32_matmul_precision(before)


@scenario
def deterministic_algorithms_are_asked_for(w: World) -> None:
    def function(x: Tensor, i: Tensor) -> Tensor:
        return (x * 2).index_add(0, i, x[: i.shape[0]].exp()) + 1

    mine, x = w.compile(function), w.numbers(5, 8)
    i = torch.tensor([1, 1, 0, 4], device=w.device)
    torch.use_deterministic_algorithms(True)
    try:
        same(mine(x, i), function(x, i))
    finally:
        torch.use_deterministic_algorithms(False)
    same(mine(x, i), function(x, i))


@scenario
def derivatives_in_forward_mode(w: World) -> None:
    """Tangents pass through what was compiled without them, and what a closure holds has one."""
    held = {"scale": w.numbers(8)}

    def function(x: Tensor) -> Tensor:
        return F.layer_norm(x, (8,)) * held["scale"]

    mine, x, along = w.compile(function), w.numbers(5, 8), w.numbers(5, 8, seed=1)
    for given in (x, x.clone().requires_grad_()):
        same(mine(given), function(given))
        with forward_ad.dual_level():
            moved = forward_ad.make_dual(given, along)
            same(*(forward_ad.unpack_dual(f(moved)) for f in (mine, function)))
            held["scale"] = forward_ad.make_dual(w.numbers(8), w.numbers(8, seed=2))
            same(*(forward_ad.unpack_dual(f(x)) for f in (mine, function)))
        held["scale"] = w.numbers(8)
    same(mine(x), function(x))


@scenario
def many_gradients_at_once(w: World) -> None:
    def function(x: Tensor) -> Tensor:
        return x.softmax(-1) * x

    x = w.numbers(5, 8).requires_grad_()
    mine, many = w.compile(function), w.numbers(3, 5, 8, seed=1)
    found = [
        torch.autograd.grad(f(x), x, many, is_grads_batched=True) for f in (mine, function, mine)
    ]
    same(*found[:2])
    same(*found[1:])
    jacobian = torch.autograd.functional.jacobian
    for forward in (False, True):
        how = {"strategy": "forward-mode" if forward else "reverse-mode", "vectorize": True}
        same(*(jacobian(f, x.detach(), **how) for f in (mine, function)))


@scenario
def threads_in_modes_of_their_own(w: World) -> None:
    model = block(w)
    mine = w.compile(model)
    modes = (torch.no_grad, torch.enable_grad, torch.inference_mode)

    def work(number: int) -> None:
        x = w.numbers(5, 8, seed=number)
        with modes[number % 3]():
            got, wanted = mine(x), model(x)
            if got.requires_grad is not wanted.requires_grad:
                raise Wrong("a thread has the mode of another")
            same(got, wanted)

    mine(w.numbers(5, 8))
    in_threads(work, 6)


@scenario
def a_callback_compiles_while_another_runs(w: World) -> None:
    inner = w.compile(lambda x: x.softmax(0) + 1)

    class Called(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return gradient * inner(x)

    def function(x: Tensor) -> Tensor:
        return F.gelu(x) * 2

    mine, x = w.compile(function), w.numbers(5, 8).requires_grad_()
    got = torch.autograd.grad(mine(Called.apply(x)).sum(), x)[0]
    same(got, torch.autograd.grad(function(Called.apply(x)).sum(), x)[0])


@scenario
def random_numbers_of_a_seed_are_the_same_again(w: World) -> None:
    def function(x: Tensor) -> Tensor:
        return F.dropout(x, 0.3) + torch.rand_like(x) * 0 + torch.randn(8, device=x.device)

    mine, x = w.compile(function), w.numbers(64, 8)
    torch.manual_seed(3)
    first = mine(x), mine(x)
    torch.manual_seed(3)
    again = mine(x), mine(x)
    same(first, again)
    if torch.equal(first[0], first[1]):
        raise Wrong("two calls draw the same numbers")


@scenario
def a_checkpoint_drops_the_same(w: World) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(
            lambda y: F.dropout(y.exp(), 0.5), x, use_reentrant=False
        )

    mine, x = w.compile(function), w.numbers(64, 8).requires_grad_()
    y = mine(x)
    gradient = torch.autograd.grad(y.sum(), x)[0]
    same(gradient, y.detach())


@scenario
def a_write_into_a_result_that_was_an_input(w: World) -> None:
    mine, x = w.compile(lambda x, y: (x, (x * y).relu(), y[1:])), w.numbers(5, 8)
    y = w.numbers(5, 8, seed=1)
    first, _, last = mine(x, y)
    first.add_(1)
    last.mul_(0)
    if not torch.equal(first, x) or bool(y[1:].any()) or first.data_ptr() != x.data_ptr():
        raise Wrong("what was an input, or a view of one, is a copy")
    same(mine(x, y)[1], (x * y).relu())


@scenario
def a_result_changed_in_shape(w: World) -> None:
    mine, x = w.compile(lambda x: ((y := x * 2), y.t(), x.sum(0))), w.numbers(5, 8)
    a, b, _ = mine(x)
    a.squeeze_().unsqueeze_(0)
    if b.shape != (8, 5) or not torch.equal(b, (x * 2).t()):
        raise Wrong("another result changed with it")
    same(mine(x)[0], x * 2)
