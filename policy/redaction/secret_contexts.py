"""Secrets that are given away by where they stand: beside a telling name, in a URL, a header, a command line, a file of
passwords. They are all called `secret`: a value has one placeholder, wherever it turns up.
"""

from __future__ import annotations

import re

from policy.redaction.secret_values import (
    EDGE,
    MIN_PASSWORD,
    MIN_RANDOM,
    Detector,
    holds_credentials,
    is_address,
    is_computed,
    is_mixed,
    is_password,
    is_random,
    is_stand_in,
    names_something_else,
)


def secret_of_field(name: str, value: str) -> int | None:
    """Return where in `value` the secret begins that a field of this name gives away, None if there is none: for JSON,
    in which name and value stand apart."""
    match = re.search(_TELLING, name)
    if match is None:
        return None
    raw = value.encode("utf-8", "surrogatepass")
    scheme = re.match(_SCHEME, raw)
    if scheme is not None:
        return None if is_stand_in(raw[scheme.end(1) :]) else scheme.end(1)
    if match["password"]:
        is_secret = is_password(raw)
    elif match["cookie"]:
        is_secret = _holds_cookie(b"", raw, b"")
    elif match["auth"]:
        is_secret = holds_credentials(raw)
    else:
        is_secret = is_random(raw) and b" " not in raw
    return 0 if is_secret else None


_KEY = "(?:api|access|secret|private|signing|encryption|auth|account|shared|subscription|master|session)[_.-]?key"
_TELLING = (
    r"(?i)(?:(?P<password>passw(?:or)?d|passphrase|pwd)|(?P<cookie>cookie)|(?P<auth>\b_?auth)"
    rf"|{_KEY}|secret|token|credential|authorization|bearer)s?$"
)
_SCHEME = rb"(?i)((?:bearer|basic|token|apikey)\s{1,8})[A-Za-z0-9._~+/=-]{8,}$"


def _names_value(match: bytes, secret: bytes, behind: bytes) -> bool:
    return is_random(secret) and not is_computed(match, secret, behind) and not names_something_else(_name(match))


def _names_password(match: bytes, secret: bytes, behind: bytes) -> bool:
    return is_password(secret) and not is_computed(match, secret, behind) and not names_something_else(_name(match))


def _name(match: bytes) -> bytes:
    return b"".join(re.findall(rb"^[\w.-]+", match))


def _is_random(_match: bytes, secret: bytes, _behind: bytes) -> bool:
    return is_random(secret)


def _is_value(_match: bytes, secret: bytes, _behind: bytes) -> bool:
    return not is_stand_in(secret)


def _is_option(match: bytes, secret: bytes, _behind: bytes) -> bool:
    if is_stand_in(secret) or secret.startswith(b"-"):
        return False
    # Without a sign between them the next word may be anything, as in a help text.
    return b"=" in match[: -len(secret)] or is_mixed(secret) or is_password(secret)


def _holds_credentials(_match: bytes, secret: bytes, _behind: bytes) -> bool:
    return holds_credentials(secret)


def _holds_cookie(_match: bytes, secret: bytes, _behind: bytes) -> bool:
    return any(
        len(value) >= MIN_PASSWORD and is_mixed(value) and not is_stand_in(value)
        for value in re.findall(rb"=([^;\s]+)", secret)
    )


_QUOTE = r"""\\{0,7}["']?"""
_BLANK = r"(?:\s|\\{1,7}[nrt])"
_ASSIGNS = rf"{_QUOTE}\s{{0,8}}(?:=>|:=|=|:)\s{{0,8}}{_QUOTE}"
_BEFORE_QUOTE = rf"{_QUOTE}\s{{0,8}}(?:=>|:=|=|:)\s{{0,8}}"
_SETS = r"(?:\\{0,7}[\"']|[:=]| [:=])[:=\s\"'\\]{0,12}"
"""The same, where nothing else stands behind the name."""
_SLASHES = r"(?://|\\{1,7}/\\{1,7}/)"
_PARAMETER = r"(?:[?&]|\\{1,7}u0026|&amp;)"
"""What stands before a parameter of a URL; `&` is also met as JSON for web pages and XML have it."""
_TO_QUOTE = r"(?P<secret>[^\s\"'\\`]{3,})"
_IN_LINE = r"(?:[^\n;|]|\\\n)*?"


def _value(least: int) -> str:
    return f"(?P<secret>[A-Za-z0-9+/_.=~!@#$%^&*?-]{{{least},}})"


