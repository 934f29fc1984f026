"""The modules in C that Triton builds for the host: its access to the driver, and launchers.

Triton compiles them with the system's C compiler when they are first needed, and keeps them in its
cache by a digest of their source and platform: a machine that has them there needs no compiler.
"""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triton import knobs
from triton.runtime.cache import FileCacheManager

SUFFIX = str(sysconfig.get_config_var("EXT_SUFFIX"))
"""Of a module's file: it names the version of Python and the platform."""
_NAME = re.compile(r"[A-Za-z_]\w*(\.[\w-]+)+", re.ASCII)
"""Of a module's file, whatever made it."""


@dataclass(frozen=True, slots=True)
class HostModule:
    """folder: Triton's name for the digest; name: of the file within."""

    folder: str
    name: str
    data: bytes


@contextmanager
def recorded() -> Iterator[dict[tuple[str, str], Path]]:
    """Within it, the modules that Triton takes from its cache or builds, by folder and name."""
    found: dict[tuple[str, str], Path] = {}
    before = knobs.cache.manager_class
    base: Any = before or FileCacheManager

    class Recording(base):  # type: ignore[misc]
        def __init__(self, key: str, **options: Any) -> None:
            super().__init__(key, **options)
            self._folder = key

        def get_file(self, filename: str) -> str | None:
            return self._seen(filename, super().get_file(filename))

        def put(self, data: Any, filename: str, binary: bool = True) -> str:
            path: str = super().put(data, filename, binary)
            self._seen(filename, path)
            return path

        def _seen(self, filename: str, path: str | None) -> str | None:
            if path is not None and filename.endswith(SUFFIX):
                found[self._folder, filename] = Path(path)
            return path

    knobs.cache.manager_class = Recording
    try:
        yield found
    finally:
        knobs.cache.manager_class = before


def taken(found: dict[tuple[str, str], Path]) -> list[HostModule]:
    """Those modules with their machine code. Raises OSError."""
    return [HostModule(*of, path.read_bytes()) for of, path in sorted(found.items())]


def put(modules: Iterable[HostModule]) -> None:
    """Put what Triton's cache has not into it. Whoever gives them vouches for them: Triton loads
    them into this process. Those of another version of Python or platform are passed over. Raises
    OSError, and ValueError for a name that is none of Triton's."""
    manager = knobs.cache.manager_class or FileCacheManager
    for module in modules:
        if not (module.folder.isalnum() and _NAME.fullmatch(module.name)):
            raise ValueError(f"{module.folder}/{module.name} is no module of Triton's")
        if not module.name.removesuffix(SUFFIX).isidentifier():
            continue
        cache = manager(module.folder)
        if cache.get_file(module.name) is None:
            cache.put(module.data, module.name, binary=True)
