"""Shapes of parameters: each problem is told with its path, and unknown members are no problem."""

from __future__ import annotations

from typing import Any

import pytest

from agent_host.rpc.messages import InvalidParams, check, list_ignored, name, params, prose
from config.shapes import FLAG, OBJECT, ListOf, Text, integer, one_of
from tests.support.rows import each_row

SHAPE = params(
    {"name": name(5)},
    {
        "note": Text(most=5),
        "kind": one_of("a", "b"),
        "count": integer(1, 10_000),
        "on": FLAG,
        "any": OBJECT,
        "paths": ListOf(name(3), most=2),
        "inner": params({"deep": params(optional={"x": FLAG})}),
    },
)


@pytest.mark.parametrize(
    "value",
    [
        {"name": "n"},
        {"name": "12345", "note": "", "kind": "b", "count": 10_000, "on": False, "any": {"x": 1}, "paths": []},
        {"name": "n", "count": 1, "paths": ["a", "b"], "inner": {"deep": {"x": True}}},
    ],
)
def test_what_fits(value: dict[str, Any]) -> None:
    check(SHAPE, value)


@each_row(
    ("changes", "told"),
    [
        ({"name": ""}, "name must not be empty"),
        ({"name": "123456"}, "name must have at most 5 characters, not 6"),
        ({"name": None}, "name must be a string, not null"),
        ({"name": ["n"]}, "name must be a string, not a list of 1"),
        ({"kind": "c"}, 'kind must be one of a, b, not "c"'),
        ({"kind": ["a"]}, "kind must be one of a, b, not a list of 1"),
        ({"count": 0}, "count must be a whole number from 1 to 10,000, not 0"),
        ({"count": 10_001}, "count must be a whole number from 1 to 10,000, not 10001"),
        ({"count": 1.0}, "count must be a whole number from 1 to 10,000, not 1.0"),
        ({"count": True}, "count must be a whole number from 1 to 10,000, not true"),
        ({"count": 1e300}, "count must be a whole number from 1 to 10,000, not 1e+300"),
        ({"on": 1}, "on must be true or false, not 1"),
        ({"on": None}, "on must be true or false, not null"),
        ({"any": []}, "any must be an object, not a list of 0"),
        ({"paths": "abc"}, 'paths must be a list, not "abc"'),
        ({"paths": ["a", "b", "c"]}, "paths must have at most 2 items, not 3"),
        ({"paths": ["a", 1]}, "paths[1] must be a string, not 1"),
        ({"paths": ["a", "long"]}, "paths[1] must have at most 3 characters, not 4"),
        ({"inner": {}}, "inner.deep is missing"),
        ({"inner": []}, "inner must be an object, not a list of 0"),
        ({"inner": {"deep": {"x": 0}}}, "inner.deep.x must be true or false, not 0"),
        ({"later": 1, "inner": {"deep": {"x": 0, "later": 1}}}, "inner.deep.x must be true or false, not 0"),
    ],
)
def test_what_does_not_fit(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidParams) as found:
        check(SHAPE, {"name": "n", **changes})
    assert str(found.value) == told


def test_what_is_missing() -> None:
    with pytest.raises(InvalidParams, match=r"^name is missing$"):
        check(SHAPE, {})


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, []),
        ({"any": {"x": 1}}, []),
        ({"xyz": 1, "inner": {"deep": {"y": 0, "x": True}, "a": {"b": 1}}}, ["inner.a", "inner.deep.y", "xyz"]),
        ({"": None, "a b": [], "é": 1, "\ud83d": 1}, ["", "a b", "é", "\ud83d"]),
        ({"x" * 300: 1}, ["x" * 200]),
    ],
)
def test_what_is_not_known_is_ignored(more: dict[str, Any], expected: list[str]) -> None:
    value = {"name": "n", **more}
    check(SHAPE, value)
    assert list_ignored(SHAPE, value) == expected


def test_the_list_of_what_is_ignored_is_bounded() -> None:
    unknown = {f"x{number:04}": number for number in range(3000)}
    assert list_ignored(params(), unknown) == list(unknown)[:100]


def test_only_prose_may_hold_half_a_character_and_nul() -> None:
    shape = params(optional={"taskId": name(), "prompt": prose(10)})
    with pytest.raises(InvalidParams, match="taskId must not contain half of a character"):
        check(shape, {"taskId": "\ud83d"})
    with pytest.raises(InvalidParams, match="taskId must not contain a NUL character"):
        check(shape, {"taskId": "a\0"})
    check(shape, {"prompt": "\ud83d\0"})
