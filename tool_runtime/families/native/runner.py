"""The native tools: a class for each kind of tool, under one set of settings and roots. A kind is imported with the
first call of one of its tools."""

from __future__ import annotations

import functools
import os
import stat
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import orjson

from agent_host.contracts import Leftovers
from agent_host.display_text import name_for_json
from policy.paths import is_under, normalize
from tool_runtime.families.answers import DESKTOP, answer, fit_texts, fitting
from tool_runtime.families.desktop.calls import encode, expectation_of, mark_of, place_to_keep, scope_of
from tool_runtime.families.desktop.file_tools import add_diff, settling_of
from tool_runtime.families.desktop.tree_tools import cut_line, refuse_far, search
from tool_runtime.families.native import specs
from tool_runtime.families.native.specs import (
    DELETE_FILE,
    EXEC,
    FAULT_NAMES,
    FETCH,
    GREP,
    LIST_DIR,
    LIST_FILES,
    MAX_FILE_BYTES,
    READ_FILE,
    WRITE_FILE,
)
from tool_runtime.families.programs import (
    command_params,
    environment_under,
    head_for_observers,
    refusals_of,
    render_stream,
    stream_to_store,
)
from tool_runtime.families.web import Web, body_text
from tool_runtime.files import move, read, write
from tool_runtime.files import move as deletes
from tool_runtime.files.grep import GrepParams, find_ripgrep
from tool_runtime.files.listing import FilesParams, PageParams, Pager, list_files, token_of
from tool_runtime.files.paths import Scope, home_directory, narrow_scope, resolve
from tool_runtime.files.tree import MAX_DEPTH
from tool_runtime.output import artifacts
from tool_runtime.output.text import decode_body
from tool_runtime.platform import OS_FAMILY
from tool_runtime.processes.command import end_leftovers
from tool_runtime.tool import CallContext, FaultKind, Tool, ToolFault, cap, os_faults, run_at_once, run_in_thread

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agent_host.contracts import Artifact, ToolRequest
    from tool_runtime.families.programs import RunProgram
    from tool_runtime.files.grep import GrepOutcome, Ripgrep
    from tool_runtime.files.listing import Page
    from tool_runtime.files.read import WholeFile
    from tool_runtime.processes.command import CommandOutcome, CommandParams
    from tool_runtime.settings import RuntimeSettings
    from tool_runtime.threads import DaemonPool
    from tool_runtime.tool import ToolOutput

Kind = Literal["files", "trees", "programs", "requests"]
_KINDS: Final[Mapping[str, Kind]] = {
    **{spec.name: "files" for spec in (READ_FILE, WRITE_FILE, DELETE_FILE)},
    **{spec.name: "trees" for spec in (LIST_FILES, LIST_DIR, GREP)},
    EXEC.name: "programs",
    FETCH.name: "requests",
}


class NativeRunner:
    """The family's tools, by name. Its roots are resolved here, once."""

    def __init__(self, settings: RuntimeSettings, pool: DaemonPool, run_program: RunProgram) -> None:
        self._settings = settings
        self._pool = pool
        self._run_program = run_program
        self._roots = tuple(map(os.path.realpath, settings.native_roots or (settings.workspace,)))
        self._tools: dict[str, Tool] = {}

    def tool(self, name: str) -> Tool:
        """Return the tool of this name. Raises KeyError for a name that is none of the family's."""
        if name not in self._tools:
            for tool in self._tools_of_kind(_KINDS[name]).tools():
                self._tools[tool.spec.name] = tool._replace(names=FAULT_NAMES)
        return self._tools[name]

    async def end_leftovers(self, request: ToolRequest) -> Leftovers:
        """See Provider."""
        programs = request.tool_name == EXEC.name
        return await (self._programs if programs else self._files).end_leftovers(request)

    async def aclose(self) -> None:
        """Close pooled connections."""
        if "_requests" in self.__dict__:
            await self._requests.aclose()

    def _tools_of_kind(self, kind: Kind) -> NativeFileTools | NativeTreeTools | ExecTools | FetchTools:
        if kind == "files":
            return self._files
        if kind == "programs":
            return self._programs
        return self._trees if kind == "trees" else self._requests

    @functools.cached_property
    def _files(self) -> NativeFileTools:

        return NativeFileTools(self._settings, self._pool, self._roots)

    @functools.cached_property
    def _trees(self) -> NativeTreeTools:

        return NativeTreeTools(self._settings, self._pool, self._roots)

    @functools.cached_property
    def _programs(self) -> ExecTools:

        return ExecTools(self._settings, self._pool, self._roots, self._run_program)

    @functools.cached_property
    def _requests(self) -> FetchTools:

        return FetchTools(self._settings, self._pool)


