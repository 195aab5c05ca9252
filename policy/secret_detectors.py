"""The shipped detectors (AH 8.7): secrets recognized by their form in any place, and secrets recognized by their
context: after a suspicious name, in a URL, a header, a command line, a file of passwords. The latter are all called
`secret`: a value has one placeholder everywhere.

Patterns are RE2's, over bytes. Each has literals of which any match contains one, so that most text is known to be
clean before an expression runs. Small, stateless predicates over bytes then decide if a value may be a secret.
"""

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

    Confirms = Callable[[bytes, bytes, bytes], bool]
    """(the match, the secret in it, the byte after it) → True if it is a secret."""

_MIN_RANDOM, _MIN_PASSWORD = 16, 8
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
    """True for text that a person would not write: long, of many different characters, with letters and digits."""
    if len(value) < _MIN_RANDOM or not _is_mixed(value) or _is_stand_in(value):
        return False
    if re.fullmatch(_SLUG, value) or re.fullmatch(_PATH, value):
        return False
    return entropy(value) >= (_MIN_HEX_ENTROPY if re.fullmatch(_HEX, value) else _MIN_ENTROPY)


def is_password(value: bytes) -> bool:
    """True for a plausible password of a person."""
    if len(value) < _MIN_PASSWORD or not re.search(rb"[A-Za-z]", value) or not re.search(_NO_LETTER, value):
        return False
    if _is_stand_in(value) or re.fullmatch(_PATH, value):
        return False
    return entropy(value) >= _MIN_PASSWORD_ENTROPY


def _is_mixed(value: bytes) -> bool:
    return bool(re.search(rb"[0-9]", value) and re.search(rb"[A-Za-z]", value))


def is_key(value: bytes) -> bool:
    """True if the text after a service's prefix is not a word."""
    return _is_mixed(value) and entropy(value) >= _MIN_ENTROPY


def is_address(value: bytes) -> bool:
    """True for text that begins like a URL or the name of a resource, which refers to a secret."""
    return re.match(rb"[a-z][a-z0-9+.-]{0,30}:", value) is not None


def _is_stand_in(value: bytes) -> bool:
    """True for a substitute of a secret: a variable, stars, a word of documentation."""
    return bool(re.search(_TEMPLATE, value) or re.search(_STAND_IN, value))


def _is_computed(match: bytes, value: bytes, after: bytes) -> bool:
    """True for code that reads a secret: a call, a subscript, an attribute. `after` is the byte after it."""
    if after in {b"(", b"["}:
        return True
    if b'"' in match or b"'" in match:
        return False
    return any(re.fullmatch(shape, value) for shape in (_PATH, _DOTTED, _CAMEL)) or _is_operation(value)


def _is_operation(value: bytes) -> bool:
    return re.search(_OPERATORS, value) is not None and re.fullmatch(rb"[\w.?!&=*]+", value) is not None


def holds_credentials(encoded: bytes) -> bool:
    """True if base64 contains `user:password`, as in Basic authorization."""
    return b":" in _decode(encoded)


def holds_private_key(encoded: bytes) -> bool:
    """True if base64 begins like a private key in PEM."""
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
    """One kind of secret. Any match of `pattern` contains one of `anchors`: those with a capital letter literally, the
    others in any letter case. The group `secret` of `pattern` is redacted, the whole match if there is no group;
    `confirms` takes the match's text, the secret, and the byte after the secret, and decides. `in_json` also matches
    any JSON encoding of a text that `pattern` matches; None if there is no such expression."""

    kind: str
    pattern: str
    anchors: tuple[str, ...]
    confirms: Confirms | None = None
    in_json: str | None = None


_EDGE = r"(?:\b|\\[nrtbf])"
"""The start of a word, also after an escaped end of line."""


def _if(judge: Callable[[bytes], bool]) -> Confirms:
    """Confirm by the secret alone."""
    return lambda _match, secret, _after: judge(secret)


