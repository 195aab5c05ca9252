"""Which boot of the machine this is.

A record that was written but not synced survives the death of the process and not that of the machine. So whether the
absence of a record proves anything after a crash hangs on whether the machine has been up since.
"""

from __future__ import annotations

import subprocess
import sys
from functools import lru_cache

_LINUX_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_MACOS_COMMAND = ("/usr/sbin/sysctl", "-n", "kern.bootsessionuuid")


@lru_cache(maxsize=1)
def boot_id() -> str | None:
    """An id that changes with every boot; None where the system offers none, which must be read as "unknown"."""
    found = ""
    try:
        if sys.platform == "linux":
            with open(_LINUX_BOOT_ID, encoding="ascii") as handle:
                found = handle.read()
        elif sys.platform == "darwin":
            found = subprocess.run(_MACOS_COMMAND, capture_output=True, text=True, check=True, timeout=5).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return found.strip() or None
