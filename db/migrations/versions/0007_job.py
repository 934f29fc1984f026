"""Jobs: searches that several workers share."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision: str | None = "0006"
branch_labels: str | None = None
depends_on: str | None = None

KEY = sa.String(128)
SHA256 = sa.String(64)


def upgrade() -> None:
    op.create_table(
        "job",
        sa.Column("key", KEY, nullable=False),
        sa.Column("tune", sa.String(64), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("graph_key", KEY, nullable=False),
        sa.Column("device_key", KEY, nullable=False),
        sa.Column("versions", sa.Text, nullable=False),
        sa.Column("versions_sha256", SHA256, nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
        sa.Column("payload_sha256", SHA256, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.Column("deadline_at", sa.Double, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_job"),
        sa.ForeignKeyConstraint(["device_key"], ["device.key"], name="fk_job_device_key"),
    )
    op.create_index("ix_job_tune", "job", ["tune"])


def downgrade() -> None:
    op.drop_table("job")
