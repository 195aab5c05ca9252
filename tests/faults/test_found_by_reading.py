"""Defects that were found by reading the code, each with the test that shows it."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import zlib
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.events import EventType
from agent_host.events.emitter import Event
from agent_host.events.sinks import RunLog
from agent_host.faults.crash import FailingDisk, Faults
from agent_host.ids import MACHINE
from agent_host.llm.dialects.anthropic import AnthropicRenderer
from agent_host.session import opening
from agent_host.thread import Thread
from agent_host.thread.messages import Message, ToolCall, decode, encode
from state import Damaged, NoSuchSession, StateError
from state.disk import Disk
from state.file_store import FileCheckpointStore
from state.journal import frame, parse
from state.loading import ResumeVerdict, judge
from state.records import record_of
from tests.support.memory_store import MemoryCheckpointStore
from tests.support.process import PATIENCE_S, Host, call, gateway, say, shell, use
from tests.unit.state.helpers import (
    SESSION,
    create,
    fresh_state,
    load,
    paths_in,
    reopen,
    start_task,
    turn,
    unnumbered,
    whole_step,
)

if TYPE_CHECKING:
    from pathlib import Path

    from state.checkpoint import Checkpoint
    from tests.support.memory_store import CheckpointStore
    from tests.support.process import Gateway, Outcome

KILLED = -9
CRASH = "agent_host.faults.crash"
RULES = [{"approvalRuleId": "shell", "title": "Run", "description": "Runs a command."}]
ASKS = {"Shell.Exec": {"requiresApproval": True, "approvalRuleId": "shell"}}


def killed_after(host: Host, record: int, model: Gateway) -> None:
    """A session of this host that dies right behind one of its records."""
    arguments = ["--gateway", model.url, "--policy", "full", "--output", "json", "--session-id", SESSION]
    crash = ["--after-record", str(record)]
    ended = host.start(*crash, "run", "Do it.", *arguments, program=CRASH).finish()
    assert ended.code == KILLED, ended.stderr


def resumed(host: Host, model: Gateway) -> Outcome:
    return host.run("resume", SESSION, "--gateway", model.url, "--output", "json")


def flipped(path: str, at: int) -> None:
    """Turn one bit of the byte at `at` over."""
    data = bytearray(Disk().read(path))
    data[at] ^= 1
    with open(path, "wb") as handle:
        handle.write(data)


# The thread


def test_an_answer_that_was_cut_is_sent_once_after_a_crash(host: Host) -> None:
    with gateway(say("It is lo", stop_reason="max_tokens"), say("ng."), say("ng.")) as model:
        killed_after(host, 1, model)
        assert resumed(host, model).code == 0
        roles = [message["role"] for message in model.bodies[-1]["messages"]]
    assert roles == ["user", "assistant", "user"]


def test_the_window_after_a_crash_is_the_one_before_it() -> None:
    """What is sent, and so what is paid for, is that of an undisturbed session."""
    live, restored = Thread(AnthropicRenderer()), Thread(AnthropicRenderer())
    prompt, said = Message("user", "do", 10), [Message("assistant", f"say {number}", 100) for number in range(14)]
    live.add_task(prompt)
    for message in said:
        live.fit(1000)
        live.add_exchange(message, [])
    live.fit(1000)
    restored.restore([prompt, *said], dropped=live.dropped)
    restored.fit(1000)
    assert b"".join(restored.encode_window()) == b"".join(live.encode_window())


def test_what_is_sent_after_a_crash_is_what_would_have_been_sent(host: Host) -> None:
    """Killed behind a turn, a result and the commit of the step, each with a window that was cut before."""
    for number in range(12):
        (host.workspace / f"large{number}").write_text("word word word word\n" * 225)
    options = ["--policy", str(host.policy(llm={"maxInputTokens": 9000})), "--output", "json"]
    steps = [use(call("ReadFile", path=str(host.workspace / f"large{number}"))) for number in range(12)]

    def bodies(session: str, *crash: str) -> list[Any]:
        with gateway(*steps, say("Done.")) as model:
            run = ["run", "Do it.", "--gateway", model.url, "--session-id", session, *options]
            ended = host.start(*crash, *run, program=CRASH if crash else "agent_host.cli.main").finish()
            assert ended.code == (KILLED if crash else 0)
            if crash:
                assert host.run("resume", session, "--gateway", model.url).code == 0
            return [body["messages"] for body in model.bodies]

    undisturbed = bodies("undisturbed")
    assert "truncated" in str(undisturbed[9])
    for record in ("28", "29", "30"):
        assert bodies(f"killed-{record}", "--after-record", record) == undisturbed


def test_a_task_that_follows_an_open_step_leaves_a_thread_that_can_be_sent(tmp_path: Path) -> None:
    store = create(tmp_path)
    prompt = encode(Message("user", "do", 1), MACHINE, session_id=SESSION)
    store.append(record_of("task_started", {"taskId": "t1", "prompt": "do", "maxSteps": 4}, prompt))
    asked = Message("assistant", "", 1, (ToolCall("c1", "RunCommand", {"command": "x"}),))
    fields = {"stepId": "s", "stopReason": "tool_use", "boot": "b", "usage": {}}
    rows = [{"callId": "c1", "sideEffects": True}]
    store.append(record_of("turn", {**fields, "calls": rows}, encode(asked, MACHINE, session_id=SESSION)))
    try:
        store.append(record_of("task_started", {"taskId": "t2", "prompt": "do", "maxSteps": 4}, prompt))
    except Damaged:
        return
    finally:
        store.close()
    thread = Thread(AnthropicRenderer())
    thread.restore(decode(message) for message in load(tmp_path).thread[1:])
    sent = b"".join(thread.encode_window())
    assert sent.count(b'"tool_use"') == sent.count(b'"tool_result"')


# What became of a call


def test_the_last_byte_of_a_start_record_does_not_make_its_call_unstarted(tmp_path: Path) -> None:
    live = create(tmp_path)
    start_task(live)
    turn(live, "step_1", "c1")
    live.sync()
    live.append(record_of("call_started", {"callId": "c1"}))
    live.close()
    flipped(paths_in(tmp_path).journal, -1)
    try:
        found = load(tmp_path)
    except Damaged:
        return
    assert found.open_step is not None
    assert judge(found.open_step.calls[0], same_boot=True) is not ResumeVerdict.RUN


@pytest.mark.parametrize("done", [False, True])
def test_a_file_that_is_as_it_was_at_both_ends_of_a_step_tells_nothing(host: Host, *, done: bool) -> None:
    """Nothing of the step happened, or all of it: after a power loss the disk looks the same."""
    path = host.workspace / "draft"
    calls = (call("WriteFile", path=str(path), content="x"), call("DeleteFile", path=str(path)))
    with gateway(use(*calls), say("Done.")) as model:
        killed_after(host, 1, model)
        if done:
            path.write_text("x")
            path.unlink()
        lose_power(host)
        assert resumed(host, model).code == 0
        written, deleted = model.results()
    wrong = "the first is told not to have happened, which it did" if done else "the second is told to have happened"
    assert "before it took effect" not in written.text if done else not deleted.text.startswith("done"), wrong


def lose_power(host: Host) -> None:
    """The open step was recorded in another boot."""
    store = FileCheckpointStore(str(host.state)).open(SESSION)
    assert store.state.open_step is not None
    store.state.open_step.boot = "another"
    store.compact()
    store.close()


def test_a_call_whose_start_was_refused_by_the_disk_has_not_started(tmp_path: Path) -> None:
    """The task pauses since nothing may start; the record of the pause finds the disk well again."""
    disk = FailingDisk(Disk())
    store = FileCheckpointStore(str(tmp_path), disk).create(SESSION, fresh_state())
    start_task(store)
    turn(store, "step_1", "c1")
    store.sync()
    disk.calls.faults = Faults(fail_call=disk.calls.count + 1, code=errno.ENOSPC, written=0.0)
    with pytest.raises(StateError):
        store.append(record_of("call_started", {"callId": "c1"}))
    store.state.open_call("c1").started = False  # as the loop does
    store.append(record_of("session_status", {"status": "SESSION_PAUSED"}))
    store.close()
    step = load(tmp_path).open_step
    assert step is not None
    assert judge(step.calls[0], same_boot=True) is ResumeVerdict.RUN


def test_deleting_what_was_never_there_ends_as_without_a_crash(host: Host) -> None:
    gone = call("DeleteFile", path=str(host.workspace / "gone"))
    with gateway(use(gone), say("Done.")) as model:
        killed_after(host, 2, model)
        outcome = resumed(host, model)
    assert [entry["status"] for entry in outcome.result["toolCalls"]] == ["failed"]


def test_writing_what_is_there_already_ends_as_without_a_crash(host: Host) -> None:
    (host.workspace / "same").write_text("x")
    same = call("WriteFile", path=str(host.workspace / "same"), content="x")
    with gateway(use(same), say("Done.")) as model:
        killed_after(host, 2, model)
        outcome = resumed(host, model)
        (answer,) = model.results()
    assert [entry["status"] for entry in outcome.result["toolCalls"]] == ["succeeded"]
    assert answer.text.startswith("Wrote 1 bytes")


_DIES_WHILE_IT_WRITES = """
import os, signal, sys
from agent_host.cli.main import main
replace = os.replace
def dying(source, target, **more):
    if str(source).startswith(".agent-host-"):
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target, **more)
os.replace = dying
sys.exit(main(sys.argv[1:]))
"""


def test_a_write_that_was_cut_off_leaves_nothing_in_the_workspace(host: Host) -> None:
    path = host.workspace / "new"
    with gateway(use(call("WriteFile", path=str(path), content="x")), say("Done.")) as model:
        options = ["--gateway", model.url, "--policy", "full", "--session-id", SESSION]
        ended = subprocess.run(
            [sys.executable, "-c", _DIES_WHILE_IT_WRITES, "run", "Do it.", *options],
            cwd=host.workspace,
            env=host.environment(),
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert ended.returncode == KILLED, ended.stderr
        assert resumed(host, model).code == 0
        (answer,) = model.results()
    assert answer.text.endswith("the file is as it was")
    assert os.listdir(host.workspace) == []


# Sessions that are stuck


@pytest.mark.parametrize("tool", ["ReadFile", "WriteFile", "RunCommand"])
def test_a_link_to_a_name_that_is_no_text_ends_no_session(host: Host, tool: str) -> None:
    """A file of the workspace is enough: the turn is on record, and every resume breaks down at the same place."""
    os.symlink(b"/opt/caf\xe9", host.workspace / "link")
    link = str(host.workspace / "link")
    calls = {
        "ReadFile": call("ReadFile", path=link),
        "WriteFile": call("WriteFile", path=link, content="x"),
        "RunCommand": shell("echo x > link"),
    }
    with gateway(use(calls[tool]), say("Done.")) as model:
        outcome = host.task(model.url, policy=host.policy())
    assert outcome.stderr == ""
    assert outcome.result["text"] == "Done."


@pytest.mark.parametrize(("tool", "arguments"), [("WriteFile", {"content": "x"})])
def test_a_file_whose_name_is_no_text_is_not_changed_through_a_link(
    host: Host, tool: str, arguments: dict[str, str]
) -> None:
    """What changes goes on record by its real name, and this one cannot."""
    target = os.fsencode(str(host.workspace)) + b"/caf\xe9"
    with open(target, "w") as handle:
        handle.write("as it was")
    os.symlink(target, host.workspace / "link")
    with gateway(use(call(tool, path=str(host.workspace / "link"), **arguments)), say("Done.")) as model:
        outcome = host.task(model.url)
        (answer,) = model.results()
    assert (outcome.code, outcome.result["text"]) == (0, "Done.")
    assert answer.text.startswith("INVALID_REQUEST: ")
    assert "not UTF-8" in answer.text
    with open(target) as handle:
        assert handle.read() == "as it was"


def test_a_file_whose_name_is_no_text_can_be_read_through_a_link(host: Host) -> None:
    target = os.fsencode(str(host.workspace)) + b"/caf\xe9"
    with open(target, "w") as handle:
        handle.write("as it is")
    os.symlink(target, host.workspace / "link")
    with gateway(use(call("ReadFile", path=str(host.workspace / "link"))), say("Done.")) as model:
        outcome = host.task(model.url)
        (answer,) = model.results()
    assert (outcome.code, answer.text) == (0, "as it is")


def nested(depth: int) -> dict[str, Any]:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return {"value": value}


def test_deep_arguments_of_a_denied_call_end_no_session(host: Host) -> None:
    """They fit into the message; in the record of the refusal they stand deeper."""
    with gateway(use(shell("true", more=nested(248))), say("Done.")) as model:
        outcome = host.task(model.url, policy=host.policy(grants=ASKS, approvalRules=RULES))
    assert "internal error" not in outcome.stderr
    assert outcome.result["text"] == "Done."


def test_deep_arguments_of_a_denied_call_survive_a_crash(host: Host) -> None:
    """They fit into the record of the refusal; in the snapshot they stand deeper still."""
    path = host.policy(grants=ASKS, approvalRules=RULES)
    with gateway(use(shell("true", more=nested(246))), say("Done.")) as model:
        arguments = ["--gateway", model.url, "--policy", str(path), "--output", "json", "--session-id", SESSION]
        crash = ["--after-record", "3"]
        assert host.start(*crash, "run", "Do it.", *arguments, program=CRASH).finish().code == KILLED
        outcome = resumed(host, model)
    assert "internal error" not in outcome.stderr
    assert outcome.result["text"] == "Done."


@pytest.mark.parametrize(
    "option", ["--approve", "--session-id", "--model", "--policy", "--toolset", "--dialect", "--output", "--gateway"]
)
def test_an_option_that_is_no_text_is_refused_in_one_line(host: Host, option: str) -> None:
    with gateway(say("Done.")) as model:
        given = ["run", "Do it.", "--gateway", model.url, "--policy", "full"]
        outcome = host.run(*given, option, "mock:\udcff" if option == "--gateway" else "\udcff")
        assert model.bodies == []
    assert (outcome.code, outcome.stdout) == (2, b"")
    assert outcome.stderr.startswith(f"agent-host: error: {option}")
    assert outcome.stderr.count("\n") == 1
    assert host.checkpoints() == []


def test_tokens_past_counting_end_no_session(host: Host) -> None:
    usage = {"input_tokens": 2**63, "cache_read_input_tokens": 2**63, "output_tokens": 1}
    with gateway(say("Done.", usage=usage)) as model:
        outcome = host.task(model.url)
    assert "internal error" not in outcome.stderr
    assert outcome.result["text"] == "Done."


def test_what_is_offered_for_resume_can_be_resumed(host: Host) -> None:
    """A session is not compacted in its first 256 KiB, so damage to its first record leaves its task alone."""
    with gateway(use(shell("echo ran >> effects")), say("Done.")) as model:
        killed_after(host, 4, model)
        journal = paths_in(host.state).journal
        flipped(journal, Disk().read(journal).index(b'"turn"'))
        first, second = resumed(host, model), resumed(host, model)
    assert "can be resumed" not in first.stderr or "no task" not in second.stderr


def test_a_new_run_after_damage_tells_the_model_of_it(host: Host) -> None:
    """The id is free again, silently, and the effects of the first run are still there."""
    with gateway(use(shell("echo ran >> effects")), say("Done."), say("Done.")) as model:
        killed_after(host, 4, model)
        journal = paths_in(host.state).journal
        flipped(journal, Disk().read(journal).index(b'"turn"'))
        resumed(host, model)
        again = host.task(model.url, "--session-id", SESSION)
        sent = str(model.bodies[-1]["messages"])
    assert again.code != 0 or "damaged" in sent


# The store


def test_a_session_that_begins_meanwhile_is_not_cleared_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it has a task is asked before the lock is taken: its process may record one, and die, in between."""
    create(tmp_path).close()
    store, at_once = FileCheckpointStore(str(tmp_path)), FileCheckpointStore.load

    def slow(store: FileCheckpointStore, session_id: str) -> Checkpoint:
        before = at_once(store, session_id)
        other = reopen(tmp_path, session_id)
        start_task(other)
        whole_step(other, 1)
        other.close()
        return before

    with monkeypatch.context() as patched:
        patched.setattr(FileCheckpointStore, "load", slow)
        opening._clear_unstarted(store, SESSION)
    try:
        assert load(tmp_path).task is not None
    except NoSuchSession:
        pytest.fail("a session with a finished step was deleted")