def _holds_base64(match: bytes, _secret: bytes, _after: bytes) -> bool:
    return re.search(rb"[A-Za-z0-9+/=]{24}", match) is not None


def _tokens(kind: str, *known: tuple[str, str], word: bool = False) -> Detector:
    """Tokens by the literals that they begin with. `word`: they would be found within other words, too."""
    starts = [("|".join(map(re.escape, start.split())), rest) for start, rest in known]
    pattern = "|".join(f"(?:{start}){rest}" for start, rest in starts)
    if word:
        pattern = f"{_EDGE}(?P<secret>{pattern})"
    in_json = "|".join(f"(?:{start}){_same_in_json(rest)}" for start, rest in starts)
    anchors = tuple(start for starts, _ in known for start in starts.split())
    return Detector(kind, pattern, anchors, in_json=in_json)


def _same_in_json(rest: str) -> str:
    """The part of `rest` that JSON leaves unchanged: it escapes backslashes, and may add others at the end of a
    word."""
    rest = rest.removesuffix(r"\b")
    return "" if "\\" in rest else rest


# Also as a text in a program or in JSON, in which ends of lines and quotes are escaped, maybe more than once.
_KEY_BODY = r"[A-Za-z0-9+/=\s,\\\"']"

_KNOWN_TOKENS: tuple[Detector, ...] = (
    Detector(
        "private-key",
        r"-----BEGIN (?:[A-Z0-9]+ ){0,4}PRIVATE KEY(?: BLOCK)?-----"
        # A diff puts one more dash before the last line.
        r"(?:(?:[^-]|-{1,4}[^-])*-{5,6}END (?:[A-Z0-9]+ ){0,4}PRIVATE KEY(?: BLOCK)?-----|"
        rf"{_KEY_BODY}{{64}}{_KEY_BODY}*)",
        ("private key",),
        _holds_base64,
    ),
    # Its end without its first line.
    Detector(
        "private-key",
        r"(?:[A-Za-z0-9+/=]{32,}[\s,\\\"']{1,12})+(?:[A-Za-z0-9+/=]{1,80}[\s,\\\"']{1,12})?[n+]?"
        r"-{5,6}END (?:[A-Z0-9]+ ){0,4}PRIVATE KEY(?: BLOCK)?-----",
        ("private key",),
        _holds_base64,
    ),
    Detector("private-key", r"LS0tLS1CRUdJTi[A-Za-z0-9+/]{40,}={0,2}", ("ls0tls1crudjti",), _if(holds_private_key)),
    Detector("private-key", rf"Private-Lines: [0-9]{{1,4}}{_KEY_BODY}{{40,}}", ("private-lines: ",), _holds_base64),
    _tokens("aws-access-key", ("AKIA ASIA ABIA ACCA", r"[A-Z2-7]{16}\b")),
    _tokens("github-token", ("ghp_ gho_ ghu_ ghs_ ghr_", "[A-Za-z0-9]{30,}"), ("github_pat_", "[A-Za-z0-9_]{22,}")),
    _tokens(
        "gitlab-token",
        ("glpat- gldt- glrt- glcbt- glptt- glft- glsoat- glagent- gloas- glimt-", "[A-Za-z0-9_.-]{20,}"),
        ("GR1348941", "[A-Za-z0-9_-]{20}"),
    ),
    _tokens(
        "slack-token",
        ("xoxa- xoxb- xoxe- xoxe. xoxo- xoxp- xoxr- xoxs- xoxc- xoxd-", "[A-Za-z0-9.%-]{10,}"),
        ("xapp-", "[0-9]-[A-Za-z0-9-]{10,}"),
        ("hooks.slack.com", r"\\{0,7}/(?:services|workflows|triggers)\\{0,7}/[A-Za-z0-9/\\]{20,}"),
    ),
    _tokens(
        "stripe-key",
        ("sk_live_ sk_test_ rk_live_ rk_test_", "[A-Za-z0-9]{10,}"),
        ("whsec_", "[A-Za-z0-9+/=]{20,}"),
    ),
    Detector(
        "api-key",
        rf"{_EDGE}(?P<secret>sk-[A-Za-z0-9_-]{{20,}})",
        ("sk-",),
        _if(is_key),
        in_json="sk-[A-Za-z0-9_-]{20,}",
    ),
    _tokens(
        "google-key",
        ("AIza", "[0-9A-Za-z_-]{35}"),
        ("ya29.", "[0-9A-Za-z_-]{20,}"),
        ("GOCSPX-", "[0-9A-Za-z_-]{20,64}"),
    ),
    Detector("azure-secret", r"[A-Za-z0-9_~.-]{3}[78]Q~[A-Za-z0-9_~.-]{31,34}", ("q~",), _if(is_key)),
    _tokens(
        "package-token",
        ("npm_", "[A-Za-z0-9]{36}"),
        ("pypi-", "[A-Za-z0-9_-]{50,}"),
        ("rubygems_", "[0-9a-f]{48}"),
        ("dckr_pat_ dckr_oat_", "[A-Za-z0-9_-]{20,64}"),
    ),
    _tokens(
        "service-token",
        ("dop_v1_ doo_v1_ dor_v1_ dot_v1_", "[0-9a-f]{64}"),
        ("shpat_ shpca_ shppa_ shpss_", "[0-9a-fA-F]{32}"),
        ("hvs. hvb. hvr.", "[A-Za-z0-9_-]{20,}"),
        ("AGE-SECRET-KEY-1", "[0-9A-Z]{58}"),
        ("lin_api_", "[A-Za-z0-9]{32,64}"),
        ("glsa_", "[A-Za-z0-9]{32}_[0-9a-fA-F]{8}"),
        ("glc_eyJ", "[A-Za-z0-9+/=]{40,}"),
        ("sntrys_ sntryu_", "[A-Za-z0-9+/=_]{40,}"),
        ("pscale_tkn_ pscale_pw_ pscale_oauth_", "[A-Za-z0-9_.=-]{32,64}"),
        ("sq0atp- sq0csp- sq0idp-", "[0-9A-Za-z_-]{22,64}"),
        ("sbp_", "[0-9a-f]{40}"),
        ("PMAK- NRAK- figd_ sb_secret_ pplx-", "[A-Za-z0-9_=.-]{20,}"),
    ),
    _tokens(
        "service-token",
        ("SG.", r"[A-Za-z0-9_-]{16,64}\.[A-Za-z0-9_-]{16,64}"),
        ("hf_ gsk_ ntn_", "[A-Za-z0-9]{30,64}"),
        ("dapi", "[0-9a-f]{32}"),
        ("xai- r8_", r"[A-Za-z0-9]{37,100}\b"),
        ("ATATT3 ATCTT3", "[A-Za-z0-9_=-]{40,}"),
        ("ATBB", r"[A-Za-z0-9]{28}\b"),
        ("AKCp", "[0-9][A-Za-z0-9]{60,80}"),
        ("dp.pt. dp.st. dp.ct. dp.sa.", "[A-Za-z0-9_.-]{40,64}"),
        ("pul-", r"[0-9a-f]{40}\b"),
        ("key-", r"[0-9a-f]{32}\b"),
        ("SK", r"[0-9a-f]{32}\b"),
        word=True,
    ),
    _tokens("google-key", ("1//0", "[0-9A-Za-z_-]{40,}"), word=True),
    Detector("service-token", r"[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_-]{60,70}", (".atlasv1.",)),
    Detector("service-token", rf"{_EDGE}(?P<secret>[0-9]{{8,10}}:AA[A-Za-z0-9_-]{{33}})\b", (":aa",)),
    Detector(
        "service-token",
        r"discord(?:app)?\.com\\{0,7}/api\\{0,7}/webhooks\\{0,7}/[0-9]{15,20}\\{0,7}/(?P<secret>[A-Za-z0-9_-]{50,80})",
        ("discord.com", "discordapp.com"),
    ),
    Detector("jwt", r"eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}", ("eyj",)),
)


