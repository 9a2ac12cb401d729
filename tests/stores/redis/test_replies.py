"""Answers that are lost on the way, and calls that are interrupted: every script that writes may be sent again, and is."""

import random
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import pytest
import redis

from celery_sagas.errors import AlreadyHandled
from celery_sagas.stores.items import Addition, Snapshot
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import Effects, OutboxRow, Record
from celery_sagas.stores.redis.aggregators.aggregates import RedisAggregateStore
from celery_sagas.stores.redis.backend import RedisBackend
from celery_sagas.stores.redis.connection.scripts import load, names
from celery_sagas.stores.redis.placement import LAYOUT
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.samples import (
    HOUR,
    MINUTE,
    RELAY,
    STEP,
    audited,
    by_key,
    change,
    dead_letter,
    effects,
    entry,
    found,
    new_record,
    operate,
    outgoing,
    start,
)
from tests.integration.proxy import Proxy
from tests.servers import unique
from tests.stores.redis.buffer_plays import RULES, addition, divided
from tests.stores.redis.conftest import OpenAt
from tests.stores.redis.damage import DAMAGE, ENLIST, FORGET_ALL, SET

Subject = Any

_WRITE = re.compile(r"redis\.call\('(H?SET|HSETNX|H?DEL|HINCRBY|ZADD|ZREM\w*|[LR]PUSH|[LR]POP|LTRIM|UNLINK)'")
#: They join functions that write, and call none.
_ONLY_READING = {"outbox_count_leased", "outbox_overdue", "outbox_read"}
#: What registers a layout or a shard is called before anything is played.
_REGISTERING = {"layout_register", "shard_register", "rights_try"}
WRITING = {name for name in names() if _WRITE.search(load(name).source)} - _ONLY_READING - _REGISTERING


@dataclass(frozen=True)
class Play:
    """What is there, and what is done; the same objects whenever it is played."""

    name: str
    arrange: Callable[[Backend], Subject]
    act: Callable[[Backend, Subject], object]

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Commit:
    """A play that commits."""

    name: str
    arrange: Callable[[Backend], Subject]
    commit: Callable[[Backend, Any, Effects], None]
    effects: Effects

    def __str__(self) -> str:
        return self.name

    def act(self, backend: Backend, subject: Subject) -> None:
        """Commit."""
        self.commit(backend, subject, self.effects)


OLD, NEW = ("tracking", "T1"), ("tracking", "T2")
TAG, NEW_TAG = ("status", "new"), ("status", "paid")
BORN = new_record(keys=(OLD,), tags=(TAG,))
ROWS = (outgoing("scheduled"), outgoing("deadline"), outgoing("sent"))
BIRTH = effects(BORN, *ROWS, line=entry(BORN, outcome="started", version=1))
CAUSE = BIRTH.entry
IDS = [row.id for row in ROWS]
DEAD_LETTER = dead_letter()
#: What holds, and what changes that.
HELD, SWITCHED = audited(entry(key="")), audited(entry(key=""))
OPERATED = [entry(key="42") for _ in range(2)]
_RENAMED = [new_record(key, names=("purchase",), keys=(("tracking", key),), tags=(TAG,)) for key in ("42", "43", "44")]
FORMER = [(record, effects(record)) for record in (*_RENAMED, new_record("43", names=("order",)))]


def nothing(_: Backend) -> None:
    """Let there be nothing."""


def born(backend: Backend) -> Record:
    """Let there be an instance, with rows that are due."""
    backend.sagas.insert(BORN, BIRTH)
    return found(backend, by_key())


def locked(backend: Backend) -> Record:
    """Let there be a locked instance, too."""
    record = born(backend)
    assert backend.sagas.lock(record, "me", MINUTE)
    return found(backend, by_key())


def former(backend: Backend) -> None:
    """Let there be instances under a former name of their saga, one of whose keys is taken."""
    for record, made in FORMER:
        backend.sagas.insert(record, made)


def unlisted(backend: Backend) -> None:
    """Let there be instances that code of an earlier layout has written."""
    former(backend)
    assert isinstance(backend, RedisBackend)
    backend.client.run(FORGET_ALL, [backend._placement.shards[0].listed("purchase")], [])


