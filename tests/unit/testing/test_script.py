from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from agent_host.testing.script import Script, ScriptError
from tests.support.rows import each_row

if TYPE_CHECKING:
    from pathlib import Path


def write(directory: Path, name: str, text: str) -> str:
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_toml_and_json_lines_say_the_same(tmp_path: Path) -> None:
    toml = write(
        tmp_path,
        "a.toml",
        """
        [vars]
        who = "you"
        [[turn]]
        text = "hello ${who}"
        usage = { input_tokens = 7 }
        [[turn]]
        when.last_contains = "x"
        tool_calls = [{ name = "T", arguments = { a = [1, { b = true }] } }]
        """,
    )
    lines = write(
        tmp_path,
        "a.jsonl",
        '{"vars": {"who": "you"}}\n'
        '{"text": "hello ${who}", "usage": {"input_tokens": 7}}\n\n'
        '{"when": {"last_contains": "x"}, "tool_calls": [{"name": "T", "arguments": {"a": [1, {"b": true}]}}]}\n',
    )
    one, other = Script.load(toml), Script.load(lines)
    assert one.turns == other.turns
    assert one.variables == other.variables == {"who": "you"}
    assert [turn.number for turn in one.turns] == [1, 2]


def test_json_lines_may_hold_unicode_line_separators(tmp_path: Path) -> None:
    assert Script.load(write(tmp_path, "a.jsonl", '{"text": "a\u2028b"}\n')).turns[0].text == "a\u2028b"


@each_row(
    ("turn", "message"),
    [
        ({"txt": "a"}, "turn 2: key 'txt' is not known; did you mean text?"),
        ({"tool_calls": [{"name": "a"}, {"nmae": "b"}]}, "key 'tool_calls[1].nmae' is not known; did you mean name?"),
        ({"text": "a", "expect": {"last_contain": "b"}}, "'expect.last_contain' is not known; did you mean last_conta"),
        (
            {"text": "a", "usage": {"cache_creation_input_tokens": 1, "cache_creation_1h_input_tokens": 2}},
            "'usage.cache_creation_1h_input_tokens' is a part of cache_creation_input_tokens, and is more",
        ),
        ({"status": 500, "error": {"message": "a", "failed": True}}, "'error.failed' is not known"),
        ({"text": "a", "usage": {"qqqq": 1}}, "'usage.qqqq' is not known; known are input_tokens, output_tokens"),
        ({"text": 1}, "key 'text' must be a string, not 1"),
        ({"text": "\ud800"}, "key 'text' must not contain half of a character"),
        ({"text": "a", "delay_ms": -1}, "key 'delay_ms' must be a whole number of at least 0, not -1"),
        ({"text": "a", "delay_ms": True}, "key 'delay_ms' must be a whole number of at least 0, not true"),
        ({"text": "a", "when": {"last_matches": "("}}, "key 'when.last_matches' is not a regular expression"),
        ({"text": "a", "expect": {"headers": {"x": 1}}}, "key 'expect.headers.x' must be a string or true or false"),
        ({"text": "a", "expect": {"tools": ["a", 1]}}, "key 'expect.tools[1]' must be a string"),
        ({"tool_calls": [{"arguments": {}}]}, "key 'tool_calls[0].name' is missing"),
        ({"tool_calls": [{"name": "a", "arguments": {}, "raw_arguments": ""}]}, "exclude each other"),
        ({"tool_calls": [{"name": "a", "arguments": {"b": object()}}]}, "'tool_calls[0].arguments' cannot be written"),
        ({"tool_calls": {"name": "a"}}, "key 'tool_calls' must be an array, not an object"),
        ({"status": 200}, "key 'status' must be a whole number from 400 to 599, not 200"),
        ({"status": 500, "text": "a"}, "key 'status' cannot stand beside 'text'"),
        ({"text": "a", "error": {"message": "b"}}, "key 'error' needs 'status'"),
        ({"status": 500, "error": {"type": "b"}}, "key 'error.message' is missing"),
        ({"garbage": [1, 256]}, "key 'garbage[1]' must be a whole number from 0 to 255, not 256"),
        ({"text": "a", "times": 2}, "key 'times' is for turns that fail or have 'when'"),
        ({"status": 500, "times": "ever"}, "key 'times' must be a whole number or 'always', not 'ever'"),
        ({"status": 500, "repeat": 2}, "key 'repeat' is for turns that answer"),
        ({"text": "a", "when": {}, "repeat": 2}, "key 'repeat' cannot stand beside 'when'"),
        ({"delay_ms": 1}, "turn 2: answers nothing; give one of text,"),
        ([], "turn 2: must be a table, not a list of 0"),
    ],
)
def test_mistakes_are_one_line_with_file_turn_and_key(turn: Any, message: str) -> None:
    with pytest.raises(ScriptError) as caught:
        Script.from_turns([{"text": "fine"}, turn], name="s.toml")
    assert str(caught.value).startswith("s.toml: turn 2: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "[[turn]\n", "is not TOML"),
        ("a.toml", "[[turns]]\n", "key 'turns' is not known; did you mean turn?"),
        ("a.toml", "[turn]\ntext='a'\n", "write [[turn]]"),
        ("a.toml", "vars = 1\n[[turn]]\ntext='a'\n", "write [vars]"),
        ("a.toml", "[vars]\na = 1\n[[turn]]\ntext='a'\n", "key 'vars.a' must be a string"),
        ("a.toml", "", "the script has no turns"),
        ("a.jsonl", '{"text": "a"}\n{', "line 2 is not JSON"),
        ("a.jsonl", '{"vars": 1}', "key 'vars' must be a table"),
        ("a.yaml", "", "must end in .toml or .jsonl"),
    ],
)
def test_files_that_are_no_scripts_are_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = write(tmp_path, name, text)
    with pytest.raises(ScriptError) as caught:
        Script.load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match=r"none\.toml: cannot be read: No such file"):
        Script.load(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b"\xff")
    with pytest.raises(ScriptError, match=r"latin\.toml: is not UTF-8 at byte 0"):
        Script.load(tmp_path / "latin.toml")


@pytest.mark.parametrize(
    "turn",
    [
        {"text": "${nope}"},
        {"tool_calls": [{"name": "a", "arguments": {"b": [{"c": "${nope}"}]}}]},
        {"text": "a", "expect": {"last_contains": "${nope}"}},
        {"text": "a", "when": {"last_contains": ["b", "${nope}"]}},
        {"status": 500, "error": {"message": "${nope}"}},
    ],
)
def test_placeholders_without_a_value_are_errors_once_the_variables_are_known(turn: dict[str, Any]) -> None:
    script = Script.from_turns([turn], name="s.toml")
    with pytest.raises(ScriptError, match=r"s\.toml: turn 1: .*unknown placeholder \$\{nope\}; known: here, turn$"):
        script.with_variables({"here": "x"})
    script.with_variables({"nope": "x"})


def test_load_checks_placeholders_when_it_is_given_variables(tmp_path: Path) -> None:
    path = write(tmp_path, "a.toml", "[vars]\na = 'own'\nb = 'own'\n[[turn]]\ntext = '${a} ${b} ${c}'\n")
    with pytest.raises(ScriptError, match=r"\$\{c\}"):
        Script.load(path, {"b": "given"})
    assert Script.load(path, {"b": "given", "c": ""}).variables == {"a": "own", "b": "given", "c": ""}


def test_what_is_no_placeholder_is_left_alone() -> None:
    script = Script.from_turns([{"text": "$HOME $${x} ${x:-1} $(ls) ${1}"}])
    script.with_variables({})
