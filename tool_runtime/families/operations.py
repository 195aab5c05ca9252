"""Operations shared by the tools of all families: on files and requests here, on trees in `files.grep`, on programs in
`commands`. A family gives them names, limits and the form of its answers. Those on files block."""

from __future__ import annotations

import asyncio
import functools
import os
from typing import TYPE_CHECKING, Any, Final, TypeVar

from agent_host.contracts import Image
from agent_host.display_text import count_noun
from agent_host.safe_open import nearest
from policy import CapabilityName
from policy.paths import is_under, normalize
from policy.patterns import compile_pattern, problem_of
from tool_runtime.families import given
from tool_runtime.files import Scope, documents, home_directory, is_in_scope, narrow_scope, resolve
from tool_runtime.files import write as writing
from tool_runtime.files.edits import edits_from
from tool_runtime.files.read import (
    FileStamp,
    LineWindow,
    ReadOutcome,
    ReadParams,
    WholeFile,
    read_file,
    read_stored,
    whole_file,
)
from tool_runtime.output.artifacts import file_diff, make_diff, size_note
from tool_runtime.platform import OS_FAMILY
from tool_runtime.tool import FaultKind, ToolFault, ToolOutput, encode, mark_of, os_faults, place_to_keep, smallest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from agent_host.contracts import Leftovers, ToolConstraints, ToolRequest
    from policy.patterns import Pattern
    from tool_runtime.families.commands import Commands
    from tool_runtime.files.grep import Trees
    from tool_runtime.processes.scripts import SkillScripts
    from tool_runtime.threads import DaemonPool
    from tool_runtime.tool import CallContext, RuntimeSettings
    from tool_runtime.web.http import HttpClient

    Written = tuple[writing.WriteOutcome, dict[str, Any]]
    """The outcome of a write, and fields of the output."""

T = TypeVar("T")

_STORED_LINES: Final = 1000  # lines of a stored output that ReadFile gives to a call that asks for no number
_FOUND_LINES: Final = 200


