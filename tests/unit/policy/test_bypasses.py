"""Published ways round the permissions of other agents, as data: each must not be allowed here, and its harmless
neighbour must be. `bypasses/*.toml` name the source of each and say what went wrong there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from agent_host.host.environment import BUILT_IN
from agent_host.judging import Environment
from agent_host.judging.dry_run import case_from, judge_case
from tests.support.rows import each_row
from tests.support.tools import TOOLS

from .helpers import NOW, bundle

FAMILIES = sorted((Path(__file__).parent / "bypasses").glob("*.toml"))
HERE = Environment("/w", "/home/u", "posix", "bash")
CASE_FIELDS = ("toolName", "os", "shell", "cwd", "home", "capabilities", "facts")
SOURCE = re.compile(r"CVE-\d{4}-\d{4,}|GHSA(?:-[0-9a-z]{4}){3}|GTFOBins: [a-z0-9]+|https?://\S+")


def read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def rows(kind: str) -> list[Any]:
    """One parameter a case, the family's `given` filled in."""
    found = []
    for path in FAMILIES:
        family = read(path)
        given = family["given"]
        found += [pytest.param({**given, **row}, id=f"{path.stem}-{row['id']}") for row in family[kind]]
    return found


def judge(row: dict[str, Any]) -> tuple[str, str, str]:
    """Verdict, rule and reason, with nothing looked up on this machine's disk."""
    tool = TOOLS[row["toolName"]]
    arguments = {tool.subject.argument: row["call"], **row.get("arguments", {})}
    if tool.content is not None:
        arguments.setdefault(tool.content, "x")
    shape = {name: row[name] for name in CASE_FIELDS if name in row} | {"arguments": arguments}
    case = case_from({"facts": {}, **shape})
    answer = judge_case(bundle(*row["capabilities"]), case, HERE, BUILT_IN, now=NOW)
    return answer.decision, answer.rule, answer.reason


@each_row("row", rows("bypass"))
def test_what_others_fell_for_is_not_allowed(row: dict[str, Any]) -> None:
    decision, rule, reason = judge(row)
    assert decision == row.get("expected", "DENIED"), (rule, reason)
    assert rule.startswith(row.get("rule", "capabilities" if decision != "DENIED" else ""))
    assert reason


@each_row("row", rows("harmless"))
def test_its_harmless_neighbour_is_allowed(row: dict[str, Any]) -> None:
    decision, rule, reason = judge(row)
    assert decision == "ALLOWED", (rule, reason)


@each_row("path", FAMILIES, ids=lambda path: path.stem)
def test_every_case_names_its_source_and_no_two_are_the_same(path: Path) -> None:
    family = read(path)
    assert family["family"]
    assert family["harmless"]
    names = [row["id"] for kind in ("bypass", "harmless") for row in family[kind]]
    assert len(set(names)) == len(names)
    for row in family["bypass"]:
        assert SOURCE.fullmatch(row["source"]), row["id"]
        assert row["wrong"], row["id"]
        assert row.get("expected", "DENIED") in {"DENIED", "APPROVAL_REQUIRED"}, row["id"]
