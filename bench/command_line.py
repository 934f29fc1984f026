"""Options of several benchmarks, the check of their device, and the loop over their functions."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import torch

from ..planner.errors import DeviceError, FusionplanError

NO_GPU = 3
"""Exit code of a benchmark that needs a GPU where there is none."""


def parser_of(doc: str, functions: Collection[str], rounds: int) -> argparse.ArgumentParser:
    """A parser for functions of a table that are timed in turns, on a GPU or in the interpreter.
    doc: the module's docstring."""
    parser = argparse.ArgumentParser(description=doc.partition("\n")[0])
    parser.add_argument("functions", nargs="*", metavar="FUNCTION", help=", ".join(functions))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"of calls (default: {rounds})")
    return parser


def run_each(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    functions: Collection[str],
    run: Callable[[str, torch.device, argparse.Namespace], None],
) -> int:
    """Run it for every function that is asked for. 0: done; 1: a result was wrong, or there is no
    device; 2 (SystemExit): usage."""
    options = parser.parse_args(arguments)
    for name in options.functions:
        if name not in functions:
            parser.error(f"{name!r} is no function: give {', '.join(functions)}")
    try:
        device = torch.device(options.device)
        if device.type == "cuda" and not torch.cuda.is_available():
            raise DeviceError("there is no CUDA device: --device cpu runs the interpreter")
        for name in options.functions or functions:
            run(name, device, options)
    except FusionplanError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    return 0


def compiling_parser(doc: str) -> argparse.ArgumentParser:
    """A parser for a table of which kernels are compiled in processes and timed on the GPU."""
    parser = argparse.ArgumentParser(description=doc.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=8, help="processes that compile")
    parser.add_argument("--json", type=Path, help="write each time there, a line each")
    return parser


def current_gpu() -> torch.device | None:
    """The GPU that is timed on; None, said on stderr, where there is none."""
    if not torch.cuda.is_available():
        print("no CUDA device", file=sys.stderr)
        return None
    return torch.device("cuda", torch.cuda.current_device())


def table_head(columns: Sequence[str]) -> str:
    """The first two lines of a Markdown table."""
    return f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|"
