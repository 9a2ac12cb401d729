"""The health of a backend, as it tells it itself."""

from enum import StrEnum
from typing import NamedTuple

__all__ = ["Level", "Remark", "Subject"]


class Level(StrEnum):
    """How bad something is."""

    OK = "OK"
    WARN = "WARN"  #: everything works, and something may go wrong
    FAIL = "FAIL"  #: something does not work


class Subject(StrEnum):
    """What a remark is about."""

    LAYOUT = "layout"  #: what is stored, and whether this code can run on it
    SAFETY = "safety"  #: whether what was committed is kept
    TABLES = "tables"  #: what the tables cost
    MEMORY = "memory"  #: the memory of the server, and what it has last written to its disk


class Remark(NamedTuple):
    """What operators should know of a backend."""

    subject: Subject
    level: Level
    sentence: str  #: what is so, and what follows from it; without a full stop
    remedy: str = ""  #: what to do
