"""Variables that a child process may see: all but secrets (interface, "Secrets never reach …") and those by which a
shell would read a line in another way than policy has. Programs that would wait for somebody get to know that nobody is
there.

Programs that the host starts for itself are found here too: shell, search program, helpers of a check, servers of the
user (design, invariant 12). A file of the workspace is none of them, and neither is one of a temporary directory, where
commands write: what PATH names there serves the model's commands, which policy judges. Empty and relative entries of
PATH stand for the current directory or lie in it, and count as the workspace's.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    Places = Iterable[str]

_SECRET_NAME: Final = re.compile(
    r"""
      (^|_)(TOKEN|SECRET|PASSPHRASE|CREDENTIALS?|COOKIE|JWT)S?($|_(KEY|ID|VALUE|BASE|BASE64|B64|JSON)$)
    | PASSWORD | PASSWD | APIKEY | ACCESSKEY
    | (^|_)(API|ACCESS|PRIVATE|SECRET|SIGNING|ENCRYPTION|MASTER|AUTH)_?KEY
    | (^|_)PASS$ | (^|_)PAT$ | (^|_)AUTH$ | (TOKEN|SECRET)$ | (^|_)OTLP_([A-Z]+_)?HEADERS$
    """,
    re.VERBOSE,
)

_STEERS_SHELLS: Final = re.compile(
    r"(BASH_)?ENV|BASHOPTS|SHELLOPTS|BASH_COMPAT|BASH_LOADABLES_PATH|CDPATH|GLOBIGNORE|EXECIGNORE|ZDOTDIR|BASH_FUNC_.*|SSH2?_CLIENT",
    re.DOTALL,
)
"""Files that a shell reads first, functions that it takes over, options, where `cd` and patterns look; and what makes
bash take itself for the child of a remote login, and read ~/.bashrc."""

_NOBODY_THERE: Final = {
    **dict.fromkeys(("GIT_ASKPASS", "SSH_ASKPASS"), ""),
    "SSH_ASKPASS_REQUIRE": "never",
    "GCM_INTERACTIVE": "never",
    **dict.fromkeys(("GIT_EDITOR", "GIT_SEQUENCE_EDITOR", "EDITOR", "VISUAL"), "false"),
    **dict.fromkeys(("GIT_PAGER", "PAGER", "MANPAGER"), "cat"),
    "GIT_TERMINAL_PROMPT": "0",
}
"""An editor would hold its command until the time-out, and a repository's configuration names one: these go before it.
`false` makes the command fail and say so; `true` would take a text that nobody has seen.

Programs that ask for a password open a window, and a repository's `core.askPass` names one. An empty GIT_ASKPASS goes
before both, and git then asks the terminal, which GIT_TERMINAL_PROMPT rules out. ssh asks the terminal as well, and a
command has none. GIT_SSH_COMMAND is left alone: it would go before the user's `core.sshCommand`."""
_UNASKED: Final = {"DEBIAN_FRONTEND": "noninteractive", "APT_LISTCHANGES_FRONTEND": "none", "PIP_NO_INPUT": "1"}
"""Answers to questions of apt and pip, where the user's environment gives none. npm asks only at a terminal."""
_TEMPORARY: Final = ("TMPDIR", "TMP", "TEMP") if os.name == "nt" else ("TMPDIR",)
_BASICS: Final = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TERM", "TZ", "TMPDIR", "TMP", "TEMP", "PWD"),
        *("SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "PATHEXT", "USERPROFILE", "USERNAME", "HOMEDRIVE"),
        *("HOMEPATH", "APPDATA", "LOCALAPPDATA", "PROGRAMDATA", "PROGRAMFILES", "NUMBER_OF_PROCESSORS", "OS"),
    )
)
_CONFIG_COUNT: Final = "GIT_CONFIG_COUNT"
_BARE: Final = "safe.bareRepository"


@lru_cache(maxsize=1024)
def looks_secret(name: str) -> bool:
    """True if a variable of this name is taken for a secret."""
    return _SECRET_NAME.search(name.upper()) is not None


