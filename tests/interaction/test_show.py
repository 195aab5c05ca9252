"""Sessions as they are listed and shown: `sessions`, `show`, and ListSessions and GetTranscript of `serve`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.process import call, gateway, say, shell, use

if TYPE_CHECKING:
    from tests.support.process import Host
    from tests.support.serve_process import Servers

LONG = "echo line; " * 10


def worked(host: Host, session_id: str = "s", prompt: str = "Do it.\nNow.", *options: str) -> None:
    """A session that has ended: a read, a command that fails, and a call that policy denies."""
    (host.workspace / "a.txt").write_text("hello\n")
    denied = call("ReadFile", path="/etc/shadow")
    work = use(call("ReadFile", path=str(host.workspace / "a.txt")), shell(f"{LONG} exit 3"), denied)
    with gateway(work, say("Done \x1b[2J.")) as model:
        options = ("--gateway", model.url, "--session-id", session_id, "--output", "json", *options)
        assert host.run("run", prompt, "--policy", host.policy(), *options).code == 0


def shown(host: Host, *arguments: str) -> dict[str, Any]:
    outcome = host.run("show", *arguments, "--output", "json")
    assert outcome.code == 0, outcome.stderr
    value = json.loads(outcome.stdout)
    assert isinstance(value, dict)
    return value


def test_a_session_is_shown_for_a_person(host: Host) -> None:
    worked(host)
    outcome = host.run("show", "s")
    assert (outcome.code, outcome.stderr) == (0, "")
    lines = outcome.text.splitlines()
    assert lines[0].startswith("s  completed, 2 steps, ")
    assert "user: Do it." in lines
    assert "step 1" in lines
    assert any(line.startswith("  RunCommand ") and line.endswith(" — exit code 3") for line in lines)
    assert any("DENIED by " in line for line in lines)
    assert "    [… 7 more lines; --step N shows all]" in lines
    assert "model: Done \\x1b[2J." in lines, "nothing of it steers the terminal"
    whole = host.run("show", "s", "--step", "1").text
    assert whole.count("    line\n") == 10
    assert "step 2" not in whole


def test_a_program_reads_the_same(host: Host) -> None:
    worked(host)
    row = shown(host, "s")
    assert (row["title"], row["status"], row["stepCount"], row["resumable"]) == ("Do it.", "TASK_COMPLETED", 2, False)
    calls = [item for item in row["items"] if item["kind"] == "call"]
    assert [(item["toolName"], item["status"], item.get("exitCode")) for item in calls] == [
        ("ReadFile", "succeeded", None), ("RunCommand", "succeeded", 3), ("ReadFile", "denied", None),
    ]  # fmt: skip
    assert calls[0]["output"] == "hello\n"
    assert (calls[2]["code"], calls[2]["decision"]) == ("CAPABILITY_DENIED", "DENIED")
    assert [message["role"] for message in row["messages"]] == [
        "system",
        "user",
        "assistant",
        *["tool"] * 3,
        "assistant",
    ]
    assert [item["mark"] for item in row["items"] if item["kind"] == "mark"] == ["task_completed", "session_completed"]


def test_a_crash_and_its_resume_are_marked(host: Host) -> None:
    with gateway(use(shell("echo model >> effects; kill -9 $PPID; sleep 60")), say("Done.")) as model:
        killed = host.task(model.url, "--session-id", "s")
        assert killed.code == -9
        assert shown(host, "s")["resumable"]
        assert host.resume("s").code == 0
    marks = [item["mark"] for item in shown(host, "s")["items"] if item["kind"] == "mark"]
    assert marks == ["crashed", "session_resumed", "task_completed", "session_completed"]


def test_a_task_that_said_its_end_has_not_crashed(host: Host) -> None:
    with gateway(say(""), say(""), say("Done.")) as model:
        assert host.task(model.url, "--session-id", "s").result["reason"] == "LLM_EMPTY_ANSWER"
        assert host.resume("s").code == 0
    items = shown(host, "s")["items"]
    assert [item["text"] for item in items if item["kind"] == "message"][1:] == ["", "", "Done."]
    assert "step 3\n" in host.run("show", "s").text
    marks = [item["mark"] for item in items if item["kind"] == "mark"]
    assert marks == ["task_failed", "session_resumed", "task_completed", "session_completed"]


@pytest.mark.many_rows(1)
@pytest.mark.parametrize("arguments", [("nope",), ("s", "--step", "9"), ("../x",)])
def test_what_is_not_there_is_one_clear_line(host: Host, arguments: tuple[str, ...]) -> None:
    worked(host)
    outcome = host.run("show", *arguments)
    assert outcome.code == 2
    assert "Traceback" not in outcome.error


def test_the_list_can_be_searched(host: Host) -> None:
    worked(host, "one", "Mend the parser.")
    worked(host, "two", "Write a page.\nAbout the parser.")
    found = json.loads(host.run("sessions", "--search", "PARSER", "--output", "json").stdout)
    assert [(row["sessionId"], row["title"]) for row in found] == [
        ("two", "Write a page."),
        ("one", "Mend the parser."),
    ]
    (row,) = json.loads(host.run("sessions", "--search", "page", "--output", "json").stdout)
    assert row["totalTokens"] > 0
    as_json = ("--output", "json")
    assert host.run("sessions", "list", *as_json).text == host.run("sessions", *as_json).text
    assert host.run("sessions", "list", "--search", "qq").text == "none of 2 sessions has 'qq' in it\n"
    empty = ("--state-dir", host.root / "empty")
    assert host.run("sessions", "--search", "qq", *empty).text == f"no sessions under {host.root / 'empty'}\n"


def test_a_client_lists_sessions_before_it_has_one(servers: Servers) -> None:
    worked(servers.host, "one", "First.")
    worked(servers.host, "two", "Second.")
    _, client = servers.client("http://127.0.0.1:1")
    page = client.call("ListSessions", limit=1)
    assert [row["sessionId"] for row in page["sessions"]] == ["two"]
    rest = client.call("ListSessions", limit=1, cursor=page["nextCursor"])
    assert ([row["sessionId"] for row in rest["sessions"]], rest.get("nextCursor")) == (["one"], None)
    assert client.call("ListSessions", search="first")["sessions"][0]["title"] == "First."
    items, cursor = [], "0"
    while True:
        page = client.call("GetTranscript", sessionId="one", cursor=cursor, limit=2)
        items += page["items"]
        if "nextCursor" not in page:
            break
        cursor = page["nextCursor"]
    assert items == client.call("GetTranscript", sessionId="one")["items"]
    assert [item["kind"] for item in items] == ["message", *["call"] * 3, "message", "mark", "mark"]


def test_sessions_of_others_are_not_found(servers: Servers) -> None:
    worked(servers.host, "one", "First.")  # which is of the user `local`
    with gateway(say("Done.")) as model:
        serve, client = servers.session(model.url)
        client.task()
        client.event("task_completed")
        mine = client.call("ListSessions")["sessions"]
        assert [row["sessionId"] for row in mine] == [client.session_id]
        items = client.ask("GetTranscript")["items"]
        assert [item.get("role") for item in items[:2]] == ["user", "assistant"]
        assert client.refusal("GetTranscript", sessionId="one").code == -32001
        assert client.refusal("GetTranscript", sessionId="nope").code == -32001
        assert client.refusal("GetTranscript", sessionId=client.session_id, cursor="x").code == -32602
        client.call("Shutdown")
        serve.ended_well()
