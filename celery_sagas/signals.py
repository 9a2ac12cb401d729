"""Signals: what happened to sagas, for metrics and tests. They are sent after the commit, and cannot fail it."""

from celery.utils.dispatch import Signal

#: A message created an instance. Sender: the step's task. Arguments: ``outcome``.
saga_started = Signal(name="saga_started", providing_args=["outcome"])
#: An instance ended. Sender: the step's task. Arguments: ``outcome``.
saga_completed = Signal(name="saga_completed", providing_args=["outcome"])
#: Everything that ``compensate`` had to undo is undone. Sender: the step's task. Arguments: ``outcome``.
saga_compensated = Signal(name="saga_compensated", providing_args=["outcome"])
#: A message was ignored, by policy; ``outcome.reason`` says why. Sender: the step's task. Arguments: ``outcome``.
step_ignored = Signal(name="step_ignored", providing_args=["outcome"])
#: A message failed permanently, or an item was rejected, and is kept as a dead letter. Sender: the step's task, or its name where
#: no such task is known; of an item the aggregator's task that flushes.
#: Arguments: ``dead_letter``, ``exception``. After a hard time limit, and by a relay, it is sent in the worker's main process.
step_failed = Signal(name="step_failed", providing_args=["dead_letter", "exception"])
#: An operator has acted on an instance. Sender: the app. Arguments: ``act`` (its ``name``, ``actor`` and ``reason``), ``done``
#: (what has come of it). It is sent where the operator acts, and in no worker.
instance_operated = Signal(name="instance_operated", providing_args=["act", "done"])
#: A batch was flushed. Sender: the aggregator's task that flushes. Arguments: ``flushed`` (name, group, reason, number of items).
batch_flushed = Signal(name="batch_flushed", providing_args=["flushed"])
#: An event has no subscriber. Sender: the task that fans events out. Arguments: ``event`` (its name), ``message_id``.
event_unhandled = Signal(name="event_unhandled", providing_args=["event", "message_id"])
