"""What it costs to look for secrets: megabytes a second of code and of hostile text, whether four times the text is
four times the work, and what an event's line costs.

python -m benchmarks.redaction
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import orjson

from agent_host.scrub import Scrubber
from policy.bundle import RedactionRule
from policy.redaction import Redaction

MIB = 1 << 20
ROUNDS = 5
LINES = 20_000
# What fits into a cache is faster; quadratic would be 16.
MAX_RATIO = 10.0
TOKEN = b"gh" + b"p_" + b"A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6"
RULES = (RedactionRule("card", r"\b\d{4}-\d{4}-\d{4}-\d{4}\b"), RedactionRule("mail", r"[\w.+-]+@[\w-]+\.[\w.]+"))
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


def seconds(redaction: Redaction, data: bytes) -> float:
    """The fastest of some rounds."""
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        redaction.data(data)
        times.append(time.perf_counter() - began)
    return min(times)


def repeated(piece: bytes, size: int) -> bytes:
    """`piece` until it is `size` bytes."""
    return (piece * (size // len(piece) + 1))[:size]


def code(size: int) -> bytes:
    """This repository's own sources, as often as it takes."""
    root = Path(__file__).parents[1]
    found = b"".join(
        path.read_bytes() for part in ("agent_host", "policy", "state") for path in root.glob(f"{part}/**/*.py")
    )
    return repeated(found, size)


def line_us(scrub: Scrubber, value: dict[str, object]) -> float:
    """Microseconds for an event's line."""
    line = orjson.dumps(value)
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(LINES):
            scrub.event(line)
        times.append((time.perf_counter() - began) / LINES * 1e6)
    return statistics.median(times)


def main() -> None:
    detectors, rules = Redaction(key=lambda: b"k" * 32), Redaction(RULES, key=lambda: b"k" * 32)
    prose = b"the quick brown fox jumps over the lazy dog 0123456789\n"
    print(f"{'text':32} {'1 MB':>10} {'4 MB':>10} {'ratio':>6}")
    worst = 0.0
    texts = {"prose": prose, **HOSTILE}
    for name in ("code", "code, with two rules", *texts):
        redaction = rules if "rules" in name else detectors
        sizes = [code(size) if name.startswith("code") else repeated(texts[name], size) for size in (MIB, 4 * MIB)]
        small, large = (seconds(redaction, data) for data in sizes)
        worst = max(worst, large / small)
        print(f"{name:32} {1 / small:5.0f} MB/s {4 / large:5.0f} MB/s {large / small:6.1f}")
    print(f"the worst ratio is {worst:.1f}; linear is 4, the goal {MAX_RATIO:g} at most")
    plain = {"eventId": 12, "eventType": "text_chunk", "payload": {"text": "a few words of an answer"}}
    telling = {**plain, "payload": {"text": "the token is in the header"}}
    secret = {**plain, "payload": {"text": f"it is {TOKEN.decode()}"}}
    for name, value in (("an event's line", plain), ("with a telling word", telling), ("with a secret", secret)):
        print(f"{name:32} {line_us(Scrubber([], detectors), value):6.2f} µs")


if __name__ == "__main__":
    main()
