"""The schema's revisions by name: what a reader compares, without what migrates."""

from functools import cache
from pathlib import Path

VERSION_TABLE = "fusionplan_version"
FOLDER = Path(__file__).parent / "migrations"


@cache
def revisions() -> tuple[str, ...]:
    """The revisions known to this version, oldest first, by the names of their files."""
    files = (FOLDER / "versions").glob("[0-9]*_*.py")
    return tuple(sorted(file.name.partition("_")[0] for file in files))


def newest() -> str:
    return revisions()[-1]
