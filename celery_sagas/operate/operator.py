"""The operator: a person, or a program in the place of one, who looks at instances and acts on them."""

import logging
from collections.abc import Callable, Iterator, Set
from difflib import get_close_matches
from functools import partial
from itertools import chain
from typing import Any

from celery import Celery

from celery_sagas.core.delays import Delay, seconds_of
from celery_sagas.core.registry import registry
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.core.signatures import AnySignature
from celery_sagas.engine.acts.acting import ACTOR_CHARACTERS, REASON_CHARACTERS
from celery_sagas.engine.instance import lookup_in
from celery_sagas.engine.query import lookup_of
from celery_sagas.errors import MisuseError, UnreadableState
from celery_sagas.operate import switching
from celery_sagas.operate.actors import Actor, checked_text
from celery_sagas.operate.arriving import message_to
from celery_sagas.operate.choosing import Selection, matching
from celery_sagas.operate.dead_letters import DeadLetters
from celery_sagas.operate.instance import OperatedInstance
from celery_sagas.operate.switching import Switched
from celery_sagas.operate.trying import Tried, try_message
from celery_sagas.operate.where import where_of
from celery_sagas.stores.instances import Glance
from celery_sagas.stores.records import ID
from celery_sagas.worker.celery_internals import itself
from celery_sagas.worker.runtime import runtime_of
from celery_sagas.worker.saga import Saga
from celery_sagas.worker.step import Step

logger = logging.getLogger("celery_sagas")


