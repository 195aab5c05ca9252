"""Tool lists from sources of remote tools, kept in the state directory: the next session starts with them, and detects
a tool that has changed (TR 9).

A list is a file named by its SHA-256; a file about the source is in the same folder: its newest list, the list that a
task used last, and the approved identity of each tool. If another process writes at the same time, the last write wins;
each file is replaced atomically.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from typing import TYPE_CHECKING, Any, Final

import orjson

from config.shapes import ANYTHING, TEXT, ListOf, MapOf, Nullable, Record
from state import WriteFailed
from state.keys import keep_json, read_bytes, read_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FOLDER: Final = "tool-lists"
TOKENS: Final = "mcp-tokens"
"""The folder, next to that of the lists, for OAuth tokens of MCP servers (`tool_runtime/remote/mcp/oauth.py`)."""
_MAX_BYTES: Final = 64 * 1024 * 1024
_MAX_KEPT: Final = 8
_ABOUT: Final = "source.json"
_SHAPE: Final = Record({"source": TEXT}, {"newest": Nullable(TEXT), "inUse": Nullable(TEXT), "approved": MapOf(TEXT)})
_LIST: Final = ListOf(
    Record({"name": TEXT, "description": TEXT, "inputSchema": MapOf(ANYTHING)}, {"outputSchema": MapOf(ANYTHING)})
)


class ToolLists:
    """The lists of one source. `source` identifies it, by its name and URL."""

    def __init__(self, state_dir: str, source: str) -> None:
        self._state_dir = state_dir
        self._source = source
        self._folder = os.path.join(state_dir, FOLDER, hashlib.sha256(source.encode()).hexdigest()[:32])

    def newest(self) -> str | None:
        """Return the SHA-256 of the source's newest list, None if there is none."""
        return self._about().get("newest")

    def list_in_use(self) -> str | None:
        """Return the SHA-256 of the list that a task used last, None if there is none."""
        return self._about().get("inUse")

    def read(self, sha256: str) -> Sequence[Mapping[str, Any]] | None:
        """Return the list with this SHA-256; None if it is missing or damaged."""
        raw = read_bytes(self._list(sha256), _MAX_BYTES + 1)
        if raw is None or hashlib.sha256(raw).hexdigest() != sha256:
            return None
        kept = orjson.loads(raw)
        return kept if _LIST.fits(kept) else None

    def keep(self, sha256: str, definitions: Sequence[Mapping[str, Any]]) -> None:
        """Store a list as the newest. If the disk fails, the next session requests the list again."""
        raw = orjson.dumps(definitions, option=orjson.OPT_SORT_KEYS)
        if len(raw) > _MAX_BYTES:
            return
        with contextlib.suppress(WriteFailed):
            if self.read(sha256) is None:
                self._write(self._list(sha256), orjson.Fragment(raw))
            about = self._about()
            if about.get("newest") != sha256:
                self._store_about({**about, "newest": sha256})
            self._prune()

    def use(self, sha256: str, identities: Mapping[str, str]) -> None:
        """Record that a task uses this list. Tools in it with new names are approved as they are."""
        about = self._about()
        approved = about.get("approved", {})
        new = {name: one for name, one in identities.items() if name not in approved}
        if about.get("inUse") == sha256 and not new:
            return
        with contextlib.suppress(WriteFailed):
            self._store_about({**about, "inUse": sha256, "approved": {**approved, **new}})

    def lists(self, name: str) -> bool:
        """True if the source has or had a tool with this name."""
        return name in self._about().get("approved", {})

    def is_approved(self, name: str, identity: str) -> bool:
        """True if the tool is approved as it is."""
        approved: dict[str, str] = self._about().get("approved", {})
        return approved.get(name) == identity

    def approve(self, name: str, identity: str) -> None:
        """Approve the tool with this identity instead of its earlier one; durable on return. Raises WriteFailed."""
        about = self._about()
        self._store_about({**about, "approved": {**about.get("approved", {}), name: identity}})

    def _list(self, sha256: str) -> str:
        return os.path.join(self._folder, f"{sha256}.json")

    def _about(self) -> dict[str, Any]:
        about = _about_in(os.path.join(self._folder, _ABOUT))
        return about if about.get("source") == self._source else {}

    def _store_about(self, about: Mapping[str, Any]) -> None:
        self._write(os.path.join(self._folder, _ABOUT), {**about, "source": self._source})

    def _write(self, path: str, value: Any) -> None:
        keep_json(self._state_dir, path, value, doing="keeping a list of tools", must_exist=True)

    def _prune(self) -> None:
        """Remove the oldest lists, except those that are newest or in use."""
        about = self._about()
        named = {f"{about.get(which)}.json" for which in ("newest", "inUse")} | {_ABOUT}
        with contextlib.suppress(OSError):
            paths = [entry.path for entry in os.scandir(self._folder) if entry.name not in named]
            for path in sorted(paths, key=os.path.getmtime)[:-_MAX_KEPT]:
                os.unlink(path)


