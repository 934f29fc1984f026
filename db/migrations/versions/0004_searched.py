"""Plans whose kernels were measured, but which were not compared: a third level of evidence."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision: str | None = "0003"
branch_labels: str | None = None
depends_on: str | None = None

NAME = "ck_plan_evidence"
BEFORE = "evidence IN ('measured', 'modelled')"
AFTER = "evidence IN ('measured', 'searched', 'modelled')"


def upgrade() -> None:
    _checked(AFTER)


def downgrade() -> None:
    op.execute("UPDATE plan SET evidence = 'modelled' WHERE evidence = 'searched'")
    _checked(BEFORE)


def _checked(condition: str) -> None:
    if op.get_bind().dialect.name == "sqlite":
        # The table is written anew, without the checks that it had.
        check = sa.CheckConstraint(condition, name=op.f(NAME))
        with op.batch_alter_table("plan", recreate="always", table_args=(check,)):
            pass
        return
    op.drop_constraint(op.f(NAME), "plan", type_="check")
    op.create_check_constraint(op.f(NAME), "plan", condition)
