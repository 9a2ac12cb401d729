"""Buffering: what is inserted, who asks for a flush, and what a full buffer says."""

from typing import Any

import pytest

from celery_sagas.engine.aggregators.buffering import buffer, new_item, unread_item
from celery_sagas.errors import BufferFull, InvalidMessage
from celery_sagas.stores.items import NewItem
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.testing.clock import Clock
from tests.engine.aggregators.batches import LEASE_MS, NAME, Asked, define, payload, rules_of

LARGE = 1_000
BY_DEVICE = define(group_by="device")


def put(backend: MemoryBackend, *items: tuple[str, str], definition: Any = BY_DEVICE, **changes: Any) -> tuple[int, list[str]]:
    """Buffer items, each given by its group and its id; return how many are new, and for which groups flushes were asked for."""
    asked = Asked()
    new = [(group, NewItem(id, payload(id))) for group, id in items]
    return buffer(backend.aggregates, rules_of(definition, **changes), new, asked), asked


def ids(backend: MemoryBackend, group: str) -> list[str]:
    """Return what is buffered in a group."""
    return [item.id for item in backend.buffers.read(NAME, group, 100)]


class TestItem:
    """What is buffered of an item."""

    def test_group_and_text(self) -> None:
        assert new_item(BY_DEVICE, "m1", {"device": "d1", "celsius": 20}, LARGE) == (
            "d1",
            NewItem("m1", '{"device":"d1","celsius":20}'),
        )
        assert new_item(define(), "m1", {"device": "d1", "celsius": 20}, LARGE)[0] == ""

    @pytest.mark.parametrize("value", [{"device": "d1"}, {"celsius": 1}, 5, None, {"device": "", "celsius": 1}])
    def test_that_does_not_fit(self, value: object) -> None:
        with pytest.raises(InvalidMessage):
            new_item(BY_DEVICE, "m1", value, LARGE)

    def test_that_is_too_large(self) -> None:
        value = {"device": "d1", "celsius": 20}
        size = len(new_item(BY_DEVICE, "m1", value, LARGE)[1].payload)

        assert new_item(BY_DEVICE, "m1", value, size)[0] == "d1"
        for make in (new_item, unread_item):
            with pytest.raises(InvalidMessage, match=f"it has {size} bytes, saga_max_state_bytes allows {size - 1}"):
                make(BY_DEVICE, "m1", value, size - 1)

    def test_bytes_count_and_not_characters(self) -> None:
        value = {"device": "ß" * 100, "celsius": 1}
        with pytest.raises(InvalidMessage, match="it has 225 bytes"):
            new_item(BY_DEVICE, "m1", value, 200)

    @pytest.mark.parametrize("text", ["\ud800", "a\udfff"])
    def test_that_has_half_a_surrogate_pair(self, text: str) -> None:
        """JSON can write it, so that a broker brings it; no store keeps it."""
        for make in (new_item, unread_item):
            with pytest.raises(InvalidMessage, match="it cannot be encoded as JSON"):
                make(BY_DEVICE, "m1", {"device": text, "celsius": 1}, LARGE)


class TestUnreadItem:
    """One that this code cannot read, and other code may."""

    def test_says_that_it_could_not_be_read(self) -> None:
        group, item = unread_item(BY_DEVICE, "m1", {"device": "d1", "temperature": 5}, LARGE)

        assert (group, item.payload) == ("d1", '{"device":"d1","temperature":5}')
        assert item.is_unreadable

    @pytest.mark.parametrize("value", [{"temperature": 5}, {"device": None}, {"device": True}, 5, "d1"])
    def test_that_does_not_say_to_which_group_it_belongs(self, value: object) -> None:
        with pytest.raises(InvalidMessage, match="device"):
            unread_item(BY_DEVICE, "m1", value, LARGE)

    def test_needs_no_group_where_there_are_none(self) -> None:
        assert unread_item(define(), "m1", 5, LARGE)[0] == ""


