"""Functions that a trace went through, by names that another process finds them by.

A capture is right as long as the code is the same that it was traced from. Code of torch and of
Python's own library goes with their versions; of all other functions the bytecode is compared.
"""

from __future__ import annotations

import dis
import hashlib
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch


class Untold(Exception):
    """Says of what a capture depends on that it cannot be told to another process."""


@dataclass(frozen=True, slots=True)
class TracedCode:
    """One function that was traced. module, name: where it is; digest: of its bytecode."""

    module: str
    name: str
    digest: str


def digest(code: types.CodeType) -> str:
    """Tells code of two processes with the same Python apart."""
    found = hashlib.sha256()
    for part in _parts(code):
        found.update(part.encode())
        found.update(b"\0")
    return found.hexdigest()[:32]


def _parts(code: types.CodeType) -> Iterator[str]:
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    yield repr((code.co_qualname, counts, names))
    yield code.co_code.hex()
    yield code.co_exceptiontable.hex()
    iterates = any(each.opname == "GET_ITER" for each in dis.get_instructions(code))
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            yield from _parts(value)
        elif isinstance(value, frozenset):
            texts = list(map(repr, value))
            # Its order is that of a loop over it, which may be another in each process.
            yield repr(texts if iterates else sorted(texts))
        else:
            yield f"{type(value).__name__} {value!r}"


@cache
def _folders() -> tuple[str, str, tuple[str, ...]]:
    paths = sysconfig.get_paths()
    own = f"{Path(torch.__file__).parent}/"
    return own, f"{paths['stdlib']}/", (paths["purelib"], paths["platlib"])


def is_versioned(file: str) -> bool:
    """Whether a file belongs to torch or to Python, whose versions tell what is in it."""
    own, standard, packages = _folders()
    if file.startswith((own, "<frozen ")):
        return True
    return file.startswith(standard) and not file.startswith(packages)


def traced(codes: list[types.CodeType]) -> tuple[TracedCode, ...]:
    """The functions that this code is of, without those of torch and Python. Raises Untold."""
    modules: dict[str, str] = {}
    for name, loaded in list(sys.modules.items()):
        file = getattr(loaded, "__file__", None)
        if isinstance(file, str) and not is_versioned(file):
            modules.setdefault(file, name)
    found: dict[TracedCode, None] = {}
    heads: set[tuple[str, str]] = set()
    inner: list[tuple[str, str]] = []
    for code in codes:
        if is_versioned(code.co_filename):
            continue
        module = modules.get(code.co_filename)
        if module is None:
            raise Untold(f"{code.co_qualname} is in no module ({code.co_filename})")
        head, _, rest = code.co_qualname.partition(".<locals>")
        if rest:
            inner.append((module, head))
        elif not rest:
            heads.add((module, head))
        here = function(module, head).__code__
        if digest(code) not in map(digest, _with_inner(here)):
            raise Untold(f"{module}.{code.co_qualname} is not what was traced")
        found[TracedCode(module, head, digest(here))] = None
    for module, head in inner:
        if (module, head) not in heads:
            raise Untold(f"a function made by {module}.{head} was traced, whose values are lost")
    return tuple(found)


def function(module: str, name: str) -> types.FunctionType:
    """The function of that name as it is defined, without decorators. Raises Untold."""
    value: Any = sys.modules.get(module)
    for part in name.split("."):
        value = _plain(getattr(value, "__dict__", {}).get(part))
    seen = 0
    while not (isinstance(value, types.FunctionType) and value.__code__.co_qualname == name):
        value, seen = getattr(value, "__wrapped__", None), seen + 1
        if value is None or seen > 8:
            raise Untold(f"{module}.{name} is not found by its name")
    return value


def _with_inner(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            yield from _with_inner(value)


def _plain(value: Any) -> Any:
    """The function of a method or a property."""
    if isinstance(value, (staticmethod, classmethod)):
        return value.__func__
    return value.fget if isinstance(value, property) else value


def names(code: types.CodeType) -> tuple[set[str], set[str]]:
    """The global names that code loads, that of functions within it too, and all names by which it
    asks for attributes. Raises Untold where it imports."""
    globals_, attributes = set[str](), set[str]()
    for this in _with_inner(code):
        level: Any = 0
        for each in dis.get_instructions(this):
            if each.opname == "LOAD_CONST" and type(each.argval) is int:
                level = each.argval
            if each.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                globals_.add(each.argval)
            elif each.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
                attributes.add(each.argval)
            elif each.opname == "IMPORT_NAME" and (level or not is_fixed_module(each.argval)):
                raise Untold(f"{this.co_qualname} imports {each.argval}")
            elif each.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                raise Untold(f"{this.co_qualname} writes the global {each.argval}")
    return globals_, attributes


_FIXED = frozenset(
    (
        "__future__",
        "abc",
        "builtins",
        "collections",
        "contextlib",
        "copy",
        "dataclasses",
        "enum",
        "functools",
        "itertools",
        "logging",
        "math",
        "numbers",
        "operator",
        "string",
        "torch",
        "types",
        "typing",
        "typing_extensions",
        "warnings",
    )
)
"""Modules that compute of their arguments alone, or, as torch, of what is told elsewhere."""


_STATEFUL = ("accelerator", "backends", "cuda", "distributed", "mps", "random", "utils", "xpu")
"""Parts of torch whose functions tell of the process or its devices."""


def is_fixed_module(name: str) -> bool:
    head, _, rest = name.partition(".")
    if name == "torch.utils._contextlib":  # what decorates functions with modes
        return True
    if head == "torch" and rest.partition(".")[0] in _STATEFUL:
        return False
    return head.removeprefix("_") in _FIXED or head in _FIXED


def traced_now(codes: Iterable[TracedCode]) -> None:
    """Raises Untold where the code of a function is not what was traced."""
    for each in codes:
        if digest(function(each.module, each.name).__code__) != each.digest:
            raise Untold(f"the code of {each.module}.{each.name} has changed")