def misplaced(backend: Backend) -> None:
    """Let such code have changed one instance, and ended another."""
    born(backend)
    assert isinstance(backend, RedisBackend)
    backend.client.run(ENLIST, [backend._placement.shards[0].listed("order")], [f"00000001{BORN.id}", "00000001gone"])


def of_the_layout_before(backend: Backend) -> None:
    """Let such code have registered its layout."""
    assert isinstance(backend, RedisBackend)
    layout = f"{LAYOUT.oldest} {LAYOUT.oldest} 1"
    backend.client.run(SET, [backend._placement._meta], ["layout", layout])


def claimed(backend: Backend) -> None:
    """Let two of three due rows be leased, one of them twice failed."""
    born(backend)
    for _ in range(2):
        backend.outbox.claim_due(RELAY, 1, MINUTE)
        backend.outbox.fail(RELAY, IDS[0], "broken", 0)
    backend.outbox.claim_due(RELAY, 2, MINUTE)


def ahead(backend: Backend) -> None:
    """Have rows whose time has not come."""
    claimed(backend)
    backend.outbox.release(RELAY, IDS, HOUR)


def series(backend: Backend) -> list[OutboxRow]:
    """Let rows be claimed; return them with their next messages."""
    claimed(backend)
    rows = [OutboxRow(*row, 0, BORN.id, CAUSE.step, CAUSE.message_id) for row in ROWS]
    return [row._replace(message_id=f"next of {row.id}", due_at=1) for row in rows]


def damaged(backend: Backend) -> None:
    """Let one of three due rows be unreadable."""
    born(backend)
    assert isinstance(backend, RedisBackend)
    backend.client.run(DAMAGE, backend._placement.shards[0].rows, [IDS[1]])


def operated(backend: Backend) -> None:
    """Let there be entries of the audit."""
    for line in OPERATED:
        operate(backend, line, id=line.message_id)


def held(backend: Backend) -> None:
    """Let a saga be held."""
    backend.switches.hold("order", HELD)


def delivered(backend: Backend) -> None:
    """Let some messages be delivered twice."""
    for message_id in ("one", "two", "one", "two"):
        backend.deliveries.count(STEP, message_id)


def later(backend: Backend) -> RedisBackend:
    """Let every trigger, lease and id be out of time."""
    assert isinstance(backend, RedisBackend)
    assert isinstance(backend.aggregates, RedisAggregateStore)
    now = backend.aggregates._now
    assert isinstance(now, Clock)
    now.advance(2 * HOUR)
    return backend


def kept(backend: Backend) -> None:
    """Let there be a dead letter."""
    backend.dead.add(DEAD_LETTER)


def _effects(outcome: str, lock_owner: str = "") -> Effects:
    line = entry(BORN, version=2, outcome=outcome)
    return effects(
        None, outgoing(), outgoing("scheduled", due_at=10**14), line=line, owner="me", grace_ms=MINUTE, lock_owner=lock_owner
    )


