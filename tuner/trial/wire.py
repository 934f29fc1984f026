"""Messages between the parent and its workers: one JSON object a line, never an array."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ...planner.config import Config

_CONFIG: TypeAdapter[Config] = TypeAdapter(Config)


def config_to_json(config: Config) -> dict[str, Any]:
    """Plain JSON data; `config_from_json` turns it back into an equal config."""
    data: dict[str, Any] = _CONFIG.dump_python(config, mode="json")
    return data


def config_from_json(data: Mapping[str, Any]) -> Config:
    """Inverse of `config_to_json`. Raises ValueError on data that is no config."""
    try:
        return _CONFIG.validate_python(dict(data))
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"no config: {first['loc']}: {first['msg']}") from error


def encode(message: Mapping[str, Any]) -> bytes:
    """One line. Raises ValueError for a number that JSON has no word for."""
    return json.dumps(message, allow_nan=False).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """The message of one line. Raises ValueError when it is none."""
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError(f"no message: {line[:80]!r}")
    return message