class Operations:
    """The operations of one family under its settings. `roots` are the only places of its files, None for no bound;
    `commands` returns the runner of all families' programs. `scripts` are the scripts of skills, None if there are
    none. Without `tls_checks` requests accept any certificate."""

    def __init__(
        self,
        settings: RuntimeSettings,
        pool: DaemonPool,
        commands: Callable[[], Commands],
        *,
        roots: tuple[str, ...] | None = None,
        scripts: SkillScripts | None = None,
        tls_checks: bool = True,
    ) -> None:
        self.settings = settings
        self.pool = pool
        self.roots = roots
        self.scripts = scripts
        self._commands = commands
        self._tls_checks = tls_checks
        self._http: HttpClient | None = None
        self._http_lock = asyncio.Lock()

    @property
    def commands(self) -> Commands:
        """Programs."""
        return self._commands()

    @functools.cached_property
    def trees(self) -> Trees:
        """Listings and searches."""
        from tool_runtime.files.grep import Trees

        return Trees(self.settings, self.scope)

    async def aclose(self) -> None:
        """Close pooled connections."""
        if self._http is not None:
            await self._http.aclose()

    def scope(self, request: ToolRequest, capability: str | None = None) -> Scope:
        """`scope_of` within the family's roots."""
        scope = scope_of(request, capability)
        return scope if self.roots is None else narrow_scope(scope, self.roots)

    def directory(self, call: CallContext, asked: str | None) -> str:
        """The real path of the directory that a program is to start in, by default the workspace. Raises ToolFault."""
        workspace = self.settings.workspace
        return resolve(normalize(asked or workspace, OS_FAMILY, workspace, home_directory()), self.scope(call.request))

    def read_whole(self, call: CallContext, path: str, max_bytes: int | None) -> WholeFile:
        """All of a file of `max_bytes` at most. Raises ToolFault, and NeedsThread."""
        most = smallest(max_bytes, call.max_file_size_bytes)
        return whole_file(path, self.scope(call.request), most, call.abandoned, near_only=call.at_once)

    def read(self, call: CallContext) -> ToolOutput:
        """A window of a file's lines; a picture; the cells of a notebook or the text of a PDF; a stored output of the
        session. Raises ToolFault, and NeedsThread."""
        path: str = call.arguments["path"]
        scope, most, wanted = (
            self.scope(call.request),
            call.max_file_size_bytes,
            given(call, "offset", "limit", "encoding"),
        )
        params = ReadParams(path, scope, call.max_output_bytes, most, **wanted)
        # Paths of files come absolute from the host.
        if self.settings.open_output is not None and not os.path.isabs(path):
            call.need_thread()
            return self._read_stored(call, path, params.offset, params.limit or _STORED_LINES)
        if path.lower().endswith(".ipynb") and not call.arguments.get("raw") and params.encoding is None:
            call.need_thread()
            found = _notebook(call, params)
            if isinstance(found, ToolOutput):
                return found
            output = _render(read_file(params, call.abandoned), params.offset)
            return output._replace(text=f"[{found}; its text follows]\n{output.text}")
        try:
            outcome = read_file(params, call.abandoned, near_only=call.at_once)
        except ToolFault as fault:
            if fault.kind is not FaultKind.IS_DIRECTORY:
                raise
            raise ToolFault(fault.kind, f"is a directory: {path}; ListDirectory shows what is in it") from fault
        if outcome.is_pdf:
            call.need_thread()
            return _pdf(call, params, outcome)
        return _render(outcome, params.offset)

    def read_output(self, call: CallContext) -> ToolOutput:
        """Lines of a stored output, or those that match a pattern. Raises ToolFault."""
        pattern: str | None = call.arguments.get("pattern")
        wanted = None if pattern is None else compile_pattern(pattern)
        if pattern is not None and wanted is None:
            raise ToolFault(FaultKind.INVALID_ARGUMENT, f"$.pattern: {problem_of(pattern)} (RE2's syntax)")
        offset, limit = call.arguments.get("offset", 1), call.arguments.get("limit", _FOUND_LINES)
        return self._read_stored(call, call.arguments["ref"], offset, limit, wanted)

    def _read_stored(
        self, call: CallContext, ref: str, offset: int, limit: int, pattern: Pattern | None = None
    ) -> ToolOutput:
        with os_faults(ref):
            file = None if self.settings.open_output is None else self.settings.open_output(ref)
            if file is None:
                raise ToolFault(FaultKind.NOT_FOUND, f"this session has stored nothing under {ref}")
            with file:
                found, has_more, seen = read_stored(file, offset, limit, pattern, call.max_output_bytes, call.abandoned)
        what = "lines" if pattern is None else "matches"
        if not found:
            return ToolOutput(f"[No{' more' if offset > 1 else ''} {what} in {count_noun(seen, 'line')}]\n")
        lines = [text if pattern is None else f"{number}: {text}" for number, text in found]
        if has_more:
            lines.append(f"[{len(lines)} {what} shown; offset: {offset + len(lines)} goes on]")
        return ToolOutput("\n".join(lines) + "\n")

    def write(self, call: CallContext, max_bytes: int | None = None, **how: Any) -> Written:
        """Write the `content` of a call to its `path`; `how` are more of WriteParams. Raises ToolFault."""
        params = self._write_params(call, encode(call.arguments["content"], "content"), max_bytes, **how)
        return _add_diff(call, writing.write_file(params, call.abandoned))

    def edit(self, call: CallContext) -> Written:
        """Make the `edits` of a call in the file at its `path`, as in `write`. Raises ToolFault."""
        request, edits = call.request, edits_from(call.arguments["edits"])
        read_scope = self.scope(request, CapabilityName.FILE_READ)
        most = constraints_of(request, CapabilityName.FILE_READ).max_file_size_bytes
        params = self._write_params(call, b"", None)
        return _add_diff(call, writing.edit_file(params, edits, read_scope, most, call.abandoned))

    def _write_params(self, call: CallContext, data: bytes, max_bytes: int | None, **how: Any) -> writing.WriteParams:
        """The write of a call, which expects the file as it names it, else as a call saw it last."""
        request = call.request
        seen = None if request.last_seen is None else FileStamp.parse(request.last_seen)
        named, readable = request.arguments.get("expectedSha256"), CapabilityName.FILE_READ in request.also
        how |= {"expected": writing.Expected(named, seen, readable), "kept": place_to_keep(call.settings, request)}
        most = smallest(max_bytes, call.max_file_size_bytes)
        return writing.WriteParams(request.arguments["path"], self.scope(request), data, mark_of(request), most, **how)

    def delete(self, call: CallContext, *, tree: bool = False, through_links: bool = True) -> str:
        """Delete the file at the call's `path`, or with `tree` a directory; the path. Raises ToolFault."""
        path, scope = call.arguments["path"], self.scope(call.request)
        if tree and os.path.isdir(path) and not os.path.islink(path):
            with os_faults(path):
                real = normalize(os.path.realpath(path), OS_FAMILY)
            if any(is_under(normalize(root, OS_FAMILY), real, OS_FAMILY) for root in self.roots or ()):
                raise ToolFault(FaultKind.OUT_OF_SCOPE, f"is a root of the tools, or holds one: {path}")
            writing.delete_tree(path, scope, call.abandoned)
        else:
            writing.delete_file(path, scope, call.abandoned, through_links=through_links)
        return str(path)

    def move(self, call: CallContext) -> None:
        """Move the file at the call's `path` to its `newPath`. Raises ToolFault."""
        writing.move_file(self._ends(call.request), call.abandoned)

    def take_back_move(self, request: ToolRequest) -> bool:
        """Take away the second name that a move left whose process died; True if there was one. Raises ToolFault."""
        return writing.take_back_half_move(self._ends(request))

    def remove_temporary(self, request: ToolRequest, argument: str = "path", capability: str | None = None) -> bool:
        """Take away the temporary file of a write whose process died; True if there was one. Raises ToolFault."""
        return writing.remove_leftover(request.arguments[argument], self.scope(request, capability), mark_of(request))

    async def read_to_send(self, call: CallContext, path: str) -> bytes:
        """All of a file that a request sends. Raises ToolFault."""
        scope, most = self.scope(call.request, CapabilityName.FILE_READ), self.most_sent(call, CapabilityName.FILE_READ)
        return await self._on_disk(call, path, lambda: whole_file(path, scope, most, call.abandoned).data)

    async def save(self, call: CallContext, path: str, body: bytes) -> dict[str, Any]:
        """Write the response of a request to a file; returns fields of the output. Raises ToolFault."""
        request = call.request
        scope, kept = self.scope(request, CapabilityName.FILE_WRITE), place_to_keep(call.settings, request)
        params = writing.WriteParams(path, scope, body, mark_of(request), kept=kept)
        outcome = await self._on_disk(call, path, lambda: writing.write_file(params, call.abandoned))
        return {"seen": str(outcome.seen), "settle": outcome.settle}

    def most_sent(self, call: CallContext, capability: str) -> int:
        """Bytes of the largest file that the call sends or saves."""
        of_policy, own = constraints_of(call.request, capability).max_file_size_bytes, self.settings
        return smallest(own.http_max_download_bytes, own.max_file_size_bytes, of_policy) or 0

    async def _on_disk(self, call: CallContext, path: str, work: Callable[[], T]) -> T:
        timeout_s = self.settings.file_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await self.pool.run(work)
        except BaseException as error:
            call.abandoned.flag = True
            if isinstance(error, TimeoutError):
                message = f"the file took longer than {timeout_s:g} seconds: {path}"
                raise ToolFault(FaultKind.TIMED_OUT, message) from error
            raise

    async def http_client(self) -> HttpClient:
        """The one client, made when the first request comes, in a thread: httpx and a TLS context cost some 80 ms."""

        def make() -> HttpClient:
            from tool_runtime.web.http import HttpClient

            return HttpClient(self.settings, self.pool, tls_checks=self._tls_checks)

        async with self._http_lock:
            if self._http is None:
                self._http = await self.pool.run(make)
        return self._http

    def settle(self, kept: str) -> None:
        """Remove the backup of a write in place, because its result is recorded."""
        writing.settle(kept)

    def take_back(self, left: Leftovers, kept: str, request: ToolRequest) -> Leftovers:
        """With what became of a file that a call wrote in place whose process died."""
        scope = scope_of(request, CapabilityName.FILE_WRITE if CapabilityName.FILE_WRITE in request.also else None)
        try:
            state = writing.take_back(kept, scope)
        except (ToolFault, OSError):  # if the call may no longer write there, nothing is touched or lost
            return left
        return left if state is None else left._replace(file=state, settle=functools.partial(writing.settle, kept))

    def add_nearest(self, fault: ToolFault, request: ToolRequest, arguments: Collection[str]) -> ToolFault:
        """The fault of a call whose file is not there, with names near those in its arguments that are paths."""
        scope = scope_of(request, CapabilityName.FILE_READ if CapabilityName.FILE_READ in request.also else None)
        paths = [path for path in map(request.arguments.get, sorted(arguments)) if isinstance(path, str)]
        missing = [os.path.normpath(path) for path in paths if os.path.isabs(path) and not os.path.lexists(path)]
        near = [name for path in missing for name in nearest(path, lambda one: is_in_scope(one, scope))]
        if not near:
            return fault
        return ToolFault(fault.kind, f"{fault}; near it: {', '.join(near)}", partial=fault.partial, code=fault.code)

    def _ends(self, request: ToolRequest) -> writing.MoveParams:
        read, write = (self.scope(request, one) for one in (CapabilityName.FILE_READ, CapabilityName.FILE_WRITE))
        path, new_path = request.arguments["path"], request.arguments["newPath"]
        return writing.MoveParams(path, self.scope(request), read, new_path, write)


