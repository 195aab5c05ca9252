"""What the process of a command, and all that it starts, may do: a value that a sandbox holds (invariant 11)."""

from __future__ import annotations

from config.lean_typing import NamedTuple


class CommandScope(NamedTuple):
    """Places are absolute real paths, each with all below it; none is a pattern. The operating system holds what a
    level can hold; `unheld` names the rules that no level can, in words for people.

    `reads`: None for every place that is not hidden. `writes` may be read as well. `hidden` may be neither read nor
    written, `guarded` may be read and not written, whatever contains them. `domains`: host names that may be reached,
    as in a bundle's allowedDomains; None for any host, an empty tuple for none. `blocked_domains` always win. `agents`:
    which agents' sockets may be used, `ssh` and `gpg`.
    """

    reads: tuple[str, ...] | None = None
    writes: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    guarded: tuple[str, ...] = ()
    domains: tuple[str, ...] | None = ()
    blocked_domains: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    unheld: tuple[str, ...] = ()
