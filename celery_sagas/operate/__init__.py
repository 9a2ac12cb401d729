"""What operators see of the instances, and what they do to them and to dead letters: free of the command line, which shows it."""

from celery_sagas.engine.acts.acting import Done
from celery_sagas.operate.changes import Changed, ChangedValue
from celery_sagas.operate.dead_letters import DeadLetters, Treated
from celery_sagas.operate.instance import OperatedInstance
from celery_sagas.operate.operator import Operator
from celery_sagas.operate.outgoing import Call, OutgoingMessage
from celery_sagas.operate.switching import Switched
from celery_sagas.operate.trying import Tried

__all__ = [
    "Call",
    "Changed",
    "ChangedValue",
    "DeadLetters",
    "Done",
    "OperatedInstance",
    "Operator",
    "OutgoingMessage",
    "Switched",
    "Treated",
    "Tried",
]
