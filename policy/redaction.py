"""Secrets taken out of text (AH 8.7): by the bundle's rules, then by the shipped detectors. Linear in the text.

What is taken out leaves a placeholder: `[redacted:github-token:1f3c9a]`. Its last part follows from the value and a
key: one value has one placeholder wherever it turns up, and nobody without the key can try values out against it.
"""

from __future__ import annotations

import re
from collections import deque
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from policy.detectors import DETECTORS, names_a_secret
from policy.patterns import LiteralSets, compiled, problem_of, shipped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from policy.bundle import RedactionRule
    from policy.detectors import Detector
    from policy.patterns import Pattern

PLACEHOLDER = r"\[redacted:[A-Za-z0-9_.-]{1,64}:[0-9a-f]{6}\]"
"""What stands in the place of a value, as a regular expression."""
# Compiled when first used, by the cache of `re`: a start is not to wait for them.
_PLACEHOLDER_BYTES = PLACEHOLDER.encode()

_TAG_BYTES = 3
_NOT_IN_KINDS = r"[^A-Za-z0-9_.-]"
# Of the host's own making: a rule that fits digits is not to make them useless.
_HOSTS_OWN = r"(?:Ids?|Sha256|Hash|[tT]imestamp)$|^(?:eventType|component|severity|id)$"
# The first few short texts are looked through without RE2: a start is not to wait for its import.
_WITHOUT_ENGINE = 16
_SHORT = 4096


class Redaction:
    """The secrets that a bundle's `rules` and, with `detectors`, the shipped detectors find.

    `key` gives the bytes that placeholders are made with, and is asked when the first value is taken out. Raises
    UnusablePattern for a rule that validation would have refused.
    """

    def __init__(
        self, rules: Iterable[RedactionRule] = (), *, key: Callable[[], bytes], detectors: bool = True
    ) -> None:
        self._rules = tuple((rule_pattern(rule.pattern), rule.redaction_rule_id, rule.replacement) for rule in rules)
        self._detectors = detectors
        self._make_key = key
        self._key: bytes | None = None

    @property
    def has_rules(self) -> bool:
        """Whether the bundle brought any."""
        return bool(self._rules)

    def text(self, text: str) -> str:
        """`text` without what is found."""
        raw = text.encode("utf-8", "surrogatepass")
        clean = self.data(raw)
        return text if clean is raw else clean.decode("utf-8", "surrogatepass")

    def data(self, data: bytes) -> bytes:
        """`data` without what is found; the same object where that is nothing."""
        for pattern, kind, replacement in self._rules:
            data = self._by_rule(data, pattern, kind, replacement)
        for detector in _concerned(data) if self._detectors else ():
            data = self._by_detector(data, detector)
        return data

    def concerns(self, encoded: bytes) -> bool:
        """False where encoded JSON surely holds nothing to take out."""
        return self.has_rules or (self._detectors and bool(_concerned(encoded)))

    def value(self, value: Any) -> Any:
        """A JSON value without what is found in its texts, or is given away by the name of its field."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        if isinstance(value, dict):
            return {self.text(name): self._field(name, item) for name, item in value.items()}
        return value

    def _field(self, name: str, value: Any) -> Any:
        if not isinstance(value, str):
            return self.value(value)
        if re.search(_HOSTS_OWN, name):
            return value
        if self._detectors and names_a_secret(name, value):
            return self._placeholder("secret", value.encode("utf-8", "surrogatepass")).decode()
        return self.text(value)

    def _by_rule(self, data: bytes, pattern: Pattern, rule_id: str, replacement: str | None) -> bytes:
        place, kept = 0, []
        taken = deque(found.span() for found in re.finditer(_PLACEHOLDER_BYTES, data))
        for match in pattern.finditer(data):
            start, end = match.span()
            while taken and taken[0][1] <= start:
                taken.popleft()
            if start == end or (taken and taken[0][0] < end):  # what was taken out before stays as it is
                continue
            put = self._placeholder(rule_id, data[start:end]) if replacement is None else replacement.encode()
            kept += [data[place:start], put]
            place = end
        return b"".join((*kept, data[place:])) if kept else data

    def _by_detector(self, data: bytes, detector: Detector) -> bytes:
        pattern = shipped(detector.pattern)
        group = next(iter(pattern.groupindex.values()), 0)
        place, kept = 0, []
        for match in pattern.finditer(data):
            start, end = match.span(group)
            secret = data[start:end]
            if re.fullmatch(_PLACEHOLDER_BYTES, secret):
                continue
            if detector.confirms is not None and not detector.confirms(match.group(), secret, data[end : end + 1]):
                continue
            kept += [data[place:start], self._placeholder(detector.kind, secret)]
            place = end
        return b"".join((*kept, data[place:])) if kept else data

    def _placeholder(self, kind: str, secret: bytes) -> bytes:
        if self._key is None:
            self._key = self._make_key()
        tag = blake2b(secret, digest_size=_TAG_BYTES, key=self._key[:64]).hexdigest()
        return f"[redacted:{re.sub(_NOT_IN_KINDS, '-', kind)[:64]}:{tag}]".encode()


class UnusablePattern(ValueError):
    """A regular expression that cannot be used; the message says why."""


def rule_pattern(pattern: str) -> Pattern:
    """The compiled expression of a bundle's rule, over UTF-8. Raises UnusablePattern, also for one that fits the empty
    text."""
    made = compiled(pattern)
    if made is None:
        raise UnusablePattern(problem_of(pattern))
    if made.fullmatch(b"") is not None:
        raise UnusablePattern("it fits the empty text, so it would be found everywhere")
    return made


class _Scan:
    """Which detectors a text concerns, by their anchors: one pass."""

    def __init__(self) -> None:
        self._set: LiteralSets | None = None
        self._asked = 0
        self._anchors = [anchor.encode() for detector in DETECTORS for anchor in detector.anchors]

    def __call__(self, data: bytes) -> list[Detector]:
        if self._set is None:
            self._asked += 1
            if len(data) <= _SHORT and self._asked <= _WITHOUT_ENGINE:
                lower = data.lower()
                if not any(anchor in lower for anchor in self._anchors):
                    return []
            self._set = LiteralSets(detector.anchors for detector in DETECTORS)
        return [DETECTORS[place] for place in self._set.found(data)]


_concerned = _Scan()