def scope_of(request: ToolRequest, capability: str | None = None) -> Scope:
    """The scope in which policy lets the call act, under another capability that it needs if one is named."""
    limits = constraints_of(request, capability)
    return Scope(limits.allowed_paths, limits.blocked_paths)


def constraints_of(request: ToolRequest, capability: str | None = None) -> ToolConstraints:
    """The call's limits, under another capability if one is named. Raises KeyError for one that it does not need."""
    if capability is None or capability == request.capability:
        return request.constraints
    return request.also[capability]


def _add_diff(call: CallContext, outcome: writing.WriteOutcome) -> Written:
    path = call.arguments["path"]
    if outcome.existed and outcome.before is None:
        diff = size_note(outcome.before_bytes, len(outcome.after), path)
    else:
        diff = make_diff(outcome.before, outcome.after, path)
    if call.abandoned.flag and outcome.settle is not None:  # no recorded result would lead to that
        outcome.settle()
    made = (file_diff(call.request, diff),) if diff else ()
    return outcome, {"artifacts": made, "seen": str(outcome.seen), "settle": outcome.settle}


def _render(outcome: ReadOutcome, offset: int) -> ToolOutput:
    """Text, a picture, or words about a file that is neither (TR 4.1, 11)."""
    images: tuple[Image, ...] = ()
    text, size, image = outcome.text, outcome.size_bytes, outcome.image
    if text is None and image is None:
        text = f"Binary file, {size} bytes"
    elif text is None and image is not None:
        kind, width, height, _ = image.header
        if image.data is None:
            sides = f"{width}x{height}, " if width else ""
            text = f"{kind}, {sides}{size} bytes; not shown: {image.problem}"
        else:
            images = (Image(kind, width, height, image.data),)
            text = images[0].text
    elif outcome.past_end and size:
        text = f"[The file ends before line {offset}]"
    elif not text and not size:
        text = "[The file is empty]"
    elif outcome.rest:
        text = f"{text}{'' if (text or '').endswith(chr(10)) else chr(10)}{outcome.rest}"
    return ToolOutput(text or "", capped=True, seen=str(outcome.seen), images=images)


