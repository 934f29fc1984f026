"""`torchrun --nproc-per-node 2 -m fusionplan.bench.spread`: training steps of a transformer that is
spread over GPUs, by eager, by torch.compile and by ours.

A step is the forward pass, the backward pass and the zeroing of gradients. Each way has a copy of
the model of its own; the ways run in turns, and a figure is the median of a rank's steps, of the
slowest rank. Beside the table: where the time of a step's kernels goes, by the profiler of rank 0.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from ..api import executors, load
from ..planner.runtime.phases import told

EAGER, COMPILED, OURS, MODELLED = "eager", "torch.compile", "ours", "ours by the model"
WAYS = (EAGER, COMPILED, OURS, MODELLED)
"""`ours` is `load` without a stored plan; the last makes plans by the cost model."""

SPREADS = ("fsdp", "tp", "ddp")
ROUNDS, STEPS = 12, 2


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the model and of a rank's batch."""

    width: int = 2048
    heads: int = 16
    layers: int = 4
    words: int = 16384
    batch: int = 8
    length: int = 2048


TINY = Shape(64, 4, 1, 128, 2, 16)


class Block(nn.Module):
    """A layer: attention with a causal mask, and two products with GELU between them."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, self.size = shape.width, shape.width // shape.heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.ModuleList([nn.Linear(width, width) for _ in range(3)])
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        y = self.first(x)
        parts = [each(y).view(rows, length, -1, self.size) for each in self.qkv]
        q, k, v = (part.transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        x = torch.add(x, self.out(mixed.reshape(rows, length, -1)))
        mixed = self.down(F.gelu(self.up(self.second(x))))
        return torch.add(x, mixed)


class Transformer(nn.Module):
    """Layers behind an embedding, and the loss."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.words, shape.width)
        self.blocks = nn.ModuleList([Block(shape) for _ in range(shape.layers)])
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.words)

    def forward(self, words: torch.Tensor, next_words: torch.Tensor) -> torch.Tensor:
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), next_words.flatten())


@dataclass(slots=True)
class SpreadStep:
    """One way: seconds of its steps on this rank, the loss of the first, and the seconds until it
    was compiled and warm."""

    call: Callable[..., Any]
    seconds: list[float] = field(default_factory=list)
    loss: float = 0.0
    prepared_s: float = 0.0


def spread(model: Transformer, how: str, device: str) -> nn.Module:
    """The model over all ranks."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    if how == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    mesh = dist.device_mesh.init_device_mesh(device, (dist.get_world_size(),))
    if how == "fsdp":
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model
    ways: dict[str, Any] = {f"qkv.{i}": ColwiseParallel() for i in range(3)}
    ways |= {"up": ColwiseParallel(), "out": RowwiseParallel(), "down": RowwiseParallel()}
    for block in model.blocks:
        parallelize_module(block, mesh, ways)
    return model


def way_of(model: nn.Module, way: str, store: str) -> Callable[..., Any]:
    if way == COMPILED:
        return torch.compile(model)
    if way == EAGER:
        return model
    options: dict[str, Any] = {"on_miss": "model", "evidence": "any"} if way == MODELLED else {}
    made: Callable[..., Any] = load(model, store=store, **options)
    return made


def step(call: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    loss: torch.Tensor = call(*inputs)
    loss.backward()  # type: ignore[no-untyped-call]
    for parameter in getattr(call, "parameters", list)():
        parameter.grad = None
    return loss.detach()


def measured(
    how: str, shape: Shape, device: torch.device, ways: Sequence[str], store: str, limit_s: float
) -> dict[str, SpreadStep]:
    """Every way's steps on this rank, in turns until the rounds or the seconds are over."""
    kind, dtype = device.type, torch.bfloat16 if device.type == "cuda" else torch.float32
    torch.manual_seed(0)
    made = Transformer(shape).to(device, dtype)
    torch.manual_seed(1 + (dist.get_rank() if how != "tp" else 0))
    given = torch.randint(shape.words, (2, shape.batch, shape.length), device=device)
    inputs = [given[0], given[1]]
    steps: dict[str, SpreadStep] = {}
    for way in ways:
        begin = time.monotonic()
        call = way_of(spread(copy.deepcopy(made), how, kind), way, store)
        steps[way] = SpreadStep(call)
        steps[way].loss = float(step(call, inputs))
        for _ in range(3):
            step(call, inputs)
        synchronise(device)
        steps[way].prepared_s = time.monotonic() - begin
        said(f"{how}: {way} prepared in {steps[way].prepared_s:.1f} s, loss {steps[way].loss:.5f}")
        if way in (OURS, MODELLED):
            said(f"{how}: {way}, seconds of this process so far: {told()}")
    end = time.monotonic() + limit_s
    for _ in range(ROUNDS):
        for each in steps.values():
            dist.barrier()
            synchronise(device)
            begin = time.perf_counter()
            for _ in range(STEPS):
                step(each.call, inputs)
            synchronise(device)
            each.seconds.append((time.perf_counter() - begin) / STEPS)
        over = torch.tensor([float(time.monotonic() > end)], device=device)
        dist.all_reduce(over)  # All ranks end after the same round.
        if over.item():
            break
    for way, each in steps.items():
        profiled(how, way, partial(step, each.call, inputs), device)
    return steps


