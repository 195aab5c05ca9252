"""Which of the sockets that a command was refused it missed, by what it printed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from agent_host.contracts import Denial

if TYPE_CHECKING:
    from collections.abc import Iterable

_NO_SOCKET: Final = re.compile(r"not permitted|permission denied|EACCES|EPERM", re.IGNORECASE)
_NO_NAME: Final = re.compile(
    r"resolv|name resolution|name or service|EAI_AGAIN|ENOTFOUND|unknown host|lookup|getaddrinfo", re.IGNORECASE
)
_HOST: Final = re.compile(
    r"(?:resolve host(?:name)?:? |EAI_AGAIN |ENOTFOUND |lookup |unknown host |resolve )['\"‘“]?((?:[\w-]+\.)+[\w-]+)",
    re.IGNORECASE,
)


def missed(denials: Iterable[Denial], text: str) -> list[Denial]:
    """The refusals that count for a command that failed and printed `text`: of sockets those that it tells of, with the
    host that was looked for; all others."""
    return [_named(denial, text) for denial in denials if denial.kind != "socket" or _shows(denial, text)]


def _shows(denial: Denial, text: str) -> bool:
    """Whether a refused socket was missed: many programs try one and go on without."""
    if denial.action == "look up names by":
        return _NO_NAME.search(text) is not None
    return denial.action != "use" or _NO_SOCKET.search(text) is not None


def _named(denial: Denial, text: str) -> Denial:
    """A refused look-up with the host that was looked for, where the output has it."""
    if denial.action != "look up names by":
        return denial
    host = _HOST.search(text)
    return denial if host is None else Denial("host", host[1], denial.rule, "connect")
