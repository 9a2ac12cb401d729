"""What a forked process does to go on as another interpreter: see ``tests/integration/launching.py``, which gives ``launch``."""

import atexit
import gc
import os
import runpy
import sys
import threading
from typing import Any

given: dict[str, Any] = launch  # type: ignore[name-defined]  # noqa: F821
arguments: list[str] = given["arguments"]

gc.freeze()  # else each collection of this process, and of its pool, would copy the pages of all that was imported
os.setsid()
os.chdir(given["folder"])
os.environ.clear()
os.environ.update(given["environment"])
os.dup2(given["input"].fileno(), 0)
for stream, descriptor in (("output", 1), ("errors", 2)):
    os.dup2(os.open(given[stream], os.O_WRONLY | os.O_APPEND), descriptor)
sys.stdin = open(0, closefd=False)  # noqa: SIM115 - multiprocessing has put another in its place
sys.dont_write_bytecode = True
sys.path[:0] = [os.getcwd(), *os.environ["PYTHONPATH"].split(os.pathsep)]
try:
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")
finally:  # as the interpreter does at its end, and multiprocessing does not
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
