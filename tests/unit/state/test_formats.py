"""Records, journals and snapshots to the letter: what is written, what is read, and what is refused."""

from __future__ import annotations

import dataclasses
import os
import zlib
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from state import Damaged, NoSuchSession, UnknownVersion, WriteFailed
from state.checkpoint import (
    ApprovalAnswered,
    ApprovalGranted,
    Checkpoint,
    EarlierTask,
    Intent,
    OpenCall,
    OpenStep,
    ReplayRow,
    SessionIdentity,
    Task,
    TaskQueued,
    TokenUsage,
)
from state.disk import LOCAL_DISK, Disk
from state.file_store import FileCheckpointStore
from state.journal import JournalContent, JournalFile, frame, parse
from state.records import record_of
from state.snapshot import EncodedSnapshot, call_to_json, decode_snapshot, encode_head, read_open_step
from tests.support.rows import each_row
from tests.unit.state.helpers import SESSION, create, fresh_state, message, on_disk, paths_in, reopen, start_task, turn

if TYPE_CHECKING:
    from pathlib import Path

ONE, TWO, THREE = frame(1, 0, b'{"a":1}'), frame(2, 1, b"{}", b'{"m":2}'), frame(3, 1, b'{"c":3}')


# --- journals ---------------------------------------------------------------------------------------------------------


def broken(record: bytes) -> bytes:
    """The record with another last byte before its end: its header is whole, and its checksum wrong."""
    return record[:-2] + b"!" + b"\n"


@each_row(
    ("data", "whole", "behind", "cut_off"),
    [
        (ONE + broken(TWO), 1, [], False),
        (ONE + broken(TWO) + THREE, 1, [3], False),
        (broken(ONE) + TWO + THREE, 0, [2, 3], False),
        (broken(ONE) + broken(TWO) + THREE, 0, [3], False),
        (broken(ONE) + TWO + broken(THREE), 0, [2], False),
        (b"rubbish\n" + TWO + THREE, 0, [2, 3], False),
        (b"rubbish" + TWO, 0, [], False),
        (ONE + b"\0" * 40 + b"\n" + THREE, 1, [3], False),
        (ONE + TWO[:-1], 1, [], True),
        (ONE + TWO[:-2], 1, [], True),
        (ONE + TWO[:-1] + b"!", 1, [], False),
        (ONE + broken(TWO)[:-1] + b"\0\0", 1, [], False),
        (ONE + TWO[:8], 1, [], True),
        (ONE + b"J", 1, [], True),
        (ONE + b"J2", 1, [], True),
        (ONE + b"J1 2 3 0123", 1, [], True),
        (ONE + b"J2 2 1 2 7 0123456", 1, [], True),
        (ONE + b"J2 2 1 2 7 0123456g", 1, [], False),
        (ONE + b"J2 2 1 2 7 7 0123456", 1, [], False),
        (ONE + b"K", 1, [], False),
        (ONE + b"J2 x", 1, [], False),
        (ONE + b"J\n", 1, [], False),
        (ONE + b"\n" + TWO, 1, [2], False),
        (ONE + TWO.replace(b" 2 7 ", b" 2 70 "), 1, [], False),
        (b"rubbish J9 more\n", 0, [], False),
    ],
)
def test_what_is_behind_the_whole_records(data: bytes, whole: int, behind: list[int], cut_off: bool) -> None:
    found = parse(data)
    assert [record.seq for record in found.records] == list(range(1, whole + 1))
    assert [record.seq for record in found.after_break] == behind
    assert found.valid_bytes == len(ONE) * whole
    assert found.torn_bytes == len(data) - found.valid_bytes
    assert (found.damaged, found.cut_off) == (bool(behind), cut_off)


def test_white_space_behind_the_last_record_is_nothing() -> None:
    for behind in (b"\n", b"\r\n", b"  \n\t"):
        assert parse(ONE + TWO + behind) == parse(ONE + TWO)


