"""The result of `load`: torch.compile's module or function, with two short ways.

Where the plan for some inputs is the user's own eager code, torch.compile's front end is all that
a call costs more than eager does: some ten microseconds, more than a small operation takes. So a
call that was seen to run nothing but frames that are left alone goes to the model directly next
time. Eager is right for any call; only shapes and types decide whether it is the fastest.

Any other call, from the second on, enters Dynamo without the rest of torch.compile's front end
(`front_end`).

The first call may set a model up: a hook that is installed then, behind a lock, breaks the graph,
and what is left of it in pieces has no plan. So a model of which several graphs were traced in the
first call, one of them without a plan, is traced once more in the second: then it is set up.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import compiler
from torch._dynamo.eval_frame import OptimizedModule

from .direct_call import HOOKS
from .doors import SHORT, eager_call, function_door, module_door
from .front_end import entered, is_plain
from .short_ways import ShortWays
from .written_door import written_door

_AGAIN = "_fusionplan_again"


def loaded(
    compiled: Any,
    model: Callable[..., Any],
    again: Callable[[Any], Any] | None = None,
    collects: bool = False,
) -> Any:
    """compiled: what `torch.compile` made of the model by our back end. again: loads a model in the
    same way; for copies, and processes to which it is sent. collects: the collector of cycles runs
    in the first call, too, as a tune may be part of it; else it waits, as that call traces."""
    if isinstance(compiled, OptimizedModule):
        compiled.__class__ = LoadedModule
        short = ShortWays(collects, eager_call(compiled._orig_mod))
        compiled.__dict__ |= {_AGAIN: again, SHORT: short}
        return compiled
    if compiled is model or isinstance(compiled, (type, torch.nn.Module)):
        return compiled  # torch.compile is switched off, or has compiled a class
    short = ShortWays(collects)

    def long(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if compiler.is_compiling():
            return compiled(*args, **kwargs)
        if short.eager and short.is_eager(args, kwargs):
            return model(*args, **kwargs)
        if short.enter and is_plain():
            return short.watched(short.enter, args, kwargs)
        result = short.watched(compiled, args, kwargs)
        if short.enter is None:
            short.enters(entered(compiled))
        return result

    return functools.wraps(compiled)(function_door(model, short, long))


class LoadedModule(OptimizedModule):
    """A module of torch.compile's, with both short ways. A pickle or a copy of it is loaded anew
    from the model: what is compiled belongs to this process."""

    __call__ = module_door()

    def __reduce__(self) -> Any:
        again = self.__dict__.get(_AGAIN)
        # What `loaded` has made, only it makes again.
        made = OptimizedModule, (self._orig_mod, self.dynamo_ctx)
        return made if again is None else (again, (self._orig_mod,))

    def _fusionplan_long(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """A call that its door does not know."""
        own = self.__dict__
        if any(own[hooks] for hooks in HOOKS) or compiler.is_compiling():
            return super().__call__(*args, **kwargs)
        model: torch.nn.Module = own["_modules"]["_orig_mod"]
        short: ShortWays = own[SHORT]
        if short.eager and short.is_eager(args, kwargs, model.training):
            result = model(*args, **kwargs)
        elif short.enter and is_plain():
            result = short.watched(short.enter, args, kwargs, model.training)
        else:
            result = short.watched(super().__call__, args, kwargs, model.training)
            if short.enter is None:
                short.enters(entered(self))
            return result
        self._fusionplan_write(len(args), tuple(kwargs))
        return result

    def _fusionplan_write(self, count: int, names: tuple[str, ...]) -> None:
        """Gives it a class with a door for so many arguments by place and these by name, and lets
        that know of calls that go to eager."""
        short: ShortWays = self.__dict__[SHORT]
        if type(self) is LoadedModule and (short.direct or short.tensors):
            door = written_door(self._orig_mod, count, names, LoadedModule.__call__)
            if door is not None:
                of = {"__call__": door, "__module__": LoadedModule.__module__}
                made = type(LoadedModule.__name__, (LoadedModule,), of)
                object.__setattr__(self, "__class__", made)
                short.door = count + len(names), names
        if short.check is None:
            for known, named, check, gradients, training in short.tensors:
                if (known, named) == short.door:
                    short.check, short.gradients, short.training = check, gradients, training
                    break
