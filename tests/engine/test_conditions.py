"""A function that says whether a step runs: it is asked when a message comes, and after each commit while one waits."""

from collections.abc import Callable
from typing import Any

import pytest

from celery_sagas.core.registry import registry
from celery_sagas.engine.outcomes import Kind
from celery_sagas.errors import MisuseError, WrongStatus
from tests.engine.conftest import Boom, Engine, handler, send
from tests.engine.tickets import Ticket, Tickets, steps, tickets

__all__ = ["steps"]
pytestmark = pytest.mark.usefixtures("steps")


def in_turn(ticket: Ticket, number: str, n: int) -> bool:
    """Return whether all before this one have come."""
    return len(ticket.seen) == n


def sets_a_field(ticket: Ticket, **_: Any) -> bool:
    """Change the state, which it must not."""
    ticket.status = "shut"
    return True


def sends(ticket: Ticket, **_: Any) -> bool:
    """Send a message, which it must not."""
    send(ticket, "mail")
    return True


def completes(ticket: Ticket, **_: Any) -> bool:
    """Complete the instance, which it must not."""
    ticket.complete()
    return True


def raises(ticket: Ticket, **_: Any) -> bool:
    """Fail."""
    raise Boom


class Opening:
    """A function that says no until the ticket is open, and then does something else."""

    def __init__(self, then: Callable[..., bool]) -> None:
        self.then = then

    def __call__(self, ticket: Ticket, **arguments: Any) -> bool:
        """Answer."""
        return ticket.status == "open" and self.then(ticket, **arguments)


def asking(engine: Engine, when: Any, if_not: str = "defer") -> Tickets:
    """Return tickets whose steps run when a function says so."""
    return tickets(engine, if_not, when=when)


class TestArrival:
    def test_arguments_are_validated(self, engine: Engine) -> None:
        """As the handler gets them."""
        got: list[Any] = []
        made = tickets(engine)
        made.work = _work(made, lambda ticket, number, n: got.append((number, n)) or True)
        made.send(made.work, "m1", n="1")
        assert got == [("1", 1)]

    def test_true_runs_the_step(self, engine: Engine) -> None:
        made = tickets(engine)
        made.work = _work(made, in_turn)
        assert made.send(made.work, "m0", n=0).kind is Kind.HANDLED

    def test_refusal_names_the_function(self, engine: Engine) -> None:
        made = tickets(engine)
        made.work = _work(made, in_turn, "raise")
        with pytest.raises(WrongStatus) as raised:
            made.send(made.work, "m1", n=1)
        assert raised.value.expected == "when in_turn() is true"

    @pytest.mark.parametrize("when", [sets_a_field, sends, completes])
    def test_it_changes_nothing(self, engine: Engine, when: Any) -> None:
        made = asking(engine, when)
        before = made.record
        with pytest.raises(MisuseError):
            made.come("message")
        assert (made.record, engine.publisher.published) == (before, [])

    def test_its_error_is_the_message_s(self, engine: Engine) -> None:
        made = asking(engine, raises)
        before = made.record
        with pytest.raises(Boom):
            made.come("message")
        assert made.record == before

    def test_handler_may_change_the_state_after_it(self, engine: Engine) -> None:
        made = asking(engine, lambda ticket, **_: True)
        assert made.come("message").kind is Kind.HANDLED
        assert made.seen == ["worked 1"]


class TestRelease:
    def test_arguments_decide(self, engine: Engine) -> None:
        """Each commit publishes those whose turn it is."""
        made = tickets(engine)
        made.work = _work(made, in_turn)
        for n in (3, 1, 2):
            made.send(made.work, f"m{n}", n=n)
        made.send(made.work, "m0", n=0)
        released = [made.released() for _ in range(3)]

        assert released == [["m1"], ["m2"], ["m3"]]
        assert made.seen == [f"worked {n}" for n in range(4)]

    @pytest.mark.parametrize("then", [raises, sets_a_field, sends, completes])
    def test_it_fails_its_own_message_alone(self, engine: Engine, then: Any) -> None:
        made = asking(engine, Opening(then))
        made.come("message")
        assert made.become("open").kind is Kind.HANDLED

        assert (made.data["status"], made.deferred) == ("open", [])
        assert engine.publisher.ids == ["m1"]
        with pytest.raises((Boom, MisuseError)):
            made.again("m1")

    def test_arguments_that_do_not_fit_any_more(self, engine: Engine) -> None:
        """The step has changed since the message was deferred: it is published, and fails by itself."""
        made = tickets(engine)
        made.work = _work(made, in_turn)
        made.send(made.work, "m5", n=5)

        def work(ticket: Ticket, number: str, total: int) -> None: ...

        _work(made, lambda ticket, number, total: False, function=work)
        made.become("shut")
        assert engine.publisher.ids == ["m5"]


def _work(made: Tickets, when: Any, if_not: str = "defer", function: Any = None) -> Any:
    step = handler(function or made.work.function, saga=Ticket, when=when, if_not=if_not)
    registry.steps[step.name] = step
    return step
