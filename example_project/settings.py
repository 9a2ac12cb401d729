"""The Celery settings. Whatever begins with ``saga_`` is for celery-sagas."""

from collections.abc import Mapping
from typing import Any

from kombu import Exchange, Queue


def settings(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings for an environment.

    Args:
        environment: ``SHOP_NAME``, of the queue and of what is ours in the database: each run of the example has one of its
            own, so that two runs on one broker or database never meet; ``SHOP_FOLDER``, for files; ``SHOP_BROKER`` and
            ``SHOP_BACKEND``, if neither is to be files.
    """
    name, folder = environment.get("SHOP_NAME", "shop"), environment.get("SHOP_FOLDER", ".")
    broker = environment.get("SHOP_BROKER", "filesystem://localhost")
    return {
        "saga_backend": environment.get("SHOP_BACKEND", f"sqlite:///{folder}/shop.sqlite3"),
        "saga_prefix": name,
        "saga_relay_interval": 0.2,  # how late a timeout may come; a shop that runs for a few seconds only is in a hurry
        # The participants of a saga are delivered at least once, as its steps are: they must bear being run twice.
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "task_ignore_result": True,
        "task_default_queue": name,
        "task_queues": [_queue(name, broker)],
        "worker_enable_remote_control": False,  # it would make queues of its own
        "broker_url": broker,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": 1,  # a broker that is not there ends the worker, which says so
        **_transport(broker, folder),
    }


def _queue(name: str, broker: str) -> Queue:
    expires = 3600 if broker.startswith("amqp") else None  # RabbitMQ removes it, should this run be killed before it does
    return Queue(name, Exchange(name, auto_delete=True), routing_key=name, expires=expires)


def _transport(broker: str, folder: str) -> dict[str, Any]:
    if broker.startswith("amqp"):
        # A tick a second wakes an idle worker, which then sees that it should stop.
        return _options({"confirm_publish": True}) | {"broker_heartbeat_checkrate": 120}
    if not broker.startswith("filesystem"):
        return _options({})
    folders = {"data_folder_in": f"{folder}/queue", "data_folder_out": f"{folder}/queue", "control_folder": f"{folder}/control"}
    processed = {"store_processed": True, "processed_folder": f"{folder}/done"}
    return _options({**folders, **processed, "polling_interval": 0.05}, transport="example_project.files:Transport")


def _options(options: dict[str, Any], transport: str | None = None) -> dict[str, Any]:
    return {"broker_transport": transport, "broker_transport_options": options}
