"""The command `planner`: its commands, its help, and the one place where errors end.

A command's module is imported when the command runs, and heavy libraries when they are needed:
`planner --help` must not wait for torch.
"""

from __future__ import annotations

import gc
import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from keyword import iskeyword
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .. import __version__
from ..planner.bytecode import kept_bytecode
from .errors import EXIT_CODES, OK, PIPE, report
from .settings import SETTINGS, defaults, odd_variables

COMMANDS = {
    "tune": "Search for the fastest way to run a model, and store it.",
    "worker": "Measure for the tunes that use the same store.",
    "bench": "Measure a model with its stored plan, eager and torch.compile.",
    "check": "Fail if a stored plan is slower than eager or torch.compile now.",
    "show": "Show a plan: its groups, times and kernels.",
    "plans": "List the plans in the store.",
    "explain": "Explain a plan: loops, costs, and why kernels were not fused.",
    "report": "Write all that is known of a model's plans to one HTML file.",
    "diff": "Compare two plans: which groups changed, and their times.",
    "why-miss": "Say why no stored plan fits a model, and what to do.",
    "repro": "Write a script that runs one kernel of a plan alone.",
    "bisect": "Find the first group of a plan whose numbers are wrong.",
    "history": "List the trials of earlier tunes and their results.",
    "accuracy": "Compare the cost model's predictions with measured times.",
    "calibrate": "Measure the rates of the device for the cost model.",
    "export": "Write plans and their evidence to one signed file.",
    "import": "Add the plans of such a file to the store.",
    "bundle": "Write a model's plans with their machine code to one signed file.",
    "key": "Print your public key, which others need to trust your bundles.",
    "trust": "List the keys whose bundles you trust, or add a key.",
    "gc": "Remove old plans and trials from the store.",
    "doctor": "Check versions, device, compiler and store.",
}
"""Every command with its line in the help. The module and its function have the command's name."""


def _listed(text: str) -> str:
    """A line of a list that the help shows as it stands."""
    return textwrap.fill(text, 76, initial_indent="  ", subsequent_indent="     ")


_SETTINGS = ", ".join(f"{s.name} ({s.variable})" for s in SETTINGS.values())
_EPILOG = "\n\n".join(
    [
        "Settings: each can be an option, an environment variable, or a line of planner.toml in "
        "the working folder (or of [tool.planner] in pyproject.toml there). If it is given in "
        f"several of these places, the first one counts. The settings are: {_SETTINGS}.",
        "\b\nExit codes:\n"
        + "\n".join(_listed(f"{c}: {name}: {text}") for c, name, text in EXIT_CODES),
        "planner is the command of the Python package fusionplan.",
    ]
)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Python looks for garbage again and again while modules make objects, and finds none. That is
    a sixth of the time in which `show` and `history` start."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def command(name: str) -> Any:
    """The command of this name, as typer makes it of the function in its module."""
    own = name.replace("-", "_") + "_" * iskeyword(name)
    with _no_collection():
        function = getattr(import_module(f".{own}", __package__), own)
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command(name, short_help=COMMANDS[name])(function)
    return typer.main.get_command(app)


class Commands(TyperGroup):
    """All commands; one is imported when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            self.commands[cmd_name] = command(cmd_name)
        return self.commands.get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS:
            from difflib import get_close_matches

            close = get_close_matches(args[0], COMMANDS, n=1)
            meant = f" Did you mean {close[0]!r}?" if close else ""
            ctx.fail(f"No such command {args[0]!r}.{meant}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


app = typer.Typer(
    name="planner",
    cls=Commands,
    help="Decide which operations of a PyTorch model share a kernel, and store the result.",
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"planner {__version__}")
        raise typer.Exit(OK)


@app.callback(invoke_without_command=True)
def settings(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(OK)
    for told in odd_variables(os.environ):
        print(f"planner: note: {told}", file=sys.stderr)
    context.default_map = defaults(Path.cwd(), COMMANDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (`sys.argv` by default) and give its exit code. Every error is one
    line on stderr, with --json a document on stdout too; see `errors`."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    json = "--json" in given
    try:
        with kept_bytecode():
            code = app(args=given, prog_name="planner", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # Nobody reads any more. Python would complain once more when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE
    except KeyboardInterrupt as error:
        return report(error, json)
    except Exception as error:  # noqa: BLE001 - the top of the program: it is told, not hidden
        return report(error, json)
    return code if isinstance(code, int) else OK


if __name__ == "__main__":
    sys.exit(main())
