"""How an instance is named whose key has several parts."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from click.testing import CliRunner

from celery_sagas import Saga
from celery_sagas.cli import sagas
from tests.cli.test_describe import run

WHY = ("--reason", "INC-881", "--actor", "ann")
KEYS = (["eu", "42"], ['["eu","42"]'], ['["eu", 42]'])


@pytest.fixture
def parcel(app: Celery, definitions: None) -> Any:
    """A parcel of a region that waits for a timeout, and an order whose key has one part."""

    class Parcel(Saga, correlate_by=("region", "number"), history="messages"):
        region: str
        number: int

    @Parcel.starts
    def pack(parcel: Parcel, region: str, number: int) -> None:
        parcel.schedule(remind, after=3_600, name="delivery")

    @Parcel.handles
    def remind(parcel: Parcel) -> None: ...

    class Order(Saga, correlate_by="order_id"):
        order_id: str

    @Order.starts
    def place(order: Order, order_id: str) -> None: ...

    pack("eu", 42)
    place("1")
    return Parcel


@pytest.mark.parametrize("key", ['["eu","42"]', '["eu", 42]'])
def test_key_that_is_one_word(app: Celery, parcel: Any, key: str) -> None:
    assert "✓ pack" in run(app, "graph", "parcel", "--of", key).output
    known = json.loads(run(app, "replay", "parcel", key, "--json").output)
    assert (known["key"], known["messages"], known["problem"]) == ('["eu","42"]', 1, None)
    result = CliRunner().invoke(sagas, ["replay", "parcel", "-"], obj=SimpleNamespace(app=app), input=f'{key}\n["eu","42"]\n')
    assert "1 instance was replayed, 0 of them with a difference." in result.output


@pytest.mark.parametrize("key", KEYS, ids=" ".join)
class TestKey:
    @pytest.mark.parametrize(
        ("before", "after"),
        [
            (["show", "parcel"], []),
            (["timeline", "parcel"], []),
            (["export", "parcel"], []),
            (["try", "parcel.remind"], []),
            (["pause", "parcel"], WHY),
            (["patch", "parcel"], ["--set", 'region="eu"', "--dry-run", *WHY]),
            (["fire", "parcel"], ["delivery", *WHY]),
            (["skip", "parcel"], ["delivery", *WHY]),
            (["terminate", "parcel"], ["--yes", *WHY]),
        ],
        ids=lambda words: words[0] if words else "",
    )
    def test_names_the_instance(self, app: Celery, parcel: Any, key: list[str], before: list[str], after: list[str]) -> None:
        result = run(app, *before, *key, *after)
        assert result.exit_code == 0, result.output
        assert result.output

    def test_names_what_was_done_to_it(self, app: Celery, parcel: Any, key: list[str]) -> None:
        run(app, "fire", "parcel", *key, "delivery", *WHY)
        [entry] = map(json.loads, run(app, "audit", "parcel", *key, "--json").output.splitlines())
        assert (entry["action"], entry["key"]) == ("fire", '["eu","42"]')

    def test_stands_before_the_name_of_a_request(self, app: Celery, parcel: Any, key: list[str]) -> None:
        result = run(app, "answer", "parcel", *key, "charge", "--value", "1", *WHY)
        assert "does not wait for charge. It waits for delivery" in result.output


def test_question_names_it(app: Celery, parcel: Any) -> None:
    assert "End parcel eu 42 for good?" in run(app, "terminate", "parcel", "eu", "42", *WHY).output


@pytest.mark.parametrize(
    ("words", "status", "problem"),
    [
        (
            ["show", "parcel", "eu", "42", "north"],
            2,
            "the key of parcel has 2 parts: region, number, and 3 are given: eu 42 north",
        ),
        (["timeline", "parcel", "eu", "42", "north"], 2, "the key of parcel has 2 parts: region, number, and 3 are given"),
        (["audit", "parcel", "eu", "42", "north"], 2, "the key of parcel has 2 parts: region, number, and 3 are given"),
        (["export", "parcel", "eu", "42", "north"], 2, "the key of parcel has 2 parts: region, number, and 3 are given"),
        (["try", "parcel.remind", "eu", "42", "north"], 2, "the key of parcel has 2 parts: region, number, and 3 are given"),
        (["pause", "parcel", "eu", "42", "north", *WHY], 2, "the key of parcel has 2 parts: region, number, and 3 are given"),
        (["show", "order", "1", "2"], 2, "the key of order has 1 part: order_id, and 2 are given: 1 2"),
        (["show", "order", "1", "\x1b"], 2, r"and 2 are given: 1 \x1b"),
        (["fire", "order", "1", "2", "delivery", *WHY], 2, "the key of order has 1 part: order_id, and 2 are given: 1 2"),
        (
            ["fire", "parcel", "eu", "42", *WHY],
            1,
            "eu is no key of parcel, which has 2 parts: region, number. Give each as a word",
        ),
        (["audit", "parcel", "eu"], 1, "eu is no key of parcel, which has 2 parts: region, number. Give each as a word"),
        (["audit", "parcel", "eu", "--json"], 1, "eu is no key of parcel, which has 2 parts: region, number"),
        (["export", "parcel", "eu"], 1, "eu is no key of parcel, which has 2 parts: region, number. Give each as a word"),
        (
            ["audit", "parcel", "eu", "43"],
            0,
            'No operator has done anything of the kind. Did you mean ["eu","42"]?',
        ),
        (["audit", "parcel", "eu", "42"], 0, "No operator has done anything of the kind."),
        (
            ["export", "parcel", "eu", "43"],
            1,
            'the journal knows no instance. The key is its canonical text, as in the log. Did you mean ["eu","42"]?',
        ),
        (["fire", "parcel", "eu", *WHY], 2, "give SAGA KEY NAME"),
        (["fire", "parcel", "--id", "x", "eu", "delivery", *WHY], 2, "give SAGA NAME"),
        (["show", "parcel", "eu", "43"], 1, 'there is no parcel ["eu","43"]'),
        (["show", "parcel", "eu", "x"], 1, 'there is no parcel ["eu","x"]'),
        (["show", "parcel", "eu", "42", "--id", "x"], 2, "name one instance"),
    ],
)
def test_other_number_of_words(app: Celery, parcel: Any, words: list[str], status: int, problem: str) -> None:
    result = run(app, *words)
    assert (result.exit_code, problem in result.output.replace("\n", " ")) == (status, True), result.output
