"""The tools of the skills family: a class for each kind of tool. A kind is imported with the first call of one of its
tools."""

from __future__ import annotations

import functools
import hashlib
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal

from agent_host.contracts import Leftovers
from agent_host.display_text import name_for_json
from tool_runtime.families.answers import DESKTOP, answer, excerpt, fit_texts, fitting
from tool_runtime.families.desktop import calls
from tool_runtime.families.desktop.calls import encode, mark_of, scope_of
from tool_runtime.families.desktop.file_tools import add_diff, settling_of
from tool_runtime.families.desktop.timeouts import request_timeout_s
from tool_runtime.families.desktop.tree_tools import cut_line, list_entries, search
from tool_runtime.families.programs import (
    command_params,
    environment_under,
    head_for_observers,
    refusals_of,
    render_stream,
    stream_to_store,
)
from tool_runtime.families.skills import specs
from tool_runtime.families.skills.specs import (
    DELETE_FILE,
    FAULT_NAMES,
    GREP,
    LIST_DIR,
    NETWORK_REQUEST,
    READ_FILE,
    RUN_SCRIPT,
    WRITE_FILE,
)
from tool_runtime.families.web import Web, body_text
from tool_runtime.files import move, read, write
from tool_runtime.files.globs import hidden_names
from tool_runtime.files.grep import GrepParams, find_ripgrep
from tool_runtime.files.listing import ListParams
from tool_runtime.files.writer import PRIVATE_DIRECTORY, open_directory, open_parent
from tool_runtime.output import artifacts
from tool_runtime.output.text import decode_body
from tool_runtime.output.truncate import truncate_characters
from tool_runtime.platform import WINDOWS
from tool_runtime.platform.programs import path_to_trust
from tool_runtime.processes.command import end_leftovers
from tool_runtime.tool import CallContext, FaultKind, Tool, ToolFault, cap, os_faults, run_at_once, run_in_thread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent_host.contracts import Artifact, ToolRequest
    from policy.facts import ScriptFacts
    from tool_runtime.families.programs import RunProgram
    from tool_runtime.files.grep import GrepOutcome, Ripgrep
    from tool_runtime.files.listing import ListedEntry, Listing
    from tool_runtime.files.read import WholeFile
    from tool_runtime.processes.command import Captured, CommandOutcome, CommandParams
    from tool_runtime.processes.scripts import SkillScripts
    from tool_runtime.settings import RuntimeSettings
    from tool_runtime.threads import DaemonPool
    from tool_runtime.tool import ToolOutput

Kind = Literal["files", "trees", "scripts", "requests"]
_KINDS: Final[Mapping[str, Kind]] = {
    **{spec.name: "files" for spec in (READ_FILE, WRITE_FILE, DELETE_FILE)},
    **{spec.name: "trees" for spec in (LIST_DIR, GREP)},
    RUN_SCRIPT.name: "scripts",
    NETWORK_REQUEST.name: "requests",
}


