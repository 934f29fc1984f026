"""A module that torch imports for the sake of others, put off until something of it is asked for.

AOTAutograd imports networkx for a choice of what to save that nobody makes here, and names it in
annotations. Reading it takes a third of all that a process imports to run a stored plan.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


class _PutOff(ModuleType):
    """Stands for a module until one of its attributes is asked for, and asks the module then."""

    _annotates: tuple[int, frozenset[str]] = (0, frozenset())
    """A thread that only annotates with names of the module, and these."""

    def __getattr__(self, name: str) -> Any:
        if self._annotates[0] == threading.get_ident() and name in self._annotates[1]:
            return Any
        if sys.modules.get(self.__name__) is self:
            sys.modules.pop(self.__name__, None)
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def put_off(name: str, annotations: frozenset[str]) -> Iterator[None]:
    """Within it, who imports the module gets a stand-in, which stays until it is used.

    annotations: names of the module that an importing module writes in annotations; in this thread
    they do not count as a use. Nothing is put off if the module was imported before, or is not
    there."""
    found = None if name in sys.modules else importlib.util.find_spec(name)
    if found is None:
        yield
        return
    module = _PutOff(name)
    # For those who look for modules, or through all of them.
    module.__spec__, module.__file__ = found, found.origin
    module._annotates = (threading.get_ident(), annotations)
    sys.modules[name] = module
    try:
        yield
    finally:
        module._annotates = _PutOff._annotates
