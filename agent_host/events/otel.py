"""Traces and metrics over OTLP, from events alone (extra `otel`).

Switched on by the variables that OpenTelemetry defines, read by its own SDK: OTEL_EXPORTER_OTLP_ENDPOINT or those for
one signal; OTEL_SDK_DISABLED, OTEL_TRACES_EXPORTER=none and OTEL_METRICS_EXPORTER=none switch off. A thread of its own
imports the SDK, once the session is on its way, and makes spans of the events; the SDK's threads send them. The loop
only puts events into a queue.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from importlib.util import find_spec
from typing import TYPE_CHECKING

from agent_host.events import LIVE_ONLY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent_host.events.emitter import Event

_SIGNALS = ("traces", "metrics")
_MAX_WAITING = 20_000
# The import costs as much processor time as the whole start. The first answer of a model takes longer than this.
_AFTER_START_S = 0.3


def otel_sink(
    environ: Mapping[str, str], *, provider: str = "anthropic", gateway: str = "", trace_file: str = ""
) -> OtelSink | None:
    """The sink configured by `environ`; None if there is none, for a protocol other than http/protobuf, or if the extra
    is not installed. Imports nothing.

    `provider` is the gateway's dialect, as the conventions name it, and `gateway` its URL. The last span is stored in
    the file `trace_file`, and a process that resumes the session links its own span to it; "" stores none."""
    signals = frozenset(signal for signal in _SIGNALS if _is_wanted(environ, signal))
    if not signals or find_spec("opentelemetry") is None:
        return None
    return OtelSink(signals, provider=provider, gateway=gateway, trace_file=trace_file)


def _is_wanted(environ: Mapping[str, str], signal: str) -> bool:
    upper = signal.upper()
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if environ.get(f"OTEL_{upper}_EXPORTER", "otlp").strip().lower() not in ("otlp", ""):
        return False
    general = environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "")
    if environ.get(f"OTEL_EXPORTER_OTLP_{upper}_PROTOCOL", general).strip().lower() not in ("", "http/protobuf"):
        return False
    return bool(environ.get(f"OTEL_EXPORTER_OTLP_{upper}_ENDPOINT") or environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"))


class OtelSink:
    """Hands events to a thread that makes spans and metrics of them. `dropped` counts events that arrived while 20,000
    were queued, or while nothing can be sent; `unusable` is the reason for that, else None."""

    def __init__(self, signals: frozenset[str], *, provider: str, gateway: str = "", trace_file: str = "") -> None:
        self._signals = signals
        self._provider = provider
        self._gateway = gateway
        self._trace_file = trace_file
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._hurry = threading.Event()
        self._thread: threading.Thread | None = None
        self._timeout_s = 0.0
        self.dropped = 0
        self.unusable: str | None = None

    def take(self, event: Event) -> None:
        """Queue the event. The thread starts with the first one."""
        if event.event_type in LIVE_ONLY:
            return
        if self.unusable is not None or self._events.qsize() >= _MAX_WAITING:
            self.dropped += 1
            return
        self._events.put(event)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="otel", daemon=True)
            self._thread.start()

    def flush(self) -> None:
        """The SDK sends in its own time."""

    async def aclose(self, timeout_s: float) -> None:
        """End open spans and send them within `timeout_s`, else abandon them: no thread keeps the process alive."""
        thread = self._thread
        if thread is None:
            return
        self._timeout_s = timeout_s
        self._events.put(None)
        self._hurry.set()
        await asyncio.to_thread(thread.join, timeout_s)

    def _work(self) -> None:
        """The thread, from the import to the last export."""
        self._hurry.wait(_AFTER_START_S)
        try:
            from agent_host.events.otel_export import Export
        except ImportError as error:  # a part of the extra is missing, or too old
            self.unusable = f"OpenTelemetry cannot be used: {error}"
            while not self._events.empty():
                self.dropped += self._events.get() is not None
            return
        export = Export(self._signals, provider=self._provider, gateway=self._gateway, trace_file=self._trace_file)
        while (event := self._events.get()) is not None:
            export.spans.take(event)
        export.close(self._timeout_s)
