"""Task options only take away."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.decide import check_tool
from policy.facts import ActionFacts, CommandFacts, NamedToolFacts, ShellName
from policy.rules import ApprovalMode, TaskOptions
from policy.rules.narrowing import apply_task_options
from tests.support.rows import each_row
from tests.unit.policy.helpers import NOW, apply, bundle, path, url

MODES: tuple[ApprovalMode | None, ...] = (None, *get_args(ApprovalMode))
RANK = {"ALLOWED": 0, "APPROVAL_REQUIRED": 1, "DENIED": 2}


def command(line: str, shell: ShellName = "bash") -> CommandFacts:
    return CommandFacts(line, cwd="/w", shell=shell)


def decide(facts: ActionFacts, capability: str, *options: Any, side_effects: bool = True, **entry: Any) -> Any:
    held = bundle({"name": capability, **entry})
    decision = check_tool(held, capability, facts, now=NOW, workspace="/w")
    return apply(
        apply_task_options,
        decision,
        held,
        facts,
        options=TaskOptions(*options),
        has_side_effects=side_effects,
        workspace="/w",
    )


def word(facts: ActionFacts, capability: str, *options: Any, side_effects: bool = True, **entry: Any) -> str:
    return str(decide(facts, capability, *options, side_effects=side_effects, **entry).decision)


# How approvals are asked for


def test_always_asks_for_what_has_effects() -> None:
    assert word(command("ls"), "Shell.Exec", "always") == "APPROVAL_REQUIRED"
    assert word(path("/w/a"), "File.Read", "always", side_effects=False) == "ALLOWED"
    assert word(path("/w/a"), "File.Write", "always", blockedPaths=["/w"]) == "DENIED"


def test_always_asks_under_the_rule_of_the_capability() -> None:
    decision = decide(command("ls"), "Shell.Exec", "always", approvalRuleId="shell")
    assert decision.reason != "granted"
    assert (decision.rule_id, decision.risk_level, decision.risks) == ("shell", "medium", ())
    assert decision.rule == "taskOptions.approvalMode: always"


@each_row(
    ("facts", "capability", "verdict"),
    [
        (command("ls"), "Shell.Exec", "ALLOWED"),
        (command("./install.sh"), "Shell.Exec", "APPROVAL_REQUIRED"),
        (path("/w/a"), "File.Write", "ALLOWED"),
        (path("/elsewhere/a"), "File.Write", "APPROVAL_REQUIRED"),
        (path("/w/a", kind="file"), "File.Delete", "APPROVAL_REQUIRED"),
        (url("https://pypi.org/x"), "Network.Http", "ALLOWED"),
        (url("https://example.com/x"), "Network.Http", "APPROVAL_REQUIRED"),
        (NamedToolFacts("t"), "Tool.Invoke", "ALLOWED"),
    ],
)
def test_on_risky_actions_asks_for_what_is_of_high_risk(facts: ActionFacts, capability: str, verdict: str) -> None:
    decision = decide(facts, capability, "on_risky_actions")
    assert decision.decision == verdict
    assert decision.risk_level == ("high" if verdict == "APPROVAL_REQUIRED" else None)


def test_on_risky_actions_still_asks_for_what_the_bundle_names() -> None:
    assert word(command("ls"), "Shell.Exec", "on_risky_actions", requiresApproval=True) == "APPROVAL_REQUIRED"


def test_never_denies_what_needs_an_approval() -> None:
    decision = decide(command("ls"), "Shell.Exec", "never", requiresApproval=True, approvalRuleId="shell")
    assert (decision.decision, decision.no_approver, decision.rule_id) == ("DENIED", True, "shell")
    assert (decision.rule, decision.risk_level) == ("taskOptions.approvalMode: never", "medium")
    assert word(command("ls"), "Shell.Exec", "never") == "ALLOWED"


# The network


@each_row(
    "line",
    [
        "curl https://example.com",
        "/usr/bin/CURL x",
        "ls; wget x",
        "cat a | nc host 80",
        "timeout 5 ssh host",
        "sh -c 'scp a host:'",
        "git clone https://example.com/x",
        "git -C /w/x fetch --all",
        "pip install x",
        "python3 -m pip install x",
        "python3 -u -Im pip install x",
        "pip3.11 install x",
        "npm ci",
        "echo x > /dev/tcp/host/80",
        "$PROGRAM x",
        "eval curl x",
    ],
)
def test_a_command_that_shows_signs_of_the_network_is_denied(line: str) -> None:
    assert word(command(line), "Shell.Exec", None, False) == "DENIED"
    assert word(command(line), "Shell.Exec", None, True) == word(command(line), "Shell.Exec")


@pytest.mark.parametrize(
    "line",
    ["ls", "git commit -m fetch", "git log curl", "python3 x.py", "pip list", "echo curl", "grep -r wget . > out"],
)
def test_other_commands_go_on(line: str) -> None:
    assert word(command(line), "Shell.Exec", None, False) == word(command(line), "Shell.Exec")


@pytest.mark.parametrize(
    ("line", "shell"),
    [("curl.exe x", "cmd"), ("iwr x", "powershell"), ("Invoke-RestMethod x", "powershell"), ("a | b", "cmd")],
)
def test_shells_of_windows(line: str, shell: ShellName) -> None:
    assert word(command(line, shell), "Shell.Exec", None, False) == "DENIED"


def test_requests_are_denied_and_files_are_not() -> None:
    decision = decide(url("https://pypi.org"), "Network.Http", None, False, allowedDomains=["pypi.org"])
    assert (decision.decision, decision.rule) == ("DENIED", "taskOptions.allowNetwork: false")
    assert word(path("/w/a"), "File.Write", None, False) == "ALLOWED"


def test_what_the_network_would_have_asked_for_is_not_asked_for() -> None:
    asking: dict[str, Any] = {"requiresApproval": True, "approvalRuleId": "shell"}
    decision = decide(command("curl x"), "Shell.Exec", None, False, **asking)
    assert (decision.decision, decision.rule_id, decision.no_approver) == ("DENIED", None, False)
    assert decide(command("ls"), "Shell.Exec", None, False, **asking).rule_id == "shell"
    denied = decide(url("ftp://x"), "Network.Http", "always", False)
    assert denied.rule == "capabilities[Network.Http]"


def test_five_reasons_are_told_at_most() -> None:
    line = "alias c; hash d; fc e; bind f; enable g; history h"
    told = decide(command(line), "Shell.Exec", None, False).reason
    assert told.count("; ") == 4
    assert "; hash changes" in told
    assert "; enable changes" in told
    assert "history" not in told


def test_a_risky_call_tells_its_risks_as_its_system_sees_them() -> None:
    decision = decide(path("/elsewhere/a"), "File.Write", "on_risky_actions")
    assert decision.risks == ("writes outside the project directory: /elsewhere/a",)
    assert decision.reason != "granted"
    held = bundle({"name": "File.Write"})
    facts = path("C:\\W\\a")
    allowed = check_tool(held, "File.Write", facts, now=NOW, os="windows")
    for workspace, verdict in (("c:\\w", "ALLOWED"), ("c:\\v", "APPROVAL_REQUIRED")):
        answer = apply(
            apply_task_options,
            allowed,
            held,
            facts,
            options=TaskOptions("on_risky_actions"),
            has_side_effects=True,
            workspace=workspace,
            os="windows",
        )
        assert answer.decision == verdict


# Narrowing


FACTS: list[tuple[ActionFacts, str]] = [
    (command("ls"), "Shell.Exec"),
    (command("curl x | sh"), "Shell.Exec"),
    (command("./x $(y)"), "Shell.Exec"),
    (path("/w/a"), "File.Read"),
    (path("/x"), "File.Write"),
    (path("/w/a", kind="file"), "File.Delete"),
    (path("/w", kind="directory"), "File.Delete"),
    (url("https://example.com"), "Network.Http"),
    (url("ftp://example.com"), "Network.Http"),
    (NamedToolFacts("t"), "Mcp.Invoke"),
]


@given(
    st.sampled_from(FACTS),
    st.sampled_from(MODES),
    st.sampled_from([None, True, False]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_options_never_widen(
    case: tuple[ActionFacts, str],
    mode: ApprovalMode | None,
    network: bool | None,
    effects: bool,
    asks: bool,
    granted: bool,
) -> None:
    facts, capability = case
    held = bundle({"name": capability if granted else "LLM.Call", "requiresApproval": asks})
    plain = check_tool(held, capability, facts, now=NOW)
    less = apply(apply_task_options, plain, held, facts, options=TaskOptions(mode, network), has_side_effects=effects)
    assert RANK[less.decision] >= RANK[plain.decision]
    assert (
        apply(apply_task_options, plain, held, facts, options=TaskOptions(None, True), has_side_effects=effects)
        == plain
    )
    assert not (mode == "never" and less.decision == "APPROVAL_REQUIRED")
    assert (
        apply(apply_task_options, less, held, facts, options=TaskOptions(mode, network), has_side_effects=effects)
        == less
    )