def read_definitions(state_dir: str, source_name: str) -> dict[str, Mapping[str, Any]]:
    """Return the tools of all sources with this name, regardless of their URL, by tool name: as a task used them last,
    else as listed last. If several sources have the same tool, the most recently used source counts."""
    folder = os.path.join(state_dir, FOLDER)
    found: dict[str, Mapping[str, Any]] = {}
    try:
        abouts = [os.path.join(entry.path, _ABOUT) for entry in os.scandir(folder)]
        abouts = sorted((one for one in abouts if os.path.exists(one)), key=os.path.getmtime)
    except OSError:
        return found
    for path in abouts:
        about = _about_in(path)
        if not str(about.get("source")).startswith(f"{source_name} "):
            continue
        lists = ToolLists(state_dir, about["source"])
        for sha256 in (lists.newest(), lists.list_in_use()):
            for shape in () if sha256 is None else lists.read(sha256) or ():
                found[shape["name"]] = shape
    return found


def copy_lists(state_dir: str, to: str, kind: str) -> None:
    """Copy the lists of the sources that begin with `kind` from `state_dir` to the state directory `to`. Unreadable
    ones are skipped. Raises OSError if writing fails."""
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(os.path.join(state_dir, FOLDER)):
            if str(_about_in(os.path.join(entry.path, _ABOUT)).get("source")).startswith(kind):
                shutil.copytree(entry.path, os.path.join(to, FOLDER, entry.name))


def _about_in(path: str) -> dict[str, Any]:
    """Return the file about a source, empty if it cannot be read."""
    about = read_json(path, _MAX_BYTES + 1)
    return about if _SHAPE.fits(about) else {}


# Project tools that the user has approved, each identified by its contents: kept in the state directory, where no
# workspace can write (NT).

APPROVED_FOLDER = "approved-tools"


class ApprovedTools:
    """The approved tools of one workspace, by its real path. If the file cannot be read, no tool is approved."""

    def __init__(self, state_dir: str, workspace: str) -> None:
        self._state_dir = state_dir
        self._workspace = workspace
        name = hashlib.sha256(os.fsencode(workspace)).hexdigest()[:32]
        self._path = os.path.join(state_dir, APPROVED_FOLDER, f"{name}.json")

    def is_approved(self, name: str, identity: str) -> bool:
        """True if the tool was approved with this identity: the SHA-256 of all its parts."""
        return self._tools().get(name) == identity

    def approve(self, name: str, identity: str) -> None:
        """Approve the tool with this identity instead of its earlier one; durable on return. Raises WriteFailed."""
        tools = {**self._tools(), name: identity}
        kept = {"workspace": self._workspace, "tools": tools}
        keep_json(self._state_dir, self._path, kept, doing="keeping the approval of a tool", must_exist=True)

    def _tools(self) -> dict[str, str]:
        kept = read_json(self._path, 1 << 20)
        tools = kept.get("tools") if isinstance(kept, dict) and kept.get("workspace") == self._workspace else None
        return {name: one for name, one in tools.items() if isinstance(one, str)} if isinstance(tools, dict) else {}
