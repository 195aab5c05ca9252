from __future__ import annotations

from typing import Any

import pytest

from tool_runtime.schema import problems

SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 3},
        "count": {"type": "integer", "minimum": 1, "maximum": 5},
        "ratio": {"type": "number"},
        "kind": {"type": "string", "enum": ["a", "b"]},
        "flags": {"type": "array", "items": {"type": "boolean"}},
        "extra": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "additionalProperties": False,
}


def test_what_conforms() -> None:
    value = {"name": "abc", "count": 5, "ratio": 1, "kind": "b", "flags": [True], "extra": {"x": "y"}}
    assert problems(SCHEMA, value) == []


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([], ["$: expected object, got array"]),
        ({}, ["$.name: is required"]),
        ({"name": None}, ["$.name: expected string, got null"]),
        ({"name": ""}, ["$.name: length must be at least 1"]),
        ({"name": "abcd"}, ["$.name: length must be at most 3"]),
        ({"name": "a", "count": 0}, ["$.count: value must be at least 1"]),
        ({"name": "a", "count": 6}, ["$.count: value must be at most 5"]),
        ({"name": "a", "count": True}, ["$.count: expected integer, got boolean"]),
        ({"name": "a", "count": 1.5}, ["$.count: expected integer, got number"]),
        ({"name": "a", "ratio": "1"}, ["$.ratio: expected number, got string"]),
        ({"name": "a", "kind": "c"}, ["$.kind: must be one of a, b"]),
        ({"name": "a", "flags": [True, 0]}, ["$.flags[1]: expected boolean, got integer"]),
        ({"name": "a", "extra": {"x": 1}}, ["$.extra.x: expected string, got integer"]),
        ({"nam": 1}, ["$.name: is required", "$.nam: is not an argument of this tool"]),
    ],
)
def test_what_does_not(value: object, said: list[str]) -> None:
    assert problems(SCHEMA, value) == said


@pytest.mark.parametrize(
    ("schema", "good", "bad", "said"),
    [
        ({"type": ["string", "null"]}, ["x", None], [1, {}], "$: expected string or null, got "),
        ({"const": 1}, [1], [2, True, "1"], "$: must be 1"),
        ({"enum": [1, "a"]}, [1, "a"], [True, "b"], "$: must be one of 1, a"),
        ({"pattern": "^[a-z]+$"}, ["abc", 5], ["a1", ""], "$: must match ^[a-z]+$"),
        (
            {"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 2}]}, ["x", 2], [1, None],
            "$: fits none of the 2 forms that it may have ($: expected string, got ",
        ),
    ],
)  # fmt: skip
def test_other_keywords(schema: dict[str, Any], good: list[Any], bad: list[Any], said: str) -> None:
    assert [problems(schema, value) for value in good] == [[] for _ in good]
    for value in bad:
        (found,) = problems(schema, value)
        assert found.startswith(said)
