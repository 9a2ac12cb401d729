"""A process, or a thread, without a Celery app of its own: Celery makes one there, which knows nothing."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.waiting import PROGRAM_S

_SAGA = """
import json, sys, threading
from celery import Celery, current_app
from celery_sagas import Batch, Message, Saga, aggregator, publish

class Order(Saga, correlate_by="order_id"):
    order_id: str

class Placed(Message):
    order_id: str

@Order.starts
def place(order: Order, order_id: str) -> None: ...

@aggregator(size=2)
def store(batch: Batch[int]) -> None: ...

CALLS = {
    "find": lambda: Order.find("42"),
    "outcome": lambda: Order.outcome("42"),
    "wait": lambda: Order.wait("42", until="completed", timeout=0),
    "delay": lambda: place.delay("42"),
    "apply_async": lambda: place.apply_async(("42",), countdown=3),
    "signature": lambda: place.s("42").delay(),
    "call": lambda: place("42"),
    "publish": lambda: publish(Placed(order_id="42")),
    "add": lambda: store.add(1),
    "aggregator's delay": lambda: store.delay(1),
    "aggregator's signature": lambda: store.s(1).delay(),
}

def errors():
    told = {}
    for name, call in CALLS.items():
        try:
            call()
        except Exception as exc:
            told[name] = f"{type(exc).__name__}: {exc}"
        else:
            told[name] = ""
    return told

def in_thread():
    told = []
    thread = threading.Thread(target=lambda: told.append(errors()))
    thread.start()
    thread.join()
    return told[0]
"""
_NO_APP = f"{_SAGA}\nprint(json.dumps(errors()))"
_THREAD = f"""{_SAGA}
app = Celery("shop", broker="memory://")
app.conf.saga_backend = "memory://"
before = in_thread()
app.set_default()
print(json.dumps([before, in_thread()]))
"""
_CONFIGURED = f"""{_SAGA}
current_app.conf.update(broker_url="memory://", saga_backend="memory://")
print(json.dumps(errors()))
"""
CALLS = ["find", "outcome", "wait", "delay", "apply_async", "signature", "call", "publish", "add"]
CALLS += ["aggregator's delay", "aggregator's signature"]


def _run(program: str) -> Any:
    """Run a program in a process of its own; return what it prints."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=PROGRAM_S)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def no_app() -> Any:
    """What was said where no app was made."""
    return _run(_NO_APP)


@pytest.fixture(scope="module")
def thread() -> Any:
    """What was said in a thread that has not made the app, before and after it became the default one."""
    return _run(_THREAD)


@pytest.mark.parametrize("call", CALLS)
def test_no_app_was_made(no_app: Any, call: str) -> None:
    """Celery would publish to a broker on this machine."""
    assert no_app[call] == (
        "ConfigurationError: no Celery app was made in this process. "
        "Import the module that makes it first; under Django, the project's __init__.py does."
    )


@pytest.mark.parametrize("call", CALLS)
def test_app_was_made_in_another_thread(thread: Any, call: str) -> None:
    """Celery knows it there alone."""
    assert thread[0][call] == (
        "ConfigurationError: the Celery app 'shop' is not the current one in this thread. "
        "Call its set_default() where it is made: then it is the app of every thread."
    )


@pytest.mark.parametrize("call", CALLS)
def test_default_app_is_that_of_every_thread(thread: Any, call: str) -> None:
    """Nothing is said of it."""
    assert thread[1][call].partition(":")[0] == ("WaitTimeout" if call == "wait" else "")


def test_celerys_own_app_may_be_configured() -> None:
    """By a ``celeryconfig`` module, say."""
    told = _run(_CONFIGURED)
    assert [call for call in CALLS if told[call]] == ["wait"]
