"""Forged messages: what anybody may put into a worker's queue, with odd values in headers, properties and bodies.

Left out is what ends a worker inside of py-amqp or kombu, see *Forged messages* in ``docs/deploying.md``, and what Celery keeps
by right, such as a message whose eta is far away.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from random import Random
from typing import Any
from uuid import UUID

from celery.app.task import Context
from kombu import Producer

from celery_sagas.core.requests.requests import ReplyKind
from celery_sagas.worker import headers

#: By which a forged message is known again.
MARK = "x-forged"
#: What stands in place of anything; the transports of both brokers can write each.
ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 2**31, 2**53 + 1, -(2**63), 0.5, 1e308),
    *("", "\0", "\ud800", "a\udfff\0b", "-1", "9" * 400, "ä€😀", "x" * 300, "\r\n\x1b[31m"),
    *("{", "null", '"\\ud800"', "[" * 30_000, "2026-01-01T00:00:00", "a" * 36),
    *([], [None], [[[[[[]]]]]], ["a", 1], [1, "a"], [-1, 1e308], ["a"] * 100),
    *({}, {"": ""}, {"\ud800": "\ud800"}, {"a": {"b": {"c": [1]}}}),
    *([{}], [{"task": 5}], {"task": "forged.work", "options": []}, [{"task": "forged.work", "args": {}}]),
)
#: What else AMQP has: a text that is no UTF-8 comes as bytes.
TYPED: tuple[Any, ...] = (b"", b"\xff\0", Decimal("0.5"), datetime(2026, 1, 1), [b"\xff"], {"a": b"\xff"}, {b"\xff": Decimal(-1)})
#: Celery's headers, and names by which a header hides what a request has, or what is kept there.
CELERY = (
    *(name for name in vars(Context) if name not in ("eta", "expires")),
    *("lang", "id", "task", "argsrepr", "kwargsrepr", "compression", "redelivered", "_celery_sagas_session"),
)
OURS = tuple(value for name, value in vars(headers).items() if name.isupper() and isinstance(value, str))
TASKS = (
    *("target.hit", "target.missed", "target.from_the_future", "celery_sagas.gather", "celery_sagas.publish"),
    *("forged.collect", "forged.collect.flush", "forged.work", "forged.work_late", "forged.unknown"),
)
ARGUMENTS: tuple[Any, ...] = ([], ["a"], [{"group": "a", "number": 1}])
#: Bodies that are no JSON, or not Celery's.
BODIES = (
    *(b"", b"\0", b"{", b"\xff\xfe", b"null", b"[[],{},{}", b"[" * 100_000, b"9" * 5_000, b"[[1e999],{},{}]", b"[[NaN],{},{}]"),
    *(
        b"x" * 200_000,
        b'{"task": "forged.work"}',
        b'{"args": [], "kwargs": {}}',
        b"[[" + b"[" * 6_000 + b"]" * 6_000 + b"],{},{}]",
    ),
)
TYPES = ("", "application/x-python-serialize", "application/x-yaml", "text/plain", "json", "\ud800", "x" * 200)
ENCODINGS = ("", "utf-16", "binary", "no-such-one", "\ud800", "rot13", "idna", "hex")
PROPERTIES = ("correlation_id", "reply_to", "message_id", "type", "app_id", "cluster_id")
CAME = tuple(ReplyKind)
#: Options of publishing that a return address may ask for.
ROUTING = ("exchange", "exchange_type", "routing_key", "priority", "serializer", "compression", "delivery_mode", "countdown")


@dataclass
class Forged:
    """A message as it is published."""

    headers: dict[Any, Any]
    body: bytes
    content_type: str = "application/json"
    content_encoding: str = "utf-8"
    properties: dict[str, Any] = field(default_factory=dict)

    def publish(self, producer: Producer, queue: str) -> None:
        """Publish it to a queue, past all that Celery would do with it."""
        written = {"content_type": self.content_type, "content_encoding": self.content_encoding}
        producer.publish(self.body, routing_key=queue, exchange="", headers=self.headers, **written, **self.properties)


def forged(chance: Random, *, is_amqp: bool = False) -> Forged:
    """Return a message whose task is known or not, and of which some part is not as it should be."""
    message = Forged(_headers(chance), _body(chance))
    if is_amqp and _one_in(chance, 3):
        message.headers[chance.choice((*CELERY, *OURS, "expires", b"\xff"))] = chance.choice(TYPED)
    if _one_in(chance, 10):
        message.content_type = chance.choice(TYPES)
    if _one_in(chance, 10):
        message.content_encoding = chance.choice(ENCODINGS)
    if _one_in(chance, 5):
        message.properties[chance.choice(PROPERTIES)] = chance.choice(("", "\0", "\ud800", "x" * 200, "a b"))
    if _one_in(chance, 5):
        message.properties["priority"] = chance.choice((0, 1, 9, 10, 255))
    return message


def _headers(chance: Random) -> dict[str, Any]:
    id = str(UUID(int=chance.getrandbits(128), version=4))
    made: dict[str, Any] = {MARK: True, "lang": "py", "task": chance.choice(TASKS), "id": id, "root_id": id, "retries": 0}
    for name in chance.choices(CELERY, k=chance.choice((0, 1, 1, 2))) + chance.choices(OURS, k=chance.choice((0, 1, 1, 2))):
        made[name] = chance.choice(ODD)
    if _one_in(chance, 30):
        made[chance.choice(("eta", "expires"))] = chance.choice(ODD)
    if _one_in(chance, 4):
        made[headers.ADDRESS] = _nearly(chance, _address(chance))
    if _one_in(chance, 2):
        made[headers.RETURN_ADDRESS] = _nearly(chance, _return_address(chance))
    if _one_in(chance, 4):
        made[headers.CAUSATION] = {"target": chance.choice(ODD), chance.choice(("a", "\ud800", "\0")): chance.choice(ODD)}
    if _one_in(chance, 20):
        del made[chance.choice([name for name in made if name != MARK])]
    return made


def _body(chance: Random) -> bytes:
    if _one_in(chance, 10):
        return chance.choice(BODIES)
    embedded: dict[str, Any] = dict.fromkeys(("callbacks", "errbacks", "chain", "chord"))
    if _one_in(chance, 8):
        embedded[chance.choice((*embedded, *CELERY))] = chance.choice(ODD)
    body = [chance.choice(ARGUMENTS), {}, embedded]
    if _one_in(chance, 5):
        body[chance.randrange(3)] = chance.choice((*ODD, [chance.choice(ODD)], {"name": chance.choice(ODD)}))
    return json.dumps(_nearly(chance, body)).encode()


def _address(chance: Random) -> dict[str, Any]:
    made = {"instance": _nearly(chance, "a"), chance.choice(("timeout", "request")): _nearly(chance, "a")}
    return made | ({} if _one_in(chance, 3) else {"came": _nearly(chance, chance.choice(CAME))})


def _return_address(chance: Random) -> str:
    made: Mapping[str, Any] = {name: _nearly(chance, "a") for name in ("saga", "instance", "request")}
    steps = {name: _nearly(chance, _target(chance)) for name in chance.choice((["otherwise"], ["then"], ["then", "otherwise"]))}
    return json.dumps({**made, **steps}, ensure_ascii=_one_in(chance, 2))


def _target(chance: Random) -> list[Any]:
    task = chance.choice(("target.missed", "target.missed", "forged.work", "target.from_the_future"))
    options = {chance.choice(ROUTING): chance.choice(ODD)} if _one_in(chance, 3) else {}
    whole = [task, [], {}, True, options]
    if _one_in(chance, 5):
        whole[chance.randrange(5)] = chance.choice(ODD)
    return whole


def _nearly(chance: Random, value: Any) -> Any:
    """Return a value, or now and then another one."""
    return chance.choice(ODD) if _one_in(chance, 10) else value


def _one_in(chance: Random, times: int) -> bool:
    return chance.randrange(times) == 0
