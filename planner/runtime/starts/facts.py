"""The facts that a trace of a model may depend on besides the arguments, as lines of text.

The lines of two processes are compared: where they are the same, so is what Dynamo would trace.
They tell the modules of the model with their attributes, classes and parameters, the functions that
were traced, and every global, closure and default that these name. Whatever has no description
that holds in another process ends it: `Untold`.
"""

from __future__ import annotations

import builtins
import collections
import dataclasses
import enum
import functools
import hashlib
import logging
import sys
import types
from collections.abc import Mapping, Sequence, Set
from typing import Any

import torch
import typing_extensions
from torch import nn

from .code import TracedCode, Untold, digest, function, is_fixed_module, is_versioned, names
from .unchanged import Seen

_PLAIN = (int, float, bool, str, bytes, complex, type(None), type(...), type(NotImplemented), range)
_TORCHS = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)
_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
_LEFT_OUT = frozenset(
    (
        *_HOOKS,
        "_parameters",
        "_buffers",
        "_modules",
        "_non_persistent_buffers_set",
        "_forward_hooks_with_kwargs",
        "_forward_hooks_always_called",
        "_forward_pre_hooks_with_kwargs",
        "_state_dict_hooks",
        "_state_dict_pre_hooks",
        "_load_state_dict_pre_hooks",
        "_load_state_dict_post_hooks",
        "_is_torch_compile",
    )
)
"""What no forward pass reads by itself; hooks are looked at apart."""
_CLASS_LEFT_OUT = frozenset(
    (
        "__abstractmethods__",
        "__annotate_func__",
        "__annotations__",
        "__annotations_cache__",
        "__conditional_annotations__",
        "__dataclass_fields__",
        "__dataclass_params__",
        "__dict__",
        "__doc__",
        "__firstlineno__",
        "__match_args__",
        "__module__",
        "__orig_bases__",
        "__parameters__",
        "__qualname__",
        "__slots__",
        "__static_attributes__",
        "__type_params__",
        "__weakref__",
        "_abc_impl",
    )
)
_UNSEEN = frozenset(
    [
        "__import__",
        "dir",
        "eval",
        "exec",
        "globals",
        "hash",
        "id",
        "input",
        "locals",
        "open",
        "vars",
    ]
)
_BY_NAME = frozenset(("__dict__", "__getattribute__", "attrgetter", "getattr"))
"""Ways to an attribute that is not named in the code."""
_STATES = frozenset(
    ["get_num_interop_threads", "get_num_threads", "get_rng_state", "initial_seed", "seed"]
)
"""Functions of torch that tell of the process."""
_MOST = 200_000
"""Values that are described; more take too long to look at."""


def facts(model: nn.Module, traced: Sequence[TracedCode], seen: Seen) -> tuple[str, ...]:
    """The lines. seen: is told where each value was read. Raises Untold."""
    return _Teller(model, seen).told(traced)


