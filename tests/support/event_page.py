"""docs/events.md from the tables of events: `python -m tests.support.event_page` writes it."""

from __future__ import annotations

import inspect
from pathlib import Path

from agent_host.events import LIVE_ONLY, EventType
from agent_host.events.payloads import PAYLOADS
from tests.support.merged_events import MergedEvents

PAGE = Path(__file__).resolve().parents[2] / "docs" / "events.md"

_HEAD = """\
# Events

Made from `agent_host/events/__init__.py` and `agent_host/events/payloads.py` by `python -m tests.support.event_page`.

An event is one JSON object: {eventId, eventType, timestamp, tenantId, userId, workspaceId, sessionId, taskId?,
stepId?, component, severity, firstEventId?, droppedEvents?, undelivered?, payload}. `eventId` increases, and jumps when
another process resumes the session. Pieces of streams are shown live and not kept in the run log,
`sessions/{id}/events.jsonl`; a log that reaches `host.max_run_log_bytes` is renamed to `events.jsonl.1`, and three such
logs are kept.

`undelivered` reports what an observer did not get: [{observer, records, message}], `records` since the session's start
in this process; each observer at most once in 30 seconds.

A field with `?` may be missing. Those marked T are sent to the Telemetry Service, strings cut.
The Audit Service gets events of sessions, tasks, approvals and policy unchanged, {toolCallId, artifactUri, storageRef?}
of an artifact's `artifact_uploaded`, and for each tool call a `tool_completed` whose payload is
{toolCallId, tool, capability?, risk?, ts_start, ts_end, params {summary?, sha256?}, result {ok, status, code?,
exit_code?, bytes, stdout_ref?, stderr_ref?, storage_refs?, artifact_uris?}, policy {decision?, rule?, approved?,
approval_scope? (`once`, `run`, `session`), approval_id?}, hashes {output_sha256, stdout_sha256?, stderr_sha256?,
stored_sha256?}}.

With the extra `otel` events also become traces and metrics ([opentelemetry.md](opentelemetry.md)).

## The live stream and GetEvents

A client that reads as fast as events come gets each of them. For a slower client, adjacent pieces of one stream in the
queue (`text_chunk`, `thinking_chunk`, `tool_output_chunk`) are merged: the event has the number of the last piece as
`eventId`, that of the first as `firstEventId`, and all their text. Once 8 MiB or 10,000 events are queued, the oldest
pieces are dropped, and if there are none, the oldest other event. The next event sent then has `droppedEvents`: the
number of events missing between it and the one sent before it. `GetEvents` returns the last 10,000 events (64 MiB at
most), each separately and without these two fields; one reply has 16 MiB at most.

A client that wants every event merges both by these rules:

1. An event covers the numbers from its `firstEventId`, or its `eventId` if it has none, to its `eventId`.
2. Skip an event whose numbers are all covered by events that the client has, whichever way it came. Keep any other; it
   replaces those that cover a part of its numbers. The order is that of `eventId`.
3. A live event with `droppedEvents` has a gap before it. Call `GetEvents` with the `eventId` of the live event before
   the gap as `sinceId` (0 without one). If the reply ends inside the gap, call it again with the `eventId` of its last
   event. Process live events meanwhile; one request at a time, from the earliest gap on, is enough.
4. `gapDetected` in a reply: some of the missing events are no longer kept. Show that something is missing. A `sinceId`
   beyond the latest event is of another session, or its run log is lost: error -32602, with `latestId` in its details.
5. A client that connects to a session that has started does the same with the `eventId` of the last live event that it
   has (0 without one), until a reply ends with `latestId`.

Retried text:

6. `llm_retry` revokes all `text_chunk` and `thinking_chunk` with the same `stepId` and `attempt`: discard their text.
   The retry sends everything again, under the next `attempt`. A piece with a higher `attempt` also revokes the lower
   ones of its step, for a client that misses the `llm_retry`; do not show a lower one that comes later, from
   `GetEvents`. Pieces of two attempts are never merged, and no `llm_retry` is dropped while text that it revokes is
   queued.
7. If a step has no `llm_request_completed` when its task pauses, fails or is cancelled, or its process ends, it leaves
   nothing in the conversation: discard its text, too. A resumed task asks the model again, in a new step.

The same in Python, as the tests run it:

```python
{merging}```
"""


def page() -> str:
    """The page as it should be."""
    parts = [_HEAD.replace("{merging}", inspect.getsource(MergedEvents))]
    for event_type in EventType:
        component, severity = event_type.component, event_type.severity
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
