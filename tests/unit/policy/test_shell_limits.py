"""Lines that are large or made to be slow: every limit ends in a denial, and large lines that are plain are allowed.

What work a line makes is counted here, not timed: counts are the same on every machine. `python -m benchmarks policy`
has the times.
"""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from typing import TYPE_CHECKING, cast

import pytest
import tree_sitter
import tree_sitter_bash
from hypothesis import example, given, settings
from hypothesis import strategies as st

from policy.shell import parse
from policy.shell.findings import MAX_NODES, Effort, TooMuch, Unreadable, blank_data
from tests.support.hostile_lines import PROGRAMS, hostile, useful
from tests.support.rows import each_row

from .helpers import shell

if TYPE_CHECKING:
    from collections.abc import Callable

    from tree_sitter import Parser

    from policy.facts import ShellName
    from policy.shell.findings import ParsedCommand

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


@pytest.mark.slow
def test_whatever_a_hostile_line_is_made_of_only_listed_programs_are_allowed() -> None:
    allowed = [line for line in SAMPLE.values() if shell(line, allowedCommands=[*PROGRAMS]) == "ALLOWED"]
    for line in allowed:
        parsed = parse(line, "bash")
        assert parsed.dynamic == ()
        assert {one.program for one in parsed.commands} <= set(PROGRAMS)
    assert len(allowed) < len(SAMPLE) / 8


@pytest.mark.slow
@each_row("name", list(SAMPLE)[::3])
def test_the_work_that_a_line_makes_is_bounded(name: str) -> None:
    assert calls_made(SAMPLE[name]) < 40 * MAX_NODES


@each_row("name", useful())
def test_large_lines_that_are_plain_are_allowed(name: str) -> None:
    assert shell(useful()[name], allowedCommands=["echo", "cat"]) == "ALLOWED"


def test_one_program_that_is_not_listed_is_found_in_the_largest_of_them() -> None:
    for line in useful().values():
        assert shell(line + "\nevil", allowedCommands=["echo", "cat"]) == "DENIED"


