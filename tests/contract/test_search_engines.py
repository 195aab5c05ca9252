"""What the search says does not depend on whether `rg` is there: patterns that it is given mean the same to it."""

from __future__ import annotations

import os
import shutil
import string
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policy.patterns import compile_pattern
from tests.support.rows import each_row
from tool_runtime.files import Scope
from tool_runtime.files import grep as engine
from tool_runtime.files.grep import (
    GrepOutcome,
    GrepParams,
    Ripgrep,
    Search,
    find_ripgrep,
    grep,
    translate_pattern,
)
from tool_runtime.tool import Abandoned, ToolFault

if TYPE_CHECKING:
    from pathlib import Path

_BESIDE_PYTHON = os.path.dirname(sys.executable)
RG = find_ripgrep(os.pathsep.join((_BESIDE_PYTHON, os.environ.get("PATH", ""))), ())
needs_rg = pytest.mark.skipif(RG is None, reason="rg is not installed")

TEXTS = [
    b"one two\nthree\n",
    b"",
    b"\n",
    b"no end",
    b"caf\xc3\xa9 \xe2\x82\xac\n",
    b"\xff\xfe broken \xe9\n",
    b"tab\there\r\nfeed\x0c\x0bend\n",
    b"aaaa bbbb\n\nabab\n",
    b"K \xe2\x84\xaa \xc5\xbf S s\n",
    b"x_1 - y.2 [z] {3} (q) a+b\n",
    b"A-Z a-z 0-9 \\ / ^ $ |\n",
    b"\xef\xbb\xbfone two\n\xef\xbb\xbfthree\n",
    b"\xff\xfe" + "one two\r\ncaf\u00e9 \U0001f600 \u017f k\n".encode("utf-16-le"),
    b"\xfe\xff" + "a+b\n\ud800 x_1\n".encode("utf-16-be", "surrogatepass") + b"\x00",
    b"\xff\xfe\x00\x00" + "one two\n".encode("utf-32-le"),
]
_WRITTEN = r"""
    one ^one two$ ^$ ^ $ a|b (a)(b) (?:ab)+ a{2,3} a{2,}? . .. ^.{4}$ \d \D+ \w+ \W \s \S\s\S \bt e\b [a-c] [^a-z] []x]
    [\d_] [\w.-] [[:upper:]] \. \\ \/ \+ \{ \x41 (?i)k (?i:s) (?i)[k] (?i)\w caf. caf.$ x* (x*)* [+\-] \t \r \f a?b??
    q)|( - # \< \pL (?P<n>a) \Qa+b\E [a&&b] [a--b] [^]a] (?s)a.b (?U)a+ \C \z { a{,2} a** é [é] \x{e9} [\s] [^\s] [^\w]
"""
PATTERNS = _WRITTEN.split()


def tree(root: Path, texts: list[bytes]) -> None:
    for number, text in enumerate(texts):
        folder = root / f"d{number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"f{number}.txt").write_bytes(text)
    (root / "binary").write_bytes(b"one\0two")


def outcome(root: Path, rg: Ripgrep | None, pattern: str, **more: object) -> GrepOutcome | str:
    try:
        params = GrepParams(str(root), Scope(), pattern, rg=rg, limit=10_000)._replace(**more)  # type: ignore[arg-type]  # of several fields
        return grep(params, Abandoned())
    except ToolFault as fault:
        return str(fault)


def all_of(found: GrepOutcome | str) -> object:
    """What an outcome says, with what its walk has counted."""
    if isinstance(found, str):
        return found
    walk = found.walk
    return (*found[:-1], walk.root, walk.left_out, walk.ignored, walk.unreadable, walk.stopped, walk.hidden)


@pytest.mark.many_rows(50)
@needs_rg
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("ignore_case", [False, True])
def test_both_ways_give_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, ignore_case: bool
) -> None:
    tree(tmp_path, TEXTS)
    monkeypatch.setattr(engine, "MANY_FILES", 1)
    for mode in ("content", "files", "counts"):
        alone = all_of(outcome(tmp_path, None, pattern, ignore_case=ignore_case, mode=mode))
        assert all_of(outcome(tmp_path, RG, pattern, ignore_case=ignore_case, mode=mode)) == alone


ATOMS = st.one_of(
    st.sampled_from(list(string.printable.replace("\n", ""))),
    st.sampled_from([r"\d", r"\w", r"\s", r"\S", r"\W", r"\b", r"\.", "[a-c]", "[^a]", "(a|b)", "a*", "b+", "(?i)"]),
)
WORDS = st.lists(ATOMS, min_size=1, max_size=6).map("".join)
MARKS = [b"", b"", b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"]
PIECES = [b"a", b"b", b"A", b" ", b"\t", b"\r", b"1", b"_", b".", b"\xc3\xa9", b"\xff", b"\n", b"k", b"\xe2\x84\xaa"]
LINES = st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join)
FILES = st.builds(
    lambda mark, text, wide: mark + (text.decode("latin-1").encode(wide) if wide else text),
    st.sampled_from(MARKS),
    LINES,
    st.sampled_from([None, None, "utf-16-le", "utf-16-be"]),
)


