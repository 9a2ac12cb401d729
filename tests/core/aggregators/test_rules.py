"""The trigger of a buffer: when a group is flushed, when somebody looks at it, and how many items a flush takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sagas.core.aggregators.rules import DEFAULT_LIMIT, Rules, Waiting, allowed, due_at, reason_of, taken

NOW = 1_000_000
TIMED = Rules("readings", size=3, within_ms=1_000, idle_ms=100)

times = st.integers(NOW - 3_000, NOW)
rules = st.builds(
    Rules,
    name=st.just("readings"),
    size=st.sampled_from([0, 1, 2, 3, 8, 1_000]),
    within_ms=st.sampled_from([0, 1, 1_000]),
    idle_ms=st.sampled_from([0, 1, 100]),
    max_attempts=st.integers(1, 4),
)
numbers = st.integers(1, 20)
groups = st.builds(
    Waiting,
    free=st.integers(1, 10),
    oldest=numbers,
    oldest_at=times,
    last_at=times,
    fired_to=st.integers(0, 20),
    fired_why=st.sampled_from(["requested", "again", "age", "idle"]),
)
failures = st.lists(st.integers(0, 16), min_size=1, max_size=30)


def waiting(free=1, *, oldest=1, oldest_at=NOW, last_at=NOW, fired_to=0, fired_why=""):
    return Waiting(free, oldest, oldest_at, last_at, fired_to, fired_why)


@pytest.mark.parametrize(("free", "reason"), [(0, ""), (2, ""), (3, "size"), (4, "size")])
def test_trigger_fires_at_its_size(free, reason):
    assert reason_of(TIMED, waiting(free), NOW) == reason


@pytest.mark.parametrize(("age", "reason"), [(999, ""), (1_000, "age"), (1_001, "age")])
def test_trigger_fires_when_the_oldest_has_waited_for_long_enough(age, reason):
    assert reason_of(TIMED, waiting(oldest_at=NOW - age), NOW) == reason


@pytest.mark.parametrize(("since", "reason"), [(99, ""), (100, "idle"), (101, "idle")])
def test_trigger_fires_when_none_has_come_for_long_enough(since, reason):
    assert reason_of(TIMED, waiting(last_at=NOW - since), NOW) == reason


@pytest.mark.parametrize(("oldest", "reason"), [(4, "requested"), (5, "requested"), (6, "")])
def test_trigger_stays_fired_up_to_a_number(oldest, reason):
    assert reason_of(TIMED, waiting(oldest=oldest, fired_to=5, fired_why="requested"), NOW) == reason


def test_first_of_several_reasons_is_told():
    open_group = waiting(3, oldest_at=NOW - 1_000, last_at=NOW - 100, fired_to=1, fired_why="again")
    assert reason_of(TIMED, open_group, NOW) == "size"
    assert reason_of(TIMED, open_group._replace(free=2), NOW) == "again"
    assert reason_of(TIMED, open_group._replace(free=2, fired_to=0), NOW) == "age"
    assert reason_of(TIMED, open_group._replace(free=2, fired_to=0, oldest_at=NOW), NOW) == "idle"


@given(rules, groups)
def test_trigger_does_not_fire_where_nothing_is_free(rules, group):
    assert reason_of(rules, group._replace(free=0), NOW) == ""


@given(groups)
def test_zero_is_no_condition(group):
    assert reason_of(Rules("readings"), group._replace(fired_to=0), NOW) == ""
    assert due_at(Rules("readings"), group._replace(fired_to=0), NOW, 0, ()) is None


@given(rules, groups, st.integers(0, 5_000))
def test_fired_trigger_stays_fired_while_time_passes(rules, group, later):
    if reason_of(rules, group, NOW):
        assert reason_of(rules, group, NOW + later)


@given(rules, groups)
def test_group_is_due_no_later_than_its_trigger_fires(rules, group):
    """Nobody would look at it again."""
    due = due_at(rules, group, NOW, 0, ())
    if due is None:
        assert not reason_of(rules, group, NOW + 10**9)
    else:
        assert reason_of(rules, group, max(due, NOW))


@given(rules, groups)
def test_group_is_due_no_sooner_than_its_trigger_fires(rules, group):
    """A look finds something to do."""
    due = due_at(rules, group, NOW, 0, ())
    if due is not None and due > NOW:
        assert not reason_of(rules, group, due - 1)


@given(rules, groups, st.integers(NOW + 1, NOW + 5_000), st.lists(st.integers(NOW, NOW + 9_000)))
def test_group_that_was_asked_for_is_due_when_its_mark_expires(rules, group, flush_requested_until, lease_ends):
    assert due_at(rules, group, NOW, flush_requested_until, lease_ends) == flush_requested_until


@given(rules, groups, st.integers(0, NOW))
def test_mark_that_has_expired_says_nothing(rules, group, flush_requested_until):
    assert due_at(rules, group, NOW, flush_requested_until, ()) == due_at(rules, group, NOW, 0, ())


@given(rules, groups, st.lists(st.integers(NOW, NOW + 9_000), min_size=1))
def test_group_is_due_when_the_first_lease_ends(rules, group, lease_ends):
    opens = due_at(rules, group, NOW, 0, ())
    assert due_at(rules, group, NOW, 0, lease_ends) == min([*lease_ends, *([] if opens is None else [opens])])
    assert due_at(rules, Waiting(), NOW, 0, lease_ends) == min(lease_ends)


def test_group_whose_next_item_fires_the_trigger_is_not_due():
    sized = Rules("readings", size=3)
    assert due_at(sized, waiting(2), NOW, 0, ()) is None
    assert due_at(TIMED, Waiting(), NOW, 0, ()) is None
    assert due_at(sized, waiting(3), NOW, 0, ()) == NOW


@pytest.mark.parametrize(("size", "limit"), [(0, DEFAULT_LIMIT), (1, 1), (7, 7), (10_000, 10_000)])
def test_batch_has_a_largest_size(size, limit):
    assert Rules("readings", size=size).limit == limit
    assert taken(Rules("readings", size=size), [0] * 12_000) == limit


@pytest.mark.parametrize(("attempts", "count"), [(0, 8), (1, 8), (2, 4), (3, 2), (4, 1), (5, 0), (99, 0)])
def test_batches_halve_after_too_many_attempts(attempts, count):
    assert allowed(Rules("readings", size=8, max_attempts=2), attempts) == count


@pytest.mark.parametrize(
    ("attempts", "count"),
    [
        ([], 0),
        ([0], 1),
        ([0] * 9, 8),
        ([2] * 9, 4),
        ([4] * 9, 1),
        ([5] * 9, 1),
        ([2, 0, 0, 0, 0], 4),
        ([0, 0, 2, 2, 2], 4),
        ([0, 0, 0, 0, 2], 4),
        ([0, 0, 0, 4, 0], 3),
        ([0, 5, 0], 1),
        ([2, 3, 3], 2),
    ],
)
def test_batch_is_no_larger_than_its_items_allow(attempts, count):
    assert taken(Rules("readings", size=8, max_attempts=2), attempts) == count


@given(rules, failures)
def test_item_joins_no_batch_that_is_too_large_for_it(rules, attempts):
    """An item that is alone is taken in any case."""
    count = taken(rules, attempts)
    assert 1 <= count <= min(rules.limit, len(attempts))
    assert count == 1 or count <= allowed(rules, attempts[0])
    assert all(place <= allowed(rules, each) for place, each in enumerate(attempts[1:count], start=2))


def test_batch_does_not_outgrow_an_item_that_has_joined_it():
    """No item is in a batch larger than it may be in."""
    readings = Rules("readings", size=8, max_attempts=2)
    assert allowed(readings, 2) == 4
    assert taken(readings, [0, 2, 0, 0, 0, 0, 0, 0]) == 4


@given(rules, failures)
def test_flush_takes_as_many_items_as_their_attempts_allow(rules, attempts):
    count = taken(rules, attempts)
    if count < len(attempts):
        assert any(count + 1 > allowed(rules, each) for each in attempts[: count + 1])


@given(rules)
def test_item_that_fails_again_and_again_is_alone_in_the_end(rules):
    """Then it has had its last attempt."""
    counts = [allowed(rules, attempts) for attempts in range(rules.max_attempts + 20)]
    assert counts == sorted(counts, reverse=True)
    assert counts[: rules.max_attempts] == [rules.limit] * rules.max_attempts
    assert 1 in counts
    assert counts[-1] == 0
