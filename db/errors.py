"""The errors of a store.

Every message is one sentence that names the store and the way out, because it is shown as it is:
by `planner doctor` as an error, at run time as the one warning before a plan is treated as missing.
"""


class StoreError(Exception):
    """The store could not do what was asked; nothing was changed."""

    exit_code = 6  # of the command line


class StoreCorrupt(StoreError):
    """The store holds bytes that nobody wrote there: not SQLite, truncated, or a digest differs."""


class StoreNewer(StoreError):
    """The schema revision is unknown to this version of fusionplan."""


class StoreReadOnly(StoreError):
    """A write was wanted and the store cannot be written."""


class StoreUnavailable(StoreError):
    """The store cannot be opened, created or reached just now."""


class StoreMissing(StoreUnavailable):
    """Nothing is there yet, and only reading was wanted: the first tune makes the store."""


class StoreLost(StoreUnavailable):
    """The server let go of us, or is being started again: the same may work in a moment."""


class StoreRefused(StoreError):
    """The store's own rules refuse the record (it names a device, graph or kernel not put yet)."""


class PlanNotFound(StoreError):
    """No plan, or more than one, answers to the key prefix or name."""

    exit_code = 5