def test_a_record_whose_text_looks_like_records() -> None:
    """No line ends within a record, so nothing inside one begins a line."""
    inside = THREE[:-1].replace(b'"', b"'")
    odd = frame(2, 1, b'{"text":"%s"}' % inside)
    assert [record.seq for record in parse(ONE + odd + THREE).records] == [1, 2, 3]
    assert parse(ONE + broken(odd) + THREE).after_break == tuple(parse(ONE + odd + THREE).records[2:])


@pytest.mark.parametrize("length", [b"6", b"8", b"70"])
def test_a_wrong_length_is_a_break_that_hides_nothing(length: bytes) -> None:
    data = ONE + TWO.replace(b" 2 7 ", b" 2 %s " % length) + THREE
    found = parse(data)
    assert [record.seq for record in found.records] == [1]
    assert [record.seq for record in found.after_break] == [3]


def test_what_is_behind_a_gap_is_counted() -> None:
    assert parse(ONE + THREE) == JournalContent(parse(ONE).records, len(ONE), len(THREE), damaged=True)


def test_a_first_record_may_have_any_number() -> None:
    assert parse(frame(7, 3, b"{}")).records[0][:2] == (7, 3)
    assert parse(frame(1, 0, b"")).records[0].fields == b""
    assert parse(b"J1 1 2 %08x {}\n" % zlib.crc32(b"{}", zlib.crc32(b"1 2 "))).records[0][:4] == (1, 0, b"{}", None)
    assert parse(b"\n") == JournalContent([], 0)


def test_a_journal_is_told_how_far_it_was_synced(tmp_path: Path) -> None:
    path = str(tmp_path / "j")
    journal = JournalFile.create(LOCAL_DISK, path, 5, b"open")
    assert (journal.next_seq, journal.grown_bytes, journal.broken) == (6, 0, False)
    assert [journal.append(b"a"), journal.append(b"b")] == [6, 7]
    journal.sync()
    assert journal.append(b"c") == 8
    journal.close()
    journal.close()
    with open(path, "rb") as handle:
        content = parse(handle.read())
    assert [(record.seq, record.synced) for record in content.records] == [(5, 4), (6, 5), (7, 5), (8, 7)]
    assert journal.grown_bytes == content.valid_bytes - content.records[0].end


def test_a_journal_that_lost_its_name_is_written_no_more(tmp_path: Path) -> None:
    path = str(tmp_path / "j")
    journal = JournalFile.create(LOCAL_DISK, path, 1, b"open")
    os.unlink(path)
    journal.sync()  # nothing new
    journal.append(b"a")
    for _ in range(2):
        with pytest.raises(WriteFailed):
            journal.sync()
    assert journal.broken
    with pytest.raises(WriteFailed, match="not renewed"):
        journal.append(b"b")
    journal.close()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="no list of descriptors")
def test_a_journal_s_descriptor_may_be_0(tmp_path: Path) -> None:
    """That of a host which was started without a standard input."""
    kept = os.dup(0)
    try:
        os.close(0)
        journal = JournalFile.create(LOCAL_DISK, str(tmp_path / "j"), 1, b"open")
        assert os.readlink("/proc/self/fd/0") == str(tmp_path / "j")
        journal.close()
        assert not os.path.exists("/proc/self/fd/0")
    finally:
        os.dup2(kept, 0)
        os.close(kept)


def test_a_close_that_fails_has_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []

    def close(_: Disk, fd: int) -> None:
        closed.append(fd)
        os.close(fd)
        raise OSError(5, "Input/output error")

    journal = JournalFile.create(LOCAL_DISK, str(tmp_path / "j"), 1, b"open")
    monkeypatch.setattr(Disk, "close", close)
    journal.close()
    journal.close()
    assert len(closed) == 1


# --- snapshots --------------------------------------------------------------------------------------------------------

