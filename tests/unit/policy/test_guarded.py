"""Tools that are off until the user enables them, and then asked for by their names, whatever a bundle grants."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.host.environment import built_in
from agent_host.judging import Environment, Judge, Registry
from config.policies import BUILT_IN, template
from policy.bundle.builtin import PlaceholderValues, instantiate
from policy.facts import ScriptFacts
from policy.rules import AS_THE_BUNDLE_SAYS, TaskOptions, ToolLimit
from policy.rules.toolset import GUARDED_TOOLS, RULE, SETTING, only_enabled, risk_of_guarded
from tests.support.judging import decided_call, problem_with, withheld_by
from tests.support.rows import each_row

if TYPE_CHECKING:
    from agent_host.contracts import ToolError
    from policy.bundle import PolicyBundle
    from policy.rules import Limits

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
CALLS: dict[str, dict[str, Any]] = {
    "run_script": {"skill": "forms", "relative_path": "scripts/fill.py"},
    "write_file": {"path": "/w/a", "content": "x"},
    "delete_file": {"path": "/w/a"},
    "network_request": {"url": "https://example.com/"},
}
ALL = frozenset({only_enabled(GUARDED_TOOLS)})


class Scripts:
    """One script of one skill, with its `allowed-tools`."""

    def __init__(self, allowed: tuple[str, ...] | None = None, program: str = "/bin/cat") -> None:
        self._allowed = allowed
        self._program = program

    sandbox = "/s/sandbox"
    max_runs = 6

    def look_up(self, skill: str, relative_path: str) -> ScriptFacts | ToolError:
        path, argv = f"/skills/forms/{relative_path}", (self._program,)
        return ScriptFacts(skill, relative_path, "/skills/forms", path, argv, "ab", self._allowed)


def of_built_in(name: str) -> PolicyBundle:
    return instantiate(
        template(name),
        PlaceholderValues("/w", "/home/u", "/state", "posix", tmp="/t"),
        session_id="s",
        now=NOW,
        models=("m",),
        unchanged=(),
        programs=(),
    )


def judge(policy: str = "full", limits: Limits = ALL, options: TaskOptions = AS_THE_BUNDLE_SAYS, **more: Any) -> Judge:
    here = Environment("/w", "/home/u", "posix", "bash", {"PATH": "/usr/bin:/bin"})
    return Judge(of_built_in(policy), here, built_in(), limits, lambda: NOW, options, **{"scripts": Scripts(), **more})


def test_the_calls_are_those_of_all_guarded_tools() -> None:
    assert set(CALLS) == set(GUARDED_TOOLS)


@each_row("tool", CALLS)
@each_row("policy", BUILT_IN)
def test_off_unless_it_is_enabled(policy: str, tool: str) -> None:
    for enabled in ((), [name for name in CALLS if name != tool], ["*"]):
        judging = judge(policy, frozenset({only_enabled(enabled)}))
        assert withheld_by(decided_call(judging, tool, CALLS[tool])) == f"{SETTING} in the configuration"
        assert tool not in {spec.name for spec in judging.offered_tools()}


@pytest.mark.parametrize("tool", CALLS)
def test_asked_for_under_full(tool: str) -> None:
    decision = decided_call(judge(), tool, CALLS[tool]).decision
    assert decision is not None
    assert (decision.decision, decision.rule, decision.by_name) == ("APPROVAL_REQUIRED", RULE, True)
    assert decision.risk_level in ("high", "medium" if tool == "run_script" else "high")


@pytest.mark.parametrize(
    ("tool", "risk"),
    [("run_script", "medium"), ("write_file", "high"), ("delete_file", "high"), ("network_request", "high")],
)
def test_each_tool_has_the_risk_of_the_specification(tool: str, risk: str) -> None:
    """SK 2.3; what only reads is low, and so it is all that a ceiling of low leaves."""
    found = decided_call(judge(), tool, CALLS[tool]).decision
    assert found is not None
    assert found.risk_level == risk
    assert risk_of_guarded(tool, built_in()._by_name[tool].capability) == risk
    left = {spec.name for spec in judge(limits=ALL | {ToolLimit("ceiling", risk_ceiling="low")}).offered_tools()}
    assert left >= {"read_file", "list_dir", "grep"}
    assert tool not in left


@each_row("tool", CALLS)
@each_row("policy", BUILT_IN)
def test_no_built_in_lets_it_pass(policy: str, tool: str) -> None:
    """And what the bundle asks for by a rule of its own is still asked for by the tool's name."""
    decision = decided_call(judge(policy), tool, CALLS[tool]).decision
    assert decision is not None
    assert decision.decision != "ALLOWED"
    assert decision.by_name == (decision.decision == "APPROVAL_REQUIRED")


@pytest.mark.parametrize("tool", CALLS)
def test_a_task_that_asks_nobody_is_not_shown_it(tool: str) -> None:
    judging = judge(options=TaskOptions("never"))
    decision = decided_call(judging, tool, CALLS[tool]).decision
    assert decision is not None
    assert (decision.decision, decision.no_approver, decision.by_name) == ("DENIED", True, True)
    assert tool not in {spec.name for spec in judging.offered_tools()}


