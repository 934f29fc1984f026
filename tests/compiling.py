"""What needs the real compiler runs in a process of its own: the interpreter is on in that of the
tests, and Triton looks at the variable once. So does what ends its process, or needs a new one.

Each script has a new process, but none imports torch and Triton again: a server that has imported
them, and done nothing else, forks for each.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

LIMIT_S = 400
PRELOADED = {
    "0": (
        "torch._dynamo.backends.common",
        "triton.backends.nvidia.compiler",
        "fusionplan.planner.lower",
        "fusionplan.planner.runtime.execution.executor",
    ),
    "1": ("torch", "triton", "triton.runtime.interpreter"),
}
"""What most scripts import, with the compiler ("0"); and with the interpreter, without us."""

Done = subprocess.CompletedProcess[str]


def by_compiler(script: Path, *arguments: str | Path) -> Any:
    """What a script prints as JSON, run without the interpreter."""
    if _read_at_import(os.environ) != _server("0").read_at_import:
        return _by_itself(script, *arguments)
    done = forked([str(script), *map(str, arguments)])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def forked(
    command: Sequence[str], interpret: str = "0", variables: Mapping[str, str] | None = None
) -> Done:
    """What `python COMMAND` comes to: a script with its arguments, "-m" with a module, or "-c" with
    a text. With the interpreter ("1") nothing of ours is imported, nor on the path."""
    with tempfile.TemporaryDirectory() as folder:
        request = {
            "command": list(command),
            "environment": {**os.environ, "TRITON_INTERPRET": interpret, **(variables or {})},
            "folder": os.getcwd(),
            "into": folder,
        }
        status = _server(interpret).ask(json.dumps(request))
        told, errors = ((Path(folder) / name).read_text() for name in ("stdout", "stderr"))
    return Done(list(command), status, told, errors)


_SET_BY_INDUCTOR = ("TRITON_CACHE_DIR", "TRITON_LIBDEVICE_PATH", "TRITON_PTXAS_PATH")
"""In every process in which Inductor compiles. Triton reads them when it compiles, not before."""


def _read_at_import(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that count when Triton is imported."""
    names = (name for name in environment if name.startswith(("PTXAS", "TRITON")))
    return {name: environment[name] for name in names if name not in _SET_BY_INDUCTOR}


def _by_itself(script: Path, *arguments: str | Path) -> Any:
    done = subprocess.run(
        [sys.executable, script, *arguments],
        env={**os.environ, "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class _Server:
    """The process that forks. One request at a time; each answer is an exit status."""

    def __init__(self, interpret: str) -> None:
        self.read_at_import = _read_at_import(os.environ)
        alone = ["-I"] if interpret == "1" else ["-P"]
        self._process = subprocess.Popen(
            [sys.executable, *alone, __file__, interpret],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "TRITON_INTERPRET": interpret},
            text=True,
            start_new_session=True,
        )

    def ask(self, request: str) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(request + "\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], LIMIT_S)
        answer = self._process.stdout.readline() if ready else ""
        if not answer:
            self.end()
            _server.cache_clear()
            raise TimeoutError(f"no answer within {LIMIT_S} s: {request[:200]}")
        return int(answer)

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@cache
def _server(interpret: str) -> _Server:
    made = _Server(interpret)
    atexit.register(made.end)
    return made


def _serve(interpret: str) -> None:
    """Forks for each line that is read, and writes its exit status."""
    requests, answers = sys.stdin, sys.stdout
    gc.disable()
    for name in PRELOADED[interpret]:
        importlib.import_module(name)
    if interpret == "0":
        _capture_quickly()
    gc.freeze()  # collections in a child would copy what it shares with the others
    gc.enable()
    for line in requests:
        child = os.fork()
        if not child:
            _run(json.loads(line))
        _, status = os.waitpid(child, 0)
        answers.write(f"{os.waitstatus_to_exitcode(status)}\n")
        answers.flush()


def _capture_quickly() -> None:
    """As in the processes of the tests themselves (see conftest.py)."""
    sys.path.insert(0, str(Path(__file__).parent))
    import quick_dynamo

    quick_dynamo.quicken()
    sys.path.pop(0)
    gc.set_threshold(2_000_000, 4, 20)


def _run(request: dict[str, Any]) -> None:
    """Becomes the script, and ends."""
    status = 1
    try:
        for number, name in ((1, "stdout"), (2, "stderr")):
            file = os.open(Path(request["into"]) / name, os.O_WRONLY | os.O_CREAT)
            os.dup2(file, number)
        sys.stdin = open(os.devnull)  # noqa: SIM115 - the process ends with it
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        first, *arguments = request["command"]
        if first == "-m":
            sys.argv = arguments
            runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        elif first == "-c":
            sys.argv = [first, *arguments[1:]]
            exec(compile(arguments[0], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv = [first, *arguments]
            sys.path.insert(0, str(Path(first).parent))
            runpy.run_path(first, run_name="__main__")
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - as Python itself tells of an error at its end
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    _serve(sys.argv[1])
