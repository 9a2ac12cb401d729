"""The counters of a pool of processes, which each process writes to files of its own: one folder for each worker.

The files of processes that have ended are added up in one, so that they do not grow in number, and no count is lost.
"""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryFile, mkdtemp
from typing import Any, Final

from celery_sagas.errors import ConfigurationError

#: What prometheus_client reads when it is imported: several processes count.
VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"
#: Stands for the processes that have ended, in the names of files.
_ENDED: Final = "ended"
#: Kinds of files whose values are sums.
_SUMS: Final = ("counter", "histogram", "summary")


class Folder:
    """The folder in which the processes of a worker count.

    Raises:
        ConfigurationError: prometheus_client was imported before the folder was known, or it cannot be written.
    """

    def __init__(self) -> None:
        given = os.environ.get(VARIABLE)
        _check_import()
        try:
            self.path = Path(given or mkdtemp(prefix="celery-sagas-metrics-"))
            self.path.mkdir(parents=True, exist_ok=True)
            self._is_private = not given
            self._own = os.getpid()
            self._folding = threading.Lock()
            self._empty()
            TemporaryFile(dir=self.path).close()  # prometheus_client makes its files when it is imported
        except OSError as exc:
            raise ConfigurationError(
                f"the folder of the metrics cannot be written: {exc}", f"Set {VARIABLE} to a folder of this worker alone"
            ) from exc
        os.environ[VARIABLE] = str(self.path)

    def _empty(self) -> None:
        """Remove what an earlier run has left; this process may have begun to count."""
        for file, _, process in self._files():
            if process != str(self._own):
                file.unlink(missing_ok=True)

    def _files(self) -> Iterator[tuple[Path, str, str]]:
        """Yield each file, with the kind of its values, and its process."""
        for file in self.path.glob("*.db"):
            kind, _, process = file.stem.rpartition("_")
            yield file, kind, process

    def collect(self) -> Any:
        """Return the metrics of all processes."""
        multiprocess: Any = import_module("prometheus_client.multiprocess")
        with self._folding:
            return list(multiprocess.MultiProcessCollector(None, str(self.path)).collect())

    def fold(self) -> None:
        """Add up the files of processes that have ended."""
        with self._folding:
            for file, kind, process in list(self._files()):
                if process.isdigit() and int(process) != self._own and not _is_alive(int(process)):
                    self._fold(file, kind, int(process))

    def _fold(self, file: Path, kind: str, process: int) -> None:
        multiprocess: Any = import_module("prometheus_client.multiprocess")
        values: Any = import_module("prometheus_client.mmap_dict").MmapedDict
        if kind not in _SUMS:
            multiprocess.mark_process_dead(process, str(self.path))  # removes the gauges of living processes
            return
        sums = values(str(self.path / f"{kind}_{_ENDED}.db"))
        try:
            for key, value, *_ in values.read_all_values_from_file(str(file)):
                sums.write_value(key, sums.read_value(key)[0] + value, 0.0)
            file.unlink()
        finally:
            sums.close()

    def close(self) -> None:
        """Remove the folder, unless it was given."""
        if self._is_private and os.getpid() == self._own:
            with suppress(OSError):
                rmtree(self.path)


def _check_import() -> None:
    values: Any = sys.modules.get("prometheus_client.values")
    if values is not None and not getattr(values.ValueClass, "_multiprocess", False):
        raise ConfigurationError(
            f"prometheus_client was imported before {VARIABLE} was set: what the processes of the pool count would be lost",
            f"Set {VARIABLE} in the environment of the worker, to a folder of this worker alone; or import prometheus_client "
            "in the functions that use it",
        )


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's: the number was given away
        return True
    return True
