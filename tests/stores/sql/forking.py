"""Forks while threads write into one file, and children that write into it too.

Run by itself: it takes the file's URL, how many threads write, how many times it forks and how many commits each child makes. It
prints how many children failed, how many commits were made, and how many are there.
"""

import os
import signal
import sys
import threading

from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.testing.samples import entry, outgoing, send

#: How many children write at once.
_AT_ONCE = 4
#: Seconds after which a child that hangs is ended by the kernel.
_CHILDS_TIMEOUT_S = 60
#: Writers take turns, and nothing else makes one of them wait.
_PATIENT = {"busy_timeout": 60}


def write(backend: SqlBackend) -> None:
    """Commit an entry and a row."""
    send(backend, outgoing(), line=entry(key="forking"))


class Writer(threading.Thread):
    """Commits all the time, and counts."""

    def __init__(self, backend: SqlBackend, is_over: threading.Event) -> None:
        super().__init__(daemon=True)
        self._backend = backend
        self._is_over = is_over
        self.commits = 0
        self.has_begun = threading.Event()

    def run(self) -> None:
        """Commit until it is over."""
        while not self._is_over.is_set():
            write(self._backend)
            self.commits += 1
            self.has_begun.set()


def fork(url: str, commits: int) -> int:
    """Fork a child that makes commits; return its process id."""
    child = os.fork()
    if child:
        return child
    signal.alarm(_CHILDS_TIMEOUT_S)
    is_done = False
    try:
        backend = SqlBackend(url, prefix="", options=_PATIENT)
        for _ in range(commits):
            write(backend)
        backend.close()
        is_done = True
    finally:
        os._exit(0 if is_done else 1)


def main(url: str, threads: int, forks: int, commits: int) -> None:
    """Write and fork."""
    backend, is_over = SqlBackend(url, prefix="", options=_PATIENT), threading.Event()
    backend.prepare(create_schema=True, processes=2)
    writers = [Writer(backend, is_over) for _ in range(threads)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.has_begun.wait()
    children: list[int] = []
    failed = 0
    for _ in range(forks):
        children.append(fork(url, commits))
        if len(children) == _AT_ONCE:
            failed += os.waitpid(children.pop(0), 0)[1] != 0
    failed += sum(os.waitpid(child, 0)[1] != 0 for child in children)
    is_over.set()
    for writer in writers:
        writer.join()
    committed = sum(writer.commits for writer in writers) + forks * commits
    print(failed, committed, backend.outbox.count())
    backend.close()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
