"""The mutants themselves: what is changed, what is left alone, and who sees a table."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.mutants import stale
from tests.support.mutation_children import forked
from tests.support.mutation_scope import Scope
from tests.support.mutation_tables import Tables
from tests.support.mutations import mutants, mutated

if TYPE_CHECKING:
    import pytest

SOURCE = '''"""A docstring: 1 < 2."""
from typing import TYPE_CHECKING, Literal
if TYPE_CHECKING:
    LIMIT = 5
Kind = Literal["one", "two"]
WORDS = frozenset("ab cd ef".split(" "))
LONGER = WORDS | {"gh"}

def small(number: int, most: "int | None" = 3) -> bool:
    """Says whether 1 < 2."""
    if most is None or number < most:
        return True
    raise ValueError(f"more than {most + 1}")

def listed(word: str) -> bool:
    found.append("a message of several words")
    return word in LONGER
'''


def test_each_mutant_is_one_change_that_compiles() -> None:
    found = mutants("m.py", SOURCE)
    texts = [ast.unparse(mutated(SOURCE, one.number)) for one in found]
    assert len(set(texts)) == len(found)
    assert ast.unparse(ast.parse(SOURCE)) not in texts
    for text in texts:
        compile(text, "m.py", "exec")


def test_what_no_behaviour_hangs_on_is_left_alone() -> None:
    changes = {(one.line, one.function, one.change) for one in mutants("m.py", SOURCE)}
    assert {change for line, _, change in changes if line == 6} == {
        f"'ab cd ef' without {word}" for word in ("ab", "cd", "ef")
    } | {"' ' → ' XX'"}
    assert {change for line, _, change in changes if line == 9} == {"3 → 4"}
    assert {change for line, name, change in changes if name == "small"} == {
        "most is None or number < most → most is None and number < most",
        "most is None → most is not None",
        "number < most → number <= most",
        "return True → return None",
        "True → False",
        "without raise ValueError(f'more than {most + 1}')",
    }
    assert not {line for line, _, _ in changes} & {1, 2, 4, 5, 10}


def test_a_key_stays_while_its_function_does() -> None:
    keys = {one.key for one in mutants("m.py", SOURCE) if one.function == "listed"}
    moved = SOURCE.replace("    raise ValueError", "    number += 1\n    raise ValueError")
    assert keys == {one.key for one in mutants("m.py", moved) if one.function == "listed"}
    changed = SOURCE.replace("word in LONGER", "word not in LONGER")
    assert not keys & {one.key for one in mutants("m.py", changed) if one.function == "listed"}


def test_a_table_is_seen_by_who_names_it_or_what_is_made_of_it(tmp_path: Path) -> None:
    file = tmp_path / "m.py"
    file.write_text(SOURCE)
    seen = Scope([str(file)]).lines(str(file), 6)
    assert {line for _, line in seen} == {15, 16, 17}


def test_what_a_function_holds_on_to_is_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text("A = 1\nB = 2\nC = 3\n\nclass D:\n    c = C\n    def f(self, *, a=A): return B\n")
    tables = Tables(["m.py"])
    assert [tables.is_table("m.py", line) for line in range(1, 7)] == [False, True, False, True, False, False]


PATTERN = """import re
WORD = re.compile(r"ab|[|]c|d(?:e|f|g)|h\\|i")
SHORT = re.compile(r"ab")
TOLD = Row("a text that is told", unless="x y", reason="why not")
"""


def test_a_pattern_loses_one_alternative_and_a_list_of_words_one_word() -> None:
    changes = {one.change.partition(" without ")[2] or one.change for one in mutants("m.py", PATTERN)}
    assert changes == {"ab", "[|]c", "d(?:e|f|g)", "h\\|i", "e", "f", "g", "x", "y", "'ab' → 'abXX'"}


def test_a_table_is_made_anew_in_place_for_all_who_have_it() -> None:
    path = "policy/shell/tables.py"
    source = Path(path).read_text("utf-8")
    gone = next(one for one in mutants(path, source) if one.change.endswith("without unalias"))
    files = [one.as_posix() for one in sorted(Path("policy").rglob("*.py")) if one.name != "__init__.py"]

    def inside(_say: int) -> int:
        tables = Tables(files)
        before = judge("unalias ls")
        tables.remake(path, mutated(source, gone.number))
        changed = judge("unalias ls")
        tables.remake(path)
        return 0 if (before, changed, judge("unalias ls")) == (False, True, False) else 1

    assert forked(inside, 60) == (0, "")


def judge(line: str) -> bool:
    """Whether a line is decided, with nothing remembered."""
    from policy import shell as commands

    commands.parse.cache_clear()
    return commands.parse(line).dynamic == ()


def test_what_runs_at_import_is_known_with_what_it_calls() -> None:
    tables = Tables(["policy/__init__.py", "policy/shell/tables.py", "policy/shell/findings.py"])
    import policy
    from policy.shell import tables as shell_tables

    assert (policy.words.__code__.co_filename, "words") in tables.run_at_import()
    assert policy.words("a b") == {"a", "b"}
    lines = Path(shell_tables.__file__).read_text("utf-8").splitlines()
    assert tables.is_table("policy/shell/tables.py", lines.index("RESERVED_WORDS = words(") + 1)
    lines = Path("policy/shell/findings.py").read_text("utf-8").splitlines()
    assert not tables.is_table("policy/shell/findings.py", lines.index("class Opaque(NamedTuple):") + 5)


def test_a_listed_change_that_cannot_be_made_is_stale(tmp_path: Path) -> None:
    file = (tmp_path / "m.py").as_posix()
    Path(file).write_text(SOURCE)
    good = {(file, "small", "number < most → number <= most"), (file, "WORDS", "'ab cd ef' without cd")}
    gone = [
        (file, "WORDS", "'ab cd ef' without gh"),
        (file, "small", "number > most → number >= most"),
        (f"{file}x", "small", "number < most → number <= most"),
    ]
    assert stale([*gone, *good]) == gone
