"""What comes back to an instance from whom it has asked: answers, failures, and both of many."""

from typing import Generic, Literal, TypeVar

from pydantic import Field

from celery_sagas.core.message import Message

T = TypeVar("T")

#: An exception was raised after the last retry, or a time limit was hit, or no worker knows the task; nothing came in time; the
#: task was revoked, or expired; its worker was lost.
FailureKind = Literal["error", "deadline", "revoked", "lost"]


class Failure(Message):
    """Why there is no answer to what was sent with ``otherwise=``.

    What an exception says goes with it through the broker, and into the state of a saga that keeps it: no secret belongs there.
    """

    kind: FailureKind
    task: str  #: its name
    task_id: str
    error: str = ""  #: the name of the exception's class
    text: str = ""  #: the exception's text, at most 2,000 characters
    retries: int = 0  #: how often the task had been retried


class Gathered(Message, Generic[T]):
    """What came of the members of a ``gather``, each known by its position in the list that was given to it."""

    members: int  #: how many there are
    answers: dict[int, T] = Field(default_factory=dict)
    failures: dict[int, Failure] = Field(default_factory=dict)

    @property
    def values(self) -> list[T]:
        """The answers in the order of the members; those that failed or were silent are left out."""
        return [self.answers[position] for position in sorted(self.answers)]

    @property
    def silent(self) -> list[int]:
        """The positions of the members from which nothing had come when the time was over."""
        return [position for position in range(self.members) if position not in self.answers and position not in self.failures]
