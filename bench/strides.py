"""`python -m fusionplan.bench.strides`: many configs of functions that read or write in strides.

Columns, windows, transposes, channels: how well the cost model chooses where accesses lie badly.
Of each function some dozens of configs are compiled, those that the model likes best and others at
random, and timed one after the other on tensors that no cache holds.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from ..planner.codegen.source import Program
from ..planner.config import Config
from ..planner.costs.cost import Cost
from ..planner.costs.device import DeviceProfile, profile_of
from ..planner.graph import ops
from ..planner.graph.graph import Graph
from ..planner.groups.group import subgraph, with_free_nodes
from ..planner.lower import lower
from ..planner.runtime.machine_code.compile import CompileFailed, compile_kernel
from ..planner.space.space import Space, space_of
from ..tuner.capture.capture_model import CallArguments, capture_model
from ..tuner.trial.inputs import empty, make
from ..tuner.trial.running import LoadedKernels, output_types
from .command_line import NO_GPU, compiling_parser, current_gpu, table_head

BF16 = torch.bfloat16
CALLS, ROUNDS = 10, 5
SLOWEST = 5.0
"""Times the seconds of the model's choice; configs beyond are not tried."""

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class StridedFunction:
    of: Callable[..., torch.Tensor]
    shapes: Shapes
    dtype: torch.dtype = BF16


FUNCTIONS = {
    "average pool": StridedFunction(lambda a: F.avg_pool2d(a, 2), ((64, 64, 112, 112),)),
    "maximum pool": StridedFunction(lambda a: F.max_pool2d(a, 3, 2, 1), ((64, 64, 112, 112),)),
    "average pool of 3": StridedFunction(
        lambda a: F.avg_pool2d(a, 3, 1, 1), ((32, 64, 56, 56),), torch.float32
    ),
    "sum of columns": StridedFunction(lambda a: a.sum(0), ((16384, 4096),)),
    "sum of columns, float32": StridedFunction(lambda a: a.sum(0), ((8192, 4096),), torch.float32),
    "softmax of columns": StridedFunction(lambda a: torch.softmax(a, 0), ((4096, 8192),)),
    "variance of columns": StridedFunction(lambda a: a.var(0), ((16384, 4096),)),
    "transpose": StridedFunction(lambda a: a.t().contiguous() * 2, ((8192, 8192),)),
    "transpose and add": StridedFunction(
        lambda a, b: a.t() + b, ((4096, 8192), (8192, 4096)), torch.float32
    ),
    "channels first": StridedFunction(
        lambda a: a.permute(0, 3, 1, 2).contiguous() + 1, ((64, 56, 56, 256),)
    ),
    "every second": StridedFunction(lambda a: a[:, ::2] * 2, ((8192, 16384),)),
    "pairs": StridedFunction(lambda a: a[..., 0::2] * a[..., 1::2], ((8192, 16384),)),
    "sum of a channel": StridedFunction(lambda a: a.sum((0, 2, 3)), ((64, 256, 56, 56),)),
    "factor of a channel": StridedFunction(
        lambda a, w: a * w[:, None, None].rsqrt(), ((64, 256, 56, 56), (256,))
    ),
    "norm over channels": StridedFunction(
        lambda a: F.layer_norm(a.permute(0, 2, 3, 1), (96,)).permute(0, 3, 1, 2),
        ((128, 96, 56, 56),),
    ),
    "halves": StridedFunction(
        lambda a, c: a * c + torch.cat([-a[..., 64:], a[..., :64]], -1) * c,
        ((8, 32, 2048, 128), (2048, 128)),
    ),
    "roll": StridedFunction(lambda a: torch.roll(a, 7, 1) + a, ((8192, 8192),)),
    "sum of the middle": StridedFunction(lambda a: a.sum(1), ((256, 512, 512),)),
    "relu": StridedFunction(torch.relu, ((8192, 8192),)),
    "sum of columns, short": StridedFunction(lambda a: a.sum(0), ((8192, 4096),)),
    "standardised columns": StridedFunction(
        lambda a: (a - a.mean(0)) / (a.std(0) + 1e-5), ((8192, 4096),)
    ),
    "upsample": StridedFunction(lambda a: F.interpolate(a, scale_factor=2.0), ((16, 64, 64, 64),)),
    "gather": StridedFunction(
        lambda a, b: a.gather(1, (b.abs() * 1000).long() % 4096), ((8192, 4096), (8192, 64))
    ),
    "outer product": StridedFunction(lambda a, b: a[:, None] * b, ((8192,), (8192,))),
}


@dataclass(frozen=True, slots=True)
class TimedConfig:
    """One config of a function; expected, measured: seconds."""

    function: str
    config: Config
    expected: float
    measured: float = math.nan


