"""A state machine that plays operations on buffers in any order beside the memory backend. It needs hypothesis."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from celery_sagas.errors import LeaseLost, NotBuffered
from celery_sagas.stores.aggregates import can_send
from celery_sagas.stores.items import Addition, Item, Rules
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import DeadLetter
from celery_sagas.testing.batches import dead_letters_of, new_items, sends_of
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import NewBackend

T = TypeVar("T")

NAME = "readings"
GROUPS = ("", "a")
RUNS = ("one", "two", "three")

_all_rules = st.builds(
    Rules,
    name=st.just(NAME),
    size=st.sampled_from([0, 2, 3, 8]),
    within_ms=st.sampled_from([0, 3_000]),
    idle_ms=st.sampled_from([0, 2_000]),
    max_buffered=st.sampled_from([0, 6, 12]),
    remember_ms=st.sampled_from([0, 4_000]),
    max_attempts=st.sampled_from([1, 2]),
    lease_ms=st.sampled_from([2_000, 5_000]),
)
_ids = st.lists(st.sampled_from("abcdefghijklmnop"), max_size=5)
_positions = st.lists(st.integers(0, 7), max_size=3, unique=True)


@dataclass(frozen=True)
class Game:
    """The arguments of one operation."""

    group: str
    run: str
    ids: list[str]
    positions: list[int]  #: of items in a snapshot, of unresolved ones, or of dead letters
    is_rejecting: bool  #: else items of a snapshot become unresolved
    counted: bool
    delay_ms: int  #: for which the group pauses after a release
    sent: int  #: how many messages a removal sends
    ms: int  #: that pass then


_games = st.builds(
    Game,
    group=st.sampled_from(GROUPS),
    run=st.sampled_from(RUNS),
    ids=_ids,
    positions=_positions,
    is_rejecting=st.booleans(),
    counted=st.booleans(),
    delay_ms=st.sampled_from([0, 1_000, 3_000, 9_000]),
    sent=st.sampled_from([0, 1, 3]),
    ms=st.sampled_from([0, 0, 1_000, 2_000, 6_000]),
)


class Player:
    """One backend, and its own names for the things that both backends have."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.rules = Rules(NAME)
        self.runs: dict[tuple[str, str], tuple[str, tuple[Item, ...]]] = {}  #: its token and its items
        self.tokens = (f"run {number}" for number in count(1))
        self.messages = (f"message {number}" for number in count(1))
        self.sends = False  #: whether removals can send

    def insert(self, game: Game) -> object:
        """Insert readable items, and into the other group unreadable ones."""
        other = GROUPS[GROUPS.index(game.group) - 1]
        additions = [Addition(game.group, new_items(game.ids)), Addition(other, new_items(game.ids[:1], is_unreadable=True))]
        return self.backend.aggregates.insert(self.rules, additions)

    def claim(self, game: Game) -> object:
        """Claim for a new run, and once more, since the reply was lost."""
        token = next(self.tokens)
        snapshot = self.backend.aggregates.claim(self.rules, game.group, token)
        if snapshot is None:
            return None
        assert self.backend.aggregates.claim(self.rules, game.group, token) == snapshot
        self.runs[game.group, game.run] = token, snapshot.items
        items = [(item.id, item.at, item.attempts) for item in snapshot.items]
        return items, snapshot.reason, snapshot.unresolved, snapshot.is_more

    def renew(self, game: Game) -> object:
        """Renew a lease."""
        token, _ = self.runs.get((game.group, game.run), ("nobody", ()))
        return self.backend.aggregates.renew(self.rules, game.group, token)

    def remove(self, game: Game) -> object:
        """End a lease with success."""
        token, exceptions = self._end(game)
        if self.sends and game.sent:
            ids = islice(self.messages, game.sent)
            sends = sends_of(self.backend, *ids, group=game.group, run=token, rules=self.rules)
            exceptions["sends"] = sends._replace(owner="player", grace_ms=game.delay_ms)
        return self.backend.aggregates.remove(self.rules, game.group, token, **exceptions)

    def publish(self, game: Game) -> object:
        """Publish what is due; rows that are due for equally long may come in any order."""
        rows = self.backend.outbox.claim_due("relay", 100, 1_000)
        assert self.backend.outbox.confirm("relay", [row.id for row in rows]) == len(rows)
        return sorted(row._replace(id="") for row in rows)

    def release(self, game: Game) -> object:
        """End a lease with a failure."""
        token, exceptions = self._end(game)
        how = {**exceptions, "counted": game.counted, "delay_ms": game.delay_ms}
        return self.backend.aggregates.release(self.rules, game.group, token, **how)

    def claim_due(self, game: Game) -> object:
        """Ask for the flushes that are due; groups that are due for equally long may come in any order."""
        return sorted(self.backend.aggregates.claim_due([NAME], len(GROUPS), self.rules.lease_ms))

    def open(self, game: Game) -> object:
        """Fire a trigger by hand."""
        return self.backend.buffers.fire(self.rules, game.group)

    def remove_item(self, game: Game) -> object:
        """Remove items by hand."""
        for id in game.ids[:1]:
            self.backend.buffers.remove(self.rules, game.group, id)
        return None

    def clear(self, game: Game) -> object:
        """Remove everything by hand, now and then."""
        return self.backend.buffers.clear(self.rules, game.group) if len(game.positions) == 3 else None

    def remove_unresolved(self, game: Game) -> object:
        """Remove unresolved items by hand."""
        for id in game.ids[:1]:
            self.backend.buffers.remove(self.rules, game.group, id, unresolved=True)
        return None

    def resolve(self, game: Game) -> object:
        """Make unresolved items free."""
        found = [item.number for group, item in self.backend.buffers.unresolved(NAME, 100) if group == game.group]
        return self.backend.aggregates.resolve(self.rules, game.group, _chosen(game, found))

    def restore(self, game: Game) -> object:
        """Put rejected items back."""
        return [self.backend.aggregates.restore(self.rules, dead_letter) for dead_letter in self._dead_letters(game)]

    def discard(self, game: Game) -> object:
        """Discard the dead letter of an item."""
        return [self.backend.dead.remove(dead_letter.id) for dead_letter in self._dead_letters(game)[:1]]

    def purge(self, game: Game) -> object:
        """Forget removed items; a store may have forgotten some of them before, where their time had passed."""
        self.backend.aggregates.purge(100 if game.counted else 1)
        return None

    def sight(self, now: int) -> object:
        """Return everything that can be seen, but for the names that a store gives."""
        buffers = self.backend.buffers
        groups = [group._replace(due_at=max(group.due_at, now) if group.due_at else 0) for group in buffers.groups(NAME, 9)]
        items = [[item._replace(number=0) for item in buffers.read(NAME, group, 100)] for group in GROUPS]
        unresolved = sorted((group, item._replace(number=0)) for group, item in buffers.unresolved(NAME, 100))
        dead_letters = [
            (each.key, each.message_id, each.payload, each.at, each.buffered_at) for each in self._sorted_dead_letters()
        ]
        counts = [buffers.count(NAME, group) for group in (None, *GROUPS)]
        return buffers.names(), groups, counts, items, unresolved, dead_letters, self.backend.outbox.count()

    def _end(self, game: Game) -> tuple[str, dict[str, Any]]:
        token, items = self.runs.pop((game.group, game.run), ("nobody", ()))
        chosen = _chosen(game, items)
        if game.is_rejecting:
            return token, {"rejected": dead_letters_of(*chosen, group=game.group, name=NAME)}
        return token, {"unreadable": [item.number for item in chosen]}

    def _dead_letters(self, game: Game) -> list[DeadLetter]:
        return _chosen(game, self._sorted_dead_letters())

    def _sorted_dead_letters(self) -> list[DeadLetter]:
        """Return the dead letters, those of one time in an order that does not depend on their ids."""
        return sorted(self.backend.dead.list(1_000), key=lambda each: (each.at, each.key, each.message_id, each.number))


