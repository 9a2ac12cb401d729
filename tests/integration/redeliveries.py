"""What workers say about the messages that they redeliver later, read from their logs: how often, and for how long each time."""

import os
import re
from collections import Counter, defaultdict

from tests.integration.matrices import matrix
from tests.integration.worker import Worker
from tests.waiting import DEADLINE_S, wait_until

#: How often each message is redelivered before what it waits for comes back. Each time takes up to twice as long as the one
#: before, up to half a minute: two times take some seconds, eight take more than a minute.
TIMES = int(os.environ.get("CELERY_SAGAS_TEST_REDELIVERIES", "2"))
PLACES = matrix(("postgresql", "rabbitmq"), ("redis", "redis"))
#: Seconds in which each message is redelivered later as often by the slowest machine.
TIMEOUT_S = DEADLINE_S + sum(min(30.0, 2.0**count) for count in range(TIMES))

#: Warnings and errors of one process about anything else, at most: about what it had just published, and the relay's one.
#: Not counted is that a slow machine leaves messages to the relay.
_OTHERS = 10
#: Half of what a delay is rounded to, and a little. Seconds.
_ROUNDED_S = 0.06
_LINE = re.compile(r"([\w.]+)\[(\S+)\] is redelivered in (\d+\.\d) s: ")
_EXPECTED = re.compile(rf"{_LINE.pattern}|stays? in the outbox")
_WARNING = re.compile(r"^\[.*?: (?:WARNING|ERROR|CRITICAL)/([\w-]+)\]")

#: Message id → seconds by which it was redelivered later, each time.
Redeliveries = dict[str, list[float]]


def redeliveries(worker: Worker, step: str) -> Redeliveries:
    """Return how a worker has redelivered the messages of a step."""
    found: Redeliveries = defaultdict(list)
    for task, message_id, seconds in _LINE.findall(worker.log):
        if task == step:
            found[message_id].append(float(seconds))
    return dict(found)


def wait_redelivered(worker: Worker, step: str, messages: set[str], times: int = TIMES) -> None:
    """Wait until a worker has redelivered each of these messages so often, or oftener."""

    def missing() -> int:
        found = redeliveries(worker, step)
        return sum(len(found.get(message_id, [])) < times for message_id in messages)

    wait_until(lambda: not missing(), lambda: f"{missing()} more redelivered {times} times: {worker.describe()}", TIMEOUT_S)


def assert_no_spinning(worker: Worker, step: str, elapsed_s: float) -> None:
    """Assert that each message is redelivered later for longer each time, comes back no earlier, and costs one line of the log.

    Args:
        worker: The only one that redelivers later messages of the step.
        step: One whose messages nobody sends again under their ids.
        elapsed_s: For how long the worker has run at most.
    """
    for message_id, delays in redeliveries(worker, step).items():
        for count, delay in enumerate(delays):
            assert delay >= min(30.0, 2.0**count) / 2 - _ROUNDED_S, (message_id, delays)
        assert sum(delays[:-1]) <= elapsed_s + _ROUNDED_S * len(delays), (message_id, delays)
    unexpected = [line for line in worker.log.splitlines() if not _EXPECTED.search(line)]
    others = Counter(found[1] for line in unexpected if (found := _WARNING.match(line)))
    assert all(count <= _OTHERS for count in others.values()), f"{others}\n{worker.describe()}"
