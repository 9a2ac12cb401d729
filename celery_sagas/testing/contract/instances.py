"""``Instances``: pages, counts, and the tags of commits."""

from collections.abc import Callable, Sequence

import pytest

from celery_sagas.stores.instances import MOST, PENDING, SLOT_BITS, Glance, Page, place, slot_of
from celery_sagas.stores.operations import Commit, Delete, Insert, Update
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import Record
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import OpenBackend, StoreFixtures
from celery_sagas.testing.samples import (
    HOUR,
    NAMES,
    Keys,
    by_id,
    by_key,
    by_tracking,
    change,
    complete,
    conflict,
    effects,
    entry,
    found,
    is_there,
    new_record,
    start,
    update,
)

NAME, FORMER = NAMES
PAID, NEW = ("status", "paid"), ("status", "new")

#: Ids in which a pattern, a collation or a careless encoding errs.
ODD_IDS = ("a", "A", "a ", "a\n:b", "a\x01", "a\x02", "á", "a\ud7ff", "a\ue000", "a😀", ":", "%", "'", "\\", "$id", "~")
#: Texts that no store keeps.
NO_IDS = ("\0", "a\0", "a\0b", "\ud800", "a\ud800", "a\udfffb", "a\udfff\0", "a\0\udfff")
#: Texts that are no places, as somebody may write them into a URL.
NO_PLACES = (
    *("a", "0", ":", "-1", "0x", "%00", "last", "0" * 400, "019aa0c2-0000-7000-8000-000000000000"),
    *("0000000", "00000000", "0000000:a", "000000000:a", "0000000g:a", "0000000A:a", "-0000001:a", " 0000000:a", "0_000000:a"),
    *(
        "00000000;a",
        "00000000\n:a",
        "\n00000000:a",
        "\u0660" * 8 + ":a",
        "0000000\0:a",
        "\0",
        *(f"00000000:{id}" for id in NO_IDS),
    ),
)


