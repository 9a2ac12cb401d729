"""Contexts of spans as texts."""

import pytest
from opentelemetry.trace import SpanContext, TraceFlags, TraceState

from celery_sagas.telemetry.contexts import MOST_CHARACTERS, read_context, stored_context

IDS = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7


def context(state: TraceState | None = None) -> SpanContext:
    return SpanContext(*IDS, False, TraceFlags(1), state)


def test_text_is_that_of_the_header() -> None:
    assert stored_context(context()) == "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_state_is_kept() -> None:
    text = stored_context(context(TraceState([("vendor", "a"), ("other", "b")])))
    assert text.endswith("-01 vendor=a,other=b")
    assert read_context(text).trace_state.to_header() == "vendor=a,other=b"


def test_state_that_is_too_long_is_left_out() -> None:
    text = stored_context(context(TraceState([(f"v{number}", "x" * 200) for number in range(3)])))
    assert len(text) <= MOST_CHARACTERS
    assert text == stored_context(context())


def test_text_is_read_again() -> None:
    read = read_context(stored_context(context()))
    assert (read.trace_id, read.span_id, read.trace_flags, read.is_remote) == (*IDS, 1, True)


@pytest.mark.parametrize("text", ["", "00-1-2", "00-x-y-z", "zz", None, 7, {"traceparent": "00"}, "00-" + "0" * 32 + "-1-01"])
def test_what_is_none_is_invalid(text: object) -> None:
    assert not read_context(text).is_valid