@each_row(
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
    with pytest.raises((TooMuch, Unreadable)):
        Effort().tree(cast("Parser", Unasked()), line)
    assert shell(line, allowedCommands=["a", "echo", "cat", "ls", "["]) == "DENIED"
    assert shell(line, blockedCommands=["evil"]) == "DENIED"


@each_row(
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


def test_a_script_of_sed_has_a_limit_which_no_bundle_lifts() -> None:
    assert shell("sed '" + "p;" * 4_000 + "p' a", allowedCommands=["sed"]) == "ALLOWED"
    assert shell("sed '" + "p\n" * 4_000 + "p' a", allowedCommands=["sed"]) == "ALLOWED"
    assert shell("sed 's/a/" + "X" * 4_001 + "/' a", allowedCommands=["sed"]) == "ALLOWED"
    assert shell("sed '" + "p;" * 4_001 + "p' a", allowedCommands=["sed"]) == "DENIED"
    assert shell("sed -e '" + "p;" * 4_001 + "p' -e p a") == "DENIED"
    assert shell("sed -n '" + "{p}" * 2_001 + "' a", requiresApproval=True) == "DENIED"
    assert afresh("sed '" + "p\n" * 4_001 + "p' a").unread


def test_a_variable_that_is_set_has_a_name_of_256_characters_at_most() -> None:
    assert afresh("A" * 256 + "=x ls").dynamic == ()
    assert afresh("A" * 257 + "=x ls").dynamic == ("sets a variable whose name is longer than 256 characters",)


@pytest.mark.parametrize("name", ["cmd", "powershell"])
@pytest.mark.parametrize("line", ["dir " + "a " * 5_000, "dir " + "a" * 200_000])
def test_lines_of_windows_shells_have_limits_too(name: ShellName, line: str) -> None:
    assert shell(line, shell_name=name, allowedCommands=["dir"]) == "DENIED"
    assert shell(line[:4_000], shell_name=name, allowedCommands=["dir"]) == "ALLOWED"


@pytest.mark.parametrize("name", ["cmd", "powershell"])
def test_4000_words_are_read_by_windows_shells_and_no_more(name: ShellName) -> None:
    assert shell("dir" + " a" * 3_999, shell_name=name, allowedCommands=["dir"]) == "ALLOWED"
    assert afresh("dir" + " a" * 4_000, name).dynamic == ("the line has more than 4000 words",)


def test_lines_inside_of_lines_share_one_effort() -> None:
    inner = "sh -c 'echo a && echo b';"
    assert afresh(inner * 30).dynamic == ()
    assert afresh(inner * 32).dynamic == ("more than 32 shells inside the line",)


@each_row(
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
    assert blank_data(line) == kept


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
@example(["a", "é" * 700])
def test_the_tree_does_not_depend_on_the_blocks_that_the_text_is_read_in(pieces: list[str]) -> None:
    line = "".join(pieces)
    language = tree_sitter.Language(tree_sitter_bash.language())
    try:
        source, root = Effort().tree(tree_sitter.Parser(language), line)
    except (TooMuch, Unreadable):
        return
    assert str(root) == str(tree_sitter.Parser(language).parse(source).root_node)


@pytest.mark.parametrize(
    "line",
    [
        "sort '--compress-program=evil\n' a",
        "tar cf a '--to-command=evil\n'",
        "git fetch '--upload-pack=evil\n'",
        "git clone 'ext::sh -c evil\n' x",
        "fd '--exec=evil\n'",
    ],
)
def test_a_line_break_in_an_option_does_not_hide_what_it_does(line: str) -> None:
    assert shell(line, allowedCommands=["sort", "tar", "git", "fd"]) == "DENIED"
    assert shell(line.replace("-", "").replace("::", ""), allowedCommands=["sort", "tar", "git", "fd"]) == "ALLOWED"


class Counted(Exception):
    """Ends a parse that only counts."""


class Counting:
    """Stands where the parser would be: counts the steps that it may take, or the blocks that it is given."""

    def __init__(self) -> None:
        self.rounds = self.blocks = 0

    def parse(self, read: Callable[[int, None], bytearray], progress_callback: Callable[[int, bool], bool]) -> None:
        while not progress_callback(0, False):
            self.rounds += 1
        while read(0, None):
            self.blocks += 1
        raise Counted


def counted(line: str, effort: Effort | None = None) -> Counting:
    made = Counting()
    with pytest.raises(Counted):
        (effort or Effort()).tree(cast("Parser", made), line)
    return made


KEYWORDS = "if then elif else fi for in do done while until case esac select function coproc"


@each_row("mark", [*KEYWORDS.split(), *"()[]{}$`<>!*?#\\=~", "|&"])
def test_a_line_that_is_not_plain_may_take_fewer_steps(mark: str) -> None:
    assert counted(f"a {mark} b").rounds == 60


@each_row("mark", ["iff", "xif", "a|b", "a&b", "a & b", "-", "do_", "a;b", "inn"])
def test_a_plain_line_may_take_more(mark: str) -> None:
    assert counted(f"a {mark} b").rounds == 270


def test_steps_and_blocks_are_those_of_all_lines_together() -> None:
    effort = Effort()
    assert (counted("a", effort).rounds, counted("a", effort).rounds) == (270, 0)
    assert counted("a").blocks == 1_000
    with pytest.raises(Counted):
        Effort().tree(cast("Parser", Counting()), "a")


@pytest.mark.parametrize(
    ("line", "over"),
    [
        ("a" * 131_072, "a" * 131_073),
        ("(" * 300, "(" * 301),
        ("[]{}()" * 50, "[]{}()" * 50 + ")"),
        ("<<" * 32, "<<" * 33),
        ("'" + "(" * 1_100 + "'" + "(" * 300, "'" + "(" * 1_100 + "'" + "(" * 301),
    ],
    ids=["characters", "parentheses", "brackets", "here-documents", "quoted"],
)
def test_what_is_counted_beforehand_is_counted_to_its_limit(line: str, over: str) -> None:
    counted(line)
    with pytest.raises(TooMuch):
        Effort().tree(cast("Parser", Unasked()), over)


def test_short_lines_are_counted_with_their_quotes_and_long_ones_without() -> None:
    with pytest.raises(TooMuch):
        Effort().tree(cast("Parser", Unasked()), "'" + "(" * 301 + "'")
    with pytest.raises(TooMuch):
        Effort().tree(cast("Parser", Unasked()), "'" + "(" * 1_021 + "'")
    counted("'" + "(" * 1_022 + "'")
    counted("X" * 301)


def test_what_the_parser_is_handed_text_in_is_used_again() -> None:
    """It never lets go of it, so another one for each line would be kept for good."""
    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
    Effort().tree(parser, "a")
    tracemalloc.start()
    try:
        for _ in range(1_000):
            Effort().tree(parser, "a")
        assert tracemalloc.get_traced_memory()[0] < 10_000
    finally:
        tracemalloc.stop()


def test_32_lines_are_read_and_no_more() -> None:
    effort = Effort()
    for _ in range(32):
        counted("a", effort)
    with pytest.raises(TooMuch, match="more than 32 shells"):
        effort.tree(cast("Parser", Unasked()), "a")


def test_the_parts_of_a_line_are_counted_to_their_limit() -> None:
    """A comment is one part, and so is the line."""
    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
    effort = Effort()
    for _ in range(2):
        _, root = effort.tree(parser, "#\n" * 6_249)
    assert root.descendant_count * 2 == MAX_NODES
    with pytest.raises(TooMuch, match=f"more than {MAX_NODES} parts"):
        effort.tree(parser, "#")


def test_data_of_many_here_documents_is_left_out_as_far_as_it_is_plain() -> None:
    one = "cat <<'E'\n((\nE\n"
    assert blank_data(one * 32) == "cat <<\nE\n" * 32
    assert blank_data(one * 33).count("((") == 1
    assert blank_data("cat <<-E\n((\nE\n") == "cat <<-E\nE\n"
    assert blank_data("cat << \t'E'\n((\nE") == "cat << \t\nE"
    assert blank_data('cat <<"E"\n((\nE') == "cat <<\nE"
    assert blank_data("cat <<E\n`((`\nE") == "cat <<E\n`((`\nE"
    assert blank_data("cat <<E") == "cat <<E"
    assert blank_data("<<'E'\n((\nE") == "<<\nE"
    assert blank_data("cat <<'E'; cat <<'F'\n((\nE\n))\nF\n(") == "cat <<; cat <<\nE\n))\nF\n("
    name = "E" * 64
    assert blank_data(f"cat <<{name}\n((\n{name}") == f"cat <<{name}\n{name}"
    assert blank_data(f"cat <<{name}x\n((\n{name}x") == f"cat <<{name}x\n((\n{name}x"


@pytest.mark.slow
def test_no_character_behind_a_brace_ends_the_process() -> None:
    """In a process of its own: the parser alone would read outside of a table there, and take the process with it."""
    code = (
        "from policy.shell import parse\n"
        "for point in range(0x10000, 0x110000, 257):\n"
        "    parse('{' + chr(point), 'bash')\n"
        "    parse('echo {1..2' + chr(point), 'bash')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("wide", ["é", "ü", "Ж", "中", "𱡀"])
def test_wide_characters_behind_a_brace_stay_what_they_are(wide: str) -> None:
    parsed = parse(f"echo '{{{wide}}}' a.{wide} {{1{wide}", "bash")
    assert parsed.commands[0].arguments == (f"{{{wide}}}", f"a.{wide}", f"{{1{wide}")
