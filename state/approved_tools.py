"""Which tools of a project a person has approved, each by what it consisted of then: kept in the state directory, where
no workspace can write (NT)."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import orjson

from state.disk import LOCAL_DISK
from state.errors import as_write_failure
from state.files import make_durable_dir, replace_atomically

FOLDER = "approved-tools"


class ApprovedTools:
    """Those of one workspace, by its real path. What cannot be read is approved for nobody."""

    def __init__(self, state_dir: str, workspace: str) -> None:
        self._state_dir = state_dir
        self._workspace = workspace
        name = hashlib.sha256(os.fsencode(workspace)).hexdigest()[:32]
        self._path = os.path.join(state_dir, FOLDER, f"{name}.json")

    def knows(self, name: str, identity: str) -> bool:
        """True if the tool was approved as it is: `identity` is the SHA-256 of all that it consists of."""
        return self._tools().get(name) == identity

    def approve(self, name: str, identity: str) -> None:
        """Have the tool approved as it is, and no longer as it was; durable on return. Raises WriteFailed."""
        tools = {**self._tools(), name: identity}
        with as_write_failure("keeping the approval of a tool"):
            make_durable_dir(LOCAL_DISK, os.path.dirname(self._path), within=self._state_dir, is_there=True)
            content = orjson.dumps({"workspace": self._workspace, "tools": tools})
            replace_atomically(LOCAL_DISK, self._path, [content])

    def _tools(self) -> dict[str, str]:
        try:
            with open(self._path, "rb") as file:
                kept: Any = orjson.loads(file.read(1 << 20))
        except (OSError, orjson.JSONDecodeError):
            return {}
        tools = kept.get("tools") if isinstance(kept, dict) and kept.get("workspace") == self._workspace else None
        return {name: one for name, one in tools.items() if isinstance(one, str)} if isinstance(tools, dict) else {}
