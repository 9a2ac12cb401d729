"""The messages of a channel that are not acknowledged."""

from typing import Any

from kombu.transport import redis as kombu_redis
from kombu.utils.encoding import bytes_to_str
from redis import RedisError

_redis: Any = kombu_redis


class QoS(_redis.QoS):  # type: ignore[misc]
    """The messages that are not acknowledged: the channel knows how many, the server knows which."""

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message."""
        self.channel.ack_many([delivery_tag])

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Put a message back into its queue, or drop it."""
        if requeue:
            with self.channel.settling([delivery_tag]):
                self.restore_by_tag(delivery_tag, leftmost=True)
        else:
            self.ack(delivery_tag)

    def restore_unacked(self, client: Any = None) -> None:
        """Put all unacknowledged messages back, in their order."""
        self.channel.forget_taken()
        self._flush()
        for tag in reversed(self._delivered):
            self.restore_by_tag(tag, client)
        self._delivered.clear()

    def restore_by_tag(self, tag: Any, client: Any = None, leftmost: bool = False) -> None:
        """Put a message back; one that cannot be read is moved to a list, lest it ends each worker that restores it."""
        try:
            super().restore_by_tag(tag, client, leftmost)
        except (RedisError, OSError):
            raise
        except Exception as exc:
            with self.channel.conn_or_acquire(client) as client:
                note = client.hget(self.unacked_key, tag)
            self.channel.set_aside(self.unacked_key, bytes_to_str(tag), note, exc)
