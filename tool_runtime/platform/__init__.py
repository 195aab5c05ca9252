"""Picks the module that answers for this operating system; both answer the same questions."""

from __future__ import annotations

import sys
from typing import Final, Literal

if sys.platform == "win32":
    from tool_runtime.platform import windows as current
else:
    from tool_runtime.platform import posix as current

__all__ = ["OS_FAMILY", "WINDOWS", "current"]

WINDOWS: Final = sys.platform == "win32"
OS_FAMILY: Final[Literal["posix", "windows"]] = "windows" if WINDOWS else "posix"
