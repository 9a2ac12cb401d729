"""Series: what ``schedule(every=)`` takes, and what a relay makes of the row of one."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule
from hypothesis import assume, given
from hypothesis import strategies as st

from celery_sagas import Saga, clock
from celery_sagas.core.ids import derived_id
from celery_sagas.core.series import Crontab, Interval
from celery_sagas.errors import ConfigurationError
from celery_sagas.stores.records import SERIES, OutboxRow
from celery_sagas.testing import collected
from celery_sagas.worker.headers import ADDRESS, read_address
from celery_sagas.worker.serialization import deserialized
from celery_sagas.worker.series import next_occurrence, series_of
from tests.apps import Worker, backend_of

NOW = datetime(2026, 3, 27, 10, 20, 30, tzinfo=UTC)
NOON = NOW.replace(hour=12, minute=0, second=0)
SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def ms(time: datetime) -> int:
    return int(time.timestamp() * 1000)


@pytest.fixture
def frozen() -> Any:
    with clock.replaced_by(NOW.timestamp):
        yield


@pytest.fixture
def meter(app: Celery) -> Any:
    """A saga whose step schedules as it is told."""

    class Meter(Saga, correlate_by="number"):
        number: str
        ticks: int = 0

    @Meter.starts
    def begin(meter: Meter, number: str) -> None:
        begin_with(meter)

    @Meter.handles
    def tick(meter: Meter, text: Any = "") -> None:
        meter.ticks += 1

    def begin_with(meter: Meter) -> None:
        meter.schedule(tick, **options)

    options: dict[str, Any] = {}
    return SimpleNamespace(Meter=Meter, begin=begin, tick=tick, options=options, app=app)


def begin(meter: Any, **options: Any) -> Any:
    """Call the step on a state of the test's own; return what it has scheduled."""
    meter.options.update(options)
    state = meter.Meter(number="1")
    meter.begin.handler(state, "1")
    (timeout,) = collected(state).timeouts.values()
    return timeout


@pytest.mark.usefixtures("frozen")
class TestArguments:
    @pytest.mark.parametrize(
        ("options", "first"),
        [
            ({"every": MINUTE}, NOW + MINUTE),
            ({"every": MINUTE, "after": 5}, NOW + 5 * SECOND),
            ({"every": MINUTE, "after": timedelta(0)}, NOW),
            ({"every": MINUTE, "at": NOW - DAY}, NOW - DAY),
            ({"every": timedelta(milliseconds=1500.7)}, NOW + timedelta(milliseconds=1500)),
            ({"every": crontab()}, NOW + timedelta(seconds=30)),
            ({"every": crontab(minute=21)}, NOW + timedelta(seconds=30)),
            ({"every": crontab(minute=0, hour="8,9")}, NOW.replace(hour=8, minute=0, second=0) + DAY),
            ({"every": crontab(minute=0), "at": NOW - DAY}, NOW.replace(hour=11, minute=0, second=0)),
            (
                {"every": crontab(minute=0), "at": NOW.replace(hour=12, minute=0, second=0)},
                NOW.replace(hour=12, minute=0, second=0),
            ),
            ({"every": crontab(minute=0), "after": 3 * HOUR}, NOW.replace(hour=14, minute=0, second=0)),
        ],
    )
    def test_first_time(self, meter: Any, options: dict[str, Any], first: datetime) -> None:
        assert begin(meter, **options).due_at == first

    @pytest.mark.parametrize("every", [60, 60.0, "60", True, schedule(60), BaseSchedule(), object()])
    def test_other_types(self, meter: Any, every: Any) -> None:
        with pytest.raises(TypeError, match=r"every= takes a timedelta or a celery\.schedules\.crontab, not "):
            begin(meter, every=every)

    def test_subclass_of_a_crontab(self, meter: Any) -> None:
        """Its times may be others."""

        class Moon(crontab):  # type: ignore[misc,unused-ignore]
            pass

        with pytest.raises(TypeError, match="not Moon"):
            begin(meter, every=Moon())

    @pytest.mark.parametrize("every", [timedelta(0), -MINUTE, timedelta(milliseconds=999), timedelta(days=40_000)])
    def test_too_short_and_too_long(self, meter: Any, every: timedelta) -> None:
        with pytest.raises(ValueError, match="is not between a second and a hundred years"):
            begin(meter, every=every)

    @pytest.mark.parametrize("options", [{}, {"after": 5, "at": NOW}, {"every": MINUTE, "after": 5, "at": NOW}])
    def test_times_that_are_missing_or_too_many(self, meter: Any, options: dict[str, Any]) -> None:
        with pytest.raises(TypeError, match="after= a time or at= a time"):
            begin(meter, **options)

    def test_naive_time(self, meter: Any) -> None:
        with pytest.raises(ValueError, match="names no time zone"):
            begin(meter, every=MINUTE, at=NOW.replace(tzinfo=None))

    def test_crontab_that_never_comes(self, meter: Any) -> None:
        """Later releases of Celery refuse some of these themselves."""
        with pytest.raises(ValueError, match=r"."):
            begin(meter, every=crontab(minute=0, hour=0, day_of_month=30, month_of_year=2))
        with pytest.raises(ValueError, match="never comes"):
            Crontab((0,), (0,), (30,), (2,), tuple(range(7)), "UTC").following(ms(NOW))


