"""Plant the faults of ``mutations.py`` one after the other, and see which of them the tests notice.

The tree stays as it is: each job works on a copy of its own. A fault is noticed if a test fails with it that passes without it,
or if tests cannot be imported any more.
"""

import argparse
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from queue import Queue
from typing import NamedTuple

from mutations import MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "celery_sagas"
COPIED = (PACKAGE, "tests", "pyproject.toml")
#: Seconds after which a test fails that does not end, and after which a whole run of tests is ended.
TEST_S, RUN_S = 300, 3600
#: Exit codes of pytest: tests have failed; it was interrupted, as by tests that cannot be imported.
FAILED, INTERRUPTED = 1, 2
#: How pytest names a test in its summary; a file, if that cannot be imported.
_BLAMED = re.compile(r"^(?:FAILED|ERROR) \S*?(?P<test>tests/\S+?\.py(?:::.+?)?)(?: - .*)?$", re.MULTILINE)

KILLED, SURVIVED, STALE, BROKEN = "killed", "survived", "stale", "error"


class Run(NamedTuple):
    """One run of pytest."""

    paths: tuple[str, ...]
    only: str = ""  #: what ``-k`` selects


class Outcome(NamedTuple):
    """What came of one run of pytest."""

    status: str
    test: str = ""  #: that failed
    text: str = ""  #: what pytest wrote


@dataclass(frozen=True)
class Result:
    """What came of one mutation."""

    number: int
    mutation: Mutation
    status: str
    stage: int = 0  #: in which a test has failed
    test: str = ""
    seconds: float = 0.0
    text: str = ""  #: what pytest wrote, if that has to be looked at

    def __str__(self) -> str:
        where = f"stage {self.stage}  {self.test}" if self.status == KILLED else ""
        head = f"{self.number:3} {self.status:<9}{self.mutation.area:<10}{self.mutation.file:<44}{self.seconds:5.0f} s  {where}"
        return head.rstrip() + (f"\n{self.text[-2_000:]}" if self.status == BROKEN else "")


ENGINE, WORKER = ("tests/core", "tests/engine", "tests/stores/memory"), ("tests/worker", "tests/cli")
SQLITE = Run(("tests/stores/sql",), "not postgresql and not mariadb")
SQL_SERVERS = Run(("tests/stores/sql",), "postgresql or mariadb")
REDIS = Run(("tests/stores/redis",), "redis and not fake_redis and not redis62 and not redis_cluster")
OTHER_REDIS = Run(("tests/stores/redis",), "fake_redis or redis62 or redis_cluster")
EVERYTHING_ELSE = Run((*ENGINE, *WORKER))
INTEGRATION = Run(("tests/integration",))


def stages_of(file: str) -> list[list[Run]]:
    """Return the runs of each stage, those first that are most likely to notice a fault in a file."""
    if file.startswith("stores/redis/"):
        return [[REDIS], [OTHER_REDIS, EVERYTHING_ELSE], [INTEGRATION]]
    if file.startswith("stores/sql/"):
        return [[SQLITE], [SQL_SERVERS, EVERYTHING_ELSE], [INTEGRATION]]
    if file.startswith("core/"):
        return [[EVERYTHING_ELSE, SQLITE], [SQL_SERVERS, REDIS, OTHER_REDIS], [INTEGRATION]]
    folders = (*WORKER, *ENGINE) if file.startswith("worker/") else (*ENGINE, *WORKER)
    return [[Run(folders)], [], [INTEGRATION]]  # stores know nothing of what is above them, nor do their tests


class Copy:
    """A copy of the tree, in which one job plants one fault at a time."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name in COPIED:
            _copy(tree / name, folder / name)

    def examine(self, number: int, mutation: Mutation, stages: int) -> Result:
        """Plant a fault, run the tests until one notices it, and put the file back."""
        began, file = time.monotonic(), self.folder / PACKAGE / mutation.file
        original = file.read_text("utf-8")
        try:
            _write(file, original.replace(mutation.old, mutation.new))
            result = self._look(Result(number, mutation, SURVIVED), stages)
        finally:
            _write(file, original)
        if result.status == KILLED:
            result = self._doubt(result)
        return replace(result, seconds=time.monotonic() - began)

    def _look(self, result: Result, stages: int) -> Result:
        for stage, runs in enumerate(stages_of(result.mutation.file)[:stages], 1):
            for run in runs:
                outcome = self.test(run)
                if outcome.status != SURVIVED:
                    return replace(result, status=outcome.status, stage=stage, test=outcome.test, text=outcome.text)
        return result

    def _doubt(self, result: Result) -> Result:
        """Run the test that failed without the fault: if it fails too, it tells nothing."""
        outcome = self.test(Run((result.test,)))
        if outcome.status == SURVIVED:
            return replace(result, text="")
        return replace(result, status=BROKEN, text=f"{result.test} fails without the mutation too:\n{outcome.text}")

    def test(self, run: Run) -> Outcome:
        """Run tests until one fails, from an empty folder: what is imported is in this copy, and nowhere else."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", f"--timeout={TEST_S}"]
        command += ["-c", str(self.folder / "pyproject.toml"), *(["-k", run.only] if run.only else [])]
        command += [str(self.folder / path) for path in run.paths]
        with tempfile.TemporaryDirectory() as empty:
            return outcome_of(*_run(command, {**os.environ, "PYTHONPATH": str(self.folder)}, empty))


