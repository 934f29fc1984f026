"""Kernels written by hand, and a fresh Dynamo for each test."""

import textwrap
from collections.abc import Callable

import pytest
from fusionplan.planner.codegen.source import Buffer, KernelSource


@pytest.fixture(autouse=True)
def _fresh(fresh_dynamo) -> None:
    """Each test here begins with nothing compiled."""


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
