"""Atomicity: a rival's committed write is slipped in before each command of an operation.

A race of many threads does not prove atomicity: it catches a broken store in one run of hundreds. Here every gap between two
commands is tried, one after the other, and the outcome must be that of one of the serial orders. (Where a lock keeps many
rivals out until the end, one of them is tried in every gap: see ``keeps_locks``.) The reference for the serial orders is the
memory backend, whose operations are atomic by its lock.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import count
from typing import ClassVar, Protocol, TypeAlias, TypeVar

import pytest

from celery_sagas.errors import AlreadyHandled, LeaseLost, NotBuffered, RevisionConflict, StoreError, StoreUnavailable
from celery_sagas.stores.aggregates import can_send
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.ports import Backend
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import NewBackend, StoreFixtures
from celery_sagas.testing.contract.interleaving.buffers import OPERATIONS, RIVALS, BufferMove, BufferWorld, end_lease_and_send
from celery_sagas.testing.contract.interleaving.sagas import RACES, Move, World
from celery_sagas.testing.contract.interleaving.switches import OPERATIONS as SWITCHING
from celery_sagas.testing.contract.interleaving.switches import RIVALS as SWITCHES_RIVALS
from celery_sagas.testing.contract.interleaving.switches import FullWorld, SwitchMove, SwitchWorld, hold, hold_third

#: The result of a side that wrote nothing because the database undid it for the other, or that was never run.
GAVE_WAY = "gave way"

#: The operation is side 0, the rival side 1. A rival that comes before the first command meets no lock.
RIVAL_FIRST = (1, 0)
#: Both orders, and what is left if one side or both gave way.
ALL_ORDERS = (RIVAL_FIRST, (0, 1), (0,), (1,), ())

#: What the operation and the rival returned or raised, and everything that can be observed afterwards.
Outcome = tuple[object, object, object]


class Scene(Protocol):
    """A small world: the effects of moves in it can be compared with those in another of its kind."""

    def arrange(self, backend: Backend, clock: Clock) -> None:
        """Make it."""

    def aftermath(self, backend: Backend, clock: Clock) -> object:
        """Return everything that can be observed, and leave nothing that another could meet."""


S = TypeVar("S", bound=Scene)
#: The move of one side: the operation, or the rival's move that is slipped in.
Side: TypeAlias = Callable[[Backend, S], object]


class InterleavingContract(StoreFixtures):
    """No write of a rival is lost, and none comes between the parts of an operation."""

    #: Whether an operation keeps all of its locks until it ends, or until all end at once, as a transaction does. Then, of the
    #: rivals that gave way before one command, one alone is tried before the next: while it gives way, so would the others.
    keeps_locks: ClassVar[bool] = False

    def commands(self, backend: Backend, before: Callable[[], None]) -> AbstractContextManager[None]:
        """Call ``before`` before each command that this backend sends while the context lasts.

        Override this. As it stands it serves a backend whose operations are one command each.
        """
        return _once(before)

    @pytest.fixture
    def new_rival(self, new_backend: NewBackend) -> NewBackend:
        """Open a rival: it runs in the same thread, so it must give way at once where the operation holds a lock."""
        return new_backend

    @pytest.fixture
    def rival(self, new_rival: NewBackend, prefix: str, clock: Clock) -> Iterator[Backend]:
        """A rival's backend on the same data."""
        rival = new_rival(prefix, clock)
        yield rival
        rival.close()

    @pytest.mark.parametrize(("operation", "rivals"), RACES, ids=[operation.__name__ for operation, _ in RACES])
    def test_outcome_is_that_of_a_serial_order(
        self, backend: Backend, rival: Backend, clock: Clock, operation: Move, rivals: tuple[Move, ...]
    ) -> None:
        strange = list(self._strange(backend, rival, clock, World, operation, rivals))
        assert not strange, "\n".join(strange)

    @pytest.mark.usefixtures("aggregators")
    @pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
    def test_outcome_on_a_buffer_is_that_of_a_serial_order(
        self, backend: Backend, rival: Backend, clock: Clock, operation: BufferMove
    ) -> None:
        if operation is end_lease_and_send and not can_send(backend.aggregates):
            pytest.skip("what this backend removes sends nothing")
        rivals = [move for move in RIVALS if move is not end_lease_and_send or can_send(backend.aggregates)]
        strange = list(self._strange(backend, rival, clock, BufferWorld, operation, rivals))
        assert not strange, "\n".join(strange)

    @pytest.mark.usefixtures("switches")
    @pytest.mark.parametrize("operation", SWITCHING, ids=lambda operation: operation.__name__)
    def test_outcome_on_a_switch_is_that_of_a_serial_order(
        self, backend: Backend, rival: Backend, clock: Clock, operation: SwitchMove
    ) -> None:
        strange = list(self._strange(backend, rival, clock, SwitchWorld, operation, SWITCHES_RIVALS))
        assert not strange, "\n".join(strange)

    @pytest.mark.usefixtures("switches")
    def test_switches_do_not_pass_their_limit_together(self, backend: Backend, rival: Backend, clock: Clock) -> None:
        strange = list(self._strange(backend, rival, clock, FullWorld, hold, [hold_third]))
        assert not strange, "\n".join(strange)

    def _strange(
        self,
        backend: Backend,
        rival: Backend,
        clock: Clock,
        new_scene: Callable[[], S],
        operation: Side[S],
        moves: Sequence[Side[S]],
    ) -> Iterator[str]:
        """Yield a report of each outcome that no serial order has."""
        kept_out: list[Side[S]] = []  # of the moves, those that gave way before the last command
        for position in count(1):
            gave_way: list[Side[S]] = []
            for move in moves:
                if self.keeps_locks and move in kept_out and kept_out[0] in gave_way:
                    gave_way.append(move)
                    continue
                found = self._outcome(backend, rival, clock, new_scene(), (operation, move), position)
                if found is None:
                    assert position > 1, "the operation has sent no command: see commands()"
                    return
                outcome, serial = found
                if outcome not in serial:
                    yield f"{move.__name__} before command {position} of {operation.__name__}: {outcome}"
                if outcome[1] == GAVE_WAY:
                    gave_way.append(move)
            kept_out = gave_way

    def _outcome(
        self, backend: Backend, rival: Backend, clock: Clock, scene: S, sides: tuple[Side[S], Side[S]], position: int
    ) -> tuple[Outcome, list[Outcome]] | None:
        """Return the outcomes with the second side before a command, and of the serial orders; None without such a command."""
        now = clock.now
        scene.arrange(backend, clock)
        intruder = _Intruder(position, partial(_result, sides[1], rival, scene))
        with self.commands(backend, intruder):
            result = _result(sides[0], backend, scene)
        outcome = (result, intruder.result, scene.aftermath(backend, clock))
        if not intruder.came:
            return None
        orders = ALL_ORDERS if position > 1 else (RIVAL_FIRST,)
        return outcome, [_serial_outcome(scene, now, sides, order) for order in orders]


