"""A worker is killed while it runs a member of a chord, and of a gather."""

from datetime import timedelta

from celery import Celery, chord
from workers import BROKER, DEADLINE_S, FOLDER, RUN, Worker, note, noted, settings, until

from celery_sagas import Gathered, Saga

app = Celery("chord_and_gather")
app.conf.update(
    settings(
        result_backend=BROKER,
        result_backend_transport_options={"global_keyprefix": f"{RUN}-results-"},
        saga_backend=f"sqlite:///{FOLDER}/sagas.sqlite3",
        saga_relay_interval=0.1,
    )
)


class Trip(Saga, correlate_by="trip_id"):
    trip_id: str
    booked: list[str] = []
    missing: int = 0


@Trip.starts
def book(trip: Trip, trip_id: str, seconds: float) -> None:
    members = [reserve.s("flight of the saga"), reserve.s("hotel of the saga")]
    trip.gather(members, then=all_booked, otherwise=not_all_booked, within=timedelta(seconds=seconds))


@Trip.handles
def all_booked(trip: Trip, reserved: Gathered[str]) -> None: ...


@Trip.handles
def not_all_booked(trip: Trip, reserved: Gathered[str]) -> None:
    trip.booked, trip.missing = reserved.values, len(reserved.silent) + len(reserved.failures)


@app.task
def reserve(what: str) -> str:
    note(f"begun: {what}")
    if what.startswith("hotel"):
        until(lambda: False)  # takes long
    return what


@app.task
def confirm(reserved: list[str]) -> None:
    note("confirmed")


@app.task
def cancel(*_: object) -> None:
    note("cancelled")


def is_half_booked(trip: Trip) -> bool:
    return any(gather.answered == (0,) for gather in trip.saga.gathers.values())


def main() -> None:
    header = [reserve.s("flight of the chord"), reserve.s("hotel of the chord")]
    with Worker("chord_and_gather", "-c", "3") as worker:
        chord(header, confirm.s().on_error(cancel.s())).delay()
        book.delay(trip_id="1", seconds=10 + 3 * worker.start_s)
        Trip.wait("1", until=is_half_booked, timeout=DEADLINE_S)
        until(lambda: noted("begun: hotel of the chord") == noted("begun: hotel of the saga") == 1)
        worker.kill()  # both flights are booked, and both hotels are not
    with Worker("chord_and_gather"):
        trip = Trip.wait("1", until=lambda trip: trip.missing > 0, timeout=DEADLINE_S)
    print(f"the chord has confirmed {noted('confirmed')} times, and cancelled {noted('cancelled')} times")
    print(f"the saga has got {trip.booked}, and knows that {trip.missing} is missing")


if __name__ == "__main__":
    main()