IDENTITY = SessionIdentity("s", "w", "t", "u", {"flags": {"host.max_steps": 3}, "workspace": "/w"})
REPLAY: ReplayRow = {"callId": "c0", "approve": "T0"}
DECISION = {"approved": False, "scope": "once", "reason": "no", "answeredBy": "chat"}
INTENT: Intent = {"path": "/i", "before": None, "after": "h"}
GRANT = {"scope": "session", "approvalId": "appr_0"}
SYSTEM = message("system", "be")
RESULT = message("tool", "r", toolCallId="c1")
ARTIFACT = {"type": "tool_output", "name": "n", "contentType": "text/plain", "bytes": 3, "callId": "c9"}
LOST = {"id": "art_0", **ARTIFACT, "why": "late"}
WAITS = {"id": "art_1", **ARTIFACT, "ref": "artifacts/art_1", "sha256": "h", "taskId": "t3", "stepId": "step_9"}


HELD = {
    "level": "landlock",
    "reads": None,
    "writes": ["/w"],
    "domains": [],
    "unheld": ["something"],
    "withheld": ["more"],
}


def full() -> Checkpoint:
    """A state in which no two fields hold the same."""
    turn_message = message(
        "assistant",
        "words",
        toolCalls=[{"id": f"c{n}", "name": f"T{n}", "arguments": {"n": n}, "problem": "cut"} for n in range(3)],
    )
    calls = [
        OpenCall("c0", "T0", {"n": 0}, side_effects=True, problem="cut"),
        OpenCall("c1", "T1", {"n": 1}, False, "cut", INTENT, True, True, RESULT, "denied", "CODE", REPLAY,
             "appr", ApprovalAnswered("c1", "appr", approved=False, scope="once", reason="no", arguments={"n": 9},
                                      answered_by="chat")),
        OpenCall("c2", "T2", {"n": 2}, side_effects=False, problem="cut"),
    ]  # fmt: skip
    task = Task("t3", "third", 33, "failed", "why", 4, TokenUsage(5, 6, 7),
                [("T", "failed", "X"), ("U", "succeeded", None)], [{"toolName": "T", "replay": REPLAY}],
                {"/t": "b1"}, {"allow_network": True}, [LOST], {1: 3},
                usage_by_model={"m": TokenUsage(5, 6, 7)})  # fmt: skip
    return Checkpoint(
        IDENTITY, "SESSION_PAUSED", "v8", [SYSTEM, turn_message], task, "step_9",
        OpenStep("step_10", "tool_use", "boot", 1, "words", calls), TokenUsage(11, 12, 13), {"/s": None},
        [EarlierTask("t1", "first", "completed", None, 14, {"/e": "b2"}),
         EarlierTask("t2", "second", "cancelled", "stop", 15, {})],
        [ApprovalGranted("session", "appr_0")], 16, "a record", 17, (18, 19), {"art_1": WAITS}, {"c9": ["uri"]},
        [TaskQueued("t4", "fourth", 20, {"model": "m"}), TaskQueued("t5", "fifth", 21)], ["stop that"],
        {"/seen": "1:2:3"},
        {"task-1": "2 more file(s) changed"},
        {"cmd_3": {"callId": "c7", "taskId": "t1", "stepId": "s7", "line": "make", "ended": {"reason": "exited"}}}, 3,
        22, "notes", 24,
        {"m": TokenUsage(6, 6, 6, 5, 4), "n": TokenUsage(5, 6, 7)}, "n", HELD, {"policy": "read-only"},
    )  # fmt: skip


def encoded(state: Checkpoint) -> bytes:
    return b"".join(EncodedSnapshot(encode_head(state, "2026-01-01T00:00:00Z"), state.thread).chunks())


def decoded(data: bytes) -> Checkpoint:
    return decode_snapshot(data, lambda _, one: one)


def test_a_snapshot_holds_every_field() -> None:
    state = full()
    values = [getattr(state, each.name) for each in dataclasses.fields(state)]
    assert all(value not in (None, 0, "", [], {}) for value in values)
    assert decoded(encoded(state)) == state
    plain = Checkpoint(IDENTITY, thread=[SYSTEM])
    assert decoded(encoded(plain)) == plain


