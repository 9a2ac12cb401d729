"""The folder in which the processes of a worker count."""

import sys
from pathlib import Path

import pytest

from celery_sagas.errors import ConfigurationError
from celery_sagas.telemetry.multiprocess import VARIABLE, Folder


@pytest.mark.parametrize("path", ["/proc", "/proc/missing", __file__])
def test_folder_that_cannot_be_written_is_refused(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it is there."""
    monkeypatch.delitem(sys.modules, "prometheus_client.values", raising=False)
    monkeypatch.setenv(VARIABLE, path)
    with pytest.raises(ConfigurationError, match=f"cannot be written.*Set {VARIABLE} to a folder of this worker alone"):
        Folder()
    assert Path(__file__).exists()
