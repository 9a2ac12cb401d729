"""Workflows of DBOS with four steps each; the arguments are a URL, the number of workflows, and how they are run."""

import logging
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from dbos import DBOS, DBOSConfig

THREADS = 8
url, count, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]


@DBOS.step()
def step(value: int) -> int:
    """Do what a step of an item does; DBOS stores the result."""
    return value + 1


@DBOS.workflow()
def item(name: str) -> int:
    """Take the four steps of an item."""
    value = 0
    for _ in range(4):
        value = step(value)
    return value


def main() -> None:
    """Run the workflows, one after the other, in threads, or as DBOS starts them."""
    config: DBOSConfig = {"name": "items", "system_database_url": url, "log_level": "ERROR"}
    DBOS(config=config)
    DBOS.launch()
    logging.disable(logging.CRITICAL)
    names = [f"item {number}" for number in range(count)]
    item("warm")
    began = time.perf_counter()
    if how == "serial":
        results = [item(name) for name in names]
    elif how == "threads":
        with ThreadPoolExecutor(THREADS) as pool:
            results = list(pool.map(item, names))
    else:
        results = [handle.get_result() for handle in [DBOS.start_workflow(item, name) for name in names]]
    seconds = time.perf_counter() - began
    assert results == [4] * count
    print(f"seconds {seconds}", flush=True)
    DBOS.destroy()


if __name__ == "__main__":
    main()
