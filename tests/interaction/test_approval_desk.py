"""Sessions whose approvals are given at a desk: what the client is told, and what its decisions do (AH 10)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.approval.gate import InAdvance, PendingApprovals
from agent_host.events import EventType
from agent_host.host.opening import SessionOpener
from agent_host.host.sessions import run_headless
from policy.rules import TaskOptions
from state.file_store import FileCheckpointStore
from tests.support.person import SESSION, resolved_options
from tests.support.process import Host, call, gateway, say, shell, use
from tests.support.records import answered

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agent_host.events.emitter import Event
    from agent_host.host.records import Result
    from agent_host.session.lifecycle import LiveSession
    from state.checkpoint import OpenCall

FOREVER, AT_ONCE = 3600.0, 0.01
RULES = [{"approvalRuleId": "ask", "title": "Act", "description": "Does something."}]
EFFECT = shell("echo model >> effects")
Payload = dict[str, Any]
Answers = dict[str, dict[str, Any]]


class Client:
    """Somebody at the desk of one process after another. `answers` maps the start of an actionSummary to a decision;
    what has none waits."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.desk = PendingApprovals(timeout_s=FOREVER)
        self.options = TaskOptions()
        self.answers: Answers = {}
        self.asked: list[Payload] = []
        self.on_event: Callable[[Event], None] = lambda _: None
        self.session: LiveSession | None = None
        self.patch = ""
        self.later: list[asyncio.Task[None]] = []
        self.policy()

    def policy(self, **entries: dict[str, Any]) -> None:
        """Commands and writes need an approval, deletions do not."""
        asks = {"requiresApproval": True, "approvalRuleId": "ask"}
        grants = {"Shell.Exec": asks, "File.Write": asks}
        for name, entry in entries.items():
            grants[name.replace("_", ".")] = {**grants.get(name.replace("_", "."), {}), **entry}
        self.host.policy(grants=grants, approvalRules=RULES)

    def take(self, event: Event) -> None:
        if event.event_type == EventType.APPROVAL_REQUESTED:
            self.asked.append(event.payload)
            summary = event.payload["actionSummary"]
            said = next((said for start, said in self.answers.items() if summary.startswith(start)), None)
            if said is not None:
                self.later.append(asyncio.create_task(self.decide(event.payload["approvalId"], said)))
        self.on_event(event)

    async def decide(self, approval_id: str, said: dict[str, Any]) -> None:
        await self.waits(approval_id)
        assert self.desk.decide(approval_id, **said) == "delivered"

    async def waits(self, *approval_ids: str) -> None:
        """Until the calls wait at the desk, as they do when a client on a pipe hears of them."""
        while not {row["approvalId"] for row in self.desk.rows()}.issuperset(approval_ids):  # noqa: ASYNC110  the desk has no event for it
            await asyncio.sleep(0)

    def flush(self) -> None:
        pass

    async def task(self, url: str, prompt: str | None = "Do it.") -> Result:
        """A task, or a resume, to its end."""
        policy = str(self.host.root / "policy.json")
        start = resolved_options(url, policy, workspace=str(self.host.workspace), state_dir=str(self.host.state))

        def opened(session: LiveSession) -> None:
            self.session = session

        def ended(_: Result) -> None:
            if self.session is not None:
                self.patch = self.session.changes.render()

        async with asyncio.timeout(10):
            opener = SessionOpener(start, gate=lambda _: self.desk, watch=lambda _: [self])
            return await run_headless(opener, start, prompt, on_open=opened, on_end=ended, task_options=self.options)

    def stop_when(self, *, asked: int, done: int, resumable: bool) -> None:
        """Ask the task to stop as soon as so many calls wait and so many are done."""
        ended = 0

        def look(event: Event) -> None:
            nonlocal ended
            ended += event.event_type == EventType.TOOL_COMPLETED
            if (len(self.asked), ended) == (asked, done) and self.session is not None:
                self.later.append(asyncio.create_task(self.stop(self.session, resumable)))

        self.on_event = look

    async def stop(self, session: LiveSession, resumable: bool) -> None:
        await self.waits(*(payload["approvalId"] for payload in self.asked))
        if resumable:
            session.interrupt()
        else:
            session.tasks.cancel(str(session.state()["task"]["taskId"]))

    def file(self, name: str) -> Path:
        return self.host.workspace / name

    def payloads(self, kind: str) -> list[Payload]:
        return [event["payload"] for event in self.host.event_log(SESSION) if event["eventType"] == kind]

    @property
    def open_calls(self) -> list[OpenCall]:
        step = FileCheckpointStore(str(self.host.state)).load(SESSION).open_step
        return [] if step is None else [one for one in step.calls if one.result is None]


