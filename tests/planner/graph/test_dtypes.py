"""The table of dtypes agrees with torch's own."""

from __future__ import annotations

import pytest
import torch
import triton.language as tl
from fusionplan.planner.graph import dtypes
from triton._utils import type_canonicalisation_dict


@pytest.mark.parametrize("name", sorted(dtypes.DTYPES))
def test_a_dtype_is_as_torch_and_triton_have_it(name: str) -> None:
    own = getattr(torch, name)
    assert dtypes.itemsize(name) == own.itemsize
    assert dtypes.is_float(name) == own.is_floating_point
    assert (name in dtypes.NARROW) == (own.is_floating_point and own.itemsize < 4)
    integer = not own.is_floating_point and own != torch.bool
    assert (name in dtypes.BOUNDS) == integer
    if integer:
        limits = torch.iinfo(own)
        assert dtypes.BOUNDS[name] == (limits.min, limits.max)
    held = getattr(tl, dtypes.TRITON_DTYPE[name].removeprefix("tl."))
    assert tl.dtype(held.name).primitive_bitwidth == (1 if name == "bool" else 8 * own.itemsize)
    assert dtypes.SIGNATURE[name] == ("i1" if name == "bool" else type_canonicalisation_dict[name])


def test_what_no_kernel_holds() -> None:
    assert dtypes.itemsize("complex128") == 16
    assert dtypes.itemsize("float8_e4m3fn") == 1
    assert "complex64" not in dtypes.DTYPES
    assert [dtypes.register_dtype(d) for d in ("bfloat16", "float64")] == ["float32", "float64"]