def secret_of_field(name: str, value: str) -> int | None:
    """Return where in `value` the secret begins that a JSON field of this name gives away, None for none."""
    match = re.search(_TELLING, name)
    if match is None:
        return None
    raw = value.encode("utf-8", "surrogatepass")
    scheme = re.match(_SCHEME, raw)
    if scheme is not None:
        return None if _is_stand_in(raw[scheme.end(1) :]) else scheme.end(1)
    if match["password"]:
        is_secret = is_password(raw)
    elif match["cookie"]:
        is_secret = _holds_cookie(raw)
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


def _named(judge: Callable[[bytes], bool], *, is_quoted: bool = False) -> Confirms:
    """Confirm a value after its name."""

    def confirm(match: bytes, secret: bytes, after: bytes) -> bool:
        if (is_quoted and is_address(secret)) or not judge(secret) or _is_computed(match, secret, after):
            return False
        name = b"".join(re.findall(rb"^[\w.-]+", match))
        return re.search(_OF_A_SECRET, name) is None

    return confirm


def _is_option(match: bytes, secret: bytes, _after: bytes) -> bool:
    if _is_stand_in(secret) or secret.startswith(b"-"):
        return False
    # Without a sign between them the next word may be anything, as in a help text.
    return b"=" in match[: -len(secret)] or _is_mixed(secret) or is_password(secret)


