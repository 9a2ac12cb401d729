"""A stand-in for OpenTelemetry's collector: it takes traces over HTTP, as the exporters send them, and keeps the spans."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.processes import HOST


@dataclass(frozen=True)
class ReceivedSpan:
    """A span, as it was sent."""

    name: str
    kind: str
    trace: str
    id: str
    parent: str  #: empty: none
    links: tuple[str, ...]  #: spans
    attributes: dict[str, Any]
    resource: dict[str, Any]


@dataclass
class Collector:
    """What was received."""

    endpoint: str
    received: list[ReceivedSpan] = field(default_factory=list)

    def named(self, name: str) -> list[ReceivedSpan]:
        """Return the spans of a name, or whose names begin with it."""
        return [span for span in list(self.received) if span.name.startswith(name)]

    def name_of(self, id: str) -> str:
        """Return the name of a span by its id; the id, if the span was not received."""
        return next((span.name for span in self.received if span.id == id), id)

    def take(self, body: bytes) -> None:
        """Keep the spans of a request."""
        for of_process in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = _values(of_process.resource.attributes)
            self.received += [_span(span, resource) for scope in of_process.scope_spans for span in scope.spans]


def _span(span: Any, resource: dict[str, Any]) -> ReceivedSpan:
    ids = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
    links = tuple(link.span_id.hex() for link in span.links)
    kind = type(span).SpanKind.Name(span.kind).removeprefix("SPAN_KIND_")
    return ReceivedSpan(span.name, kind, *ids, links, _values(span.attributes), resource)


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.take(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer((HOST, 0), Handler) as server:
        collector = Collector(f"http://{HOST}:{server.server_port}/v1/traces")
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield collector
        server.shutdown()
        thread.join()
