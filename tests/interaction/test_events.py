"""What observers of real sessions are told: every event in its shape (`tests/support/process.py` looks at each)."""

from __future__ import annotations

import hashlib
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.events import LIVE_ONLY, EventType
from agent_host.events.payloads import AUDIT_EVENTS, TELEMETRY_EVENTS, AuditRecords, telemetry_line
from agent_host.testing.services import MockServices
from tests.support.backends import run, services_at
from tests.support.person import SESSION, Person, drive, resolved_options
from tests.support.process import Host, call, gateway, say, shell, use

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.events.emitter import Event


@pytest.fixture
def asking(host: Host) -> Path:
    """A policy under which commands need an approval."""
    grants = {"Shell.Exec": {"requiresApproval": True}}
    return host.policy(grants=grants)


def test_a_session_with_a_bit_of_everything(host: Host, asking: Path) -> None:
    (host.workspace / "a.txt").write_text("hello")
    work = use(
        call("ReadFile", path=str(host.workspace / "a.txt")),
        shell("true"),
        call("NoSuchTool"),
        call("ReadFile", path=str(host.workspace / "missing")),
    )
    with gateway(
        {"status": 503}, work, *[use(call("ReadFile", path=str(host.workspace / "a.txt")))] * 3, say("Done.")
    ) as served:
        options = ["--policy", str(asking), "--session-id", "s", "--max-steps", "5"]
        outcome = host.run("run", "Do it.", "--gateway", served.url, "--output", "jsonl", *options)
    told = {event["eventType"] for event in outcome.events}
    assert told == {
        "session_started", "session_paused", "task_started", "task_completed", "step_started", "step_completed",
        "step_limit_approaching", "text_chunk", "llm_request_started", "llm_request_completed", "llm_retry",
        "tool_requested", "tool_completed", "approval_requested", "approval_resolved",
    }  # fmt: skip
    logged = host.event_log("s")
    assert {event["eventType"] for event in logged} == told - LIVE_ONLY
    ended = {event["payload"]["toolCallId"]: event for event in logged if event["eventType"] == "tool_completed"}
    for event in logged:
        if event["eventType"] == "tool_requested":
            payload = event["payload"]
            ran = ended[payload["toolCallId"]]["payload"]
            assert ("startedAt" in ran) == (ran["status"] == "succeeded" or ran["toolName"] == "ReadFile")
            if "startedAt" in ran:
                assert event["timestamp"] <= ran["startedAt"] <= ended[payload["toolCallId"]]["timestamp"]
            assert len(payload["argumentsSha256"]) == 64
            assert ("riskLevel" in payload) == (payload["toolName"] != "NoSuchTool")


def test_a_session_that_is_paused_resumed_and_fails(host: Host) -> None:
    with gateway(use(shell("true")), {"status": 500, "times": "always"}) as served:
        paused = host.task(served.url, "--session-id", "s", policy=host.policy())
    assert paused.code == 3
    with gateway(say("not asked for"), {"status": 401, "times": "always"}) as served:
        assert host.resume("s", "--gateway", served.url).code == 1
    told = [event["eventType"] for event in host.event_log("s")]
    assert {"session_paused", "session_resumed", "task_failed"} <= set(told)


class Observer:
    """Takes what the services would get."""

    def __init__(self) -> None:
        self.audit: list[bytes] = []
        self.telemetry: list[bytes] = []
        self._records = AuditRecords()

    def take(self, event: Event) -> None:
        if event.event_type in AUDIT_EVENTS and (line := self._records(event)) is not None:
            self.audit.append(line)
        if event.event_type in TELEMETRY_EVENTS:
            self.telemetry.append(telemetry_line(event))

    def flush(self) -> None:
        pass


