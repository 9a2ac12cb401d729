"""The ``saga_*`` settings, read from real Celery apps."""

import re
import traceback
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from celery import Celery

from celery_sagas import Backoff
from celery_sagas.errors import ConfigurationError
from celery_sagas.settings import (
    DEFAULT_BACKEND,
    PREFIX,
    BackendSettings,
    Settings,
    Subscription,
    is_default_backend,
    read_settings,
)


def app_with(**settings):
    app = Celery("settings", set_as_current=False)
    app.conf.update(settings)
    return app


def read(**settings):
    return read_settings(app_with(**settings).conf)


def problem_of(**settings):
    with pytest.raises(ConfigurationError) as caught:
        read(**settings)
    return str(caught.value)


def test_defaults():
    settings = read()
    assert settings == Settings()
    assert settings.backend == DEFAULT_BACKEND == "sqlite:///celery-sagas.sqlite3"
    assert is_default_backend(app_with().conf)


def test_defaults_are_valid():
    assert Settings.model_validate(Settings().model_dump()) == Settings()


VALUES = {
    "backend": ("db+postgresql://db/x", "db+postgresql://db/x"),
    "backends": (
        {"orders": {"backend": "postgresql://db/x"}, "a.B-1_": {"backend": "redis://db", "options": {"wait_replicas": 1}}},
        {
            "orders": BackendSettings(backend="postgresql://db/x", options={}),
            "a.B-1_": BackendSettings(backend="redis://db", options={"wait_replicas": 1}),
        },
    ),
    "aggregator_backend": ("redis://db/1", "redis://db/1"),
    "outbox_backend": ("postgresql://db/shop", "postgresql://db/shop"),
    "backend_options": ({"pool_recycle": 3}, {"pool_recycle": 3}),
    "prefix": ("shop", "shop"),
    "create_schema": (False, False),
    "step_retries": (Backoff(2, timedelta(seconds=3)), Backoff(2, 3.0, 3600.0, 2.0)),
    "batch": (7, 7),
    "hand_over": (7, 7),
    "conflict_retries": (7, 7),
    "dispatch_grace": (timedelta(minutes=1), 60.0),
    "journal_retention": (timedelta(hours=2), 7200.0),
    "audit_retention": (timedelta(days=30), 2_592_000.0),
    "relay": (False, False),
    "relay_interval": (0.05, 0.05),
    "resend_after": (timedelta(hours=2), 7_200.0),
    "lease_ttl": (timedelta(minutes=5), 300.0),
    "max_deliveries": (3, 3),
    "direct_publish": ("allow", "allow"),
    "trace": ("parent", "parent"),
    "trace_keys": (True, True),
    "max_state_bytes": (5000, 5000),
    "codec": ("shop.crypto:codec", "shop.crypto:codec"),
    "unsafe_backend": ("warn", "warn"),
    "subscriptions": (
        {"shop.Placed": ["billing.placed", {"task": "crm.on_order", "queue": "crm"}], "shop.Paid": ()},
        {
            "shop.Placed": (Subscription(task="billing.placed"), Subscription(task="crm.on_order", queue="crm")),
            "shop.Paid": (),
        },
    ),
    "hidden": (["pin", "*key"], ("pin", "*key")),
    "metrics": ("127.0.0.1:9558", "127.0.0.1:9558"),
    "heartbeat": ("/run/celery-sagas/worker", "/run/celery-sagas/worker"),
}


@pytest.mark.parametrize("wrong", ["9558", ":", ":0", ":65536", ":http", "localhost", "a..b:9558", "a" * 64 + ":9558", 9558, ""])
def test_wrong_addresses(wrong):
    assert problem_of(saga_metrics=wrong).startswith("saga_metrics: ")


@pytest.mark.parametrize("wrong", ["*password*", None, [""], [1], {"pin": True}])
def test_wrong_patterns_of_names(wrong):
    assert problem_of(saga_hidden=wrong).startswith("saga_hidden")


def test_every_setting_is_tried():
    assert VALUES.keys() == Settings.model_fields.keys()


@pytest.mark.parametrize("name", VALUES)
def test_value(name):
    given, held = VALUES[name]
    assert getattr(read(**{PREFIX + name: given}), name) == held


def test_backend_of_the_apps_own():
    assert not is_default_backend(app_with(saga_backend="memory://").conf)


@pytest.mark.parametrize(
    ("given", "held"),
    [
        (0, Backoff(0, 1.0, 3600.0, 5.0)),
        (5, Backoff(5, 1.0, 3600.0, 5.0)),
        (Backoff(0), Backoff(0, 10.0, 3600.0, 2.0)),
        ({"times": 2}, Backoff(2, 1.0, 3600.0, 5.0)),
        ({"times": 2, "first": 0.5, "most": 60, "factor": 3}, Backoff(2, 0.5, 60.0, 3.0)),
        ([2, 0.5, 60, 3], Backoff(2, 0.5, 60.0, 3.0)),
    ],
)
def test_step_retries(given, held):
    assert read(saga_step_retries=given).step_retries == held


