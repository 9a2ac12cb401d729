"""Real worker processes, and what they share: a broker, a queue of its own, a backend and a prefix of its own."""

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from celery import Celery, signature
from kombu.exceptions import ChannelError
from kombu.utils.json import loads

import tests.integration.apps.whole_files  # noqa: F401 - for its effect
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import KEY, Entry, Lookup, Record
from celery_sagas.stores.urls import open_backend
from tests.integration.handled import counting
from tests.integration.launching import Forked, Process, Started
from tests.integration.matrices import IS_FULL
from tests.servers import unique
from tests.waiting import DEADLINE_S, wait_until

#: Where the worker processes find their app modules, wherever they run.
APPS = Path(__file__).resolve().parent / "apps"
_LOG_TAIL = 4_000
#: How the URL of a broker begins that is a Redis server.
REDIS = ("redis", "sentinel")
#: The sagas in ``apps`` that are not spread over shards.
_WITH_ALTERNATE_KEYS = ("order",)
#: Later than the end of any lease. Milliseconds.
_MUCH_LATER_MS = 3_600_000
#: For how long a process's stacks are waited for: one that is frozen writes none. Seconds.
_STACKS_S = 5.0
#: Where many processes start at once, each of them takes long. Seconds.
_STARTED_S = 150.0
#: What Celery logs when a message comes, and when it is done.
_RECEIVED, _DONE = re.compile(r" Task \S+\[(\S+)\] received$", re.MULTILINE), re.compile(r" Task \S+\[(\S+)\] succeeded in ")
#: Each process of a pool may wait for 30 s until the main process has read its results; one that stops may not do so. Seconds.
_ENDED_S = 150.0


