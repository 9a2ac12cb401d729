"""A process that asks counters, all at once: ``ask_counters.py <seconds> <counter>…``. It writes what each has answered."""

import asyncio
import json
import sys

from asked import add_and_say

from celery_sagas import ask_async


async def ask_twice(name: str, amount: int, timeout: float) -> list[int]:
    """Ask the same question twice at once."""
    question = add_and_say.si(name=name, amount=amount)
    return await asyncio.gather(*(ask_async(question, timeout=timeout, id=f"{name} {amount}") for _ in range(2)))


async def ask_all(names: list[str], timeout: float) -> dict[str, list[int]]:
    """Add ten to each counter, and then one."""
    asked = {}
    for amount in (10, 1):
        for name, answers in zip(names, await asyncio.gather(*(ask_twice(name, amount, timeout) for name in names)), strict=True):
            asked.setdefault(name, []).extend(answers)
    return asked


if __name__ == "__main__":
    print("it asks", flush=True)
    print(json.dumps(asyncio.run(ask_all(sys.argv[2:], float(sys.argv[1])))), flush=True)
