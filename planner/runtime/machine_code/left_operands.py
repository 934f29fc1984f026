"""A fault of ptxas about left operands in shared memory, found in the text for it.

A product of a group of warps names its operands in shared memory by descriptors: an address, and
how the tile lies there. Where a first product has its left operand in registers, and a later one
has its own where the right operand of the first lay, both descriptors are made of one address.
ptxas (12.8 and those of Triton 3.6 and 3.7) then takes the later one from registers that nobody
wrote, and the product reads beyond shared memory. Such a kernel is refused.
"""

from __future__ import annotations

import re

_PRODUCT = re.compile(
    r"wgmma\.mma_async\S*\s+\{[^}]*\}\s*,\s*(?P<left>\{[^}]*\}|%\w+)\s*,\s*(?P<right>%\w+)"
)
_DESCRIPTOR = re.compile(r"^\s*(?:or|add)\.\w+\s+(%\w+)\s*,\s*(%\w+)\s*,\s*-?\d+;", re.MULTILINE)


def misread(ptx: str) -> str | None:
    """A known fault of the machine code that ptxas would make of this text; None if there is
    none."""
    if "wgmma.mma_async" not in ptx:
        return None
    address: dict[str, str] = dict(_DESCRIPTOR.findall(ptx))
    right_of_computed: set[str] = set()
    for product in _PRODUCT.finditer(ptx):
        left, right = str(product["left"]), str(product["right"])
        if left.startswith("{"):
            right_of_computed.add(address.get(right, right))
        elif address.get(left, left) in right_of_computed:
            return "a product reads its left operand where another one lay"
    return None