def graph_of(function: StridedFunction) -> Graph:
    """All of a function as one group, captured as a user's model is."""
    given = [torch.empty(each, dtype=function.dtype, device="meta") for each in function.shapes]
    torch._dynamo.reset()
    (part,) = capture_model(function.of, CallArguments.of(given), training=False).parts
    whole = part.captured.graph
    nodes = (node.id for node in whole.nodes if ops.is_compute(node))
    return subgraph(whole, with_free_nodes(whole, nodes)).graph


def chosen(graph: Graph, profile: DeviceProfile, count: int) -> list[tuple[Config, float]]:
    """The model's choice, its first four configs and, at random, others: of each layout and blocks
    one, and a third as many that differ in the rest; with the seconds that the cost model expects.
    """
    space = space_of(graph, profile)
    assert isinstance(space, Space), space
    every = space.ranked(2000)
    found = [judged for judged in [space.top()] if judged] + every[:4]
    slowest = SLOWEST * min(cost.seconds for _, cost in found)
    every = [(config, cost) for config, cost in every if cost.seconds < slowest]
    seen: set[object] = set()
    first, rest = list[tuple[Config, Cost]](), list[tuple[Config, Cost]]()
    for config, cost in every:
        kind = config.layout, config.blocks
        (rest if kind in seen else first).append((config, cost))
        seen.add(kind)
    some = random.Random(0)
    found += some.sample(first, min(count, len(first)))
    found += some.sample(rest, min(count // 3, len(rest)))
    return list({config: cost.seconds for config, cost in found}.items())


def _lowered(graph: Graph, config: Config) -> Program:
    program = lower(graph, config)
    assert isinstance(program, Program), program
    return program


def compiled(name: str, profile: DeviceProfile, count: int) -> list[TimedConfig]:
    """The configs of a function that compile, in Triton's cache after this."""
    torch.set_num_threads(1)
    graph, found = graph_of(FUNCTIONS[name]), []
    for config, seconds in chosen(graph, profile, count):
        try:
            for kernel in _lowered(graph, config).kernels:
                compile_kernel(kernel)
        except CompileFailed as error:
            print(f"{name}, {config}: {error}", file=sys.stderr)
        else:
            found.append(TimedConfig(name, config, seconds))
    return found


def timed(configs: Sequence[TimedConfig], device: torch.device) -> Iterator[TimedConfig]:
    """The same, measured: the median of some rounds of calls one after the other."""
    graph = graph_of(FUNCTIONS[configs[0].function])
    inputs = make(graph, "random", device, 0)
    outputs = [empty(kind, device) for kind in output_types(graph)]
    for each in configs:
        run = LoadedKernels(_lowered(graph, each.config), device).bind(inputs, outputs)
        run()
        rounds = []
        for _ in range(ROUNDS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            for _ in range(CALLS):
                run()
            end.record()
            end.synchronize()
            rounds.append(begin.elapsed_time(end) / 1e3 / CALLS)
        yield TimedConfig(each.function, each.config, each.expected, statistics.median(rounds))


def row(found: Sequence[TimedConfig]) -> str:
    """The best of a function, the model's choice, and how well it orders them."""
    best = min(found, key=lambda each: each.measured)
    pick = min(found, key=lambda each: each.expected)
    order = _correlation([(math.log(e.expected), math.log(e.measured)) for e in found])
    cells = [
        *(best.function, str(len(found)), f"{best.measured * 1e6:.1f}"),
        *(f"{pick.measured * 1e6:.1f}", f"{pick.expected * 1e6:.1f}"),
        *(f"{pick.measured / best.measured:.2f}", f"{order:.2f}", str(best.config)),
    ]
    return f"| {' | '.join(cells)} |"


HEAD = ("function", "configs", "best us", "choice us", "expected", "of best", "correlation", "best")


def _correlation(pairs: Sequence[tuple[float, float]]) -> float:
    expected, measured = zip(*pairs, strict=True)
    if len({*expected}) < 2 or len({*measured}) < 2:
        return math.nan
    return statistics.correlation(expected, measured)


def main(arguments: Sequence[str] | None = None) -> int:
    """0: done; 2: usage; 3: no GPU."""
    parser = compiling_parser(__doc__)
    parser.add_argument("names", nargs="*", help="parts of names; all where none is given")
    parser.add_argument("--configs", type=int, default=24, help="blocks to try for each")
    options = parser.parse_args(arguments)
    device = current_gpu()
    if device is None:
        return NO_GPU
    profile = profile_of(device)
    names = [n for n in FUNCTIONS if not options.names or any(p in n for p in options.names)]
    prepare: Callable[[str], list[TimedConfig]] = partial(
        compiled, profile=profile, count=options.configs
    )
    lines: list[dict[str, Any]] = []
    print(table_head(HEAD))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, context) as pool:
        for configs in pool.map(prepare, names):
            found = list(timed(configs, device))
            print(row(found), flush=True)
            lines += [asdict(each) for each in found]
            if options.json:
                options.json.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