async def test_the_services_get_records_and_no_contents_from_a_real_session(host: Host, asking: Path) -> None:
    command = "echo the-marker-of-a-user > note.txt"
    observer = Observer()
    with gateway(use(shell(command)), use(shell(command)), say("the-words-of-a-model")) as served:
        who = resolved_options(served.url, str(asking), workspace=str(host.workspace), state_dir=str(host.state))
        finished = await drive(who, "do the-marker-of-a-user", Person("session"), [observer])
    assert finished.details["status"] == "TASK_COMPLETED"
    everything = b"".join(observer.telemetry)
    for content in (b"the-marker-of-a-user", b"the-words-of-a-model", str(host.workspace).encode(), b"note.txt"):
        assert content not in everything
    records = [json.loads(line) for line in observer.audit]
    first, second = (record["payload"] for record in records if record["eventType"] == EventType.TOOL_COMPLETED)
    assert first["params"]["summary"] == command
    assert first["result"].items() >= {"ok": True, "status": "succeeded"}.items()
    assert first["policy"].items() >= {"decision": "APPROVAL_REQUIRED", "approved": True}.items()
    assert first["policy"]["approval_scope"] == second["policy"]["approval_scope"] == "session"
    assert first["policy"]["approval_id"] == second["policy"]["approval_id"]
    assert first["params"]["sha256"] == second["params"]["sha256"]
    (output,) = {message["content"] for message in host.history(SESSION) if message.get("toolCallId")}
    assert first["hashes"]["output_sha256"] == hashlib.sha256(output.encode()).hexdigest()
    assert first["ts_start"] <= first["ts_end"] <= second["ts_start"]


TOKEN = "ghp_aB3dE5fG7hI9jK1lM3nO5pQ7rS9tU1vW3xY5"
FAILS = f"import sys; print('x' * 20_000); sys.stderr.write('wrong {TOKEN} ' + 'e' * 5000); sys.exit(3)"


def test_a_program_is_told_with_its_exit_code_its_stderr_and_what_is_stored(host: Host) -> None:
    """Also where the event's part of the output ends before stderr (NT); and the audit's record of it (SK 7)."""
    with (host.root / "user.toml").open("a") as file:
        file.write(f"[[native.exec]]\ncommand = {json.dumps(sys.executable)}\n")
    calls = [
        call("cp__exec", command=sys.executable, args=["-c", FAILS]),
        call("cp__exec", command="/bin/sleep", args=["60"], timeout_ms=100),
        call("cp__fetch", url="http://127.0.0.1:9/x", method="POST"),
    ]
    services = MockServices()
    with services.in_thread(), gateway(use(*calls), say("Done.")) as model:
        options = ["--session-id", "s", "--toolset", "native", "--policy", "full"]
        outcome = run(host, model.url, services_at(services.url, "AUDIT"), *options)
    assert [one.get("exitCode") for one in outcome.result["toolCalls"]] == [3, 143, None]
    told: dict[str, list[dict[str, Any]]] = {"tool_requested": [], "tool_completed": []}
    for event in host.event_log("s"):
        told.get(event["eventType"], []).append(event["payload"])
    asked = [payload["summary"] for payload in told["tool_requested"]]
    assert asked[0].startswith(f"{sys.executable} -c ")
    assert asked[1:] == ["/bin/sleep 60", "POST http://127.0.0.1:9/x"]
    assert TOKEN not in json.dumps(told)
    failed, slept, _ = sorted(told["tool_completed"], key=lambda payload: str(payload["toolCallId"]))
    assert (failed["exitCode"], slept["exitCode"], "stderr" in slept) == (3, 143, False)
    assert failed["stderr"].startswith("wrong [redacted:github-token:")
    assert len(failed["stderr"]) == 1024
    records = [event["payload"] for event in services.audit_events if event["eventType"] == "tool_completed"]
    record = next(one for one in records if one["toolCallId"] == failed["toolCallId"])
    ref = record["result"]["stdout_ref"]
    whole = (host.records("s") / ref).read_bytes()
    assert whole == b"x" * 20_000 + b"\n"
    assert record["hashes"]["stdout_sha256"] == hashlib.sha256(whole).hexdigest()
    assert (record["result"]["exit_code"], record["tool"], record["risk"]) == (3, "cp__exec", "medium")
    assert TOKEN not in json.dumps(records)
