"""What needs the real compiler runs in a process of its own: the interpreter is on in that of the
tests, and Triton looks at the variable once."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def by_compiler(script: Path, *arguments: str | Path) -> Any:
    """What a script prints as JSON, run without the interpreter."""
    done = subprocess.run(
        [sys.executable, script, *arguments],
        env={**os.environ, "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
