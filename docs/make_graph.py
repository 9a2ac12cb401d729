"""Write the graphs of graph.md anew: ``python docs/make_graph.py``, with what the example needs installed.

Each is the output of the command that stands above it in a comment, run for the example.
"""

import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
#: A comment with a command's arguments, and the block below it.
BLOCK = re.compile(r"(<!-- (celery .*?) -->\n```\w+\n).*?(?=^```$)", re.DOTALL | re.MULTILINE)


def page(folder: Path) -> str:
    """Return the page with its graphs.

    Args:
        folder: Where the example lies.
    """
    text = (DOCS / "graph.md").read_text(encoding="utf-8")
    return BLOCK.sub(lambda block: block[1] + output(block[2].split(), folder), text)


def output(command: list[str], folder: Path) -> str:
    """Return the output of a command; what it warns of goes to the errors of this process."""
    given = [sys.executable, "-m", *command]
    done = subprocess.run(given, cwd=folder, stdout=subprocess.PIPE, check=True, encoding="utf-8")  # noqa: S603
    return done.stdout


if __name__ == "__main__":
    (DOCS / "graph.md").write_text(page(DOCS.parent), encoding="utf-8")
