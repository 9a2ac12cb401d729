"""An aggregator as its users see it: defined, and given items."""

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery, Task, chain, shared_task

from celery_sagas import Aggregator, Batch, Message, aggregator
from celery_sagas.errors import BufferFull, DefinitionError, InvalidMessage
from tests.apps import NewApp
from tests.worker.aggregators.collectors import Boom, Reading, collector, counts

D1, D2, D3 = (Reading(device=f"d{number}") for number in (1, 2, 3))


class TestDefinition:
    """Every app gets it."""

    def test_is_a_task_of_the_current_app(self, new_app: NewApp) -> None:
        collect, _ = collector()
        first, second = new_app(), new_app()

        assert isinstance(collect, Aggregator)
        assert isinstance(collect, Task)
        assert (collect.name, collect.__doc__) == ("shop.collect", "Collect.")
        for app in (first, second):
            app.set_current()
            assert collect.app is app
            assert {"shop.collect", "shop.collect.flush"} <= set(app.tasks)

    def test_touches_no_app(self, new_app: NewApp) -> None:
        app = new_app()
        collect, _ = collector()

        assert isinstance(collect, Task)
        assert collect.name == "shop.collect"
        assert not app.finalized
        assert not app.configured

    def test_after_the_app_is_finalised(self, app: Celery) -> None:
        app.finalize()
        collector()

        assert "shop.collect.flush" in app.tasks

    def test_again_at_the_same_place_replaces(self, eager: Celery) -> None:
        """A reload, a notebook."""
        _, old = collector(size=1)
        eager.finalize()
        collect, new = collector(size=1)
        collect.delay(D1)

        assert (old.items, new.items) == ([], [[D1]])

    def test_pickles_as_the_task(self, app: Celery) -> None:
        collect, _ = collector()
        assert pickle.loads(pickle.dumps(collect)).name == "shop.collect"

    def test_handler_is_the_plain_function(self, app: Celery) -> None:
        collect, collected = collector()
        collected.work = len

        assert collect.handler(Batch([D1, D2, D3])) == 3
        assert counts(app).buffered == 0

    @pytest.mark.filterwarnings("ignore::UserWarning")
    @pytest.mark.parametrize("name", ["shop.collect", "shop.collect.flush"])
    @pytest.mark.parametrize("first", ["plain", "aggregator"])
    @pytest.mark.parametrize("kind", ["app", "shared"])
    def test_clash_with_a_plain_task(self, app: Celery, first: str, kind: str, name: str) -> None:
        def plain() -> None:
            def task() -> None: ...

            (shared_task if kind == "shared" else app.task)(name=name)(task)

        for what in (plain, collector) if first == "plain" else (collector, plain):
            what()

        with pytest.raises(DefinitionError, match=f"{name}: another task of the app has this name.*give name="):
            app.finalize()

    def test_clash_with_another_aggregator(self, app: Celery) -> None:
        collector()

        with pytest.raises(DefinitionError, match=r"'shop\.collect' is a name of the aggregator"):

            @aggregator(size=1, name="shop.collect")
            def other(batch: Batch[int]) -> None: ...

    def test_without_parentheses(self, app: Celery) -> None:
        """Nothing would ever flush it."""
        with pytest.raises(DefinitionError, match=r"nothing would ever flush it.*@aggregator\(size=100\)"):

            @aggregator  # type: ignore[call-overload]
            def collect(batch: Batch[int]) -> None: ...

    @pytest.mark.parametrize(
        ("wrong", "right"),
        [
            ("witin", "within"),
            ("groupby", "group_by"),
            ("group", "group_by"),
            ("max_buffer", "max_buffered"),
            ("dedupe", "dedupe_for"),
            ("sizes", "size"),
        ],
    )
    def test_option_that_is_almost_one(self, app: Celery, wrong: str, right: str) -> None:
        """Celery would take it, and nobody would look at it."""
        options: dict[str, Any] = {wrong: 5}
        with pytest.raises(DefinitionError, match=f"{wrong}= is no option.*Do you mean {right}=?"):
            aggregator(size=2, **options)

    def test_options_of_celery_are_none_of_them(self, app: Celery) -> None:
        """Whatever a task has."""
        for option in dir(Task):
            aggregator(size=2, **{option: None})

    def test_wrong_annotation_is_told_when_the_app_is_finalised(self, app: Celery) -> None:
        @aggregator(size=1)
        def collect(batch: "Batch[NotImported]") -> None: ...  # type: ignore[name-defined]  # noqa: F821

        with pytest.raises(DefinitionError, match="NotImported"):
            app.finalize()

    def test_wrong_group_is_told_when_the_app_is_finalised(self, app: Celery) -> None:
        collector(group_by="colour")

        with pytest.raises(DefinitionError, match="group_by= names 'colour'"):
            app.finalize()

    def test_forward_reference(self, eager: Celery) -> None:
        seen: list[Any] = []

        @aggregator(size=1)
        def collect(batch: "Batch[Later]") -> None:
            seen.extend(batch)

        collect.delay(name="x")
        assert seen == [Later(name="x")]


