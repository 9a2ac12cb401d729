"""What ``transaction=`` takes."""

from typing import Any

import pytest
from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session, sessionmaker

from celery_sagas.core.sharing import checked_transaction
from celery_sagas.errors import DefinitionError


class Own(Session):
    """A session of the user's own."""


class Connected(Connection):
    """A connection of the user's own, which nobody could make."""


@pytest.mark.parametrize("kind", [None, Session, Connection, Own])
def test_kind(kind: type | None) -> None:
    assert checked_transaction("the step", kind) is kind


@pytest.mark.parametrize("kind", [Engine, sessionmaker, Connected, int, 7, "", Session(), True])
def test_something_else(kind: Any) -> None:
    with pytest.raises(DefinitionError, match="Session or Connection"):
        checked_transaction("the step", kind)


@pytest.mark.parametrize("kind", [AsyncSession, AsyncConnection])
def test_asynchronous(kind: Any) -> None:
    with pytest.raises(DefinitionError, match="give it Session"):
        checked_transaction("the step", kind)
