"""Redactions and texts that tests of redaction share."""

from __future__ import annotations

from hypothesis import strategies as st

from policy.bundle import RedactionRule
from policy.redaction import Redaction
from tests.unit.policy.secret_places import PLACES
from tests.unit.policy.secret_samples import TOKENS

GITHUB = TOKENS["github-token"][0]
SECRETS = [token for tokens in TOKENS.values() for token in tokens]
PLACED = [(place, secret) for place, secret in PLACES if not place.startswith(("#", "*"))]
CARD, PERSON = "4111-1111-1111-1111", "Müller"
RULES = [RedactionRule("card", r"\b\d{4}-\d{4}-\d{4}-\d{4}\b", ""), RedactionRule("person", PERSON, "", "<somebody>")]


def redaction(*rules: RedactionRule, key: bytes = b"k" * 32, detectors: bool = True) -> Redaction:
    return Redaction(rules, key=lambda: key, detectors=detectors)


def rule(pattern: str, replacement: str | None = None, rule_id: str = "r") -> RedactionRule:
    return RedactionRule(rule_id, pattern, "", replacement)


FULL = redaction(*RULES)
PLAIN = st.text(st.sampled_from("abc .,;:=é€\n\t\"'{}[]0123456789-_/@"), max_size=40)
SEEDS = st.sampled_from([*SECRETS, *(place.format(secret) for place, secret in PLACED), CARD, PERSON])
TEXTS = st.lists(PLAIN | SEEDS | st.text(max_size=20), max_size=6).map("".join)