def profiled(how: str, way: str, call: Callable[[], Any], device: torch.device) -> None:
    """Prints the kernels of two steps, and writes the table of the profiler under $OUT."""
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    kinds = [ProfilerActivity.CPU]
    kinds += [ProfilerActivity.CUDA] if device.type == "cuda" else []
    with profile(activities=kinds) as profiler:
        for _ in range(STEPS):
            call()
        synchronise(device)
    if dist.get_rank():
        return
    spans: list[tuple[float, float, str]] = []
    for event in profiler.events() or ():
        if event.device_type == DeviceType.CUDA and "Memset" not in event.name:
            spans.append((event.time_range.start, event.time_range.end, event.name))
    computes = [(a, b) for a, b, name in spans if "nccl" not in name.lower()]
    sends = [(a, b) for a, b, name in spans if "nccl" in name.lower()]
    busy, both = covered(computes), covered(computes + sends)
    scale = 1e3 * STEPS
    said(
        f"{how}: {way}: {len(computes) // STEPS} kernels {busy / scale:.2f} ms, "
        f"{len(sends) // STEPS} collectives {covered(sends) / scale:.2f} ms, of which alone "
        f"{(both - busy) / scale:.2f} ms; from first to last {span(spans) / scale:.2f} ms"
    )
    if folder := os.environ.get("OUT"):
        key = "self_cuda_time_total" if device.type == "cuda" else "self_cpu_time_total"
        averages = profiler.key_averages()
        text = averages.table(sort_by=key, row_limit=45, max_name_column_width=70)
        host = averages.table(sort_by="self_cpu_time_total", row_limit=25)
        name = f"{how}-{way.replace(' ', '_')}.txt"
        (Path(folder) / name).write_text(f"{text}\n{host}\n")


def covered(spans: Sequence[tuple[float, ...]]) -> float:
    """The length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for begin, end, *_ in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def span(spans: Sequence[tuple[float, float, str]]) -> float:
    if not spans:
        return 0.0
    return max(end for _, end, _ in spans) - min(begin for begin, _, _ in spans)


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def said(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


def table(how: str, steps: dict[str, SpreadStep], device: torch.device) -> None:
    """Prints the median of the slowest rank for each way."""
    for way, each in steps.items():
        own = torch.tensor([statistics.median(each.seconds)], device=device)
        dist.all_reduce(own, op=dist.ReduceOp.MAX)
        made = executors(each.call) if way in (OURS, MODELLED) else []
        kernels = sum(one.kernels_per_call for one in made)
        more = f", {len(made)} plans, {kernels} kernels of ours" if made else ""
        said(f"{how}: {way:18} {own.item() * 1e3:8.2f} ms ({len(each.seconds)} rounds){more}")
        if (folder := os.environ.get("OUT")) and dist.get_rank() == 0:
            for number, one in enumerate(made):
                path = Path(folder) / f"{how}-{way.replace(' ', '_')}-{number}.py.txt"
                path.write_text(one.text)


def main(arguments: Sequence[str] | None = None) -> int:
    """0: done; 1: the loss of a way is not eager's; 2: usage."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("spreads", nargs="*", metavar="SPREAD", help=", ".join(SPREADS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), help="of " + ", ".join(WAYS))
    parser.add_argument("--store", default="none.db", help="path or database URL")
    parser.add_argument("--tiny", action="store_true", help="a model for a rehearsal")
    parser.add_argument("--limit", type=float, default=20.0, help="seconds of the rounds of each")
    options = parser.parse_args(arguments)
    for name in options.spreads:
        if name not in SPREADS:
            parser.error(f"{name!r} is none of {', '.join(SPREADS)}")
    cuda = options.device == "cuda"
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    shape, bad = TINY if options.tiny else Shape(), 0
    for how in options.spreads or SPREADS:
        torch._dynamo.reset()
        steps = measured(how, shape, device, options.ways, options.store, options.limit)
        table(how, steps, device)
        losses = [each.loss for each in steps.values()]
        bad += max(losses) - min(losses) > 2e-2 * abs(losses[0])
    dist.barrier()
    dist.destroy_process_group()
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
