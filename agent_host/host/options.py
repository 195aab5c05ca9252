"""Options of a session and their sources: the command line, the configuration below it, the record."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from agent_host.errors import UsageError
from agent_host.host.environment import built_in, families_of, skill_index, this_environment
from agent_host.http import displayable_url
from agent_host.ids import MACHINE, REPLAY_PREFIX
from agent_host.llm.deferred import KnownModels
from agent_host.session.opening import ResolvedOptions as ResolvedOptions
from agent_host.session.opening import read_options, unrecorded_gateway
from agent_host.session.start import own_files, places_of
from config.lean_typing import NamedTuple
from config.load import ConfigError, load, read_regular_file
from config.policies import BUILT_IN, names_file
from config.settings import ALL_TOOLS, MOCK_PREFIX, settings_under
from config.shapes import file_in, meant_name, why_no_directory
from policy.bundle.meaning import VARIABLE_NAME
from policy.urls import UrlProblem, canonical_domain
from state import STATE_DIR_VARIABLE, NoHomeDirectory, default_state_dir, expand_home

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from config.settings import Settings
    from tool_runtime.families.python_tools import PythonTool

_SNAPSHOT_LIMIT = "host.max_snapshot_bytes"
_MAX_STEPS = "host.max_steps"
_TOOLSET = "host.toolset"
_SANDBOX = "sandbox.level"
_PROVIDER = "llm.provider"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """Options to start or resume a session with; None means the value of the configuration, or of the resumed session.

    `policy` is a built-in's name or a bundle file, `gateway` a URL or `mock:FILE`, `provider` a provider of the
    configuration or a known one instead, `dialect` the wire format of the gateway. `sandbox` is the sandbox level of
    commands, and `toolsets` are the families of tools that the model sees. `max_cost` limits the cost of the session,
    in the currency of the configuration's prices. `token` is the gateway's, `services_token` the backend services' and
    `tools_token` the Backend Tool Service's; `grant_key`, in hex, signs capability grants for the latter. They are
    never read from the environment. `settings` are others of config/defaults.toml, by `section.name`. `approvals` are
    approvals in advance: rule ids, tool and capability names; for a resume also the ids of denied calls, which are then
    run (`deniedApprovals` of a result has them). `guard_processes` terminates processes that commands started even if
    this process is killed; only one session at a time may request it, and it treats every child of this process as a
    command's. `tools` are functions of this program, made with `agent_host.tool`; a resume needs them again.
    """

    workspace: str | os.PathLike[str] | None = None
    policy: str | os.PathLike[str] | None = None
    gateway: str | None = None
    provider: str | None = None
    dialect: str | None = None
    model: str | None = None
    sandbox: str | None = None
    toolsets: Collection[str] | None = None
    max_steps: int | None = None
    max_cost: float | None = None
    token: str | None = None
    services_token: str | None = None
    tools_token: str | None = None
    grant_key: str | None = None
    state_dir: str | os.PathLike[str] | None = None
    session_id: str | None = None
    approvals: Collection[str] = ()
    approve_all: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    guard_processes: bool = False
    tools: Collection[PythonTool] = ()

    @property
    def flags(self) -> dict[str, Any]:
        """The given settings by key, with absolute paths. Raises UsageError."""
        self._refuse_wrong_types()
        if self.max_cost is not None and not self.max_cost > 0:
            raise UsageError(f"SessionOptions.max_cost: give an amount above 0, not {self.max_cost}")
        given = {key: getattr(self, name) for key, name in _FIELDS.items()} | {
            "host.policy": _policy(self.policy),
            _TOOLSET: None if self.toolsets is None else list(self.toolsets),
        }
        return portable({**self.settings, **{key: value for key, value in given.items() if value is not None}})

    def _refuse_wrong_types(self) -> None:
        problems = []
        for names, kinds, words in _TYPES:
            for name in names:
                value = getattr(self, name)
                if value is not None and (
                    not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)
                ):
                    problems.append(f"SessionOptions.{name}: give {words}, not {type(value).__name__}")
        for name in ("approvals", "toolsets"):
            value = getattr(self, name)
            if isinstance(value, str) or not isinstance(value, Collection | None):
                problems.append(f"SessionOptions.{name}: give a list of strings, not {type(value).__name__}")
            elif not all(isinstance(one, str) for one in value or ()):
                problems.append(f"SessionOptions.{name}: all of the list has to be strings")
        if problems:
            raise UsageError(*problems)


_FIELDS: Final = {
    "host.policy": "policy",
    "llm.gateway": "gateway",
    _PROVIDER: "provider",
    "llm.dialect": "dialect",
    "llm.model": "model",
    _MAX_STEPS: "max_steps",
    "llm.max_cost": "max_cost",
    _TOOLSET: "toolsets",
    _SANDBOX: "sandbox",
}
"""The options that are settings, by their keys."""
_OPTION_OF_FIELD: Final = {key: f"SessionOptions.{name}" for key, name in _FIELDS.items()}
_TYPES: tuple[tuple[tuple[str, ...], tuple[type, ...], str], ...] = (
    (("workspace", "policy", "state_dir"), (str, os.PathLike), "a path"),
    (("gateway", "provider", "dialect", "model", "sandbox", "session_id"), (str,), "a string"),
    (("token", "services_token", "tools_token", "grant_key"), (str,), "a string"),
    (("max_steps",), (int,), "a whole number"),
    (("max_cost",), (int, float), "a number"),
    (("approve_all", "guard_processes"), (bool,), "True or False"),
    (("settings",), (Mapping,), "a mapping of settings by their keys"),
)


class OptionNames(NamedTuple):
    """Names of the options in messages; by default as a program gives them. `client_workspace` is a workspace that the
    client of a server chose. `not_text` is the message for a value that is not UTF-8, by the name of its field or the
    key of its setting; `option_of` are the names of options by the keys of settings."""

    given_by: str = "SessionOptions"
    workspace: str = "the workspace"
    client_workspace: str = "the workspace"
    approvals: str = "SessionOptions.approvals"
    state_dir: str = "SessionOptions.state_dir"
    not_text: Callable[[str, str], str] = lambda _, value: f"SessionOptions: {value!r} is not UTF-8"
    option_of: Mapping[str, str] = _OPTION_OF_FIELD


_AS_A_PROGRAM = OptionNames()
OPTION_OF: Mapping[str, str] = {
    **{key: f"--{name.replace('_', '-')}" for key, name in _FIELDS.items()},
    _TOOLSET: "--toolset",
    "sandbox.allowed_domains": "--allow-domain",
    "host.output": "--output",
    "host.verbose": "--verbose",
}
"""The options of the command line that are settings, by their keys."""
_AS_GIVEN = {"session_id": "--session-id", "approvals": "--approve", **OPTION_OF}
COMMAND_LINE = OptionNames(
    given_by="the command line",
    workspace="--workspace",
    client_workspace="workspaceHint.localPaths[0]:",
    approvals="--approve",
    state_dir="--state-dir",
    not_text=lambda key, value: f"{_AS_GIVEN.get(key, key)} {value!r}: it is not UTF-8",
    option_of=OPTION_OF,
)
ON_RECORD = OptionNames("the record", option_of={})
"""Names for settings that a session was started with."""


class LayeredOptions:
    """The options source of a client: `options`, with the configuration and, for a resume, the record below them.

    `names` is for messages. `warn` gets one line for each setting of a workspace that is ignored. Raises UsageError.
    """

    def __init__(
        self,
        options: SessionOptions,
        names: OptionNames = _AS_A_PROGRAM,
        warn: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._options = options
        self._names = names
        self._warn = warn
        self._warned: set[str] = set()
        self._flags = options.flags
        self._workspace = None if options.workspace is None else os.fspath(options.workspace)
        self.approvals = tuple(name for name in options.approvals if not name.startswith(REPLAY_PREFIX))
        self._replays = frozenset(options.approvals) - frozenset(self.approvals)
        self.moved: str | None = None
        """The workspace of a resumed session if it differs from the recorded one."""
        self.unrecorded_gateway = unrecorded_gateway(self._flags)
        """A gateway that has to be named again, without the user and password because of which it is not recorded."""
        chosen = None if options.state_dir is None else os.fspath(options.state_dir)
        self.state_dir = state_dir_from(chosen, names.state_dir)

    def new(self, workspace: str | None = None) -> ResolvedOptions:
        """For a new session in `workspace`, a client's choice, else in that of the options, else in the current
        directory."""
        if self._replays:
            raise UsageError(
                f"{self._names.approvals} {min(self._replays)}: that is a call of another session; `resume` runs it"
            )
        return self._resolve(
            self._flags,
            workspace or self._workspace or ".",
            self._options.session_id,
            named_by=self._names.workspace if workspace is None else self._names.client_workspace,
        )

    def resolve_resume(self, session_id: str, *, ended_too: bool = False) -> ResolvedOptions:
        """For a session that is resumed: as it was started, with the options over it; with `ended_too` also one that
        has ended. Raises SessionNotFound, CheckpointUnreadable."""
        self.moved = self._workspace
        limit = snapshot_limit(self._flags, self._names)
        recorded = read_options(self.state_dir, session_id, snapshot_limit_bytes=limit, ended_too=ended_too)
        families = recorded.get("started", {}).get("toolset")
        initial = {} if families is None else {_TOOLSET: families}
        replaced: tuple[str, ...] = (_PROVIDER,) if "llm.gateway" in self._flags else ()
        if _PROVIDER in self._flags:  # another provider has other models
            replaced = ("llm.gateway", "llm.provider", "llm.dialect", "llm.model")
        recorded_flags = {key: value for key, value in recorded["flags"].items() if key not in replaced}
        resolved = self._resolve(
            {**initial, **recorded_flags, **self._flags},
            self._workspace or recorded["workspace"],
            session_id,
            named_by=self._names.workspace if self._workspace else "the session's workspace",
            started=recorded.get("started", {}),
        )
        self.moved = None if resolved.workspace == recorded["workspace"] else resolved.workspace
        if recorded.get("gateway") and "llm.gateway" in self._flags:
            self.unrecorded_gateway = displayable_url(self._flags["llm.gateway"])
        elif _PROVIDER not in self._flags and "llm.gateway" not in self._flags:
            self._keep_gateway(session_id, recorded, resolved.settings.llm.gateway)
        return resolved._replace(ended_too=ended_too)

    def _keep_gateway(self, session_id: str, options: Mapping[str, Any], url: str) -> None:
        """Raise UsageError if the gateway of a session is not on record and `url`, which the configuration or the
        environment names, is none or another one."""
        recorded = self.unrecorded_gateway = options.get("gateway")
        is_same = url != "" if recorded is None else displayable_url(url).rstrip("/") == recorded.rstrip("/")
        if is_same or not options.get("started"):
            return
        lost = "its gateway" if recorded is None else f"its gateway's URL, {recorded}, had a user or password, which"
        again = f"give {self._names.option_of['llm.gateway']} again, or set LLM_GATEWAY_ENDPOINT"
        raise UsageError(f"session {session_id}: {lost} is not recorded: {again}")

    def choose_sandbox(self, level: str) -> None:
        """Have the sessions that follow hold commands at this level, as if the client had named it."""
        self._flags = {**self._flags, _SANDBOX: level}

    def own_settings(self) -> Settings:
        """The settings of the process itself, whichever workspace its session will have. Raises UsageError."""
        return settings_from(self._flags, workspace=None, names=self._names)

    def _resolve(
        self,
        flags: Mapping[str, Any],
        workspace: str,
        session_id: str | None,
        *,
        named_by: str,
        started: Mapping[str, Any] = MappingProxyType({}),
    ) -> ResolvedOptions:
        self._refuse_non_text(flags, session_id)
        root = existing_workspace(workspace, named_by)
        settings = settings_from(flags, workspace=root, names=self._names)
        settings = with_provider(settings, started)
        for line in (
            *settings.ignored,
            *_warnings(settings, root, self.state_dir, named_by),
            *bundle_changes(settings, self.state_dir),
        ):
            if line not in self._warned:  # a session may be looked for before it is started
                self._warned.add(line)
                self._warn(line)
        return ResolvedOptions(
            settings=settings,
            flags=flags,
            workspace=root,
            state_dir=self.state_dir,
            session_id=session_id,
            approvals=frozenset(self.approvals),
            approve_all=self._options.approve_all,
            replays=self._replays,
            max_steps=settings.host.max_steps if _MAX_STEPS in self._flags else None,
            sandbox_named=_SANDBOX in self._flags,
        )

    def _refuse_non_text(self, flags: Mapping[str, Any], session_id: str | None) -> None:
        given = {"session_id": session_id, "approvals": self.approvals, **flags}
        for key, value in given.items():
            for one in value if isinstance(value, list | tuple) else (value,):
                if isinstance(one, str) and not _is_text(one):
                    raise UsageError(self._names.not_text(key, one))


def existing_workspace(path: str, named_by: str) -> str:
    """The real path of a workspace, which messages call `named_by`. Raises UsageError if there is no such directory, or
    its name is not UTF-8."""
    root = anchor(path, os.path.realpath)
    if not _is_text(root):
        raise UsageError(f"{named_by} {root!r}: its name is not UTF-8, which no model could read")
    if not os.path.isdir(root):
        raise UsageError(f"{named_by} {path}: {why_no_directory(root)}")
    return root


def existing_directory(workspace: str) -> None:
    """Raises UsageError where `workspace`, a real path from `--workspace`, is no directory."""
    if not os.path.isdir(workspace):
        raise UsageError(f"--workspace {workspace}: {why_no_directory(workspace)}")


def anchor(path: str, resolve: Callable[[str], str] = os.path.abspath) -> str:
    """`path` made absolute by `resolve`, `~` included. Raises UsageError if that needs a current directory that no
    longer exists, or a home and there is none."""
    try:
        return resolve(expand_home(path))
    except NoHomeDirectory as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(
            f"{path!r} is relative to the current directory, which is no longer there ({error.strerror}): "
            "go to another one, or give the absolute path"
        ) from error


def bundle_changes(settings: Settings, state_dir: str) -> list[str]:
    """Report that a session has changed the bundle file that is about to be used."""
    name = settings.host.policy
    if not names_file(name):
        return []
    from agent_host.session.external_bundles import last_change  # most sessions are under a built-in

    changed_by = last_change(state_dir, name)
    if changed_by is None:
        return []
    return [f"policy {name}: session {changed_by} of this state directory has changed this file: look at it"]


def settings_from(
    flags: Mapping[str, Any],
    *,
    workspace: str | None,
    names: OptionNames = COMMAND_LINE,
    may_be_missing: bool = False,
) -> Settings:
    """The settings with `flags`, by key, over the user's; `names` are their sources, and with `may_be_missing` a user's
    file that the environment names need not exist. Raises UsageError."""
    option_of = names.option_of
    try:
        return load(
            flags, workspace=workspace, given_by=names.given_by, option_of=option_of, may_be_missing=may_be_missing
        )
    except ConfigError as error:
        raise UsageError(*error.problems) from error


def with_provider(settings: Settings, started: Mapping[str, Any] = MappingProxyType({})) -> Settings:
    """The settings under the provider that they and the environment choose, unchanged if they choose none. A session
    that `started` with a provider continues with it and its model, and one that started with a gateway continues
    only at a gateway or provider that is named. Raises UsageError."""
    if settings.llm.gateway and not settings.llm.provider:
        return settings
    from config import providers  # for the runs that name no gateway

    recorded = started.get("provider")
    try:
        provider = providers.choose_provider(settings, os.environ, recorded, finds=recorded is not None or not started)
    except providers.NoSuchProvider as error:
        named = f"{settings.name_of(_PROVIDER)}: " if settings.llm.provider else ""
        raise UsageError(f"{named}{error}") from error
    if provider is None:
        return settings
    if provider.name == recorded and not provider.names_model:
        provider = provider._replace(model=started["model"])
    return settings_under(settings, provider)


def snapshot_limit(flags: Mapping[str, Any] = MappingProxyType({}), names: OptionNames = COMMAND_LINE) -> int:
    """The bytes that a snapshot may have (`host.max_snapshot_bytes`), for code that reads sessions before it knows
    their workspaces, which cannot change it. Of `flags` only this setting is read. Raises UsageError for a
    configuration that cannot be used."""
    own = {key: value for key, value in flags.items() if key == _SNAPSHOT_LIMIT}
    return settings_from(own, workspace=None, names=names).host.max_snapshot_bytes


def model_facts() -> KnownModels:
    """Facts about models, by the user's configuration. Raises UsageError for one that cannot be used."""
    return KnownModels(settings_from({}, workspace=None).models)


