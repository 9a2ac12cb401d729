"""A transport of kombu that receives many messages from Redis at once, and loses none: ``sagas+redis://``.

kombu cuts a URL at its first ``+``: it finds the transport under what stands before, and gives it the rest. An address to which a
connection fails over is read whole, and finds the transport under its scheme.
"""

from typing import Final

from kombu.transport import TRANSPORT_ALIASES

PREFIX: Final = "sagas"
#: The schemes of kombu whose servers this transport receives from.
SCHEMES: Final = ("redis", "rediss", "sentinel")
_TRANSPORT: Final = "celery_sagas.worker.transport.transport:Transport"


def register() -> None:
    """Make the transport known to kombu, which imports it when a URL names it."""
    for scheme in (PREFIX, *(f"{PREFIX}+{scheme}" for scheme in SCHEMES)):
        TRANSPORT_ALIASES[scheme] = _TRANSPORT