class _Teller:
    def __init__(self, model: nn.Module, seen: Seen) -> None:
        self._seen = seen
        self._lines: list[str] = []
        self._known: dict[int, str] = {}
        """By id, where a value was described first."""
        self._held: list[Any] = []
        self._model = model
        self._paths: dict[int, str] = {}
        self._count = 0
        self._asked: set[str] = set()
        """Names by which traced code asks for attributes."""

    def told(self, traced: Sequence[TracedCode]) -> tuple[str, ...]:
        for path, module in self._model.named_modules():
            self._paths[id(module)] = path
        self._tree("", self._model, set())
        found = [function(each.module, each.name) for each in traced]
        for each in found:
            globals_, attributes = names(each.__code__)
            self._asked |= attributes | (globals_ & _BY_NAME)
        self._torch()
        self._tree("", self._model, set())
        for name, each in zip(traced, found, strict=True):
            self._function(each, f"{name.module}.{name.name}", whole=True)
        return tuple(self._lines)

    def _torch(self) -> None:
        """That the functions which torch's own code calls are torch's. The trace goes through
        that code, too."""
        for owner in (torch, torch.nn.functional, torch.Tensor, nn.Module):
            told = hashlib.sha256()
            for key, value in sorted(owner.__dict__.items()):
                if isinstance(value, types.FunctionType):
                    file = value.__code__.co_filename
                    # What marks functions as deprecated.
                    if not is_versioned(file) and file != typing_extensions.__file__:
                        raise Untold(f"{owner.__name__}.{key} was replaced")
                elif isinstance(value, _CALLED):
                    told.update(f"{key} {value.__name__}\0".encode())
            self._tell(owner.__name__, told.hexdigest()[:32])

    def _tell(self, place: str, text: str) -> None:
        self._lines.append(f"{place}: {text}")

    def _tree(self, path: str, module: nn.Module, done: set[int]) -> None:
        if id(module) in done:
            self._tell(path, f"module {self._paths[id(module)]!r}")
            return
        done.add(id(module))
        self._tell(path, f"of {self._class(type(module))}")
        own = module.__dict__
        for name in _HOOKS:
            if own.get(name):
                raise Untold(f"{path or 'the model'} has hooks ({name})")
            self._seen.named(own, name, own.get(name))
            self._seen.attributes(own.get(name, {}))
        self._seen.attributes(own)
        for name, value in own.items():
            if name not in _LEFT_OUT:
                self._attribute(f"{path}.{name}", value)
                self._seen.named(own, name, value)
        for kind in ("_parameters", "_buffers"):
            self._seen.named(own, kind, own[kind])
            self._seen.values(own[kind])
            for name, value in own[kind].items():
                self._tensor(f"{path}.{name}", value, path, name)
        self._seen.named(own, "_modules", own["_modules"])
        self._seen.values(own["_modules"])
        for name, child in own["_modules"].items():
            if child is None:
                self._tell(f"{path}.{name}", "no module")
            else:
                self._tree(f"{path}.{name}" if path else name, child, done)

    def _attribute(self, place: str, value: Any) -> None:
        if type(value) is torch.Tensor:
            path, _, name = place.rpartition(".")
            self._tensor(place, value, path, name)
        else:
            self._tell(place, self._value(value, place))

    def _tensor(self, place: str, value: Any, path: str, name: str) -> None:
        if value is None:
            self._tell(place, "no tensor")
            return
        if type(value) not in (torch.Tensor, nn.Parameter):
            raise Untold(f"{place} is a {type(value).__qualname__}")
        first = self._seen.tensor(value, path, name)
        if first is not None:
            self._tell(place, f"the tensor {first}")
            return
        layout = value.layout, value.is_quantized, value.is_conj(), value.is_neg()
        if layout != (torch.strided, False, False, False):
            raise Untold(f"{place} is no plain tensor")
        kind = type(value).__name__, value.dtype, tuple(value.shape), value.stride()
        self._tell(place, f"{kind} {value.device} {value.requires_grad}")

    def _class(self, cls: type) -> str:
        """Its name; at the first time also its functions and plain values."""
        name = f"{cls.__module__}.{cls.__qualname__}"
        if id(cls) in self._known:
            return name
        self._known[id(cls)] = name
        self._held.append(cls)
        made = getattr(sys.modules.get(type(cls).__module__), "__file__", None)
        if isinstance(made, str) and not is_versioned(made):
            raise Untold(f"{name} has a class of its own, {type(cls).__qualname__}")
        for base in cls.__mro__:
            if base is object:
                continue
            own = f"{base.__module__}.{base.__qualname__}"
            if base is not cls and id(base) not in self._known:
                self._known[id(base)] = own
                self._held.append(base)
            file = getattr(sys.modules.get(base.__module__), "__file__", None)
            if base.__module__ == "builtins" or (isinstance(file, str) and is_versioned(file)):
                self._versioned(own, base)
            else:
                self._members(own, base)
        self._tell(name, f"is {[f'{b.__module__}.{b.__qualname__}' for b in cls.__mro__]}")
        return name

    def _versioned(self, name: str, cls: type) -> None:
        """Of a class of torch or Python: whether its functions are still its own."""
        for key, found in cls.__dict__.items():
            plain = found.__func__ if isinstance(found, (staticmethod, classmethod)) else found
            plain = plain.fget if isinstance(plain, property) else plain
            if isinstance(plain, types.FunctionType):
                self._seen.named(cls.__dict__, key, found)
                file = plain.__code__.co_filename
                # What Python's own modules write by exec, such as a dataclass's methods.
                if not is_versioned(file) and not file.startswith("<string>"):
                    raise Untold(f"{name}.{key} was replaced")
            elif type(found) in _PLAIN and not key.startswith("___") and key not in _CLASS_LEFT_OUT:
                self._tell(f"{name}.{key}", self._value(found, name))

    def _members(self, name: str, cls: type) -> None:
        self._seen.attributes(cls.__dict__)
        for key, value in cls.__dict__.items():
            if key in _CLASS_LEFT_OUT:
                continue
            place = f"{name}.{key}"
            self._seen.named(cls.__dict__, key, value)
            if isinstance(value, _FIELDS):
                continue
            if isinstance(value, property):
                for part in (value.fget, value.fset):
                    self._tell(place, "none" if part is None else self._value(part, place))
                continue
            if isinstance(value, (staticmethod, classmethod)):
                value = value.__func__
            self._tell(place, self._value(value, place))

    def _function(self, found: types.FunctionType, place: str, whole: bool = False) -> str:
        """Its name and code; whole: also all that it names, for it was traced."""
        code = found.__code__
        text = f"function {found.__module__}.{found.__qualname__}"
        if getattr(found, "_dynamo_marked_constant", False):
            raise Untold(f"{text} runs while it is traced")
        if is_versioned(code.co_filename):
            written = str(found.__globals__.get("__name__"))
            if not is_fixed_module(written) or found.__name__ in _STATES:
                raise Untold(f"{text} may tell of the process")
            return text
        if id(found) in self._known and not whole:
            return f"what {self._known[id(found)]} is"
        self._seen.attribute(found, "__code__", code)
        text = f"{text} {digest(code)}"
        if not whole:
            self._known[id(found)] = place
            self._held.append(found)
            if not _is_by_name(found):
                self._bound_values(found, place)
            return text
        self._tell(place, text)
        globals_, attributes = names(code)
        if globals_ & _UNSEEN:
            raise Untold(f"{text} asks for names that are not in its code")
        self._bound_values(found, place)
        self._builtins(found, globals_)
        for name in sorted(globals_ & found.__globals__.keys()):
            value, at = found.__globals__[name], f"{found.__module__}.{name}"
            self._seen.named(found.__globals__, name, value)
            if not isinstance(value, types.ModuleType):
                self._tell(at, self._value(value, at))
            else:
                self._module(value, at, attributes, 0)
        return text

    def _bound_values(self, found: types.FunctionType, place: str) -> None:
        """Defaults, attributes, closures, and whose globals it has."""
        name = str(found.__globals__.get("__name__"))
        own = sys.modules.get(name, found).__dict__ is found.__globals__
        if not own and not name.startswith("namedtuple_"):
            raise Untold(f"{place} has globals of its own")
        code = found.__code__
        self._tell(place, self._value(dict(found.__dict__), place))
        self._seen.mapping(found.__dict__)
        self._tell(place, self._value(found.__defaults__, place))
        self._tell(place, self._value(found.__kwdefaults__, place))
        self._seen.attribute(found, "__defaults__", found.__defaults__)
        self._seen.attribute(found, "__kwdefaults__", found.__kwdefaults__)
        for name, cell in zip(code.co_freevars, found.__closure__ or (), strict=True):
            if code.co_filename == "<string>" and name.startswith(_TYPES):
                continue
            try:
                value = cell.cell_contents
            except ValueError:
                continue
            self._seen.attribute(cell, "cell_contents", value)
            self._tell(f"{place}.{name}", self._value(value, f"{place}.{name}"))

    def _builtins(self, found: types.FunctionType, asked: Set[str]) -> None:
        """Names that are no globals: that they stay Python's own."""
        for name in sorted(asked - found.__globals__.keys()):
            value = builtins.__dict__.get(name)
            self._seen.named(found.__globals__, name, None)
            self._seen.named(builtins.__dict__, name, value)
            if isinstance(value, types.FunctionType):
                raise Untold(f"the built-in {name} was replaced")

    def _module(self, module: types.ModuleType, place: str, asked: Set[str], depth: int) -> None:
        """A module that traced code names: what it may read of it."""
        name = module.__name__
        self._tell(place, f"module {name}")
        file = getattr(module, "__file__", None) or "<frozen "
        own = is_versioned(file) or name in sys.builtin_module_names
        if own and not is_fixed_module(name):
            raise Untold(f"{place} is {name}, of which more may be read than is known")
        if depth > 4:
            raise Untold(f"{place} is read too deep")
        if type(module) is not types.ModuleType:
            raise Untold(f"{place} is a {type(module).__qualname__}, which may hold any name")
        if not own:
            asked = self._asked
            if asked & _BY_NAME or "__getattr__" in module.__dict__:
                raise Untold(f"{name} may be asked for any name")
        for key in sorted(asked & module.__dict__.keys()):
            value, at = module.__dict__[key], f"{place}.{key}"
            if isinstance(value, types.ModuleType):
                if id(value) not in self._known:
                    self._known[id(value)] = at
                    self._module(value, at, asked, depth + 1)
                continue
            if own:
                self._of_library(module, key, value, at)
            else:
                self._seen.named(module.__dict__, key, value)
                self._tell(at, self._value(value, at))

    def _of_library(self, module: types.ModuleType, key: str, value: Any, place: str) -> None:
        """Something of torch or Python: functions are what the version says unless replaced."""
        self._seen.named(module.__dict__, key, value)
        if isinstance(value, types.FunctionType) and not is_versioned(value.__code__.co_filename):
            raise Untold(f"{place} was replaced")
        if key in _STATES:
            raise Untold(f"{place} tells of the process")
        name = getattr(value, "__qualname__", None) or getattr(value, "__name__", "")
        if isinstance(value, _PLAIN):
            name = repr(value)
        self._tell(place, f"{type(value).__name__} {name}")

    def _value(self, value: Any, place: str) -> str:
        """What a value is, so that an equal text means the same to a trace."""
        self._count += 1
        if self._count > _MOST:
            raise Untold(f"there is too much to look at ({place})")
        kind = type(value)
        if kind in _PLAIN or kind in _TORCHS:
            return f"{kind.__name__} {value!r}"
        if isinstance(value, enum.Enum):
            held = {k: v for k, v in value.__dict__.items() if k != "__objclass__"}
            text = self._value(held, place) if id(value) not in self._known else "known"
            self._known[id(value)] = place
            return f"enum {self._class(kind)} {text}"
        if isinstance(value, types.FunctionType):
            return self._function(value, place)
        if value is getattr(dataclasses, "_HAS_DEFAULT_FACTORY", self):
            return "a default that is made"
        if isinstance(value, type):
            return f"class {self._class(value)}"
        if isinstance(value, types.ModuleType):
            raise Untold(f"{place} is a module")
        if isinstance(value, logging.Logger):
            return f"logger {value.name}"
        if isinstance(value, _CALLED):
            self._builtin(value, place)
            return f"{kind.__name__} {getattr(value, '__module__', '')}.{value.__name__}"
        if isinstance(value, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
            return f"operator {value}"
        if isinstance(value, nn.Module):
            if id(value) not in self._paths:
                raise Untold(f"{place} is a module beside the model")
            return f"module {self._paths[id(value)]!r}"
        return self._composed(value, place)

    def _builtin(self, value: Any, place: str) -> None:
        """A function in C: that it computes of its arguments alone."""
        owner = getattr(value, "__self__", None)
        if isinstance(owner, types.ModuleType):
            if not is_fixed_module(owner.__name__) or value.__name__ in _STATES:
                raise Untold(f"{place} is {owner.__name__}.{value.__name__}")
        elif owner is not None and not isinstance(owner, type):
            self._tell(place, self._value(owner, place))

    def _composed(self, value: Any, place: str) -> str:
        kind = type(value)
        if id(value) in self._known:
            return f"what {self._known[id(value)]} is"
        self._known[id(value)] = place
        self._held.append(value)
        if isinstance(value, types.MethodType):
            owner = self._value(value.__self__, place)
            return f"method {self._value(value.__func__, place)} of {owner}"
        if kind is functools.partial:
            parts = self._value((value.func, value.args, value.keywords), place)
            return f"partial {parts}"
        if isinstance(value, (list, tuple)) and _is_container(kind):
            self._seen.sequence(value)
            texts = [self._value(item, f"{place}[{i}]") for i, item in enumerate(value)]
            return f"{self._name(kind)} {texts}"
        if isinstance(value, (set, frozenset)) and _is_container(kind):
            self._seen.sequence(value)
            # In its own order, which a loop over it sees.
            return f"{kind.__name__} {[self._value(item, place) for item in value]}"
        if isinstance(value, Mapping) and _is_container(kind):
            self._seen.mapping(value)
            items = [
                (self._value(k, place), self._value(v, f"{place}[{k!r}]")) for k, v in value.items()
            ]
            return f"{self._name(kind)} {items}"
        return self._object(value, place)

    def _object(self, value: Any, place: str) -> str:
        """An object of the user's: its class and its fields."""
        kind = type(value)
        file = getattr(sys.modules.get(kind.__module__), "__file__", None)
        if isinstance(value, torch.Tensor) or file is None or is_versioned(file):
            raise Untold(f"{place} is a {kind.__module__}.{kind.__qualname__}")
        if isinstance(value, (list, tuple, dict, set, frozenset, str, int, float)):
            raise Untold(f"{place} is a {kind.__qualname__}, a kind of {kind.__mro__[1].__name__}")
        if any(
            isinstance(b.__dict__.get("__new__"), types.BuiltinFunctionType) for b in _own(kind)
        ):
            raise Untold(f"{place} is a {kind.__qualname__}, which holds what is not seen")
        texts = [f"object {self._class(kind)}"]
        own = getattr(value, "__dict__", {})
        self._seen.mapping(own)
        texts += [f"{name} {self._value(each, f'{place}.{name}')}" for name, each in own.items()]
        for base in kind.__mro__:
            for name in _slots(base):
                if hasattr(value, name):
                    each = getattr(value, name)
                    self._seen.attribute(value, name, each)
                    texts.append(f"{name} {self._value(each, f'{place}.{name}')}")
        return "; ".join(texts)

    def _name(self, kind: type) -> str:
        if kind.__module__ not in ("builtins", "collections", "types"):
            return self._class(kind)
        return f"{kind.__module__}.{kind.__qualname__}"


_CALLED = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType,
)


_TYPES = ("_type_", "__dataclass_type_")
"""Annotations in the closure of what `dataclasses` writes."""
_Pair = collections.namedtuple("_Pair", "a")
_FIELDS = (
    types.MemberDescriptorType,
    types.GetSetDescriptorType,
    type(_Pair.__dict__["a"]),
)


def _own(kind: type) -> tuple[type, ...]:
    return tuple(base for base in kind.__mro__ if base is not object)


def _is_by_name(found: types.FunctionType) -> bool:
    """Whether it is the function that `function` finds, which is told apart if it was traced."""
    try:
        return function(found.__module__, found.__code__.co_qualname) is found
    except Untold:
        return False


def _slots(base: type) -> Sequence[str]:
    slots = base.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _is_container(kind: type) -> bool:
    """Whether it is a container of Python's own, or a named tuple: nothing but its items."""
    if kind.__module__ in ("builtins", "collections", "types"):
        return True
    return issubclass(kind, tuple) and hasattr(kind, "_fields")
