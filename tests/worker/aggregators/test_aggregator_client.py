"""An aggregator's buffer as programs use it: past the broker, from any process."""

import json
from datetime import UTC
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from celery import Celery

from celery_sagas import Message
from celery_sagas.errors import (
    BufferFull,
    InvalidMessage,
    ItemNotBuffered,
    MisuseError,
    NotBuffered,
    NothingBuffered,
    PublishError,
    UnreadableItem,
)
from celery_sagas.stores.items import Addition, NewItem, Rules
from celery_sagas.stores.memory.aggregates import MemoryBuffers
from celery_sagas.worker.aggregators import client
from celery_sagas.worker.runtime import runtime_of
from tests.apps import NewApp, Worker, backend_of
from tests.every_store import stored_app, url
from tests.worker.aggregators.collectors import Reading, collector, counts, ids

__all__ = ["stored_app", "url"]

D1, D2, D3 = (Reading(device=f"d{number}") for number in (1, 2, 3))


class TestAdd:
    """Past the broker."""

    def test_returns_the_id(self, app: Celery) -> None:
        collect, _ = collector()
        given, made = collect.add(D1, id="mqtt-7"), collect.add(D2)

        assert given == "mqtt-7"
        assert UUID(made).version == 4
        assert ids(app) == ["mqtt-7", made]

    def test_once_for_an_id(self, app: Celery) -> None:
        """Without an id each call adds an item."""
        collect, _ = collector(size=9)
        for _ in range(2):
            collect.add(D1, id="a")
            collect.add(D1)

        assert len(ids(app)) == 3

    def test_many_items_keep_their_order(self, app: Celery, worker: Worker) -> None:
        collect, _ = collector(size=9)

        assert collect.add_many([D3, D1, D2], ids=["z", "a", "m"]) == ["z", "a", "m"]
        assert collect.read() == [D3, D1, D2]
        more = collect.add_many(reading for reading in (D1, D1))
        assert ids(app) == ["z", "a", "m", *more]
        assert collect.add_many([]) == []

    def test_flush_is_asked_for(self, app: Celery, worker: Worker) -> None:
        collect, collected = collector()
        collect.add_many([D1, D2, D3])
        (message,) = worker.waiting()

        assert (message.task, message.args) == ("shop.collect.flush", [""])
        worker.run()
        assert collected.items == [[D1, D2]]

    @pytest.mark.parametrize("count", [0, 1, 3])
    def test_as_many_ids_as_items(self, app: Celery, count: int) -> None:
        collect, _ = collector()
        with pytest.raises(ValueError, match=f"{count} ids were given for 2 items"):
            collect.add_many([D1, D2], ids=["a"] * count)

    @pytest.mark.parametrize("id", ["", "x" * 256, "a\nb", 5])
    def test_id_that_no_store_keeps(self, app: Celery, id: Any) -> None:
        collect, _ = collector()
        with pytest.raises(InvalidMessage):
            collect.add(D1, id=id)

    def test_none_is_added_if_one_does_not_fit(self, new_app: NewApp) -> None:
        app = new_app(saga_max_state_bytes=1_000)
        collect, _ = collector(size=9, group_by="device")
        for wrong in ({"celsius": 5}, {"device": ""}, {"device": "x" * 1_000}, object()):
            with pytest.raises(InvalidMessage):
                collect.add_many([D1, wrong])

        assert counts(app).buffered == 0

    def test_full_buffer_says_what_was_refused(self, app: Celery) -> None:
        collect, _ = collector(size=None, within=60, max_buffered=2, group_by="device")
        collect.add(D1, id="a")
        with pytest.raises(BufferFull) as caught:
            collect.add_many([D1, D2, D1], ids=["b", "c", "d"])

        assert list(caught.value.refused) == ["b", "d"]
        assert (ids(app, "d1"), ids(app, "d2")) == (["a"], ["c"])
        assert collect.add_many([D1, D2], ids=["b", "c"]) == ["b", "c"]

    def test_broker_that_is_away(self, app: Celery, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        """The item is buffered: a relay asks for the flush later."""
        collect, _ = collector(size=1)
        app.finalize()
        monkeypatch.setattr(runtime_of(app).publisher, "publish_signature", broken)

        assert collect.add(D1, id="a") == "a"
        assert ids(app) == ["a"]
        assert "is asked for by a relay later" in caplog.text

    def test_broker_that_is_away_is_asked_once(self, app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
        """However many groups there are: who adds items does not wait for it again and again."""
        collect, _ = collector(size=1, group_by="device")
        app.finalize()
        asked: list[object] = []

        def away(sent: object) -> None:
            asked.append(sent)
            broken()

        monkeypatch.setattr(runtime_of(app).publisher, "publish_signature", away)
        collect.add_many([D1, D2, D3])

        assert (len(asked), collect.count()) == (1, 3)


def broken(*_: Any) -> None:
    """Refuse a message."""
    raise PublishError("away", True)


class Colour(Enum):
    """A colour."""

    RED = "red"


class TestLooking:
    """What is buffered, and changing it by hand."""

    ID = UUID("12345678-1234-5678-1234-567812345678")

    @pytest.mark.parametrize(
        ("group_by", "item", "group", "text"),
        [
            ("key", {"key": "a"}, "a", "a"),
            ("key", {"key": 5}, 5, "5"),
            ("key", {"key": str(ID)}, ID, str(ID)),
            ("key", {"key": "red"}, Colour.RED, "red"),
            ("key", {"key": "a"}, ("a",), "a"),
            (("shop", "key"), {"shop": "s", "key": 5}, ("s", 5), '["s","5"]'),
            (lambda item: item["key"] % 3, {"key": 5}, 2, "2"),
        ],
    )
    def test_of_a_group(self, app: Celery, group_by: Any, item: Any, group: Any, text: str) -> None:
        """It is named by the value by which its items are grouped."""
        collect, _ = collector(dict, size=9, group_by=group_by)
        collect.add(item, id="a")
        collect.add(item, id="b")
        assert ids(app, text) == ["a", "b"]

        assert (collect.count(group), collect.count("other")) == (2, 0)
        assert collect.read(group) == [item, item]
        assert collect.flush(group) == 1
        collect.remove("a", group)
        assert collect.clear(group) == 1
        assert collect.count() == 0

    def test_without_groups(self, app: Celery) -> None:
        collect, _ = collector(size=9)
        collect.add_many([D1, D2, D3], ids=["a", "b", "c"])

        assert (collect.count(), collect.count("")) == (3, 3)
        assert collect.read(limit=2) == [D1, D2]
        collect.remove("b")
        assert collect.read("") == [D1, D3]
        assert (collect.flush(), collect.flush("")) == (1, 1)
        assert collect.clear() == 2
        assert (collect.flush(), collect.clear(), collect.read()) == (0, 0, [])

    @pytest.mark.parametrize("limit", [0, -1])
    def test_limit_that_is_none(self, app: Celery, limit: int) -> None:
        collect, _ = collector(size=9)
        collect.add(D1)
        with pytest.raises(ValueError, match=f"limit={limit} is no positive number"):
            collect.read(limit=limit)

    def test_which_group_must_be_said(self, app: Celery) -> None:
        collect, _ = collector(group_by="device")
        collect.add(D1)
        for look in (collect.clear, lambda: collect.remove("a")):
            with pytest.raises(ValueError, match=r"shop\.collect has groups: name one"):
                look()

        assert collect.count() == 1

    @pytest.mark.parametrize("group", [True, 1.5, b"d1", ("a", None), "x" * 256])
    def test_group_that_is_none(self, app: Celery, group: Any) -> None:
        collect, _ = collector(group_by="device")
        with pytest.raises(ValueError, match="key"):
            collect.count(group)

    def test_flush_of_all_groups(self, app: Celery, worker: Worker) -> None:
        collect, collected = collector(size=9, group_by="device")
        collect.add_many([D1, D2, D1])

        assert collect.flush() == 2
        worker.run()
        assert sorted((batch.group, batch.reason, len(batch)) for batch in collected.batches) == [
            ("d1", "requested", 2),
            ("d2", "requested", 1),
        ]

    def test_facts_of_an_item(self, app: Celery) -> None:
        """The time is that of the store, in UTC."""
        collect, _ = collector(size=9)
        collect.add(D1, id="a")
        (listed,) = collect.items()
        (stored,) = runtime_of(app).batches.buffers.read("shop.collect", "", 9)

        assert listed.buffered_at.timestamp() * 1000 == pytest.approx(stored.at)
        assert listed.buffered_at.tzinfo is UTC
        assert (listed.group, listed.id, listed.state, listed.attempts, listed.item) == ("", "a", "free", 0, D1)
        assert (listed.payload, "celsius" in repr(listed)) == (stored.payload, False)

    def test_no_more_than_a_page_is_read_at_once(self, app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
        """However many items there are."""
        collect, _ = collector(int, size=10_000, group_by=lambda number: number % 2)
        collect.add_many(range(420))
        buffers, read = runtime_of(app).batches.buffers, []

        def counting(name: str, group: str, limit: int, after: int = 0) -> Any:
            read.append((group, limit))
            return MemoryBuffers.read(buffers, name, group, limit, after)

        monkeypatch.setattr(buffers, "read", counting)
        assert [each.item for each in collect.items()] == [*range(0, 420, 2), *range(1, 420, 2)]
        assert read == [("0", 100)] * 3 + [("1", 100)] * 3
        read.clear()
        assert collect.read(1, limit=3) == [1, 3, 5]
        assert read == [("1", 3)]

    def test_items_of_groups_that_the_code_has_no_more(self, app: Celery) -> None:
        """``group_by`` was removed: they are found and removed all the same."""
        collector(size=9, group_by="device")[0].add_many([D1, D2])
        collect, _ = collector(size=9)
        collect.add(D3)

        assert list(collect.groups()) == ["", "d1", "d2"]
        assert collect.read() == [D3, D1, D2]
        assert collect.flush() == 3
        assert collect.clear() == 1
        assert collect.clear_all() == 2
        assert collect.count() == 0

    def test_flush_without_a_broker_raises(self, app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
        collect, _ = collector(size=9)
        collect.add(D1)
        monkeypatch.setattr(runtime_of(app).publisher, "publish_signature", broken)

        with pytest.raises(PublishError):
            collect.flush()


class TestListing:
    """What is buffered, all of it or by group, on every store."""

    @pytest.fixture
    def app(self, stored_app: Celery) -> Celery:
        """An app on each store."""
        return stored_app

    def test_all_groups(self, app: Celery) -> None:
        """Each item comes with its group; a text that ``groups`` returns names the group elsewhere."""
        collect, _ = collector(dict, size=9, group_by=("shop", "key"))
        one, two, three = {"shop": "s", "key": 2}, {"shop": "s", "key": 1}, {"shop": "s", "key": 2, "more": None}
        collect.add_many([one, two, three], ids=["a", "b", "c"])
        groups = list(collect.groups())

        assert groups == ['["s","1"]', '["s","2"]']
        assert [(each.group, each.id, each.item) for each in collect.items()] == [
            (groups[0], "b", two),
            (groups[1], "a", one),
            (groups[1], "c", three),
        ]
        assert [collect.count(group) for group in groups] == [1, 2]
        assert collect.read() == [two, one, three]
        assert collect.read(limit=2) == [two, one]
        assert collect.read(groups[1]) == collect.read(("s", 2)) == [one, three]

    def test_nothing_buffered(self, app: Celery) -> None:
        collect, _ = collector(group_by="device")

        assert (list(collect.groups()), list(collect.items()), list(collect.items("d1"))) == ([], [], [])
        assert (collect.read(), collect.clear_all()) == ([], 0)

    def test_pages_of_groups_follow_each_other(self, app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(client, "_GROUPS", 2)
        collect, _ = collector(size=9, group_by="device")
        collect.add_many([D3, D1, D2, D1])

        assert list(collect.groups()) == ["d1", "d2", "d3"]
        assert collect.read() == [D1, D1, D2, D3]
        assert collect.flush() == 3
        assert (collect.clear_all(), collect.count()) == (4, 0)

    def test_what_cannot_be_read(self, app: Celery, worker: Worker) -> None:
        """It counts, is listed, and is never left out in silence; the error says why, and what of its type has refused it."""
        collect, _ = collector(size=9, group_by="device")
        collect.add(D1, id="a")
        app.send_task("shop.collect", ({"device": "d1", "celsius": "hot"},), headers={"saga_message_id": "b"})
        worker.run()
        collect.add(D1, id="c")
        listed = list(collect.items("d1"))

        assert (collect.count(), collect.read("d1", limit=1)) == (3, [D1])
        assert [(each.id, each.state) for each in listed] == [("a", "free"), ("b", "unresolved"), ("c", "free")]
        assert json.loads(listed[1].payload) == {"device": "d1", "celsius": "hot"}
        for look in (lambda: listed[1].item, lambda: collect.read("d1"), collect.read):
            with pytest.raises(UnreadableItem) as caught:
                look()
            error = caught.value
            assert (error.aggregator, error.group, error.id) == ("shop.collect", "d1", "b")
            assert [path for path, _ in error.problems] == ["celsius"]
            assert isinstance(error.__cause__, InvalidMessage)

    def test_remove(self, app: Celery) -> None:
        """What was removed by hand is remembered too."""
        collect, _ = collector(size=9)
        with pytest.raises(NothingBuffered):
            collect.remove("a")
        collect.add(D1, id="a")
        with pytest.raises(ItemNotBuffered):
            collect.remove("b")
        collect.remove("a")
        collect.add(D1, id="a")

        assert ids(app) == []


class TestRemoving:
    """By a correlation id, and all there is, on every store: several items may have the same id, in several groups."""

    @pytest.fixture
    def app(self, stored_app: Celery) -> Celery:
        """An app on each store."""
        return stored_app

    def test_clearing_all(self, app: Celery, worker: Worker) -> None:
        """Whatever their state; what was removed is remembered."""
        collect, _ = collector(size=9, group_by="device")
        app.send_task("shop.collect", ({"device": "d2", "celsius": "hot"},))
        worker.run()
        collect.add_many([D1, D2, D3, D3], ids=["a", "b", "c", "d"])

        assert collect.clear_all() == 5
        collect.add(D1, id="a")
        assert collect.count() == 0

    def test_all_that_have_a_correlation_id(self, app: Celery) -> None:
        """They are remembered, as what is removed by its id."""
        collect, _ = collector(Sold, size=9, group_by="device", correlate_by="order.id")
        collect.add_many([sold(1, "d1"), sold(2, "d1"), sold(1, "d2"), sold(1, "d1")], ids=["a", "b", "c", "d"])

        assert collect.remove_correlated(1) == 3
        collect.add_many([sold(1, "d1"), sold(1, "d3")], ids=["a", "e"])
        assert [each.id for each in collect.items()] == ["b", "e"]

    def test_those_of_one_group(self, app: Celery) -> None:
        collect, _ = collector(Sold, size=9, group_by="device", correlate_by="order.id")
        collect.add_many([sold(1, "d1"), sold(1, "d2")], ids=["a", "b"])

        assert collect.remove_correlated("1", group="d1") == 1
        assert [each.id for each in collect.items()] == ["b"]

    def test_item_that_a_flush_has_stays_with_it(self, app: Celery) -> None:
        collect, _ = collector(Sold, size=1, correlate_by="order.id")
        collect.add_many([sold(1), sold(1)], ids=["a", "b"])
        batches, rules = runtime_of(app).batches, Rules("shop.collect", size=1)
        assert batches.aggregates.claim(rules, "", "run") is not None

        assert collect.remove_correlated(1) == 1
        with pytest.raises(ItemNotBuffered, match="a flush has it now"):
            collect.remove_correlated(1)
        batches.aggregates.release(rules, "", "run")
        assert collect.remove_correlated(1) == 1

    def test_item_that_cannot_be_read_is_removed_if_its_json_says_the_id(self, app: Celery, worker: Worker) -> None:
        collect, _ = collector(Sold, size=9, correlate_by="order.id")
        app.send_task("shop.collect", ({"order": {"id": 1}, "device": 5},))
        worker.run()

        assert collect.remove_correlated(1) == 1


class TestRemovingByCorrelation:
    """What is not removed by it, and why, on every store."""

    @pytest.fixture
    def app(self, stored_app: Celery) -> Celery:
        """An app on each store."""
        return stored_app

    def test_nothing_at_all_and_nothing_that_matches(self, app: Celery) -> None:
        """Two errors of one base."""
        collect, _ = collector(Sold, size=9, group_by="device", correlate_by="order.id")
        with pytest.raises(NothingBuffered, match=r"^shop\.collect has nothing buffered"):
            collect.remove_correlated(1)
        collect.add_many([sold(1, "d1"), sold(None, "d1")])
        with pytest.raises(NothingBuffered, match="'d2'"):
            collect.remove_correlated(1, "d2")
        for group in (None, "d1"):
            with pytest.raises(ItemNotBuffered, match=r"has 2 items, and none with order\.id='2' that") as caught:
                collect.remove_correlated(2, group)
            assert (caught.value.group, caught.value.id, caught.value.correlate_by) == (group or "", "2", "order.id")
        assert issubclass(ItemNotBuffered, NotBuffered)
        assert issubclass(NothingBuffered, NotBuffered)

    @pytest.mark.parametrize("order", [None, 5, {}, {"id": None}, {"number": 1}])
    def test_item_of_which_nobody_knows_raises(self, app: Celery, worker: Worker, order: object) -> None:
        """It may be one of them: nothing is removed before that is known."""
        collect, _ = collector(Sold, size=9, correlate_by="order.id")
        collect.add(sold(1), id="a")
        app.send_task("shop.collect", ({"order": order, "device": 5},), headers={"saga_message_id": "b"})
        worker.run()

        with pytest.raises(UnreadableItem) as caught:
            collect.remove_correlated(1)
        assert caught.value.id == "b"
        collect.remove("b")
        assert collect.remove_correlated(1) == 1

    def test_item_that_is_no_json_raises(self, app: Celery) -> None:
        """As after a change by hand."""
        collect, _ = collector(Sold, size=9, correlate_by="order.id")
        collect.add(sold(1), id="a")
        backend_of(app).aggregates.insert(Rules("shop.collect", size=9), [Addition("", (NewItem("b", "[" * 9),))])

        with pytest.raises(UnreadableItem) as caught:
            collect.remove_correlated(1)
        assert (caught.value.id, collect.count()) == ("b", 2)

    @pytest.mark.parametrize("value", [None, True, 1.5, ""])
    def test_value_that_is_no_id(self, app: Celery, value: Any) -> None:
        collect, _ = collector(Sold, size=9, correlate_by="order.id")
        collect.add(sold(None))
        with pytest.raises(ValueError, match="key"):
            collect.remove_correlated(value)

    def test_aggregator_without_correlation(self, app: Celery) -> None:
        collect, _ = collector(size=9)
        with pytest.raises(MisuseError, match="correlate_by="):
            collect.remove_correlated(1)


class Ordered(Message):
    """An order, or none."""

    id: int | None


class Sold(Message):
    """An item that belongs to an order."""

    order: Ordered
    device: str = "d1"


def sold(order: int | None, device: str = "d1") -> Sold:
    """Return an item."""
    return Sold(order=Ordered(id=order), device=device)
