"""Two training steps of a small model that is spread over two processes.

Arguments: port of the rendezvous, folder, and runs, such as "tp:model tp:baseline": for each rank a
way of spreading ("ddp", "fsdp", "tp"), and what a graph without a plan does there ("model",
"baseline", "tune"). Each rank prints what each run found as one line of JSON.
"""

from __future__ import annotations

import copy
import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from fusionplan import executors, load
from fusionplan.planner.cures import FusionplanWarning
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

sys.path.insert(0, str(Path(__file__).parents[1]))
from few_looks import look_little
from ranks import forked_ranks

WIDTH, WORDS = 16, 11
RANKS = 2


class Block(nn.Module):
    """A layer without its attention, which would be two thirds of the time to plan it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.norm = Block(), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, x: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        scores = self.head(self.norm(self.block(x)))
        return F.cross_entropy(scores.flatten(0, 1), words.flatten())


def spread(model: Any, way: str) -> Any:
    if way == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    if way == "fsdp":
        fully_shard(model.block, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    parallelize_module(model.block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def whole(value: Any) -> torch.Tensor:
    full: torch.Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return full.detach()


def run(folder: Path, way: str, on_miss: Any) -> dict[str, Any]:
    torch._dynamo.reset()
    rank = dist.get_rank()
    torch.manual_seed(0)
    made = Transformer()
    own = [spread(copy.deepcopy(made), way) for _ in range(2)]
    fast = load(own[1], store=folder / f"{rank}.db", on_miss=on_miss, evidence="any")
    steps = [torch.optim.SGD(model.parameters(), lr=0.1) for model in own]
    losses: list[list[float]] = [[], []]
    for turn in range(2):
        torch.manual_seed(2 * turn + (rank if way != "tp" else 0))
        x, words = torch.randn(2, 4, WIDTH), torch.randint(WORDS, (2, 4))
        for said, call, step in zip(losses, (own[0], fast), steps, strict=True):
            step.zero_grad()
            loss = call(x, words)
            loss.backward()
            step.step()
            said.append(loss.item())
    pairs = zip(own[0].parameters(), own[1].parameters(), strict=True)
    error = max((whole(a) - whole(b)).abs().max().item() for a, b in pairs)
    kernels = sum(each.kernels_per_call * each.calls for each in executors(fast))
    collectives = sum("_c10d_functional" in each.text for each in executors(fast))
    dist.barrier()
    return {"losses": losses, "error": error, "kernels": kernels, "collectives": collectives}


def main(rank: int, port: str, folder: Path, runs: Sequence[str]) -> None:
    meet = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=RANKS)
    for number, each in enumerate(runs):
        own = folder / f"run{number}"
        own.mkdir(exist_ok=True)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = run(own, *each.split()[rank].split(":"))
        ours = [str(told.message) for told in caught if told.category is FusionplanWarning]
        print(json.dumps(found | {"warnings": ours}), flush=True)
    dist.barrier()  # Who leaves first would take the connections of the others with it.
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    look_little(setattr)
    port, *given = sys.argv[1:]
    into = Path(given[0])
    sys.exit(forked_ranks(RANKS, into, lambda rank: main(rank, port, into, given[1:])))
