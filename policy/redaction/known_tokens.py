"""Secrets that are known by what they look like, wherever they stand: private keys, and tokens that a service marks as
its own."""

from __future__ import annotations

import re

from policy.redaction.secret_values import EDGE, Detector, holds_private_key, is_key


def _is_key(_match: bytes, secret: bytes, _behind: bytes) -> bool:
    return is_key(secret)


def _holds_base64(match: bytes, _secret: bytes, _behind: bytes) -> bool:
    return re.search(rb"[A-Za-z0-9+/=]{24}", match) is not None


def _holds_private_key(_match: bytes, secret: bytes, _behind: bytes) -> bool:
    return holds_private_key(secret)


def _tokens(kind: str, *known: tuple[str, str], word: bool = False) -> Detector:
    """Tokens that a service marks as its own: literals that they begin with, and what follows these. `word`: they would
    be found within other words, too."""
    starts = [("|".join(map(re.escape, start.split())), rest) for start, rest in known]
    pattern = "|".join(f"(?:{start}){rest}" for start, rest in starts)
    if word:
        pattern = f"{EDGE}(?P<secret>{pattern})"
    in_json = "|".join(f"(?:{start}){_same_in_json(rest)}" for start, rest in starts)
    anchors = tuple(start for starts, _ in known for start in starts.split())
    return Detector(kind, pattern, anchors, in_json=in_json)


def _same_in_json(rest: str) -> str:
    """As much of `rest` as JSON does not change: it escapes backslashes, and where a word ends it may put others."""
    rest = rest.removesuffix(r"\b")
    return "" if "\\" in rest else rest


# Also as a text in a program or in JSON, in which ends of lines and quotes are escaped, maybe more than once.
_KEY_BODY = r"[A-Za-z0-9+/=\s,\\\"']"

KNOWN_TOKENS: tuple[Detector, ...] = (
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
    Detector("private-key", r"LS0tLS1CRUdJTi[A-Za-z0-9+/]{40,}={0,2}", ("ls0tls1crudjti",), _holds_private_key),
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
        rf"{EDGE}(?P<secret>sk-[A-Za-z0-9_-]{{20,}})",
        ("sk-",),
        _is_key,
        in_json="sk-[A-Za-z0-9_-]{20,}",
    ),
    _tokens(
        "google-key",
        ("AIza", "[0-9A-Za-z_-]{35}"),
        ("ya29.", "[0-9A-Za-z_-]{20,}"),
        ("GOCSPX-", "[0-9A-Za-z_-]{20,64}"),
    ),
    Detector("azure-secret", r"[A-Za-z0-9_~.-]{3}[78]Q~[A-Za-z0-9_~.-]{31,34}", ("q~",), _is_key),
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
    Detector("service-token", rf"{EDGE}(?P<secret>[0-9]{{8,10}}:AA[A-Za-z0-9_-]{{33}})\b", (":aa",)),
    Detector(
        "service-token",
        r"discord(?:app)?\.com\\{0,7}/api\\{0,7}/webhooks\\{0,7}/[0-9]{15,20}\\{0,7}/(?P<secret>[A-Za-z0-9_-]{50,80})",
        ("discord.com", "discordapp.com"),
    ),
    Detector("jwt", r"eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}", ("eyj",)),
)
"""In the order in which they are asked."""
