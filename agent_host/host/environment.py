"""This machine and the workspace as policy and the tools see them: its shell, the level of its sandbox, the tools that
this program brings along, and which of them the configuration takes away."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import re
import threading
from typing import TYPE_CHECKING, Any, Final, overload

from agent_host.contracts import Subject, ToolSpec
from agent_host.errors import TOKEN_VARIABLE, ErrorCode, SandboxWeaker, UsageError
from agent_host.ids import MACHINE
from agent_host.judging import Environment, Registry
from agent_host.services import GRANT_KEY_VARIABLE, TOOLS_TOKEN_VARIABLE
from agent_host.services import TOKEN_VARIABLE as SERVICES_TOKEN_VARIABLE
from agent_host.version import __version__
from config.lean_typing import NamedTuple
from config.load import user_skills
from config.settings import ALL_TOOLS
from policy import LEVELS, READ_SKILLS, RISK_LEVELS, STRONGEST, CapabilityName, is_weaker
from policy.bundle import BundleProblems
from policy.rules import NativeExec, ToolLimit
from policy.rules.toolset import only_enabled
from policy.urls import UrlProblem, canonical_domain
from state import WriteFailed
from state import temporary as temporary_directory
from state.disk import LOCAL_DISK, ThreadJob
from state.keys import SandboxLevels
from state.temporary import system_directory
from tool_runtime.families.catalogue import FAMILIES, RESERVED, SPECS, specs_of
from tool_runtime.families.desktop import UPLOAD_ARTIFACT, upload_problem
from tool_runtime.families.python_tools import TIMEOUT_S
from tool_runtime.families.python_tools import PythonTool as PythonTool
from tool_runtime.families.schemas import usable_arguments
from tool_runtime.platform import OS_FAMILY, current
from tool_runtime.platform.environment import child_environment, is_within, looks_secret
from tool_runtime.platform.landlock import rules_for
from tool_runtime.sandbox import look
from tool_runtime.tool import ToolFault, judge_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from agent_host.ids import Outside
    from agent_host.session.opening import ResolvedOptions
    from config.settings import Settings
    from policy import CommandScope, SandboxLevel
    from policy.facts import ShellName
    from policy.rules import Limits
    from state.checkpoint import Checkpoint
    from state.disk import Disk, StartJob
    from tool_runtime.files.skills import Skill, SkillIndex
    from tool_runtime.processes.command import CommandParams, RunningCommand, StartCommand
    from tool_runtime.processes.guard import ProcessGuard
    from tool_runtime.processes.scripts import SkillScripts
    from tool_runtime.sandbox.session import Sandbox
    from tool_runtime.threads import DaemonPool

    Levels = Mapping[str, Mapping[str, Any]]
    """{works, problem, unheld, isPassing?} of each level."""


SECRET_VARIABLES = frozenset({TOKEN_VARIABLE, SERVICES_TOKEN_VARIABLE, TOOLS_TOKEN_VARIABLE, GRANT_KEY_VARIABLE})


def secret_variables(settings: Settings) -> frozenset[str]:
    """The variables that no child process gets under any configuration: the host's own tokens, the key of the provider,
    and the tokens for MCP servers."""
    named = (table.get("token_env") for table in settings.mcp.servers)
    own = () if settings.provider is None else (settings.provider.key_env,)
    return SECRET_VARIABLES | {name for name in (*named, *own) if isinstance(name, str)}


_SHELLS: dict[str, ShellName] = {
    "bash": "bash",
    "zsh": "zsh",
    "cmd.exe": "cmd",
    "cmd": "cmd",
    "powershell.exe": "powershell",
    "pwsh": "powershell",
}


class Surroundings(NamedTuple):
    """Everything that a session gets from outside its own process, apart from its event loop (decision 0110): a test
    replaces it and runs a whole session from one seed. `background` starts background work of the store,
    `start_command` a command of a tool."""

    outside: Outside
    disk: Disk
    background: StartJob
    start_command: StartCommand


def start_here(
    params: CommandParams, pool: DaemonPool, guard: ProcessGuard | None, sandbox: Sandbox | None
) -> RunningCommand:
    """See StartCommand: as processes of this machine."""
    from tool_runtime.processes.command import LocalCommand  # with the first command

    return LocalCommand(params, pool, guard, sandbox)


THIS_MACHINE: Final = Surroundings(MACHINE, LOCAL_DISK, ThreadJob, start_here)
"""The surroundings of every session but those of tests."""


class LocalMachine(NamedTuple):
    """The machine and the workspace as tools and policy see them. `shell` is the path of the one that runs commands,
    `temporary` the session's own directory for temporary files."""

    shell: str
    environment: Environment
    temporary: str


