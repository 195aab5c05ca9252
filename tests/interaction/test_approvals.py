"""Approvals with somebody to give them: how far they reach, and what a process that ends in between leaves (AH 10).

Each session runs in this process, with the gate as the only part that is the test's own. "Cut" is the end by force: the
session is left as after a crash.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.events import EventType
from agent_host.host.opening import SessionOpener
from agent_host.services.session import NewSession
from state.file_session import FileSession
from state.file_store import FileCheckpointStore
from state.records import JournalRecord, fields_of, kind_of
from tests.support.person import SESSION, Person, drive, resolved_options
from tests.support.process import Host, gateway, say, shell, use

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.approval import ApprovalAnswer, ApprovalRequest
    from agent_host.events.emitter import Event
    from agent_host.session.opening import ResolvedOptions
    from tests.support.person import Word

RULES = [{"approvalRuleId": "shell", "title": "Run", "description": "Runs a command."}]
EFFECT = shell("echo ran >> effects")
DOWN = {"status": 500, "times": "always"}


class Silent(Person):
    """Says nothing; `ready` once `questions` were asked and `others` calls have ended."""

    def __init__(self, questions: int, others: int) -> None:
        super().__init__("silent")
        self._waits_for = (questions, others)
        self._ended = 0
        self.ready = asyncio.Event()

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        self.asked.append(request)
        self._look()
        return await super().answer()

    def take(self, event: Event) -> None:
        self._ended += event.event_type == EventType.TOOL_COMPLETED
        self._look()

    def flush(self) -> None:
        pass

    def _look(self) -> None:
        if (len(self.asked), self._ended) == self._waits_for:
            self.ready.set()


class Desk:
    """A machine, and somebody at it."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.ask_for_commands()

    def ask_for_commands(self, **changes: Any) -> None:
        """The policy from now on: commands need an approval, files in the workspace do not."""
        self.host.policy(**{"grants": self.shell(requiresApproval=True), "approvalRules": RULES, **changes})

    def allow_commands(self, **changes: Any) -> None:
        self.host.policy(**changes)

    def shell(self, **entry: Any) -> dict[str, Any]:
        return {"Shell.Exec": {"approvalRuleId": "shell", **entry}}

    def resolved_options(self, url: str) -> ResolvedOptions:
        policy = str(self.host.root / "policy.json")
        return resolved_options(url, policy, workspace=str(self.host.workspace), state_dir=str(self.host.state))

    async def task(self, url: str, word: Word, prompt: str | None = "Do it.") -> tuple[dict[str, Any], Person]:
        """One task, or a resume, with a person who says `word`; the result object and what the person was asked."""
        person = Person(word)
        return dict((await drive(self.resolved_options(url), prompt, person)).details), person

    async def cut_when_asked(
        self, url: str, prompt: str | None = "Do it.", *, questions: int = 1, others: int = 0
    ) -> Person:
        """Run until somebody was asked and the other calls are done, and end by force."""
        person = Silent(questions, others)
        running = asyncio.create_task(drive(self.resolved_options(url), prompt, person, [person]))
        async with asyncio.timeout(30):
            await person.ready.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return person

    @property
    def effects(self) -> int:
        path = self.host.workspace / "effects"
        return path.read_text().count("ran") if path.exists() else 0

    def payloads(self, kind: str) -> list[dict[str, Any]]:
        return [event["payload"] for event in self.host.event_log(SESSION) if event["eventType"] == kind]

    def ids_asked(self) -> list[str]:
        return [payload["approvalId"] for payload in self.payloads("approval_requested")]


@pytest.fixture
def desk(host: Host, monkeypatch: pytest.MonkeyPatch) -> Desk:
    for name, value in host.environment().items():
        monkeypatch.setenv(name, value)
    return Desk(host)


def statuses(result: dict[str, Any]) -> list[tuple[str, str | None]]:
    return [(call["status"], call.get("code")) for call in result["toolCalls"]]


# How far an approval reaches


@pytest.mark.parametrize(("word", "times"), [("once", 3), ("task", 1), ("session", 1)])
async def test_the_same_call_again(desk: Desk, word: Word, times: int) -> None:
    with gateway(use(EFFECT), use(EFFECT), use(EFFECT), say("Done.")) as model:
        result, person = await desk.task(model.url, word)
    assert (statuses(result), desk.effects) == ([("succeeded", None)] * 3, 3)
    assert len(person.asked) == times
    granted = [payload.get("grantedBy") for payload in desk.payloads("tool_requested")]
    ids = desk.ids_asked()
    assert len(set(ids)) == len(ids) == times
    assert granted == ([None] * 3 if word == "once" else [None, ids[0], ids[0]])
    assert [payload["scope"] for payload in desk.payloads("approval_resolved")] == [word] * times


