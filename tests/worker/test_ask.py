"""``ask``: plain code is given what a step returns, once, whoever asks how often."""

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from decimal import Decimal
from typing import Any, Literal

import pytest
from celery import Celery, chain, group
from celery.canvas import Signature
from pydantic import SecretStr

import celery_sagas
from celery_sagas import Batch, Message, Missing, Saga, aggregator
from celery_sagas.engine import polling
from celery_sagas.errors import (
    AnswerNotKept,
    AskTimeout,
    CorrelationError,
    DefinitionError,
    InvalidMessage,
    MisuseError,
    PublishError,
    SagaAlreadyExists,
    SagaNotFound,
    StepFailed,
    UnreadableState,
    WaitTimeout,
    WrongStatus,
)
from celery_sagas.stores.records import KEY, Entry, Handling, Lookup
from celery_sagas.worker.headers import ASKED
from celery_sagas.worker.runtime import runtime_of
from tests.apps import NewApp, Worker, as_tasks, backend_of
from tests.every_store import *  # noqa: F403 - fixtures
from tests.stores.encoded import reversing


class Total(Message):
    """What a cart comes to."""

    items: int
    sum: Decimal


class Label(Message):
    """What a cart is found by in the warehouse."""

    tags: frozenset[int]


class Shop:
    """Carts, whose worker handles what waits in its queue whenever somebody waits for it."""

    def __init__(self, app: Celery, worker: Worker) -> None:
        self.app, self.worker = app, worker
        self.runs: list[str] = []  #: of steps
        self.pauses: list[float] = []
        self.works = True  #: whether the worker does

        class Cart(Saga, correlate_by="cart_id", also_by="coupon", status_by="status"):
            cart_id: str
            coupon: str | None = None
            status: Literal["open", "paid"] = "open"
            skus: list[str] = []

        @Cart.starts(if_exists="ignore")
        def begin(cart: Cart, cart_id: str, coupon: str | None = None) -> str:
            cart.coupon = coupon
            return f"cart {cart_id}"

        @Cart.handles
        def add_item(cart: Cart, cart_id: str, sku: str, price: Decimal = Decimal(1)) -> Total:
            self.runs.append(sku)
            if sku == "none":
                raise ValueError("no such article")
            cart.skus.append(sku)
            return Total(items=len(cart.skus), sum=len(cart.skus) * price)

        @Cart.handles
        def redeem(cart: Cart, coupon: str) -> int:
            return len(cart.skus)

        @Cart.handles(when="open", if_not="ignore")
        def pay(cart: Cart, cart_id: str) -> None:
            cart.status = "paid"

        @Cart.handles(when="paid", if_not="defer")
        def ship(cart: Cart, cart_id: str) -> str:
            return f"shipped {len(cart.skus)}"

        @Cart.handles
        def close(cart: Cart, cart_id: str) -> list[str]:
            cart.complete()
            return cart.skus

        self.Cart, self.begin, self.add_item, self.redeem = Cart, begin, add_item, redeem
        self.pay, self.ship, self.close = pay, ship, close
        runtime_of(app).pause = self.pause

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if self.works:
            self.worker.run()

    def entry(self, step: Any, id: str, key: str = "c1") -> Entry:
        """Return the journal's entry of a message."""
        found = backend_of(self.app).sagas.find(Lookup(("cart",), KEY, key), Handling((step.name,), id))
        assert found.handled is not None
        return found.handled


