"""The switchboard looks once a second, and goes on with what it knows while the store is away."""

from threading import Barrier, Thread
from types import SimpleNamespace
from typing import Any

import pytest

from celery_sagas.engine.switchboard import LOG_EVERY_S, Switchboard, find_switch
from celery_sagas.errors import StepHeld, StoreUnavailable
from celery_sagas.stores.switches import Switch

STEP: Any = SimpleNamespace(
    name="order.charge", names=("order.charge", "shop.charge"), saga=SimpleNamespace(name="order", names=("order", "purchase"))
)


class Store:
    """A backend's switches, and how often they were read."""

    has_switches = True

    def __init__(self) -> None:
        self.names: list[str] = []
        self.looks = 0
        self.is_away = False
        self.switches = self

    def held(self) -> list[Switch]:
        """Return the switches."""
        self.looks += 1
        if self.is_away:
            raise StoreUnavailable("memory://", "it is away")
        return [Switch(name, "ann", "why", 0) for name in self.names]


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def now() -> list[float]:
    """The time: one number of seconds."""
    return [50.0]


@pytest.fixture
def board(store: Any, now: list[float]) -> Switchboard:
    return Switchboard(store, lambda: now[0])


@pytest.mark.parametrize("name", ["order.charge", "shop.charge", "order", "purchase"])
def test_step_is_held_under_each_name_of_it_and_of_its_saga(name: str) -> None:
    switch = Switch(name, "ann", "why", 0)
    assert find_switch({name: switch}, STEP) == switch


@pytest.mark.parametrize("name", ["order.ship", "order.charge.again", "Order", ""])
def test_step_is_not_held_under_another_name(name: str) -> None:
    assert find_switch({name: Switch(name, "ann", "why", 0)}, STEP) is None


def test_it_looks_before_the_first_message(board: Switchboard, store: Store) -> None:
    store.names = ["order"]
    with pytest.raises(StepHeld, match=r"^order.charge is held with all steps of order, by 'ann': 'why'\. Nothing "):
        board.check(STEP)


def test_it_looks_once_a_second(board: Switchboard, store: Store, now: list[float]) -> None:
    for number in range(30):
        now[0] = 50 + number / 10
        board.check(STEP)
    assert store.looks == 3


def test_change_is_seen_after_a_second(board: Switchboard, store: Store, now: list[float]) -> None:
    board.check(STEP)
    store.names = ["order.charge"]
    board.check(STEP)
    now[0] += 1
    with pytest.raises(StepHeld):
        board.check(STEP)
    store.names = []
    now[0] += 1
    board.check(STEP)


def test_change_by_this_process_is_seen_at_once(board: Switchboard, store: Store) -> None:
    board.check(STEP)
    store.names = ["order.charge"]
    board.look_again()
    with pytest.raises(StepHeld):
        board.check(STEP)


def test_store_that_is_away_changes_nothing(
    board: Switchboard, store: Store, now: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    store.names = ["order.charge"]
    with pytest.raises(StepHeld):
        board.check(STEP)
    store.is_away, store.names = True, []
    for _ in range(2):
        now[0] += 1
        with pytest.raises(StepHeld):
            board.check(STEP)
    assert caplog.text.count("which steps are held cannot be read") == 1  # once for each outage
    store.is_away = False
    now[0] += 1
    board.check(STEP)
    store.is_away = True
    now[0] += 1
    board.check(STEP)
    assert caplog.text.count("which steps are held cannot be read") == 2


def test_store_that_is_away_is_asked_once_a_second(board: Switchboard, store: Store) -> None:
    """Else each message would wait for it."""
    store.is_away = True
    for _ in range(5):
        board.check(STEP)
    assert store.looks == 1


def test_interrupted_look_is_made_again(board: Switchboard, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A time limit may strike it."""
    looked = []

    def interrupted() -> list[Switch]:
        looked.append(True)
        raise TimeoutError

    with monkeypatch.context() as patched:
        patched.setattr(store, "held", interrupted)
        with pytest.raises(TimeoutError):
            board.check(STEP)
    board.check(STEP)
    assert (len(looked), store.looks) == (1, 1)


def test_threads_wait_for_one_look(board: Switchboard, store: Store) -> None:
    store.names = ["order.charge"]
    barrier, held = Barrier(8), list[str]()

    def check() -> None:
        barrier.wait()
        try:
            board.check(STEP)
        except StepHeld as exc:
            held.append(exc.name)

    threads = [Thread(target=check) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(held), store.looks) == (8, 1)


def test_backend_without_switches_is_never_asked(store: Any, now: list[float]) -> None:
    store.has_switches, store.names = False, ["order"]
    Switchboard(store, lambda: now[0]).check(STEP)
    assert store.looks == 0


def test_messages_that_wait_are_logged_once_a_minute_for_each_switch(
    board: Switchboard, store: Store, now: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    store.names = ["order", "parcel"]
    parcel: Any = SimpleNamespace(name="parcel.pack", names=("parcel.pack",), saga=SimpleNamespace(names=("parcel",)))
    for _ in range(int(2 * LOG_EVERY_S)):
        for step in (STEP, parcel):
            with pytest.raises(StepHeld):
                board.check(step)
        now[0] += 1
    assert caplog.text.count("messages to order.charge wait: 'ann' holds order: 'why'") == 2
    assert caplog.text.count("messages to parcel.pack wait: 'ann' holds parcel: 'why'") == 2