def state_dir_from(chosen: str | None, named_by: str = "--state-dir", *, may_be_file: bool = False) -> str:
    """The chosen state directory, absolute, else that of the environment or the platform. Raises UsageError, also if
    there is a file at its path, unless that is allowed."""
    try:
        path = anchor(chosen) if chosen else default_state_dir()
    except NoHomeDirectory as error:
        raise UsageError(str(error)) from error
    if not may_be_file and not os.path.isdir(path):
        variable = STATE_DIR_VARIABLE if os.environ.get(STATE_DIR_VARIABLE) else "the state directory"
        if file_in(path) is not None:
            raise UsageError(f"{named_by if chosen else variable} {path}: {why_no_directory(path)}")
    return path


def state_option(state_dir: str) -> str:
    """The option by which a command finds this state directory, with a space before it; "" if it needs none."""
    import shlex  # what hardly any session needs

    return "" if is_default_state_dir(state_dir) else f" --state-dir {shlex.quote(state_dir)}"


def is_default_state_dir(path: str) -> bool:
    """True if `path` is the default state directory."""
    try:
        return path == default_state_dir()
    except NoHomeDirectory:
        return False


def portable(given: Mapping[str, Any]) -> dict[str, Any]:
    """Flags that mean the same from another directory, so that a resume can take them over. Raises UsageError."""
    flags = dict(given)
    gateway = flags.get("llm.gateway", "")
    if isinstance(gateway, str) and gateway.startswith(MOCK_PREFIX):
        script = gateway.removeprefix(MOCK_PREFIX)
        flags["llm.gateway"] = MOCK_PREFIX + (anchor(script) if script else "")
    policy = flags.get("host.policy", "")
    if isinstance(policy, str) and names_file(policy):
        flags["host.policy"] = anchor(policy)
    return flags


