"""The temporary directories of sessions, which lie beside each other: one session's are nothing to the next."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from policy.paths import ancestors, is_absolute, is_under, key, normalize

if TYPE_CHECKING:
    from collections.abc import Iterable

    from policy.facts import OsFamily

_OF_SESSIONS = "agent-host-"
_SESSION_FOLDER = re.compile(_OF_SESSIONS + r"[A-Za-z0-9_-]+-[0-9a-f]{8}")
"""How the temporary directory of a session is named: by its id and the state directory."""
_TEMPORARY_FOLDERS = frozenset({
    "/tmp", "/var/tmp", "/private/tmp", "/private/var/tmp", "c:\\windows\\temp",  # noqa: S108  names to compare with
})  # fmt: skip


def session_place(path: str, allowed: Iterable[str], os: OsFamily) -> str | None:
    """The temporary directory of a session that a normalised absolute path is in, unless an entry of `allowed` that
    covers the path names that directory itself. None for any other path. Such a directory lies directly below a
    directory for temporary files: a usual one, or the one that a session's directory in `allowed` lies in."""
    entries = [normalize(one, os) for one in allowed if is_absolute(one, os)]
    folders = _TEMPORARY_FOLDERS | {key(_above(one, os), os, "wide") for one in entries if _is_of_session(one, os)}
    for at in ancestors(path, os, len(path)):
        if _name(key(at, os, "wide"), os).startswith(_OF_SESSIONS) and key(_above(at, os), os, "wide") in folders:
            named = any(is_under(one, at, os) and is_under(path, one, os) for one in entries)
            return None if named else at
    return None


def own_place(path: str, allowed: Iterable[str], os: OsFamily) -> str | None:
    """The session's own temporary directory in `allowed`, if it is in the directory for temporary files that a
    normalised absolute path is in."""
    own = next((one for one in allowed if _is_of_session(one, os)), None)
    return own if own is not None and is_under(path, _above(own, os), os) else None


def is_shared_temporary(path: str, own: str | None, os: OsFamily) -> bool:
    """True if a normalised absolute path is a directory that sessions have their temporary directories in: a usual one,
    or that of the session's `own`."""
    shared = _TEMPORARY_FOLDERS if own is None else _TEMPORARY_FOLDERS | {key(_above(own, os), os, "wide")}
    return key(path, os, "wide") in shared


def may_be_of_session(path: str, os: OsFamily) -> bool:
    """True if a name on the path is like that of a session's temporary directory."""
    return _OF_SESSIONS in key(path, os, "wide")


def session_samples(allowed: Iterable[str], os: OsFamily) -> list[str]:
    """A directory of a session that nobody has, in each directory where there may be others': what would go with all
    that is there."""
    entries = [normalize(one, os) for one in allowed if is_absolute(one, os)]
    folders = [_above(one, os) for one in entries if _is_of_session(one, os)]
    usual = sorted(one for one in _TEMPORARY_FOLDERS if is_absolute(one, os))
    return [f"{folder}/{_OF_SESSIONS}s-00000000" for folder in dict.fromkeys((*folders, *usual))]


def _above(path: str, os: OsFamily) -> str:
    return normalize(path + "/..", os)


def _is_of_session(path: str, os: OsFamily) -> bool:
    return _SESSION_FOLDER.fullmatch(_name(path, os)) is not None


def _name(path: str, os: OsFamily) -> str:
    return re.split(r"[\\/]" if os == "windows" else "/", path)[-1]
