"""Gathering: the answers to a gather are collected beside its instance, and delivered to it as one message.

If the instance handled a thousand answers one by one, it would have a thousand commits, nearly all of them in conflict.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import uuid4

from pydantic_core import from_json, to_json

from celery_sagas.clock import time_s
from celery_sagas.core.aggregators.rules import Rules
from celery_sagas.core.names import storable
from celery_sagas.core.requests.answers import Failure
from celery_sagas.core.requests.requests import ReplyKind, Request, Target
from celery_sagas.core.requests.views import MemberOutcomes
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.engine.commit import STATES_IN_MESSAGES
from celery_sagas.engine.instance import pending_of
from celery_sagas.errors import InvalidMessage, StoreError, UnreadableState
from celery_sagas.stores.items import Addition, Item, NewItem
from celery_sagas.stores.optional import no_aggregators
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import ID, Lookup

logger = logging.getLogger("celery_sagas")

#: How many gathers a process remembers as awaited, without asking the store again; and for how many seconds.
REMEMBERED, REMEMBERED_S = 1_000, 10.0
#: The longest pause before a step is sent the outcomes again.
LONGEST_MS = 3_600_000
_TEXT_CHARACTERS = 2_000
#: The parts of a member's stored outcome.
_NOTED, _OUTCOMES = (("instance", str), ("members", int)), {ReplyKind.ANSWER.value, ReplyKind.FAILURE.value}
#: A batch of a buffer becomes smaller after so many failures; gathered outcomes are never divided.
_NEVER = 1_000_000


class Gather(NamedTuple):
    """A gather of one instance."""

    saga: SagaDefinition
    name: str  #: the stored name that the saga had when it sent the request
    instance_id: str
    request: str

    @property
    def buffer(self) -> str:
        """The buffer that collects its answers, in a group of its own."""
        return buffer_of(self.name)


class Member(NamedTuple):
    """The outcome of a member of a gather."""

    position: int
    came: ReplyKind  #: an answer or a failure
    value: Any
    task: str  #: its name
    task_id: str


class Collecting(NamedTuple):
    """What is stored beside the outcome of a member about its gather."""

    gather: Gather
    members: int
    fewest: int  #: how many outcomes it has at least when it ends before its time is over


class _Known(NamedTuple):
    """What a process remembers of a gather."""

    until: float  #: it is waited for
    request: Request
    next_end: int  #: how many outcomes it has at least when it ends


class GatherState(StrEnum):
    """The state of a gather after a check."""

    SENT = "sent"  #: the outcomes were sent to its step
    WAITING = "waiting"  #: for more members
    ENDED = "ended"  #: its instance no longer waits for it


def buffer_of(saga: str) -> str:
    """Return the name of the buffer for a saga's gathers; no aggregator can have such a name."""
    return f"{saga}.(gathered)"


