"""The code that Dynamo made of a frame, without what it puts around each of its calls.

The code calls the graph, and functions of torch that ask a tensor for its size or tell a profiler
where a call is. Each of them switches Dynamo off and on again, which takes about a microsecond.
Where the code is called with Dynamo off, the same functions are called as they are, and where no
profiler runs nobody is told.
"""

from __future__ import annotations

import dis
import weakref
from collections.abc import Callable, Mapping
from types import CodeType, FunctionType
from typing import Any

import torch
from torch._dynamo import utils

GRAPH = "__compiled_fn"
"""The beginning of the names of graphs."""
_READS = "LOAD_GLOBAL"

_UNCOUNTED = "_fusionplan_uncounted"
_OTHER_WAYS = frozenset({"LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"})


def set_uncounted(call: Any, same: Callable[..., Any]) -> None:
    """Notes of a function that it is the same as another, which does not count its runs."""
    # Whoever wraps the function may copy its attributes to the wrapper, which is not the same.
    setattr(call, _UNCOUNTED, (weakref.ref(call), same))


def uncounted(call: Any) -> Callable[..., Any]:
    """The same as the function without the count of its runs; itself where none is known."""
    noted: tuple[weakref.ref[Any], Callable[..., Any]] | None = getattr(call, _UNCOUNTED, None)
    if noted is None or noted[0]() is not call:
        own: Callable[..., Any] = call
        return own
    return noted[1]


class _Utils:
    """`torch._dynamo.utils`, as far as code that Dynamo made calls it; the rest is torch's own."""

    def __getattr__(self, name: str) -> Any:
        return getattr(utils, name)

    @staticmethod
    def call_size(x: torch.Tensor, i: int) -> int:
        return x.size(i)

    @staticmethod
    def call_stride(x: torch.Tensor, i: int) -> int:
        return x.stride(i)

    @staticmethod
    def call_storage_offset(x: torch.Tensor) -> int | torch.SymInt:
        return x.storage_offset()

    def __init__(self, tells: bool) -> None:
        # A call that does nothing, without arguments and with what it gave.
        self.record_pregraph_bytecode_enter: Callable[[], Any] = tuple
        self.record_pregraph_bytecode_exit: Callable[[Any], Any] = tuple
        if tells:
            self.record_pregraph_bytecode_enter = utils.record_pregraph_bytecode_enter
            self.record_pregraph_bytecode_exit = utils.record_pregraph_bytecode_exit


_UTILS = f"__import_{utils.__name__.replace('.', '_dot_')}"
"""The global by which the code knows that module."""


def plainly(
    code: CodeType, scope: Mapping[str, Any], is_counted: bool = True, tells: bool = True
) -> FunctionType | None:
    """The code as a function that is called with Dynamo off; None where it reads globals of the
    user's, which may change. scope: the globals that it was made for. is_counted: somebody wants to
    know of each run of its graph. tells: a profiler is told of the call. The function holds its
    graph, and nothing of the user's."""
    own: dict[str, Any] = {"__builtins__": scope.get("__builtins__", __builtins__)}
    for each in dis.get_instructions(code):
        if each.opname in _OTHER_WAYS:
            return None
        if each.opname != _READS or each.argval in own:
            continue
        name = each.argval
        if name == _UTILS:
            own[name] = _Utils(tells)
        elif name.startswith(GRAPH) and name in scope:
            graph = _without_disable(scope[name])
            own[name] = graph if is_counted else uncounted(graph)
        else:
            return None
    return FunctionType(code, own, code.co_name)


def _without_disable(function: Any) -> Any:
    """What `torch._dynamo.disable` was given."""
    while getattr(function, "_torchdynamo_disable", False):
        inner = getattr(function, "_torchdynamo_orig_callable", None)
        if inner is None:
            return function
        function = inner
    return function
