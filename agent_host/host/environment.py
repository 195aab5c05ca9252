"""This machine and the workspace as policy and the tools see them; the tools that this program brings along, and which
of them the configuration takes away."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Final

from agent_host.contracts import Subject, ToolSpec
from agent_host.errors import TOKEN_VARIABLE, UsageError
from agent_host.ids import MACHINE
from agent_host.judging import Environment, Registry
from agent_host.services import GRANT_KEY_VARIABLE, TOOLS_TOKEN_VARIABLE
from agent_host.services import TOKEN_VARIABLE as SERVICES_TOKEN_VARIABLE
from config.lean_typing import NamedTuple
from config.load import user_skills
from config.settings import ALL_TOOLS
from policy.bundle import BundleProblems
from policy.decision import RISK_LEVELS
from policy.names import CapabilityName
from policy.rules import NativeExec, ToolLimit
from state.disk import LOCAL_DISK, ThreadJob
from tool_runtime.families.catalogue import FAMILIES, NATIVE, SPECS, specs_of
from tool_runtime.families.desktop import UPLOAD_ARTIFACT, upload_problem
from tool_runtime.families.schemas import usable_arguments
from tool_runtime.platform import OS_FAMILY, current
from tool_runtime.platform.environment import child_environment, is_within, looks_secret
from tool_runtime.tool import judge_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

    from agent_host.ids import Outside
    from agent_host.session.opening import ResolvedOptions
    from config.settings import Settings
    from policy.facts import ShellName
    from policy.rules import Limits
    from state.disk import Beside, Disk
    from tool_runtime.processes.command import CommandParams, RunningCommand, StartCommand
    from tool_runtime.processes.guard import ProcessGuard
    from tool_runtime.sandbox.session import Sandbox
    from tool_runtime.threads import DaemonPool

SECRET_VARIABLES = frozenset({TOKEN_VARIABLE, SERVICES_TOKEN_VARIABLE, TOOLS_TOKEN_VARIABLE, GRANT_KEY_VARIABLE})


def secret_variables(settings: Settings) -> frozenset[str]:
    """The variables that no child process gets, whatever a configuration says: the host's own tokens, the key of the
    provider, and the tokens for MCP servers."""
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
    """Whatever a session has from elsewhere than its own process, besides the event loop that it runs on (decision
    0110): a test puts others in their place and runs a whole session from one seed. `beside` starts the work of the
    store that nobody waits for, `start_command` a command of a tool."""

    outside: Outside
    disk: Disk
    beside: Beside
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


def skill_folders(workspace: str) -> list[tuple[str, bool]]:
    """The folders of skills that are there, and whether each is the workspace's. The user's comes first: a workspace
    takes no name from it. One beside a configuration that lies in the workspace is the workspace's."""
    own = user_skills(os.environ)
    folders = [] if own is None else [(own, is_within(own, (workspace,)))]
    folders.append((os.path.join(workspace, ".agent", "skills"), True))
    return [(path, of_workspace) for path, of_workspace in folders if os.path.isdir(path)]


def project_tool_names(workspace: str) -> frozenset[str]:
    """The names of the workspace's manifests of tools of its own."""
    try:
        names = os.listdir(os.path.join(workspace, ".agent", "tools"))
    except OSError:
        return frozenset()
    return frozenset(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def limits_of(settings: Settings) -> Limits:
    """The limits that the configuration sets on the tools (SK 3.1)."""
    limits = {ToolLimit("tools.disabled in the configuration", withheld=frozenset(settings.tools.disabled))}
    allowed = frozenset(settings.tools.allowed)
    if ALL_TOOLS not in allowed:
        limits.add(ToolLimit("tools.allowed in the configuration", allowed=allowed))
    ceiling = RISK_LEVELS[settings.rank("policy.risk_ceiling")]
    if ceiling != RISK_LEVELS[-1]:
        limits.add(ToolLimit("policy.risk_ceiling in the configuration", risk_ceiling=ceiling))
    return frozenset(limits)


# What the configuration says of the families of tools, and of the native one.

_EXEC = "native.exec"


def families_of(settings: Settings) -> tuple[str, ...]:
    """The families whose tools the model sees, each once."""
    return tuple(dict.fromkeys(settings.host.toolset))


def has_native(settings: Settings) -> bool:
    """True if the native family is chosen."""
    return NATIVE in settings.host.toolset


def native_roots(settings: Settings, workspace: str) -> tuple[str, ...]:
    """The real paths that native tools keep to: the root directory, by default the workspace, and the additional ones.
    Raises UsageError for one that is not absolute or no directory."""
    first, others = settings.native.root_dir, settings.native.additional_roots
    named = {f"additional_roots[{place}]": path for place, path in enumerate(others)} | {"root_dir": first}
    wrong = [
        f"configuration: native.{key}: {path!r} is no absolute path of a directory"
        for key, path in named.items()
        if path and not (os.path.isabs(path) and os.path.isdir(path))
    ]
    if wrong:
        raise UsageError(*wrong)
    return tuple(dict.fromkeys(os.path.realpath(path) for path in (first or workspace, *others)))


def native_list(settings: Settings, workspace: str) -> NativeExec:
    """The programs that native tools start. Raises UsageError with every problem of the entries."""
    from policy.bundle.validate import command_policies
    from policy.rules.native_exec import DEFAULT, entry_problem

    try:
        shape = json.loads(json.dumps(settings.native.exec))
        added = command_policies(shape, _EXEC)
    except (BundleProblems, TypeError) as error:
        found = error.problems if isinstance(error, BundleProblems) else (error,)
        raise UsageError(*(f"configuration: {one}" for one in found)) from error
    problems = [problem for policy in added if (problem := entry_problem(policy, OS_FAMILY)) is not None]
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
    """Tools, and beside them every `server/tool` that nothing is known of: judged by its name."""

    def get(self, name: str) -> ToolSpec | None:
        """See Registry."""
        known = super().get(name)
        if known is not None or not re.fullmatch(r"[^/\s]+/\S+", name):
            return known
        return ToolSpec(
            name, "", _ANYTHING, capability="Mcp.Invoke", subject=Subject("name"), effect="other", category="requests"
        )


def argument_problem(spec: ToolSpec | None, arguments: Mapping[str, Any]) -> str | None:
    """Why the tool refuses the arguments that are there, in the host's words; None when it does not, or is not known.
    What is left out is no problem: a case need only say what it is judged by."""
    if spec is None:
        return None
    wrong = judge_of({**spec.schema_to_check, "required": []}, foreign=spec.foreign_schema)(arguments)
    return upload_problem(arguments) if wrong is None and spec is UPLOAD_ARTIFACT else wrong


def usable(spec: ToolSpec | None, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments as the loop gives them to policy; see `ToolRouter.usable_arguments`."""
    if spec is None:
        return arguments
    return usable_arguments(spec, arguments, judge_of(spec.schema_to_check, foreign=spec.foreign_schema))
