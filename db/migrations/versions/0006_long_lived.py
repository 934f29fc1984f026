"""Indexes for a store of very many trials, the form of kernels, and claims of trials."""

import hashlib
import json

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision: str | None = "0005"
branch_labels: str | None = None
depends_on: str | None = None

SUMMARY = ("study", "level", "subject", "device_key", "outcome", "measured_s", "created_at")
SHA256 = sa.String(64)


def upgrade() -> None:
    op.create_index("ix_trial_summary", "trial", list(SUMMARY))
    op.create_index("ix_trial_count", "trial", ["device_key", "level", "outcome"])
    op.drop_index("ix_trial_study", "trial")
    op.drop_index("ix_trial_device_key", "trial")
    op.add_column("kernel", sa.Column("form", SHA256, nullable=True))
    op.create_index("ix_kernel_form", "kernel", ["form"])
    _fill_forms()
    op.create_table(
        "claim",
        sa.Column("key", SHA256, nullable=False),
        sa.Column("holder", sa.String(64), nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_claim"),
    )
    op.create_index("ix_claim_holder", "claim", ["holder"])


def _fill_forms() -> None:
    """A payload that cannot be read has no form: who opens the group again writes it."""
    kernel = sa.table(
        "kernel", sa.column("key", sa.String), sa.column("form"), sa.column("payload", sa.Text)
    )
    connection = op.get_bind()
    for key, payload in connection.execute(sa.select(kernel.c.key, kernel.c.payload)).all():
        try:
            form = json.loads(payload)["form"]
        except (ValueError, TypeError, KeyError):
            continue
        text = json.dumps({"form": form}, sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(text.encode()).hexdigest()
        connection.execute(kernel.update().where(kernel.c.key == key).values(form=digest))


def downgrade() -> None:
    op.drop_table("claim")
    op.drop_index("ix_kernel_form", "kernel")
    op.drop_column("kernel", "form")
    op.create_index("ix_trial_study", "trial", ["study"])
    op.create_index("ix_trial_device_key", "trial", ["device_key"])
    op.drop_index("ix_trial_count", "trial")
    op.drop_index("ix_trial_summary", "trial")
