"""Ids: new ones, ordered by time, and ids derived from the message that causes something."""

import secrets
import time
from collections.abc import Callable
from itertools import product
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Final
from uuid import NAMESPACE_OID, UUID, uuid5

#: The bits of an id that count fractions of a millisecond (244 ns each), and those behind them, which are random.
_FRACTION_BITS: Final = 12
_RANDOM_BITS: Final = 68
#: The digits of an id, two by two, and what each pair counts: a text is less than another one where its number is.
_PAIRS: Final = tuple(map("".join, product(digits + ascii_uppercase + ascii_lowercase, repeat=2)))
_PLACES: Final = tuple(len(_PAIRS) ** place for place in reversed(range(11)))
_last = 0


def time_ordered_id(clock_ns: Callable[[], int] = time.time_ns) -> str:
    """Return a new id of 22 letters and digits: as texts, ids sort in the order in which a process has made them.

    It is the number that a UUID of version 7 would be without the bits that say so, to the base 62, with the digits 0-9, A-Z and
    a-z: stores keep it in several indexes, and the usual form has 36 characters. Its time is that of the clock, or follows the
    last one if the clock stands still or was set back (RFC 9562, section 6.2, methods 3 and 1). No lock is used, since a time
    limit or a fork could leave it locked: threads that write the last time at once may share it, and differ, as processes do, in
    the random bits.

    Args:
        clock_ns: Returns nanoseconds since the epoch.
    """
    global _last
    _last = ticks = max((clock_ns() << _FRACTION_BITS) // 1_000_000, _last + 1)
    number = ticks << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)
    return "".join([_PAIRS[number // place % len(_PAIRS)] for place in _PLACES])


def derived_id(message_id: str, name: str) -> str:
    """Return the id of a message's effect under a name: handling the message again derives the same id.

    Args:
        message_id: The id of the causing message: a UUID, or any other text.
        name: Distinguishes the effects of one message.
    """
    return str(uuid5(_namespace(message_id), name))


def _namespace(message_id: str) -> UUID:
    """Return a UUID for a message id: each text has its own, even where two texts are forms of one UUID."""
    try:
        namespace = UUID(message_id)
    except ValueError:
        namespace = None
    return namespace if namespace is not None and str(namespace) == message_id else uuid5(NAMESPACE_OID, message_id)


def row_id(run_id: str, number: int) -> str:
    """Return the id of a row of the outbox: ids sort in the order in which a run has sent their messages."""
    return f"{run_id}-{number:05}"


def following_rows(first: str, count: int) -> list[str]:
    """Return the ids of so many rows of one run, from the first one on; none if that is no id of a row."""
    run_id, _, number = first.rpartition("-")
    return [row_id(run_id, int(number) + each) for each in range(count)] if number.isdecimal() else []
