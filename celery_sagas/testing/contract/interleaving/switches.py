"""Moves around a switch: operators hold and release a step at the same time."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import ClassVar

from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import AuditEntry
from celery_sagas.stores.switches import MOST
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.samples import NAMES, audited, entry

#: Does something in a world; what it returns is compared.
SwitchMove = Callable[[Backend, "SwitchWorld"], object]

_FILLER = "filler"
_tags = count()


@dataclass
class SwitchWorld:
    """A step that is held, and one that is not."""

    #: How many others are held, the same in all worlds.
    fillers: ClassVar[int] = 0
    tag: str = field(default_factory=lambda: f" in world {next(_tags)}")

    def __call__(self, name: str) -> str:
        """Return a name that only this world has."""
        return name + self.tag

    def entry(self, action: str) -> AuditEntry:
        """Return the entry of the audit with which an operator changes a switch."""
        return audited(entry(key=self("switch")), action=action, reason=action, id=self(action))._replace(instance_id="")

    def arrange(self, backend: Backend, clock: Clock) -> None:
        """Make the world."""
        held = {each.name for each in backend.switches.held()}
        for name in {f"{_FILLER} {number}" for number in range(self.fillers)} - held:
            backend.switches.hold(name, audited(entry()))
        backend.switches.hold(self("held"), self.entry("arrange"))

    def aftermath(self, backend: Backend, clock: Clock) -> object:
        """Return everything that can be observed, and release what is held only here."""
        held = [each for each in backend.switches.held() if not each.name.startswith(_FILLER)]
        audit = sorted(map(repr, backend.audit.recent(99, "", NAMES, self("switch")).entries))
        for each in held:
            backend.switches.release(each.name, audited(entry()))
        return held, audit


class FullWorld(SwitchWorld):
    """A world in which one step more can be held."""

    fillers = MOST - 2


def hold(backend: Backend, world: SwitchWorld) -> bool:
    """Hold the step that is not held."""
    return backend.switches.hold(world("free"), world.entry("hold"))


def hold_as_another(backend: Backend, world: SwitchWorld) -> bool:
    """Hold the same step, as another operator."""
    return backend.switches.hold(world("free"), world.entry("hold as another"))


def hold_held(backend: Backend, world: SwitchWorld) -> bool:
    """Hold the step that is held."""
    return backend.switches.hold(world("held"), world.entry("hold held"))


def hold_third(backend: Backend, world: SwitchWorld) -> bool:
    """Hold a third step."""
    return backend.switches.hold(world("third"), world.entry("hold third"))


def release(backend: Backend, world: SwitchWorld) -> bool:
    """Release the step that is held."""
    return backend.switches.release(world("held"), world.entry("release"))


def release_as_another(backend: Backend, world: SwitchWorld) -> bool:
    """Release the same step, as another operator."""
    return backend.switches.release(world("held"), world.entry("release as another"))


def release_and_hold(backend: Backend, world: SwitchWorld) -> bool:
    """Release the step that is held, and hold it again."""
    return release_as_another(backend, world) and hold_held(backend, world)


def look(backend: Backend, world: SwitchWorld) -> object:
    """Read the switches."""
    return backend.switches.held()


OPERATIONS: tuple[SwitchMove, ...] = (hold, hold_held, release)
RIVALS: tuple[SwitchMove, ...] = (hold_as_another, hold_held, hold_third, release_as_another, release_and_hold, look)
