"""What the shop shows: progress, outcomes, the timelines of an order and a trip, and the summary for machines."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

from example_project.checks import OrderLook, TripLook
from example_project.journal import Entry
from example_project.scenarios import SCENARIOS, TRIP_SCENARIOS, Planned, PlannedTrip
from example_project.shop import Day


class LiveProgress(Progress):
    """A bar for each kind of order and trip."""

    def __init__(self, planned: Sequence[Planned | PlannedTrip], console: Console) -> None:
        super().__init__(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), console=console)
        kinds = Counter(each.scenario.name for each in planned)
        self._bars: dict[str, TaskID] = {kind: self.add_task(kind, total=count) for kind, count in kinds.items()}

    def show(self, looks: Sequence[OrderLook | TripLook]) -> None:
        """Move the bars."""
        ended = Counter(look.planned.scenario.name for look in looks if look.ended)
        for kind, bar in self._bars.items():
            self.update(bar, completed=ended[kind])


def outcomes(day: Day) -> Table:
    """Return the table of outcomes, by kind of order and trip."""
    table = Table("order or trip", "placed", "came to", "messages", title="Outcomes")
    ended: list[OrderLook | TripLook] = [*day.looks, *day.trips]
    for scenario in (*SCENARIOS, *TRIP_SCENARIOS):
        looks = [look for look in ended if look.planned.scenario == scenario]
        states = Counter(look.state for look in looks)
        came_to = ", ".join(f"{count} {state}" for state, count in states.items())
        table.add_row(scenario.name, str(len(looks)), came_to, str(sum(len(look.journal) for look in looks)))
    return table


def timeline(journal: Sequence[Entry]) -> Table:
    """Return what happened to an order, or a trip."""
    title = f"{journal[0].saga.capitalize()} {journal[0].key}, from its journal"
    table = Table("ms", "step", "came to", "version", "sent", title=title)
    for entry in journal:
        detail = json.loads(entry.detail)
        sent = Counter(message["task"].rpartition(".")[2] for message in detail.get("sent", []))
        why = detail.get("reason") or detail.get("came")  # what came of a request: an answer, a failure, all that was gathered
        came_to = f"{entry.outcome} ({why})" if why else entry.outcome
        messages = ", ".join(f"{task} ({count})" if count > 1 else task for task, count in sent.items())
        table.add_row(f"{entry.at - journal[0].at:+}", entry.step.rpartition(".")[2], came_to, str(entry.version or ""), messages)
    return table


def books(day: Day) -> str:
    """Return in a sentence what was counted."""
    found = day.books
    return (
        f"The till counted {found.sales} sales, {found.taken} in all. "
        f"The bank was called {found.calls} times, charged {found.charged} cards and refunded {found.refunded}: {found.balance}."
    )


def filing(day: Day) -> str:
    """Return in a sentence what was filed."""
    found = day.filing
    return (
        f"The ledger has {len(found.filed)} invoices in {len(found.batches)} batches, {found.total} in all; "
        f"rejected: {len(found.rejected)}."
    )


def trips(day: Day) -> str:
    """Return in a sentence what was booked."""
    cancelled = _booked(day) - day.kept
    return f"{_booked(day)} flights, hotels and cars were booked for {len(day.trips)} trips, and {cancelled} cancelled again."


def _booked(day: Day) -> int:
    return sum(line.what == "booked" for line in day.bookings.lines)


def summary(day: Day, seconds: float) -> str:
    """Return the day as JSON, for machines."""
    return json.dumps(
        {
            "ok": not day.problems,
            "problems": day.problems,
            "orders": len(day.looks),
            "outcomes": Counter(look.state for look in day.looks),
            "books": asdict(day.books),
            "invoices": {
                "filed": len(day.filing.filed),
                "total": day.filing.total,
                "batches": Counter(line.reason for line in day.filing.batches),
                "largest_batch": max((line.size for line in day.filing.batches), default=0),
                "waiting": day.filing.waiting,
                "rejected": len(day.filing.rejected),
            },
            "trips": Counter(look.state for look in day.trips),
            "bookings": {"booked": _booked(day), "kept": day.kept},
            "seconds": round(seconds, 1),
        },
        default=str,
    )
