"""Metrics of real workers, as Prometheus reads them."""

import urllib.request
from collections.abc import Callable, Mapping

from prometheus_client.parser import text_string_to_metric_families

from tests.integration.worker import Worker
from tests.processes import HOST
from tests.waiting import wait_until

#: The sum of the samples with a name and some labels.
Sums = Callable[..., float]


def scrape(address: str) -> Sums:
    """Read the metrics that are served on an address."""
    with urllib.request.urlopen(f"http://{HOST}{address}/metrics", timeout=30) as answer:
        return read(answer.read().decode())


def read(text: str) -> Sums:
    """Return what sums up samples of an exposition."""
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def sums(name: str, **labels: str) -> float:
        return sum(each.value for each in samples if each.name == name and _has(each.labels, labels))

    return sums


def _has(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return wanted.items() <= labels.items()


def wait_counted(worker: Worker, address: str, count: float, name: str, **labels: str) -> Sums:
    """Wait until a metric has a value; return what the scrape says."""
    found: list[Sums] = []

    def is_counted() -> bool:
        found[:] = [scrape(address)]
        return found[0](name, **labels) >= count

    wait_until(is_counted, lambda: f"{count} of {name}, which is {found[0](name, **labels)}: {worker.describe()}")
    return found[0]
