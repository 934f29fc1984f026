"""Whole programs, sizes that vary, several calls of one compiled function."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from hostile.cases import Family

programs = Family("programs")


def muon(g: Tensor) -> Tensor:
    x = g / (g.norm() + 1e-7)
    for _ in range(3):
        a = x @ x.mT
        x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
    return x


def sinkhorn(x: Tensor) -> Tensor:
    k, u = (-x.square()).exp(), x.new_ones(x.shape[0])
    for _ in range(4):
        v = 1 / (k.t() @ u)
        u = 1 / (k @ v)
    return u[:, None] * k * v


def life(x: Tensor) -> Tensor:
    steps = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0)]
    near = sum(x.int().roll(s, (0, 1)) for s in steps)
    return (near == 3) | (x & (near == 2))


def mandelbrot(re: Tensor, im: Tensor) -> Tensor:
    a, b, count = re * 0, im * 0, torch.zeros_like(re, dtype=torch.int64)
    for _ in range(6):
        a, b = a * a - b * b + re, 2 * a * b + im
        a, b = a.clamp(-1e3, 1e3), b.clamp(-1e3, 1e3)
        count = count + (a * a + b * b < 4)
    return count


def k_means(x: Tensor, centres: Tensor) -> Tensor:
    nearest = (x[:, None] - centres[None]).square().sum(-1).argmin(1)
    member = (nearest[:, None] == torch.arange(len(centres), device=x.device)).to(x.dtype)
    return (member.t() @ x) / member.sum(0).clamp(min=1)[:, None]


def scan(x: Tensor) -> Tensor:
    state, out = x[:, 0], []
    for step in range(x.shape[1]):
        state = 0.9 * state + x[:, step].tanh()
        out.append(state)
    return torch.stack(out, 1)


def advantages(rewards: Tensor, values: Tensor) -> Tensor:
    last, out = torch.zeros_like(rewards[0]), []
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + 0.99 * values[t + 1] - values[t]
        last = delta + 0.95 * 0.99 * last
        out.append(last)
    return torch.stack(out[::-1])


def adam(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> Sequence[Tensor]:
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g * g
    return p - 1e-3 * (m / 0.1) / ((v / 0.001).sqrt() + 1e-8), m, v


def rope(x: Tensor) -> Tensor:
    n, d = x.shape[-2:]
    freq = 10000.0 ** (-torch.arange(0, d, 2, device=x.device) / d)
    angle = torch.arange(n, device=x.device)[:, None] * freq
    a, b = x[..., ::2], x[..., 1::2]
    c, s = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2)


def quantise_rows(x: Tensor) -> Sequence[Tensor]:
    scale = x.abs().amax(1, keepdim=True) / 127 + 1e-9
    q = (x / scale).round().clamp(-127, 127).to(torch.int8)
    return q.float().mul(scale).sub(x).abs().amax(1) <= scale[:, 0] * 0.51, scale


def box_iou(a: Tensor, b: Tensor) -> Tensor:
    low = torch.maximum(a[:, None, :2], b[None, :, :2])
    high = torch.minimum(a[:, None, 2:], b[None, :, 2:])
    inter = (high - low).clamp(min=0).prod(-1)
    area = [(x[:, 2:] - x[:, :2]).clamp(min=0).prod(-1) for x in (a, b)]
    return inter / (area[0][:, None] + area[1][None] - inter + 1e-6)


def sorting_network(x: Tensor) -> Tensor:
    wires = list(x.unbind(1))
    for i, j in ((0, 2), (1, 3), (0, 1), (2, 3), (1, 2)):
        wires[i], wires[j] = torch.minimum(wires[i], wires[j]), torch.maximum(wires[i], wires[j])
    return torch.stack(wires, 1)


def power_iteration(m: Tensor) -> Tensor:
    v = torch.ones_like(m[:, 0])
    for _ in range(3):
        v = m @ v
        v = v / v.norm()
    return v @ m @ v


def mlp_mixer(x: Tensor, w: Tensor, u: Tensor) -> Tensor:
    x = x + F.linear(F.gelu(F.layer_norm(x, x.shape[-1:])), w)
    return x + F.linear(F.gelu(x.mT), u).mT


def router(x: Tensor, w: Tensor) -> Tensor:
    p = (x @ w).softmax(-1)
    best = p.argmax(-1)
    share = F.one_hot(best, w.shape[1]).to(x.dtype).mean(0)
    return (share * p.mean(0)).sum() * w.shape[1]


def sobel(x: Tensor) -> Tensor:
    p = F.pad(x, (1, 1, 1, 1))
    dx = p[:-2, 2:] + 2 * p[1:-1, 2:] + p[2:, 2:] - p[:-2, :-2] - 2 * p[1:-1, :-2] - p[2:, :-2]
    dy = p[2:, :-2] + 2 * p[2:, 1:-1] + p[2:, 2:] - p[:-2, :-2] - 2 * p[:-2, 1:-1] - p[:-2, 2:]
    return (dx * dx + dy * dy + 1e-6).sqrt()


def fourier(x: Tensor) -> Tensor:
    n = x.shape[-1]
    k = torch.arange(n, device=x.device, dtype=torch.float64)
    angle = (k[:, None] * k * (2 * torch.pi / n)).to(x.dtype)
    return (x @ angle.cos()).square() + (x @ angle.sin()).square()


def newton(x: Tensor) -> Tensor:
    y = x.abs() + 1
    for _ in range(4):
        y = 0.5 * (y + (x.abs() + 1) / y)
    return y


def lru_cache_hash(t: Tensor) -> Tensor:
    h = torch.full_like(t[:, 0], 1469598103934665603)
    for i in range(t.shape[1]):
        h = (h ^ t[:, i]) * 1099511628211
    return h % 4093


programs("muon_bf16", "bf16[8,16]", muon)
programs("muon_f32", "f32[8,16]", muon, grad=True)
programs("sinkhorn", "f32[7,9]", sinkhorn, grad=True)
programs("game_of_life", "bool[9,11]", life)
programs("mandelbrot", "f32[5,7]!steps f32[5,7]!steps", mandelbrot)
programs("k_means", "f32[37,3] f32[4,3]", k_means)
programs("scan_of_nine", "f32[3,9]", scan, grad=True)
programs("advantages", "f32[8,3] f32[9,3]", advantages)
programs("adam", "f32[37] f32[37] f32[37] f32[37]!pos", adam)
programs("adam_half", "f16[37] f16[37] f32[37] f32[37]!pos", adam)
programs("rope", "f32[2,9,8]", rope, grad=True)
programs("rope_half", "f16[2,9,8]", rope)
programs("quantise_rows", "f32[5,33]", quantise_rows)
programs("box_iou", "f32[5,4] f32[7,4]", box_iou, grad=True)
programs("sorting_network", "f32[9,4]!ties", sorting_network)
programs("sorting_network_of_ints", "i64[9,4]!full", sorting_network)
programs("power_iteration", "f32[7,7]", power_iteration, grad=True)
programs("mixer", "f32[2,5,8] f32[8,8] f32[5,5]", mlp_mixer, grad=True)
programs("router", "f32[17,8] f32[8,4]", router, grad=True)
programs("sobel", "f32[9,13]", sobel, grad=True)
programs("fourier", "f32[3,16]", fourier)
programs("newton", "f32[33]", newton, grad=True)
programs("hash_of_rows", "i64[9,5]!<50257", lru_cache_hash)
programs(
    "moving_average",
    "f32[3,20]",
    lambda x: F.pad(x.cumsum(1), (1, 0))[:, 4:] - F.pad(x.cumsum(1), (1, 0))[:, :-4],
)
programs(
    "polynomial", "f32[33]", lambda x: ((((x * 0.1 + 2) * x - 3) * x + 0.5) * x - 1) * x, grad=True
)
programs("mish_by_hand", "bf16[5,33]", lambda x: x * torch.tanh(F.softplus(x)), grad=True)
programs(
    "spherical",
    "f32[33] f32[33]",
    lambda t, p: torch.stack((t.sin() * p.cos(), t.sin() * p.sin(), t.cos()), -1),
    grad=True,
)
programs(
    "quaternion",
    "f32[9,4] f32[9,3]",
    lambda q, v: (
        v + 2 * torch.linalg.cross(q[:, 1:], torch.linalg.cross(q[:, 1:], v) + q[:, :1] * v)
    ),
    grad=True,
)
programs("gradient_inside", "f32[9]", lambda x: torch.func.grad(lambda y: (y.sin() * y).sum())(x))
programs("vmapped", "f32[5,9]", lambda x: torch.vmap(lambda row: row.softmax(0) * row.norm())(x))
programs("deep_chain", "f32[33]", lambda x: _deep(x, 40), grad=True)
programs(
    "wide_fan",
    "f32[17]",
    lambda x: torch.stack([(x * i).sin() for i in range(20)]).sum(0),
    grad=True,
)
programs("many_results", "f32[17]", lambda x: [x * i + 1 for i in range(25)])
programs("complex_magnitude", "f32[5,9]", lambda x: torch.fft.rfft(x * 2).abs() + 1)
programs("uint8_image", "u8[3,5,7]!full", lambda x: (x.float() / 255 - 0.5) / 0.25)
programs(
    "image_to_uint8", "f32[3,5,7]!unit", lambda x: (x * 255).round().clamp(0, 255).to(torch.uint8)
)
programs(
    "luma", "u8[3,5,7]!full", lambda x: (x[0].int() * 77 + x[1].int() * 150 + x[2].int() * 29) >> 8
)
programs(
    "crc_like", "u8[16,4]!full", lambda x: (x[:, 0] ^ (x[:, 1] << 1) ^ (x[:, 2] >> 1)) + x[:, 3]
)
programs("token_shift", "i64[3,9]!<100", lambda t: torch.where(t == 7, -100, t.roll(-1, 1)))
programs("log_sigmoid_ratio", "f16[33] f16[33]", lambda x, y: F.logsigmoid(x - y) * -1, grad=True)


def _deep(x: Tensor, n: int) -> Tensor:
    for i in range(n):
        x = torch.tanh(x) * 1.1 + 0.01 * i
    return x


# --- sizes that vary, and several calls of one function -----------------------------------------

sizes = Family("sizes", dynamo=True)
ROWS = ("f32[3,8]", "f32[7,8]", "f32[17,8]", "f32[3,8]")
BOTH = ("f32[3,5]", "f32[4,9]", "f32[1,5]", "f32[4,17]")
WORK = {
    "softmax": lambda x: torch.softmax(x * 2, -1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]) + x,
    "sum_of_columns": lambda x: x.sin().sum(0),
    "mean_of_all": lambda x: (x - x.mean()) / x.shape[0],
    "causal": lambda x: torch.softmax(
        (x @ x.t()).masked_fill(torch.ones_like(x @ x.t()).triu(1) > 0, -1e9), -1
    ),
    "reshape": lambda x: (x.reshape(-1) * 2).view(x.shape[1], -1).sum(0),
    "positions": lambda x: x + torch.arange(x.shape[0], device=x.device)[:, None] * 0.5,
    "cat_with_itself": lambda x: torch.cat((x, x.flip(0)), 0) * 2,
    "slice_of_half": lambda x: x[: x.shape[0] // 2 + 1] * 2,
    "pad_to_even": lambda x: F.pad(x * 2, (0, 0, 0, x.shape[0] % 2)) + 1,
    "size_in_arithmetic": lambda x: x * x.shape[0] ** 0.5 + x.numel(),
}
for each, work in WORK.items():
    sizes(f"rows_{each}", ROWS, work, dynamic=True)
for each in ("softmax", "sum_of_columns", "mean_of_all"):
    sizes(f"both_{each}", BOTH, WORK[each], dynamic=True)
    sizes(f"gradient_{each}", ROWS[:3], WORK[each], dynamic=True, grad=True)
    sizes(f"recompiled_{each}", ROWS[:3], WORK[each])
sizes("rank_changes", ("f32[5]", "f32[3,5]", "f32[2,3,5]"), lambda x: x.softmax(-1) * 2)
sizes("type_changes", ("f32[5]", "f16[5]", "i64[5]", "bool[5]"), lambda x: x * 2 + 1)
sizes(
    "strides_change",
    ("f32[5,7]", "f32[5,7]@t", "f32[5,7]@s", "f32[5,7]@o"),
    lambda x: x.softmax(0) * x,
)
sizes("expanded_then_not", ("f32[5,7]@e", "f32[5,7]"), lambda x: x.sum(0) * x)
sizes(
    "to_nothing_and_back",
    ("f32[5,7]", "f32[0,7]", "f32[1,7]"),
    lambda x: x.sum(0) + x.mean(0).nan_to_num() * 2,
)
sizes(
    "two_inputs",
    ("f32[5,7] f32[7,3]", "f32[6,7] f32[7,9]"),
    lambda x, y: (x @ y).relu(),
    dynamic=True,
)
sizes(
    "tokens",
    ("i64[2,5]!<11 f32[11,4]", "i64[3,7]!<11 f32[11,4]"),
    lambda t, w: F.embedding(t, w).mean(1),
    dynamic=True,
)
sizes(
    "targets",
    ("f32[5,7] i64[5]!<7", "f32[9,7] i64[9]!<7"),
    lambda x, t: F.cross_entropy(x * 2, t),
    dynamic=True,
    grad=True,
)

FAMILIES = (programs, sizes)
