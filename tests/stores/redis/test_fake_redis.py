"""fakeredis takes every script: where there is no server, it stands in for one in the other tests."""

import pytest

from celery_sagas.stores.redis.backend import RedisBackend
from tests.stores.redis.conftest import urls_of
from tests.stores.redis.test_scripts import PLAYS, Play

url = urls_of("fake_redis")


@pytest.mark.parametrize("play", PLAYS, ids=lambda play: play.__name__[1:])
def test_script_is_played(redis_backend: RedisBackend, play: Play) -> None:
    play(redis_backend)
