"""Killed around an approval and resumed: no question is lost or renamed, no answer asked for twice, no effect twice."""

from __future__ import annotations

import json
import re
import signal
from typing import TYPE_CHECKING, Any

import pytest

from state.blobs import sha256_hex
from state.file_store import FileCheckpointStore
from tests.support.person import SESSION
from tests.support.process import Host, call, eventually, gateway, say, shell, use
from tests.support.records import answered

if TYPE_CHECKING:
    from state.checkpoint import Checkpoint, OpenCall
    from tests.support.person import Word
    from tests.support.process import Gateway, Outcome, Process, Turn

RULES = [{"approvalRuleId": "shell", "title": "Run", "description": "Runs a command."}]
# Of an undisturbed session; test_there_is_no_record_after_the_last_one_that_is_tried holds it to that.
RECORDS = 16
# The first records of a session are the task and the turn. Then a sibling starts while the question is being answered.
TURN, SIBLING_STARTED = 1, 2


def echo(word: str) -> dict[str, Any]:
    return shell(f"echo {word} >> effects")


def mend(*words: str) -> dict[str, Any]:
    return shell("; ".join(f"grep -qx {word} effects || echo {word} >> effects" for word in words))


class Case:
    """One session whose commands need an approval and whose file writes need none."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.note = host.workspace / "note.txt"
        self.approved: tuple[str, ...] = ()
        self.ask()

    def ask(self, **changes: Any) -> None:
        """Commands need an approval from now on."""
        self.host.policy(
            **{
                "grants": {"Shell.Exec": {"requiresApproval": True, "approvalRuleId": "shell"}},
                "approvalRules": RULES,
                **changes,
            }
        )

    @property
    def policy(self) -> str:
        return str(self.host.root / "policy.json")

    def turns(self) -> list[Turn]:
        """Two effects that need an approval, one with a sibling that does not. What was interrupted is looked at."""
        note = call("WriteFile", path=str(self.note), content="by the model\n")
        plan = [
            ([echo("one"), note], [mend("one"), note]),
            ([echo("two"), call("ReadFile", path=str(self.note))], [mend("two")]),
        ]
        turns: list[Turn] = []
        for position, (calls, repair) in enumerate(plan, 1):
            turns.append(use(*calls))
            turns.append(use(*repair, when={"position": position + 1, "last_contains": "TOOL_INTERRUPTED"}))
        return [*turns, say("Done.", expect={"last_role": "user"})]

    def run(self, model: Gateway, *options: str, kill_after: int = 0) -> Outcome:
        self.approved = options
        named = ["--session-id", SESSION, "--policy", self.policy, "--workspace", str(self.host.workspace)]
        return self._start("run", "Do it.", model, *named, *options, kill_after=kill_after).finish()

    def resume(self, model: Gateway, *options: str, kill_after: int = 0) -> Outcome:
        """With what the run was given: approvals of a command line are on no record."""
        return self._start("resume", SESSION, model, *self.approved, *options, kill_after=kill_after).finish()

    def _start(self, command: str, what: str, model: Gateway, *options: str, kill_after: int) -> Process:
        arguments = [command, what, "--gateway", model.url, "--output", "json", *options]
        if not kill_after:
            return self.host.start(*arguments)
        crash = ["--after-record", str(kill_after)]
        return self.host.start(*crash, *arguments, program="agent_host.faults.crash")

    def person(self, model: Gateway, word: Word, prompt: str = "", *, kill_after: int = 0) -> Process:
        """A process with somebody who says `word`; a resume where there is no prompt."""
        arguments = [word, str(kill_after), prompt, model.url, self.policy]
        return self.host.start(*arguments, program="tests.support.person")

    def killed_when_asked(self, model: Gateway, prompt: str = "", *, times: int) -> None:
        """Kill a process that waits for its answer: the question, the `times`th, is told, the siblings are done."""
        process = self.person(model, "silent", prompt)
        eventually(lambda: len(self.asked()) == times and len(self.unanswered()) == 1, f"question {times}")
        process.kill()
        assert process.finish().code == -signal.SIGKILL

    @property
    def on_disk(self) -> Checkpoint:
        return FileCheckpointStore(str(self.host.state)).load(SESSION)

    @property
    def calls(self) -> list[OpenCall]:
        step = self.on_disk.open_step
        return [] if step is None else step.calls

    def unanswered(self) -> list[OpenCall]:
        return [call for call in self.calls if call.result is None]

    def events(self, kind: str) -> list[dict[str, Any]]:
        path = self.host.records(SESSION) / "events.jsonl"
        whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
        found = [json.loads(line) for line in whole.splitlines()]
        return [event["payload"] for event in found if event["eventType"] == kind]

    def asked(self) -> list[str]:
        """The ids of all questions so far, in order."""
        return [payload["approvalId"] for payload in self.events("approval_requested")]

    def check(self, outcome: Outcome) -> None:
        """The end of `turns`, with every effect there once, and every call asked for under one id."""
        assert (outcome.code, outcome.result["text"]) == (0, "Done."), outcome
        assert sorted((self.host.workspace / "effects").read_text().split()) == ["one", "two"]
        assert self.note.read_text() == "by the model\n"
        assert self.host.checkpoints() == []
        ids: dict[str, set[str]] = {}
        for payload in self.events("approval_requested"):
            ids.setdefault(payload["actionSummary"], set()).add(payload["approvalId"])
        assert [len(found) for found in ids.values()] == [1] * len(ids), ids


@pytest.fixture
def case(host: Host) -> Case:
    return Case(host)


def killed(outcome: Outcome) -> None:
    assert outcome.code == -signal.SIGKILL, outcome


# After every record


@pytest.mark.parametrize("record", range(1, RECORDS + 1))
def test_killed_after_each_record(case: Case, record: int) -> None:
    with gateway(*case.turns()) as model:
        killed(case.run(model, "--approve", "shell", kill_after=record))
        left = [call for call in case.unanswered() if call.approval_id is not None and not call.started]
        before = len(case.asked())
        case.check(case.resume(model))
    again = case.asked()[before:]
    # What was answered is not asked again, and what was not is asked under its own id.
    assert [(call.approval_id in again) for call in left] == [answered(call) is None for call in left]


def test_there_is_no_record_after_the_last_one_that_is_tried(case: Case) -> None:
    with gateway(*case.turns()) as model:
        case.check(case.run(model, "--approve", "shell", kill_after=RECORDS + 1))


@pytest.mark.parametrize(
    ("first", "second"), [(1, 1), (1, 3), (1, 4), (2, 1), (2, 3), (3, 1), (3, 2), (4, 2), (8, 2), (8, 3)]
)
def test_killed_again_while_it_recovers(case: Case, first: int, second: int) -> None:
    with gateway(*case.turns()) as model:
        killed(case.run(model, "--approve", "shell", kill_after=first))
        killed(case.resume(model, kill_after=second))
        case.check(case.resume(model))


# A question that was open


def test_the_same_question_in_both_processes(case: Case) -> None:
    """Killed between the question and its answer; what follows has both processes in its run log."""
    with gateway(*case.turns()) as model:
        killed(case.run(model, "--approve", "shell", kill_after=SIBLING_STARTED))
        (left,) = (call for call in case.calls if call.approval_id is not None)
        assert (answered(left), left.started) == (None, False)
        assert case.asked() == [left.approval_id]
        case.check(case.resume(model))
    assert case.asked()[:2] == [left.approval_id] * 2


def test_somebody_who_had_not_answered_yet_is_asked_again(case: Case) -> None:
    """Killed twice while somebody thinks about it. The sibling that needs nobody is done, and done once."""
    with gateway(*case.turns()) as model:
        case.killed_when_asked(model, "Do it.", times=1)
        assert case.note.read_text() == "by the model\n"
        case.note.write_text("by hand\n")
        case.killed_when_asked(model, times=2)
        outcome = case.person(model, "once").finish()
    assert case.note.read_text() == "by hand\n"
    case.note.write_text("by the model\n")
    case.check(outcome)
    ids = case.asked()
    assert ids[:3] == [ids[0]] * 3
    assert len(ids) == 4
    assert [entry["approvalId"] for entry in case.events("approval_resolved")] == [ids[0], ids[3]]


def test_a_call_that_needs_approval_only_after_the_crash(case: Case) -> None:
    """It gets its id when it is first asked for, and keeps it."""
    case.host.policy()
    with gateway(*case.turns()) as model:
        killed(case.run(model, kill_after=TURN))
        assert [call.approval_id for call in case.calls] == [None, None]
        case.ask()
        case.killed_when_asked(model, times=1)
        case.killed_when_asked(model, times=2)
        case.check(case.person(model, "once").finish())
    ids = case.asked()
    assert ids[:3] == [ids[0]] * 3


# An answer that was given


def test_a_recorded_approval_is_used(case: Case) -> None:
    """Whoever is there now would say no, and is not asked."""
    with gateway(use(echo("one")), say("Done.")) as model:
        killed(case.run(model, "--approve", "shell", kill_after=TURN + 1))
        (left,) = case.calls
        assert left.answer is not None
        assert re.fullmatch("[0-9a-f]{64}", left.answer.bound_to or "")
        assert (left.answer.approved, left.answer.scope, left.started) == (True, "once", False)
        assert left.answer.reason == "approved in advance by --approve shell"
        outcome = case.person(model, "no").finish()
    assert [entry["status"] for entry in outcome.result["toolCalls"]] == ["succeeded"]
    assert (case.host.workspace / "effects").read_text() == "one\n"
    assert case.asked() == [left.approval_id]
    assert [entry["decision"] for entry in case.events("approval_resolved")] == ["approved"]


def test_what_a_call_finds_behind_one_that_waited_is_on_record(case: Case) -> None:
    """It was prepared when the file was still there; at its start the deletion before it had been approved and done."""
    draft = case.host.workspace / "draft"
    draft.write_text("old")
    case.ask(grants={"File.Delete": {"requiresApproval": True, "approvalRuleId": "shell"}})
    calls = (call("DeleteFile", path=str(draft)), call("WriteFile", path=str(draft), content="new"))
    with gateway(use(*calls), say("Done.")) as model:
        killed(case.run(model, "--approve", "shell", kill_after=5))
        deleted, written = case.calls
        assert (deleted.status, written.started) == ("succeeded", True)
        assert written.intent is not None
        assert (written.intent["before"], written.intent["after"]) == (None, sha256_hex(b"new"))
        assert case.resume(model).code == 0
        answer = model.results()[1]
    assert answer.text.endswith("before it took effect: the file is as it was")


def test_a_recorded_denial_is_used(case: Case) -> None:
    """Nobody was there. That the resume approves it in advance comes too late for this call."""
    with gateway(use(echo("one")), say("Done.")) as model:
        killed(case.run(model, kill_after=TURN + 1))
        outcome = case.resume(model, "--approve", "shell")
        (answer,) = model.results()
    assert answer.text == "APPROVAL_REQUIRED: it needs an approval, and no approver is present"
    assert outcome.code == 4
    (denied,) = outcome.result["deniedApprovals"]
    assert denied["replay"]["approve"] == "shell"
    assert len(case.asked()) == 1
    assert not (case.host.workspace / "effects").exists()


@pytest.mark.parametrize("allows", [False, True])
def test_what_somebody_has_denied_is_not_run(case: Case, *, allows: bool) -> None:
    """Also where policy would not ask any more."""
    with gateway(use(echo("one")), say("Done.")) as model:
        killed(case.person(model, "no", "Do it.", kill_after=TURN + 1).finish())
        if allows:
            case.host.policy()
        outcome = case.person(model, "once").finish()
        (answer,) = model.results()
    assert answer.text == "APPROVAL_DENIED: not today"
    assert [entry["code"] for entry in outcome.result["toolCalls"]] == ["APPROVAL_DENIED"]
    assert len(case.asked()) == 1
    assert not (case.host.workspace / "effects").exists()


def test_that_nobody_was_there_is_no_denial_once_policy_allows_it(case: Case) -> None:
    with gateway(use(echo("one")), say("Done.")) as model:
        killed(case.run(model, kill_after=TURN + 1))
        case.host.policy()
        outcome = case.resume(model)
    assert (outcome.code, (case.host.workspace / "effects").read_text()) == (0, "one\n")


# An approval with other arguments: records 3 answer, 4 start, 5 result


def test_what_somebody_wrote_instead_is_run_after_a_crash(case: Case) -> None:
    """Whoever is there now would say no, and is not asked."""
    with gateway(use(echo("model")), say("Done.")) as model:
        killed(case.person(model, "edits", "Do it.", kill_after=TURN + 1).finish())
        outcome = case.person(model, "no").finish()
        (answer,) = model.results()
    assert [entry["status"] for entry in outcome.result["toolCalls"]] == ["succeeded"]
    assert (case.host.workspace / "effects").read_text() == "person\n"
    assert '"echo person >> effects"' in answer.text.splitlines()[0]
    assert len(case.asked()) == 1
    assert [entry.get("edited") for entry in case.events("tool_requested")] == [None, True]


@pytest.mark.parametrize("took_effect", [False, True])
def test_the_disk_is_asked_about_what_somebody_wrote_instead(case: Case, *, took_effect: bool) -> None:
    """Killed behind its start: the file that counts is the one it was moved to."""
    case.ask(grants={"File.Write": {"requiresApproval": True, "approvalRuleId": "shell"}})
    written = call("WriteFile", path=str(case.host.workspace / "model.txt"), content="by the model\n")
    moved = case.host.workspace / "person.txt"
    with gateway(use(written), say("Done.")) as model:
        killed(case.person(model, "edits", "Do it.", kill_after=TURN + 2).finish())
        (left,) = case.calls
        assert left.intent is not None
        assert (left.intent["path"], left.intent["after"]) == (str(moved), sha256_hex(b"by the person\n"))
        if took_effect:
            moved.write_text("by the person\n")
        outcome = case.person(model, "no").finish()
        (answer,) = model.results()
    assert [entry["status"] for entry in outcome.result["toolCalls"]] == ["succeeded" if took_effect else "failed"]
    note, _, rest = answer.text.partition("\n")
    assert str(moved) in note
    assert rest.startswith("done:" if took_effect else "TOOL_INTERRUPTED: ")
    assert moved.exists() == took_effect


def test_that_nobody_answered_in_time_is_on_record(case: Case) -> None:
    with gateway(use(echo("one")), say("Done.")) as model:
        killed(case.person(model, "late", "Do it.", kill_after=TURN + 1).finish())
        case.person(model, "once").finish()
        (answer,) = model.results()
    assert answer.text == "APPROVAL_REQUIRED: too late"
    assert len(case.asked()) == len(case.events("approval_timeout")) == 1


# A grant: records 3 grant, 4 answer, 5 start, 6 result, 7 commit, then the same call again


@pytest.mark.parametrize(
    ("word", "record"), [("task", TURN + 1), *(("session", record) for record in range(TURN + 1, 13))]
)
def test_a_grant_survives(case: Case, word: Word, record: int) -> None:
    """Killed after each record from the grant on: whoever is there now would say no, and is not asked."""
    with gateway(use(echo("one")), use(echo("one")), say("Done.")) as model:
        killed(case.person(model, word, "Do it.", kill_after=record).finish())
        assert [grant.scope for grant in case.on_disk.grants] == [word]
        outcome = case.person(model, "no").finish()
    cut = record in (TURN + 3, TURN + 7)  # a start without its result: the kill came before the effect
    codes = [entry.get("code") for entry in outcome.result["toolCalls"]]
    assert sorted(map(str, codes)) == ["None", "TOOL_INTERRUPTED" if cut else "None"]
    assert (case.host.workspace / "effects").read_text() == "one\n" * (1 if cut else 2)
    assert len(set(case.asked())) == len(case.asked()) == 1
    assert {entry["grantedBy"] for entry in case.events("tool_requested") if "grantedBy" in entry} <= set(case.asked())
