"""Made-up secrets that look real. Each is put together here, so that no scanner takes one for a leak."""

from __future__ import annotations

import base64

LETTERS = "Zk3xQ9vLr7TnW2bYc8HfGd5MsPj4KaVe6RtUiSoBwNyXhCqEmFgJzDp1Al0Iu"
HEX = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
PEM_BODY = "\n".join(LETTERS + str(row) for row in range(3))


def pem(kind: str = "RSA ") -> str:
    """A private key."""
    return f"-----BEGIN {kind}PRIVATE KEY-----\n{PEM_BODY}\n-----END {kind}PRIVATE KEY-----"


def b64(text: str) -> str:
    """In base64."""
    return base64.b64encode(text.encode()).decode()


TOKENS: dict[str, list[str]] = {
    "github-token": [*(f"gh{kind}_{LETTERS[:36]}" for kind in "pousr"), f"github_pat_{LETTERS[:22]}_{LETTERS[:59]}"],
    "gitlab-token": [f"glpat-{LETTERS[:20]}", f"gldt-{LETTERS[:20]}", f"GR1348941{LETTERS[:20]}"],
    "aws-access-key": ["AKIA" + "QRSTUVWX23456YZA", "ASIA" + "QRSTUVWX23456YZA"],
    "slack-token": [
        "xoxb" + f"-123456789012-1234567890123-{LETTERS[:24]}",
        "xoxe" + f".xoxp-1-{LETTERS[:40]}",
        "hooks.slack.com/services" + f"/T0123456/B0123456/{LETTERS[:24]}",
        "xapp" + f"-1-A0123-{LETTERS[:24]}",
    ],
    "stripe-key": [f"sk_{kind}_{LETTERS[:24]}" for kind in ("live", "test")] + [f"whsec_{LETTERS[:32]}"],
    "api-key": [f"sk-{LETTERS[:48]}", f"sk-ant-api03-{LETTERS[:40]}-AA", f"sk-proj-{LETTERS[:40]}"],
    "google-key": [f"AIza{LETTERS[:35]}", f"ya29.{LETTERS[:60]}", f"GOCSPX-{LETTERS[:28]}", f"1//0{LETTERS[:45]}"],
    "azure-secret": [f"{LETTERS[:3]}8Q~{LETTERS[:34]}"],
    "package-token": [f"npm_{LETTERS[:36]}", f"pypi-AgEI{LETTERS}", f"rubygems_{HEX[:48]}", f"dckr_pat_{LETTERS[:27]}"],
    "service-token": [
        f"SG.{LETTERS[:22]}.{LETTERS[:43]}",
        f"hf_{LETTERS[:34]}",
        f"dapi{HEX[:32]}",
        f"dop_v1_{HEX}",
        f"shpat_{HEX[:32]}",
        f"hvs.{LETTERS[:24]}",
        f"glsa_{LETTERS[:32]}_{HEX[:8]}",
        f"lin_api_{LETTERS[:40]}",
        f"123456789:AA{LETTERS[:33]}",
        f"{LETTERS[:14]}.atlasv1.{LETTERS}abcdef",
        f"PMAK-{LETTERS[:24]}-{HEX[:34]}",
        f"key-{HEX[:32]}",
        f"SK{HEX[:32]}",
    ],
    "jwt": [f"eyJ{LETTERS[:20]}.eyJ{LETTERS[:40]}.{LETTERS[:43]}"],
    "private-key": [
        pem(),
        pem(""),
        pem("EC "),
        pem("OPENSSH "),
        pem("ENCRYPTED "),
        pem().replace("\n", "\r\n"),
        pem().replace("\n", "\\n"),
        f"-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: 1\n\n{PEM_BODY}\n=AbC4\n-----END PGP PRIVATE KEY BLOCK-----",
        b64(pem()),
        b64(pem("EC ")),
        b64(pem("")),
        f"Public-Lines: 1\nAAAAC3Nz\nPrivate-Lines: 2\n{LETTERS}\n{LETTERS[:20]}=\nPrivate-MAC: {HEX}",
    ],
}
"""What is known wherever it stands, by kind."""