class SkillsRunner:
    """The family's tools, by name."""

    def __init__(
        self, settings: RuntimeSettings, pool: DaemonPool, run_program: RunProgram, scripts: SkillScripts | None
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._run_program = run_program
        self._skill_scripts = scripts
        self._tools: dict[str, Tool] = {}

    def tool(self, name: str) -> Tool:
        """Return the tool of this name. Raises KeyError for a name that is none of the family's."""
        if name not in self._tools:
            for tool in self._tools_of_kind(_KINDS[name]).tools():
                self._tools[tool.spec.name] = tool._replace(names=FAULT_NAMES)
        return self._tools[name]

    async def end_leftovers(self, request: ToolRequest) -> Leftovers:
        """See Provider."""
        scripts = request.tool_name == RUN_SCRIPT.name
        return await (self._scripts if scripts else self._files).end_leftovers(request)

    async def aclose(self) -> None:
        """Close pooled connections."""
        if "_requests" in self.__dict__:
            await self._requests.aclose()

    def _tools_of_kind(self, kind: Kind) -> SkillFileTools | SkillTreeTools | ScriptTools | SkillRequestTools:
        if kind == "files":
            return self._files
        if kind == "scripts":
            return self._scripts
        return self._trees if kind == "trees" else self._requests

    @functools.cached_property
    def _files(self) -> SkillFileTools:

        return SkillFileTools(self._settings, self._pool)

    @functools.cached_property
    def _trees(self) -> SkillTreeTools:

        return SkillTreeTools(self._settings, self._pool)

    @functools.cached_property
    def _scripts(self) -> ScriptTools:

        return ScriptTools(self._settings, self._pool, self._run_program, self._skill_scripts)

    @functools.cached_property
    def _requests(self) -> SkillRequestTools:

        return SkillRequestTools(self._settings, self._pool)


# Tools of the skills family for one file, over `files.read`, `files.write` and `files.move` (SK 5.1).


class SkillFileTools:
    """See `families.skills.runner`."""

    def __init__(self, settings: RuntimeSettings, pool: DaemonPool) -> None:
        self._settings = settings
        self._pool = pool

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
        scope, mark = calls.scope_of(request), calls.mark_of(request)
        try:
            path = request.arguments["path"]
            removed = await self._pool.run(lambda: write.remove_leftover(path, scope, mark))
        except (ToolFault, KeyError, TypeError):  # where the call may not write by now, nothing is touched
            return Leftovers()
        return Leftovers(removed)

    def _read(self, call: CallContext) -> ToolOutput:
        path, scope = call.request.arguments["path"], calls.scope_of(call.request)
        found = read.whole_file(path, scope, _most_bytes(call), call.abandoned, near_only=call.at_once)
        return _file_shown(call, found)

    def _write(self, call: CallContext) -> ToolOutput:
        request = call.request
        path: str = request.arguments["path"]
        params = write.WriteParams(
            path,
            calls.scope_of(request),
            calls.encode(request.arguments["content"], "content"),
            calls.mark_of(request),
            _most_bytes(call),
            expected=calls.expectation_of(request),
            kept=calls.place_to_keep(call),
        )
        outcome, diff = add_diff(write.write_file(params, call.abandoned), path, call)
        fields = {
            "path": name_for_json(path),
            "bytes_written": len(params.data),
            "sha256": hashlib.sha256(params.data).hexdigest(),
        }
        made = (artifacts.file_diff(request, diff)._replace(ref_field="diff_ref"),) if diff else ()
        return answer(fields, artifacts=made, seen=str(outcome.seen))._replace(settle=settling_of(outcome))

    def _delete(self, call: CallContext) -> ToolOutput:
        path, scope = call.request.arguments["path"], calls.scope_of(call.request)
        move.delete_file(path, scope, call.abandoned)
        return answer({"path": name_for_json(path), "deleted": True})


def _most_bytes(call: CallContext) -> int:
    return specs.FILE_BYTES if call.max_file_size_bytes is None else min(call.max_file_size_bytes, specs.FILE_BYTES)


def _file_shown(call: CallContext, found: WholeFile) -> ToolOutput:
    """The excerpt that the call asks for. What is more than one excerpt is stored with the first."""
    fields: dict[str, Any] = {
        "content_excerpt": f"[{len(found.data)} bytes that are no text]",
        "size": len(found.data),
        "sha256": hashlib.sha256(found.data).hexdigest(),
        "truncated": False,
    }
    text, seen = decode_body(found.data), str(found.stamp)
    if text is None:
        return answer(fields, seen=seen)
    start = call.request.arguments.get("offset", 0)
    end = excerpt(call, fields, "content_excerpt", text, start, specs.EXCERPT_CHARS)
    if end >= len(text):
        return answer(fields, seen=seen)
    fields |= {"truncated": True, "next_offset": end}
    if start:
        return answer(fields, seen=seen)
    stored = artifacts.tool_output(call.request, found.data, part="content")._replace(ref_field="storage_ref")
    return answer(fields, artifacts=(stored,), seen=seen)


# Tools of the skills family for a tree of files, over `files.listing` and `files.grep` (SK 5.2, 5.3).


class SkillTreeTools:
    """See `families.skills.runner`."""

    def __init__(self, settings: RuntimeSettings, pool: DaemonPool) -> None:
        self._settings = settings
        self._pool = pool
        self._hidden = hidden_names(settings.hidden_files)

    def tools(self) -> Sequence[Tool]:
        """The tools, ready to run."""
        within = functools.partial(run_in_thread, pool=self._pool, timeout_s=self._settings.file_timeout_s)
        return (
            Tool(LIST_DIR, within(self._list), DESKTOP, run_at_once(self._list)),
            Tool(GREP, within(self._grep), DESKTOP, run_at_once(self._grep)),
        )

    @functools.cached_property
    def _rg(self) -> Ripgrep | None:
        return find_ripgrep(os.environ.get("PATH", ""), self._settings.writable_places)

    def _list(self, call: CallContext) -> ToolOutput:
        arguments = call.request.arguments
        params = ListParams(
            arguments.get("path", self._settings.workspace),
            scope_of(call.request),
            offset=arguments.get("offset", 0),
            limit=arguments.get("max_entries", specs.ENTRIES),
            hidden=self._hidden,
        )
        return _render_listing(call, list_entries(call, params), params.offset)

    def _grep(self, call: CallContext) -> ToolOutput:
        arguments = call.request.arguments
        most, granted = specs.FILE_BYTES, call.max_file_size_bytes
        params = GrepParams(
            arguments.get("path", self._settings.workspace),
            scope_of(call.request),
            arguments["pattern"],
            arguments.get("glob"),
            arguments.get("mode", "content"),
            ignore_case=arguments.get("ignore_case", False),
            limit=arguments.get("max_results", specs.RESULTS),
            max_file_size_bytes=most if granted is None else min(most, granted),
            hidden=self._hidden,
        )
        return _found(call, params, search(call, params, lambda: self._rg))


def _render_listing(call: CallContext, listing: Listing, offset: int) -> ToolOutput:
    rows = list(map(_entry, listing.page))
    fields: dict[str, Any] = {"total": listing.total, "hidden": listing.hidden, "truncated": False}
    if listing.stopped is not None:
        fields["stopped"] = listing.stopped
    count = fitting(call, fields, rows)
    fields["truncated"] = offset + count < listing.total
    return answer({"entries": rows[:count], **fields})


def _entry(listed: ListedEntry) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name_for_json(listed.path), "type": listed.kind}
    return row if listed.size is None else {**row, "size": listed.size}


