"""Pages as HTML. Everything is escaped, and no text of a store leaves its line, or turns the direction in which it is read."""

import json
from collections.abc import Mapping
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from celery_sagas.operate import texts
from celery_sagas.operate.counting import count_text
from celery_sagas.operate.redact import MARK
from celery_sagas.operate.spans import span, time_text

#: How many characters of one value, or of a text of several lines, a page has.
LONGEST: Final = 20_000
#: And of one in a line.
SHORT: Final = 200
#: The colours of words: of verdicts, outcomes and levels.
_TONES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("unreadable", "failing", "failed", "overdue", "unsent", "FAIL", "dead", "poisoned"), "bad"),
    **dict.fromkeys(("paused", "held", "deferred", "locked", "newer", "WARN", "unresolved", "delayed"), "warn"),
    **dict.fromkeys(("waiting", "started", "handled", "leased"), "info"),
    **dict.fromkeys(("completed", "OK"), "good"),
    "operated": "act",
}


class Block(str):
    """Text of several lines, each of them escaped."""


def block(text: str) -> Block:
    """Return text of several lines, or its beginning."""
    shown = texts.block(text[:LONGEST].rstrip())
    return Block(f"{shown}\n… {len(text) - LONGEST:,} more characters" if len(text) > LONGEST else shown)


def pretty(value: Any) -> Block:
    """Return JSON values as text of several lines; the mark of a hidden one is no text of it."""
    return Block(value) if value == MARK else block(json.dumps(value, indent=2, ensure_ascii=False))


def short(value: Any) -> str:
    """Return JSON values in one line, or its beginning; the mark of a hidden one is no text of it."""
    return MARK if value == MARK else clipped(json.dumps(value, ensure_ascii=False))


def clipped(text: str) -> str:
    """Return text, or its beginning."""
    return text if len(text) <= SHORT else f"{text[:SHORT]}… ({len(text):,} characters)"


def raw_block(text: str) -> Block:
    """Return text to be edited, as it is: its control characters are escaped as JSON does, so that they come back."""
    return Block(texts.json_text(text))


def _shown(value: Any) -> Any:
    """Return what is shown of the value of an expression in a template."""
    if not isinstance(value, str) or isinstance(value, Markup | Block):
        return value
    return value if value.isprintable() else texts.line(value)


def _tone(word: str) -> str:
    return _TONES.get(word.partition(" ")[0], "calm")


def environment() -> Environment:
    """Return what renders the templates."""
    loader = PackageLoader("celery_sagas.web")
    made = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, finalize=_shown, trim_blocks=True, lstrip_blocks=True
    )
    made.filters |= {
        "block": block,
        "clipped": clipped,
        "count": count_text,
        "pretty": pretty,
        "raw_block": raw_block,
        "short": short,
        "span": span,
        "time": time_text,
        "tone": _tone,
    }
    return made