class InstancesContract(StoreFixtures):
    """The requirements on every ``Instances``."""

    @pytest.fixture(autouse=True)
    def instances(self, backend: Backend) -> None:
        """Skip the test if the backend lists no instances."""
        if not backend.has_instances:
            pytest.skip("this backend lists no instances")

    def test_page_has_what_was_committed_last_first(self, backend: Backend, clock: Clock) -> None:
        orders = [_start_later(backend, clock, key) for key in ("1", "2", "3")]
        clock.advance(HOUR)
        update(backend, orders[0])
        assert _keys(backend.instances.page(NAME, 9)) == ["1", "3", "2"]
        assert _keys(backend.instances.page(NAME, 9, oldest_first=True)) == ["2", "3", "1"]

    def test_instances_of_one_slot_are_in_the_order_of_their_ids(self, backend: Backend) -> None:
        for id in ("b", "c", "a"):
            start(backend, id, id=id)
        assert _keys(backend.instances.page(NAME, 9)) == ["c", "b", "a"]
        assert _keys(backend.instances.page(NAME, 9, oldest_first=True)) == ["a", "b", "c"]

    def test_change_in_the_slot_of_the_last_commit_moves_nothing(self, backend: Backend, clock: Clock) -> None:
        clock.now = _first_of_a_slot(clock)
        order = start(backend, "a", id="a")
        start(backend, "b", id="b")
        clock.now = _first_of_a_slot(clock) - 1
        update(backend, order)
        assert _keys(backend.instances.page(NAME, 9)) == ["b", "a"]

    def test_change_in_the_next_slot_moves_the_instance(self, backend: Backend, clock: Clock) -> None:
        clock.now = _first_of_a_slot(clock)
        order = start(backend, "a", id="a")
        start(backend, "b", id="b")
        clock.now = _first_of_a_slot(clock)
        update(backend, order)
        assert _keys(backend.instances.page(NAME, 9)) == ["a", "b"]

    @pytest.mark.parametrize("oldest_first", [False, True])
    @pytest.mark.parametrize("limit", [1, 2, 3, 7, 8])
    def test_pages_follow_one_another(self, backend: Backend, clock: Clock, oldest_first: bool, limit: int) -> None:
        keys = [str(number) for number in range(7)]
        for number, key in enumerate(keys):
            start(backend, key, id=f"{number:02}")
            clock.advance(HOUR if number % 3 == 2 else 0)
        pages = _pages(lambda after: backend.instances.page(NAME, limit, after, oldest_first=oldest_first))
        assert [key for page in pages for key in _keys(page)] == (keys if oldest_first else keys[::-1])
        assert all(len(page.instances) <= limit for page in pages)

    def test_largest_page(self, backend: Backend) -> None:
        for number in range(MOST + 1):
            start(backend, str(number))
        pages = _pages(lambda after: backend.instances.page(NAME, MOST, after))
        assert len({key for page in pages for key in _keys(page)}) == MOST + 1

    @pytest.mark.parametrize("oldest_first", [False, True])
    def test_page_goes_on_behind_any_place(self, backend: Backend, clock: Clock, oldest_first: bool) -> None:
        """The instance that had it may have changed, or ended."""
        orders = [_start_later(backend, clock, key) for key in ("1", "2", "3", "4")]
        complete(backend, orders[1])
        after = place(orders[1].updated_at, orders[1].id)
        page = backend.instances.page(NAME, 9, after, oldest_first=oldest_first)
        assert _keys(page) == (["3", "4"] if oldest_first else ["1"])

    @pytest.mark.parametrize("oldest_first", [False, True])
    def test_page_goes_on_behind_the_place_of_any_id(self, backend: Backend, oldest_first: bool) -> None:
        for number, id in enumerate(ODD_IDS):
            start(backend, str(number), id=id)
        pages = _pages(lambda after: backend.instances.page(NAME, 1, after, oldest_first=oldest_first))
        assert [id for page in pages for id in _ids(page)] == sorted(ODD_IDS, reverse=not oldest_first)

    @pytest.mark.parametrize("oldest_first", [False, True])
    def test_page_refuses_what_is_no_place(self, backend: Backend, oldest_first: bool) -> None:
        start(backend)
        for text in NO_PLACES:
            with pytest.raises(ValueError, match="is no place in the order of pages"):
                pytest.fail(f"{text!a}: {backend.instances.page(NAME, 9, text, oldest_first=oldest_first)}")

    @pytest.mark.parametrize("oldest_first", [False, True])
    def test_instance_that_does_not_change_comes_once(self, backend: Backend, clock: Clock, oldest_first: bool) -> None:
        """Whatever becomes of others between two pages."""
        others = [_start_later(backend, clock, f"other {number}") for number in range(4)]
        for number in range(6):
            _start_later(backend, clock, str(number))
            others.append(_start_later(backend, clock, f"another {number}"))
        keys: list[str] = []
        page = backend.instances.page(NAME, 2, oldest_first=oldest_first)
        while page.after:
            keys += _keys(page)
            if len(others) > 1:
                complete(backend, others.pop(0))
                update(backend, others.pop())
                _start_later(backend, clock, f"late {len(keys)}")
            page = backend.instances.page(NAME, 2, page.after, oldest_first=oldest_first)
        keys += _keys(page)
        assert sorted(key for key in keys if key.isdecimal()) == [str(number) for number in range(6)]

    def test_page_is_of_one_name(self, backend: Backend, open_backend: OpenBackend, prefix: str) -> None:
        start(backend, "1")
        start(backend, "2", names=("orders",))
        start(backend, "3", names=("Order",))
        start(open_backend(prefix.upper()), "4")
        assert _keys(backend.instances.page(NAME, 9)) == ["1"]
        assert backend.instances.page("parcel", 9) == Page((), "")

    def test_page_lacks_what_has_ended(self, backend: Backend) -> None:
        orders = [start(backend, key, tags=(PAID,)) for key in ("1", "2")]
        complete(backend, orders[0])
        assert _keys(backend.instances.page(NAME, 9)) == ["2"]
        assert _keys(backend.instances.tagged(NAME, PAID, 9)) == ["2"]
        assert backend.instances.count(NAME, 9) == backend.instances.count(NAME, 9, PAID) == 1

    def test_instance_that_begins_again_is_listed(self, backend: Backend, clock: Clock) -> None:
        complete(backend, start(backend, "1", tags=(PAID,)))
        order = _start_later(backend, clock, "1", tags=(PAID,))
        assert _ids(backend.instances.page(NAME, 9)) == _ids(backend.instances.tagged(NAME, PAID, 9)) == [order.id]

    def test_glance(self, backend: Backend, clock: Clock) -> None:
        order = start(backend, "é 1", data='{"name": "é"}', tags=(PAID,))
        clock.advance(HOUR)
        order = update(backend, order)
        size = len(order.data.encode())
        glance = Glance(order.id, NAME, "é 1", 2, order.schema_version, size, order.pending, order.created_at, order.updated_at)
        assert backend.instances.page(NAME, 9) == Page((glance,), "")
        assert backend.instances.tagged(NAME, PAID, 9) == Page((glance,), "")
        assert order.updated_at == order.created_at + HOUR

    @pytest.mark.parametrize(("length", "is_there"), [(PENDING, True), (PENDING + 1, False)])
    @pytest.mark.parametrize("char", ["x", "é"])
    def test_pending_map_that_is_too_long(self, backend: Backend, char: str, length: int, is_there: bool) -> None:
        """It is measured in bytes."""
        pending = f"{char * ((length - 2) // len(char.encode()))}"
        pending = f'"{pending}{"x" * (length - 2 - len(pending.encode()))}"'
        record = new_record(pending=pending)
        backend.sagas.insert(record, effects(record))
        ((glance,), _) = backend.instances.page(NAME, 9)
        assert glance.pending == (pending if is_there else None)

    def test_state_may_be_large(self, backend: Backend) -> None:
        data = '"' + "é" * 200_000 + '"'
        start(backend, data=data)
        ((glance,), _) = backend.instances.page(NAME, 9)
        assert glance.size == 400_002

    def test_tag_lists_its_instances_those_with_the_greatest_ids_first(self, backend: Backend, clock: Clock) -> None:
        for id in ("b", "c", "a"):
            start(backend, id, id=id, tags=(PAID, ("city", "Oslo")))
        start(backend, "d", id="d", tags=(NEW, ("city", "Oslo")))
        start(backend, "e", id="e")
        clock.advance(HOUR)
        update(backend, found(backend, by_id("a")))
        assert _keys(backend.instances.tagged(NAME, PAID, 9)) == ["c", "b", "a"]
        assert _keys(backend.instances.tagged(NAME, ("city", "Oslo"), 9)) == ["d", "c", "b", "a"]
        assert backend.instances.tagged(NAME, ("status", "old"), 9) == Page((), "")

    @pytest.mark.parametrize("limit", [1, 2, 3, 5, 6])
    def test_pages_of_a_tag_follow_one_another(self, backend: Backend, limit: int) -> None:
        for number in range(5):
            start(backend, str(number), id=f"{number:02}", tags=(PAID,))
            start(backend, f"other {number}", id=f"{number:02}+", tags=(NEW,))
        pages = _pages(lambda after: backend.instances.tagged(NAME, PAID, limit, after))
        assert [key for page in pages for key in _keys(page)] == ["4", "3", "2", "1", "0"]
        assert _keys(backend.instances.tagged(NAME, PAID, 9, "03+")) == ["3", "2", "1", "0"]

    def test_page_of_a_tag_goes_on_behind_any_text(self, backend: Backend) -> None:
        for number, id in enumerate(ODD_IDS):
            start(backend, str(number), id=id, tags=(PAID,))
        texts = (*ODD_IDS, *NO_IDS, *NO_PLACES)
        pages = {text: _ids(backend.instances.tagged(NAME, PAID, len(ODD_IDS), text)) for text in texts}
        assert pages == {text: sorted((id for id in ODD_IDS if id < text), reverse=True) for text in texts}

    def test_update_changes_tags(self, backend: Backend) -> None:
        order = start(backend, tags=(NEW,))
        order = update(backend, order, added_tags=(("city", "Oslo"), PAID), removed_tags=(NEW,))
        assert _ids(backend.instances.tagged(NAME, PAID, 9)) == _ids(backend.instances.tagged(NAME, ("city", "Oslo"), 9))
        assert backend.instances.count(NAME, 9, NEW) == 0
        update(backend, order, removed_tags=(PAID,))
        assert backend.instances.count(NAME, 9, PAID) == 0
        assert backend.instances.count(NAME, 9, ("city", "Oslo")) == 1

    def test_update_changes_keys_and_tags(self, backend: Backend) -> None:
        one, two, three = ((("tracking", value),) for value in ("T1", "T2", "T3"))
        order = start(backend, keys=one, tags=(NEW,))
        order = update(backend, order, added=two, removed=one, added_tags=(PAID,))
        order = update(backend, order, added=three, removed=two, removed_tags=(NEW,))
        assert is_there(backend, by_tracking("T3"))
        assert not is_there(backend, by_tracking("T2"))
        assert not is_there(backend, by_tracking("T1"))
        complete(backend, order)
        start(backend, keys=three, tags=(PAID,))
        assert backend.instances.count(NAME, 9, PAID) == 1

    @pytest.mark.parametrize(
        ("value", "other"),
        [
            ("paid", "Paid"),
            ("paid", "paid "),
            ("paid", "pai"),
            ("a", "á"),
            ("1:x", "1"),
            ("a\nb", "a\tb"),
            ("%", "_"),
            ("é" * 255, "é"),
        ],
    )
    def test_tags_are_compared_byte_by_byte(self, backend: Backend, value: str, other: str) -> None:
        start(backend, "1", tags=(("status", value),))
        start(backend, "2", tags=(("status", other),))
        assert _keys(backend.instances.tagged(NAME, ("status", value), 9)) == ["1"]
        assert _keys(backend.instances.tagged(NAME, ("status", other), 9)) == ["2"]
        assert backend.instances.count(NAME, 9, ("Status", value)) == backend.instances.count(NAME, 9, ("statu", value)) == 0

    def test_tags_of_one_instance(self, backend: Backend) -> None:
        """Several properties may have the same value."""
        order = start(backend, tags=(("billed_to", "ann"), ("sent_to", "ann")))
        update(backend, order, removed_tags=(("billed_to", "ann"),))
        assert backend.instances.count(NAME, 9, ("billed_to", "ann")) == 0
        assert backend.instances.count(NAME, 9, ("sent_to", "ann")) == 1

    def test_tag_is_no_key(self, backend: Backend) -> None:
        """What is an alternate key of one instance may be a tag of others."""
        order = start(backend, "1", keys=(("tracking", "T1"),))
        start(backend, "2", tags=(("tracking", "T1"), ("$key", "1")))
        start(backend, "3", tags=(("tracking", "T2"),))
        assert found(backend, by_tracking("T1")) == order
        assert not is_there(backend, by_tracking("T2"))
        assert found(backend, by_key("1")) == order
        assert _keys(backend.instances.tagged(NAME, ("tracking", "T1"), 9)) == ["2"]

    def test_tag_is_of_one_saga(self, backend: Backend, open_backend: OpenBackend, prefix: str) -> None:
        start(backend, "1", tags=(PAID,))
        start(backend, "2", names=("parcel",), tags=(PAID,))
        start(open_backend(prefix.upper()), "3", tags=(PAID,))
        assert _keys(backend.instances.tagged(NAME, PAID, 9)) == ["1"]
        assert _keys(backend.instances.tagged("parcel", PAID, 9)) == ["2"]
        assert backend.instances.count(NAME, 9, PAID) == 1

    def test_refused_commit_writes_no_tags(self, backend: Backend) -> None:
        order = start(backend, "1", tags=(NEW,))
        update(backend, order)
        with conflict("version"):
            backend.sagas.update(order, change(added_tags=(PAID,), removed_tags=(NEW,)), effects(order))
        new = new_record("1", tags=(PAID,))
        with conflict("unique"):
            backend.sagas.insert(new, effects(new))
        assert backend.instances.count(NAME, 9, NEW) == 1
        assert backend.instances.count(NAME, 9, PAID) == 0

    def test_repeated_commit_writes_once(self, backend: Backend) -> None:
        new = new_record("1", tags=(NEW,))
        first = effects(new)
        backend.sagas.insert(new, first)
        order = found(backend, by_id(new.id))
        second = effects(order)
        for _ in range(2):
            backend.sagas.update(order, change(added_tags=(PAID,), removed_tags=(NEW,)), second)
        backend.sagas.insert(new, first)
        assert backend.instances.count(NAME, 9, NEW) == 0
        assert backend.instances.count(NAME, 9, PAID) == backend.instances.count(NAME, 9) == 1

    def test_commits_of_many(self, backend: Backend, clock: Clock) -> None:
        orders = [start(backend, str(number), tags=(NEW,)) for number in range(4)]
        clock.advance(HOUR)
        new = new_record("4", tags=(NEW, PAID))
        moved = change(added_tags=(PAID,), removed_tags=(NEW,))
        commits: list[Commit] = [
            Update(orders[0], moved, effects(orders[0])),
            Update(orders[1], change(), effects(orders[1])),
            Update(orders[2], moved, effects(orders[2])),
            Insert(new, effects(new)),
            Delete(orders[3], effects(orders[3], line=entry(orders[3], outcome="completed"))),
        ]
        assert backend.many(commits) == [None] * 5
        assert sorted(_keys(backend.instances.tagged(NAME, PAID, 9))) == ["0", "2", "4"]
        assert sorted(_keys(backend.instances.tagged(NAME, NEW, 9))) == ["1", "4"]
        assert sorted(_keys(backend.instances.page(NAME, 9))) == ["0", "1", "2", "4"]

    def test_renamed_instance_takes_its_place_and_its_tags_along(self, backend: Backend, clock: Clock) -> None:
        for key in ("1", "2"):
            _start_later(backend, clock, key, names=(FORMER,), keys=(("tracking", key),), tags=(PAID,))
        _start_later(backend, clock, "3", names=(FORMER,))
        before = backend.instances.page(FORMER, 9).instances
        backend.sagas.rename(NAME, FORMER, 9)
        assert backend.instances.page(NAME, 9).instances == tuple(each._replace(saga=NAME) for each in before)
        tagged = sorted((each.id for each in before if each.key != "3"), reverse=True)
        assert _ids(backend.instances.tagged(NAME, PAID, 9)) == tagged
        assert backend.instances.page(FORMER, 9) == backend.instances.tagged(FORMER, PAID, 9) == Page((), "")
        complete(backend, found(backend, by_key("1", (NAME,))))
        assert backend.instances.count(NAME, 9, PAID) == 1

    def test_count_ends_where_it_may(self, backend: Backend) -> None:
        for number in range(5):
            start(backend, str(number), tags=(PAID,) if number else ())
        start(backend, "1", names=("parcel",))
        assert [backend.instances.count(NAME, most) for most in (1, 4, 5, 6)] == [1, 4, 5, 5]
        assert [backend.instances.count(NAME, most, PAID) for most in (1, 3, 4, 6)] == [1, 3, 4, 4]

    def test_records_are_read_by_their_ids(self, backend: Backend) -> None:
        orders = [start(backend, key) for key in ("1", "2", "3")]
        parcel = start(backend, "4", names=("parcel",))
        complete(backend, orders[1])
        backend.sagas.lock(orders[0], "me", HOUR)
        ids = [order.id for order in reversed(orders)]
        assert backend.instances.read(NAME, [*ids, parcel.id, "no such id"]) == [orders[2], orders[0]]
        assert backend.instances.read(NAME, []) == []

    def test_index_changes_nothing_where_all_is_in_order(self, backend: Backend, clock: Clock) -> None:
        for number in range(5):
            _start_later(backend, clock, str(number), tags=(PAID,))
        before = backend.instances.page(NAME, 9)
        after = backend.instances.index(NAME, 2)
        while after:
            after = backend.instances.index(NAME, 2, after)
        assert backend.instances.page(NAME, 9) == before


def _start_later(
    backend: Backend, clock: Clock, key: str, *, names: tuple[str, ...] = NAMES, keys: Keys = (), tags: Keys = ()
) -> Record:
    clock.advance(HOUR)
    return start(backend, key, names=names, keys=keys, tags=tags)


def _first_of_a_slot(clock: Clock) -> int:
    """Return the first millisecond of the next slot."""
    return (slot_of(clock.now) + 1) << SLOT_BITS


def _keys(page: Page) -> list[str]:
    return [glance.key for glance in page.instances]


def _ids(page: Page) -> list[str]:
    return [glance.id for glance in page.instances]


def _pages(read: Callable[[str], Page]) -> Sequence[Page]:
    pages = [read("")]
    while pages[-1].after:
        pages.append(read(pages[-1].after))
    return pages
