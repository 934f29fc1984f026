"""The tables. A JSON column `x` always has a column `x_sha256` beside it.

Types are those that SQLite, PostgreSQL and MySQL agree on; what has to be unique is unique by
digest, since a unique index over long text is not portable.
"""

from datetime import UTC, datetime

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    UniqueConstraint,
    false,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

KEY = String(128)
NAME = String(255)
SHA256 = String(64)


class UtcDateTime(TypeDecorator[datetime]):
    """An aware datetime. SQLite and MySQL drop the time zone, so what is stored is always UTC."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is not None and value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone")
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    # Constraints are named, so that a later migration can drop them on every database.
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class DeviceRow(Base):
    __tablename__ = "device"

    key: Mapped[str] = mapped_column(KEY, primary_key=True)
    name: Mapped[str] = mapped_column(NAME)
    sm_count: Mapped[int] = mapped_column(Integer)
    memory_bytes: Mapped[int] = mapped_column(BigInteger)
    capability: Mapped[str] = mapped_column(String(64))
    profile: Mapped[str] = mapped_column(Text)
    profile_sha256: Mapped[str] = mapped_column(SHA256)


class GraphRow(Base):
    __tablename__ = "graph"

    key: Mapped[str] = mapped_column(KEY, primary_key=True)
    name: Mapped[str] = mapped_column(NAME)
    nodes: Mapped[int] = mapped_column(Integer)
    payload: Mapped[str] = mapped_column(Text)
    payload_sha256: Mapped[str] = mapped_column(SHA256)


class KernelRow(Base):
    __tablename__ = "kernel"

    key: Mapped[str] = mapped_column(KEY, primary_key=True)
    graph_key: Mapped[str] = mapped_column(KEY, ForeignKey(GraphRow.key), index=True)
    family: Mapped[str] = mapped_column(String(64))
    form: Mapped[str | None] = mapped_column(SHA256, index=True)
    payload: Mapped[str] = mapped_column(Text)
    payload_sha256: Mapped[str] = mapped_column(SHA256)


class TrialRow(Base):
    __tablename__ = "trial"

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    study: Mapped[str] = mapped_column(NAME)
    level: Mapped[str] = mapped_column(String(16))
    # A kernel's or a graph's key, by level: no foreign key can say that.
    subject: Mapped[str] = mapped_column(KEY, index=True)
    device_key: Mapped[str] = mapped_column(KEY, ForeignKey(DeviceRow.key))
    versions: Mapped[str] = mapped_column(Text)
    versions_sha256: Mapped[str] = mapped_column(SHA256)
    config: Mapped[str] = mapped_column(Text)
    config_sha256: Mapped[str] = mapped_column(SHA256)
    timing: Mapped[str] = mapped_column(String(64))
    outcome: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str | None] = mapped_column(Text)
    measured_s: Mapped[float | None] = mapped_column(Double)
    spread_s: Mapped[float | None] = mapped_column(Double)
    predicted_s: Mapped[float | None] = mapped_column(Double)
    registers: Mapped[int | None] = mapped_column(Integer)
    predicted_registers: Mapped[int | None] = mapped_column(Integer)
    spill_bytes: Mapped[int | None] = mapped_column(BigInteger)
    predicted_spills: Mapped[int | None] = mapped_column(BigInteger)
    shared_bytes: Mapped[int | None] = mapped_column(BigInteger)
    hbm_bytes: Mapped[int | None] = mapped_column(BigInteger)
    compile_s: Mapped[float | None] = mapped_column(Double)
    transient: Mapped[bool] = mapped_column(Boolean, server_default=false())
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)

    __table_args__ = (
        UniqueConstraint(
            "level",
            "subject",
            "device_key",
            "versions_sha256",
            "config_sha256",
            "timing",
            name="uq_trial_identity",
        ),
        CheckConstraint("level IN ('kernel', 'partition')", name="level"),
        CheckConstraint(
            "outcome IN ('timed', 'miscompiled', 'wrong', 'timed_out', 'crashed', 'rejected')",
            name="outcome",
        ),
        # All that a summary of the studies reads, so that it reads no rows.
        Index(
            "ix_trial_summary",
            "study",
            "level",
            "subject",
            "device_key",
            "outcome",
            "measured_s",
            "created_at",
        ),
        Index("ix_trial_count", "device_key", "level", "outcome"),
        # An id that a report has named must never come back as another trial.
        {"sqlite_autoincrement": True},
    )


class ClaimRow(Base):
    """A claim: a tune or a worker makes this trial now. key: a digest of the trial's identity;
    expires_at: seconds since 1970 by the clock of the database."""

    __tablename__ = "claim"

    key: Mapped[str] = mapped_column(SHA256, primary_key=True)
    holder: Mapped[str] = mapped_column(String(64), index=True)
    expires_at: Mapped[float] = mapped_column(Double)


class JobRow(Base):
    """A search that a tune shares. tune: whose it is; expires_at, deadline_at: seconds since 1970
    by the clock of the database."""

    __tablename__ = "job"

    key: Mapped[str] = mapped_column(KEY, primary_key=True)
    tune: Mapped[str] = mapped_column(String(64), index=True)
    name: Mapped[str] = mapped_column(NAME)
    graph_key: Mapped[str] = mapped_column(KEY)
    device_key: Mapped[str] = mapped_column(KEY, ForeignKey(DeviceRow.key))
    versions: Mapped[str] = mapped_column(Text)
    versions_sha256: Mapped[str] = mapped_column(SHA256)
    payload: Mapped[str] = mapped_column(Text)
    payload_sha256: Mapped[str] = mapped_column(SHA256)
    expires_at: Mapped[float] = mapped_column(Double)
    deadline_at: Mapped[float] = mapped_column(Double)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class CalibrationRow(Base):
    __tablename__ = "calibration"

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    device_key: Mapped[str] = mapped_column(KEY, ForeignKey(DeviceRow.key), index=True)
    source: Mapped[str] = mapped_column(String(16))
    profile: Mapped[str] = mapped_column(Text)
    profile_sha256: Mapped[str] = mapped_column(SHA256)
    evidence: Mapped[str] = mapped_column(Text)
    evidence_sha256: Mapped[str] = mapped_column(SHA256)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    undone_at: Mapped[datetime | None] = mapped_column(UtcDateTime)

    __table_args__ = (
        CheckConstraint("source IN ('measured', 'refitted')", name="source"),
        {"sqlite_autoincrement": True},
    )


class PlanRow(Base):
    __tablename__ = "plan"

    key: Mapped[str] = mapped_column(KEY, primary_key=True)
    graph_key: Mapped[str] = mapped_column(KEY, ForeignKey(GraphRow.key))
    device_key: Mapped[str] = mapped_column(KEY, ForeignKey(DeviceRow.key), index=True)
    versions: Mapped[str] = mapped_column(Text)
    versions_sha256: Mapped[str] = mapped_column(SHA256)
    name: Mapped[str] = mapped_column(NAME, index=True)
    evidence: Mapped[str] = mapped_column(String(16))
    speedup: Mapped[float | None] = mapped_column(Double)
    bucket_key: Mapped[str | None] = mapped_column(KEY, index=True)
    payload: Mapped[str] = mapped_column(Text)
    payload_sha256: Mapped[str] = mapped_column(SHA256)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)

    __table_args__ = (
        UniqueConstraint("graph_key", "device_key", "versions_sha256", name="uq_plan_identity"),
        CheckConstraint("evidence IN ('measured', 'searched', 'modelled')", name="evidence"),
        Index("ix_plan_updated_at", "updated_at"),
    )


TABLES = frozenset(Base.metadata.tables)
