"""The import of the SDK, which takes most of a second, in a thread; where the process is to end it is cut short.

Python waits for its threads at its exit, and a thread that it does not wait for may crash in the code of an extension.
An import has no way to be stopped but between two modules, the largest of which takes less than a tenth of a second:
there a finder raises what nothing catches.
"""

from __future__ import annotations

import sys
import threading
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, Any

from tool_runtime.faults import FaultKind, ToolFault

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec

_CHANGING = threading.Lock()
"""`sys.meta_path` gets a new list: an import of another thread may be in the middle of the one that there is, and would
pass over a finder where that one moves."""


class Stopped(BaseException):
    """Nobody waits for this import any more. No Exception: modules catch those, and go on without what they miss."""


class SdkImport(MetaPathFinder):
    """One import of it, by `load` in a thread."""

    def __init__(self) -> None:
        self._stopped = False
        self._thread: int | None = None

    def load(self) -> Any:
        """The module that brings the SDK along. Raises ToolFault where it is not there, or after `stop`."""
        self._thread = threading.get_ident()
        with _CHANGING:
            sys.meta_path = [self, *sys.meta_path]
        try:
            from tool_runtime.mcp import connection
        except ImportError as error:
            raise ToolFault(
                FaultKind.SYSTEM, f"MCP servers need the extra mcp, which is not installed ({error.name})"
            ) from error
        except Stopped:
            raise ToolFault(FaultKind.NETWORK, "the session is over") from None
        finally:
            with _CHANGING:
                sys.meta_path = [one for one in sys.meta_path if one is not self]
        return connection

    def stop(self) -> None:
        """Have `load` end at its next module. What it has imported is not to be used from then on: packages may be
        there in part, so this is for a process that ends."""
        self._stopped = True

    def find_spec(
        self,
        fullname: str,  # noqa: ARG002  see MetaPathFinder
        path: Sequence[str] | None,  # noqa: ARG002
        target: Any = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """See MetaPathFinder: it finds nothing, and stops one thread."""
        if self._stopped and threading.get_ident() == self._thread:
            raise Stopped
        return None
