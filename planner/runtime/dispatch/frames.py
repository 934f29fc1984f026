"""Leaves a frame of the user's code as it is, under torch.compile.

Where a plan says that the user's own eager code is fastest, that code has to run: the graph that
Dynamo traced may compute more (a mask that eager never makes), and is launched from other code.
Dynamo itself can only skip a code object for ever, for all models and all shapes that share it. So
its guards stay, those that tell shapes apart, and behind them stands a stub in place of the code
that Dynamo made: it calls the original code with Dynamo switched off.

A frame of sizes that vary is compiled once for all of them, and only its graph, when it is called,
tells by which plan these sizes run. Before such a graph nothing has happened in the frame, so that
it may be left by an exception (`LeftAlone`), upon which the stub calls the original code. Calls of
the same kind go there directly from then on.
"""

from __future__ import annotations

import threading
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any

import torch
from torch._dynamo.convert_frame import register_bytecode_hook
from torch._dynamo.eval_frame import skip_code
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.source import GlobalStateSource
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._guards import Guard, TracingContext
from torch.autograd import forward_ad
from torch.torch_version import TorchVersion

from .calls import MOST, kind_of_call
from .signatures import signature

_left: dict[CodeType, str] = {}
"""Code whose frame is being compiled and is to be left alone; the global name of what runs it."""


_EAGER = "__fusionplan_eager"
"""The beginning of such names."""

_DIVERTED = "__fusionplan_diverted"
"""The beginning of the names of what runs frames of sizes that vary."""

_diverted: dict[CodeType, DivertedFrame] = {}
"""Code whose frame is being compiled for sizes that vary."""


class _Counts(threading.local):
    """Of this thread: graphs that a back end of ours was given and graphs that it ran, how many of
    these left their frame alone; graphs that were given, and those of them that have no plan."""

    graphs = 0
    left = 0
    given = 0
    missed = 0


COUNTS = _Counts()


def leave_frame_alone() -> bool:
    """To be called by a back end while Dynamo compiles a frame: under the guards of this
    compilation the frame runs as if torch.compile were not there. False where that cannot be: the
    frame has been split by a graph break, or holds names that no function can have."""
    output: Any = InstructionTranslator.current_tx().output
    code: CodeType = output.root_tx.f_code
    scope: dict[str, Any] = output.root_tx.f_globals
    if not _can_be_written(code):
        return False
    _left[code] = output.install_global(_EAGER, _original(code, scope))
    _keep_guards_of_inputs()
    COUNTS.left += 1
    return True


def is_left_alone(made: CodeType) -> bool:
    """Whether code that Dynamo made is the stub of a frame of fixed sizes that is left alone."""
    return any(name.startswith(_EAGER) for name in made.co_names)


def diverted_by(made: CodeType, scope: Mapping[str, Any]) -> DivertedFrame | None:
    """The frame of sizes that vary whose stub this code is; None of any other code. scope: the
    globals that it was made for."""
    name = next((name for name in made.co_names if name.startswith(_DIVERTED)), None)
    found: DivertedFrame | None = getattr(scope.get(name or ""), "diverts", None)
    return found


class LeftAlone(Exception):
    """Leaves the code that Dynamo made of a frame, for the user's own to run in its place."""

    def __init__(self, frame: DivertedFrame) -> None:
        super().__init__()
        self.frame = frame


