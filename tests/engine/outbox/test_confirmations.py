"""Published rows are removed a moment later, many at once, and whoever cannot remove them tries again."""

import logging
import sys
import threading
from collections.abc import Sequence
from itertools import count
from types import SimpleNamespace

import pytest

from celery_sagas.engine.outbox import confirmations
from celery_sagas.engine.outbox.confirmations import Confirmations
from celery_sagas.errors import StoreUnavailable
from tests.engine.conftest import Recorder
from tests.waiting import DEADLINE_S, wait_until


class Outbox:
    """Notes what is confirmed, and fails as often as it is told."""

    def __init__(self) -> None:
        self.confirmed: list[tuple[str, list[str]]] = []
        self.kept: list[tuple[list[str], int]] = []
        self.failures = 0

    def confirm(self, token: str, ids: Sequence[str], keep_ms: int = 0) -> int:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("store", "away")
        if keep_ms:
            self.kept.append((list(ids), keep_ms))
        else:
            self.confirmed.append((token, list(ids)))
        return len(ids)


@pytest.fixture
def outbox() -> Outbox:
    """An outbox."""
    return Outbox()


#: How long the lease lasts, unless a test says otherwise.
LASTS_S = 30.0


def made(outbox: Outbox, lasts_s: float = LASTS_S) -> Confirmations:
    return Confirmations(outbox, "me", lasts_s, Recorder())  # type: ignore[arg-type]


def test_many_are_removed_at_once(outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confirmations, "GATHERED_FOR_S", 60)  # the thread is out of the way
    published = made(outbox)
    for id in ("a", "b", "c"):
        published.add([id])
    assert outbox.confirmed == []
    published.close()

    assert outbox.confirmed == [("me", ["a", "b", "c"])]


def test_a_thread_removes_them_by_itself(outbox: Outbox) -> None:
    published = made(outbox)
    for id in ("a", "b"):
        published.add([id])
        wait_until(lambda id=id: id in [each for _, ids in outbox.confirmed for each in ids], f"{id} confirmed")
    published.close()


def test_rows_that_are_kept(outbox: Outbox) -> None:
    published = made(outbox)
    published.keep_ms = 60_000
    published.add(["a"], ["b"])
    published.add(["c"])
    published.close()
    assert [id for _, ids in outbox.confirmed for id in ids] == ["a", "c"]
    assert outbox.kept == [(["b"], 60_000)]


def test_nothing_published_asks_nobody(outbox: Outbox) -> None:
    made(outbox).flush()
    assert outbox.confirmed == []


def test_what_cannot_be_removed_is_tried_again(outbox: Outbox, caplog: pytest.LogCaptureFixture) -> None:
    outbox.failures = 2
    published = made(outbox)
    published.add(["a", "b"])
    wait_until(lambda: outbox.confirmed, "confirmed at last")
    published.close()

    assert outbox.confirmed == [("me", ["a", "b"])]
    assert caplog.text.count("published messages could not be removed from the outbox") == 1


def test_until_the_lease_has_ended(outbox: Outbox, caplog: pytest.LogCaptureFixture) -> None:
    """Then others send the rows again."""
    outbox.failures = 1
    published = made(outbox, lasts_s=0)
    published.add_now(["a"])
    published.flush()

    assert outbox.confirmed == []
    assert "1 published messages could not be removed from the outbox in time" in caplog.text


def test_what_an_interruption_left_is_tried_again(outbox: Outbox) -> None:
    class Interrupted(Outbox):
        def confirm(self, token: str, ids: Sequence[str], keep_ms: int = 0) -> int:
            if not self.confirmed:
                self.confirmed.append(("", []))
                raise KeyboardInterrupt
            return super().confirm(token, ids, keep_ms)

    interrupted = Interrupted()
    published = made(interrupted)
    with pytest.raises(KeyboardInterrupt):
        published.add_now(["a"])
    published.flush()

    assert interrupted.confirmed[1:] == [("me", ["a"])]


def test_an_error_of_ours_does_not_end_the_thread(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """What it met with is tried again until the lease has ended; what came later is removed then."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(confirmations, "time", SimpleNamespace(monotonic=lambda: clock.now))

    class Broken(Outbox):
        def confirm(self, token: str, ids: Sequence[str], keep_ms: int = 0) -> int:
            if "a" in ids:
                raise ZeroDivisionError
            return super().confirm(token, ids, keep_ms)

    broken = Broken()
    published = made(broken)
    with caplog.at_level(logging.ERROR):
        published.add(["a"])
        wait_until(lambda: "ZeroDivisionError" in caplog.text, "a logged error")
    clock.now = LASTS_S - 1
    published.add(["b"])
    clock.now = LASTS_S + 1
    wait_until(lambda: broken.confirmed == [("me", ["b"])], "b confirmed")
    published.close()


def test_closing_ends_the_thread(outbox: Outbox) -> None:
    published = made(outbox)
    published.add(["a"])
    published.close()

    thread = published._thread
    assert isinstance(thread, threading.Thread)
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


class Interruption(BaseException):
    """A time limit that strikes."""


def test_interruption_leaves_nothing_locked(outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever Python looks for signals: when a function begins, and when a built-in one has ended."""
    monkeypatch.setattr(confirmations, "GATHERED_FOR_S", 60)  # the thread is out of the way
    published = made(outbox)
    published.add(["first"])
    for strike in count(1):
        moments = count(1)

        def interrupt(_: object, event: str, __: object, strike: int = strike, moments: "count[int]" = moments) -> None:
            if event in ("call", "c_return") and next(moments) == strike:
                raise Interruption

        sys.setprofile(interrupt)
        try:
            published.add(["interrupted"])
            break
        except Interruption:
            pass
        finally:
            sys.setprofile(None)
        other = threading.Thread(target=published.add, args=(["other"],), daemon=True)
        other.start()
        other.join(DEADLINE_S)
        assert not other.is_alive()
    assert strike > 3
    published.close()
