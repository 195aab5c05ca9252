"""Sessions whose files are whole and of another shape: they load as they are, or are refused with every problem."""

from __future__ import annotations

import copy
import os
import tempfile
import zlib
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state import Damaged, OtherShape, StateError, UnknownVersion
from state.disk import LOCAL_DISK
from state.file_store import FileCheckpointStore
from state.journal import frame, parse
from state.prune import SessionPruner
from state.records import record_of
from tests.unit.state.helpers import (
    SESSION,
    create,
    finish,
    load,
    message,
    on_disk,
    paths_in,
    reopen,
    start_task,
    turn,
    unnumbered,
    whole_step,
)

if TYPE_CHECKING:
    from pathlib import Path

ARTIFACT = {"type": "tool_output", "name": "n", "contentType": "text/plain", "bytes": 3}
Keys = tuple[str | int, ...]


def session_in(directory: Path | str) -> bytes:
    """A session in the middle of its second task, with something in every field; its snapshot."""
    session = create(directory)
    start_task(session)
    whole_step(session, 1)
    session.append(record_of("task_ended", {"status": "failed", "reason": "MAX_STEPS"}))
    options = {"approval_mode": "always", "allow_network": False}
    fields = {"taskId": "t2", "prompt": "more", "maxSteps": 40, "options": options}
    session.append(record_of("task_started", fields, message("user", "more")))
    turn(session, "step_2", "c2", "c3", gated=True)
    replay = {"callId": "c3", "approve": "RunCommand", "place": "/w"}
    denied = {"callId": "c3", "status": "denied", "code": "APPROVAL_REQUIRED", "replay": replay}
    rows = [
        {**ARTIFACT, "id": "art_1", "ref": "artifacts/art_1", "sha256": "h"},
        {**ARTIFACT, "id": "art_2", "uri": "uri"},
        {**ARTIFACT, "id": "art_3", "why": "no room"},
    ]
    session.append(
        record_of("call_finished", denied | {"artifacts": rows}, message("tool", "no", toolCallId="c3", isError=True))
    )
    session.append(record_of("call_started", {"callId": "c2", "intent": None, "baselines": {"/f": None}}))
    finish(session, "c2", "x" * 20_000)
    session.append(record_of("step_committed", {"stepCount": 1}))
    turn(session, "step_3", "c4", "c5", gated=True, text="two")
    answer = {"approved": True, "scope": "task", "reason": "", "arguments": {"command": "ls"}, "boundTo": "x"}
    session.append(record_of("approval", {"callId": "c4", "approvalId": "appr_c4", **answer}))
    session.append(record_of("grant", {"scope": "task", "approvalId": "appr_c4", "taskId": "t2", "actionHash": "h"}))
    intent = {"path": "/f", "before": None, "after": "h"}
    session.append(record_of("call_started", {"callId": "c4", "intent": intent, "baselines": {"/f": None, "/g": "h"}}))
    finish(session, "c4")
    session.compact()
    session.close()
    return LOCAL_DISK.read(paths_in(directory).snapshot)


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state directory of that session."""
    directory = tmp_path_factory.mktemp("left")
    session_in(directory)
    return directory


def places(value: object, at: Keys = ()) -> list[Keys]:
    """Where something stands in `value`, itself included."""
    inside: list[tuple[str | int, object]] = []
    if isinstance(value, dict):
        inside = list(value.items())
    elif isinstance(value, list):
        inside = list(enumerate(value))
    return [at, *(place for key, inner in inside for place in places(inner, (*at, key)))]


with tempfile.TemporaryDirectory() as _folder:
    SNAPSHOT = session_in(_folder)
RAW: dict[str, Any] = {key: value for key, value in orjson.loads(SNAPSHOT).items() if key != "checksum"}
PLACES = [place for place in places(RAW) if place]
# Those may be missing: they are left out where they say nothing, or a program of today writes more than it needs.
OTHER = object()
WRONG: list[Any] = [None, True, -1, 0, 1.5, "?", "", [], {}, [None], {"?": None}, 2**63, OTHER]


def path_of(place: Keys) -> str:
    """`place` as a message names it."""
    text = ""
    for place_of_key, key in enumerate(place):
        if isinstance(key, int):
            text += f"[{key}]"
        elif place_of_key and place[place_of_key - 1] in ("baselines", "uploads", "artifactUris", "flags"):
            text += f'["{key}"]'
        else:
            text += f".{key}" if text else key
    return text


def changed(place: Keys, value: Any) -> dict[str, Any]:
    """The snapshot with another value at `place`; OTHER takes it away."""
    raw = copy.deepcopy(RAW)
    holder: Any = raw
    for key in place[:-1]:
        holder = holder[key]
    if value is OTHER:
        del holder[place[-1]]
    else:
        holder[place[-1]] = value
    return raw


def sealed(raw: dict[str, Any], *, lines: bool = True) -> bytes:
    """As this program writes it, or on one line; the checksum is right."""
    raw = dict(raw)
    if lines and isinstance(raw.get("thread"), list) and list(raw)[-1] == "thread":
        thread = raw.pop("thread")
        body = orjson.dumps(raw)[:-1] + b',"thread":[\n' + b",\n".join(map(orjson.dumps, thread)) + b"\n]"
    else:
        body = orjson.dumps(raw)[:-1]
    return body + b',"checksum":"crc32:%08x"}\n' % zlib.crc32(body)


def put(directory: Path | str, snapshot: bytes) -> None:
    """Put `snapshot` in place of the session's, with a journal that holds no copy of it, and nothing kept aside."""
    remove_kept_aside(directory)
    paths = paths_in(directory)
    with open(paths.snapshot, "wb") as handle:
        handle.write(snapshot)
    seq = RAW["resume"]["journalSeq"]
    with open(paths.journal, "wb") as handle:
        handle.write(frame(seq + 1, seq, orjson.dumps({"kind": "opened", "sessionId": SESSION})))