def child_environment(
    environ: Mapping[str, str],
    *,
    secret: frozenset[str],
    passthrough: frozenset[str],
    temporary: str | None = None,
    allowed: frozenset[str] | None = None,
) -> dict[str, str]:
    """`environ` without what is `secret` or looks it, and without what steers a shell; editors, pagers and questions of
    git and ssh are answered, and temporary files go to `temporary`, unless `passthrough` names their variable. Of apt
    and pip what `environ` says holds. `secret` wins over `passthrough`; names compare in upper case.

    `allowed` are the only names that are taken over, besides `passthrough` and what every program needs; None: all are.
    A name that ends in a star stands for all that begin so."""
    secret = frozenset(name.upper() for name in secret)
    passthrough = frozenset(name.upper() for name in passthrough)
    listed = None if allowed is None else passthrough.union(name.upper() for name in allowed)
    fixed = _NOBODY_THERE if temporary is None else {**_NOBODY_THERE, **dict.fromkeys(_TEMPORARY, temporary)}
    answers = {name: value for name, value in fixed.items() if name not in passthrough}
    shown = {
        name: value
        for name, value in environ.items()
        if name.upper() not in secret
        and name.upper() not in answers
        and (name.upper() in passthrough or not looks_secret(name))
        and _STEERS_SHELLS.fullmatch(name) is None
        and (listed is None or _is_listed(name.upper(), listed))
    }
    unasked = {name: value for name, value in _UNASKED.items() if name not in secret}
    return unasked | shown | answers | ({} if _CONFIG_COUNT in passthrough else _forbid_bare_repositories(shown))


def _is_listed(name: str, listed: frozenset[str]) -> bool:
    """True if a variable is on the list, or one of those without which programs do not start or find their files."""
    if name in _BASICS or name.startswith("LC_") or name in listed:
        return True
    return any(one.endswith("*") and name.startswith(one[:-1]) for one in listed)


def _forbid_bare_repositories(shown: Mapping[str, str]) -> dict[str, str]:
    """One more entry of git's configuration in the environment: a directory that is laid out like a bare repository
    anybody may have written, with a configuration that names programs. Nothing where that is set, or can't be added."""
    count = shown.get(_CONFIG_COUNT, "0")
    if not count.isdecimal() or len(count) > 4:
        return {}
    if any(shown.get(f"GIT_CONFIG_KEY_{place}", "").lower() == _BARE.lower() for place in range(int(count))):
        return {}
    return {
        _CONFIG_COUNT: str(int(count) + 1),
        f"GIT_CONFIG_KEY_{int(count)}": _BARE,
        f"GIT_CONFIG_VALUE_{int(count)}": "explicit",
    }


def is_within(path: str, places: Places) -> bool:
    """True if `path`, followed to where it leads, is one of the `places` or lies in one. Blocking."""
    real = os.path.normcase(os.path.realpath(path))
    roots = (os.path.normcase(os.path.realpath(one)) for one in places)
    return any(real == root or real.startswith(root.rstrip(os.sep) + os.sep) for root in roots)


def path_to_trust(search_path: str, outside: Places) -> str:
    """Return PATH `search_path` without its entries that are relative or lie in one of the places `outside`."""
    return os.pathsep.join(one for one in _absolute(search_path) if not is_within(one, outside))


def find_program(name: str, search_path: str, outside: Places) -> str | None:
    """Return the absolute path of the program `name` in PATH `search_path`, None if no entry has it. Neither the entry
    nor the file that it leads to lies in one of the places `outside`."""
    names = spellings(name, os.environ.get("PATHEXT", ".com;.exe;.bat;.cmd")) if os.name == "nt" else (name,)
    for directory in _absolute(search_path):
        for path in (os.path.join(directory, one) for one in names):
            # The cheap question comes first: nearly every entry has no such file.
            if not (os.access(path, os.X_OK) and os.path.isfile(path)):
                continue
            if not (is_within(directory, outside) or is_within(path, outside)):
                return path
    return None


def spellings(name: str, pathext: str) -> tuple[str, ...]:
    """Return the names that Windows tries for a program: with each ending of PATHEXT, unless it has one of them."""
    endings = [one for one in pathext.lower().split(";") if one]
    return (name,) if name.lower().endswith(tuple(endings)) else tuple(name + one for one in endings)


def _absolute(search_path: str) -> Iterator[str]:
    return (one for one in search_path.split(os.pathsep) if os.path.isabs(one))
