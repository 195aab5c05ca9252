"""Secrets taken out of text: every rule and detector together, and what holds for any text (AH 8.7)."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from policy.bundle import BundleProblems
from policy.bundle.validate import parse_bundle
from policy.patterns import UnusablePattern, rule_pattern
from policy.redaction import PLACEHOLDER, Redaction
from tests.support.rows import each_row
from tests.unit.policy.helpers import bundle_json
from tests.unit.policy.redactions import CARD, FULL, GITHUB, PERSON, PLAIN, RULES, SECRETS, TEXTS, redaction, rule
from tests.unit.policy.secret_samples import LETTERS, TOKENS, pem

# What holds for any text


@given(TEXTS)
def test_once_is_enough(text: str) -> None:
    clean = FULL.text(text)
    assert FULL.text(clean) == clean


@given(st.text(st.characters() | st.characters(categories=["Cs"]), max_size=60) | TEXTS)
@example("password=" + "\ud800" * 20 + "a1")
@example("x;password=" + "€" * 400)
@example("x;password=a" + "é" * 400)
@example("http://a:" + "😀" * 90 + "@h")
def test_no_text_raises(text: str) -> None:
    assert isinstance(FULL.text(text), str)
    assert FULL.text(text) == FULL.data(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")


@given(st.binary(max_size=200) | st.binary(max_size=20).map(lambda raw: b"x;password=\xff" + raw + GITHUB.encode()))
def test_no_data_raises(data: bytes) -> None:
    clean = FULL.data(data)
    assert isinstance(clean, bytes)
    assert GITHUB.encode() not in clean


def test_what_holds_nothing_is_the_same_object() -> None:
    data, text = b"nothing here", "nothing here"
    assert FULL.data(data) is data
    assert FULL.text(text) is text
    assert FULL.data(CARD.encode()).decode() == FULL.text(CARD) != FULL.text(CARD, rules=False) == CARD


@given(PLAIN | TEXTS, PLAIN | TEXTS, st.sampled_from(SECRETS))
def test_text_around_it_does_not_hide_a_known_token(before: str, after: str, secret: str) -> None:
    assume(secret not in before and secret not in after)  # there it may be the beginning of a longer word
    assert secret not in FULL.text(f"{before} {secret}\n{after}")


@given(PLAIN, st.sampled_from([GITHUB, *SECRETS]))
def test_a_made_up_placeholder_hides_nothing(before: str, secret: str) -> None:
    for trick in ("[redacted:x:000000]", "[redacted:github-token:abcdef]", "[redacted]", "[redacted:"):
        for text in (f"{trick} {secret}", f"{trick}\n{secret}\n{trick}", f"{before} {trick} {secret}"):
            assert secret not in FULL.text(text)


def test_what_stands_beside_a_made_up_placeholder_is_found() -> None:
    trick = "[redacted:secret:abcdef]"
    for text in (f"postgres://app:{trick}hunter2@db", f"--token={trick} --token=hunter2", f"x://h?pwd={trick}hunter2"):
        assert "hunter2" not in FULL.text(text)
    for value in (f"{GITHUB}-hunter2", f"hunter2-{trick}", f"{trick}1hunter2"):
        assert re.fullmatch(PLACEHOLDER, FULL.value({"password": value})["password"])
    assert FULL.value({"password": trick}) == {"password": trick}


@pytest.mark.parametrize(
    "sequence", ["\x1b[31m", "\x1b[0;1m", "\x1b]8;;http://a\x1b\\", "\x1b]0;t\x07", "\x1b(B", "\x1b=", "\x1b[K"]
)
def test_what_a_terminal_obeys_and_does_not_show_hides_nothing(sequence: str) -> None:
    for secret in (GITHUB, *SECRETS[:10]):
        text = f"it is {sequence}{secret[:6]}{sequence}{secret[6:]}{sequence} here"
        assert secret not in FULL.text(text).replace(sequence, "")
        assert FULL.concerns(json.dumps({"a": text}).encode(), is_event=True)
    assert FULL.text(f"{sequence}plain{sequence}") == f"{sequence}plain{sequence}"


def test_a_private_key_without_its_first_line_is_one() -> None:
    for body in (
        pem().split("\n", 1)[1],
        json.dumps(pem().split("\n", 1)[1]),
        "+" + pem().split("\n", 1)[1].replace("\n", "\n+"),
    ):
        clean = redaction().text(f"some prose\n{body}\nand more")
        assert re.fullmatch(rf'some prose\n["+]?{PLACEHOLDER}\+?"?\nand more', clean), clean


def test_what_is_no_secret_hides_none_behind_it() -> None:
    assert FULL.text("password: $DB_PASSWORD\npassword: Tr0ub4dor&3").startswith("password: $DB_PASSWORD\npassword: [")


def test_a_match_that_holds_a_placeholder_loses_all_else() -> None:
    whole = redaction(rule("employee: .*"))
    shown = whole.text("employee: Jo [redacted:x:000000] Doe\nnext")
    assert "Jo" not in shown
    assert "Doe" not in shown
    assert re.fullmatch(rf"{PLACEHOLDER}\[redacted:x:000000\]{PLACEHOLDER}\nnext", shown)
    assert whole.text(shown) == shown
    two = redaction(rule("employee: .*"), key=b"k").text("employee: [redacted:x:000000] Jo [redacted:x:000000]\nx")
    assert re.fullmatch(rf"({PLACEHOLDER}){{4}}\nx", two)


@each_row("pattern", ["[a-z]+", "redacted", r"[0-9a-f]{6}", ":", r"\[", r"\]", "(?s).+", r"[^ ]+"])
def test_a_rule_that_fits_a_placeholder_leaves_it_as_it_is(pattern: str) -> None:
    tricky = redaction(rule(pattern))
    for text in ("one [redacted:github-token:1f3c9a] two", GITHUB, "[redacted:a:123456]", "12 [redacted:a:123456]34"):
        shown = tricky.text(text)
        assert tricky.text(shown) == shown
        assert shown.count("[redacted:") == len(re.findall(PLACEHOLDER, shown))


# Placeholders


@given(TEXTS)
def test_one_key_one_text(text: str) -> None:
    other = redaction(*RULES)
    assert other.text(text) == FULL.text(text)


def test_the_same_value_has_the_same_placeholder_and_another_has_another() -> None:
    one, two = TOKENS["github-token"][:2]
    shown = FULL.text(f"{one} {two} {one}").split()
    assert shown[0] == shown[2] != shown[1]
    assert re.fullmatch(r"\[redacted:github-token:[0-9a-f]{6}\]", shown[0])


def test_another_key_has_other_placeholders() -> None:
    assert redaction(key=b"1" * 32).text(GITHUB) != redaction(key=b"2" * 32).text(GITHUB)
    assert redaction(key=b"1" * 100).text(GITHUB) != redaction(key=b"2" * 100).text(GITHUB)


def test_the_key_is_asked_for_once_and_only_when_it_is_needed() -> None:
    asked: list[int] = []

    def key() -> bytes:
        asked.append(1)
        return b"k" * 32

    one = Redaction(key=key)
    one.text("nothing")
    one.value({"a": ["nothing"]})
    assert asked == []
    one.text(GITHUB)
    one.text(GITHUB)
    assert asked == [1]


def test_a_rules_id_stands_in_its_placeholder_in_characters_that_do_no_harm() -> None:
    shown = redaction(rule("secret-word", rule_id="a b]\n" + "ü" * 80)).text("secret-word")
    assert re.fullmatch(PLACEHOLDER, shown)
    assert "a-b-" in shown


# Rules


@each_row(
    ("pattern", "text", "shown"),
    [
        ("(?i)müller", "MÜLLER", "#"),
        (r"\p{Greek}+", "a αβγ b", "a # b"),
        (r"\bJo\b", "Jo Joe", "# Joe"),
        (r"(?P<a>x)(?:y)z", "xyz", "#"),
        (r"a{2,3}", "aaaa", "#a"),
        (r"a.*?b", "a1b2b", "#2b"),
        ("(?m)^id: .*$", "id: 1\nid: 2\r", "#\n#"),
        (r"(?s)begin.*end", "begin\n€\nend", "#"),
        (r"[^\x00-\x7f]+", "a€b", "a#b"),
        (r"\x{20AC}", "€", "#"),
        (r"\Qa.b\E", "a.b axb", "# axb"),
        (r"[[:digit:]]+", "x12", "x#"),
        (r"\d+|\w+@\w+", "jo@h 12", "# #"),
        (r"(?U)a+", "aa", "##"),
    ],
)
def test_what_re2_knows_a_rule_may_use(pattern: str, text: str, shown: str) -> None:
    assert redaction(rule(pattern, "#")).text(text) == shown


@each_row("pattern", ["", "a*", "(?=a)", r"(a)\1", "a{1001}", "[", "(?<!a)b", "\ud800", "(" * 2000])
def test_what_cannot_be_used_is_refused_before_it_is_used(pattern: str) -> None:
    with pytest.raises(UnusablePattern):
        rule_pattern(pattern)
    shape = bundle_json(redactionRules=[{"redactionRuleId": "r", "pattern": pattern}])
    with pytest.raises(BundleProblems):
        parse_bundle(shape)


@given(st.text(max_size=30), st.none() | st.text(max_size=5), TEXTS)
@settings(max_examples=200)
def test_no_rule_raises_at_work(pattern: str, replacement: str | None, text: str) -> None:
    try:
        made = redaction(rule(pattern, replacement))
    except UnusablePattern:
        return
    assert isinstance(made.text(text), str)


def test_half_a_character_is_no_match() -> None:
    """`\\C` is one byte."""
    with pytest.raises(UnusablePattern):
        redaction(rule(r"\C"))


def test_rules_are_asked_in_order_and_before_the_detectors() -> None:
    first, second = rule("Jo Doe", "<1>", "a"), rule("Doe", "<2>", "b")
    assert redaction(first, second).text("Jo Doe, Doe") == "<1>, <2>"
    assert redaction(second, first).text("Jo Doe, Doe") == "Jo <2>, <2>"
    assert redaction(rule("ghp_.*", "<mine>")).text(GITHUB) == "<mine>"


def test_what_one_rule_puts_is_not_put_again_by_the_next_pass() -> None:
    counting = redaction(rule(r"\d+", "#1"), rule("some", "somebody"), detectors=False)
    shown = counting.text("some 5 of 7")
    assert shown == "somebody #1 of #1"
    assert counting.text(shown) == shown
    assert counting.text("#1 and 5") == "#1 and #1"
    assert counting.text("#12 and 1") == "##1 and #1"


def test_half_a_surrogate_pair_is_text_like_any_other() -> None:
    assert redaction(rule("a.b", "#")).text("xa\ud800b\udfff") == "x#\udfff"
    assert redaction(rule("Jo", "\ud800")).text("Jo") == "?"
    assert re.fullmatch(PLACEHOLDER, FULL.value({"password": "\ud800hunter2hunter"})["password"])


def test_a_rule_that_finds_places_and_no_text_takes_nothing() -> None:
    for text in ("ab", "é a€", "a\ud800b", ""):
        assert redaction(rule(r"\b", "#")).text(text) == text


def test_an_empty_replacement_takes_the_text_away() -> None:
    assert redaction(rule("Jo ", "")).text("Jo Doe") == "Doe"


def test_the_detectors_can_be_switched_off_and_the_rules_stay() -> None:
    only = redaction(*RULES, detectors=False)
    assert only.text(f"{GITHUB} {PERSON}") == f"{GITHUB} <somebody>"
    assert only.value({"password": "hunter2hunter"}) == {"password": "hunter2hunter"}
    assert redaction(detectors=False).concerns(GITHUB.encode()) is False
    assert only.has_rules is only.concerns(f'["{CARD}"]'.encode()) is True
    assert redaction().has_rules is only.concerns(b'["nothing"]') is redaction().concerns(b'["nothing"]') is False
    assert redaction().concerns(GITHUB.encode()) is True


# How much work it is


@pytest.mark.parametrize(
    "piece",
    [
        "-----BEGIN PRIVATE KEY-----\n",
        "-----BEGIN PRIVATE KEY-----" + LETTERS,
        "password=",
        "curl ",
        "a://b:",
        "eyJ",
        "mysql -p ",
    ],
)
def test_text_that_begins_like_a_secret_again_and_again(piece: str) -> None:
    """It ends, and quickly, or the suite's clock would show it: `python -m benchmarks redaction` has the figures."""
    text = piece * (400_000 // len(piece))
    assert isinstance(FULL.text(text), str)


def test_many_secrets_in_one_text() -> None:
    text = f"{GITHUB}\n{pem()}\n" * 2000
    clean = FULL.text(text)
    assert clean.count("[redacted:github-token:") == clean.count("[redacted:private-key:") == 2000


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["nothing"] * 20, 17),
        (["a" * 4096, "a" * 4097], 2),
        (["a" * 4096], None),
        (["nothing", GITHUB], 2),
        (["nothing", "AKIA" + "QRSTUVWX23456YZA"], 2),
    ],
)
def test_the_engine_is_loaded_when_it_is_worth_it(texts: list[str], expected: int | None) -> None:
    """A start has few texts, most of them short and without any secret, and does not wait for RE2."""
    program = """
import json, sys
from policy.redaction import Redaction
one, loaded = Redaction(key=lambda: b"k" * 32), []
for place, text in enumerate(json.load(sys.stdin), 1):
    clean = one.text(text)
    loaded += [place] * ("re2" in sys.modules)
print(json.dumps([loaded[:1], clean]))
"""
    run = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(texts), capture_output=True, text=True, check=True
    )
    first, clean = json.loads(run.stdout)
    assert first == ([] if expected is None else [expected])
    assert clean == redaction().text(texts[-1])
