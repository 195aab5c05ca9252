"""What was found out once and is looked up at each start: rows by key, in one small file of the state directory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import orjson

from state.disk import LOCAL_DISK
from state.errors import as_write_failure
from state.files import make_durable_dir, replace_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_BYTES = 1 << 20


class KeptRows:
    """The rows of one file, {`section`: {key: row}}, of which the `most` newest are kept. What cannot be read is not
    known. `doing` says in errors what is kept."""

    def __init__(self, state_dir: str, file: str, section: str, *, most: int, doing: str) -> None:
        self._state_dir = state_dir
        self._path = os.path.join(state_dir, file)
        self._section = section
        self._most = most
        self._doing = doing

    def rows(self) -> dict[str, dict[str, Any]]:
        """All rows, the one kept last at the end."""
        try:
            with open(self._path, "rb") as file:
                kept: Any = orjson.loads(file.read(_MAX_BYTES))
        except (OSError, orjson.JSONDecodeError):
            return {}
        section = kept.get(self._section) if isinstance(kept, dict) else None
        found = section.items() if isinstance(section, dict) else ()
        return {key: one for key, one in found if isinstance(one, dict)}

    def keep(self, key: str, row: Mapping[str, Any]) -> None:
        """Have this row under `key`; durable on return. Raises WriteFailed."""
        rows = self.rows()
        rows.pop(key, None)
        newest = list(rows.items())[-(self._most - 1) :]
        content = orjson.dumps({self._section: {**dict(newest), key: row}})
        with as_write_failure(self._doing):
            make_durable_dir(LOCAL_DISK, self._state_dir, within=self._state_dir)
            replace_atomically(LOCAL_DISK, self._path, [content])