def test_a_snapshot_to_the_letter() -> None:
    raw = orjson.loads(encoded(full()))
    assert raw["checkpointVersion"] == "1.0"
    assert raw["stepCursor"] == "step_9"
    assert raw["sessionTokensUsed"] == 23
    assert raw["checkpointedAt"] == "2026-01-01T00:00:00Z"
    assert raw["checksum"].startswith("crc32:")
    assert raw["task"] == {
        "taskId": "t3",
        "prompt": "third",
        "status": "failed",
        "reason": "why",
        "stepCount": 4,
        "maxSteps": 33,
        "usage": {"inputTokens": 5, "outputTokens": 6, "cachedInputTokens": 7},
        "finishedCalls": [["T", "failed", "X"], ["U", "succeeded", None]],
        "denied": [{"toolName": "T", "replay": REPLAY}],
        "options": {"allow_network": True},
        "notUploaded": [LOST],
        "exitCodes": {"1": 3},
        "baselines": {"/t": "b1"},
        "usageByModel": {"m": {"inputTokens": 5, "outputTokens": 6, "cachedInputTokens": 7}},
    }
    step = raw["resume"].pop("openStep")
    assert raw["resume"] == {
        "version": 3,
        "journalSeq": 16,
        "options": {"flags": {"host.max_steps": 3}, "workspace": "/w"},
        "usage": {"inputTokens": 11, "outputTokens": 12, "cachedInputTokens": 13},
        "baselines": {"/s": None},
        "earlierTasks": [
            {"taskId": "t1", "prompt": "first", "status": "completed", "reason": None, "stepCount": 14,
             "baselines": {"/e": "b2"}},
            {"taskId": "t2", "prompt": "second", "status": "cancelled", "reason": "stop", "stepCount": 15,
             "baselines": {}},
        ],
        "grants": [GRANT],
        "salvaged": "a record",
        "droppedMessages": 17,
        "tokensKnown": [18, 19],
        "clearedMessages": 22,
        "summary": "notes",
        "flattenedMessages": 24,
        "uploads": {"art_1": WAITS},
        "artifactUris": {"c9": ["uri"]},
        "queue": [
            {"taskId": "t4", "prompt": "fourth", "maxSteps": 20, "options": {"model": "m"}},
            {"taskId": "t5", "prompt": "fifth", "maxSteps": 21},
        ],
        "steers": ["stop that"],
        "seen": {"/seen": "1:2:3"},
        "unseen": {"task-1": "2 more file(s) changed"},
        "commands": {
            "cmd_3": {"callId": "c7", "taskId": "t1", "stepId": "s7", "line": "make", "ended": {"reason": "exited"}}
        },
        "commandsStarted": 3,
        "usageByModel": {
            "m": {"inputTokens": 6, "outputTokens": 6, "cachedInputTokens": 6, "cacheWriteTokens": 5,
                  "cacheWrite1hTokens": 4},
            "n": {"inputTokens": 5, "outputTokens": 6, "cachedInputTokens": 7},
        },
        "tokensKnownOf": "n",
        "sandbox": HELD,
        "mode": {"policy": "read-only"},
    }  # fmt: skip
    assert {key: step[key] for key in step if key != "calls"} == {
        "stepId": "step_10", "stopReason": "tool_use", "boot": "boot", "position": 1
    }  # fmt: skip
    assert step["calls"] == [
        {"callId": "c0", "sideEffects": True},
        {"callId": "c1", "sideEffects": False, "intent": INTENT, "gated": True, "started": True,
         "result": orjson.loads(RESULT), "status": "denied", "code": "CODE", "replay": REPLAY, "approvalId": "appr",
         "decision": DECISION, "editedArguments": {"n": 9}},
        {"callId": "c2", "sideEffects": False},
    ]  # fmt: skip


