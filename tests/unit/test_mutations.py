"""The mutants themselves: what is changed, what is left alone, and who sees a table."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tests.support.mutation_scope import Scope
from tests.support.mutation_tables import Tables
from tests.support.mutations import mutants, mutated

if TYPE_CHECKING:
    from pathlib import Path

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