def machine_of(resolved: ResolvedOptions, temporary: str) -> LocalMachine:
    """This machine, with the session's workspace and the session's temporary directory."""
    variables = command_environment(resolved.settings, temporary)
    environment = this_environment(resolved.workspace, variables, temporary)
    return LocalMachine(host_shell(resolved.workspace, temporary), environment, temporary)


def host_shell(workspace: str, temporary: str | None = None) -> str:
    """The path of the shell that the host starts for commands: none of the workspace or the temporary directory."""
    return current.default_shell(os.environ, (workspace,) if temporary is None else (workspace, temporary))


def command_environment(settings: Settings, temporary: str) -> dict[str, str]:
    """The environment of a session's commands, without what looks like a secret: policy reads lines by it."""
    shown = child_environment(
        os.environ,
        secret=secret_variables(settings),
        passthrough=frozenset(settings.tools.env_passthrough),
        temporary=temporary,
        allowed=variables_to_allow(settings),
    )
    return {name: value for name, value in shown.items() if not looks_secret(name)}


def variables_to_allow(settings: Settings) -> frozenset[str] | None:
    """The only variables that commands take over, None for all."""
    names = frozenset(settings.tools.env_allowed)
    return None if ALL_TOOLS in names else names


def this_environment(
    workspace: str, environment: Mapping[str, str] | None = None, temporary: str | None = None
) -> Environment:
    """This machine as policy sees it. `workspace` is a real path, `environment` what commands find in theirs, and
    `temporary` the directory of the session for temporary files."""
    shell = os.path.basename(host_shell(workspace, temporary)).lower()
    home = os.path.expanduser("~")
    return Environment(
        workspace=workspace,
        home=os.path.realpath(home) if os.path.isabs(home) else None,
        os_family=OS_FAMILY,
        shell=_SHELLS.get(shell, "sh"),
        environment=environment or {},
    )


