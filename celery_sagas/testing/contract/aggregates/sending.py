"""``AggregateStore.remove`` that sends something."""

import pytest

from celery_sagas.stores.aggregates import can_send
from celery_sagas.stores.items import Rules
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import OutboxRow
from celery_sagas.testing.batches import (
    LEASE,
    NAME,
    PAIRS,
    RUN,
    add,
    buffered,
    dead_letters_of,
    flush,
    lease_lost,
    nothing_changed,
    numbered,
    numbers_of,
    sends_of,
    states,
)
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import OpenBackend, StoreFixtures
from celery_sagas.testing.samples import HOUR, MINUTE, claim, entry, ids

#: The lease token of the process that removes.
OWNER = "owner"


class SendingContract(StoreFixtures):
    """What a removal sends is sent if its items are removed, and not otherwise."""

    @pytest.fixture
    def sending(self, backend: Backend, aggregators: None) -> Backend:
        """The backend, unless its removals send nothing."""
        if not can_send(backend.aggregates):
            pytest.skip("what this backend removes sends nothing")
        return backend

    def test_rows_are_written_with_the_removal(self, sending: Backend) -> None:
        """They belong to no instance; the aggregator and the run have decided them."""
        add(sending, PAIRS, "a", "b", group="group")
        flush(sending, PAIRS, group="group")
        sends = sends_of(sending, "one", "two", group="group")
        sending.aggregates.remove(PAIRS, "group", RUN, sends=sends)
        assert buffered(sending, "group") == []
        assert claim(sending) == [OutboxRow(*row, 0, "", NAME, RUN) for row in sends.outgoing]

    def test_removal_is_committed_with_its_rows_before_it_returns(
        self, sending: Backend, open_backend: OpenBackend, prefix: str
    ) -> None:
        add(sending, PAIRS, "a", "b")
        flush(sending, PAIRS)
        sends = sends_of(sending, "one")
        sending.aggregates.remove(PAIRS, "", RUN, sends=sends)
        assert ids(claim(open_backend(prefix))) == ids(sends.outgoing)

    def test_rows_are_under_the_lease_of_the_process_that_removes(self, sending: Backend, clock: Clock) -> None:
        """It alone publishes them, for as long as its grace lasts."""
        add(sending, PAIRS, "a", "b")
        flush(sending, PAIRS)
        sends = sends_of(sending, "one", "two")._replace(owner=OWNER, grace_ms=1_000)
        sending.aggregates.remove(PAIRS, "", RUN, sends=sends)
        clock.advance(999)
        assert claim(sending) == []
        assert sending.outbox.confirm("another", [sends.outgoing[0].id]) == 0
        assert sending.outbox.confirm(OWNER, [sends.outgoing[0].id]) == 1
        clock.advance(2)
        assert ids(claim(sending)) == [sends.outgoing[1].id]

    def test_row_with_a_due_time_is_due_when_that_has_come(self, sending: Backend, clock: Clock) -> None:
        """It is under no lease."""
        add(sending, PAIRS, "a", "b")
        flush(sending, PAIRS)
        sends = sends_of(sending, "one", due_at=clock.now + MINUTE)._replace(owner=OWNER, grace_ms=HOUR)
        sending.aggregates.remove(PAIRS, "", RUN, sends=sends)
        clock.advance(MINUTE - 1)
        assert claim(sending) == []
        clock.advance(2)
        assert ids(claim(sending)) == ids(sends.outgoing)

    def test_rows_come_in_the_order_in_which_they_were_sent(self, sending: Backend) -> None:
        add(sending, PAIRS, "a", "b")
        flush(sending, PAIRS)
        sends = sends_of(sending, *numbered(30))
        sending.aggregates.remove(PAIRS, "", RUN, sends=sends)
        assert [row.message_id for row in claim(sending)] == numbered(30)

    def test_lease_that_was_given_up_sends_nothing(self, sending: Backend, clock: Clock) -> None:
        """Another has the items now, and sends what it sends."""
        add(sending, PAIRS, "a", "b")
        flush(sending, PAIRS, "one")
        clock.advance(LEASE)
        flush(sending, PAIRS, "two")
        with nothing_changed(sending), lease_lost("one"):
            sending.aggregates.remove(PAIRS, "", "one", sends=sends_of(sending, "one"))
        assert sending.outbox.count() == 0
        sends = sends_of(sending, "two", run="two")
        sending.aggregates.remove(PAIRS, "", "two", sends=sends)
        assert [(row.message_id, row.cause) for row in claim(sending)] == [("two", "two")]

    def test_stranger_sends_nothing(self, sending: Backend) -> None:
        """Neither in a group with items nor in one without."""
        add(sending, PAIRS, "a", "b")
        flush(sending, PAIRS)
        for token, group in (("ONE", ""), (RUN, "no such group")):
            with nothing_changed(sending), lease_lost(token, group):
                sending.aggregates.remove(PAIRS, group, token, sends=sends_of(sending, "one", run=token))
        assert sending.outbox.count() == 0

    def test_lease_that_has_ended_sends_nothing_more(self, sending: Backend) -> None:
        """The same run removes and sends once."""
        add(sending, PAIRS, "a", "b")
        flush(sending, PAIRS)
        sends = sends_of(sending, "one")
        sending.aggregates.remove(PAIRS, "", RUN, sends=sends)
        with lease_lost():
            sending.aggregates.remove(PAIRS, "", RUN, sends=sends)
        assert ids(claim(sending)) == ids(sends.outgoing)

    def test_nothing_is_sent_without_a_message(self, sending: Backend) -> None:
        for token, sends in (("one", None), ("two", sends_of(sending))):
            add(sending, PAIRS, f"{token} a", f"{token} b")
            flush(sending, PAIRS, token)
            sending.aggregates.remove(PAIRS, "", token, sends=sends)
        assert buffered(sending) == []
        assert sending.outbox.count() == 0

    def test_some_items_stay_and_the_messages_are_sent(self, sending: Backend) -> None:
        """Whatever becomes of the items."""
        five = PAIRS._replace(size=5)
        add(sending, five, *"abcdef")
        items = flush(sending, five).items
        rejected, unreadable, sends = dead_letters_of(items[3], items[0]), numbers_of(items[1]), sends_of(sending, "one", "two")
        sending.aggregates.remove(five, "", RUN, rejected=rejected, unreadable=unreadable, sends=sends)
        assert states(sending) == {"b": "unresolved", "f": "free"}
        assert sorted(dead_letter.message_id for dead_letter in sending.dead.list(9)) == ["a", "d"]
        assert [row.message_id for row in claim(sending)] == ["one", "two"]

    def test_flush_is_asked_for_as_without_messages(self, sending: Backend, clock: Clock) -> None:
        add(sending, PAIRS, *"abcd")
        flush(sending, PAIRS)
        clock.advance(LEASE)
        assert sending.aggregates.remove(PAIRS, "", RUN, sends=sends_of(sending, "one")) is True

    def test_rows_are_found_by_what_has_decided_them(self, sending: Backend) -> None:
        """By the aggregator and the run."""
        for token in ("one", "two"):
            add(sending, PAIRS, f"{token} a", f"{token} b")
            flush(sending, PAIRS, token)
            sends = sends_of(sending, f"by {token}", run=token)._replace(owner=OWNER, grace_ms=MINUTE)
            sending.aggregates.remove(PAIRS, "", token, sends=sends)
        cause = entry(step=NAME, message_id="two", attempt=sends.outgoing[0].id)
        assert sending.outbox.count_leased(cause) == 1
        assert sending.outbox.release(OWNER, ids(sends.outgoing)) == 1
        assert [row.message_id for row in sending.outbox.claim_due("relay", 9, MINUTE, cause)] == ["by two"]

    def test_new_ids_differ(self, sending: Backend) -> None:
        made = {sending.aggregates.new_id(PAIRS, group) for group in ("", "group") for _ in range(50)}
        assert len(made) == 100

    def test_rows_of_each_group_are_found_by_their_ids(self, sending: Backend) -> None:
        """Wherever a store of several parts keeps a group."""
        groups = numbered(12, "group")
        for group in groups:
            add(sending, PAIRS, "a", "b", group=group)
            flush(sending, PAIRS, group, group=group)
            sends = sends_of(sending, f"by {group}", group=group, run=group)._replace(owner=OWNER, grace_ms=MINUTE)
            sending.aggregates.remove(PAIRS, group, group, sends=sends)
            assert sending.outbox.release(OWNER, ids(sends.outgoing)) == 1
        rows = claim(sending, "relay")
        assert sorted(row.message_id for row in rows) == sorted(f"by {group}" for group in groups)
        assert sending.outbox.confirm("relay", ids(rows)) == len(groups)
        assert sending.outbox.count() == 0

    def test_a_thousand_messages_are_sent_at_once(self, sending: Backend) -> None:
        many: Rules = PAIRS._replace(size=500)
        add(sending, many, *numbered(500))
        flush(sending, many)
        sending.aggregates.remove(many, "", RUN, sends=sends_of(sending, *numbered(1_000)))
        assert [row.message_id for row in claim(sending)] == numbered(1_000)

    def test_odd_texts_are_sent_as_they_are(self, sending: Backend) -> None:
        add(sending, PAIRS._replace(name="odd {}: é"), "a", "b", group="a group {}: 'é'")
        rules, group, token = PAIRS._replace(name="odd {}: é"), "a group {}: 'é'", "a token: é"
        flush(sending, rules, token, group)
        payload = '{"args": ["\\u0000", "é\\n", "%s", ":x"]}'
        sends = sends_of(sending, "é", group=group, run=token, rules=rules, payload=payload)
        sending.aggregates.remove(rules, group, token, sends=sends)
        assert claim(sending) == [OutboxRow(*sends.outgoing[0], 0, "", rules.name, token)]