def _quoted_value(least: int) -> str:
    """A value that ends at its quotes, with any content."""
    return rf"\\{{0,7}}[\"'](?P<secret>[^\s\"'\\]{{{least},512}})\\{{0,7}}[\"']"


def _setting(*names: str) -> tuple[str, ...]:
    """The anchors of names before `_SETS`."""
    return tuple(name + end for name in names for end in ("\\", '"', "'", ":", "=", " :", " ="))


_USER = rf"[\s=]{{0,4}}{_QUOTE}[^\s:\"'\\/]+:"
# One begins with one word: a search for the first of several would go to the end of the line each time.
_COMMANDS = {
    "curl": rf"{EDGE}curl\b{_IN_LINE}\s(?:-u|-U|--user|--proxy-user){_USER}",
    "--auth": rf"--auth{_USER}",
    "mysql": rf"{EDGE}mysql[a-z-]{{0,12}}\b{_IN_LINE}\s-p",
    "mariadb": rf"{EDGE}mariadb[a-z-]{{0,12}}\b{_IN_LINE}\s-p",
    "sshpass": rf"{EDGE}sshpass\s{{1,4}}-p\s?",
    "redis-cli": rf"{EDGE}redis-cli\b{_IN_LINE}\s-a\s{{1,4}}",
}
"""What stands before the secret in a command line, by its anchor."""

