"""The programs that the documentation shows print what their pages say."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import servers

DOCS = Path(__file__).resolve().parents[2] / "docs"
PROGRAMS = DOCS / "programs"
#: What a reader types, and sees: the name of the program, and its output.
SHOWN = re.compile(r"^```console\n\$ python (\w+)\.py\n(.*?)^```$", re.DOTALL | re.MULTILINE)
OUTPUTS = dict(SHOWN.findall((DOCS / "comparison.md").read_text()) + SHOWN.findall((DOCS / "migrating.md").read_text()))
#: Programs of packages that are no dependency of the tests.
RIVALS = {"batches": "celery_batches", "celery_saga_killed": "celery_saga", "dbos_versions": "dbos"}


@pytest.mark.server
@pytest.mark.parametrize("name", OUTPUTS)
def test_program_prints_what_its_page_says(name: str, redis_url: str, tmp_path: Path) -> None:
    if name in RIVALS:
        pytest.importorskip(RIVALS[name])
    with servers.database("postgresql") as database:
        own = {"BROKER_URL": redis_url, "DATABASE_URL": database, "FOLDER": str(tmp_path), "RUN": servers.unique("docs")}
        done = subprocess.run(
            [sys.executable, PROGRAMS / f"{name}.py"],
            env={**os.environ, **own, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.stdout == OUTPUTS[name], done.stderr


def test_each_program_is_run_or_imported_by_one_that_is() -> None:
    named = {program.stem for program in PROGRAMS.glob("*.py")}
    read = " ".join((PROGRAMS / f"{name}.py").read_text() for name in OUTPUTS)
    assert {name for name in named - set(OUTPUTS) if not re.search(rf"\b{name}\b", read)} == set()