@pytest.fixture(params=["ask", "ask_async"])
def ask(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Both ways to ask."""
    if request.param == "ask":
        return celery_sagas.ask
    return lambda *args, **options: asyncio.run(celery_sagas.ask_async(*args, **options))


@pytest.fixture
def shop(app: Celery, worker: Worker) -> Shop:
    """A shop with one cart."""
    shop = Shop(app, worker)
    shop.begin("c1", "T1")
    return shop


class TestAnswers:
    """What the step returns, as its annotation says."""

    def test_it_returns_what_the_step_returns(self, shop: Shop, ask: Callable[..., Any]) -> None:
        assert ask(shop.add_item.si("c1", "book", Decimal("2.50")), timeout=5) == Total(items=1, sum=Decimal("2.50"))
        assert ask(shop.add_item.s(cart_id="c1", sku="pen"), timeout=5) == Total(items=2, sum=Decimal(2))
        assert shop.Cart.find("c1").skus == ["book", "pen"]

    def test_starter_end_and_nothing(self, shop: Shop, ask: Callable[..., Any]) -> None:
        assert ask(shop.begin.si("c2"), timeout=5) == "cart c2"
        assert ask(shop.pay.si("c2"), timeout=5) is None
        assert ask(shop.close.si("c2"), timeout=5) == []
        assert shop.Cart.find("c2") is None

    def test_by_an_alternate_key(self, shop: Shop, ask: Callable[..., Any]) -> None:
        assert ask(shop.redeem.si("T1"), timeout=5) == 0

    def test_signature_that_is_made_by_name(self, shop: Shop, ask: Callable[..., Any]) -> None:
        sent: Any = shop.app.signature("cart.add_item", ("c1", "book"), {"price": Decimal(3)})
        assert ask(sent, timeout=5) == Total(items=1, sum=Decimal(3))
        assert "headers" not in sent.options

    def test_options_of_the_signature_are_kept(self, shop: Shop, ask: Callable[..., Any]) -> None:
        shop.works = False
        with pytest.raises(AskTimeout):
            ask(shop.pay.si("c1").set(priority=3, headers={"tenant": "a"}), timeout=0)
        (message,) = shop.worker.waiting()
        assert message.headers["tenant"] == "a"
        assert message.id != message.headers["saga_message_id"]

    def test_deferred_message_is_waited_for(self, shop: Shop, ask: Callable[..., Any]) -> None:
        pause, seen = shop.pause, list[float]()

        def pay_later(seconds: float) -> None:
            seen.append(seconds)
            if len(seen) == 3:
                shop.pay.delay("c1")
            pause(seconds)

        runtime_of(shop.app).pause = pay_later
        assert ask(shop.ship.si("c1"), timeout=60, id="s1") == "shipped 0"
        assert ask(shop.ship.si("c1"), timeout=0, id="s1") == "shipped 0"

    def test_step_without_annotation(self, shop: Shop, ask: Callable[..., Any]) -> None:
        """Values of JSON, by their own types."""

        @shop.Cart.handles
        def look(cart: Any, cart_id: str):  # type: ignore[no-untyped-def]
            return {"sum": Decimal("2.5"), "nested": [(1, 2)]}

        assert ask(look.si("c1"), timeout=5) == {"sum": "2.5", "nested": [[1, 2]]}

    @pytest.mark.parametrize("text", ["\0", "ü€𝄞", '"\\', "a" * 65_000])
    def test_text_that_a_database_might_refuse(self, shop: Shop, ask: Callable[..., Any], text: str) -> None:
        @shop.Cart.handles
        def look(cart: Any, cart_id: str) -> str:
            return text

        assert ask(look.si("c1"), timeout=5) == text

    def test_numbers_that_json_has_not(self, shop: Shop, ask: Callable[..., Any]) -> None:
        @shop.Cart.handles
        def look(cart: Any, cart_id: str) -> list[float]:
            return [float("inf"), 0.5]

        assert ask(look.si("c1"), timeout=5) == [float("inf"), 0.5]


class TestTheSameId:
    """It gets the first answer, and the step runs once."""

    def test_second_ask_is_given_the_first_answer(self, shop: Shop, ask: Callable[..., Any]) -> None:
        first = ask(shop.add_item.si("c1", "book"), timeout=5, id="k1")
        shop.add_item("c1", "pen")
        done = len(shop.worker.done)

        assert ask(shop.add_item.si(sku="book", cart_id="c1"), timeout=0, id="k1") == first
        assert shop.runs == ["book", "pen"]
        assert (len(shop.worker.done), shop.worker.waiting()) == (done, [])  # nothing was published

    def test_after_the_instance_has_ended(self, shop: Shop, ask: Callable[..., Any]) -> None:
        ask(shop.add_item.si("c1", "book"), timeout=5, id="k1")
        ask(shop.redeem.si("T1"), timeout=5, id="k2")
        shop.close("c1")

        assert ask(shop.add_item.si("c1", "book"), timeout=0, id="k1").items == 1
        assert ask(shop.redeem.si("T1"), timeout=0, id="k2") == 1

    def test_while_the_first_is_handled(self, shop: Shop, ask: Callable[..., Any]) -> None:
        shop.works = False
        with pytest.raises(AskTimeout):
            ask(shop.add_item.si("c1", "book"), timeout=0, id="k1")
        shop.works = True

        assert ask(shop.add_item.si("c1", "book"), timeout=5, id="k1").items == 1
        assert [each.id for each in shop.worker.done] == [each.id for each in shop.worker.done if each.fate == "acked"]
        assert len(shop.worker.done) == 2
        assert shop.runs == ["book"]

    def test_of_two_steps_are_two_messages(self, shop: Shop, ask: Callable[..., Any]) -> None:
        assert ask(shop.add_item.si("c1", "book"), timeout=5, id="k1").items == 1
        assert ask(shop.redeem.si("T1"), timeout=5, id="k1") == 1

    @pytest.mark.parametrize("other", [("c1", "pen"), ("c2", "book")])
    def test_other_arguments_are_refused(self, shop: Shop, ask: Callable[..., Any], other: tuple[str, str]) -> None:
        """Nobody is given the answer to another question."""
        shop.begin("c2")
        ask(shop.add_item.si("c1", "book"), timeout=5, id="k1")

        with pytest.raises(InvalidMessage, match="another message was sent under 'k1'") as caught:
            ask(shop.add_item.si(*other), timeout=0, id="k1")
        assert not isinstance(caught.value, AnswerNotKept)
        assert shop.runs == ["book"]

    def test_sets_are_the_same_in_any_order(self, shop: Shop, ask: Callable[..., Any]) -> None:
        """Each process has another order of texts."""

        @shop.Cart.handles
        def tag(cart: Any, cart_id: str, tags: set[int], label: Label) -> int:
            return cart.saga.version

        one, other = {8, 0}, {0, 8}
        assert list(one) != list(other)
        first = ask(tag.si("c1", one, Label(tags=frozenset(one))), timeout=5, id="k1")
        assert ask(tag.si("c1", other, Label(tags=frozenset([0, 8]))), timeout=0, id="k1") == first
        with pytest.raises(InvalidMessage, match="another message"):
            ask(tag.si("c1", {8, 1}, Label(tags=frozenset(one))), timeout=0, id="k1")

    def test_failure_is_the_same_too(self, shop: Shop, ask: Callable[..., Any]) -> None:
        with pytest.raises(StepFailed) as first:
            ask(shop.add_item.si("c1", "none"), timeout=5, id="k1")
        with pytest.raises(StepFailed) as second:
            ask(shop.add_item.si("c1", "none"), timeout=0, id="k1")
        assert second.value.args == first.value.args
        assert shop.runs == ["none"] * (2 if shop.worker.is_batching else 1)  # a batch leaves what fails to its task

    @pytest.mark.parametrize("other", [("c1", "pen"), ("c2", "none")])
    def test_failure_of_other_arguments_is_not_told(self, shop: Shop, ask: Callable[..., Any], other: tuple[str, str]) -> None:
        shop.begin("c2")
        with pytest.raises(StepFailed):
            ask(shop.add_item.si("c1", "none"), timeout=5, id="k1")

        with pytest.raises(InvalidMessage, match="another message was sent under 'k1'"):
            ask(shop.add_item.si(*other), timeout=0, id="k1")

    def test_message_that_was_not_asked(self, shop: Shop, ask: Callable[..., Any]) -> None:
        shop.add_item.apply_async(("c1", "book"), headers={"saga_message_id": "k1"})
        shop.worker.run()

        with pytest.raises(AnswerNotKept, match=r"sent under this id without ask\(\)"):
            ask(shop.add_item.si("c1", "book"), timeout=0, id="k1")


class TestOutcomes:
    """Each is an error of its own."""

    def test_failed(self, shop: Shop, ask: Callable[..., Any]) -> None:
        with pytest.raises(StepFailed, match=r"cart\.add_item has failed with ValueError: no such article") as caught:
            ask(shop.add_item.si("c1", "none"), timeout=5, id="k1")
        (dead_letter,) = backend_of(shop.app).dead.list(10)
        assert caught.value.args == ("cart.add_item", "ValueError", "no such article", dead_letter.id)

        backend_of(shop.app).dead.remove(dead_letter.id)
        with pytest.raises(StepFailed, match=r"^cart\.add_item has failed with ValueError\. Nothing"):
            ask(shop.add_item.si("c1", "none"), timeout=0, id="k1")

    def test_missing(self, shop: Shop, ask: Callable[..., Any]) -> None:
        with pytest.raises(SagaNotFound) as caught:
            ask(shop.add_item.si("c9", "book"), timeout=5)
        assert caught.value.args == ("cart", "cart_id", "c9", False)

    def test_completed(self, shop: Shop, ask: Callable[..., Any]) -> None:
        shop.close("c1")
        with pytest.raises(SagaNotFound) as caught:
            ask(shop.add_item.si("c1", "book"), timeout=5)
        assert caught.value.completed

    def test_missing_with_a_function_for_that(self, shop: Shop, ask: Callable[..., Any]) -> None:
        """It returns something else than the step."""

        @shop.Cart.handles
        def look(cart: Any, cart_id: str) -> int:
            return 1

        @look.if_missing
        def say_so(missing: Missing, cart_id: str) -> str:
            return "none"

        assert ask(look.si("c1"), timeout=5) == 1
        with pytest.raises(SagaNotFound):
            ask(look.si("c9"), timeout=5)

    def test_exists(self, shop: Shop, ask: Callable[..., Any]) -> None:
        with pytest.raises(SagaAlreadyExists) as caught:
            ask(shop.begin.si("c1"), timeout=5)
        assert caught.value.args == ("cart", "cart_id", "c1", shop.Cart.find("c1").saga.id)

    def test_wrong_status(self, shop: Shop, ask: Callable[..., Any]) -> None:
        shop.pay("c1")
        with pytest.raises(WrongStatus, match=r"cart 'c1' is 'paid', and cart\.pay runs only when it is 'open'"):
            ask(shop.pay.si("c1"), timeout=5)

    def test_time_is_over(self, shop: Shop, ask: Callable[..., Any]) -> None:
        shop.works = False
        with pytest.raises(AskTimeout, match="ask again with id='k1'") as caught:
            ask(shop.add_item.si("c1", "book"), timeout=2, id="k1")
        assert sum(shop.pauses) == pytest.approx(2, abs=0.5)  # what a look takes counts too
        assert isinstance(caught.value, WaitTimeout)
        assert isinstance(caught.value, TimeoutError)
        assert (caught.value.step, caught.value.id, caught.value.seconds) == ("cart.add_item", "k1", 2.0)

    def test_its_id_is_given_also_if_it_is_new(self, shop: Shop, ask: Callable[..., Any]) -> None:
        shop.works = False
        with pytest.raises(AskTimeout) as caught:
            ask(shop.add_item.si("c1", "book"), timeout=0)
        shop.worker.run()
        assert ask(shop.add_item.si("c1", "book"), timeout=0, id=caught.value.id).items == 1

    def test_broker_is_away(self, shop: Shop, ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(_: Signature[Any]) -> None:
            raise PublishError("ConnectionError: refused", True)

        monkeypatch.setattr(runtime_of(shop.app).publisher, "publish_signature", refuse)
        with pytest.raises(PublishError):
            ask(shop.add_item.si("c1", "book"), timeout=5)


@pytest.mark.parametrize("sku", ["book", "none"])
def test_answer_that_this_process_cannot_decode(app: Celery, worker: Worker, monkeypatch: pytest.MonkeyPatch, sku: str) -> None:
    app.conf.saga_codec = "tests.stores.encoded.reversing:codec"
    shop = Shop(app, worker)
    shop.begin("c1")
    with suppress(StepFailed):
        celery_sagas.ask(shop.add_item.si("c1", sku), timeout=5, id="k1")

    def refuse(text: str, about: str) -> str:
        raise ValueError("no key")

    monkeypatch.setattr(reversing.codec, "decode", refuse)
    with pytest.raises(UnreadableState, match="cart 'c1' cannot be read: it cannot be decoded by saga_codec"):
        celery_sagas.ask(shop.add_item.si("c1", sku), timeout=0, id="k1")


class TestWhatIsNotKept:
    """The step has its effect all the same."""

    @pytest.mark.parametrize(
        ("result", "why"),
        [
            ("a" * 66_000, "it has 66,013 bytes, and 65,536 are kept"),
            (object(), "a object cannot be encoded as JSON"),
            ("\ud800", "a str cannot be encoded as JSON"),
        ],
        ids=["large", "object", "surrogate"],
    )
    def test_what_cannot_be_kept(
        self, shop: Shop, ask: Callable[..., Any], result: object, why: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        # Celery logs what a task returns, and no report of a test can hold a surrogate.
        caplog.set_level(logging.WARNING, "celery.app.trace")

        @shop.Cart.handles
        def look(cart: Any, cart_id: str) -> Any:
            cart.skus.append("seen")
            return result

        for _ in range(2):
            with pytest.raises(AnswerNotKept, match="Its effect is committed") as caught:
                ask(look.si("c1"), timeout=5, id="k1")
            assert caught.value.problem == why
            assert isinstance(caught.value, InvalidMessage)
            assert caught.value.problems == [("", why)]
        assert shop.Cart.find("c1").skus == ["seen"]
        assert "pin" not in shop.entry(look, "k1").detail

    def test_secret_is_not_kept(self, shop: Shop, ask: Callable[..., Any]) -> None:
        @shop.Cart.handles
        def look(cart: Any, cart_id: str) -> SecretStr:
            return SecretStr("pin")

        with pytest.raises(AnswerNotKept, match="it holds a secret, which would be kept as asterisks"):
            ask(look.si("c1"), timeout=5)

    def test_what_is_not_as_annotated(self, shop: Shop, ask: Callable[..., Any]) -> None:
        @shop.Cart.handles
        def look(cart: Any, cart_id: str) -> int:
            return "secret"  # type: ignore[return-value]

        with pytest.raises(AnswerNotKept, match="it is not what the annotation says: Input should be") as caught:
            ask(look.si("c1"), timeout=5)
        assert "secret" not in str(caught.value)

    def test_step_that_nobody_asks_keeps_nothing(self, shop: Shop) -> None:
        shop.add_item.apply_async(("c1", "book"), headers={"saga_message_id": "k1"})
        shop.worker.run()
        assert shop.entry(shop.add_item, "k1").detail == "{}"

    @pytest.mark.parametrize("header", [True, 7, "", "x" * 300, ["a"], None])
    def test_forged_header(self, shop: Shop, header: object) -> None:
        shop.add_item.apply_async(("c1", "book"), headers={"saga_message_id": "k1", ASKED: header})
        shop.worker.run()
        assert shop.entry(shop.add_item, "k1").detail == "{}"

    def test_worker_that_cannot_encode_what_a_forged_message_asks(self, shop: Shop) -> None:
        @shop.Cart.handles
        def look(cart: Any, cart_id: str) -> threading.Lock:  # type: ignore[valid-type]
            return threading.Lock()

        look.apply_async(("c1",), headers={"saga_message_id": "k1", ASKED: "forged"})
        shop.worker.run()
        assert set(json.loads(shop.entry(look, "k1").detail)) == {"question", "result_not_kept"}


@as_tasks
class TestRefused:
    """Nothing is published."""

    @pytest.fixture(autouse=True)
    def _nothing_is_sent(self, shop: Shop) -> Iterator[None]:
        yield
        assert shop.worker.waiting() == []

    def test_plain_task(self, shop: Shop, ask: Callable[..., Any]) -> None:
        @shop.app.task(name="plain")
        def plain() -> None: ...

        with pytest.raises(TypeError, match=r"plain is no step of a saga, and only these are asked: use delay\(…\)\.get\(\)"):
            ask(plain.si(), timeout=5)

    def test_chain_and_group(self, shop: Shop, ask: Callable[..., Any]) -> None:
        for sent in (chain(shop.pay.si("c1"), shop.pay.si("c1")), group([shop.pay.si("c1"), shop.pay.si("c1")])):
            with pytest.raises(TypeError, match=r"ask\(\) takes one step, not a chain.*wait\(\)"):
                ask(sent, timeout=5)

    def test_aggregator(self, shop: Shop, ask: Callable[..., Any]) -> None:
        @aggregator(size=10)
        def store(batch: Batch[int]) -> None: ...

        with pytest.raises(TypeError, match=r"store is an aggregator, which answers nobody"):
            ask(store.si(1), timeout=5)

    def test_what_is_no_signature(self, shop: Shop, ask: Callable[..., Any]) -> None:
        with pytest.raises(TypeError, match=r"takes a signature of a step, such as step\.si\(…\), not Step"):
            ask(shop.pay, timeout=5)
        with pytest.raises(TypeError, match=r"no step 'cart.unknown' is defined in this process"):
            ask(shop.app.signature("cart.unknown"), timeout=5)
        with pytest.raises(TypeError, match=r"cart\.\(answered\) is no step"):
            ask(shop.app.signature("cart.(answered)", ("c1",)), timeout=5)

    def test_arguments(self, shop: Shop, ask: Callable[..., Any]) -> None:
        with pytest.raises(InvalidMessage, match="sku: Field required"):
            ask(shop.add_item.s("c1"), timeout=5)
        with pytest.raises(InvalidMessage, match="cart_id: Input should be a valid string"):
            ask(shop.add_item.s(None, "book"), timeout=5)

    @pytest.mark.parametrize("id", ["", "a\n", "a" * 256])
    def test_id(self, shop: Shop, ask: Callable[..., Any], id: str) -> None:
        with pytest.raises(InvalidMessage, match="1 to 255 printable characters"):
            ask(shop.pay.si("c1"), timeout=5, id=id)

    def test_timeout(self, shop: Shop, ask: Callable[..., Any]) -> None:
        with pytest.raises(ValueError, match="timeout=-1 is no time to wait"):
            ask(shop.pay.si("c1"), timeout=-1)
        with pytest.raises(TypeError, match="timeout= takes a timedelta or seconds, not str"):
            ask(shop.pay.si("c1"), timeout="5")

    def test_step_that_names_its_instance_by_what_caused_it(self, shop: Shop, ask: Callable[..., Any]) -> None:
        @shop.Cart.handles
        def look(cart: Any) -> int:
            return 1

        with pytest.raises(CorrelationError):
            ask(look.si(), timeout=5)

    def test_step_that_returns_what_json_has_not(self, shop: Shop, ask: Callable[..., Any]) -> None:
        @shop.Cart.handles
        def look(cart: Any, cart_id: str) -> threading.Lock:  # type: ignore[valid-type]
            return threading.Lock()

        with pytest.raises(DefinitionError, match="what it returns"):
            ask(look.si("c1"), timeout=5)

    def test_in_a_handler_that_is_called_as_a_function(self, shop: Shop) -> None:
        @shop.Cart.handles
        def look(cart: Any, cart_id: str) -> None:
            celery_sagas.ask(shop.pay.si("c1"), timeout=5)

        with pytest.raises(MisuseError, match=r"ask\(\) was called inside a task"):
            look.handler(shop.Cart(cart_id="c1"), "c1")


def test_inside_a_task(shop: Shop, ask: Callable[..., Any]) -> None:
    @shop.app.task
    def look() -> None:
        ask(shop.pay.si("c1"), timeout=5)

    look.delay()
    assert isinstance(shop.worker.one().error, MisuseError)
    assert shop.worker.waiting() == []


class TestEager:
    """The message is handled before it is waited for."""

    @pytest.fixture(params=[True, False])
    def shop(self, request: pytest.FixtureRequest, new_app: NewApp) -> Shop:
        """A shop that runs everything at once, and lets errors pass, or not."""
        app = new_app(eager=True)
        app.conf.task_eager_propagates = request.param
        shop = Shop(app, Worker(app))
        shop.begin("c1")
        shop.works = False
        return shop

    def test_answer(self, shop: Shop, ask: Callable[..., Any]) -> None:
        assert ask(shop.add_item.si("c1", "book"), timeout=0, id="k1") == Total(items=1, sum=Decimal(1))
        assert ask(shop.add_item.si("c1", "book"), timeout=0, id="k1").items == 1

    def test_failure(self, shop: Shop, ask: Callable[..., Any]) -> None:
        with pytest.raises(StepFailed, match=r"^cart\.add_item has failed with ValueError: no such article\.$") as caught:
            ask(shop.add_item.si("c1", "none"), timeout=5)
        assert isinstance(caught.value.__cause__, ValueError)

    def test_ignored(self, shop: Shop, ask: Callable[..., Any]) -> None:
        with pytest.raises(SagaNotFound):
            ask(shop.add_item.si("c9", "book"), timeout=0)


@pytest.mark.parametrize("is_batching", [False, True])
def test_each_store_keeps_it(stored_app: Celery, is_batching: bool) -> None:
    shop = Shop(stored_app, Worker(stored_app, is_batching=is_batching))
    assert celery_sagas.ask(shop.begin.si("c1", "T1"), timeout=5) == "cart c1"
    assert celery_sagas.ask(shop.add_item.si("c1", "book"), timeout=5, id="k1").items == 1
    assert celery_sagas.ask(shop.redeem.si("T1"), timeout=5, id="k2") == 1

    @shop.Cart.handles
    def look(cart: Any, cart_id: str) -> str:
        return "\0ü" * 5_000

    assert celery_sagas.ask(look.si("c1"), timeout=5) == "\0ü" * 5_000
    with pytest.raises(StepFailed, match="no such article"):
        celery_sagas.ask(shop.add_item.si("c1", "none"), timeout=5)
    assert celery_sagas.ask(shop.close.si("c1"), timeout=5) == ["book"]
    assert celery_sagas.ask(shop.add_item.si("c1", "book"), timeout=0, id="k1").items == 1
    assert celery_sagas.ask(shop.redeem.si("T1"), timeout=0, id="k2") == 1
    with pytest.raises(SagaNotFound):
        celery_sagas.ask(shop.add_item.si("c1", "pen"), timeout=5)


@as_tasks
class TestAsync:
    """The event loop goes on, and the app is that of the call."""

    def test_find_outcome_and_wait(self, shop: Shop) -> None:
        async def look() -> tuple[Any, ...]:
            found = await shop.Cart.find_async("c1")
            waited = await shop.Cart.wait_async(coupon="T1", until=lambda cart: cart.status == "paid", timeout=5)
            shop.close.delay("c1")
            ended = await shop.Cart.wait_async("c1", until="completed", timeout=5)
            return found, waited, ended, await shop.Cart.outcome_async(cart_id="c1"), await shop.Cart.find_async("c1")

        shop.pay.delay("c1")
        found, waited, ended, outcome, gone = asyncio.run(look())
        assert (found.cart_id, found.status, waited.status) == ("c1", "open", "paid")
        assert (ended, ended.kind, gone) == (outcome, "completed", None)

    def test_errors_come_from_the_call(self, shop: Shop) -> None:
        with pytest.raises(WaitTimeout):
            asyncio.run(shop.Cart.wait_async("c1", until=lambda cart: False, timeout=0))
        with pytest.raises(CorrelationError):
            asyncio.run(shop.Cart.find_async(None))
        with pytest.raises(DefinitionError):
            asyncio.run(Saga.outcome_async("c1"))

    def test_app_is_that_of_the_call(self, shop: Shop, new_app: NewApp) -> None:
        """Other threads have another one, or none: the app was not made their default."""
        other = new_app()
        other.set_default()
        shop.app.set_current()
        seen = list[Celery]()

        def until(cart: Any) -> bool:
            seen.append(celery_sagas.worker.celery_internals.current_app())  # type: ignore[attr-defined]
            return True

        asyncio.run(shop.Cart.wait_async("c1", until=until, timeout=0))
        assert asyncio.run(celery_sagas.ask_async(shop.pay.si("c1"), timeout=5)) is None
        assert seen == [shop.app]

    def test_no_thread_is_held_between_two_looks(self, shop: Shop) -> None:
        """A hundred wait, and one thread looks for them."""
        runtime_of(shop.app).pause = None
        looking: set[int] = set()
        at_once = list[int]()

        async def ask_all() -> list[Any]:
            loop = asyncio.get_running_loop()
            with one_thread(loop):
                asked = [asyncio.create_task(celery_sagas.ask_async(shop.begin.si(f"n{i}"), timeout=60)) for i in range(100)]
                while len(shop.worker.waiting()) < len(asked):
                    await asyncio.sleep(0.01)
                at_once.append(sum(not each.done() for each in asked))
                looking.update(thread.ident or 0 for thread in threading.enumerate() if thread.name.startswith("only"))
                await asyncio.to_thread(in_app, shop.app, lambda: shop.worker.run(limit=200))
                return await asyncio.gather(*asked)

        assert asyncio.run(ask_all()) == [f"cart n{i}" for i in range(100)]
        assert (at_once, len(looking)) == ([100], 1)

    def test_cancellation_leaves_nothing_behind(self, shop: Shop) -> None:
        runtime_of(shop.app).pause = None
        shop.works = False
        looks = count_looks(shop.app)

        async def cancel() -> None:
            task = asyncio.create_task(celery_sagas.ask_async(shop.pay.si("c1"), timeout=60, id="k1"))
            while len(looks) < 3:
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.get_running_loop().shutdown_default_executor()
            assert asyncio.all_tasks() == {asyncio.current_task()}

        asyncio.run(cancel())
        count = len(looks)
        shop.worker.run()
        assert len(looks) == count + 1  # that of the worker
        assert celery_sagas.ask(shop.pay.si("c1"), timeout=0, id="k1") is None

    def test_time_out_of_asyncio(self, shop: Shop) -> None:
        runtime_of(shop.app).pause = None

        async def wait() -> None:
            async with asyncio.timeout(0.05):
                await shop.Cart.wait_async("c1", until=lambda cart: False, timeout=60)

        with pytest.raises(TimeoutError) as caught:
            asyncio.run(wait())
        assert not isinstance(caught.value, WaitTimeout)

    def test_inside_a_task(self, shop: Shop) -> None:
        @shop.app.task
        def look() -> None:
            asyncio.run(shop.Cart.wait_async("c1", until=lambda cart: True, timeout=0))

        look.delay()
        error = shop.worker.one().error
        assert isinstance(error, MisuseError)
        assert "Cart.wait_async() was called inside a task" in str(error)


@contextmanager
def one_thread(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Have a loop's calls in threads share one."""
    loop.set_default_executor(ThreadPoolExecutor(1, thread_name_prefix="only"))
    yield


def in_app(app: Celery, call: Callable[[], Any]) -> Any:
    """Call a function in a thread in which an app is the current one."""
    app.set_current()
    return call()


def count_looks(app: Celery) -> list[Lookup]:
    """Note what is looked up in the store of an app."""
    backend: Any = backend_of(app)
    looks, find = list[Lookup](), backend.sagas.find

    def noted(lookup: Lookup, handling: Handling | None = None) -> Any:
        looks.append(lookup)
        return find(lookup, handling)

    backend.sagas.find = noted
    return looks


def test_one_rule_for_both_drivers() -> None:
    """What pauses is the same generator."""
    looks = iter([None, None, "here"])
    waiting = polling.poll(lambda: next(looks), 60, lambda: AssertionError())
    pauses = [polling.proceed(waiting), polling.proceed(waiting)]
    assert pauses == [0.005, pytest.approx(0.0075)]
    assert polling.proceed(waiting) == ("here",)
