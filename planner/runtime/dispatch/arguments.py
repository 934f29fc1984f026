"""The variables with which a frame begins, from the arguments of a call: what Dynamo's guards ask.

`inspect.Signature.bind` does the same in ten times the time, and refuses calls that do not fit.
Here such a call gives variables that nobody uses, for Python refuses the call itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import FunctionType
from typing import Any

_OTHERWISE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def is_simple(function: FunctionType) -> bool:
    """Whether the frame of a function begins with its arguments and nothing else, and each of them
    can be given by name."""
    code = function.__code__
    return not (code.co_flags & _OTHERWISE or code.co_freevars or code.co_posonlyargcount)


class Arguments:
    """The binding of a call's arguments to the parameters of one simple function."""

    def __init__(self, function: FunctionType) -> None:
        code = function.__code__
        names, count = code.co_varnames, code.co_argcount
        named = count + code.co_kwonlyargcount
        several = bool(code.co_flags & inspect.CO_VARARGS)
        self._function = function
        self._places = names[:count]
        self._names = frozenset(names[:named])
        self._others = names[named] if several else None  # as "*args"
        more = code.co_flags & inspect.CO_VARKEYWORDS
        self._more = names[named + several] if more else None  # as "**kwargs"

    def bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The variables by name."""
        found = dict(zip(self._places, args, strict=False))
        if self._more is None:
            found |= kwargs
        elif kwargs:
            found |= {n: value for n, value in kwargs.items() if n in self._names}
        if len(found) < len(self._names):
            found = self._defaults() | found
        if self._others is not None:
            found[self._others] = args[len(self._places) :]
        if self._more is not None:
            found[self._more] = {n: v for n, v in kwargs.items() if n not in self._names}
        return found

    def _defaults(self) -> dict[str, Any]:
        given = self._function.__defaults__ or ()
        last = self._places[len(self._places) - len(given) :]
        return dict(zip(last, given, strict=True)) | (self._function.__kwdefaults__ or {})
