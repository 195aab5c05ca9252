from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.paths import (
    covering,
    is_absolute,
    is_share,
    is_under,
    normalize,
    problem_with,
    process_place,
    roots,
)
from policy.rules.protected_paths import repositories_by_shape, repository_place
from tests.support.rows import each_row

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


@each_row(
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


@each_row(
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


@each_row(
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


@each_row(
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


@each_row(
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


@each_row(
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


@each_row(
    ("os", "path", "expected"),
    [
        ("posix", "", "."),
        ("windows", "", "."),
        ("posix", "a/.", "a"),
        ("posix", "./a", "a"),
        ("posix", "...", "..."),
        ("posix", "../..", "../.."),
        ("posix", "a\\b", "a\\b"),
        ("posix", "c:/a", "c:/a"),
        ("windows", "a/b\\..\\c", "a\\c"),
        ("windows", "c:a\\b", "C:a\\b"),
        ("windows", "c:", "C:"),
        ("windows", "\\a\\b", "\\a\\b"),
        ("windows", "/", "\\"),
        ("windows", "xc:\\a", "xc:\\a"),
        ("windows", "\\\\srv", "\\srv"),
        ("windows", "\\\\srv\\share", "\\\\srv\\share\\"),
        ("windows", "///srv//share//a", "\\\\srv\\share\\a"),
        ("windows", "a//srv/share", "a\\srv\\share"),
    ],
)
def test_more_normal_forms(os: OsFamily, path: str, expected: str) -> None:
    assert normalize(path, os) == expected


@each_row(
    ("os", "path", "expected"),
    [
        ("posix", "~", "/h"),
        ("posix", "~/a", "/h/a"),
        ("posix", "~a", "/w/~a"),
        ("posix", "~\\a", "/w/~\\a"),
        ("posix", "a/~", "/w/a/~"),
        ("posix", "/a", "/a"),
        ("windows", "~\\a", "C:\\h\\a"),
        ("windows", "~/a", "C:\\h\\a"),
        ("windows", "~", "C:\\h"),
        ("windows", "/a", "D:\\a"),
        ("windows", "\\a", "D:\\a"),
        ("windows", "a", "D:\\w\\a"),
        ("windows", "E:a", "E:a"),
        ("windows", "E:\\a", "E:\\a"),
        ("windows", "xE:a", "D:\\w\\xE:a"),
    ],
)
def test_home_and_working_directory_stand_for_what_is_missing(os: OsFamily, path: str, expected: str) -> None:
    cwd, home = ("/w", "/h") if os == "posix" else ("D:\\w", "C:\\h")
    assert normalize(path, os, cwd=cwd, home=home) == expected


def test_without_a_home_a_tilde_is_a_name() -> None:
    assert normalize("~/a", "posix", cwd="/w") == "/w/~/a"
    assert normalize("~", "posix") == "~"


@each_row(
    ("path", "expected"),
    [
        ("C:\\a", True),
        ("c:/a", True),
        ("C:a", False),
        ("\\a", False),
        ("\\\\srv\\share", True),
        ("\\\\srv", False),
        ("//srv/share/a", True),
        ("xC:\\a", False),
        ("x\\\\srv\\share", False),
        ("a", False),
        ("", False),
    ],
)
def test_absolute_on_windows_is_with_drive_or_share(path: str, expected: bool) -> None:
    assert is_absolute(path, "windows") is expected


def test_a_share_is_known_by_its_start() -> None:
    assert is_share("\\\\srv\\share\\a", "windows")
    assert not is_share("C:\\a", "windows")
    assert not is_share("\\\\srv\\share", "posix")


def test_what_is_not_absolute_is_under_nothing_and_nothing_under_it() -> None:
    for path, root in (("a/b", "/a"), ("/a/b", "a"), ("a/b", "a"), ("/a", ""), ("", "/")):
        assert not is_under(path, root, "posix")
    assert not is_under("C:a\\b", "C:\\", "windows")
    assert not is_under("C:\\a", "C:", "windows")


@each_row(
    ("path", "expected"),
    [
        ("/proc", "/proc"),
        ("/x/../proc/a", "/proc"),
        ("/./proc", "/proc"),
        ("/dev/./fd/1", "/dev/fd"),
        ("/dev/x/../fd", "/dev/fd"),
        ("/a/proc", None),
        ("/a/b/proc", None),
        ("/dev/fd/../../proc", "/dev/fd"),
        ("/procs", None),
        ("/a/dev/fd", None),
        ("/proc.", None),
        ("/a/proc/../../proc", "/proc"),
        ("/../../proc", "/proc"),
    ],
)
def test_places_that_differ_from_process_to_process(path: str, expected: str | None) -> None:
    assert process_place(path, "posix") == expected


@each_row(
    ("os", "path", "allowed", "expected"),
    [
        ("posix", "/w/.git", None, ".git"),
        ("posix", "/w/.git", ["/w"], ".git"),
        ("posix", "/w/.git", ["/w/.git"], None),
        ("posix", "/w/.git/config", ["/w/.git"], None),
        ("posix", "/w/.git/config", ["/v/.git"], ".git/config"),
        ("posix", "/w/.git/config", [], ".git/config"),
        ("posix", "/w/.git/config.worktree", ["/w"], ".git/config.worktree"),
        ("posix", "/w/.git/hooks", ["/w"], ".git/hooks"),
        ("posix", "/w/.git/hooks/a/b", ["/w"], ".git/hooks"),
        ("posix", "/w/.git/rebase-merge/git-rebase-todo", ["/w"], ".git/rebase-merge"),
        ("posix", "/w/.git/rebase-apply/x", ["/w"], ".git/rebase-apply"),
        ("posix", "/w/.git/Sequencer/todo", ["/w"], ".git/sequencer"),
        ("posix", "/w/sub/.git/worktrees/a/rebase-merge/x", ["/w"], ".git/rebase-merge"),
        ("posix", "/w/.git/rebase-merge/x", ["/w/.git"], None),
        ("posix", "/w/rebase-merge/x", ["/w"], None),
        ("posix", "/w/.git/modules/a/hooks/b", ["/w"], ".git/hooks"),
        ("posix", "/w/.git/modules/a/config", ["/w"], ".git/config"),
        ("posix", "/w/.git/hooks/config", ["/w"], ".git/hooks"),
        ("posix", "/w/.git/config/a", ["/w"], None),
        ("posix", "/w/.git/HEAD", ["/w"], None),
        ("posix", "/w/.gitx/config", ["/w"], None),
        ("posix", "/w/x.git/config", ["/w"], None),
        ("posix", "/w/a\\.git", ["/w"], None),
        ("posix", "/w/a/.git/b/.git", ["/w"], ".git"),
        ("windows", "C:\\w\\.git\\config", ["C:\\w"], ".git/config"),
        ("windows", "C:\\w\\.git\\config", ["C:\\w\\.git"], None),
        ("windows", "C:\\w\\.git\\config", ["C:/w/.git"], None),
        ("windows", "C:\\w\\.GIT", ["C:\\w"], ".git"),
        ("windows", "C:\\w\\a", ["C:\\w"], None),
    ],
)
def test_what_git_runs_by(os: OsFamily, path: str, allowed: list[str] | None, expected: str | None) -> None:
    assert repository_place(path, allowed, os) == expected


@each_row(
    ("os", "path", "allowed", "expected"),
    [
        ("posix", "/w/meta/config", None, "meta/config"),
        ("posix", "/w/meta/Hooks/a", ["/w"], "meta/hooks"),
        ("posix", "/w/meta/ho\u200boks/a", ["/w"], "meta/hooks"),
        ("posix", "/w/meta/hooks", ["/w"], "meta/hooks"),
        ("posix", "/w/meta/hooks/a", ["/w/meta"], None),
        ("posix", "/w/meta/hooks/a", ["/w/meta/hooks/a"], None),
        ("posix", "/w/meta/hooks/a", ["/w/meta/refs"], "meta/hooks"),
        ("posix", "/w/meta/hooks/config", ["/w/meta"], "hooks/config"),
        ("posix", "/hooks/a", ["/w"], "/hooks"),
        ("posix", "/w/meta/HEAD", ["/w"], None),
        ("posix", "/w/meta/config/a", ["/w"], None),
        ("posix", "/w/.git/config", ["/w/.git"], None),
        ("posix", "/w/.git/worktrees/a/config", ["/w/.git"], None),
        ("posix", "/w/.git/config", ["/w"], ".git/config"),
        ("windows", "C:\\w\\meta\\config", ["C:\\w"], "meta/config"),
        ("windows", "C:\\w\\meta\\config", ["c:/w/meta"], None),
        ("windows", "C:\\hooks\\a", ["C:\\w"], "/hooks"),
    ],
)
def test_what_git_runs_by_in_what_is_laid_out_like_a_repository(
    os: OsFamily, path: str, allowed: list[str] | None, expected: str | None
) -> None:
    assert repository_place(path, allowed, os, in_repository=True) == expected
    if ".git" not in path:
        assert repository_place(path, allowed, os) is None


@each_row(
    ("os", "path", "found"),
    [
        ("posix", "/w/hooks/a", [("/w", "hooks")]),
        ("posix", "/w/hooks/b/config", [("/w/hooks/b", "config"), ("/w", "hooks")]),
        ("posix", "/hooks/hooks/hooks/hooks/a",
            [("/hooks/hooks/hooks", "hooks"), ("/hooks/hooks", "hooks"), ("/hooks", "hooks")],
        ),
        ("posix", "/config", [("/", "config")]),
        ("posix", "/w/a", []),
        ("posix", "/", []),
        ("windows", "C:\\w\\config", [("C:\\w", "config")]),
        ("windows", "C:\\config", [("C:\\", "config")]),
    ],
)  # fmt: skip
def test_which_directories_would_have_to_be_repositories(os: OsFamily, path: str, found: list[tuple[str, str]]) -> None:
    assert list(repositories_by_shape(path, os)) == found


LONGEST: dict[OsFamily, int] = {"posix": 4_096, "windows": 32_000}


@pytest.mark.parametrize("os", ["posix", "windows"])
def test_a_path_is_as_long_as_its_system_takes(os: OsFamily) -> None:
    root = ROOTS[os]
    assert problem_with(root + "a" * (LONGEST[os] - len(root)), os) is None
    assert problem_with(root + "a" * (LONGEST[os] - len(root) + 1), os) is not None


@each_row(
    ("path", "said"),
    [
        ("\\\\?\\C:\\a", "a device or verbatim prefix"),
        ("\\\\?a", "a device or verbatim prefix"),
        ("\\\\.\\a", "a device or verbatim prefix"),
        ("\\\\.a\\b", "a device or verbatim prefix"),
        ("\\??\\C:\\a", "a device or verbatim prefix"),
        ("//./a", "a device or verbatim prefix"),
        ("C:a", "a drive's current directory"),
        ("C:", "a drive's current directory"),
        ("\\a", "the current drive"),
        ("/a", "the current drive"),
        ("C:\\a:b", "an alternate stream"),
        ("a:b", "a drive's current directory"),
        ("ab:c", "an alternate stream"),
        ("\\\\srv\\s\\a:b", "an alternate stream"),
        ("C:\\a<b", "a character"),
        ("C:\\a>b", "a character"),
        ('C:\\a"b', "a character"),
        ("C:\\a|b", "a character"),
        ("C:\\a?b", "a character"),
        ("C:\\a*b", "a character"),
        ("C:\\a\x01b", "a character"),
        ("C:\\a\x1fb", "a character"),
        ("C:\\a.", "ends in a dot or space"),
        ("C:\\a \\b", "ends in a dot or space"),
        ("C:\\...", "ends in a dot or space"),
        ("C:\\CON", "a device"),
        ("C:\\prn.txt", "a device"),
        ("C:\\AUX", "a device"),
        ("C:\\NUL .txt", "a device"),
        ("C:\\CONIN$", "a device"),
        ("C:\\CONOUT$", "a device"),
        ("C:\\CLOCK$", "a device"),
        ("C:\\COM0", "a device"),
        ("C:\\LPT9.x", "a device"),
        ("C:\\COM\u00b2", "a device"),
        ("C:\\LONGNA~1.TXT", "a short (8.3) name"),
        ("C:\\A~123456", "a short (8.3) name"),
        ("C:\\A~1.", "ends in a dot or space"),
        ("a\\NUL", "a device"),
        ("NUL", "a device"),
    ],
)
def test_why_a_spelling_of_windows_is_refused(path: str, said: str) -> None:
    assert said in str(problem_with(path, "windows"))


@each_row(
    "path",
    [
        "C:\\a.b", "C:\\.a", "C:\\CONx", "C:\\xCON", "C:\\COM", "C:\\COM12", "C:\\LPTx", "C:\\A~1234567", "C:\\A~B",
        "C:\\TOOLONGX~1", "C:\\A~1.LONG", "C:\\xA~1 b", "C:\\a\\..\\b", ".", "..", "\\\\srv\\share\\a", "C:\\a\\",
        "C:\\a!b", "C:\\a b",
    ],
)  # fmt: skip
def test_spellings_of_windows_that_only_look_like_that(path: str) -> None:
    assert problem_with(path, "windows") is None


IGNORED = (
    0xAD, 0x34F, 0x61C, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180B, 0x180F, 0x200B, 0x200F, 0x202A, 0x202E, 0x2060, 0x206F,
    0x3164, 0xFE00, 0xFE0F, 0xFEFF, 0xFFA0, 0xFFF0, 0xFFF8, 0x1BCA0, 0x1BCA3, 0x1D173, 0x1D17A, 0xE0000, 0xE0FFF,
)  # fmt: skip


@each_row("character", list(map(chr, IGNORED)))
def test_characters_that_file_systems_leave_out_of_names(character: str) -> None:
    assert is_under(f"/h/.s{character}sh/id", "/h/.ssh", "posix", "wide")
    assert not is_under(f"/h/.s{character}sh/id", "/h/.ssh", "posix")


def test_letters_of_windows_are_folded_one_by_one() -> None:
    assert is_under("C:\\\u00c4\\a", "c:\\\u00e4", "windows")
    for one, other in (
        ("\u00df", "ss"),
        ("\u0130", "i"),
        ("\u017f", "s"),
        ("\u212a", "k"),
        ("\u1e9e", "\u00df"),
        ("\u2126", "\u03c9"),
    ):
        assert not is_under(f"C:\\{one}\\a", f"C:\\{other}", "windows")
    assert not is_under("/\u00c4/a", "/\u00e4", "posix")


def test_the_first_entry_that_is_not_absolute_is_told() -> None:
    assert roots(["/a", "b", "c"], "posix", "wide").relative == "b"
    assert roots([], "posix", "wide") == ({}, 0, None, None)
    assert roots(["/a", "/abc"], "posix", "narrow").longest == 4
