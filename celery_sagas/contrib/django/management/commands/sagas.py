"""``manage.py sagas``: the commands of ``celery sagas``."""

from argparse import REMAINDER
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, cast

from celery.bin.base import CLIContext
from django.core.management.base import BaseCommand, CommandParser

from celery_sagas.cli import sagas
from celery_sagas.worker.celery_internals import current_app


class Command(BaseCommand):
    """Runs one of the commands of ``celery sagas``, with the project's Celery app."""

    help = "Inspect and set up celery-sagas: the commands of `celery -A proj sagas`."
    requires_system_checks = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Leave the arguments to the command, its options and ``--help`` included."""
        sagas.main(argv[2:], prog_name=f"{Path(argv[0]).name} {argv[1]}", obj=_context())

    def add_arguments(self, parser: CommandParser) -> None:
        """Take any arguments, for ``call_command()``."""
        parser.add_argument("arguments", nargs=REMAINDER)

    def handle(self, *args: Any, arguments: list[str], **options: Any) -> None:
        """Run a command for ``call_command()``; errors are raised as click's."""
        self.stdout.ending = ""  # click ends its lines itself
        with redirect_stdout(cast(Any, self.stdout)):
            sagas.main(arguments, prog_name="manage.py sagas", obj=_context(), standalone_mode=False)


def _context() -> CLIContext:
    return CLIContext(app=current_app(), no_color=True, workdir=None, quiet=False)
