"""Shapes of values: what fits has no problem, what does not has one for each thing that is wrong, with its path."""

from __future__ import annotations

from typing import Any

import pytest

from state.shapes import COUNT, FLAG, TEXT, ListOf, MapOf, Nullable, Record, Row, Shape, listed, one_of

INNER = Record({"n": COUNT}, {"on": FLAG})


@pytest.mark.parametrize(
    ("shape", "value", "said"),
    [
        (TEXT, "", []),
        (TEXT, None, ["at: expected a string, found null"]),
        (TEXT, {"a": 1}, ["at: expected a string, found an object"]),
        (COUNT, 0, []),
        (COUNT, -3, ["at: expected a whole number of at least 0, found -3"]),
        (COUNT, 1.0, ["at: expected a whole number of at least 0, found 1.0"]),
        (COUNT, True, ["at: expected a whole number of at least 0, found true"]),
        (FLAG, False, []),
        (FLAG, 0, ["at: expected true or false, found 0"]),
        (one_of("a", "b"), "b", []),
        (one_of("a", "b"), "c", ['at: expected one of "a", "b", found "c"']),
        (one_of("a", "b"), ["a"], ['at: expected one of "a", "b", found a list of 1']),
        (one_of(1, 2), True, ["at: expected one of 1, 2, found true"]),
        (one_of(1, 2), 1.0, ["at: expected one of 1, 2, found 1.0"]),
        (Nullable(TEXT), None, []),
        (Nullable(TEXT), 1, ["at: expected a string, found 1"]),
        (ListOf(TEXT), [], []),
        (ListOf(TEXT), "ab", ['at: expected a list, found "ab"']),
        (ListOf(TEXT), ["a", 1, 2], ["at[1]: expected a string, found 1", "at[2]: expected a string, found 2"]),
        (Row(TEXT, COUNT), ["a", 1], []),
        (Row(TEXT, COUNT), ["a"], ["at: expected a list of 2, found a list of 1"]),
        (Row(TEXT, COUNT), ["a", "b"], ['at[1]: expected a whole number of at least 0, found "b"']),
        (MapOf(COUNT), {"a": 1}, []),
        (MapOf(COUNT), [], ["at: expected an object, found a list of 0"]),
        (MapOf(COUNT), {"/a b": None}, ['at["/a b"]: expected a whole number of at least 0, found null']),
        (INNER, {"n": 1, "on": True, "more": 1}, []),
        (INNER, [], ["at: expected an object, found a list of 0"]),
        (INNER, {"on": 1}, ["at.n: is missing", "at.on: expected true or false, found 1"]),
        (Record({"i": INNER}), {"i": {}}, ["at.i.n: is missing"]),
        (Record({}, {"a": TEXT}, closed=True), {"a": "x"}, []),
        (Record({}, {"a": TEXT}, closed=True), {"c": 1, "b": 1}, ["at.b: is not known", "at.c: is not known"]),
    ],
)
def test_what_is_wrong_with_a_value(shape: Shape, value: Any, said: list[str]) -> None:
    assert list(shape.problems(value, "at")) == said
    assert shape.fits(value) == (not said)


def test_the_fields_of_the_whole_have_no_path_in_front() -> None:
    assert list(INNER.problems({}, "")) == ["n: is missing"]
    assert list(INNER.problems(1, "")) == ["it: expected an object, found 1"]


def test_long_values_and_characters_that_steer_a_terminal_are_not_shown() -> None:
    (said,) = COUNT.problems("\x1b[31m\u202e" + "x" * 100, "at")
    assert said.isprintable()
    assert "\u202e" not in said
    assert len(said) < 100


def test_a_list_of_problems_is_told_in_part() -> None:
    assert listed(["a", "b"]) == "a; b"
    assert listed([str(number) for number in range(12)]) == "0; 1; 2; 3; 4; 5; 6; 7; 8; 9; and 2 more"
