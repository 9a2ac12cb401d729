"""``AggregateStore.resolve`` and ``restore``: items that could not be read, and rejected ones, come back."""

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
    dead_letters_of,
    due_at,
    flush,
    ids_of,
    nothing_changed,
    numbered,
    numbers_of,
    reject,
    resolve,
    states,
    taken_by,
    unresolved,
)
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import StoreFixtures
from celery_sagas.testing.samples import HOUR, MINUTE, dead_letter


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


def _items(backend: Backend, group: str) -> list[Item]:
    return backend.buffers.read(NAME, group, 10_000)


def _own_numbers(backend: Backend, group: str) -> list[int]:
    return numbers_of(*_items(backend, group))


class RestoringContract(StoreFixtures):
    """A dead letter is an item again."""

    def test_rejected_item_comes_back_where_it_stood(self, backend: Backend) -> None:
        add(backend, PAIRS, *"abcd")
        before = backend.buffers.read(NAME, "", 9)
        [rejected] = dead_letters_of(flush(backend, PAIRS).items[1])
        backend.aggregates.release(PAIRS, "", "one", rejected=[rejected], counted=False)
        assert backend.aggregates.restore(PAIRS, rejected)
        assert backend.buffers.read(NAME, "", 9) == before
        assert backend.dead.list(9) == []

    def test_rejected_item_comes_back_with_no_attempt(self, backend: Backend) -> None:
        """The cause of its failure was fixed."""
        add(backend, PAIRS, "a", "b")
        flush(backend, PAIRS, "one")
        backend.aggregates.release(PAIRS, "", "one")
        dead_letters = dead_letters_of(*flush(backend, PAIRS, "two").items)
        backend.aggregates.remove(PAIRS, "", "two", rejected=dead_letters)
        for each in dead_letters:
            assert backend.aggregates.restore(PAIRS, each)
        assert attempts(backend) == {"a": 0, "b": 0}
        assert [item.attempts for item in flush(backend, PAIRS, "three").items] == [0, 0]

    def test_trigger_has_fired_for_a_rejected_item_that_is_back(self, backend: Backend) -> None:
        """It has waited for long enough."""
        [rejected, _] = reject(backend, "a", "b")
        backend.aggregates.restore(CLOSED, rejected)
        snapshot = flush(backend, CLOSED)
        assert (ids_of(snapshot.items), snapshot.reason) == (["a"], "again")

    def test_group_of_a_rejected_item_that_is_back_is_due_at_once(self, backend: Backend, clock: Clock) -> None:
        """A requested flush does not delay it."""
        [rejected] = reject(backend, "a")
        add(backend, PAIRS, "b", "c")
        assert due_at(backend) == clock.now + LEASE
        backend.aggregates.restore(PAIRS, rejected)
        assert 0 < due_at(backend) <= clock.now
        assert add(backend, PAIRS, "b") == Added(0, needs_flush=True)

    def test_group_is_made_anew(self, backend: Backend, clock: Clock) -> None:
        """No time of the former group counts."""
        [rejected] = reject(backend, "a", group="group")
        assert backend.buffers.groups(NAME, 9) == []
        clock.advance(HOUR)
        assert backend.aggregates.restore(HOURLY, rejected)
        [item] = backend.buffers.read(NAME, "group", 9)
        assert (item.id, item.payload, item.at, item.state) == ("a", rejected.payload, clock.now - HOUR, "free")
        assert [due.group for due in backend.aggregates.claim_due([NAME], 9, LEASE)] == ["group"]
        assert taken_by(backend, HOURLY, group="group") == ["a"]
        backend.aggregates.remove(HOURLY, "group", "one")
        assert backend.buffers.groups(NAME, 9) == []

    def test_item_is_back_whatever_the_buffer_may_hold(self, backend: Backend) -> None:
        [rejected] = reject(backend, "a")
        bounded = PAIRS._replace(max_buffered=2)
        add(backend, bounded, "b", "c")
        assert backend.aggregates.restore(bounded, rejected)
        assert buffered(backend) == ["a", "b", "c"]
        assert add(backend, bounded, "d") == Added(0, is_full=True)

    def test_item_is_back_although_its_id_is_remembered(self, backend: Backend, clock: Clock) -> None:
        remembering = PAIRS._replace(remember_ms=HOUR)
        add(backend, remembering, "a", "b")
        dead_letters = dead_letters_of(*flush(backend, remembering).items)
        backend.aggregates.remove(remembering, "", "one", rejected=dead_letters)
        assert backend.aggregates.restore(remembering, dead_letters[0])
        assert add(backend, remembering, "a", "b").added == 0
        assert taken_by(backend, remembering, "two") == ["a"]
        backend.aggregates.remove(remembering, "", "two")
        clock.advance(MINUTE)
        assert add(backend, remembering, "a") == Added(0)

    def test_item_that_is_buffered_again_stays_a_dead_letter(self, backend: Backend) -> None:
        """Its message was delivered again, after its id was forgotten."""
        [rejected] = reject(backend, "a")
        add(backend, CLOSED, "a", "b")
        with nothing_changed(backend):
            assert not backend.aggregates.restore(CLOSED, rejected)
        backend.buffers.remove(CLOSED, "", "a")
        assert backend.aggregates.restore(CLOSED, rejected)
        assert buffered(backend) == ["a", "b"]

    def test_item_that_is_unresolved_or_leased_stays_a_dead_letter(self, backend: Backend) -> None:
        [first, second] = reject(backend, "a", "b")
        add(backend, CLOSED, "a", is_unreadable=True)
        add(backend, PAIRS, "b", "c")
        flush(backend, PAIRS)
        with nothing_changed(backend):
            assert not backend.aggregates.restore(CLOSED, first)
            assert not backend.aggregates.restore(CLOSED, second)

    def test_of_one_id_that_was_rejected_twice_one_comes_back(self, backend: Backend) -> None:
        [first], [second] = reject(backend, "a", run="one"), reject(backend, "a", run="two")
        assert backend.aggregates.restore(CLOSED, first)
        assert not backend.aggregates.restore(CLOSED, second)
        assert buffered(backend) == ["a"]
        assert [left.id for left in backend.dead.list(9)] == [second.id]

    def test_item_that_is_back_may_be_rejected_again(self, backend: Backend) -> None:
        """It has the same dead letter then."""
        [rejected] = reject(backend, "a")
        backend.aggregates.restore(PAIRS, rejected)
        backend.aggregates.remove(PAIRS, "", "one", rejected=dead_letters_of(*flush(backend, PAIRS).items))
        assert [left.id for left in backend.dead.list(9)] == [rejected.id]
        assert backend.aggregates.restore(PAIRS, rejected)
        assert states(backend) == {"a": "free"}

    def test_dead_letter_is_restored_once(self, backend: Backend) -> None:
        [rejected, discarded] = reject(backend, "a", "b")
        assert backend.aggregates.restore(PAIRS, rejected)
        assert backend.dead.remove(discarded.id)
        with nothing_changed(backend):
            assert not backend.aggregates.restore(PAIRS, rejected)
            assert not backend.aggregates.restore(PAIRS, discarded)
        assert buffered(backend) == ["a"]

    def test_restored_item_of_a_group_that_is_gone_leaves_nothing(self, backend: Backend) -> None:
        [rejected] = reject(backend, "a", group="group")
        backend.dead.remove(rejected.id)
        assert not backend.aggregates.restore(PAIRS, rejected)
        assert backend.buffers.groups(NAME, 9) == []

    def test_dead_letters_of_items_and_of_messages_are_one_list(self, backend: Backend, clock: Clock) -> None:
        """Whatever their kinds and groups, they come in the order of their times, page by page."""
        added: list[str] = []
        for number, group in enumerate(numbered(12, "group")):
            message = dead_letter()
            backend.dead.add(message)
            [rejected] = reject(backend, "a", group=group)
            added += [message.id, rejected.id]
            clock.advance(number % 2)
        pages = [backend.dead.list(5)]
        while pages[-1]:
            pages.append(backend.dead.list(5, before=pages[-1][-1].id))
        listed = [each for page in pages for each in page]
        assert listed == backend.dead.list(99)
        assert sorted(each.id for each in listed) == sorted(added)
        assert [each.at for each in listed] == sorted((each.at for each in listed), reverse=True)
        assert backend.dead.count() == 24
        assert [backend.dead.get(each.id) for each in listed] == listed
        assert all(backend.dead.remove(each.id) for each in listed)
        assert backend.dead.count() == 0
