"""What every span of a session has in common, and how one begins and ends at the times of events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, Link, SpanKind, Status, StatusCode, set_span_in_context

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opentelemetry.trace import Span, SpanContext, Tracer

    from agent_host.events.emitter import Event

SCOPE = "agent-host"
SCHEMA_URL = "https://opentelemetry.io/schemas/1.41.0"
"""The names of attributes and metrics are those of this version, the last one of the conventions for generative AI for
which OpenTelemetry has published a schema. Later ones rename some of them."""
INTERRUPTED = "interrupted"
"""`error.type` of what did not come to its own end."""
SECONDS = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92]
"""The buckets that the conventions advise for durations."""
# As in `telemetry.py`: a model may call a tool by any name, however long.
_MAX_CHARS = 128


class Endpoint(NamedTuple):
    """Whom the spans are about: the provider in the words of the conventions, and the gateway's host and port, where
    they are known."""

    provider: str
    address: str = ""
    port: int = 0

    @property
    def server(self) -> dict[str, str | int]:
        """The attributes of the gateway; none where its address is not known."""
        return {"server.address": self.address, "server.port": self.port} if self.address else {}


class SpanMaker:
    """Begins and ends the spans of one session. `now` is the time of the current event, in seconds since the epoch."""

    def __init__(self, tracer: Tracer, endpoint: Endpoint) -> None:
        self._tracer = tracer
        self._common = {"gen_ai.provider.name": endpoint.provider}
        self.now = 0.0

    def at(self, event: Event) -> None:
        """Take the time of the event, and the session that it is of."""
        self.now = event.at
        self._common["gen_ai.conversation.id"] = event.chain["sessionId"]

    def begin(
        self,
        name: str,
        parent: Span | None,
        attributes: Mapping[str, Any],
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        links: Sequence[SpanContext | None] = (),
        began: float | None = None,
    ) -> Span:
        """A span that began at `began`, else now. A link that is None is left out."""
        # Whatever the thread's own context holds is not ours.
        context = set_span_in_context(INVALID_SPAN if parent is None else parent, Context())
        return self._tracer.start_span(
            name[:_MAX_CHARS],
            context,
            kind,
            {**self._common, **cut(attributes)},
            links=[Link(link) for link in links if link is not None],
            start_time=nanoseconds(self.now if began is None else began),
            record_exception=False,
        )

    def end(self, span: Span, error: str | None = None) -> None:
        """End the span now, with `error` as the type of what went wrong."""
        if error is not None:
            span.set_attribute("error.type", error)
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(nanoseconds(self.now))


def cut(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes, strings cut to 128 characters."""
    return {name: value[:_MAX_CHARS] if isinstance(value, str) else value for name, value in attributes.items()}


def nanoseconds(at: float) -> int:
    """Seconds since the epoch as the SDK takes them."""
    return int(at * 1_000_000_000)
