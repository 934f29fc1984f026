"""Device profiles that were measured, or refitted from trials."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision: str | None = "0002"
branch_labels: str | None = None
depends_on: str | None = None

SHA256 = sa.String(64)
MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "calibration",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("device_key", sa.String(128), nullable=False),
        sa.Column("source", sa.String(16), nullable=False),
        sa.Column("profile", sa.Text, nullable=False),
        sa.Column("profile_sha256", SHA256, nullable=False),
        sa.Column("evidence", sa.Text, nullable=False),
        sa.Column("evidence_sha256", SHA256, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("undone_at", MOMENT),
        sa.PrimaryKeyConstraint("id", name="pk_calibration"),
        sa.ForeignKeyConstraint(["device_key"], ["device.key"], name="fk_calibration_device_key"),
        sa.CheckConstraint(
            "source IN ('measured', 'refitted')", name=op.f("ck_calibration_source")
        ),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_calibration_device_key", "calibration", ["device_key"])


def downgrade() -> None:
    op.drop_table("calibration")
