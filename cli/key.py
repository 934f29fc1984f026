"""`planner key`: the key that signs this user's bundles."""

from __future__ import annotations

from . import render
from .options import JsonOption


def key(json: JsonOption = False) -> None:
    """Print your public key. Your pair of keys is made when it is first needed.

    Others can use the bundles that you sign after `planner trust` with this key. The private key is
    in your configuration folder, in a file that only you can read.
    """
    from ..bundles.signing import key_file, private_key, shown

    found = shown(private_key().public)
    if json:
        render.print_json({"public_key": found, "file": str(key_file())})
    else:
        render.out().print(found, soft_wrap=True)
