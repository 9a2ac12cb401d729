"""Ages, as operators write them: ``1d``, ``12h``, ``30m``."""

import click

from celery_sagas.operate.spans import age_ms


def milliseconds(context: click.Context, parameter: click.Parameter, age: str | None) -> int | None:
    """Read the age that an option has; it is its callback."""
    try:
        return None if age is None else age_ms(age)
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from exc