def _policy(given: str | os.PathLike[str] | None) -> str | None:
    """The policy as a setting. A path object that is no built-in's name is a file, also without a slash."""
    name = None if given is None else os.fspath(given)
    return name if name is None or isinstance(given, str) or name in BUILT_IN else os.path.join(os.curdir, name)


def _is_text(value: str) -> bool:
    """True if `value` can be recorded: it contains no lone surrogate, as bytes that are not UTF-8 do."""
    return value == value.encode("utf-8", "replace").decode()


# Warnings about options that a run accepts but its user can hardly have meant: a line each. Nothing is refused.


def _warnings(settings: Settings, workspace: str, state_dir: str, named_by: str) -> Iterator[str]:
    """The warnings about a session in `workspace`, a real path that `named_by` has chosen. Blocking."""
    home = os.path.realpath(os.path.expanduser("~"))
    advice = "name the directory of your project"
    if os.path.dirname(workspace) == workspace:
        yield f"{named_by} {workspace}: the whole disk is the workspace; {advice}"
    elif workspace == home:
        yield f"{named_by} {workspace}: your whole home directory is the workspace; {advice}"
    elif home.startswith(workspace.rstrip(os.sep) + os.sep):
        yield f"{named_by} {workspace}: your home directory is in the workspace; {advice}"
    index = skill_index(workspace)
    if index is not None or os.path.isdir(os.path.join(workspace, ".agent", "tools")):
        from agent_host.host.workspace_tools import problems_of_workspace  # with it comes what reads them

        yield from problems_of_workspace(workspace, index)
    if names_file(settings.host.policy):
        yield from _bundle(settings, workspace, state_dir)
    yield from _misspelt(settings)
    yield from _servers(settings)
    for domain in settings.policy.blocked_domains:
        try:
            canonical_domain(domain)
        except UrlProblem as error:
            yield f"policy.blocked_domains: {error}, so that every request is refused; give a host such as example.com"


