"""Refusals of regions and of lowerings: groups that run a part at a time, kernels without a config,
calls of a library that compute another group."""

from __future__ import annotations

from functools import partial

import torch
from fusionplan.planner.graph.graph import INPUT, Graph
from fusionplan.planner.lower import lower
from fusionplan.planner.lowerings.base import GroupSite, Lowering
from fusionplan.planner.lowerings.registry import CHUNKED, FOLDED, RECOMPUTED, TRITON, VENDOR
from fusionplan.planner.regions.chunks import walk
from fusionplan.planner.regions.fold_convolutions import folded
from fusionplan.planner.regions.recompute import recomputed
from graphs import Builder, dense
from refused_traces import Cases, adding

CASES: Cases = {}
case = partial(adding, CASES)


@case("walk", "no value of the group is large")
def walk_of_small_values() -> object:
    b = Builder()
    y = b.op("exp.default", b.input(8, 6))
    return walk(b.graph(b.op("neg.default", y)), 1 << 20)


@case("walk", "no axis of the large values can be walked")
def walk_of_what_needs_all_of_itself() -> object:
    b = Builder()
    y = b.op("exp.default", b.input(64, 64))
    parts = b.op("div.Tensor", y, b.op("sum.dim_IntList", y, (0, 1), shape=()))
    return walk(b.graph(b.op("sum.dim_IntList", parts, (0,), shape=(64,))), 1 << 10)


@case("walk", "an axis to walk lies inside of another dimension")
def walk_inside_of_a_dimension() -> object:
    b = Builder()
    x = b.op("view.default", b.input(6 * 512, 16), (6, 512, 16), shape=(6, 512, 16))
    y = b.op("exp.default", x)
    return walk(b.graph(b.op("sum.dim_IntList", y, (0,), shape=(512, 16))), 1 << 16)


@case("walk", "100000 chunks are too many")
def walk_in_tiny_steps() -> object:
    b = Builder()
    y = b.op("exp.default", b.input(100000, 64))
    return walk(b.graph(b.op("neg.default", y)), 256)


@case("output", "a group's output is no tensor")
def region_with_an_output_that_is_none() -> object:
    b = Builder()
    return recomputed(b.graph(b.op("exp.default", b.input(4, 6)), None), 1)


@case("recompute", "no large value of the group has several readers")
def region_with_one_reader() -> object:
    b = Builder()
    y = b.op("exp.default", b.input(64, 64))
    return recomputed(b.graph(b.op("sum.dim_IntList", y, (0,), shape=(64,))), 1 << 10)


@case("opaque", "a group reads or gives what is no single tensor")
def region_that_reads_several_tensors() -> object:
    b = Builder()
    x = b.node(INPUT, (), None)
    y = b.op("exp.default", b.input(64, 64))
    first, second = (b.op("sum.dim_IntList", y, (dim,), shape=(64,)) for dim in (0, 1))
    last = b.node("aten.sort.default", (x, first), dense(64))
    return recomputed(b.graph(last, second), 1 << 10)


@case("fold", "the region is not one convolution and relu: not one convolution with one result")
def region_without_a_convolution() -> object:
    b = Builder()
    return folded(b.graph(b.op("exp.default", b.input(4, 6))), scaled=True)


@case("options", "'linear' is no call that a convolution is folded into")
def region_by_a_call_that_is_none() -> object:
    b = Builder()
    return FOLDED.walk(b.graph(b.op("exp.default", b.input(4, 6))), "linear")


@case("options", "'64 MiB' is no number of bytes")
def region_with_a_size_in_words() -> object:
    b = Builder()
    return CHUNKED.walk(b.graph(b.op("exp.default", b.input(4, 6))), "64 MiB")


def built(lowering: Lowering, group: Graph, options: str = "") -> object:
    """What a lowering makes of a group with these options, no config and no bodies."""

    def never(*_: object) -> object:
        raise AssertionError("nothing is compiled for a group that is refused")

    site = GroupSite(group, None, options, (), torch.device("cpu"), lower, never, never)
    return lowering.build(site)


@case("config", "a generated kernel needs a config")
def kernel_without_a_config() -> object:
    b = Builder()
    return built(TRITON, b.graph(b.op("exp.default", b.input(4, 6))))


@case("vendor", "no call 'attention' computes the group")
def call_that_computes_another_group() -> object:
    b = Builder()
    return built(VENDOR, b.graph(b.op("exp.default", b.input(4, 6))), "attention")


@case("bodies", "the plan has 0 bodies for 1 kinds of chunks")
def region_without_bodies() -> object:
    b = Builder()
    y = b.op("exp.default", b.input(64, 64))
    sums = (b.op("sum.dim_IntList", y, (dim,), shape=(64,)) for dim in (0, 1))
    return built(RECOMPUTED, b.graph(*sums), "1024")
