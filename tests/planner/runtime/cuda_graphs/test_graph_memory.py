"""Memory of CUDA graphs, on a GPU: what a graph may write to, and what graphs of several sizes
take together."""

import gc
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from fusionplan.api import executors, load
from fusionplan.planner.runtime.cuda_graphs import graph_memory
from fusionplan.planner.runtime.cuda_graphs.graph_memory import (
    CudaRecorder,
    GraphPool,
    _allocator_settings,
    _growing_segments,
    _options,
)
from fusionplan.planner.runtime.machine_code.compile import compilations
from oracle import DEVICE

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
needs_kernels = pytest.mark.skipif(DEVICE != "cuda", reason="needs PLANNER_TEST_DEVICE=cuda")

MEBIBYTE = 1 << 20


def split(inputs):
    """A product that is so deep and small that cuBLAS sums parts of it in its workspace."""
    return [inputs[0] @ inputs[1]]


@needs_gpu
def test_a_graph_does_not_write_into_memory_of_a_graph_that_is_gone():
    record = CudaRecorder(torch.device("cuda", 0))
    torch.manual_seed(0)
    x = torch.randn(128, 1 << 16, device="cuda", dtype=torch.bfloat16)
    y = torch.randn(1 << 16, 128, device="cuda", dtype=torch.bfloat16)
    wanted = x @ y
    gone = record(split, [x, y], (), GraphPool())
    replay, _, (found,), *_ = record(split, [x, y], (), GraphPool())
    del gone
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()  # as torch.compile's CUDA graphs do
    torch.cuda.empty_cache()
    others = [torch.zeros(MEBIBYTE, dtype=torch.uint8, device="cuda") for _ in range(256)]
    for _ in range(3):
        replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(found, wanted, rtol=0.02, atol=4.0)
    assert not any(bool(each.any()) for each in others)


def many_objects(inputs):
    """So many that the collector of cycles looks for some."""
    made = [[[]] for _ in range(10_000)]
    return [inputs[0] + len(made)]


@needs_gpu
def test_a_graph_that_nobody_holds_does_not_end_the_next_capture():
    record = CudaRecorder(torch.device("cuda", 0))
    x = torch.ones(4, device="cuda")
    cycle = [record(many_objects, [x], (), GraphPool())]
    cycle.append(cycle)
    del cycle
    replay, _, (found,), *_ = record(many_objects, [x], (), GraphPool())
    replay()
    assert found.tolist() == [10_001.0] * 4
    assert gc.isenabled()


def test_the_collector_waits_for_a_capture_and_other_threads_need_not(monkeypatch):
    seen = []

    @contextmanager
    def captured(graph, **options):
        yield seen.append((options["capture_error_mode"], gc.isenabled()))

    monkeypatch.setattr(torch.cuda, "graph", captured)
    with graph_memory._captured(None, None):
        pass
    assert seen == [("thread_local", False)]
    assert gc.isenabled()


def deep(inputs):
    """Several values at once, some of them large, and a result of the input's size."""
    (x,) = inputs
    wide = torch.cat([x, x + 1, x + 2, x + 3])
    rows = wide.view(4, -1)
    return [(rows * rows.mean(1, keepdim=True)).sum(0) + x]


def reserved():
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def pools():
    """Bytes of every pool of the allocator, the one that is no graph's apart."""
    found = Counter()
    for segment in torch.cuda.memory_snapshot():
        found[tuple(segment["segment_pool_id"])] += segment["total_size"]
    return found.pop((0, 0), 0), found


ORDERS = {
    "growing": [1, 2, 3, 5, 8, 13, 21, 34],
    "shrinking": [34, 21, 13, 8, 5, 3, 2, 1],
    "mixed": [5, 21, 2, 34, 8, 1, 13, 3],
}


