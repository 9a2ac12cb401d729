"""Run a command of this project in a private environment that this script makes (only the standard library is needed).

    python3 .ci/env.py -m example_project [options]
    python3 .ci/env.py -m tox [options]

The environment lies in ``.venv/<command>`` of the clone. It is made on the first run, and made again when it is not complete,
when pyproject.toml has changed, or when another Python runs this script.
"""

import contextlib
import fcntl
import glob
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys

if sys.version_info < (3, 11):  # noqa: UP036 - older Pythons must be able to say so
    sys.exit(f"celery-sagas needs Python 3.11 or later; this is {sys.version.split()[0]} ({sys.executable}).")

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

#: what ``pip install`` is given for each command
NEEDS = {
    "example_project": ["--editable", ".[redis,postgresql,mysql]", "kombu[redis]", "rich>=13"],
    "tox": ["tox>=4.30", "tox-uv>=1.20"],  # uv makes an environment of tox's in seconds, where pip takes half a minute
}
#: uv trusts the certificates that the system does, as pip may be told to, and takes only the Pythons that are there
SETTINGS = {"UV_SYSTEM_CERTS": "1", "UV_PYTHON_DOWNLOADS": "never"}
USAGE = f"usage: python3 .ci/env.py -m {{{','.join(NEEDS)}}} [options]"
SILENT = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
NO_PIP = """This Python can neither make an environment with pip in it nor lend its own pip.
Install what is missing and run the same command again; on Debian and Ubuntu: sudo apt-get install python3-venv"""


def main(arguments):
    """Make the environment of the command if need be, and become the command."""
    if len(arguments) < 2 or arguments[0] != "-m" or arguments[1] not in NEEDS:
        sys.exit(USAGE)
    os.chdir(ROOT)
    name = arguments[1]
    folder = os.path.join(ROOT, ".venv", name)
    with locked(os.path.join(ROOT, ".venv", f"{name}.lock")):
        if not complete(folder, name):
            build(folder, name)
    python = python_of(folder)
    for variable, value in SETTINGS.items():
        os.environ.setdefault(variable, value)
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), *pyenvs_pythons()])
    sys.stdout.flush()
    os.execv(python, [python, *arguments])  # noqa: S606 - exit code and signals pass through


def pyenvs_pythons():
    """Return the folders of pyenv's interpreters: its shims show only one of them, and tox looks for others."""
    root = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    return sorted(glob.glob(os.path.join(glob.escape(root), "versions", "3.*", "bin")))


@contextlib.contextmanager
def locked(path):
    """Let one process at a time make an environment; a process that is killed gives the lock back."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("waiting for another process that makes the same environment")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def complete(folder, name):
    """Tell whether the environment was finished and is still the right one."""
    try:
        with open(stamp_of(folder)) as stamp:
            return json.load(stamp) == identity(name) and os.access(python_of(folder), os.X_OK)
    except (OSError, ValueError):
        return False


def identity(name):
    """Describe everything that the environment depends on."""
    with open(os.path.join(ROOT, "pyproject.toml"), "rb") as project:
        digest = hashlib.sha256(project.read()).hexdigest()
    return {"root": ROOT, "python": [sys.version, sys.base_prefix], "needs": NEEDS[name], "pyproject": digest}


def build(folder, name):
    """Make the environment; its stamp is written last."""
    say(f"making .venv/{name} with Python {sys.version.split()[0]}")
    pip = with_own_pip(folder) or with_outer_pip(folder) or with_debians_package(folder)
    if not pip:
        sys.exit(NO_PIP)
    say("installing " + " ".join(need for need in NEEDS[name] if not need.startswith("--")))
    install = [*pip, "install", "--quiet", "--disable-pip-version-check", "--no-input", *NEEDS[name]]
    if not succeeds(install, env={**os.environ, "PIP_USER": "0"}):
        sys.exit("pip could not install what is needed; its reason stands above.")
    with open(stamp_of(folder), "w") as stamp:
        json.dump(identity(name), stamp)


def with_own_pip(folder):
    """Make an environment with a pip of its own."""
    if importlib.util.find_spec("ensurepip") is None:
        return None
    empty(folder)
    made = succeeds([sys.executable, "-m", "venv", folder], **SILENT)
    return [python_of(folder), "-m", "pip"] if made else None


def with_outer_pip(folder):
    """Make an environment without pip, for Pythons without ensurepip: the pip outside installs into it."""
    empty(folder)
    pip = [sys.executable, "-m", "pip", "--python", python_of(folder)]
    make = [sys.executable, "-m", "venv", "--without-pip", folder]
    return pip if succeeds(make, **SILENT) and succeeds([*pip, "--version"], **SILENT) else None


def with_debians_package(folder):
    """Install Debian's python3-venv if we may, and make the environment with it."""
    if os.geteuid() != 0 or not shutil.which("apt-get") or not sys.executable.startswith("/usr/bin/"):
        return None
    say("installing Debian's package python3-venv")
    quiet = {"stdout": subprocess.DEVNULL, "env": {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}}
    succeeds(["apt-get", "update", "-qq"], **quiet)
    installed = succeeds(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "python3-venv"], **quiet)
    importlib.invalidate_caches()
    return with_own_pip(folder) if installed else None


def empty(folder):
    """Remove what an interrupted run or another Python left there."""
    shutil.rmtree(folder, ignore_errors=True)


def succeeds(command, **options):
    """Run a command, tell whether it succeeded."""
    return subprocess.run(command, stdin=subprocess.DEVNULL, check=False, **options).returncode == 0  # noqa: S603


def python_of(folder):
    """Return the path of the environment's interpreter."""
    return os.path.join(folder, "bin", "python")


def stamp_of(folder):
    """Return the path of the file that says the environment is complete."""
    return os.path.join(folder, "celery-sagas.json")


def say(text):
    """Print one line of progress."""
    print(f"[.ci/env] {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
