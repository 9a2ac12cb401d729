"""``AggregateStore.insert``: what is buffered, and in which order."""

from celery_sagas.stores.items import Added, Addition, Item, NewItem
from celery_sagas.stores.ports import Backend
from celery_sagas.testing.batches import (
    CLOSED,
    NAME,
    PAIRS,
    add,
    buffered,
    flush,
    new_items,
    nothing_changed,
    numbered,
    states,
    unresolved,
)
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import OpenBackend, StoreFixtures
from celery_sagas.testing.samples import HOUR


class BufferingContract(StoreFixtures):
    """Items come into a buffer."""

    def test_item_is_buffered_as_it_was_inserted(self, backend: Backend, clock: Clock) -> None:
        backend.aggregates.insert(CLOSED, [Addition("", (NewItem("item", '{"a": 1}'),))])
        [item] = backend.buffers.read(NAME, "", 9)
        assert item == Item(item.number, "item", '{"a": 1}', at=clock.now, attempts=0, state="free")
        assert item.number > 0

    def test_insert_says_how_many_items_are_new(self, backend: Backend) -> None:
        assert add(backend, CLOSED, "a", "b") == Added(2, needs_flush=False, is_full=False)

    def test_items_of_one_call_keep_their_order(self, backend: Backend) -> None:
        ids = [*reversed(numbered(12)), *numbered(12, "more")]
        add(backend, CLOSED, *ids)
        assert buffered(backend) == ids

    def test_order_is_that_of_the_calls_whatever_the_clock_says(self, backend: Backend, clock: Clock) -> None:
        """Clocks are set back."""
        for id in ("c", "a", "d", "b"):
            add(backend, CLOSED, id)
            clock.advance(-HOUR if id == "a" else 0)
        assert buffered(backend) == ["c", "a", "d", "b"]

    def test_numbers_grow_across_additions_and_processes(self, backend: Backend, open_backend: OpenBackend, prefix: str) -> None:
        for number, worker in enumerate((backend, open_backend(prefix), backend)):
            worker.aggregates.insert(CLOSED, [Addition("", new_items((f"{number}a", f"{number}b")))])
        numbers = [item.number for item in backend.buffers.read(NAME, "", 9)]
        assert numbers == sorted(set(numbers))
        assert buffered(backend) == ["0a", "0b", "1a", "1b", "2a", "2b"]

    def test_what_one_process_inserts_another_sees(self, backend: Backend, open_backend: OpenBackend, prefix: str) -> None:
        """The insert is committed when it returns."""
        add(backend, CLOSED, "item")
        assert open_backend(prefix).buffers.read(NAME, "", 9) == backend.buffers.read(NAME, "", 9)

    def test_several_additions_are_answered_each(self, backend: Backend) -> None:
        """The answers come in the order of the additions."""
        additions = [Addition(group, new_items(ids)) for group, ids in (("b", "12"), ("a", "1"), ("", "345"))]
        assert backend.aggregates.insert(PAIRS, additions) == [Added(2, needs_flush=True), Added(1), Added(3, needs_flush=True)]
        assert [buffered(backend, group) for group in ("b", "a", "")] == [["1", "2"], ["1"], ["3", "4", "5"]]

    def test_two_additions_to_one_group_follow_each_other(self, backend: Backend) -> None:
        """The second finds what the first has left."""
        additions = [Addition("", new_items("ab")), Addition("", new_items("bc"))]
        assert backend.aggregates.insert(PAIRS, additions) == [Added(2, needs_flush=True), Added(1)]
        assert buffered(backend) == ["a", "b", "c"]

    def test_nothing_to_insert_is_no_error(self, backend: Backend) -> None:
        """It leaves nothing."""
        assert backend.aggregates.insert(CLOSED, []) == []
        assert backend.aggregates.insert(CLOSED, [Addition("group", ())]) == [Added(0)]
        assert backend.buffers.groups(NAME, 9) == []

    def test_nothing_to_insert_leaves_a_group_as_it_is(self, backend: Backend) -> None:
        add(backend, CLOSED, "a")
        with nothing_changed(backend):
            assert add(backend, CLOSED) == Added(0)

    def test_three_thousand_items_of_one_call_are_buffered(self, backend: Backend) -> None:
        ids = numbered(3_000)
        assert add(backend, PAIRS, *ids) == Added(3_000, needs_flush=True)
        assert buffered(backend) == ids
        assert add(backend, PAIRS, *ids) == Added(0)

    def test_three_hundred_groups_of_one_call_are_buffered(self, backend: Backend) -> None:
        additions = [Addition(group, new_items(numbered(3, group))) for group in numbered(300, "group")]
        assert backend.aggregates.insert(CLOSED, additions) == [Added(3)] * 300
        assert [group.group for group in backend.buffers.groups(NAME, 1_000)] == sorted(numbered(300, "group"))
        assert buffered(backend, "group 299") == ["group 299 0", "group 299 1", "group 299 2"]

    def test_groups_and_aggregators_do_not_see_each_other(self, backend: Backend) -> None:
        """The name partitions every operation."""
        other = PAIRS._replace(name="other")
        assert not add(backend, PAIRS, "a").needs_flush
        assert not add(backend, PAIRS, "b", group="group").needs_flush
        assert not add(backend, other, "c").needs_flush
        assert [buffered(backend), buffered(backend, "group"), buffered(backend, name="other")] == [["a"], ["b"], ["c"]]

    def test_items_of_equal_content_are_items_of_their_own(self, backend: Backend) -> None:
        """An item's id is no correlation id."""
        payload = '{"order_id": "42"}'
        items = (NewItem("1", payload), NewItem("2", payload))
        assert backend.aggregates.insert(PAIRS, [Addition("", items)]) == [Added(2, needs_flush=True)]
        assert [(item.id, item.payload) for item in flush(backend, PAIRS).items] == [("1", payload), ("2", payload)]

    def test_item_that_could_not_be_read_is_unresolved(self, backend: Backend) -> None:
        """It is kept, and is no error."""
        assert add(backend, CLOSED, "unread", is_unreadable=True) == Added(1)
        add(backend, CLOSED, "read")
        assert states(backend) == {"unread": "unresolved", "read": "free"}
        assert unresolved(backend) == [("", "unread")]

    def test_item_of_a_hundred_kilobytes_is_kept(self, backend: Backend) -> None:
        payload = '"' + "é" * 50_000 + '"'
        backend.aggregates.insert(PAIRS, [Addition("", (NewItem("a", payload), NewItem("b", payload)))])
        assert [item.payload for item in flush(backend, PAIRS).items] == [payload, payload]
        assert [item.payload for item in backend.buffers.read(NAME, "", 9)] == [payload, payload]
