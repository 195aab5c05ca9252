"""What secrets look like: the shipped detectors (AH 8.7). Data and small predicates; nothing here keeps state.

Patterns are RE2's, over bytes. Each has the literals that any of its matches holds (in lower case), so that most text
is known to be clean before an expression is asked.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


class Detector(NamedTuple):
    """One kind of secret. The group `secret` of `pattern` is what is taken out, the whole match where it has none;
    `confirms` gets the match's text, the secret, and the byte behind the match, and has the last word."""

    kind: str
    pattern: str
    anchors: tuple[str, ...]
    confirms: Callable[[bytes, bytes, bytes], bool] | None = None


# Compiled when first used, by the cache of `re`: a start is not to wait for them.
_TEMPLATE = rb"\$|\{\{|[<>]|%[({s]|\*{3}|x{4}|X{4}|\.{3}"
_WORDY = rb"(?i)(?:^|[-_.])(?:example|changeme|change_me|placeholder|your|dummy|sample|todo)(?:$|[-_.])"
_HEX = rb"[0-9a-fA-F-]+"
_CODE = rb"(?:\.{0,2}|~|[a-z][a-z0-9_.-]*)(?:/[a-z0-9_.-]*)+|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+"
"""Paths and dotted names."""
_MIN_ENTROPY, _MIN_HEX_ENTROPY, _MIN_PASSWORD_ENTROPY = 3.3, 2.7, 2.25
_MIN_VALUE, _MIN_PASSWORD = 16, 8


def entropy(value: bytes) -> float:
    """Shannon's entropy, in bits a byte."""
    size = len(value)
    return -sum(count / size * math.log2(count / size) for count in Counter(value).values())


def is_random(value: bytes) -> bool:
    """True for what nobody would write by hand: long, of many characters, with letters and digits."""
    if len(value) < _MIN_VALUE or not _is_mixed(value) or re.search(_TEMPLATE, value) or re.search(_WORDY, value):
        return False
    return entropy(value) >= (_MIN_HEX_ENTROPY if re.fullmatch(_HEX, value) else _MIN_ENTROPY)


def _is_mixed(value: bytes) -> bool:
    return bool(re.search(rb"[0-9]", value) and re.search(rb"[A-Za-z]", value))


def is_password(value: bytes) -> bool:
    """True for what may well be a password that somebody chose."""
    if len(value) < _MIN_PASSWORD or not _is_mixed(value) or re.search(_TEMPLATE, value) or re.search(_WORDY, value):
        return False
    return entropy(value) >= _MIN_PASSWORD_ENTROPY


def names_a_secret(name: str, value: str) -> bool:
    """True where a field of this name holds a secret in `value`: for JSON, where the two stand apart."""
    match = re.search(_TELLING, name)
    if match is None:
        return False
    raw = value.encode("utf-8", "surrogatepass")
    if re.match(_SCHEME, raw):
        return True
    return is_password(raw) if match[1] else is_random(raw) and b" " not in raw


_TELLING = (
    r"(?i)(?:(passw(?:or)?d|passphrase|pwd)|(?:api|access|secret|private|signing|encryption|auth|account|shared)[_.-]?key"
    r"|secret|token|credential|authorization|bearer)s?$"
)
_SCHEME = rb"(?i)(?:bearer|basic|token)\s+[A-Za-z0-9._~+/=-]{8,}$"


def _names_value(match: bytes, secret: bytes, behind: bytes) -> bool:
    return not _is_computed(match, secret, behind) and is_random(secret)


def _names_password(match: bytes, secret: bytes, behind: bytes) -> bool:
    return not _is_computed(match, secret, behind) and is_password(secret)


def _is_computed(match: bytes, value: bytes, behind: bytes) -> bool:
    """A call, a subscript, an attribute: the code that gets a secret, and not the secret."""
    is_quoted = b'"' in match or b"'" in match
    return behind in {b"(", b"["} or (not is_quoted and re.fullmatch(_CODE, value) is not None)


def _is_key(_match: bytes, secret: bytes, _behind: bytes) -> bool:
    return _is_mixed(secret) and entropy(secret) >= _MIN_ENTROPY


def _holds_base64(match: bytes, _secret: bytes, _behind: bytes) -> bool:
    return re.search(rb"[A-Za-z0-9+/=]{24}", match) is not None


def _is_no_template(_match: bytes, secret: bytes, _behind: bytes) -> bool:
    return re.search(_TEMPLATE, secret) is None


_NAMED_KEY = "(?:api|access|secret|private|signing|encryption|auth|account|shared)[_.-]?key"
_QUOTE = r"""\\{0,3}["']?"""
_ASSIGNS = rf"{_QUOTE}\s{{0,8}}(?:=>|:=|=|:)\s{{0,8}}{_QUOTE}"


def _value(least: int) -> str:
    return f"(?P<secret>[A-Za-z0-9+/_.=~!@#$%^&*?-]{{{least},512}})"


_KEY_BODY = r"(?:[A-Za-z0-9+/=\s,]|\\[nr]|[\"'])"

