"""What the writer of a bundle is told: every problem with its place, its words and its hint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from policy.bundle import BundleProblem, BundleProblems
from policy.bundle.validate import parse_bundle

from .helpers import bundle_json

TABLE = Path(__file__).parent / "tables" / "problems.txt"


def said(raw: Any) -> list[str]:
    """What is said of a bundle, as it is shown; nothing where it is good."""
    try:
        parse_bundle(raw)
    except BundleProblems as found:
        return [str(one) for one in found.problems]
    return []


def rows() -> list[tuple[dict[str, Any], list[str]]]:
    """Changed fields, and the problems that stand below them."""
    found: list[tuple[dict[str, Any], list[str]]] = []
    for line in TABLE.read_text("utf-8").splitlines():
        if line.startswith("{"):
            found.append((json.loads(line), []))
        elif line.startswith("  "):
            found[-1][1].append(line[2:])
    return found


def test_each_problem_is_told_in_the_words_of_the_list() -> None:
    told = [(changes, said({**bundle_json(), **changes})) for changes, _ in rows()]
    assert [one for one, two in zip(told, rows(), strict=True) if one != two] == []


MISSING = [
    'policyBundleVersion: is missing (such as "2026-01-31.1")',
    'schemaVersion: is missing (such as "1.0")',
    'tenantId: is missing (such as "acme")',
    'userId: is missing (such as "jo")',
    'sessionId: is missing (such as "*", which stands for any session)',
    'expiresAt: is missing (such as "2026-01-31T12:00:00Z")',
    'capabilities: is missing (such as [{"name": "LLM.Call"}])',
    "llmPolicy: is missing",
    "approvalRules: is missing (such as [])",
]


@pytest.mark.parametrize(
    ("raw", "problems"),
    [
        ({}, MISSING),
        (b"[]", ["the bundle: is not a JSON object, but a list"]),
        (b'{"a": NaN}', ["the bundle: is not JSON: NaN is not a JSON number"]),
        (b"null", ["the bundle: is not a JSON object, but null"]),
        (b" " * (16 * 1024 * 1024 + 1), ["the bundle: is longer than 16777216 bytes"]),
        (
            json.dumps(bundle_json()).replace('"userId"', '"userId": "v", "userId": "w", "userId"').encode(),
            ["userId: the field occurs twice in one object"],
        ),
        (
            b'{"llmPolicy": {"maxInputTokens": 1, "maxInputTokens": 2}, "tenantId": "", "tenantId": ""}',
            [
                "maxInputTokens: the field occurs twice in one object",
                "tenantId: the field occurs twice in one object",
                *(line for line in MISSING if not line.startswith(("tenantId", "llmPolicy"))),
            ],
        ),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_text_that_is_no_bundle_is_told_as_such(raw: Any, problems: list[str]) -> None:
    assert [one for one in said(raw) if not one.startswith("llmPolicy.")] == problems


def test_a_shape_that_no_json_can_hold_is_told_as_such() -> None:
    (endless,) = said({**bundle_json(), "tenantId": float("inf")})
    assert endless.startswith("the bundle: is not JSON: Out of range float values are not JSON compliant")
    (half_a_character,) = said({**bundle_json(), "tenantId": "\ud800"})
    assert half_a_character.startswith("tenantId: contains half of a character")
    assert said({**bundle_json(), "tenantId": {1}}) == [
        "the bundle: is not JSON: Object of type set is not JSON serializable"
    ]


def test_a_problem_is_shown_with_its_hint_if_it_has_one() -> None:
    assert str(BundleProblem("a", "is wrong")) == "a: is wrong"
    assert str(BundleProblem("", "is wrong", "mend it")) == "the bundle: is wrong (mend it)"
    assert str(BundleProblems((BundleProblem("a", "x"), BundleProblem("", "y", "z")))) == "a: x; the bundle: y (z)"
