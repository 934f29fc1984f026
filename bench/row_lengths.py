"""`python -m fusionplan.bench.row_lengths`: functions of rows of every length.

Softmax, layer norm, RMS norm, cross-entropy and divergences of rows of lengths that are no powers
of two, in three types, by the cost model's plan without a tune. A byte of such a row should take as
long as one of the next power of two: `ratio` says how much longer it takes, `of least` how much
longer than the device needs to read and write all tensors once.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from ..planner.capture.capture import capture, decompositions
from ..planner.capture.rewrites.rewrite import rewritten
from ..planner.codegen.source import Program
from ..planner.costs.device import DeviceProfile, profile_of
from ..planner.covers.cover import modelled_plan
from ..planner.graph.graph import Graph
from ..planner.groups.group import subgraph
from ..planner.lower import lower
from ..planner.plan import Plan
from ..planner.runtime.execution.executor import Executor
from ..planner.runtime.execution.modules import captured_of
from ..planner.runtime.machine_code.compile import CompileFailed, compile_kernel
from .command_line import NO_GPU, compiling_parser, current_gpu, table_head

COLUMNS = (1000, 4099, 5128, 32000, 50257, 50304, 128256, 151936)
DTYPES = ("bfloat16", "float16", "float32")
ELEMENTS = 2**27
"""Elements of the rows together, more or less: many times a cache."""

CALLS, ROUNDS = 5, 5


def _softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def _layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, weight.shape, weight, bias)


def _rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, weight.shape, weight, 1e-5)


def _cross_entropy(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x, target)


def _kl_divergence(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.kl_div(x.log_softmax(-1), y.log_softmax(-1), log_target=True, reduction="batchmean")


def js_divergence(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    p, q = x.softmax(-1), y.softmax(-1)
    middle = ((p + q) / 2).log()
    sides = (F.kl_div(middle, each, reduction="batchmean") for each in (p, q))
    return torch.stack([*sides]).mean()


@dataclass(frozen=True, slots=True)
class RowFunction:
    """A function of rows. matrices, vectors: how many of each it takes, as long as a row."""

    call: Callable[..., torch.Tensor]
    matrices: int = 1
    vectors: int = 0


FUNCTIONS: Mapping[str, RowFunction] = {
    "softmax": RowFunction(_softmax),
    "layer_norm": RowFunction(_layer_norm, vectors=2),
    "rms_norm": RowFunction(_rms_norm, vectors=1),
    "cross_entropy": RowFunction(_cross_entropy),
    "kl_divergence": RowFunction(_kl_divergence, matrices=2),
    "js_divergence": RowFunction(js_divergence, matrices=2),
}


@dataclass(frozen=True, slots=True)
class RowCase:
    """One combination."""

    function: str
    columns: int
    dtype: str

    @property
    def count(self) -> int:
        return max(1, ELEMENTS // self.columns)

    @property
    def beside(self) -> RowCase:
        """The same of the next power of two."""
        return RowCase(self.function, 1 << (self.columns - 1).bit_length(), self.dtype)

    def inputs(self, device: torch.device) -> list[torch.Tensor]:
        dtype = getattr(torch, self.dtype)
        takes = FUNCTIONS[self.function]
        shapes = [(self.count, self.columns)] * takes.matrices + [(self.columns,)] * takes.vectors
        made = [torch.randn(shape, device=device, dtype=dtype) for shape in shapes]
        if self.function == "cross_entropy":
            made.append(torch.randint(self.columns, (self.count,), device=device))
        return made


@dataclass(frozen=True, slots=True)
class PlannedRows:
    """The model's plan of a combination. failed: why its kernels do not compile."""

    rows: RowCase
    graph: Graph
    plan: Plan
    failed: str = ""


@dataclass(frozen=True, slots=True)
class TimedRows:
    """moved: bytes of all inputs and results, once."""

    rows: RowCase
    seconds: float
    moved: int
    plan: str

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.moved / self.seconds


def graph_of(rows: RowCase) -> Graph:
    """The graph of a combination, without data."""
    function = FUNCTIONS[rows.function].call
    with FakeTensorMode():
        given = rows.inputs(torch.device("cpu"))
        opened = make_fx(lambda *x: [function(*x)], decomposition_table=decompositions())(*given)
        traced = make_fx(functionalize(opened))(*given)  # RMS norm adds in place
    return capture(rewritten(traced, "inference")).graph


