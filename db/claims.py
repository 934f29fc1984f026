"""Claims: which of several tuners is at a trial, so that no two measure the same.

A claim is a lease on the database's own clock: hosts need not agree on the time, and what a dead
tuner had claimed is free again when its lease is over.
"""

from sqlalchemy import (
    ColumnElement,
    Connection,
    Double,
    delete,
    func,
    insert,
    literal_column,
    or_,
    select,
    update,
)

from .models import ClaimRow

LEASE_S = 20.0
"""Seconds that a claim holds unless it is renewed: so long others wait for a dead tuner."""
LONGEST_S = 3600.0
"""No lease is longer; one that ends later was made before the clock was set back."""


def is_free(connection: Connection, key: str, holder: str) -> bool:
    """Whether the holder could take the claim. It only reads, so that those who are too late do not
    keep the others from writing."""
    anothers = select(ClaimRow.key).where(ClaimRow.key == key, ~_is_open(connection, holder))
    return connection.execute(anothers).first() is None


def take(connection: Connection, key: str, holder: str, lease_s: float) -> bool:
    """Whether the claim is the holder's now."""
    ends = clock(connection) + min(lease_s, LONGEST_S)
    is_open = _is_open(connection, holder)
    taken = (
        update(ClaimRow).where(ClaimRow.key == key, is_open).values(holder=holder, expires_at=ends)
    )
    if connection.execute(taken).rowcount:
        return True
    if connection.execute(select(func.count()).where(ClaimRow.key == key)).scalar_one():
        return False
    connection.execute(insert(ClaimRow).values(key=key, holder=holder, expires_at=ends))
    return True


def renew(connection: Connection, holder: str, lease_s: float) -> None:
    ends = clock(connection) + min(lease_s, LONGEST_S)
    connection.execute(update(ClaimRow).where(ClaimRow.holder == holder).values(expires_at=ends))


def end(connection: Connection, key: str) -> None:
    """Nobody's any more, because it is done."""
    connection.execute(delete(ClaimRow).where(ClaimRow.key == key))


def release(connection: Connection, holder: str) -> None:
    connection.execute(delete(ClaimRow).where(ClaimRow.holder == holder))


def _is_open(connection: Connection, holder: str) -> ColumnElement[bool]:
    """Whether a claim is the holder's own, or nobody's any more."""
    now = clock(connection)
    return or_(
        ClaimRow.holder == holder, ClaimRow.expires_at <= now, ClaimRow.expires_at > now + LONGEST_S
    )


def clock(connection: Connection) -> ColumnElement[float]:
    """Seconds since 1970 by the database's clock, at the time of the statement."""
    text = _CLOCKS.get(connection.dialect.name, _CLOCKS["mysql"])
    return literal_column(text, Double)


_CLOCKS = {
    "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
    "postgresql": "extract(epoch from clock_timestamp())",
    "mysql": "unix_timestamp(now(6))",
}
