"""The switchboard: what a process knows of the sagas and steps that operators hold."""

import logging
import time
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Final

from celery_sagas.core.step import StepDefinition
from celery_sagas.errors import StepHeld, StoreError
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.switches import Switch

logger = logging.getLogger("celery_sagas")

#: How long what was read counts as known. Seconds.
LOOK_EVERY_S: Final = 1.0
#: How often the messages that wait for a switch are logged at most. Seconds.
LOG_EVERY_S: Final = 60.0


class Switchboard:
    """Knows what is held in a backend, from a look once a second, if a message comes: threads wait for each other's look.

    While the store is away it goes on with what was read last.

    Args:
        backend: It may lack switches: nothing is held there.
        clock: Returns seconds that never go back.
    """

    def __init__(self, backend: Backend, clock: Callable[[], float] = time.monotonic) -> None:
        self._backend = backend
        self._clock = clock
        self._held: Mapping[str, Switch] = {}
        self._look_at = 0.0 if backend.has_switches else float("inf")
        self._logged_at: dict[Switch, float] = {}
        self._is_failing = False
        self._lock = Lock()

    def check(self, step: StepDefinition) -> None:
        """Return if a step may handle its messages.

        Raises:
            StepHeld: It is held, or its saga is.
        """
        if self._clock() >= self._look_at:
            self._look()
        if self._held and (switch := find_switch(self._held, step)):
            self._log(step, switch)
            raise StepHeld(step.name, switch.name, switch.actor, switch.reason)

    def look_again(self) -> None:
        """Have the next message look: this process has changed a switch."""
        self._look_at = 0.0

    def _look(self) -> None:
        with self._lock:
            if self._clock() < self._look_at:
                return  # another thread has looked
            try:
                self._held = {switch.name: switch for switch in self._backend.switches.held()}
                self._is_failing = False
            except StoreError as exc:
                self._log_failure(exc)
            self._look_at = self._clock() + LOOK_EVERY_S

    def _log_failure(self, error: StoreError) -> None:
        if not self._is_failing:  # once for each outage
            logger.warning("which steps are held cannot be read, %d were when it was read last: %s", len(self._held), error)
        self._is_failing = True

    def _log(self, step: StepDefinition, switch: Switch) -> None:
        """Log that messages wait, now and then for each switch."""
        now, logged_at = self._clock(), self._logged_at
        if now - logged_at.get(switch, -LOG_EVERY_S) < LOG_EVERY_S:
            return
        self._logged_at = {each: at for each, at in logged_at.items() if each in self._held.values()} | {switch: now}
        logger.warning("messages to %s wait: %r holds %s: %r", step.name, switch.actor, switch.name, switch.reason)


def find_switch(held: Mapping[str, Switch], step: StepDefinition) -> Switch | None:
    """Return the switch that holds a step, under any of its names or those of its saga; ``None`` if none does."""
    return next((held[name] for name in (*step.names, *step.saga.names) if name in held), None)
