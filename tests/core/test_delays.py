"""Delays, and the pauses between the tries of something that fails."""

from datetime import timedelta
from typing import Any

import pytest

from celery_sagas import Backoff
from celery_sagas.core.delays import checked_backoff


@pytest.mark.parametrize(
    ("backoff", "pauses"),
    [
        (Backoff(4), [10, 20, 40, 80]),
        (Backoff(4, 1, factor=5), [1, 5, 25, 125]),
        (Backoff(4, timedelta(minutes=1), timedelta(minutes=3)), [60, 120, 180, 180]),
        (Backoff(3, 2, factor=1), [2, 2, 2]),
    ],
)
def test_each_pause_is_longer_by_the_factor_up_to_the_longest(backoff: Backoff, pauses: list[float]) -> None:
    assert [backoff.pause_s(number) for number in range(1, len(pauses) + 1)] == pauses


def test_pause_after_very_many_tries_is_the_longest() -> None:
    assert Backoff(1000, 1, 60, factor=1e9).pause_s(1000) == 60


def test_checked_backoff_has_its_pauses_in_seconds() -> None:
    assert checked_backoff("retry", Backoff(2, timedelta(seconds=3), timedelta(hours=1))) == (2, 3.0, 3600.0, 2.0)


@pytest.mark.parametrize(
    ("backoff", "error"),
    [
        (3, TypeError),
        ((3, 1.0, 2.0, 2.0), TypeError),
        (Backoff("3"), TypeError),  # type: ignore[arg-type]
        (Backoff(True), TypeError),
        (Backoff(3, "1"), TypeError),  # type: ignore[arg-type]
        (Backoff(-1), ValueError),
        (Backoff(1001), ValueError),
        (Backoff(3, 0), ValueError),
        (Backoff(3, 2, 1), ValueError),
        (Backoff(3, float("nan")), ValueError),
        (Backoff(3, 1, float("inf")), ValueError),
        (Backoff(3, factor=0.5), ValueError),
        (Backoff(3, factor=timedelta(seconds=2)), TypeError),  # type: ignore[arg-type]
    ],
)
def test_wrong_backoff_is_refused_by_the_name_of_its_argument(backoff: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"retry=|first=|factor="):
        checked_backoff("retry", backoff)