@pytest.fixture
def client(host: Host, monkeypatch: pytest.MonkeyPatch) -> Client:
    for name, value in host.environment().items():
        monkeypatch.setenv(name, value)
    return Client(host)


def yes(**arguments: Any) -> dict[str, Any]:
    return {"approved": True, **({"arguments": arguments} if arguments else {})}


NO = {"approved": False, "reason": "not today"}


def write(path: Path, content: str) -> dict[str, Any]:
    return call("WriteFile", path=str(path), content=content)


def statuses(finished: Result) -> list[tuple[str, str | None]]:
    return [(one["status"], one.get("code")) for one in finished.details["toolCalls"]]


# What the client is told


async def test_the_request_says_what_would_happen(client: Client) -> None:
    client.file("a.txt").write_text("old\n")
    client.answers = {"Run": yes(), "Write": NO}
    with gateway(use(EFFECT, write(client.file("a.txt"), "new\n")), say("Done.")) as model:
        finished = await client.task(model.url)
    assert statuses(finished) == [("succeeded", None), ("denied", "APPROVAL_DENIED")]
    run, written = sorted(client.asked, key=lambda payload: str(payload["actionSummary"]))
    assert (run["title"], run["description"]) == ("Act", "Does something.")
    assert run["actionSummary"] == "Run: echo model >> effects"
    assert run["details"]["writes"] == [str(client.file("effects"))]
    assert written["actionSummary"] == "Write: a.txt (+1 −1)"
    assert written["details"]["diff"].endswith("-old\n+new\n")
    assert run["details"]["toolCallId"] != written["details"]["toolCallId"]
    assert client.file("a.txt").read_text() == "old\n"
    assert client.desk.rows() == []


async def test_risk_and_its_reasons(client: Client, tmp_path: Path) -> None:
    client.policy(File_Write={"allowedPaths": [str(tmp_path)]})
    client.answers = {"": NO}
    with gateway(use(shell("./odd")), use(write(tmp_path / "out", "x")), say("Done.")) as model:
        await client.task(model.url)
    assert [(payload["riskLevel"], payload["risks"]) for payload in client.asked] == [
        ("high", ["unknown command: ./odd"]),
        ("high", [f"writes outside the project directory: {tmp_path / 'out'}"]),
    ]


async def test_nobody_answers_in_time(client: Client) -> None:
    client.desk = PendingApprovals(timeout_s=AT_ONCE)
    with gateway(use(EFFECT), say("Done.")) as model:
        finished = await client.task(model.url)
        (answer,) = model.results()
    assert answer.text == "APPROVAL_REQUIRED: approval timed out after 0.01 s"
    assert statuses(finished) == [("denied", "APPROVAL_REQUIRED")]
    (denied,) = finished.details["deniedApprovals"]
    assert denied == {"toolName": "RunCommand", "replay": client.asked[0]["replay"]}
    (told,) = client.payloads("approval_timeout")
    assert (told["approvalId"], told["waitedMs"] >= 10) == (client.asked[0]["approvalId"], True)
    (resolved,) = client.payloads("approval_resolved")
    assert resolved["decision"] == "denied"
    assert not client.file("effects").exists()


