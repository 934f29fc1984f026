"""PyTorch's promotion of the types of an operation's operands, without importing sympy.

`torch._prims_common.elementwise_dtypes` imports it in its first call, for sizes that are symbols: a
second of each process that only compiles kernels, whose sizes are none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch._prims_common import (
    ELEMENTWISE_TYPE_PROMOTION_KIND,
    dtype_to_type,
    elementwise_dtypes,
    get_computation_dtype,
    get_higher_dtype,
    get_higher_type,
    number_type,
)

Sample: TypeAlias = "torch.Tensor | bool | int | float"


def promoted(
    samples: Sequence[Sample], kind: ELEMENTWISE_TYPE_PROMOTION_KIND
) -> tuple[torch.dtype, torch.dtype]:
    """In which dtype the operation is computed, and which its result has."""
    highest: type = bool
    for each in samples:
        if isinstance(each, torch.Tensor):
            own = dtype_to_type(each.dtype)
        else:
            own = number_type(each)
        highest = get_higher_type(highest, own)
    if highest is complex or kind not in _KINDS:
        found: tuple[torch.dtype, torch.dtype] = elementwise_dtypes(
            *samples, type_promotion_kind=kind
        )
        return found
    result = torch.bool
    if highest is float:
        result = _highest(samples, _is_float) or torch.get_default_dtype()
    elif highest is int:
        result = _highest(samples, _is_integer) or torch.long
    if kind is ELEMENTWISE_TYPE_PROMOTION_KIND.ALWAYS_BOOL:
        return get_computation_dtype(result), torch.bool
    if kind is ELEMENTWISE_TYPE_PROMOTION_KIND.INT_TO_FLOAT and not result.is_floating_point:
        result = torch.get_default_dtype()
    return get_computation_dtype(result), result


_KINDS = (
    ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT,
    ELEMENTWISE_TYPE_PROMOTION_KIND.INT_TO_FLOAT,
    ELEMENTWISE_TYPE_PROMOTION_KIND.ALWAYS_BOOL,
)


def _is_float(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point


def _is_integer(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and dtype != torch.bool


def _highest(
    samples: Sequence[Sample], wanted: Callable[[torch.dtype], bool]
) -> torch.dtype | None:
    """The highest of the wanted dtypes; that of a tensor with dimensions comes first."""
    single: torch.dtype | None = None
    several: torch.dtype | None = None
    for each in samples:
        if isinstance(each, torch.Tensor) and wanted(each.dtype):
            if each.ndim:
                several = get_higher_dtype(several, each.dtype)
            else:
                single = get_higher_dtype(single, each.dtype)
    return single if several is None else several
