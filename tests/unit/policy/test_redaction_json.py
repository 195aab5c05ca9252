"""Secrets taken out of JSON: texts, names of fields, what these give away, what is the host's own (AH 8.7)."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from policy.redaction import PLACEHOLDER, Redaction
from tests.support.rows import each_row
from tests.unit.policy.redactions import CARD, FULL, GITHUB, RULES, SECRETS, TEXTS, redaction, rule
from tests.unit.policy.secret_samples import LETTERS

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(TEXTS | st.sampled_from(["password", "name", "value"]), inner)
    ),
    max_leaves=8,
)


HOSTS_OWN = (
    "eventId", "callIds", "outputSha256", "policyHash", "timestamp", "startTimestamp", "eventType", "component",
    "severity", "id",
)  # fmt: skip


def shape(value: Any) -> Any:
    """The value without its texts."""
    if isinstance(value, dict):
        return [shape(item) for item in value.values()]
    return [shape(item) for item in value] if isinstance(value, list) else "" if isinstance(value, str) else value


@given(JSON)
@example({"password": "mariadb -u jo -ptiger app"})
def test_json_keeps_its_shape(value: Any) -> None:
    clean = FULL.value(value)
    assert shape(clean) == shape(value)
    assert FULL.value(clean) == clean


@given(JSON, st.sampled_from([redaction(), FULL, redaction(*RULES, detectors=False)]), st.booleans(), st.booleans())
@example({"a": "\x1fSK" + "0a" * 16 + "\x1f"}, redaction(), True, False)
@example({"a": "\ud800SK" + "0a" * 16}, redaction(), True, True)
@example({"inputTokens": GITHUB}, redaction(), True, False)
@example({"accessTokens": ["hunter2hunter2hunter"]}, redaction(), True, False)
@example({"id": CARD}, redaction(*RULES, detectors=False), True, False)
@example({CARD: 1}, redaction(*RULES, detectors=False), False, False)
def test_what_surely_holds_nothing_holds_nothing(value: Any, only: Redaction, is_event: bool, is_ascii: bool) -> None:
    encoded = json.dumps(value, ensure_ascii=is_ascii, separators=(",", ":")).encode("utf-8", "surrogatepass")
    if not only.concerns(encoded, is_event=is_event):
        assert only.value(value, is_event=is_event) == value


@given(st.lists(JSON | st.sampled_from([{"a": secret} for secret in SECRETS]), max_size=4))
@example([{"inputTokens": 1}, {"accessTokens": ["hunter2hunter2hunter"]}])
def test_lines_that_together_hold_nothing_hold_nothing(values: list[Any]) -> None:
    lines = [json.dumps(value).encode() + b"\n" for value in values]
    if not redaction().may_concern(b"".join(lines)):
        assert not any(redaction().concerns(line) for line in lines)


@each_row("token", [*SECRETS, "sk-" + LETTERS[:24]])
def test_a_known_token_is_seen_in_encoded_json(token: str) -> None:
    for text in (token, f"\x1f{token}\x1f", f'"{token}"', f"\n{token}\n", f"é{token}é", f'{{"a": "{token}"}}'):
        for is_ascii in (False, True):
            encoded = json.dumps({"text": text}, ensure_ascii=is_ascii).encode()
            assert redaction().concerns(encoded) or redaction().text(text) == text


def test_the_hosts_own_words_and_numbers_need_no_closer_look() -> None:
    event = {"taskId": "task_0123456789abcdef", "eventId": 54321, "payload": {"inputTokens": 4, "maxSessionTokens": 9}}
    for only in (redaction(), FULL):
        assert not only.concerns(json.dumps(event, separators=(",", ":")).encode(), is_event=True)


def test_fields_that_a_rule_makes_the_same_stay_two() -> None:
    assert redaction(rule(r"\d+", "#")).value({"12": "a", "34": "b"}) == {"#": "a", "#'": "b"}


def test_in_an_event_the_hosts_own_numbers_stay() -> None:
    digits = redaction(rule(r"\d+", "#"))
    event = {**dict.fromkeys(HOSTS_OWN, "12"), "payload": {"id": "78", "text": "90"}, "a_long_name_of_2024": 1}
    assert digits.value([event], is_event=True) == [{**event, "payload": {"id": "78", "text": "#"}}]
    assert digits.value({"a": [["90"], {"b": event}]}, is_event=True)["a"][1]["b"]["eventId"] == "12"
    changed = digits.value(event)
    assert {changed[name.replace("256", "#")] for name in HOSTS_OWN} == {"#"}
    assert "a_long_name_of_#" in changed


def test_a_value_is_told_by_the_name_that_stands_beside_it() -> None:
    for name in ("name", "key"):
        shown = FULL.value({name: "DB_PASSWORD", "value": "hunter2hunter", "note": "hunter2hunter"})
        assert re.fullmatch(PLACEHOLDER, shown.pop("value"))
        assert shown == {name: "DB_PASSWORD", "note": "hunter2hunter"}
    for other in ({"name": 5}, {"name": "x"}, {}):
        assert FULL.value({**other, "value": "hunter2hunter"}) == {**other, "value": "hunter2hunter"}


def test_a_secret_may_be_the_name_of_a_field() -> None:
    for name in ("xoxb-" + LETTERS[:11], GITHUB):
        for is_event in (False, True):
            assert name not in json.dumps(redaction().value({"a": {name: 1}}, is_event=is_event))


@pytest.mark.parametrize("name", ["id", "clientId", "X-Request-Hash", "timestamp", "severity"])
def test_no_name_of_a_field_hides_a_token(name: str) -> None:
    """A model chooses the names in its arguments."""
    for is_event in (False, True):
        assert GITHUB not in json.dumps(FULL.value({"a": [{name: GITHUB}], name: [GITHUB]}, is_event=is_event))


def test_a_tuple_is_a_list_like_any_other() -> None:
    assert FULL.value({"a": (GITHUB, 1)}) == {"a": [FULL.text(GITHUB), 1]}