class DivertedFrame:
    """A frame of sizes that vary, some of which the user's own code runs."""

    def __init__(self, code: CodeType, scope: dict[str, Any]) -> None:
        self._code, self._scope = code, scope
        self._kinds: set[Any] = set()
        """Of calls that the user's own code runs."""
        self.made: CodeType = code
        """The code that Dynamo made of the frame; LeftAlone may leave it."""
        self.name = ""
        """The global that runs the frame."""

    def compiled(self, made: CodeType) -> CodeType:
        """The stub in place of the code that Dynamo made, which is run as it is from now on."""
        self.made = made
        skip_code(made)
        return _stub(self._code, self.name)

    def runner(self) -> Callable[..., Any]:
        """Runs a call: itself not compiled by Dynamo, but what the call leads to is."""
        kinds, code, scope = self._kinds, self._code, self._scope
        original = _original(code, scope)
        off: Any = torch._dynamo.disable
        is_known, remember = off(self._is_known), off(self._remember)

        def run(*args: Any, **kwargs: Any) -> Any:
            if kinds and is_known(args, kwargs):
                return original(*args, **kwargs)
            cells, given = (args[0], args[1:]) if code.co_freevars else (None, args)
            made = types.FunctionType(self.made, scope, code.co_name, None, cells)
            try:
                return made(*given, **kwargs)
            except LeftAlone as left:
                if left.frame is not self:
                    raise
            remember(args, kwargs)
            return original(*args, **kwargs)

        skip_code(run.__code__)
        run.diverts = self  # type: ignore[attr-defined]
        return run

    def _kind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = args[1:] if self._code.co_freevars else args
        return kind_of_call(given, kwargs)

    def _is_known(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        try:
            return self._kind(args, kwargs) in self._kinds
        except TypeError:  # what cannot be told apart is looked up in every call
            return False

    def _remember(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        COUNTS.left += 1
        try:
            kind = self._kind(args, kwargs)
            if len(self._kinds) < MOST:
                self._kinds.add(kind)
        except TypeError:
            return


def divert_frame() -> DivertedFrame | None:
    """To be called by a back end while Dynamo compiles a frame for sizes that vary: its graph may
    then raise LeftAlone. None where that cannot be, as for `leave_frame_alone`."""
    try:
        output: Any = InstructionTranslator.current_tx().output
    except AttributeError:  # no frame is being compiled: `aot_compile` has captured the graph
        return None
    code: CodeType = output.root_tx.f_code
    if not _can_be_written(code):
        return None
    frame = DivertedFrame(code, output.root_tx.f_globals)
    frame.name = output.install_global(_DIVERTED, frame.runner())
    _diverted[code] = frame
    return frame


def _original(code: CodeType, scope: dict[str, Any]) -> Any:
    """Runs the code with Dynamo off. Code with free variables is given its cells first."""
    off: Any = torch._dynamo.disable
    if not code.co_freevars:
        return off(types.FunctionType(code, scope, code.co_name))

    def run(cells: tuple[Any, ...], *args: Any, **kwargs: Any) -> Any:
        return types.FunctionType(code, scope, code.co_name, None, cells)(*args, **kwargs)

    return off(run)


def _keep_guards_of_inputs() -> None:
    """Eager code is right whatever the other guards (weights, modules, globals) would say; only the
    inputs' shapes decide whether it is the fastest. Guards cost the host time in each call."""
    context = TracingContext.try_get()
    if context is not None:
        guards: Any = context.guards_context.dynamo_guards
        guards.inner = {guard for guard in guards.inner if _is_of_an_input(guard)}


def drop_guards_of_hooks() -> None:
    """To be called by a back end while Dynamo compiles a frame whose graph saves nothing for a
    backward pass: hooks of what is saved do not matter to it. To ask is a third of all guards."""
    context = TracingContext.try_get()
    if context is not None and _HOOKS_OF_SAVED is not None:
        guards: Any = context.guards_context.dynamo_guards
        guards.inner = {g for g in guards.inner if g.create_fn is not _HOOKS_OF_SAVED}


_HOOKS_OF_SAVED = getattr(GuardBuilder, "AUTOGRAD_SAVED_TENSORS_HOOKS", None)


def guard_forward_mode() -> bool:
    """To be called by a back end while Dynamo compiles a frame: whether forward-mode derivatives
    are computed now. Dynamo compiles again where that changes, of which it has a guard but does not
    ask by itself. A kernel computes values alone, and would lose their tangents."""
    context = TracingContext.try_get()
    if context is not None:
        context.guards_context.dynamo_guards.add(_FORWARD_MODE)
    return forward_ad._current_level >= 0


_FORWARD_MODE = Guard(GlobalStateSource(), GuardBuilder.DUAL_LEVEL)


def guard_frozen(inputs: Sequence[Any]) -> None:
    """To be called by a back end while Dynamo compiles a frame. Dynamo compiles again where a
    parameter that has no gradient now is to have one later: before torch 2.13 it does not ask, as
    long as the dictionary that holds the parameter is the same."""
    context = TracingContext.try_get()
    parameters = [x for x in inputs if isinstance(x, torch.nn.Parameter)]
    frozen = [weakref.ref(x) for x in parameters if not x.requires_grad]
    if context is None or not frozen or not _ASKS_NOT or not torch.is_grad_enabled():
        return

    def are_frozen(_: object) -> bool:
        for each in frozen:
            if (parameter := each()) is not None and parameter.requires_grad:
                return False
        return True

    def ask(builder: Any, guard: Guard) -> None:
        said = [f"{len(frozen)} parameters have no gradient"]
        builder.guard_manager.root.add_lambda_guard(are_frozen, said, guard.user_stack)

    context.guards_context.dynamo_guards.add(Guard(GlobalStateSource(), ask))


_ASKS_NOT = TorchVersion(torch.__version__) < TorchVersion("2.13")


def _is_of_an_input(guard: Any) -> bool:
    name: str = guard.name
    return not name or (name.startswith("L[") and "MODULE" not in str(guard.source))


def _stub(code: CodeType, runner: str) -> CodeType:
    """Code of the same signature and variables that passes everything on to the runner."""
    of = signature(code)
    free, cells = code.co_freevars, code.co_cellvars
    inner = f"(lambda: ({', '.join(free)},)).__closure__"
    passed = ", ".join(text for text in (inner if free else "", of.passed) if text)
    lines = ["def outer():", *(f" {name} = None" for name in free)]
    lines += [f" def stub({of.taken}):"]
    lines += [f"  if 0: {name} = None" for name in cells if name not in of.names]
    lines += [f"  lambda: ({', '.join(cells)},)"] if cells else []
    lines += [f"  return {runner}({passed})", " return stub"]
    space: dict[str, Any] = {}
    exec(compile("\n".join(lines), code.co_filename, "exec"), space)
    made: CodeType = space["outer"]().__code__
    return made.replace(co_name=code.co_name, co_firstlineno=code.co_firstlineno)


def _can_be_written(code: CodeType) -> bool:
    """Whether a stub has the code's very variables; Dynamo's own code after a break may not."""
    names = (*code.co_varnames, *code.co_freevars, *code.co_cellvars)
    if "torch_dynamo_resume_in" in code.co_name or not all(map(str.isidentifier, names)):
        return False
    try:
        made = _stub(code, "runner")
    except SyntaxError:
        return False
    return (made.co_freevars, made.co_cellvars) == (code.co_freevars, code.co_cellvars)


def _replaced(code: CodeType, new_code: CodeType) -> CodeType | None:
    runner, diverted = _left.pop(code, None), _diverted.pop(code, None)
    if runner is not None:
        return _stub(code, runner)
    return None if diverted is None else diverted.compiled(new_code)


register_bytecode_hook(_replaced)
