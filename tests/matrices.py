"""How much is run of what would multiply: each thing with some of the others by default, with all of them in ``tox -e chaos``."""

import os
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence

import pytest

_SIZE = os.environ.get("CELERY_SAGAS_TEST_MATRIX", "")
#: Whether everything is run with everything.
IS_FULL = _SIZE == "full"
#: Whether each thing is run once or twice, in memory and as a task: where the rest of it is run in another environment.
IS_SINGLE = _SIZE == "single"

IN_TURN = "in_turn(group, *names): a value of these parameters with which a test runs in its turn; see tests/matrices.py"


def many(usual: int, full: int) -> int:
    """Return of how many things each must hold: for a look that finds what it is to find in the first few, or for a long one."""
    return full if IS_FULL else usual


def in_turn(group: str, *names: str) -> pytest.MarkDecorator:
    """Mark one of a group of values of these parameters: with each set of the other ones, a test runs with one of the group."""
    return pytest.mark.in_turn(group, *names)


def beyond_a_few(items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the tests that are left out where each is run once: all but two of its sets of parameters, other ones for each."""
    if not IS_SINGLE:
        return
    tests: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        tests[item.nodeid.partition("[")[0]].append(item)
    for name, sets in tests.items():
        first = zlib.crc32(name.encode()) % len(sets)
        chosen = {first, (first + len(sets) // 2) % len(sets)}
        yield from (item for position, item in enumerate(sets) if position not in chosen)


def left_out(items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the tests whose turn it is not: all that take turns where each is run once, and none where everything is."""
    if IS_FULL:
        return
    tests: dict[tuple[str, str], dict[object, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        if isinstance(item, pytest.Function) and (mark := item.get_closest_marker("in_turn")):
            group, *names = mark.args
            # the values themselves are the same with each value of the group
            others = frozenset((name, id(value)) for name, value in item.callspec.params.items() if name not in names)
            tests[group, item.nodeid.partition("[")[0]][others].append(item)
    for (_, name), sets in tests.items():
        for position, candidates in enumerate(sets.values(), start=zlib.crc32(name.encode())):
            chosen = None if IS_SINGLE else candidates[position % len(candidates)]
            yield from (item for item in candidates if item is not chosen)
