"""Kinds of tools that run in the Backend Tool Service only: `insteadOf` takes away, and gives nothing."""

from __future__ import annotations

from typing import Any

import pytest

from policy import Decision
from policy.bundle import BundleProblems
from policy.bundle.validate import parse_bundle
from policy.facts import CommandFacts, NamedToolFacts, PathFacts
from policy.rules.canonical import canonical_form
from policy.rules.toolset import apply_delegation, delegated_capabilities, why_not_offered
from tests.unit.policy.helpers import apply, bundle


def allowed(capability: str) -> Decision:
    return Decision("ALLOWED", "granted", capability, "capabilities")


def sending(*kinds: str, **more: Any) -> Any:
    backend = {"name": "BackendTool.Invoke", "insteadOf": list(kinds), **more}
    return bundle(backend, {"name": "Shell.Exec"}, {"name": "File.Read"})


@pytest.mark.parametrize(
    "kind", ["File.Read", "File.Write", "File.Delete", "Shell.Exec", "Network.Http", "Tool.Invoke"]
)
def test_a_call_of_a_kind_that_is_sent_does_not_run_here(kind: str) -> None:
    held = sending(kind)
    assert delegated_capabilities(held) == {kind}
    denied = apply(apply_delegation, allowed(kind), held, NamedToolFacts("x"), runs_here=True)
    assert denied.decision == "DENIED"
    assert denied.rule == f"capabilities[BackendTool.Invoke].insteadOf: {kind}"
    for capability, runs_here in ((kind, False), ("LLM.Call", True)):
        decision = allowed(capability)
        assert apply(apply_delegation, decision, held, NamedToolFacts("x"), runs_here=runs_here) is decision


def test_without_the_field_nothing_is_sent() -> None:
    for held in (bundle({"name": "BackendTool.Invoke"}), bundle({"name": "Shell.Exec"}), sending()):
        assert delegated_capabilities(held) == frozenset()
        for decision in (allowed("Shell.Exec"), allowed("File.Read")):
            assert apply(apply_delegation, decision, held, NamedToolFacts("x"), runs_here=True) is decision


def test_a_tool_of_a_kind_that_is_sent_is_not_offered_and_the_one_elsewhere_is() -> None:
    held = sending("Shell.Exec")
    assert "Backend Tool Service" in str(why_not_offered(held, "RunCommand", "Shell.Exec"))
    assert why_not_offered(held, "RunCommand", "Shell.Exec", elsewhere=True) is None
    assert why_not_offered(held, "ReadFile", "File.Read") is None


@pytest.mark.parametrize(
    ("kinds", "problem"),
    [
        (["Shell"], "capabilities[0].insteadOf[0]: 'Shell' has no tools that could run there"),
        (["LLM.Call"], "capabilities[0].insteadOf[0]: 'LLM.Call' has no tools that could run there"),
        (["Mcp.Invoke"], "capabilities[0].insteadOf[0]: 'Mcp.Invoke' has no tools that could run there"),
        ("Shell.Exec", "capabilities[0].insteadOf: "),
    ],
)
def test_other_names_are_problems(kinds: Any, problem: str) -> None:
    shape = {**sending().to_json(), "capabilities": [{"name": "BackendTool.Invoke", "insteadOf": kinds}]}
    with pytest.raises(BundleProblems) as caught:
        parse_bundle(shape)
    assert problem in str(caught.value)


def test_no_other_capability_has_it() -> None:
    shape = {**sending().to_json(), "capabilities": [{"name": "Mcp.Invoke", "insteadOf": ["Shell.Exec"]}]}
    with pytest.raises(BundleProblems, match=r"restricts nothing in Mcp\.Invoke"):
        parse_bundle(shape)


def test_two_commands_that_are_sent_are_two_actions() -> None:
    def form(command: str) -> tuple[str, ...]:
        also = (
            ("Shell.Exec", CommandFacts(command=command, cwd="/w", shell="bash")),
            ("File.Read", PathFacts("a", "/w/a", "/w/a", "file")),
        )
        return canonical_form(NamedToolFacts("RunCommand", "id", also=also), "posix")

    assert form("make") == form("make ")
    assert form("make") != form("make clean")
    assert canonical_form(NamedToolFacts("RunCommand", "id"), "posix") == ("tool", "RunCommand", "id")
