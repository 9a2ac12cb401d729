"""``celery -A proj inspect sagas_relay``: what the relays of the workers have done.

A worker answers in its main process, where its relay runs.
"""

from typing import Any

from celery.worker.control import inspect_command

from celery_sagas.worker.relay import relay_of


@inspect_command()  # type: ignore[untyped-decorator,unused-ignore]
def sagas_relay(state: Any, **_: Any) -> dict[str, Any]:
    """What the relay has done, and its last sweep."""
    relay = relay_of(state.app)
    return {"running": False} if relay is None else relay.shown()
