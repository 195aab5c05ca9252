"""Patterns that a bundle brings: what is usable, what is said of the rest, and time that does not run away."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy import patterns
from tests.support.rows import each_row


@each_row(
    ("pattern", "text", "expected"),
    [
        ("-[0-9]+", "-12", True),
        ("-[0-9]+", "x-12", False),
        ("(?:[a-z]+/)*[a-z]+\\.py", "a/b/c.py", True),
        ("(?i)HEAD(~[0-9]+)?", "head~3", True),
        ("a|b", "ab", False),
        ("é+", "éé", True),
        (".", "é", True),
        (".", "\n", False),
        ("(?s).", "\n", True),
        ("a$", "a\n", False),
        ("", "", True),
        (".*", "\ud800", False),
    ],
)
def test_a_pattern_has_to_match_the_whole_text(pattern: str, text: str, expected: bool) -> None:
    made = patterns.compile_pattern(pattern)
    assert made is not None
    assert patterns.fits(made, text) is expected


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("(?=a)b", "invalid perl operator"),
        ("(a)\\1", "invalid escape sequence"),
        ("a{1001}", "invalid repetition size"),
        ("(", "missing )"),
        ("[a", "missing ]"),
        ("\\Z", "invalid escape sequence"),
        ("\\C", "pieces"),
        ("\\\\\\C", "pieces"),
        ("[\\p{L}]{1,200}", "too large"),
        ("\ud800", "not Unicode text"),
        ("a" * 5_000, "longer than"),
    ],
)
def test_what_is_not_usable_is_said_quietly(pattern: str, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert patterns.compile_pattern(pattern) is None
    assert said in str(patterns.problem_of(pattern))
    assert capfd.readouterr().err == ""


def test_a_usable_pattern_has_no_problem_and_is_compiled_once() -> None:
    assert patterns.problem_of("\\\\C") is None
    assert patterns.compile_pattern("a+") is patterns.compile_pattern("a+")


def test_occurrences_are_told_in_bytes() -> None:
    made = patterns.compile_pattern("k=(é+)")
    assert made is not None
    text = "x é k=éé k=é".encode()
    assert [(one.span(), one.group(1).decode()) for one in made.finditer(text)] == [((5, 11), "éé"), ((12, 16), "é")]
    assert made.groups == 1


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "(a|aa)+$", "(x+x+)+y", "(.*)(.*)(.*)(.*)(.*)(.*)b$", "(?:a?){500}a{500}c"]
)
def test_time_stays_linear(pattern: str) -> None:
    made = patterns.compile_pattern(pattern)
    assert made is not None
    started = time.process_time()
    assert not patterns.fits(made, "a" * 50_000 + "!")
    assert time.process_time() - started < 2


@given(st.text(max_size=30), st.text(max_size=10))
def test_no_pattern_raises_and_either_it_works_or_a_problem_is_named(pattern: str, text: str) -> None:
    made = patterns.compile_pattern(pattern)
    assert (made is None) is (patterns.problem_of(pattern) is not None)
    if made is not None:
        patterns.fits(made, text)


@given(st.text(max_size=20))
def test_an_escaped_text_matches_itself_and_nothing_longer(text: str) -> None:
    made = patterns.compile_pattern(re.escape(text).replace("\\\n", "\n"))
    if made is not None:
        assert patterns.fits(made, text)
        assert not patterns.fits(made, text + "x")


def test_limits_of_a_pattern_are_what_they_say() -> None:
    assert patterns.problem_of("a" * 4_096) is None
    assert patterns.problem_of("a" * 4_097) == "it is longer than 4096 characters"
    assert patterns.problem_of("\\C") == r"\C would cut characters in pieces"
    assert patterns.problem_of("a\\\\C") is None
    largest = "a{1000}" * 19 + "a{996}"
    assert patterns.problem_of(largest) is None
    assert "too large" in str(patterns.problem_of(largest + "a"))
    assert patterns.problem_of("(") == "missing ): ("


def test_patterns_of_our_own_go_by_bytes_and_letter_case() -> None:
    made = patterns.compile_shipped("a\\x{e9}+")
    assert patterns.compile_shipped("a\\x{e9}+") is made
    found = made.search(b"xA\xe9 a\xe9\xe9")
    assert found is not None
    assert found.span() == (4, 7)


def test_sets_of_literals_are_found_in_one_pass_whatever_their_letter_case() -> None:
    sets = patterns.LiteralSets([["sk-", "a.b"], ["Key"], ["zz"]])
    assert sets.found(b"SK-1 and kEY") == [0, 1]
    assert sets.found(b"a.b") == [0]
    assert sets.found(b"axb \xff key") == [1]
    assert sets.found(b"nothing") == []
