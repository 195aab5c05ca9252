"""Findings that are looked up at each start: rows by key, in one small file of the state directory."""

from __future__ import annotations

import hashlib
import os
import sys
from typing import TYPE_CHECKING, Any

import orjson

from state.disk import LOCAL_DISK, boot_id, make_durable_dir, replace_atomically
from state.errors import translate_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_MAX_BYTES = 1 << 20


class KeptRows:
    """The rows of one file, {`section`: {key: row}}, of which the `most` newest are kept. What cannot be read is not
    known. `doing` says in errors what is kept."""

    def __init__(self, state_dir: str, file: str, section: str, *, most: int, doing: str) -> None:
        self._state_dir = state_dir
        self._path = os.path.join(state_dir, file)
        self._section = section
        self._most = most
        self._doing = doing

    def rows(self) -> dict[str, dict[str, Any]]:
        """All rows, the one kept last at the end."""
        try:
            with open(self._path, "rb") as file:
                kept: Any = orjson.loads(file.read(_MAX_BYTES))
        except (OSError, orjson.JSONDecodeError):
            return {}
        section = kept.get(self._section) if isinstance(kept, dict) else None
        found = section.items() if isinstance(section, dict) else ()
        return {key: one for key, one in found if isinstance(one, dict)}

    def keep(self, key: str, row: Mapping[str, Any]) -> None:
        """Have this row under `key`; durable on return. Raises WriteFailed."""
        rows = self.rows()
        rows.pop(key, None)
        newest = list(rows.items())[-(self._most - 1) :]
        content = orjson.dumps({self._section: {**dict(newest), key: row}})
        with translate_errors(self._doing):
            make_durable_dir(LOCAL_DISK, self._state_dir, within=self._state_dir)
            replace_atomically(LOCAL_DISK, self._path, [content])


# Which dialect each gateway was found to speak: kept in the state directory, so that it is asked once.

FILE = "gateway-dialects.json"
# A gateway may be replaced by another one behind its URL.
_GOOD_FOR_S = 7 * 86_400
_MAX_GATEWAYS = 256


class GatewayDialects:
    """Those of one state directory, by URL. A URL may hold what is secret, so its hash stands for it. What cannot be
    read is not known."""

    def __init__(self, state_dir: str, now: Callable[[], float]) -> None:
        self._kept = KeptRows(state_dir, FILE, "gateways", most=_MAX_GATEWAYS, doing="keeping the dialect of a gateway")
        self._now = now

    def find(self, url: str) -> str | None:
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


# What local servers said of their models: kept in the state directory for an hour, so that not every start asks.

LOCAL_SERVERS_FILE = "local-servers.json"
# A server may be started anew with another model or another window.
_SERVERS_GOOD_FOR_S = 3600
_MAX_SERVERS = 256


class LocalServers:
    """Those of one state directory, by URL and model. A URL may hold what is secret, so its hash stands for it. What
    cannot be read is not known."""

    def __init__(self, state_dir: str, now: Callable[[], float]) -> None:
        self._kept = KeptRows(
            state_dir, LOCAL_SERVERS_FILE, "servers", most=_MAX_SERVERS, doing="keeping what a server said"
        )
        self._now = now

    def find(self, url: str, model: str, *, stale: bool = False) -> dict[str, Any] | None:
        """The facts about `model` that the server at `url` gave within the last hour, or ever if `stale`, by name."""
        row = self._kept.rows().get(server_key(url, model), {})
        at, facts = row.get("at"), row.get("facts")
        is_fresh = isinstance(at, (int, float)) and 0 <= self._now() - at < _SERVERS_GOOD_FOR_S
        return facts if isinstance(facts, dict) and (is_fresh or stale) else None

    def keep(self, url: str, model: str, facts: Mapping[str, Any]) -> None:
        """Remember it; durable on return. Raises WriteFailed."""
        self._kept.keep(server_key(url, model), {"facts": dict(facts), "at": self._now()})


def server_key(url: str, model: str) -> str:
    """The key of a URL and a model on record."""
    return hashlib.sha256(f"{url}\n{model}".encode()).hexdigest()


# Which levels of the sandbox were found to work: kept in the state directory, so that a start need not try them.

SANDBOX_LEVELS_FILE = "sandbox-levels.json"
_MAX_MACHINES = 16
_TELLING = ("Uid:", "CapEff:", "CapBnd:", "NoNewPrivs:", "Seccomp:", "Seccomp_filters:")


class SandboxLevels:
    """Those of one state directory: {level, works, problem, unheld} of each that was tried, by the boot of the machine,
    this program's version and what this process itself is held to. What cannot be read is not known."""

    def __init__(self, state_dir: str, version: str) -> None:
        doing = "keeping which levels of the sandbox work"
        self._kept = KeptRows(state_dir, SANDBOX_LEVELS_FILE, "machines", most=_MAX_MACHINES, doing=doing)
        self._key = _machine_key(version)

    def findings(self) -> dict[str, dict[str, Any]]:
        """The findings for this machine, by level; empty if nothing was tried under the same circumstances."""
        found = {} if self._key is None else self._kept.rows().get(self._key, {})
        return {level: row for level, row in found.items() if _is_row(row)}

    def keep(self, found: Mapping[str, Mapping[str, Any]]) -> None:
        """Remember it; durable on return. Nothing is kept where no boot can be told from another. Raises
        WriteFailed."""
        if self._key is not None:
            self._kept.keep(self._key, found)


def _is_row(row: Any) -> bool:
    return (
        isinstance(row, dict)
        and isinstance(row.get("works"), bool)
        and isinstance(row.get("problem"), str)
        and isinstance(row.get("unheld"), list)
        and all(isinstance(one, str) for one in row["unheld"])
    )


def _machine_key(version: str) -> str | None:
    """The circumstances under which a level works or does not; None where they cannot be told."""
    boot = boot_id()
    if boot is None or sys.platform == "win32":
        return None
    parts = [version, boot, os.uname().release, str(os.geteuid()), *_own_restrictions()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _own_restrictions() -> list[str]:
    """The restrictions of this process itself: a host in a container, or in another sandbox."""
    try:
        with open("/proc/self/status", encoding="utf-8", errors="replace") as status:
            lines = [line.strip() for line in status if line.startswith(_TELLING)]
        return [*lines, os.readlink("/proc/self/ns/user"), os.readlink("/proc/self/ns/mnt")]
    except OSError:
        return []
