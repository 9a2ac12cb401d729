"""A SQLite file whose disk is full: what has no room is redelivered later."""

import sqlite3
from contextlib import closing

from tests.integration.conftest import Deploy
from tests.integration.counting import ADD_AND_TELL, TOLD, assert_conserved, send_all
from tests.waiting import wait_until


def test_messages_are_redelivered_later_until_there_is_room(deploy: Deploy) -> None:
    """None is lost, doubled or half-written."""
    deployment = deploy("cramped", "redis", "sqlite", saga_backend_options={"pool_recycle": 0})
    worker = deployment.start("prefork", 2).wait_ready()
    wanted = [("first", 1)]
    send_all(deployment, ADD_AND_TELL, wanted)
    deployment.wait_handled(TOLD, 1)
    (deployment.folder / "pages").write_text(str(_pages(deployment.backend_url)))

    def is_full() -> bool:
        more = [(f"counter {len(wanted)}", len(wanted))]
        wanted.extend(more)
        send_all(deployment, ADD_AND_TELL, more)
        return "is redelivered in" in worker.log and "database or disk is full" in worker.log

    wait_until(is_full, deployment.describe)
    (deployment.folder / "pages").unlink()
    assert_conserved(deployment, wanted)
    assert deployment.backend.dead.count() == 0


def _pages(url: str) -> int:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        return int(connection.execute("PRAGMA page_count").fetchone()[0])