def test_step_retries_unless_set():
    assert [read().step_retries.pause_s(number) for number in (1, 2, 3)] == [1, 5, 25]
    assert read().step_retries.times == 3


@pytest.mark.parametrize(
    "wrong", [None, True, "3", -1, 1_001, 1.5, (), [3, 2, 1], {"tries": 3}, {"times": "3"}, Backoff(3, 0), Backoff(3, "1")]
)
def test_wrong_step_retries(wrong):
    problem = problem_of(saga_step_retries=wrong)
    assert problem.startswith("saga_step_retries: ")
    assert "write Backoff(3, 1, factor=5)" in problem


@pytest.mark.parametrize("seconds", [1, 1.0, "1", timedelta(seconds=1)])
def test_seconds(seconds):
    assert read(saga_dispatch_grace=seconds).dispatch_grace == 1.0


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("saga_backend", None),
        ("saga_backend", 3),
        ("saga_backend_options", "pool_recycle=3"),
        ("saga_backend_options", {1: 2}),
        ("saga_prefix", "a b"),
        ("saga_prefix", "a\n"),
        ("saga_prefix", "{a}"),
        ("saga_prefix", "a" * 65),
        ("saga_prefix", None),
        ("saga_create_schema", "perhaps"),
        ("saga_batch", 0),
        ("saga_batch", 501),
        ("saga_batch", "many"),
        ("saga_batch", True),
        ("saga_conflict_retries", -1),
        ("saga_conflict_retries", 1.5),
        ("saga_conflict_retries", "many"),
        ("saga_conflict_retries", 1001),
        ("saga_conflict_retries", True),
        ("saga_dispatch_grace", 0),
        ("saga_dispatch_grace", -1),
        ("saga_dispatch_grace", timedelta(0)),
        ("saga_dispatch_grace", timedelta(days=1)),
        ("saga_dispatch_grace", float("nan")),
        ("saga_dispatch_grace", float("inf")),
        ("saga_dispatch_grace", True),
        ("saga_dispatch_grace", None),
        ("saga_journal_retention", 0),
        ("saga_audit_retention", 0),
        ("saga_relay", "perhaps"),
        ("saga_relay_interval", 0.001),
        ("saga_resend_after", 0),
        ("saga_relay_interval", 3601),
        ("saga_lease_ttl", 0.5),
        ("saga_max_deliveries", 0),
        ("saga_max_deliveries", 20),
        ("saga_direct_publish", "refuse"),
        ("saga_direct_publish", None),
        ("saga_trace", "both"),
        ("saga_max_state_bytes", 999),
        ("saga_max_state_bytes", 100_000_001),
        ("saga_codec", "shop.crypto.codec"),
        ("saga_codec", "a key"),
        ("saga_unsafe_backend", "allow"),
        ("saga_unsafe_backend", None),
        ("saga_subscriptions", None),
        ("saga_subscriptions", ["billing.placed"]),
    ],
)
def test_wrong_value(setting, value):
    text = problem_of(**{setting: value})
    assert text.startswith(setting)
    assert text.endswith("The settings page lists every setting with its values.")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"Placed": []}, "name the event by the path of its class: 'shop.events.OrderPlaced'"),
        ({Settings: []}, "name the event by the path of its class: 'shop.events.OrderPlaced'"),
        ({"shop.Placed": "crm.on_order"}, "shop.Placed: Value error, list the tasks that get the event: ['crm.on_order']"),
        (
            {"shop.Placed": {"task": "crm.on_order"}},
            "shop.Placed: Value error, list the tasks that get the event: ['crm.on_order']",
        ),
        (
            {"shop.Placed": [1]},
            "shop.Placed.0: Value error, name a task: 'crm.on_order', or {'task': 'crm.on_order', 'queue': 'crm'}",
        ),
        ({"shop.Placed": [""]}, "shop.Placed.0.task: "),
        ({"shop.Placed": ["a.b", {"queue": "crm"}]}, "shop.Placed.1.task: Field required"),
        ({"shop.Placed": [{"task": "a.b", "queue": ""}]}, "shop.Placed.0.queue: "),
        ({"shop.Placed": [{"task": "a.b", "exchange": "crm"}]}, "shop.Placed.0.exchange: "),
        (
            {"shop.Placed": ["a.b", {"task": "a.b", "queue": "q"}]},
            "shop.Placed: Value error, list each task once; there twice: a.b",
        ),
    ],
)
def test_wrong_subscription(given, problem):
    text = problem_of(saga_subscriptions=given)
    assert text.startswith("saga_subscriptions.")
    assert problem in text