@pytest.mark.parametrize("use_of", ["open", "load", "create", "list"])
def test_a_disk_that_cannot_be_looked_at_is_an_error_of_the_store(tmp_path: Path, use_of: str) -> None:
    live = create(tmp_path)
    start_task(live)
    live.close()
    for number in range(1, 100):
        disk = FailingDisk(Disk(), Faults(fail_call=number, count_reads=True))
        store = FileCheckpointStore(str(tmp_path), disk)
        uses = {
            "open": lambda store=store: store.open(SESSION).close(),
            "load": lambda store=store: store.load(SESSION),
            "create": lambda store=store: store.create(SESSION, fresh_state()),
            "list": lambda store=store: store.list(),
        }
        with contextlib.suppress(StateError):
            uses[use_of]()
        if disk.calls.count < number:
            return
    pytest.fail("it never ends")


@pytest.mark.parametrize("use_of", ["open", "load", "list"])
def test_a_whole_file_of_another_shape_is_an_error_of_the_store(tmp_path: Path, use_of: str) -> None:
    create(tmp_path).close()
    path = paths_in(tmp_path).snapshot
    head, key, _ = Disk().read(path).replace(b"workspaceId", b"workspaceXd").rpartition(b',"checksum":"crc32:')
    with open(path, "wb") as handle:
        handle.write(head + key + b'%08x"}\n' % zlib.crc32(head))
    store = FileCheckpointStore(str(tmp_path))
    with contextlib.suppress(StateError):
        store.list() if use_of == "list" else getattr(store, use_of)(SESSION)


