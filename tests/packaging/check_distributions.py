"""What is published: the wheel and the sdist, which ``tox -e package`` builds, each installed where nothing else is."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
from readme_renderer import markdown

ROOT = Path(__file__).resolve().parents[2]
DIST = Path(os.environ["CELERY_SAGAS_TEST_DIST"])
#: Modules that are used without the package, and what they are in the wheel.
ALONE = {
    "celery_sagas/testing/pytest_plugin.py": "_celery_sagas_pytest.py",
    "celery_sagas/telemetry/probe.py": "_celery_sagas_probe.py",
}
#: What a user has first: the package, its command in Celery's, and the pytest plugin, which needs pytest alone.
FIRST_STEPS = [
    "-c 'import celery_sagas'",
    "-m celery sagas --help",
    "-c 'import importlib.util as i; assert i.find_spec(\"_celery_sagas_pytest\")'",
]


@pytest.fixture(scope="module")
def wheel() -> Path:
    """Return the one wheel."""
    (path,) = DIST.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def sdist() -> Path:
    """Return the one sdist."""
    (path,) = DIST.glob("*.tar.gz")
    return path


@pytest.fixture(scope="module")
def unpacked(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the sdist into a folder that has nothing else."""
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (root,) = folder.iterdir()
    return root


def files(folder: Path) -> set[str]:
    """Return the files below a folder, without those that Python writes."""
    found = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix() for path in found}


def run(command: str, folder: Path) -> str:
    """Run a shell's command where no environment is active; return what it prints."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("VIRTUAL_ENV", "PYTHON"))}
    done = subprocess.run(command, shell=True, cwd=folder, env=outside, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_wheel_has_every_file_of_the_package(wheel: Path):
    """Whatever its kind: the marker of types, the scripts, and what is shown to people. Some are modules of their own."""
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {f"celery_sagas/{name}" for name in files(ROOT / "celery_sagas")}
    assert packed == {ALONE.get(name, name) for name in expected}


def test_sdist_has_every_file_that_git_has(unpacked: Path):
    """Or will have: those that are not ignored."""
    if not (ROOT / ".git").exists() or not shutil.which("git"):
        pytest.skip("this is no clone, or there is no git")
    listed = run("git -c safe.directory='*' ls-files --cached --others --exclude-standard", ROOT).splitlines()
    assert files(unpacked) == {name for name in listed if (ROOT / name).exists()} | {"PKG-INFO"}


def test_readme_on_pypi_has_no_relative_link(wheel: Path):
    """Each link that leads out of the README is absolute, and each within it has its target."""
    (metadata,) = (name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".dist-info/METADATA"))
    text = message_from_bytes(zipfile.ZipFile(wheel).read(metadata)).get_payload(decode=True).decode()
    page = markdown.render(text)
    assert page is not None
    targets = re.findall(r'(?:href|src)="([^"]*)"', page)
    assert len(targets) > 10
    assert [target for target in targets if not re.match(r"https://|#", target)] == []
    assert "```mermaid" not in text, "PyPI draws no diagrams: show a picture instead"
    assert "<!--" not in page


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_it_works_where_nothing_else_is_installed(kind: str, request: pytest.FixtureRequest, tmp_path: Path):
    """Without any extra, outside the clone."""
    run(f"uv venv --quiet --python {sys.executable} alone", tmp_path)
    run(f"uv pip install --quiet --python alone/bin/python '{request.getfixturevalue(kind)}'", tmp_path)
    for step in FIRST_STEPS:
        run(f"alone/bin/python -W error {step}", tmp_path)


def test_readmes_first_command_starts_from_the_sdist(unpacked: Path):
    """With a Python that has nothing else installed; the second one makes its environment in the same way."""
    commands = re.findall(r"^(python3 \.ci/env\.py -m \w+) ", (unpacked / "README.md").read_text(), flags=re.MULTILINE)
    assert len(commands) == 2
    assert "--operate" in run(commands[0].replace("python3", f"{sys.base_prefix}/bin/python3", 1) + " --help", unpacked)