async def test_what_was_approved_in_advance_waits_for_nobody(client: Client) -> None:
    client.desk = PendingApprovals(timeout_s=FOREVER, in_advance=InAdvance(frozenset({"RunCommand"})))
    with gateway(use(EFFECT), say("Done.")) as model:
        assert statuses(await client.task(model.url)) == [("succeeded", None)]


# Edited arguments


async def test_a_call_runs_with_the_arguments_of_whoever_approved_it(client: Client) -> None:
    client.answers = {"Run: echo model": yes(command="echo person >> effects")}
    with gateway(use(EFFECT), say("Done.")) as model:
        finished = await client.task(model.url)
        (answer,) = model.results()
    assert client.file("effects").read_text() == "person\n"
    note, _, rest = answer.text.partition("\n")
    assert note.endswith('It was run, or refused, with: {"command":"echo person >> effects"}]')
    assert rest.startswith("Exit code: 0")
    assert statuses(finished) == [("succeeded", None)]
    assert len(client.asked) == 1
    first, second = client.payloads("tool_requested")
    assert (first["summary"], "edited" in first) == ("echo model >> effects", False)
    assert (second["summary"], second["edited"]) == ("echo person >> effects", True)
    assert [payload["edited"] for payload in client.payloads("approval_resolved")] == [True]


async def test_a_grant_is_for_the_edited_form(client: Client) -> None:
    edited = shell("echo person >> effects")
    client.answers = {"Run: echo model": {**yes(**edited["arguments"]), "scope": "session"}}
    with gateway(use(EFFECT), use(edited), use(EFFECT), {"status": 500, "times": "always"}) as model:
        await client.task(model.url)
    assert len(client.asked) == 2  # the model's own form is asked for again, that of the person is not
    grants = FileCheckpointStore(str(client.host.state)).load(SESSION).grants
    assert {grant.action for grant in grants} == {"Run: echo person >> effects"}
    assert client.file("effects").read_text() == "person\n" * 3


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"command": "rm -rf x"}, "CAPABILITY_DENIED"),
        ({"cmd": "ls"}, "INVALID_REQUEST"),
        ({"command": "ls", "timeout": "soon"}, "INVALID_REQUEST"),
    ],
)
async def test_policy_and_the_tool_judge_the_edited_form(client: Client, arguments: dict[str, Any], code: str) -> None:
    client.policy(Shell_Exec={"blockedCommands": ["rm"]})
    client.answers = {"Run": yes(**arguments)}
    with gateway(use(EFFECT), say("Done.")) as model:
        finished = await client.task(model.url)
        (answer,) = model.results()
    assert [one.get("code") for one in finished.details["toolCalls"]] == [code]
    assert answer.text.startswith("[The person who approved this call changed its arguments.")
    assert code in answer.text
    assert not client.file("effects").exists()


async def test_a_call_that_is_moved_to_another_file_goes_behind_the_calls_there(client: Client) -> None:
    """While the call that is moved waits for an earlier one on its first path, that one for its own approval."""
    a, b = client.file("a"), client.file("b")
    client.policy(File_Delete={})
    b.write_text("old\n")
    calls = [write(a, "1\n"), write(a, "2\n"), write(b, "3\n"), call("DeleteFile", path=str(a))]
    client.answers = {
        "Write: b": yes(path=str(a), content="moved\n"),
        "Write: a": yes(),
    }
    with gateway(use(*calls), say("Done.")) as model:
        finished = await client.task(model.url)
    assert statuses(finished) == [("succeeded", None)] * 4
    assert (a.read_text(), b.read_text()) == ("moved\n", "old\n")


async def test_calls_that_are_moved_to_each_others_files(client: Client) -> None:
    a, b = client.file("a"), client.file("b")
    client.answers = {"Write: a": yes(path=str(b), content="first\n"), "Write: b": yes(path=str(a), content="second\n")}
    with gateway(use(write(a, "1\n"), write(b, "2\n")), say("Done.")) as model:
        finished = await client.task(model.url)
    assert statuses(finished) == [("succeeded", None)] * 2
    assert (a.read_text(), b.read_text()) == ("second\n", "first\n")
    assert set(client.patch.splitlines()) >= {"+first", "+second"}


