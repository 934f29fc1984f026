"""docs/messages.md: every refusal, warning and error, made from the tables in the code.

python -m fusionplan.cli.messages > docs/messages.md
"""

from __future__ import annotations

from collections.abc import Mapping

import fusionplan

from ..planner.cures import RULES, WARNINGS, Advice
from .errors import EXIT_CODES

_MESSAGES = """\
# Refusals, warnings and errors

Made from the code by `python -m fusionplan.cli.messages > docs/messages.md`; do not edit.

## Refusals

The planner joins operations into groups, and each group is to be one kernel. Where that is not
possible it says by which rule. **A refusal is no error**: the operations stay in smaller groups, or
run as PyTorch runs them (as ATen). `planner explain MODEL` prints the refusals between neighbours.

{rules}

## Warnings

Each is a `fusionplan.FusionplanWarning` and ends with its cure. The model runs in every case.

{warnings}

## Errors

An error is one sentence that names the thing and the way out. In Python it is an exception, of the
command it is an exit code.

{errors}
"""


def messages() -> str:
    """Every refusal and warning with its cause and cure, and the exceptions with exit codes."""
    return _MESSAGES.format(rules=_told(RULES), warnings=_told(WARNINGS), errors=_errors())


def _told(table: Mapping[str, Advice]) -> str:
    rows = [f"| `{name}` | {t.why} | {t.cure} |" for name, t in sorted(table.items())]
    return "\n".join(["| name | what it means | what to do |", "|---|---|---|", *rows])


def _errors() -> str:
    own = [getattr(fusionplan, name) for name in fusionplan.__all__]
    classes = [c for c in own if isinstance(c, type) and issubclass(c, Exception)]
    names = {code: name for code, name, _ in EXIT_CODES}
    rows = []
    for each in classes:
        code = getattr(each, "exit_code", None)
        if code is not None:
            about = " ".join((each.__doc__ or "").split())
            rows.append(f"| `fusionplan.{each.__name__}` | {code} ({names[code]}) | {about} |")
    return "\n".join(["| exception | exit code | meaning |", "|---|---|---|", *rows])


if __name__ == "__main__":
    print(messages(), end="")