def test_every_wrong_value_is_named():
    text = problem_of(saga_conflict_retries=-1, saga_prefix="a b")
    assert "saga_conflict_retries: " in text
    assert "saga_prefix: " in text


def test_unknown_name():
    text = problem_of(saga_bakend="x", saga_Backend="y")
    assert "unknown setting saga_Backend, saga_bakend." in text
    assert "Known: saga_backend, saga_backend_options, saga_backends, saga_aggregator_backend, " in text


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"orders": "postgresql://me:tok_pw@db/x"}, 'saga_backends.orders: Value error, write {"backend": "postgresql://…"'),
        ({"orders": {"url": "postgresql://me:tok_pw@db/x"}}, "saga_backends.orders.backend: Field required"),
        ({"orders": {"backend": 3}}, "saga_backends.orders.backend: "),
        ({"orders": {"backend": "memory://", "options": ["tok_pw"]}}, "saga_backends.orders.options: "),
        ({"postgresql://me:tok_pw@db/x": {"backend": "memory://"}}, "saga_backends."),
        (["orders"], "saga_backends: "),
    ],
)
def test_wrong_named_backends(wrong, problem):
    assert problem in problem_of(saga_backends=wrong)


def test_backends_are_named_by_their_urls_too():
    given = {"orders": {"backend": "redis://db/1", "options": {"wait_replicas": 1}}}
    settings = read(saga_backend="redis://db/0", saga_backends=given, saga_aggregator_backend="redis://db/1")
    orders = settings.backends["orders"]
    assert settings.all_backends() == [BackendSettings(backend="redis://db/0"), orders]
    assert [settings.backend_named(each) for each in ("orders", "redis://db/1")] == [orders, orders]


def test_password_stands_in_no_error():
    for settings in (
        {"saga_backends": {"orders": {"backend": ["redis://:tok_pw@h"]}}},
        {"saga_backend": ["redis://:tok_pw@h"]},
        {"saga_backend_options": ["tok_pw"]},
        {"saga_backend": b"\xfftok_pw"},
        {"saga_aggregator_backend": ["redis://:tok_pw@h"]},
    ):
        try:
            read(**settings)
        except ConfigurationError as exc:
            shown = [line for line in traceback.format_exception(exc) if '_backend":' not in line]
            assert "tok_pw" not in "".join(shown)
        else:
            pytest.fail("it is wrong")
    named = {"saga_backend": "redis://:tok_pw@h", "saga_aggregator_backend": "redis://:tok_pw@h"}
    assert "tok_pw" not in repr(read(**named, saga_backend_options={"password": "tok_pw"}))


def test_settings_of_others_are_left_alone():
    assert read(result_backend="rpc://", sagacious=True, task_always_eager=True) == Settings()


def configured(namespace, **settings):
    app = Celery("settings", set_as_current=False)
    app.config_from_object(SimpleNamespace(**settings), namespace=namespace)
    return app


@pytest.mark.parametrize(
    ("namespace", "settings"),
    [
        (None, {"saga_backend": "memory://"}),
        ("CELERY", {"CELERY_SAGA_BACKEND": "memory://"}),
        ("celery", {"celery_saga_backend": "memory://"}),
        (
            "CELERY",
            {"CELERY_SAGA_BACKEND": "memory://", "SAGA_BACKEND": "another's", "SAGA_UNKNOWN": 1, "CELERY_TIMEZONE": "UTC"},
        ),
    ],
)
def test_namespace(namespace, settings):
    conf = configured(namespace, **settings).conf
    assert read_settings(conf).backend == "memory://"
    assert not is_default_backend(conf)


def test_unknown_name_under_a_namespace():
    with pytest.raises(ConfigurationError, match="unknown setting saga_bakend"):
        read_settings(configured("CELERY", CELERY_SAGA_BAKEND="x").conf)


def test_later_change_under_a_namespace():
    """Which one wins is Celery's decision (5.5: what the namespace says; 5.7: the change)."""
    app = configured("CELERY", CELERY_SAGA_BACKEND="memory://")
    app.conf.saga_backend = "sqlite://"
    app.conf.update(saga_prefix="shop")
    settings = read_settings(app.conf)
    assert (settings.backend, settings.prefix) == (app.conf.get("saga_backend"), "shop")


def test_the_settings_page_lists_every_setting():
    """To fix it: give the setting a row in docs/settings.md, with its default."""
    page = (Path(__file__).parents[1] / "docs" / "settings.md").read_text()
    assert {name for name in Settings.model_fields if not re.search(rf"`{PREFIX}{name}`", page)} == set()