class TestBuffer:
    """Items of several groups at once."""

    def test_items_keep_their_order(self, backend: MemoryBackend) -> None:
        count, asked = put(backend, ("g", "c"), ("g", "a"), ("h", "x"), ("g", "b"), size=9)

        assert (count, asked) == (4, [])
        assert (ids(backend, "g"), ids(backend, "h")) == (["c", "a", "b"], ["x"])

    def test_nothing(self, backend: MemoryBackend) -> None:
        assert put(backend) == (0, [])

    def test_in_one_round_trip(self, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch) -> None:
        calls: list[int] = []
        insert = backend.aggregates.insert
        monkeypatch.setattr(backend.aggregates, "insert", lambda rules, given: calls.append(len(given)) or insert(rules, given))
        put(backend, ("g", "a"), ("h", "b"), ("g", "c"))

        assert calls == [2]

    def test_ask_for_each_group_whose_trigger_fires(self, backend: MemoryBackend) -> None:
        """Nobody asks twice."""
        assert put(backend, ("g", "a"), ("g", "b"), ("h", "c"), ("i", "d"), ("i", "e"), size=2) == (5, ["g", "i"])
        assert put(backend, ("g", "f"), ("h", "g"), size=2) == (2, ["h"])

    def test_ask_no_more_once_the_broker_is_away(self, backend: MemoryBackend, clock: Clock) -> None:
        """The caller waits for it once; a relay asks for the rest, when the flush requests have expired."""
        asked: list[str] = []

        def ask(group: str) -> bool:
            asked.append(group)
            return len(asked) < 2

        rules, new = rules_of(BY_DEVICE, size=1), [(group, NewItem(group, payload(group))) for group in "ghij"]

        assert buffer(backend.aggregates, rules, new, ask) == 4
        assert asked == ["g", "h"]
        assert backend.aggregates.claim_due([NAME], 10, LEASE_MS) == []
        clock.advance(LEASE_MS)
        assert {due.group for due in backend.aggregates.claim_due([NAME], 10, LEASE_MS)} == set("ghij")

    def test_once_for_an_id(self, backend: MemoryBackend) -> None:
        """An id is known in its group alone."""
        assert put(backend, ("g", "a"), ("g", "a"), ("h", "a"))[0] == 2
        assert put(backend, ("g", "a"), ("g", "b"))[0] == 1


class TestFull:
    """``max_buffered``: nothing is dropped, the producer has to wait."""

    def refused(self, backend: MemoryBackend, *items: tuple[str, str]) -> BufferFull:
        """Buffer items where at least one group is full."""
        with pytest.raises(BufferFull) as caught:
            put(backend, *items, size=2, max_buffered=2)
        return caught.value

    def test_says_what_was_not_added(self, backend: MemoryBackend) -> None:
        put(backend, ("g", "a"), ("g", "b"), ("h", "a"), size=9)

        error = self.refused(backend, ("g", "c"), ("h", "b"), ("h", "c"), ("i", "d"), ("g", "e"))

        assert (error.aggregator, error.group, error.max_buffered) == (NAME, "g", 2)
        assert error.refused == ["c", "e", "b", "c"]
        assert (ids(backend, "g"), ids(backend, "h"), ids(backend, "i")) == (["a", "b"], ["a"], ["d"])

    def test_asks_for_the_others_all_the_same(self, backend: MemoryBackend) -> None:
        put(backend, ("g", "a"), ("g", "b"), size=9)
        asked = Asked()
        new = [(group, NewItem(id, payload(id))) for group, id in [("g", "c"), ("h", "d"), ("h", "e")]]
        with pytest.raises(BufferFull):
            buffer(backend.aggregates, rules_of(BY_DEVICE, size=2, max_buffered=2), new, asked)

        assert asked == ["h"]

    def test_is_told_though_the_broker_is_away(self, backend: MemoryBackend) -> None:
        """The refused items were not added, whatever becomes of the others."""
        put(backend, ("g", "a"), ("g", "b"), size=9)
        new = [(group, NewItem(id, payload(id))) for group, id in [("h", "d"), ("h", "e"), ("g", "c")]]
        with pytest.raises(BufferFull) as caught:
            buffer(backend.aggregates, rules_of(BY_DEVICE, size=2, max_buffered=2), new, lambda group: False)

        assert caught.value.refused == ["c"]

    def test_what_is_there_already_is_no_news(self, backend: MemoryBackend) -> None:
        """A repeat is not refused."""
        put(backend, ("g", "a"), ("g", "b"), max_buffered=2)

        assert put(backend, ("g", "a"), ("g", "b"), max_buffered=2)[0] == 0