UPDATE = _effects("handled", "me")
CHANGE = change(added=(NEW,), removed=(OLD,), cancelled=(IDS[2], "gone", IDS[0]), added_tags=(NEW_TAG,), removed_tags=(TAG,))
PLAIN_COMMITS = [
    Commit("insert", nothing, lambda backend, _, effects: backend.sagas.insert(BORN, effects), BIRTH),
    Commit("update", locked, lambda backend, seen, effects: backend.sagas.update(seen, CHANGE, effects), UPDATE),
    Commit("delete", born, lambda backend, seen, effects: backend.sagas.delete(seen, effects), _effects("completed")),
    Commit("record", nothing, lambda backend, _, effects: backend.sagas.record(effects), effects(None, outgoing(), outgoing())),
]
AUDITED_COMMITS = [
    replace(each, name=f"{each.name}_audited", effects=each.effects._replace(audit=audited(each.effects.entry)))
    for each in PLAIN_COMMITS
]
COMMITS = [*PLAIN_COMMITS, *AUDITED_COMMITS]
OTHERS = [
    Play("lock", born, lambda backend, seen: seen and backend.sagas.lock(seen, "me", MINUTE)),
    Play("rename", former, lambda backend, _: backend.sagas.rename("order", "purchase", 9)),
    Play("index", unlisted, lambda backend, _: backend.instances.index("purchase", 9)),
    Play("index what is misplaced", misplaced, lambda backend, _: backend.instances.index("order", 9, "0:listed:")),
    Play("migrate", of_the_layout_before, lambda backend, _: backend.migrate()),
    Play("claim", born, lambda backend, _: backend.outbox.claim_due(RELAY, 3, MINUTE)),
    Play("claim of some", born, lambda backend, _: backend.outbox.claim_due(RELAY, 2, MINUTE)),
    Play("claim of a cause", born, lambda backend, _: backend.outbox.claim_due(RELAY, 9, MINUTE, CAUSE)),
    Play("claim of a damaged row", damaged, lambda backend, _: backend.outbox.claim_due(RELAY, 9, MINUTE)),
    Play("confirm", claimed, lambda backend, _: backend.outbox.confirm(RELAY, IDS)),
    Play("keep", claimed, lambda backend, _: backend.outbox.confirm(RELAY, IDS, MINUTE)),
    Play("look at what was tried", claimed, lambda backend, _: backend.outbox.tried(2**53, 9)),
    Play("reschedule", series, lambda backend, rows: backend.outbox.reschedule(RELAY, rows)),
    Play("release", claimed, lambda backend, _: backend.outbox.release(RELAY, IDS)),
    Play("hurry", ahead, lambda backend, _: backend.outbox.hurry(IDS)),
    Play("release with a delay", claimed, lambda backend, _: backend.outbox.release(RELAY, IDS, MINUTE)),
    Play("fail", claimed, lambda backend, _: [backend.outbox.fail(RELAY, id, "broken", MINUTE) for id in IDS]),
    Play("purge", born, lambda backend, _: backend.journal.purge(-HOUR, 9)),
    Play("purge of the audit", operated, lambda backend, _: backend.audit.purge(-HOUR, 9)),
    Play("hold", nothing, lambda backend, _: backend.switches.hold("order", SWITCHED)),
    Play("release what is held", held, lambda backend, _: backend.switches.release("order", SWITCHED)),
    Play("count a delivery", delivered, lambda backend, _: backend.deliveries.count(STEP, "two")),
    Play("forget deliveries", delivered, lambda backend, _: backend.deliveries.purge(-HOUR, 1)),
    Play("note an app", lambda backend: backend.note_app("shop"), lambda backend, _: backend.note_app("billing")),
    Play("add a dead letter", nothing, lambda backend, _: backend.dead.add(DEAD_LETTER)),
    Play("remove a dead letter", kept, lambda backend, _: backend.dead.remove(DEAD_LETTER.id)),
]


def inserted(backend: Backend) -> None:
    """Let there be items, for which a flush was asked."""
    assert backend.aggregates.insert(RULES, [addition("", "abcdef"), addition("other", "abc")])[0].needs_flush


def leased(backend: Backend) -> Snapshot:
    """Let some of them be leased."""
    inserted(backend)
    snapshot = backend.aggregates.claim(RULES, "", "token")
    assert snapshot
    return snapshot


def paused(backend: Backend) -> None:
    """Let a group pause."""
    leased(backend)
    backend.aggregates.release(RULES, "", "token", delay_ms=MINUTE)


def rejected_items(backend: Backend) -> dict[str, Any]:
    """Let one be unresolved, and one be rejected."""
    exceptions = divided(leased(backend))
    backend.aggregates.remove(RULES, "", "token", **exceptions)
    return exceptions


