"""Traces of real workers, as a collector gets them: nothing is lost with the processes of a pool, and an order is found again."""

from collections.abc import Iterator

import pytest

from tests.collector import Collector, ReceivedSpan, collecting
from tests.integration.conftest import Deploy
from tests.integration.matrices import IS_FULL
from tests.integration.worker import Deployment
from tests.servers import unique
from tests.waiting import wait_until

#: The context of a request from outside, and its span.
OUTSIDE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OUTSIDE_SPAN = OUTSIDE.split("-")[2]
PLACE, CHARGED, REMIND, SHIP = (f"process order.{step}" for step in ("place", "charged", "remind", "ship"))

#: Where spans are, and whether OpenTelemetry's tool for Celery makes some, too. ``tests/telemetry`` has the others.
WAYS = [("links", True), ("parent", False), *([("links", False), ("parent", True)] if IS_FULL else [])]


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


def start(deployment: Deployment, collector: Collector, *options: str, delay_ms: int, **environment: str) -> None:
    environment |= {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": collector.endpoint, "OTEL_BSP_SCHEDULE_DELAY": str(delay_ms)}
    deployment.start("prefork", 2, *options, **environment).wait_ready()


def wait_for(deployment: Deployment, collector: Collector, *names: str) -> list[ReceivedSpan]:
    """Wait for a span of each name; return them."""
    received = lambda: [f"{span.name} {span.parent}" for span in collector.received]  # noqa: E731
    wait_until(lambda: all(map(collector.named, names)), lambda: f"{names}: {received()} {deployment.describe()}")
    spans = [collector.named(name) for name in names]
    assert all(len(each) == 1 for each in spans), received()
    return [each for (each,) in spans]


@pytest.mark.parametrize("batch", [1, 50])
def test_processes_that_end_export_their_spans(deploy: Deploy, collector: Collector, batch: int) -> None:
    """Each handles one task, or one batch, and nothing is exported but at its end."""
    deployment = deploy("traced", "redis", "sqlite", saga_batch=batch)
    start(deployment, collector, "--max-tasks-per-child", "1", delay_ms=600_000)
    for number in range(10):
        deployment.send("order.begin", order_id=str(number))
    wait_until(lambda: len(collector.named("process ")) >= 10, deployment.describe)
    assert deployment.workers[0].stop() == 0
    spans = collector.named("process ")
    assert len({span.attributes["saga.instance.id"] for span in spans}) == len(spans) == 10
    processes = {span.resource["service.instance.id"] for span in spans}
    assert len(processes) == 10 if batch == 1 else len(processes) >= 1
    assert all(span.attributes["saga.find.duration"] > 0 and span.attributes["saga.commit.duration"] > 0 for span in spans)


@pytest.mark.parametrize(("mode", "has_celerys"), WAYS)
def test_life_of_an_order(deploy: Deploy, collector: Collector, mode: str, has_celerys: bool) -> None:
    """It starts, asks a task, is answered, and is reminded by the relay; then something comes from outside."""
    order = unique("order")
    deployment = deploy("traced", "redis", "sqlite", saga_trace=mode, saga_relay_interval=0.05)
    start(deployment, collector, delay_ms=50, **({"CELERY_SAGAS_TEST_CELERYS": "yes"} if has_celerys else {}))
    deployment.send("order.place", order_id=order)
    wait_for(deployment, collector, REMIND)
    deployment.client.send_task("order.ship", kwargs={"order_id": order}, headers={"traceparent": OUTSIDE})
    place, _, remind, ship = spans = wait_for(deployment, collector, PLACE, CHARGED, REMIND, SHIP)
    if has_celerys:
        celerys = [f"run/order.{step}" for step in ("place", "charged", "remind", "ship")]
        wait_for(deployment, collector, "run/charge", "apply_async/order.charged", *celerys)

    def parent(span: ReceivedSpan) -> str:
        return collector.name_of(span.parent)

    def links(span: ReceivedSpan) -> set[str]:
        return set(map(collector.name_of, span.links))

    assert len({span.attributes["saga.instance.id"] for span in spans}) == 1
    if mode == "parent":
        assert [parent(span) for span in spans[1:]] == [PLACE] * 3
        assert len({span.trace for span in spans}) == 1
    if not has_celerys:
        assert [span.kind for span in spans] == ["CONSUMER"] * 4
        assert parent(place) == ""
    else:
        assert parent(place) == "run/order.place"
        assert parent(collector.named("run/order.remind")[0]) == CHARGED
    match mode, has_celerys:
        case "links", False:
            assert [parent(each) for each in spans[1:]] == [PLACE, CHARGED, OUTSIDE_SPAN]
            assert [links(each) for each in spans[1:]] == [set(), {PLACE}, {PLACE}]
        case "links", True:
            assert [parent(each) for each in spans[1:]] == [f"run/order.{step}" for step in ("charged", "remind", "ship")]
            answer = {"apply_async/order.charged", PLACE}
            assert [links(each) for each in spans[1:]] == [answer, {CHARGED, PLACE}, {OUTSIDE_SPAN, PLACE}]
        case "parent", False:
            assert [links(each) for each in spans[1:]] == [set(), {CHARGED}, {OUTSIDE_SPAN}]
        case "parent", True:
            assert links(remind) == {"run/order.remind", CHARGED}
            assert links(ship) == {"run/order.ship", OUTSIDE_SPAN}
    assert deployment.failures() == []
