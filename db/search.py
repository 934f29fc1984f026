"""Finding what a person means by a name or the start of a key: a plan, or trials and studies."""

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from sqlalchemy import ColumnElement, Connection, String, and_, func, or_, select
from sqlalchemy.orm import InstrumentedAttribute

from .errors import PlanNotFound
from .models import KernelRow, PlanRow, TrialRow

SHOWN_KEY = 12  # characters of a key that a message shows
SHOWN_PLANS = 5


@dataclass(frozen=True, slots=True)
class About:
    """Trials by the start of their study's name, of their kernel's key, or of the key of the graph
    that they are of; None: of any."""

    study: str | None = None
    kernel: str | None = None
    graph: str | None = None

    def conditions(self) -> Iterator[ColumnElement[bool]]:
        if self.study:
            yield _starts(TrialRow.study, self.study)
        if self.kernel is not None:
            yield and_(TrialRow.level == "kernel", _starts(TrialRow.subject, self.kernel))
        if self.graph is not None:
            kernels = select(KernelRow.key).where(_starts(KernelRow.graph_key, self.graph))
            yield or_(
                and_(TrialRow.level == "partition", _starts(TrialRow.subject, self.graph)),
                and_(TrialRow.level == "kernel", TrialRow.subject.in_(kernels)),
            )


def _starts(column: InstrumentedAttribute[str], text: str) -> ColumnElement[bool]:
    # LIKE takes large letters for small ones in some databases.
    return func.substr(column, 1, len(text), type_=String) == text


def chosen_plan(connection: Connection, prefix: str, shown: str) -> str:
    """The key of the one plan meant; PlanNotFound when there is none, or more than one.

    A whole key wins over a name, and a name over the start of a key.
    """
    plans = [
        (key, name)
        for key, name in connection.execute(
            select(PlanRow.key, PlanRow.name).order_by(PlanRow.updated_at.desc(), PlanRow.key)
        )
    ]
    readings = (
        [plan for plan in plans if plan[0] == prefix],
        [plan for plan in plans if plan[1] == prefix],
        [plan for plan in plans if prefix and plan[0].startswith(prefix)],
    )
    found = next((reading for reading in readings if reading), [])
    if len(found) == 1:
        return found[0][0]
    if found:
        raise PlanNotFound(
            f"{prefix!r} could be {len(found)} plans in {shown}, {_listed(found)}: "
            "give more of the key."
        )
    raise PlanNotFound(_missing(plans, prefix, shown))


def _missing(plans: list[tuple[str, str]], prefix: str, shown: str) -> str:
    if not plans:
        return f"There is no plan {prefix!r}, nor any other, in {shown}: tune something first."
    words = {word for key, name in plans for word in (name, key[: max(len(prefix), 1)])}
    close = get_close_matches(prefix, sorted(words), n=SHOWN_PLANS, cutoff=0.5)
    nearest = [plan for plan in plans if any(plan[1] == w or plan[0].startswith(w) for w in close)]
    word = "closest" if nearest else "latest"
    return (
        f"There is no plan {prefix!r} in {shown}; the {word} are {_listed(nearest or plans)}: "
        "give one of these names, or the start of a key."
    )


def _listed(plans: list[tuple[str, str]]) -> str:
    shown = [f"{key[:SHOWN_KEY]} ({name})" for key, name in plans[:SHOWN_PLANS]]
    return ", ".join(shown) + (", ..." if len(plans) > SHOWN_PLANS else "")