def _found(call: CallContext, params: GrepParams, outcome: GrepOutcome) -> ToolOutput:
    counts = {
        "hidden": outcome.hidden, "ignored": outcome.ignored, "passed_over": outcome.large + outcome.unreadable,
    }  # fmt: skip
    fields: dict[str, Any] = {"truncated": False, **{name: count for name, count in counts.items() if count}}
    if outcome.stopped is not None:
        fields["stopped"] = outcome.stopped
    name, rows = ("files", _files(outcome)) if params.mode == "files" else ("matches", _matches(outcome))
    count = fitting(call, fields, rows)
    fields["truncated"] = outcome.more or count < len(rows)
    return answer({name: rows[:count], **fields})


def _files(outcome: GrepOutcome) -> list[Any]:
    return [name_for_json(hit.path) for hit in outcome.hits]


def _matches(outcome: GrepOutcome) -> list[Any]:
    return [
        {"path": name_for_json(hit.path), "line": line.number, "text": cut_line(line.text, line.start or 0)}
        for hit in outcome.hits
        for line in hit.lines
    ]


# run_script, over `processes.scripts` and `processes.command`: a skill's script by its interpreter, never a shell (SK
# 5.4). Policy has judged both as a command.

_VARIABLES: Final = ("PATH", "HOME", "USER", "LANG", "LC_ALL")
"""All that a script finds in its environment, where the host has them."""
_ON_WINDOWS: Final = ("SYSTEMROOT", "COMSPEC", "PATHEXT", "USERPROFILE", "TEMP", "TMP")
"""Without these programs do not start there."""
_CAPTURED_BYTES: Final = 4 * specs.OUTPUT_CHARS
_MAX_LISTED: Final = 50
_CUT: Final = {"stdout": "stdout_truncated", "stderr": "stderr_truncated"}