async def test_another_call_is_asked_for(desk: Desk) -> None:
    other = shell("echo ran >> effects; true")
    with gateway(use(EFFECT), use(other), say("Done.")) as model:
        _, person = await desk.task(model.url, "session")
    assert [request.arguments["command"] for request in person.asked] == [
        call["arguments"]["command"] for call in (EFFECT, other)
    ]


async def test_a_denial_reaches_no_other_call(desk: Desk) -> None:
    with gateway(use(EFFECT), use(EFFECT), say("Done.")) as model:
        result, person = await desk.task(model.url, "no")
        (answer,) = model.results()
    assert statuses(result) == [("denied", "APPROVAL_DENIED")] * 2
    assert (len(person.asked), desk.effects, result["deniedApprovals"]) == (2, 0, [])
    assert answer.text == "APPROVAL_DENIED: not today"


@pytest.mark.parametrize(("word", "times"), [("task", 2), ("session", 1)])
async def test_the_next_task_of_the_session(desk: Desk, word: Word, times: int) -> None:
    person = Person(word)
    with gateway(use(EFFECT), say("Done."), use(EFFECT), say("Done.")) as model:
        start = desk.resolved_options(model.url)
        opener = SessionOpener(start, gate=lambda _: person, watch=lambda _: [])
        session = (await opener.create(NewSession("u", "t", "ci"))).session
        for number in (1, 2):
            session.start_task(f"task-{number}", "Do it.", max_steps=9)
            end = await session.tasks.await_end()
        await session.conclude(end)
    assert (len(person.asked), desk.effects) == (times, 2)


async def test_a_granted_call_is_judged_by_policy_all_the_same(desk: Desk) -> None:
    with gateway(use(EFFECT), DOWN) as model:
        await desk.task(model.url, "session")
    desk.ask_for_commands(grants=desk.shell(requiresApproval=True, blockedCommands=["echo"]))
    with gateway(use(EFFECT), use(EFFECT), say("Done.")) as model:
        result, person = await desk.task(model.url, "no", prompt=None)
    assert statuses(result) == [("succeeded", None), ("denied", "CAPABILITY_DENIED")]
    assert (person.asked, desk.effects) == ([], 1)


@pytest.mark.parametrize(("version", "times"), [("test.1", 0), ("test.2", 1)])
async def test_a_grant_outlives_the_process_and_not_the_bundle(desk: Desk, version: str, times: int) -> None:
    with gateway(use(EFFECT), DOWN) as model:
        _, first = await desk.task(model.url, "task")
    (grant,) = FileCheckpointStore(str(desk.host.state)).load(SESSION).grants
    (asked,) = first.asked
    assert str(grant.granted_at).endswith("Z")
    assert re.fullmatch("[0-9a-f]{64}", str(grant.action_hash))
    assert fields_of(grant._replace(granted_at=None, action_hash=None)) == {
        "approvalId": asked.approval_id,
        "scope": "task",
        "toolName": "RunCommand",
        "capability": "Shell.Exec",
        "action": asked.action_summary,
        "policyBundleVersion": "test.1",
        "taskId": asked.task_id,
    }
    desk.ask_for_commands(policyBundleVersion=version)
    with gateway(use(EFFECT), use(EFFECT), say("Done.")) as model:
        _, person = await desk.task(model.url, "once", prompt=None)
    assert (len(person.asked), desk.effects) == (times, 2)


# What a process that is cut off leaves


def pending(desk: Desk) -> list[dict[str, Any]]:
    """One call that waits, between two that need nobody."""
    notes = [desk.host.workspace / name for name in ("first.txt", "last.txt")]
    first, last = (
        {"name": "WriteFile", "arguments": {"path": str(path), "content": "by the model\n"}} for path in notes
    )
    return [first, EFFECT, last]


def written_over(desk: Desk) -> list[Path]:
    """The files of the siblings, changed: a call that ran twice would change them back."""
    notes = [desk.host.workspace / name for name in ("first.txt", "last.txt")]
    for note in notes:
        assert note.read_text() == "by the model\n"
        note.write_text("by hand\n")
    return notes


