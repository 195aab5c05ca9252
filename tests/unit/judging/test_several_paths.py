"""Calls that need several capabilities, of one path or of several: each is judged, the strictest decision counts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.contracts import Maker
from agent_host.host.environment import BUILT_IN
from agent_host.judging import Environment, Judge
from agent_host.judging.dry_run import case_from, judge_case
from policy.bundle import policy_hash
from policy.facts import PathFacts
from policy.rules import NO_LIMITS, TaskOptions, ToolLimit
from policy.rules.canonical import move_problem, place_of, same_action
from tests.support.judging import decided_call, problem_with, withheld_by
from tests.unit.policy.helpers import NOW, bundle

if TYPE_CHECKING:
    from pathlib import Path

    from policy import Decision
    from policy.bundle import PolicyBundle


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "a").write_text("12345")
    return tmp_path


def granted(place: Path, **changes: dict[str, Any]) -> PolicyBundle:
    """File.Read, File.Write and File.Delete of the folder, with `changes` by the second word of their name."""
    base = {"allowedPaths": [str(place)]}
    return bundle(
        *({"name": f"File.{kind}", **base, **changes.get(kind, {})} for kind in ("Read", "Write", "Delete")),
        approvalRules=[{"approvalRuleId": "r", "title": "t", "description": "d"}],
    )


def judge(place: Path, held: PolicyBundle, **more: Any) -> Judge:
    here = Environment(str(place), "/home/u", "posix", "bash")
    return Judge(held, here, BUILT_IN, more.pop("limits", NO_LIMITS), lambda: NOW, **more)


def decided(place: Path, held: PolicyBundle, tool: str, **arguments: Any) -> Decision:
    decision = decided_call(judge(place, held), tool, arguments).decision
    assert decision is not None
    return decision


def move(place: Path, held: PolicyBundle, path: str = "a", new_path: str = "b") -> Decision:
    return decided(place, held, "MoveFile", path=path, newPath=new_path)


def test_all_are_needed(place: Path) -> None:
    assert move(place, granted(place)).decision == "ALLOWED"
    for kind in ("Read", "Write", "Delete"):
        held = granted(place)
        held = held._replace(capabilities=tuple(one for one in held.capabilities if one.name != f"File.{kind}"))
        decision = move(place, held)
        assert (decision.decision, decision.capability) == ("DENIED", f"File.{kind}")
        assert "MoveFile" not in {spec.name for spec in judge(place, held).offered_tools()}


@pytest.mark.parametrize(
    ("kind", "path", "decision"),
    [
        ("Delete", "a", "DENIED"),
        ("Read", "a", "DENIED"),
        ("Write", "a", "ALLOWED"),
        ("Write", "b", "DENIED"),
        ("Read", "b", "ALLOWED"),
        ("Delete", "b", "ALLOWED"),
    ],
)
def test_each_path_has_its_capabilities(place: Path, kind: str, path: str, decision: str) -> None:
    held = granted(place, **{kind: {"blockedPaths": [str(place / path)]}})
    assert move(place, held).decision == decision


def test_where_links_lead_counts_at_both_ends(place: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (place / "out").symlink_to(outside)
    (outside / "x").write_text("x")
    assert move(place, granted(place), new_path="out/b").decision == "DENIED"
    assert move(place, granted(place), path="out/x").decision == "DENIED"


def test_the_size_of_what_moves_is_that_of_what_is_written(place: Path) -> None:
    assert move(place, granted(place, Write={"maxFileSizeBytes": 5})).decision == "ALLOWED"
    assert move(place, granted(place, Write={"maxFileSizeBytes": 4})).decision == "DENIED"


def test_an_approval_of_any_is_one_of_the_call(place: Path) -> None:
    for kind in ("Read", "Write", "Delete"):
        decision = move(place, granted(place, **{kind: {"requiresApproval": True, "approvalRuleId": "r"}}))
        assert (decision.decision, decision.capability, decision.rule_id) == ("APPROVAL_REQUIRED", f"File.{kind}", "r")
    asks = {"requiresApproval": True, "approvalRuleId": "r"}
    decision = move(place, granted(place, Read=asks, Delete=asks))
    assert decision.risk_level == "high"


def test_an_edit_reads_and_writes(place: Path) -> None:
    edits = [{"oldText": "1", "newText": "2"}]
    assert decided(place, granted(place), "EditFile", path="a", edits=edits).decision == "ALLOWED"
    for kind in ("Read", "Write"):
        held = granted(place, **{kind: {"blockedPaths": [str(place / "a")]}})
        assert decided(place, held, "EditFile", path="a", edits=edits).decision == "DENIED"


def test_options_and_limits_look_at_all(place: Path) -> None:
    asked = judge(place, granted(place), options=TaskOptions(approval_mode="always"))
    decision = decided_call(asked, "MoveFile", {"path": "a", "newPath": "b"}).decision
    assert decision is not None
    assert decision.decision == "APPROVAL_REQUIRED"
    low = frozenset({ToolLimit("mine", risk_ceiling="medium")})
    assert withheld_by(
        decided_call(judge(place, granted(place), limits=low), "MoveFile", {"path": "a", "newPath": "b"})
    )


def test_both_ends_are_what_an_approval_is_for(place: Path) -> None:
    held = granted(place)
    actions = set()
    for new_path in ("b", "c"):
        facts = decided_call(judge(place, held), "MoveFile", {"path": "a", "newPath": new_path}).facts
        assert isinstance(facts, PathFacts)
        assert facts.real_paths == (str(place / "a"), str(place / new_path))
        told = frozenset({"path", "newPath"})
        actions.add(same_action("MoveFile", {}, facts, policy_hash(held), fact_arguments=told, os="posix"))
        assert place_of(facts) != place_of(facts._replace(also=()))
        said = move_problem(place_of(facts), place_of(facts._replace(real_path="/x")))
        assert said is not None
        assert f"{place / 'a'} and {place / new_path}" in said
    assert len(actions) == 2


def test_facts_that_a_case_states_are_about_its_first_path(place: Path) -> None:
    case = case_from(
        {
            "toolName": "MoveFile",
            "arguments": {"path": "a", "newPath": "b"},
            "cwd": str(place),
            "facts": {"realPath": "/etc/passwd", "exists": True},
        }
    )
    here = Environment(str(place), "/home/u", "posix", "bash")
    decision = judge_case(granted(place), case, here, BUILT_IN, now=datetime(2026, 1, 1, 12, tzinfo=UTC))
    assert (decision.decision, decision.capability) == ("DENIED", "File.Delete")


@pytest.mark.parametrize("arguments", [{"path": "a"}, {"path": "a", "newPath": ""}, {"path": "a", "newPath": "b\0"}])
def test_each_path_must_be_one(place: Path, arguments: dict[str, Any]) -> None:
    judged = decided_call(judge(place, granted(place)), "MoveFile", arguments)
    assert "'newPath'" in problem_with(judged)


@pytest.mark.parametrize(
    ("capabilities", "lacks"),
    [
        (("Network.Http",), {"Network.Http"}),
        (("Network.Http", "File.Read"), {"Network.Http", "File.Read"}),
        (("Network.Http", "File.Write"), {"Network.Http", "File.Write"}),
        ((), {"Network.Http", "File.Read", "File.Write"}),
    ],
    ids=["neither", "sent a file", "saved a file", "of an older version"],
)
def test_who_reads_an_output_needs_all_that_its_call_needed(
    place: Path, capabilities: tuple[str, ...], lacks: set[str]
) -> None:
    for missing in ("Network.Http", "File.Read", "File.Write", "Shell.Exec"):
        names = {"Network.Http", "File.Read", "File.Write", "Shell.Exec"} - {missing}
        held = bundle(*({"name": name} for name in sorted(names)))
        outputs = {"artifacts/art_1": Maker("HttpRequest", capabilities)}
        found = decided_call(judge(place, held, outputs=outputs.get), "ReadOutput", {"ref": "artifacts/art_1"}).decision
        assert found is not None
        assert (found.decision == "DENIED") == (missing in lacks)
