"""The worker's bootsteps of telemetry: metrics are served, and a file is touched for probes."""

import atexit
import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from celery import Celery, bootsteps, signals

from celery_sagas.errors import ConfigurationError, needs_extra
from celery_sagas.settings import Settings, read_settings
from celery_sagas.telemetry.heartbeat import BEAT_S, Heartbeat, is_busy_in
from celery_sagas.telemetry.multiprocess import Folder
from celery_sagas.worker.process.bootsteps import PrepareBackend, processes_of

if TYPE_CHECKING:
    from celery_sagas.telemetry.serving import MetricsServer

logger = logging.getLogger("celery_sagas")

_BEATING: WeakKeyDictionary[Celery, Heartbeat] = WeakKeyDictionary()


def _settings_of(app: Celery) -> Settings | None:
    """Return an app's settings; ``None`` if they are wrong, which ``PrepareBackend`` says."""
    try:
        return read_settings(app.conf)
    except ConfigurationError:
        return None


class ServeMetrics(bootsteps.StartStopStep):
    """Serves what the processes of a worker count, from its main process, until the worker has ended."""

    requires = ("celery.worker.components:Pool",)

    def include_if(self, worker: Any) -> bool:
        settings = _settings_of(worker.app)
        return settings is not None and settings.metrics is not None

    def create(self, worker: Any) -> None:
        """Have events counted, before the pool's processes are made; they inherit where they count."""
        self._folder: Folder | None = None
        self._server: MetricsServer | None = None
        self._refusal: ConfigurationError | None = None
        try:
            self._count(worker)
        except ConfigurationError as exc:
            self._refusal = exc

    def _count(self, worker: Any) -> None:
        if processes_of(worker) > 1:
            self._folder = Folder()
            atexit.register(self._folder.close)
        with needs_extra("prometheus", "saga_metrics is set, and prometheus_client"):
            counters: Any = import_module("celery_sagas.telemetry.prometheus")
        serving: Any = import_module("celery_sagas.telemetry.serving")  # which a process that only sends does without
        counters.count()
        beside = self._folder.fold if self._folder else lambda: None
        self._server = serving.MetricsServer(read_settings(worker.app.conf).metrics or "", counters.exposed(self._folder), beside)

    def start(self, worker: Any) -> None:
        """Serve the metrics. A port that is taken stops no worker: it may be that of the one before, which ends.

        Raises:
            ConfigurationError: What the processes count would be lost, or prometheus_client is missing.
        """
        if self._refusal or not self._server:
            raise self._refusal or ConfigurationError("the metrics cannot be served")
        signals.worker_shutdown.connect(self.end, sender=worker)
        try:
            self._server.open()
            logger.info("metrics are served on %s", self._server.address)
        except OSError as exc:
            logger.error(  # noqa: TRY400 - no bug
                "the metrics cannot be served on %s, which is tried again until it is free: %s. Give each worker of a machine "
                "an address of its own: saga_metrics = os.environ[…]",
                self._server.address,
                exc,
            )
        self._server.start()

    def stop(self, worker: Any) -> None:
        """Go on: what the last tasks count is served until they have ended."""

    def end(self, **_: object) -> None:
        """Serve no longer."""
        if self._server is not None:
            self._server.stop()
        if self._folder is not None:
            self._folder.close()


class Beat(bootsteps.StartStopStep):
    """Touches the files of ``saga_heartbeat``, once the backend is ready."""

    requires = (PrepareBackend,)

    def include_if(self, worker: Any) -> bool:
        settings = _settings_of(worker.app)
        if settings is None or settings.heartbeat is None:
            return False
        state: Any = import_module("celery.worker.state")  # which a process that only sends does without
        is_busy = is_busy_in(worker.pool, state.active_requests)
        self._heartbeat = _BEATING[worker.app] = Heartbeat(worker.app, settings, is_busy)
        self._heartbeat.end_ready()  # which a worker that was killed has left
        return True

    def start(self, worker: Any) -> None:
        """Say that the worker is ready."""
        signals.worker_shutdown.connect(self.end, sender=worker)
        self._heartbeat.start()

    def stop(self, worker: Any) -> None:
        """Say that the worker takes no more messages; it is alive until its last tasks have ended."""
        self._heartbeat.end_ready()

    def terminate(self, worker: Any) -> None:
        """Say so, too."""
        self.stop(worker)

    def end(self, sender: Any = None, **_: object) -> None:
        """Say that the worker has ended."""
        self._heartbeat.end()
        _BEATING.pop(sender.app, None)


class BeatOfConsumer(bootsteps.StartStopStep):
    """Ticks while the consumer is connected, in the worker's loop."""

    requires = ("celery.worker.consumer.tasks:Tasks",)
    _timer: Any = None

    def include_if(self, consumer: Any) -> bool:
        return consumer.app in _BEATING

    def start(self, consumer: Any) -> None:
        """Begin to tick."""
        heartbeat = _BEATING[consumer.app]
        heartbeat.tick()
        self._timer = consumer.timer.call_repeatedly(BEAT_S, heartbeat.tick)

    def stop(self, consumer: Any) -> None:
        """Note that the connection has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if consumer.app in _BEATING:
            _BEATING[consumer.app].pause()

    shutdown = stop


def add_bootsteps(sender: Any = None, **_: object) -> None:
    """Add the bootsteps to a starting worker."""
    sender.app.steps["worker"].update({ServeMetrics, Beat})
    sender.app.steps["consumer"].add(BeatOfConsumer)


def connect() -> None:
    """Connect the receiver; a repeated call changes nothing."""
    signals.worker_init.connect(add_bootsteps, dispatch_uid="celery_sagas.telemetry")