@needs_rg
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(WORDS, st.lists(FILES, min_size=1, max_size=4), st.booleans())
def test_any_pattern_gives_the_same(
    tmp_path_factory: pytest.TempPathFactory, pattern: str, texts: list[bytes], ignore_case: bool
) -> None:
    root = tmp_path_factory.mktemp("tree")
    tree(root, texts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "MANY_FILES", 1)
        with_rg = outcome(root, RG, pattern, ignore_case=ignore_case)
    assert all_of(with_rg) == all_of(outcome(root, None, pattern, ignore_case=ignore_case))
    shutil.rmtree(root)


@needs_rg
@given(WORDS)
def test_rg_is_given_no_pattern_that_it_refuses_and_re2_takes(pattern: str) -> None:
    written = translate_pattern(pattern)
    if written is None or compile_pattern(pattern) is None:
        return
    assert RG is not None
    search = Search(RG, os.path.dirname(__file__), written, 1, 1, ignore_case=False)
    search.add("", ["none"], complete=False)
    assert search.answer(Abandoned()) == {}


@each_row(
    ("pattern", "written"),
    [
        ("a.b", "a.b"),
        ("0(?i)?", None),
        ("0(?i){2}", None),
        (r"\d+", "[0-9]+"),
        (r"\bx\b", r"(?-u:\b)x(?-u:\b)"),
        (r"[\d.-]", r"[0-9\x2e\x2d]"),
        (r"\.", r"\x2e"),
        ("(?i)a", "(?i)a"),
        ("é", None),
        (r"\pL", None),
        ("(?s).", None),
        ("[a&&b]", None),
        (r"\<", r"\x3c"),
        ("a{,2}", None),
        (r"\n", None),
    ],
)
def test_patterns_in_words_of_both(pattern: str, written: str | None) -> None:
    assert translate_pattern(pattern) == written


def test_rg_is_looked_for_outside_of_the_workspace(tmp_path: Path) -> None:
    for name in ("workspace", "outside", "links"):
        (tmp_path / name).mkdir()
    for folder in ("workspace", "outside"):
        program = tmp_path / folder / "rg"
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    (tmp_path / "links" / "rg").symlink_to(tmp_path / "workspace" / "rg")
    workspace = str(tmp_path / "workspace")
    places = [workspace, "relative", "", str(tmp_path / "links")]
    assert find_ripgrep(os.pathsep.join(places), [workspace]) is None
    found = find_ripgrep(os.pathsep.join([*places, str(tmp_path / "outside")]), [workspace])
    assert found is not None
    assert found.program == str((tmp_path / "outside" / "rg").resolve())


def test_a_program_that_fails_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "rg"
    tree(tmp_path / "tree", TEXTS)
    monkeypatch.setattr(engine, "MANY_FILES", 1)
    alone = outcome(tmp_path / "tree", None, "one")
    for script in ("echo regex parse error >&2; exit 2", "kill -9 $$", "printf 'not/a/file\\0'"):
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        found = outcome(tmp_path / "tree", Ripgrep(str(program), {}), "one")
        assert isinstance(found, GrepOutcome)
        assert isinstance(alone, GrepOutcome)
        assert found.hits == ([] if script.startswith("printf") else alone.hits)


def test_what_rg_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The candidates and nothing else, no configuration, nothing of this process's environment."""
    tree(tmp_path / "tree", TEXTS)
    (tmp_path / "tree" / "secret.txt").write_text("one")
    program = tmp_path / "rg"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/asked; env > {tmp_path}/env; exit 1\n')
    program.chmod(0o755)
    monkeypatch.setattr(engine, "MANY_FILES", 1)
    monkeypatch.setenv("RIPGREP_CONFIG_PATH", "/somewhere")
    blocked = Scope(None, (str(tmp_path / "tree" / "secret.txt"),))
    found = outcome(tmp_path / "tree", Ripgrep(str(program), {}), "one", scope=blocked)
    assert isinstance(found, GrepOutcome)
    assert found.walk.left_out == 1
    asked = (tmp_path / "asked").read_text().split("\n")
    assert {"--no-config", "--no-ignore-dot", "--no-ignore-global", "--max-depth=1"} <= set(asked)
    assert asked[asked.index("--") + 1 : -1] == ["./binary", "d0/", "d1/", "d2/"], "no folder that has what is blocked"
    assert "RIPGREP_CONFIG_PATH" not in (tmp_path / "env").read_text()