@needs_gpu
@pytest.mark.parametrize("order", ORDERS)
def test_graphs_of_all_sizes_take_what_the_largest_takes(order):
    record = CudaRecorder(torch.device("cuda", 0))
    inputs = {n: torch.randn(n * MEBIBYTE // 4 + 64, device="cuda") for n in ORDERS[order]}
    settings = _allocator_settings()
    start = reserved()
    alone = record(deep, [inputs[34]], (), GraphPool(is_shared=True))
    largest = reserved() - start
    del alone
    gc.collect()
    start, pool = reserved(), GraphPool(is_shared=True)
    graphs = {n: record(deep, [x], (0,), pool) for n, x in inputs.items()}
    assert reserved() - start <= 1.1 * (largest + inputs[34].nbytes)
    assert largest >= 4 * inputs[34].nbytes
    for _ in range(2):
        for n, (replay, ((_, buffer),), (found,), *_) in graphs.items():
            buffer.copy_(inputs[n])
            replay()
            torch.testing.assert_close(found, deep([inputs[n]])[0])
    assert "expandable_segments:True" in settings or "True" not in _allocator_settings()


@needs_gpu
def test_a_result_outlives_its_graph():
    record = CudaRecorder(torch.device("cuda", 0))
    x = torch.randn(MEBIBYTE, device="cuda")
    replay, _, (found,), *_ = record(deep, [x], (), GraphPool(is_shared=True))
    replay()
    kept = found.detach()
    wanted = kept.clone()
    del replay, found
    gc.collect()
    torch.cuda.empty_cache()
    others = [torch.zeros(MEBIBYTE, device="cuda") for _ in range(64)]
    torch.cuda.synchronize()
    assert torch.equal(kept, wanted)
    assert not any(bool(each.any()) for each in others)


@needs_gpu
def test_a_replay_waits_for_who_reads_on_another_stream():
    record, pool = CudaRecorder(torch.device("cuda", 0)), GraphPool(is_shared=True)
    x, y = (torch.full((8 * MEBIBYTE,), value, device="cuda") for value in (1.0, 2.0))
    first, second = (record(lambda given: [given[0] * 3], [each], (), pool) for each in (x, y))
    wide = torch.randn(8192, 8192, device="cuda")
    for _ in range(3):
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            first.replay()
            for _ in range(4):
                wide @ wide  # keeps this stream busy
            read = first.outputs[0] + 0
        second.replay()
        torch.cuda.synchronize()
        assert bool((read == 3).all())
        assert bool((second.outputs[0] == 6).all())


@needs_kernels
@pytest.mark.dynamo
@pytest.mark.process
def test_a_model_of_any_size_takes_what_its_largest_takes(tmp_path: Path):
    """Results are kept now and then, and are right as long as they are."""

    def model(x, w):
        return torch.softmax(torch.relu(x @ w) * 2, -1) @ w.t()

    torch.manual_seed(0)
    w = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16) / 32
    fast = load(
        model, store=str(tmp_path / "none.db"), on_miss="model", cudagraph=True, dynamic=True
    )

    sizes = [1024, 8192, 512, 4096, 2048, 768, 6144, 3072]
    inputs = {n: torch.randn(n, 1024, device="cuda", dtype=torch.bfloat16) for n in sizes}

    def calls(wanted_sizes):
        held = []
        with torch.no_grad():
            for turn, n in enumerate(wanted_sizes):
                torch._dynamo.mark_dynamic(inputs[n], 0)
                held.append((fast(inputs[n], w), model(inputs[n], w)))
                for found, wanted in held:
                    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)
                del held[: len(held) - turn % 3]

    calls([8192] * 9)  # what is held takes both pools
    start, before, compiled = reserved(), pools(), compilations()
    calls([n for n in sizes for _ in range(6)])
    calls(sizes * 3)
    end, after = reserved(), pools()
    assert sum(after[1].values()) <= 1.1 * sum(before[1].values()), (before, after)
    assert end <= 1.1 * start, (before, after)
    runners = executors(fast)
    assert len(runners) == len(sizes)
    assert all(runner.kernels_per_call > 0 for runner in runners)
    assert sum(runner.replays for runner in runners) > 2 * len(sizes)
    assert compilations() - compiled <= 8 * len(runners[0].plan.groups)


def test_settings_of_the_allocator_are_read_apart():
    text = "max_split_size_mb:200, roundup_power2_divisions:[256:1,512:2,>:4],,backend:native"
    assert [each.strip() for each in _options(text)] == [
        "max_split_size_mb:200",
        "roundup_power2_divisions:[256:1,512:2,>:4]",
        "backend:native",
    ]
    assert _options("") == []


@pytest.mark.parametrize("before", ["", "max_split_size_mb:200,expandable_segments:False"])
def test_the_settings_of_the_allocator_are_as_before(before, monkeypatch):
    chosen = []
    monkeypatch.setattr(torch._C, "_accelerator_getAllocatorSettings", lambda: before, False)
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", chosen.append, False)
    with _growing_segments():
        assert chosen[-1].endswith("expandable_segments:True")
    assert (
        chosen[-1] == f"{before.removesuffix('expandable_segments:False')}expandable_segments:False"
    )
    assert len(chosen) == 2


def test_growing_segments_of_the_user_stay(monkeypatch):
    monkeypatch.setattr(
        torch._C, "_accelerator_getAllocatorSettings", lambda: "expandable_segments: True", False
    )
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", pytest.fail, False)
    with _growing_segments():
        pass