@dataclass
class Gathering:
    """Collects the answers of members; the first outcome of each counts.

    The store notifies the caller whose item completes a group, and no other until the caller's flush request expires.
    """

    backend: Backend  #: of the sagas
    answers: Backend  #: where the answers are collected: the same one, unless that has no aggregators
    publish: Callable[[Gather, Target, Mapping[str, Any]], None]  #: sends a step the outcomes, or raises PublishError
    lease_ms: int  #: how long the process that completes a group may take to send them
    retention_ms: int  #: how long the journal is kept
    max_bytes: int  #: of an answer
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time_s
    _known: dict[Gather, _Known] = field(default_factory=dict, init=False)

    def collect(self, gather: Gather, member: Member) -> bool:
        """Store the outcome of a member, and end the gather if it was the last one that was needed.

        Returns:
            Whether the instance waits for it, or did so a moment ago; if not, nothing is stored.

        Raises:
            PublishError: It was stored, and the gather cannot be ended now.
            StoreError: It is unknown whether it was stored; repeating the call completes it.
        """
        known = self._asked(gather)
        if known is None or not 0 <= member.position < known.request.members:
            return False
        request = known.request
        limit = min(self.max_bytes, STATES_IN_MESSAGES * self.max_bytes // request.members)  # one message has all of them
        item = NewItem(str(member.position), payload_of(gather, request, member, limit))
        rules = self.rules(gather, known.next_end, is_early=request.early)
        (added,) = self.answers.aggregates.insert(rules, [Addition(gather.request, (item,))])
        if added.needs_flush or (not added.added and self._may_be_over(gather, request)):  # its first sender may have died
            verdict = self.conclude(gather)
            if verdict is GatherState.WAITING and added.needs_flush:
                self.await_more(gather, request.members)
        return True

    def _asked(self, gather: Gather) -> _Known | None:
        """Return what is known of a gather if its instance waits for it, or did so a moment ago."""
        known = self._known.get(gather)
        if known and known.until > self.clock():
            return known
        request = self.awaited(gather)
        if request is None:  # it may wait later: a store may have forgotten its last commit
            return None
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        known = self._known[gather] = _Known(self.clock() + REMEMBERED_S, request, known.next_end if known else request.fewest)
        return known

    def conclude(self, gather: Gather, *, is_over: bool = False) -> GatherState:
        """Send the instance's step the outcomes of a gather, if there are enough, or its time is over.

        The message's id follows from the request's: repeated, it counts once.

        Raises:
            PublishError: The message could not be sent.
            UnreadableState: The instance, or an outcome, cannot be read.
            StoreError: The store is away.
        """
        request = self.awaited(gather)
        if request is None:
            self.clear(gather)
            return GatherState.ENDED
        items = self.answers.buffers.read(gather.buffer, gather.request, request.members)
        if len(items) < request.fewest and not is_over:
            return GatherState.WAITING
        gathered = gathered_of(gather, request.members, items)
        answers = len(gathered["answers"])
        if not is_over and not request.is_over(answers, len(items)):
            self._note_next_end(gather, request.next_end(answers, len(items)))
            return GatherState.WAITING
        target = request.target(answers)
        if target is None:
            logger.warning("the gather %s of %s is left to newer code: its step cannot be read", gather.request, gather.saga.name)
            return GatherState.WAITING
        self.publish(gather, target, gathered)
        return GatherState.SENT

    def _note_next_end(self, gather: Gather, outcomes: int) -> None:
        """Remember not to check a gather again before it has so many outcomes."""
        if known := self._known.get(gather):
            self._known[gather] = known._replace(next_end=outcomes)

    def awaited(self, gather: Gather) -> Request | None:
        """Return the request of a gather if its instance waits for it.

        Raises:
            UnreadableState: The stored instance cannot be read.
            NewerState: Newer code wrote it.
            StoreError: The store is away.
        """
        saga = gather.saga
        record = self.backend.sagas.find(Lookup(saga.names, ID, gather.instance_id)).record
        if record is None:
            return None
        request = pending_of(record).requests.get(gather.request)
        return request if request and request.members else None

    def outcomes(self, saga: SagaDefinition, instance_id: str, request: Request) -> MemberOutcomes:
        """Return which members of a gather have answered, or failed, so far.

        Raises:
            UnreadableState: An outcome is malformed.
            StoreError: The store is away.
        """
        came: dict[str, list[int]] = {"answers": [], "failures": []}
        for gather in (Gather(saga, name, instance_id, request.id) for name in saga.names):
            items = self.answers.buffers.read(gather.buffer, request.id, request.members)
            for name, part in gathered_of(gather, request.members, items).items():
                if name in came:
                    came[name] += map(int, part)
        return MemberOutcomes(*(tuple(sorted(positions)) for positions in came.values()))

    def require(self) -> None:
        """Refuse to gather where no answers can be collected.

        Raises:
            ConfigurationError: The backend has no aggregators; the error says what to set.
        """
        if not self.answers.has_aggregators:
            raise no_aggregators(self.answers.url, "the answers of gather()")

    def clear(self, gather: Gather) -> None:
        """Remove the outcomes of a gather that is no longer awaited."""
        self._known.pop(gather, None)
        if not self.answers.has_aggregators:
            return  # no gather was begun on it
        count = self.answers.buffers.clear(self.rules(gather), gather.request)
        logger.debug("%s: %d answers were cleared from the gather %s", gather.saga.name, count, gather.request)

    def forget(self, saga: SagaDefinition, instance_id: str, request: str) -> None:
        """Remove the outcomes of a gather that was handled. Never raises: a relay retries later."""
        try:
            for name in saga.names:
                self.clear(Gather(saga, name, instance_id, request))
        except StoreError as exc:
            logger.warning("%s: what came of the gather %s is kept for now: %s", saga.name, request, exc)

    def await_more(self, gather: Gather, members: int) -> None:
        """Withdraw the flush request of a check of an incomplete gather: the member that ends it must not find one.

        It is checked once more, for the outcomes that have come meanwhile, and again when it is twice as old.

        Raises:
            PublishError: It has become complete meanwhile, and could not be sent.
            StoreError: The store is away.
        """
        rules, token = self.rules(gather, members), uuid4().hex
        for oldest in self.answers.buffers.read(gather.buffer, gather.request, 1):
            age_ms = int(self.wall_clock() * 1000) - oldest.at
            rules = rules._replace(idle_ms=max(rules.idle_ms, 2 * age_ms))
        if self.answers.aggregates.claim(rules, gather.request, token) is not None:
            self.answers.aggregates.release(rules, gather.request, token, counted=False)
        self.conclude(gather)

    def publish_again_later(self, gather: Gather, fewest: int) -> None:
        """Have a relay send a complete gather again if its step has not handled it: after a while, longer each time.

        Raises:
            StoreError: The store is away.
        """
        rules, token = self.rules(gather, fewest), uuid4().hex
        snapshot = self.answers.aggregates.claim(rules, gather.request, token)
        if snapshot is not None:
            delay_ms = min(rules.lease_ms << min(snapshot.items[0].attempts, 20), LONGEST_MS)
            self.answers.aggregates.release(rules, gather.request, token, delay_ms=delay_ms)

    def rules(self, gather: Gather, outcomes: int = 0, *, is_early: bool = False) -> Rules:
        """Return a gather's rules for its buffer: it is checked when it has so many outcomes, or when no more come.

        Late outcomes of one that ends early are the rule, and are soon cleared away.
        """
        idle_ms, lease_ms = self.lease_ms if is_early else self.retention_ms, self.lease_ms
        return Rules(gather.buffer, size=outcomes, idle_ms=idle_ms, max_attempts=_NEVER, lease_ms=lease_ms)

    def _may_be_over(self, gather: Gather, request: Request) -> bool:
        return self.answers.buffers.count(gather.buffer, gather.request).buffered >= request.fewest


def payload_of(gather: Gather, request: Request, member: Member, max_bytes: int) -> str:
    """Return a member's outcome as JSON text for the store: an answer that cannot be stored becomes a failure."""
    members = request.members
    where = {"instance": gather.instance_id, "members": members} | ({"fewest": request.fewest} if request.early else {})
    try:
        encoded = to_json({**where, member.came.value: member.value}, by_alias=True, round_trip=True)
        if len(encoded) <= max_bytes:
            return encoded.decode()
        problem = f"its answer has {len(encoded)} bytes, saga_max_state_bytes allows {max_bytes} for each of {members} members"
    except (ValueError, TypeError, RecursionError) as exc:
        problem = f"its answer cannot be encoded as JSON: {exc}"
    text = storable(problem, _TEXT_CHARACTERS)
    failure = Failure(kind="error", task=member.task, task_id=member.task_id, error=InvalidMessage.__name__, text=text)
    return to_json({**where, ReplyKind.FAILURE.value: failure.__json__()}).decode()


def gathered_of(gather: Gather, members: int, items: Iterable[Item]) -> dict[str, Any]:
    """Return a ``Gathered`` as JSON values.

    Raises:
        UnreadableState: The stored outcome of a member is malformed.
    """
    gathered: dict[str, Any] = {"members": members, "answers": {}, "failures": {}}
    for item in items:
        kept = _kept(gather, item)
        came = ReplyKind.FAILURE if ReplyKind.FAILURE in kept else ReplyKind.ANSWER
        gathered["failures" if came is ReplyKind.FAILURE else "answers"][item.id] = kept[came]
    return gathered


def owner_of(gather: Gather, item: Item) -> Collecting:
    """Return what is stored beside the outcome of a member: the gather with its instance.

    Raises:
        UnreadableState: It is malformed.
    """
    kept = _kept(gather, item)
    members, fewest = kept["members"], kept.get("fewest")
    return Collecting(gather._replace(instance_id=kept["instance"]), members, fewest if isinstance(fewest, int) else members)


def _kept(gather: Gather, item: Item) -> dict[str, Any]:
    try:
        kept = from_json(item.payload)
    except ValueError:
        kept = None
    if isinstance(kept, dict) and all(isinstance(kept.get(name), kind) for name, kind in _NOTED) and _OUTCOMES & kept.keys():
        return kept
    raise UnreadableState(gather.name, gather.request, f"what came of the member {item.id} of this gather is not of its form")
