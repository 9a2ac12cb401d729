"""Which code may run on which layout."""

import pytest

from celery_sagas.stores.layouts import Layout

STORED = Layout(version=7, oldest=5)


@pytest.mark.parametrize("known", [Layout(5, 5), Layout(6, 4), Layout(7, 5), Layout(7, 7)])
def test_code_between_the_two_numbers_runs(known):
    assert STORED.remedy(known) == ""
    assert not STORED.leads_to(known)


@pytest.mark.parametrize(
    ("known", "remedy"),
    [(Layout(4, 4), "Upgrade the workers"), (Layout(8, 7), "sagas migrate"), (Layout(8, 8), "Use the release that made it")],
)
def test_other_code_does_not(known, remedy):
    """What to do depends on which of the two is too old, and on whether older code may run on what code knows."""
    assert remedy in STORED.remedy(known)
    assert STORED.leads_to(known) == (remedy == "sagas migrate")
