"""Programs that Dynamo and autograd see in their own ways: torch.func, functions with a backward
pass of their own, checkpoints, autocast, control flow, results of every kind.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad, grad_and_value, jacrev, jvp, vjp, vmap
from torch.utils.checkpoint import checkpoint

from hostile.cases import Family

# --- torch.func ---------------------------------------------------------------------------------

transforms = Family("transforms", dynamo=True)
transforms("vmap_of_softmax", "f32[5,7]", lambda x: vmap(lambda r: r.softmax(0) * 2)(x))
transforms("vmap_of_columns", "f32[5,7]", lambda x: vmap(lambda r: r.sum() + r, in_dims=1)(x))
transforms(
    "vmap_of_two", "f32[5,7] f32[7]", lambda x, y: vmap(lambda r, s: (r * s).sum(), (0, None))(x, y)
)
transforms("vmap_nested", "f32[3,4,5]", lambda x: vmap(vmap(lambda r: r.amax() - r))(x))
transforms(
    "vmap_out_dims", "f32[5,7]", lambda x: vmap(lambda r: r.cumsum(0) * 2, out_dims=1)(x) + 1
)
transforms("grad_of_a_loss", "f32[5,7]", grad(lambda x: (x.tanh() ** 2).sum()))
transforms("grad_and_value", "f32[5,7]", grad_and_value(lambda x: F.gelu(x).sum()))
transforms("grad_of_second_argument", "f32[7] f32[7]", grad(lambda x, y: (x * y.exp()).sum(), 1))
transforms("grad_of_grad", "f32[]", grad(grad(lambda x: x.sin() * x**3)))
transforms("jacobian", "f32[4]", jacrev(lambda x: x.softmax(0) * 2))
transforms("hessian_by_two", "f32[3]", jacrev(jacrev(lambda x: (x**3).sum() + x.prod())))
transforms("jvp", "f32[5] f32[5]", lambda x, t: jvp(lambda y: y.sin() * y, (x,), (t,)))
transforms("vjp", "f32[5] f32[5]", lambda x, t: vjp(lambda y: y.exp() / 2, x)[1](t))
transforms(
    "gradients_of_each_sample",
    "f32[6,4] f32[4]",
    lambda x, w: vmap(grad(lambda w, r: ((r * w).sum().tanh() - 1) ** 2), (None, 0))(w, x),
)
transforms(
    "ensemble",
    "f32[3,4,5] f32[3,4] f32[6,5]",
    lambda w, b, x: vmap(lambda w, b: F.linear(x, w, b).relu())(w, b),
)


def called(x: Tensor, w: Tensor) -> Tensor:
    layer = torch.nn.Linear(5, 3, bias=False, device="meta")
    return functional_call(layer, {"weight": w}, (x,)).tanh()


transforms("functional_call", "f32[4,5] f32[3,5]", called, grad=True)

# --- autograd -----------------------------------------------------------------------------------

autograd = Family("autograd", dynamo=True, grad=True)


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, limit: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.limit = limit
        return x.clamp(-limit, limit)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return gradient * 0.5 + x * 0, None


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class TwoResults(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, y)
        return x * y, (x > y).to(torch.int64)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> tuple[Tensor, Tensor]:
        x, y = ctx.saved_tensors
        return gradient * y, gradient * x


autograd("own_function", "f32[5,7]", lambda x: Clipped.apply(x * 2, 0.5).sin())
autograd("straight_through", "f32[5,7]", lambda x: Straight.apply(x * 2) * x)
autograd("function_of_two_results", "f32[5,7] f32[5,7]", lambda x, y: TwoResults.apply(x, y.exp()))
autograd("straight_through_by_detach", "f32[5,7]", lambda x: (x.round() - x).detach() + x)
autograd(
    "checkpointed",
    "f32[5,7]",
    lambda x: checkpoint(lambda y: F.gelu(y) * y, x * 2, use_reentrant=False),
)
autograd(
    "checkpointed_twice",
    "f32[5,7] f32[7,7]",
    lambda x, w: checkpoint(
        lambda y: checkpoint(lambda z: (z @ w).tanh(), y, use_reentrant=False) + y,
        x,
        use_reentrant=False,
    ),
)
autograd("no_grad_inside", "f32[5,7]", lambda x: x * _without(x.exp()))
autograd("no_grad_result", "f32[5,7]", lambda x: (x.sin(), _without(x.cos() * 2)))


def _without(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x * 2 + 1


def enabled_inside(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x.exp()
        with torch.enable_grad():
            z = x.sin()
    return y * z


autograd("grad_enabled_inside", "f32[5,7]", enabled_inside)
autograd("detached_half", "f32[5,7]", lambda x: torch.cat((x.sin(), x.cos().detach()), 1))
autograd("detached_view", "f32[5,7]", lambda x: ((y := x.sin()).detach()[0], y, y.detach().t()))
autograd("gradient_not_contiguous", "f32[5,7]", lambda x: (x * 2).t().contiguous().t() + 1)
autograd("gradient_of_expand", "f32[5,1]", lambda x: (x.sin().expand(5, 7), x.expand(2, 5, 1)))
autograd("gradient_of_views", "f32[6,4]", lambda x: ((y := x * 2)[1:3], y.view(4, 6).t(), y[0, 0]))
autograd("gradient_of_unbind", "f32[3,4]", lambda x: x.sin().unbind(0)[1] * 2)
autograd("gradient_of_overlapping", "f32[9]", lambda x: (x * 2).as_strided((4, 3), (2, 1)) * 3)
autograd("gradient_of_unused_rows", "f32[6,4]", lambda x: x[::2].exp())
autograd("gradient_of_split", "f32[6,4]", lambda x: [c * i for i, c in enumerate(x.split(2))])
autograd("gradient_of_a_copy", "f32[5] f32[5]", lambda x, y: (x * 1).copy_(y) + x)
autograd("gradient_to_half", "f16[5,7] f32[7]", lambda x, w: F.rms_norm(x.float(), (7,), w).half())
autograd("gradient_of_max_pool", "f32[2,3,8,8]!ties", lambda x: F.max_pool2d(x * 1, 2) + 1)
autograd("gradient_of_sort", "f32[5,7]", lambda x: (x * 2).sort(1)[0] * 3)
autograd("gradient_of_where_nan", "f32[64]!special", lambda x: torch.where(x > 0, x, 0.0) * 2)
autograd("gradient_of_zero_size", "f32[0,5] f32[5]", lambda x, y: (x * y).sum() + y.sum())
autograd("tied_weights", "f32[5,4] f32[4,4]", lambda x, w: ((x @ w).relu() @ w.t()) @ w)
autograd("deep_sharing", "f32[5,4]", lambda x: (y := x.sin()) * (z := y * y) + z * (y + z))


def normed(h: Tensor, w: Tensor, g: Tensor) -> Tensor:
    """Of 16 bits, made of what is rounded as it is stored, but not while it is in registers."""
    y = h @ w
    return y + F.rms_norm(y.float(), g.shape, g.float()).to(h.dtype)


ROUNDED = "bf16[6,8] bf16[8,8] f32[8]"
autograd("extremum_of_rounded", ROUNDED, lambda *a: normed(*a).amax(0))
autograd("extremum_of_rounded_as_float", ROUNDED, lambda *a: normed(*a).float().amax(0))
autograd("extremum_of_rounded_as_half", ROUNDED, lambda *a: normed(*a).half().amax(0).float())
autograd("extremum_of_all_rounded", ROUNDED, lambda *a: normed(*a).float().amin((0, 1)))
autograd("largest_size_of_rounded", ROUNDED, lambda *a: normed(*a).float().norm(torch.inf, 0))
autograd("scaled_by_largest_size", ROUNDED, lambda *a: (x := normed(*a)) / x.abs().amax())
_EXTREMUM = torch.zeros(1, requires_grad=True).aminmax(dim=0).min.grad_fn
autograd(
    "both_extrema_of_rounded",
    ROUNDED,
    lambda *a: normed(*a).float().aminmax(dim=0),
    fails=type(_EXTREMUM).__name__ == "NotImplemented",  # up to torch 2.11 it has no gradient
)


def slope_along(x: Tensor, w: Tensor) -> Tensor:
    """Forward over backward: many of the derivatives are zeros that have no memory."""

    def energy(y: Tensor) -> Tensor:
        return torch.tanh(y @ w).square().sum() + (y**3).sum() / 7 + F.softplus(y).sum()

    return torch.func.jvp(torch.func.grad(energy), (x,), (x.sin(),))[1]


autograd("gradient_of_a_slope", "f32[4,5] f32[5,5]", slope_along)

# --- autocast -----------------------------------------------------------------------------------

autocasts = Family("autocast", dynamo=True)


def cast(dtype: torch.dtype, function: Any) -> Any:
    def run(*given: Tensor) -> Any:
        if given[0].dtype == torch.float64:  # the exact one
            return function(*given)
        with torch.autocast(given[0].device.type, dtype):
            return function(*given)

    return run


BF16 = torch.bfloat16


def cast_block(x: Tensor, w: Tensor) -> Tensor:
    return F.layer_norm(F.linear(x, w).float() + x, (8,)).softmax(-1)


autocasts("linear_and_norm", "f32[5,8] f32[8,8]", cast(BF16, cast_block), grad=True, ours=True)


def partly(x: Tensor, w: Tensor) -> Tensor:
    with torch.autocast(x.device.type, BF16, enabled=x.dtype != torch.float64):
        y = F.linear(x, w)
        with torch.autocast(x.device.type, enabled=False):
            z = y.float() * 2
    return z + x @ w.to(x.dtype)


autocasts("disabled_inside", "f32[5,8] f32[8,8]", partly)
autocasts(
    "loss_in_float",
    "f32[6,8] f32[11,8] i64[6]!<11",
    cast(BF16, lambda x, w, t: F.cross_entropy(F.linear(x, w), t)),
    grad=True,
)
autocasts("sum_of_products", "f32[5,8] f32[8,7]", cast(BF16, lambda x, y: (x @ y).sum(1)))
autocasts("exp_of_half", "bf16[5,8]", cast(BF16, lambda x: (x.exp() + 1).log()))

# --- control flow and results -------------------------------------------------------------------

results = Family("results", dynamo=True)


class Pair(NamedTuple):
    first: Tensor
    second: Tensor | None


def by_sign(x: Tensor) -> Tensor:
    return x.exp() * 2 if x.sum() > 0 else x.cos() - 1


def broken_twice(x: Tensor) -> Tensor:
    x = x.tanh() * 2
    torch._dynamo.graph_break()
    x = x.sin() + 1
    torch._dynamo.graph_break()
    return x.softmax(-1) * 3


def printed(x: Tensor) -> Tensor:
    y = x * 2 + 1
    str(y.sum().item())
    return y.softmax(-1)


def by_item(x: Tensor, i: Tensor) -> Tensor:
    return x[int(i)] * 2 + x.sum(0)


def listed(x: Tensor) -> list[Tensor]:
    found: list[Tensor] = []
    for row in x:
        found.append(row.softmax(0))
        if len(found) > 2:
            break
    return found


def generated(x: Tensor) -> Tensor:
    def parts() -> Any:
        yield x.sin()
        yield x.cos()

    return sum(parts()) * 2  # type: ignore[return-value]


results("named_tuple", "f32[5,7]", lambda x: Pair(x.sin() * 2, None))
results("named_tuple_twice", "f32[5,7]", lambda x: Pair(y := x.sin() * 2, y))
results("nested_dicts", "f32[5,7]", lambda x: {"a": [x * 2, {"b": (x.sum(), None, 3)}], "c": x})
results("branch_of_data_up", "f32[5,7]!pos", by_sign)
results("branch_of_data_down", "f32[5,7]", lambda x: by_sign(-x.abs()))
results("breaks", "f32[5,7]", broken_twice)
results("breaks_with_gradient", "f32[5,7]", broken_twice, grad=True)
results("a_number_printed", "f32[5,7]", printed)
results("index_by_item", "f32[5,7] i64[]!<5", by_item)
results("rows_in_a_loop", "f32[5,7]", listed)
results("a_generator", "f32[5,7]", generated)
results("by_bool_row", "f32[5,9]", lambda x: x[x.sum(1) > 0] * 2 + 1)
results("nonzero", "f32[50]!ties", lambda x: (x * 2).nonzero() + 1)
results("masked_select", "f32[5,9]!ties", lambda x: (x * 2).masked_select(x > 0) + 1)
results("unique", "i64[50]!<7", lambda x: (x + 1).unique() * 2, ours=False)
results(
    "cond",
    "f32[5,7]",
    lambda x: torch.cond(x.sum() > 0, lambda y: y.sin() * 2, lambda y: y.cos() + 1, (x * 2,)),
    ours=False,
)
results(
    "cond_down",
    "f32[5,7]",
    lambda x: torch.cond(x.abs().sum() < 0, lambda y: y.sin(), lambda y: y.exp(), (x,)) * 2,
    ours=False,
)
results("shape_in_numbers", "f32[5,7]", lambda x: x * x.shape[0] / x.numel() + x.dim())
results("type_in_numbers", "f16[5,7]", lambda x: x + (1 if x.is_floating_point() else 2))
results("an_input_and_its_view", "f32[6,4]", lambda x: (x, x.view(4, 6), x[1:], x * 2))
results("an_output_twice", "f32[6,4]", lambda x: ((y := x * 2), y, y.t(), y[0]))
results("an_input_written_and_returned", "f32[6,4]", lambda x: (x.add_(1), x[0], x.sum()))
results("nothing_but_inputs", "f32[6,4] f32[3]", lambda x, y: (y, x), ours=False)
results("a_constant_result", "f32[3]", lambda x: (torch.ones(3, device=x.device), x * 2))
results("none_results", "f32[3]", lambda x: (None, x * 2, None))
results("a_view_of_an_input_only", "f32[6,4]", lambda x: x.t()[1:3], ours=False)
results(
    "sizes_0_1_2_odd",
    ["f32[0,7]", "f32[1,7]", "f32[2,7]", "f32[7,7]", "f32[33,7]"],
    lambda x: (x.softmax(1) * x.shape[0], x.sum(0)),
    dynamic=True,
)
results(
    "sizes_with_gradient",
    ["f32[3,7]", "f32[1,7]", "f32[9,7]", "f32[2,7]"],
    lambda x: F.layer_norm(x, (7,)) * x.shape[0],
    dynamic=True,
    grad=True,
)
results(
    "no_rows_put_again",
    ["f32[5,7]", "f32[1,7]", "f32[0,7]"],
    lambda x: torch.cat((x, x[:1] * 2)).exp() + x.sum(0),
    dynamic=True,
    grad=True,
)
results(
    "sizes_of_two_inputs",
    ["f32[3,7] f32[4,7]", "f32[5,7] f32[5,7]", "f32[1,7] f32[8,7]"],
    lambda x, y: torch.cat((x, y)).softmax(0),
    dynamic=True,
)
results(
    "sizes_of_columns",
    ["f32[5,3]", "f32[5,1]", "f32[5,8]", "f32[5,130]"],
    lambda x: (x.cumsum(1), x.var(1), x.argmax(1)),
    dynamic=True,
)
results(
    "types_in_turn",
    ["f32[5,7]", "f16[5,7]", "i64[5,7]", "f64[5,7]", "f32[5,7]"],
    lambda x: x * 2 + 1,
)
results(
    "layouts_in_turn",
    ["f32[6,6]", "f32[6,6]@t", "f32[6,6]@s", "f32[6,6]@o", "f32[6,6]@e"],
    lambda x: x.softmax(1) * 2,
)

# --- memory format ------------------------------------------------------------------------------

formats = Family("formats")


def last(x: Tensor) -> Tensor:
    return x.to(memory_format=torch.channels_last)


formats("channels_last_kept", "f32[2,5,4,3]", lambda x: last(x) * 2 + 1)
formats("channels_last_softmax", "f32[2,5,4,3]", lambda x: last(x).softmax(1))
formats("channels_last_of_one_channel", "f32[2,1,4,3]", lambda x: last(x) * 2)
formats("channels_last_of_one_pixel", "f32[2,5,1,1]", lambda x: last(x) + 1)
formats("channels_last_sum", "f32[2,5,4,3]", lambda x: (last(x).sum(1), last(x).mean((2, 3))))
formats("channels_last_meets_usual", "f32[2,5,4,3] f32[2,5,4,3]", lambda x, y: last(x) + y)
formats("usual_meets_channels_last", "f32[2,5,4,3] f32[2,5,4,3]", lambda x, y: y + last(x))
formats("channels_last_conv", "f32[2,3,8,8] f32[4,3,3,3]", lambda x, w: F.conv2d(last(x), w).relu())
formats("channels_last_norm", "f32[2,4,3,3]", lambda x: F.group_norm(last(x), 2) * 2)
formats("channels_last_pool", "f32[2,4,6,6]", lambda x: F.avg_pool2d(last(x), 2) + 1)
formats("channels_last_cat", "f32[2,4,3,3]", lambda x: torch.cat((last(x), last(x) * 2), 1))
formats(
    "channels_last_padded",
    "f32[2,4,3,5]",
    lambda x: (F.pad(last(x), (1, 2)), F.pad(last(x), (-1, 0)), F.pad(x, (0, 0, 1, 0)) * 2),
)
formats(
    "channels_last_rolled",
    "f32[2,4,3,5]",
    lambda x: (last(x).roll(1, 2) * 2, last(x).roll(0, 2) + 1, last(x).roll((1, -1), (2, 1))),
    cpu=True,
)
formats("channels_last_crossed", "f32[2,3,3,5]", lambda x: torch.cross(last(x), last(x * 2), dim=1))
formats(
    "channels_last_3d", "f32[2,3,2,4,3]", lambda x: x.to(memory_format=torch.channels_last_3d) * 2
)
formats(
    "like_keeps_strides", "f32[2,5,4,3]", lambda x: (torch.zeros_like(last(x)) + 1, last(x).clone())
)
formats(
    "like_of_strided", "f32[5,7]@t", lambda x: (torch.ones_like(x) * 3, x.clone(), (x * 2).clone())
)
formats("empty_like_filled", "f32[5,7]@t", lambda x: torch.empty_like(x).fill_(2) * x)
formats("contiguous_of_format", "f32[2,5,4,3]", lambda x: last(x).contiguous() * 2)
formats(
    "huge_strides",
    lambda m: [m("f32[70000]").as_strided((3, 4), (30000, 7))],
    lambda x: (x * 2, x.sum(0)),
)
formats(
    "zero_strides_inside",
    lambda m: [m("f32[9]").as_strided((3, 4, 2), (2, 0, 1))],
    lambda x: (x * 2, x.sum(1)),
)
formats(
    "overlapping_input",
    lambda m: [m("f32[9]").as_strided((4, 3), (2, 1))],
    lambda x: (x * 2, x.softmax(0)),
)
formats(
    "swapped_strides",
    lambda m: [m("f32[60]").as_strided((3, 4, 5), (1, 15, 3))],
    lambda x: (x * 2, x.sum(1), x.amax(2)),
)
formats(
    "gap_between_rows",
    lambda m: [m("f32[60]").as_strided((4, 5), (13, 2), 3)],
    lambda x: (x + 1, x.t() * 2),
)
formats(
    "view_after_permute", "f32[4,3,5]", lambda x: (x.permute(1, 0, 2) * 2).reshape(3, 20).sum(0)
)
formats(
    "view_as_complex_pairs", "f32[4,6]", lambda x: (x * 2).unflatten(1, (3, 2)).flip(-1).flatten(1)
)
formats("reshape_to_scalar", "f32[1,1]", lambda x: ((x * 2).reshape(()), x.squeeze() + 1))
formats(
    "many_ones", "f32[1,1,1,1,1,5,1]", lambda x: (x.squeeze() * 2, x.sum((0, 6)), x.transpose(0, 5))
)

FAMILIES = (transforms, autograd, autocasts, results, formats)
