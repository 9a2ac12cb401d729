"""What a forked process does to become ``python -m celery``: see ``tests/integration/launching.py``, which gives the globals."""

import atexit
import gc
import os
import runpy
import sys
import threading

gc.freeze()  # else each collection of this process, and of its pool, would copy the pages of all that was imported
os.setsid()
os.chdir(folder)  # type: ignore[name-defined]  # noqa: F821
os.environ.clear()
os.environ.update(environment)  # type: ignore[name-defined]  # noqa: F821
output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)  # type: ignore[name-defined]  # noqa: F821
for descriptor, copy in ((input.fileno(), 0), (output, 1), (output, 2)):  # type: ignore[attr-defined]
    os.dup2(descriptor, copy)
sys.dont_write_bytecode = True
sys.path[:0] = [os.getcwd(), *os.environ["PYTHONPATH"].split(os.pathsep)]
sys.argv = ["celery", *arguments]  # type: ignore[name-defined]  # noqa: F821
try:
    runpy.run_module("celery", run_name="__main__", alter_sys=True)
finally:  # as the interpreter does at its end, and multiprocessing does not
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
