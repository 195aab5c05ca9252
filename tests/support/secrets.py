"""Made-up secrets, one for each way into a session, and the search for them in all that is kept and told."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

from tests.unit.policy.secret_samples import LETTERS, pem

if TYPE_CHECKING:
    from tests.support.process import Gateway, Host


def token(number: int) -> str:
    """One of many."""
    return f"gh{'p_'}{number:02d}{LETTERS[:34]}"


(
    IN_PROMPT,
    IN_FILE,
    IN_OUTPUT,
    IN_ANSWER,
    WRITTEN,
    IN_COMMAND,
    IN_HEADER,
    SAID,
    REPLACED,
    UPLOADED,
    IN_NAME,
    IN_STDERR,
) = (token(number) for number in range(12))
PASSWORD = "correct-horse-9-battery"
KEY = pem()
RULES = [{"approvalRuleId": "shell", "title": "Run", "description": "Runs a command."}]
ASKS = {"Shell.Exec": {"requiresApproval": True, "approvalRuleId": "shell"}}


def spellings(secret: str) -> list[bytes]:
    """As it could stand in a file: as it is, in JSON, in JSON in JSON, in base64 at each place."""
    once = json.dumps(secret)[1:-1]
    forms = [secret, once, json.dumps(once)[1:-1], *secret.splitlines()[1:-1]]
    encoded = [base64.b64encode(b"x" * shift + secret.encode())[shift + 3 : -4].strip(b"=") for shift in range(3)]
    return [form.encode() for form in forms] + encoded


def assert_nowhere(haystack: bytes, what: object, secrets: list[str]) -> None:
    """None of them, however it is spelt; `what` is named where one is."""
    for secret in secrets:
        for form in spellings(secret):
            assert form not in haystack, (what, secret, haystack[max(0, haystack.find(form) - 200) :][:400])


def assert_not_kept(host: Host, secrets: list[str]) -> None:
    """In no file under the state directory, by content or by name."""
    files = [path for path in host.state.rglob("*") if path.is_file()]
    assert files
    for path in files:
        assert_nowhere(path.read_bytes(), path, secrets)
        assert_nowhere(str(path).encode(), path, secrets)


def assert_not_sent(model: Gateway, secrets: list[str]) -> None:
    """In no request to the gateway."""
    for number, record in enumerate(model.mock.requests):
        assert_nowhere(record.body or b"", f"request {number}", secrets)
