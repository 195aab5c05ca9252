"""Events (AH 12): numbered, whole, and nobody waits for those who watch."""

from __future__ import annotations

import contextlib
import io
import os
import re
import stat
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from agent_host.events import LIVE_ONLY, EventType
from agent_host.events.sinks import JsonLines, RunLog, next_event_id
from tests.support.events import Watcher, emitter
from tests.support.rows import each_row

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def test_the_envelope_is_that_of_the_interface() -> None:
    watcher = Watcher()
    made = emitter(watcher)
    made.emit(EventType.TOOL_COMPLETED, {"toolName": "ReadFile"}, task_id="task", step_id="step")
    made.emit(EventType.SESSION_PAUSED, {})
    first, second = (dict(event.envelope) for event in watcher.events)
    stamp = datetime.fromisoformat(first.pop("timestamp"))
    assert abs(datetime.now(UTC) - stamp) < timedelta(minutes=1)
    assert first == {
        "eventId": 1,
        "eventType": "tool_completed",
        "tenantId": "t",
        "userId": "u",
        "workspaceId": "w",
        "sessionId": "s",
        "taskId": "task",
        "stepId": "step",
        "component": "routing",
        "severity": "info",
        "payload": {"toolName": "ReadFile"},
    }
    assert "taskId" not in second
    assert "stepId" not in second
    assert (second["eventId"], second["component"], second["severity"]) == (2, "session", "warning")


def test_numbers_rise_by_one_from_where_they_are_told() -> None:
    watcher = Watcher()
    made = emitter(watcher, first_id=41)
    for _ in range(3):
        made.emit(EventType.TEXT_CHUNK, {"text": "x"})
    assert [event.envelope["eventId"] for event in watcher.events] == [41, 42, 43]


def test_every_watcher_gets_every_event_and_flush() -> None:
    first, second = Watcher(), Watcher()
    made = emitter(first)
    made.attach([second])
    made.emit(EventType.STEP_STARTED, {})
    made.flush()
    assert first.events == second.events
    assert len(first.events) == 1
    assert (first.flushes, second.flushes) == (1, 1)


def test_a_line_is_encoded_once_and_ends_with_its_newline() -> None:
    watcher = Watcher()
    emitter(watcher).emit(EventType.TEXT_CHUNK, {"text": "two\nlines", "odd": {1, 2}.__class__})
    (event,) = watcher.events
    line = event.line()
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    assert event.line() is line
    assert orjson.loads(line)["payload"]["text"] == "two\nlines"


@each_row("event_type", EventType)
def test_every_type_says_who_speaks_and_how_loudly(event_type: EventType) -> None:
    component, severity = event_type.component, event_type.severity
    assert component in {"session", "loop", "llm", "routing", "approval", "policy", "state"}
    assert severity in {"info", "warning", "error"}
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", event_type)
    if event_type.endswith("_failed"):
        assert severity != "info"


# --- the run log ------------------------------------------------------------------------------------------------------


