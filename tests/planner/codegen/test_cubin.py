"""The kernels around matrix products compile for an H200, with no GPU, and fit it: registers,
spills and shared memory of the workloads of bench/contractions.py at full size, by the model's
best configs. `python tests/planner/codegen/contraction_cubins.py` prints the table alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from compiling import by_compiler
from contraction_cubins import Cubin, table

pytestmark = pytest.mark.process

NAMES = (
    "linear_smallk_gelu",
    "linear_relu",
    "matmul_rowmax",
    "splade_head",
    "linear_cross_entropy",
    "attn_naive_softcap_alibi_causal",
    "decode_attention",
    "attn_out_residual_ln",
)
MOST_REGISTERS = 255
MOST_SPILLED = 64
"""Bytes of a thread: some registers around a loop, none in each turn of it."""
MOST_SHARED = 227 * 1024
"""What a block may have on Hopper."""


@dataclass(frozen=True)
class _Summary:
    """Prints the table at the end of the session, where one process runs all tests."""

    text: str

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("kernels around matrix products, compiled for an H200")
        terminalreporter.write_line(self.text)


@pytest.fixture(scope="module")
def kernels(request: pytest.FixtureRequest) -> list[Cubin]:
    """Compiled in a process of its own, because the interpreter is on in this one."""
    script = Path(__file__).with_name("contraction_cubins.py")
    found = [Cubin(**kernel) for kernel in by_compiler(script, "--json", *NAMES)]
    request.config.pluginmanager.register(_Summary(table(found)))
    return found


def of(kernels: list[Cubin], name: str) -> list[Cubin]:
    found = [k for k in kernels if k.workload == name]
    assert found, f"no kernel of {name}"
    return found


@pytest.mark.parametrize("name", NAMES)
def test_kernels_around_products_compile_and_fit(kernels: list[Cubin], name: str) -> None:
    for kernel in of(kernels, name):
        assert kernel.cubin_bytes > 1000
        assert 16 < kernel.registers <= MOST_REGISTERS
        assert kernel.spill_bytes <= MOST_SPILLED, table([kernel])
        assert 0 < kernel.shared_bytes <= MOST_SHARED


@pytest.mark.parametrize("name", NAMES)
def test_products_run_on_tensor_cores(kernels: list[Cubin], name: str) -> None:
    first, *rest = of(kernels, name)
    assert first.tensor_core
    # Only one that is cut over the grid has a second kernel, which combines the parts.
    split = name == "linear_cross_entropy"
    assert [k.tensor_core for k in rest] == [False] * split


def test_attention_is_one_kernel_of_two_products(kernels: list[Cubin]) -> None:
    assert [k.products for k in of(kernels, "attn_naive_softcap_alibi_causal")] == [2]


def test_heads_that_share_keys_are_rows_of_one_product(kernels: list[Cubin]) -> None:
    (kernel,) = of(kernels, "decode_attention")
    assert (kernel.products, kernel.spill_bytes) == (2, 0)
    assert kernel.registers <= 168, table([kernel])


def test_embeddings_and_their_layer_norm_fit_in_registers(kernels: list[Cubin]) -> None:
    (kernel,) = of(kernels, "embeddings")
    assert (kernel.spill_bytes, kernel.products) == (0, 0)
    assert 16 < kernel.registers <= 128, table([kernel])


def test_an_epilogue_in_parts_needs_fewer_registers(kernels: list[Cubin]) -> None:
    (whole,), (halves,) = of(kernels, "gelu in 1"), of(kernels, "gelu in 2")
    assert halves.registers < whole.registers == 255
    assert halves.spill_bytes == 0 < whole.spill_bytes
