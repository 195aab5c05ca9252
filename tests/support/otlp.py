"""A real OTLP/HTTP receiver on loopback: what an exporter sent, decoded."""

from __future__ import annotations

import contextlib
import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

if TYPE_CHECKING:
    from collections.abc import Iterator


class SpanSeen(NamedTuple):
    """A span as it arrived. Times in nanoseconds since the epoch; `error` is its status' message, None when ok."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    start: int
    end: int
    attributes: dict[str, Any]
    events: list[str]
    error: str | None
    links: list[tuple[str, str]]
    """The trace and the span of each."""


class Receiver:
    """What came, in order of arrival."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[SpanSeen] = []
        self.metrics: dict[str, list[Any]] = {}
        """Histograms by name: each series' attributes, count and sum as last sent."""
        self.resource: dict[str, Any] = {}
        self.schemas: set[str] = set()
        """Schema URLs of all resources and scopes."""

    def named(self, name: str) -> SpanSeen:
        """The one span of that name."""
        (found,) = (span for span in self.spans if span.name == name)
        return found

    def tree(self) -> dict[str, str | None]:
        """Name of each span's parent by its own; None at the top."""
        names = {span.span_id: span.name for span in self.spans}
        return {span.name: names.get(span.parent_id) for span in self.spans}

    def take(self, path: str, body: bytes) -> None:
        """One request."""
        if path == "/v1/traces":
            self._traces(ExportTraceServiceRequest.FromString(body))
        elif path == "/v1/metrics":
            self._metrics(ExportMetricsServiceRequest.FromString(body))

    def _traces(self, request: Any) -> None:
        for resource in request.resource_spans:
            self.resource = _values(resource.resource.attributes)
            self._schemas_of(resource, resource.scope_spans)
            for span in (span for scope in resource.scope_spans for span in scope.spans):
                self.spans.append(
                    SpanSeen(
                        span.name,
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        span.kind,
                        span.start_time_unix_nano,
                        span.end_time_unix_nano,
                        _values(span.attributes),
                        [event.name for event in span.events],
                        span.status.message if span.status.code == 2 else None,
                        [(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
                    )
                )

    def _metrics(self, request: Any) -> None:
        for resource in request.resource_metrics:
            self._schemas_of(resource, resource.scope_metrics)
        for metric in (one for res in request.resource_metrics for scope in res.scope_metrics for one in scope.metrics):
            points = metric.histogram.data_points
            sums = metric.sum.data_points
            self.metrics[metric.name] = [
                *((_values(point.attributes), point.count, point.sum) for point in points),
                *((_values(point.attributes), point.as_int, point.as_int) for point in sums),
            ]

    def _schemas_of(self, resource: Any, scopes: Any) -> None:
        self.schemas |= {resource.schema_url, *(scope.schema_url for scope in scopes)}


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(item) for item in value.array_value.values] if kind == "array_value" else getattr(value, kind)


@contextlib.contextmanager
def receiver() -> Iterator[Receiver]:
    """Serve on loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            seen.take(self.path, body)
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    seen = Receiver(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
