"""``celery sagas web``: who may reach it, and what it says if it cannot be."""

import socket
import sys
from typing import Any

import pytest
from celery import Celery

from celery_sagas.web import serving
from tests.cli.test_describe import run


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would be served."""
    sites: list[Any] = []

    def serve(site: Any, listening: socket.socket) -> None:
        sites.append(site)
        listening.close()

    monkeypatch.setattr(serving, "serve", serve)
    return sites


def test_it_prints_a_link(app: Celery, served: list[Any]) -> None:
    result = run(app, "web", "--listen", "127.0.0.1:0")
    assert result.exit_code == 0
    assert result.output.startswith("Open http://127.0.0.1:")
    assert "/login?token=" in result.output
    assert len(served) == 1


def test_others_cannot_reach_it(app: Celery, served: list[Any]) -> None:
    """Unless a proxy knows who they are."""
    for address in ("0.0.0.0:5557", "192.168.1.1:5557", "[::]:5557"):
        result = run(app, "web", "--listen", address)
        assert result.exit_code == 2
        assert "is open to others: give --behind-proxy" in result.output
    assert served == []


@pytest.mark.parametrize("given", [["--behind-proxy", "X-User"], ["--trust", "10.0.0.0/8"], ["--host", "ops.example.com"]])
def test_a_proxy_is_trusted_by_its_address(app: Celery, served: list[Any], given: list[str]) -> None:
    result = run(app, "web", "--listen", "127.0.0.1:0", *given)
    assert result.exit_code == 2
    assert "belong together" in result.output
    assert served == []


def test_behind_a_proxy(app: Celery, served: list[Any]) -> None:
    proxy = ["--behind-proxy", "X-User", "--trust", "127.0.0.0/8", "--host", "ops.example.com"]
    result = run(app, "web", "--listen", "127.0.0.1:0", "--act", *proxy)
    assert result.exit_code == 0, result.output
    assert "for whom a proxy names in X-User" in result.output
    assert "token" not in result.output


@pytest.mark.parametrize("listen", ["5557", "127.0.0.1", "example.com:80", "127.0.0.1:x", "127.0.0.1:65536"])
def test_wrong_addresses(app: Celery, listen: str) -> None:
    result = run(app, "web", "--listen", listen)
    assert result.exit_code == 2
    assert "is no address and port" in result.output


def test_wrong_networks(app: Celery) -> None:
    assert "give a network such as" in run(app, "web", "--trust", "10.0.0.1/8").output


def test_a_port_that_is_taken(app: Celery, served: list[Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        result = run(app, "web", "--listen", f"127.0.0.1:{port}")
    assert result.exit_code == 1
    assert f"Error: 127.0.0.1:{port} cannot be had: Address already in use. Choose another with --listen" in result.output


def test_packages_are_missing(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "celery_sagas.web.serving")
    monkeypatch.delattr("celery_sagas.web.serving")
    result = run(app, "web")
    assert result.exit_code == 1
    assert 'uvicorn halted; None in sys.modules). Run pip install "celery-sagas[web]".' in result.output