def test_a_flipped_bit_in_the_version_is_damage_and_no_newer_program(tmp_path: Path) -> None:
    create(tmp_path).close()
    path = paths_in(tmp_path).snapshot
    flipped(path, Disk().read(path).index(b'"1.0"') + 1)
    again = reopen(tmp_path)
    assert again.report.restored
    again.close()


def test_a_session_whose_snapshot_is_gone_is_listed(tmp_path: Path) -> None:
    live = create(tmp_path)
    start_task(live)
    live.close()
    os.unlink(paths_in(tmp_path).snapshot)
    assert [row.session_id for row in FileCheckpointStore(str(tmp_path)).list()] == [SESSION]


def test_a_damaged_first_snapshot_does_not_cost_the_whole_journal(tmp_path: Path) -> None:
    """Up to 256 KiB the journal has every record of the task, and the snapshot the system prompt alone."""
    live = create(tmp_path)
    start_task(live)
    whole_step(live, 1)
    live.close()
    path = paths_in(tmp_path).snapshot
    flipped(path, Disk().read(path).index(b"be careful"))
    again = reopen(tmp_path)
    assert again.report.restored
    assert unnumbered(again.state) == unnumbered(live.state)
    again.close()


def test_what_looks_like_records_costs_no_more_to_read_than_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """One flipped bit in a record whose content a hostile file has made, and a journal takes minutes to load."""
    unit, number, end = 40, 2000, b'"}'
    content = b""
    for left in range(unit + len(end), unit * number + len(end) + 1, unit):
        header = b"J2 9 8 %06d 0 00000000 "  # each names a payload up to the end of the line
        content = (header % (left - len(header % 0))).ljust(unit, b"x") + content
    spoiled = bytearray(frame(2, 1, b"{}", b'{"content":"' + content + end))
    spoiled[5] ^= 1
    data = frame(1, 0, b"{}") + bytes(spoiled) + frame(3, 1, b"{}")
    summed = 0
    crc32 = zlib.crc32

    def counted(part: bytes, start: int = 0) -> int:
        nonlocal summed
        summed += len(part)
        return crc32(part, start)

    monkeypatch.setattr(zlib, "crc32", counted)
    assert parse(data).damaged
    assert summed < 20 * len(data)