class _Intruder:
    """Runs a rival's move before one command."""

    def __init__(self, position: int, move: Callable[[], object]) -> None:
        self._position = position
        self._move = move
        self._commands = 0
        self.came = False
        self.result: object = GAVE_WAY

    def __call__(self) -> None:
        self._commands += 1
        if self._commands == self._position:
            self.came = True
            self.result = self._move()


def _result(move: Side[S], backend: Backend, scene: S) -> object:
    try:
        return move(backend, scene)
    except (AlreadyHandled, LeaseLost, NotBuffered) as exc:
        return type(exc).__name__
    except StoreUnavailable:
        return GAVE_WAY
    except RevisionConflict as exc:
        return GAVE_WAY if exc.reason == "deadlock" else exc.reason
    except StoreError as exc:
        return str(exc)


def _serial_outcome(scene: S, now: int, sides: tuple[Side[S], Side[S]], order: tuple[int, ...]) -> Outcome:
    """Return the outcome if only these sides run, in this order."""
    clock = Clock(now)
    backend = MemoryBackend("memory://", prefix="reference", clock=clock)
    scene.arrange(backend, clock)
    results = {side: _result(sides[side], backend, scene) for side in order}
    return results.get(0, GAVE_WAY), results.get(1, GAVE_WAY), scene.aftermath(backend, clock)


@contextmanager
def _once(before: Callable[[], None]) -> Iterator[None]:
    before()
    yield
