"""Promotion of types, beside torch's own."""

from __future__ import annotations

import itertools

import pytest
import torch
from fusionplan.planner.trace.promotion import promoted
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Kind
from torch._prims_common import elementwise_dtypes

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
)
SAMPLES = [
    *(torch.empty((1,) * rank, dtype=d, device="meta") for d in DTYPES for rank in (0, 2)),
    *(True, 2, 2.5),
]


@pytest.mark.parametrize("kind", [Kind.DEFAULT, Kind.INT_TO_FLOAT, Kind.ALWAYS_BOOL])
def test_every_pair_is_promoted_as_torch_does(kind: Kind) -> None:
    for pair in itertools.product(SAMPLES, repeat=2):
        assert promoted(pair, kind) == elementwise_dtypes(*pair, type_promotion_kind=kind)


def test_triples_with_and_without_dimensions() -> None:
    for three in itertools.product(SAMPLES[::3], repeat=3):
        found = promoted(three, Kind.DEFAULT)
        assert found == elementwise_dtypes(*three, type_promotion_kind=Kind.DEFAULT)
