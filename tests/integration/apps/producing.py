"""A producer of numbered items, as a process: ``producing.py delay|add <groups>``. An item's number is its id.

Each line of its input is a part of its work: ``<first> <end> <seconds>``, the numbers and over how long they are spread.
"""

import sys
import time

from batches import Numbered, collect
from deployed import note

#: Items that are added in one call.
CHUNK = 10


def produce(door: str, groups: int, first: int, end: int, seconds: float) -> None:
    """Give items to the aggregator, by one of its doors."""
    for start in range(first, end, CHUNK):
        items = [Numbered(group=f"group {number % groups}", number=number) for number in range(start, min(start + CHUNK, end))]
        if door == "add":
            collect.add_many(items, ids=[f"item {item.number}" for item in items])
        else:
            for item in items:
                collect.apply_async((item,), task_id=f"item {item.number}")
        if start == first:
            note("begun", str(first))
        time.sleep(seconds * len(items) / (end - first))


if __name__ == "__main__":
    door, groups = sys.argv[1], int(sys.argv[2])
    for line in sys.stdin:
        first, end, seconds = line.split()
        produce(door, groups, int(first), int(end), float(seconds))