def project_tool_names(workspace: str) -> frozenset[str]:
    """The names of the workspace's manifests of tools of its own."""
    try:
        names = os.listdir(os.path.join(workspace, ".agent", "tools"))
    except OSError:
        return frozenset()
    return frozenset(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def limits_of(settings: Settings, *, has_skills: bool = True) -> Limits:
    """The limits that the configuration sets on the tools (SK 3.1), and on those of skills (SK 3.2)."""
    limits = {ToolLimit("tools.disabled in the configuration", withheld=frozenset(settings.tools.disabled))}
    allowed = frozenset(settings.tools.allowed)
    if ALL_TOOLS not in allowed:
        limits.add(ToolLimit("tools.allowed in the configuration", allowed=allowed))
    ceiling = RISK_LEVELS[settings.rank("policy.risk_ceiling")]
    if ceiling != RISK_LEVELS[-1]:
        limits.add(ToolLimit("policy.risk_ceiling in the configuration", risk_ceiling=ceiling))
    if has_skills:
        limits.add(only_enabled(settings.skills.enabled_tools))
    return frozenset(limits)


# Configuration of the families of tools, and of the native one.

_EXEC = "native.exec"


def families_of(settings: Settings) -> tuple[str, ...]:
    """The families whose tools the model sees, each once."""
    return tuple(dict.fromkeys(settings.host.toolset))


def native_roots(settings: Settings, workspace: str) -> tuple[str, ...]:
    """The real paths that native tools keep to: the root directory, by default the workspace, and the additional ones.
    Raises UsageError for one that is not absolute or no directory."""
    first, others = settings.native.root_dir, settings.native.additional_roots
    named = {f"additional_roots[{place}]": path for place, path in enumerate(others)} | {"root_dir": first}
    wrong = [
        f"configuration: native.{key}: {path!r} is not an absolute path of a directory"
        for key, path in named.items()
        if path and not (os.path.isabs(path) and os.path.isdir(path))
    ]
    if wrong:
        raise UsageError(*wrong)
    return tuple(dict.fromkeys(os.path.realpath(path) for path in (first or workspace, *others)))


def native_list(settings: Settings, workspace: str) -> NativeExec:
    """The programs that native tools start. Raises UsageError with every problem of the entries."""
    from policy.bundle.validate import command_policies
    from policy.rules.native_exec import DEFAULT, path_problem

    try:
        shape = json.loads(json.dumps(settings.native.exec))
        added = command_policies(shape, _EXEC)
    except (BundleProblems, TypeError) as error:
        found = error.problems if isinstance(error, BundleProblems) else (error,)
        raise UsageError(*(f"configuration: {one}" for one in found)) from error
    problems = [problem for policy in added if (problem := path_problem(policy.command, OS_FAMILY)) is not None]
    if problems:
        raise UsageError(*(f"configuration: {_EXEC}: {problem}" for problem in problems))
    return NativeExec((*DEFAULT, *added), native_roots(settings, workspace))


# The tools that this program brings along, without a session: nothing is started for them.

_ANYTHING: Final = {"type": "object"}
BUILT_IN = Registry((*SPECS, UPLOAD_ARTIFACT))
"""Those of a session that chooses no family."""
CAPABILITIES = tuple(sorted(BUILT_IN.capabilities | {CapabilityName.LLM_CALL.value, CapabilityName.TOOL_INVOKE.value}))
"""All that this host can make use of in a bundle."""


def built_in(families: Collection[str] = FAMILIES) -> Registry:
    """The tools of these families. Raises KeyError for a family that there is not."""
    return Registry(specs_of(families))


class AlsoElsewhere(Registry):
    """Tools, and also every unknown `server/tool`: judged by its name."""

    def get(self, name: str) -> ToolSpec | None:
        """See Registry."""
        known = super().get(name)
        if known is not None or not re.fullmatch(r"[^/\s]+/\S+", name):
            return known
        return ToolSpec(
            name, "", _ANYTHING, capability="Mcp.Invoke", subject=Subject("name"), effect="other", category="requests"
        )


def argument_problem(spec: ToolSpec | None, arguments: Mapping[str, Any]) -> str | None:
    """The reason for which the tool refuses the given arguments, in the host's words; None if it accepts them, or is
    not known. Missing arguments are no problem: a case needs only those that it is judged by."""
    if spec is None:
        return None
    wrong = judge_of({**spec.schema_to_check, "required": []}, foreign=spec.foreign_schema)(arguments)
    return upload_problem(arguments) if wrong is None and spec is UPLOAD_ARTIFACT else wrong


def usable(spec: ToolSpec | None, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments as the loop gives them to policy; see `ToolRouter.usable_arguments`."""
    if spec is None:
        return arguments
    return usable_arguments(spec, arguments, judge_of(spec.schema_to_check, foreign=spec.foreign_schema))


# The skills of a session: their folders, the family's tools that the configuration enables, and their scripts.

_HIDDEN: Final = "skills.hidden_files"
_RUN_SCRIPT: Final = "run_script"
_HAS_RUN: Final = frozenset(
    {None, ErrorCode.TOOL_EXECUTION_FAILED, ErrorCode.TOOL_EXECUTION_TIMEOUT, ErrorCode.TOOL_INTERRUPTED}
)
"""The codes of calls that had started."""


def skill_index(workspace: str) -> SkillIndex | None:
    """The user's skills and the workspace's; None if there is no folder of skills."""
    # The user's comes first: a workspace takes no name from it. One beside a configuration in the workspace is the
    # workspace's.
    own = user_skills(os.environ)
    folders = [] if own is None else [(own, is_within(own, (workspace,)))]
    folders.append((os.path.join(workspace, ".agent", "skills"), True))
    if not any(os.path.isdir(path) for path, _ in folders):
        return None
    return _index_of((path, of_workspace) for path, of_workspace in folders if os.path.isdir(path))


def _index_of(folders: Iterable[tuple[str, bool]]) -> SkillIndex:
    from tool_runtime.files.skills import SkillFolder, SkillIndex  # with the first folder of skills

    return SkillIndex(SkillFolder(path, of_workspace) for path, of_workspace in folders)


def skill_called(index: SkillIndex | None, name: str) -> Skill:
    """The skill of this name. Raises UsageError."""
    try:
        return (index or _index_of(())).find(name)
    except ToolFault as error:
        raise UsageError(str(error)) from error


def skill_scripts(
    settings: Settings, index: SkillIndex | None, sandbox: str, workspace: str, temporary: str
) -> SkillScripts:
    """The scripts of these skills, as a session with this folder for their directories runs them."""
    from tool_runtime.processes.scripts import SkillScripts

    path = command_environment(settings, temporary).get("PATH", os.defpath)
    runs = settings.skills.max_script_runs
    return SkillScripts(index or _index_of(()), path, os.path.realpath(sandbox), runs, (workspace, temporary))


def script_runs(state: Checkpoint) -> int:
    """The number of scripts that the current task has started, by the record."""
    finished = () if state.task is None else state.task.finished_calls
    under_way = () if state.open_step is None else state.open_step.calls
    ran = [name for name, _, code in finished if code in _HAS_RUN]
    return [*ran, *(call.tool_name for call in under_way if call.started)].count(_RUN_SCRIPT)


def hidden_files(settings: Settings) -> tuple[str, ...]:
    """Globs of the names that the family does not list. Raises UsageError for one that means nothing."""
    from tool_runtime.files.listing import BadGlob, hidden_names

    globs = settings.skills.hidden_files
    try:
        hidden_names(globs)
    except BadGlob as error:
        raise UsageError(f"configuration: {_HIDDEN}: {error}") from error
    return globs


# `agent_host.tool`: a typed function becomes a tool of the sessions that get it in their options.


@overload
def tool(function: Callable[..., Any], /) -> PythonTool: ...


@overload
def tool(
    *, name: str | None = None, description: str | None = None, side_effects: bool = True, timeout_s: float = TIMEOUT_S
) -> Callable[[Callable[..., Any]], PythonTool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    side_effects: bool = True,
    timeout_s: float = TIMEOUT_S,
) -> PythonTool | Callable[[Callable[..., Any]], PythonTool]:
    """Make a tool of a function, as `@tool` or `@tool(side_effects=False)`; `SessionOptions.tools` takes it.

    The model reads `name`, by default the function's own, and `description`, by default its docstring. Its parameters
    need annotations: pydantic makes the input schema from them, and checks the arguments of each call. A coroutine
    function runs on the session's event loop, any other in a thread. Its return value goes to the model, text unchanged
    and anything else as JSON; an exception fails the call, with its message. A call may take `timeout_s` seconds. With
    `side_effects=False` a call that a crash interrupted is run again: it must change nothing.

    Policy judges each call by Tool.Invoke. Raises TypeError for a function that cannot be a tool.
    """

    def make(function: Callable[..., Any]) -> PythonTool:
        text = description if description is not None else inspect.getdoc(function)
        called = str(name or getattr(function, "__name__", ""))
        if not text:
            raise TypeError(f"the tool {called} has neither a docstring nor a description for the model")
        return PythonTool(function, name=called, description=text, side_effects=side_effects, timeout_s=timeout_s)

    return make if function is None else make(function)


# The Python tools of a session: those that the embedding program gives, and those of installed packages that the
# user's configuration names.

ENTRY_POINTS: Final = "agent_host.tools"
"""The group in which a package names its tools: each entry is a tool or a list of them."""
_SETTING: Final = "tools.installed"
_ALLOW_SHADOW: Final = "native.allow_shadow"


def python_tools(settings: Settings, given: Sequence[PythonTool]) -> tuple[PythonTool, ...]:
    """All Python tools of a session. Raises UsageError for a name that is taken or reserved, an entry point that is not
    there or gives no tools, and annotations without a schema."""
    tools = (*given, *_load(settings.tools.installed))
    chosen = specs_of(families_of(settings))
    taken = {*BUILT_IN.names, *READ_SKILLS, *(spec.name for spec in chosen if not spec.name.startswith(RESERVED))}
    may_shadow = frozenset(tool.name for tool in given) if settings.native.allow_shadow else frozenset()
    for tool in tools:
        if tool.name.startswith(RESERVED) and tool.name not in may_shadow:
            raise UsageError(
                f"{tool.name}: names that begin with {RESERVED} are reserved; {_ALLOW_SHADOW} in your configuration "
                "lets a tool of an embedding program have one"
            )
        if tool.name in taken:
            raise UsageError(f"there is a tool called {tool.name} already: give the Python tool another name")
        taken.add(tool.name)
        try:
            _ = tool.spec
        except TypeError as error:
            raise UsageError(str(error)) from error
    return tools


def names_of_packages(settings: Settings) -> tuple[str, ...]:
    """The names of the tools of the packages that the configuration names. Raises UsageError."""
    return tuple(tool.name for tool in _load(settings.tools.installed))


def registry_with(tools: Sequence[PythonTool], families: Sequence[str]) -> Registry:
    """The tools of these families, and the Python tools."""
    return Registry((*(tool.spec for tool in tools), *built_in(families)))


def _load(names: Sequence[str]) -> Iterator[PythonTool]:
    if not names:
        return
    from importlib.metadata import entry_points

    for name in names:
        found = entry_points(group=ENTRY_POINTS, name=name)
        if not found:
            known = ", ".join(sorted(entry_points(group=ENTRY_POINTS).names)) or "none"
            raise UsageError(f"configuration: {_SETTING}: no installed package has {name!r}; there are: {known}")
        for entry in found:
            try:
                value = entry.load()
            except (ImportError, AttributeError) as error:
                raise UsageError(f"configuration: {_SETTING}: {name}: {error}") from error
            loaded = value if isinstance(value, list | tuple) else (value,)
            if not all(isinstance(one, PythonTool) for one in loaded):
                raise UsageError(
                    f"configuration: {_SETTING}: {name} ({entry.value}) is neither a tool nor a list of tools"
                )
            yield from loaded


LEVEL = "sandbox.level"
DOMAINS = "sandbox.allowed_domains"


class Level(NamedTuple):
    """The sandbox level of commands. `wanted` is the requested level, `auto` included; `why` is the reason for which a
    stronger one does not work here, and what of this one does not, `unheld` what this one cannot restrict.
    `is_untried`: none works, and a trial failed for an unrelated reason, so commands are refused."""

    level: SandboxLevel
    wanted: str
    why: str = ""
    unheld: tuple[str, ...] = ()
    is_untried: bool = False


def level_of(settings: Settings, state_dir: str, temporary: str | None = None, *, found: Levels | None = None) -> Level:
    """The working level for the one that the settings want. Results under the same circumstances are kept in
    `state_dir` and not tried again: the first command tries the level anyway, and is refused if it does not work.
    `found` are results of trials made just now. A trial that fails for an unrelated reason is repeated in `temporary`,
    the session's own directory."""
    wanted = settings.sandbox.level
    if wanted == LEVELS[0]:
        return Level(LEVELS[0], wanted)
    if not found:
        found = SandboxLevels(state_dir, __version__).findings()
        if not all(level in found for level in LEVELS[1:]):
            found = try_levels(state_dir, temporary)
    strongest: tuple[SandboxLevel, ...] = LEVELS[:0:-1]
    tried = [one for one in strongest if wanted in (one, STRONGEST)]
    works = next((one for one in tried if found[one]["works"]), LEVELS[0])
    looked = tried if works == LEVELS[0] else tried[: tried.index(works) + 1]
    why = "; ".join(f"{one}: {found[one]['problem']}" for one in looked if found[one]["problem"])
    unheld = () if works == LEVELS[0] else tuple(found[works]["unheld"])
    is_untried = works == LEVELS[0] and any(found[one].get("isPassing", False) for one in tried)
    return Level(works, wanted, why, unheld, is_untried)


def level_to_try(settings: Settings, state_dir: str, named: str | None) -> Level:
    """The level for which a dry run answers: as a run has it, unless the user has `named` one, which is taken whether
    it works here or not."""
    return Level(named, named) if named in LEVELS else level_of(settings, state_dir)


def look_ahead(settings: Settings, state_dir: str) -> bool:
    """Start to try the levels in a thread if `level_of` would have to, so that a start does other work meanwhile.
    Returns True if it was started."""
    if settings.sandbox.level == LEVELS[0] or SandboxLevels(state_dir, __version__).findings():
        return False
    threading.Thread(target=_rows, args=(system_directory(os.environ),), name="sandbox-levels").start()
    return True


_kept: set[str] = set()
"""The state directories in which this process has stored its results: one write each, since two would use one name."""


def try_levels(state_dir: str, temporary: str | None = None) -> Levels:
    """Each level, tried once in this process in the parent of sessions' temporary directories, and again in `temporary`
    if that failed for an unrelated reason. The result is written to `state_dir` for later sessions by a thread of its
    own: a start does not wait for the disk. A temporary failure is not written."""
    found = _rows(system_directory(os.environ))
    if temporary is not None and _is_passing(found):
        found = _rows_in_session(temporary)
    if state_dir not in _kept and not _is_passing(found):
        _kept.add(state_dir)
        threading.Thread(target=_keep, args=(state_dir, found), name="sandbox-levels-kept").start()
    return found


def _rows(directory: str) -> Levels:
    looked = [look(level, directory) for level in LEVELS[:0:-1]]  # the strongest tries the others on its way
    return {
        one.level: {
            "works": one.works,
            "problem": one.problem,
            "unheld": list(one.unheld),
            **({"isPassing": True} if one.is_passing else {}),
        }
        for one in looked
    }


def _rows_in_session(temporary: str) -> Levels:
    existed = os.path.isdir(temporary)
    with contextlib.suppress(OSError):  # then the trial reports its problem
        temporary_directory.make(temporary)
    try:
        return _rows(temporary)
    finally:
        if not existed:
            temporary_directory.remove(temporary)


def _is_passing(found: Levels) -> bool:
    """True if a trial failed for a reason of its own: the next one may find something else."""
    return any("isPassing" in one for one in found.values())


def _keep(state_dir: str, found: Levels) -> None:
    with contextlib.suppress(WriteFailed):  # they are tried again then
        SandboxLevels(state_dir, __version__).keep(found)


def domains_to_open(settings: Settings) -> tuple[str, ...]:
    """The hosts that the user opens for commands. Raises UsageError for one that cannot be read."""
    names, wrong = [], []
    for entry in settings.sandbox.allowed_domains:
        try:
            names.append(canonical_domain(entry))
        except UrlProblem as error:
            named = settings.name_of(DOMAINS)
            wrong.append(f"{named} {entry}: {error}; give a host such as pypi.org or *.example.com")
    if wrong:
        raise UsageError(*wrong)
    return tuple(dict.fromkeys(names))


def withheld(scope: CommandScope, level: SandboxLevel) -> tuple[str, ...]:
    """Describe for users what the level denies on this machine although the scope allows it."""
    return rules_for(scope, in_view=level == "namespace").notes


def refuse_weaker(resolved: ResolvedOptions, level: Level, state: Checkpoint) -> None:
    """Raise SandboxWeaker if commands of the session ran at a stronger level than the one that works now, and the user
    has not accepted this one since."""
    before = state.sandbox.get("level") or state.identity.options.get("started", {}).get("sandbox", "none")
    if resolved.sandbox_named or before not in LEVELS or not is_weaker(level.level, before):
        return
    because = f" ({level.why})" if level.why else ""
    finding = f"commands of this session ran at the sandbox level {before}; here it would be {level.level}{because}"
    raise SandboxWeaker(
        f"{finding}: --sandbox {level.level} continues at that level, --sandbox {before} has commands denied",
        held=f"{finding}.",
        before=before,
        level=level.level,
    )