def test_a_call_comes_back_from_its_row() -> None:
    state = full()
    assert state.open_step is not None
    step = state.open_step
    rows = [orjson.loads(orjson.dumps(call_to_json(call))) for call in step.calls]
    fields = {"stepId": "step_10", "stopReason": "tool_use", "boot": "boot", "position": 1, "calls": rows}
    assert read_open_step(fields, state.thread[1]) == step
    none = read_open_step({**fields, "calls": []}, message("assistant", "no calls"))
    assert (none.calls, none.text) == ([], "no calls")


def sealed(raw: dict[str, Any]) -> bytes:
    """As a program would have written it whose file is one line."""
    body = orjson.dumps({key: value for key, value in raw.items() if key != "checksum"})[:-1]
    return body + b',"checksum":"crc32:%08x"}\n' % zlib.crc32(body)


def raw_of(state: Checkpoint) -> dict[str, Any]:
    raw: dict[str, Any] = orjson.loads(encoded(state))
    return raw


def test_a_file_of_one_line_is_read_too() -> None:
    """Version 1."""
    state = full()
    raw = raw_of(state)
    assert decoded(sealed(raw)) == state
    assert state.task is not None
    for key in ("earlierTasks", "salvaged", "droppedMessages", "tokensKnown", "version"):
        del raw["resume"][key]
    for key in ("options", "baselines"):
        del raw["task"][key]
    state.earlier_tasks, state.salvaged, state.dropped_messages, state.tokens_known = [], None, 0, None
    state.task.options, state.task.baselines = {}, state.baselines
    assert decoded(sealed(raw)) == state


