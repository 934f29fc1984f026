"""`planner trust`: the keys whose bundles may be used."""

from __future__ import annotations

from typing import Annotated

import typer

from . import render
from .errors import UsageError
from .options import JsonOption


def trust(
    key: Annotated[
        str | None,
        typer.Argument(
            metavar="KEY", help="A public key, as `planner key` prints it.", show_default=False
        ),
    ] = None,
    name: Annotated[
        str, typer.Option(metavar="TEXT", help="A name for the key, such as that of its owner.")
    ] = "",
    remove: Annotated[bool, typer.Option("--remove", help="Remove the key from the list.")] = False,
    json: JsonOption = False,
) -> None:
    """List the keys that you trust, or add KEY to them.

    A bundle holds machine code that runs on your GPU and in your process. So trust only keys whose
    owner you would let install software. The list is a file in your configuration folder;
    PLANNER_TRUSTED_KEYS names another file.
    """
    from ..bundles import signing

    if key is None:
        if remove:
            raise UsageError("--remove: give the key")
    elif not remove:
        signing.trust(signing.parsed(key), name)
    elif not signing.distrust(signing.parsed(key)):
        raise UsageError(f"{key} is not among the trusted keys in {signing.trusted_file()}")
    keys = {signing.shown(public): text for public, text in signing.trusted().items()}
    if json:
        render.print_json({"file": str(signing.trusted_file()), "keys": keys})
    elif not keys:
        render.out().print(f"no keys in {signing.trusted_file()}", soft_wrap=True)
    else:
        for public, text in keys.items():
            render.out().print(f"{public} {text}".rstrip(), soft_wrap=True)