async def test_an_open_question_is_asked_again_and_the_rest_is_done(desk: Desk) -> None:
    with gateway(use(*pending(desk)), say("Done.")) as model:
        first = await desk.cut_when_asked(model.url, others=2)
        notes = written_over(desk)
        second = await desk.cut_when_asked(model.url, prompt=None)
        result, third = await desk.task(model.url, "once", prompt=None)
    assert statuses(result) == [("succeeded", None)] * 3
    assert desk.effects == 1
    assert [note.read_text() for note in notes] == ["by hand\n"] * 2
    assert first.asked == second.asked == third.asked
    assert desk.ids_asked() == [first.asked[0].approval_id] * 3
    assert [payload["approvalId"] for payload in desk.payloads("approval_resolved")] == [first.asked[0].approval_id]


async def test_an_answer_that_came_late_is_no(desk: Desk) -> None:
    with gateway(use(*pending(desk)), say("Done.")) as model:
        await desk.cut_when_asked(model.url, others=2)
        result, _ = await desk.task(model.url, "no", prompt=None)
    assert statuses(result) == [("succeeded", None), ("denied", "APPROVAL_DENIED"), ("succeeded", None)]
    assert desk.effects == 0


class Order:
    """What the store was asked to do, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []
        append, sync = FileSession.append, FileSession.sync

        def appended(store: FileSession, record: JournalRecord) -> None:
            self.done.append(kind_of(record))
            append(store, record)

        def synced(store: FileSession) -> None:
            self.done.append("sync")
            sync(store)

        monkeypatch.setattr(FileSession, "append", appended)
        monkeypatch.setattr(FileSession, "sync", synced)

    def step(self) -> list[str]:
        """The first step: from its turn, where it was not on record before, until it is committed."""
        done = self.done[: self.done.index("step_committed") + 1]
        return done[done.index("turn") :] if "turn" in done else done


@pytest.mark.parametrize(
    ("word", "records"),
    [
        ("no", ["turn", "sync", "approval", "call_finished", "step_committed"]),
        ("once", ["turn", "sync", "approval", "call_started", "sync", "call_finished", "step_committed"]),
        ("task", ["turn", "sync", "grant", "approval", "call_started", "sync", "call_finished", "step_committed"]),
    ],
)
async def test_an_answer_is_durable_with_the_start_that_follows(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, word: Word, records: list[str]
) -> None:
    order = Order(monkeypatch)
    with gateway(use(EFFECT), say("Done.")) as model:
        await desk.task(model.url, word)
    assert order.step() == records


async def test_the_start_of_a_granted_call_is_synced_too(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    order = Order(monkeypatch)
    with gateway(use(EFFECT), use(EFFECT), say("Done.")) as model:
        await desk.task(model.url, "session")
    second = order.done[order.done.index("step_committed") + 2 :]
    assert second[:4] == ["turn", "sync", "call_started", "sync"]


async def test_a_call_that_policy_allows_by_now_runs(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its start is synced all the same: a resume after that takes a missing start for a proof."""
    with gateway(use(EFFECT), say("Done.")) as model:
        await desk.cut_when_asked(model.url)
        desk.allow_commands()
        order = Order(monkeypatch)
        result, person = await desk.task(model.url, "no", prompt=None)
    assert (statuses(result), person.asked, desk.effects) == ([("succeeded", None)], [], 1)
    assert order.step() == ["session_status", "call_started", "sync", "call_finished", "step_committed"]


async def test_a_call_that_policy_denies_by_now_does_not(desk: Desk) -> None:
    with gateway(use(EFFECT), say("Done.")) as model:
        await desk.cut_when_asked(model.url)
        desk.ask_for_commands(grants=desk.shell(blockedCommands=["echo"], requiresApproval=True))
        result, person = await desk.task(model.url, "once", prompt=None)
    assert (statuses(result), person.asked, desk.effects) == ([("denied", "CAPABILITY_DENIED")], [], 0)


async def test_two_that_wait_have_an_id_each(desk: Desk) -> None:
    with gateway(use(EFFECT, EFFECT), say("Done.")) as model:
        first = await desk.cut_when_asked(model.url, questions=2)
        result, second = await desk.task(model.url, "once", prompt=None)
    assert len({request.approval_id for request in first.asked}) == 2
    assert first.asked == second.asked
    assert (statuses(result), desk.effects) == ([("succeeded", None)] * 2, 2)
