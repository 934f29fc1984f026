"""Functions that take bytes, and bits of bytes, as float32: text that kernels of quantised weights
call.
"""

from __future__ import annotations

import re
import struct

_FIELD = re.compile(r"(?<![\w.])from_bits_(\d+)_(\d+)_(\d+)(?=\()")


def fields(text: str) -> dict[str, str]:
    """The functions that take bits of bytes which a text calls, by their names."""
    return {each[0]: _field(*map(int, each.groups())) for each in _FIELD.finditer(text)}


def _field(shift: int, width: int, offset: int) -> str:
    """Bits of bytes, less an offset, as float32. Those of one of a word's four bytes are put into
    the mantissa of a power of two whose last bit counts 1 where they end. Those that would reach
    beyond the mantissa come from the word shifted down."""
    steps, down = [], False
    for byte in range(4):
        place, word = 8 * byte + shift, "$4"
        if place + width > 23:
            place, word, down = place - 16, "word", True
        mask, power = ((1 << width) - 1) << place, (127 + 23 - place) << 23
        less = struct.unpack("<I", struct.pack("<f", -float((1 << 23 - place) + offset)))[0]
        steps.append(
            f"lop3.b32 ${byte}, {word}, {mask:#x}, {power:#x}, 0xEA; "
            f"add.f32 ${byte}, ${byte}, 0f{less:08X}; "
        )
    turn = ".reg .b32 word; shr.u32 word, $4, 16; " if down else ""
    return f"""
@triton.jit
def from_bits_{shift}_{width}_{offset}(x):
    return tl.inline_asm_elementwise(
        "{{ {turn}{"".join(steps)}}}",
        "=&r,=&r,=&r,=&r,r",
        [x],
        dtype=tl.float32,
        is_pure=True,
        pack=4,
    )
"""


def from_bytes(name: str, signed: bool) -> str:
    """Bytes to float32 by two instructions each, where the GPU's own conversion takes the time of
    eight: as the low bits of 2**23, from which that is subtracted. A signed one is moved by 128."""
    bias, turn = ("0xCB000080", "xor.b32 word, $4, 0x80808080;") if signed else ("0xCB000000", "")
    word = "word" if signed else "$4"
    steps = "".join(
        f"prmt.b32 ${i}, {word}, 0x4B000000, 0x744{i}; add.f32 ${i}, ${i}, 0f{bias[2:]}; "
        for i in range(4)
    )
    return f"""
@triton.jit
def {name}(x):
    return tl.inline_asm_elementwise(
        "{{ .reg .b32 word; {turn} {steps}}}",
        "=&r,=&r,=&r,=&r,r",
        [x],
        dtype=tl.float32,
        is_pure=True,
        pack=4,
    )
"""
