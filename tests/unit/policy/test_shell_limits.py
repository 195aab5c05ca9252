"""Lines that are large or made to be slow: every limit ends in a denial, and large lines that are plain are allowed.

What work a line makes is counted here, not timed: counts are the same on every machine. `benchmarks/policy.py` has the
times.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

import pytest
import tree_sitter
import tree_sitter_bash
from hypothesis import example, given, settings
from hypothesis import strategies as st

from policy.commands import ParsedCommand, parse
from policy.shell.limits import MAX_NODES, Effort, NotText, TooMuch, without_data
from tests.support.hostile_lines import PROGRAMS, hostile, useful

from .helpers import shell

if TYPE_CHECKING:
    from tree_sitter import Parser

    from policy.facts import ShellName

SHELLS: tuple[ShellName, ...] = ("bash", "sh", "zsh", "cmd", "powershell")
HOSTILE = list(hostile().items())
SAMPLE = dict(HOSTILE[::3] + HOSTILE[-24:])
"""All of them take seconds; the benchmark has them all."""


class Unasked:
    """Stands where the parser would be, and must not be asked."""

    def parse(self, *_: object, **__: object) -> None:
        pytest.fail("the parser was asked")


def afresh(line: str, name: ShellName = "bash") -> ParsedCommand:
    parse.cache_clear()
    return parse(line, name)


def calls_made(line: str) -> int:
    """How many functions one reading of a line calls, in Python and in C."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    parse.cache_clear()
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        parse(line, "bash")
    finally:
        sys.setprofile(before)
    return calls


def test_whatever_a_hostile_line_is_made_of_only_listed_programs_are_allowed() -> None:
    allowed = [line for line in SAMPLE.values() if shell(line, allowedCommands=[*PROGRAMS]) == "ALLOWED"]
    for line in allowed:
        parsed = parse(line, "bash")
        assert parsed.dynamic == ()
        assert {one.program for one in parsed.commands} <= set(PROGRAMS)
    assert len(allowed) < 10


@pytest.mark.parametrize("name", list(SAMPLE)[::3])
def test_the_work_that_a_line_makes_is_bounded(name: str) -> None:
    assert calls_made(SAMPLE[name]) < 40 * MAX_NODES


@pytest.mark.parametrize("name", useful())
def test_large_lines_that_are_plain_are_allowed(name: str) -> None:
    assert shell(useful()[name], allowedCommands=["echo", "cat"]) == "ALLOWED"


def test_one_program_that_is_not_listed_is_found_in_the_largest_of_them() -> None:
    for line in useful().values():
        assert shell(line + "\nevil", allowedCommands=["echo", "cat"]) == "DENIED"


@pytest.mark.parametrize(
    "line",
    [
        "a" * 200_000,
        "(" * 301,
        "echo " + "$(" * 400,
        "[ a ];" * 300,
        "cat " + "<<a " * 40,
        "echo 'a' \"b\" # c\n" + "{ " * 1_000,
        "ls \x01",
        "ls \ud800",
    ],
    ids=lambda text: text[:12].encode("unicode_escape").decode(),
)
def test_what_is_over_a_limit_by_count_is_refused_before_the_parser_is_asked(line: str) -> None:
    with pytest.raises((TooMuch, NotText)):
        Effort().tree(cast("Parser", Unasked()), line)
    assert shell(line, allowedCommands=["a", "echo", "cat", "ls", "["]) == "DENIED"
    assert shell(line, blockedCommands=["evil"]) == "DENIED"


@pytest.mark.parametrize(
    "line",
    [
        "${a" * 40_000,
        "echo '' " + "function a " * 10_000,
        "=~ " * 40_000,
        "a " * 50_000,
        "a\n" * 10_000,
        "echo a>b;" * 2_000,
        "sh -c 'a';" * 60,
        "a > " + "b/" * 40_000,
        "cd " + "b/" * 1_000 + ";" + "a>b;" * 200,
    ],
    ids=lambda text: text[:12],
)
def test_what_goes_over_a_limit_on_the_way_is_denied_with_the_reason(line: str) -> None:
    assert afresh(line).dynamic
    assert shell(line, allowedCommands=["a", "echo", "sh", "cd"]) == "DENIED"


@pytest.mark.parametrize("name", ["cmd", "powershell"])
@pytest.mark.parametrize("line", ["dir " + "a " * 5_000, "dir " + "a" * 200_000])
def test_lines_of_windows_shells_have_limits_too(name: ShellName, line: str) -> None:
    assert shell(line, shell_name=name, allowedCommands=["dir"]) == "DENIED"
    assert shell(line[:4_000], shell_name=name, allowedCommands=["dir"]) == "ALLOWED"


def test_lines_inside_of_lines_share_one_effort() -> None:
    inner = "sh -c 'echo a && echo b';"
    assert afresh(inner * 30).dynamic == ()
    assert afresh(inner * 32).dynamic == ("more than 32 shells inside the line",)


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("echo '(((' \"((\" a", "echo   a"),
        ("echo \\' '((' \"$(a)\"", 'echo   "$(a)"'),
        ("a # '((\nb '('", "a \nb "),
        ("a#b '('", "a#b "),
        ("cat <<'E' | b\n((\nE\nc (", "cat << | b\nE\nc ("),
        ("cat <<E\n((\nE", "cat <<E\nE"),
        ("cat <<E\n$(a)\nE", "cat <<E\n$(a)\nE"),
        ("cat <<'E'\n((", "cat <<\n(("),
    ],
)
def test_data_is_not_counted_and_code_is(line: str, kept: str) -> None:
    assert without_data(line) == kept


ALPHABET = st.characters(exclude_categories=[]) | st.sampled_from(
    "ls;&|()<>{}$`'\"\\\n #=*?[]!~-@%^+:,0\t\r\x00é\ud800"
)


@settings(max_examples=150, deadline=None)
@given(st.text(ALPHABET, max_size=4_000), st.sampled_from(SHELLS))
@example("é" * 700, "bash")
@example("a" * 1_023 + "é'", "bash")
def test_no_text_raises_and_the_same_text_is_read_the_same(line: str, name: ShellName) -> None:
    assert afresh(line, name) == afresh(line, name)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([";", "ls é", "'é\n'", "(a)", '"$(b)"', "|", "\n", "<<E\nx\nE\n", " "]), max_size=600))
def test_the_tree_does_not_depend_on_the_blocks_that_the_text_is_read_in(pieces: list[str]) -> None:
    line = "".join(pieces)
    language = tree_sitter.Language(tree_sitter_bash.language())
    try:
        source, root = Effort().tree(tree_sitter.Parser(language), line)
    except (TooMuch, NotText):
        return
    assert str(root) == str(tree_sitter.Parser(language).parse(source).root_node)


@pytest.mark.parametrize(
    "line",
    [
        "sort '-o\n/etc/x' a",
        "tar cf a '--to-command=evil\n'",
        "git fetch '--upload-pack=evil\n'",
        "git clone 'ext::sh -c evil\n' x",
        "fd '--exec=evil\n'",
    ],
)
def test_a_line_break_in_an_option_does_not_hide_what_it_does(line: str) -> None:
    assert shell(line, allowedCommands=["sort", "tar", "git", "fd"]) == "DENIED"
    assert shell(line.replace("-", "").replace("::", ""), allowedCommands=["sort", "tar", "git", "fd"]) == "ALLOWED"
