"""Bits of bytes as float32: the instructions that no interpreter runs, followed one by one."""

from __future__ import annotations

import re

import numpy as np
import pytest
from fusionplan.planner.codegen.bit_fields import fields

STEP = re.compile(r"lop3.b32 \$(\d), ([$\w]+), (\w+), (\w+), 0xEA; add.f32 \$\d, \$\d, 0f(\w+);")


def followed(text: str, words: np.ndarray) -> np.ndarray:
    """What the instructions make of each byte of these words."""
    steps = STEP.findall(text)
    assert [int(step[0]) for step in steps] == [0, 1, 2, 3]
    found = []
    for _, source, mask, power, less in steps:
        given = words if source == "$4" else words >> np.uint32(16)
        bits = given & np.uint32(int(mask, 16)) | np.uint32(int(power, 16))
        number = np.array(int(less, 16), np.uint32).view(np.float32)
        found.append(bits.view(np.float32) + number)
    return np.stack(found, -1)


@pytest.mark.parametrize("offset", [0, 8, 128, 255])
@pytest.mark.parametrize("width", range(1, 9))
def test_every_byte_gives_its_bits_less_the_offset(width: int, offset: int) -> None:
    numbers = np.random.default_rng(0).integers(0, 256, (256, 4), np.uint8)
    numbers[:, :] = (numbers + np.arange(256)[:, None]).astype(np.uint8)
    for shift in range(9 - width):
        (text,) = fields(f"from_bits_{shift}_{width}_{offset}(x)").values()
        words = numbers.view(np.uint32)[:, 0]
        assert ("shr.u32 word, $4, 16;" in text) == (", word," in text)
        wanted = ((numbers.astype(np.int64) >> shift) & (2**width - 1)) - offset
        np.testing.assert_array_equal(followed(text, words), wanted.astype(np.float32))


def test_a_text_gets_each_function_that_it_calls_once() -> None:
    found = fields("a = from_bits_0_4_8(x)\nb = from_bits_4_4_8(x) + from_bits_0_4_8(y)")
    assert list(found) == ["from_bits_0_4_8", "from_bits_4_4_8"]
    assert not fields("xfrom_bits_0_4_8(x)")
