"""Attention, recurrent cells and state spaces as libraries of models write them."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hostile.cases import Family
from hostile.library import module

sequences = Family("attention", grad=True)


def add(name: str, make: Any, *words: str, **flags: Any) -> None:
    sequences(name, *module(make, *words), **flags)


class Attend(nn.Module):
    """nn.MultiheadAttention called in one way."""

    def __init__(self, call: Any, **options: Any) -> None:
        super().__init__()
        self.inner, self.call = nn.MultiheadAttention(8, 2, **options), call

    def forward(self, *given: Tensor) -> Any:
        return self.call(self.inner, *given)


def causal(like: Tensor) -> Tensor:
    return torch.full((5, 5), -math.inf, device=like.device, dtype=like.dtype).triu(1)


X3 = "f32[2,5,8]"
add(
    "mha_self", lambda: Attend(lambda a, x: a(x, x, x, need_weights=False)[0], batch_first=True), X3
)
add("mha_weights", lambda: Attend(lambda a, x: a(x, x, x), batch_first=True), X3)
add("mha_weights_of_heads", lambda: Attend(lambda a, x: a(x, x, x, average_attn_weights=False)), X3)
add(
    "mha_cross",
    lambda: Attend(lambda a, x, y: a(x, y, y, need_weights=False)[0], batch_first=True),
    X3,
    "f32[2,7,8]",
)
add(
    "mha_key_value_widths",
    lambda: Attend(lambda a, x, k, v: a(x, k, v)[0], batch_first=True, kdim=6, vdim=4),
    X3,
    "f32[2,7,6]",
    "f32[2,7,4]",
)
add(
    "mha_bias_kv_zero_attn",
    lambda: Attend(lambda a, x: a(x, x, x)[0], add_bias_kv=True, add_zero_attn=True),
    X3,
)
add(
    "mha_padding_bool",
    lambda: Attend(
        lambda a, x, m: a(x, x, x, key_padding_mask=m & (torch.arange(5, device=x.device) > 0))[0],
        batch_first=True,
    ),
    X3,
    "bool[2,5]",
)
add(
    "mha_float_mask",
    lambda: Attend(
        lambda a, x: a(x, x, x, attn_mask=causal(x), need_weights=False)[0], batch_first=True
    ),
    X3,
)
add(
    "mha_bool_mask_of_heads",
    lambda: Attend(
        lambda a, x, m: a(x, x, x, attn_mask=m & ~torch.eye(5, dtype=torch.bool, device=x.device))[
            0
        ],
        batch_first=True,
    ),
    X3,
    "bool[4,5,5]",
)
add(
    "mha_causal_hint",
    lambda: Attend(
        lambda a, x: a(x, x, x, attn_mask=causal(x) < 0, is_causal=True, need_weights=False)[0],
        batch_first=True,
    ),
    X3,
)
add(
    "mha_both_masks",
    lambda: Attend(
        lambda a, x, m: a(
            x,
            x,
            x,
            key_padding_mask=torch.where(
                m & (torch.arange(5, device=x.device) > 0), -math.inf, 0.0
            ).to(x.dtype),
            attn_mask=causal(x),
        )[0],
        batch_first=True,
    ),
    X3,
    "bool[2,5]",
)
add("mha_unbatched", lambda: Attend(lambda a, x: a(x, x, x)[0]), "f32[5,8]")
add(
    "mha_no_bias",
    lambda: Attend(lambda a, x: a(x, x * 2, x, need_weights=False)[0], bias=False),
    X3,
)
add(
    "encoder_norm_first",
    lambda: nn.TransformerEncoderLayer(8, 2, 12, 0.0, "gelu", batch_first=True, norm_first=True),
    X3,
)
add(
    "decoder_layer",
    lambda: nn.TransformerDecoderLayer(8, 2, 12, 0.0, batch_first=True),
    X3,
    "f32[2,4,8]",
)
for _name, _mask in (
    ("full", "f32[5,5]"),
    ("row", "f32[1,5]"),
    ("heads", "f32[2,5,5]"),
    ("batch", "f32[2,1,1,5]"),
    ("bool", "bool[2,1,5,5]"),
):
    sequences(
        f"sdpa_mask_{_name}",
        f"f32[2,2,5,4] f32[2,2,5,4] f32[2,2,5,4] {_mask}",
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m) * 2,
    )
sequences(
    "sdpa_row_masked",
    "f32[2,2,5,4] f32[2,2,5,4] f32[2,2,5,4]",
    lambda q, k, v: (
        F.scaled_dot_product_attention(
            q, k, v, (torch.arange(5, device=q.device) > 2)[:, None].expand(5, 5)
        )
        * 2
    ),
)
sequences(
    "sdpa_grouped",
    "f32[2,4,5,4] f32[2,2,7,4] f32[2,2,7,4]",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True) * 2,
)
sequences(
    "sdpa_scaled_causal_wide",
    "f32[1,2,5,4] f32[1,2,9,4] f32[1,2,9,6]",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3) + 1,
)
sequences(
    "sdpa_three_dimensions",
    "f32[2,5,4] f32[2,7,4] f32[2,7,4]",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v) + 1,
)
sequences(
    "alibi",
    "f32[2,4,5,4] f32[2,4,5,4] f32[2,4,5,4]",
    lambda q, k, v: (
        (
            (q @ k.mT) / 2
            + (torch.arange(5, device=q.device)[None] - torch.arange(5, device=q.device)[:, None])
            * (2.0 ** -torch.arange(1, 5, device=q.device))[:, None, None]
        ).softmax(-1)
        @ v
    ),
)
sequences(
    "t5_buckets",
    "f32[2,2,6,4] f32[2,2,6,4] f32[2,2,6,4] f32[8,2]",
    lambda q, k, v, table: (
        (q @ k.mT + F.embedding(_bucket(6, q.device), table).permute(2, 0, 1)).softmax(-1) @ v
    ),
)
sequences(
    "sliding_window",
    "f32[1,2,9,4] f32[1,2,9,4] f32[1,2,9,4]",
    lambda q, k, v: ((q @ k.mT).masked_fill(~_window(9, 3, q.device), -math.inf)).softmax(-1) @ v,
)
sequences(
    "softcapped",
    "f32[1,2,9,4] f32[1,2,9,4] f32[1,2,9,4]",
    lambda q, k, v: (
        (
            torch.tanh(q @ k.mT / 5) * 5
            + torch.full((9, 9), -math.inf, device=q.device, dtype=q.dtype).triu(1)
        ).softmax(-1)
        @ v
    ),
)
sequences(
    "talking_heads",
    "f32[2,3,5,4] f32[2,3,5,4] f32[2,3,5,4] f32[3,3]",
    lambda q, k, v, w: torch.einsum("bhij,hg->bgij", (q @ k.mT).softmax(-1), w) @ v,
)
sequences(
    "linear_attention",
    "f32[2,3,5,4] f32[2,3,5,4] f32[2,3,5,6]",
    lambda q, k, v: (lambda a, b: (a @ (b.mT @ v)) / (a @ b.sum(-2).unsqueeze(-1)))(
        F.elu(q) + 1, F.elu(k) + 1
    ),
)
sequences(
    "sinks",
    "f32[2,3,5,4] f32[2,3,5,4] f32[2,3,5,4] f32[3]",
    lambda q, k, v, s: (
        torch.cat((q @ k.mT, s.view(1, 3, 1, 1).expand(2, 3, 5, 1)), -1).softmax(-1)[..., :-1] @ v
    ),
)
sequences(
    "window_bias",
    "f32[4,2,4,4] f32[4,2,4,4] f32[4,2,4,4] f32[9,2]",
    lambda q, k, v, t: (
        (
            (q * 0.5) @ k.mT
            + t[_relative(2, q.device).view(-1)].view(4, 4, 2).permute(2, 0, 1)[None]
        ).softmax(-1)
        @ v
    ),
)


def _bucket(n: int, device: torch.device) -> Tensor:
    """T5's buckets of the distance between positions."""
    distance = torch.arange(n, device=device)[None] - torch.arange(n, device=device)[:, None]
    far = (distance < 0).long() * 4
    distance = distance.abs()
    wide = 2 + (torch.log(distance.float() / 2) / math.log(4) * 2).long()
    return far + torch.where(distance < 2, distance, wide.clamp(max=3))


