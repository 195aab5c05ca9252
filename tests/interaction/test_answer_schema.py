"""`--schema FILE`: the final answer is JSON that fits, in the result and alone on standard output, or the run fails."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.errors import UsageError
from agent_host.host.backends import schema_text
from tests.support.process import Host, call, gateway, say, shell, use
from tests.support.rows import each_row

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.process import Outcome

CLOSED = {
    "type": "object",
    "properties": {"count": {"$ref": "#/$defs/count"}, "why": {"type": "string"}},
    "required": ["count"],
    "additionalProperties": False,
    "$defs": {"count": {"type": "integer", "minimum": 0}},
}
GOOD = {"count": 3, "why": "größer als \u2028 2 \U0001f600"}


def schema(host: Host, value: object = CLOSED) -> Path:
    path = host.root / "schema.json"
    path.write_text(json.dumps(value))
    return path


def as_text(host: Host, url: str, *options: str | Path) -> Outcome:
    return host.run("run", "Count.", "--gateway", url, "--policy", "full", *options)


FORMS: dict[str, Any] = {
    "anthropic": lambda body: body["output_config"]["format"]["schema"],
    "openai": lambda body: body["response_format"]["json_schema"]["schema"],
    "responses": lambda body: body["text"]["format"]["schema"],
}


@pytest.mark.parametrize("dialect", FORMS)
def test_each_dialect_asks_the_provider_for_it(host: Host, dialect: str) -> None:
    with gateway(use(shell("true"), text="I look first."), say(json.dumps(GOOD))) as served:
        outcome = host.task(served.url, "--schema", schema(host), "--dialect", dialect)
    assert outcome.code == 0
    assert outcome.result["answer"] == GOOD
    assert [FORMS[dialect](body) for body in served.bodies] == [CLOSED, CLOSED]
    assert served.count == 2


def test_without_a_schema_nothing_is_asked_for(host: Host) -> None:
    with gateway(say("{}")) as served:
        outcome = host.task(served.url)
    assert "answer" not in outcome.result
    assert "output_config" not in served.bodies[0]


def test_as_text_standard_output_is_the_answer_alone(host: Host) -> None:
    turns = (use(shell("echo of a command"), text="Prose on the way."), say(f"```json\n{json.dumps(GOOD)}\n```"))
    with gateway(*turns) as served:
        outcome = as_text(host, served.url, "--schema", schema(host))
    assert outcome.code == 0
    assert outcome.stdout.count(b"\n") == 1
    assert json.loads(outcome.stdout) == GOOD
    assert "Prose on the way." in outcome.stderr


def test_with_events_the_answer_stands_in_the_last_line(host: Host) -> None:
    with gateway(say(json.dumps(GOOD))) as served:
        outcome = as_text(host, served.url, "--schema", schema(host), "--output", "jsonl")
    assert outcome.last_line["answer"] == GOOD


ANSWERS: dict[str, tuple[Any, str, Any]] = {
    "in a fence without a name": (CLOSED, '```\n{"count": 1}\n```', {"count": 1}),
    "in white space": (CLOSED, ' \n{"count": 1}\n\n', {"count": 1}),
    "a number": ({"type": "number"}, "-1.5e3", -1500.0),
    "null": ({"type": "null"}, "null", None),
    "a text with a fence in it": ({"type": "string"}, json.dumps("```\nx\n```"), "```\nx\n```"),
    "an array": ({"type": "array", "items": {"enum": [1, 2]}}, "[1, 2]", [1, 2]),
    "of any kind": ({}, "[]", []),
    "an open object": ({"type": "object"}, '{"a": {"b": []}}', {"a": {"b": []}}),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ("null", "of any kind") else pytest.mark.slow) for name in ANSWERS]
)
def test_an_answer_that_fits(host: Host, name: str) -> None:
    form, text, value = ANSWERS[name]
    with gateway(say(text)) as served:
        outcome = as_text(host, served.url, "--schema", schema(host, form))
    assert outcome.code == 0
    assert json.loads(outcome.stdout) == value
    assert served.count == 1


BAD: dict[str, tuple[str, str]] = {
    "prose": ("There are three.", "it is not JSON"),
    "prose around it": ('Here it is:\n```json\n{"count": 3}\n```', "it is not JSON"),
    "another type": ('{"count": "3"}', "$.count"),
    "one too many": ('{"count": 3, "extra": 1}', "extra"),
    "one too few": ("{}", "count"),
    "two values": ('{"count": 3}\n{"count": 4}', "it is not JSON"),
    "cut": ('{"count": ', "it is not JSON"),
    "below a reference": ('{"count": -1}', "$.count"),
    "not a number": ('{"count": NaN}', "it is not JSON"),
    "too deep": ("[" * 5000 + "]" * 5000, ""),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ("prose", "another type") else pytest.mark.slow) for name in BAD]
)
def test_one_that_does_not_fit_is_asked_for_once_more(host: Host, name: str) -> None:
    text, problem = BAD[name]
    with gateway(say(text), say(json.dumps(GOOD))) as served:
        outcome = as_text(host, served.url, "--schema", schema(host))
    assert outcome.code == 0
    assert json.loads(outcome.stdout) == GOOD
    assert served.count == 2
    note = json.dumps(served.bodies[1]["messages"][-1])
    assert "JSON that fits the schema" in note
    assert problem in note


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "one too few" else pytest.mark.slow) for name in BAD]
)
def test_two_that_do_not_fit_fail_with_the_problems(host: Host, name: str) -> None:
    text, problem = BAD[name]
    with gateway(say("No idea."), say(text), say("unasked for")) as served:
        outcome = host.task(served.url, "--schema", schema(host), "--session-id", "s")
    assert outcome.code == 1
    result = outcome.result
    assert (result["reason"], result["endedBy"], result["verdict"]) == ("ANSWER_SCHEMA", "model", "failed")
    assert problem in result["message"]
    assert "answer" not in result
    assert served.count == 2


def test_where_it_fails_standard_output_is_empty_and_a_resume_tries_again(host: Host) -> None:
    with gateway(say("No idea."), say("None at all.")) as served:
        outcome = as_text(host, served.url, "--schema", schema(host), "--session-id", "s")
    assert outcome.code == 1
    assert outcome.stdout == b""
    outcome.names_once("failed: ANSWER_SCHEMA", "it is not JSON")
    schema(host).unlink()
    with gateway(say("No idea."), say("None at all."), say("Still none."), say(json.dumps(GOOD))) as served:
        again = host.run("resume", "s", "--gateway", served.url)
    assert again.code == 0
    assert json.loads(again.stdout) == GOOD


def test_calls_between_bad_answers_begin_a_new_count(host: Host) -> None:
    bad, looks = say("Three."), use(shell("true"))
    with gateway(bad, looks, bad, looks, say(json.dumps(GOOD))) as served:
        outcome = host.task(served.url, "--schema", schema(host))
    assert outcome.code == 0
    assert outcome.result["answer"] == GOOD


def test_a_repeated_run_shows_the_answer_alone(host: Host) -> None:
    once = ("--schema", schema(host), "--session-id", "s", "--or-resume")
    with gateway(say(json.dumps(GOOD))) as served:
        first = as_text(host, served.url, *once)
        second = as_text(host, served.url, *once)
    assert (first.code, second.code) == (0, 0)
    assert second.stdout == first.stdout
    assert json.loads(second.stdout) == GOOD
    assert served.count == 1


def test_another_prompt_has_the_schema_of_the_session(host: Host) -> None:
    with gateway(say(json.dumps(GOOD)), say('{"count": 4}')) as served:
        as_text(host, served.url, "--schema", schema(host), "--session-id", "s")
        again = host.run("resume", "s", "Count again.", "--gateway", served.url)
    assert json.loads(again.stdout) == {"count": 4}


def test_a_secret_in_the_answer_is_taken_out_of_it(host: Host) -> None:
    token = "gh" + "p_" + "a1B2" * 9
    text = json.dumps({"count": 1, "why": f'it is {token} \\ "'})
    with gateway(say(text)) as served:
        outcome = as_text(host, served.url, "--schema", schema(host), "--session-id", "s")
        result = host.task(served.url, "--schema", schema(host)).result
    assert outcome.code == 0
    assert token not in outcome.text + json.dumps(result)
    assert json.loads(outcome.stdout)["why"].startswith("it is [redacted:")
    assert result["answer"]["why"].endswith(' \\ "')


URL = "http://127.0.0.1:9"
UNUSABLE: dict[str, bytes] = {
    "empty": b"",
    "no JSON": b"{",
    "no UTF-8": b'{"title": "\xff"}',
    "an array": b"[]",
    "true": b"true",
    "a wrong type": b'{"type": "integr"}',
    "a wrong keyword": b'{"properties": []}',
    "a pattern that is none": b'{"pattern": "["}',
    "a remote reference": json.dumps({"$ref": f"{URL}/schema.json"}).encode(),
    "a remote reference below": json.dumps({"properties": {"a": {"items": {"$ref": f"{URL}/b#/c"}}}}).encode(),
    "a remote reference in a definition": json.dumps({"$defs": {"a": {"$ref": f"{URL}/b"}}}).encode(),
    "a remote reference by its base": json.dumps({"$id": f"{URL}/a", "properties": {"x": {"$ref": "b"}}}).encode(),
    "a file": b'{"$ref": "file:///etc/passwd"}',
    "a relative reference": b'{"$ref": "other.json"}',
    "a remote dialect": json.dumps({"$schema": f"{URL}/schema"}).encode(),
    "a reference to nothing": b'{"$ref": "#/$defs/none"}',
    "a reference to itself": b'{"$ref": "#"}',
    "too deep": b'{"not":' * 3000 + b"{}" + b"}" * 3000,
    "too large": b'{"title": "' + b"x" * 300_000 + b'"}',
}


@each_row("name", UNUSABLE)
def test_a_schema_that_cannot_be_used_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"it is (empty|not JSON|not a usable JSON Schema)"):
        schema_text(UNUSABLE[name])


def test_a_file_of_a_schema_that_cannot_be_used_is_said_at_once_and_nothing_is_fetched(host: Host) -> None:
    with gateway(say("unasked for")) as served:
        paths = [schema(host, {"properties": {"a": {"$ref": f"{served.url}/schema"}}}), host.root, host.root / "none"]
        for path in paths:
            outcome = as_text(host, served.url, "--schema", path)
            assert outcome.code == 2, path
            assert f"--schema {path}" in outcome.error
        assert served.count == 0
    assert host.checkpoints() == []


def test_a_schema_with_a_mark_of_its_encoding(host: Host) -> None:
    path = host.root / "schema.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(CLOSED).encode())
    with gateway(use(call("ReadFile", path="none")), say(json.dumps(GOOD))) as served:
        outcome = host.task(served.url, "--schema", path)
    assert outcome.result["answer"] == GOOD
