"""Arguments against the schemas of our own tools: which pass, what is said of others, and which schemas are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.rows import each_row
from tests.support.tools import TOOLS
from tool_runtime.schema import UnusableSchema, shape_of
from tool_runtime.tool import judge_of

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 3},
        "count": {"type": "integer", "minimum": 1, "maximum": 5},
        "ratio": {"type": "number"},
        "kind": {"type": "string", "enum": ["a", "b"]},
        "flags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
        "extra": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "additionalProperties": False,
}


SENT_AS_TEXT = (
    r'$.extra: must be an object, not "{\"x\": \"y\"}"; '
    "send the object itself, not a string"
)


def problems(schema: dict[str, Any], value: object) -> list[str]:
    shape = shape_of(schema)
    found = [str(problem) for problem in shape.problems(value, "$")]
    assert shape.fits(value) == (not found)
    return found


def test_what_conforms() -> None:
    value = {"name": "abc", "count": 5, "ratio": 1, "kind": "b", "flags": [True], "extra": {"x": "y"}}
    assert problems(SCHEMA, value) == []


@each_row(
    ("value", "said"),
    [
        ([], ["$: must be an object, not a list of 0"]),
        ({}, ["$.name: is missing"]),
        ({"name": None}, ["$.name: must be a string, not null"]),
        ({"name": ""}, ["$.name: must not be empty"]),
        ({"name": "abcd"}, ["$.name: must have at most 3 characters, not 4"]),
        ({"name": "a", "count": 0}, ["$.count: must be a whole number from 1 to 5, not 0"]),
        ({"name": "a", "count": 6}, ["$.count: must be a whole number from 1 to 5, not 6"]),
        ({"name": "a", "count": True}, ["$.count: must be a whole number from 1 to 5, not true"]),
        ({"name": "a", "count": 1.5}, ["$.count: must be a whole number from 1 to 5, not 1.5"]),
        ({"name": "a", "count": 1.0}, ["$.count: must be a whole number from 1 to 5, not 1.0; send 1"]),
        ({"name": "a", "count": "5"}, ['$.count: must be a whole number from 1 to 5, not "5"; send 5, without quotes']),
        ({"name": "a", "count": "6"}, ['$.count: must be a whole number from 1 to 5, not "6"']),
        ({"name": "a", "count": " x"}, ['$.count: must be a whole number from 1 to 5, not " x"']),
        ({"name": "a", "ratio": "1"}, ['$.ratio: must be a number, not "1"; send 1, without quotes']),
        ({"name": "a", "ratio": "1e999"}, ['$.ratio: must be a number, not "1e999"']),
        ({"name": "a", "ratio": "[" * 9999}, [f'$.ratio: must be a number, not "{"[" * 39}…']),
        (
            {"name": "a", "flags": "[true]"},
            ['$.flags: must be a list, not "[true]"; send the list itself, not a string'],
        ),
        (
            {"name": "a", "flags": ["True"]},
            ['$.flags[0]: must be true or false, not "True"; send true, without quotes'],
        ),
        (
            {"name": "a", "extra": '{"x": "y"}'},
            [SENT_AS_TEXT],
        ),
        ({"name": "a", "kind": "c"}, ['$.kind: must be one of a, b, not "c"']),
        ({"name": "a", "flags": [True, 0]}, ["$.flags[1]: must be true or false, not 0"]),
        ({"name": "a", "flags": [True] * 3}, ["$.flags: must have at most 2 items, not 3"]),
        ({"name": "a", "extra": {"x": 1}}, ["$.extra.x: must be a string, not 1"]),
        ({"name": "a", "extra": {"x y": 1}}, ['$.extra["x y"]: must be a string, not 1']),
        ({"nam": 1}, ["$.name: is missing", "$.nam: is not known; did you mean name?"]),
    ],
)
def test_what_does_not(value: object, said: list[str]) -> None:
    assert problems(SCHEMA, value) == said


@pytest.mark.parametrize(
    ("schema", "good", "bad", "said"),
    [
        ({"type": ["string", "null"]}, ["x", None], [1, {}], "$: must be a string or null, not "),
        ({"type": ["integer", "number"]}, [1, 1.5], ["1", True], "$: must be a whole number or a number, not "),
        ({"const": 1}, [1], [2, True, "1"], "$: must be 1, not "),
        ({"enum": [1, "a"]}, [1, "a"], [True, "b"], "$: must be one of 1, a, not "),
        ({"pattern": "^[a-z]+$"}, ["abc", 5], ["a1", ""], "$: must be what ^[a-z]+$ matches, not "),
        (
            {"anyOf": [{"type": "string", "minLength": 2}, {"type": "integer", "minimum": 2}]}, ["xx", 2], [1, None],
            "$: must have one of 2 forms; not the first: $ must be a string, not ",
        ),
        ({"required": ["a"]}, [{"a": 1}, 5], [{}], "$.a: is missing"),
    ],
)  # fmt: skip
def test_other_keywords(schema: dict[str, Any], good: list[Any], bad: list[Any], said: str) -> None:
    assert [problems(schema, value) for value in good] == [[] for _ in good]
    for value in bad:
        (found,) = problems(schema, value)
        assert found.startswith(said)


def test_every_tool_of_ours_has_a_schema_that_is_known_in_full() -> None:
    for spec in TOOLS.values():
        assert judge_of(spec.input_schema)({"no such argument": 1}) is not None


@each_row(
    ("schema", "said"),
    [
        ({"properties": {"a": {"alOf": []}}}, "$.properties.a.alOf: is not known; did you mean anyOf?"),
        ({"oneOf": []}, "$.oneOf: is not known; did you mean anyOf?"),
        ({"$ref": "http://127.0.0.1/"}, '$["$ref"]: is not known'),
        ({"type": "strin"}, '$.type: must have one of 2 forms; not the first: $.type must be one of object, array, '),
        ({"type": []}, "$.type: must have one of 2 forms"),
        ({"enum": [{}]}, "$.enum[0]: must be a string or a whole number or true or false or null, not an object"),
        ({"minLength": -1}, "$.minLength: must be a whole number of at least 0, not -1"),
        ({"items": True}, "$.items: must be an object, not true"),
        ({"items": {"required": "a"}}, '$.items.required: must be a list, not "a"'),
        ({"additionalProperties": {"pattern": "("}}, "$.additionalProperties.pattern: is not a regular expression: "),
        ({"pattern": "(?=a)"}, "$.pattern: is not a regular expression: "),
    ],
)  # fmt: skip
def test_a_schema_beyond_the_subset_is_refused(schema: dict[str, Any], said: str) -> None:
    with pytest.raises(UnusableSchema) as found:
        judge_of(schema)
    assert str(found.value).startswith(said)


# --- the same answers as a library that knows the whole standard ------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "c"])
SCALARS = (
    st.none() | st.booleans() | st.integers(-3, 6) | st.sampled_from([-1.5, 0.5, 2.5]) | st.text("ab1\0é", max_size=4)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=6
)
LOW, HIGH = st.integers(-2, 2), st.integers(0, 4)
CHOICES = st.none() | st.booleans() | st.integers(0, 3) | st.text("ab", max_size=2)
TYPES = st.sampled_from(["object", "array", "string", "integer", "number", "boolean", "null"])


def of_keywords(inner: SearchStrategy[dict[str, Any]]) -> SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {},
        optional={
            "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
            "enum": st.lists(CHOICES, min_size=1, max_size=3, unique_by=lambda one: (type(one), one)),
            "const": CHOICES,
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "properties": st.dictionaries(NAMES, inner, max_size=2),
            "required": st.lists(NAMES, max_size=2, unique=True),
            "additionalProperties": st.booleans() | inner,
            "items": inner,
            "minItems": HIGH,
            "maxItems": HIGH,
            "minLength": HIGH,
            "maxLength": HIGH,
            "pattern": st.sampled_from(["^a", "b$", "^[ab]*$", "1|é"]),
            "minimum": LOW | st.just(0.5),
            "maximum": LOW | st.just(2.5),
            "description": st.just("text"),
        },
    )


SCHEMAS = st.recursive(of_keywords(st.just({})), of_keywords, max_leaves=6)


@settings(max_examples=300)
@given(SCHEMAS, VALUES)
def test_the_library_accepts_the_same_values(schema: dict[str, Any], value: object) -> None:
    assert (problems(schema, value) == []) == jsonschema_rs.is_valid(schema, value), schema


@pytest.mark.slow
@settings(max_examples=200)
@given(SCHEMAS, st.dictionaries(NAMES, VALUES, max_size=3))
def test_a_schema_in_the_subset_is_judged_alike_as_ours_and_as_foreign(
    schema: dict[str, Any], arguments: dict[str, Any]
) -> None:
    ours, foreign = judge_of(schema), judge_of(schema, foreign=True)
    assert (ours(arguments) is None) == (foreign(arguments) is None)


def test_five_problems_are_listed_and_the_rest_counted() -> None:
    judge = judge_of(SCHEMA)
    said = judge({"nam": 1, **{f"x{n}": n for n in range(9)}})
    assert said is not None
    assert said.startswith("$.name: is missing; $.nam: is not known; did you mean name?; ")
    assert said.endswith("; and 6 more")


def test_the_nearest_argument_is_named_whatever_its_case() -> None:
    judge = judge_of(TOOLS["EditFile"].input_schema)
    said = judge({"file_path": "a", "edits": [{"old_text": "x", "newText": "y"}]})
    assert said is not None
    assert "$.file_path: is not known; did you mean path?" in said
    assert "$.edits[0].old_text: is not known; did you mean oldText?" in said


def test_an_argument_that_is_missing_is_meant_first() -> None:
    judge = judge_of(TOOLS["RunCommand"].input_schema)
    assert judge({"cmd": "ls"}) == "$.command: is missing; $.cmd: is not known; did you mean command?"
    assert judge({"command": "ls", "cmd": "."}) == "$.cmd: is not known; did you mean cwd?"


@given(st.text(), st.sampled_from(["integer", "number", "boolean", "array", "object"]))
def test_a_string_never_passes_for_another_type(text: str, kind: str) -> None:
    assert judge_of({"properties": {"a": {"type": kind}}})({"a": text}) is not None
