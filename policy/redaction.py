"""Redaction of secrets in text (AH 8.7): by the bundle's rules, then by the shipped detectors. Linear in the text.

A secret is replaced by a placeholder: `[redacted:github-token:1f3c9a]`. Its last part is derived from the value and a
key: one value has one placeholder everywhere, and values cannot be tried against it without the key.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from config.lean_typing import NamedTuple
from policy.patterns import LiteralSets, compile_shipped, rule_pattern
from policy.secret_detectors import DETECTORS, secret_of_field

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from policy.bundle import RedactionRule
    from policy.patterns import Pattern
    from policy.secret_detectors import Detector

PLACEHOLDER = r"\[redacted:[A-Za-z0-9_.-]{1,64}:[0-9a-f]{6}\]"
# Compiled when first used, by the cache of `re`: a start is not to wait for them.
_PLACEHOLDER_BYTES = PLACEHOLDER.encode()

_TAG_BYTES = 3
_NOT_IN_KINDS = r"[^A-Za-z0-9_.-]"
# Of the host's own making: a rule that fits digits is not to make them useless.
_HOSTS_OWN = r"(?:Ids?|Sha256|Hash|[tT]imestamp)$|^(?:eventType|component|severity|id)$"
# The first few short texts are looked through without RE2: a start is not to wait for its import.
_WITHOUT_ENGINE = 16
_SHORT = 4096
# The removed text may have hidden a word boundary.
_ROUNDS = 4
# Sequences that a terminal obeys and does not show (ECMA-48): controls, titles and links, sets of characters.
_TERMINAL = rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]+[0-~]|[0-Z\\^_`-~])"
_COUNTED_TOKENS = rb'Tokens":[0-9]+(?=[,}])'
_MIN_NAME = 16  # the shortest name of a field that a detector is asked about


class Redaction:
    """The secrets that a bundle's `rules` and, with `detectors`, the shipped detectors find.

    `key` gives the bytes that placeholders are made with, and is asked when the first value is taken out. Raises
    UnusablePattern for a rule that validation would have refused.
    """

    def __init__(
        self, rules: Iterable[RedactionRule] = (), *, key: Callable[[], bytes], detectors: bool = True
    ) -> None:
        self._rules = tuple(map(_Rule.compile, rules))
        self._puts = {rule.put for rule in self._rules if rule.put}
        self._detectors = detectors
        self._make_key = key
        self._key: bytes | None = None

    @property
    def has_rules(self) -> bool:
        """True if the bundle brought any."""
        return bool(self._rules)

    def text(self, text: str, *, rules: bool = True) -> str:
        """Redact `text`, by detectors alone if `rules` is false."""
        raw = text.encode("utf-8", "surrogatepass")
        clean = self.data(raw, rules=rules)
        return text if clean is raw else clean.decode("utf-8", "surrogatepass")

    def data(self, data: bytes, *, rules: bool = True) -> bytes:
        """Redact `data`; returns the same object if nothing is found. Colour codes of a terminal hide nothing: if a
        match contains some, the text is returned without any."""
        if b"\x1b" in data:
            shown = strip_terminal_codes(data)
            clean = self._clean(shown, rules=rules)
            if clean is not shown:
                return clean
        return self._clean(data, rules=rules)

    def _clean(self, data: bytes, *, rules: bool) -> bytes:
        for _ in range(_ROUNDS):
            before = data
            for rule in self._rules if rules else ():
                data = self._apply_rule(data, rule)
            for detector in _concerned(data) if self._detectors else ():
                data = self._apply_detector(data, detector)
            if data is before:
                break
        return data

    def concerns(self, encoded: bytes, *, is_event: bool = False) -> bool:
        """False if encoded JSON certainly contains no secret. Raises ValueError for other text, if there are rules."""
        if self._detectors and _may_be_found(encoded):
            return True
        return self.has_rules and self._fits_a_rule(json.loads(encoded), is_event)

    def may_concern(self, lines: bytes) -> bool:
        """False if lines of encoded JSON certainly contain no secret: no detector depends on the start of a text."""
        return self.has_rules or (self._detectors and _may_be_found(lines))

    def _fits_a_rule(self, value: Any, is_event: bool, name: str = "") -> bool:
        """True if a rule fits one of the texts in which `value` looks for it; `name` is that of its field."""
        if isinstance(value, str):
            raw = value.encode("utf-8", "surrogatepass")
            fits = any(rule.pattern.search(raw) is not None for rule in self._rules)
            return fits and not (is_event and re.search(_HOSTS_OWN, name))
        if isinstance(value, list):
            return any(self._fits_a_rule(item, is_event, name) for item in value)
        if isinstance(value, dict):
            return any(
                self._fits_a_rule(item, is_event, key) or (not is_event and self._fits_a_rule(key, is_event))
                for key, item in value.items()
            )
        return False

    def value(self, value: Any, *, is_event: bool = False) -> Any:
        """Redact the texts of a JSON value, and values revealed by the name of their field. In an event (`is_event`)
        the bundle's rules do not apply to the host's own numbers and hashes."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list | tuple):
            return [self.value(item, is_event=is_event) for item in value]
        if isinstance(value, dict):
            return self._fields(value, is_event)
        return value

    def _fields(self, value: dict[str, Any], is_event: bool) -> dict[str, Any]:
        clean: dict[str, Any] = {}
        named = value.get("name", value.get("key"))
        for name, item in value.items():
            is_short = len(name) < _MIN_NAME and (is_event or not self._rules)
            shown = name if is_short else self.text(name, rules=not is_event)
            while shown in clean:  # fields that a rule makes equal stay two fields
                shown += "'"
            field = named if name == "value" and isinstance(named, str) else name
            clean[shown] = self._field(field, item, is_event)
        return clean

    def _field(self, name: str, value: Any, is_event: bool) -> Any:
        if isinstance(value, list | tuple):
            return [self._field(name, item, is_event) for item in value]
        if not isinstance(value, str):
            return self.value(value, is_event=is_event)
        if is_event and re.search(_HOSTS_OWN, name):
            return self.text(value, rules=False)
        clean = self.text(value)
        begin = secret_of_field(name, value) if self._detectors else None
        if begin is None and self._detectors and clean != value and secret_of_field(name, clean) is not None:
            begin = 0  # the rest next to the placeholder looks like another secret
        if begin is None or re.fullmatch(PLACEHOLDER, clean[begin:]):
            return clean
        secret = value.encode("utf-8", "surrogatepass")[begin:]
        return value[:begin] + self._placeholder("secret", secret).decode()

    def _apply_rule(self, data: bytes, rule: _Rule) -> bytes:
        place, kept = 0, []
        taken: list[tuple[int, int]] | None = None
        for match in rule.pattern.finditer(data):
            found = match.span()  # of whole characters: of nothing else can RE2 make one
            start, end = found
            if any(put in data[max(0, end - len(put)) : start + len(put)] for put in self._puts):
                continue  # only a part of a rule's replacement
            if taken is None:
                taken = [done.span() for done in re.finditer(_PLACEHOLDER_BYTES, data)][::-1]
            for start, end in _parts_outside(found, taken):
                put = self._placeholder(rule.rule_id, data[start:end]) if rule.put is None else rule.put
                kept += [data[place:start], put]
                place = end
        return b"".join((*kept, data[place:])) if kept else data

    def _apply_detector(self, data: bytes, detector: Detector) -> bytes:
        pattern, group = _ready(detector.pattern)
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


