"""A process that imports torch once and forks the workers of a tune from itself, for a `Forks` in
its parent: `python -m fusionplan.tuner.workers.fork_server FD`.

FD: a socket. A request to start a process comes with its stdin, stdout and stderr. Answers are
{"request", "pid"}, or {"request", "failed"}; of each process that has ended {"pid", "code"}.

What is forked is as good as new: this process has one thread, and CUDA is not initialised in it.
Where that does not hold it forks nothing, and says so.
"""

from __future__ import annotations

import array
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from .pipes import die_with_parent

HEAD = struct.Struct("=Q")
"""The bytes of the message that follows."""
STREAMS = 3

is_forked = False
"""Whether this process was forked by a server."""

OWN_ENVIRONMENT = {
    # Else to ask for a device initialises CUDA, of which no forked process can be rid.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    # Else importing Inductor starts a process of its own that compiles, and a thread.
    "TORCH_WARM_POOL": "0",
    "OPENBLAS_NUM_THREADS": "1",
}
"""What is set for the imports of this process; a forked one has the environment of its request."""

_CUDA_FILE = "/dev/nvidia-uvm"
"""Open in every process in which CUDA is initialised, with torch or without."""


@dataclass(frozen=True, slots=True)
class Request:
    """A process to start: `main` of a module with arguments. imports: modules that it is to find
    imported. rank: those of a lower one are started before others."""

    number: int
    module: str
    arguments: Sequence[str]
    imports: Sequence[str]
    rank: int
    politeness: int
    environment: Mapping[str, str]
    streams: Sequence[int]


def main(arguments: Sequence[str] | None = None) -> int:
    (number,) = sys.argv[1:] if arguments is None else arguments
    die_with_parent()
    _Server(socket.socket(fileno=int(number))).serve()
    return 0


class _Server:
    def __init__(self, parent: socket.socket) -> None:
        self._parent = parent
        self._waiting: list[Request] = []
        self._ended, told = os.pipe()
        os.set_blocking(self._ended, False)
        os.set_blocking(told, False)
        signal.set_wakeup_fd(told, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def serve(self) -> None:
        """Until the parent closes its end."""
        while True:
            wait = None if not self._waiting else 0
            files = [self._parent.fileno(), self._ended]
            ready, _, _ = select.select(files, [], [], wait)
            if self._ended in ready:
                self._reap()
            if self._parent.fileno() in ready:
                request = receive(self._parent)
                if request is None:
                    return
                self._waiting.append(request)
            elif self._waiting:
                first = min(self._waiting, key=lambda each: (each.rank, each.number))
                self._waiting.remove(first)
                self._start(first)

    def _start(self, request: Request) -> None:
        try:
            for name in request.imports:
                _import(name)
            self._send({"request": request.number, **self._forked(request)})
        finally:
            for file in request.streams:
                os.close(file)

    def _forked(self, request: Request) -> dict[str, Any]:
        doubt = unfit()
        if doubt is not None:
            return {"failed": doubt}
        gc.collect()
        gc.freeze()  # A collection in a forked process would copy all that is shared.
        begun, begins = os.pipe()
        try:
            pid = os.fork()
        except OSError as error:
            os.close(begins)
            os.close(begun)
            return {"failed": str(error)}
        if pid == 0:
            os.close(begun)
            self._run(request, begins)
        os.close(begins)
        # It has to lead a group of its own before anybody may want to end it.
        os.read(begun, 1)
        os.close(begun)
        return {"pid": pid}

    def _run(self, request: Request, begins: int) -> NoReturn:
        """The forked process, from its beginning to its end."""
        code = 1
        try:
            os.setsid()
            die_with_parent()
            os.nice(request.politeness)  # before it starts processes of its own
            # This module is `__main__` in the server, and another one for whoever imports it.
            importlib.import_module(f"{__package__}.fork_server").is_forked = True  # type: ignore[attr-defined]
            os.write(begins, b".")
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number, file in enumerate(request.streams):
                os.dup2(file, number)
            for file in (begins, self._ended, self._parent.fileno(), *request.streams):
                os.close(file)
            os.environ.clear()
            os.environ.update(request.environment)
            _name_process(request)
            sys.argv = [request.module, *request.arguments]
            code = importlib.import_module(request.module).main(list(request.arguments))
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException:  # noqa: BLE001 - as an interpreter ends
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code or 0)

    def _reap(self) -> None:
        while True:
            try:
                os.read(self._ended, 1 << 12)
            except BlockingIOError:
                break
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            self._send({"pid": pid, "code": os.waitstatus_to_exitcode(status)})

    def _send(self, message: Mapping[str, Any]) -> None:
        send(self._parent, message)


def _name_process(request: Request) -> None:
    """For `ps` and `top`; the command line stays that of the server."""
    words = [request.module.rpartition(".")[2], *request.arguments[:1]]
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(" ".join(words)[:15])


def unfit() -> str | None:
    """Why this process is not to be forked; None if it may be."""
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        return f"it has {threads} threads"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "CUDA is initialised in it"
    files = (f"/proc/self/fd/{each}" for each in os.listdir("/proc/self/fd"))
    if any(os.path.islink(f) and os.readlink(f) == _CUDA_FILE for f in files):
        return "CUDA is initialised in it"
    return None


def _import(name: str) -> None:
    """What fails here fails where it is needed."""
    try:
        importlib.import_module(name)
    except BaseException:  # noqa: BLE001 - the server goes on
        traceback.print_exc()


def send(to: socket.socket, message: Mapping[str, Any], files: Sequence[int] = ()) -> None:
    """A message, and with it open files."""
    data = json.dumps(message).encode()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
    to.sendmsg([HEAD.pack(len(data))], rights)
    to.sendall(data)


def receive_message(of: socket.socket) -> Any:
    """A message without files; None at the end."""
    head = _all(of, HEAD.size)
    return None if head is None else _message(of, head)


def receive_with_files(of: socket.socket, most: int) -> tuple[Any, list[int]]:
    """A message and the files that came with it; None at the end."""
    try:
        head, files, _, _ = socket.recv_fds(of, HEAD.size, most)
    except ConnectionError:
        return None, []
    return _message(of, head) if len(head) == HEAD.size else None, files


def receive(of: socket.socket) -> Request | None:
    """A request; None when the parent has closed its end."""
    message, files = receive_with_files(of, STREAMS)
    return None if message is None else Request(**message, streams=tuple(files))


def _message(of: socket.socket, head: bytes) -> Any:
    data = _all(of, HEAD.unpack(head)[0])
    return None if data is None else json.loads(data)


def _all(of: socket.socket, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        try:
            more = of.recv(size - len(data))
        except ConnectionError:
            return None
        if not more:
            return None
        data += more
    return data


if __name__ == "__main__":
    sys.exit(main())
