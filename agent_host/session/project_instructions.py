"""What a project says to agents: AGENTS.md, or CLAUDE.md where it is alone, from the repository's root down to the
workspace.

These files are the project's, and as hostile as any other of its files: a session reads them only where File.Read
covers them, follows no link, and shows them to the model as data.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from agent_host.regular_files import open_regular
from config.lean_typing import NamedTuple
from policy.names import CapabilityName
from policy.paths import covering, normalize, roots

if TYPE_CHECKING:
    from collections.abc import Iterator

    from policy.bundle.model import PolicyBundle
    from policy.facts import OsFamily

NAMES: Final = ("AGENTS.md", "CLAUDE.md")
MAX_BYTES: Final = 32 * 1024
"""Of all files together. What is nearest to the workspace counts most, so the files above it are cut first."""
_MAX_DEPTH: Final = 32
_CONTROLS: Final = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]"


class ProjectFile(NamedTuple):
    """One file: its path, its text, and whether the text was cut."""

    path: str
    text: str
    is_cut: bool = False


def project_instructions(workspace: str, bundle: PolicyBundle, os_family: OsFamily) -> list[ProjectFile]:
    """The files of a session in `workspace` (a real path), outermost first; those that cannot be read are left out."""
    found: list[ProjectFile] = []
    room = MAX_BYTES
    for folder in _folders(workspace):
        path = next((path for path in (os.path.join(folder, name) for name in NAMES) if os.path.lexists(path)), None)
        if path is None or room == 0 or not _may_be_read(path, bundle, os_family):
            continue
        data = _content(path, room)
        if data is not None:
            found.append(ProjectFile(path, _shown(data[:room]), is_cut=len(data) > room))
            room -= min(len(data), room)
    return found[::-1]


def _folders(workspace: str) -> Iterator[str]:
    """The workspace and what is above it, up to the root of its repository; the workspace alone outside of any."""
    above, folder = [workspace], workspace
    while not os.path.lexists(os.path.join(folder, ".git")):
        parent = os.path.dirname(folder)
        if parent == folder or len(above) == _MAX_DEPTH:
            return iter([workspace])
        above.append(parent)
        folder = parent
    return iter(above)


def _may_be_read(path: str, bundle: PolicyBundle, os_family: OsFamily) -> bool:
    entry = bundle.capability(CapabilityName.FILE_READ)
    if entry is None or entry.requires_approval:
        return False
    place = normalize(path, os_family)
    blocked = roots(entry.blocked_paths or (), os_family, "wide")
    if covering(place, blocked, os_family, "wide") is not None:
        return False
    if entry.allowed_paths is None:
        return True
    return covering(place, roots(entry.allowed_paths, os_family, "narrow"), os_family, "narrow") is not None


def _content(path: str, room: int) -> bytes | None:
    try:
        with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
            return file.read(room + 1)
    except OSError:
        return None


def _shown(data: bytes) -> str:
    """The text without what a terminal obeys, or what has text read in another order than it stands."""
    return re.sub(_CONTROLS, "", data.decode("utf-8", "replace").replace("\r\n", "\n")).strip()
