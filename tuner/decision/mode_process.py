"""A process that compiles a model in modes of torch.compile, as its user would, so that what it
leaves in Inductor's caches need not be made again: `python -m ...decision.mode_process TURN`.

The tune's own process then compiles the same mode in the same way, and finds the code, and what
the autotuning chose. Here a mode can be given up at any time: the process is killed.

The model comes by pickle, as nothing else hands over a user's own classes. The file is one that the
tune wrote into a folder of its own, which no other user can enter; no store and no bundle has such.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ...planner.settings import adopt
from ..capture.traced_model import TracedGraph, traced
from ..workers.assembler import as_in_workers
from ..workers.worker import Role, serve
from .device_turns import SharedTurn, timed_in_turn
from .quiet import quiet_autotuning


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="fusionplan.tuner.decision.mode_process")
    parser.add_argument("turn", type=Path, help="the file by which turns on the device are taken")
    parser.add_argument("--settings", default="{}", help="of torch, as in the tune's own process")
    options = parser.parse_args(arguments)

    def role() -> Role:
        adopt(json.loads(options.settings))
        # Importing it takes seconds, in which the model is captured.
        import torch._inductor.compile_fx  # noqa: F401

        turn = SharedTurn(options.turn)
        return lambda request: compiled(request, turn), ()

    return serve(role)


def compiled(request: Mapping[str, Any], turn: AbstractContextManager[Any]) -> dict[str, Any]:
    """{"mode", "model", "path"}: compile the model of a file (see `modes_ahead.write_model`) in a
    mode, by one call; to {}. path: where modules are found, as in the process that wrote it."""
    sys.path += [each for each in request["path"] if each not in sys.path]
    given = torch.load(request["model"], weights_only=False)
    model, args, kwargs = given["model"], given["args"], given["kwargs"]
    # As the tune does it: Inductor's cache knows the graph by more than what it computes.
    run = traced(model).by(partial(TracedGraph.by_mode, mode=request["mode"]))
    with as_in_workers(), quiet_autotuning(), timed_in_turn(turn, runs=True), torch.no_grad():
        run(*args, **kwargs)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    return {}


if __name__ == "__main__":
    sys.exit(main())
