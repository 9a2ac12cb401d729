"""Which code may run on which layout."""

import pytest

from celery_sagas.stores.layouts import Layout


@pytest.mark.parametrize("known", [5, 6, 7])
def test_code_between_the_two_numbers_runs(known):
    assert Layout(version=7, oldest=5).remedy(known) == ""


@pytest.mark.parametrize(("known", "remedy"), [(4, "Upgrade the workers"), (8, "Use the release that made it")])
def test_other_code_does_not(known, remedy):
    """What to do depends on which of the two is too old."""
    assert remedy in Layout(version=7, oldest=5).remedy(known)
