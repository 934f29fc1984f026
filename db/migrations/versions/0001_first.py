"""The five tables: device, graph, kernel, trial, plan."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision: str | None = None
branch_labels: str | None = None
depends_on: str | None = None

KEY = sa.String(128)
NAME = sa.String(255)
SHA256 = sa.String(64)
MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    _device()
    _graph()
    _kernel()
    _trial()
    _plan()


def downgrade() -> None:
    for table in ("plan", "trial", "kernel", "graph", "device"):
        op.drop_table(table)


def _device() -> None:
    op.create_table(
        "device",
        sa.Column("key", KEY, nullable=False),
        sa.Column("name", NAME, nullable=False),
        sa.Column("sm_count", sa.Integer, nullable=False),
        sa.Column("memory_bytes", sa.BigInteger, nullable=False),
        sa.Column("capability", sa.String(64), nullable=False),
        sa.Column("profile", sa.Text, nullable=False),
        sa.Column("profile_sha256", SHA256, nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_device"),
    )


def _graph() -> None:
    op.create_table(
        "graph",
        sa.Column("key", KEY, nullable=False),
        sa.Column("name", NAME, nullable=False),
        sa.Column("nodes", sa.Integer, nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
        sa.Column("payload_sha256", SHA256, nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_graph"),
    )


def _kernel() -> None:
    op.create_table(
        "kernel",
        sa.Column("key", KEY, nullable=False),
        sa.Column("graph_key", KEY, nullable=False),
        sa.Column("family", sa.String(64), nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
        sa.Column("payload_sha256", SHA256, nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_kernel"),
        sa.ForeignKeyConstraint(["graph_key"], ["graph.key"], name="fk_kernel_graph_key"),
    )
    op.create_index("ix_kernel_graph_key", "kernel", ["graph_key"])


def _trial() -> None:
    op.create_table(
        "trial",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("study", NAME, nullable=False),
        sa.Column("level", sa.String(16), nullable=False),
        sa.Column("subject", KEY, nullable=False),
        sa.Column("device_key", KEY, nullable=False),
        sa.Column("versions", sa.Text, nullable=False),
        sa.Column("versions_sha256", SHA256, nullable=False),
        sa.Column("config", sa.Text, nullable=False),
        sa.Column("config_sha256", SHA256, nullable=False),
        sa.Column("timing", sa.String(64), nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("measured_s", sa.Double),
        sa.Column("spread_s", sa.Double),
        sa.Column("predicted_s", sa.Double),
        sa.Column("registers", sa.Integer),
        sa.Column("predicted_registers", sa.Integer),
        sa.Column("spill_bytes", sa.BigInteger),
        sa.Column("predicted_spills", sa.BigInteger),
        sa.Column("shared_bytes", sa.BigInteger),
        sa.Column("hbm_bytes", sa.BigInteger),
        sa.Column("compile_s", sa.Double),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_trial"),
        sa.ForeignKeyConstraint(["device_key"], ["device.key"], name="fk_trial_device_key"),
        sa.UniqueConstraint(
            "level",
            "subject",
            "device_key",
            "versions_sha256",
            "config_sha256",
            "timing",
            name="uq_trial_identity",
        ),
        sa.CheckConstraint("level IN ('kernel', 'partition')", name=op.f("ck_trial_level")),
        sa.CheckConstraint(
            "outcome IN ('timed', 'miscompiled', 'wrong', 'timed_out', 'crashed', 'rejected')",
            name=op.f("ck_trial_outcome"),
        ),
        sqlite_autoincrement=True,
    )
    for column in ("study", "subject", "device_key"):
        op.create_index(f"ix_trial_{column}", "trial", [column])


def _plan() -> None:
    op.create_table(
        "plan",
        sa.Column("key", KEY, nullable=False),
        sa.Column("graph_key", KEY, nullable=False),
        sa.Column("device_key", KEY, nullable=False),
        sa.Column("versions", sa.Text, nullable=False),
        sa.Column("versions_sha256", SHA256, nullable=False),
        sa.Column("name", NAME, nullable=False),
        sa.Column("evidence", sa.String(16), nullable=False),
        sa.Column("speedup", sa.Double),
        sa.Column("payload", sa.Text, nullable=False),
        sa.Column("payload_sha256", SHA256, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("updated_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_plan"),
        sa.ForeignKeyConstraint(["graph_key"], ["graph.key"], name="fk_plan_graph_key"),
        sa.ForeignKeyConstraint(["device_key"], ["device.key"], name="fk_plan_device_key"),
        sa.UniqueConstraint("graph_key", "device_key", "versions_sha256", name="uq_plan_identity"),
        sa.CheckConstraint("evidence IN ('measured', 'modelled')", name=op.f("ck_plan_evidence")),
    )
    for column in ("device_key", "name", "updated_at"):
        op.create_index(f"ix_plan_{column}", "plan", [column])
