"""``celery sagas doctor``: what is wrong with the configuration and with the live system, and what to do."""

from typing import Final

import click

from celery_sagas.cli import tables
from celery_sagas.cli.app import app_of
from celery_sagas.operate.doctor import Finding, Level, diagnose

#: The exit status if something is wrong.
FOUND: Final = 3
_INDENT: Final = " " * 11


@click.command()
@click.option("--static", "is_static", is_flag=True, help="Only settings and definitions; no server is asked.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object in each line.")
@click.pass_context
def doctor(context: click.Context, is_static: bool, as_json: bool) -> None:
    """Check the configuration, the broker, the workers and the backends; change nothing.

    Each line is OK, WARN or FAIL, with the id of the check. The exit status is 3 if one is not OK. A server that is away is a
    FAIL, and the rest is checked all the same.
    """
    is_well = True
    for finding in diagnose(app_of(context), is_live=not is_static):
        is_well = is_well and finding.level is Level.OK
        if as_json:
            tables.print_json([finding._asdict()])
        else:
            _print(finding)
    if not is_well:
        raise click.exceptions.Exit(FOUND)


def _print(finding: Finding) -> None:
    about = f"{finding.about}: " if finding.about else ""
    click.echo(tables.line(f"{finding.level.value:<4}  {finding.id}  {about}{finding.sentence}"))
    if finding.remedy:
        click.echo(f"{_INDENT}→ {tables.line(finding.remedy)}")
