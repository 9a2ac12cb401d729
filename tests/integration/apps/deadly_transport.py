"""Parcels whose worker dies once, around that command of its transport which ``CELERY_SAGAS_TEST_POINT`` names."""

import os
from collections.abc import Sequence
from typing import Any

from kombu.transport import redis
from parcels import app as app
from traps import die, set_trap

from celery_sagas.worker.transport import channel, receiver

POINT = os.environ.get("CELERY_SAGAS_TEST_POINT", "")
#: The commands of the receiver, by the name of their stage.
COMMANDS = {"hello": "HELLO", "subscribe": "SUBSCRIBE", "track": "CLIENT", "load": "SCRIPT", "take": "EVALSHA"}


def asks(wanted: str) -> Any:
    """Return what tells whether the first of some commands is this one."""

    def is_asked(_: Any, commands: Sequence[Sequence[Any]]) -> bool:
        return str(commands[0][0]) == wanted

    return is_asked


def die_if_here(is_here: bool, point: str) -> None:
    if is_here and point == POINT:
        die(point)


for stage, command in COMMANDS.items():
    set_trap(receiver, "_ask_all", stage, asks(command), die_if_here)
set_trap(channel.Channel, "ack_many", "acknowledge", lambda *_: True, die_if_here)
set_trap(channel.QoS, "restore_by_tag", "restore", lambda *_: True, die_if_here)
#: Where kombu's own transport notes what it has popped.
set_trap(redis.QoS, "append", "note", lambda *_: True, die_if_here)
