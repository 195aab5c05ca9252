"""A project's own tools as a Provider: JSON input on stdin, JSON output on stdout, both checked by the schemas of the
manifest. They run like commands, with the same environment and marks, and processes that they leave running are
terminated.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import tomllib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from agent_host.contracts import Leftovers, ToolSpec
from config import json_text
from config.json_text import describe_toml
from config.shapes import ANYTHING, FLAG, TEXT, ListOf, MapOf, Record, all_problems, number, one_of
from tool_runtime.families import DESKTOP
from tool_runtime.families.catalogue import RESERVED
from tool_runtime.families.commands import command_params, environment_under
from tool_runtime.families.python_tools import NAME
from tool_runtime.families.schemas import INVOKES
from tool_runtime.files import Scope
from tool_runtime.files.read import whole_file
from tool_runtime.output import decode_output, truncate_text
from tool_runtime.output.artifacts import tool_output
from tool_runtime.platform import current
from tool_runtime.processes.command import end_leftovers
from tool_runtime.schema import UnusableSchema
from tool_runtime.threads import DaemonPool
from tool_runtime.tool import Abandoned, CallContext, FaultKind, Tool, ToolFault, ToolOutput, judge_of, mark_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agent_host.contracts import Effect, ToolRequest
    from tool_runtime.families.commands import RunProgram
    from tool_runtime.processes.command import CommandOutcome
    from tool_runtime.tool import RuntimeSettings

_MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
_SHOWN_BYTES: Final = 8 * 1024


class ProjectTools:
    """A Provider of the tools in the manifests of `settings.workspace`, read again for each task. `run` runs a program
    like a command; `unusable` has the problems of other manifests."""

    def __init__(self, settings: RuntimeSettings, run: RunProgram) -> None:
        self._settings = settings
        self._run_program = run
        self._pool = DaemonPool(2)
        self._tools: dict[str, _ProjectTool] = {}
        self.unusable: dict[str, tuple[str, ...]] = {}

    async def tools(self) -> Sequence[ToolSpec]:
        """See Provider."""
        self._tools, self.unusable = await self._pool.run(lambda: _tools_in(self._settings.workspace))
        return [tool.spec for tool in self._tools.values()]

    def get(self, name: str) -> Tool | None:
        """See Provider."""
        tool = self._tools.get(name)
        return None if tool is None else Tool(tool.spec, functools.partial(self._run, tool), DESKTOP)

    async def end_leftovers(self, request: ToolRequest) -> Leftovers:
        """See Provider. A tool can leave processes running, as a command can."""
        return await end_leftovers([mark_of(request)], self._pool)

    async def aclose(self) -> None:
        """See Provider."""
        self._pool.close()

    @functools.cached_property
    def _environment(self) -> Mapping[str, str]:
        return environment_under(self._settings)

    async def _run(self, tool: _ProjectTool, call: CallContext) -> ToolOutput:
        name, settings = tool.spec.name, self._settings
        workspace, timeout_s = settings.workspace, settings.default_command_s
        now = await self._pool.run(lambda: _project_tool(workspace, name))
        if now.spec.identity != tool.spec.identity:
            raise ToolFault(FaultKind.ACCESS_DENIED, f"the files of the tool {name} have changed since it was judged")
        if tool.timeout_s is not None:
            timeout_s = min(tool.timeout_s, settings.command_timeout_max_s)
        argv, environment = _command_line(workspace, tool.argv), {**self._environment, "PWD": workspace}
        how: dict[str, Any] = {"timeout_s": timeout_s, "max_output_bytes": _MAX_ANSWER_BYTES}
        stdin = orjson.dumps(dict(call.arguments))
        params = command_params(call.request, settings, argv, workspace, environment, stdin=stdin, **how)
        outcome = await self._run_program(params._replace(on_output=None))
        try:
            return self._answer(call, tool, outcome)
        finally:
            outcome.stdout.spill.close()
            outcome.stderr.spill.close()

    def _answer(self, call: CallContext, tool: _ProjectTool, outcome: CommandOutcome) -> ToolOutput:
        name = tool.spec.name
        printed = decode_output(outcome.stderr.ends.render(_SHOWN_BYTES), crlf=current.CRLF).strip()
        refused = " ".join(outcome.refused.splitlines())
        details = "".join(f": {one}" for one in (printed, refused) if one)
        if outcome.timed_out:
            raise ToolFault(FaultKind.TIMED_OUT, f"{name} took too long{details}")
        if outcome.exit_code != 0:
            raise ToolFault(FaultKind.SYSTEM, f"{name} ended with exit code {outcome.exit_code}{details}")
        if outcome.stdout.ends.total > _MAX_ANSWER_BYTES:
            raise ToolFault(FaultKind.SYSTEM, f"{name} printed more than {_MAX_ANSWER_BYTES} bytes")
        raw = outcome.stdout.ends.render(_MAX_ANSWER_BYTES)
        try:
            value: Any = json_text.loads(raw)
        except orjson.JSONDecodeError as error:
            raise ToolFault(FaultKind.SYSTEM, f"{name} printed no JSON: {error}{details}") from error
        if tool.output is not None:
            wrong = judge_of(tool.output, foreign=True)(value)
            if wrong is not None:
                raise ToolFault(FaultKind.SYSTEM, f"what {name} printed does not fit its output schema: {wrong}")
        data = orjson.dumps(value)
        text = truncate_text(data.decode(), call.max_output_bytes)
        if len(data) <= self._settings.artifact_threshold_bytes:
            return ToolOutput(text, capped=True)
        return ToolOutput(text, (tool_output(call.request, data, part="result"),), capped=True)


def specs_in(workspace: str) -> tuple[list[ToolSpec], dict[str, tuple[str, ...]]]:
    """The tools of a workspace without a session, and the problems of other manifests. Blocking."""
    usable, unusable = _tools_in(workspace)
    return [tool.spec for tool in usable.values()], unusable


def missing_programs(workspace: str, search_path: str) -> dict[str, str]:
    """The usable manifests of a workspace whose programs could not be started now, by name, and why. Blocking."""
    usable, _ = _tools_in(workspace)
    found = {name: _program_problem(workspace, tool.argv, search_path) for name, tool in usable.items()}
    return {name: why for name, why in found.items() if why is not None}


def _program_problem(workspace: str, argv: Sequence[str], search_path: str) -> str | None:
    program = _command_line(workspace, argv)[0]
    if os.sep not in program:
        found = any(os.access(os.path.join(one, program), os.X_OK) for one in search_path.split(os.pathsep))
        return None if found else f"its program {program} is not in PATH"
    path = os.path.join(workspace, program)
    if not os.path.isfile(path):
        return f"its program {argv[0]} does not exist"
    return None if os.access(path, os.X_OK) else f"its program {argv[0]} may not be run: chmod +x {path}"


# A manifest, `.agent/tools/NAME.toml` (NT, interface section 1), belongs to the workspace, and is hostile like its
# other files: it is read with bounds, cannot use the name of another tool, and its tool runs only if policy lists it
# and a person has approved its parts.

FOLDER: Final = os.path.join(".agent", "tools")
_SUFFIX: Final = ".toml"
_MAX_MANIFEST_BYTES: Final = 256 * 1024
_MAX_PROGRAM_BYTES: Final = 64 * 1024 * 1024
_MAX_TOOLS: Final = 100
_MAX_DESCRIPTION: Final = 4096
_EFFECTS: Final = ("none", "replace", "edit", "delete", "other")
_ANY: Final = MapOf(ANYTHING)
_SHAPE: Final = Record(
    {"name": TEXT, "description": TEXT, "argv": ListOf(TEXT), "side_effects": FLAG, "input": _ANY},
    {"timeout_s": number(0.1, 86_400), "effect": one_of(*_EFFECTS), "output": _ANY},
    closed=True,
)


class _ProjectTool(NamedTuple):
    """A tool. `timeout_s` None means the settings' timeout; `output` is the schema of its output, None if there is
    none. The identity in its record is the SHA-256 of the manifest and of each element of its argv that is a file of
    the workspace, by its real path and its content."""

    spec: ToolSpec
    argv: tuple[str, ...]
    timeout_s: float | None
    output: Mapping[str, Any] | None


class _UnusableManifest(ToolFault):
    def __init__(self, *problems: str) -> None:
        super().__init__(FaultKind.INVALID_ARGUMENT, "; ".join(problems))
        self.problems = problems


def _tools_in(workspace: str) -> tuple[dict[str, _ProjectTool], dict[str, tuple[str, ...]]]:
    """The tools of a workspace, by name, and the problems of other manifests, by their names. Blocking."""
    usable: dict[str, _ProjectTool] = {}
    unusable: dict[str, tuple[str, ...]] = {}
    for name in _names(os.path.join(workspace, FOLDER)):
        try:
            tool = _project_tool(workspace, name)
        except ToolFault as fault:
            unusable[name] = fault.problems if isinstance(fault, _UnusableManifest) else (str(fault),)
            continue
        field = "input"
        try:
            judge_of(tool.spec.input_schema, foreign=True)
            field = "output"
            if tool.output is not None:
                judge_of(tool.output, foreign=True)
            usable[name] = tool
        except UnusableSchema as error:
            unusable[name] = (f"$.{field}: {error}",)
    return usable, unusable


def _project_tool(workspace: str, name: str) -> _ProjectTool:
    scope, abandoned = Scope((workspace,)), Abandoned()
    raw = whole_file(os.path.join(workspace, FOLDER, name + _SUFFIX), scope, _MAX_MANIFEST_BYTES, abandoned).data
    tool = _read_manifest(name, raw)
    digest = hashlib.sha256(b"manifest\0" + hashlib.sha256(raw).digest())
    for place, element in enumerate(tool.argv):
        spelled = os.path.normpath(os.path.join(workspace, element))
        if _is_file_of(workspace, spelled):
            content = whole_file(spelled, Scope(None), _MAX_PROGRAM_BYTES, abandoned).data
            real = os.fsencode(os.path.realpath(spelled))
            digest.update(b"%d\0%s\0%s" % (place, real, hashlib.sha256(content).digest()))
    return tool._replace(spec=tool.spec._replace(identity=digest.hexdigest()))


def _command_line(workspace: str, argv: Sequence[str]) -> list[str]:
    program, *others = argv
    at = os.path.normpath(os.path.join(workspace, program))
    return [at if os.sep in program and _is_file_of(workspace, at) else program, *others]


def _is_file_of(workspace: str, path: str) -> bool:
    """True if a path in the workspace is a file there, a link to one elsewhere included."""
    return path.startswith(workspace.rstrip(os.sep) + os.sep) and os.path.isfile(path)


def _names(folder: str) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            found = sorted(entry.name for entry in entries if entry.name.endswith(_SUFFIX))
    except OSError:
        return
    yield from (name.removesuffix(_SUFFIX) for name in found[:_MAX_TOOLS])


def _read_manifest(name: str, raw: bytes) -> _ProjectTool:
    try:
        manifest = tomllib.loads(raw.decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _UnusableManifest(describe_toml(raw, error)) from error
    found = all_problems(_SHAPE, manifest, "$")
    if found:
        raise _UnusableManifest(*map(str, found))
    effect = manifest.get("effect", "other" if manifest["side_effects"] else "none")
    checks = (
        (manifest["name"] != name, f"$.name: has to be that of its file, {name}"),
        (not re.fullmatch(NAME, name) or name.startswith(RESERVED), f"$.name: {name!r} cannot be the name of a tool"),
        (not manifest["description"].strip(), "$.description: is empty"),
        (len(manifest["description"]) > _MAX_DESCRIPTION, f"$.description: at most {_MAX_DESCRIPTION} characters"),
        (
            not manifest["argv"] or not all(manifest["argv"]),
            "$.argv: names a program and its arguments, none of them empty",
        ),
        (any("\0" in one for one in manifest["argv"]), "$.argv: contains a NUL character"),
        (
            (effect == "none") is manifest["side_effects"],
            "$.effect: none is for a tool without side effects, and only for it",
        ),
        (manifest["input"].get("type") != "object", '$.input: is the schema of an object: type = "object"'),
        (not _is_json(manifest), "$: a date or a time has to be a text"),
    )
    wrong = [why for is_wrong, why in checks if is_wrong]
    if wrong:
        raise _UnusableManifest(*wrong)
    argv = tuple(manifest["argv"])
    does: Effect = "none" if effect == "none" else "other"
    spec = ToolSpec(
        name, manifest["description"], manifest["input"], effect=does, category="commands", runs=argv, **INVOKES
    )
    return _ProjectTool(spec, argv, manifest.get("timeout_s"), manifest.get("output"))


def _is_json(value: Any) -> bool:
    """TOML has dates, and JSON Schema has not."""
    if isinstance(value, dict | list):
        return all(map(_is_json, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str | int | float)
