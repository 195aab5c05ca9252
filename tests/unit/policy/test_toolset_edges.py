"""Which tools are offered, who withholds one, and what is above a ceiling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from policy.decide import check_tool
from policy.facts import CommandFacts
from policy.rules import NO_LIMITS, TaskOptions, ToolLimit
from policy.rules.narrowing import apply_risk_ceiling
from policy.rules.toolset import merge, why_not_offered, withheld_by
from tests.support.rows import each_row

from .helpers import NOW, apply, bundle, path

if TYPE_CHECKING:
    from policy import Decision, RiskLevel
    from policy.facts import OsFamily


def limits(*given: ToolLimit) -> frozenset[ToolLimit]:
    return frozenset(given)


ONLY_READ = ToolLimit("b: tools.allowed", allowed=frozenset({"Read"}))
NO_SHELL = ToolLimit("a: tools.disabled", withheld=frozenset({"Run"}))


def ceiling(level: RiskLevel) -> ToolLimit:
    return ToolLimit(f"c: {level}", risk_ceiling=level)


def test_a_tool_is_withheld_by_the_first_who_does_so() -> None:
    both = merge([limits(ONLY_READ), limits(NO_SHELL), limits(ONLY_READ)])
    assert both == limits(ONLY_READ, NO_SHELL)
    assert withheld_by(both, "Read", "File.Read") is None
    assert withheld_by(both, "Run", "Shell.Exec") == "a: tools.disabled"
    assert withheld_by(both, "Write", "File.Write") == "b: tools.allowed does not list it"
    assert withheld_by(NO_LIMITS, "Run", "Shell.Exec") is None
    of_one_source = limits(ONLY_READ._replace(source="a"), NO_SHELL._replace(source="a"))
    assert withheld_by(of_one_source, "Run", "Shell.Exec") == "a"
    assert merge([]) == NO_LIMITS


@each_row(
    ("capability", "withheld"),
    [
        ("File.Read", ()),
        ("Workspace.Upload", ()),
        ("LLM.Call", ()),
        ("File.Write", ("low",)),
        ("Shell.Exec", ("low",)),
        ("Network.Http", ("low",)),
        ("BackendTool.Invoke", ("low",)),
        ("Mcp.Invoke", ("low",)),
        ("Tool.Invoke", ("low",)),
        ("File.Delete", ("low", "medium")),
        ("What.Ever", ("low", "medium")),
    ],
)
def test_each_capability_has_a_risk_of_its_own(capability: str, withheld: tuple[str, ...]) -> None:
    levels: tuple[RiskLevel, ...] = ("low", "medium", "high")
    risk = ("low", "medium", "high")[len(withheld)]
    for level in levels:
        told = f"its risk is {risk}, and c: {level} admits {level} at most" if level in withheld else None
        assert withheld_by(limits(ceiling(level)), "T", capability) == told


@each_row(
    ("entry", "capability", "said"),
    [
        ({}, "File.Write", "the bundle does not grant File.Write"),
        ({}, "File.Read", None),
        ({"allowedPaths": []}, "File.Read", "File.Read.allowedPaths is empty"),
        ({"allowedPaths": ["/w"]}, "File.Read", None),
        ({"name": "Shell.Exec", "allowedCommands": []}, "Shell.Exec", "Shell.Exec.allowedCommands is empty"),
        ({"name": "Shell.Exec", "allowedCommands": ["ls"]}, "Shell.Exec", None),
        ({"name": "Network.Http", "allowedDomains": []}, "Network.Http", "Network.Http.allowedDomains is empty"),
        ({"name": "Tool.Invoke", "allowedToolNames": ["U"]}, "Tool.Invoke", "Tool.Invoke.allowedToolNames leaves out"),
        ({"name": "Tool.Invoke", "allowedToolNames": ["T"]}, "Tool.Invoke", None),
        ({"name": "Tool.Invoke"}, "Tool.Invoke", None),
        ({"name": "File.Read", "allowedToolNames": ["U"]}, "File.Read", None),
        ({"name": "Workspace.Upload", "allowedPaths": []}, "Workspace.Upload", None),
    ],
)  # fmt: skip
def test_a_tool_of_which_no_call_can_be_allowed_is_not_offered(
    entry: dict[str, Any], capability: str, said: str | None
) -> None:
    told = why_not_offered(bundle({"name": "File.Read", **entry}), "T", capability)
    assert (told and told.replace(" of the bundle", "").replace("does not list it", "leaves out")) == said


def test_what_the_task_takes_away_is_not_offered() -> None:
    held = bundle({"name": "Network.Http", "requiresApproval": True}, {"name": "File.Read"})
    assert why_not_offered(held, "T", "Network.Http") is None
    for options, capability, offered in (
        (TaskOptions("never"), "Network.Http", False),
        (TaskOptions("never"), "File.Read", True),
        (TaskOptions("always"), "Network.Http", True),
        (TaskOptions(None, allow_network=False), "Network.Http", False),
        (TaskOptions(None, allow_network=False), "File.Read", True),
        (TaskOptions(None, allow_network=True), "Network.Http", True),
    ):
        assert (why_not_offered(held, "T", capability, options=options) is None) is offered
    assert why_not_offered(held, "Run", "File.Read", limits=limits(NO_SHELL)) == "a: tools.disabled"


WRITES = bundle({"name": "File.Write"}, {"name": "Shell.Exec", "requiresApproval": True, "approvalRuleId": "r"})


def judged(place: str, *given: ToolLimit) -> Decision:
    facts = path(place)
    decision = check_tool(WRITES, "File.Write", facts, now=NOW, workspace="/w")
    return apply(apply_risk_ceiling, decision, WRITES, facts, limits=limits(*given), workspace="/w")


def test_a_call_above_a_ceiling_is_denied_by_the_first_that_it_is_above() -> None:
    assert judged("/w/a", ceiling("medium"), ONLY_READ).allowed
    assert judged("/w/a").allowed
    low = judged("/w/a", ceiling("low"), ceiling("high"))
    assert (low.decision, low.rule, low.risk_level, low.risks) == ("DENIED", "c: low", "medium", ())
    outside = judged("/x/a", ceiling("medium"), ceiling("low"))
    assert (outside.decision, outside.rule, outside.risk_level) == ("DENIED", "c: low", "high")
    assert outside.risks == ("writes outside the project directory: /x/a",)
    assert outside.reason == f"its risk is high, and c: low admits low at most; {outside.risks[0]}"
    assert judged("/x/a", ceiling("high")).allowed
    assert judged("/x/a", ceiling("medium"), ceiling("high")).rule == "c: medium"


def test_a_ceiling_denies_what_would_have_been_asked() -> None:
    facts = CommandFacts("evil", cwd="/w")
    asked = check_tool(WRITES, "Shell.Exec", facts, now=NOW)
    assert asked.decision == "APPROVAL_REQUIRED"
    answer = apply(apply_risk_ceiling, asked, WRITES, facts, limits=limits(ceiling("medium")))
    assert (answer.decision, answer.rule_id, answer.capability) == ("DENIED", None, "Shell.Exec")


def test_a_place_on_windows_is_compared_as_windows_does() -> None:
    facts = path("C:\\W\\a")
    decision = check_tool(WRITES, "File.Write", facts, now=NOW, os="windows")
    systems: dict[OsFamily, bool] = {"windows": True, "posix": False}
    for os, is_allowed in systems.items():
        low = limits(ceiling("medium"))
        answer = apply(apply_risk_ceiling, decision, WRITES, facts, limits=low, workspace="c:\\w", os=os)
        assert answer.allowed is is_allowed
