"""``Buffers.unresolved`` and ``AggregateStore.resolve``: items that could not be read, and can be."""

from celery_sagas.stores.items import Added, Counts, Item
from celery_sagas.stores.ports import Backend
from celery_sagas.testing.batches import (
    CLOSED,
    HOURLY,
    LEASE,
    NAME,
    PAIRS,
    add,
    attempts,
    buffered,
    due_at,
    flush,
    ids_of,
    nothing_changed,
    numbered,
    numbers_of,
    resolve,
    states,
    unresolved,
)
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import StoreFixtures
from celery_sagas.testing.samples import HOUR, MINUTE


class UnresolvedContract(StoreFixtures):
    """Unresolved items are listed."""

    def test_nothing_is_unresolved_where_nothing_is(self, backend: Backend) -> None:
        add(backend, CLOSED, "a")
        assert backend.buffers.unresolved(NAME, 9) == []
        assert backend.buffers.unresolved("other", 9) == []

    def test_each_aggregator_is_listed_for_itself(self, backend: Backend) -> None:
        add(backend, CLOSED, "a", group="group", is_unreadable=True)
        add(backend, CLOSED._replace(name="other"), "b", is_unreadable=True)
        [(group, item)] = backend.buffers.unresolved(NAME, 9)
        assert (group, [item]) == ("group", backend.buffers.read(NAME, "group", 9))
        assert item.state == "unresolved"

    def test_items_of_a_group_follow_each_other_in_the_order_of_insertion(self, backend: Backend) -> None:
        add(backend, PAIRS, "a", "b", group="one")
        add(backend, PAIRS, "c", group="two", is_unreadable=True)
        add(backend, PAIRS, "d", group="one", is_unreadable=True)
        items = flush(backend, PAIRS, group="one").items
        backend.aggregates.remove(PAIRS, "one", "one", unreadable=numbers_of(*items))
        found = unresolved(backend)
        assert [id for group, id in found if group == "one"] == ["a", "b", "d"]
        assert found.index(("two", "c")) in (0, 3)

    def test_failed_attempts_are_told(self, backend: Backend) -> None:
        add(backend, PAIRS, "a", "b")
        flush(backend, PAIRS, "one")
        backend.aggregates.release(PAIRS, "", "one")
        [first, _] = flush(backend, PAIRS, "two").items
        backend.aggregates.remove(PAIRS, "", "two", unreadable=numbers_of(first))
        assert [item.attempts for _, item in backend.buffers.unresolved(NAME, 9)] == [1]

    def test_pages_follow_each_other(self, backend: Backend) -> None:
        """They divide groups, too."""
        for group in numbered(5, "group"):
            add(backend, CLOSED, *numbered(3, group), group=group, is_unreadable=True)
        pages = _pages(backend, 4)
        assert [len(page) for page in pages] == [4, 4, 4, 3, 0]
        listed = [each for page in pages for each in page]
        assert listed == backend.buffers.unresolved(NAME, 99)
        assert sorted(item.id for _, item in listed) == sorted(id for group in numbered(5, "group") for id in numbered(3, group))

    def test_page_follows_an_item_that_is_gone(self, backend: Backend) -> None:
        """The caller may resolve, or remove, items between two pages."""
        add(backend, CLOSED, *"abcd", is_unreadable=True)
        _, (group, second), *_ = backend.buffers.unresolved(NAME, 9)
        backend.buffers.remove(CLOSED, "", "a")
        backend.aggregates.resolve(CLOSED, "", [second.number])
        assert ids_of([item for _, item in backend.buffers.unresolved(NAME, 9, (group, second.number))]) == ["c", "d"]

    def test_hundreds_of_items_are_listed_beside_others(self, backend: Backend) -> None:
        add(backend, CLOSED, *numbered(500))
        add(backend, CLOSED, *numbered(300, "unread"), is_unreadable=True)
        assert unresolved(backend) == [("", id) for id in numbered(300, "unread")]


