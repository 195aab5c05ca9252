"""Where agents of the user listen, which keep keys: a command may use them where that is granted by name."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_OF_GPG = ("S.gpg-agent", "S.gpg-agent.extra", "S.gpg-agent.browser", "S.keyboxd")


def agent_sockets(environ: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """The real paths of the sockets of each agent, `ssh` and `gpg`, as far as they are there."""
    home = environ.get("GNUPGHOME") or os.path.join(environ.get("HOME", "/"), ".gnupg")
    folders = [home]
    if hasattr(os, "getuid"):
        folders.append(f"/run/user/{os.getuid()}/gnupg")
    gpg = [os.path.join(folder, name) for folder in folders for name in _OF_GPG]
    ssh = [environ.get("SSH_AUTH_SOCK", ""), *(os.path.join(folder, "S.gpg-agent.ssh") for folder in folders)]
    return {
        name: frozenset(map(os.path.realpath, filter(os.path.exists, all_)))
        for name, all_ in (("ssh", ssh), ("gpg", gpg))
    }