# cp__exec, over `processes.command`: a program with its arguments, never a shell. Policy has judged both.

_CUT: Final = {"stdout": "stdout_truncated", "stderr": "stderr_truncated"}


class ExecTools:
    """See `families.native.runner`. `roots` are the only places of the tool."""

    def __init__(
        self, settings: RuntimeSettings, pool: DaemonPool, roots: tuple[str, ...], run_program: RunProgram
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._roots = roots
        self._run_program = run_program

    def tools(self) -> Sequence[Tool]:
        """The tool, ready to run."""
        return (Tool(EXEC, cap(self._exec), DESKTOP),)

    async def end_leftovers(self, request: ToolRequest) -> Leftovers:
        """See Provider. A program leaves processes behind."""
        return await end_leftovers(mark_of(request), self._pool)

    @functools.cached_property
    def _environment(self) -> Mapping[str, str]:
        return environment_under(self._settings)

    async def _exec(self, call: CallContext) -> ToolOutput:
        params = self._params(call)
        began = time.monotonic()
        outcome = await self._run_program(params)
        output = _render(call, outcome, int((time.monotonic() - began) * 1000))
        if outcome.timed_out:
            said = "; ".join(filter(None, (f"timed out after {params.timeout_s:g} seconds", outcome.left.note())))
            raise ToolFault(FaultKind.TIMED_OUT, said, partial=output)
        return output

    def _params(self, call: CallContext) -> CommandParams:
        settings, arguments = self._settings, call.request.arguments
        program: str = arguments["command"]
        argv = [program, *arguments.get("args", ())]
        variables: Mapping[str, str] = arguments.get("env", {})
        if any("\0" in word or not _is_text(word) for word in (*argv, *variables, *variables.values())):
            raise ToolFault(FaultKind.INVALID_ARGUMENT, "$: a word holds a NUL character or a lone surrogate")
        if any("=" in name or not name for name in variables):
            raise ToolFault(FaultKind.INVALID_ARGUMENT, "$.env: a name is empty or holds =")
        asked = normalize(
            arguments.get("working_dir") or settings.workspace, OS_FAMILY, settings.workspace, home_directory()
        )
        cwd = resolve(asked, narrow_scope(scope_of(call.request), self._roots))
        resolve(program, Scope())  # absolute, or it is refused
        timeout_ms = min(arguments.get("timeout_ms", specs.EXEC_TIMEOUT_MS), specs.EXEC_TIMEOUT_MS)
        return command_params(
            call.request,
            settings,
            argv,
            cwd,
            {**self._environment, **variables, "PWD": cwd},
            timeout_s=timeout_ms / 1000,
            max_output_bytes=specs.STDOUT_BYTES,
        )


def _render(call: CallContext, outcome: CommandOutcome, duration_ms: int) -> ToolOutput:
    stdout, stdout_cut = render_stream(outcome.stdout, specs.STDOUT_BYTES)
    stderr, stderr_cut = render_stream(outcome.stderr, specs.STDERR_BYTES)
    fields = {
        "stdout": stdout,
        "stderr": stderr,
        "exit_code": outcome.exit_code,
        "success": outcome.exit_code == 0 and not outcome.timed_out,
        "duration_ms": duration_ms,
        "timed_out": outcome.timed_out,
        "stdout_truncated": stdout_cut,
        "stderr_truncated": stderr_cut,
    }
    told = {**fields, **refusals_of(outcome)}
    output = fit_texts(call, told, cut=_CUT, exit_code=outcome.exit_code, denials=outcome.denials)
    return output._replace(artifacts=tuple(_artifacts_of(call, outcome)), stderr=head_for_observers(outcome.stderr))


def _artifacts_of(call: CallContext, outcome: CommandOutcome) -> list[Artifact]:
    """Artifacts for what is too long to be read in the answer alone."""
    least = call.settings.artifact_threshold_bytes
    streams = (("stdout", outcome.stdout), ("stderr", outcome.stderr))
    found = [stream_to_store(call, captured, name, is_kept=captured.ends.total > least) for name, captured in streams]
    return [one for one in found if one is not None]


def _is_text(word: str) -> bool:
    return word == word.encode("utf-8", "replace").decode()


# cp__fetch, over `web.http`. An HTTP error status is no failure of the call.

_JSON: Final = {"content-type": "application/json"}


class FetchTools:
    """See `families.native.runner`."""

    def __init__(self, settings: RuntimeSettings, pool: DaemonPool) -> None:
        limited = settings._replace(
            http_max_redirects=min(settings.http_max_redirects, specs.FETCH_REDIRECTS),
            http_max_body_bytes=min(settings.http_max_body_bytes, specs.FETCH_BODY_BYTES),
        )
        self._body_bytes = limited.http_max_body_bytes
        self._web = Web(limited, pool, tls_checks=settings.native_tls_checks)

    def tools(self) -> Sequence[Tool]:
        """The tool, ready to run."""
        return (Tool(FETCH, cap(self._fetch), DESKTOP),)

    async def aclose(self) -> None:
        """Close pooled connections."""
        await self._web.aclose()

    async def _fetch(self, call: CallContext) -> ToolOutput:
        arguments = call.request.arguments
        sent, headers = _encode_body(arguments.get("body", ""), arguments.get("headers", {}))
        timeout_ms = min(arguments.get("timeout_ms", specs.FETCH_TIMEOUT_MS), specs.FETCH_TIMEOUT_MS)
        await self._web.client()  # made before the clock runs
        began = time.monotonic()
        outcome = await self._web.fetch(
            call.request, sent, headers, timeout_s=timeout_ms / 1000, most_bytes=self._body_bytes
        )
        fields = {
            "status_code": outcome.status,
            "status_text": outcome.reason,
            "headers": dict(outcome.headers),
            "body": body_text(outcome),
            "body_truncated": outcome.body_cut,
            "duration_ms": int((time.monotonic() - began) * 1000),
        }
        return fit_texts(call, fields, cut={"body": "body_truncated"}, stored="body")


def _encode_body(body: str | Mapping[str, object], headers: Mapping[str, str]) -> tuple[bytes, Mapping[str, str]]:
    """The body as it is sent, and the headers with its type."""
    if isinstance(body, str):
        return encode(body, "body"), headers
    try:
        data = orjson.dumps(body)
    except TypeError as error:  # what JSON cannot hold, such as a lone surrogate
        raise ToolFault(FaultKind.INVALID_ARGUMENT, f"$.body: {error}") from error
    named = {name.lower() for name in headers}
    return data, headers if "content-type" in named else {**headers, **_JSON}


# Native tools for one file, over `files.read`, `files.write`, `files.move` and `files.move`.


class NativeFileTools:
    """See `families.native.runner`. `roots` are the only places of the tools."""

    def __init__(self, settings: RuntimeSettings, pool: DaemonPool, roots: tuple[str, ...]) -> None:
        self._settings = settings
        self._pool = pool
        self._roots = roots

    def tools(self) -> Sequence[Tool]:
        """The tools, ready to run."""
        within = functools.partial(run_in_thread, pool=self._pool, timeout_s=self._settings.file_timeout_s)
        return (
            Tool(READ_FILE, within(self._read), DESKTOP, run_at_once(self._read)),
            Tool(WRITE_FILE, within(self._write), DESKTOP),
            Tool(DELETE_FILE, within(self._delete), DESKTOP),
        )

    async def end_leftovers(self, request: ToolRequest) -> Leftovers:
        """See Provider. A write leaves its temporary file behind."""
        if request.tool_name != WRITE_FILE.name:
            return Leftovers()
        scope = narrow_scope(scope_of(request), self._roots)
        try:
            removed = await self._pool.run(
                lambda: write.remove_leftover(request.arguments["path"], scope, mark_of(request))
            )
        except (ToolFault, KeyError, TypeError):  # where the call may not write by now, nothing is touched
            return Leftovers()
        return Leftovers(removed)

    def _read(self, call: CallContext) -> ToolOutput:
        path, scope = call.request.arguments["path"], narrow_scope(scope_of(call.request), self._roots)
        found = read.whole_file(path, scope, _most_bytes(call), call.abandoned, near_only=call.at_once)
        return _file_shown(call, found)

    def _write(self, call: CallContext) -> ToolOutput:
        arguments = call.request.arguments
        path, mode = arguments["path"], arguments.get("mode")
        params = write.WriteParams(
            path,
            narrow_scope(scope_of(call.request), self._roots),
            encode(arguments["content"], "content"),
            mark_of(call.request),
            _most_bytes(call),
            expected=expectation_of(call.request),
            append=arguments.get("append", False),
            mode=None if mode is None else int(mode, 8),
            through_links=False,
            kept=place_to_keep(call),
        )
        outcome, diff = add_diff(write.write_file(params, call.abandoned), path, call)
        made = (artifacts.file_diff(call.request, diff),) if diff else ()
        return answer({"success": True}, artifacts=made, seen=str(outcome.seen))._replace(settle=settling_of(outcome))

    def _delete(self, call: CallContext) -> ToolOutput:
        path, scope = call.request.arguments["path"], narrow_scope(scope_of(call.request), self._roots)
        if call.request.arguments.get("recursive", False) and os.path.isdir(path) and not os.path.islink(path):
            with os_faults(path):
                real = normalize(os.path.realpath(path), OS_FAMILY)
            if any(is_under(normalize(root, OS_FAMILY), real, OS_FAMILY) for root in self._roots):
                raise ToolFault(FaultKind.OUT_OF_SCOPE, f"is a root of the tools, or holds one: {path}")
            deletes.delete_tree(path, scope, call.abandoned)
        else:
            move.delete_file(path, scope, call.abandoned, through_links=False)
        return answer({"success": True})


def _most_bytes(call: CallContext) -> int:
    return MAX_FILE_BYTES if call.max_file_size_bytes is None else min(call.max_file_size_bytes, MAX_FILE_BYTES)


def _file_shown(call: CallContext, found: WholeFile) -> ToolOutput:
    status = found.status
    text = decode_body(found.data)
    if text is None:
        path = call.request.arguments["path"]
        raise ToolFault(FaultKind.INVALID_ARGUMENT, f"is no text, but {len(found.data)} bytes of a binary file: {path}")
    modified = datetime.fromtimestamp(status.st_mtime, UTC).isoformat().replace("+00:00", "Z")
    fields = {
        "content": text,
        "metadata": {
            "path": name_for_json(found.real),
            "size": len(found.data),
            "mode": f"{status.st_mode & 0o7777:04o}",
            "modified": modified,
        },
    }
    return fit_texts(call, fields, cut={"content": "truncated"}, stored="content", seen=str(found.stamp))


# Native tools for a tree of files, over `files.listing`, `files.listing` and `files.grep`.

_AT_ONCE_ENTRIES: Final = 500
_MAX_NAMES: Final = 2_000_000
"""Entries of one directory that pages are made of."""


class NativeTreeTools:
    """See `families.native.runner`. `roots` are the only places of the tools."""

    def __init__(self, settings: RuntimeSettings, pool: DaemonPool, roots: tuple[str, ...]) -> None:
        self._settings = settings
        self._pool = pool
        self._roots = roots
        self._pager = Pager()

    def tools(self) -> Sequence[Tool]:
        """The tools, ready to run."""
        within = functools.partial(run_in_thread, pool=self._pool, timeout_s=self._settings.file_timeout_s)
        return (
            Tool(LIST_FILES, within(self._list_files), DESKTOP),
            Tool(LIST_DIR, within(self._list_dir), DESKTOP, run_at_once(self._list_dir)),
            Tool(GREP, within(self._grep), DESKTOP, run_at_once(self._grep)),
        )

    @functools.cached_property
    def _rg(self) -> Ripgrep | None:
        return find_ripgrep(os.environ.get("PATH", ""), self._settings.writable_places)

    def _list_files(self, call: CallContext) -> ToolOutput:
        arguments = call.request.arguments
        scope = narrow_scope(scope_of(call.request), self._roots)
        params = FilesParams(arguments["dir"], scope, arguments.get("exclude", ()), arguments.get("recursive", False))
        found = list_files(params, call.abandoned)
        fields: dict[str, Any] = {} if found.stopped is None else {"stopped": found.stopped}
        paths = list(map(name_for_json, found.paths))
        count = fitting(call, fields, paths)
        if count < len(paths):
            fields["truncated"] = True
        return answer({"files": paths[:count], **fields})

    def _list_dir(self, call: CallContext) -> ToolOutput:
        arguments = call.request.arguments
        params = PageParams(
            arguments["path"],
            narrow_scope(scope_of(call.request), self._roots),
            arguments.get("page_size", specs.PAGE_SIZE),
            arguments.get("page_token"),
            arguments.get("pattern"),
            arguments.get("recursive", False),
            arguments.get("include_files", True),
            arguments.get("include_dirs", True),
        )
        if not params.recursive:
            params = params._replace(max_entries=_MAX_NAMES)
        if call.at_once:
            if params.recursive or params.size > _AT_ONCE_ENTRIES:
                call.need_thread()
            if not self._pager.knows(params):
                refuse_far(params.path, stat.S_ISDIR)
                params = params._replace(max_entries=_AT_ONCE_ENTRIES)
        page = self._pager.page(params, call.abandoned)
        if page.stopped is not None:
            call.need_thread()
        return _render_page(call, page)

    def _grep(self, call: CallContext) -> ToolOutput:
        arguments = call.request.arguments
        most = arguments.get("max_file_bytes", specs.MAX_FILE_BYTES)
        granted = call.max_file_size_bytes
        params = GrepParams(
            arguments["path"],
            narrow_scope(scope_of(call.request), self._roots),
            arguments["pattern"],
            ignore_case=arguments.get("ignore_case", False),
            limit=arguments.get("max_results", specs.MAX_RESULTS),
            ignored_too=True,
            max_file_size_bytes=most if granted is None else min(most, granted),
            depth=MAX_DEPTH if arguments.get("recursive", False) else 1,
            max_files=arguments.get("max_files_visited", specs.MAX_FILES_VISITED),
            printable_only=True,
        )
        return _found(call, search(call, params, lambda: self._rg))


def _render_page(call: CallContext, page: Page) -> ToolOutput:
    rows = [{"path": name_for_json(path), "type": kind} for path, kind in page.entries]
    fields: dict[str, Any] = {} if page.stopped is None else {"stopped": page.stopped}
    count = fitting(call, fields, rows)
    if count < len(rows) or page.more:
        fields["next_page_token"] = token_of(page.entries[count - 1][0], page.root)
    return answer({"entries": rows[:count], **fields})


def _found(call: CallContext, outcome: GrepOutcome) -> ToolOutput:
    rows = list(_matches(outcome))
    passed_over = outcome.large + outcome.unreadable
    fields: dict[str, Any] = {} if outcome.stopped is None else {"stopped": outcome.stopped}
    if passed_over:
        fields["passed_over"] = passed_over
    count = fitting(call, fields, rows)
    if count < len(rows) or outcome.more:
        fields["truncated"] = True
    return answer({"matches": rows[:count], **fields})


def _matches(outcome: GrepOutcome) -> Iterator[dict[str, Any]]:
    for hit in outcome.hits:
        file = name_for_json(hit.path)
        for line in hit.lines:
            start = line.start or 0
            column = len(line.text[:start].decode("utf-8", "replace")) + 1
            yield {"file": file, "line": line.number, "column": column, "text": cut_line(line.text, start)}
