"""The dashboard and the alert rules: each metric in them is one that is exported."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from celery_sagas.telemetry import prometheus
from celery_sagas.telemetry.prometheus_store import GAUGES

FOLDER = Path(__file__).parents[2] / "docs" / "telemetry"
COUNTERS = [getattr(prometheus, name) for name in dir(prometheus) if name.isupper() and not name.startswith("_")]
NAME = re.compile(r"celery_sagas_\w+")


def exported() -> dict[str, set[str]]:
    """Return the labels of each series that is exported."""
    found = {name: set(labels) for name, (_, labels) in GAUGES.items()}
    for metric in (each for each in COUNTERS if hasattr(each, "describe")):
        (family,) = metric.describe()
        suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"], "gauge": [""]}[family.type]
        found |= {f"{family.name}{suffix}": {*metric._labelnames, *["le"] * (suffix == "_bucket")} for suffix in suffixes}
    return found


def rules() -> Iterator[tuple[str, str]]:
    """Yield the expressions of the rules, each with the texts that name its labels."""
    for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
            assert set(rule["annotations"]) == {"summary", "action"}
            yield rule["expr"], " ".join(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))


def panels() -> Iterator[tuple[str, str]]:
    """Yield the expressions of the panels, each with the labels in its legend."""
    for panel in json.loads((FOLDER / "grafana.json").read_text())["panels"]:
        for target in panel["targets"]:
            yield target["expr"], " ".join(re.findall(r"{{(\w+)}}", target["legendFormat"]))


@pytest.mark.parametrize(("expression", "labels"), [*rules(), *panels()])
def test_what_is_shown_is_exported(expression: str, labels: str) -> None:
    """With the labels that are named."""
    names = NAME.findall(expression)
    assert names
    assert set(names) <= exported().keys()
    assert set(labels.split()) <= set.union(*(exported()[name] for name in names))


def test_dashboard_shows_every_metric() -> None:
    shown = {name for expression, _ in panels() for name in NAME.findall(expression)}
    assert {re.sub("_(bucket|count|sum)$", "", name) for name in exported()} == {
        re.sub("_(bucket|count|sum)$", "", name) for name in shown
    }


def test_page_lists_every_metric_and_no_other() -> None:
    page = (FOLDER.parent / "telemetry.md").read_text()
    listed = set(re.findall(r"^\| `(celery_sagas_\w+)", page, re.MULTILINE))
    assert listed == {re.sub("_(bucket|count|sum)$", "", name) for name in exported()}


#: The first dead letter of a task comes after ten minutes. In another backend there were some before, and their task is gone.
DEAD_LETTERS = f"""
rule_files: [{FOLDER / "alerts.yaml"}]
tests:
  - interval: 1m
    input_series:
      - {{series: 'celery_sagas_dead_letters{{backend="new",task="order.place",error="ValueError"}}', values: "_x10 1+0x60"}}
      - {{series: 'celery_sagas_dead_letters{{backend="new",task="other",error=""}}', values: "0x70"}}
      - {{series: 'celery_sagas_dead_letters{{backend="old",task="order.place",error="ValueError"}}', values: "7x20 stale _x50"}}
      - {{series: 'celery_sagas_dead_letters{{backend="old",task="other",error=""}}', values: "0x20 7x50"}}
    promql_expr_test:
      - {{expr: 'count by (backend) (ALERTS{{alertname="SagaDeadLetters"}})', eval_time: 9m}}
      - expr: 'count by (backend) (ALERTS{{alertname="SagaDeadLetters"}})'
        eval_time: 13m
        exp_samples: [{{labels: '{{backend="new"}}', value: 1}}]
      - {{expr: 'count by (backend) (ALERTS{{alertname="SagaDeadLetters"}})', eval_time: 25m}}
      - {{expr: 'count by (backend) (ALERTS{{alertname="SagaDeadLetters"}})', eval_time: 40m}}
"""


@pytest.mark.skipif(not shutil.which("promtool"), reason="no promtool (Debian: apt-get install prometheus)")
def test_first_dead_letter_of_a_task_raises_the_alarm(tmp_path: Path) -> None:
    """Its series begins with it. One that is counted as another task's, later, is not new."""
    file = tmp_path / "rules.yaml"
    file.write_text(DEAD_LETTERS)
    done = subprocess.run(["promtool", "test", "rules", file], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
