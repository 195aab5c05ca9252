"""Tools that are judged by their names: patterns, what a bundle says of one tool, and tools that may change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.policies import template
from policy.bundle import BundleProblems
from policy.bundle.builtin import PlaceholderValues, instantiate
from policy.bundle.validate import parse_bundle
from policy.decide import check_tool
from policy.facts import NamedToolFacts, OutputFacts
from policy.rules import TaskOptions
from policy.rules.narrowing import apply_task_options
from policy.rules.toolset import fits, is_repeatable, why_not_offered
from tests.support.rows import each_row
from tests.unit.policy.helpers import NOW, apply

RULES = [
    {"approvalRuleId": "r1", "title": "One", "description": "d"},
    {"approvalRuleId": "r2", "title": "Two", "description": "d"},
]


def bundle_of(**entry: Any) -> Any:
    """A bundle with one capability, Mcp.Invoke unless it is named."""
    return parse_bundle(
        {
            "policyBundleVersion": "1",
            "schemaVersion": "1.0",
            "tenantId": "t",
            "userId": "u",
            "sessionId": "s",
            "expiresAt": "2099-01-01T00:00:00Z",
            "capabilities": [{"name": "Mcp.Invoke", **entry}],
            "llmPolicy": {"allowedModels": ["m"], "maxInputTokens": 1, "maxOutputTokens": 1, "maxSessionTokens": 1},
            "approvalRules": RULES,
        }
    )


def said(tool: str, capability: str = "Mcp.Invoke", **entry: Any) -> str:
    return check_tool(bundle_of(name=capability, **entry), capability, NamedToolFacts(tool), now=NOW).decision


@each_row(
    ("pattern", "tool", "does"),
    [
        ("fs/read", "fs/read", True),
        ("fs/read", "fs/reader", False),
        ("fs/*", "fs/read", True),
        ("fs/*", "fs/", True),
        ("fs/*", "fs", False),
        ("fs/*", "git/fs/x", False),
        ("*", "a/b", True),
        ("*/read_*", "fs/read_file", True),
        ("*/read_*", "fs/write_file", False),
        ("fs/r.ad", "fs/read", False),
        ("fs/*a*b*", "fs/xaxbx", True),
        ("fs/*a*b", "fs/ba", False),
        ("fs/a*a", "fs/a", False),
    ],
)
def test_a_star_stands_for_any_characters(pattern: str, tool: str, does: bool) -> None:
    assert fits(pattern, tool) is does


@given(st.text("ab*", max_size=12), st.text("ab", max_size=12))
def test_patterns_are_what_a_plain_reading_says(pattern: str, name: str) -> None:
    def plain(left: str, rest: str) -> bool:
        if not left:
            return not rest
        if left[0] == "*":
            return any(plain(left[1:], rest[at:]) for at in range(len(rest) + 1))
        return bool(rest) and left[0] == rest[0] and plain(left[1:], rest[1:])

    assert fits(pattern, name) is plain(pattern, name)


def test_a_pattern_made_to_be_slow_is_not() -> None:
    assert not fits("*a" * 100 + "b", "a" * 20_000)


def test_only_tools_that_are_listed_are_called() -> None:
    assert said("fs/read", allowedToolNames=["fs/*"]) == "ALLOWED"
    assert said("git/log", allowedToolNames=["fs/*"]) == "DENIED"
    assert said("fs/read", allowedToolNames=[]) == "DENIED"
    assert said("fs/read") == "ALLOWED"
    assert said("x", "BackendTool.Invoke", allowedToolNames=["*"]) == "ALLOWED"
    assert said("x", "Tool.Invoke", allowedToolNames=["*"]) == "DENIED"  # of a workspace nobody lists what may come


def test_a_policy_for_one_tool_decides_about_its_approval() -> None:
    entry: dict[str, Any] = {
        "requiresApproval": True,
        "approvalRuleId": "r1",
        "toolPolicies": [
            {"tool": "fs/read*", "requiresApproval": False},
            {"tool": "fs/read_secret", "requiresApproval": True, "approvalRuleId": "r2"},
        ],
    }
    assert said("fs/read_file", **entry) == "ALLOWED"
    asked = check_tool(bundle_of(**entry), "Mcp.Invoke", NamedToolFacts("fs/read_secret"), now=NOW)
    assert (asked.decision, asked.rule_id) == ("APPROVAL_REQUIRED", "r2")
    assert asked.rule == "capabilities[Mcp.Invoke].toolPolicies[fs/read_secret].requiresApproval: true"
    asked = check_tool(bundle_of(**entry), "Mcp.Invoke", NamedToolFacts("fs/write"), now=NOW)
    assert (asked.decision, asked.rule_id) == ("APPROVAL_REQUIRED", "r1")
    assert asked.rule == "capabilities[Mcp.Invoke].requiresApproval: true"


def test_of_several_patterns_the_strictest_counts_in_any_order() -> None:
    free, asked = {"tool": "*", "requiresApproval": False}, {"tool": "fs/*", "requiresApproval": True}
    for policies in ([free, asked], [asked, free]):
        assert said("fs/x", toolPolicies=policies) == "APPROVAL_REQUIRED"
        assert said("git/x", toolPolicies=policies) == "ALLOWED"


def test_a_policy_never_admits_what_is_not_listed() -> None:
    assert said("fs/x", allowedToolNames=["git/*"], toolPolicies=[{"tool": "fs/x", "repeatable": True}]) == "DENIED"


def test_only_a_bundle_calls_a_tool_repeatable() -> None:
    bundle = bundle_of(toolPolicies=[{"tool": "fs/*", "repeatable": True}, {"tool": "fs/write", "repeatable": False}])
    found = [is_repeatable(bundle, "Mcp.Invoke", name) for name in ("fs/read", "fs/write", "git/log")]
    assert found == [True, False, False]
    assert not is_repeatable(bundle, "BackendTool.Invoke", "fs/read")
    strict = bundle_of(toolPolicies=[{"tool": "*", "repeatable": True}, {"tool": "fs/*", "repeatable": False}])
    assert not is_repeatable(strict, "Mcp.Invoke", "fs/read")


@pytest.mark.parametrize(
    ("listed", "is_approved", "decision"),
    [
        (["fs/*"], True, "ALLOWED"),
        (["fs/*"], False, "APPROVAL_REQUIRED"),
        (["fs/read@sha256:aa"], False, "ALLOWED"),
        (["fs/read@sha256:bb"], True, "DENIED"),
        (["fs/*", "fs/read@sha256:aa"], False, "ALLOWED"),
    ],
)
def test_a_tool_that_is_another_one_now_needs_consent(listed: list[str], is_approved: bool, decision: str) -> None:
    facts = NamedToolFacts("fs/read", "aa", is_approved)
    assert check_tool(bundle_of(allowedToolNames=listed), "Mcp.Invoke", facts, now=NOW).decision == decision


def test_what_a_listed_tool_stored_is_read_again() -> None:
    bundle = bundle_of(allowedToolNames=["fs/*"])
    assert check_tool(bundle, "Mcp.Invoke", OutputFacts("fs/read"), now=NOW).decision == "ALLOWED"
    assert check_tool(bundle, "Mcp.Invoke", OutputFacts("git/log"), now=NOW).decision == "DENIED"


def test_a_task_without_the_network_calls_no_tool_elsewhere() -> None:
    bundle, options = bundle_of(), TaskOptions(allow_network=False)
    for elsewhere, decision in ((True, "DENIED"), (False, "ALLOWED")):
        facts = NamedToolFacts("fs/read", elsewhere=elsewhere)
        allowed = check_tool(bundle, "Mcp.Invoke", facts, now=NOW)
        assert (
            apply(apply_task_options, allowed, bundle, facts, options=options, has_side_effects=True).decision
            == decision
        )
        kept = why_not_offered(bundle, "fs/read", "Mcp.Invoke", options=options, elsewhere=elsewhere)
        assert kept == ("the network is taken away from the task" if elsewhere else None)


def test_a_tool_that_needs_no_approval_is_offered_where_nobody_is_asked() -> None:
    bundle = bundle_of(requiresApproval=True, toolPolicies=[{"tool": "fs/read", "requiresApproval": False}])
    never = TaskOptions(approval_mode="never")
    assert why_not_offered(bundle, "fs/read", "Mcp.Invoke", options=never) is None
    assert why_not_offered(bundle, "fs/write", "Mcp.Invoke", options=never) is not None


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (
            {"toolPolicies": [{"tool": "a b", "repeatable": True}]},
            "toolPolicies[0].tool: 'a b' is not the name of a tool",
        ),
        ({"toolPolicies": [{"tool": "a"}]}, "toolPolicies[0]: has no rule for the tool"),
        (
            {"toolPolicies": [{"tool": "a", "requiresApproval": True, "approvalRuleId": "r3"}]},
            "toolPolicies[0].approvalRuleId: 'r3' is not in approvalRules",
        ),
        (
            {"toolPolicies": [{"tool": "a", "repeatable": True, "approvalRuleId": "r1"}]},
            "toolPolicies[0].approvalRuleId: means nothing without an approval",
        ),
        (
            {"toolPolicies": [{"tool": "a", "repeatable": True}, {"tool": "a", "repeatable": False}]},
            "toolPolicies[1].tool: 'a' is already at capabilities[0].toolPolicies[0]",
        ),
        ({"name": "File.Read", "toolPolicies": [{"tool": "a", "repeatable": True}]}, "toolPolicies: restricts nothing"),
        ({"allowedToolNames": ["a b"]}, "allowedToolNames[0]: 'a b' is not the name of a tool"),
    ],
)
def test_what_means_nothing_is_a_problem(entry: dict[str, Any], problem: str) -> None:
    with pytest.raises(BundleProblems) as found:
        bundle_of(**entry)
    assert problem in str(found.value)


@dataclass
class _Built:
    tools: dict[str, tuple[str, ...]]

    def names(self, name: str) -> set[str]:
        """The capabilities of the built-in, for tools from elsewhere."""
        bundle = instantiate(
            template(name),
            PlaceholderValues("/w", "/h", "/s", "posix", tmp="/t", tools=self.tools),
            session_id="s",
            now=NOW,
        )
        self.bundle = bundle
        return {one.name for one in bundle.capabilities} & {"Mcp.Invoke", "Tool.Invoke"}


def test_the_workspace_built_in_grants_what_the_configuration_names_and_asks() -> None:
    assert _Built({}).names("workspace") == set()
    built = _Built({"Mcp.Invoke": ("fs/*",)})
    assert built.names("workspace") == {"Mcp.Invoke"}
    for tool, decision in (("fs/read", "APPROVAL_REQUIRED"), ("git/log", "DENIED")):
        assert check_tool(built.bundle, "Mcp.Invoke", NamedToolFacts(tool), now=NOW).decision == decision
    assert built.names("ci") == set()
