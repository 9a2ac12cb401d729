"""Dead letters in memory."""

from celery_sagas.stores.memory.state import Clock, MemoryState
from celery_sagas.stores.ports import DeadLetters
from celery_sagas.stores.records import DeadLetter


class MemoryDeadLetters(DeadLetters):
    """Letters by id."""

    def __init__(self, state: MemoryState, clock: Clock) -> None:
        self._state = state
        self._clock = clock

    def add(self, letter: DeadLetter) -> None:
        with self._state.lock:
            keep(self._state, letter, self._clock())

    def list(self, limit: int, before: str | None = None) -> list[DeadLetter]:
        with self._state.lock:
            letters = sorted(self._state.letters.values(), key=_age, reverse=True)
            if before is not None:
                last = self._state.letters.get(before)
                letters = [letter for letter in letters if last is not None and _age(letter) < _age(last)]
            return letters[:limit]

    def get(self, id: str) -> DeadLetter | None:
        with self._state.lock:
            return self._state.letters.get(id)

    def remove(self, id: str) -> bool:
        with self._state.lock:
            return self._state.letters.pop(id, None) is not None

    def count(self) -> int:
        with self._state.lock:
            return len(self._state.letters)


def keep(state: MemoryState, letter: DeadLetter, now: int) -> None:
    """Keep a letter, unless one with its id is there."""
    state.letters.setdefault(letter.id, letter._replace(at=now))


def _age(letter: DeadLetter) -> tuple[int, str]:
    return letter.at, letter.id