class _Rule(NamedTuple):
    """A compiled rule of a bundle; `put` is its replacement, None for a placeholder."""

    pattern: Pattern
    rule_id: str
    put: bytes | None

    @classmethod
    def compile(cls, rule: RedactionRule) -> _Rule:
        put = None if rule.replacement is None else rule.replacement.encode("utf-8", "replace")
        return cls(rule_pattern(rule.pattern), rule.redaction_rule_id, put)


def strip_terminal_codes(data: bytes) -> bytes:
    """`data` without a terminal's control sequences."""
    for _ in range(_ROUNDS if b"\x1b" in data else 0):  # the rest may form another
        data = re.sub(_TERMINAL, b"", data)
    return data


def _parts_outside(found: tuple[int, int], taken: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the parts of a match outside of the placeholders in it, whose spans are listed from last to first and
    consumed. A text that looks like a placeholder must not hide its neighbours."""
    start, end = found
    while taken and taken[-1][1] <= start:
        taken.pop()
    for first, last in reversed(taken):
        if first >= end:
            break
        if start < first:
            yield start, first
        start = last
    if start < end:
        yield start, end


@lru_cache(maxsize=64)
def _ready(pattern: str) -> tuple[Pattern, int]:
    """A detector's expression, and the number of its group for the secret."""
    made = compile_shipped(pattern)
    return made, next(iter(made.groupindex.values()), 0)


class _Scan:
    """Finds the detectors that concern a text, by their anchors: one pass."""

    def __init__(self) -> None:
        self._set: LiteralSets | None = None
        self._asked = 0
        anchors = {anchor.encode() for detector in DETECTORS for anchor in detector.anchors}
        self._in_any_case = [anchor for anchor in anchors if anchor == anchor.lower()]
        self._as_written = [anchor for anchor in anchors if anchor != anchor.lower()]

    def __call__(self, data: bytes) -> list[Detector]:
        if self._set is None:
            self._asked += 1
            if len(data) <= _SHORT and self._asked <= _WITHOUT_ENGINE:
                lower = data.lower()
                found = any(one in lower for one in self._in_any_case) or any(one in data for one in self._as_written)
                if not found:
                    return []
            self._set = LiteralSets(detector.anchors for detector in DETECTORS)
        return [DETECTORS[place] for place in self._set.found(data)]


_concerned = _Scan()


def _may_be_found(encoded: bytes) -> bool:
    """True if a detector may find something in encoded JSON: its anchor is there, and for a known token its form is."""
    if b"\\u001b" in encoded.lower():  # an anchor may contain control sequences
        return True
    concerned = _concerned(encoded)
    if not concerned:
        return False
    # A number is no secret, whatever the name of its field: most suspicious names in events are of numbers.
    rest = re.sub(_COUNTED_TOKENS, b"", encoded)
    if rest is not encoded:
        concerned = _concerned(rest)
    return any(one.in_json is None or compile_shipped(one.in_json).search(rest) is not None for one in concerned)
