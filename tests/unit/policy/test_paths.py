from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.paths import covering, is_absolute, is_under, normalize, problem_with, process_place, roots

if TYPE_CHECKING:
    from policy.facts import OsFamily
    from policy.paths import Width

NAMES = st.text(st.characters(exclude_characters='/\\\0:*?"<>|', exclude_categories=["Cs", "Cc"]), min_size=1).filter(
    lambda name: name not in {".", "..", "~"}
)
PARTS = st.lists(st.one_of(NAMES, st.sampled_from([".", "..", ""])), max_size=8)
ROOTS: dict[OsFamily, str] = {"posix": "/", "windows": "C:\\"}
SEPARATORS: dict[OsFamily, str] = {"posix": "/", "windows": "\\"}
FAMILIES = st.sampled_from(list(ROOTS))


@pytest.mark.parametrize(
    ("os", "path", "expected"),
    [
        ("posix", "/a/./b//c/..", "/a/b"),
        ("posix", "/../../a", "/a"),
        ("posix", "//a", "/a"),
        ("posix", "/", "/"),
        ("posix", "a/../..", ".."),
        ("windows", "c:/a\\.\\b/..", "C:\\a"),
        ("windows", "C:\\..\\a", "C:\\a"),
        ("windows", "\\\\srv\\share\\..\\a", "\\\\srv\\share\\a"),
        ("windows", "//srv/share/a", "\\\\srv\\share\\a"),
    ],
)
def test_normal_forms(os: OsFamily, path: str, expected: str) -> None:
    assert normalize(path, os) == expected


def test_relative_paths_and_home_are_resolved_when_given() -> None:
    assert normalize("../x", "posix", cwd="/a/b") == "/a/x"
    assert normalize("~/x", "posix", cwd="/a", home="/home/u") == "/home/u/x"
    assert normalize("x", "windows", cwd="D:\\a") == "D:\\a\\x"
    assert normalize("\\x", "windows", cwd="D:\\a") == "D:\\x"


@pytest.mark.parametrize(
    ("os", "path", "root", "expected"),
    [
        ("posix", "/a/b/c", "/a/b", True),
        ("posix", "/a/bc", "/a/b", False),
        ("posix", "/a/b", "/a/b/", True),
        ("posix", "/a/b/../c", "/a/b", False),
        ("posix", "/x", "/", True),
        ("posix", "/", "/", True),
        ("posix", "/A/x", "/a", False),
        ("posix", "a/b", "/", False),
        ("posix", "/a/b", "a", False),
        ("windows", "c:\\A\\b", "C:/a", True),
        ("windows", "C:\\ab", "C:\\a", False),
        ("windows", "D:\\a", "C:\\a", False),
        ("windows", "\\\\S\\H\\x", "\\\\s\\h", True),
        ("windows", "C:\\stra\u00dfe\\x", "C:\\strasse", False),
        ("windows", "C:\\\u00c9\\x", "C:\\\u00e9", True),
    ],
)
def test_containment_is_by_component(os: OsFamily, path: str, root: str, expected: bool) -> None:
    assert is_under(path, root, os) is expected


def test_refusing_looks_wider_than_permitting() -> None:
    assert is_under("C:\\stra\u00dfe\\x", "C:\\strasse", "windows", "wide")
    assert is_under("/a/e\u0301", "/a/\u00e9", "posix", "wide")
    assert not is_under("/a/e\u0301", "/a/\u00e9", "posix")


@pytest.mark.parametrize(
    ("path", "root"),
    [
        ("/h/.SSH/id", "/h/.ssh"),
        ("/h/.ssh/id", "/H/.Ssh"),
        ("/h/\u00c9t\u00c9/x", "/h/\u00e9t\u00e9"),
        ("/h/E\u0301/x", "/h/\u00e9"),
        ("/h/stra\u00dfe/x", "/h/STRASSE"),
        ("/h/.\u017fsh/x", "/h/.ssh"),
        ("/h/.\u212aube/x", "/h/.kube"),
        ("/h/\u03a3\u03c2/x", "/h/\u03c3\u03c3"),
        ("/h/.s\u200csh/x", "/h/.ssh"),
        ("/h/.ss\ufeffh/x", "/h/.ssh"),
        ("/h/.ss\u3164h/x", "/h/.ssh"),
        ("/h/.s\u061csh/x", "/h/.ssh"),
        ("/h/.s\U000e0041sh/x", "/h/.ssh"),
    ],
)
def test_any_posix_system_may_have_a_file_system_that_folds(path: str, root: str) -> None:
    assert is_under(path, root, "posix", "wide")
    assert not is_under(path, root, "posix")


