"""``celery-sagas-probe PATH``: says by its exit status whether a worker goes on. It is shipped as a module of its own.

A probe runs every few seconds: it imports neither the app nor Celery, which this package imports.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Look at the files of a worker; return 0 if it goes on, else 1. Wrong arguments end the process with 2."""
    parser = argparse.ArgumentParser("celery-sagas-probe", description="Exit with 0 if a worker goes on, else with 1.")
    parser.add_argument("path", metavar="PATH", help="the value of saga_heartbeat")
    parser.add_argument("--max-age", type=float, default=30.0, metavar="SECONDS", help="since it has touched PATH.alive (30)")
    parser.add_argument("--ready", action="store_true", help="and it must take messages: there is PATH.ready")
    given = parser.parse_args(arguments)
    problem = _problem(given.path, given.max_age, given.ready)
    if problem:
        print(problem, file=sys.stderr)
    return 1 if problem else 0


def _problem(path: str, max_age_s: float, wants_ready: bool) -> str:
    try:
        age_s = abs(time.time() - os.stat(f"{path}.alive").st_mtime)  # a clock may have been set back
        if age_s > max_age_s:
            return f"{path}.alive was touched {age_s:.0f} s ago: the worker hangs, or has ended"
        if wants_ready:
            os.stat(f"{path}.ready")
    except OSError as exc:
        return f"{exc.filename}: {exc.strerror}: no worker has started with this saga_heartbeat, or takes messages"
    return ""


if __name__ == "__main__":
    sys.exit(main())
