"""Bytes of single kernels: which are watched, and how they meet what the cost model expects."""

import json
from dataclasses import replace

import pytest
import torch
from fusionplan.bench import kernel_bytes, ncu
from fusionplan.bench.kernel_bytes import METRICS, Counted, fastest, markdown, matched, results
from fusionplan.planner.config import Config
from fusionplan.planner.costs.device import H200
from fusionplan.planner.costs.work import work_of
from fusionplan.planner.graph.graph import Graph, Node, Ref, TensorType, kernel_key, to_json
from fusionplan.planner.nests.group_nests import schedule_group
from fusionplan.tuner.model_fit.accuracy import Sample
from fusionplan.tuner.trial.wire import config_to_json

SMALL, LARGE = (Config((("x0", size),), 4, 1) for size in (256, 1024))


def doubled(size):
    kind = TensorType((size,), (1,), "float32")
    nodes = (
        Node(0, "x", "input", (), (), kind),
        Node(1, "y", "aten.mul.Tensor", (Ref(0), 2), (), kind),
    )
    return Graph(nodes, (1,))


def sample(size, config=SMALL, seconds=1e-5):
    group = doubled(size)
    (kernel,) = schedule_group(group, config.layout).kernels
    works = (work_of(kernel.nest, config, H200),)
    return Sample(kernel_key(group), "model", "pointwise", config, works, seconds, 16, 0)


def launch(name, read):
    return ncu.ProfiledLaunch(name, dict(zip(METRICS, (read, 1e-5), strict=True)))


def test_the_fastest_config_of_each_group_and_the_slowest_group_first():
    slow, fast, other = sample(4096, SMALL, 2e-5), sample(4096, LARGE, 1e-5), sample(8192)
    other = replace(other, measured_s=5e-5)
    assert fastest([slow, fast, other]) == [other, fast]


def test_a_launch_meets_its_expectation_and_one_out_of_turn_is_told():
    a, b = sample(1 << 20), sample(1 << 22)
    sizes = {a.kernel: results(doubled(1 << 20), SMALL), b.kernel: [16 << 20]}
    ran = {a.kernel: ["one"], b.kernel: ["two"]}
    watched = [launch("one", 4 << 20), launch("two", 8 << 20)]
    first, second = matched([b, a], sizes, ran, watched)
    assert (first.kernel, first.expected, first.bytes) == (a.kernel, 8 << 20, 8 << 20)
    assert first.is_near
    assert (second.expected, second.bytes) == (32 << 20, 24 << 20)
    assert not second.is_near
    with pytest.raises(ncu.NcuError, match="ncu saw two where one was launched"):
        matched([a, b], sizes, ran, watched[::-1])
    with pytest.raises(ncu.NcuError, match="ncu saw None where two"):
        matched([a, b], sizes, ran, watched[:1])


def test_the_table_counts_large_kernels_alone_and_names_the_worst():
    near = Counted("a", "pointwise", "good", 10_500_000, 5_000_000, 5_000_000, 1e-5)
    far = replace(near, kernel="b", name="bad", expected=30_000_000)
    small = replace(near, kernel="c", name="small", expected=1, read=999_999, stored=0)
    lines = markdown([near, far, small]).splitlines()
    assert "| all | 2 | 50% | 2.02 |" in lines
    assert any(line.startswith("| bad | pointwise | 30.0 | 5.0 | 5.0 |") for line in lines)
    assert not any("small" in line or "good" in line for line in lines)


@pytest.mark.interpreter
def test_what_runs_under_ncu_tells_its_kernels_and_what_does_not_run(capsys):
    group = doubled(4096)
    good = {"kernel": "a", "group": to_json(group), "config": config_to_json(SMALL)}
    bad = good | {"kernel": "b", "config": config_to_json(replace(SMALL, reduction="loop"))}
    kernel_bytes._child([good, bad], torch.device("cpu"))
    told = capsys.readouterr()
    assert json.loads(told.out) == {"a": ["fused_mul"]}


@pytest.mark.parametrize(
    "device, said", [("cpu", "no store"), ("cuda:99", "cuda:99"), ("moon", "moon")]
)
def test_what_is_not_there_is_told(tmp_path, capsys, device, said):
    given = ["--store", str(tmp_path / "none.db"), "--device", device]
    assert kernel_bytes.main(given) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_store_without_kernels_is_told(tmp_path, capsys):
    from fusionplan.db import Store

    with Store.open(tmp_path / "empty.db"):
        pass
    given = ["--store", str(tmp_path / "empty.db"), "--device", "cpu"]
    assert kernel_bytes.main(given) == 1
    assert "tune" in capsys.readouterr().err
