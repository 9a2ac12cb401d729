"""A workflow of DBOS waits for a payment while its code changes: under the version that DBOS computes, and under a fixed one."""

import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = """
import os
import sys

from dbos import DBOS, SetWorkflowID

url, version, what, key = sys.argv[1:]
config = {"name": "shop", "system_database_url": url, "log_level": "CRITICAL"}
if version:
    config["application_version"] = version
DBOS(config=config)


@DBOS.step()
def pack() -> str:
    return "packed"


@DBOS.step()
def wrap() -> str:
    return "wrapped"


@DBOS.workflow()
def order() -> list[str]:
    done = [STEPS]
    return [*done, DBOS.recv("payment", timeout_seconds=60)]


DBOS.launch()
if what == "begin":
    with SetWorkflowID(key):
        DBOS.start_workflow(order)
    while len(DBOS.list_workflow_steps(key)) < 1:
        pass
else:
    DBOS.send(key, "paid", "payment")
    DBOS.get_event(key, "never", timeout_seconds=3)  # time enough
    found = DBOS.get_workflow_status(key)
    print(found.status, found.error or found.output or "", flush=True)
os._exit(0)  # as a process that is killed: the workflow is not finished
"""
OLD, NEW = "pack()", "wrap(), pack()"


def run(folder: Path, steps: str, *arguments: str) -> str:
    """Run the program with these steps in its workflow."""
    program = folder / "shop.py"
    program.write_text(PROGRAM.replace("STEPS", steps))
    command = [sys.executable, program, f"sqlite:///{folder}/dbos.sqlite3", *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for whose, version in (("computed version", ""), ("fixed version", "1")):
            for code, steps in (("same code", OLD), ("other code", NEW)):
                key = f"{whose}, {code}"
                run(Path(folder), OLD, version, "begin", key)
                print(f"{key}: {run(Path(folder), steps, version, 'pay', key)}")


if __name__ == "__main__":
    main()
