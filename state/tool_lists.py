"""Lists that sources of remote tools have given, kept in the state directory: the next session begins with them, and
recognises a tool that has changed (TR 9).

A list is a file named by its SHA-256; what is said of a source stands beside its lists: which list it gave last, which
one a task had last, and as what each of its tools was approved. Another process may write at the same time: the last
one counts, and each file is replaced whole.
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
"""The folder, beside that of the lists, of OAuth's tokens for MCP servers (`tool_runtime/remote/mcp/oauth.py`)."""
_MAX_BYTES: Final = 64 * 1024 * 1024
_MAX_KEPT: Final = 8
_ABOUT: Final = "source.json"
_SHAPE: Final = Record({"source": TEXT}, {"newest": Nullable(TEXT), "inUse": Nullable(TEXT), "approved": MapOf(TEXT)})
_LIST: Final = ListOf(
    Record({"name": TEXT, "description": TEXT, "inputSchema": MapOf(ANYTHING)}, {"outputSchema": MapOf(ANYTHING)})
)


class ToolLists:
    """Those of one source. `source` says what it is, with all that makes it another one: its name, its URL."""

    def __init__(self, state_dir: str, source: str) -> None:
        self._state_dir = state_dir
        self._source = source
        self._folder = os.path.join(state_dir, FOLDER, hashlib.sha256(source.encode()).hexdigest()[:32])

    def newest(self) -> str | None:
        """The SHA-256 of the list that the source gave last, None where it never did."""
        return self._about().get("newest")

    def list_in_use(self) -> str | None:
        """The SHA-256 of the list that a task had last."""
        return self._about().get("inUse")

    def read(self, sha256: str) -> Sequence[Mapping[str, Any]] | None:
        """The list of this SHA-256; None where it is not kept, or is not what its name says."""
        raw = read_bytes(self._list(sha256), _MAX_BYTES + 1)
        if raw is None or hashlib.sha256(raw).hexdigest() != sha256:
            return None
        kept = orjson.loads(raw)
        return kept if _LIST.fits(kept) else None

    def keep(self, sha256: str, definitions: Sequence[Mapping[str, Any]]) -> None:
        """Keep a list, as the newest. A disk that does not take it has the next session ask anew."""
        raw = orjson.dumps(definitions, option=orjson.OPT_SORT_KEYS)
        if len(raw) > _MAX_BYTES:
            return
        with contextlib.suppress(WriteFailed):
            if self.read(sha256) is None:
                self._write(self._list(sha256), orjson.Fragment(raw))
            about = self._about()
            if about.get("newest") != sha256:
                self._say({**about, "newest": sha256})
            self._prune()

    def use(self, sha256: str, identities: Mapping[str, str]) -> None:
        """Say that a task has this list. The tools in it that are new, by name, are approved as they are."""
        about = self._about()
        approved = about.get("approved", {})
        new = {name: one for name, one in identities.items() if name not in approved}
        if about.get("inUse") == sha256 and not new:
            return
        with contextlib.suppress(WriteFailed):
            self._say({**about, "inUse": sha256, "approved": {**approved, **new}})

    def lists(self, name: str) -> bool:
        """True if the source has, or had, a tool of this name."""
        return name in self._about().get("approved", {})

    def knows(self, name: str, identity: str) -> bool:
        """True if the tool is approved as it is."""
        approved: dict[str, str] = self._about().get("approved", {})
        return approved.get(name) == identity

    def approve(self, name: str, identity: str) -> None:
        """Have the tool approved as it is, and no longer as it was; durable on return. Raises WriteFailed."""
        about = self._about()
        self._say({**about, "approved": {**about.get("approved", {}), name: identity}})

    def _list(self, sha256: str) -> str:
        return os.path.join(self._folder, f"{sha256}.json")

    def _about(self) -> dict[str, Any]:
        about = _about_in(os.path.join(self._folder, _ABOUT))
        return about if about.get("source") == self._source else {}

    def _say(self, about: Mapping[str, Any]) -> None:
        self._write(os.path.join(self._folder, _ABOUT), {**about, "source": self._source})

    def _write(self, path: str, value: Any) -> None:
        keep_json(self._state_dir, path, value, doing="keeping a list of tools", is_there=True)

    def _prune(self) -> None:
        """Let go of the oldest lists, but for those that are named."""
        about = self._about()
        named = {f"{about.get(which)}.json" for which in ("newest", "inUse")} | {_ABOUT}
        with contextlib.suppress(OSError):
            paths = [entry.path for entry in os.scandir(self._folder) if entry.name not in named]
            for path in sorted(paths, key=os.path.getmtime)[:-_MAX_KEPT]:
                os.unlink(path)


def read_definitions(state_dir: str, source_name: str) -> dict[str, Mapping[str, Any]]:
    """The tools of every source of this name, wherever it was, by their names: as a task had them last, else as they
    were listed last. Of several sources with one tool the one that was used last counts."""
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
    """Have the state directory `to` know what `state_dir` knows of the sources whose names begin with `kind`. What
    cannot be read is not copied. Raises OSError where nothing can be written."""
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(os.path.join(state_dir, FOLDER)):
            if str(_about_in(os.path.join(entry.path, _ABOUT)).get("source")).startswith(kind):
                shutil.copytree(entry.path, os.path.join(to, FOLDER, entry.name))


def _about_in(path: str) -> dict[str, Any]:
    """The record of a source, empty if it cannot be read."""
    about = read_json(path, _MAX_BYTES + 1)
    return about if _SHAPE.fits(about) else {}


# Which tools of a project a person has approved, each by what it consisted of then: kept in the state directory,
# where no workspace can write (NT).

APPROVED_FOLDER = "approved-tools"


class ApprovedTools:
    """Those of one workspace, by its real path. What cannot be read is approved for nobody."""

    def __init__(self, state_dir: str, workspace: str) -> None:
        self._state_dir = state_dir
        self._workspace = workspace
        name = hashlib.sha256(os.fsencode(workspace)).hexdigest()[:32]
        self._path = os.path.join(state_dir, APPROVED_FOLDER, f"{name}.json")

    def knows(self, name: str, identity: str) -> bool:
        """True if the tool was approved as it is: `identity` is the SHA-256 of all that it consists of."""
        return self._tools().get(name) == identity

    def approve(self, name: str, identity: str) -> None:
        """Have the tool approved as it is, and no longer as it was; durable on return. Raises WriteFailed."""
        tools = {**self._tools(), name: identity}
        kept = {"workspace": self._workspace, "tools": tools}
        keep_json(self._state_dir, self._path, kept, doing="keeping the approval of a tool", is_there=True)

    def _tools(self) -> dict[str, str]:
        kept = read_json(self._path, 1 << 20)
        tools = kept.get("tools") if isinstance(kept, dict) and kept.get("workspace") == self._workspace else None
        return {name: one for name, one in tools.items() if isinstance(one, str)} if isinstance(tools, dict) else {}
