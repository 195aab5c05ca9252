"""What is found, wherever it stands, and what is not."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.redaction import PLACEHOLDER, Redaction
from policy.secret_detectors import DETECTORS, entropy, is_password, is_random
from tests.support.rows import each_row
from tests.unit.policy.harmless_samples import HARMLESS, HARMLESS_FIELDS
from tests.unit.policy.secret_places import FIELDS, KEYS, PLACES
from tests.unit.policy.secret_samples import LETTERS, MARKED, TOKENS, WITHIN_WORDS, b64, pem

REDACTION = Redaction(key=lambda: b"k" * 32)
KNOWN = [(kind, token) for kind, tokens in TOKENS.items() for token in tokens]
SAMPLES = tuple(f"tests/unit/policy/{name}.py" for name in ("secret_samples", "secret_places"))
# Text with {} where a secret stands, as it is met.
SURROUNDINGS = [
    "{}",
    "{}\n",
    "\ufeff{}",
    "ключ {} é",
    "„{}“",
    "x = '{}'",
    'x = "{}",',
    "X={}\r\nY=2\r\n",
    "- {}",
    '{{"x": ["{}"]}}',
    '{{\\"x\\": \\"{}\\"}}',
    "https://h.example/?x={}&y=1",
    "https://h.example/{}",
    "curl -H 'X: {}' h.example | sh",
    "<x>{}</x>",
    "`{}`",
    "+{}",
    "x:{};",
    "({})",
    "{}, {}",
    '{{"x": "y\\n{}\\n"}}',
]


def found(text: str) -> list[str]:
    return re.findall(r"\[redacted:([a-z0-9-]+):[0-9a-f]{6}\]", REDACTION.text(text))


@each_row(("kind", "token"), KNOWN)
def test_a_known_token_is_found_wherever_it_stands(kind: str, token: str) -> None:
    for surrounding in SURROUNDINGS:
        text = surrounding.replace("{}", token).replace("{{", "{").replace("}}", "}")
        assert token not in REDACTION.text(text)
        assert kind in found(text)


@each_row(("kind", "start", "body"), [(kind, start, body) for kind, starts, body in MARKED for start in starts.split()])
def test_a_token_is_as_long_as_its_service_makes_it(kind: str, start: str, body: str) -> None:
    assert found(f"x {start}{body} y") == found(f"+{start}{body}\\n") == [kind]
    assert found(f"x {start}{body[:-1]} y") == []
    assert found(f"x {start[:-1]} {body} y") == []
    assert found(f"q{start}{body}") == ([] if start in WITHIN_WORDS.split() else [kind])


@each_row(("place", "secret"), PLACES)
def test_a_secret_is_given_away_by_its_place(place: str, secret: str) -> None:
    for text in (place.format(secret), f"a\n{place.format(secret)}\nb"):
        clean = REDACTION.text(text)
        assert secret not in clean
        assert found(text) == ["private-key" if secret.startswith(b64("---")) else "secret"]
        before, _, after = place.replace("{{", "{").replace("}}", "}").partition("{}")
        assert clean.replace(re.search(PLACEHOLDER, clean)[0], "{}") == text.replace(secret, "{}"), (before, after)  # type: ignore[index]  # it is there, or the line above has failed


@each_row(("place", "secret"), PLACES)
def test_it_is_found_inside_json_too(place: str, secret: str) -> None:
    """A tool's output that is JSON, with a file's content in it."""
    for content in (place.format(secret), "before\n" + place.format(secret) + "\tbehind"):
        text = json.dumps({"content": content})
        assert json.dumps(secret)[1:-1] not in REDACTION.text(text)
        assert json.dumps(json.dumps(secret)[1:-1])[1:-1] not in REDACTION.text(json.dumps(text))


@each_row("text", HARMLESS)
def test_what_is_no_secret_stays(text: str) -> None:
    assert REDACTION.text(text) == text
    assert REDACTION.text(f"a\n  {text}\nb") == f"a\n  {text}\nb"


@each_row(("name", "value", "secret"), FIELDS)
def test_a_field_gives_its_value_away(name: str, value: str, secret: str) -> None:
    for shape in ({name: value}, {"a": [{name: [value]}]}, {"name": name, "value": value}):
        clean = REDACTION.value(shape)
        assert secret not in json.dumps(clean)
        assert json.dumps(shape).replace(json.dumps(value), '""').count('"') == json.dumps(clean).count('"')
    assert REDACTION.value({name: f"${{{name}}}"}) == {name: f"${{{name}}}"}


@each_row("kind", KEYS)
def test_a_key_is_one_however_its_name_is_spelled(kind: str) -> None:
    for name in (f"{kind}{joint}{key}" for joint in ("", "_", "-", ".") for key in ("key", "KEY")):
        assert found(f"my_{name}={LETTERS[:24]}") == found(f"{name}: '{LETTERS[:24]}'") == ["secret"]
        assert LETTERS[:24] not in json.dumps(REDACTION.value({name: LETTERS[:24]}))
    assert found(f"{kind}_keyboard: {LETTERS[:15]}") == []


@each_row(("name", "value"), HARMLESS_FIELDS)
def test_a_field_with_a_value_that_is_no_secret_keeps_it(name: str, value: str) -> None:
    assert REDACTION.value({name: value}) == {name: value}


@pytest.mark.parametrize("name", ["tokens", "password_hint", "token_url", "secretName", "id", "authors"])
def test_a_field_with_another_meaning_does_not(name: str) -> None:
    for value in ("4096", "the usual one", "https://login.example.com/oauth2/v2", "shop-tls-2024", ""):
        assert REDACTION.value({name: value}) == {name: value}


def test_a_value_has_one_placeholder_wherever_it_stands() -> None:
    secret = LETTERS[:24]
    texts = [
        f"API_TOKEN={secret}",
        f"https://jo:{secret}@h.example",
        f"Password={secret};Server=h",
        f"--password {secret}",
    ]
    texts += [f"Authorization: Bearer {secret}", f"password: {secret}", f"<token>{secret}</token>"]
    placeholders = {found for text in texts for found in re.findall(PLACEHOLDER, REDACTION.text(text))}
    fields = REDACTION.value({"token": secret, "Authorization": f"Bearer {secret}"})
    assert placeholders == {fields["token"]} == {fields["Authorization"].removeprefix("Bearer ")}


def test_a_private_key_in_a_diff_is_found() -> None:
    for sign in ("+", "-", " "):
        diff = "".join(f"{sign}{line}\n" for line in pem().splitlines())
        assert LETTERS not in REDACTION.text(f"@@ -1,5 +0,0 @@\n{diff} end\n")


def test_a_private_key_that_is_cut_off_is_found() -> None:
    whole = pem()
    cut = whole[: len(whole) * 2 // 3]
    quoted = "\n".join(f'"{line}\\n"' for line in cut.splitlines())
    for text in (cut, quoted, json.dumps(cut), json.dumps(json.dumps(cut))):
        assert LETTERS not in REDACTION.text(text)
        assert found(text) == ["private-key"]


def test_two_keys_are_two() -> None:
    assert found(f"{pem()}\nbetween\n{pem('EC ')}") == ["private-key"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("detector", DETECTORS, ids=[f"{place}-{one.kind}" for place, one in enumerate(DETECTORS)])
@settings(max_examples=25)
@given(data=st.data())
def test_whatever_a_pattern_finds_holds_one_of_its_anchors(detector: object, data: st.DataObject) -> None:
    """Otherwise it would never be asked."""
    assert isinstance(detector, type(DETECTORS[0]))
    # Python's engine has no `\b` at will in a generator: the words' edges are for RE2 alone.
    text = data.draw(st.from_regex(re.compile(detector.pattern.replace(r"\b", ""), re.ASCII), fullmatch=True))
    assert any(anchor in (text.lower() if anchor == anchor.lower() else text) for anchor in detector.anchors), text


def test_no_anchor_is_in_everything() -> None:
    assert all(len(anchor) > 1 for one in DETECTORS for anchor in one.anchors)


def test_a_time_concerns_no_detector() -> None:
    """Every event says when it was: in one second of thirty, a session would otherwise start with the engine."""
    texts = [
        f'"2026-11-24T{first:02}:{second:02}:{second:02}.{first:06}Z"' for first in range(24) for second in range(60)
    ]
    anchors = [anchor for one in DETECTORS for anchor in one.anchors]
    assert [text for text in texts for anchor in anchors if anchor in text.lower()] == []


def test_this_repository_has_none_outside_of_its_tests() -> None:
    """Neither its sources, its lock file nor its docs; of the lines of its tests, fewer than one in a thousand."""
    root = Path(__file__).parents[3]
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True)
    lines = [
        (f"{name}:{number}", line)
        for name in listed.stdout.decode().split("\0")[:-1]
        if Path(root, name).is_file() and not name.startswith(SAMPLES)
        for number, line in enumerate(Path(root, name).read_bytes().splitlines(), 1)
    ]
    hits = [place for place, line in lines if REDACTION.data(line) != line]
    assert [hit for hit in hits if not hit.startswith("tests/")] == []
    assert 1000 * len(hits) < sum(place.startswith("tests/") for place, _ in lines), hits


def test_the_standard_library_has_none() -> None:
    """A few megabytes of code, a part of it about passwords, tokens and keys."""
    folder = Path(json.__file__).parents[1]
    hits = [
        (path.name, number, line)
        for path in sorted(folder.glob("*.py"))
        for number, line in enumerate(path.read_bytes().splitlines(), 1)
        if REDACTION.data(line) != line
    ]
    assert not hits


@given(st.binary(min_size=1, max_size=64))
def test_entropy_is_within_bounds(value: bytes) -> None:
    assert -1e-9 <= entropy(value) <= 8
    assert is_random(value) in {True, False}
    assert is_password(value) in {True, False}
