"""What a crash leaves of calls that held a secret, and what another policy or configuration changes (AH 8.7)."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from agent_host.approval import replay_of
from policy.redaction import PLACEHOLDER
from state.blobs import sha256_hex
from tests.support.process import call, gateway, say, shell, use
from tests.support.secrets import IN_COMMAND, IN_FILE, IN_PROMPT, PASSWORD, WRITTEN, assert_not_kept, assert_not_sent

if TYPE_CHECKING:
    from tests.support.process import Gateway, Host, Outcome

pytestmark = pytest.mark.slow


RULES = [{"approvalRuleId": "shell", "title": "Run", "description": "Runs a command."}]
ASKS = {"Shell.Exec": {"requiresApproval": True, "approvalRuleId": "shell"}}
CRASH = "agent_host.faults.crash"
TURN = 1
"""The records up to a model's turn with its calls."""


def started(host: Host, model: Gateway, *options: str, kill_after: int = TURN, prompt: str = "Do it.") -> None:
    """A session `s` that is killed after so many records."""
    named = ("--session-id", "s", "--policy", str(host.root / "policy.json"))
    arguments = ("run", prompt, "--gateway", model.url, "--output", "json", *named, *options)
    outcome = host.start("--after-record", str(kill_after), *arguments, program=CRASH).finish()
    assert outcome.code == -9, outcome


def gone_on(host: Host, model: Gateway, *options: str) -> Outcome:
    return host.run("resume", "s", "--gateway", model.url, "--output", "json", *options)


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked",
    [
        shell(f"echo {IN_COMMAND} >> effects"),
        call("WriteFile", path="effects", content=f"A_TOKEN={WRITTEN}\n"),
        call("WriteFile", path="effects", content=json.dumps({"password": PASSWORD})),
    ],
)
def test_a_call_that_held_a_secret_is_not_taken_up_from_the_record(host: Host, asked: dict[str, Any]) -> None:
    host.policy()
    with gateway(use(asked), say("Done.")) as model:
        started(host, model, prompt=f"Use {IN_PROMPT}.")
        assert_not_kept(host, [IN_COMMAND, WRITTEN, PASSWORD, IN_PROMPT])
        outcome = gone_on(host, model)
        (answer,) = model.results()
        assert_not_sent(model, [IN_COMMAND, WRITTEN, PASSWORD, IN_PROMPT])
        prompts = {json.dumps(body["messages"][0]) for body in model.bodies}
    assert [(one["status"], one["code"]) for one in outcome.result["toolCalls"]] == [("failed", "INVALID_REQUEST")]
    assert answer.text.startswith("INVALID_REQUEST: its arguments contained a secret")
    assert answer.is_error
    assert not (host.workspace / "effects").exists()
    # The placeholder outlives the process: the front of the request is the same.
    assert len(prompts) == 1
    assert "[redacted:github-token:" in prompts.pop()


def test_the_same_placeholder_before_and_after_a_crash(host: Host) -> None:
    host.policy()
    (host.workspace / "a.env").write_text(f"A_TOKEN={IN_FILE}\n")
    read = call("ReadFile", path=str(host.workspace / "a.env"))
    with gateway(use(read), use(read), say("Done.")) as model:
        started(host, model, kill_after=5)
        assert gone_on(host, model).code == 0
        texts = [block["content"] for body in model.bodies[1:] for block in blocks(body, "tool_result")]
    found = {re.search(PLACEHOLDER, json.dumps(text))[0] for text in texts}  # type: ignore[index]  # fails with the test
    assert len(texts) >= 2
    assert len(found) == 1


