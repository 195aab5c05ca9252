"""Which levels of the sandbox were found to work: kept in the state directory, so that a start need not try them."""

from __future__ import annotations

import hashlib
import os
import sys
from typing import Any

import orjson

from state.boot import boot_id
from state.disk import LOCAL_DISK
from state.errors import as_write_failure
from state.files import make_durable_dir, replace_atomically

FILE = "sandbox-levels.json"
_MAX_BYTES = 1 << 20
_MAX_MACHINES = 16
_TELLING = ("Uid:", "CapEff:", "CapBnd:", "NoNewPrivs:", "Seccomp:", "Seccomp_filters:")


class SandboxLevels:
    """Those of one state directory: {level, works, problem, unheld} of each that was tried, by the boot of the machine,
    this program's version and what this process itself is held to. What cannot be read is not known."""

    def __init__(self, state_dir: str, version: str) -> None:
        self._state_dir = state_dir
        self._path = os.path.join(state_dir, FILE)
        self._key = _key(version)

    def known(self) -> dict[str, dict[str, Any]]:
        """What was found here, by level; empty where nothing was tried under the same circumstances."""
        found = self._machines().get(self._key or "", {})
        return {level: row for level, row in found.items() if _is_row(row)}

    def keep(self, found: dict[str, dict[str, Any]]) -> None:
        """Remember it; durable on return. Nothing is kept where no boot can be told from another. Raises
        WriteFailed."""
        if self._key is None:
            return
        machines = self._machines()
        machines.pop(self._key, None)
        newest = list(machines.items())[-(_MAX_MACHINES - 1) :]
        content = orjson.dumps({"machines": {**dict(newest), self._key: found}})
        with as_write_failure("keeping which levels of the sandbox work"):
            make_durable_dir(LOCAL_DISK, self._state_dir, within=self._state_dir)
            replace_atomically(LOCAL_DISK, self._path, [content])

    def _machines(self) -> dict[str, dict[str, Any]]:
        try:
            with open(self._path, "rb") as file:
                kept: Any = orjson.loads(file.read(_MAX_BYTES))
        except (OSError, orjson.JSONDecodeError):
            return {}
        machines = kept.get("machines") if isinstance(kept, dict) else None
        found = machines.items() if isinstance(machines, dict) else ()
        return {key: one for key, one in found if isinstance(one, dict)}


def _is_row(row: Any) -> bool:
    return (
        isinstance(row, dict)
        and isinstance(row.get("works"), bool)
        and isinstance(row.get("problem"), str)
        and isinstance(row.get("unheld"), list)
        and all(isinstance(one, str) for one in row["unheld"])
    )


def _key(version: str) -> str | None:
    """The circumstances under which a level works or does not; None where they cannot be told."""
    boot = boot_id()
    if boot is None or sys.platform == "win32":
        return None
    parts = [version, boot, os.uname().release, str(os.geteuid()), *_own_restrictions()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _own_restrictions() -> list[str]:
    """What this process is held to itself: a host in a container, or in another sandbox."""
    try:
        with open("/proc/self/status", encoding="utf-8", errors="replace") as status:
            lines = [line.strip() for line in status if line.startswith(_TELLING)]
        return [*lines, os.readlink("/proc/self/ns/user"), os.readlink("/proc/self/ns/mnt")]
    except OSError:
        return []