class Worker:
    """One ``celery worker``, another command, or a script, in a process group of its own."""

    def __init__(self, process: Callable[[Path, Path, dict[str, str]], Process], folder: Path, name: str) -> None:
        self.name = name
        self._output = folder / f"{name}.output"
        self._log = folder / f"{name}.log"
        self._ready = folder / f"{name}.ready"
        self._process = process(self._output, self._log, {"CELERY_SAGAS_TEST_READY": str(self._ready)})

    @property
    def pid(self) -> int:
        """The main process."""
        return self._process.pid

    @property
    def output(self) -> str:
        """What it has written to its standard output: of a worker the banner."""
        return self._output.read_text(errors="replace")

    @property
    def log(self) -> str:
        """What it has written to its standard error: of a worker its log."""
        return self._log.read_text(errors="replace")

    @property
    def is_ready(self) -> bool:
        """Whether it consumes."""
        return self._ready.exists()

    @property
    def ready_at(self) -> float:
        """When it began to consume, in seconds since the epoch."""
        return self._ready.stat().st_mtime

    @property
    def is_running(self) -> bool:
        """Whether its main process has not ended."""
        return self._process.poll() is None

    def wait_ready(self, deadline_s: float = _STARTED_S) -> "Worker":
        """Wait until it consumes."""
        wait_until(lambda: self.is_ready or not self.is_running, self.describe, deadline_s)
        assert self.is_running, self.describe()
        return self

    def wait_logged(self, text: str, deadline_s: float = DEADLINE_S) -> None:
        """Wait until its log contains a text."""
        wait_until(lambda: text in self.log, lambda: f"{text!r} in the log of {self.describe()}", deadline_s)

    def wait_written(self, text: str) -> None:
        """Wait until its output contains a text."""
        wait_until(lambda: text in self.output, lambda: f"{text!r} in the output of {self.describe()}")

    def wait_ended(self, deadline_s: float = _ENDED_S) -> int:
        """Wait until it has ended by itself, and return its exit code."""
        wait_until(lambda: not self.is_running, lambda: f"the end of {self.describe()}", deadline_s)
        code = self._process.poll()
        assert code is not None
        return code

    def children(self) -> list[int]:
        """Return the processes of its pool."""
        listed = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [int(pid) for pid in listed]

    def stacks(self) -> str:
        """Have its processes write the stacks of their threads; return these, and the log until then. For a test that has failed.

        Those of the pool come first: what the main process waits for is there.
        """
        if not self.is_running:
            return self.describe()
        seen = len(self.log)
        for pid in (*self.children(), self.pid):
            written = len(self.log)
            with contextlib.suppress(ProcessLookupError, AssertionError):
                os.kill(pid, signal.SIGURG)
                wait_until(lambda written=written: _is_whole(self.log[written:]), "the stacks", _STACKS_S)
        log = self.log
        return f"{log[seen:]}--- its log before\n{log[max(0, seen - _LOG_TAIL) : seen]}"

    def tell(self, line: str) -> None:
        """Write a line to its standard input."""
        self._process.write(line)

    def tell_end(self) -> None:
        """End its standard input."""
        self._process.end_input()

    def stop(self) -> int:
        """End it as a user does, and return its exit code."""
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            if self.is_running:
                os.kill(self.pid, signal.SIGTERM)
        return self.wait_ended()

    def has_done_all(self, at_least: int) -> bool:
        """Whether it has received so many messages, and each that it has received has succeeded, by its log."""
        log = self.log
        received, done = _RECEIVED.findall(log), _DONE.findall(log)
        return len(received) >= at_least and set(received) <= set(done)

    def freeze(self) -> None:
        """Have it stand still, its pool included: it runs nothing and starts nothing."""
        os.killpg(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on after a freeze."""
        os.killpg(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End it, its pool included, as a crash does."""
        self._process.kill()

    def describe(self) -> str:
        """Describe where it stands, for a failed test."""
        return f"{self.name} (exit code {self._process.poll()}):\n{self.output[-_LOG_TAIL:]}{self.log[-_LOG_TAIL:]}"


def _is_whole(stacks: str) -> bool:
    """Tell whether ``faulthandler`` has written everything: the main thread comes last."""
    return " in <module>" in stacks.partition("Current thread ")[2]


@dataclass
class Deployment:
    """One broker's queue and one backend's prefix, seen from outside and shared by the workers that are started on it."""

    broker: str
    backend_url: str
    folder: Path
    app: str  #: a module in ``apps``
    settings: dict[str, Any] = field(default_factory=dict)  #: of the workers
    name: str = field(default_factory=lambda: unique("sagas"))  #: of the queue and the prefix
    paths: list[str] = field(default_factory=list)  #: where the workers look for modules first
    workers: list[Worker] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.client = Celery(self.name, set_as_current=False)
        self.client.conf.update(self._common())
        self.queues = [self.name]
        #: Its clock is ahead: no lease of a worker lasts.
        self.later: Backend = self._open(lambda: time.time_ns() // 1_000_000 + _MUCH_LATER_MS)
        self.backend: Backend = self._open(None)
        self._handled = counting(self.backend, self.name)

    def _common(self) -> dict[str, Any]:
        return {
            "broker_url": self.broker,
            "broker_transport_options": self._transport_options(),
            "task_default_queue": self.name,
            "saga_backend": self.backend_url,
            "saga_step_retries": 0,
            "saga_prefix": self.name,
        }

    def _transport_options(self) -> dict[str, Any]:
        options = self.settings.get("broker_transport_options", {})
        if self.broker.startswith("filesystem"):
            folder = self.folder / "broker"
            folder.mkdir(exist_ok=True)
            folders = {name: str(folder) for name in ("data_folder_in", "data_folder_out", "control_folder")}
            return {**folders, "polling_interval": 0.05, **options}
        if self.broker.startswith(REDIS):  # whoever shares these keys gives each other's messages back to the queues
            return {**{f"{key}_key": f"{self.name}-{key}" for key in ("unacked", "unacked_index", "unacked_mutex")}, **options}
        return options

    def _open(self, clock: Callable[[], int] | None) -> Backend:
        return open_backend(self.backend_url, prefix=self.name, options={}, clock=clock)

    def route(self, task: str) -> str:
        """Give a task a queue of its own, and return its name."""
        queue = f"{self.name}-{len(self.queues)}"
        self.queues.append(queue)
        self.settings["task_routes"] = {**self.settings.get("task_routes", {}), task: {"queue": queue}}
        self.client.conf.task_routes = self.settings["task_routes"]
        return queue

    # Workers

    def start(
        self,
        pool: str = "prefork",
        concurrency: int = 2,
        *options: str,
        queue: str = "",
        is_fresh: bool = False,
        is_quiet: bool = True,
        **environment: str,
    ) -> Worker:
        """Start a worker, which tells others nothing of itself if it is quiet; see ``Worker.wait_ready``."""
        level = environment.pop("level", "INFO")
        name = unique("worker")
        command = ["worker", "-Q", queue or self.name, "-P", pool, "-c", str(concurrency), "-l", level]
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"] if is_quiet else []
        named = [*command, *quiet, "--hostname", f"{name}@localhost", *options]
        return self._run(named, environment, name, is_fresh or pool == "gevent")

    def start_relay(self, **environment: str) -> Worker:
        """Start the relay alone; it has written ``The relay runs.`` once it does."""
        return self._run(["sagas", "relay", "-l", "DEBUG"], environment, unique("relay"))

    def start_command(self, *arguments: str, **environment: str) -> Worker:
        """Start one of Celery's commands."""
        return self._run(list(arguments), environment, unique("command"))

    def start_script(self, path: Path, *arguments: str, is_fresh: bool = False) -> Worker:
        """Start a script; a fresh one has not imported this library yet."""
        return self._launch([str(path), *arguments], {}, unique("script"), is_fresh)

    def _run(self, command: list[str], environment: Mapping[str, str], name: str, is_fresh: bool = False) -> Worker:
        """Run one of Celery's commands."""
        return self._launch(["-m", "celery", "-A", self.app, *command], environment, name, is_fresh)

    def _launch(self, arguments: list[str], environment: Mapping[str, str], name: str, is_fresh: bool) -> Worker:
        """Run Python: a process that is forked, unless it must import everything itself."""
        kind = Started if is_fresh or self.paths or IS_FULL else Forked
        own = {**self._environment(), **environment}
        worker = Worker(lambda output, log, more: kind(arguments, own | more, self.folder, output, log), self.folder, name)
        self.workers.append(worker)
        return worker

    def command(self, *arguments: str, is_fresh: bool = False) -> str:
        """Run one of Celery's commands to its end; return its output."""
        return self._output_of(self._run(list(arguments), {}, unique("command"), is_fresh))

    def script(self, path: Path, *arguments: str) -> str:
        """Run a script to its end; return its output."""
        return self._output_of(self.start_script(path, *arguments))

    def _output_of(self, process: Worker) -> str:
        """Wait for the end of a process; return its output."""
        code = process.wait_ended()
        assert code == 0, process.describe()
        process.kill()  # its input ends, too
        self.workers.remove(process)
        return process.output

    def _environment(self) -> dict[str, str]:
        given = [str(Path(part).resolve()) for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
        settings = {
            **self._common(),
            "worker_enable_remote_control": False,
            "worker_prefetch_multiplier": 1,
            "worker_proc_alive_timeout": DEADLINE_S,  # until a pool's process that has not started is killed
            "worker_lost_wait": 0.2,  # seconds until the message of a pool process that died is rejected
            "broker_connection_retry_on_startup": True,
            **self.settings,
            "broker_transport_options": self._transport_options(),
        }
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([*self.paths, str(APPS), *given]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "CELERY_SAGAS_TEST_SETTINGS": json.dumps(settings),
            "CELERY_SAGAS_TEST_FOLDER": str(self.folder),
        }

    # Messages

    def send(self, task: str, task_id: str | None = None, **arguments: Any) -> str:
        """Publish a message."""
        sent = self.client.send_task(task, kwargs=arguments, task_id=task_id, ignore_result=True)
        return str(sent.id)

    def queued(self, *queues: str) -> int:
        """Count the messages that wait in these queues, or in all."""
        return sum(map(self._queued, queues or self.queues))

    def _queued(self, queue: str) -> int:
        with self.client.connection_for_read() as connection, connection.channel() as channel:
            try:
                return int(channel.queue_declare(queue, passive=True).message_count)
            except ChannelError:  # on Redis there is no empty queue
                return 0

    def purge(self) -> None:
        """Remove the messages that wait in the queues."""
        with self.client.connection_for_write() as connection, connection.channel() as channel:
            for queue in self.queues:
                with contextlib.suppress(ChannelError):
                    channel.queue_purge(queue)

    def unacknowledged(self) -> int:
        """Count the messages that kombu's Redis transport has delivered, and that are not done; other brokers do not tell."""
        if not self.broker.startswith(REDIS):
            return 0
        with self.client.connection_for_read() as connection, connection.channel() as channel:
            return int(channel.client.zcard(channel.unacked_index_key))

    def wait_idle(self, worker: Worker, at_least: int = 0) -> None:
        """Wait until nothing is in the queues, and all that a worker, the only one, has received has succeeded.

        Args:
            worker: One that stops hands back what it has not begun. What that is RabbitMQ does not tell; the worker's log does.
            at_least: How many messages were in the queues when it started: its log has them some milliseconds after they left.
        """
        wait_until(
            # the queues first: what leaves them meanwhile is in the log
            lambda: self.queued() + self.unacknowledged() == 0 and worker.has_done_all(at_least),
            lambda: f"{self.queued()} messages in the queues, {self.unacknowledged()} unacknowledged\n{worker.log[-8_000:]}",
        )

    # State

    def prepare(self) -> None:
        """Create the tables, for a look at them before the first worker has."""
        self.backend.prepare(create_schema=True, processes=1)

    def state(self, saga: str, key: str) -> dict[str, Any] | None:
        """Return the stored state of an instance."""
        record = self.record(saga, key)
        return None if record is None else json.loads(record.data)

    def record(self, saga: str, key: str) -> Record | None:
        """Return what the store keeps of an instance."""
        lookup = Lookup((saga,), KEY, key, has_alternate_keys=saga in _WITH_ALTERNATE_KEYS)
        return self.backend.sagas.find(lookup).record

    def history(self, saga: str, key: str) -> list[Entry]:
        """Return the journal of an instance."""
        return self.backend.journal.history((saga,), key, 100_000)

    def outcome(self, saga: str, key: str) -> Entry | None:
        """Return the last entry of a finished instance."""
        return self.backend.journal.outcome_of((saga,), key)

    def handled(self, step: str) -> int:
        """Count the journal's entries of a step."""
        return self._handled(step)

    def wait_handled(self, step: str, count: int, deadline_s: float = DEADLINE_S) -> None:
        """Wait until a step has handled a number of messages."""
        wait_until(lambda: self.handled(step) >= count, lambda: f"{count} of {step}\n{self.describe(step)}", deadline_s)

    def relay(self) -> int:
        """Publish what workers left in the outbox, leases or not, as a relay does; return how many rows there were."""
        rows = self.later.outbox.claim_due("relay of the tests", 10_000, 1)
        for row in rows:
            signature(loads(row.payload), app=self.client).apply_async()
        self.later.outbox.confirm("relay of the tests", [row.id for row in rows])
        return len(rows)

    # What went wrong

    def failures(self) -> list[str]:
        """Return the tasks that failed."""
        return self.noted("failures")

    def noted(self, what: str) -> list[str]:
        """Return the lines that the workers' processes have noted under a name."""
        notes = self.folder / f"{what}.notes"
        return notes.read_text().splitlines() if notes.exists() else []

    def describe(self, step: str = "") -> str:
        """Describe where things stand, for a failed test."""
        counts = f"handled: {self.handled(step)}, " if step else ""
        logs = "\n".join(f"--- {worker.describe()}" for worker in self.workers)
        return f"{counts}failures: {self.failures()[:5]}\n{logs}"

    def stacks(self) -> str:
        """Return what the workers do, for a test that has failed."""
        return "\n".join(f"--- {worker.name}\n{worker.stacks()}" for worker in self.workers)

    # The end

    def close(self) -> None:
        """End the workers, at once, and remove what a shared broker would keep."""
        for worker in self.workers:
            worker.kill()
        if self.broker.startswith("amqp"):
            self._delete_queues()
        self.client.close()
        self.backend.close()
        self.later.close()

    def _delete_queues(self) -> None:
        with self.client.connection_for_write() as connection, connection.channel() as channel:
            for name in self.queues:
                channel.queue_delete(name)
                channel.exchange_delete(name)
