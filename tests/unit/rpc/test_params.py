"""Closed shapes: each problem is told with its path."""

from __future__ import annotations

from typing import Any

import pytest

from agent_host.rpc.params import (
    InvalidParams,
    Param,
    an_object,
    anything,
    check_object,
    flag,
    list_of,
    one_of,
    optional,
    text,
    whole,
)

SHAPE = {
    "name": Param(text(5)),
    "note": optional(text(5, empty=True)),
    "kind": optional(one_of("a", "b")),
    "count": optional(whole(1, 10_000)),
    "on": optional(flag),
    "any": optional(anything),
    "paths": optional(list_of(text(3), most=2)),
    "inner": optional(an_object(deep=Param(an_object(x=optional(flag))))),
}


@pytest.mark.parametrize(
    "value",
    [
        {"name": "n"},
        {"name": "12345", "note": "", "kind": "b", "count": 10_000, "on": False, "any": {"x": 1}, "paths": []},
        {"name": "n", "count": 1, "paths": ["a", "b"], "inner": {"deep": {"x": True}}},
    ],
)
def test_what_fits(value: dict[str, Any]) -> None:
    check_object(SHAPE, value)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"name": ""}, "name must not be empty"),
        ({"name": "123456"}, "name must have at most 5 characters"),
        ({"name": None}, "name must be a string"),
        ({"name": ["n"]}, "name must be a string"),
        ({"kind": "c"}, "kind must be one of a, b"),
        ({"kind": ["a"]}, "kind must be one of a, b"),
        ({"count": 0}, "count must be a whole number from 1 to 10,000"),
        ({"count": 10_001}, "count must be a whole number from 1 to 10,000"),
        ({"count": 1.0}, "count must be a whole number from 1 to 10,000"),
        ({"count": True}, "count must be a whole number from 1 to 10,000"),
        ({"count": 1e300}, "count must be a whole number from 1 to 10,000"),
        ({"on": 1}, "on must be true or false"),
        ({"on": None}, "on must be true or false"),
        ({"any": []}, "any must be an object"),
        ({"paths": "abc"}, "paths must be an array"),
        ({"paths": ["a", "b", "c"]}, "paths must have at most 2 members"),
        ({"paths": ["a", 1]}, "paths[1] must be a string"),
        ({"paths": ["a", "long"]}, "paths[1] must have at most 3 characters"),
        ({"inner": {}}, "inner.deep is missing"),
        ({"inner": []}, "inner must be an object"),
        ({"inner": {"deep": {"x": 0}}}, "inner.deep.x must be true or false"),
        ({"inner": {"deep": {"y": 0}}}, "inner.deep.y is not a parameter here; known are: x"),
        ({"more": 1}, "more is not a parameter here; known are: name, note, kind, count, on, any, paths, inner"),
    ],
)
def test_what_does_not_fit(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidParams) as found:
        check_object(SHAPE, {"name": "n", **changes})
    assert str(found.value) == told


def test_what_is_missing() -> None:
    with pytest.raises(InvalidParams, match=r"^name is missing$"):
        check_object(SHAPE, {})


def test_nothing_is_known() -> None:
    with pytest.raises(InvalidParams, match=r"known are: none$"):
        check_object({}, {"a": 1})


def test_only_prose_may_hold_half_a_character() -> None:
    with pytest.raises(InvalidParams, match="taskId holds half of a character"):
        text()("taskId", "\ud83d")
    text(prose=True)("prompt", "\ud83d")
