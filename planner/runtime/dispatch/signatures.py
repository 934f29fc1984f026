"""The signature of a function as text, for functions that are written to take the same."""

from __future__ import annotations

import inspect
from types import CodeType
from typing import NamedTuple


class Signature(NamedTuple):
    """taken: the parameters, without their defaults. passed: the arguments of a call that passes
    all of them on. names: their names. others: the names of other local variables."""

    taken: str
    passed: str
    names: tuple[str, ...]
    others: tuple[str, ...]


def signature(code: CodeType) -> Signature:
    """Of a function with this code."""
    names, end = code.co_varnames, code.co_argcount + code.co_kwonlyargcount
    positional, named = names[: code.co_argcount], names[code.co_argcount : end]
    rest = list(names[end:])
    star = f"*{rest.pop(0)}" if code.co_flags & inspect.CO_VARARGS else ""
    stars = f"**{rest.pop(0)}" if code.co_flags & inspect.CO_VARKEYWORDS else ""
    only = code.co_posonlyargcount
    taken = [
        *positional[:only],
        *(["/"] if only else []),
        *positional[only:],
        *([star or "*"] if star or named else []),
        *named,
        *([stars] if stars else []),
    ]
    several = [each for each in (star, stars) if each]
    passed = [*positional, *several[: bool(star)], *(f"{n}={n}" for n in named)]
    passed += several[bool(star) :]
    every = (*positional, *named, *(each.strip("*") for each in several))
    return Signature(", ".join(taken), ", ".join(passed), every, tuple(rest))