def blocks(body: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """All blocks of a kind in a request."""
    return [
        block
        for message in body["messages"]
        for block in message["content"]
        if isinstance(block, dict) and block["type"] == kind
    ]


@pytest.mark.parametrize("edited", [False, True])
def test_an_approved_call_with_a_secret_is_not_run_after_a_crash(host: Host, *, edited: bool) -> None:
    """Whether the model wrote it, or whoever approved it."""
    secret = "person-4711" if edited else "model-4711"
    rules = [{"redactionRuleId": "staff", "pattern": secret}]
    host.policy(grants=ASKS, approvalRules=RULES, redactionRules=rules)
    with gateway(use(shell("echo model-4711 >> effects")), say("Done.")) as model:
        arguments = ["edits" if edited else "once", str(TURN + 1), "Do it.", model.url, str(host.root / "policy.json")]
        assert host.start(*arguments, program="tests.support.person").finish().code == -9
        arguments = ["no", "0", "", *arguments[3:]]
        outcome = host.start(*arguments, program="tests.support.person").finish()
        (answer,) = model.results()
    assert not (host.workspace / "effects").exists()
    # The start of the edited one was on record, so nobody can say whether it took effect.
    assert answer.text.startswith("TOOL_INTERRUPTED" if edited else "INVALID_REQUEST: its arguments contained a secret")
    assert outcome.code == 0
    assert_not_kept(host, [secret])
    assert_not_sent(model, [secret] if edited else [])


def test_no_hash_of_arguments_lets_a_password_be_tried_out(host: Host) -> None:
    host.policy()
    asks = shell("PGPASSWORD=hunter2hunter true")
    with gateway(use(asks), use(shell("true")), say("Done.")) as model:
        host.task(model.url, "--session-id", "s", policy=host.root / "policy.json")
        kept = [block["input"] for block in blocks(model.bodies[-1], "tool_use")]
    events = [event["payload"] for event in host.event_log("s") if event["eventType"] == "tool_requested"]
    assert [event["argumentsSha256"] for event in events] == [sha256_hex(orjson.dumps(each)) for each in kept]
    assert "hunter2hunter" not in json.dumps(kept)


def test_a_call_with_a_placeholder_is_refused(host: Host) -> None:
    host.policy()
    (host.workspace / "a.env").write_text(f"A_TOKEN={IN_FILE}\nB=1\n")
    with gateway(
        use(call("ReadFile", path=str(host.workspace / "a.env"))),
        {
            "tool_calls": [
                call(
                    "WriteFile", path=str(host.workspace / "a.env"), content="A_TOKEN=[redacted:github-token:abcdef]\n"
                )
            ]
        },
        say("Done."),
    ) as model:
        outcome = host.task(model.url, policy=host.root / "policy.json")
        (answer,) = model.results()
    assert outcome.result["toolCalls"][1]["code"] == "INVALID_REQUEST"
    assert "[redacted:github-token:abcdef], which stands in the place of a secret" in answer.text
    assert (host.workspace / "a.env").read_text() == f"A_TOKEN={IN_FILE}\nB=1\n"


@pytest.mark.slow
def test_a_denied_call_with_a_secret_cannot_be_replayed(host: Host) -> None:
    host.policy(grants=ASKS, approvalRules=RULES)
    asks = shell(f"echo {IN_COMMAND} >> effects")
    with gateway(use(asks), say("Done.")) as model:
        outcome = host.task(model.url, "--session-id", "s", policy=host.root / "policy.json")
        assert outcome.code == 4
        (denied,) = outcome.result["deniedApprovals"]
        assert denied == {"toolName": "RunCommand", "replay": {"approve": "shell"}}
        assert_not_kept(host, [IN_COMMAND])
        kept = json.loads(json.dumps(model.bodies[-1]))
        (asked,) = blocks(kept, "tool_use")
        for known in (asks["arguments"], asked["input"]):
            replay = replay_of("RunCommand", known, session_id="s", approve="shell")["id"]
            again = gone_on(host, model, "--approve", replay)
            assert again.code == 2
            assert "no denied call of this session has that id" in again.stderr
    assert not (host.workspace / "effects").exists()


# What comes with another policy, and from the configuration


def test_the_rules_of_a_later_policy_hold_for_all_that_is_sent_from_then_on(host: Host) -> None:
    (host.workspace / "staff.txt").write_text("Jo Miller\n")
    host.policy()
    with gateway(use(call("ReadFile", path=str(host.workspace / "staff.txt"))), say("Done.")) as model:
        started(host, model, kill_after=3, prompt="Ask Jo Miller.")
        host.policy(redactionRules=[{"redactionRuleId": "staff", "pattern": "Jo Mil+er", "replacement": "<staff>"}])
        before = len(model.bodies)
        outcome = gone_on(host, model)
        later = json.dumps(model.bodies[before:])
    assert outcome.code == 0
    assert "Jo Miller" not in later
    assert later.count("<staff>") >= 2
    assert (host.workspace / "staff.txt").read_text() == "Jo Miller\n"


@pytest.mark.parametrize("where", ["user", "workspace"])
def test_only_the_user_switches_the_detectors_off(host: Host, where: str) -> None:
    host.policy()
    off = "\n[redaction]\ndetectors = false\n"
    if where == "user":
        (host.root / "user.toml").write_text((host.root / "user.toml").read_text() + off)
    else:
        (host.workspace / ".agent").mkdir()
        (host.workspace / ".agent" / "config.toml").write_text(off)
    with gateway(say("Done.")) as model:
        outcome = host.run(
            "run",
            f"Use {IN_PROMPT}.",
            "--gateway",
            model.url,
            "--policy",
            host.root / "policy.json",
            "--output",
            "json",
        )
        sent = json.dumps(model.bodies[0])
    assert (IN_PROMPT in sent) == (where == "user")
    assert ("redaction.detectors = False is ignored" in outcome.stderr) == (where == "workspace")
