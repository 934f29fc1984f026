"""What the cost model expects of the vendor's products, beside what they took."""

from __future__ import annotations

import math

import pytest
from fusionplan.planner.costs.device import H200
from fusionplan.planner.costs.vendor_products import vendor_s
from graphs import product

HALF = "bfloat16"

# Rows, terms of a sum, columns: microseconds of torch.mm on an H200, torch 2.11, bfloat16. The
# first are the products of ConvNeXt-S, then those of a few rows with Llama-3.2-1B's weights.
TOOK = {
    (512, 512, 512): 3.7,
    (200704, 384, 96): 52.3,
    (200704, 96, 384): 58.7,
    (50176, 768, 192): 30.3,
    (50176, 192, 768): 37.7,
    (12544, 1536, 384): 23.3,
    (12544, 384, 1536): 29.8,
    (3136, 3072, 768): 21.1,
    (3136, 768, 3072): 25.3,
    (8192, 4096, 4096): 338.8,
    (8, 2048, 512): 5.8,
    (8, 2048, 2048): 6.1,
    (8, 8192, 2048): 13.8,
    (8, 2048, 3072): 6.4,
    (8, 2048, 8192): 10.7,
    (8, 2048, 16384): 18.4,
    (8, 2048, 128256): 140.2,
    (32, 2048, 512): 5.8,
    (32, 2048, 2048): 6.2,
    (32, 8192, 2048): 14.1,
    (32, 2048, 3072): 6.5,
    (32, 2048, 8192): 10.8,
    (32, 2048, 16384): 19.3,
    (32, 2048, 128256): 145.3,
}

# Of a layer's products together: those of ViT-L 32 but q, k and v; its q, k and v; all of BERT-base
# 32 x 512; all of GPT-2 medium 8 x 1024.
TOGETHER = [
    ([(6304, 1024, 1024), (6304, 1024, 4096), (6304, 4096, 1024)], 169.0),
    ([(6304, 1024, 3072)], 56.5),
    ([(16384, 768, 768)] * 4 + [(16384, 768, 3072), (16384, 3072, 768)], 332.0),
    ([(8192, 1024, n) for n in (3072, 1024, 4096)] + [(8192, 4096, 1024)], 280.0),
]


def model_us(rows: int, summed: int, columns: int, dtype: str = HALF) -> float:
    graph = product(rows, summed, columns, dtype=dtype, turned=(False, True))
    return 1e6 * vendor_s(graph, len(graph.nodes) - 1, H200)


def test_the_model_is_as_near_to_measured_products_as_it_says() -> None:
    errors = [math.log(model_us(*sizes) / took) for sizes, took in TOOK.items()]
    errors += [math.log(sum(model_us(*s) for s in every) / took) for every, took in TOGETHER]
    assert math.sqrt(sum(e * e for e in errors) / len(errors)) < 0.13
    assert max(map(abs, errors)) < 0.22


@pytest.mark.parametrize("rows", [3136, 6304, 12544])
def test_tiles_fit_the_sizes(rows: int) -> None:
    """Blocks of 128 x 128 would leave half of the SMs idle in the last turn: 3136 x 768 has 150."""
    work = 2.0 * rows * 768 * 3072
    assert model_us(rows, 3072, 768) < 1.45e6 * work / H200.tensor_flops


def test_long_sums_of_few_tiles_are_shared() -> None:
    assert model_us(128, 65536, 128) < 0.3 * 1e6 * 2 * 128**2 * 65536 / (H200.tensor_flops / 132)


def test_wider_numbers_take_longer() -> None:
    assert model_us(4096, 4096, 4096, "float32") > 5 * model_us(4096, 4096, 4096)