# A stop while somebody thinks


async def test_a_stop_leaves_the_question_open_and_lets_the_others_end(client: Client) -> None:
    note = client.file("note")
    note.write_text("x")
    client.stop_when(asked=1, done=1, resumable=True)
    with gateway(use(EFFECT, call("DeleteFile", path=str(note))), say("Done.")) as model:
        stopped = await client.task(model.url)
        assert (stopped.status, stopped.unfinished) == ("TASK_CANCELLED", True)
        (left,) = client.open_calls
        assert (left.tool_name, answered(left), left.started) == ("RunCommand", None, False)
        assert not note.exists()
        client.on_event = lambda _: None
        client.answers = {"Run": yes()}
        finished = await client.task(model.url, None)
    assert statuses(finished) == [("succeeded", None)] * 2
    assert [payload["approvalId"] for payload in client.asked] == [left.approval_id] * 2
    assert client.file("effects").read_text() == "model\n"


async def test_a_call_behind_an_open_question_stays_open_too(client: Client) -> None:
    note = client.file("note")
    client.stop_when(asked=1, done=0, resumable=True)
    with gateway(use(write(note, "1\n"), call("DeleteFile", path=str(note))), say("Done.")) as model:
        await client.task(model.url)
        assert [one.tool_name for one in client.open_calls] == ["WriteFile", "DeleteFile"]
        client.on_event = lambda _: None
        client.answers = {"Write": yes()}
        finished = await client.task(model.url, None)
    assert statuses(finished) == [("succeeded", None)] * 2
    assert not note.exists()


async def test_a_cancellation_for_good_answers_what_waits(client: Client) -> None:
    client.stop_when(asked=2, done=0, resumable=False)
    with gateway(use(EFFECT, EFFECT), say("Done.")) as model:
        finished = await client.task(model.url)
    assert (finished.status, finished.unfinished) == ("TASK_CANCELLED", False)
    assert statuses(finished) == [("failed", "TOOL_INTERRUPTED")] * 2
    texts = [message["content"] for message in client.host.history(SESSION) if message["role"] == "tool"]
    assert set(texts) == {"TOOL_INTERRUPTED: not started: the task was cancelled before anybody approved it"}
    assert client.desk.rows() == []


# Task options


async def test_a_task_that_wants_to_be_asked_always(client: Client) -> None:
    client.options = TaskOptions("always")
    client.answers = {"Delete": NO}
    note = client.file("note")
    note.write_text("x")
    calls = [call("DeleteFile", path=str(note)), call("ReadFile", path=str(note))]
    with gateway(use(*calls), say("Done.")) as model:
        finished = await client.task(model.url)
    assert statuses(finished) == [("denied", "APPROVAL_DENIED"), ("succeeded", None)]
    assert [payload["riskLevel"] for payload in client.asked] == ["high"]


async def test_a_task_that_asks_nobody(client: Client) -> None:
    client.options = TaskOptions("never")
    with gateway(use(EFFECT), say("Done.")) as model:
        finished = await client.task(model.url)
        (answer,) = model.results()
    assert (statuses(finished), client.asked) == ([("denied", "APPROVAL_REQUIRED")], [])
    assert answer.text == "APPROVAL_REQUIRED: it needs an approval, and this task must not ask for one"
    (denied,) = finished.details["deniedApprovals"]
    assert denied["replay"]["approve"] == "ask"


async def test_a_task_without_the_network(client: Client) -> None:
    client.options = TaskOptions(None, allow_network=False)
    client.answers = {"Run": yes()}
    with gateway(use(shell("curl http://127.0.0.1:9"), EFFECT), say("Done.")) as model:
        finished = await client.task(model.url)
    assert statuses(finished) == [("denied", "CAPABILITY_DENIED"), ("succeeded", None)]
