"""The capability grant that the host sends to the Backend Tool Service with each call (BT, "Implementation Notes").

One line of text: `v1.PAYLOAD.MAC`, both parts base64url without padding. PAYLOAD is the JSON of a `CapabilityGrant`,
MAC its HMAC-SHA256 under the key that both sides have in `AGENT_HOST_GRANT_KEY`. The service trusts nothing about a
session except its grant.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import TYPE_CHECKING, Final

import orjson

from agent_host.errors import UsageError
from config import json_text
from config.lean_typing import NamedTuple
from config.shapes import TEXT, ListOf, Record, Text, number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from config.shapes import Shape

KEY_VARIABLE: Final = "AGENT_HOST_GRANT_KEY"
GRANT_HEADER: Final = "x-capability-grant"
_VERSION: Final = "v1"
_LEAST_KEY_BYTES: Final = 16
_MAX_GRANT_CHARS: Final = 64 * 1024
_REQUIRED: Final[Mapping[str, Shape]] = {
    "tenantId": Text(1, 128), "sessionId": Text(1, 128), "toolNames": ListOf(TEXT), "expiresAt": number(0),
}  # fmt: skip
_OPTIONAL: Final = {"userId": TEXT, "workspaceId": TEXT}
_FIELDS: Final = (*_REQUIRED, *_OPTIONAL)
"""Wire names of a grant's fields, in its order."""


class CapabilityGrant(NamedTuple):
    """The tools that a session of a tenant may call: `tool_names`, until `expires_at` (seconds since the epoch)."""

    tenant_id: str
    session_id: str
    tool_names: tuple[str, ...]
    expires_at: float
    user_id: str = ""
    workspace_id: str = ""


class GrantRefused(Exception):
    """The grant is malformed or signed with another key; `str()` names the reason and quotes nothing of the grant."""


def grant_key(environ: Mapping[str, str]) -> bytes | None:
    """The key of grants, from its hexadecimal form in the environment; None if it is not set. Raises UsageError if it
    is not hexadecimal or has fewer than 16 bytes."""
    written = environ.get(KEY_VARIABLE, "").strip()
    if not written:
        return None
    try:
        key = bytes.fromhex(written)
    except ValueError:
        raise UsageError(f"{KEY_VARIABLE} must be hexadecimal, such as `openssl rand -hex 32` gives") from None
    if len(key) < _LEAST_KEY_BYTES:
        raise UsageError(f"{KEY_VARIABLE} has {len(key)} bytes; it needs {_LEAST_KEY_BYTES} or more")
    return key


def sign(grant: CapabilityGrant, key: bytes) -> str:
    """Return the grant as one line of text, for the header `X-Capability-Grant`."""
    payload = dict(zip(_FIELDS, grant, strict=True))
    encoded = _base64(orjson.dumps({name: value for name, value in payload.items() if value or name in _REQUIRED}))
    return f"{_VERSION}.{encoded}.{_base64(_mac(encoded, key))}"


def verify(text: str, key: bytes) -> CapabilityGrant:
    """Verify that a grant was signed with `key`; the caller checks its expiry. Raises GrantRefused."""
    parts = text.split(".")
    if len(text) > _MAX_GRANT_CHARS or len(parts) != 3 or parts[0] != _VERSION or not text.isascii():
        raise GrantRefused("the capability grant is not in the form of version 1")
    if not hmac.compare_digest(_base64(_mac(parts[1], key)), parts[2]):
        raise GrantRefused(
            f"the capability grant was not signed with this service's key: {KEY_VARIABLE} must be the same here and "
            "where grants are signed"
        )
    try:
        payload = json_text.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except ValueError:
        raise GrantRefused("the capability grant is not JSON") from None
    if not Record(_REQUIRED, _OPTIONAL).fits(payload):
        raise GrantRefused("the capability grant lacks tenant, session, tool names or expiry")
    grant = CapabilityGrant(*(payload.get(name, "") for name in _FIELDS))
    return grant._replace(tool_names=tuple(grant.tool_names))


def _mac(encoded: str, key: bytes) -> bytes:
    return hmac.new(key, encoded.encode(), hashlib.sha256).digest()


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
