"""Signals: what happened to sagas, for metrics and tests. They are sent after the commit, and cannot fail it."""

from celery.utils.dispatch import Signal

#: A message created an instance. Sender: the step's task. Arguments: ``outcome``.
saga_started = Signal(name="saga_started", providing_args=["outcome"])
#: An instance ended. Sender: the step's task. Arguments: ``outcome``.
saga_completed = Signal(name="saga_completed", providing_args=["outcome"])
#: A message was ignored, by policy; ``outcome.reason`` says why. Sender: the step's task. Arguments: ``outcome``.
step_ignored = Signal(name="step_ignored", providing_args=["outcome"])
#: An event has no subscriber. Sender: the task that fans events out. Arguments: ``event`` (its name), ``message_id``.
event_unhandled = Signal(name="event_unhandled", providing_args=["event", "message_id"])