class Later(Message):
    """A class that stands below its use."""

    name: str


class TestEager:
    """Everything at once, and errors pass."""

    @pytest.mark.parametrize(
        "give",
        [
            lambda collect, reading: collect.delay(reading),
            lambda collect, reading: collect.delay(device=reading.device),
            lambda collect, reading: collect.apply_async((reading,)),
            lambda collect, reading: collect.apply_async(kwargs={"device": reading.device}),
            lambda collect, reading: collect.s(reading).delay(),
            lambda collect, reading: collect.s(device=reading.device).apply_async(),
            lambda collect, reading: collect.s().delay(reading),
            lambda collect, reading: collect.si(reading).apply_async(),
            lambda collect, reading: collect(reading),
            lambda collect, reading: collect.run(reading),
            lambda collect, reading: collect.add(reading),
        ],
    )
    def test_ways_to_give_an_item(self, eager: Celery, give: Callable[[Any, Reading], object]) -> None:
        """A direct call is a message of its own each time."""
        collect, collected = collector()
        give(collect, D1)
        give(collect, D2)

        assert collected.items == [[D1, D2]]
        assert collect.count() == 0

    def test_answer_of_a_chain_becomes_the_item(self, eager: Celery) -> None:
        collect, collected = collector(size=1)

        @eager.task
        def measure(device: str) -> dict[str, Any]:
            return {"device": device}

        chain(measure.s("d1"), collect.s()).delay()
        (measure.si("ignored") | collect.si(D2)).delay()

        assert collected.items == [[D1], [D2]]

    def test_signature_is_encoded_at_once(self, eager: Celery) -> None:
        """What changes later does not change it."""
        collect, _ = collector(dict)
        item = {"a": 1}
        signature = collect.s(item)
        item["a"] = 2

        assert (tuple(signature.args), signature.kwargs) == (({"a": 1},), {})
        assert collect.s().args == ()

    @pytest.mark.parametrize(
        ("args", "kwargs"), [((), {}), ((D1, D2), {}), ((D1,), {"device": "d1"}), ((5,), {}), ((), {"x": 1})]
    )
    def test_what_is_no_item_raises_at_the_producer(self, eager: Celery, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        collect, _ = collector()
        for give in (collect.delay, collect, lambda *args, **kwargs: collect.apply_async(args, kwargs)):
            with pytest.raises(InvalidMessage):
                give(*args, **kwargs)

        assert counts(eager).buffered == 0

    def test_many_batches_come_in_their_order(self, eager: Celery) -> None:
        """And not each inside of the one before."""
        collect, collected = collector(int, size=1)
        collect.add_many(range(1_500))

        assert collected.items == [[number] for number in range(1_500)]

    def test_flush_of_what_a_function_adds_comes_after_it(self, eager: Celery) -> None:
        collect, collected = collector(int, size=1)
        order: list[str] = []

        def work(batch: Batch[int]) -> None:
            order.append(f"begin {batch[0]}")
            if batch[0] < 2:
                collect.add(batch[0] + 1)
            order.append(f"end {batch[0]}")

        collected.work = work
        collect.add(0)

        assert order == ["begin 0", "end 0", "begin 1", "end 1", "begin 2", "end 2"]

    def test_error_of_the_function_passes(self, eager: Celery) -> None:
        """Its items stay."""
        collect, collected = collector()

        def fail(batch: Batch[Reading]) -> None:
            raise Boom

        collected.work = fail
        collect.delay(D1)
        with pytest.raises(Boom):
            collect.delay(D2)

        assert collect.read() == [D1, D2]
        collected.work = lambda batch: None
        assert collect.flush() == 1
        assert collect.count() == 0

    def test_full_buffer_raises(self, eager: Celery) -> None:
        collect, _ = collector(size=None, within=60, max_buffered=1)
        collect.delay(D1)

        with pytest.raises(BufferFull):
            collect.delay(D2)

    def test_bound_function_gets_the_task_that_flushes(self, eager: Celery) -> None:
        seen: list[Any] = []

        @aggregator(size=1, bind=True, name="shop.bound", max_retries=7)
        def collect(self: Any, batch: Batch[int]) -> None:
            seen.append((self.name, self.max_retries, self.request.id is not None, list(batch)))

        collect.delay(5)

        assert seen == [("shop.bound.flush", 7, True, [5])]
