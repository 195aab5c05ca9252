"""Shapes of values: what fits has no problem, what does not has one for each thing that is wrong, with its path."""

from __future__ import annotations

from typing import Any

from config.shapes import (
    ANYTHING,
    COUNT,
    FLAG,
    TEXT,
    AllOf,
    AnyOf,
    ListOf,
    MapOf,
    Nullable,
    Record,
    Row,
    Shape,
    Text,
    first_problem,
    integer,
    list_problems,
    number,
    one_of,
)  # fmt: skip
from tests.support.rows import each_row

INNER = Record({"n": COUNT}, {"on": FLAG})


@each_row(
    ("shape", "value", "said"),
    [
        (TEXT, "", []),
        (TEXT, None, ["at: must be a string, not null"]),
        (TEXT, {"a": 1}, ["at: must be a string, not an object"]),
        (COUNT, 0, []),
        (COUNT, -3, ["at: must be a whole number of at least 0, not -3"]),
        (COUNT, 1.0, ["at: must be a whole number of at least 0, not 1.0"]),
        (COUNT, True, ["at: must be a whole number of at least 0, not true"]),
        (FLAG, False, []),
        (FLAG, 0, ["at: must be true or false, not 0"]),
        (one_of("a", "b"), "b", []),
        (one_of("a", "b"), "c", ['at: must be one of a, b, not "c"']),
        (one_of("a", "b"), ["a"], ["at: must be one of a, b, not a list of 1"]),
        (one_of(1, 2), True, ["at: must be one of 1, 2, not true"]),
        (one_of(1, 2), 1.0, ["at: must be one of 1, 2, not 1.0"]),
        (Nullable(TEXT), None, []),
        (Nullable(TEXT), 1, ["at: must be a string, not 1"]),
        (ListOf(TEXT), [], []),
        (ListOf(TEXT), "ab", ['at: must be a list, not "ab"']),
        (ListOf(TEXT), ["a", 1, 2], ["at[1]: must be a string, not 1", "at[2]: must be a string, not 2"]),
        (Row(TEXT, COUNT), ["a", 1], []),
        (Row(TEXT, COUNT), ["a"], ["at: must be a list of 2, not a list of 1"]),
        (Row(TEXT, COUNT), ["a", "b"], ['at[1]: must be a whole number of at least 0, not "b"']),
        (MapOf(COUNT), {"a": 1}, []),
        (MapOf(COUNT), [], ["at: must be an object, not a list of 0"]),
        (MapOf(COUNT), {"/a b": None}, ['at["/a b"]: must be a whole number of at least 0, not null']),
        (ANYTHING, None, []),
        (Record({"any": ANYTHING}), {}, ["at.any: is missing"]),
        (Record({"any": AllOf(ANYTHING, ANYTHING)}, {"n": COUNT}), {"n": 1}, ["at.any: is missing"]),
        (integer(), -5, []),
        (integer(1, 10_000), 0, ["at: must be a whole number from 1 to 10,000, not 0"]),
        (integer(high=3), 4, ["at: must be a whole number of at most 3, not 4"]),
        (integer(0), 10**100, []),
        (integer(0, 1), 10**100, ["at: must be a whole number from 0 to 1, not a number of many digits"]),
        (number(0.5), 1, []),
        (number(0.5), float("nan"), ["at: must be a number of at least 0.5, not NaN"]),
        (number(), True, ["at: must be a number, not true"]),
        (Text(1, 3), "", ["at: must not be empty"]),
        (Text(2), "a", ["at: must have at least 2 characters, not 1"]),
        (Text(most=1), "ab", ["at: must have at most 1 character, not 2"]),
        (Text(), "a\0", ["at: must not contain a NUL character"]),
        (Text(), "\ud800", ["at: must not contain half of a character (a lone surrogate)"]),
        (Text(nul=True, halves=True), "\ud800\0", []),
        (ListOf(TEXT, 1), [], ["at: must not be empty"]),
        (ListOf(COUNT, most=2), [1, 2, -3], ["at: must have at most 2 items, not 3"]),
        (AnyOf(TEXT, FLAG), False, []),
        (AnyOf(TEXT, FLAG), 1, ["at: must be a string or true or false, not 1"]),
        (
            AnyOf(ListOf(TEXT), TEXT),
            [1],
            ["at: must have one of 2 forms; not the first: at[0] must be a string, not 1"],
        ),
        (AllOf(TEXT, one_of("a", "b")), "c", ['at: must be one of a, b, not "c"']),
        (AllOf(TEXT, one_of("a", "b")), 1, ["at: must be a string, not 1"]),
        (Record({}, {"a": TEXT}, others=COUNT), {"a": "x", "b": 1}, []),
        (
            Record({}, {"a": TEXT}, others=COUNT),
            {"b c": -1},
            ['at["b c"]: must be a whole number of at least 0, not -1'],
        ),
        (Record({}, {"colour": TEXT}, closed=True), {"color": ""}, ["at.color: is not known; did you mean colour?"]),
        (Record({}, closed=True), {"a": ""}, ["at.a: is not known; none is"]),
        (INNER, {"n": 1, "on": True, "more": 1}, []),
        (INNER, [], ["at: must be an object, not a list of 0"]),
        (INNER, {"on": 1}, ["at.n: is missing", "at.on: must be true or false, not 1"]),
        (Record({"i": INNER}), {"i": {}}, ["at.i.n: is missing"]),
        (Record({}, {"a": TEXT}, closed=True), {"a": "x"}, []),
        (
            Record({}, {"a": TEXT}, closed=True),
            {"c": 1, "b": 1},
            ["at.c: is not known; known are a", "at.b: is not known; known are a"],
        ),
    ],
)
def test_what_is_wrong_with_a_value(shape: Shape, value: Any, said: list[str]) -> None:
    assert list(map(str, shape.problems(value, "at"))) == said
    assert shape.fits(value) == (not said)


def test_the_fields_of_the_whole_have_no_path_in_front() -> None:
    assert [*map(str, INNER.problems({}, ""))] == ["n: is missing"]
    assert [*map(str, INNER.problems(1, ""))] == ["it: must be an object, not 1"]


def test_long_values_and_characters_that_steer_a_terminal_are_not_shown() -> None:
    ((_, said),) = COUNT.problems("\x1b[31m\u202e" + "x" * 100, "at")
    assert said.isprintable()
    assert "\u202e" not in said
    assert len(said) < 100


def test_a_list_of_problems_is_told_in_part() -> None:
    assert list_problems(["a", "b"]) == "a; b"
    assert list_problems([str(number) for number in range(12)]) == "0; 1; 2; 3; 4; 5; 6; 7; 8; 9; and 2 more"


def test_the_first_problem_is_a_sentence() -> None:
    shape = Record({"a": TEXT, "b": COUNT})
    assert first_problem(shape, {"a": "", "b": 0}) is None
    problem = first_problem(shape, {"a": 1, "b": -1})
    assert problem is not None
    assert problem.sentence == "a must be a string, not 1"
