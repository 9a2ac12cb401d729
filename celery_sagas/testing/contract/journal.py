"""``Journal``."""

import json
from collections.abc import Iterable, Iterator, Sequence

import pytest

from celery_sagas.stores.journal import Journal
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import Entries, Entry
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import OpenBackend, StoreFixtures
from celery_sagas.testing.samples import (
    HOUR,
    NAMES,
    by_key,
    complete,
    effects,
    entry,
    found,
    handled,
    is_there,
    new_record,
    outgoing,
    send,
    start,
    update,
)
from celery_sagas.testing.view import OTHER


class JournalContract(StoreFixtures):
    """The requirements on every ``Journal``."""

    def test_outcome_is_the_entry_of_the_completion(self, backend: Backend) -> None:
        line = complete(backend, start(backend))
        outcome = backend.journal.outcome_of(NAMES, "42")
        assert outcome is not None
        assert outcome == handled(backend, line)
        assert (outcome.message_id, outcome.outcome, outcome.detail) == (line.message_id, "completed", line.detail)

    def test_large_detail_is_kept_verbatim(self, backend: Backend) -> None:
        """It may have a whole state in it."""
        record = start(backend)
        line = entry(record, outcome="completed")._replace(detail=json.dumps({"final": '"漢\\\n' * 50_000}, ensure_ascii=False))
        backend.sagas.delete(record, effects(record, line=line))
        outcome = backend.journal.outcome_of(NAMES, "42")
        assert outcome is not None
        assert outcome.detail == line.detail
        assert backend.journal.history(NAMES, "42", 1) == [outcome]
        assert outcome in backend.journal.recent(9).entries
        assert handled(backend, line) == outcome

    def test_unknown_key_has_no_outcome(self, backend: Backend) -> None:
        """A key that never existed differs from one that has completed."""
        complete(backend, start(backend))
        assert backend.journal.outcome_of(NAMES, "43") is None
        assert backend.journal.outcome_of((OTHER,), "42") is None

    def test_instance_that_has_not_completed_has_no_outcome(self, backend: Backend) -> None:
        update(backend, start(backend))
        assert backend.journal.outcome_of(NAMES, "42") is None

    def test_message_that_failed_is_remembered_and_is_no_outcome(self, backend: Backend) -> None:
        line = send(backend, line=entry(start(backend), outcome="failed"))
        assert handled(backend, line) in backend.journal.history(NAMES, "42", 9)
        assert [each.outcome for each in backend.journal.history(NAMES, "42", 9)] == ["started", "failed"]
        assert backend.journal.outcome_of(NAMES, "42") is None

    def test_time_of_the_oldest_entry(self, backend: Backend, clock: Clock) -> None:
        """A journal that does not know it returns 0."""
        assert backend.journal.oldest_at() == 0
        oldest = handled(backend, send(backend))
        clock.advance(HOUR)
        newest = handled(backend, send(backend))
        assert oldest is not None
        assert newest is not None
        knows = type(backend.journal).oldest_at is not Journal.oldest_at
        assert backend.journal.oldest_at() == (oldest.at if knows else 0)
        backend.journal.purge(HOUR // 2, 9)
        assert backend.journal.oldest_at() == (newest.at if knows else 0)

    def test_newest_outcome_counts(self, backend: Backend, clock: Clock) -> None:
        complete(backend, start(backend))
        clock.advance(1)
        line = complete(backend, start(backend))
        clock.advance(1)
        start(backend)
        outcome = backend.journal.outcome_of(NAMES, "42")
        assert outcome is not None
        assert outcome.message_id == line.message_id

    def test_outcome_under_a_former_name_is_known(self, backend: Backend) -> None:
        complete(backend, start(backend, names=("purchase",)))
        outcome = backend.journal.outcome_of(NAMES, "42")
        assert outcome is not None
        assert outcome.saga == "purchase"
        assert backend.journal.outcome_of(("order",), "42") is None

    def test_completion_at_birth_has_an_outcome(self, backend: Backend) -> None:
        """The instance was never written."""
        line = send(backend, line=entry(new_record(), outcome="completed"))
        outcome = backend.journal.outcome_of(NAMES, "42")
        assert outcome is not None
        assert outcome.attempt == line.attempt

    def test_history_is_oldest_first(self, backend: Backend, clock: Clock) -> None:
        lines = [self._line_at(backend, clock, after=1) for _ in range(4)]
        history = backend.journal.history(NAMES, "42", 9)
        assert [line.message_id for line in history] == [line.message_id for line in lines]
        assert [line.at for line in history] == [clock.now - 3, clock.now - 2, clock.now - 1, clock.now]

    def _line_at(self, backend: Backend, clock: Clock, after: int, version: int = 0, key: str = "42") -> Entry:
        clock.advance(after)
        return send(backend, line=entry(key=key, version=version))

    def test_history_comes_with_whole_entries(self, backend: Backend) -> None:
        line = complete(backend, start(backend))
        assert backend.journal.history(NAMES, "42", 1) == [handled(backend, line)]

    def test_history_of_one_time_is_in_the_order_of_versions(self, backend: Backend, clock: Clock) -> None:
        for version in (3, 1, 2):
            self._line_at(backend, clock, after=0, version=version)
        assert [line.version for line in backend.journal.history(NAMES, "42", 9)] == [1, 2, 3]
        assert [line.version for line in backend.journal.history(NAMES, "42", 2)] == [2, 3]

    def test_time_comes_before_version(self, backend: Backend, clock: Clock) -> None:
        """A restarted instance is at version 1 again."""
        for version in (2, 1):
            self._line_at(backend, clock, after=1, version=version)
        assert [line.version for line in backend.journal.history(NAMES, "42", 9)] == [2, 1]

    def test_history_is_cut_at_its_old_end(self, backend: Backend, clock: Clock) -> None:
        lines = [self._line_at(backend, clock, after=1) for _ in range(4)]
        history = backend.journal.history(NAMES, "42", 2)
        assert [line.message_id for line in history] == [line.message_id for line in lines[2:]]

    def test_history_is_that_of_one_key(self, backend: Backend) -> None:
        start(backend, "43")
        start(backend, names=(OTHER,))
        assert backend.journal.history(NAMES, "42", 9) == []

    def test_history_spans_former_names(self, backend: Backend, clock: Clock) -> None:
        complete(backend, start(backend, names=("purchase",)))
        clock.advance(1)
        start(backend)
        assert [line.saga for line in backend.journal.history(NAMES, "42", 9)] == ["purchase", "purchase", "order"]
        assert [line.saga for line in backend.journal.history(("order",), "42", 9)] == ["order"]

    def test_instances_that_began_are_the_newest_first(self, backend: Backend, clock: Clock) -> None:
        for key in ("41", "42", "43"):
            update(backend, start(backend, key))
            clock.advance(1)
        assert backend.journal.began(NAMES, HOUR, 9) == ["43", "42", "41"]
        assert backend.journal.began(NAMES, HOUR, 2) == ["43", "42"]

    def test_instance_that_completed_at_birth_began_too(self, backend: Backend) -> None:
        send(backend, line=entry(new_record(), outcome="completed", version=1))
        assert backend.journal.began(NAMES, HOUR, 9) == ["42"]

    def test_messages_that_began_nothing_do_not_count(self, backend: Backend) -> None:
        for outcome in ("ignored", "failed", "missing"):
            send(backend, line=entry(key="41", outcome=outcome))
            send(backend, line=entry(key="41", outcome=outcome, version=1))
        complete(backend, update(backend, start(backend)))
        assert backend.journal.began(NAMES, HOUR, 9) == ["42"]

    def test_instances_that_began_earlier_do_not_count(self, backend: Backend, clock: Clock) -> None:
        record = start(backend, "41")
        clock.advance(1_000)
        start(backend, "42")
        clock.advance(500)
        update(backend, record)
        assert backend.journal.began(NAMES, 1_000, 9) == ["42"]
        assert backend.journal.began(NAMES, 500, 9) == ["42"]
        assert backend.journal.began(NAMES, 499, 9) == []

    def test_key_of_several_instances_began_once(self, backend: Backend, clock: Clock) -> None:
        for _ in range(2):
            complete(backend, start(backend))
            clock.advance(1)
        assert backend.journal.began(NAMES, HOUR, 9) == ["42"]

    def test_instances_under_a_former_name_began_too(self, backend: Backend, clock: Clock) -> None:
        start(backend, "41", names=("purchase",))
        clock.advance(1)
        start(backend, "42", names=(OTHER,))
        clock.advance(1)
        start(backend, "43")
        assert backend.journal.began(NAMES, HOUR, 9) == ["43", "41"]
        assert backend.journal.began(("order",), HOUR, 9) == ["43"]

    def test_recent_entries_are_the_newest_first(self, backend: Backend, clock: Clock) -> None:
        lines = [self._line_at(backend, clock, after=1) for _ in range(3)]
        clock.advance(1)
        lines.append(complete(backend, start(backend)))
        found = backend.journal.recent(9).entries
        assert [each.outcome for each in found[:2]] in (["started", "completed"], ["completed", "started"])
        assert [each.message_id for each in found[2:]] == [line.message_id for line in lines[2::-1]]
        assert {*found} > {handled(backend, line) for line in lines}

    def test_recent_entries_of_nothing(self, backend: Backend) -> None:
        assert backend.journal.recent(9) == ((), "", 0)
        assert backend.journal.recent(9, names=NAMES, outcomes=("failed",)) == ((), "", 0)

    def test_recent_entries_of_some_sagas(self, backend: Backend, clock: Clock) -> None:
        for name in ("order", "purchase", OTHER, "Order", "order "):
            send(backend, line=entry(key="42", saga=name))
            clock.advance(1)
        assert [line.saga for line in backend.journal.recent(9, names=NAMES).entries] == ["purchase", "order"]
        assert [line.saga for line in backend.journal.recent(9, names=("order",)).entries] == ["order"]
        assert backend.journal.recent(9, names=("orders",)).entries == ()

    def test_recent_entries_of_some_outcomes(self, backend: Backend, clock: Clock) -> None:
        for outcome in ("failed", "handled", "ignored"):
            send(backend, line=entry(key="42", outcome=outcome))
            clock.advance(1)
        send(backend, line=entry(key="42", outcome="failed", saga=OTHER))
        found = backend.journal.recent(9, outcomes=("failed", "ignored"))
        assert [(line.saga, line.outcome) for line in found.entries] == [
            (OTHER, "failed"),
            ("order", "ignored"),
            ("order", "failed"),
        ]
        assert [line.outcome for line in backend.journal.recent(9, "", NAMES, ("failed",)).entries] == ["failed"]

    def test_recent_entries_are_those_of_the_prefix(self, backend: Backend, open_backend: OpenBackend, prefix: str) -> None:
        other = open_backend(f"{prefix}-2")
        other.prepare(create_schema=True, processes=1)
        send(other)
        line = send(backend)
        assert [each.message_id for each in backend.journal.recent(9).entries] == [line.message_id]

    @pytest.mark.parametrize("limit", [1, 2, 3, 9, 10, 11])
    @pytest.mark.parametrize("names", [(), NAMES])
    def test_recent_entries_follow_one_another(self, backend: Backend, clock: Clock, limit: int, names: tuple[str, ...]) -> None:
        """Three of them at a time."""
        lines = [self._line_at(backend, clock, after=number % 3 == 0, key=str(number)) for number in range(10)]
        pages = list(_pages(backend, limit, names))
        times = [line.at for page in pages for line in page.entries]
        assert sorted(_ids(pages)) == sorted(line.message_id for line in lines)
        assert times == sorted(times, reverse=True)
        assert all(len(page.entries) <= limit for page in pages)

    @pytest.mark.parametrize("wanted", [range(100), (99, 80), (80, 60), (79, 61), (80, 79, 60, 59), (1, 0)])
    def test_recent_entries_of_one_time_come_once(self, backend: Backend, wanted: Sequence[int]) -> None:
        """Also those with which one call ends, and the next one begins."""
        for number in range(100):
            saga = NAMES[0] if number in wanted else OTHER
            send(backend, line=entry(message_id=f"{number:03}", key=str(number), saga=saga))
        assert sorted(_ids(_pages(backend, 2, NAMES))) == sorted(f"{number:03}" for number in wanted)

    @pytest.mark.parametrize("later", [0, 1])
    def test_entries_that_are_added_move_no_others(self, backend: Backend, clock: Clock, later: int) -> None:
        """Also at the very time of the last one."""
        lines = [self._line_at(backend, clock, after=number % 4 == 0, key=str(number)) for number in range(20)]
        found = []
        for page in _pages(backend, 3):
            found += [line.message_id for line in page.entries]
            self._line_at(backend, clock, after=later, key=str(len(found)))
            if len(found) > 2 * len(lines):
                break
        assert [found.count(line.message_id) for line in lines] == [1] * len(lines)
        assert len(set(found)) == len(found)

    @pytest.mark.parametrize("purged", [3, 7])
    def test_entries_that_are_purged_move_no_others(self, backend: Backend, clock: Clock, purged: int) -> None:
        """Also with the one behind which the next call goes on."""
        lines = [self._line_at(backend, clock, after=1, key=str(number)) for number in range(10)]
        first = backend.journal.recent(3)
        assert backend.journal.purge(9 - purged, limit=9) == purged
        rest = [message_id for page in _pages(backend, 3, after=first.after) for message_id in page.entries]
        assert [line.message_id for line in (*first.entries, *rest)] == [line.message_id for line in lines[: purged - 11 : -1]]

    def test_entries_that_are_added_after_a_purge_move_no_others(self, backend: Backend, clock: Clock) -> None:
        for number in range(6):
            self._line_at(backend, clock, after=1, key=str(number))
        assert backend.journal.purge(2, limit=9) == 3
        lines = [self._line_at(backend, clock, after=1, key=str(number)) for number in range(6)]
        first = backend.journal.recent(4)
        assert backend.journal.purge(6, limit=9) == 2
        self._line_at(backend, clock, after=1)
        rest = [message_id for page in _pages(backend, 2, after=first.after) for message_id in page.entries]
        assert [line.message_id for line in (*first.entries, *rest)][:6] == [line.message_id for line in lines[::-1]]
        assert len(rest) == 3

    def test_call_looks_at_few_entries(self, backend: Backend, clock: Clock) -> None:
        """It ends although there is one of those that are asked for: all others in between would be looked at."""
        line = self._line_at(backend, clock, after=0)
        clock.advance(1)
        for number in range(100):
            send(backend, line=entry(key=str(number), saga=OTHER))
        first, *others = _pages(backend, 1, NAMES)
        assert first.entries == ()
        assert first.after
        assert _ids(others) == [line.message_id]

    @pytest.mark.parametrize("names", [(), NAMES, ("nobody",)])
    def test_time_since_which_everything_was_looked_at(self, backend: Backend, clock: Clock, names: tuple[str, ...]) -> None:
        first = clock.now + 1
        lines = [self._line_at(backend, clock, after=1, key=str(number)).message_id for number in range(60)]
        wanted = dict(enumerate(lines, first)) if names != ("nobody",) else {}
        pages, found = list(_pages(backend, 2, names)), set[str]()
        for page in pages:
            found |= {line.message_id for line in page.entries}
            assert {id for at, id in wanted.items() if at > page.since} <= found
        *times, last = (page.since for page in pages)
        assert last == 0
        assert first <= times[-1] < times[0] <= clock.now

    @pytest.mark.parametrize("after", ["garbage", " ", "\0", "[", "-1", "\ud800", "1e5", "None", "😀", "9" * 5_000, "[" * 5_000])
    def test_wrong_place_in_the_journal(self, backend: Backend, after: str) -> None:
        send(backend)
        with pytest.raises(ValueError, match="no place"):
            backend.journal.recent(9, after)

    def test_old_entries_are_purged_and_younger_ones_stay(self, backend: Backend, clock: Clock) -> None:
        for _ in range(3):
            self._line_at(backend, clock, after=0)
        young = self._line_at(backend, clock, after=HOUR)
        clock.advance(999)
        assert backend.journal.purge(1_000, limit=9) == 3
        assert [line.message_id for line in backend.journal.history(NAMES, "42", 9)] == [young.message_id]
        clock.advance(2)
        assert backend.journal.purge(1_000, limit=9) == 1

    def test_purge_takes_no_more_than_its_limit(self, backend: Backend, clock: Clock) -> None:
        """A purge must not hold a lock on everything."""
        for _ in range(5):
            self._line_at(backend, clock, after=0)
        clock.advance(HOUR)
        assert [backend.journal.purge(1_000, limit=2) for _ in range(4)] == [2, 2, 1, 0]

    def test_purge_touches_neither_instances_nor_rows(self, backend: Backend, clock: Clock) -> None:
        start(backend, "42", outgoing())
        clock.advance(HOUR)
        assert backend.journal.purge(1_000, limit=9) == 1
        assert is_there(backend, by_key())
        assert backend.outbox.count() == 1

    def test_purged_message_is_forgotten(self, backend: Backend, clock: Clock) -> None:
        """Exactly once holds within the retention."""
        line = send(backend)
        clock.advance(HOUR)
        backend.journal.purge(1_000, limit=9)
        assert handled(backend, line) is None
        new = new_record()
        backend.sagas.insert(new, effects(line=entry(new, message_id=line.message_id)))
        assert found(backend, by_key()).id == new.id


def _pages(backend: Backend, limit: int, names: Sequence[str] = (), after: str = "") -> Iterator[Entries]:
    """Yield the answers of calls that go on until that was all."""
    page = backend.journal.recent(limit, after, names)
    yield page
    while page.after:
        page = backend.journal.recent(limit, page.after, names)
        yield page


def _ids(pages: Iterable[Entries]) -> list[str]:
    return [line.message_id for page in pages for line in page.entries]
