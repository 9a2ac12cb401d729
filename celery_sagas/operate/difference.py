"""The difference of two states, in bounded time and with a bounded number of lines, however large they are."""

import json
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import islice, takewhile, zip_longest
from typing import Any, Final, NamedTuple

#: How many lines around a change are shown.
_CONTEXT: Final = 2
#: How many lines are compared at once, each with each.
_COMPARED: Final = 500
#: How many lines of one change, how many in all, and how many characters of a line are shown.
_CHANGED: Final = 20
_LINES: Final = 200
_CHARACTERS: Final = 200


class _Change(NamedTuple):
    """Lines that are others: positions in the old ones, and in the new ones."""

    first: int
    end: int
    new_first: int
    new_end: int


def difference(before: Any, after: Any) -> Iterator[str]:
    """Yield the lines of the unified difference of two states, as JSON values; none if they are the same.

    The fields of the second have the order of the first: that in which they are stored says nothing. What is long is cut off.
    """
    old, new = (json.dumps(value, indent=2, ensure_ascii=False).splitlines() for value in (before, _in_order_of(before, after)))
    if old == new:
        return
    yield from ("--- before", "+++ after")
    lines = (line for hunk in _hunks(_merged(_changes(old, new))) for line in _unified(hunk, old, new))
    yield from map(_short, islice(lines, _LINES))
    if next(lines, None) is not None:
        yield "… more has changed"


def _changes(old: Sequence[str], new: Sequence[str]) -> Iterator[_Change]:
    """Yield what differs, comparing some lines at once."""
    at = new_at = 0
    same = _same(zip(reversed(old), reversed(new), strict=False))  # at the end: what was added or removed may be long
    end, new_end = len(old) - same, len(new) - same
    while at < end or new_at < new_end:
        same = _same(zip(islice(old, at, end), islice(new, new_at, new_end), strict=False))
        at, new_at = at + same, new_at + same
        parts = old[at : min(at + _COMPARED, end)], new[new_at : min(new_at + _COMPARED, new_end)]
        found = SequenceMatcher(None, *parts, autojunk=False).get_opcodes()
        if max(end - at, new_end - new_at) > _COMPARED:
            while len(found) > 1 and found[-1][0] != "equal":  # it may go on in the next lines
                found.pop()
        yield from (
            _Change(at + first, at + last, new_at + new_first, new_at + new_last)
            for tag, first, last, new_first, new_last in found
            if tag != "equal"
        )
        if found:
            at, new_at = at + found[-1][2], new_at + found[-1][4]


def _same(pairs: Iterable[tuple[str, str]]) -> int:
    """Return how many of the first pairs have the same lines."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _merged(changes: Iterator[_Change]) -> Iterator[_Change]:
    """Yield changes; those that touch each other as one."""
    current = next(changes)
    for change in changes:
        if (change.first, change.new_first) == (current.end, current.new_end):
            current = current._replace(end=change.end, new_end=change.new_end)
        else:
            yield current
            current = change
    yield current


def _hunks(changes: Iterator[_Change]) -> Iterator[list[_Change]]:
    """Yield changes, those together whose surroundings meet."""
    hunk = [next(changes)]
    for change in changes:
        if change.first - hunk[-1].end > 2 * _CONTEXT or len(hunk) > _LINES:
            yield hunk
            hunk = []
        hunk.append(change)
    yield hunk


def _unified(hunk: Sequence[_Change], old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    before = min(_CONTEXT, hunk[0].first)
    after = min(_CONTEXT, len(old) - hunk[-1].end)
    first, new_first = hunk[0].first - before, hunk[0].new_first - before
    end, new_end = hunk[-1].end + after, hunk[-1].new_end + after
    yield f"@@ -{first + 1},{end - first} +{new_first + 1},{new_end - new_first} @@"
    at = first
    for change in hunk:
        yield from (f" {line}" for line in old[at : change.first])
        yield from _marked("-", old[change.first : change.end])
        yield from _marked("+", new[change.new_first : change.new_end])
        at = change.end
    yield from (f" {line}" for line in old[at:end])


def _marked(mark: str, lines: Sequence[str]) -> Iterator[str]:
    shown = lines if len(lines) <= _CHANGED + 1 else lines[:_CHANGED]
    yield from (mark + line for line in shown)
    if left := len(lines) - len(shown):
        yield f"{mark} … {left:,} more lines"


def _short(line: str) -> str:
    return line if len(line) <= _CHARACTERS else f"{line[:_CHARACTERS]}… ({len(line):,} characters)"


def _in_order_of(before: Any, after: Any) -> Any:
    if isinstance(before, dict) and isinstance(after, dict):
        names = (*(name for name in before if name in after), *(name for name in after if name not in before))
        return {name: _in_order_of(before.get(name), after[name]) for name in names}
    if isinstance(before, list) and isinstance(after, list):
        return [_in_order_of(*pair) for pair in zip_longest(before[: len(after)], after)]
    return after
