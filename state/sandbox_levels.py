"""Which levels of the sandbox were found to work: kept in the state directory, so that a start need not try them."""

from __future__ import annotations

import hashlib
import os
import sys
from typing import TYPE_CHECKING, Any

from state.boot import boot_id
from state.kept_rows import KeptRows

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE = "sandbox-levels.json"
_MAX_MACHINES = 16
_TELLING = ("Uid:", "CapEff:", "CapBnd:", "NoNewPrivs:", "Seccomp:", "Seccomp_filters:")


class SandboxLevels:
    """Those of one state directory: {level, works, problem, unheld} of each that was tried, by the boot of the machine,
    this program's version and what this process itself is held to. What cannot be read is not known."""

    def __init__(self, state_dir: str, version: str) -> None:
        doing = "keeping which levels of the sandbox work"
        self._kept = KeptRows(state_dir, FILE, "machines", most=_MAX_MACHINES, doing=doing)
        self._key = _key(version)

    def known(self) -> dict[str, dict[str, Any]]:
        """What was found here, by level; empty where nothing was tried under the same circumstances."""
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