class ScriptTools:
    """See `families.skills.runner`. `scripts` are those of the skills, None where there are none."""

    def __init__(
        self, settings: RuntimeSettings, pool: DaemonPool, run_program: RunProgram, scripts: SkillScripts | None
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._run_program = run_program
        self._scripts = scripts

    def tools(self) -> Sequence[Tool]:
        """The tool, ready to run."""
        return (Tool(RUN_SCRIPT, cap(self._run), DESKTOP),)

    async def end_leftovers(self, request: ToolRequest) -> Leftovers:
        """See Provider. A script leaves processes behind, as a command does."""
        return await end_leftovers(mark_of(request), self._pool)

    @functools.cached_property
    def _environment(self) -> Mapping[str, str]:
        wanted = (*_VARIABLES, *_ON_WINDOWS) if WINDOWS else _VARIABLES
        shown = {name: value for name, value in environment_under(self._settings).items() if name.upper() in wanted}
        # An interpreter may be a script of `env` itself, as pyenv's are.
        return shown | {"PATH": path_to_trust(shown.get("PATH", os.defpath), self._settings.writable_places)}

    async def _run(self, call: CallContext) -> ToolOutput:
        if self._scripts is None:
            raise ToolFault(FaultKind.NOT_FOUND, f"there is no skill {call.request.arguments['skill']}")
        scripts, args = self._scripts, _args(call)
        script, cwd = await self._pool.run(lambda: _prepare(call, scripts))
        params = self._params(call, [*script.argv, script.path, *args], cwd)
        began = time.monotonic()
        try:
            outcome = await self._run_program(params)
        finally:
            left = [] if cwd == script.folder else await self._pool.run(lambda: _files_left(cwd))
        duration_ms = int((time.monotonic() - began) * 1000)
        output = _script_shown(call, outcome, duration_ms, {"sandbox": cwd, "files": left} if left else {})
        if outcome.timed_out:
            said = "; ".join(filter(None, (f"timed out after {params.timeout_s:g} seconds", outcome.left.note())))
            raise ToolFault(FaultKind.TIMED_OUT, said, partial=output)
        if outcome.exit_code:
            said = f"{script.relative_path} of the skill {script.skill} ended with exit code {outcome.exit_code}"
            raise ToolFault(FaultKind.EXIT_NONZERO, said, partial=output)
        return output

    def _params(self, call: CallContext, argv: list[str], cwd: str) -> CommandParams:
        longest = self._settings.script_timeout_s
        return command_params(
            call.request,
            self._settings,
            argv,
            cwd,
            self._environment,
            timeout_s=min(call.request.arguments.get("timeout_s", longest), longest),
            max_output_bytes=_CAPTURED_BYTES,
        )


def _args(call: CallContext) -> Sequence[str]:
    """Raises ToolFault for what no program can be given."""
    args: Sequence[str] = call.request.arguments.get("args", ())
    for word in args:
        encode(word, "args")
        if "\0" in word:
            raise ToolFault(FaultKind.INVALID_ARGUMENT, "$.args: a word holds a NUL character")
    return args


def _prepare(call: CallContext, scripts: SkillScripts) -> tuple[ScriptFacts, str]:
    """The script, which is the one that policy has judged, and a directory for it. Raises ToolFault."""
    arguments = call.request.arguments
    script = scripts.find(arguments["skill"], arguments["relative_path"])
    if not script.argv:
        raise ToolFault(FaultKind.OUT_OF_SCOPE, f"it is no script of the skill {script.skill}: {script.path}")
    if call.request.judged not in (None, script.identity):
        raise ToolFault(FaultKind.PATH_CHANGED, f"the script has changed since it was judged: {script.path}")
    if arguments.get("cwd") == "skill":
        return script, script.folder
    name = f"run-{os.urandom(8).hex()}"
    with os_faults(scripts.sandbox), open_directory(scripts.sandbox, create=PRIVATE_DIRECTORY) as directory:
        directory.make_directory(name, PRIVATE_DIRECTORY)
    return script, os.path.join(scripts.sandbox, name)


def _files_left(sandbox: str) -> list[str]:
    """The files that a script left in its directory, by name. An empty one goes."""
    try:
        with open_directory(sandbox) as directory:
            names = directory.names()
    except OSError:  # the script took it away, or put a link there
        return []
    if not names:
        with suppress(OSError), open_parent(sandbox) as (directory, name):
            directory.remove_directory(name)
    return list(map(name_for_json, names[:_MAX_LISTED]))


def _script_shown(call: CallContext, outcome: CommandOutcome, duration_ms: int, more: Mapping[str, Any]) -> ToolOutput:
    fields: dict[str, Any] = {
        "exit_code": outcome.exit_code,
        "timeout": outcome.timed_out,
        "duration_ms": duration_ms,
    }
    stored: list[Artifact] = []
    for name, captured in (("stdout", outcome.stdout), ("stderr", outcome.stderr)):
        text, is_cut = _cut(captured)
        fields |= {name: text, _CUT[name]: is_cut}
        artifact = stream_to_store(call, captured, name, is_kept=is_cut)
        if artifact is not None:
            stored.append(artifact._replace(ref_field=f"{name}_ref", hash_field=f"{name}_sha256"))
    told = {**fields, **more, **refusals_of(outcome)}
    output = fit_texts(call, told, cut=_CUT, exit_code=outcome.exit_code, denials=outcome.denials)
    return output._replace(artifacts=tuple(stored), stderr=head_for_observers(outcome.stderr))


def _cut(captured: Captured) -> tuple[str, bool]:
    text, is_cut = render_stream(captured, _CAPTURED_BYTES)
    shown = truncate_characters(text, specs.OUTPUT_CHARS)
    return shown, is_cut or shown is not text


# network_request, over `web.http`. An HTTP error status is no failure of the call.


class SkillRequestTools:
    """See `families.skills.runner`."""

    def __init__(self, settings: RuntimeSettings, pool: DaemonPool) -> None:
        self._settings = settings
        self._body_bytes = min(settings.http_max_body_bytes, specs.BODY_BYTES)
        self._web = Web(settings._replace(http_max_body_bytes=self._body_bytes), pool)

    def tools(self) -> Sequence[Tool]:
        """The tool, ready to run."""
        return (Tool(NETWORK_REQUEST, cap(self._request), DESKTOP),)

    async def aclose(self) -> None:
        """Close pooled connections."""
        await self._web.aclose()

    async def _request(self, call: CallContext) -> ToolOutput:
        arguments, settings = call.request.arguments, self._settings
        outcome = await self._web.fetch(
            call.request,
            encode(arguments.get("body", ""), "body"),
            arguments.get("headers", {}),
            timeout_s=min(arguments.get("timeout_s", request_timeout_s(settings)), settings.http_timeout_max_s),
            most_bytes=self._body_bytes,
        )
        text = body_text(outcome)
        fields: dict[str, Any] = {
            "status": outcome.status,
            "headers": dict(outcome.headers),
            "sha256": hashlib.sha256(outcome.body).hexdigest(),
            "truncated": False,
        }
        end = excerpt(call, fields, "content_excerpt", text, 0, specs.EXCERPT_CHARS)
        if end == len(text) and not outcome.body_cut:
            return answer(fields)
        fields["truncated"] = True
        stored = artifacts.tool_output(call.request, outcome.body, part="body")._replace(ref_field="storage_ref")
        return answer(fields, artifacts=(stored,))
