"""Functions with ``transaction=``: they take the session after the state, or the batch."""

from typing import Any

import pytest
from sqlalchemy.orm import Session

from celery_sagas import Batch, Saga, aggregator
from celery_sagas.errors import DefinitionError


@pytest.mark.usefixtures("definitions")
class TestFunctions:
    """What a function is declared like."""

    @pytest.fixture
    def saga(self) -> type[Saga]:
        """A saga of this test alone."""

        class Order(Saga, correlate_by="order_id"):
            order_id: str

        return Order

    def test_session_is_no_part_of_the_message(self, saga: Any) -> None:
        @saga.starts(transaction=Session)
        def place(order: Any, session: Session, order_id: str, total: int) -> None: ...

        definition = object.__getattribute__(place, "_definition")
        assert list(definition.arguments.annotations) == ["order_id", "total"]
        assert definition.given({"order_id": "1"}, "the session") == {"order_id": "1", "session": "the session"}

    def test_after_the_task(self, saga: Any) -> None:
        @saga.handles(transaction=Session, bind=True)
        def paid(self: Any, order: Any, session: Session, order_id: str) -> None: ...

        definition = object.__getattribute__(paid, "_definition")
        assert list(definition.arguments.annotations) == ["order_id"]

    def test_functions_beside_it_take_no_session(self, saga: Any) -> None:
        @saga.handles(transaction=Session, when=lambda order, order_id: True)
        def paid(order: Any, session: Session, order_id: str) -> None: ...

        @paid.if_missing
        def no_order(missing: Any, order_id: str) -> None: ...

    def test_step_without_a_parameter_for_it(self, saga: Any) -> None:
        with pytest.raises(DefinitionError, match="the state and the session first"):

            @saga.handles(transaction=Session)
            def paid(order: Any) -> None: ...

    def test_parameter_that_has_no_name(self, saga: Any) -> None:
        with pytest.raises(DefinitionError, match="cannot be given by name"):

            @saga.handles(transaction=Session)
            def paid(order: Any, session: Session, /, order_id: str) -> None: ...

    def test_with_a_batch_on_a_connection_of_djangos(self, saga: Any) -> None:
        with pytest.raises(DefinitionError, match="runs alone"):

            @saga.handles(transaction="default", batch=10)
            def paid(order: Any, order_id: str) -> None: ...

    def test_misspelt(self, saga: Any) -> None:
        with pytest.raises(DefinitionError, match="transaction="):

            @saga.handles(transactions=Session)
            def paid(order: Any, order_id: str) -> None: ...

    def test_asynchronous_function(self, saga: Any) -> None:
        with pytest.raises(DefinitionError, match="synchronous"):

            @saga.handles(transaction=Session)
            async def paid(order: Any, session: Session, order_id: str) -> None: ...

    def test_aggregator_without_a_parameter_for_it(self) -> None:
        with pytest.raises(DefinitionError, match="one batch and a session"):

            @aggregator(size=10, transaction=Session)
            def store(batch: Batch[int]) -> None: ...
