"""How due rows are leased."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from celery_sagas.stores.records import OutboxRow
from celery_sagas.stores.redis.client import Client
from celery_sagas.stores.redis.keys import Shard, new_call
from celery_sagas.stores.redis.packing import encode, unpack_row
from celery_sagas.stores.redis.scripts import Now, load
from celery_sagas.stores.redis.turns import Turns

logger = logging.getLogger("celery_sagas")

#: How many rows one script touches: it holds up everybody else.
AT_ONCE: Final = 500

_DAMAGED: Final = (
    "the field %r of the Redis hash %r, a message that is to be sent, is damaged, %s, and set aside; look at it with HGET, then "
    "restore it with HSET and make it due with ZADD %s 0, or remove it with HDEL"
)

_CLAIM: Final = load("outbox_claim_due")
_SET_ASIDE: Final = load("outbox_set_aside")


class Claims:
    """Leases due rows.

    Args:
        client: Runs the scripts.
        now: The time, for the scripts.
        clock: Returns seconds, of any beginning.
    """

    def __init__(self, client: Client, now: Now, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._now = now
        self._turns = Turns(client, clock)

    def claim(self, shards: Sequence[Shard], token: str, limit: int, lease_ms: int, digests: Sequence[bytes]) -> list[OutboxRow]:
        """Lease at most ``limit`` due rows of the shards, which are asked in this order; see ``Turns.take``."""
        by = encode(token)
        return self._turns.take(shards, limit, lambda shard, limit: self._claim_of(shard, by, limit, lease_ms, digests))

    def _claim_of(
        self, shard: Shard, token: bytes, limit: int, lease_ms: int, digests: Sequence[bytes]
    ) -> Iterator[list[OutboxRow]]:
        """Lease a bounded number of rows at once, until there are enough or no more."""
        while limit > 0:
            call, at_once = new_call(), min(limit, AT_ONCE)
            args = [call, self._now(), token, at_once, lease_ms, *digests]
            # once the replicas have the lease, they have the commits that wrote the rows
            answer = self._client.run(_CLAIM, shard.rows, args, answer=shard.answer(call), commits=True)
            damaged: list[bytes] = []
            yield list(_readable(shard, answer, damaged))
            if damaged:
                self._client.run(_SET_ASIDE, shard.rows, [token, *damaged])
            limit = 0 if len(answer) < 3 * at_once else limit - at_once


def _readable(shard: Shard, answer: Sequence[Any], damaged: list[bytes]) -> Iterator[OutboxRow]:
    """Read claimed rows. One that is damaged must not hold up the others: it is logged, and its id added to ``damaged``."""
    for id, packed, attempts in zip(answer[::3], answer[1::3], answer[2::3], strict=True):
        try:
            yield unpack_row(id.decode(), packed, attempts)
        except ValueError as exc:
            damaged.append(id)
            logger.error(_DAMAGED, id.decode(errors="replace"), shard.rows[0], exc, shard.rows[1])  # noqa: TRY400 - no bug of ours
