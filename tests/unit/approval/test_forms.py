"""What a server may ask a person for, and what an answer has to be."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_host.approval import MAX_FIELDS, Form, UnusableForm, form_of
from agent_host.terminal import prompt_of, question_of, take
from tests.support.rows import each_row

COLOURS = {"type": "array", "minItems": 1, "items": {"type": "string", "enum": ["red", "blue"]}}
SIZE = {"type": "string", "oneOf": [{"const": "s", "title": "small"}, {"const": "l", "title": "large"}], "default": "s"}
ALL = {
    "name": {"type": "string", "title": "Your name", "minLength": 2, "maxLength": 5, "pattern": ".*"},
    "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "share": {"type": "number", "default": 0.5},
    "sure": {"type": "boolean"},
    "size": SIZE,
    "colours": COLOURS,
}
GOOD = {"name": "Ada", "age": 36, "share": 1.5, "sure": True, "size": "l", "colours": ["red"]}


def form(properties: Any, *required: str, scrub: Any = str) -> Form:
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return form_of("mcp:odd", "Who are you?", schema, None, scrub)


def without_hunter2(text: str) -> str:
    """What a scrubber does that knows one secret."""
    return text.replace("hunter2", "[redacted]")


@each_row(
    ("change", "problem"),
    [
        ({}, None),
        ({"name": "A"}, "name must have at least 2 characters, not 1"),
        ({"name": "Adalbert"}, "name must have at most 5 characters, not 8"),
        ({"age": 36.5}, "age must be a whole number from 0 to 150, not 36.5"),
        ({"age": True}, "age must be a whole number from 0 to 150, not true"),
        ({"sure": "yes"}, 'sure must be true or false, not "yes"'),
        ({"size": "m"}, 'size must be one of s, l, not "m"'),
        ({"colours": []}, "colours must not be empty"),
        ({"colours": ["green"]}, 'colours[0] must be one of red, blue, not "green"'),
        ({"nam": 1}, "nam is not known; did you mean name?"),
    ],
)
def test_an_answer_fits_its_form(change: dict[str, Any], problem: str | None) -> None:
    assert form(ALL, *ALL).problem({**GOOD, **change}) == problem


def test_what_is_required_and_what_is_not() -> None:
    asked = form(ALL, "name")
    assert asked.problem({}) == "name is missing"
    assert asked.problem({"name": "Ada"}) is None


def test_what_clients_are_shown_is_read_again_as_the_same() -> None:
    asked = form(ALL, "name")
    shown = asked.to_json()
    assert shown["question"] == "Who are you?"
    assert "pattern" not in orjson.dumps(shown).decode()
    again = form_of("mcp:odd", shown["question"], shown["form"], None, str)
    assert again == asked


def test_the_words_of_a_server_are_data() -> None:
    said = {"type": "string", "title": "x\x1b[2J\u202e", "description": "hunter2 " + "y" * 5000}
    (field,) = form({"name": said}, scrub=without_hunter2).fields
    assert field.title == "x\\x1b[2J\\u202e"
    assert field.description.startswith("[redacted] yyy")
    assert len(field.description) < 1100
    message = form_of(
        "mcp:odd", "hunter2\x1b" + "z" * 10**6, {"type": "object", "properties": {}}, None, without_hunter2
    ).message
    assert message.startswith("[redacted]\\x1bzzz")
    assert len(message) < 4100


@each_row(
    "properties",
    [
        {"a b": {"type": "string"}},
        {"a": {"type": "object"}},
        {"a": {"$ref": "#/a"}},
        {"a": {"anyOf": [{"type": "string"}]}},
        {"a": "string"},
        {"a": {"type": "string", "enum": []}},
        {"a": {"type": "string", "enum": ["x", 1]}},
        {"a": {"type": "string", "enum": ["x" * 201]}},
        {"a": {"type": "string", "enum": ["x\n"]}},
        {"a": {"type": "array"}},
        {"a": {"type": "string", "enum": [str(one) for one in range(101)]}},
        {f"a{one}": {"type": "string"} for one in range(MAX_FIELDS + 1)},
        {"a": {"type": "string", "description": "x" * 70_000}},
        [],
        {"a": {"type": "string", "minLength": 5000}},
        {"a": {"type": "string", "minLength": 3, "maxLength": 2}},
        {"a": {"type": "string", "maxLength": -1}},
        {"a": {"type": "number", "minimum": 2, "maximum": 1}},
        {"a": {"type": "integer", "minimum": 0.2, "maximum": 0.8}},
        {"a": {**COLOURS, "minItems": 3}},
        {"a": {**COLOURS, "maxItems": -1}},
        {"hunter2": {"type": "string"}},
        {"a": {"type": "string", "enum": ["x", "my hunter2"]}},
        {"a": {"type": "string", "oneOf": [{"const": "hunter2", "title": "two"}]}},
    ],
)
def test_what_nobody_is_shown(properties: Any) -> None:
    with pytest.raises(UnusableForm):
        form(properties, scrub=without_hunter2)


@each_row(
    ("said", "default"),
    [
        ({"type": "string", "default": "Ada"}, "Ada"),
        ({"type": "string", "default": "hunter2"}, None),
        ({"type": "string", "default": "\x1b[2J"}, None),
        ({**COLOURS, "default": ["red"]}, ["red"]),
        ({"type": "integer", "default": -3}, -3),
        ({"type": "integer", "default": 2**70}, None),
        ({"type": "number", "default": float("inf")}, None),
        ({"type": "number", "default": 1e300}, None),
        ({"type": "boolean", "default": False}, False),
    ],
)
def test_a_default_goes_back_as_it_is_shown_or_is_none(said: dict[str, Any], default: object) -> None:
    (field,) = form({"a": said}, scrub=without_hunter2).fields
    assert field.default == default
    assert field.to_json().get("default") == default


def test_a_page_whose_url_holds_a_secret_is_not_shown() -> None:
    with pytest.raises(UnusableForm, match="its URL contains a secret"):
        form_of("mcp:odd", "Log in.", None, "https://example.com/?key=hunter2", without_hunter2)


def test_limits_that_one_answer_fits() -> None:
    exact = {
        "name": {"type": "string", "minLength": 4000, "maxLength": 9000},
        "age": {"type": "integer", "minimum": -2, "maximum": -2},
        "colours": {**COLOURS, "minItems": 2},
    }
    content = {"name": "x" * 4000, "age": -2, "colours": ["red", "blue"]}
    assert form(exact, *exact).problem(content) is None


@each_row(
    ("url", "host"),
    [
        ("https://Example.com/a?b=c", "example.com"),
        ("http://127.0.0.1:8000/login", "127.0.0.1"),
        ("http://example.com/", None),
        ("https://user:password@example.com/", None),
        ("javascript:alert(1)", None),
        ("file:///etc/passwd", None),
        ("https://example.com/\u202e", None),
        ("https://example.com/" + "a" * 2048, None),
    ],
)
def test_a_page_that_a_person_is_sent_to(url: str, host: str | None) -> None:
    if host is None:
        with pytest.raises(UnusableForm):
            form_of("mcp:odd", "Log in.", None, url, str)
        return
    asked = form_of("mcp:odd", "Log in.", None, url, str)
    assert asked.to_json() == {"source": "mcp:odd", "question": "Log in.", "url": url, "host": host}
    assert question_of(asked).startswith("Open the page yourself")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(
    ["type", "title", "default", "enum", "oneOf", "items", "minimum", "maxLength", "minItems", "format", "const"]
)


@settings(max_examples=30)
@given(st.dictionaries(st.text(max_size=8), st.dictionaries(KEYS, VALUES, max_size=4) | VALUES, max_size=4))
def test_any_schema_is_shown_or_refused(properties: dict[str, Any]) -> None:
    try:
        asked = form(properties)
    except UnusableForm:
        return
    orjson.dumps(asked.to_json())
    defaults = {field.name: field.default for field in asked.fields if field.default is not None}
    assert asked.problem(defaults) is None
    assert all(prompt_of(field, "").isprintable() or "\n" in prompt_of(field, "") for field in asked.fields)


def test_lines_at_a_terminal() -> None:
    asked = form(ALL, "name", "age", "sure", "colours")
    lines = {"name": "Ada", "age": "36", "share": "", "sure": "Y", "size": "2", "colours": "2 1"}
    content: dict[str, Any] = {}
    assert [take(field, lines[field.name], content) for field in asked.fields] == [None] * 6
    assert content == {"name": "Ada", "age": 36, "share": 0.5, "sure": True, "size": "l", "colours": ["blue", "red"]}
    wrong = {"name": "A", "age": "old", "share": "inf", "sure": "perhaps", "size": "0", "colours": "3"}
    said = [take(field, wrong[field.name], {}) for field in asked.fields]
    assert said == [
        "name must have at least 2 characters, not 1",
        "age needs a whole number",
        "share needs a number; nothing for 0.5",
        "sure needs y or n",
        "size needs a number of the list; nothing for s",
        "colours needs numbers of the list, with blanks",
    ]
    (choices,) = [prompt_of(field, "") for field in asked.fields if field.name == "size"]
    assert choices == "  size\n    1 small\n    2 large\n  a number of the list; nothing for s: "
