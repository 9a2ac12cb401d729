"""The Lua scripts: one file for each operation, in the folder of its concept, with the parts that it uses.

Each run of a script defines its functions again, which takes longer than most commands do: a part that few calls need stands
behind the point where the others have returned.
"""

from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

_FOLDER: Final = files("celery_sagas.stores.redis") / "lua"
_PARTS: Final = "parts"
#: A line of a script in whose place parts stand, in this order.
_USES: Final = "-- uses: "
#: A line in whose place another script stands, as the body of a function.
_RUNS: Final = "-- runs: "


@dataclass(frozen=True, slots=True)
class Script:
    """A script as the server keeps it."""

    name: str
    source: str
    sha: str


@cache
def load(name: str) -> Script:
    """Read a script from the package."""
    source = "\n".join(_expanded(line) for line in _files()[name].read_text("utf-8").splitlines())
    return Script(name, source, sha1(source.encode(), usedforsecurity=False).hexdigest())


def names() -> list[str]:
    """Return the names of all scripts, sorted."""
    return sorted(_files())


def _expanded(line: str) -> str:
    if line.startswith(_RUNS):
        return load(line.removeprefix(_RUNS)).source
    if not line.startswith(_USES):
        return line
    return "\n".join((_FOLDER / _PARTS / f"{part}.lua").read_text("utf-8") for part in line.removeprefix(_USES).split())


@cache
def _files() -> dict[str, Traversable]:
    """Return the scripts by their names, which are unique in all folders."""
    folders = (folder for folder in _FOLDER.iterdir() if folder.is_dir() and folder.name != _PARTS)
    return {file.name.removesuffix(".lua"): file for folder in folders for file in folder.iterdir() if file.name.endswith(".lua")}
