"""The command `planner`: its options, its commands, and the one place where errors end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from .. import __version__
from .accuracy import accuracy
from .calibrate import calibrate
from .doctor import doctor
from .errors import EXIT_CODES, OK, report
from .explain import explain
from .history import history
from .settings import SETTINGS, defaults
from .show import show
from .tune import tune

_EPILOG = "\n\n".join(
    [
        "Settings: option, then variable, then planner.toml or [tool.planner] in pyproject.toml "
        f"of the working folder: {', '.join(f'{s.name} ({s.variable})' for s in SETTINGS)}.",
        "Exit codes:",
        *(f"{code}: {meaning}" for code, meaning in EXIT_CODES),
    ]
)

app = typer.Typer(
    name="planner",
    help="Decides which operations of a PyTorch model share a kernel, and remembers it.",
    epilog=_EPILOG,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(tune)
app.command()(show)
app.command()(explain)
app.command()(history)
app.command()(accuracy)
app.command()(calibrate)
app.command()(doctor)


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
    context.default_map = defaults(Path.cwd())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (`sys.argv` by default) and give its exit code. Every error is one
    line on stderr; see `errors`."""
    given = None if arguments is None else list(arguments)
    try:
        code = app(args=given, prog_name="planner", standalone_mode=False)
    except KeyboardInterrupt as error:
        return report(error)
    except Exception as error:  # noqa: BLE001 - the top of the program: it is told, not hidden
        return report(error)
    return code if isinstance(code, int) else OK


if __name__ == "__main__":
    sys.exit(main())