class TestTimeZones:
    @pytest.mark.parametrize(
        ("timezone", "shown"), [("Europe/London", "Europe/London"), (UTC, "UTC"), (None, "UTC"), ("UTC", "UTC")]
    )
    def test_that_of_the_app(self, app: Celery, timezone: Any, shown: str) -> None:
        app.conf.timezone = timezone
        _, rule = series_of(crontab(), None)
        assert isinstance(rule, Crontab)
        assert rule.zone == shown

    def test_of_pytz(self, app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(app, "timezone", SimpleNamespace(zone="America/New_York"))
        _, rule = series_of(crontab(), None)
        assert isinstance(rule, Crontab)
        assert rule.zone == "America/New_York"

    def test_without_a_name(self, app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
        class Here(tzinfo):
            def __repr__(self) -> str:
                return "<here>"

        monkeypatch.setattr(app, "timezone", Here())
        with pytest.raises(ConfigurationError, match="Set timezone to a name such as 'Europe/London'"):
            series_of(crontab(), None)
        assert series_of(MINUTE, None)  # needs none


_fields = {"minute": (0, 59), "hour": (0, 23), "day_of_month": (1, 31), "month_of_year": (1, 12), "day_of_week": (0, 6)}
_crontabs = st.fixed_dictionaries(
    {},
    optional={name: st.sets(st.integers(*ends), min_size=1, max_size=4) for name, ends in _fields.items()},
)


@given(_crontabs, st.datetimes(datetime(2026, 1, 1), datetime(2036, 1, 1)))
def test_times_are_those_of_celery_where_no_clock_changes(fields: dict[str, set[int]], after: datetime) -> None:
    """The next time is computed here, since Celery's is wrong around the changes of clocks (celery#9653, celery#10107)."""
    last = after.replace(second=0, microsecond=0, tzinfo=UTC)
    app = Celery(set_as_current=False, timezone="UTC")
    try:
        theirs = crontab(**fields, app=app, nowfun=lambda: last)  # type: ignore[arg-type,unused-ignore]
    except ValueError:
        assume(False)
    numbers = (sorted(getattr(theirs, name)) for name in _fields)
    minutes, hours, days, months, weekdays = map(tuple, numbers)
    try:
        ours = Crontab(minutes, hours, days, months, weekdays, "UTC").following(ms(last))
    except ValueError:
        return
    assume(ours < ms(datetime(2060, 1, 1, tzinfo=UTC)))
    start, delta, _ = theirs.remaining_delta(last)
    assert ms(last + theirs.remaining_estimate(last)) == ours, (start, delta)


class TestRows:
    def begun(self, meter: Any, worker: Worker, **options: Any) -> OutboxRow:
        meter.options.update(options)
        meter.begin.delay("1")
        worker.run()
        (row,) = backend_of(meter.app).outbox._state.outbox._by_id.values()  # type: ignore[attr-defined]
        message: OutboxRow = row.message
        return message

    def test_row_of_a_series(self, meter: Any, worker: Worker) -> None:
        row = self.begun(meter, worker, every=MINUTE, name="tick")
        assert row.kind == SERIES
        assert json.loads(row.payload)["series"] == Interval(row.due_at, 60_000).to_json()

    def test_row_of_one_that_is_due_at_once_waits_for_a_relay(self, meter: Any, worker: Worker) -> None:
        """Nobody else would put the next occurrence into it."""
        row = self.begun(meter, worker, every=MINUTE, at=NOW - 3650 * DAY)
        assert row.due_at == ms(NOW - 3650 * DAY)
        assert meter.Meter.find("1").ticks == 0

    @pytest.mark.parametrize("text", ["Ω", {"__type__": "datetime", "__value__": "2026-01-01T00:00:00"}, 1e300, None])
    def test_next_occurrence_differs_by_its_time_alone(self, meter: Any, worker: Worker, text: Any) -> None:
        meter.options["every"] = MINUTE
        row = self.begun(meter, worker)
        sent = json.loads(row.payload)
        sent["kwargs"] = {"text": text}
        row = row._replace(payload=json.dumps(sent), attempts=2)

        new = next_occurrence(row, row.due_at)

        assert (new.due_at, new.attempts) == (row.due_at + 60_000, 0)
        assert new._replace(message_id=row.message_id, payload="", due_at=row.due_at, attempts=2) == row._replace(payload="")
        timeout = sent["options"]["headers"][ADDRESS]["timeout"]
        assert new.message_id == derived_id(timeout, str(new.due_at))
        sent["options"]["task_id"] = new.message_id
        sent["options"]["headers"][ADDRESS]["due"] = new.due_at
        assert json.loads(new.payload) == sent

    def test_first_message_has_the_id_of_the_series(self, meter: Any, worker: Worker) -> None:
        row = self.begun(meter, worker, every=MINUTE)
        address = json.loads(row.payload)["options"]["headers"][ADDRESS]
        assert (address["timeout"], address["due"]) == (row.message_id, row.due_at)

    def test_next_occurrence_is_in_the_future(self, meter: Any, worker: Worker) -> None:
        row = self.begun(meter, worker, every=MINUTE)
        assert next_occurrence(row, row.due_at + 600_001).due_at == row.due_at + 660_000

    def test_clock_of_the_relay_that_is_slow(self, meter: Any, worker: Worker) -> None:
        """The store says when a row is due."""
        row = self.begun(meter, worker, every=MINUTE)
        assert next_occurrence(row, row.due_at - 5_000).due_at == row.due_at + 60_000

    def test_same_time_has_the_same_id(self, meter: Any, worker: Worker) -> None:
        """Whoever derives it, and however often."""
        row = self.begun(meter, worker, every=MINUTE)
        assert next_occurrence(row, row.due_at + 1) == next_occurrence(row, row.due_at + 50_000)

    def test_message_is_that_of_any_timeout(self, meter: Any, worker: Worker) -> None:
        row = next_occurrence(self.begun(meter, worker, every=MINUTE), 0)
        sent = deserialized(meter.app, row.payload)
        assert SERIES not in sent
        assert sent.options["task_id"] == row.message_id

    @pytest.mark.parametrize(
        "damage",
        [
            lambda sent: sent.pop("series"),
            lambda sent: sent.update(series={"moons": 1}),
            lambda sent: sent.pop("options"),
            lambda sent: sent["options"]["headers"].pop(ADDRESS),
            lambda sent: sent["options"]["headers"].update({ADDRESS: "x"}),
            lambda sent: sent["options"].update(headers=None),
        ],
    )
    def test_row_that_cannot_be_read(self, meter: Any, worker: Worker, damage: Callable[[Any], object]) -> None:
        row = self.begun(meter, worker, every=MINUTE)
        sent = json.loads(row.payload)
        damage(sent)
        with pytest.raises(ValueError, match=r"no series"):
            next_occurrence(row._replace(payload=json.dumps(sent)), 0)

    @pytest.mark.parametrize("payload", ["", "[]", "null", '"x"'])
    def test_payload_that_is_no_message(self, meter: Any, worker: Worker, payload: str) -> None:
        row = self.begun(meter, worker, every=MINUTE)
        with pytest.raises(ValueError, match=r"."):
            next_occurrence(row._replace(payload=payload), 0)


class TestAddresses:
    def read(self, due: Any = 5, **headers: Any) -> int:
        address = {"instance": "i", "timeout": "t", "due": due}
        request = SimpleNamespace(headers={ADDRESS: address, **headers}, retries=headers.get("retries", 0), id="m", task="t")
        found = read_address(request)
        assert found is not None
        return found.due_at

    def test_due_time_of_an_occurrence(self) -> None:
        assert self.read() == 5

    @pytest.mark.parametrize("due", [None, "5", 5.5, [], {}])
    def test_malformed_one_is_none(self, due: Any) -> None:
        assert self.read(due) == 0

    def test_occurrence_that_is_tried_again_has_none(self) -> None:
        """It is handled even if another one came in between."""
        assert self.read(retries=1) == 0
        assert self.read(saga_retry_of="a dead letter") == 0
