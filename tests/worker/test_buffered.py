"""An aggregator's buffer as programs use it: past the broker, from any process."""

from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from celery import Celery

from celery_sagas.errors import BufferFull, InvalidMessage, ItemNotBuffered, NothingBuffered, PublishError
from celery_sagas.worker.runtime import runtime_of
from tests.apps import NewApp, Worker
from tests.worker.collectors import Reading, aggregators, collector, counts, ids

__all__ = ["aggregators"]

D1, D2, D3 = (Reading(device=f"d{number}") for number in (1, 2, 3))


class TestAdd:
    """Past the broker."""

    def test_returns_the_id(self, app: Celery) -> None:
        collect, _ = collector()
        given, made = collect.add(D1, id="mqtt-7"), collect.add(D2)

        assert given == "mqtt-7"
        assert UUID(made)
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
        for look in (collect.read, collect.clear, lambda: collect.remove("a")):
            with pytest.raises(ValueError, match=r"shop\.collect has groups: name one"):
                look()

        assert collect.count() == 1

    @pytest.mark.parametrize("group", [True, 1.5, b"d1", ("a", None), "x" * 256])
    def test_group_that_is_none(self, app: Celery, group: Any) -> None:
        collect, _ = collector(group_by="device")
        with pytest.raises(ValueError, match="key"):
            collect.count(group)

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

    def test_what_cannot_be_read_is_left_out(self, app: Celery, worker: Worker) -> None:
        """It counts all the same."""
        collect, _ = collector(size=9)
        collect.add(D1)
        app.send_task("shop.collect", ({"device": "d2", "celsius": "hot"},))
        worker.run()

        assert (collect.count(), collect.read()) == (2, [D1])

    def test_flush_of_all_groups(self, app: Celery, worker: Worker) -> None:
        collect, collected = collector(size=9, group_by="device")
        collect.add_many([D1, D2, D1])

        assert collect.flush() == 2
        worker.run()
        assert sorted((batch.group, batch.reason, len(batch)) for batch in collected.batches) == [
            ("d1", "asked", 2),
            ("d2", "asked", 1),
        ]

    def test_flush_without_a_broker_raises(self, app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
        collect, _ = collector(size=9)
        collect.add(D1)
        monkeypatch.setattr(runtime_of(app).publisher, "publish_signature", broken)

        with pytest.raises(PublishError):
            collect.flush()
