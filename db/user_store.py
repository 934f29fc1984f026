"""The default store: the one that is used if none is named."""

import os
from pathlib import Path

from .errors import StoreUnavailable


def default_path() -> Path:
    """The user's own store, when nothing else is said. Raises StoreUnavailable without a home."""
    own = _user_store("XDG_DATA_HOME", ".local/share")
    # Once it was kept among the caches, which cleaners empty. Who has one there goes on with it.
    older = _user_store("XDG_CACHE_HOME", ".cache")
    if older is not None and older.exists() and not (own is not None and own.exists()):
        return older
    found = own or older
    if found is None:
        raise StoreUnavailable(
            "There is no home folder to keep a store in: name one with --store or PLANNER_STORE."
        )
    return found


def _user_store(variable: str, usual: str) -> Path | None:
    """In the folder that the variable names, or the usual one of the user's home, if any."""
    given = os.environ.get(variable)
    try:
        folder = Path(given) if given else Path.home() / usual
    except RuntimeError:
        return None
    return folder / "fusionplan" / "plans.db"
