"""How far an approval reaches, in whole processes: the same file, another policy or directory, too late (AH 10.2).

What a killed process leaves of one is its records: 1 task, 2 turn, 3 grant, 4 approval, 5 start, 6 result, 7 commit;
without the grant everything behind it is one earlier.
"""

from __future__ import annotations

import json
import signal
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.process import Host, call, eventually, gateway, say, shell, use

if TYPE_CHECKING:
    from tests.support.process import Gateway, Outcome
    from tests.support.serve_process import Servers

pytestmark = pytest.mark.slow


RULES = [{"approvalRuleId": "ask", "title": "Act", "description": "Does something."}]
NEEDS = {"requiresApproval": True, "approvalRuleId": "ask"}
ASKS = {"File.Write": NEEDS, "Shell.Exec": NEEDS, "Workspace.Upload": NEEDS}
GRANTED_AND_DONE, ANSWERED = 6, 2


def ask(host: Host, **changes: Any) -> None:
    """The policy from now on."""
    host.policy(**{"grants": ASKS, "approvalRules": RULES, **changes})


def person(host: Host, model: Gateway, word: str, prompt: str = "", *, kill_after: int = 0) -> Outcome:
    """A process with somebody who says `word` to everything; a resume where there is no prompt."""
    arguments = [word, str(kill_after), prompt, model.url, str(host.root / "policy.json")]
    outcome = host.start(*arguments, program="tests.support.person").finish()
    assert outcome.code == (-signal.SIGKILL if kill_after else 0), outcome
    return outcome


def asked(host: Host) -> list[str]:
    """The ids of all questions so far."""
    lines = (host.records("s") / "events.jsonl").read_bytes().rpartition(b"\n")[0].splitlines()
    events = [json.loads(line) for line in lines]
    return [event["payload"]["approvalId"] for event in events if event["eventType"] == "approval_requested"]


def write(host: Host, name: str, content: str) -> dict[str, Any]:
    return call("WriteFile", path=str(host.workspace / name), content=content)


def codes(outcome: Outcome) -> list[str | None]:
    return [one.get("code") for one in outcome.result["toolCalls"]]


def test_a_grant_for_a_file_covers_other_content_and_other_names_and_no_other_file(host: Host) -> None:
    """Whoever is there after the kill says no to everything."""
    ask(host)
    (host.workspace / "link").symlink_to("a.txt")
    writes = [("a.txt", "one"), ("a.txt", "two"), ("./a.txt", "three"), ("link", "four"), ("b.txt", "five")]
    with gateway(*(use(write(host, *one)) for one in writes), say("Done.")) as model:
        person(host, model, "session", "Do it.", kill_after=GRANTED_AND_DONE)
        assert (host.workspace / "a.txt").read_text() == "one"
        outcome = person(host, model, "no")
    assert codes(outcome) == [None] * 4 + ["APPROVAL_DENIED"]
    assert (host.workspace / "a.txt").read_text() == "four"
    assert not (host.workspace / "b.txt").exists()
    assert len(asked(host)) == 2


def test_a_link_that_leads_elsewhere_by_then_is_another_file(host: Host) -> None:
    ask(host)
    link = host.workspace / "link"
    link.symlink_to("a.txt")
    with gateway(use(write(host, "link", "one")), use(write(host, "link", "two")), say("Done.")) as model:
        person(host, model, "session", "Do it.", kill_after=GRANTED_AND_DONE)
        link.unlink()
        link.symlink_to("b.txt")
        outcome = person(host, model, "no")
    assert codes(outcome) == [None, "APPROVAL_DENIED"]
    assert not (host.workspace / "b.txt").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "questions"),
    [
        ({}, 1),
        ({"expires_in_s": 9999}, 1),
        ({"grants": {**ASKS, "File.Read": {"maxFileSizeBytes": 5}}}, 2),
        ({"policyBundleVersion": "test.2"}, 2),
        ({"redactionRules": [{"redactionRuleId": "r", "pattern": "zzz"}]}, 2),
    ],
)
def test_a_grant_ends_with_the_content_of_its_policy(host: Host, changes: dict[str, Any], questions: int) -> None:
    """Whatever version the file names; that it is only renewed changes nothing."""
    ask(host)
    with gateway(use(shell("echo 1 >> e")), use(shell("echo 1 >> e")), say("Done.")) as model:
        person(host, model, "session", "Do it.", kill_after=GRANTED_AND_DONE)
        ask(host, **changes)
        assert codes(person(host, model, "once")) == [None, None]
    assert len(asked(host)) == len(set(asked(host))) == questions
    assert (host.workspace / "e").read_text() == "1\n1\n"


@pytest.mark.parametrize("changed", [False, True])
def test_an_approval_on_record_is_asked_for_again_under_another_policy(host: Host, *, changed: bool) -> None:
    ask(host)
    with gateway(use(shell("echo 1 >> e")), say("Done.")) as model:
        person(host, model, "once", "Do it.", kill_after=ANSWERED)
        if changed:
            ask(host, grants={**ASKS, "File.Read": {"maxFileSizeBytes": 5}})
        outcome = person(host, model, "no")
    assert codes(outcome) == (["APPROVAL_DENIED"] if changed else [None])
    assert (host.workspace / "e").exists() is not changed
    assert len(set(asked(host))) == len(asked(host)) == (2 if changed else 1)


def test_an_approved_command_is_asked_for_again_in_another_directory(host: Host) -> None:
    other = host.root / "other"
    other.mkdir()
    roots = {"allowedPaths": [str(host.workspace), str(other)]}
    ask(host, grants={**ASKS, "File.Write": {**NEEDS, **roots}, "File.Read": roots})
    with gateway(use(shell("echo 1 >> e")), say("Done.")) as model:
        person(host, model, "once", "Do it.", kill_after=ANSWERED)
        outcome = host.resume("s", "--gateway", model.url, "--workspace", other, "--policy", host.root / "policy.json")
    assert outcome.code == 4
    assert codes(outcome) == ["APPROVAL_REQUIRED"]
    assert not (host.workspace / "e").exists()
    assert not (other / "e").exists()
    assert len(set(asked(host))) == 2


def test_a_grant_for_one_text_reaches_no_other_text(host: Host) -> None:
    """What is uploaded leaves the machine."""
    ask(host)
    uploads = [call("UploadArtifact", content=text, name="a.txt") for text in ("one", "one", "two")]
    with gateway(*(use(one) for one in uploads), say("Done.")) as model:
        person(host, model, "session", "Do it.")
    assert len(asked(host)) == 2


@pytest.mark.slow
def test_a_policy_that_expires_while_somebody_thinks_pauses_the_session(servers: Servers) -> None:
    host = servers.host
    ask(host, expires_in_s=2.0)
    expires = datetime.fromisoformat(json.loads((host.root / "policy.json").read_text())["expiresAt"])
    with gateway(use(shell("echo 1 >> e")), say("Done.")) as model:
        serve, client = servers.session(model.url, policy=host.root / "policy.json")
        client.task()
        approval = client.event("approval_requested")["payload"]["approvalId"]
        eventually(lambda: datetime.now(UTC) > expires, "the end of the policy")
        assert client.call("ApproveAction", approvalId=approval, decision="approved")["status"] == "delivered"
        client.event("session_paused")
        assert client.ask("GetSessionState")["sessionStatus"] == "SESSION_PAUSED"
        client.call("Shutdown")
        assert serve.finish().code == 0
    assert not (host.workspace / "e").exists()
    assert model.count == 1