def files_in(directory: Path | str) -> dict[str, bytes]:
    folder = paths_in(directory).checkpoints
    names = [name for name in LOCAL_DISK.names(folder) if not name.endswith(".lock")]
    return {name: LOCAL_DISK.read(os.path.join(folder, name)) for name in names}


def remove_kept_aside(directory: Path | str) -> None:
    folder = paths_in(directory).checkpoints
    for name in LOCAL_DISK.names(folder):
        if ".corrupt-" in name:
            os.unlink(os.path.join(folder, name))


def refused(directory: Path | str) -> StateError | None:
    """Why the session cannot be opened; None when it can."""
    try:
        reopen(directory).close()
    except StateError as error:
        return error
    return None


def test_what_this_file_builds_is_what_the_program_writes() -> None:
    assert sealed(RAW) == SNAPSHOT


@pytest.mark.parametrize("lines", [True, False])
@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("resume", "usage", "inputTokens"), -3,
         "resume.usage.inputTokens: must be a whole number of at least 0, not -3"),
        (("sessionStatus",), "SESSION_DREAMING", "sessionStatus: must be one of"),
        (("task", "status"), "TASK_RUNNING", "task.status: must be one of"),
        (("task", "maxSteps"), "40", 'task.maxSteps: must be a whole number of at least 0, not "40"'),
        (("task", "finishedCalls", 0), ["RunCommand", "succeeded"], "task.finishedCalls[0]: must be a list of 3"),
        (("task", "options", "?"), 1, 'task.options["?"]: is not known'),
        (("resume", "options", "flags"), OTHER, "resume.options.flags: is missing"),
        (("resume", "options", "workspace"), 5, "resume.options.workspace: must be a string, not 5"),
        (("resume", "baselines", "/f"), 5, 'resume.baselines["/f"]: must be a string, not 5'),
        (("resume", "openStep", "position"), 99, "resume.openStep.position: must be the place of an assistant's"),
        (("resume", "openStep", "position"), 0, 'toolCalls: call "c4" has no result, and its step is not open'),
        (("resume", "openStep", "calls", 1), OTHER, "resume.openStep.calls: must be a row for each call of thread["),
        (("resume", "openStep", "calls", 0, "status"), OTHER, "must have `result` and `status` together"),
        (("resume", "openStep", "calls", 0, "result", "role"), "user", "result.role: must be a message of tool"),
        (("thread",), [], "thread: must have at least the system prompt"),
        (("thread",), {}, "thread: must be a list"),
        (("thread", 0, "role"), "user", 'thread[0].role: must be "system"'),
        (("thread", 1, "role"), "boss", "thread[1].role: must be one of"),
        (("thread", 1, "tokenCount"), OTHER, "thread[1].tokenCount: is missing"),
        (("thread", 2, "toolCalls", 0, "id"), 7, "thread[2].toolCalls[0].id: must be a string, not 7"),
        (("thread", 3, "toolCallId"), "other", "thread[3].toolCallId: must name a call before it"),
        (("thread", 6, "contentBlob", "sha256"), "../../etc/passwd", "contentBlob.sha256: must be a SHA-256"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_path(
    tmp_path: Path, place: Keys, value: Any, said: str, *, lines: bool
) -> None:
    session_in(tmp_path)
    if place == ("task", "options", "?"):
        raw = changed(("task", "options"), {"?": 1})
    elif place == ("thread", 6, "contentBlob", "sha256"):
        held = next(number for number, one in enumerate(RAW["thread"]) if "contentBlob" in one)
        raw = changed(("thread", held, "contentBlob", "sha256"), value)
    else:
        raw = changed(place, value)
    put(tmp_path, sealed(raw, lines=lines))
    before = files_in(tmp_path)
    for _ in range(2):
        with pytest.raises(OtherShape) as raised:
            reopen(tmp_path)
        assert any(said in problem for problem in raised.value.problems), raised.value.problems
        assert said in str(raised.value)
    assert files_in(tmp_path) == before
    (row,) = FileCheckpointStore(str(tmp_path)).list()
    assert (row.state, said in row.problem) == (None, True)
    with SessionPruner(str(tmp_path), now=0.0) as pruner:
        assert len(pruner.survey()) == 1


def test_all_problems_are_in_one_list(tmp_path: Path) -> None:
    session_in(tmp_path)
    raw = changed(("tenantId",), OTHER)
    raw["resume"]["usage"] = {"inputTokens": -1, "outputTokens": "2"}
    raw["thread"][1]["role"] = "boss"
    raw["task"]["denied"] = [{}] * 10
    put(tmp_path, sealed(raw))
    with pytest.raises(OtherShape) as raised:
        load(tmp_path)
    assert len(raised.value.problems) == 1 + 3 + 1 + 20
    assert str(raised.value).endswith("; and 15 more")


def test_what_earlier_versions_had_no_name_for_may_be_missing() -> None:
    for version, missing in ((2, ("earlierTasks", "droppedMessages", "tokensKnown")), (1, ("salvaged", "version"))):
        raw = copy.deepcopy(RAW)
        raw["resume"]["version"] = version
        for name in missing:
            del raw["resume"][name]
        with tempfile.TemporaryDirectory() as folder:
            session_in(folder)
            put(folder, sealed(raw))
            assert load(folder).task is not None
            raw["resume"]["version"] = 3
            put(folder, sealed(raw))
            with pytest.raises(OtherShape) as raised:
                load(folder)
            wanted = {f"resume.{name}: is missing" for name in missing if name != "version"}
            assert set(raised.value.problems) == wanted


@settings(max_examples=150, deadline=None)
@given(place=st.sampled_from(PLACES), value=st.sampled_from(WRONG), lines=st.booleans())
def test_any_change_loads_or_is_refused_with_its_path(left: Path, place: Keys, value: Any, lines: bool) -> None:
    """What is of the right shape again is another session, and what is not names the place, or what must agree with
    it. Never is it any other error."""
    raw = changed(place, value)
    put(left, SNAPSHOT)
    whole = unnumbered(load(left))
    put(left, sealed(raw, lines=lines))
    why = refused(left)
    if isinstance(why, OtherShape):
        path = path_of(place[:-1] if value is OTHER and isinstance(place[-1], int) else place)
        agreeing = ("openStep", "toolCalls", "toolCallId", "thread")
        named = any(one.startswith(path) for one in why.problems)
        assert named or any(word in path for word in agreeing), (path, why.problems)
    elif isinstance(why, UnknownVersion):
        assert place[-1] in ("version", "checkpointVersion")
    elif why is not None:  # it says that it is another session's, that no version wrote it, or that records are missing
        assert isinstance(why, Damaged), why
        assert place[-1] in ("checkpointVersion", "sessionId", "journalSeq"), (place, value, why)
    else:
        session = reopen(left)
        again = unnumbered(session.state)
        session.compact()
        session.close()
        assert unnumbered(load(left)) == again
        assert raw != RAW or again == whole


def records() -> tuple[bytes, list[tuple[dict[str, Any], dict[str, Any] | None]]]:
    """A snapshot and the records over it, each as fields and message."""
    with tempfile.TemporaryDirectory() as folder:
        snapshot = session_in(folder)
        session = reopen(folder)
        name = session.keep(b"first")
        waits = {"artifacts": [{**ARTIFACT, "id": name} for name in ("art_4", "art_5")]}
        done = {"callId": "c5", "status": "succeeded", **waits}
        session.append(record_of("call_finished", done, message("tool", "ok", toolCallId="c5")))
        session.append(record_of("artifact_uploaded", {"id": "art_4", "uri": "uri"}))
        session.append(record_of("artifact_given_up", {"id": "art_5", "why": "late"}))
        session.append(record_of("step_committed", {"stepCount": 2}))
        turn(session, "step_4", "c6", gated=True)
        answer = {"approved": True, "scope": "session", "reason": "", "arguments": {"command": "ls"}}
        session.append(record_of("approval", {"callId": "c6", "approvalId": "appr_c6", **answer}))
        session.append(record_of("grant", {"scope": "session", "approvalId": "appr_c6"}))
        intent = {"path": "/h", "before": None, "after": name}
        session.append(record_of("call_started", {"callId": "c6", "intent": intent, "baselines": {"/h": name}}))
        finish(session, "c6")
        session.append(record_of("step_committed", {"stepCount": 3, "taskStatus": "failed", "taskReason": "why"}))
        session.append(record_of("task_reopened", {"maxSteps": 50}))
        session.append(record_of("note", {"ofDamage": True}, message("system", "n")))
        status = {"status": "SESSION_PAUSED", "policyBundleVersion": "v", "maxSteps": 9}
        session.append(record_of("session_status", status))
        session.append(record_of("task_ended", {"status": "failed", "reason": None}))
        session.close()
        found = parse(LOCAL_DISK.read(paths_in(folder).journal)).records
        snapshot = LOCAL_DISK.read(paths_in(folder).snapshot)
    rows = [(orjson.loads(one.fields), None if one.message is None else orjson.loads(one.message)) for one in found]
    return snapshot, rows


OVER, RECORDS = records()
RECORD_PLACES = [place for place in places([list(row) for row in RECORDS]) if len(place) > 1]


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(place=st.sampled_from(RECORD_PLACES), value=st.sampled_from(WRONG))
def test_any_change_of_a_record_loads_or_is_damage_before_which_all_is_whole(
    left: Path, place: Keys, value: Any
) -> None:
    rows: list[list[Any]] = copy.deepcopy([list(row) for row in RECORDS])
    holder: Any = rows
    for key in place[:-1]:
        holder = holder[key]
    if value is not OTHER:
        holder[place[-1]] = value
    elif len(place) > 2:
        del holder[place[-1]]
    first = orjson.loads(OVER)["resume"]["journalSeq"] + 1
    remove_kept_aside(left)
    paths = paths_in(left)
    with open(paths.snapshot, "wb") as handle:
        handle.write(OVER)
    with open(paths.journal, "wb") as handle:
        for number, (fields, spoken) in enumerate(rows, first):
            encoded = None if spoken is None else orjson.dumps(spoken)
            handle.write(frame(number, number - 1, orjson.dumps(fields), encoded))
    found, why = on_disk(left) if place[-1] != "kind" else None, refused(left)
    if isinstance(why, Damaged):
        assert found is None or found.damage == str(why)
        assert not why.salvaged or refused(left) is None
    elif why is not None:  # a kind of another program
        assert isinstance(why, UnknownVersion), why
        assert place[-1] == "kind"