def _window(n: int, width: int, device: torch.device) -> Tensor:
    i = torch.arange(n, device=device)
    return (i[:, None] >= i) & (i[:, None] - i < width)


def _relative(side: int, device: torch.device) -> Tensor:
    """Swin's index of the distance between two pixels of a window."""
    axis = torch.arange(side, device=device)
    flat = torch.stack(torch.meshgrid(axis, axis, indexing="ij")).flatten(1)
    distance = (flat[:, :, None] - flat[:, None, :]).permute(1, 2, 0) + side - 1
    return distance[..., 0] * (2 * side - 1) + distance[..., 1]


# --- recurrent ----------------------------------------------------------------------------------


class Walk(nn.Module):
    """A cell over the rows of a sequence."""

    def __init__(self, cell: nn.Module, states: int = 1) -> None:
        super().__init__()
        self.cell, self.states = cell, states

    def forward(self, x: Tensor) -> Tensor:
        state: Any = tuple(x.new_zeros(x.shape[1], 6) for _ in range(self.states))
        found = []
        for row in x:
            state = self.cell(row, state if self.states > 1 else state[0])
            state = state if isinstance(state, tuple) else (state,)
            found.append(state[0])
        return torch.stack(found)


add("lstm_cell", lambda: Walk(nn.LSTMCell(4, 6), 2), "f32[3,5,4]")
add("gru_cell", lambda: Walk(nn.GRUCell(4, 6)), "f32[3,5,4]")
add("rnn_cell_relu", lambda: Walk(nn.RNNCell(4, 6, nonlinearity="relu")), "f32[3,5,4]")


class Selective(nn.Module):
    """A state-space layer: gates of the input, a scan, a convolution over time."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 4, 3, padding=2, groups=4)
        self.project, self.log = nn.Linear(4, 7), nn.Parameter(torch.randn(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        u = F.silu(self.conv(x.mT)[..., :n].mT)
        step, b, c = self.project(u).split((1, 3, 3), -1)
        step = F.softplus(step)
        decay = torch.exp(step[..., None] * -self.log.exp())
        state, found = x.new_zeros(x.shape[0], 4, 3), []
        for t in range(n):
            state = decay[:, t] * state + (step[:, t] * u[:, t])[..., None] * b[:, t, None]
            found.append((state * c[:, t, None]).sum(-1))
        return torch.stack(found, 1) * F.silu(x)


add("state_space", Selective, "f32[2,5,4]")
sequences(
    "rwkv_shift",
    "f32[2,5,4] f32[4]",
    lambda x, mix: F.pad(x, (0, 0, 1, -1)) * (1 - mix) + x * mix.sigmoid(),
)
sequences(
    "retention", "f32[2,6,4] f32[2,6,4] f32[2,6,4]", lambda q, k, v: ((q @ k.mT) * _decay(6, q)) @ v
)


def _decay(n: int, like: Tensor) -> Tensor:
    i = torch.arange(n, device=like.device)
    return torch.where(i[:, None] >= i, 0.9 ** (i[:, None] - i).to(like.dtype), 0.0)


FAMILIES = (sequences,)
