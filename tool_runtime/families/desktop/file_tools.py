"""Tools for one file, over `files.read` and `files.write` (TR 4.1 to 4.3)."""

from __future__ import annotations

import asyncio
import functools
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agent_host.contracts import Image, Leftovers
from policy.names import CapabilityName
from policy.patterns import compile_pattern, problem_of
from tool_runtime.families.answers import DESKTOP
from tool_runtime.families.desktop.calls import constraints_of, encode, expectation_of, mark_of, place_to_keep, scope_of
from tool_runtime.families.desktop.specs import (
    DELETE_FILE,
    EDIT_FILE,
    HTTP_REQUEST,
    MOVE_FILE,
    READ_FILE,
    READ_OUTPUT,
    WRITE_FILE,
)
from tool_runtime.files import move, notebooks, pdf, read, write
from tool_runtime.files.edits import edits_from, is_notebook
from tool_runtime.files.lines import LineWindow, WantedLines
from tool_runtime.files.stored import StoredParams, StoredPart, read_stored
from tool_runtime.output import artifacts
from tool_runtime.output.artifacts import make_diff, size_note
from tool_runtime.tool import (
    CallContext,
    FaultKind,
    Tool,
    ToolFault,
    ToolOutput,
    os_faults,
    run_at_once,
    run_in_thread,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from agent_host.contracts import ToolRequest, ToolSpec
    from tool_runtime.files.read import ReadOutcome, ReadParams
    from tool_runtime.settings import RuntimeSettings
    from tool_runtime.threads import DaemonPool
    from tool_runtime.tool import Abandoned, Work

_STORED_LINES = 1000
"""Lines of a stored output that a call gets that asks for no number."""


_MAX_NAMES = 5


class FileTools:
    """See `families.desktop.runner`."""

    def __init__(self, settings: RuntimeSettings, pool: DaemonPool) -> None:
        self._settings = settings
        self._pool = pool

    def tools(self) -> Sequence[Tool]:
        """The tools, ready to run."""
        running: tuple[tuple[ToolSpec, Work], ...] = (
            (READ_FILE, self._read_file),
            (WRITE_FILE, self._write_file),
            (EDIT_FILE, self._edit_file),
            (DELETE_FILE, self._delete_file),
            (MOVE_FILE, self._move_file),
        )
        timeout_s = self._settings.file_timeout_s
        tools = (Tool(spec, run_in_thread(work, self._pool, timeout_s), DESKTOP) for spec, work in running)
        return tuple(
            one._replace(at_once=run_at_once(self._read_file)) if one.spec is READ_FILE else one for one in tools
        )

    async def read_bytes(self, call: CallContext, path: str, max_bytes: int) -> bytes:
        """See DesktopFamily. Raises ToolFault."""
        limit = max_bytes if call.max_file_size_bytes is None else min(max_bytes, call.max_file_size_bytes)
        scope, timeout_s = scope_of(call.request), self._settings.file_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await self._pool.run(lambda: read.read_bytes(path, scope, limit, call.abandoned))
        except TimeoutError as error:
            raise ToolFault(FaultKind.TIMED_OUT, f"reading timed out after {timeout_s:g} seconds: {path}") from error
        finally:
            call.abandoned.flag = True

    async def end_leftovers(self, request: ToolRequest) -> Leftovers:
        """See Provider. A write leaves its temporary file behind, a move a second name of its file."""
        leftover = _LEFTOVER.get(request.tool_name)
        if leftover is None:
            return Leftovers()
        try:
            return Leftovers(await self._pool.run(lambda: leftover(request)))
        except (ToolFault, KeyError, TypeError):  # where the call may not write by now, nothing is touched
            return Leftovers()

    def _read_file(self, call: CallContext) -> ToolOutput:
        params = _reading(call)
        if self._is_stored(params.path):
            call.need_thread()
            stored = StoredParams(params.offset, params.limit or _STORED_LINES)
            return render_stored(self._settings, call, params.path, stored)
        if is_document(call, params.path):
            call.need_thread()
            found = notebook_output(params, call.abandoned)
            if isinstance(found, ToolOutput):
                return found
            output = _render(read.read_file(params, call.abandoned), params.offset)
            return output._replace(text=f"[{found}; its text follows]\n{output.text}")
        with _directories_pointed_out(params.path):
            outcome = read.read_file(params, call.abandoned, near_only=call.at_once)
        if outcome.is_pdf:
            call.need_thread()
            return pdf_output(params, outcome, call.abandoned)
        return _render(outcome, params.offset)

    def _is_stored(self, path: str) -> bool:
        """True for a reference to what the session has stored: paths of files come absolute from the host."""
        return self._settings.open_output is not None and not os.path.isabs(path)

    def _write_file(self, call: CallContext) -> ToolOutput:
        request = call.request
        path: str = request.arguments["path"]
        params = write.WriteParams(
            path,
            scope_of(request),
            encode(request.arguments["content"], "content"),
            mark_of(request),
            call.max_file_size_bytes,
            request.arguments.get("createDirectories", True),
            expectation_of(request),
            kept=place_to_keep(call),
        )
        outcome, diff = add_diff(write.write_file(params, call.abandoned), path, call)
        said = f"Wrote {len(params.data)} bytes to {path}"
        if outcome.before_bytes:  # a small model takes "wrote" for "appended"
            said += f", in place of the {outcome.before_bytes} bytes that it had"
        alike = () if outcome.existed else _look_alikes(path)
        if alike:
            said += f", a new file beside one whose name looks the same: {', '.join(alike)}"
        return _render_write(request, said, outcome, diff)

    def _edit_file(self, call: CallContext) -> ToolOutput:
        request = call.request
        path: str = request.arguments["path"]
        params = write.EditParams(
            path,
            scope_of(request),
            scope_of(request, CapabilityName.FILE_READ),
            edits_from(request.arguments["edits"]),
            mark_of(request),
            call.max_file_size_bytes,
            constraints_of(request, CapabilityName.FILE_READ).max_file_size_bytes,
            expectation_of(request),
            place_to_keep(call),
        )
        outcome, diff = add_diff(write.edit_file(params, call.abandoned), path, call)
        said = f"Replaced {outcome.places} place{'' if outcome.places == 1 else 's'} in {path}"
        return _render_write(request, said, outcome, diff)

    def _delete_file(self, call: CallContext) -> ToolOutput:
        path: str = call.request.arguments["path"]
        move.delete_file(path, scope_of(call.request), call.abandoned)
        return ToolOutput(f"Deleted {path}")

    def _move_file(self, call: CallContext) -> ToolOutput:
        params = _move(call.request)
        move.move_file(params, call.abandoned)
        return ToolOutput(f"Moved {params.path} to {params.new_path}")


def _look_alikes(path: str) -> Sequence[str]:
    """The files beside a new one that could be taken for it: a name may have spaces and accents of several kinds."""
    name = os.path.basename(path)
    if name.isascii() and " " not in name:
        return ()
    from agent_host.file_names import look_alikes

    return look_alikes(path)


def _reading(call: CallContext) -> read.ReadParams:
    arguments = call.request.arguments
    return read.ReadParams(
        arguments["path"],
        scope_of(call.request),
        call.max_output_bytes,
        call.max_file_size_bytes,
        arguments.get("offset", 1),
        arguments.get("limit"),
        arguments.get("encoding"),
    )


def is_document(call: CallContext, path: str) -> bool:
    """True if the file is named like a notebook, and is to be shown as one."""
    arguments = call.request.arguments
    return is_notebook(path) and not arguments.get("raw") and "encoding" not in arguments


def _render(outcome: read.ReadOutcome, offset: int) -> ToolOutput:
    if outcome.text is None:
        return _binary_output(outcome)
    if outcome.past_end and outcome.size_bytes:
        return ToolOutput(f"[The file ends before line {offset}]", capped=True, seen=str(outcome.seen))
    if not outcome.text and not outcome.size_bytes:
        return ToolOutput("[The file is empty]", capped=True, seen=str(outcome.seen))
    text = outcome.text
    if outcome.rest:
        text += f"{'' if text.endswith(chr(10)) else chr(10)}{outcome.rest}"
    return ToolOutput(text, capped=True, seen=str(outcome.seen))


def _binary_output(outcome: read.ReadOutcome) -> ToolOutput:
    """A picture, or words about a file that is neither that nor text (TR 4.1, 11)."""
    size, image, seen = outcome.size_bytes, outcome.image, str(outcome.seen)
    if image is None:
        return ToolOutput(f"Binary file, {size} bytes", capped=True, seen=seen)
    kind, width, height, _ = image.header
    if image.data is None:
        sides = f"{width}x{height}, " if width else ""
        return ToolOutput(f"{kind}, {sides}{size} bytes; not shown: {image.problem}", capped=True, seen=seen)
    found = Image(kind, width, height, image.data)
    return ToolOutput(found.text, capped=True, seen=seen, images=(found,))


def _move(request: ToolRequest) -> move.MoveParams:
    return move.MoveParams(
        request.arguments["path"],
        scope_of(request),
        scope_of(request, CapabilityName.FILE_READ),
        request.arguments["newPath"],
        scope_of(request, CapabilityName.FILE_WRITE),
    )


def _temporary_file(request: ToolRequest) -> bool:
    return write.remove_leftover(request.arguments["path"], scope_of(request), mark_of(request))


def _temporary_download(request: ToolRequest) -> bool:
    scope = scope_of(request, CapabilityName.FILE_WRITE)
    return write.remove_leftover(request.arguments["saveTo"], scope, mark_of(request))


_LEFTOVER: Mapping[str, Callable[[ToolRequest], bool]] = {
    WRITE_FILE.name: _temporary_file,
    EDIT_FILE.name: _temporary_file,
    MOVE_FILE.name: lambda request: move.take_back_half_move(_move(request)),
    HTTP_REQUEST.name: lambda request: "saveTo" in request.arguments and _temporary_download(request),
}
"""What takes away what a call of the tool left when its process died; says whether there was something."""


def add_diff(outcome: write.WriteOutcome, path: str, call: CallContext) -> tuple[write.WriteOutcome, bytes]:
    """Return what a write did, and the unified diff that is kept of it, empty where nothing changed."""
    if outcome.existed and outcome.before is None:
        diff = size_note(outcome.before_bytes, len(outcome.after), path)
    else:
        diff = make_diff(outcome.before, outcome.after, path)
    settle = settling_of(outcome)
    if call.abandoned.flag and settle is not None:  # no result will be on record behind which somebody would do it
        settle()
    return outcome, diff


@contextmanager
def _directories_pointed_out(path: str) -> Iterator[None]:
    """A model that reads a directory wants to know what is in it."""
    try:
        yield
    except ToolFault as fault:
        if fault.kind is not FaultKind.IS_DIRECTORY:
            raise
        raise ToolFault(fault.kind, f"is a directory: {path}; ListDirectory shows what is in it") from fault


def _render_write(request: ToolRequest, said: str, outcome: write.WriteOutcome, diff: bytes) -> ToolOutput:
    made = (artifacts.file_diff(request, diff),) if diff else ()
    text = f"{said}; it is the same file as {', '.join(outcome.also[:_MAX_NAMES])}" if outcome.also else said
    return ToolOutput(text, made, seen=str(outcome.seen), settle=settling_of(outcome))


def settling_of(outcome: write.WriteOutcome) -> Callable[[], None] | None:
    """Return what is to be done once the result of a write is on record; None for nothing."""
    if outcome.kept is None:
        return None
    from tool_runtime.files import in_place

    return functools.partial(in_place.settle, outcome.kept)


# What ReadFile shows of notebooks and of PDFs (TR 4.1), over `files.notebooks` and `files.pdf`. Blocking.


def notebook_output(params: ReadParams, abandoned: Abandoned) -> ToolOutput | str:
    """The cells of a notebook, or why the file cannot be shown as that. Raises ToolFault."""
    limit = params.max_file_size_bytes
    most = notebooks.MAX_BYTES if limit is None else min(limit, notebooks.MAX_BYTES)
    try:
        file = read.whole_file(params.path, params.scope, most, abandoned)
        found = notebooks.render(file.data)
    except notebooks.NotANotebook as error:
        return f"This file cannot be shown as a notebook: {error}"
    except ToolFault as fault:
        if fault.kind is not FaultKind.TOO_LARGE or most == limit:
            raise
        return f"This notebook has more than {most} bytes, and is not shown as cells"
    window = LineWindow(WantedLines(params.offset, params.limit), params.max_output_bytes)
    window.add(found.text)
    if window.past_end:
        return ToolOutput(f"[The notebook's cells end before line {params.offset}]", capped=True, seen=str(file.stamp))
    text = window.text()
    images = tuple(
        Image(one.file.header.media_type, one.file.header.width, one.file.header.height, one.file.data)
        for one in found.pictures
        if one.file.data is not None and one.line in text
    )
    return ToolOutput(text, capped=True, seen=str(file.stamp), images=images)


def pdf_output(params: ReadParams, outcome: ReadOutcome, abandoned: Abandoned) -> ToolOutput:
    """The text of a PDF's pages, or how to have it. Raises ToolFault."""
    place = pdf.find_extra()
    if place is None:
        text = f"PDF file, {outcome.size_bytes} bytes; {pdf.HOW_TO_INSTALL}"
        return ToolOutput(text, capped=True, seen=str(outcome.seen))
    found = pdf.read_pdf(params, WantedLines(params.offset, params.limit), place, abandoned)
    text = f"[The text of the pages ends before line {params.offset}]\n" if found.past_end else found.text
    if found.problem is not None:
        text += f"[Not all of this PDF of {found.size_bytes} bytes was read: {found.problem}]\n"
    return ToolOutput(text, capped=True, seen=str(outcome.seen))


# Stored outputs, over `files.stored`.


class OutputTools:
    """See `families.desktop.runner`."""

    def __init__(self, settings: RuntimeSettings, pool: DaemonPool) -> None:
        self._settings = settings
        self._pool = pool

    def tools(self) -> Sequence[Tool]:
        """The tools, ready to run."""
        return (
            Tool(READ_OUTPUT, run_in_thread(self._read_output, self._pool, self._settings.file_timeout_s), DESKTOP),
        )

    def _read_output(self, call: CallContext) -> ToolOutput:
        arguments = call.request.arguments
        pattern: str | None = arguments.get("pattern")
        wanted = None if pattern is None else compile_pattern(pattern)
        if pattern is not None and wanted is None:
            raise ToolFault(FaultKind.INVALID_ARGUMENT, f"$.pattern: {problem_of(pattern)} (RE2's syntax)")
        params = StoredParams(arguments.get("offset", 1), arguments.get("limit", 200), wanted)
        return render_stored(self._settings, call, arguments["ref"], params)


def render_stored(settings: RuntimeSettings, call: CallContext, ref: str, params: StoredParams) -> ToolOutput:
    """A part of what the session has stored under `ref`. Blocking. Raises ToolFault."""
    with os_faults(ref):
        file = None if settings.open_output is None else settings.open_output(ref)
        if file is None:
            raise ToolFault(FaultKind.NOT_FOUND, f"this session has stored nothing under {ref}")
        with file:
            return ToolOutput(_output_shown(read_stored(file, params, call.max_output_bytes, call.abandoned), params))


def _output_shown(part: StoredPart, params: StoredParams) -> str:
    what = "lines" if params.pattern is None else "matches"
    if not part.lines:
        more = " more" if params.offset > 1 else ""
        return f"[No{more} {what} in {part.seen} line{'' if part.seen == 1 else 's'}]\n"
    lines = [text if params.pattern is None else f"{number}: {text}" for number, text in part.lines]
    if part.more:
        lines.append(f"[{len(lines)} {what} shown; offset: {params.offset + len(lines)} goes on]")
    return "\n".join(lines) + "\n"
