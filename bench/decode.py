"""`python -m fusionplan.bench.decode`: a step of generating text, one token for each sequence.

A language model of Llama's kind, written the plain way with keys and values in preallocated
caches, has random weights. Each way of running its step is timed on the GPU with the same position:
eager, the modes of torch.compile, and the cost model's plan as a CUDA graph, with launches that
overlap and without. The least is the time to read the weights, and as much of the caches as is
filled, once.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ..planner.costs.device import profile_of
from ..planner.covers.cover import modelled_plan
from ..planner.runtime.cudagraph import GraphedExecutor
from ..planner.runtime.executor import Executor
from ..planner.runtime.overlapping import overlapping
from ..tuner.capture.capture_model import CallArguments, capture_model

READ = {"NVIDIA H200": 4.3e12, "NVIDIA H100 80GB HBM3": 3.0e12}
"""Bytes a second that a kernel reads at best, by the name of the GPU."""

MODES = ("default", "reduce-overhead", "max-autotune")
_WARM_UP, _TURNS = 3, 30


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes of a model; those of Llama-3.2-1B unless given. cache: positions that there are."""

    layers: int = 16
    width: int = 2048
    heads: int = 32
    key_heads: int = 8
    head: int = 64
    inner: int = 8192
    words: int = 128_256
    cache: int = 2048


class Norm(nn.Module):
    """Root mean square norm, as transformers computes it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * wide.to(x.dtype)


def turned(x: torch.Tensor) -> torch.Tensor:
    """The other half of each head, for the rotary embedding."""
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


class Layer(nn.Module):
    """Attention to a cache, and a gated linear unit."""

    def __init__(self, of: Geometry) -> None:
        super().__init__()
        self.of = of
        inside, kept = of.heads * of.head, of.key_heads * of.head
        self.before, self.between = Norm(of.width), Norm(of.width)
        self.q = nn.Linear(of.width, inside, bias=False)
        self.k = nn.Linear(of.width, kept, bias=False)
        self.v = nn.Linear(of.width, kept, bias=False)
        self.o = nn.Linear(inside, of.width, bias=False)
        self.gate = nn.Linear(of.width, of.inner, bias=False)
        self.up = nn.Linear(of.width, of.inner, bias=False)
        self.down = nn.Linear(of.inner, of.width, bias=False)

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
        q, k = q * cos + turned(q) * sin, k * cos + turned(k) * sin
        keys.index_copy_(2, position, k)
        values.index_copy_(2, position, v)
        read = F.scaled_dot_product_attention(
            q, keys, values, attn_mask=mask, enable_gqa=self.of.heads != self.of.key_heads
        )
        x = x + self.o(read.transpose(1, 2).reshape(batch, 1, -1))
        y = self.between(x)
        found: torch.Tensor = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return found


class DecodeStep(nn.Module):
    """From the last token of each sequence, and its position, to the logits of the next."""

    def __init__(self, of: Geometry, batch: int) -> None:
        super().__init__()
        self.of = of
        self.words = nn.Embedding(of.words, of.width)
        self.layers = nn.ModuleList(Layer(of) for _ in range(of.layers))
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
        rotary = self.cos[position], self.sin[position]
        places = torch.arange(self.of.cache, device=position.device)
        mask = (places <= position)[None, None, None]
        for i, layer in enumerate(self.layers):
            cache = getattr(self, f"keys_{i}"), getattr(self, f"values_{i}")
            x = layer(x, cache, position, rotary, mask)
        return F.linear(self.after(x), self.words.weight)

    def nbytes(self, position: int) -> int:
        """Bytes that a step at this position reads at least."""
        weights = sum(p.nbytes for p in self.parameters())
        kept = sum(b.nbytes for n, b in self.named_buffers() if n.startswith(("keys", "values")))
        return weights + kept * (position + 1) // self.of.cache


def made(of: Geometry, batch: int, device: torch.device) -> DecodeStep:
    """A step with random weights in bfloat16, whose activations keep their size."""
    torch.manual_seed(0)
    with torch.device(device):
        model = DecodeStep(of, batch).to(torch.bfloat16)
    for name, each in [*model.named_parameters(), *model.named_buffers()]:
        if name.endswith("weight") and each.dim() == 2:
            each.data.normal_(0, each.shape[1] ** -0.5)
        elif name.startswith(("keys", "values")):
            each.data.normal_()
    return model.eval()


def given(of: Geometry, batch: int, position: int, device: torch.device) -> Sequence[torch.Tensor]:
    """The tokens of a step and its position, which lies on the device."""
    tokens = torch.randint(of.words, (batch,), device=device)
    return tokens, torch.tensor([position], device=device)


def ways(model: DecodeStep, inputs: Sequence[torch.Tensor], modes: Sequence[str]) -> Iterator[Any]:
    """The name of each way to run the step, and what makes a call of it."""
    yield "eager", lambda: lambda: model(*inputs)
    for overlaps in (False, True):
        name = "ours" + ", overlapping" * overlaps
        yield name, lambda overlaps=overlaps: planned(model, inputs, overlaps)
    for mode in modes:
        yield f"torch.compile {mode}", lambda mode=mode: compiled(model, inputs, mode)


def compiled(model: DecodeStep, inputs: Sequence[torch.Tensor], mode: str) -> Callable[[], object]:
    torch._dynamo.reset()
    run = torch.compile(model, mode=mode, dynamic=False)
    return lambda: run(*inputs)


def planned(
    model: DecodeStep, inputs: Sequence[torch.Tensor], overlaps: bool
) -> Callable[[], object]:
    """The cost model's plan of the step as a CUDA graph."""
    torch._dynamo.reset()
    (part,) = capture_model(model, CallArguments(tuple(inputs))).parts
    device, graph = part.captured.device, part.captured.graph
    profile = profile_of(device)
    plan = modelled_plan(graph, profile)
    if overlaps:
        plan = overlapping(plan, graph, profile, torch.cuda.get_device_capability(device))
    graphed = GraphedExecutor(Executor(part.captured, plan, device))
    return lambda: graphed(*part.inputs)


