"""Select the module for this operating system, `posix` or `windows`; both have the same functions."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final, Literal

    if sys.platform == "win32":
        from tool_runtime.platform import windows as current
    else:
        from tool_runtime.platform import posix as current

__all__ = ["OS_FAMILY", "WINDOWS", "current"]

WINDOWS: Final = sys.platform == "win32"
OS_FAMILY: Final[Literal["posix", "windows"]] = "windows" if WINDOWS else "posix"


def __getattr__(name: str) -> Any:
    """Import `current` on first use, because code that only calls the kernel does not need it."""
    if name != "current":
        raise AttributeError(name)
    from importlib import import_module

    return import_module(f"{__name__}.{'windows' if WINDOWS else 'posix'}")