class ResolvingContract(StoreFixtures):
    """They come back when they can be read."""

    def test_item_comes_back_where_it_stood(self, backend: Backend) -> None:
        add(backend, PAIRS, *"abcd")
        before = backend.buffers.read(NAME, "", 9)
        items = flush(backend, PAIRS).items
        backend.aggregates.release(PAIRS, "", "one", unreadable=numbers_of(items[1]), counted=False)
        assert resolve(backend, PAIRS) == 1
        assert backend.buffers.read(NAME, "", 9) == before
        assert unresolved(backend) == []
        assert backend.buffers.count(NAME) == Counts(1, 4, 0)

    def test_item_comes_back_with_no_attempt(self, backend: Backend) -> None:
        """The cause of its failure was fixed."""
        add(backend, PAIRS, "a", "b")
        flush(backend, PAIRS, "one")
        backend.aggregates.release(PAIRS, "", "one")
        items = flush(backend, PAIRS, "two").items
        backend.aggregates.remove(PAIRS, "", "two", unreadable=numbers_of(*items))
        resolve(backend, PAIRS)
        assert attempts(backend) == {"a": 0, "b": 0}
        assert [item.attempts for item in flush(backend, PAIRS, "three").items] == [0, 0]

    def test_trigger_has_fired_for_what_is_back(self, backend: Backend) -> None:
        """It has waited for long enough."""
        add(backend, CLOSED, "a", is_unreadable=True)
        resolve(backend, CLOSED)
        snapshot = flush(backend, CLOSED)
        assert (ids_of(snapshot.items), snapshot.reason) == (["a"], "again")

    def test_group_is_due_at_once(self, backend: Backend, clock: Clock) -> None:
        """A requested flush does not delay it."""
        add(backend, CLOSED, "a", is_unreadable=True)
        clock.advance(MINUTE)
        add(backend, PAIRS, "b", "c")
        assert due_at(backend) == clock.now + LEASE
        resolve(backend, PAIRS)
        assert 0 < due_at(backend) <= clock.now
        assert len(backend.aggregates.claim_due([NAME], 9, LEASE)) == 1

    def test_only_unresolved_items_of_the_group_are_changed(self, backend: Backend) -> None:
        add(backend, PAIRS, *"abc")
        add(backend, PAIRS, "d", is_unreadable=True)
        add(backend, PAIRS, "d", group="other", is_unreadable=True)
        flush(backend, PAIRS)
        numbers = numbers_of(*_items(backend, ""), *_items(backend, "other"))
        with nothing_changed(backend):
            assert backend.aggregates.resolve(PAIRS, "no such group", numbers) == 0
            assert backend.aggregates.resolve(PAIRS._replace(name="other"), "", numbers) == 0
            assert backend.aggregates.resolve(PAIRS, "", []) == 0
        assert backend.aggregates.resolve(PAIRS, "", [*_own_numbers(backend, ""), 999_999_999]) == 1
        assert states(backend) == {"a": "leased", "b": "leased", "c": "free", "d": "free"}
        assert unresolved(backend) == [("other", "d")]

    def test_removing_an_unresolved_item_leaves_the_others(self, backend: Backend, clock: Clock) -> None:
        """It leaves the due time right."""
        add(backend, HOURLY, "a")
        clock.advance(MINUTE)
        add(backend, HOURLY, "b", is_unreadable=True)
        backend.buffers.remove(HOURLY, "", "b", unresolved=True)
        assert states(backend) == {"a": "free"}
        assert due_at(backend) == clock.now - MINUTE + HOUR

    def test_item_that_is_back_is_unresolved_again_if_another_cannot_read_it(self, backend: Backend) -> None:
        add(backend, PAIRS, "a", is_unreadable=True)
        resolve(backend, PAIRS)
        backend.aggregates.remove(PAIRS, "", "one", unreadable=numbers_of(*flush(backend, PAIRS).items))
        assert (unresolved(backend), due_at(backend)) == ([("", "a")], 0)
        assert add(backend, PAIRS, "b") == Added(1)

    def test_a_thousand_items_come_back_at_once(self, backend: Backend) -> None:
        add(backend, CLOSED, *numbered(2_000), is_unreadable=True)
        assert backend.aggregates.resolve(CLOSED, "", _own_numbers(backend, "")[::2]) == 1_000
        assert backend.buffers.count(NAME) == Counts(1, 2_000, 1_000)
        assert buffered(backend) == numbered(2_000)


def _pages(backend: Backend, limit: int) -> list[list[tuple[str, Item]]]:
    pages = [backend.buffers.unresolved(NAME, limit)]
    while pages[-1]:
        group, last = pages[-1][-1]
        pages.append(backend.buffers.unresolved(NAME, limit, (group, last.number)))
    return pages


def _items(backend: Backend, group: str) -> list[Item]:
    return backend.buffers.read(NAME, group, 10_000)


def _own_numbers(backend: Backend, group: str) -> list[int]:
    return numbers_of(*_items(backend, group))
