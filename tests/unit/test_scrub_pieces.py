"""Secrets do not pass where a large output is cut into pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host import redaction
from agent_host.redaction import Scrubber
from policy.bundle import RedactionRule
from policy.redaction import Redaction, strip_terminal_codes

if TYPE_CHECKING:
    from collections.abc import Iterable

TOKEN = "ghp_" + "a1B2" * 9
KEY = "-----BEGIN PRIVATE KEY-----\n" + "MIIEvAIBADANBgkqhkiG9w0BAQEFAASC\n" * 8 + "-----END PRIVATE KEY-----\n"
SECRETS = ["s3cret-value", TOKEN, KEY, f"\x1b[32mghp_\x1b[0m{'a1B2' * 9}", 'password = "hunter2hunter2"\n']
PLAIN = ["\n", " ", "x" * 30, "a line of plain text\n", "\x1b[1mbold\x1b[0m\n", "häuser\n"]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "PIECE_BYTES", 700)
    monkeypatch.setattr(redaction, "OVERLAP_BYTES", 400)


def scrubber(*rules: str) -> Scrubber:
    made = [RedactionRule(f"rule-{number}", pattern) for number, pattern in enumerate(rules)]
    return Scrubber(["s3cret-value"], Redaction(made, key=lambda: b"k"))


def cleaned(scrub: Scrubber, chunks: Iterable[bytes]) -> bytes:
    return b"".join(scrub.pieces(chunks))


@given(st.lists(st.sampled_from([*SECRETS, *PLAIN, *PLAIN]), max_size=120), st.integers(1, 900))
def test_pieces_are_cleaned_as_the_whole_is(parts: list[str], size: int) -> None:
    data = "".join(parts).encode()
    scrub = scrubber()
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    assert strip_terminal_codes(cleaned(scrub, chunks)) == strip_terminal_codes(scrub.data(data))


@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_is_found_wherever_it_stands(secret: str) -> None:
    scrub = scrubber()
    for before in range(0, 1300, 7):
        data = b"." * before + b" " + secret.encode() + b" " + b"." * 1300
        assert strip_terminal_codes(cleaned(scrub, [data])) == strip_terminal_codes(scrub.data(data))


def test_what_leaves_no_place_for_a_cut_is_cleaned_as_a_whole() -> None:
    scrub = scrubber("p[a-z\n]{390}")
    data = b"private\n" * 900
    assert cleaned(scrub, [data]) == scrub.data(data)


def test_what_holds_nothing_passes_as_it_is() -> None:
    data = "häuser and more\n".encode() * 1000
    pieces = list(scrubber().pieces([data]))
    assert b"".join(pieces) == data
    assert len(pieces) > 10
    assert max(map(len, pieces)) <= 1100
