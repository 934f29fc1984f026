"""A tile program as text for Triton's interpreter, which runs kernels on NumPy arrays."""

from __future__ import annotations

from dataclasses import replace

from ..graph.dtypes import FLOAT8
from ..graph.op import Accuracy, Op
from ..tiles.blocks import TileDims
from ..tiles.passes.extract_bits import extract_bits
from ..tiles.passes.join_reductions import join_reductions
from ..tiles.passes.multiply_in_pairs import multiply_in_pairs
from ..tiles.passes.overlap_kernels import overlap_kernels
from ..tiles.passes.round_cancelled_products import round_cancelled_products
from ..tiles.passes.sum_in_quads import sum_in_quads
from ..tiles.passes.unpack_pairs import unpack_pairs
from ..values.values import Compute, Value
from .body import convert
from .triton import TritonPrinter

_TRUE = "tl.full([], True, tl.int1)"


class InterpreterPrinter(TritonPrinter):
    """Prints a program for Triton's interpreter. It differs from the printer for GPUs:

    - It launches nothing before the last kernel ends.
    - It reduces several values at once one element after the other: each sum goes alone.
    - It never joins a product and a sum to one instruction.
    - It broadcasts a comparison of scalars as their type, not as bool.
    - It cuts low bits off where the GPU rounds to bfloat16.
    - It keeps bfloat16 as integers, and would multiply those.
    - It runs no instructions that Triton does not know, as for bytes to float32.
    - It has no infinity and no NaN of float8.
    - It divides by a number as torch does on a CPU.
    """

    left_out = (
        extract_bits,
        overlap_kernels,
        join_reductions,
        multiply_in_pairs,
        round_cancelled_products,
        sum_in_quads,
        unpack_pairs,
    )

    def evaluated(self, value: Value, text: str, dims: TileDims) -> str:
        if not isinstance(value.kind, Compute) or value.dtype != "bool":
            return text
        if not dims:
            return f"{_TRUE} & ({text})"
        if value.kind.op is Op.EXCEEDS:  # One number is compared with itself beside a tile.
            greater, _, is_nan = text.partition(" | ")
            return f"{greater} | ({_TRUE} & {is_nan})"
        return text

    def accurate(self, compute: Compute) -> Compute:
        by_inverse = compute.accuracy is Accuracy.BY_INVERSE
        return replace(compute, accuracy=Accuracy.EXACT) if by_inverse else compute

    def loaded(self, text: str, source: str, target: str) -> str:
        if source in FLOAT8:
            return f"libdevice.from_{source}({text})"
        return convert(text, source, target)

    def converted(self, text: str, source: str, target: str, dims: TileDims) -> str:
        return convert(text, source, target)

    def stored(self, text: str, source: str, target: str) -> str:
        if target in FLOAT8:
            return f"libdevice.to_{target}({text})"
        if target == "bfloat16":
            return f"libdevice.rounded({text}).to(tl.bfloat16)"
        return convert(text, source, target)

    def operand(self, text: str, source: str, target: str) -> str:
        return convert(_rounded(text, target), source, target)

    def nan(self, dtype: str) -> str:
        text = super().nan(dtype)
        held = dtype == "bfloat16"
        return f"tl.full([], {text}, tl.float32).to(tl.bfloat16)" if held else text

    def multiplied(self, dtype: str) -> str:
        return "float32" if dtype == "bfloat16" else dtype


def _rounded(text: str, target: str) -> str:
    return f"libdevice.rounded({text})" if target == "bfloat16" else text
