"""Who acts: a person, or a program in the place of one."""

import getpass
import os
import socket
from dataclasses import dataclass

from celery import Celery

from celery_sagas.core.names import storable
from celery_sagas.engine.acts.acting import ACTOR_CHARACTERS


@dataclass(frozen=True)
class Actor:
    """Who acts in which app, and how."""

    app: Celery
    actor: str  #: the name
    dry_run: bool  #: whether acts are only planned
    batch: str  #: the id of the batch to which the acts belong, or an empty text


def default_actor() -> str:
    """Return who runs this process: the user, also behind sudo, and the machine."""
    try:
        user = os.environ.get("SUDO_USER") or getpass.getuser()
    except (OSError, KeyError):  # the user has no name here
        user = str(os.getuid())
    return storable(f"{user}@{socket.gethostname()}", ACTOR_CHARACTERS)


def checked_text(what: str, given: str, most: int) -> str:
    """Return a text that an act keeps.

    Raises:
        ValueError: It is empty, too long, or cannot be stored.
    """
    if not isinstance(given, str) or not given.strip():
        raise ValueError(f"{what}= takes a text, and is empty")
    if len(given) > most:
        raise ValueError(f"{what}= takes at most {most:,} characters, and has {len(given):,}")
    if storable(given, most) != given:
        raise ValueError(f"{what}= has characters that cannot be stored: U+0000, or what is no valid UTF-8")
    return given
