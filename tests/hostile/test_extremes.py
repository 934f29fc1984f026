"""Kernels for tensors whose elements lie more than 2^31 apart: addresses have 64 bits."""

from __future__ import annotations

import re

import pytest
from fusionplan.planner.codegen.source import Program
from fusionplan.planner.config import Config
from fusionplan.planner.graph.graph import INPUT, Graph, Node, Ref, TensorType
from fusionplan.planner.lower import lower

ROWS, COLUMNS = 3, 5


def added(stride: int) -> Graph:
    """Rows of int8 so far apart, plus 1."""
    far = TensorType((ROWS, COLUMNS), (stride, 1), "int8")
    near = TensorType((ROWS, COLUMNS), (COLUMNS, 1), "int8")
    nodes = (Node(0, "x", INPUT, type=far), Node(1, "y", "aten.add.Tensor", (Ref(0), 1), type=near))
    return Graph(nodes, (1,))


def indices(stride: int, rows: int, columns: int) -> dict[str, bool]:
    """The indices of the kernel's axes, and whether each is made of 64 bits: cast itself, or from
    a program's number that is."""
    program = lower(added(stride), Config((("x0", rows), ("x1", columns)), num_warps=1))
    assert isinstance(program, Program)
    (kernel,) = program.kernels
    lines = dict(re.findall(r"^    (\w+) = (.*?)(?:  #.*)?$", kernel.text, re.MULTILINE))
    wide: set[str] = set()
    for name, text in lines.items():
        if "tl.int64" in text or wide & set(re.findall(r"\w+", text)):
            wide.add(name)
    return {name: name in wide for name in lines if re.fullmatch(r"[xr]\d", name)}


@pytest.mark.parametrize("rows, columns", [(1, 1), (2, 8), (4, 1), (4, 8), (4, 2), (1, 8)])
def test_each_index_has_64_bits_where_offsets_need_them(rows: int, columns: int) -> None:
    assert indices(2**30, rows, columns) == {"x0": True, "x1": True}
    assert indices(8, rows, columns) == {"x0": False, "x1": False}
