"""A transport of kombu that receives many messages from Redis at once, and loses none: ``sagas-redis://``.

The scheme has no ``+``, at which kombu would cut the URL, and show the rest of it, with its password, in ``inspect stats``. That
is also what it does with the URL of a socket, and with those of several servers, under each scheme.
"""

from typing import Final

from kombu.transport import TRANSPORT_ALIASES

PREFIX: Final = "sagas-"
_MODULE: Final = "celery_sagas.worker.transport.transport"
#: The transport of each scheme, by the scheme of kombu's transport for the same server.
_TRANSPORTS: Final = {"redis": "Transport", "rediss": "Transport", "sentinel": "SentinelTransport"}


def register() -> None:
    """Make the transports known to kombu, which imports one when a URL names it."""
    for scheme, transport in _TRANSPORTS.items():
        TRANSPORT_ALIASES[f"{PREFIX}{scheme}"] = f"{_MODULE}:{transport}"