_SLACK_HOOKS = " ".join(f"hooks.slack.com/{path}/" for path in ("services", "workflows", "triggers"))
_DISCORD_HOOKS = " ".join(f"{host}.com/api/webhooks/123456789012345/" for host in ("discord", "discordapp"))

MARKED: list[tuple[str, str, str]] = [
    # Kind, what a service's tokens begin with, and the shortest that may follow.
    ("aws-access-key", "AKIA ASIA ABIA ACCA", "QRSTUVWX23456YZA"),
    ("github-token", "ghp_ gho_ ghu_ ghs_ ghr_", LETTERS[:30]),
    ("github-token", "github_pat_", LETTERS[:22]),
    ("gitlab-token", "glpat- gldt- glrt- glcbt- glptt- glft- glsoat- glagent- gloas- glimt- GR1348941", LETTERS[:20]),
    ("slack-token", "xoxa- xoxb- xoxe- xoxe. xoxo- xoxp- xoxr- xoxs- xoxc- xoxd- xapp-1-", LETTERS[:10]),
    (
        "slack-token",
        _SLACK_HOOKS,
        LETTERS[:20],
    ),
    ("stripe-key", "sk_live_ sk_test_ rk_live_ rk_test_", LETTERS[:10]),
    ("stripe-key", "whsec_", LETTERS[:20]),
    ("api-key", "sk-", LETTERS[:20]),
    ("google-key", "AIza", LETTERS[:35]),
    ("google-key", "ya29. GOCSPX-", LETTERS[:20]),
    ("google-key", "1//0", LETTERS[:40]),
    ("azure-secret", "a~B7Q~ a.B8Q~", LETTERS[:31]),
    ("package-token", "npm_", LETTERS[:36]),
    ("package-token", "pypi-", LETTERS[:50]),
    ("package-token", "rubygems_", HEX[:48]),
    ("package-token", "dckr_pat_ dckr_oat_", LETTERS[:20]),
    ("service-token", "dop_v1_ doo_v1_ dor_v1_ dot_v1_", HEX),
    ("service-token", "shpat_ shpca_ shppa_ shpss_ dapi key- SK", HEX[:32]),
    ("service-token", "hvs. hvb. hvr. PMAK- NRAK- figd_ sb_secret_ pplx-", LETTERS[:20]),
    ("service-token", "AGE-SECRET-KEY-1", LETTERS[:58].upper()),
    ("service-token", "lin_api_ pscale_tkn_ pscale_pw_ pscale_oauth_", LETTERS[:32]),
    ("service-token", "glsa_", f"{LETTERS[:32]}_{HEX[:8]}"),
    ("service-token", "glc_eyJ sntrys_ sntryu_ ATATT3 ATCTT3 dp.pt. dp.st. dp.ct. dp.sa.", LETTERS[:40]),
    ("service-token", "sq0atp- sq0csp- sq0idp-", LETTERS[:22]),
    ("service-token", "sbp_ pul-", HEX[:40]),
    ("service-token", "SG.", f"{LETTERS[:16]}.{LETTERS[16:32]}"),
    ("service-token", "hf_ gsk_ ntn_", LETTERS[:30]),
    ("service-token", "xai- r8_", LETTERS[:37]),
    ("service-token", "ATBB", LETTERS[:28]),
    ("service-token", "AKCp", f"3{LETTERS[:60]}"),
    ("service-token", f"{LETTERS[:14]}.atlasv1.", LETTERS[:60]),
    ("service-token", "12345678:AA", LETTERS[:33]),
    (
        "service-token",
        _DISCORD_HOOKS,
        LETTERS[:50],
    ),
    ("jwt", "eyJ", f"{LETTERS[:8]}.eyJ{LETTERS[:8]}.{LETTERS[:8]}"),
]
WITHIN_WORDS = (
    "1//0 SG. hf_ gsk_ ntn_ dapi xai- r8_ ATATT3 ATCTT3 ATBB AKCp dp.pt. dp.st. dp.ct. dp.sa. pul- key- SK "
    "12345678:AA sk-"
)
"""Those of `MARKED` that other words hold, too."""
