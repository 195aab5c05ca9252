"""Entries of block lists that name something at any depth: `ROOT/**/NAME`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.bundle import BundleProblems
from policy.bundle.validate import parse_bundle
from policy.decide import check_tool
from policy.paths import covering, is_under, join_nested, key, normalize, roots, split_nested
from policy.rules.toolset import why_not_offered
from tests.support.process import bundle as whole_bundle
from tests.support.rows import each_row
from tests.unit.policy.helpers import NOW, bundle, path

if TYPE_CHECKING:
    from policy.facts import OsFamily

ROOTS: dict[OsFamily, str] = {"posix": "/", "windows": "C:\\"}
SEPARATORS: dict[OsFamily, str] = {"posix": "/", "windows": "\\"}


def blocked(place: str, *entries: str, os: OsFamily = "posix") -> str | None:
    return covering(normalize(place, os), roots(entries, os, "wide"), os, "wide")


@each_row(
    ("os", "entry", "place", "is_blocked"),
    [
        ("posix", "/w/**/.vscode", "/w/.vscode", True),
        ("posix", "/w/**/.vscode", "/w/.vscode/tasks.json", True),
        ("posix", "/w/**/.vscode", "/w/a/b/.vscode/c/d", True),
        ("posix", "/w/**/.vscode", "/w/a/.VSCode/x", True),
        ("posix", "/w/**/.vscode", "/W/a/.vs\u200bcode", True),
        ("posix", "/w/**/.kube", "/w/a/.\u212aube", True),
        ("posix", "/w/**/\u00e9", "/w/a/e\u0301/b", True),
        ("posix", "/w/**/.vscode", "/w", False),
        ("posix", "/w/**/.vscode", "/w/a", False),
        ("posix", "/w/**/.vscode", "/w/a/x.vscode", False),
        ("posix", "/w/**/.vscode", "/w/a/.vscodex/b", False),
        ("posix", "/w/**/.vscode", "/w-2/.vscode", False),
        ("posix", "/w/**/.vscode", "/v/.vscode", False),
        ("posix", "/w/.vscode/**/.vscode", "/w/.vscode/a", False),
        ("posix", "/**/.ssh", "/home/u/.ssh/id", True),
        ("posix", "/**/.ssh", "/.ssh", True),
        ("posix", "/w/a/../**/x", "/w/b/x", True),
        ("posix", "/w//**//x/", "/w/b/x", True),
        ("posix", "/w/**/*.pem", "/w/a/b.pem", True),
        ("posix", "/w/**/*.pem", "/w/a/B.PEM/c", True),
        ("posix", "/w/**/*.pem", "/w/.pem", True),
        ("posix", "/w/**/*.pem", "/w/b.pem2", False),
        ("posix", "/w/**/*.pem", "/w/pem", False),
        ("posix", "/w/**/*.pem", "/b.pem", False),
        ("posix", "/w/**/*stra\u00dfe", "/w/xSTRASSE", True),
        ("posix", "/w/**/a/b", "/w/a/b", False),
        ("posix", "/w/**/a*", "/w/ab", False),
        ("posix", "/w/**/a/b", "/w/**/a/b", True),
        ("posix", "/*/**/x", "/w/x", False),
        ("posix", "/*/**/x", "/*/y/x", True),
        ("windows", "C:\\w\\**\\.vscode", "C:\\w\\a\\.vscode\\b", True),
        ("windows", "c:/W/**/.vscode", "C:\\w\\.VSCODE", True),
        ("windows", "C:\\**\\.vscode", "C:\\.vscode", True),
        ("windows", "C:\\**\\.vscode", "D:\\.vscode", False),
        ("windows", "C:\\w\\**\\*.code-workspace", "C:\\w\\a.code-workspace", True),
        ("windows", "\\\\srv\\share\\**\\x", "\\\\SRV\\share\\a\\x", True),
        ("windows", "\\\\srv\\share\\**\\x", "\\\\srv\\other\\x", False),
    ],
)
def test_a_name_is_blocked_at_any_depth_below_its_root(os: OsFamily, entry: str, place: str, is_blocked: bool) -> None:
    assert blocked(place, entry, os=os) == (entry if is_blocked else None)


@each_row(
    ("os", "spelled", "parts"),
    [
        ("posix", "/w/**/x", ("/w", "x")),
        ("posix", "/**/x", ("/", "x")),
        ("posix", "/w/**/*.x", ("/w", "*.x")),
        ("posix", "/w/**/a/**/x", ("/w/**/a", "x")),
        ("posix", "/w/**", None),
        ("posix", "/w/x", None),
        ("posix", "/w/**/x/y", None),
        ("posix", "/w/**/*", None),
        ("posix", "/w/**/**", None),
        ("posix", "/w/**/x*", None),
        ("posix", "/w/**/*x*", None),
        ("posix", "/w\\**\\x", None),
        ("windows", "C:\\w\\**\\x", ("C:\\w", "x")),
        ("windows", "C:\\**\\x", ("C:\\", "x")),
        ("windows", "\\\\h\\s\\**\\x", ("\\\\h\\s\\", "x")),
        ("windows", "C:\\w\\**", None),
    ],
)
def test_what_such_an_entry_is_made_of(os: OsFamily, spelled: str, parts: tuple[str, str] | None) -> None:
    assert split_nested(spelled, os) == parts
    if parts is not None:
        assert join_nested(*parts, os) == spelled


def test_it_means_nothing_where_something_is_permitted() -> None:
    table = roots(["/w/**/x"], "posix", "narrow")
    assert covering("/w/a/x", table, "posix", "narrow") is None
    assert covering("/w/**/x", table, "posix", "narrow") == "/w/**/x"
    entry = {"name": "File.Read", "allowedPaths": ["/w/**/x"]}
    assert check_tool(bundle(entry), "File.Read", path("/w/x"), now=NOW).decision == "DENIED"


def test_the_decision_names_the_entry() -> None:
    held = bundle({"name": "File.Write", "allowedPaths": ["/w"], "blockedPaths": ["/w/**/*.pem", "/w/**/.vscode"]})
    answer = check_tool(held, "File.Write", path("/w/a/.vscode/tasks.json"), now=NOW)
    assert answer.rule == "capabilities[File.Write].blockedPaths: /w/**/.vscode"
    assert check_tool(held, "File.Write", path("/w/a/tasks.json"), now=NOW).allowed
    through_a_link = path("/w/a/.vscode/x", "/w/elsewhere/x")
    assert check_tool(held, "File.Write", through_a_link, now=NOW).decision == "DENIED"


def test_places_go_first_and_each_entry_of_a_name_counts() -> None:
    entries = ["/w/**/x", "/w/a", "/v/**/x", "/w/a/**/y"]
    assert blocked("/w/a/x", *entries) == "/w/a"
    assert blocked("/w/b/x", *entries) == "/w/**/x"
    assert blocked("/v/b/x", *entries) == "/v/**/x"
    assert blocked("/w/b/y", *entries) is None
    assert blocked("/w/x/**/y/x", "/w/**/y") == "/w/**/y"


def test_where_the_root_or_the_place_itself_is_a_link_both_count() -> None:
    real = {"/w/**/x": "/real/**/x", "/w/x": "/elsewhere/x-1"}
    table = roots(["/w/**/x"], "posix", "wide", real)
    found = [covering(one, table, "posix", "wide") for one in ("/w/a/x", "/real/a/x", "/elsewhere/x-1/a", "/elsewhere")]
    assert found == ["/w/**/x"] * 3 + [None]


# Against the plain way

NAMES = ["a", "A", "b", "ab", ".v", "x.v", "\u00e9", "e\u0301", "a\u200b", "ss", "\u00df", "**"]
PARTS = st.lists(st.sampled_from(NAMES), max_size=6)
ENDED = st.sampled_from(["a", ".v", "*.v", "*a", "*b", "*\u00e9", "*ss", "ab", "*ab", "\u00df"])


@st.composite
def entries_of(draw: st.DrawFn, os: OsFamily) -> str:
    place = ROOTS[os] + SEPARATORS[os].join(draw(PARTS.filter(lambda parts: "**" not in parts)))
    return join_nested(place, draw(ENDED), os) if draw(st.booleans()) else place


def plainly(place: str, entry: str, os: OsFamily) -> bool:
    parts = split_nested(normalize(entry, os), os)
    if parts is None:
        return is_under(place, entry, os, "wide")
    root, name = parts
    components = place[len(ROOTS[os]) :].split(SEPARATORS[os])
    for count, component in enumerate(components):
        above = ROOTS[os] + SEPARATORS[os].join(components[:count])
        found, wanted = key(component, os, "wide"), key(name, os, "wide")
        same = found.endswith(wanted[1:]) if wanted.startswith("*") else found == wanted
        if component and same and is_under(above, root, os, "wide"):
            return True
    return False


@given(st.data(), st.sampled_from(list(ROOTS)))
def test_the_look_up_finds_what_a_plain_search_finds(data: st.DataObject, os: OsFamily) -> None:
    entries = data.draw(st.lists(entries_of(os), max_size=6))
    place = normalize(ROOTS[os] + SEPARATORS[os].join(data.draw(PARTS)), os)
    over = [entry for entry in entries if plainly(place, entry, os)]
    found = blocked(place, *entries, os=os)
    assert (found in over) if over else found is None


# The cost


class Counted(dict[str, Any]):
    """A table that counts how often it is asked."""

    asked = 0

    def __contains__(self, name: object) -> bool:
        type(self).asked += 1
        return super().__contains__(name)


@pytest.mark.parametrize("count", [1, 10_000])
def test_the_work_follows_the_path_and_not_the_entries(count: int) -> None:
    entries = [f"/w/{n}/**/name-{n}" for n in range(count)] + [f"/w/**/.name-{n}" for n in range(count)]
    table = roots([*entries, "/w/**/*.end", "/w/**/*.other"], "posix", "wide")
    assert table.nested is not None
    Counted.asked = 0
    counted = table._replace(nested=table.nested._replace(names=Counted(table.nested.names)))
    for last in ("", "/a.end"):  # which of them is below a root is a question only where there is such a name
        found = covering("/v/0" + "/d" * 500 + "/name-0" * 500 + last, counted, "posix", "wide")
        assert (found, Counted.asked < 8 * 1002) == (None, True)
    assert table.nested.longest <= len("/w/10000")


# What a bundle may say


def problems(field: str, entry: str) -> list[str]:
    grants = {"File.Read": {field: [entry]}}
    try:
        parse_bundle(whole_bundle(Path("/srv"), grants=grants))
    except BundleProblems as found:
        return [str(problem) for problem in found.problems]
    return []


GOOD = ["/w/**/.vscode", "/**/.ssh", "/w/**/*.code-workspace", "C:\\w\\**\\.vscode", "c:/w/**/*.x", "\\\\h\\s\\**\\x"]


@pytest.mark.parametrize("entry", GOOD)
def test_it_is_for_block_lists(entry: str) -> None:
    assert problems("blockedPaths", entry) == []
    (problem,) = problems("allowedPaths", entry)
    assert "is a pattern" in problem
    assert "leave the stars out; ROOT/**/NAME is for blockedPaths" in problem


@each_row(
    ("entry", "hint"),
    [
        ("/w/*", "leave the stars out"),
        ("/w/**", "leave the stars out"),
        ("/w/**/", "leave the stars out"),
        ("C:\\w\\**", "leave the stars out"),
        ("/w/**/*", "leave the stars out"),
        ("/w/**/a/b", "ROOT/**/NAME"),
        ("/w/*/.vscode", "ROOT/**/NAME"),
        ("/w/**/a*", "ROOT/**/NAME"),
        ("/w/**/*a*", "ROOT/**/NAME"),
        ("/w/**/a/**/b", "ROOT/**/NAME"),
        ("/w/*.pem", "ROOT/**/NAME"),
        ("C:\\w\\*.pem", "ROOT/**/NAME"),
        ("/w/*/a/**/b", "ROOT/**/NAME"),
    ],
)
def test_stars_that_mean_nothing_are_refused(entry: str, hint: str) -> None:
    (problem,) = problems("blockedPaths", entry)
    assert f"{entry!r} is a pattern" in problem
    assert hint in problem


@pytest.mark.parametrize("entry", ["/w/a*b", "/w/a*", "/w"])
def test_a_star_inside_of_a_name_is_part_of_it(entry: str) -> None:
    assert problems("blockedPaths", entry) == problems("allowedPaths", entry) == []
    assert blocked(entry + "/x", entry) == entry


# Which tools are shown


def test_a_tool_is_shown_unless_all_that_it_may_touch_is_blocked() -> None:
    def hidden(*allowed: str) -> str | None:
        entry = {"name": "File.Write", "allowedPaths": list(allowed), "blockedPaths": ["/w/**/.vscode"]}
        return why_not_offered(bundle(entry), "WriteFile", "File.Write", workspace="/w")

    assert hidden("/w") is None
    assert hidden("/w/a/.vscode") is not None
