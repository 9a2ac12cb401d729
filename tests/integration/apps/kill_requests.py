"""Questions whose process is killed, once at each point of its way through a message.

The name of a question says where: ``ask_twice after publish``, … Imported in place of ``asking``.
"""

from asking import app as app
from celery import signals
from traps import set_traps


@signals.worker_process_init.connect
def arm(**_: object) -> None:
    """Put the traps into this process's runtime."""
    set_traps(app, "quest")