def planned(rows: RowCase, profile: DeviceProfile) -> PlannedRows:
    """The model's plan, its kernels in Triton's cache after this."""
    torch.set_num_threads(1)
    graph = graph_of(rows)
    plan = modelled_plan(graph, profile)
    try:
        for group in plan.groups:
            if group.config is None:
                continue
            program = lower(subgraph(graph, group.nodes, group.copies).graph, group.config)
            for kernel in program.kernels if isinstance(program, Program) else ():
                compile_kernel(kernel)
    except CompileFailed as error:
        return PlannedRows(rows, graph, plan, str(error))
    return PlannedRows(rows, graph, plan)


def timed(each: PlannedRows, device: torch.device) -> TimedRows:
    """Median of some rounds of calls one after the other. Raises AssertionError where a result is
    not that of float32."""
    run = Executor(captured_of(each.graph, device), each.plan, device)
    inputs = each.rows.inputs(device)
    (result,) = run(*inputs)
    function = FUNCTIONS[each.rows.function].call
    few = inputs if result.dim() == 0 else [inputs[0][:64], *inputs[1:]]
    mine = result if result.dim() == 0 else result[:64]
    exact = function(*(t.float() if t.is_floating_point() else t for t in few))
    torch.testing.assert_close(mine.float(), exact, rtol=2e-2, atol=2e-2)
    moved = sum(t.nbytes for t in (*inputs, result))
    laps = []
    for _ in range(ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda._sleep(1_000_000)  # type: ignore[no-untyped-call]
        begin.record()
        for _ in range(CALLS):
            run(*inputs)
        end.record()
        end.synchronize()
        laps.append(begin.elapsed_time(end) / 1e3 / CALLS)
    text = "; ".join(f"{g.lowering} {g.config or g.options}".strip() for g in each.plan.groups)
    return TimedRows(each.rows, statistics.median(laps), moved, text)


HEAD = ("function", "columns", "type", "us", "GB/s", "ratio", "of least", "plan")


def row(found: TimedRows, beside: TimedRows | None, read: float) -> str:
    """beside: the next power of two. read: bytes a second that the device reads at best."""
    ratio = "" if beside is None else f"{beside.rate / found.rate:.2f}"
    cells = [
        *(found.rows.function, str(found.rows.columns), found.rows.dtype),
        *(f"{found.seconds * 1e6:.0f}", f"{found.rate / 1e9:.0f}", ratio),
        *(f"{found.seconds * read / found.moved:.2f}", found.plan),
    ]
    return f"| {' | '.join(cells)} |"


def combinations(
    names: Sequence[str], columns: Sequence[int], dtypes: Sequence[str]
) -> list[RowCase]:
    """All that is asked, each after the power of two that it is compared with."""
    asked = [RowCase(*each) for each in product(names, columns, dtypes)]
    return list(dict.fromkeys(rows for each in asked for rows in (each.beside, each)))


def measured(
    asked: Sequence[RowCase], device: torch.device, profile: DeviceProfile, jobs: int
) -> Iterator[TimedRows]:
    """Each that can be built, in order; what cannot is told on stderr."""
    prepare = partial(planned, profile=profile)
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        ready = list(pool.map(prepare, asked))
    for each in ready:
        if each.failed:
            print(f"{each.rows}: {each.failed}", file=sys.stderr)
        else:
            yield timed(each, device)


def main(arguments: Sequence[str] | None = None) -> int:
    """0: done; 2: usage; 3: no GPU."""
    parser = compiling_parser(__doc__)
    parser.add_argument("names", nargs="*", choices=[*FUNCTIONS, []], help="functions; default all")
    parser.add_argument("--columns", type=int, nargs="+", default=list(COLUMNS))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    options = parser.parse_args(arguments)
    device = current_gpu()
    if device is None:
        return NO_GPU
    profile = profile_of(device)
    asked = combinations(options.names or [*FUNCTIONS], options.columns, options.dtypes)
    print(table_head(HEAD))
    found: dict[RowCase, TimedRows] = {}
    for each in measured(asked, device, profile, options.jobs):
        found[each.rows] = each
        print(row(each, found.get(each.rows.beside), profile.bandwidth), flush=True)
        if options.json:
            with options.json.open("a") as lines:
                lines.write(json.dumps(asdict(each)) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
