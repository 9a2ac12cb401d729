"""Aggregators, groups, ids and payloads come back as they were written, and are compared byte by byte."""

from celery_sagas.stores.items import Added, Addition, DueGroup, NewItem
from celery_sagas.stores.ports import Backend
from celery_sagas.testing.batches import (
    HOURLY,
    LEASE,
    NAME,
    PAIRS,
    add,
    buffered,
    dead_letters_of,
    flush,
    ids_of,
    new_items,
    numbers_of,
)
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import StoreFixtures
from celery_sagas.testing.contract.sagas.text import LOOK_ALIKES, ODD_JSON, each_longest
from celery_sagas.testing.samples import HOUR

#: Texts that a store could confuse with a part of its own keys, or with those of another place.
ODD = (
    *LOOK_ALIKES,
    "",
    "{",
    "}",
    "{}",
    "}{",
    "{a}b",
    "a:b:c",
    ":",
    "a{b}:c",
    "\x01",
    "\x7f",
    "[1]",
    "*",
    "a\nb",
    '","',
    "-1",
    "None",
)


class OddNamesContract(StoreFixtures):
    """Texts are kept as they are, and compared byte by byte."""

    def test_groups_are_compared_byte_by_byte(self, backend: Backend) -> None:
        additions = [Addition(group, new_items([f"{number}"])) for number, group in enumerate(ODD)]
        assert backend.aggregates.insert(PAIRS, additions) == [Added(1)] * len(ODD)
        assert [group.group for group in backend.buffers.groups(NAME, 1_000)] == sorted(ODD)
        for number, group in enumerate(ODD):
            assert buffered(backend, group) == [f"{number}"]

    def test_each_odd_group_is_flushed_for_itself(self, backend: Backend) -> None:
        backend.aggregates.insert(PAIRS, [Addition(group, new_items("ab")) for group in ODD])
        for number, group in enumerate(ODD):
            assert ids_of(flush(backend, PAIRS, "one", group).items) == ["a", "b"]
            assert backend.aggregates.renew(PAIRS, group, "one")
            backend.aggregates.remove(PAIRS, group, "one")
            assert backend.buffers.count(NAME).groups == len(ODD) - number - 1

    def test_aggregators_are_compared_byte_by_byte(self, backend: Backend, clock: Clock) -> None:
        for number, name in enumerate(filter(None, ODD)):
            assert add(backend, HOURLY._replace(name=name), f"{number}") == Added(1)
        clock.advance(HOUR)
        names = sorted(filter(None, ODD))
        assert backend.buffers.names() == names
        for number, name in enumerate(filter(None, ODD)):
            assert buffered(backend, name=name) == [f"{number}"]
            assert backend.buffers.count(name).buffered == 1
            assert backend.aggregates.claim_due([name], 9, LEASE) == [DueGroup(name, "")]

    def test_name_and_group_are_not_taken_for_one_another(self, backend: Backend) -> None:
        """It does not matter where one ends and the other begins."""
        pairs = [("a", "bc"), ("ab", "c"), ("abc", ""), ("a:b", "c"), ("a", "b:c"), ("a ", "bc"), ("a", " bc"), ("a{", "bc")]
        for name, group in pairs:
            assert add(backend, PAIRS._replace(name=name), "item", group=group) == Added(1)
        for name, group in pairs:
            assert buffered(backend, group, name) == ["item"]

    def test_group_and_id_are_not_taken_for_one_another(self, backend: Backend, clock: Clock) -> None:
        rules = PAIRS._replace(size=1, remember_ms=HOUR)
        pairs = [("a", "bc"), ("ab", "c"), ("abc", ""), ("a:b", "c"), ("a", "b:c"), ("a ", "bc"), ("a", " bc")]
        for group, id in pairs:
            assert add(backend, rules, id, group=group).added == 1
            flush(backend, rules, "one", group)
            backend.aggregates.remove(rules, group, "one")
        for group, id in pairs:
            assert add(backend, rules, id, group=group).added == 0
        clock.advance(HOUR)
        assert backend.aggregates.purge(99) == len(pairs)

    def test_ids_are_compared_byte_by_byte(self, backend: Backend) -> None:
        assert add(backend, PAIRS, *ODD) == Added(len(ODD), needs_flush=True)
        assert add(backend, PAIRS, *ODD) == Added(0)
        assert buffered(backend) == list(ODD)
        backend.buffers.remove(PAIRS, "", "abc")
        assert buffered(backend) == [id for id in ODD if id != "abc"]

    def test_removed_ids_are_compared_byte_by_byte(self, backend: Backend) -> None:
        rules = PAIRS._replace(size=1, remember_ms=HOUR)
        add(backend, rules, "abc")
        flush(backend, rules)
        backend.aggregates.remove(rules, "", "one")
        assert add(backend, rules, *ODD).added == len(ODD) - 1

    @each_longest
    def test_longest_names_and_ids_are_kept_whole(self, backend: Backend, clock: Clock, text: str) -> None:
        rules = HOURLY._replace(name=text, remember_ms=HOUR)
        assert add(backend, rules, text, text[:-1], group=text) == Added(2)
        assert add(backend, rules, text, group=text[:-1]) == Added(1)
        clock.advance(HOUR)
        assert sorted(backend.aggregates.claim_due([text], 9, LEASE)) == [DueGroup(text, text[:-1]), DueGroup(text, text)]
        items = flush(backend, rules, "one", text).items
        assert ids_of(items) == [text, text[:-1]]
        backend.aggregates.remove(rules, text, "one", rejected=dead_letters_of(items[0], group=text, name=text))
        [dead_letter] = backend.dead.list(9)
        assert (dead_letter.task, dead_letter.key, dead_letter.message_id) == (text, text, text)
        assert add(backend, rules, text, text[:-1], group=text) == Added(0)

    def test_payloads_come_back_character_by_character(self, backend: Backend) -> None:
        """No store reads them."""
        payloads = (ODD_JSON, '"\\u0000"', '"\\ud800"', "not even JSON", "", "'", '"', "\\", "%s", ":a", "a" * 100_000, "[]", "0")
        items = tuple(NewItem(f"{number}", payload) for number, payload in enumerate(payloads))
        rules = PAIRS._replace(size=len(items))
        backend.aggregates.insert(rules, [Addition("", items)])
        taken = flush(backend, rules).items
        assert [item.payload for item in taken] == list(payloads)
        assert [item.payload for item in backend.buffers.read(NAME, "", 99)] == list(payloads)
        backend.aggregates.remove(rules, "", "one", rejected=dead_letters_of(*taken[6:]), unreadable=numbers_of(*taken[:6]))
        unresolved = [item.payload for _, item in backend.buffers.unresolved(NAME, 99)]
        dead_letters = {dead_letter.message_id: dead_letter.payload for dead_letter in backend.dead.list(99)}
        assert [*unresolved, *(dead_letters[item.id] for item in taken[6:])] == list(payloads)

    def test_reasons_come_back_character_by_character(self, backend: Backend) -> None:
        """They may be as long as the limit allows."""
        notes = ["é'\"\\%s\n😀", "x" * 2_000, "漢" * 2_000, "😀" * 2_000]
        rules = PAIRS._replace(size=len(notes))
        add(backend, rules, *"abcd")
        items = flush(backend, rules).items
        dead_letters = [
            dead_letter for item, note in zip(items, notes, strict=True) for dead_letter in dead_letters_of(item, text=note)
        ]
        backend.aggregates.remove(rules, "", "one", rejected=dead_letters)
        assert {dead_letter.message_id: dead_letter.text for dead_letter in backend.dead.list(9)} == dict(
            zip("abcd", notes, strict=True)
        )

    def test_unresolved_items_of_odd_groups_are_told_apart(self, backend: Backend) -> None:
        additions = [Addition(group, new_items([f"{number}"], is_unreadable=True)) for number, group in enumerate(ODD)]
        backend.aggregates.insert(PAIRS, additions)
        found = backend.buffers.unresolved(NAME, 1_000)
        assert sorted((group, item.id) for group, item in found) == sorted(
            (group, f"{number}") for number, group in enumerate(ODD)
        )
        for group, item in found:
            assert [each.id for each in backend.buffers.read(NAME, group, 9)] == [item.id]
            assert backend.aggregates.resolve(PAIRS, group, [item.number]) == 1
        assert backend.buffers.unresolved(NAME, 9) == []
