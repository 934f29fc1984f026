"""Capturing what a function does, and kernels written by hand."""

import textwrap
from collections.abc import Callable, Iterator

import pytest
import torch
from fusionplan.planner.capture.capture import Captured, capture, is_dynamic, specialise
from fusionplan.planner.codegen.source import Buffer, KernelSource
from oracle import each_graph

Capture = Callable[..., Captured]


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def captures() -> Callable[..., list[Captured]]:
    """All graphs of a call (and of its backward pass), in order."""

    def look(gm, fakes):
        return capture(specialise(gm, fakes).gm if is_dynamic(gm) else gm)

    def run(function, *inputs, **options):
        return [found for found, _ in each_graph(function, inputs, look, **options)]

    return run


@pytest.fixture
def captured(captures) -> Capture:
    """The only graph of a call."""

    def run(function, *inputs, **options) -> Captured:
        (found,) = captures(function, *inputs, **options)
        return found

    return run


@pytest.fixture
def kernel() -> Callable[..., KernelSource]:
    """A pointwise kernel over float32: `kernel("x * 2", 1000)`; its operands are x, y, ..."""

    def write(expression: str, size: int, operands: str = "x", name: str = "kernel"):
        loads = "\n".join(f"    {o} = tl.load({o}_ptr + i, mask=i < {size})" for o in operands)
        pointers = ", ".join([*(f"{o}_ptr" for o in operands), "out_ptr"])
        text = textwrap.dedent(
            """
            import triton
            import triton.language as tl


            @triton.jit
            def {name}({pointers}):
                i = tl.program_id(0) * 128 + tl.arange(0, 128)
            {loads}
                tl.store(out_ptr + i, {expression}, mask=i < {size})
            """
        ).format(name=name, pointers=pointers, loads=loads, expression=expression, size=size)
        inputs = tuple(Buffer("in", i, "float32") for i in range(len(operands)))
        return KernelSource(
            name, text, (*inputs, Buffer("out", 0, "float32")), -(-size // 128), 4, 2
        )

    return write
