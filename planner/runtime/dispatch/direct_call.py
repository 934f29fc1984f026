"""A function that asks the guards of compiled frames and calls what Dynamo made of one of them.

Its text has the very parameters of the user's function: Python itself binds the arguments of a
call, and the variables that the guards ask of are one literal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any, NamedTuple

from ..execution.profiled import is_profiled
from .frames import DivertedFrame
from .graph_alone import GraphAlone
from .signatures import signature

NOT_DIRECT: Any = object()
"""The result of a direct call to which no frame applies: nothing has run."""

_OURS = "_fusionplan_"
"""The beginning of the names that the text has besides the parameters."""

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""The attributes of a module with its hooks."""


class CompiledFrame(NamedTuple):
    """A compiled frame. guards: Dynamo's; they belong to no entry of its cache any more once what
    they ask of is gone, or all is reset. check: asks them of a frame's variables. run: the code
    that Dynamo made; profiled: the same, which tells a profiler where a call is. diverted: of a
    frame whose sizes vary; the user's own code may run at some of them. alone: what `run` does, if
    it only calls a graph."""

    guards: Any
    check: Callable[[Mapping[str, Any]], bool]
    run: FunctionType
    profiled: FunctionType
    diverted: DivertedFrame | None
    alone: GraphAlone | None = None


def direct_call(
    function: FunctionType, frames: Sequence[CompiledFrame], is_method: bool
) -> Callable[..., Any]:
    """Takes what the function takes, and gives its result or NOT_DIRECT. is_method: its first
    argument is a module, whose call has to be this function and nothing more."""
    of = signature(function.__code__)
    names = {f"{_OURS}{name}": value for name, value in _names(function, frames).items()}
    changes = [*_changes(function, of.names[0] if is_method else "")]
    lines = [f"def {_OURS}call({of.taken}):"]
    lines += [f" {_OURS}own = {of.names[0]}.__dict__"] if is_method else []
    lines += [f" if {' or '.join(changes)}: return {_OURS}no"] if changes else []
    lines += [f" {_OURS}given = {{{', '.join(f'{n!r}: {n}' for n in of.names)}}}"]
    for number, frame in enumerate(frames):
        is_there = f"{_OURS}guards{number}.cache_entry is not None"
        lines += [f" if {is_there} and {_OURS}check{number}({_OURS}given):"]
        lines += [f"  if {_OURS}is_profiled(): return {_OURS}profiled{number}({of.passed})"]
        if frame.alone is None:
            lines += [f"  return {_OURS}run{number}({of.passed})"]
        else:
            lines += [f"  return {_OURS}graph{number}({frame.alone.passed})[0]"]
    lines += [f" return {_OURS}no"]
    exec(compile("\n".join(lines), function.__code__.co_filename, "exec"), names)
    made: FunctionType = names[f"{_OURS}call"]
    made.__defaults__, made.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    made.__name__, made.__qualname__ = function.__name__, function.__qualname__
    return made


def _names(function: FunctionType, frames: Sequence[CompiledFrame]) -> dict[str, Any]:
    """The globals of the text."""
    found: dict[str, Any] = {"function": function, "type": type, "no": NOT_DIRECT}
    found |= {"defaults": function.__defaults__, "named": function.__kwdefaults__}
    found["code"] = function.__code__
    found["is_profiled"] = is_profiled
    for number, frame in enumerate(frames):
        for name in ("guards", "check", "run", "profiled"):
            found[f"{name}{number}"] = getattr(frame, name)
        if frame.alone is not None:
            found[f"graph{number}"] = frame.alone.call
    return found


def _changes(function: FunctionType, module: str) -> Iterator[str]:
    """Tests for what has changed since the text was written, as where a notebook's code is loaded
    again, or makes a module's call more than one of the function. module: the variable with it."""
    yield f"{_OURS}function.__code__ is not {_OURS}code"
    if function.__defaults__:
        yield f"{_OURS}function.__defaults__ is not {_OURS}defaults"
    if function.__kwdefaults__:
        yield f"{_OURS}function.__kwdefaults__ is not {_OURS}named"
    if module:
        yield from (f'{_OURS}own["{hooks}"]' for hooks in HOOKS)
        yield f'"forward" in {_OURS}own'
        yield f"{_OURS}type({module}).forward is not {_OURS}function"


def can_be_direct(function: FunctionType) -> bool:
    """Whether its parameters leave the names of the text free."""
    names = signature(function.__code__).names
    return all(name.isidentifier() and not name.startswith(_OURS) for name in names)
