"""Windows: the same questions as `posix`, answered by pure functions so that they can be tested anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

CRLF: Final = True


def default_shell(environ: Mapping[str, str]) -> str:
    """cmd.exe (TR 6.2)."""
    return environ.get("COMSPEC", "cmd.exe")


def shell_argv(shell: str, command: str) -> str:
    """One command line: cmd.exe reads it raw, so no quoting of ours. /d leaves AutoRun out, /s strips one pair."""
    return f'"{shell}" /d /s /c "{command}"'


def kill_argv(pid: int) -> list[str]:
    """Ends a process and its children (TR 6.2)."""
    return ["taskkill", "/T", "/F", "/PID", str(pid)]


def tree_members(leader: int, mark: str, known: Mapping[int, int]) -> dict[int, int]:  # noqa: ARG001 - as on POSIX
    """Nothing: taskkill finds the tree itself."""
    return {}
