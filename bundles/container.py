"""The file of a bundle: a signed document, and the blobs that it names.

    20 bytes   MAGIC
    32         public key of the signer (Ed25519)
    64         signature of MAGIC, public key and all that follows
     8         length of the document, big-endian
     n         the document: JSON, in one canonical form
    then, until the end of the file, for each blob its length in 8 bytes and its bytes

Nothing behind the signature is looked at before the signature is known to be right, and to be of a
key that the user trusts. A blob has no name and no path: the document names it by its SHA-256.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..planner.errors import BundleError
from .signing import PUBLIC_BYTES, SIGNATURE_BYTES, Private, is_signed, shown

MAGIC = b"fusionplan bundle 1\n"
MOST_BYTES = 1 << 30
"""Of a whole file."""
MOST_DOCUMENT_BYTES = 1 << 28
MOST_BLOBS = 1 << 16
MOST_DEPTH = 64
"""Of lists and objects within each other."""

_LENGTH = 8
_HEAD = len(MAGIC) + PUBLIC_BYTES + SIGNATURE_BYTES


@dataclass(frozen=True, slots=True)
class Sealed:
    """The content of a bundle. signer: its public key, as `planner trust` shows it."""

    document: dict[str, Any]
    blobs: Mapping[str, bytes]
    signer: str


def seal(document: Mapping[str, Any], blobs: Iterable[bytes], private: Private) -> bytes:
    """The file. Raises BundleError for what no reader would take."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    parts = [text, *sorted(set(blobs))]
    _require(len(text) <= MOST_DOCUMENT_BYTES, "its document is too large: name fewer plans")
    _require(len(parts) <= MOST_BLOBS, "it has too many kernels: bundle fewer models in one file")
    body = b"".join(len(part).to_bytes(_LENGTH, "big") + part for part in parts)
    head = MAGIC + private.public
    _require(len(body) + _HEAD <= MOST_BYTES, "it is larger than 1 GiB: name fewer plans")
    return head + private.sign(head + body) + body


def read(path: Path, trusted: Collection[bytes]) -> Sealed:
    """The bundle in a file, signed by one of the trusted public keys. Raises BundleError."""
    try:
        # A pipe that nobody writes to would be waited for, for ever.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BundleError(f"{path} is not a regular file: give another path")
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        return unseal(data, trusted)
    except BundleError as error:
        raise BundleError(f"{path}: {error}; nothing of it was used") from error


def unseal(data: bytes, trusted: Collection[bytes]) -> Sealed:
    """The inverse of `seal`. Raises BundleError."""
    _require(data.startswith(MAGIC), "it is no bundle of plans")
    _require(len(data) <= MOST_BYTES, "it is larger than 1 GiB")
    _require(len(data) >= _HEAD + _LENGTH, "it is cut short")
    public = data[len(MAGIC) : len(MAGIC) + PUBLIC_BYTES]
    signature, body = data[_HEAD - SIGNATURE_BYTES : _HEAD], data[_HEAD:]
    if public not in trusted:
        raise BundleError(
            f"it is signed by {shown(public)}, which is not among the keys that you trust "
            "(`planner trust` lists and adds keys)"
        )
    _require(is_signed(MAGIC + public + body, signature, public), "it was altered, or cut short")
    text, *blobs = _parts(body)
    return Sealed(_document(text), {hashlib.sha256(b).hexdigest(): b for b in blobs}, shown(public))


def _parts(body: bytes) -> list[bytes]:
    """What lies one after the other, each behind its length."""
    found: list[bytes] = []
    at, end = 0, len(body)
    while at < end:
        _require(len(found) < MOST_BLOBS, "it has too many blobs")
        start = at + _LENGTH
        at = start + int.from_bytes(body[at:start], "big")
        _require(start <= end and at <= end, "its lengths do not fit its size")
        found.append(body[start:at])
    _require(len(found[0]) <= MOST_DOCUMENT_BYTES, "its document is too large")
    return found


def _document(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"its document is no JSON: {error}") from error
    _require(isinstance(found, dict), "its document is no object")
    _require(is_shallow(found), f"its document is nested deeper than {MOST_DEPTH}")
    document: dict[str, Any] = found
    return document


def is_shallow(value: Any) -> bool:
    """Whether no list or object lies deeper than MOST_DEPTH: what reads it later may recurse."""
    level: list[Any] = [value]
    for _ in range(MOST_DEPTH):
        inner: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                inner.extend(each.values())
            elif isinstance(each, list):
                inner.extend(each)
        level = [each for each in inner if isinstance(each, (dict, list))]
        if not level:
            return True
    return False


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number")


def _require(holds: bool, fault: str) -> None:
    if not holds:
        raise BundleError(fault)
