"""The door of one loaded module, written for the arguments that its calls have.

Its text takes the arguments by the places and names by which the user gives them and hands them on
likewise, without a tuple and a dictionary around them. It is code of its own for each module, in
which Python remembers where it has found what it asks for. A call of other arguments, or in the
midst of anything else than a plain call, goes through the door of all modules.
"""

from __future__ import annotations

import builtins
import inspect
import keyword
from collections.abc import Callable
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

import torch
from torch._C import _get_tracing_state
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch._dynamo import eval_frame
from torch.compiler import is_dynamo_compiling

from .calls import MOST
from .direct_call import HOOKS, NOT_DIRECT
from .front_end import CALL, GLOBAL_HOOKS, USUAL

_OURS = "_fusionplan_"
"""The beginning of the names of the text, which no argument may have."""


def written_door(
    model: torch.nn.Module, count: int, names: tuple[str, ...], other: Callable[..., Any]
) -> Callable[..., Any] | None:
    """The call of a loaded module for so many arguments by place and these by name; None where a
    call of the model is more than one of its `forward`. other: the call of all loaded modules."""
    if type(model).__call__ is not CALL or model._compiled_call_impl is not None:
        return None
    code = getattr(model.forward, "__code__", None)
    # The order in which a call has its names matters to who takes them all as a dictionary.
    packs = code is None or bool(code.co_flags & inspect.CO_VARKEYWORDS)
    if not all(map(_can_be_a_parameter, names)):
        packs = True
    given = _NAMES | {f"{_OURS}other": other, f"{_OURS}names": names}
    made = FunctionType(_code(count, names, packs).replace(), given)
    made.__defaults__ = (_MISSING,) * count
    made.__kwdefaults__ = None if packs else dict.fromkeys(names, _MISSING)
    return made


def _can_be_a_parameter(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name) and not name.startswith(_OURS)


_MISSING: Any = object()
"""An argument that the call does not have."""

_NAMES: dict[str, Any] = {"__builtins__": builtins} | {
    f"{_OURS}{name}": value
    for name, value in {
        "missing": _MISSING,
        "no": NOT_DIRECT,
        "usual": USUAL,
        "callback": get_eval_frame_callback,
        "compiles": is_dynamo_compiling,
        "gradients": torch.is_grad_enabled,
        "is_traced": _get_tracing_state,
        "of_dynamo": eval_frame,
        **{f"hooks{i}": hooks for i, hooks in enumerate(GLOBAL_HOOKS)},
    }.items()
}

_TEXT = """
def __call__({taken}):
    @own = @self.__dict__
    @model = @own["_modules"]["_orig_mod"]
    @its = @model.__dict__
    if not (@compiles() or {odd} or @is_traced() is not None):
        @short = @own["_fusionplan_short"]
        if (
            @short.check is not None
            and @short.check({given})
            and @short.gradients is @gradients()
            and @short.training is @its["training"]
        ):
            return @model.forward({passed})
        if @short.direct and @callback() is None and @of_dynamo._stance is @usual:
            @result = @short.direct[0](@model, {passed})
            if @result is not @no:
                return @result
    return @other(@self, {places}*@more, {names}**@named)
"""


@lru_cache(maxsize=MOST)
def _code(count: int, names: tuple[str, ...], packs: bool) -> CodeType:
    """packs: the arguments by name stay in their dictionary."""
    by_name = () if packs or not names else names
    places = [f"@{i}" for i in range(count)]
    hooks = [f'{of}["{each}"]' for of in ("@own", "@its") for each in HOOKS]
    hooks += [f"@hooks{i}" for i in range(len(GLOBAL_HOOKS))]
    absent = [f"{each} is @missing" for each in (*places[-1:], *by_name)]
    others = "(*@named,) != @names" if packs and names else "@named"
    values = ["*@named.values()"] * (packs and bool(names))
    rest = ["**@named"] * (packs and bool(names))
    there = "".join(f"{each}, " for each in places)
    named = "".join(f"({name!r}, {name}), " for name in by_name)
    by_place, defaulted = ([f"{n}=None" for n in some] for some in (places, by_name))
    text = _TEXT.format(
        taken=", ".join(["@self", *by_place, "/", "*@more", *defaulted, "**@named"]),
        odd=" or ".join(["@more", others, *absent, *hooks]),
        given=", ".join([*places, *by_name, *values]),
        passed=", ".join([*places, *(f"{n}={n}" for n in by_name), *rest]),
        places=f"*[each for each in ({there}) if each is not @missing], " if places else "",
        names=f"**{{n: v for n, v in ({named}) if v is not @missing}}, " if named else "",
    )
    space: dict[str, Any] = {}
    exec(compile(text.replace("@", _OURS), __file__, "exec"), space)
    code: CodeType = space["__call__"].__code__
    return code
