"""The scanner of SQL: one statement, its names, and nothing taken for text that a server takes for code."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host.tool_service.postgres_query import UnreadableSql, one_statement
from tests.support.rows import each_row


def called(sql: str) -> list[str]:
    return [name.text for name in one_statement(sql).names if name.called]


@each_row(
    ("sql", "verb", "functions"),
    [
        ("SELECT f(1)", "select", ["f"]),
        ("select F /* x */ (1)", "select", ["f"]),
        ('SELECT "F"(1), s."g h"()', "select", ["F", "g h"]),
        ("SELECT 'f(1)', E'\\'f(1)', $$f(1)$$, $a$ $$f(1) $a$, \"f(1)\"", "select", []),
        ("SELECT 1 -- f(1)\n, g(2)", "select", ["g"]),
        ("SELECT 1 /* f(1) /* */ h(1) */, g(2)", "select", ["g"]),
        ("(VALUES (1))", "values", ["values"]),
        ("SELECT $1, 1.5e10, .5, 0x1F, 1_000", "select", []),
        ("SELECT a$b(1)", "select", ["a$b"]),
        ("SELECT é(1), É(2)", "select", ["é", "É"]),
        ("TABLE t;;", "table", []),
        ('"select" 1', "", []),
        ("SELECT 'it''s' 'x'", "select", []),
    ],
)
def test_names_and_calls_are_found(sql: str, verb: str, functions: list[str]) -> None:
    assert one_statement(sql).verb == verb
    assert called(sql) == functions


def test_a_long_name_is_cut_as_the_server_cuts_it() -> None:
    assert called(f"SELECT {'a' * 70}()") == ["a" * 63]
    assert called(f'SELECT "{"é" * 32}"()') == ["é" * 31]


@each_row(
    "sql",
    [
        "",
        ";",
        "-- nothing",
        "SELECT 1; SELECT 2",
        "SELECT 'open",
        'SELECT "open',
        "SELECT $$open",
        "SELECT /* open",
        "SELECT /* /* */ open",
        "SELECT U&'\\0066'",
        'SELECT u&"f"()',
        "SELECT 1e'x'",
        "SELECT 1or",
        "SELECT '\0'",
        "SELECT E'\\'; DELETE FROM t; --",
    ],
)
def test_what_cannot_be_split_with_certainty_is_refused(sql: str) -> None:
    with pytest.raises(UnreadableSql):
        one_statement(sql)


def test_the_text_ends_with_the_statement() -> None:
    assert one_statement("SELECT 1 ; -- more").text == "SELECT 1"


@given(st.text(alphabet="ab'\"$\\/*-; (\n)eE1"))
def test_a_call_behind_a_quoted_text_is_always_found(text: str) -> None:
    """Whatever stands in a text that ends, what follows it is code."""
    quoted = "'" + text.replace("'", "''") + "'"
    assert "f" in called(f"SELECT {quoted}, f (1)")
    escaped = "E'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
    assert "f" in called(f"SELECT {escaped}, f(1)")


@given(st.text(alphabet="ab'\"$\\/*-; (\n)eE1.é\0", max_size=60))
def test_any_text_is_split_or_refused(text: str) -> None:
    try:
        statement = one_statement(text)
    except UnreadableSql:
        return
    assert text.startswith(statement.text)
