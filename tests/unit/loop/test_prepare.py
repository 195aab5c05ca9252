"""What is known of a call before anything is done about it: policy's word, its intent, its place on record."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.approval import ApprovalAnswer
from agent_host.contracts import ToolConstraints
from agent_host.errors import CheckpointWriteFailed
from agent_host.events import EventType
from agent_host.faults.crash import Faults
from agent_host.faults.disk import SimulatedDisk
from agent_host.judging import NO_EFFECT, PreparedCall, Refusal, Registry
from agent_host.loop.prepare import (
    ask_after_all,
    bound_to,
    edit,
    judge,
    judge_again,
    prepare_calls,
    record_start,
    request_for,
    row_of,
)
from agent_host.loop.results import refused_result, text_of
from agent_host.thread.messages import ToolCall
from policy.rules import TaskOptions, ToolLimit
from policy.rules.canonical import canonical_form
from state.blobs import sha256_hex
from tests.support.loop import Loop
from tests.support.loop_crashes import died, open_calls
from tests.support.loop_parts import NOW, bundle, call, read, shell, write
from tests.support.tools import TOOLS

if TYPE_CHECKING:
    from pathlib import Path


NEVER = TaskOptions(approval_mode="never")
ASKS = "Shell.Exec"


def at_work(folder: Path, **more: Any) -> Loop:
    """A loop with a task."""
    loop = Loop(folder, **more)
    loop.begin()
    return loop


# Calls that can never run


@pytest.mark.parametrize(
    ("made", "status", "code", "said"),
    [
        (call("Teleport", to="Mars"), "failed", "TOOL_NOT_FOUND", "there is no tool 'Teleport'"),
        (ToolCall("c", "RunCommand", {}, "cut at the end"), "failed", "INVALID_REQUEST", "cut at the end"),
        (shell("echo [redacted:x:123456]"), "failed", "INVALID_REQUEST", "stands in the place of a secret"),
        (call("RunCommand"), "failed", "INVALID_REQUEST", "'command'"),
        (read("/etc/passwd"), "denied", "CAPABILITY_DENIED", "(capabilities[File.Read].allowedPaths"),
        (call("HttpRequest", url="https://evil.test/"), "denied", "CAPABILITY_DENIED", "allowedDomains"),
        (write("/nowhere/a", "x"), "denied", "CAPABILITY_DENIED", "switched off for this session: a mode"),
    ],
)
def test_what_can_never_run_is_refused(tmp_path: Path, made: ToolCall, status: str, code: str, said: str) -> None:
    loop = at_work(tmp_path, limits=frozenset({ToolLimit("a mode", withheld=frozenset({"WriteFile"}))}))
    checked = judge(loop.ctx, made)
    assert checked.refusal is not None
    assert (checked.refusal.status, checked.refusal.code) == (status, code)
    assert said in checked.refusal.message
    assert text_of(refused_result(loop.ctx, made, checked.refusal)) == f"{code}: {checked.refusal.message}"
    assert (checked.needs_approval, checked.may_act) == (False, False)


def test_a_tool_that_the_router_does_not_have_is_not_found(tmp_path: Path) -> None:
    loop = at_work(tmp_path)
    loop.ctx.judge.tools = Registry(spec for spec in TOOLS.values() if spec.name != "RunCommand")
    refusal = judge(loop.ctx, shell("make")).refusal
    assert refusal is not None
    assert refusal.code == "TOOL_NOT_FOUND"


def test_a_name_that_no_tool_has_names_the_nearest(tmp_path: Path) -> None:
    loop = at_work(tmp_path)
    for name, said in (
        ("read_file", "there is no tool 'read_file'; did you mean ReadFile?"),
        ("writefile", "there is no tool 'writefile'; did you mean WriteFile?"),
        ("x" * 9999, f"there is no tool '{'x' * 200}'; known are "),
    ):
        refusal = judge(loop.ctx, call(name)).refusal
        assert refusal is not None
        assert refusal.message.startswith(said)
        assert len(refusal.message) < 1000


def test_a_call_above_the_ceiling_is_denied(tmp_path: Path) -> None:
    limits = frozenset({ToolLimit("a skill", risk_ceiling="low")})
    loop = at_work(tmp_path, limits=limits)
    refusal = judge(loop.ctx, shell("make")).refusal
    assert refusal is not None
    assert "a skill admits low at most" in refusal.message


def test_where_the_task_asks_nobody_the_call_is_denied_and_can_be_replayed(tmp_path: Path) -> None:
    loop = at_work(tmp_path, options=NEVER, policy=bundle(tmp_path, asks=[ASKS]))
    refusal = judge(loop.ctx, shell("make")).refusal
    assert refusal is not None
    assert (refusal.status, refusal.code, refusal.approve) == ("denied", "APPROVAL_REQUIRED", "rule-Shell.Exec")
    loop.ctx.judge.bundle = bundle(tmp_path, ShellExec={"requires_approval": True})
    refusal = judge(loop.ctx, shell("make")).refusal
    assert refusal is not None
    assert refusal.approve == "RunCommand"


def test_an_expired_policy_is_noted_and_told(tmp_path: Path) -> None:
    loop = at_work(tmp_path)
    assert judge(loop.ctx, shell("make", "c")).refusal is None
    noted = [loop.ctx.judge.expired]
    loop.now = NOW + timedelta(days=1)
    refusal = judge(loop.ctx, shell("make", "c")).refusal
    assert refusal is not None
    assert (refusal.status, refusal.code) == ("denied", "POLICY_EXPIRED")
    assert [*noted, loop.ctx.judge.expired] == [False, True]
    assert loop.told(EventType.POLICY_EXPIRED) == [{"toolCallId": "c"}]


# Calls that can


def test_whether_a_call_may_act_before_anything_else(tmp_path: Path) -> None:
    loop = at_work(tmp_path, policy=bundle(tmp_path, asks=[ASKS]))
    gated, reads, writes = prepare_calls(loop.ctx, [shell("make"), read(tmp_path / "a"), write(tmp_path / "b", "x")])
    assert [one.needs_approval for one in (gated, reads, writes)] == [True, False, False]
    assert [one.may_act for one in (gated, reads, writes)] == [False, False, True]
    assert [one.paths for one in (gated, reads, writes)] == [(), (str(tmp_path / "a"),), (str(tmp_path / "b"),)]
    assert gated.approval_id is not None
    assert gated.approval_id.startswith("appr_")
    assert (reads.approval_id, writes.approval_id) == (None, None)
    refused = gated._replace(refusal=Refusal("denied", "X", "no", "rule"))
    assert (refused.needs_approval, refused.may_act) == (False, False)


def test_a_write_is_prepared_with_what_it_is_about_to_do(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old s3cret-value")
    loop = at_work(tmp_path, secrets=("s3cret-value",))
    first, second = prepare_calls(loop.ctx, [write(path, "1"), write(path, "2")])
    assert first.effect.intent == {
        "path": str(path),
        "before": sha256_hex(path.read_bytes()),
        "after": sha256_hex(b"1"),
    }
    assert second.effect.intent == {"path": str(path), "before": sha256_hex(b"1"), "after": sha256_hex(b"2")}
    (name,) = first.effect.baselines.values()
    assert loop.ctx.journal.store.kept(str(name)) == b"old [redacted]"
    assert second.effect.baselines == {}
    assert row_of(first) == {"callId": first.call.call_id, "sideEffects": True, "intent": first.effect.intent}


def test_what_waits_for_an_approval_or_is_denied_keeps_no_first_version(tmp_path: Path) -> None:
    loop = at_work(tmp_path, policy=bundle(tmp_path, asks=["File.Write"], without=["File.Delete"]))
    waiting, denied = prepare_calls(
        loop.ctx, [write(tmp_path / "a", "x"), call("DeleteFile", path=str(tmp_path / "b"))]
    )
    assert (waiting.effect.intent, waiting.effect.baselines, denied.effect.intent) == (None, {}, None)
    assert row_of(waiting) == {
        "callId": waiting.call.call_id, "sideEffects": True, "gated": True, "approvalId": waiting.approval_id,
    }  # fmt: skip


def test_what_is_on_row_of_other_calls(tmp_path: Path) -> None:
    loop = at_work(tmp_path)
    unknown, reads = prepare_calls(loop.ctx, [call("Teleport", "a"), read(tmp_path / "a", "b")])
    assert row_of(unknown) == {"callId": "a", "sideEffects": True}, "what is not known may have effects"
    assert row_of(reads) == {"callId": "b", "sideEffects": False}


def test_an_answer_of_nobody_gates_a_call_only_as_long_as_policy_asks(tmp_path: Path) -> None:
    loop = at_work(tmp_path)
    checked = judge(loop.ctx, shell("make"))

    def gated(**answer: Any) -> bool:
        said = ApprovalAnswer(**{"approved": False, "reason": "", **answer}).to_record("c", "appr")
        return checked._replace(answer=said).needs_approval

    assert gated()
    assert not gated(unattended=True)
    assert not gated(timed_out=True)
    assert not gated(approved=True)


def test_an_approval_is_bound_to_call_and_policy(tmp_path: Path) -> None:
    loop = at_work(tmp_path)
    same = [bound_to(loop.ctx, judge(loop.ctx, shell("make", name))) for name in "ab"]
    assert same[0] == same[1]
    assert bound_to(loop.ctx, judge(loop.ctx, shell("make -n"))) != same[0]
    loop.ctx.judge.bundle = bundle(tmp_path, ShellExec={"blocked_commands": ("rm",)})
    assert bound_to(loop.ctx, judge(loop.ctx, shell("make"))) != same[0]
    assert bound_to(loop.ctx, PreparedCall(shell("make"))) is None


def test_only_a_yes_makes_good_for_a_task_that_asks_nobody(tmp_path: Path) -> None:
    loop = at_work(tmp_path, options=NEVER, policy=bundle(tmp_path, asks=[ASKS]))
    (denied,) = prepare_calls(loop.ctx, [shell("make")])
    for answer in (None, ApprovalAnswer(approved=False, reason="so"), ApprovalAnswer(approved=True, reason="so")):
        asked = ask_after_all(denied._replace(answer=answer and answer.to_record("c", "appr")))
        approved = answer is not None and answer.approved
        assert ((asked.refusal is None), asked.needs_approval) == (approved, approved)


def test_a_call_is_judged_anew_with_what_it_really_finds(tmp_path: Path) -> None:
    path = tmp_path / "a"
    loop = at_work(tmp_path)
    (run,) = prepare_calls(loop.ctx, [write(path, "x")])
    path.write_text("by somebody else")
    run = judge_again(loop.ctx, run)
    assert run.renewed
    assert run.effect.intent is not None
    assert run.effect.intent["before"] == sha256_hex(b"by somebody else")
    assert list(run.effect.baselines) == [str(path)]
    loop.ctx.judge.bundle = bundle(tmp_path, without=["File.Write"])
    run = judge_again(loop.ctx, run)
    assert run.refusal is not None
    assert run.effect == NO_EFFECT


def test_what_a_person_wrote_is_judged_as_it_is(tmp_path: Path) -> None:
    loop = at_work(tmp_path)
    made = ToolCall("c", "RunCommand", {"command": "make"}, "cut")
    run = judge(loop.ctx, made)
    run = edit(loop.ctx, run, {"command": "ls"})
    assert (run.call, run.edited, run.refusal) == (shell("ls", "c"), True, None)
    run = edit(loop.ctx, run, {})
    assert run.refusal is not None


def test_the_files_of_a_request_are_judged_as_files(tmp_path: Path) -> None:
    """Each by its own capability: the strictest decision counts. A request without files needs none of them."""
    limits = {"url": "https://example.com/"}
    policy = bundle(tmp_path, asks=["File.Write"], FileRead={"blocked_paths": (str(tmp_path / "secret"),)})
    loop = at_work(tmp_path, policy=policy)
    assert judge(loop.ctx, call("HttpRequest", **limits)).refusal is None
    assert judge(loop.ctx, call("HttpRequest", **limits, bodyFile="plain")).may_act
    refusal = judge(loop.ctx, call("HttpRequest", **limits, bodyFile="secret")).refusal
    assert refusal is not None
    assert refusal.message.endswith(f"(capabilities[File.Read].blockedPaths: {tmp_path}/secret)")
    run = judge(loop.ctx, call("HttpRequest", **limits, bodyFile="plain", saveTo="a/../answer"))
    assert (run.needs_approval, run.refusal, run.paths) == (True, None, (f"{tmp_path}/plain", f"{tmp_path}/answer"))
    assert run.decision is not None
    assert run.decision.capability == "File.Write"
    sent = request_for(loop.ctx, run)
    assert (sent.capability, set(sent.also)) == ("Network.Http", {"File.Read", "File.Write"})
    assert (sent.arguments["bodyFile"], sent.arguments["saveTo"]) == (f"{tmp_path}/plain", f"{tmp_path}/answer")
    assert sent.also["File.Read"].blocked_paths == (str(tmp_path / "secret"),)
    loop.ctx.judge.bundle = bundle(tmp_path, without=["File.Read", "File.Write"])
    assert "HttpRequest" in [spec.name for spec in loop.ctx.judge.offered_tools()]
    refusal = judge(loop.ctx, call("HttpRequest", **limits, saveTo="answer")).refusal
    assert refusal is not None
    assert refusal.code == "CAPABILITY_DENIED"
    for unusable in ("", None, 5, "a\0b"):
        refusal = judge(loop.ctx, call("HttpRequest", **limits, saveTo=unusable)).refusal
        assert refusal is not None
        assert refusal.code == "INVALID_REQUEST"


def test_an_approval_of_a_request_is_for_its_files_in_their_places(tmp_path: Path) -> None:
    loop = at_work(tmp_path, policy=bundle(tmp_path, asks=["File.Write"]))
    bound = set()
    each: tuple[dict[str, str], ...] = (
        {},
        {"saveTo": "a"},
        {"saveTo": "b"},
        {"bodyFile": "a"},
        {"bodyFile": "a", "saveTo": "b"},
    )
    for files in each:
        run = judge(loop.ctx, call("HttpRequest", "c", url="https://example.com/", **files))
        assert run.facts is not None
        bound.add((bound_to(loop.ctx, run), canonical_form(run.facts, "posix")))
    assert len(bound) == len({one for one, _ in bound}) == len({one for _, one in bound}) == 5


def test_a_request_carries_the_scope_that_the_bundle_gives(tmp_path: Path) -> None:
    policy = bundle(tmp_path, FileRead={"max_file_size_bytes": 7, "max_output_bytes": 9, "blocked_paths": ("/x",)})
    loop = at_work(tmp_path, policy=policy)
    loop.ctx.step_id = "st"
    request = request_for(loop.ctx, PreparedCall(read(tmp_path / "a", "c"), TOOLS["ReadFile"]))
    assert request[:7] == ("ReadFile", {"path": str(tmp_path / "a")}, "s", "t", "st", "c", "File.Read")
    assert request.constraints == ToolConstraints(7, 9, (str(tmp_path),), ("/x",))
    url = call("HttpRequest", url="https://example.com/")
    network = request_for(loop.ctx, PreparedCall(url, TOOLS["HttpRequest"])).constraints
    assert network.allowed_domains == ("example.com",)
    loop.ctx.judge.bundle = bundle(tmp_path, without=["File.Read"])
    assert request_for(loop.ctx, PreparedCall(read("/a"), TOOLS["ReadFile"])).constraints == ToolConstraints()


# The start on record


async def test_a_start_that_cannot_be_recorded_did_not_happen(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    loop = await died(tmp_path, shell("make", "c"), disk=disk)
    loop.ctx.state.open_call("c").started = False
    disk.calls.faults = Faults(fail_call=disk.calls.count + 1, persistently=True)
    with pytest.raises(CheckpointWriteFailed):
        record_start(loop.ctx, PreparedCall(shell("make", "c")))
    assert not open_calls(loop)[0].started


@pytest.mark.parametrize("renewed", [True, False])
async def test_a_renewed_intent_stands_in_the_row_of_the_start(tmp_path: Path, *, renewed: bool) -> None:
    path = tmp_path / "a"
    loop = await died(tmp_path, write(path, "x", "c"))
    recorded = open_calls(loop)[0].intent
    path.write_text("found")
    (prepared,) = prepare_calls(loop.ctx, [write(path, "y", "c")])
    if renewed:
        prepared = judge_again(loop.ctx, prepared)
    record_start(loop.ctx, prepared)
    intent = open_calls(loop)[0].intent
    assert (intent == recorded) != renewed
    assert open_calls(loop)[0].started


async def test_the_tools_of_a_session_may_change(tmp_path: Path) -> None:
    loop = at_work(tmp_path)
    heads = []
    loop.ctx.conversation.make_head = lambda judge, _: " ".join(sorted(judge.tools.names)).encode()
    loop.ctx.judge.tools = Registry()
    refused = judge(loop.ctx, shell("make")).refusal
    assert refused is not None
    for _ in range(2):
        await loop.ctx.refresh_tools()
        heads.append(loop.ctx.conversation.head)
    assert heads[0] is heads[1]
    assert b"RunCommand" in heads[0]
    assert judge(loop.ctx, shell("make")).refusal is None
