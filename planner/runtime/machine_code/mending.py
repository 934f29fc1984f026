"""Kernels that Triton makes of a mended text for ptxas."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from triton import knobs

ONE_AT_A_TIME = threading.RLock()
"""Triton has one hook and one set of options for all threads."""


class Mark(StrEnum):
    """A line in a kernel's text that says how the text for ptxas is mended."""

    WAITS = "Waits for what its products read."
    RENEWS = "Writes what all turns of a loop multiply in each of them."

    def on(self, text: str) -> str:
        """The same kernel by another key of Triton's cache, of which 3.6 does not ask the hook."""
        return text.replace("):\n", f"):\n    {self.value!r}\n", 1)


@contextmanager
def mended(mark: Mark, mend: Callable[[str], str]) -> Iterator[None]:
    """Triton gives ptxas the text that `mend` makes of its own, in this thread."""
    with ONE_AT_A_TIME:
        before, here = knobs.runtime.add_stages_inspection_hook, threading.get_ident()

        def hook(*stages: Any) -> Any:
            """Without arguments it is asked what tells its kernels from others."""
            other = before(*stages) if before else None
            if threading.get_ident() != here:
                return other or ("", "")
            if stages:
                _mend(stages[1], mend)
                return None
            key = (other or ("", ""))[0] + mark.value
            return key, hashlib.sha256(key.encode()).hexdigest()

        knobs.runtime.add_stages_inspection_hook = hook
        try:
            yield
        finally:
            knobs.runtime.add_stages_inspection_hook = before


def _mend(stages: dict[str, Any], mend: Callable[[str], str]) -> None:
    assemble = stages["ptx"]
    stages["ptx"] = lambda source, metadata: mend(assemble(source, metadata))