def microseconds(call: Callable[[], object]) -> float:
    """Median of the device's time for a call, the launches queued behind a wait."""
    times: list[float] = []
    for turn in range(_WARM_UP + _TURNS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda._sleep(2_000_000)  # type: ignore[no-untyped-call]
        start.record()
        call()
        end.record()
        end.synchronize()
        if turn >= _WARM_UP:
            times.append(start.elapsed_time(end) * 1e3)
    return sorted(times)[len(times) // 2]


def main(arguments: Sequence[str] | None = None) -> int:
    """0: done; 1: there is no GPU."""
    parser = argparse.ArgumentParser(prog="python -m fusionplan.bench.decode", description=__doc__)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--position", type=int, default=160)
    parser.add_argument("--layers", type=int, default=Geometry().layers)
    parser.add_argument("--modes", nargs="*", default=list(MODES), choices=MODES)
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("bench.decode: there is no GPU", file=sys.stderr)
        return 1
    of, device = Geometry(layers=options.layers), torch.device("cuda")
    profile = profile_of(device)
    read = READ.get(profile.name, profile.bandwidth)
    print(json.dumps({**asdict(of), "device": profile.name}))
    print("| batch | way | us a step | of the least |\n| ---: | --- | ---: | ---: |")
    for batch in options.batch:
        model = made(of, batch, device)
        least = model.nbytes(options.position) / read * 1e6
        print(f"| {batch} | the least | {least:.1f} | 1.00 |")
        inputs = given(of, batch, options.position, device)
        with torch.no_grad():
            for name, make in ways(model, inputs, options.modes):
                took = microseconds(make())
                print(f"| {batch} | {name} | {took:.1f} | {took / least:.2f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