@each_row("tool", CALLS)
@each_row("ceiling", ["low", "medium", "high"])
def test_its_risk_counts_under_a_ceiling(tool: str, ceiling: Any) -> None:
    judging = judge(limits=ALL | {ToolLimit("ceiling", risk_ceiling=ceiling)})
    least = risk_of_guarded(tool, built_in()._by_name[tool].capability)
    order = ["low", "medium", "high"]
    assert least is not None
    fits = order.index(least) <= order.index(ceiling)
    assert (tool in {spec.name for spec in judging.offered_tools()}) == fits


def test_tools_of_others_with_such_a_name_are_theirs() -> None:
    """They are judged by Tool.Invoke, and no rule here is about that."""
    theirs = built_in()._by_name["write_file"]._replace(capability="Tool.Invoke")
    assert risk_of_guarded("write_file", "Tool.Invoke") is None
    judging = judge()
    judging.tools = Registry([theirs._replace(subject=theirs.subject._replace(kind="name", argument=""))])
    decision = decided_call(judging, "write_file", {}).decision
    assert decision is not None
    assert decision.allowed


def test_reading_needs_nothing_of_it() -> None:
    for tool, arguments in (("read_file", {"path": "/w/a"}), ("list_dir", {}), ("grep", {"pattern": "x"})):
        decision = decided_call(judge(limits=frozenset({only_enabled(())})), tool, arguments).decision
        assert decision is not None
        assert decision.allowed


# Scripts


@pytest.mark.parametrize(
    ("path", "leads_to"),
    [
        ("scripts/../../x", "/skills/x"),
        ("scripts", "/skills/forms/scripts"),
        ("scriptsx/a", "/skills/forms/scriptsx/a"),
        ("SKILL.md", "/skills/forms/SKILL.md"),
        ("scripts/link", "/etc/passwd"),
    ],
)
def test_a_script_that_leads_elsewhere_is_denied_for_its_place(path: str, leads_to: str) -> None:
    class Elsewhere(Scripts):
        def look_up(self, skill: str, relative_path: str) -> ScriptFacts | ToolError:
            return ScriptFacts(skill, relative_path, "/skills/forms", leads_to)

    found = decided_call(judge(scripts=Elsewhere()), "run_script", {"skill": "forms", "relative_path": path})
    assert found.decision is not None
    assert (found.decision.decision, found.decision.rule) == ("DENIED", "builtin.scriptPlaces")


@pytest.mark.parametrize("program", ["/bin/cat", "/bin/sh", "/opt/own/interpreter"])
def test_a_script_has_one_risk_whatever_runs_it(program: str) -> None:
    found = decided_call(judge(scripts=Scripts(program=program)), "run_script", CALLS["run_script"]).decision
    assert found is not None
    assert (found.risk_level, found.risks) == ("medium", ())


@pytest.mark.parametrize(
    ("allowed", "decision"),
    [
        (None, "APPROVAL_REQUIRED"),
        ((), "DENIED"),
        (("Read",), "DENIED"),
        (("Bash(cat scripts/other.py:*)",), "DENIED"),
        (("Bash(cat scripts/fill.py:*)",), "APPROVAL_REQUIRED"),
        (("Bash",), "APPROVAL_REQUIRED"),
        (("run_script",), "APPROVAL_REQUIRED"),
    ],
)
def test_a_script_is_under_the_list_of_its_skill_without_load_skill(
    allowed: tuple[str, ...] | None, decision: str
) -> None:
    found = decided_call(judge(scripts=Scripts(allowed)), "run_script", CALLS["run_script"]).decision
    assert found is not None
    assert found.decision == decision
    assert (found.rule == "the skill forms") == (decision == "DENIED")


def test_only_so_many_run_in_a_task() -> None:
    for runs, decision in ((5, "APPROVAL_REQUIRED"), (6, "DENIED"), (7, "DENIED")):
        found = decided_call(judge(script_runs=lambda runs=runs: runs), "run_script", CALLS["run_script"]).decision
        assert found is not None
        assert found.decision == decision


def test_the_program_that_runs_it_is_judged_as_a_command() -> None:
    judging = judge()
    found = decided_call(judging, "run_script", {**CALLS["run_script"], "args": ["a b", "$(id)"]})
    assert found.facts is not None
    assert found.facts.command == "cat /skills/forms/scripts/fill.py 'a b' '$(id)'"  # type: ignore[union-attr]
    assert found.facts.cwd == "/s/sandbox/run"  # type: ignore[union-attr]
    blocked = judging.bundle.capabilities[3]._replace(blocked_commands=("cat",))
    judging.bundle = judging.bundle._replace(capabilities=(blocked,))
    denied = decided_call(judging, "run_script", CALLS["run_script"]).decision
    assert denied is not None
    assert (denied.decision, "blockedCommands" in denied.rule) == ("DENIED", True)


@pytest.mark.parametrize(
    "arguments",
    [
        {"skill": "forms"},
        {"skill": 3, "relative_path": "scripts/a.py"},
        {"skill": "forms", "relative_path": "scripts/a.py", "args": "x"},
        {"skill": "forms", "relative_path": "scripts/a.py", "args": ["\0"]},
        {"skill": "forms", "relative_path": "a\0"},
    ],
)
def test_what_names_no_script(arguments: dict[str, Any]) -> None:
    found = decided_call(judge(), "run_script", arguments)
    assert problem_with(found)
