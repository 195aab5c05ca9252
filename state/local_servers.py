"""What local servers said of their models: kept in the state directory for an hour, so that not every start asks."""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING, Any

from state.kept_rows import KeptRows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FILE = "local-servers.json"
# A server may be started anew with another model or another window.
_GOOD_FOR_S = 3600
_MAX_SERVERS = 256


class LocalServers:
    """Those of one state directory, by URL and model. A URL may hold what is secret, so its hash stands for it. What
    cannot be read is not known."""

    def __init__(self, state_dir: str, now: Callable[[], float] = time.time) -> None:
        self._kept = KeptRows(state_dir, FILE, "servers", most=_MAX_SERVERS, doing="keeping what a server said")
        self._now = now

    def of(self, url: str, model: str, *, stale: bool = False) -> dict[str, Any] | None:
        """What the server at `url` said of `model` within the last hour, or ever if `stale`, by the names of its
        facts."""
        row = self._kept.rows().get(server_key(url, model), {})
        at, facts = row.get("at"), row.get("facts")
        is_fresh = isinstance(at, (int, float)) and 0 <= self._now() - at < _GOOD_FOR_S
        return facts if isinstance(facts, dict) and (is_fresh or stale) else None

    def keep(self, url: str, model: str, facts: Mapping[str, Any]) -> None:
        """Remember it; durable on return. Raises WriteFailed."""
        self._kept.keep(server_key(url, model), {"facts": dict(facts), "at": self._now()})


def server_key(url: str, model: str) -> str:
    """What stands for a URL and a model on record."""
    return hashlib.sha256(f"{url}\n{model}".encode()).hexdigest()
