"""docs/events.md from the tables of events: `python -m tests.support.event_page` writes it."""

from __future__ import annotations

from pathlib import Path

from agent_host.events.kinds import LIVE_ONLY, EventType, source_of
from agent_host.events.payloads import PAYLOADS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "events.md"

_HEAD = """\
# Events

Made from `agent_host/events/kinds.py` and `agent_host/events/payloads.py` by `python -m tests.support.event_page`.

An event is one JSON object: {eventId, eventType, timestamp, tenantId, userId, workspaceId, sessionId, taskId?, stepId?,
component, severity, undelivered?, payload}. `eventId` rises, and jumps when another process resumes the session. Pieces
of streams are shown live and not kept in the run log, `sessions/{id}/events.jsonl`; a log that has come to
`host.max_run_log_bytes` is put aside as `events.jsonl.1`, and three such are kept.

`undelivered` is news of what an observer did not get: [{observer, records, message}], `records` since the session's
beginning in this process; each observer at most once in 30 seconds.

A field with `?` may be missing. Those marked T are what the Telemetry Service is told of an event, strings cut.
The Audit Service gets events of sessions, tasks, approvals and policy as they are, of an artifact's
`artifact_uploaded` {toolCallId, artifactUri, storageRef?}, and for each tool call a `tool_completed` whose payload is
{toolCallId, tool, capability?, risk?, ts_start, ts_end, params {summary?, sha256?}, result {ok, status, code?, bytes,
artifactUris?}, policy {decision?, rule?, approved?, approvalScope?, approvalId?}, hashes {outputSha256}}.

With the extra `otel` and the variables that OpenTelemetry defines (OTEL_EXPORTER_OTLP_ENDPOINT and its kin; protocol
http/protobuf) events also become spans and metrics: `agent_host.session`, `invoke_agent agent-host` for a task,
`agent_host.step`, `chat {model}`, `execute_tool {name}`; `gen_ai.client.operation.duration`,
`gen_ai.client.token.usage`, `gen_ai.execute_tool.duration`. A session is one trace, also across a crash. They carry no
contents of messages.
"""


def page() -> str:
    """The page as it should be."""
    parts = [_HEAD]
    for event_type in EventType:
        component, severity = source_of(event_type)
        shape = PAYLOADS[event_type]
        live = ", live only" if event_type in LIVE_ONLY else ""
        parts.append(f"\n## {event_type}\n\n{shape.when[0].upper()}{shape.when[1:]} ({component}, {severity}{live}).\n")
        if shape.fields:
            parts.append("\n| field | kind | | meaning |\n| --- | --- | --- | --- |\n")
        for field in shape.fields:
            name = f"`{field.name}`" + ("?" if field.optional else "")
            parts.append(f"| {name} | {field.kind} | {'T' if field.telemetry else ''} | {field.meaning} |\n")
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