def _holds_cookie(secret: bytes) -> bool:
    return any(
        len(value) >= _MIN_PASSWORD and _is_mixed(value) and not _is_stand_in(value)
        for value in re.findall(rb"=([^;\s]+)", secret)
    )


_QUOTE = r"""\\{0,7}["']?"""
_BLANK = r"(?:\s|\\{1,7}[nrt])"
_ASSIGNS = rf"{_QUOTE}\s{{0,8}}(?:=>|:=|=|:)\s{{0,8}}{_QUOTE}"
_BEFORE_QUOTE = rf"{_QUOTE}\s{{0,8}}(?:=>|:=|=|:)\s{{0,8}}"
_SETS = r"(?:\\{0,7}[\"']|[:=]| [:=])[:=\s\"'\\]{0,12}"
"""The same if nothing else follows the name."""
_SLASHES = r"(?://|\\{1,7}/\\{1,7}/)"
_PARAMETER = r"(?:[?&]|\\{1,7}u0026|&amp;)"
"""Separator before a parameter of a URL; `&` may also be escaped as in JSON for web pages and in XML."""
_TO_QUOTE = r"(?P<secret>[^\s\"'\\`]{3,})"
_IN_LINE = r"(?:[^\n;|]|\\\n)*?"


def _value(least: int) -> str:
    return f"(?P<secret>[A-Za-z0-9+/_.=~!@#$%^&*?-]{{{least},}})"


def _quoted_value(least: int) -> str:
    return rf"\\{{0,7}}[\"'](?P<secret>[^\s\"'\\]{{{least},512}})\\{{0,7}}[\"']"


def _setting(*names: str) -> tuple[str, ...]:
    """The anchors of names before `_SETS`."""
    return tuple(name + end for name in names for end in ("\\", '"', "'", ":", "=", " :", " ="))


