"""``AggregateStore.insert``: what is buffered and in which order, and which caller must ask for a flush."""

from celery_sagas.stores.items import Added, Addition, Item, NewItem
from celery_sagas.stores.ports import Backend
from celery_sagas.testing.batches import (
    CLOSED,
    HOURLY,
    IDLE,
    LEASE,
    NAME,
    PAIRS,
    add,
    buffered,
    due_at,
    flush,
    new_items,
    nothing_changed,
    numbered,
    states,
    taken_by,
    unresolved,
)
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import OpenBackend, StoreFixtures
from celery_sagas.testing.samples import HOUR, MINUTE


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


class AskingContract(StoreFixtures):
    """One caller is notified that the trigger has fired, and another if the first has died."""

    def test_item_that_fills_a_batch_fires_the_trigger(self, backend: Backend) -> None:
        assert not add(backend, PAIRS, "a").needs_flush
        assert add(backend, PAIRS, "b").needs_flush

    def test_nobody_else_asks_while_a_flush_is_to_come(self, backend: Backend, clock: Clock) -> None:
        assert add(backend, PAIRS, "a", "b").needs_flush
        clock.advance(LEASE - 1)
        assert not add(backend, PAIRS, "c", "d").needs_flush

    def test_next_insert_asks_if_the_flush_was_lost(self, backend: Backend, clock: Clock) -> None:
        """The flush request expires, since a message may be lost."""
        assert add(backend, PAIRS, "a", "b").needs_flush
        clock.advance(LEASE)
        assert add(backend, PAIRS, "c") == Added(1, needs_flush=True)
        assert add(backend, PAIRS, "d") == Added(1)

    def test_repeat_asks_if_the_first_to_ask_has_died(self, backend: Backend, clock: Clock) -> None:
        """The producer died between the insert and the message; its repeat adds nothing, and asks."""
        assert add(backend, PAIRS, "a", "b").needs_flush
        clock.advance(LEASE)
        assert add(backend, PAIRS, "a", "b") == Added(0, needs_flush=True)
        assert add(backend, PAIRS, "a", "b") == Added(0)

    def test_mark_lasts_as_long_as_the_rules_say(self, backend: Backend, clock: Clock) -> None:
        patient = PAIRS._replace(lease_ms=HOUR)
        assert add(backend, patient, "a", "b").needs_flush
        assert due_at(backend) == clock.now + HOUR
        clock.advance(HOUR - 1)
        assert not add(backend, patient, "c").needs_flush
        clock.advance(1)
        assert add(backend, patient, "d").needs_flush

    def test_claim_takes_the_mark_away(self, backend: Backend) -> None:
        """The flush has begun; the next batch needs a new request."""
        assert add(backend, PAIRS, "a", "b").needs_flush
        flush(backend, PAIRS)
        assert not add(backend, PAIRS, "c").needs_flush
        assert add(backend, PAIRS, "d").needs_flush

    def test_claim_while_the_trigger_has_not_fired_ends_the_flush_request(self, backend: Backend) -> None:
        assert add(backend, PAIRS, "a", "b").needs_flush
        backend.buffers.remove(PAIRS, "", "a")
        assert backend.aggregates.claim(PAIRS, "", "one") is None
        assert due_at(backend) == 0
        assert add(backend, PAIRS, "c").needs_flush

    def test_unresolved_items_do_not_fire_the_trigger(self, backend: Backend) -> None:
        """There are no empty flushes."""
        assert not add(backend, PAIRS, "a", "b", "c", is_unreadable=True).needs_flush
        assert not add(backend, PAIRS, "d").needs_flush
        assert add(backend, PAIRS, "e").needs_flush

    def test_unresolved_items_do_not_fire_the_trigger_by_time(self, backend: Backend, clock: Clock) -> None:
        timed = HOURLY._replace(idle_ms=HOUR)
        add(backend, timed, "a", is_unreadable=True)
        assert due_at(backend) == 0
        clock.advance(2 * HOUR)
        assert not add(backend, timed, "a").needs_flush
        assert taken_by(backend, timed) == []

    def test_unresolved_item_is_not_the_last_to_come(self, backend: Backend, clock: Clock) -> None:
        """It does not restart the idle time."""
        add(backend, IDLE, "a")
        clock.advance(HOUR - 1)
        add(backend, IDLE, "b", is_unreadable=True)
        clock.advance(1)
        assert add(backend, IDLE, "b", is_unreadable=True) == Added(0, needs_flush=True)

    def test_skipped_item_is_not_the_last_to_come(self, backend: Backend, clock: Clock) -> None:
        add(backend, IDLE, "a")
        clock.advance(HOUR - 1)
        add(backend, IDLE, "a")
        clock.advance(1)
        assert taken_by(backend, IDLE) == ["a"]

    def test_leased_items_do_not_fire_the_trigger(self, backend: Backend) -> None:
        add(backend, PAIRS, "a", "b")
        flush(backend, PAIRS)
        assert not add(backend, PAIRS, "c").needs_flush

    def test_insert_asks_if_the_oldest_has_waited_for_long_enough(self, backend: Backend, clock: Clock) -> None:
        assert not add(backend, HOURLY, "a").needs_flush
        clock.advance(HOUR - 1)
        assert not add(backend, HOURLY, "b").needs_flush
        clock.advance(1)
        assert add(backend, HOURLY, "c").needs_flush

    def test_each_item_puts_the_idle_time_off(self, backend: Backend, clock: Clock) -> None:
        for id in "abc":
            assert not add(backend, IDLE, id).needs_flush
            clock.advance(HOUR - 1)
        assert taken_by(backend, IDLE) == []
        clock.advance(1)
        assert taken_by(backend, IDLE) == ["a", "b", "c"]

    def test_trigger_without_a_condition_never_fires(self, backend: Backend, clock: Clock) -> None:
        add(backend, CLOSED, *"abc")
        clock.advance(1_000 * HOUR)
        assert not add(backend, CLOSED, "d").needs_flush
        assert backend.aggregates.claim_due([NAME], 9, LEASE) == []

    def test_each_group_has_a_mark_of_its_own(self, backend: Backend) -> None:
        assert add(backend, PAIRS, "a", "b", group="one").needs_flush
        assert add(backend, PAIRS, "a", "b", group="two").needs_flush
        assert add(backend, PAIRS._replace(name="other"), "a", "b", group="one").needs_flush

    def test_counting_changes_nothing(self, backend: Backend, clock: Clock) -> None:
        """A change would rotate the lease with each insert."""
        add(backend, PAIRS, *"ab")
        flush(backend, PAIRS)
        add(backend, PAIRS, "c")
        clock.advance(LEASE // 2)
        for id in "de":
            add(backend, PAIRS, id)
            assert backend.buffers.count(NAME).resolved == backend.buffers.count(NAME, "").buffered
        clock.advance(LEASE // 2 - 1)
        assert backend.buffers.groups(NAME, 9)[0].leased == 2
        assert backend.aggregates.remove(PAIRS, "", "one") is False


class LookingAgainContract(StoreFixtures):
    """An addition without items adds nothing; rules that were changed take effect."""

    def test_addition_without_items_adds_nothing(self, backend: Backend) -> None:
        """It adds no item, no group, no name."""
        assert add(backend, PAIRS) == Added(0)
        assert backend.buffers.groups(NAME, 9) == []
        assert backend.buffers.names() == []
        add(backend, PAIRS, "a")
        assert add(backend, PAIRS) == Added(0)
        assert buffered(backend) == ["a"]

    def test_trigger_is_looked_at_by_the_rules_of_the_addition(self, backend: Backend) -> None:
        """One caller is notified, as by any other addition."""
        add(backend, PAIRS._replace(size=3), "a", "b")
        assert add(backend, PAIRS) == Added(0, needs_flush=True)
        assert due_at(backend) > 0
        assert add(backend, PAIRS) == Added(0)

    def test_due_time_is_set_by_the_rules_of_the_addition(self, backend: Backend, clock: Clock) -> None:
        """The group is due sooner, later, or never."""
        start = clock.now
        add(backend, HOURLY, "a")
        clock.advance(1_000)
        due: list[int] = []
        for rules in (HOURLY._replace(within_ms=MINUTE), HOURLY._replace(within_ms=2 * HOUR), IDLE, CLOSED):
            add(backend, rules)
            due.append(due_at(backend))
        assert due == [start + MINUTE, start + 2 * HOUR, start + HOUR, 0]
        add(backend, HOURLY)
        clock.advance(HOUR)
        assert len(backend.aggregates.claim_due([NAME], 9, LEASE)) == 1

    def test_due_time_is_set_by_the_rules_of_the_item_that_joins(self, backend: Backend, clock: Clock) -> None:
        start = clock.now
        add(backend, HOURLY, "a")
        clock.advance(1_000)
        due: list[int] = []
        for rules in (HOURLY._replace(within_ms=MINUTE), HOURLY._replace(within_ms=2 * HOUR), IDLE, CLOSED):
            add(backend, rules, f"item {len(due)}")
            due.append(due_at(backend))
        assert due == [start + MINUTE, start + 2 * HOUR, clock.now + HOUR, 0]

    def test_item_that_joins_is_the_last_to_come(self, backend: Backend, clock: Clock) -> None:
        """It counts as the last for rules that did not hold when it came, too."""
        add(backend, CLOSED, "a")
        clock.advance(MINUTE)
        add(backend, CLOSED, "b")
        add(backend, IDLE)
        assert due_at(backend) == clock.now + HOUR

    def test_caller_is_notified_of_a_trigger_that_time_has_fired_by_new_rules(self, backend: Backend, clock: Clock) -> None:
        add(backend, CLOSED, "a")
        clock.advance(HOUR)
        assert add(backend, HOURLY) == Added(0, needs_flush=True)
        assert due_at(backend) == clock.now + LEASE

    def test_addition_without_items_is_not_the_last_to_come(self, backend: Backend, clock: Clock) -> None:
        """It does not restart the idle time."""
        start = clock.now
        add(backend, IDLE, "a")
        clock.advance(MINUTE)
        add(backend, IDLE)
        assert due_at(backend) == start + HOUR

    def test_addition_without_items_is_never_too_much(self, backend: Backend) -> None:
        """There are more items than the new rules allow."""
        add(backend, PAIRS._replace(size=9), *"abc")
        assert add(backend, PAIRS._replace(max_buffered=2)) == Added(0, needs_flush=True)

    def test_mark_of_another_lasts(self, backend: Backend, clock: Clock) -> None:
        add(backend, PAIRS, "a", "b")
        until = clock.now + LEASE
        clock.advance(1_000)
        assert add(backend, PAIRS._replace(lease_ms=HOUR)) == Added(0)
        assert due_at(backend) == until

    def test_leases_last(self, backend: Backend, clock: Clock) -> None:
        """One that has ended is not given up, either."""
        add(backend, PAIRS, *"ab")
        flush(backend, PAIRS)
        clock.advance(LEASE)
        assert add(backend, PAIRS) == Added(0)
        assert backend.aggregates.remove(PAIRS, "", "one") is False
        assert buffered(backend) == []

    def test_additions_with_and_without_items_come_together(self, backend: Backend) -> None:
        """Each has its own answer."""
        add(backend, CLOSED, "a", "b", group="two")
        groups = (("one", "ab"), ("two", ""), ("three", ""), ("one", ""), ("four", "c"))
        added = backend.aggregates.insert(PAIRS, [Addition(group, new_items(ids)) for group, ids in groups])
        assert added == [Added(2, needs_flush=True), Added(0, needs_flush=True), Added(0), Added(0), Added(1)]
        assert [each.group for each in backend.buffers.groups(NAME, 9)] == ["four", "one", "two"]
