"""``Audit``, and the entries that commits write into it."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import pytest

from celery_sagas.errors import AlreadyHandled
from celery_sagas.stores.audit import AuditPage
from celery_sagas.stores.operations import Commit, Delete, Insert, Update, Write
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import AuditEntry, Record
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import OpenBackend, StoreFixtures
from celery_sagas.testing.samples import (
    HOUR,
    NAMES,
    audited,
    by_id,
    by_key,
    change,
    claim,
    complete,
    conflict,
    effects,
    entry,
    found,
    handled,
    ids,
    is_there,
    new_record,
    operate,
    outgoing,
    start,
    update,
)
from celery_sagas.testing.view import OTHER, nothing_written

T1, T2 = (("tracking", "T1"),), (("tracking", "T2"),)
NEW, PAID = (("status", "new"),), (("status", "paid"),)
#: Makes a commit with an entry of the audit, about the instance "42" that was found; an insert is about another one, "43".
NewCommit = Callable[[Record, str], Commit]

#: Ids in which a pattern, a collation or a careless encoding errs.
ODD_IDS = ("a", "A", "a ", "a\n:b", "a\x01", "a\x02", "á", "a\ud7ff", "a\ue000", "a😀", ":", "%", "'", "\\", "0", "~")


def _insert(record: Record, id: str = "") -> Commit:
    new = new_record("43", keys=(("tracking", "T3"),), tags=NEW)
    line = entry(new, outcome="started", version=1)
    return Insert(new, effects(None, outgoing(), line=line, audit=audited(line, id=id)))


def _update(record: Record, id: str = "") -> Commit:
    line = entry(record)
    moved = change(added=T2, removed=T1, added_tags=PAID, removed_tags=NEW)
    return Update(record, moved, effects(None, outgoing(), outgoing("scheduled"), line=line, audit=audited(line, id=id)))


def _update_plainly(record: Record, id: str = "") -> Commit:
    """Change nothing but the instance."""
    line = entry(record)
    return Update(record, change(), effects(line=line, audit=audited(line, id=id)))


def _delete(record: Record, id: str = "") -> Commit:
    line = entry(record, outcome="completed")
    return Delete(record, effects(None, outgoing(), line=line, audit=audited(line, id=id)))


def _record(record: Record, id: str = "") -> Commit:
    line = entry(key="42")
    return Write(effects(None, outgoing(), line=line, audit=audited(line, id=id)))


_COMMITS = (_insert, _update, _update_plainly, _delete, _record)
each_commit = pytest.mark.parametrize("new_commit", _COMMITS, ids=lambda commit: commit.__name__[1:])
each_change = pytest.mark.parametrize("new_commit", _COMMITS[1:4], ids=lambda commit: commit.__name__[1:])


class AuditContract(StoreFixtures):
    """The requirements on every ``Audit``."""

    @pytest.fixture(autouse=True)
    def audit(self, backend: Backend) -> None:
        """Skip the test if the backend has no audit."""
        if not backend.has_audit:
            pytest.skip("this backend has no audit")

    @pytest.fixture
    def record(self, backend: Backend) -> Record:
        """The instance "42", with an alternate key and a tag."""
        return start(backend, keys=T1, tags=NEW)

    @each_commit
    def test_entry_is_written_at_the_stores_time(
        self, backend: Backend, clock: Clock, record: Record, new_commit: NewCommit
    ) -> None:
        commit = new_commit(record, "")
        clock.advance(7)
        commit.perform(backend)
        assert _all(backend) == [_of(commit)._replace(at=clock.now)]

    @each_commit
    def test_other_parts_are_written_with_it(self, backend: Backend, record: Record, new_commit: NewCommit) -> None:
        commit = new_commit(record, "")
        commit.perform(backend)
        written = handled(backend, commit.effects.entry)
        assert written is not None
        assert written._replace(at=0) == commit.effects.entry
        assert sorted(ids(claim(backend))) == sorted(row.id for row in commit.effects.outgoing)
        after = backend.sagas.find(by_key("43" if isinstance(commit, Insert) else "42")).record
        assert (after.version if after else 0) == {Insert: 1, Update: 2, Delete: 0, Write: 1}[type(commit)]

    @each_commit
    def test_commits_that_are_made_together_write_their_own(
        self, backend: Backend, clock: Clock, record: Record, new_commit: NewCommit
    ) -> None:
        others = [start(backend, str(number)) for number in range(4)]
        commits = [new_commit(record, ""), *(_update_plainly(each) for each in others)]
        commits.append(Write(effects(line=entry(key="unaudited"))))
        assert backend.many(commits) == [None] * 6
        assert {*_all(backend)} == {_of(commit)._replace(at=clock.now) for commit in commits[:5]}

    def test_commit_that_is_refused_among_others_writes_none(self, backend: Backend, clock: Clock, record: Record) -> None:
        others = [start(backend, str(number)) for number in range(3)]
        update(backend, record)
        commits = [_update(record), *map(_update_plainly, others)]
        refused, *answers = backend.many(commits)
        assert (refused.reason, answers) == ("version", [None] * 3)
        assert {*_all(backend)} == {_of(commit)._replace(at=clock.now) for commit in commits[1:]}

    def test_commit_without_an_entry_writes_none(self, backend: Backend, record: Record) -> None:
        complete(backend, update(backend, record, outgoing()))
        assert _all(backend) == []

    @each_commit
    def test_replay_writes_no_second_entry(self, backend: Backend, clock: Clock, record: Record, new_commit: NewCommit) -> None:
        commit = new_commit(record, "")
        commit.perform(backend)
        clock.advance(1)
        with nothing_written(backend):
            commit.perform(backend)
            assert backend.many([commit]) == [None]

    @each_commit
    def test_replay_brings_no_purged_entry_back(
        self, backend: Backend, clock: Clock, record: Record, new_commit: NewCommit
    ) -> None:
        commit = new_commit(record, "")
        commit.perform(backend)
        clock.advance(HOUR)
        assert backend.audit.purge(1_000, 9) == 1
        commit.perform(backend)
        assert _all(backend) == []

    @each_commit
    def test_another_attempt_writes_nothing(self, backend: Backend, record: Record, new_commit: NewCommit) -> None:
        line = entry(key="42")
        backend.sagas.record(effects(line=line))
        commit = new_commit(record, "")
        again = commit.effects._replace(entry=commit.effects.entry._replace(message_id=line.message_id))
        with nothing_written(backend), pytest.raises(AlreadyHandled):
            commit._replace(effects=again).perform(backend)

    @each_change
    def test_stale_commit_writes_nothing(self, backend: Backend, record: Record, new_commit: NewCommit) -> None:
        update(backend, record)
        with nothing_written(backend), conflict("version"):
            new_commit(record, "").perform(backend)

    @each_change
    def test_commit_on_a_locked_instance_writes_nothing(self, backend: Backend, record: Record, new_commit: NewCommit) -> None:
        backend.sagas.lock(record, "a worker", HOUR)
        with nothing_written(backend), conflict("locked"):
            new_commit(record, "").perform(backend)

    def test_commit_with_a_key_that_is_taken_writes_nothing(self, backend: Backend, record: Record) -> None:
        start(backend, "44", keys=(*T2, ("email", "a")))
        with nothing_written(backend), conflict("unique"):
            _update(record).perform(backend)

    @each_commit
    def test_id_of_another_entry_is_refused(self, backend: Backend, record: Record, new_commit: NewCommit) -> None:
        first = operate(backend)
        with nothing_written(backend), conflict("unique"):
            new_commit(record, first.id).perform(backend)

    def test_every_text_is_kept_verbatim(self, backend: Backend) -> None:
        line = entry(key="4\"2\n\\%'; --", saga="örder")._replace(instance_id="an\tid", version=2**40)
        made = audited(line, action="päuse\n", reason="'quoted\"\\ 漢😀" * 100)
        made = made._replace(actor="Ann <ann@shop>\t%s", detail='{"after": "' + "漢\\n😀" * 20_000 + '"}')
        backend.sagas.record(effects(line=line, audit=made))
        assert [each._replace(at=0) for each in _all(backend)] == [made]
        assert [each._replace(at=0) for each in _all(backend, (line.saga,), line.key)] == [made]

    def test_empty_texts_are_kept(self, backend: Backend) -> None:
        made = operate(backend, entry(saga="", key=""), action="", reason="")
        assert [each._replace(at=0) for each in _all(backend)] == [made]

    def test_entry_outlives_its_instance_and_the_journal(self, backend: Backend, clock: Clock, record: Record) -> None:
        commit = _update_plainly(record)
        commit.perform(backend)
        complete(backend, found(backend, by_key()))
        clock.advance(HOUR)
        assert backend.journal.purge(1_000, 9) == 3
        assert [each.id for each in _all(backend, NAMES, "42")] == [_of(commit).id]

    def test_entry_keeps_the_name_of_its_saga(self, backend: Backend) -> None:
        record = start(backend, names=("purchase",))
        line = entry(record)
        backend.sagas.update(record, change(names=("purchase",)), effects(line=line, audit=audited(line)))
        backend.sagas.rename("order", "purchase", 9)
        assert found(backend, by_id(record.id, ("order",))).saga == "order"
        assert [each.saga for each in _all(backend, NAMES, "42")] == ["purchase"]
        assert _all(backend, ("order",), "42") == []

    def test_recent_is_the_newest_first(self, backend: Backend, clock: Clock) -> None:
        made = [_operate_later(backend, clock, str(number)) for number in range(4)]
        assert [each.id for each in _all(backend)] == [each.id for each in made[::-1]]
        assert [each.at for each in _all(backend)] == [clock.now, clock.now - 1, clock.now - 2, clock.now - 3]

    def test_recent_of_nothing(self, backend: Backend) -> None:
        assert backend.audit.recent(9) == ((), "")
        assert backend.audit.recent(9, names=NAMES) == ((), "")
        assert backend.audit.recent(9, names=NAMES, key="42") == ((), "")

    @pytest.mark.parametrize("key", [None, "42"])
    @pytest.mark.parametrize("limit", [1, 3, 20])
    def test_entries_of_one_time_are_in_the_order_of_their_ids(self, backend: Backend, key: str | None, limit: int) -> None:
        """Those with the greatest ones first, by the numbers of their characters."""
        for id in ODD_IDS:
            operate(backend, id=id)
        assert [each.id for each in _all(backend, NAMES, key, limit)] == sorted(ODD_IDS, reverse=True)

    def test_recent_of_some_sagas(self, backend: Backend, clock: Clock) -> None:
        for name in ("order", "purchase", OTHER, "Order", "order "):
            operate(backend, entry(key="42", saga=name))
            clock.advance(1)
        assert [each.saga for each in _all(backend, NAMES)] == ["purchase", "order"]
        assert [each.saga for each in _all(backend, ("order",))] == ["order"]
        assert _all(backend, ("orders",)) == []

    def test_recent_of_a_key(self, backend: Backend, clock: Clock) -> None:
        made = [(name, key) for name in (*NAMES, OTHER) for key in ("42", "42 ", "4", "", "A", "a", "á")]
        for name, key in made:
            operate(backend, entry(key=key, saga=name))
            clock.advance(1)
        for key in ("42", "", "a"):
            assert [(each.saga, each.key) for each in _all(backend, NAMES, key)] == [("purchase", key), ("order", key)]
        assert [each.key for each in _all(backend, (OTHER,), "4")] == ["4"]
        assert _all(backend, NAMES, "43") == []

    def test_key_of_no_saga(self, backend: Backend) -> None:
        with pytest.raises(ValueError, match="names"):
            backend.audit.recent(9, key="42")

    def test_recent_is_that_of_the_prefix(self, backend: Backend, open_backend: OpenBackend, prefix: str) -> None:
        other = open_backend(f"{prefix}-2")
        other.prepare(create_schema=True, processes=1)
        line = entry(key="42")
        operate(other, line, id="the same")
        assert _all(backend) == _all(backend, NAMES, "42") == []
        made = operate(backend, line, reason="another", id="the same")
        assert [each.reason for each in _all(backend)] == [each.reason for each in _all(backend, NAMES, "42")] == [made.reason]
        assert backend.audit.purge(-HOUR, 9) == 1
        assert len(_all(other)) == 1

    @pytest.mark.parametrize("limit", [1, 2, 3, 9, 10, 11])
    @pytest.mark.parametrize(("names", "key"), [((), None), (NAMES, None), (NAMES, "42")])
    def test_pages_follow_one_another(
        self, backend: Backend, clock: Clock, limit: int, names: tuple[str, ...], key: str | None
    ) -> None:
        """Three of them at a time."""
        made = []
        for number in range(10):
            clock.advance(number % 3 == 0)
            saga = NAMES[number % 2]
            made.append(operate(backend, entry(key=key or str(number), saga=saga)))
        pages = list(_pages(backend, limit, names, key))
        assert sorted(_ids(pages)) == sorted(each.id for each in made)
        places = [(each.at, each.id) for page in pages for each in page.entries]
        assert places == sorted(places, reverse=True)
        assert all(len(page.entries) <= limit for page in pages)

    @pytest.mark.parametrize("key", [None, "42"])
    @pytest.mark.parametrize("later", [0, 1])
    def test_entries_that_are_added_move_no_others(self, backend: Backend, clock: Clock, later: int, key: str | None) -> None:
        made = [_operate_later(backend, clock, "42", after=number % 4 == 0) for number in range(20)]
        seen = []
        for page in _pages(backend, 3, NAMES, key):
            seen += [each.id for each in page.entries]
            _operate_later(backend, clock, "42", after=later)
            if len(seen) > 2 * len(made):
                break
        assert [seen.count(each.id) for each in made] == [1] * len(made)
        assert len(set(seen)) == len(seen)

    @pytest.mark.parametrize("key", [None, "42"])
    @pytest.mark.parametrize("purged", [3, 7])
    def test_entries_that_are_purged_move_no_others(self, backend: Backend, clock: Clock, purged: int, key: str | None) -> None:
        """Also with the one behind which the next call goes on."""
        made = [_operate_later(backend, clock, "42").id for _ in range(10)]
        first = backend.audit.recent(3, "", NAMES, key)
        assert backend.audit.purge(9 - purged, limit=9) == purged
        rest = _ids(_pages(backend, 3, NAMES, key, first.after))
        assert _ids([first]) + rest == made[: purged - 11 : -1]

    def test_call_looks_at_few_entries(self, backend: Backend, clock: Clock) -> None:
        """It ends although there is one of those that are asked for."""
        made = operate(backend)
        clock.advance(1)
        for number in range(100):
            operate(backend, entry(key=str(number), saga=OTHER))
        first, *others = _pages(backend, 1, NAMES)
        assert first.entries == ()
        assert first.after
        assert _ids(others) == [made.id]

    def test_key_is_found_among_many(self, backend: Backend, clock: Clock) -> None:
        """At once."""
        made = operate(backend)
        clock.advance(1)
        for number in range(100):
            operate(backend, entry(key=str(number + 100)))
        assert _ids([backend.audit.recent(1, "", NAMES, "42")]) == [made.id]

    @pytest.mark.parametrize("key", [None, "42"])
    @pytest.mark.parametrize(
        "after",
        ["garbage", " ", "\0", "0:a", "-000000000000001:a", "\u0660" * 16 + ":a", "0" * 16, "0" * 16 + ":\0", "9" * 5_000],
    )
    def test_wrong_place(self, backend: Backend, after: str, key: str | None) -> None:
        operate(backend)
        with pytest.raises(ValueError, match="no place"):
            backend.audit.recent(9, after, NAMES, key)

    def test_old_entries_are_purged_and_younger_ones_stay(self, backend: Backend, clock: Clock) -> None:
        for _ in range(3):
            operate(backend)
        young = _operate_later(backend, clock, "42", after=HOUR)
        clock.advance(999)
        assert backend.audit.purge(1_000, limit=9) == 3
        assert [each.id for each in _all(backend)] == [each.id for each in _all(backend, NAMES, "42")] == [young.id]
        clock.advance(2)
        assert backend.audit.purge(1_000, limit=9) == 1
        assert _all(backend) == _all(backend, NAMES, "42") == []

    def test_purge_takes_no_more_than_its_limit(self, backend: Backend, clock: Clock) -> None:
        """A purge must not hold a lock on everything."""
        for _ in range(5):
            operate(backend)
        clock.advance(HOUR)
        assert [backend.audit.purge(1_000, limit=2) for _ in range(4)] == [2, 2, 1, 0]

    def test_purge_touches_nothing_else(self, backend: Backend, clock: Clock, record: Record) -> None:
        commit = _update(record)
        commit.perform(backend)
        clock.advance(HOUR)
        assert backend.audit.purge(1_000, limit=9) == 1
        assert is_there(backend, by_key())
        assert backend.outbox.count() == 2
        assert handled(backend, commit.effects.entry) is not None


def _of(commit: Commit) -> AuditEntry:
    """Return the audit's entry of a commit."""
    assert commit.effects.audit is not None
    return commit.effects.audit


def _operate_later(backend: Backend, clock: Clock, key: str, after: int = 1) -> AuditEntry:
    clock.advance(after)
    return operate(backend, entry(key=key))


def _all(backend: Backend, names: Sequence[str] = (), key: str | None = None, limit: int = 50) -> list[AuditEntry]:
    """Return the entries of all pages."""
    return [each for page in _pages(backend, limit, names, key) for each in page.entries]


def _pages(
    backend: Backend, limit: int, names: Sequence[str] = (), key: str | None = None, after: str = ""
) -> Iterator[AuditPage]:
    """Yield the answers of calls that go on until that was all."""
    page = backend.audit.recent(limit, after, names, key)
    yield page
    while page.after:
        page = backend.audit.recent(limit, page.after, names, key)
        yield page


def _ids(pages: Iterable[AuditPage]) -> list[str]:
    return [each.id for page in pages for each in page.entries]