def lines(path: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def test_lines_after_the_first_wait_for_a_flush(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = RunLog(str(path))
    made = emitter(log)
    made.emit(EventType.TASK_STARTED, {})
    made.emit(EventType.STEP_STARTED, {})
    made.emit(EventType.STEP_COMPLETED, {})
    assert [line["eventType"] for line in lines(path)] == ["task_started"]
    made.flush()
    assert [line["eventType"] for line in lines(path)] == ["task_started", "step_started", "step_completed"]
    made.flush()
    made.emit(EventType.TASK_COMPLETED, {})
    log.close()
    assert [line["eventId"] for line in lines(path)] == [1, 2, 3, 4]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert log.dropped == 0


def test_pieces_of_a_stream_are_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = RunLog(str(path))
    made = emitter(log)
    for event_type in EventType:
        made.emit(event_type, {})
    log.close()
    kept = {line["eventType"] for line in lines(path)}
    assert kept == {event_type.value for event_type in EventType} - LIVE_ONLY
    assert EventType.TEXT_CHUNK in LIVE_ONLY


def test_memory_is_bounded_between_flushes(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = RunLog(str(path))
    made = emitter(log)
    for _ in range(200):
        made.emit(EventType.TOOL_COMPLETED, {"summary": "x" * 10_000})
    assert len(lines(path)) > 200 - 64
    log.close()
    assert len(lines(path)) == 200


def test_a_log_goes_on_behind_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    for number in range(2):
        log = RunLog(str(path))
        emitter(log).emit(EventType.STEP_STARTED, {"run": number})
        log.close()
    assert [line["payload"]["run"] for line in lines(path)] == [0, 1]


def test_numbers_go_on_above_those_of_the_process_before(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    assert next_event_id(str(path)) == 1
    path.write_bytes(b"")
    assert next_event_id(str(path)) == 1
    log = RunLog(str(path))
    made = emitter(log)
    for _ in range(500):
        made.emit(EventType.TOOL_COMPLETED, {"summary": "x" * 500})
    log.close()
    above = next_event_id(str(path))
    assert above > 500
    with path.open("ab") as handle:
        handle.write(b'{"eventId": 50')  # cut off by a crash
    assert next_event_id(str(path)) == above
    path.write_bytes(b'garbage\n[]\n{}\n{"eventId": "x"}\n\xff\n')
    assert next_event_id(str(path)) == 1


def test_numbers_go_on_above_a_very_long_line(tmp_path: Path) -> None:
    log = RunLog(str(tmp_path / "events.jsonl"))
    made = emitter(log)
    made.emit(EventType.STEP_STARTED, {})
    made.emit(EventType.APPROVAL_REQUESTED, {"arguments": {"content": "x" * 70_000}})
    log.close()
    assert next_event_id(str(tmp_path / "events.jsonl")) > 2


def test_a_line_that_a_crash_cut_off_spoils_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"eventId":1}\n{"eve')
    log = RunLog(str(path))
    emitter(log).emit(EventType.STEP_STARTED, {})
    log.close()
    first, torn, last = path.read_bytes().splitlines()
    assert (first, torn) == (b'{"eventId":1}', b'{"eve')
    assert orjson.loads(last)["eventType"] == "step_started"


def test_a_disk_that_refuses_costs_lines_and_nothing_else(tmp_path: Path) -> None:
    log = RunLog(str(tmp_path / "missing" / "events.jsonl"))
    made = emitter(log)
    for _ in range(3):
        made.emit(EventType.STEP_STARTED, {})
    made.flush()
    assert log.dropped == 3
    (tmp_path / "missing").mkdir()
    made.emit(EventType.STEP_COMPLETED, {})
    log.close()
    assert log.dropped == 3
    assert [line["eventId"] for line in lines(tmp_path / "missing" / "events.jsonl")] == [4]


def test_a_link_in_place_of_the_log_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").symlink_to(tmp_path / "target")
    log = RunLog(str(tmp_path / "events.jsonl"))
    emitter(log).emit(EventType.STEP_STARTED, {})
    log.close()
    assert log.dropped == 1
    assert not (tmp_path / "target").exists()


@contextlib.contextmanager
def files_no_larger_than(limit: int) -> Iterator[None]:
    """A disk that is full after `limit` bytes of a file: real writes that come back short or fail."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.skipif(sys.platform == "win32", reason="resource limits")
def test_a_write_that_was_cut_short_counts_what_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = RunLog(str(path))
    made = emitter(log)
    for length in (300, 700, 0):
        made.emit(EventType.TOOL_COMPLETED, {"summary": "x" * length})
    with files_no_larger_than(1100):  # in the middle of the second line
        made.flush()
    made.emit(EventType.STEP_COMPLETED, {})
    log.close()
    whole = [line for line in path.read_bytes().splitlines() if line.endswith(b"}}")]
    assert len(whole) == 2
    assert log.dropped == 2
    assert orjson.loads(whole[-1])["eventType"] == "step_completed"


# --- lines for a program ----------------------------------------------------------------------------------------------


def test_every_event_is_a_line_at_once() -> None:
    stream = io.BytesIO()
    made = emitter(JsonLines(stream))
    made.emit(EventType.TEXT_CHUNK, {"text": "x"})
    assert orjson.loads(stream.getvalue())["payload"] == {"text": "x"}
    made.emit(EventType.TASK_COMPLETED, {})
    made.flush()
    assert len(stream.getvalue().splitlines()) == 2


def test_a_reader_that_goes_away_ends_the_output_and_not_the_session() -> None:
    reading, writing = os.pipe()
    stream = os.fdopen(writing, "wb")
    watcher = Watcher()
    made = emitter(JsonLines(stream), watcher)
    made.emit(EventType.STEP_STARTED, {})
    os.close(reading)
    made.emit(EventType.STEP_STARTED, {})
    made.emit(EventType.STEP_COMPLETED, {})
    made.flush()
    assert len(watcher.events) == 3
    with contextlib.suppress(BrokenPipeError):
        stream.close()


def test_a_stream_that_was_closed_ends_the_output() -> None:
    stream = io.BytesIO()
    made = emitter(JsonLines(stream))
    stream.close()
    made.emit(EventType.STEP_STARTED, {})


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_behind_the_stream_does_not_end_the_session() -> None:
    stream = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    try:
        emitter(JsonLines(stream)).emit(EventType.STEP_STARTED, {})
    finally:
        stream.close()


@pytest.mark.skipif(sys.platform == "win32", reason="named pipes")
def test_a_log_that_is_a_pipe_costs_the_lines(tmp_path: Path) -> None:
    path = str(tmp_path / "events.jsonl")
    os.mkfifo(path)
    assert next_event_id(path) == 1
    log = RunLog(path)
    made = emitter(log)
    for _ in range(3):
        made.emit(EventType.SESSION_PAUSED, {"message": "x" * 100_000})  # more than a pipe takes unread
    made.flush()
    log.close()
    assert log.dropped == 3
