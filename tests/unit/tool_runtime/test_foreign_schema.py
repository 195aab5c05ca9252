"""Schemas of other programs: a library judges by them, and none takes the host's time, its network or its stack."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest

from tests.support.rows import each_row
from tool_runtime.schema import UnusableSchema
from tool_runtime.tool import judge_of


def wrong(schema: dict[str, Any], arguments: dict[str, Any]) -> str | None:
    return judge_of(schema, foreign=True)(arguments)


def nested(levels: int, key: str = "properties") -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {key: {"a": schema}} if key == "properties" else {key: schema}
    return schema


def doubled(steps: int) -> dict[str, Any]:
    """A schema that is applied 2 to the power of `steps` times."""
    chain: dict[str, Any] = {f"s{n}": {"allOf": [{"$ref": f"#/$defs/s{n + 1}"}] * 2} for n in range(steps)}
    return {"$defs": {**chain, f"s{steps}": {"type": "object"}}, "$ref": "#/$defs/s0"}


TREE: dict[str, Any] = {
    "$defs": {"node": {"type": "object", "properties": {"left": {"$ref": "#/$defs/node"}, "value": {"type": "integer"}},
                       "additionalProperties": False}},
    "$ref": "#/$defs/node",
}  # fmt: skip


def tree(levels: int) -> dict[str, Any]:
    return {"left": tree(levels - 1)} if levels else {"value": 1}


@each_row(
    ("schema", "arguments", "said"),
    [
        ({"type": "object"}, {"a": 1}, None),
        ({"properties": {"a": {"type": "string"}}}, {"a": 1}, '$.a: the value is not of type "string"'),
        ({"properties": {"a": {"items": {"minimum": 2}}}}, {"a": [2, 1]}, "$.a[1]: the value is less than the"),
        ({"required": ["a"]}, {}, '$: "a" is a required property'),
        ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"a": 1, "b": 1}, "$: the value is valid under"),
        ({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, {"a": 1}, '$: "b" is a required property'),
        ({"patternProperties": {"^x-": {"type": "string"}}}, {"x-y": 1}, '$["x-y"]: the value is not of type'),
        ({"properties": {"a": {"format": "email"}}}, {"a": "no address"}, None),
        ({"properties": {"a": {"pattern": "^(?=b)"}}}, {"a": "no match, and the tool says so"}, None),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"a": {"$ref": "#/definitions/b"}},
          "definitions": {"b": {"type": "null"}}}, {"a": 1}, '$.a: the value is not of type "null"'),
        ({"properties": {"$id": {"type": "string"}, "$anchor": {"const": 1}}}, {"$id": "x", "$anchor": 1}, None),
        (TREE, tree(50), None),
        (TREE, {"left": {"left": {"valu": 1}}}, "$.left.left: Additional properties are not allowed ('valu' was"),
        ({"type": "object"}, tree(100), "$: must have at most 64 levels"),
        ({"properties": {"a": {"pattern": "a"}}}, {"a": "\ud83d"}, "$: cannot be checked by the tool's schema: "),
    ],
)  # fmt: skip
def test_arguments_are_judged(schema: dict[str, Any], arguments: dict[str, Any], said: str | None) -> None:
    found = wrong(schema, arguments)
    assert found == said if said is None else (found or "").startswith(said)


@each_row(
    ("schema", "said"),
    [
        ({"type": "strin"}, "is not a valid JSON Schema: "),
        ({"properties": []}, "is not a valid JSON Schema: "),
        ({"pattern": "("}, "is not a valid JSON Schema: "),
        ({"pattern": "((a{1000}){1000}){1000}"}, "is not a valid JSON Schema: "),
        ({"$schema": "http://127.0.0.1:1/schema"}, "$schema: must be draft 6, 7, 2019-09 or 2020-12"),
        ({"$ref": "file:///etc/passwd"}, "$ref: must lead into the schema itself"),
        ({"items": {"$ref": "other.json#/a"}}, "$ref: must lead into the schema itself"),
        ({"$ref": "#/$defs/none"}, "$ref: nothing is at #/$defs/none"),
        ({"$ref": "#"}, "$ref: leads back to itself"),
        ({"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}, "$ref: leads back to itself"),
        ({"properties": {"a": {"$id": "http://elsewhere/"}}}, "#/properties: $id is not supported"),
        ({"$dynamicRef": "#a"}, "#: $dynamicRef is not supported"),
        ({"not": {"pattern": "(?=a)"}}, "#/not/pattern: a pattern that needs backtracking"),
        ({"$defs": {"a": {"pattern": "(?=a)"}}, "not": {"$ref": "#/$defs/a"}}, "#/not/$ref/pattern: a pattern that"),
        ({"patternProperties": {"(?=a)": {}}}, "#/patternProperties: a pattern that needs backtracking"),
        ([], "must be an object"),
        ({"default": object()}, "is not JSON: "),
        ({"const": "\ud83d"}, "is not JSON: "),
        ({"description": "x" * 300_000}, "has 300,018 bytes, more than 262,144"),
        (nested(40), "has more than 64 levels"),
        (nested(60, "not") | {"items": nested(100, "items")}, "has more than 64 levels"),
        (doubled(60), "would have to be applied too often"),
        ({"$defs": {f"s{n}": {"$ref": f"#/$defs/s{n + 1}"} for n in range(5000)} | {"s5000": {}}, "$ref": "#/$defs/s0"},
         "has too many references that lead to others"),
    ],
)  # fmt: skip
def test_a_schema_that_cannot_be_used_is_one_problem(schema: dict[str, Any], said: str) -> None:
    with pytest.raises(UnusableSchema) as found:
        judge_of(schema, foreign=True)
    assert str(found.value).startswith(said)
    assert "\n" not in str(found.value)
    assert len(str(found.value)) < 500


def test_no_reference_is_fetched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/schema.json"
        for schema in ({"$ref": url}, {"$schema": url}, {"$id": url, "properties": {"a": {"$ref": "#/b"}}}):
            with pytest.raises(UnusableSchema):
                judge_of(schema, foreign=True)
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        ({"properties": {"a": {"pattern": "^(a+)+$"}}}, {"a": "a" * 100_000 + "b"}),
        ({"properties": {"a": {"pattern": "(a|aa)+$"}}}, {"a": "a" * 100_000 + "b"}),
        ({"$defs": {"n": {"anyOf": [{"additionalProperties": {"$ref": "#/$defs/n"}}] * 4}}, "$ref": "#/$defs/n"},
         tree(60)),
    ],
)  # fmt: skip
def test_a_judgement_takes_no_more_than_a_moment(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    judge = judge_of(schema, foreign=True)
    begun = time.process_time()
    assert judge(arguments) is not None
    assert time.process_time() - begun < 5


def test_arguments_that_are_too_deep_do_not_keep_others_from_being_judged() -> None:
    judge = judge_of(
        {"$defs": {"n": {"anyOf": [{"additionalProperties": {"$ref": "#/$defs/n"}}] * 4}}, "$ref": "#/$defs/n"},
        foreign=True,
    )
    for _ in range(2):
        assert judge(tree(40)) == "$: is too deep to be checked by the tool's schema"
        assert judge({"a": {"b": {}}}) is None


@each_row(
    ("schema", "arguments", "said"),
    [
        ({"properties": {"n": {"type": "integer"}}}, {"n": "5"}, '; it is "5"; send 5, without quotes'),
        ({"properties": {"n": {"type": "integer"}}}, {"n": "five"}, '; it is "five"'),
        ({"properties": {"n": {"minimum": 3}}}, {"n": 2}, "; it is 2"),
        ({"properties": {"n": {"type": "array"}}}, {"n": "[1]"}, "; send the list itself, not a string"),
        ({"properties": {"a": {"type": "object"}}}, {"a": "{}"}, "send the object itself, not a string"),
        ({"properties": {"path": {}}, "additionalProperties": False}, {"file_path": 1}, "; did you mean path?"),
        ({"properties": {"path": {}}, "unevaluatedProperties": False}, {"Path": 1}, "; did you mean path?"),
        ({"properties": {"path": {}}, "additionalProperties": False}, {"zzz": 1}, "; known are path"),
        ({"allOf": [{"properties": {"path": {}}, "additionalProperties": False}]}, {"pth": 1}, "; did you mean path?"),
        (TREE, {"left": {"left": {"valu": 1}}}, "; did you mean value?"),
    ],
)  # fmt: skip
def test_a_problem_says_what_to_send(schema: dict[str, Any], arguments: dict[str, Any], said: str) -> None:
    found = wrong(schema, arguments)
    assert found is not None
    assert found.endswith(said)


def test_of_many_problems_the_first_five_are_said() -> None:
    found = wrong({"additionalProperties": {"type": "null"}}, {f"a{n}": "x" * 1000 for n in range(1000)})
    assert found is not None
    assert found.count("the value") == 5
    assert found.endswith("; and 6 more")
    assert len(found) < 1000
