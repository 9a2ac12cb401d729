"""Dead letters in memory."""

from celery_sagas.stores.memory.state import MemoryState, MemoryStore
from celery_sagas.stores.ports import DeadLetters
from celery_sagas.stores.records import DeadLetter


class MemoryDeadLetters(MemoryStore, DeadLetters):
    """Dead letters by id."""

    def add(self, dead_letter: DeadLetter) -> None:
        with self._state.lock:
            keep(self._state, dead_letter, self._clock())

    def list(self, limit: int, before: str | None = None) -> list[DeadLetter]:
        with self._state.lock:
            dead_letters = sorted(self._state.dead_letters.values(), key=_age, reverse=True)
            if before is not None:
                last = self._state.dead_letters.get(before)
                dead_letters = [
                    dead_letter for dead_letter in dead_letters if last is not None and _age(dead_letter) < _age(last)
                ]
            return dead_letters[:limit]

    def get(self, id: str) -> DeadLetter | None:
        with self._state.lock:
            return self._state.dead_letters.get(id)

    def remove(self, id: str) -> bool:
        with self._state.lock:
            return self._state.dead_letters.pop(id, None) is not None

    def count(self) -> int:
        with self._state.lock:
            return len(self._state.dead_letters)


def keep(state: MemoryState, dead_letter: DeadLetter, now: int) -> None:
    """Keep a dead letter, unless one with its id is there."""
    state.dead_letters.setdefault(dead_letter.id, dead_letter._replace(at=now))


def _age(dead_letter: DeadLetter) -> tuple[int, str]:
    return dead_letter.at, dead_letter.id
