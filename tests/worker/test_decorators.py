"""What the step decorators refuse before anything is registered."""

import pytest
from celery import Celery, shared_task

from celery_sagas import Saga
from celery_sagas.core.registry import registry
from celery_sagas.errors import DefinitionError


class Decorated(Saga, correlate_by="key"):
    key: str


@shared_task
def plain_task(order, key): ...


@Decorated.starts
def begin(order: Decorated, key: str) -> None: ...


def task_of_an_app():
    app = Celery("decorators", set_as_current=False)

    @app.task(shared=False)
    def plain(order, key): ...

    return plain


@pytest.mark.parametrize("make", [lambda: plain_task, lambda: begin, task_of_an_app], ids=["shared", "step", "task"])
def test_a_task_is_no_handler(make):
    """A proxy for a task looks like a function until it is used."""
    with pytest.raises(DefinitionError, match="it is a task already"):
        Decorated.handles(make())


def test_abstract_saga_has_no_steps():
    class Abstract(Saga):
        key: str

    with pytest.raises(DefinitionError, match=r"its saga is abstract\. Give the saga class correlate_by="):

        @Abstract.starts
        def start_abstract(order: Abstract, key: str) -> None: ...

    for call in (Abstract.find, Abstract.outcome):
        with pytest.raises(DefinitionError, match=r"the saga is abstract\. Give it correlate_by="):
            call("1")


def test_a_refused_step_is_not_registered():
    before = dict(registry.steps)
    with pytest.raises(DefinitionError):

        @Decorated.handles(name="mine")
        def refused(order: Decorated, key: str) -> None: ...

    assert registry.steps == before


def test_bare_and_called():
    assert begin.name == "decorated.begin"
    assert Decorated.starts(if_exists="handle")(begin.handler).name == "decorated.begin"
    assert begin.handler.__name__ == "begin"


def test_parameters_may_be_called_anything(eager):
    """They are given by name to functions of the library and of Celery, which have names of their own."""
    seen = []

    class Named(Saga, correlate_by="key"):
        key: str

    @Named.starts(bind=True)
    def begin(
        self, order, key: str, function: int, first: int, name: int, task: int, step: int, request: int, args: int, kwargs: int
    ) -> None:
        seen.append((function, first, name, task, step, request, args, kwargs))

    begin("1", 1, 2, 3, 4, 5, 6, 7, 8)
    begin.delay(key="2", function=1, first=2, name=3, task=4, step=5, request=6, args=7, kwargs=8)
    begin.si("3", 1, 2, name=3, task=4, step=5, request=6, args=7, kwargs=8).delay()
    assert seen == [(1, 2, 3, 4, 5, 6, 7, 8)] * 3