@pytest.mark.parametrize("version", [1, 2, 3])
def test_versions_that_are_read(version: int) -> None:
    raw = raw_of(full())
    raw["resume"]["version"] = version
    assert decoded(sealed(raw)) == full()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"checkpointVersion": "1.1"}, "checkpoint version '1.1' is not known"),
        ({"resume": {"version": 4}}, "resume version 4 is not known"),
        ({"resume": {"version": 0}}, "resume version 0 is not known"),
        ({"resume": []}, "of another shape"),
        ({"resume": {}}, "of another shape"),
        ({"task": 5}, "of another shape"),
        ({"thread": 5}, "of another shape"),
    ],
)
def test_what_is_whole_and_not_ours_is_no_damage(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(UnknownVersion, match=said):
        decoded(sealed({**raw_of(full()), **changed}))


def test_a_newer_version_may_do_without_a_checksum_and_ours_may_not() -> None:
    raw = raw_of(full())
    del raw["checksum"]
    with pytest.raises(Damaged, match="no checksum"):
        decoded(orjson.dumps(raw))
    with pytest.raises(UnknownVersion):
        decoded(orjson.dumps({**raw, "checkpointVersion": "2"}))
    with pytest.raises(Damaged, match="no version"):
        decoded(orjson.dumps({"resume": {}}))
    with pytest.raises(Damaged, match="not a JSON object"):
        decoded(b"[]")
    with pytest.raises(Damaged, match="not readable"):
        decoded(b"{")


def test_a_changed_version_with_a_checksum_is_damage() -> None:
    data = encoded(full())
    with pytest.raises(Damaged, match="checksum does not match"):
        decoded(data.replace(b'"checkpointVersion":"1.0"', b'"checkpointVersion":"1.1"'))
    for behind in (b"", b" ", b"\n", b"\r\n", b"\n" * 1000):
        assert decoded(data.rstrip() + behind) == full()
    with pytest.raises(Damaged, match="no checksum"):
        decoded(data + b"!")


def test_messages_come_back_as_they_were_encoded() -> None:
    """By whoever made them, and with whatever blanks."""
    rest = b'"messageId":"m","sessionId":"s","timestamp":"2026","tokenCount":1'
    texts = (b"a", b"a, b", b"\\u00e9")
    thread = [b'{ "role": "system",%s,"content": "%s" }' % (rest, text) for text in texts]
    for count in range(1, 4):
        state = Checkpoint(IDENTITY, thread=thread[:count])
        assert decoded(encoded(state)).thread == thread[:count]


def test_what_is_not_said_is_not_written() -> None:
    raw = raw_of(
        Checkpoint(IDENTITY, thread=[SYSTEM], task=Task("t", "p", 3, baselines={"/a": "b"}), baselines={"/a": "b"})
    )
    assert {"options", "baselines"} & raw["task"].keys() == set()


@pytest.mark.parametrize("texts", [[], ["a"], ["a", "b"], ["]", ",", "\\n]", "x,\n{"]])
def test_messages_stand_on_lines_of_their_own(texts: list[str]) -> None:
    state = Checkpoint(IDENTITY, thread=[SYSTEM, *(message("user", text) for text in texts)])
    data = encoded(state)
    lines = data.split(b"\n")
    assert [line.rstrip(b",") for line in lines[1:-2]] == (state.thread or [b""])[: len(lines) - 3]
    seen: list[tuple[int, bytes]] = []

    def whole(place: int, one: bytes) -> bytes:
        seen.append((place, one))
        return one

    assert decode_snapshot(data, whole) == state
    assert seen == list(enumerate(state.thread))


# --- both of them -----------------------------------------------------------------------------------------------------


def rewritten(directory: Path, *records: bytes) -> None:
    with open(paths_in(directory).journal, "wb") as handle:
        handle.write(b"".join(records))


def test_a_message_among_the_fields_is_one_of_the_first_format(tmp_path: Path) -> None:
    session = create(tmp_path)
    session.close()
    said = orjson.loads(message("system", "once"))
    fields = orjson.dumps({"kind": "note", "message": said})
    seq = session.state.seq + 1
    counted = b"%d %d " % (seq, len(fields))
    with open(paths_in(tmp_path).journal, "ab") as handle:
        handle.write(b"J1 %s%08x %s\n" % (counted, zlib.crc32(fields, zlib.crc32(counted)), fields))
    found = FileCheckpointStore(str(tmp_path)).load(SESSION)
    assert found.thread[-1] == orjson.dumps(said)
    assert found.seq == seq


def test_records_that_a_snapshot_holds_are_passed_over(tmp_path: Path) -> None:
    session = create(tmp_path)
    start_task(session)
    old = LOCAL_DISK.read(paths_in(tmp_path).journal)
    session.compact()
    session.close()
    seq = orjson.loads(LOCAL_DISK.read(paths_in(tmp_path).snapshot))["resume"]["journalSeq"]
    rewritten(tmp_path, old)
    assert on_disk(tmp_path).damage is None
    rewritten(tmp_path, frame(seq + 1, seq, b'{"kind":"opened","sessionId":"%s"}' % SESSION.encode()))
    assert on_disk(tmp_path).damage is None
    rewritten(tmp_path, frame(seq + 2, seq, b'{"kind":"opened","sessionId":"%s"}' % SESSION.encode()))
    assert on_disk(tmp_path).damage == f"records {seq + 1} to {seq + 1} are missing between checkpoint and journal"


def test_what_does_not_fit_is_told_with_what_was_before_it(tmp_path: Path) -> None:
    session = create(tmp_path)
    start_task(session)
    turn(session, "step_1", "c1")
    seq = session.state.seq
    session.close()
    with open(paths_in(tmp_path).journal, "ab") as handle:
        fields = b'{"kind":"call_finished","callId":"c9","status":"succeeded"}'
        handle.write(frame(seq + 1, seq, fields, message("tool", "r", toolCallId="c9")))
        handle.write(frame(seq + 2, seq, b'{"kind":"note"}', message("system", "behind it")))
    found = on_disk(tmp_path)
    assert found.damage == "record 'call_finished' does not fit the state it follows"
    assert (found.suspect, found.readable, found.lost) == (True, False, [])
    assert found.state is not None
    assert (found.state.salvaged, found.state.seq) == (found.damage, seq)
    assert found.state.open_step is not None
    (call,) = found.state.open_step.calls
    assert (call.result, call.started) == (None, True)
    with pytest.raises(Damaged, match="does not fit"):
        FileCheckpointStore(str(tmp_path)).load(SESSION)


def test_nothing_to_go_on_with_is_nothing(tmp_path: Path) -> None:
    """Without a task damage leaves nothing that could be resumed."""
    session = create(tmp_path)
    session.append(record_of("note", {}, message("system", "n")))
    session.close()
    with open(paths_in(tmp_path).journal, "ab") as handle:
        handle.write(frame(9, 8, b"{}"))
    assert on_disk(tmp_path).unusable
    with pytest.raises(Damaged) as caught:
        reopen(tmp_path)
    assert not caught.value.salvaged


OPENED = b'{"kind":"opened","sessionId":"sess_1"}'
ENDED = b'{"kind":"session_status","status":"SESSION_COMPLETED"}'


@pytest.mark.parametrize(
    ("records", "is_none"),
    [
        ([(1, OPENED)], True),  # it never began
        ([(2, OPENED)], False),
        ([(1, OPENED), (2, b'{"kind":"note"}')], False),
        ([(1, OPENED), (2, ENDED)], True),
        ([(5, b'{"kind":"opened","sessionId":"sess_1","status":"SESSION_COMPLETED"}')], True),
        ([(1, OPENED), (2, b'{"kind":"session_status","status":"SESSION_PAUSED"}')], False),
        ([(1, OPENED), (2, b'{"kind":"task_ended","status":"SESSION_COMPLETED"}')], False),
        ([(1, OPENED), (2, ENDED), (3, b'{"kind":"note"}')], False),
        ([], False),
    ],
)
def test_a_journal_alone(tmp_path: Path, records: list[tuple[int, bytes]], is_none: bool) -> None:
    create(tmp_path).close()
    os.unlink(paths_in(tmp_path).snapshot)
    rewritten(tmp_path, *(frame(seq, seq - 1, fields) for seq, fields in records))
    with pytest.raises(NoSuchSession if is_none else Damaged):
        FileCheckpointStore(str(tmp_path)).load(SESSION)


def test_a_journal_that_never_began_and_was_torn_is_damage(tmp_path: Path) -> None:
    create(tmp_path).close()
    os.unlink(paths_in(tmp_path).snapshot)
    rewritten(tmp_path, frame(1, 0, OPENED), b"J2 2 1")
    with pytest.raises(Damaged):
        FileCheckpointStore(str(tmp_path)).load(SESSION)


class Boot(Disk):
    def __init__(self, name: str | None) -> None:
        self._name = name

    def boot_id(self) -> str | None:
        return self._name


@pytest.mark.parametrize(
    ("began", "found", "synced", "is_damage"),
    [
        ("a", "b", 2, False),
        ("a", "a", 2, True),
        ("a", None, 2, False),
        (None, None, 2, False),  # a system that cannot tell boots apart
        (None, "b", 2, False),
        ("a", "b", 3, True),  # what is broken had been synced when the one behind it was written
        ("a", "b", 4, True),
    ],
)
def test_a_break_within_one_boot_or_behind_a_promise_is_damage(
    tmp_path: Path, began: str | None, found: str | None, synced: int, is_damage: bool
) -> None:
    store = FileCheckpointStore(str(tmp_path), Boot(began))
    session = store.create(SESSION, fresh_state())
    start_task(session)
    session.sync()
    assert session.state.seq == 2
    session.close()
    with open(paths_in(tmp_path).journal, "ab") as handle:
        handle.write(broken(frame(3, 2, b'{"kind":"note"}')))
        handle.write(frame(4, 2, b'{"kind":"note"}'))
        handle.write(frame(5, synced, b'{"kind":"note"}'))
    store = FileCheckpointStore(str(tmp_path), Boot(found))
    if is_damage:
        with pytest.raises(Damaged, match="before its end"):
            store.open(SESSION)
    else:
        again = store.open(SESSION)
        assert again.report.torn_bytes > 0
        assert again.report.kept_aside is not None
        again.close()
