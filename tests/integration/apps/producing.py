"""A producer of numbered items, as a process: ``producing.py delay|add <first> <end> <groups>``. An item's number is its id."""

import sys

from batches import Numbered, collect

#: Items that are added in one call.
CHUNK = 50


def produce(door: str, first: int, end: int, groups: int) -> None:
    """Give items to the aggregator, by one of its doors."""
    for start in range(first, end, CHUNK):
        items = [Numbered(group=f"group {number % groups}", number=number) for number in range(start, min(start + CHUNK, end))]
        if door == "add":
            collect.add_many(items, ids=[f"item {item.number}" for item in items])
            continue
        for item in items:
            collect.apply_async((item,), task_id=f"item {item.number}")


if __name__ == "__main__":
    produce(sys.argv[1], *map(int, sys.argv[2:]))
