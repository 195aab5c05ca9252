"""Programs that the host starts for itself: shell, search program, helpers of a check, servers of the user (design,
invariant 12).

A file of the workspace is none of them, and neither is one of a temporary directory, where commands write: what PATH
names there serves the model's commands, which policy judges. Empty and relative entries of PATH stand for the current
directory or lie in it, and count as the workspace's.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    Places = Iterable[str]

_PATHEXT = ".com;.exe;.bat;.cmd"


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
    names = spellings(name, os.environ.get("PATHEXT", _PATHEXT)) if os.name == "nt" else (name,)
    for directory in _absolute(search_path):
        for path in (os.path.join(directory, one) for one in names):
            # The cheap question comes first: nearly every entry has no such file.
            if os.access(path, os.X_OK) and os.path.isfile(path) and not _is_untrusted(directory, path, outside):
                return path
    return None


def spellings(name: str, pathext: str) -> tuple[str, ...]:
    """Return the names that Windows tries for a program: with each ending of PATHEXT, unless it has one of them."""
    endings = [one for one in pathext.lower().split(";") if one]
    return (name,) if name.lower().endswith(tuple(endings)) else tuple(name + one for one in endings)


def _absolute(search_path: str) -> Iterator[str]:
    return (one for one in search_path.split(os.pathsep) if os.path.isabs(one))


def _is_untrusted(directory: str, path: str, outside: Places) -> bool:
    return is_within(directory, outside) or is_within(path, outside)
