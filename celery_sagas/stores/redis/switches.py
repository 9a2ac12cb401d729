"""The switches in Redis."""

from typing import Final

from celery_sagas.stores.records import AuditEntry
from celery_sagas.stores.redis.connection.connections import Word
from celery_sagas.stores.redis.connection.scripts import Script, load
from celery_sagas.stores.redis.packing import digest_of_subject, encode, pack_audit, pack_switch, unpack_switch
from celery_sagas.stores.redis.store import RedisStore
from celery_sagas.stores.switches import MOST, Switch, Switches, too_many

_HOLD: Final = load("switch_hold")
_RELEASE: Final = load("switch_release")
_HELD: Final = load("switch_held")


class RedisSwitches(RedisStore, Switches):
    """Switches in one hash, in the first shard."""

    def hold(self, name: str, entry: AuditEntry) -> bool:
        return self._change(_HOLD, name, entry, [pack_switch(entry), MOST])

    def release(self, name: str, entry: AuditEntry) -> bool:
        return self._change(_RELEASE, name, entry, [])

    def held(self) -> list[Switch]:
        names, switches = self._client.run(_HELD, [self._placement.first().switches], [])
        return sorted(unpack_switch(name.decode(), packed) for name, packed in zip(names, switches, strict=True))

    def _change(self, script: Script, name: str, entry: AuditEntry, args: list[Word]) -> bool:
        shard = self._placement.first()
        args = [self._now(), encode(name), *args]
        args += [encode(entry.id), digest_of_subject(entry.saga, entry.key), pack_audit(entry)]
        answer: bytes = self._client.run(script, [shard.switches, *shard.audit], args, commits=True)
        if answer == b"full":
            raise too_many()
        return answer == b"ok"
