"""Cost of searching for secrets: megabytes a second of code and of hostile text, whether four times the text is four
times the work, and the cost of an event's line."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import orjson

from agent_host.redaction import Scrubber
from benchmarks.processes import ROOT
from benchmarks.report import MIB, Row, milliseconds
from policy.bundle import RedactionRule
from policy.redaction import Redaction

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

# Linear is 4, and more where the shorter text fits into a cache; quadratic would be 16.
MAX_RATIO = 10.0
TOKEN = b"gh" + b"p_" + b"A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6"
RULES = (RedactionRule("card", r"\b\d{4}-\d{4}-\d{4}-\d{4}\b"), RedactionRule("mail", r"[\w.+-]+@[\w-]+\.[\w.]+"))
PROSE = b"the quick brown fox jumps over the lazy dog 0123456789\n"
HOSTILE = {
    "a secret a line": b"line " + TOKEN + b"\n",
    "keys that never end": b"-----BEGIN RSA PRIVATE KEY-----\n" + b"A1b2" * 10,
    "keys without a body": b"-----BEGIN RSA PRIVATE KEY-----\n",
    "names without a value": b"password=token:secret=",
    "one long value": b"a",
    "addresses that lead nowhere": b"postgres://user:",
    "commands without an end": b"curl -u mysql -p redis-cli -a ",
    "blanks behind a name": b"password" + b" " * 100,
    "backslashes": b'"password\\\\\\\\\\\\\\\\',
    "cookies": b"cookie: a=b; c",
    "names and values": b'name: "password" value ',
    "placeholders": b"[redacted:x:123456]",
}


class Effort(NamedTuple):
    """Size of the measurement: the shorter text's bytes, the rounds, and the lines of a round."""

    size: int
    rounds: int
    lines: int

    def ms(self, redaction: Redaction, data: bytes) -> float:
        """The fastest of the rounds."""
        return min(milliseconds(lambda: redaction.data(data)) for _ in range(self.rounds))

    def line_us(self, scrub: Scrubber, value: dict[str, object]) -> float:
        """Microseconds for an event's line."""
        line = orjson.dumps(value)

        def work() -> None:
            for _ in range(self.lines):
                scrub.event(line)

        return statistics.median(milliseconds(work) / self.lines * 1000 for _ in range(self.rounds))


def repeated(piece: bytes, size: int) -> bytes:
    """`piece` until it is `size` bytes."""
    return (piece * (size // len(piece) + 1))[:size]


def sources() -> bytes:
    """This repository's own sources."""
    root = Path(ROOT)
    return b"".join(
        path.read_bytes() for part in ("agent_host", "policy", "state") for path in root.glob(f"{part}/**/*.py")
    )


def add_options(_: argparse.ArgumentParser) -> None:
    """None of its own."""


def rows(chosen: argparse.Namespace) -> Iterator[Row]:
    """The texts, then the lines."""
    effort = Effort(MIB // 16, 2, 1_000) if chosen.quick else Effort(MIB, 5, 20_000)
    detectors, with_rules = Redaction(key=lambda: b"k" * 32), Redaction(RULES, key=lambda: b"k" * 32)
    code = sources()
    texts = [("code", detectors, code), ("code, with two rules", with_rules, code)]
    texts += [(name, detectors, piece) for name, piece in {"prose": PROSE, **HOSTILE}.items()]
    for name, redaction, piece in texts:
        sizes = (effort.size, 4 * effort.size)
        small, large = (effort.ms(redaction, repeated(piece, size)) for size in sizes)
        slow, fast = (size / MIB / ms * 1000 for size, ms in zip(sizes, (small, large), strict=True))
        yield Row(f"{name}, four times as long", large / small, "x", MAX_RATIO, f"{slow:.0f}, then {fast:.0f} MB/s")
    plain = {"eventId": 12, "eventType": "text_chunk", "payload": {"text": "a few words of an answer"}}
    telling = {**plain, "payload": {"text": "the token is in the header"}}
    secret = {**plain, "payload": {"text": f"it is {TOKEN.decode()}"}}
    for name, value in (("an event's line", plain), ("with a telling word", telling), ("with a secret", secret)):
        yield Row(name, effort.line_us(Scrubber([], detectors), value), "µs")
