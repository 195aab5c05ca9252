"""Where agents of the user listen, which keep keys: a command may use them where that is granted by name."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_OF_GPG = ("S.gpg-agent", "S.gpg-agent.extra", "S.gpg-agent.browser", "S.keyboxd")
_DIGITS: Final = "ybndrfg8ejkmcpqxot1uwisza345h769"
_DIGIT_BITS, _NAME_BYTES, _NAME_DIGITS = 5, 15, 24


def agent_sockets(environ: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """The real paths of the sockets of each agent, `ssh` and `gpg`, as far as they are there."""
    usual = os.path.join(environ.get("HOME", "/"), ".gnupg")
    home = environ.get("GNUPGHOME") or usual
    folders = [home]
    if hasattr(os, "getuid"):
        run = f"/run/user/{os.getuid()}/gnupg"
        folders.append(run if home == usual else os.path.join(run, _folder_of(home)))
    gpg = [os.path.join(folder, name) for folder in folders for name in _OF_GPG]
    ssh = [environ.get("SSH_AUTH_SOCK", ""), *(os.path.join(folder, "S.gpg-agent.ssh") for folder in folders)]
    return {
        name: frozenset(map(os.path.realpath, filter(os.path.exists, all_)))
        for name, all_ in (("ssh", ssh), ("gpg", gpg))
    }


def _folder_of(home: str) -> str:
    """The directory in which GnuPG has the sockets of a home that is not the usual one: `d.` and a part of its hash."""
    digest = hashlib.sha1(os.fsencode(home), usedforsecurity=False).digest()[:_NAME_BYTES]
    number = int.from_bytes(digest, "big")
    digits = (number >> _DIGIT_BITS * place & len(_DIGITS) - 1 for place in reversed(range(_NAME_DIGITS)))
    return "d." + "".join(_DIGITS[digit] for digit in digits)
