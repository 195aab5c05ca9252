"""The SDK, set up: where spans and metrics go. Imported by the thread in `otel.py`, never by the loop."""

from __future__ import annotations

import logging
import threading
from hashlib import sha256
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import RandomIdGenerator, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from agent_host.events.otel_last import DeliveredSpans, LastSpan
from agent_host.events.otel_parts import SCHEMA_URL, SCOPE, Endpoint
from agent_host.events.otel_spans import Spans
from agent_host.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable


class Export:
    """Providers of their own, not the process's global ones. `spans` takes the events. See `otel_sink` for the rest."""

    def __init__(self, signals: frozenset[str], *, provider: str, gateway: str, trace_file: str) -> None:
        # Without a handler Python would print the SDK's warnings on stderr, where one line is one error of ours.
        logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
        ours = Resource({"service.name": SCOPE, "service.version": __version__}, SCHEMA_URL)
        resource = Resource.create().merge(ours).merge(OTELResourceDetector().detect())
        self._ends: list[Callable[[], None]] = []
        ids = _OneTrace()
        tracers = TracerProvider(resource=resource, shutdown_on_exit=False, id_generator=ids)
        last = LastSpan(trace_file if "traces" in signals else "")
        if "traces" in signals:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            processor = BatchSpanProcessor(DeliveredSpans(OTLPSpanExporter(), last))
            tracers.add_span_processor(processor)
            self._ends.append(processor.shutdown)
        meters: MeterProvider | NoOpMeterProvider = NoOpMeterProvider()
        if "metrics" in signals:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

            reader = PeriodicExportingMetricReader(OTLPMetricExporter())
            meters = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
            self._ends.append(reader.shutdown)
        self.spans = Spans(
            tracers.get_tracer(SCOPE, __version__, SCHEMA_URL),
            meters.get_meter(SCOPE, __version__, SCHEMA_URL),
            endpoint=_endpoint(provider, gateway),
            last=last,
            on_session=ids.use,
        )

    def close(self, timeout_s: float) -> None:
        """End the open spans and send all there is. No signal waits for another, whose receiver may be away."""
        self.spans.close()
        threads = [threading.Thread(target=end, name="otel end", daemon=True) for end in self._ends]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout_s)


def _endpoint(provider: str, gateway: str) -> Endpoint:
    """The provider behind the gateway's URL, of which nothing but host and port is used."""
    try:
        url = urlsplit(gateway)
        return Endpoint(provider, url.hostname or "", url.port or (443 if url.scheme.lower() == "https" else 80))
    except ValueError:  # no request goes to such a URL
        return Endpoint(provider)


class _OneTrace(RandomIdGenerator):  # type: ignore[misc]  # the SDK has no types for mypy, see pyproject.toml
    """A session is one trace, whichever of its processes a span comes from: its id is made from the session's."""

    def __init__(self) -> None:
        self._trace_id: int | None = None

    def use(self, session_id: str) -> None:
        """Take the trace id of the session from here on."""
        self._trace_id = int.from_bytes(sha256(session_id.encode()).digest()[:16]) or 1

    def generate_trace_id(self) -> int:
        return int(super().generate_trace_id()) if self._trace_id is None else self._trace_id
