"""Handles of secrets: what a model holds in place of a value. A handle names secret, version and tenant under a MAC, so
that it opens for its tenant alone and nobody can make one up."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Final, NamedTuple

import orjson

from agent_host.errors import ErrorCode
from agent_host.tool_service.tool import ToolFault

PREFIX: Final = "secret:"
_MAX_CHARS: Final = 4096


class SecretName(NamedTuple):
    """A version of a secret."""

    name: str
    version: int


class Handles:
    """Makes and reads the handles of one tenant. `key` is the service's key of grants, from which one for handles is
    derived, so that neither can stand for the other."""

    def __init__(self, key: bytes, tenant: str) -> None:
        self._key = hmac.new(key, b"agent-host secret handles", hashlib.sha256).digest()
        self._tenant = tenant

    def sealed(self, name: str, version: int) -> str:
        """The handle of a version of a secret."""
        payload = base64.urlsafe_b64encode(orjson.dumps([name, version])).rstrip(b"=").decode()
        return f"{PREFIX}{payload}.{self._mac(payload)}"

    def opened(self, handle: str) -> SecretName:
        """What a handle of this tenant stands for. Raises ToolFault for any other text."""
        payload, _, mac = handle.removeprefix(PREFIX).partition(".")
        right = handle.isascii() and handle.startswith(PREFIX) and len(handle) <= _MAX_CHARS
        if not right or not hmac.compare_digest(mac, self._mac(payload)):
            raise ToolFault(ErrorCode.PERMISSION_DENIED, "this is no handle of a secret that you may use")
        name, version = orjson.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return SecretName(name, version)

    def _mac(self, payload: str) -> str:
        # The tenant is of a length of its own before the payload: no two pairs give one text.
        text = b"%d:%s:%s" % (len(self._tenant.encode()), self._tenant.encode(), payload.encode())
        return hmac.new(self._key, text, hashlib.sha256).hexdigest()
