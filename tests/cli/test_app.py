"""Commands for which no app is named."""

import pytest
from celery import Celery, _state

from tests.cli.test_describe import run


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Celery:
    """The app that Celery makes where there is none."""
    monkeypatch.setattr(_state, "default_app", None)
    monkeypatch.setattr(_state._tls, "current_app", None, raising=False)
    app: Celery = _state._get_current_app()
    return app


@pytest.mark.parametrize(
    "words",
    [
        ["aggregates", "list"],
        ["dead", "list"],
        ["dead", "retry", "--all", "--reason", "INC-1"],
        ["describe"],
        ["relay"],
        ["schema"],
    ],
    ids=" ".join,
)
def test_app_is_wanted(stand_in: Celery, words: list[str]) -> None:
    """Celery would look for sagas in a file of the folder, and for a broker on this machine."""
    result = run(stand_in, *words)

    assert result.exit_code == 2, result.output
    assert "name the app: celery -A proj sagas …" in result.output


def test_schema_of_a_url_needs_none(stand_in: Celery) -> None:
    """Nothing of the app counts but its prefix."""
    result = run(stand_in, "schema", "--backend", "sqlite://")

    assert result.exit_code == 0, result.output


def test_celerys_own_app_may_be_configured(stand_in: Celery) -> None:
    """By a ``celeryconfig`` module, say."""
    stand_in.conf.saga_backend = "memory://x"
    result = run(stand_in, "schema")

    assert result.exit_code == 0, result.output
