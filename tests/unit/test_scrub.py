"""Secrets in what is encoded: found however JSON spells them, and the JSON stays JSON."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agent_host.redaction import REDACTED, Scrubber
from config import json_text
from policy.bundle import RedactionRule
from policy.redaction import Redaction
from tests.unit.policy.secret_samples import TOKENS

ODD = ['quo"te-secret', "back\\slash-secret", "new\nline-secret", "ümlaut-secret", "tail-secret\\", 'n"tricky\\secret']


@pytest.mark.parametrize("secret", ["plain-secret", *ODD])
def test_a_secret_is_found_in_every_spelling(secret: str) -> None:
    scrub = Scrubber([secret]).json
    for value in (secret, json.dumps({"a": secret}), orjson.dumps([json.dumps([secret], ensure_ascii=False)]).decode()):
        for line in (orjson.dumps({"x": [f"<{value}>"]}) + b"\n", json.dumps({"x": [f"<{value}>"]}).encode() + b"\n"):
            clean = scrub(line)
            assert clean.endswith(b"}\n")
            text = orjson.loads(clean)["x"][0]
            assert REDACTED in text
            assert secret not in text
            assert orjson.dumps(secret)[1:-1].decode() not in text


def test_a_secret_in_a_key_goes_too() -> None:
    assert orjson.loads(Scrubber(["plain-secret"]).json(b'{"plain-secret":1}')) == {REDACTED: 1}


def test_what_holds_none_is_left_as_it_is() -> None:
    line = b'{"a":  1}\n'
    assert Scrubber(["plain-secret", None, "short"]).json(line) is line
    assert Scrubber([]).json(line) is line


secrets = st.text(st.sampled_from('ab"\\\nnü\u2028 {}:,'), min_size=8, max_size=12)


@given(secrets, st.text(), st.text())
def test_json_stays_json_and_holds_no_secret(secret: str, before: str, after: str) -> None:
    assume(secret not in REDACTED)
    clean = json.loads(Scrubber([secret]).json(json_text.dumps({"a": before + secret + after, "b": 1})))
    assert clean["b"] == 1
    assert REDACTED in clean["a"]
    assert secret not in clean["a"].split(REDACTED)


@pytest.mark.slow
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists), secrets)
def test_nothing_else_changes(value: object, secret: str) -> None:
    line = json_text.dumps({"v": value})
    assume(REDACTED.encode() not in line)
    clean = Scrubber([secret]).json(line)
    assert clean == line or REDACTED.encode() in clean


# By what they look like

LOOKS = Redaction([RedactionRule("digits", r"\d{2,}", "", "#")], key=lambda: b"k" * 32)
TOKEN = TOKENS["github-token"][0]


def test_an_events_own_numbers_stay_and_a_models_arguments_are_no_event() -> None:
    line = orjson.dumps({"eventId": "1234", "clientId": "5678", "text": f"9012 {TOKEN}"})
    scrubber = Scrubber([], LOOKS)
    told, kept = orjson.loads(scrubber.event(line)), orjson.loads(scrubber.json(line))
    assert (told["eventId"], told["clientId"]) == ("1234", "5678")
    assert (kept["eventId"], kept["clientId"]) == ("#", "#")
    assert TOKEN not in told["text"]
    assert told["text"] == kept["text"]


def test_no_name_of_an_event_hides_a_token() -> None:
    assert TOKEN.encode() not in Scrubber([], LOOKS).event(orjson.dumps({"clientId": TOKEN, "id": [TOKEN]}))


def test_known_secrets_go_first() -> None:
    assert Scrubber([TOKEN], LOOKS).text(TOKEN) == REDACTED
