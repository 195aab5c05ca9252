"""Environment variables for child processes: all but secrets (interface, "Secrets never reach …") and those that would
make a shell interpret a line differently than policy did. Programs that would prompt are told not to.

This module also finds the programs that the host starts for itself: shell, search program, helpers of a check, servers
of the user (design, invariant 12). They are never in the workspace or a temporary directory, where commands write; such
entries of PATH only serve the model's commands, which policy judges. Empty and relative entries of PATH refer to the
current directory, and count as part of the workspace.
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
"""Variables that set startup files, imported functions, options, and the search of `cd` and patterns; and those that
make bash treat itself as the child of a remote login and read ~/.bashrc."""

_UNATTENDED: Final = {
    **dict.fromkeys(("GIT_ASKPASS", "SSH_ASKPASS"), ""),
    "SSH_ASKPASS_REQUIRE": "never",
    "GCM_INTERACTIVE": "never",
    **dict.fromkeys(("GIT_EDITOR", "GIT_SEQUENCE_EDITOR", "EDITOR", "VISUAL"), "false"),
    **dict.fromkeys(("GIT_PAGER", "PAGER", "MANPAGER"), "cat"),
    "GIT_TERMINAL_PROMPT": "0",
}
"""An editor would block its command until the timeout. These variables override an editor in a repository's
configuration. `false` makes the command fail visibly; `true` would accept a text that nobody has seen.

Programs that ask for a password open a window, and a repository's `core.askPass` may name one. An empty GIT_ASKPASS
overrides both; git then asks the terminal, which GIT_TERMINAL_PROMPT forbids. ssh also asks the terminal, and a command
has none. GIT_SSH_COMMAND is not set, because it would override the user's `core.sshCommand`."""
_UNASKED: Final = {"DEBIAN_FRONTEND": "noninteractive", "APT_LISTCHANGES_FRONTEND": "none", "PIP_NO_INPUT": "1"}
"""Answers to questions of apt and pip, unless the user's environment has them. npm asks only at a terminal."""
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
    """True if a variable of this name is treated as a secret."""
    return _SECRET_NAME.search(name.upper()) is not None


def child_environment(
    environ: Mapping[str, str],
    *,
    secret: frozenset[str],
    passthrough: frozenset[str],
    temporary: str | None = None,
    allowed: frozenset[str] | None = None,
) -> dict[str, str]:
    """Return `environ` without variables that are `secret` or look secret, and without those that steer a shell.
    Variables that disable editors, pagers and prompts of git and ssh, and the directory for temporary files
    (`temporary`), are set unless `passthrough` names them. Those of apt and pip are only set if `environ` has no value.
    `secret` wins over `passthrough`; names compare in upper case.

    Only the names in `allowed`, `passthrough` and those that every program needs are copied; all are if `allowed` is
    None. A name that ends in a star is a prefix."""
    secret = frozenset(name.upper() for name in secret)
    passthrough = frozenset(name.upper() for name in passthrough)
    listed = None if allowed is None else passthrough.union(name.upper() for name in allowed)
    fixed = _UNATTENDED if temporary is None else {**_UNATTENDED, **dict.fromkeys(_TEMPORARY, temporary)}
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
    """True if a variable is listed, or is one that programs need to start or to find their files."""
    if name in _BASICS or name.startswith("LC_") or name in listed:
        return True
    return any(one.endswith("*") and name.startswith(one[:-1]) for one in listed)


def _forbid_bare_repositories(shown: Mapping[str, str]) -> dict[str, str]:
    """Return variables with one more git configuration entry, which forbids implicit bare repositories: anyone may have
    written a directory that looks like one, with a configuration that names programs. Empty if that is already set or
    cannot be added."""
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
    """True if `path`, with links resolved, is one of the `places` or inside one. Blocking."""
    real = os.path.normcase(os.path.realpath(path))
    roots = (os.path.normcase(os.path.realpath(one)) for one in places)
    return any(real == root or real.startswith(root.rstrip(os.sep) + os.sep) for root in roots)


def path_to_trust(search_path: str, outside: Places) -> str:
    """Return PATH `search_path` without entries that are relative or inside one of the places `outside`."""
    return os.pathsep.join(one for one in _absolute(search_path) if not is_within(one, outside))


def find_program(name: str, search_path: str, outside: Places) -> str | None:
    """Return the absolute path of the program `name` in PATH `search_path`, None if no entry has it. Neither the entry
    nor the resolved file is inside one of the places `outside`."""
    names = spellings(name, os.environ.get("PATHEXT", ".com;.exe;.bat;.cmd")) if os.name == "nt" else (name,)
    for directory in _absolute(search_path):
        for path in (os.path.join(directory, one) for one in names):
            # The cheap check comes first, because most entries have no such file.
            if not (os.access(path, os.X_OK) and os.path.isfile(path)):
                continue
            if not (is_within(directory, outside) or is_within(path, outside)):
                return path
    return None


def spellings(name: str, pathext: str) -> tuple[str, ...]:
    """Return the names that Windows tries for a program: with each ending of PATHEXT, unless the name has one."""
    endings = [one for one in pathext.lower().split(";") if one]
    return (name,) if name.lower().endswith(tuple(endings)) else tuple(name + one for one in endings)


def _absolute(search_path: str) -> Iterator[str]:
    return (one for one in search_path.split(os.pathsep) if os.path.isabs(one))
