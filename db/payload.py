"""JSON as the store writes it: one canonical text per value, so that a digest means something."""

import hashlib
import json
from typing import Any


def canonical(value: dict[str, Any]) -> str:
    """The canonical text: sorted keys, no spaces, ASCII; NaN and infinities are a ValueError."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(text: str) -> str:
    """SHA-256 of the text, in hexadecimal."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
