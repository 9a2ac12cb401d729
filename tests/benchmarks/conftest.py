"""What the benchmarks measured, as one table at the end, and as JSON."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from tests.integration.conftest import deploy  # noqa: F401

#: Where the table is written.
TABLE = Path("benchmarks.json")
APPS = Path(__file__).resolve().parent / "apps"


@dataclass(frozen=True)
class Line:
    """One figure."""

    what: str
    figure: str
    target: str
    is_met: bool | None  #: ``None`` where there is no target
    ratio: float | None = None  #: to what it is compared with

    def __str__(self) -> str:
        verdict = {True: "met", False: "MISSED", None: ""}[self.is_met]
        return f"{self.what:<58}{self.figure:>52}  {self.target:<22}{verdict}"


Report = Callable[..., None]


@pytest.fixture
def deployments_folder(tmp_path: Path) -> Path:
    """Keep everything on a disk, as users do."""
    return tmp_path


_lines: list[Line] = []


@pytest.fixture
def report() -> Iterator[Report]:
    """Return a function that adds a line to the table; a target that was missed fails the benchmark at its end."""
    missed: list[Line] = []

    def add(what: str, figure: str, target: str = "", is_met: bool | None = None, ratio: float | None = None) -> None:
        line = Line(what, figure, target, is_met, ratio and round(ratio, 2))
        _lines.append(line)
        if is_met is False:
            missed.append(line)

    yield add
    assert not missed, "\n".join(map(str, missed))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table, and write it as JSON beside it."""
    if _lines:
        terminalreporter.section("benchmarks")
        for line in _lines:
            terminalreporter.write_line(str(line))
        TABLE.write_text(json.dumps([asdict(line) for line in _lines], indent=2))
        terminalreporter.write_line(f"as JSON: {TABLE.resolve()}")
