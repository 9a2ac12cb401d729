"""A process that lives instances, a number of lives after the other, as often as it is asked."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tests.benchmarks.conftest import APPS


class Block(NamedTuple):
    """The time of a step in some lives. Seconds."""

    median: float
    worst: float  #: 99 of 100 take no longer


@contextmanager
def living(code: str, url: str, prefix: str = "", *, is_traced: bool = False) -> Iterator[subprocess.Popen[str]]:
    """Start a process with the code of a checkout, whose steps are traced or not."""
    command = [sys.executable, str(APPS / "lives.py"), url, prefix, *(["traced"] if is_traced else [])]
    environment = {**os.environ, "PYTHONPATH": code}
    with subprocess.Popen(
        command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=code
    ) as process:
        yield process
        process.communicate()


def block(process: subprocess.Popen[str], lives: int) -> Block:
    """Have it live as many instances."""
    assert process.stdin
    assert process.stdout
    process.stdin.write(f"{lives}\n")
    process.stdin.flush()
    return Block(*map(float, process.stdout.readline().split()))
