"""What every command does, whatever it is for."""

import pytest
from celery import Celery

from celery_sagas.worker.runtime import runtime_of
from tests.cli.test_describe import run


@pytest.mark.parametrize(
    "words",
    [
        ["activity"],
        ["aggregates", "list"],
        ["check"],
        ["dead", "list"],
        ["held"],
        ["hold", "order", "--reason", "why"],
        ["metrics"],
        ["relay"],
        ["release", "order", "--reason", "why"],
        ["schema"],
        ["show", "order", "1"],
        ["stats"],
        ["stuck"],
        ["try", "order.pay"],
    ],
    ids=" ".join,
)
def test_wrong_setting(app: Celery, words: list[str]) -> None:
    """It says which, without a traceback."""
    app.conf.saga_unknown = 1
    result = run(app, *words)

    assert result.exit_code == 1
    assert "Error: unknown setting saga_unknown" in result.output


def test_wrong_setting_is_one_of_several_findings(app: Celery) -> None:
    """The doctor goes on with what the setting does not hide."""
    app.conf.saga_unknown = 1
    result = run(app, "doctor", "--static")

    assert result.exit_code == 3
    assert "FAIL  D01  No worker starts: unknown setting saga_unknown." in result.output
    assert "OK    D03" in result.output


@pytest.mark.parametrize(
    "words",
    [
        ["activity"],
        ["aggregates", "list"],
        ["check"],
        ["dead", "list"],
        ["held"],
        ["metrics"],
        ["show", "order", "1"],
        ["stuck"],
        ["try", "order.pay"],
    ],
    ids=" ".join,
)
def test_connections_are_closed(app: Celery, words: list[str]) -> None:
    """A command leaves nothing open."""
    before = runtime_of(app)
    run(app, *words)

    assert runtime_of(app) is not before
