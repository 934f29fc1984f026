"""Steps of generating text for `bench.decode`: language models with random weights, written the
plain way, their keys and values in preallocated caches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

Weights = Literal["bfloat16", "int8", "int4", "float8"]
"""How the weights of linear layers are kept; those of embeddings stay bfloat16."""

GROUP = 128
"""Weights of 4 bits that share a scale."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes of a model; those of Llama-3.2-1B unless given."""

    layers: int = 16
    width: int = 2048
    heads: int = 32
    key_heads: int = 8
    head: int = 64
    inner: int = 8192
    words: int = 128_256
    cache: int = 2048
    """Positions that there are."""
    norms_heads: bool = False
    """Queries and keys are normalised head by head (Qwen 3)."""
    sandwich: bool = False
    """What attention and the gated unit give is normalised too, and the unit has a GELU (Gemma)."""
    cap: float = 0.0
    """Scores, by tanh, stay below this, and logits below three fifths of it; 0: they are free."""


GEOMETRIES: Mapping[str, Geometry] = {
    "llama-3.2-1b": Geometry(),
    "qwen3-0.6b": Geometry(28, 1024, 16, 8, 128, 3072, 151_936, norms_heads=True),
    "gemma-2-2b": Geometry(26, 2304, 8, 4, 256, 9216, 256_000, sandwich=True, cap=50.0),
}
"""By the name of the model; all of them use their embeddings as the head, too."""


