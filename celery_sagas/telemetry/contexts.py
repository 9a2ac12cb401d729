"""The context of a span as text, as an instance keeps it: the values of W3C's headers ``traceparent`` and ``tracestate``."""

from opentelemetry.trace import INVALID_SPAN_CONTEXT, SpanContext, TraceFlags, TraceState

#: The most characters of a context.
MOST_CHARACTERS = 512
#: A context without a state: the version, the trace, the span, the flags.
_FORM = "00-{:032x}-{:016x}-{:02x}"
_SPAN_CHARACTERS = len(_FORM.format(0, 0, 0))


def stored_context(context: SpanContext) -> str:
    """Return a context as text, without its state if that makes it too long."""
    text = _FORM.format(context.trace_id, context.span_id, context.trace_flags)
    if not context.trace_state:
        return text
    whole = f"{text} {context.trace_state.to_header()}"
    return whole if len(whole) <= MOST_CHARACTERS else text


def read_context(text: object) -> SpanContext:
    """Return the context that a text holds; an invalid one if it holds none."""
    if not isinstance(text, str):
        return INVALID_SPAN_CONTEXT
    try:
        _, trace_id, span_id, flags = text[:_SPAN_CHARACTERS].split("-")
        ids, given = (int(trace_id, 16), int(span_id, 16)), TraceFlags(int(flags, 16))
    except ValueError:
        return INVALID_SPAN_CONTEXT
    state = text[_SPAN_CHARACTERS + 1 :]
    return SpanContext(*ids, True, given, TraceState.from_header([state]) if state else None)
