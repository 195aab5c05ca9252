"""Which dialect each gateway was found to speak: kept in the state directory, so that it is asked once."""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING

from state.kept_rows import KeptRows

if TYPE_CHECKING:
    from collections.abc import Callable

FILE = "gateway-dialects.json"
# A gateway may be replaced by another one behind its URL.
_GOOD_FOR_S = 7 * 86_400
_MAX_GATEWAYS = 256


class GatewayDialects:
    """Those of one state directory, by URL. A URL may hold what is secret, so its hash stands for it. What cannot be
    read is not known."""

    def __init__(self, state_dir: str, now: Callable[[], float] = time.time) -> None:
        self._kept = KeptRows(state_dir, FILE, "gateways", most=_MAX_GATEWAYS, doing="keeping the dialect of a gateway")
        self._now = now

    def of(self, url: str) -> str | None:
        """The name of the dialect that the gateway at `url` spoke within the last seven days."""
        found = self._kept.rows().get(_key(url), {})
        name, at = found.get("dialect"), found.get("at")
        is_fresh = isinstance(at, (int, float)) and 0 <= self._now() - at < _GOOD_FOR_S
        return name if isinstance(name, str) and is_fresh else None

    def keep(self, url: str, name: str) -> None:
        """Remember it; durable on return. The gateways found longest ago are forgotten beyond 256. Raises
        WriteFailed."""
        self._kept.keep(_key(url), {"dialect": name, "at": self._now()})


def _key(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()