class Norm(nn.Module):
    """Root mean square norm, as transformers computes it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * wide.to(x.dtype)


class Linear8(nn.Module):
    """A linear layer whose weights are kept in 8 bits, with a scale for each row of them."""

    def __init__(self, columns: int, rows: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Buffer(torch.zeros(rows, columns).to(dtype))
        self.scale = nn.Buffer(torch.ones(rows))

    def fill(self) -> None:
        """Random weights, whose results are as large as what is multiplied."""
        wide = torch.randn(self.weight.shape, device=self.weight.device).clamp(-4, 4)
        kept = wide * 31 if self.weight.dtype == torch.int8 else wide
        self.weight.copy_(kept.round() if self.weight.dtype == torch.int8 else kept)
        least = 31.0 if self.weight.dtype == torch.int8 else 1.0
        self.scale.fill_(self.weight.shape[1] ** -0.5 / least)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight.to(x.dtype) * self.scale[:, None])


class Linear4(nn.Module):
    """A linear layer whose weights are kept in 4 bits, two in a byte, with a scale for each group
    of `GROUP` neighbours."""

    def __init__(self, columns: int, rows: int) -> None:
        super().__init__()
        self.weight = nn.Buffer(torch.zeros(rows, columns // 2, dtype=torch.uint8))
        self.scale = nn.Buffer(torch.ones(rows, columns // GROUP))

    def fill(self) -> None:
        """Random weights, whose results are as large as what is multiplied."""
        self.weight.random_(0, 256)
        self.scale.fill_((2 * self.weight.shape[1]) ** -0.5 / 4.6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low, high = ((part.to(torch.int8) - 8) for part in (self.weight & 15, self.weight >> 4))
        whole = torch.stack((low, high), -1).reshape(len(low), -1, GROUP)
        return F.linear(x, (whole.to(x.dtype) * self.scale[..., None]).reshape(len(low), -1))


def linear(columns: int, rows: int, weights: Weights) -> nn.Module:
    """A linear layer without a bias, its weights kept as said."""
    if weights == "bfloat16":
        return nn.Linear(columns, rows, bias=False)
    if weights == "int4":
        return Linear4(columns, rows)
    return Linear8(columns, rows, torch.int8 if weights == "int8" else torch.float8_e4m3fn)


def turned(x: torch.Tensor) -> torch.Tensor:
    """The other half of each head, for the rotary embedding."""
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


class Layer(nn.Module):
    """Attention to a cache, and a gated linear unit."""

    def __init__(self, of: Geometry, weights: Weights) -> None:
        super().__init__()
        self.of = of
        inside, kept = of.heads * of.head, of.key_heads * of.head
        self.before, self.between = Norm(of.width), Norm(of.width)
        if of.sandwich:
            self.attended, self.gated = Norm(of.width), Norm(of.width)
        if of.norms_heads:
            self.of_query, self.of_key = Norm(of.head), Norm(of.head)
        self.q = linear(of.width, inside, weights)
        self.k = linear(of.width, kept, weights)
        self.v = linear(of.width, kept, weights)
        self.o = linear(inside, of.width, weights)
        self.gate = linear(of.width, of.inner, weights)
        self.up = linear(of.width, of.inner, weights)
        self.down = linear(of.inner, of.width, weights)

    def forward(
        self,
        x: torch.Tensor,
        cache: tuple[torch.Tensor, torch.Tensor],
        position: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor,
    ) -> torch.Tensor:
        batch, (keys, values), (cos, sin) = len(x), cache, rotary

        def heads(y: torch.Tensor) -> torch.Tensor:
            return y.view(batch, 1, -1, self.of.head).transpose(1, 2)

        y = self.before(x)
        q, k, v = heads(self.q(y)), heads(self.k(y)), heads(self.v(y))
        if self.of.norms_heads:
            q, k = self.of_query(q), self.of_key(k)
        q, k = q * cos + turned(q) * sin, k * cos + turned(k) * sin
        keys.index_copy_(2, position, k)
        values.index_copy_(2, position, v)
        y = self.o(self._attention(q, keys, values, mask).transpose(1, 2).reshape(batch, 1, -1))
        x = x + (self.attended(y) if self.of.sandwich else y)
        y = self.between(x)
        if not self.of.sandwich:
            found: torch.Tensor = x + self.down(F.silu(self.gate(y)) * self.up(y))
            return found
        y = self.down(F.gelu(self.gate(y), approximate="tanh") * self.up(y))
        found = x + self.gated(y)
        return found

    def _attention(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        shared = self.of.heads // self.of.key_heads
        if not self.of.cap:
            return F.scaled_dot_product_attention(
                q, keys, values, attn_mask=mask, enable_gqa=shared != 1
            )
        # As transformers writes it for Gemma 2, which has no kernel of a library.
        q = q.reshape(len(q), self.of.key_heads, shared, self.of.head)
        scores = q @ keys.transpose(2, 3) * self.of.head**-0.5
        scores = torch.tanh(scores / self.of.cap) * self.of.cap
        scores = scores.masked_fill(~mask, -math.inf)
        found = torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ values
        return found.reshape(len(q), self.of.heads, 1, self.of.head)


class DecodeStep(nn.Module):
    """From the last token of each sequence, and its position, to the logits of the next."""

    def __init__(
        self, of: Geometry, batch: int, weights: Weights = "bfloat16", packs_head: bool = False
    ) -> None:
        super().__init__()
        self.of = of
        self.words = nn.Embedding(of.words, of.width)
        self.head = linear(of.width, of.words, weights) if packs_head else None
        self.layers = nn.ModuleList(Layer(of, weights) for _ in range(of.layers))
        self.after = Norm(of.width)
        kept = (batch, of.key_heads, of.cache, of.head)
        for i in range(of.layers):
            self.register_buffer(f"keys_{i}", torch.zeros(kept))
            self.register_buffer(f"values_{i}", torch.zeros(kept))
        places = torch.arange(of.cache)
        turns = 500_000.0 ** (-torch.arange(0, of.head, 2) / of.head)
        angles = torch.cat([places[:, None] * turns] * 2, -1)
        self.cos, self.sin = nn.Buffer(angles.cos()), nn.Buffer(angles.sin())

    def forward(self, tokens: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)[:, None]
        if self.of.sandwich:
            x = x * self.of.width**0.5
        rotary = self.cos[position], self.sin[position]
        places = torch.arange(self.of.cache, device=position.device)
        mask = (places <= position)[None, None, None]
        for i, layer in enumerate(self.layers):
            cache = getattr(self, f"keys_{i}"), getattr(self, f"values_{i}")
            x = layer(x, cache, position, rotary, mask)
        x = self.after(x)
        logits = F.linear(x, self.words.weight) if self.head is None else self.head(x)
        if self.of.cap:
            logits = torch.tanh(logits / (0.6 * self.of.cap)) * (0.6 * self.of.cap)
        return logits

    def nbytes(self, position: int) -> int:
        """Bytes that a step at this position reads at least."""
        weights = sum(p.nbytes for p in self.parameters())
        if self.head is not None:  # of the embeddings a row for each sequence
            weights -= self.words.weight.nbytes
        packed = ("layers", "head")
        weights += sum(b.nbytes for n, b in self.named_buffers() if n.startswith(packed))
        kept = sum(b.nbytes for n, b in self.named_buffers() if n.startswith(("keys", "values")))
        return weights + kept * (position + 1) // self.of.cache


def made(
    of: Geometry,
    batch: int,
    device: torch.device,
    weights: Weights = "bfloat16",
    dtype: torch.dtype = torch.bfloat16,
    packs_head: bool = False,
) -> DecodeStep:
    """A step with random weights, whose activations keep their size and have this dtype.
    packs_head: the head has weights of its own, kept as the layers' are."""
    torch.manual_seed(0)
    with torch.device(device):
        model = DecodeStep(of, batch, weights, packs_head)
    for each in [*model.parameters(), *model.buffers()]:
        if each.dtype == torch.float32:
            each.data = each.data.to(dtype)
    for name, each in [*model.named_parameters(), *model.named_buffers()]:
        if name.endswith("weight") and each.dim() == 2 and each.dtype == dtype:
            each.data.normal_(0, each.shape[1] ** -0.5)
        elif name.startswith(("keys", "values")):
            each.data.normal_()
    for module in model.modules():
        if isinstance(module, (Linear8, Linear4)):
            module.fill()
    return model.eval()


def given(of: Geometry, batch: int, position: int, device: torch.device) -> Sequence[torch.Tensor]:
    """The tokens of a step and its position, which lies on the device."""
    tokens = torch.randint(of.words, (batch,), device=device)
    return tokens, torch.tensor([position], device=device)