def _notebook(call: CallContext, params: ReadParams) -> ToolOutput | str:
    """The cells of a notebook, or why the file cannot be shown as that. Raises ToolFault."""
    limit = params.max_file_size_bytes
    most = documents.MAX_BYTES if limit is None else min(limit, documents.MAX_BYTES)
    try:
        file = whole_file(params.path, params.scope, most, call.abandoned)
        found = documents.render(file.data)
    except documents.NotANotebook as error:
        return f"This file cannot be shown as a notebook: {error}"
    except ToolFault as fault:
        if fault.kind is not FaultKind.TOO_LARGE or most == limit:
            raise
        return f"This notebook has more than {most} bytes, and is not shown as cells"
    window = LineWindow(params.offset, params.limit, params.max_output_bytes)
    window.add(found.text)
    if window.past_end:
        text = f"[The notebook's cells end before line {params.offset}]"
        return ToolOutput(text, capped=True, seen=str(file.stamp))
    text = window.text()
    shown = [file for line, file in found.pictures if line in text]
    images = tuple(Image(*one.header[:3], one.data) for one in shown if one.data is not None)
    return ToolOutput(text, capped=True, seen=str(file.stamp), images=images)


def _pdf(call: CallContext, params: ReadParams, outcome: ReadOutcome) -> ToolOutput:
    place = documents.find_extra()
    if place is None:
        text = f"PDF file, {outcome.size_bytes} bytes; {documents.HOW_TO_INSTALL}"
        return ToolOutput(text, capped=True, seen=str(outcome.seen))
    found = documents.read_pdf(params, place, call.abandoned)
    text = f"[The text of the pages ends before line {params.offset}]\n" if found.past_end else found.text
    if found.problem is not None:
        text += f"[Not all of this PDF of {found.size_bytes} bytes was read: {found.problem}]\n"
    return ToolOutput(text, capped=True, seen=str(outcome.seen))
