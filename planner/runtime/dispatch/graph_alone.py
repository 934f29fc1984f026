"""Code of Dynamo's that does nothing but call its graph with tensors that the call gives.

Such code is run once with tokens in place of all arguments, and of the graph's result. It has no
branch and calls nothing else, so what it does with the tokens it does with anything.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, NamedTuple

from .plain_calls import GRAPH
from .signatures import signature

_STRAIGHT = frozenset(
    {
        "RESUME",
        "CACHE",
        "NOP",
        "PUSH_NULL",
        "PRECALL",
        "CALL",
        "KW_NAMES",
        "RETURN_VALUE",
        "POP_TOP",
        "COPY",
        "SWAP",
        "LOAD_CONST",
        "LOAD_GLOBAL",
        "LOAD_ATTR",
        "LOAD_METHOD",
        "LOAD_FAST",
        "LOAD_FAST_CHECK",
        "LOAD_FAST_AND_CLEAR",
        "STORE_FAST",
        "DELETE_FAST",
        "BUILD_LIST",
        "BUILD_TUPLE",
        "LIST_EXTEND",
        "BINARY_SUBSCR",
        "UNPACK_SEQUENCE",
    }
)
"""Instructions without a branch, an import or a change of what is not the frame's own."""


_RUN = "_fusionplan_run"
"""No argument's name (see `can_be_direct`)."""


class GraphAlone(NamedTuple):
    """call: the graph, whose only result the frame returns. passed: the text of its arguments, in
    the names of the frame's."""

    call: Callable[..., Sequence[Any]]
    passed: str


def graph_alone(run: FunctionType, given: Mapping[str, Any]) -> GraphAlone | None:
    """What code that `plainly` has made does, if it is only that. given: arguments of a call that
    it is for, by name."""
    graphs = [name for name in run.__globals__ if name.startswith(GRAPH)]
    straight = all(each.opname in _STRAIGHT for each in dis.get_instructions(run.__code__))
    if len(graphs) != 1 or not straight or run.__closure__:
        return None
    texts: dict[int, str] = {}

    def token(text: str, value: Any) -> Any:
        if type(value) is tuple:
            return tuple([token(f"{text}[{i}]", each) for i, each in enumerate(value)])
        if type(value) is dict:
            return {name: token(f"{text}[{name!r}]", each) for name, each in value.items()}
        made = object()
        kept.append(made)
        texts[id(made)] = text
        return made

    kept: list[object] = []
    result, calls = object(), []

    def called(*args: Any) -> list[object]:
        calls.append(args)
        return [result]

    of = signature(run.__code__)
    names = {_RUN: FunctionType(run.__code__, run.__globals__ | {graphs[0]: called})}
    names |= {name: token(name, given[name]) for name in of.names}
    try:
        returned = eval(f"{_RUN}({of.passed})", names)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return None  # It asks something of an argument, or has several results.
    if returned is not result or len(calls) != 1 or any(id(each) not in texts for each in calls[0]):
        return None
    return GraphAlone(run.__globals__[graphs[0]], ", ".join(texts[id(each)] for each in calls[0]))
