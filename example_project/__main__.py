"""``python -m example_project``: run the shop, show what happens, and tell by the exit code whether all of it was right."""

import signal
import sys
import time

import click
from kombu.exceptions import OperationalError
from kombu.utils.url import maybe_sanitize_url
from rich.console import Console

from celery_sagas.errors import SagaError
from example_project import display
from example_project.night import operate
from example_project.premises import Premises
from example_project.scenarios import plan, plan_trips
from example_project.shop import Day, run
from example_project.worker import ShopError


@click.command()
@click.option("--orders", type=click.IntRange(min=1), default=60, show_default=True, help="How many orders are placed.")
@click.option("--trips", type=click.IntRange(min=0), default=20, show_default=True, help="How many trips are booked.")
@click.option("--broker", help="The broker's URL, such as amqp:// or redis://.  [default: files in a temporary folder]")
@click.option("--backend", help="The saga backend's URL, such as postgresql:// or redis://.  [default: SQLite in that folder]")
@click.option("--concurrency", type=click.IntRange(min=1), default=2, show_default=True, help="Processes of the worker.")
@click.option("--timeout", type=click.FloatRange(min=1), default=120, show_default=True, help="Seconds that it may take.")
@click.option("--operate", "is_night", is_flag=True, help="Have orders stop instead, find them, and let them go on.")
@click.option("--json", "as_json", is_flag=True, help="Print nothing but a summary as JSON.")
def main(
    orders: int,
    trips: int,
    broker: str | None,
    backend: str | None,
    concurrency: int,
    timeout: float,
    is_night: bool,
    as_json: bool,
) -> None:
    """Run a shop on a Celery worker of its own, and check that every order and trip is in the state that it must be in."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # stop the worker, too
    console, began, placed, booked = Console(quiet=as_json), time.monotonic(), plan(orders), plan_trips(trips)
    try:
        with Premises(broker, backend) as premises:
            if is_night:
                problems = operate(premises, concurrency=concurrency, timeout=timeout, show=click.echo)
                raise click.exceptions.Exit(1 if problems else 0)
            announce(console, premises, f"{orders} orders, {trips} trips")
            with display.LiveProgress([*placed, *booked], console) as progress:
                day = run(placed, booked, premises, concurrency=concurrency, timeout=timeout, watch=progress.show)
            premises.keep = bool(day.problems)
    except (ShopError, SagaError, OperationalError) as exc:
        raise click.ClickException(str(exc)) from exc
    if as_json:
        click.echo(display.summary(day, time.monotonic() - began))
    report(console, day, premises, time.monotonic() - began)
    sys.exit(1 if day.problems else 0)


def announce(console: Console, premises: Premises, what: str) -> None:
    """Say what is about to happen, without the passwords."""
    console.print(f"{what} and a worker; its queue and saga_prefix: {premises.name}")
    console.print(f"broker: {maybe_sanitize_url(premises.broker) if premises.broker else premises.folder}")
    console.print(f"state: {maybe_sanitize_url(premises.backend) if premises.backend else premises.folder}", "", sep="\n")


def report(console: Console, day: Day, premises: Premises, seconds: float) -> None:
    """Show how the day went."""
    console.print(display.outcomes(day), display.books(day), display.filing(day), display.trips(day), "", sep="\n")
    for journal in filter(None, (day.busiest, day.undone)):
        console.print(display.timeline(journal), "")
    for problem in day.problems:
        console.print(f"[red]{problem}")
    if day.problems:
        console.print(f"Look at saga_prefix {premises.name!r} of the backend, and at {premises.folder}, which was kept.")
    else:
        ended = f"All {len(day.looks)} orders and {len(day.trips)} trips are in the state that they must be in"
        console.print(f"[green]{ended}, and every invoice is filed, after {seconds:.1f} s.")


if __name__ == "__main__":
    main()
