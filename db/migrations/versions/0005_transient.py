"""Failed trials say whether the cause may lie outside of the candidate."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision: str | None = "0004"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    op.add_column(
        "trial", sa.Column("transient", sa.Boolean, nullable=False, server_default=sa.false())
    )
    # Until now nobody asked: these are the failures that are doubted from now on.
    trial = sa.table(
        "trial",
        sa.column("transient", sa.Boolean),
        sa.column("outcome", sa.String),
        sa.column("reason", sa.Text),
    )
    reason = trial.c.reason
    doubtful = sa.or_(
        trial.c.outcome.in_(("timed_out", "crashed")),
        reason.like("%signal SIGKILL%"),
        reason.like("%error code -9%"),
        reason.like("out of device memory%"),
    )
    op.execute(trial.update().where(doubtful).values(transient=True))


def downgrade() -> None:
    op.drop_column("trial", "transient")