_USER = rf"[\s=]{{0,4}}{_QUOTE}[^\s:\"'\\/]+:"
# One begins with one word: a search for the first of several would go to the end of the line each time.
_COMMANDS = {
    "curl": rf"{_EDGE}curl\b{_IN_LINE}\s(?:-u|-U|--user|--proxy-user){_USER}",
    "--auth": rf"--auth{_USER}",
    "mysql": rf"{_EDGE}mysql[a-z-]{{0,12}}\b{_IN_LINE}\s-p",
    "mariadb": rf"{_EDGE}mariadb[a-z-]{{0,12}}\b{_IN_LINE}\s-p",
    "sshpass": rf"{_EDGE}sshpass\s{{1,4}}-p\s?",
    "redis-cli": rf"{_EDGE}redis-cli\b{_IN_LINE}\s-a\s{{1,4}}",
}
"""Text before the secret in a command line, by its anchor."""
_NAMES = (
    (
        r"(?i:passw(?:or)?d|passphrase|pwd)[A-Za-z0-9_]{0,24}", _MIN_PASSWORD,
        ("passw", "passphrase", "pwd"), is_password,
    ),
    (
        rf"(?i:{_KEY}|secret|token|credential|bearer|authorization)[A-Za-z0-9_.-]{{0,24}}", _MIN_RANDOM,
        ("key", "secret", "token", "credential", "bearer", "authorization"), is_random,
    ),
)  # fmt: skip
"""Suspicious names: the minimum length of a value after one, its anchors, and the predicate for a value."""


def _telling(
    pattern: str, anchors: tuple[str, ...], confirms: Confirms | None = None, in_json: str | None = None
) -> Detector:
    """A value that is a secret by its context, unless it is a substitute."""
    return Detector("secret", pattern, anchors, confirms or _if(lambda secret: not _is_stand_in(secret)), in_json)


