"""``celery -A proj sagas …``: one file for each command."""

import click

from celery_sagas.cli.activity import activity
from celery_sagas.cli.acts import answer, fire, patch, pause, resume, skip, terminate
from celery_sagas.cli.aggregates import aggregates
from celery_sagas.cli.audit import audit
from celery_sagas.cli.check import check
from celery_sagas.cli.dead import dead
from celery_sagas.cli.describe import describe
from celery_sagas.cli.doctor import doctor
from celery_sagas.cli.each import act_on_each
from celery_sagas.cli.export import export
from celery_sagas.cli.graph import graph
from celery_sagas.cli.listing import list_instances
from celery_sagas.cli.metrics import metrics
from celery_sagas.cli.migrate import migrate
from celery_sagas.cli.relay import relay
from celery_sagas.cli.rename import rename
from celery_sagas.cli.replay import replay
from celery_sagas.cli.schema import schema
from celery_sagas.cli.show import show
from celery_sagas.cli.stats import stats
from celery_sagas.cli.stuck import stuck
from celery_sagas.cli.switches import held, hold, release
from celery_sagas.cli.timeline import timeline
from celery_sagas.cli.trying import try_step
from celery_sagas.cli.web import web
from celery_sagas.worker.process import control

#: ``celery`` loads this module before it reads its command line: this makes our commands known to ``inspect``.
__all__ = ["control", "sagas"]


@click.group()
def sagas() -> None:
    """Inspect and set up celery-sagas."""


sagas.add_command(activity)
for act in (answer, fire, hold, patch, pause, release, resume, skip, terminate):
    sagas.add_command(act)
sagas.add_command(aggregates)
sagas.add_command(audit)
sagas.add_command(check)
sagas.add_command(dead)
sagas.add_command(describe)
sagas.add_command(doctor)
sagas.add_command(act_on_each)
sagas.add_command(export)
sagas.add_command(graph)
sagas.add_command(held)
sagas.add_command(list_instances)
sagas.add_command(metrics)
sagas.add_command(migrate)
sagas.add_command(relay)
sagas.add_command(rename)
sagas.add_command(replay)
sagas.add_command(schema)
sagas.add_command(show)
sagas.add_command(stats)
sagas.add_command(stuck)
sagas.add_command(timeline)
sagas.add_command(try_step)
sagas.add_command(web)