def _bundle(settings: Settings, workspace: str, state_dir: str) -> Iterator[str]:
    name = settings.host.policy
    try:
        raw = read_regular_file(name)
    except OSError:  # which is an error, when it is read in earnest
        return
    from agent_host.session.external_bundles import suspicions_in  # most sessions are under a built-in

    places = places_of(this_environment(workspace), state_dir)
    for problem in suspicions_in(raw, places, MACHINE.now(), own_files()):
        if "blockedPaths" not in problem.path:  # protected paths need not exist
            yield f"{settings.name_of('host.policy')} {name}: {problem}"


def _misspelt(settings: Settings) -> Iterator[str]:
    """Unknown names that nearly match a known one; names of remote tools are not known here."""
    for key in ("tools.disabled", "tools.allowed", "mcp.enabled"):
        if key not in settings.chosen:
            continue
        known = [spec.name for spec in built_in(families_of(settings))]
        if key == "mcp.enabled":
            known = [one["name"] for one in settings.mcp.servers if isinstance(one.get("name"), str)]
        for name in settings[key]:
            meant = None if name in (*known, ALL_TOOLS) else meant_name(name, known)
            if meant is not None:
                yield f"{settings.name_of(key)}: {name!r} is nothing that a session has; did you mean {meant}?"


def _servers(settings: Settings) -> Iterator[str]:
    for place, entry in enumerate(settings.mcp.servers):
        if "command" in entry and "url" in entry:
            yield f"mcp.servers[{place}] has command and url: its command is started, and its url is not used"
        names = entry.get("environment_names")
        for name in names if isinstance(names, list) else ():
            if isinstance(name, str) and not re.fullmatch(VARIABLE_NAME, name):
                yield f"mcp.servers[{place}].environment_names: {name!r} is not the name of a variable, such as TOKEN"
