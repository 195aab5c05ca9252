"""Which of the sockets that a command was refused it missed, by what it printed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from agent_host.contracts import Denial

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_NO_SOCKET: Final = re.compile(r"not permitted|permission denied|EACCES|EPERM", re.IGNORECASE)
_NO_NAME: Final = re.compile(
    r"resolv|name resolution|no matching distribution|name or service|EAI_AGAIN|ENOTFOUND|unknown host|lookup"
    r"|getaddrinfo",
    re.IGNORECASE,
)
_HOST: Final = re.compile(
    r"(?:resolve host(?:name)?:? |EAI_AGAIN |ENOTFOUND |lookup |unknown host |resolve )['\"‘“]?((?:[\w-]+\.)+[\w-]+)",
    re.IGNORECASE,
)


LOOK_UP: Final = "look up names by"
"""The action of a refused look-up: of which host is in the output alone."""


def missed(
    denials: Iterable[Denial],
    text: str,
    is_allowed: Callable[[str], bool] = lambda _: False,
    *,
    was_ended: bool = False,
) -> list[Denial]:
    """The refusals that count for a command that failed and printed `text`: of sockets those that it tells of, with the
    host that was looked for; all others. `is_allowed`: whether a host might have been asked for by the proxy. Of a
    command that `was_ended` look-ups count as well: it may still have been retrying, and printed no error yet."""
    counted = (
        denial
        for denial in denials
        if denial.kind != "socket" or _shows(denial, text) or (was_ended and denial.action == LOOK_UP)
    )
    return [_named(denial, text, is_allowed) for denial in counted]


def _shows(denial: Denial, text: str) -> bool:
    """True if a refused socket was missed: many programs try one and go on without."""
    if denial.action == LOOK_UP:
        return _NO_NAME.search(text) is not None
    return denial.action != "use" or _NO_SOCKET.search(text) is not None


def _named(denial: Denial, text: str, is_allowed: Callable[[str], bool]) -> Denial:
    """A refused look-up with the host that was looked for, where the output has it."""
    host = _HOST.search(text) if denial.action == LOOK_UP else None
    if host is None:
        return denial
    rule = "domains" if denial.rule == "proxy" and not is_allowed(host[1]) else denial.rule
    return Denial("host", host[1], rule, "connect")