def outcome_of(code: int, text: str) -> Outcome:
    """Read what pytest says: only a failed test, or one that cannot be imported, notices a fault."""
    if code == 0:
        return Outcome(SURVIVED)
    blamed = _BLAMED.search(text)
    is_import_error = code == INTERRUPTED and "during collection" in text
    if blamed and (code == FAILED or is_import_error):
        return Outcome(KILLED, blamed["test"], text)
    return Outcome(BROKEN, text=f"pytest ended with the code {code}:\n{text}")


def _run(command: Sequence[str], environment: dict[str, str], folder: str) -> tuple[int, str]:
    """Run a command with its children in a group of their own, which ends with it."""
    with subprocess.Popen(
        command,
        env=environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            text, _ = process.communicate(timeout=RUN_S)
        except subprocess.TimeoutExpired:
            text = f"it has not ended within {RUN_S} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, text


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


def _write(file: Path, text: str) -> None:
    """Change a file, and forget what it was compiled to: that is told apart by whole seconds."""
    file.write_text(text, "utf-8")
    Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)


def is_stale(tree: Path, mutation: Mutation) -> bool:
    """Tell whether a mutation's text does not stand exactly once in its file."""
    file = tree / PACKAGE / mutation.file
    return not file.is_file() or file.read_text("utf-8").count(mutation.old) != 1


def chosen(only: Sequence[str]) -> list[tuple[int, Mutation]]:
    """Return the mutations of some areas, or with some numbers, from 1; of none: all."""
    numbered = list(enumerate(MUTATIONS, 1))
    known = {mutation.area for mutation in MUTATIONS} | {str(number) for number, _ in numbered}
    if unknown := set(only) - known:
        raise SystemExit(f"no area and no number: {', '.join(sorted(unknown))}; known: {', '.join(sorted(known))}")
    return [(number, mutation) for number, mutation in numbered if not only or {mutation.area, str(number)} & set(only)]


def is_green(copy: Copy, mutations: Iterable[Mutation]) -> bool:
    """Run the first stages of mutations without any: a test that fails by itself notices nothing."""
    runs = {(frozenset(run.paths), run.only): run for mutation in mutations for run in stages_of(mutation.file)[0]}
    for run in runs.values():
        outcome = copy.test(run)
        if outcome.status != SURVIVED:
            print(outcome.text[-5_000:], f"\nThe tests are red without any mutation: {outcome.test or run}")
            return False
    return True


def examine_all(copies: Sequence[Copy], mutations: Sequence[tuple[int, Mutation]], stages: int) -> list[Result]:
    """Examine mutations, as many at once as there are copies; print a line for each."""
    free: Queue[Copy] = Queue()
    for copy in copies:
        free.put(copy)
    telling = threading.Lock()

    def examine(number: int, mutation: Mutation) -> Result:
        copy = free.get()
        try:
            result = copy.examine(number, mutation, stages)
        finally:
            free.put(copy)
        with telling:
            print(result, flush=True)
        return result

    with ThreadPoolExecutor(len(copies)) as pool:
        return list(pool.map(lambda each: examine(*each), mutations))


def summary(results: Sequence[Result]) -> str:
    """Return how many mutations were noticed, in all and by area, and which were not."""
    lines = ["", f"killed {_killed(results)} of {len(results)}"]
    for area in dict.fromkeys(result.mutation.area for result in results):
        of_area = [result for result in results if result.mutation.area == area]
        lines.append(f"  {area:<10}{_killed(of_area)} of {len(of_area)}")
    for result in results:
        if result.status != KILLED:
            lines += ["", f"{result.number} {result.status}: {result.mutation.file}", f"  {result.mutation.breaks}"]
    return "\n".join(lines)


def _killed(results: Iterable[Result]) -> int:
    return sum(result.status == KILLED for result in results)


def _described(result: Result) -> dict[str, object]:
    return {**asdict(result), "mutation": result.mutation._asdict()}


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tree", type=Path, default=ROOT, help="the clone that is copied (default: this one)")
    parser.add_argument("--only", nargs="+", default=[], metavar="AREA", help="areas, or numbers, of the mutations to plant")
    parser.add_argument("--stages", type=int, choices=(1, 2, 3), default=3, help="fast; all stores; real workers (default: 3)")
    parser.add_argument("--jobs", type=int, default=1, help="how many mutations are examined at once")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the results are written")
    parser.add_argument("--skip-baseline", action="store_true", help="do not run the tests without a mutation first")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    """Examine the mutations that were asked for; return 0 if all of them were noticed."""
    arguments = _arguments(given)
    mutations = chosen(arguments.only)
    stale = [Result(number, each, STALE) for number, each in mutations if is_stale(arguments.tree, each)]
    for result in stale:
        print(result)
    numbers = {result.number for result in stale}
    fresh = [(number, each) for number, each in mutations if number not in numbers]
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        copies = [Copy(arguments.tree, Path(folder) / f"tree-{job}") for job in range(arguments.jobs)]
        if not arguments.skip_baseline and not is_green(copies[0], [each for _, each in fresh]):
            return 1
        results = sorted([*stale, *examine_all(copies, fresh, arguments.stages)], key=lambda result: result.number)
    print(summary(results))
    if arguments.json:
        arguments.json.write_text(json.dumps([_described(result) for result in results], indent=1))
    return int(_killed(results) < len(results))


if __name__ == "__main__":
    sys.exit(main())
