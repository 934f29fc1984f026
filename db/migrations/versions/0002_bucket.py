"""Plans of graphs whose sizes vary are found by their bucket too."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    op.add_column("plan", sa.Column("bucket_key", sa.String(128), nullable=True))
    op.create_index("ix_plan_bucket_key", "plan", ["bucket_key"])


def downgrade() -> None:
    op.drop_index("ix_plan_bucket_key", "plan")
    op.drop_column("plan", "bucket_key")