def _chosen(game: Game, given: Sequence[T]) -> list[T]:
    return [given[position] for position in game.positions if position < len(given)]


_OPERATIONS: tuple[Callable[[Player, Game], object], ...] = (
    *(Player.insert, Player.insert, Player.insert, Player.claim, Player.claim, Player.remove, Player.release),
    *(Player.renew, Player.claim_due, Player.open, Player.remove_item, Player.clear),
    *(Player.publish, Player.remove_unresolved, Player.resolve, Player.restore, Player.discard, Player.purge),
)


class BufferMachine(RuleBasedStateMachine):
    """One match: a prefix that is new, and a memory backend that is empty. It has one rule of hypothesis, as ``StoreMachine``."""

    def __init__(self, new_backend: NewBackend) -> None:
        super().__init__()
        self.clock = Clock()
        self.player = Player(new_backend(f"machine-{uuid.uuid4().hex}", self.clock))
        self.player.backend.prepare(create_schema=True, processes=1)
        self.reference = Player(MemoryBackend("memory://", prefix="reference", clock=self.clock))
        self.player.sends = self.reference.sends = can_send(self.player.backend.aggregates)

    @initialize(rules=_all_rules)
    def begin(self, rules: Rules) -> None:
        """Choose the rules of the whole match: calls under different rules would leave different results."""
        self.player.rules = self.reference.rules = rules

    @rule(operation=st.sampled_from(_OPERATIONS), game=_games)
    def play(self, operation: Callable[[Player, Game], object], game: Game) -> None:
        """Play one operation on both sides, and compare the answers; let time pass, and compare everything."""
        assert _answer(operation, self.player, game) == _answer(operation, self.reference, game)
        if game.ms:
            self.compare()
            self.clock.advance(game.ms)

    def compare(self) -> None:
        """Compare everything that can be seen without changing it."""
        assert self.player.sight(self.clock.now) == self.reference.sight(self.clock.now)

    def teardown(self) -> None:
        """Compare everything once more."""
        try:
            self.compare()
        finally:
            self.player.backend.close()


def _answer(operation: Callable[[Player, Game], object], player: Player, game: Game) -> object:
    try:
        return operation(player, game)
    except (LeaseLost, NotBuffered) as exc:
        return type(exc).__name__