DETECTORS: tuple[Detector, ...] = (
    Detector(
        "private-key",
        r"-----BEGIN (?:[A-Z0-9]+ ){0,4}PRIVATE KEY(?: BLOCK)?-----"
        r"(?:(?:[^-]|-{1,4}[^-])*-----END (?:[A-Z0-9]+ ){0,4}PRIVATE KEY(?: BLOCK)?-----|"
        rf"{_KEY_BODY}{{64}}{_KEY_BODY}*)",
        ("private key",),
        _holds_base64,
    ),
    Detector("aws-access-key", r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}\b", ("akia", "asia", "abia", "acca")),
    Detector(
        "github-token",
        r"\bgh[pousr]_[A-Za-z0-9]{30,255}|\bgithub_pat_[A-Za-z0-9_]{22,255}",
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
    ),
    Detector(
        "gitlab-token",
        r"\bgl(?:pat|dt|rt|cbt|ptt|ft|soat|agent|oas)-[A-Za-z0-9_-]{20,255}",
        ("glpat-", "gldt-", "glrt-", "glcbt-", "glptt-", "glft-", "glsoat-", "glagent-", "gloas-"),
    ),
    Detector(
        "slack-token",
        r"\bxox[abeoprs]-[A-Za-z0-9-]{10,255}|\bxapp-[0-9]-[A-Za-z0-9-]{10,255}"
        r"|\bhooks\.slack\.com/services/[A-Za-z0-9/]{20,255}",
        ("xox", "xapp-", "hooks.slack.com"),
    ),
    Detector(
        "stripe-key",
        r"\b[rs]k_(?:live|test)_[A-Za-z0-9]{10,255}|\bwhsec_[A-Za-z0-9+/=]{20,255}",
        ("sk_live_", "sk_test_", "rk_live_", "rk_test_", "whsec_"),
    ),
    Detector("api-key", r"\bsk-[A-Za-z0-9_-]{20,255}", ("sk-",), _is_key),
    Detector(
        "google-key",
        r"\bAIza[0-9A-Za-z_-]{35}|\bya29\.[0-9A-Za-z_-]{20,512}|\bGOCSPX-[0-9A-Za-z_-]{20,64}",
        ("aiza", "ya29.", "gocspx-"),
    ),
    Detector(
        "package-token",
        r"\bnpm_[A-Za-z0-9]{36}|\bpypi-[A-Za-z0-9_-]{50,512}|\brubygems_[0-9a-f]{48}",
        ("npm_", "pypi-", "rubygems_"),
    ),
    Detector(
        "service-token",
        r"\bSG\.[A-Za-z0-9_-]{16,64}\.[A-Za-z0-9_-]{16,64}|\bhf_[A-Za-z0-9]{30,64}|\bdapi[0-9a-f]{32}"
        r"|\bdo[oprt]_v1_[0-9a-f]{64}|\bshp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}|\bhv[sbr]\.[A-Za-z0-9_-]{20,255}"
        r"|\bAGE-SECRET-KEY-1[0-9A-Z]{58}|\blin_api_[A-Za-z0-9]{32,64}",
        (
            "sg.",
            "hf_",
            "dapi",
            "_v1_",
            "shpat_",
            "shpca_",
            "shppa_",
            "shpss_",
            "hvs.",
            "hvb.",
            "hvr.",
            "age-secret-key-1",
            "lin_api_",
        ),
    ),
    Detector("jwt", r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}", ("eyj",)),
    Detector(
        "authorization",
        rf"(?i:authorization){_ASSIGNS}(?i:bearer|basic|token)\s{{1,8}}(?P<secret>[A-Za-z0-9._~+/=-]{{8,}})",
        ("authorization",),
        _is_no_template,
    ),
    Detector(
        "url-password",
        r"\b[A-Za-z][A-Za-z0-9+.-]{1,30}://[^\s:/@\"'<>\\]{0,256}:(?P<secret>[^\s/@\"'<>\\]{1,256})@",
        ("://",),
        _is_no_template,
    ),
    Detector(
        "connection-password",
        r"(?i:;\s{0,4}(?:password|pwd|accountkey|sharedaccesskey)\s{0,4}=\s{0,4})(?P<secret>[^;\"'\s\\]{3,512})",
        ("password", "pwd", "accountkey", "sharedaccesskey"),
        _is_no_template,
    ),
    Detector(
        "password",
        rf"(?i:passw(?:or)?d|passphrase|pwd)[A-Za-z0-9_]{{0,24}}{_ASSIGNS}{_value(_MIN_PASSWORD)}",
        ("passw", "passphrase", "pwd"),
        _names_password,
    ),
    Detector(
        "secret",
        rf"(?i:{_NAMED_KEY}|secret|token|credential|bearer)[A-Za-z0-9_.-]{{0,24}}{_ASSIGNS}{_value(_MIN_VALUE)}",
        ("key", "secret", "token", "credential", "bearer"),
        _names_value,
    ),
)
"""In the order in which they are asked; what one takes out, the next does not see."""

ANCHORS: tuple[str, ...] = tuple(dict.fromkeys(anchor for one in DETECTORS for anchor in one.anchors))
