"""Which dialect each gateway was found to speak: kept in the state directory, so that it is asked once."""

from __future__ import annotations

import hashlib
import os
import time
from typing import TYPE_CHECKING, Any

import orjson

from state.disk import LOCAL_DISK
from state.errors import as_write_failure
from state.files import make_durable_dir, replace_atomically

if TYPE_CHECKING:
    from collections.abc import Callable

FILE = "gateway-dialects.json"
# A gateway may be replaced by another one behind its URL.
_GOOD_FOR_S = 7 * 86_400
_MAX_GATEWAYS = 256
_MAX_BYTES = 1 << 20


class GatewayDialects:
    """Those of one state directory, by URL. A URL may hold what is secret, so its hash stands for it. What cannot be
    read is not known."""

    def __init__(self, state_dir: str, now: Callable[[], float] = time.time) -> None:
        self._state_dir = state_dir
        self._path = os.path.join(state_dir, FILE)
        self._now = now

    def of(self, url: str) -> str | None:
        """The name of the dialect that the gateway at `url` spoke within the last seven days."""
        found = self._gateways().get(_key(url), {})
        name, at = found.get("dialect"), found.get("at")
        is_fresh = isinstance(at, (int, float)) and 0 <= self._now() - at < _GOOD_FOR_S
        return name if isinstance(name, str) and is_fresh else None

    def keep(self, url: str, name: str) -> None:
        """Remember it; durable on return. The gateways found longest ago are forgotten beyond 256. Raises
        WriteFailed."""
        gateways = self._gateways()
        gateways.pop(_key(url), None)
        newest = list(gateways.items())[-(_MAX_GATEWAYS - 1) :]
        content = orjson.dumps({"gateways": {**dict(newest), _key(url): {"dialect": name, "at": self._now()}}})
        with as_write_failure("keeping the dialect of a gateway"):
            make_durable_dir(LOCAL_DISK, self._state_dir, within=self._state_dir)
            replace_atomically(LOCAL_DISK, self._path, [content])

    def _gateways(self) -> dict[str, dict[str, Any]]:
        try:
            with open(self._path, "rb") as file:
                kept: Any = orjson.loads(file.read(_MAX_BYTES))
        except (OSError, orjson.JSONDecodeError):
            return {}
        gateways = kept.get("gateways") if isinstance(kept, dict) else None
        found = gateways.items() if isinstance(gateways, dict) else ()
        return {key: one for key, one in found if isinstance(one, dict)}


def _key(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()