def test_opening_writes_no_blob_that_the_checkpoint_names(tmp_path: Path) -> None:
    """The snapshot came after its blobs were synced; a resume need not write them all again, each with a sync."""
    live = create(tmp_path)
    start_task(live)
    for number in range(1, 21):
        whole_step(live, number, f"{number:06} " * 4000)
    live.compact()
    live.close()
    disk = FailingDisk(Disk())
    FileCheckpointStore(str(tmp_path), disk).open(SESSION).close()
    assert not [line for line in disk.calls.log if "/blobs/" in line and "replace" in line]


def test_an_ended_id_is_given_out_again_by_every_store_or_by_none(tmp_path: Path) -> None:
    def again(store: CheckpointStore) -> str:
        store.create(SESSION, fresh_state()).delete()
        try:
            store.create(SESSION, fresh_state()).close()
        except StateError as error:
            return type(error).__name__
        return "given out"

    assert again(FileCheckpointStore(str(tmp_path))) == again(MemoryCheckpointStore())


class AnotherBoot(Disk):
    def boot_id(self) -> str | None:
        return "another"


def test_a_flipped_bit_in_a_step_that_was_synced_is_put_aside_in_another_boot(tmp_path: Path) -> None:
    """The step was committed and synced, then the machine went down: what was durable is dropped and not kept."""
    live = create(tmp_path)
    start_task(live)
    whole_step(live, 1)
    live.close()
    journal = paths_in(tmp_path).journal
    flipped(journal, Disk().read(journal).index(b"call_started"))
    try:
        found = FileCheckpointStore(str(tmp_path), AnotherBoot()).open(SESSION)
        found.close()
    except Damaged:
        pass
    assert [name for name in os.listdir(paths_in(tmp_path).checkpoints) if ".corrupt-" in name]


def test_a_log_that_cannot_even_be_closed_ends_no_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = RunLog(str(tmp_path / "events.jsonl"))
    event = Event(1, EventType.TASK_STARTED, {}, {}, at=0.0)
    log.take(event)
    log.flush()

    def refuse(*_: Any) -> int:
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", refuse)
        patched.setattr(os, "close", refuse)
        log.take(event)
        log.flush()
    assert log.dropped == 1
