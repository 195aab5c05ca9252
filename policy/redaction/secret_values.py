"""True if a value may be a secret: small predicates over bytes, which keep no state. Where it stands is the detectors'
business (`policy.redaction.redact`)."""

from __future__ import annotations

import math
import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections import Counter
from typing import TYPE_CHECKING

from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

MIN_RANDOM, MIN_PASSWORD = 16, 8
"""Shorter values are not taken for a key or a password by their names alone, in bytes."""

# Compiled when first used, by the cache of `re`: a start is not to wait for them.
_TEMPLATE = rb"\$[({]|^(?:\$\w+[-.:/@]?)+$|\{\{|^<|>$|%[({s]|\*{3}|x{5}|X{4}|\.{3}|^\{.*\}$"
_STAND_IN = (
    rb"(?i)(?:^|[-_.])(?:example|changeme|change_me|placeholder|your|dummy|sample|todo)(?:$|[-_.])"
    rb"|^(?:pass(?:word|wd)?|pwd|redacted|\[redacted\])$"
)
_HEX = rb"[0-9a-fA-F-]+"
_PATH = rb"(?:\.{0,2}|~|[a-z][a-z0-9_.-]*)(?:/[a-z0-9_.-]*)+"
_DOTTED = rb"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+"
_SLUG = rb"[a-z]{1,15}(?:[-_.][a-z]{1,15})*(?:[-_.]?[0-9]{1,4})?(?:[-_.][a-z]{1,15})*"
"""The name of something: words and at most one short number."""
_CAMEL = rb"[A-Za-z]{0,8}[0-9]{0,2}(?:[A-Z][a-z]{2,15}){2,}[0-9]{0,2}"
_OPERATORS = rb"&&|\|\||[!=]=|\?\w|^[=!~?*&]|^[a-z]\w*[?]"
_NO_LETTER = rb"[0-9!@#$%^&*+=~?]"
_MIN_ENTROPY, _MIN_HEX_ENTROPY, _MIN_PASSWORD_ENTROPY = 3.3, 2.7, 2.25
# What follows a telling name and makes it the name of something else: `secretName`, `token_url`, `password-field`.
_OF_A_SECRET = (
    rb"(?i)(?:name|ref|id|ur[il]|path|file|dir|type|types|arn|version|len(?:gth)?|count|ttl|expir[a-z_]*|size|limit"
    rb"|endpoint|alg(?:orithm)?|format|prefix|provider|policy|scope|header|field|input|label|selector|hint|regex"
    rb"|ize[rd]?|s?_?created|_?at)s?$"
)


def entropy(value: bytes) -> float:
    """Shannon's entropy, in bits a byte."""
    size = len(value)
    return -sum(count / size * math.log2(count / size) for count in Counter(value).values())


def is_random(value: bytes) -> bool:
    """True for what nobody would write by hand: long, of many characters, with letters and digits."""
    if len(value) < MIN_RANDOM or not is_mixed(value) or is_stand_in(value):
        return False
    if re.fullmatch(_SLUG, value) or re.fullmatch(_PATH, value):
        return False
    return entropy(value) >= (_MIN_HEX_ENTROPY if re.fullmatch(_HEX, value) else _MIN_ENTROPY)


def is_password(value: bytes) -> bool:
    """True for what may well be a password that somebody chose."""
    if len(value) < MIN_PASSWORD or not re.search(rb"[A-Za-z]", value) or not re.search(_NO_LETTER, value):
        return False
    if is_stand_in(value) or re.fullmatch(_PATH, value):
        return False
    return entropy(value) >= _MIN_PASSWORD_ENTROPY


def is_mixed(value: bytes) -> bool:
    """True where there are letters and digits."""
    return bool(re.search(rb"[0-9]", value) and re.search(rb"[A-Za-z]", value))


def is_key(value: bytes) -> bool:
    """True where what stands behind a service's prefix is no word."""
    return is_mixed(value) and entropy(value) >= _MIN_ENTROPY


def is_address(value: bytes) -> bool:
    """True for what begins like a URL or the name of a resource: it says where a secret is."""
    return re.match(rb"[a-z][a-z0-9+.-]{0,30}:", value) is not None


def is_stand_in(value: bytes) -> bool:
    """True for what is put in the place of a secret: a variable, stars, a word of documentation."""
    return bool(re.search(_TEMPLATE, value) or re.search(_STAND_IN, value))


def is_computed(match: bytes, value: bytes, behind: bytes) -> bool:
    """True for a call, a subscript, an attribute: the code that gets a secret, and not the secret. `match` is all that
    was found, `behind` the byte after it."""
    if behind in {b"(", b"["}:
        return True
    if b'"' in match or b"'" in match:
        return False
    return any(re.fullmatch(shape, value) for shape in (_PATH, _DOTTED, _CAMEL)) or _is_operation(value)


def _is_operation(value: bytes) -> bool:
    return re.search(_OPERATORS, value) is not None and re.fullmatch(rb"[\w.?!&=*]+", value) is not None


def names_something_else(name: bytes) -> bool:
    """True where `name` holds a telling word and is not the secret's own name."""
    return re.search(_OF_A_SECRET, name) is not None


def holds_credentials(encoded: bytes) -> bool:
    """True where base64 holds `user:password`, as Basic authorization has it."""
    return b":" in _decode(encoded)


def holds_private_key(encoded: bytes) -> bool:
    """True where base64 begins like a private key in PEM."""
    return b"PRIVATE KEY" in _decode(encoded[:88])


def _decode(encoded: bytes) -> bytes:
    """The printable text that base64 encodes, b"" if it encodes none."""
    try:
        text = b64decode(encoded + b"=" * (-len(encoded) % 4), validate=True)
    except (NotBase64, ValueError):
        return b""
    return text if re.fullmatch(rb"[\t\r\n -~]*", text) else b""


# One kind of secret, as data.


class Detector(NamedTuple):
    """One kind of secret. Any match of `pattern` holds one of `anchors`: those with a capital letter as they are, the
    others in any letter case. The group `secret` of `pattern` is what is taken out, the whole match where it has none;
    `confirms` gets the match's text, the secret, and the byte behind the secret, and has the last word. `in_json` also
    fits wherever JSON encodes a text that `pattern` fits; None where no such expression is known."""

    kind: str
    pattern: str
    anchors: tuple[str, ...]
    confirms: Callable[[bytes, bytes, bytes], bool] | None = None
    in_json: str | None = None


EDGE = r"(?:\b|\\[nrtbf])"
"""Where a word begins, also behind the escaped end of a line."""