class Operator(Actor):
    """A person, or a program in the place of one, who looks at instances and acts on them.

    Args:
        app: The Celery app.
        actor: Who acts: a name that others know, such as a login; at most 200 characters.
        dry_run: Whether acts are only planned: nothing is written.
        batch: The id of a batch: the same act is done once for each instance, however often it is repeated under this id; not
            a patch with ``change``.

    Raises:
        ValueError: The name is empty, or too long.
    """

    def __init__(self, app: Celery, actor: str, *, dry_run: bool = False, batch: str = "") -> None:
        batch = batch and checked_text("batch", batch, ACTOR_CHARACTERS)
        super().__init__(itself(app), checked_text("actor", actor, ACTOR_CHARACTERS), dry_run, batch)

    def instance(self, saga: type[Saga] | str, key: object = None, /, **by: object) -> OperatedInstance:
        """Return an instance to act on; whether it exists is found out then.

        Args:
            saga: Its class, or the stored name of that.
            key: Its correlation key; a tuple of all parts for a composite one.
            **by: Instead, an alternate key, the parts of the correlation key, or the instance's id: see ``Saga.find``.

        Raises:
            MisuseError: There is no such saga.
            DefinitionError: It is looked up by a property that is not a key of the saga, or by several at once.
            CorrelationError: The value is null, or not a value of the key's type.
        """
        definition = saga_of(saga)
        return OperatedInstance(self, definition, lookup_of(definition, key, by))

    def instances(
        self,
        saga: type[Saga] | str,
        /,
        *,
        paused: bool = False,
        idle: Delay | None = None,
        late: Delay | None = None,
        where: str = "",
        **by: object,
    ) -> Iterator[OperatedInstance]:
        """Yield the instances of a saga, or some of them, to act on each; they are found by indexes, in pages.

        With ``where`` their states are read, page by page. One that cannot be read raises ``UnreadableState``, and ``next()``
        goes on with the one after it.

        Args:
            saga: Its class, or the stored name of that.
            paused: Only those that an operator has paused.
            idle: Only those that no message has changed for this time, a ``timedelta`` or seconds.
            late: Only those for which a timeout, or the deadline of a request, is overdue for this time, a ``timedelta`` or
                seconds, and its row is in the outbox: as ``celery sagas stuck --late`` finds them. Of the backend's messages that
                were tried, and of those that no relay has taken, 100,000 each are looked at; the log says if there are more.
            where: Only those of them for whose states this holds, such as ``'total > 100 and lines.0.sku == "x"'``.
            **by: Only those with a value of a field in ``search_by``.

        Raises:
            MisuseError: There is no such saga; or ``where`` is no expression, or names a field that the saga does not have, or
                one that is hidden.
            TypeError: More than one choice is given.
            DefinitionError: The saga is not listed by this field.
            CorrelationError: The value is none of the field's.
            ConfigurationError: The backend lists no instances.
        """
        definition = saga_of(saga)
        selection = Selection(
            by=by, paused=paused, idle_ms=_milliseconds("idle", idle), late_ms=_milliseconds("late", late), where=where or None
        )
        runtime = runtime_of(self.app)
        backend = runtime.backends.of(definition)
        listed, cut = selection.chosen(backend, definition)
        chosen = chain(listed, _warn(definition.name, cut))
        test = where_of(definition, where, runtime.settings.hidden) if where else None
        found = chosen if test is None else matching(backend, definition, chosen, test)
        return map(partial(self._found, definition), found)  # unlike a generator, it goes on after an error

    def dead_letters(self, reason: str) -> DeadLetters:
        """Return the dead letters, to retry, discard or reveal some of them; a batch does not matter to them.

        Args:
            reason: Why.

        Raises:
            MisuseError: Acts are only planned.
            ValueError: The reason is empty, or too long.
        """
        if self.dry_run:
            raise MisuseError("acts on dead letters cannot be planned", "Make an Operator without dry_run=True")
        return DeadLetters(runtime_of(self.app), self.actor, checked_text("reason", reason, REASON_CHARACTERS))

    def try_step(self, step: Step[Any, ..., Any] | AnySignature | str) -> Tried:
        """Run a step on what is stored, as its message would, and say what would come of it; nothing is written or sent.

        What the handler does by itself, such as a request over HTTP, it does. Messages that it publishes with ``delay`` are held
        back, too, unless the app is in eager mode, where they are calls.

        Args:
            step: A signature of the step, whose arguments lead to the instance as those of a message do; or the step, or its
                name, if it takes none.

        Raises:
            TypeError: It is none of these.
            MisuseError: There is no such step, or it shares a transaction; or a task runs here.
            SagaError: With which the message would fail. An error of the handler is in the result.
        """
        return try_message(runtime_of(self.app), message_to(step))

    def _found(self, saga: SagaDefinition, found: Glance | UnreadableState) -> OperatedInstance:
        if isinstance(found, UnreadableState):
            raise found
        return OperatedInstance(self, saga, lookup_in(saga, ID, found.id))

    def hold(self, saga_or_step: type[Saga] | Step[Any, ..., Any] | str, /, reason: str) -> Switched:
        """Have the messages of a step, or of all steps of a saga, wait in all workers, until it is released.

        A worker sees it after a second at most; what it is handling then, it handles. Timeouts, answers and deadlines wait, too.
        Each is handled once, after the release; no clock stops. One that is held already stays as it is.

        Args:
            saga_or_step: The saga's class, the step, or the name of either.
            reason: Why; at most 2,000 characters.

        Raises:
            MisuseError: It is no saga and no step of the app.
            ConfigurationError: The backend of the saga has no switches.
            StoreError: It is unknown whether it was done; or 100 others are held.
        """
        return self._switched("held", switching.hold, saga_or_step, reason)

    def release(self, saga_or_step: type[Saga] | Step[Any, ..., Any] | str, /, reason: str) -> Switched:
        """Have the messages of a step, or of a saga, that is held handled again: each when its delay is over.

        Args:
            saga_or_step: The saga's class, the step, or the name of either; also a name that the app no longer defines.
            reason: Why; at most 2,000 characters.

        Raises:
            MisuseError: It is no saga and no step of the app, and not held.
            ConfigurationError: The backend of the saga has no switches.
            StoreError: It is unknown whether it was done.
        """
        return self._switched("released", switching.release, saga_or_step, reason)

    def _switched(self, what: str, act: Callable[..., Switched], saga_or_step: Any, reason: str) -> Switched:
        checked_text("reason", reason, REASON_CHARACTERS)
        done = act(runtime_of(self.app), saga_or_step, self.actor, reason, dry_run=self.dry_run)
        if done.changed:
            logger.info("%s is %s, by %r: %r", done.name, what, self.actor, reason)
        return done


def _milliseconds(name: str, delay: Delay | None) -> int | None:
    return None if delay is None else int(seconds_of(name, delay) * 1000)


def _warn(saga: str, cut: Set[str]) -> Iterator[Glance]:
    """Warn once all are found, if not all could be looked at."""
    if cut:
        logger.warning("There may be more late instances of %s: not all messages that are overdue were looked at", saga)
    yield from ()


def saga_of(saga: type[Saga] | str) -> SagaDefinition:
    """Return the definition of a saga, given its class or its stored name.

    Raises:
        MisuseError: There is none.
    """
    found = registry.saga_named(saga) if isinstance(saga, str) else getattr(saga, "__saga__", None)
    if not isinstance(found, SagaDefinition):
        nearest = get_close_matches(saga, registry.sagas, n=1) if isinstance(saga, str) else []
        known = f"Known: {', '.join(registry.sagas) or 'none'}"
        raise MisuseError(f"{saga!r} is no saga of this app", known + "".join(f". Did you mean {each!r}?" for each in nearest))
    return found
