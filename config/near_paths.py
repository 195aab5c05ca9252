"""Paths that are not there: what is wrong with one, and which one may have been meant."""

from __future__ import annotations

import os

from config.shapes import meant_name

_MOST = 1000


def why_no_directory(path: str) -> str:
    """Why the absolute `path` is no directory, as the end of a sentence that begins with it."""
    file = file_in(path)
    if file is not None:
        return "it is a file; give a directory" if file == path else f"{file} is a file, and no directory"
    return f"there is no such directory{hint_at_path(path)}"


def file_in(path: str) -> str | None:
    """The part of an absolute `path` that is there and no directory; None if only directories of it are there."""
    while not os.path.lexists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path if os.path.lexists(path) and not os.path.isdir(path) else None


def hint_at_path(path: str) -> str:
    """The end of a sentence about a path that is not there: the nearest name beside it, if one is near."""
    folder, name = os.path.split(path.rstrip(os.sep))
    try:
        with os.scandir(folder or os.curdir) as entries:
            names = [entry.name for _, entry in zip(range(_MOST), entries, strict=False)]
    except OSError:
        return ""
    meant = None if name in names else meant_name(name, names, likeness=0.6)
    return "" if meant is None else f"; did you mean {os.path.join(folder, meant)}?"
