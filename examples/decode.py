"""Generate text one token at a time: `python examples/decode.py`.

A language model of Llama's kind with random weights, its keys and values in preallocated caches.
The position lies in a tensor, so that one graph serves every step. Prints tokens a second of eager,
torch.compile and fusionplan, and whether the tokens are the same.

Without a GPU it takes a tiny model and runs generated kernels in Triton's interpreter: what is
computed can be seen there, how fast cannot.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import nn

Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, key_heads: int, inner: int, length: int) -> None:
        super().__init__()
        self.head, shared = width // heads, width // heads * key_heads
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.o = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(width, shared, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)
        self.keys, self.values = (
            nn.Buffer(torch.zeros(1, key_heads, length, self.head)) for _ in range(2)
        )

    def forward(self, x: torch.Tensor, position: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y = self.before(x)
        q, k, v = (f(y).view(1, 1, -1, self.head).transpose(1, 2) for f in (self.q, self.k, self.v))
        self.keys[:, :, position] = k  # in place: one row of the cache
        self.values[:, :, position] = v
        read = F.scaled_dot_product_attention(
            q, self.keys, self.values, attn_mask=mask, enable_gqa=True
        )
        x = x + self.o(read.transpose(1, 2).reshape(1, 1, -1))
        y = self.between(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    """From a token and its position, each of shape [1], to the next token."""

    def __init__(
        self,
        layers: int,
        width: int,
        heads: int,
        key_heads: int,
        inner: int,
        words: int,
        length: int,
    ) -> None:
        super().__init__()
        self.words, self.after = nn.Embedding(words, width), nn.RMSNorm(width)
        nn.init.normal_(self.words.weight, std=0.02)  # else each token is its own successor
        self.layers = nn.ModuleList(
            Layer(width, heads, key_heads, inner, length) for _ in range(layers)
        )
        self.length = length

    def forward(self, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        x = self.words(token)[:, None]
        places = torch.arange(self.length, device=position.device)
        mask = (places <= position)[None, None, None]
        for layer in self.layers:
            x = layer(x, position, mask)
        return F.linear(self.after(x), self.words.weight)[:, 0].argmax(-1)


@torch.no_grad()
def generated(step: Step, count: int, device: torch.device) -> list[int]:
    """The tokens after token 1. Nothing here waits for the device."""
    token, position = (torch.tensor([n], device=device) for n in (1, 0))
    found = []
    for _ in range(count):
        token.copy_(step(token, position))
        position.add_(1)
        found.append(token.clone())
    return torch.cat(found).tolist()


def measured(step: Step, count: int, device: torch.device) -> tuple[list[int], float]:
    """The tokens, and how many there are a second."""
    generated(step, 5, device)  # compiles, and records CUDA graphs
    start = time.perf_counter()
    tokens = generated(step, count, device)
    return tokens, count / (time.perf_counter() - start)


def main(arguments: Sequence[str] | None = None) -> dict[str, list[int]]:
    """The tokens of each way to run the model."""
    parser = argparse.ArgumentParser(description="Generate text with random weights.")
    parser.add_argument("--tokens", type=int, help="how many (default: 256, without a GPU 24)")
    parser.add_argument("--tiny", action="store_true", help="two layers of 64 columns, in float32")
    options = parser.parse_args(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported
    import fusionplan

    tiny = options.tiny or device.type == "cpu"
    count = options.tokens or (24 if device.type == "cpu" else 256)
    sizes = (2, 64, 4, 2, 96, 101) if tiny else (16, 2048, 32, 8, 8192, 128_256)
    torch.manual_seed(0)
    with device:
        model = Model(*sizes, length=max(32, count) if tiny else max(2048, count)).eval()
    if not tiny:
        model = model.to(torch.bfloat16)
    ways: dict[str, Step] = {"eager": model}
    if device.type == "cuda":
        ways["torch.compile"] = torch.compile(model, mode="reduce-overhead")
    # `planner tune` or fusionplan.tune would measure; this takes the cost model's plan.
    ways["fusionplan"] = fusionplan.step(model, on_miss="model", evidence="any")
    found = {}
    for name, step in ways.items():
        found[name], rate = measured(step, count, device)
        same = found[name] == found["eager"]
        print(f"{name:14} {rate:8.1f} tokens a second{'' if same else ', other tokens than eager'}")
    return found


if __name__ == "__main__":
    main()
