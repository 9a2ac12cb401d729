"""Ids: new ones, in the order of time, and those that are derived from the message that causes something."""

import secrets
import time
from collections.abc import Callable
from uuid import NAMESPACE_OID, UUID, uuid5

#: Time is counted in so many bits of a millisecond (244 ns), and the rest of an id is random.
_FRACTION_BITS = 12
_RANDOM_BITS = 62
_VERSION = 0b0111 << 76
_VARIANT = 0b10 << _RANDOM_BITS
_last = 0


def time_ordered_id(clock_ns: Callable[[], int] = time.time_ns) -> str:
    """Return a new UUID of version 7: as text, ids sort in the order in which a process has made them.

    Its time is that of the clock, or follows the last one if the clock stands still or was set back (RFC 9562, section 6.2,
    methods 3 and 1). There is no lock, which a time limit or a fork could leave locked: threads that write the last time at
    once may have the same, and are told apart, like processes, by the random bits.

    Args:
        clock_ns: Returns nanoseconds since the epoch.
    """
    global _last
    _last = ticks = max((clock_ns() << _FRACTION_BITS) // 1_000_000, _last + 1)
    milliseconds, fraction = divmod(ticks, 1 << _FRACTION_BITS)
    number = milliseconds << 80 | _VERSION | fraction << 64 | _VARIANT | secrets.randbits(_RANDOM_BITS)
    return str(UUID(int=number))


def derived_id(message_id: str, name: str) -> str:
    """Return the id of what a message causes under a name: handled again, it causes the same.

    Args:
        message_id: Of the causing message: a UUID, or any other text.
        name: Tells apart what one message causes.
    """
    return str(uuid5(_namespace(message_id), name))


def _namespace(message_id: str) -> UUID:
    """Return a UUID for a message id: another for another text, also where both are forms of one UUID."""
    try:
        namespace = UUID(message_id)
    except ValueError:
        namespace = None
    return namespace if namespace is not None and str(namespace) == message_id else uuid5(NAMESPACE_OID, message_id)
