"""Keys: the one that signs this user's bundles, and those of others that this user trusts.

Both are in the user's configuration folder: `bundle-key.pem`, which only the user may read, and
`trusted-keys`, one public key on a line with a name behind it. PLANNER_TRUSTED_KEYS names another
file in place of the latter, for machines where no user has a home.
"""

from __future__ import annotations

import base64
import binascii
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any

from ..planner.errors import BundleError
from .files import write_whole

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PUBLIC_BYTES, SIGNATURE_BYTES = 32, 64
VARIABLE = "PLANNER_TRUSTED_KEYS"

_PREFIX = "ed25519:"
_OWN = "own"
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Private:
    """A key that signs. public: what others need to check its signatures."""

    key: Ed25519PrivateKey
    public: bytes

    def sign(self, data: bytes) -> bytes:
        return self.key.sign(data)


def folder() -> Path:
    """The user's configuration folder. Raises BundleError without a home."""
    given = os.environ.get("XDG_CONFIG_HOME")
    try:
        return (Path(given) if given else Path.home() / ".config") / "fusionplan"
    except RuntimeError as error:
        raise BundleError(
            "there is no home folder for keys: set XDG_CONFIG_HOME, or name a file of trusted keys "
            f"with {VARIABLE}"
        ) from error


def key_file() -> Path:
    return folder() / "bundle-key.pem"


def trusted_file() -> Path:
    given = os.environ.get(VARIABLE)
    return Path(given) if given else folder() / "trusted-keys"


def shown(public: bytes) -> str:
    """A public key as text; `parsed` is its inverse."""
    return _PREFIX + base64.urlsafe_b64encode(public).decode().rstrip("=")


def parsed(text: str) -> bytes:
    """Raises BundleError for what is no public key."""
    body = text.removeprefix(_PREFIX)
    try:
        found = base64.b64decode(body + "=" * (-len(body) % 4), b"-_", validate=True)
    except (binascii.Error, ValueError):
        found = b""
    if len(found) != PUBLIC_BYTES or shown(found) != text:
        raise BundleError(f"{text!r} is no public key: `planner trust` prints them as {_PREFIX}...")
    return found


def is_signed(data: bytes, signature: bytes, public: bytes) -> bool:
    """Whether the signature of the data was made with the private half of the public key."""
    ed25519 = _library()
    from cryptography.exceptions import InvalidSignature

    try:
        ed25519.Ed25519PublicKey.from_public_bytes(public).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def private_key() -> Private:
    """This user's own; made when it is first asked for, and trusted then unless
    PLANNER_TRUSTED_KEYS names another list. Raises BundleError."""
    path = key_file()
    if not path.exists():
        _make(path)
    ed25519 = _library()
    from cryptography.hazmat.primitives import serialization

    try:
        with path.open("rb") as file:
            _require_own(file, stat.S_IRWXG | stat.S_IRWXO, "others may read it")
            found = serialization.load_pem_private_key(file.read(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise BundleError(f"the key {path} cannot be read: {error}") from error
    if not isinstance(found, ed25519.Ed25519PrivateKey):
        raise BundleError(f"the key {path} is not an Ed25519 key: move it away, and run this again")
    return Private(found, found.public_key().public_bytes_raw())


def _make(path: Path) -> None:
    ed25519 = _library()
    from cryptography.hazmat.primitives import serialization

    made = ed25519.Ed25519PrivateKey.generate()
    text = made.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = made.public_key().public_bytes_raw()
    # A key that is there and not trusted would sign bundles that its own user cannot read.
    if VARIABLE not in os.environ:
        trust(public, _OWN)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Nobody else may read it at any moment, and another process's key is not overwritten. A
        # part of a key, as a full disk leaves it, would be in the way for ever.
        write_whole(path, text, 0o600, first=True)
    except OSError as error:
        with suppress(BundleError):
            distrust(public)
        if not isinstance(error, FileExistsError):
            raise BundleError(f"the key {path} cannot be written: {error.strerror}") from error


def trusted() -> dict[bytes, str]:
    """The public keys that the user trusts, with their names. Raises BundleError for a file that
    others own or may write, or of which a line is no key."""
    path = trusted_file()
    try:
        with path.open(encoding="utf-8") as file:
            _require_own(file, stat.S_IWGRP | stat.S_IWOTH, "others may write it")
            text = file.read(_MOST_BYTES)
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise BundleError(f"the trusted keys in {path} cannot be read: {error}") from error
    found = {}
    for line in text.splitlines():
        key, _, name = line.strip().partition(" ")
        if key and not key.startswith("#"):
            found[parsed(key)] = name.strip()
    return found


def trust(public: bytes, name: str) -> None:
    """Bundles that are signed by this key may be used from now on."""
    _write_trusted(trusted() | {public: " ".join(name.split())})


def distrust(public: bytes) -> bool:
    """They may not any more; whether the key was trusted."""
    known = trusted()
    found = known.pop(public, None) is not None
    if found:
        _write_trusted(known)
    return found


def _write_trusted(keys: dict[bytes, str]) -> None:
    path = trusted_file()
    lines = "".join(f"{shown(key)} {name}\n" for key, name in keys.items())
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, lines.encode(), 0o600)
    except OSError as error:
        raise BundleError(f"the trusted keys in {path} cannot be written: {error}") from error


def _require_own(file: IO[Any], forbidden: int, fault: str) -> None:
    """Of the file that is open: what its name stands for may change."""
    path, found = file.name, os.fstat(file.fileno())
    if found.st_uid not in (0, os.getuid()):
        raise BundleError(f"{path}: another user owns it; make it your own, if nobody changed it")
    if found.st_mode & forbidden:
        raise BundleError(f"{path}: {fault}; run `chmod 600 {path}`, if nobody changed it")


def _library() -> ModuleType:
    """The part of the library `cryptography` that knows Ed25519."""
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise BundleError(
            "bundles need the package cryptography: pip install cryptography"
        ) from error
    return ed25519