NEW_ITEMS = [addition("", "abcd", ends_unreadable=True), addition("other", "xy")]
BUFFERED = [
    Play("insert items", nothing, lambda backend, _: backend.aggregates.insert(RULES, NEW_ITEMS)),
    Play("insert more items", inserted, lambda backend, _: backend.aggregates.insert(RULES, [addition("", "efg")])),
    Play("look again", inserted, lambda backend, _: backend.aggregates.insert(RULES, [Addition("", ())])),
    Play("claim items", inserted, lambda backend, _: backend.aggregates.claim(RULES, "", "token")),
    Play("renew", leased, lambda backend, _: backend.aggregates.renew(RULES, "", "token")),
    Play("remove items", leased, lambda backend, _: backend.aggregates.remove(RULES, "", "token")),
    Play("reject items", leased, lambda backend, of: backend.aggregates.remove(RULES, "", "token", **divided(of))),
    Play("release items", leased, lambda backend, of: backend.aggregates.release(RULES, "", "token", **divided(of))),
    Play("pause", leased, lambda backend, _: backend.aggregates.release(RULES, "", "token", delay_ms=MINUTE)),
    Play("claim in a pause", paused, lambda backend, _: backend.aggregates.claim(RULES, "", "another token")),
    Play("fire a trigger in a pause", paused, lambda backend, _: backend.buffers.fire(RULES, "")),
    Play("claim due groups", inserted, lambda backend, _: later(backend).aggregates.claim_due([RULES.name], 1, MINUTE)),
    Play("forget ids", rejected_items, lambda backend, _: later(backend).aggregates.purge(1)),
    Play("fire a trigger", inserted, lambda backend, _: backend.buffers.fire(RULES, "other")),
    Play("remove an item", inserted, lambda backend, _: backend.buffers.remove(RULES, "", "b")),
    Play("remove an unresolved item", rejected_items, lambda backend, _: backend.buffers.remove(RULES, "", "b")),
    Play("clear a group", rejected_items, lambda backend, _: backend.buffers.clear(RULES, "")),
    Play("resolve", rejected_items, lambda backend, of: backend.aggregates.resolve(RULES, "", of["unreadable"])),
    Play("restore", rejected_items, lambda backend, of: backend.aggregates.restore(RULES, of["rejected"][0])),
    Play("discard", rejected_items, lambda backend, of: backend.dead.remove(of["rejected"][0].id)),
]
PLAYS: list[Play | Commit] = [*COMMITS, *OTHERS, *BUFFERED]


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    """What loses answers."""
    proxy = Proxy(url, 6379)
    yield proxy
    proxy.close()


@dataclass(frozen=True)
class Performance:
    """What came of a play."""

    answer: object
    stored: dict[str, object]
    scripts: list[str]  #: those that were called and write


@dataclass(frozen=True)
class Stage:
    """Where plays are performed: each under a prefix of its own, through the proxy."""

    url: str
    proxy: Proxy
    open_at: OpenAt

    def perform(self, play: Play | Commit, lost: str = "", nth: int = 1) -> Performance:
        """Perform a play; of the script ``lost`` the nth answer gets lost."""
        prefix, clock, called = unique("play"), Clock(), list[str]()
        backend = self.open_at(self.proxy.url, prefix=prefix, clock=clock)
        backend.prepare(create_schema=True, processes=1)
        subject = play.arrange(backend)
        clock.advance(1_000)
        backend.client.observers.append(called.append)
        if lost:
            backend.client.observers.append(self._loser(lost, nth))
        answer = play.act(backend, subject)
        return Performance(answer, stored(self.url, prefix), [name for name in called if name in WRITING])

    def _loser(self, script: str, nth: int) -> Callable[[str], None]:
        """Return an observer that has the proxy lose the answer to the nth call of a script."""
        calls = 0

        def observe(name: str) -> None:
            nonlocal calls
            calls += name == script
            if (name, calls) == (script, nth):
                self.proxy.swallow(load(script).sha.encode())

        return observe


def stored(url: str, prefix: str) -> dict[str, object]:
    """Return everything that Redis keeps under a prefix, but for what tells one call from another."""
    with redis.Redis.from_url(url, protocol=2) as client:
        keys = {key.decode().replace(prefix, "…"): key for key in client.scan_iter(match=f"*{prefix}*", count=1_000)}
        lasting = {name: key for name, key in keys.items() if client.pttl(key) == -1}
        return {name: _content(client, key) for name, key in lasting.items()}


def _content(client: Any, key: bytes) -> object:
    read = {
        "hash": lambda key: {field: _CALL.sub(b"", value) for field, value in client.hgetall(key).items()},
        "zset": lambda key: client.zrange(key, 0, -1, withscores=True),
        "list": lambda key: client.lrange(key, 0, -1),
        "string": client.get,
    }
    return read[client.type(key).decode()](key)


