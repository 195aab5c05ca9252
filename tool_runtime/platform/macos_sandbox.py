"""The profile by which `sandbox-exec` of macOS holds a program to a scope: text, built purely.

Of its rules the last that fits decides: all is denied first, then the scope's places are allowed, and what is blocked
comes behind them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from policy.scope import CommandScope

PROGRAM: Final = "/usr/bin/sandbox-exec"
_ALWAYS: Final = (
    "(allow process-exec)",
    "(allow process-fork)",
    "(allow process-info* (target same-sandbox))",
    "(allow signal (target same-sandbox))",
    "(allow sysctl-read)",
    "(allow ipc-posix-sem)",
    "(allow pseudo-tty)",
    "(allow file-read-metadata)",
    '(allow file-read* file-write* (literal "/dev/null") (literal "/dev/zero") (literal "/dev/tty"))',
    '(allow file-read* (literal "/dev/random") (literal "/dev/urandom") (literal "/"))',
    '(allow file-ioctl (literal "/dev/tty"))',
    '(allow mach-lookup (global-name "com.apple.system.opendirectoryd.libinfo"))',
)
_OWN_LOOPBACK: Final = (
    '(allow network-bind network-inbound (local ip "localhost:*"))',
    '(allow network-outbound (remote ip "localhost:*"))',
)


def profile(scope: CommandScope, *, proxy_port: int | None = None) -> str:
    """The profile for `scope`. Loopback stays open as a whole: which program listens there this level cannot tell.
    `proxy_port` is that of the host's proxy, which loopback leads to. Raises ValueError for a place that a profile
    cannot hold."""
    lines = ["(version 1)", "(deny default)", *_ALWAYS]
    lines.append("(allow file-read*)" if scope.reads is None else _rule("allow file-read*", scope.reads))
    lines.append(_rule("allow file-read* file-write*", scope.writes))
    if scope.domains is None and not scope.blocked_domains:
        lines += ["(allow network*)", "(allow system-socket)"]
    else:
        lines += _OWN_LOOPBACK
        if proxy_port is not None:
            lines.append(f'(allow network-outbound (remote ip "localhost:{proxy_port}"))')
    lines.append(_rule("deny file-write*", scope.guarded))
    lines += _hidden(scope)
    return "\n".join(filter(None, lines)) + "\n"


def argv(profile_text: str, program: Iterable[str]) -> list[str]:
    """The command line that starts `program` held."""
    return [PROGRAM, "-p", profile_text, *program]


def not_held(scope: CommandScope) -> tuple[str, ...]:
    """What this level does not hold of a scope, in words for people."""
    always = ("servers of others on loopback", "names and sizes of hidden files")
    return (*always, "a guarded place that is renamed with its folder") if scope.guarded else always


def _hidden(scope: CommandScope) -> Iterator[str]:
    """What is hidden, and then what lies inside of it and is granted all the same: the inmost decides."""
    yield _rule("deny file-read* file-write*", scope.hidden)
    inside = [place for place in scope.writes if any(place.startswith(f"{hidden}/") for hidden in scope.hidden)]
    if inside:
        yield _rule("allow file-read* file-write*", inside)
        yield _rule("deny file-read* file-write*", [one for one in scope.hidden if any(_below(one, x) for x in inside)])


def _below(place: str, other: str) -> bool:
    return place.startswith(f"{other}/")


def _rule(action: str, places: Iterable[str]) -> str:
    named = " ".join(f"(subpath {_quoted(place)})" for place in places)
    return f"({action} {named})" if named else ""


def _quoted(place: str) -> str:
    """A string of the profile's language. Raises ValueError for characters that end a line or a string early."""
    if any(ord(character) < 32 for character in place):
        raise ValueError(f"a profile cannot hold this place: {place!r}")
    escaped = place.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