TELLING_PLACES: tuple[Detector, ...] = (
    Detector(
        "secret",
        rf"(?i:authorization){_ASSIGNS}(?i:bearer|basic|token|apikey|sso-key)\s{{1,8}}"
        r"(?P<secret>[A-Za-z0-9._~+/=-]{8,})",
        ("authorization",),
        _is_value,
    ),
    Detector(
        "secret",
        rf"{EDGE}[A-Za-z][A-Za-z0-9+.-]{{1,30}}:{_SLASHES}[^\s:/@\"'<>\\`]*:(?P<secret>[^\s/\"'<>\\`]+)@",
        ("://", ":\\"),
        _is_value,
    ),
    Detector(
        "secret",
        r"(?i:(?:;\s{0,4}(?:password|pwd)|accountkey|sharedaccess(?:key|signature)|sharedsecretvalue)\s{0,4}=\s{0,4})"
        r"(?P<secret>[^;\"'\s\\]{3,})",
        ("password", "pwd", "accountkey", "sharedaccess", "sharedsecretvalue"),
        _is_value,
    ),
    Detector(
        "secret",
        rf"(?i:{EDGE}(?:password|pwd)\s?=\s?)(?P<secret>[^;\"'\s\\]{{3,}})"
        r"(?i:;\s?(?:server|data source|host|port|database|initial catalog|uid|user|trusted|encrypt|integrated))",
        ("password", "pwd"),
        _is_value,
    ),
    Detector(
        "secret",
        rf"(?i:(?:{_PARAMETER}|{EDGE}(?:user|dbname|host|hostaddr|port|sslmode)=[^\s;&\"',()]+[ \t]{{1,4}})"
        r"(?:password|passwd|pwd)=)"
        r"(?P<secret>[^\s&\"',;()\\]+)",
        ("password=", "passwd=", "pwd="),
        _is_value,
    ),
    Detector(
        "secret",
        _PARAMETER + r"(?i:sig|signature|x-amz-signature|x-goog-signature|x-amz-security-token)="
        r"(?P<secret>[A-Za-z0-9%+/=_-]{20,})",
        ("sig=", "signature=", "x-amz-security-token="),
        _is_value,
    ),
    Detector(
        "secret",
        r"(?i:--(?:[a-z]+-){0,3}(?:password|passwd|passphrase|token|secret|apikey|api-key|access-key|secret-key))"
        rf"(?:=|[ \t]{{1,4}}){_QUOTE}{_TO_QUOTE}",
        ("--",),
        _is_option,
    ),
    *(
        Detector("secret", rf"{command}{_QUOTE}{_TO_QUOTE}", (command_anchor,), _is_value)
        for command_anchor, command in _COMMANDS.items()
    ),
    Detector(
        "secret",
        rf"(?i:{EDGE}(?:machine{_BLANK}{{1,8}}[^\s\"'\\]+|default){_BLANK}{{1,32}}"
        rf"login{_BLANK}{{1,8}}[^\s\"'\\]+{_BLANK}{{1,32}}password{_BLANK}{{1,8}}){_TO_QUOTE}",
        ("login",),
        _is_value,
    ),
    Detector(
        "secret",
        r"(?m:^|[\"'\s]|\\n)[A-Za-z0-9.*_-]+:(?:54[0-9]{2}|6432|\*):[^\s:\"']{1,64}:[^\s:\"']{1,64}:"
        r"(?P<secret>[^\s:\"'\\]{3,})(?m:$|[\s\"'\\])",
        # No time of day has one of these, so that events with their times concern no detector.
        (*(f":54{number:02}:" for number in range(100)), ":6432:", ":*:"),
        _is_value,
        in_json=r":(?:54[0-9]{2}|6432|\*):",
    ),
    Detector(
        "secret",
        rf"(?i:{EDGE}_?auth){_SETS}(?P<secret>[A-Za-z0-9+/]{{6,}}={{0,2}})",
        _setting("auth"),
        _holds_credentials,
    ),
    Detector(
        "secret",
        rf"(?i:{EDGE}set-cookie){_ASSIGNS}[^=;\s\"'\\]+=(?P<secret>[^;\s\"'\\]{{8,}})",
        ("set-cookie",),
        lambda _match, secret, _behind: is_mixed(secret) and not is_stand_in(secret),
    ),
    Detector(
        "secret",
        rf"(?:(?i:[^-]{EDGE}cookie|^cookie){_ASSIGNS}|--cookie[ =]{_QUOTE})(?P<secret>[^\r\n\"'\\]{{8,}})",
        ("cookie",),
        _holds_cookie,
    ),
    Detector(
        "secret",
        rf"(?i:{EDGE}(?:(?:phpsessid|jsessionid|connect\.sid|asp\.net_sessionid|laravel_session){_SETS}|(?:sessionid|sid)=))"
        r"(?P<secret>[A-Za-z0-9%._+/~-]{16,})",
        (
            *_setting("phpsessid", "jsessionid", "connect.sid", "asp.net_sessionid", "laravel_session"),
            "sessionid=",
            "sid=",
        ),
        _is_random,
    ),
    Detector(
        "secret",
        r"(?i:<(?:[a-z]{1,20}:)?(?:password|passphrase|secret|token|api-?key|secret-?key)>)(?P<secret>[^<\s]{3,})</",
        ("password>", "passphrase>", "secret>", "token>", "key>"),
        _is_value,
    ),
    Detector(
        "secret",
        rf"(?i:{EDGE}(?:name|key){_ASSIGNS}[a-z0-9_.:-]{{0,48}}(?:passw(?:or)?d|secret|token|{_KEY})[\"'\\]{{0,8}},?"
        rf"{_BLANK}{{1,32}}{_QUOTE}value{_SETS}){_value(MIN_PASSWORD)}",
        _setting("value"),
        lambda match, secret, behind: not is_computed(match, secret, behind) and is_password(secret),
    ),
    Detector(
        "secret",
        rf"(?i:{EDGE}(?:user|role|grant)\s[^;\n]+?\s(?:identified\s{{1,4}}(?:with\s{{1,4}}\S+\s{{1,4}})?by|password)\s{{1,4}})"
        r"[\"'](?P<secret>[^\"'\s]{4,})[\"']",
        ("identified", "password"),
        _is_value,
    ),
    Detector(
        "secret",
        rf"(?i:passw(?:or)?d|passphrase|pwd)[A-Za-z0-9_]{{0,24}}{_BEFORE_QUOTE}{_quoted_value(MIN_PASSWORD)}",
        ("passw", "passphrase", "pwd"),
        lambda match, secret, behind: not is_address(secret) and _names_password(match, secret, behind),
    ),
    Detector(
        "secret",
        rf"(?i:{_KEY}|secret|token|credential|bearer|authorization)[A-Za-z0-9_.-]{{0,24}}{_BEFORE_QUOTE}{_quoted_value(MIN_RANDOM)}",
        ("key", "secret", "token", "credential", "bearer", "authorization"),
        lambda match, secret, behind: not is_address(secret) and _names_value(match, secret, behind),
    ),
    Detector(
        "secret",
        rf"(?i:passw(?:or)?d|passphrase|pwd)[A-Za-z0-9_]{{0,24}}{_ASSIGNS}{_value(MIN_PASSWORD)}",
        ("passw", "passphrase", "pwd"),
        _names_password,
    ),
    Detector(
        "secret",
        rf"(?i:{_KEY}|secret|token|credential|bearer|authorization)[A-Za-z0-9_.-]{{0,24}}{_ASSIGNS}{_value(MIN_RANDOM)}",
        ("key", "secret", "token", "credential", "bearer", "authorization"),
        _names_value,
    ),
)
"""In the order in which they are asked."""
