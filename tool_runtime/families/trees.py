"""Operations on trees of files, over `files.listing` and `files.grep`. They block; what is small and near runs at
once."""

from __future__ import annotations

import functools
import os
import stat
from typing import TYPE_CHECKING, Any, Final

from tool_runtime.files.grep import GrepParams, find_ripgrep, grep
from tool_runtime.files.listing import Pager, find_files, hidden_names, list_directory, list_files
from tool_runtime.files.read import is_near
from tool_runtime.tool import NeedsThread, smallest

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent_host.contracts import ToolRequest
    from tool_runtime.files import Scope
    from tool_runtime.files.grep import GrepOutcome, Ripgrep
    from tool_runtime.files.listing import Listing, Page
    from tool_runtime.tool import CallContext, RuntimeSettings

_LISTED_AT_ONCE: Final = 200
_PAGED_AT_ONCE: Final = 500
_MAX_NAMES: Final = 2_000_000  # entries of one directory that pages are made of


class Trees:
    """Each operation takes more fields of its parameters by name, and raises ToolFault and NeedsThread."""

    def __init__(self, settings: RuntimeSettings, scope: Callable[[ToolRequest], Scope]) -> None:
        self._settings = settings
        self._scope = scope
        self._pager = Pager()

    @functools.cached_property
    def hidden(self) -> Callable[[str], bool]:
        """True for a path that the settings hide."""
        return hidden_names(self._settings.hidden_files)

    @functools.cached_property
    def _rg(self) -> Ripgrep | None:
        return find_ripgrep(os.environ.get("PATH", ""), self._settings.writable_places)

    def list_entries(self, call: CallContext, **given: Any) -> Listing:
        """A page of a directory's entries, by default the workspace's."""
        path = self._path(call)
        if call.at_once:
            if given.get("depth", 1) > 1:
                raise NeedsThread
            _refuse_far(path, stat.S_ISDIR)
            given["max_entries"] = _LISTED_AT_ONCE
        listing = list_directory(path, self._scope(call.request), call.abandoned, **given)
        if listing.walk.stopped is not None:
            call.need_thread()
        return listing

    def page(self, call: CallContext, *, size: int, **given: Any) -> Page:
        """Entries behind the page before."""
        path, is_recursive = self._path(call), given.get("recursive", False)
        if not is_recursive:
            given["max_entries"] = _MAX_NAMES
        if call.at_once:
            if is_recursive or size > _PAGED_AT_ONCE:
                raise NeedsThread
            if not self._pager.knows(path):
                _refuse_far(path, stat.S_ISDIR)
                given["max_entries"] = _PAGED_AT_ONCE
        page = self._pager.page(path, self._scope(call.request), call.abandoned, size=size, **given)
        if page.stopped is not None:
            call.need_thread()
        return page

    def list_files(self, call: CallContext, path: str, **given: Any) -> tuple[list[str], str | None]:
        """The files of a directory or tree, but for those that globs leave out; and why not all were found."""
        return list_files(path, self._scope(call.request), call.abandoned, **given)

    def find(self, call: CallContext, **given: Any) -> Listing:
        """Files by a glob."""
        return find_files(self._path(call), self._scope(call.request), call.abandoned, **given)

    def grep(self, call: CallContext, max_bytes: int | None = None, **given: Any) -> GrepOutcome:
        """Lines that match, in files of `max_bytes` at most."""
        most = smallest(max_bytes, call.max_file_size_bytes)
        params = GrepParams(self._path(call), self._scope(call.request), max_file_size_bytes=most, **given)
        if call.at_once:
            _refuse_far(params.path, stat.S_ISREG)
            return grep(params, call.abandoned)
        return grep(params._replace(rg=self._rg), call.abandoned)

    def _path(self, call: CallContext) -> str:
        return str(call.arguments.get("path", self._settings.workspace))


def _refuse_far(path: str, is_kind: Callable[[int], bool]) -> None:
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # the call itself says what is wrong
        raise NeedsThread from None
    if not is_kind(status.st_mode) or not is_near(status):
        raise NeedsThread
