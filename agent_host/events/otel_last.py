"""The last span of a process, kept for the process that resumes its session: that one links to it."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING

from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext, TraceFlags

from agent_host.safe_open import open_regular

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import ReadableSpan

_MAX_BYTES = 1024


class LastSpan:
    """{"traceId", "spanId"} in hexadecimal digits, in the file at `path`; "" keeps nothing. What the disk refuses costs
    the link, and no more."""

    def __init__(self, path: str) -> None:
        self._path = path

    def read(self) -> SpanContext | None:
        """The span that was kept; None where there is none to be read."""
        try:
            with os.fdopen(open_regular(self._path, os.O_RDONLY), "rb") as handle:
                kept = json.loads(handle.read(_MAX_BYTES))
            context = SpanContext(
                int(kept["traceId"], 16), int(kept["spanId"], 16), is_remote=True, trace_flags=TraceFlags(0x01)
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return context if context.is_valid else None

    def write(self, context: SpanContext) -> None:
        """Keep the span in place of the one before. The file is replaced as a whole."""
        if not self._path:
            return
        kept = {"traceId": f"{context.trace_id:032x}", "spanId": f"{context.span_id:016x}"}
        new = f"{self._path}.new"
        with contextlib.suppress(OSError):
            with os.fdopen(open_regular(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as handle:
                handle.write(json.dumps(kept).encode() + b"\n")
            os.replace(new, self._path)


class DeliveredSpans(SpanExporter):  # type: ignore[misc]  # the SDK has no types for mypy, see pyproject.toml
    """Exports with `exporter`, and keeps the last span of each batch that the receiver took: a link to it leads
    somewhere, also after a kill."""

    def __init__(self, exporter: SpanExporter, last: LastSpan) -> None:
        self._exporter = exporter
        self._last = last

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See SpanExporter."""
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS and spans:
            self._last.write(spans[-1].get_span_context())
        return result

    def shutdown(self) -> None:
        """See SpanExporter."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """See SpanExporter."""
        return bool(self._exporter.force_flush(timeout_millis))