#: Under which call a row was leased, or a group marked.
_CALL = re.compile(rb"(?:^|(?<= ))[0-9a-f]{16}(?= )")


@pytest.fixture
def stage(url: str, proxy: Proxy, open_at: OpenAt) -> Stage:
    """Where plays are performed: the server knows the scripts, so that the first answer to each is the script's own."""
    with redis.Redis.from_url(url, protocol=2) as client:
        for name in names():
            client.script_load(load(name).source)
    return Stage(url, proxy, open_at)


@pytest.mark.parametrize("play", PLAYS, ids=str)
def test_lost_answer_is_as_one_call(stage: Stage, play: Play | Commit) -> None:
    """The client sends the script again: its answer and all that is stored are those of one call."""
    undisturbed = stage.perform(play)
    assert undisturbed.scripts
    for position, script in enumerate(undisturbed.scripts):
        stage.proxy.swallowed = 0
        disturbed = stage.perform(play, lost=script, nth=undisturbed.scripts[: position + 1].count(script))
        assert stage.proxy.swallowed == 1, script
        assert disturbed.answer == undisturbed.answer, script
        assert disturbed.stored == undisturbed.stored, script


@pytest.mark.parametrize("commit", COMMITS, ids=str)
def test_another_run_is_told_so_after_a_lost_answer(stage: Stage, prefix: str, commit: Commit) -> None:
    """Another run of the message has committed nothing; the run that has may ask as often as it likes."""
    backend = stage.open_at(stage.proxy.url)
    backend.prepare(create_schema=True, processes=1)
    subject = commit.arrange(backend)
    loser = stage._loser(f"saga_{commit.name}", 1)
    backend.client.observers.append(loser)
    commit.act(backend, subject)
    assert stage.proxy.swallowed == 1
    before = stored(stage.url, prefix)
    with pytest.raises(AlreadyHandled):
        commit.commit(backend, subject, commit.effects._replace(entry=commit.effects.entry._replace(attempt="another run")))
    commit.act(backend, subject)
    assert stored(stage.url, prefix) == before


def test_every_script_that_writes_is_performed(stage: Stage) -> None:
    performed = {name for play in PLAYS for name in stage.perform(play).scripts}
    assert performed == WRITING, "add a play that calls the script to PLAYS"


# Interruptions


class Interrupted(Exception):
    """Stands for SoftTimeLimitExceeded, which a signal handler raises anywhere."""


INTERRUPTIONS = 2_000
#: Most calls to be interrupted: as many as end before they are.
CALLS = 10 * INTERRUPTIONS


def is_interrupted(call: Callable[[], object], seconds: float) -> bool:
    """Call, raise ``Interrupted`` after this time, and tell whether that was before the end."""
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            call()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Interrupted:
        return True
    return False


@pytest.fixture
def _interruptible() -> Iterator[None]:
    """Let the alarm's signal raise."""

    def interrupt(_: int, __: FrameType | None) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("_interruptible")
def test_nobody_gets_the_answer_to_an_interrupted_call(redis_url: str, open_at: OpenAt) -> None:
    """A connection whose call was interrupted is never used again."""
    backend = open_at(redis_url)
    backend.prepare(create_schema=True, processes=1)
    keys = [str(number) for number in range(20)]
    for key in keys:
        start(backend, key, data=f'{{"key": {key}}}')
    chance = random.Random(3)
    interrupted, within = 0, 0.0005
    for _ in range(CALLS):
        key = chance.choice(keys)
        is_early = is_interrupted(lambda key=key: _is_about(backend, key), within * chance.random() + 1e-6)  # type: ignore[misc]
        interrupted += is_early
        within *= 1.05 if is_early else 0.95  # about as long as a call takes here
        _is_about(backend, chance.choice(keys))
        if interrupted == INTERRUPTIONS:
            break
    assert interrupted > INTERRUPTIONS / 4  # or nothing was tested


def _is_about(backend: RedisBackend, key: str) -> None:
    record = found(backend, by_key(key))
    assert (record.key, record.data) == (key, f'{{"key": {key}}}')
