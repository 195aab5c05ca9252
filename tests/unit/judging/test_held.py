"""Decisions on calls that start programs, with the scope that holds them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from agent_host.host.environment import built_in
from agent_host.judging import Environment, Judge
from agent_host.judging.scoping import Scoping
from policy import ScopeFacts, Widening
from policy.rules import NO_LIMITS, TaskOptions, ToolLimit
from tests.support.judging import decided_call, problem_with
from tests.unit.policy.helpers import NOW, bundle

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.judging import PreparedCall
    from policy import SandboxLevel

SHELL: dict[str, Any] = {"name": "Shell.Exec"}
HTTP: dict[str, Any] = {"name": "Network.Http", "allowedDomains": ["a.example"]}
LINE = {"command": "make"}
GRANT = {"write": ["../out"], "domains": ["b.example"], "reason": "r"}


def scoping(workspace: str, level: SandboxLevel = "landlock", wanted: str = "auto", **more: Any) -> Scoping:
    return Scoping(level, wanted, lambda: ScopeFacts(workspace, tmp="/t/own", system=("/usr",)), **more)


@pytest.fixture
def workspace(tmp_path: Path) -> str:
    (tmp_path / "w").mkdir()
    return str((tmp_path / "w").resolve())


def judge(workspace: str, held: Scoping | None, *capabilities: dict[str, Any], **more: Any) -> Judge:
    files = [{"name": name, "allowedPaths": [workspace]} for name in ("File.Read", "File.Write")]
    granted = bundle(SHELL, *files, *capabilities)
    here = Environment(workspace, None, "posix", "bash", {})
    return Judge(granted, here, built_in(), more.pop("limits", NO_LIMITS), lambda: NOW, scoping=held, **more)


def decide(found: Judge, **arguments: Any) -> PreparedCall:
    return decided_call(found, "RunCommand", {**LINE, **arguments})


def test_a_command_has_its_scope(workspace: str) -> None:
    decision = decide(judge(workspace, scoping(workspace), HTTP)).decision
    assert decision is not None
    scope = decision.command_scope
    assert scope is not None
    assert scope.writes == (workspace, "/t/own")
    assert scope.domains == ("a.example",)
    opened = scoping(workspace, opened=Widening(domains=("c.example",)), blocked_domains=("d.example",))
    decision = decide(judge(workspace, opened)).decision
    assert decision is not None
    assert decision.command_scope is not None
    assert (decision.command_scope.domains, decision.command_scope.blocked_domains) == (("c.example",), ("d.example",))


def test_no_other_call_has_one(workspace: str) -> None:
    found = decided_call(judge(workspace, scoping(workspace)), "ReadFile", {"path": workspace + "/a"})
    assert found.decision is not None
    assert found.decision.command_scope is None
    for nothing in (None, scoping(workspace, "none")):
        decision = decide(judge(workspace, nothing)).decision
        assert decision is not None
        assert (decision.decision, decision.command_scope) == ("ALLOWED", None)


def test_what_has_to_be_held_and_is_not_is_denied(workspace: str) -> None:
    decision = decide(judge(workspace, scoping(workspace, "none", "landlock", why="it is old"))).decision
    assert decision is not None
    assert (decision.decision, decision.rule) == ("DENIED", "sandbox.level: landlock")
    assert "it is old" in decision.reason


def test_a_task_without_a_network_has_none_in_its_commands(workspace: str) -> None:
    options = TaskOptions(allow_network=False)
    decision = decide(judge(workspace, scoping(workspace), HTTP, options=options)).decision
    assert decision is not None
    assert decision.command_scope is not None
    assert decision.command_scope.domains == ()


def test_a_call_that_asks_for_more(workspace: str) -> None:
    found = decide(judge(workspace, scoping(workspace)), sandboxGrant=GRANT)
    assert found.decision is not None
    assert (found.decision.decision, found.decision.rule_id) == ("APPROVAL_REQUIRED", "sandboxGrant")
    scope = found.decision.command_scope
    assert scope is not None
    outside = workspace.removesuffix("/w") + "/out"
    assert outside in scope.writes
    assert scope.domains == ("b.example",)
    assert f"also writes to {outside}" in found.decision.risks


def test_where_nobody_is_to_be_asked_it_is_denied(workspace: str) -> None:
    options = TaskOptions(approval_mode="never")
    decision = decide(judge(workspace, scoping(workspace), options=options), sandboxGrant=GRANT).decision
    assert decision is not None
    assert (decision.decision, decision.no_approver) == ("DENIED", True)


def test_a_ceiling_counts_for_what_is_asked_for(workspace: str) -> None:
    ceiling = frozenset({ToolLimit("policy.risk_ceiling", risk_ceiling="medium")})
    plain = decide(judge(workspace, scoping(workspace), limits=ceiling)).decision
    asked = decide(judge(workspace, scoping(workspace), limits=ceiling), sandboxGrant=GRANT).decision
    assert plain is not None
    assert asked is not None
    assert (plain.decision, asked.decision) == ("ALLOWED", "DENIED")


def test_a_grant_that_says_nothing_is_a_bad_request(workspace: str) -> None:
    found = decide(judge(workspace, scoping(workspace)), sandboxGrant={"reason": "r"})
    assert "asks for nothing" in problem_with(found)


def test_a_link_is_asked_for_where_it_leads(workspace: str, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "w" / "link").symlink_to(tmp_path / "real")
    found = decide(judge(workspace, scoping(workspace)), sandboxGrant={"write": ["link"], "reason": "r"})
    assert found.decision is not None
    assert f"also writes to {(tmp_path / 'real').resolve()}" in found.decision.risks


def test_what_is_said_at_the_start(workspace: str) -> None:
    found = judge(workspace, scoping(workspace, unheld=("modes",), withheld=lambda scope, level: (f"{level} note",)))
    said = found.sandbox()["sandbox"]
    assert (said["level"], said["wanted"]) == ("landlock", "auto")
    assert "modes" in said["scope"]["unheld"]
    assert said["scope"]["withheld"] == ["landlock note"]
    assert judge(workspace, scoping(workspace, "none", "none")).sandbox() == {}
    nothing = scoping(workspace, "none", why="no kernel")
    assert judge(workspace, nothing).sandbox() == {"sandbox": {"level": "none", "wanted": "auto", "why": "no kernel"}}
    notice = nothing.notice(judge(workspace, nothing).bundle, judge(workspace, nothing).environment)
    assert notice == "no sandbox works here (no kernel): only the policy's lists and approvals restrict commands"
    named = scoping(workspace, "none", "landlock")
    refused = named.notice(judge(workspace, named).bundle, judge(workspace, named).environment)
    assert refused is not None
    assert refused.endswith("commands are denied")
