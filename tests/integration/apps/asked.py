"""Counters that say what they have come to."""

from counters import Counter, told
from counters import app as app


@Counter.starts
def add_and_say(counter: Counter, name: str, amount: int) -> int:
    counter.value += amount
    counter.count += 1
    counter.send(told.si(name=name, amount=amount))
    return counter.value