def test_folding_keeps_to_components() -> None:
    assert not is_under("/h/.SSHX/id", "/h/.ssh", "posix", "wide")
    assert not is_under("/h/stra\u00dfe", "/h/strasses", "posix", "wide")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/proc", "/proc"),
        ("/proc/self/environ", "/proc"),
        ("//proc/./1", "/proc"),
        ("/a/../proc/1", "/proc"),
        ("/proc/self/cwd/../../../a", "/proc"),
        ("/../proc", "/proc"),
        ("/dev/fd/1", "/dev/fd"),
        ("/dev//fd", "/dev/fd"),
        ("/dev/null", None),
        ("/processes/fd", None),
        ("/a/proc/dev/fd", None),
        ("/dev/a/../fdx", None),
        ("proc/1", None),
        ("", None),
    ],
)
def test_spellings_that_pass_through_what_each_process_sees_differently(path: str, expected: str | None) -> None:
    assert process_place(path, "posix") == expected
    assert process_place(path, "windows") is None


@pytest.mark.parametrize(
    "path",
    [
        "C:\\a\\NUL", "C:\\con.txt", "C:\\a\\com1", "C:\\a\\LPT\u00b9.log", "C:\\a\\f.txt::$DATA", "C:\\a:b", "C:a",
        "\\a", "C:\\a.\\b", "C:\\a \\b", "\\\\?\\C:\\a", "\\\\.\\pipe\\x", "//?/C:/a", "C:\\PROGRA~1\\x", "C:\\a\0",
        "C:\\MY~SEC~1\\x", "C:\\~1",
        "C:\\a*", "",
    ],
)  # fmt: skip
def test_windows_spellings_that_are_refused(path: str) -> None:
    assert problem_with(path, "windows") is not None


@pytest.mark.parametrize(
    "path",
    ["C:\\a\\console.txt", "C:\\a\\.git", "C:\\~$a.docx", "C:\\a~b", "\\\\srv\\share\\x", "..\\a", "a b", "C:\\"],
)
def test_windows_spellings_that_are_fine(path: str) -> None:
    assert problem_with(path, "windows") is None


def test_posix_refuses_what_the_kernel_cuts_or_rejects() -> None:
    assert problem_with("/a\0b", "posix")
    assert problem_with("/" + "a" * 5000, "posix")
    assert problem_with("/a:b/con. ", "posix") is None


@given(FAMILIES, PARTS)
def test_normalising_is_idempotent_and_stays_absolute(os: OsFamily, parts: list[str]) -> None:
    once = normalize(ROOTS[os] + SEPARATORS[os].join(parts), os)
    assert normalize(once, os) == once
    assert is_absolute(once, os)
    assert ".." not in once.split(SEPARATORS[os])


@given(FAMILIES, PARTS, st.lists(NAMES, min_size=1, max_size=4))
def test_what_is_below_a_place_is_under_it_and_its_sibling_is_not(
    os: OsFamily, parts: list[str], below: list[str]
) -> None:
    separator = SEPARATORS[os]
    root = normalize(ROOTS[os] + separator.join(parts), os)
    child = root.rstrip(separator) + separator + separator.join(below)
    assert is_under(child, root, os)
    assert is_under(child, root, os, "wide")
    if root != ROOTS[os]:
        assert not is_under(root + "x" + separator + below[0], root, os)


@given(FAMILIES, PARTS, PARTS)
def test_equivalent_spellings_are_judged_alike(os: OsFamily, parts: list[str], detour: list[str]) -> None:
    separator = SEPARATORS[os]
    plain = ROOTS[os] + separator.join(parts)
    names = [part for part in detour if part not in {"", ".", ".."}]
    spelled = plain + separator + separator.join([*names, *[".."] * len(names), "."])
    assert normalize(spelled, os) == normalize(plain, os)


SHORT = st.lists(st.sampled_from(["a", "A", "ab", "é", "e\u0301"]), max_size=5)


@given(FAMILIES, st.lists(SHORT, max_size=5), SHORT, st.sampled_from(["narrow", "wide"]))
def test_a_table_of_entries_covers_what_is_under_one_of_them_and_names_the_nearest(
    os: OsFamily, entries: list[list[str]], parts: list[str], width: Width
) -> None:
    spelled = [ROOTS[os] + SEPARATORS[os].join(entry) for entry in entries]
    path = normalize(ROOTS[os] + SEPARATORS[os].join(parts), os)
    over = [entry for entry in spelled if is_under(path, entry, os, width)]
    found = covering(path, roots([*spelled, "relative"], os, width), os, width)
    assert (found in over) if over else found is None
    assert all(is_under(found or "", entry, os, width) for entry in over)


def test_an_entry_that_is_not_absolute_is_remembered_and_covers_nothing() -> None:
    table = roots(["relative", "/a"], "posix", "wide")
    assert table.relative == "relative"
    assert covering("/relative", table, "posix", "wide") is None


@given(st.text(), st.text(), FAMILIES)
def test_no_spelling_raises(path: str, root: str, os: OsFamily) -> None:
    normalize(path, os, cwd=root, home=root)
    is_under(path, root, os)
    problem_with(path, os)