_TELLING_PLACES: tuple[Detector, ...] = (
    _telling(
        rf"(?i:authorization){_ASSIGNS}(?i:bearer|basic|token|apikey|sso-key)\s{{1,8}}"
        r"(?P<secret>[A-Za-z0-9._~+/=-]{8,})",
        ("authorization",),
    ),
    _telling(
        rf"{_EDGE}[A-Za-z][A-Za-z0-9+.-]{{1,30}}:{_SLASHES}[^\s:/@\"'<>\\`]*:(?P<secret>[^\s/\"'<>\\`]+)@",
        ("://", ":\\"),
    ),
    _telling(
        r"(?i:(?:;\s{0,4}(?:password|pwd)|accountkey|sharedaccess(?:key|signature)|sharedsecretvalue)\s{0,4}=\s{0,4})"
        r"(?P<secret>[^;\"'\s\\]{3,})",
        ("password", "pwd", "accountkey", "sharedaccess", "sharedsecretvalue"),
    ),
    _telling(
        rf"(?i:{_EDGE}(?:password|pwd)\s?=\s?)(?P<secret>[^;\"'\s\\]{{3,}})"
        r"(?i:;\s?(?:server|data source|host|port|database|initial catalog|uid|user|trusted|encrypt|integrated))",
        ("password", "pwd"),
    ),
    _telling(
        rf"(?i:(?:{_PARAMETER}|{_EDGE}(?:user|dbname|host|hostaddr|port|sslmode)=[^\s;&\"',()]+[ \t]{{1,4}})"
        r"(?:password|passwd|pwd)=)"
        r"(?P<secret>[^\s&\"',;()\\]+)",
        ("password=", "passwd=", "pwd="),
    ),
    _telling(
        _PARAMETER + r"(?i:sig|signature|x-amz-signature|x-goog-signature|x-amz-security-token)="
        r"(?P<secret>[A-Za-z0-9%+/=_-]{20,})",
        ("sig=", "signature=", "x-amz-security-token="),
    ),
    _telling(
        r"(?i:--(?:[a-z]+-){0,3}(?:password|passwd|passphrase|token|secret|apikey|api-key|access-key|secret-key))"
        rf"(?:=|[ \t]{{1,4}}){_QUOTE}{_TO_QUOTE}",
        ("--",),
        _is_option,
    ),
    *(_telling(rf"{command}{_QUOTE}{_TO_QUOTE}", (command_anchor,)) for command_anchor, command in _COMMANDS.items()),
    _telling(
        rf"(?i:{_EDGE}(?:machine{_BLANK}{{1,8}}[^\s\"'\\]+|default){_BLANK}{{1,32}}"
        rf"login{_BLANK}{{1,8}}[^\s\"'\\]+{_BLANK}{{1,32}}password{_BLANK}{{1,8}}){_TO_QUOTE}",
        ("login",),
    ),
    _telling(
        r"(?m:^|[\"'\s]|\\n)[A-Za-z0-9.*_-]+:(?:54[0-9]{2}|6432|\*):[^\s:\"']{1,64}:[^\s:\"']{1,64}:"
        r"(?P<secret>[^\s:\"'\\]{3,})(?m:$|[\s\"'\\])",
        # No time of day has one of these, so that events with their times concern no detector.
        (*(f":54{number:02}:" for number in range(100)), ":6432:", ":*:"),
        in_json=r":(?:54[0-9]{2}|6432|\*):",
    ),
    _telling(
        rf"(?i:{_EDGE}_?auth){_SETS}(?P<secret>[A-Za-z0-9+/]{{6,}}={{0,2}})",
        _setting("auth"),
        _if(holds_credentials),
    ),
    _telling(
        rf"(?i:{_EDGE}set-cookie){_ASSIGNS}[^=;\s\"'\\]+=(?P<secret>[^;\s\"'\\]{{8,}})",
        ("set-cookie",),
        _if(lambda secret: _is_mixed(secret) and not _is_stand_in(secret)),
    ),
    _telling(
        rf"(?:(?i:[^-]{_EDGE}cookie|^cookie){_ASSIGNS}|--cookie[ =]{_QUOTE})(?P<secret>[^\r\n\"'\\]{{8,}})",
        ("cookie",),
        _if(_holds_cookie),
    ),
    _telling(
        rf"(?i:{_EDGE}(?:(?:phpsessid|jsessionid|connect\.sid|asp\.net_sessionid|laravel_session){_SETS}|(?:sessionid|sid)=))"
        r"(?P<secret>[A-Za-z0-9%._+/~-]{16,})",
        (
            *_setting("phpsessid", "jsessionid", "connect.sid", "asp.net_sessionid", "laravel_session"),
            "sessionid=",
            "sid=",
        ),
        _if(is_random),
    ),
    _telling(
        r"(?i:<(?:[a-z]{1,20}:)?(?:password|passphrase|secret|token|api-?key|secret-?key)>)(?P<secret>[^<\s]{3,})</",
        ("password>", "passphrase>", "secret>", "token>", "key>"),
    ),
    _telling(
        rf"(?i:{_EDGE}(?:name|key){_ASSIGNS}[a-z0-9_.:-]{{0,48}}(?:passw(?:or)?d|secret|token|{_KEY})[\"'\\]{{0,8}},?"
        rf"{_BLANK}{{1,32}}{_QUOTE}value{_SETS}){_value(_MIN_PASSWORD)}",
        _setting("value"),
        lambda match, secret, after: not _is_computed(match, secret, after) and is_password(secret),
    ),
    _telling(
        rf"(?i:{_EDGE}(?:user|role|grant)\s[^;\n]+?\s(?:identified\s{{1,4}}(?:with\s{{1,4}}\S+\s{{1,4}})?by|password)\s{{1,4}})"
        r"[\"'](?P<secret>[^\"'\s]{4,})[\"']",
        ("identified", "password"),
    ),
    *(
        _telling(f"{names}{before}{value(least)}", anchors, _named(judge, is_quoted=value is _quoted_value))
        for before, value in ((_BEFORE_QUOTE, _quoted_value), (_ASSIGNS, _value))
        for names, least, anchors, judge in _NAMES
    ),
)

DETECTORS: tuple[Detector, ...] = (*_KNOWN_TOKENS, *_TELLING_PLACES)
"""In the order in which they are asked; what one takes out, the next does not see."""
