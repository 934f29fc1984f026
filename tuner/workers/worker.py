"""A worker process: `python -m fusionplan.tuner.workers.worker compile|measure [options]`.

It reads requests and writes answers, one JSON object a line. The first line it writes is
{"ready": true}. An answer with "leaving" is its last: the device is in a state it cannot trust.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .pipes import Pipe, die_with_parent

Handler = Callable[[Mapping[str, Any]], dict[str, Any]]
Role = tuple[Handler, "type[Exception] | tuple[()]"]
"""The handler of requests, and the exception that carries its last answer."""

FOR_COVERS = ("sympy", "scipy.optimize", "scipy.sparse", "torch._prims_common")
"""Modules that looking for covers imports when it needs them."""

FOR_REFERENCES = ("torch._dynamo",)
"""The same of the first operation that torch has written in Python, such as a conversion."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="fusionplan.tuner.workers.worker")
    parser.add_argument("role", choices=("compile", "measure"))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--least", type=int, default=10, help="runs of a candidate on the CPU")
    parser.add_argument("--settings", default="{}", help="of torch, as in the tune's own process")
    options = parser.parse_args(arguments)
    return serve(lambda: _role(options))


def serve(role: Callable[[], Role]) -> int:
    """Answer requests, until the exception that carries the last answer."""
    die_with_parent()
    pipe = Pipe()
    handle, final = role()
    pipe.send({"ready": True})
    while True:
        request = pipe.receive()
        answer, leaving = _answer(handle, final, request)
        pipe.send({"id": request["id"], **answer, **({"leaving": True} if leaving else {})})
        if leaving:
            return 0


def import_ahead(names: Sequence[str]) -> threading.Thread:
    """Import modules meanwhile: a worker starts long before the first graph is captured, and to
    import them at the first request takes seconds."""

    def run() -> None:
        for name in names:
            importlib.import_module(name)

    thread = threading.Thread(target=run, name="imports", daemon=True)
    thread.start()
    return thread


def _role(options: argparse.Namespace) -> Role:
    """Each role imports only what it needs."""
    if options.role == "compile":
        from . import compile_role

        import_ahead(FOR_COVERS)
        return compile_role.handle, ()
    from ...planner.settings import adopt
    from ..measure import measure_role

    import_ahead(FOR_REFERENCES)
    adopt(json.loads(options.settings))
    opened = measure_role.open_bench(options.device, seed=options.seed, least=options.least)
    return opened.handle, measure_role.Broken


def _answer(
    handle: Handler, final: type[Exception] | tuple[()], request: Mapping[str, Any]
) -> tuple[dict[str, Any], bool]:
    try:
        return handle(request), False
    except final as error:
        return dict(error.args[0]), True
    except Exception as error:  # noqa: BLE001 - whatever it is, it costs one candidate
        outside = isinstance(error, (MemoryError, OSError))
        return {"error": traceback.format_exc(limit=8), "transient": outside}, False


if __name__ == "__main__":
    sys.exit(main())
