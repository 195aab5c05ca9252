"""The rule for trees says of each file what the rule for one file says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import example, given, settings
from hypothesis import strategies as st

from policy.bundle import scope_of_call
from policy.decide import check_tool
from policy.facts import PathFacts
from policy.rules.paths import TreeRule
from tests.support.rows import each_row
from tests.unit.policy.helpers import NOW, bundle

if TYPE_CHECKING:
    from policy.bundle import PolicyBundle

NAMES = ("w", "a", ".env", "x.pem", "W", "proc", "tmp", "agent-host-s-00000000", "Straße", "STRASSE", "dev", "fd")
PATHS = st.lists(st.sampled_from(NAMES), max_size=4).map(lambda parts: "/" + "/".join(parts))
NESTED = st.tuples(PATHS, st.sampled_from([".env", "*.pem", "a"])).map(
    lambda both: f"{both[0].rstrip('/')}/**/{both[1]}"
)
ALLOWED = st.none() | st.lists(PATHS, max_size=3)
BLOCKED = st.none() | st.lists(PATHS | NESTED, max_size=3)


def reading(allowed: list[str] | None, blocked: list[str] | None) -> PolicyBundle:
    lists = {"allowedPaths": allowed, "blockedPaths": blocked}
    return bundle({"name": "File.Read", **{name: value for name, value in lists.items() if value is not None}})


def rule_of(held: PolicyBundle) -> TreeRule:
    scope = scope_of_call(held, "File.Read", "posix")
    assert scope is not None
    return TreeRule(scope.allowed_paths, scope.blocked_paths, "posix")


def allows(held: PolicyBundle, path: str) -> bool:
    return check_tool(held, "File.Read", PathFacts(path, path, path, "file"), now=NOW).allowed


@settings(max_examples=400)
@given(ALLOWED, BLOCKED, PATHS, st.dictionaries(PATHS, PATHS, max_size=2))
@example(["/"], None, "/proc", {"/": "/proc"})
@example(["/w"], None, "/proc/a", {"/w": "/proc/a"})
def test_each_path_has_the_answer_of_the_rule_for_one(
    allowed: list[str] | None, blocked: list[str] | None, path: str, links: dict[str, str]
) -> None:
    held = reading(allowed, blocked).set_real_places({"allowed": links, "blocked": links})
    assert rule_of(held).admits(path) == allows(held, path)


@settings(max_examples=400)
@given(ALLOWED, BLOCKED, PATHS, st.lists(st.sampled_from(NAMES), min_size=1, max_size=3))
def test_what_holds_for_a_directory_holds_for_all_below(
    allowed: list[str] | None, blocked: list[str] | None, directory: str, parts: list[str]
) -> None:
    rule = rule_of(reading(allowed, blocked))
    path = directory.rstrip("/") + "/" + "/".join(parts)
    below = rule.judge_below(directory)
    if below == "all" or (below == "named" and not any(map(rule.is_named, parts))):
        assert rule.admits(path)
    if below == "none":
        assert not rule.admits(path)


@each_row(
    ("allowed", "blocked", "directory", "below"),
    [
        (["/w"], None, "/w", "named"),
        (None, None, "/w", "all"),
        (None, None, "/", "each"),
        (["/w"], ["/w/a"], "/w", "each"),
        (["/w"], ["/w/a"], "/w/a", "none"),
        (["/w"], ["/w/a"], "/w/b", "named"),
        (["/w"], None, "/", "each"),
        (["/w"], None, "/x", "none"),
        (["/w"], ["/**/.env"], "/w", "named"),
        (["/w"], ["relative"], "/w", "none"),
        (["/w"], None, "/w/agent-host-app/src", "named"),
    ],
)
def test_most_trees_need_one_question_a_directory(
    allowed: list[str] | None, blocked: list[str] | None, directory: str, below: str
) -> None:
    assert TreeRule(allowed, blocked, "posix").judge_below(directory) == below


def test_windows() -> None:
    rule = TreeRule(["C:\\w"], ["C:\\w\\**\\.env", "C:\\w\\secret"], "windows")
    assert rule.admits("C:\\w\\A")
    assert not rule.admits("C:\\w\\a\\.ENV")
    assert not rule.admits("C:\\W\\SECRET\\x")
    assert rule.judge_below("C:\\w\\a") == "named"
    assert rule.is_named(".Env")
    assert TreeRule(None, ["C:\\w"], "windows").admits("D:\\x")
    assert not TreeRule(None, ["C:\\w"], "windows").admits("\\\\h\\s\\x")
