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
    bind = op.get_bind()
    if bind.dialect.name == "sqlite":
        # The table is written anew. Whether with the checks that it had, depends on SQLAlchemy.
        read = sa.Table("plan", sa.MetaData(), autoload_with=bind).constraints
        is_kept = any(isinstance(c, sa.CheckConstraint) and c.name == NAME for c in read)
        check = sa.CheckConstraint(condition, name=op.f(NAME))
        with op.batch_alter_table("plan", recreate="always", table_args=(check,)) as batch:
            if is_kept:
                batch.drop_constraint(op.f(NAME), type_="check")
        return
    op.drop_constraint(op.f(NAME), "plan", type_="check")
    op.create_check_constraint(op.f(NAME), "plan", condition)
