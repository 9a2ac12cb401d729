"""Rows that were not taken over a connection that was there: the row is to blame or the broker, and its neighbours tell which."""

from dataclasses import dataclass

from celery_sagas.stores.records import OutboxRow

#: Seconds for which a suspect waits: doubled each time, up to a bound that an outage may cost a good row.
_FIRST_PAUSE_S, _LAST_PAUSE_S = 5.0, 60.0
#: Rows that are remembered; the oldest are forgotten first.
_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class _Suspicion:
    times: int
    accepted: int  #: how many rows the broker had taken when it began


class Suspects:
    """What one relay remembers, from sweep to sweep, of the rows that it could not judge."""

    def __init__(self) -> None:
        self._accepted = 0
        self._suspicions: dict[str, _Suspicion] = {}
        self._unsure: dict[str, int] = {}  #: how many rows the broker had taken by then, by row

    def accept(self, id: str) -> None:
        """Note that the broker has taken a row."""
        self._accepted += 1
        self.forget(id)

    def forget(self, id: str) -> None:
        """Forget a row that is judged."""
        self._suspicions.pop(id, None)
        self._unsure.pop(id, None)

    def suspect(self, id: str) -> float:
        """Suspect a row, perhaps once more; return for how many seconds it waits."""
        before = self._suspicions.pop(id, _Suspicion(0, self._accepted))
        self._suspicions[id] = _Suspicion(before.times + 1, before.accepted)
        _bound(self._suspicions)
        pause_s: float = min(_FIRST_PAUSE_S * 2 ** min(before.times, 10), _LAST_PAUSE_S)
        return pause_s

    def doubt(self, id: str) -> None:
        """Note that a row was published among others, and that nobody knows what became of it."""
        self._unsure[id] = self._accepted
        _bound(self._unsure)

    def has_failed_alone(self, row: OutboxRow) -> bool:
        """Tell whether a row was found to blame before, or the broker has taken others since nobody could tell about it."""
        suspicion = self._suspicions.get(row.id)
        since = min(self._unsure.get(row.id, self._accepted), suspicion.accepted if suspicion else self._accepted)
        return row.attempts > 0 or since < self._accepted

    def is_to_go_alone(self, row: OutboxRow) -> bool:
        """Tell whether others must not be published together with a row: it may end their connection."""
        return row.attempts > 0 or row.id in self._suspicions or row.id in self._unsure


def _bound(remembered: dict[str, _Suspicion] | dict[str, int]) -> None:
    if len(remembered) > _REMEMBERED:
        del remembered[next(iter(remembered))]
