"""Sessions that have ended, in `serve`: opened again, shown again, removed."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.process import gateway, say, shell, use

if TYPE_CHECKING:
    from tests.support.process import Host
    from tests.support.serve_process import Servers

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell")


def test_an_ended_session_is_opened_again_for_its_next_task(servers: Servers) -> None:
    host = servers.host
    with gateway(use(shell("echo one")), say("One."), say("Two.")) as model:
        assert host.task(model.url, "--session-id", "s").code == 0
        serve, client = servers.client(model.url)
        opened = client.resume("s", replay=True)
        assert opened["resumedFromStep"] == 2
        assert "incompleteTask" not in opened
        client.wait(
            lambda: client.replayed and client.replayed[-1]["method"] == "SessionEvent", "the end of the replay"
        )
        items = [one["params"]["item"] for one in client.replayed if one["method"] == "SessionItem"]
        assert items == client.ask("GetTranscript", limit=500)["items"][: len(items)]
        assert [item["kind"] for item in items].count("call") == 1
        assert client.replayed[-1]["params"]["eventType"] == "replay_finished"
        client.task("b", "And then?")
        client.event("task_completed")
        roles = [item.get("role") for item in client.ask("GetTranscript", limit=500)["items"]]
        assert roles.count("user") == 2
        client.call("Shutdown")
        serve.ended_well()
    assert host.checkpoints() == []


def test_a_replay_comes_before_what_happens_now(servers: Servers) -> None:
    with gateway(use(shell("echo one")), say("One."), say("Two.")) as model:
        serve, client = servers.session(model.url)
        client.task()
        client.event("task_completed")
        client.done()
        serve.ended_well()
        again, other = servers.client(model.url)
        other.resume(client.session_id, replay=True)
        other.task("b", "More.")
        other.event("task_completed")
        shown = [one["params"]["item"]["kind"] for one in other.replayed if one["method"] == "SessionItem"]
        assert {"message", "call"} <= set(shown)
        assert all("Two." not in str(one) for one in other.replayed)
        kinds = ["reply" if "id" in one else "replay" if "replayed" in one["params"] else "live" for one in other.came]
        first = kinds.index("reply")
        assert kinds[: first + len(other.replayed) + 1] == ["reply", *["replay"] * len(other.replayed)]
        assert "live" in kinds
        other.call("Shutdown")
        again.ended_well()


def test_a_replay_that_nobody_asked_to_be_answered_follows_no_other_reply(servers: Servers) -> None:
    host = servers.host
    with gateway(say("One.")) as model:
        assert host.task(model.url, "--session-id", "s").code == 0
        serve, client = servers.client(model.url)
        client.session_id = "s"
        client.notify("ResumeSession", sessionId="s", replay=True)
        client.event("session_resumed")
        assert client.ask("GetSessionState")["sessionId"] == "s"
        client.call("Shutdown")
        serve.ended_well()
        client.done()
    assert client.replayed == []


def test_a_session_is_deleted_once_it_has_ended(servers: Servers) -> None:
    host = servers.host
    with gateway(say("One."), say("Two.")) as model:
        assert host.task(model.url, "--session-id", "over").code == 0
        serve, client = servers.session(model.url)
        held = client.refusal("DeleteSession", sessionId=client.session_id)
        assert held.what == (-32031, "SESSION_HELD", True)
        other_serve, other = servers.client(model.url)
        assert other.refusal("DeleteSession", sessionId=client.session_id).what == (-32031, "SESSION_HELD", True)
        assert other.call("DeleteSession", sessionId="over") == {"sessionId": "over", "status": "deleted"}
        assert other.refusal("DeleteSession", sessionId="over").code == -32001
        assert other.refusal("DeleteSession", sessionId="../x").code in (-32001, -32602)
        client.call("Shutdown")
        serve.ended_well()
        other.done()
        other_serve.ended_well()
    assert not host.records("over").joinpath("events.jsonl").exists()


def test_a_session_is_removed_by_its_whole_id(host: Host) -> None:
    host.configure(max_retries=0)
    with gateway(say("Done.")) as model:
        assert host.task(model.url, "--session-id", "over").code == 0
    with gateway({"status": 500, "error": {"message": "no"}}) as model:
        assert host.task(model.url, "--session-id", "open").code == 3
    for arguments, code, said in (
        (("rm",), 2, "needs the id"),
        (("rm", "ove"), 2, "there is no session ove"),
        (("rm", "open"), 2, "--resumable"),
        (("mr", "over"), 2, "choose rm or list"),
        (("list", "over"), 2, "agent-host show over"),
    ):
        outcome = host.run("sessions", *arguments)
        assert (outcome.code, said in outcome.error) == (code, True), outcome
    assert host.run("sessions", "rm", "over").text == "removed over\n"
    assert host.run("sessions", "rm", "open", "--resumable").code == 0
    assert host.run("sessions").text == f"no sessions under {host.state}\n"
    again = host.run("run", "Do it.", "--session-id", "over", "--or-resume", "--gateway", "http://127.0.0.1:9")
    assert (again.code, again.result if again.stdout else None) != (3, None), "its stub says that it was done"


def test_a_session_is_removed_by_the_start_of_an_id_that_was_generated(host: Host) -> None:
    with gateway(*[say("Done.")] * 3) as model:
        kept, gone = (host.task(model.url).result["sessionId"] for _ in range(2))
        assert host.task(model.url, "--session-id", "sess_a-12").code == 0
    for key, said in (
        ("latest", "no session latest"),
        ("own", "no session own"),
        (gone.removeprefix("sess_"), "no session"),
        ("sess_", "no session sess_"),
        ("sess_a-1", "no session sess_a-1"),
        ("", "1 to 128"),
    ):
        outcome = host.run("sessions", "rm", key)
        assert (outcome.code, said in outcome.error) == (2, True), outcome
    assert host.run("sessions", "rm", gone[:-1]).text == f"removed {gone}\n"
    assert {row["sessionId"] for row in json.loads(host.run("sessions", "--output", "json").stdout)} == {
        kept,
        "sess_a-12",
    }


def test_grants_are_shown_and_those_of_an_earlier_process_as_such(servers: Servers) -> None:
    asks = ("--policy", "workspace", "--sandbox", "none")
    with gateway(use(shell("true")), say("One."), use(shell("true")), say("Two.")) as model:
        serve, client = servers.session(model.url, *asks)
        assert "grants" not in client.ask("GetSessionState")
        client.task()
        question = client.event("approval_requested")["payload"]
        client.call("ApproveAction", approvalId=question["approvalId"], decision="approved", scope="session")
        client.event("task_completed")
        (grant,) = client.ask("GetSessionState")["grants"]
        assert (grant["tool"], grant["scope"], grant["beforeRestart"]) == ("RunCommand", "session", False)
        client.done()
        serve.ended_well()
        again, other = servers.client(model.url, *asks)
        other.resume(client.session_id)
        assert other.ask("GetSessionState")["grants"] == [{**grant, "beforeRestart": True}]
        other.task("b", "Again.")
        other.event("task_completed")
        assert "approval_requested" not in other.kinds
        other.call("Shutdown")
        again.ended_well()
