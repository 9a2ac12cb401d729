"""``--reveal``: what is hidden is shown to operators who say why."""

import click

from celery_sagas.cli.acts import ACTOR, operator_for
from celery_sagas.cli.options import adding
from celery_sagas.operate.operator import Operator
from celery_sagas.worker.runtime import Runtime

#: Adds the options with which a command reveals what is hidden.
revealing = adding(
    click.option("--reveal", is_flag=True, help="Show what is hidden, too; it needs --reason, and is in the audit."),
    click.option("--reason", metavar="TEXT", help="With --reveal: why. The audit keeps it."),
    ACTOR,
)


def operator_to_reveal(runtime: Runtime, actor: str | None, reason: str | None) -> tuple[Operator, str]:
    """Return who reveals what is hidden, and why.

    Raises:
        UsageError: No reason is given, or it cannot be kept, or the name cannot.
    """
    if reason is None:
        raise click.UsageError("--reveal needs --reason TEXT: the audit keeps who was shown what is hidden, and why")
    return operator_for(runtime, actor, reason), reason
