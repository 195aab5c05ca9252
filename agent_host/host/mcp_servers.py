"""The MCP servers of a session: those of its bundle and those of the user's configuration, as far as they may be used.

A workspace can only exclude some. A bundle names servers, but only the user decides which of them get the user's
credentials: a token is sent to the origin in the user's own entry of the same name, and to no other.
"""

from __future__ import annotations

import contextlib
import os
import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from agent_host.contracts import SourceNotice
from agent_host.errors import UsageError
from agent_host.host.backends import from_keyring
from agent_host.host.environment import secret_variables
from agent_host.http import usable_in_header
from agent_host.judging.facts import THIS_DISK, UnusableArguments, program_facts
from agent_host.judging.scoping import places_of_program
from agent_host.loop.elicitation import ask_person
from agent_host.safe_open import leads_out
from config.lean_typing import NamedTuple
from config.settings import ALL_TOOLS
from config.shapes import FLAG, TEXT, ListOf, Record, all_problems, number, one_of
from policy import CapabilityName
from policy.bundle.meaning import SERVER_NAME
from policy.decide import check_tool
from policy.rules.sandbox import add_own_places, is_hidden
from policy.shell.tables import STEERING_VARIABLE
from policy.urls import UrlProblem, canonical_domain
from state.tool_lists import TOKENS, ToolLists
from tool_runtime.platform.environment import find_program, path_to_trust
from tool_runtime.remote import SourceTerms, definition_of, spec_of
from tool_runtime.remote.mcp import Http, ServerConfig, Stdio, origin_of, read_tokens
from tool_runtime.remote.mcp.source import McpSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from agent_host.contracts import ToolSpec
    from agent_host.host.remote_tools import ToolsElsewhere
    from agent_host.judging import Environment
    from agent_host.judging.scoping import Scoping
    from agent_host.loop import LoopContext
    from agent_host.session.opening import ClientServer
    from config.settings import Settings
    from config.shapes import Shape
    from policy import CommandScope
    from policy.bundle import McpServer, PolicyBundle
    from tool_runtime.router import LocalToolRouter
    from tool_runtime.tool import RuntimeSettings

_MIN_SECRET: Final = 8
_ASK_AFTER_S: Final = 1.0
"""The SDK takes most of a second of the processor, and a short session needs no server that it does not call."""
_BASICS: Final = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TERM", "TZ", "SYSTEMROOT"),
    *("SYSTEMDRIVE", "WINDIR", "COMSPEC", "PATHEXT", "USERPROFILE", "USERNAME", "HOMEDRIVE", "HOMEPATH", "APPDATA"),
    *("LOCALAPPDATA", "PROGRAMDATA", "PROGRAMFILES", "SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS"),
)
"""Variables that programs need to start or to find their files."""


def secret_values(settings: Settings, of_bundle: Iterable[McpServer], state_dir: str) -> list[str]:
    """The tokens for servers, those of OAuth as they are kept now, and what variables hold that servers are given: none
    of it is shown or recorded. Raises UsageError for entries that cannot be used."""
    entries = user_servers(settings).values()
    names = {name for server in of_bundle for name in server.environment_names}
    for entry in entries:
        names.update(filter(None, (*entry.environment_names, entry.token_env)))
    secrets = [value for name in sorted(names) if len(value := os.environ.get(name, "")) >= _MIN_SECRET]
    tokens: list[str | None] = []
    for entry in entries:
        if entry.token_keyring is not None:
            with contextlib.suppress(_NotUsed):
                tokens.append(token_of(entry))
    urls = [entry.url for entry in entries if entry.oauth and entry.url is not None]
    kept = [token for url in urls for token in read_tokens(os.path.join(state_dir, TOKENS), url)]
    return [*secrets, *(token for token in tokens if isinstance(token, str)), *kept]


def tools_on_record(
    settings: Settings, bundle: PolicyBundle, environment: Environment, state_dir: str, now: datetime
) -> tuple[ToolSpec, ...]:
    """The tools of the servers that a session would use, as they listed them last. Nothing is connected."""
    found: list[ToolSpec] = []
    for server in SessionServers(settings, bundle, environment, state_dir, now).servers():
        if isinstance(server, UnusedServer):
            continue
        kept = ToolLists(state_dir, f"mcp:{server.name} {_place_text(server)}")
        sha256 = kept.newest()
        for shape in (None if sha256 is None else kept.read(sha256)) or ():
            is_http = isinstance(server.place, Http)
            spec = spec_of(definition_of(shape), CapabilityName.MCP_INVOKE, elsewhere=is_http)
            found.append(spec._replace(identity=None))  # a session determines who approved it
    return tuple(found)


def _place_text(server: ServerConfig) -> str:
    return server.place.url if isinstance(server.place, Http) else " ".join(server.place.argv)


class SessionServers(NamedTuple):
    """The servers of a session under a `bundle`, whose programs are sandboxed by `scoping`; without a session those of
    the configuration alone. All methods raise UsageError for entries of the user's that cannot be used."""

    settings: Settings
    bundle: PolicyBundle | None
    environment: Environment
    state_dir: str
    now: datetime
    session_id: str = ""
    temporary: str | None = None
    scoping: Scoping | None = None

    def add_to(
        self,
        router: LocalToolRouter,
        runtime: RuntimeSettings,
        elsewhere: ToolsElsewhere,
        ctx: LoopContext,
        of_client: Sequence[ClientServer],
    ) -> None:
        """List and run the tools of the session's servers: the user of the loop answers their questions, and its
        scrubber gets renewed tokens. Unused entries are reported."""
        asks, on_secrets = partial(ask_person, ctx), ctx.scrubber.add
        on_secrets(value for one in of_client for value in one.environment.values() if len(value) >= _MIN_SECRET)
        for found in (*self.incomplete(), *self.servers(), *self._servers_of_client(of_client)):
            if isinstance(found, UnusedServer):
                elsewhere.report(SourceNotice(f"mcp:{found.name}", "unavailable", f"mcp:{found.name}: {found.why}"))
                continue
            source = McpSource(found, runtime, router.start_program, ask_person=asks, on_secrets=on_secrets)
            terms = SourceTerms(
                CapabilityName.MCP_INVOKE,
                elsewhere=isinstance(found.place, Http),
                timeout_s=found.timeout_s,
                connect_timeout_s=self.settings.mcp.connect_timeout_s,
                ask_after_s=_ASK_AFTER_S,
            )
            provider = elsewhere.provider(source, _place_text(found), terms)
            source.on_changed = provider.begin
            router.add_remote(provider)

    def servers(self) -> Iterator[ServerConfig | UnusedServer]:
        """Those of the bundle, then those of the user that the bundle does not have, as far as they are enabled."""
        enabled, users = self.settings.mcp.enabled, user_servers(self.settings)
        of_bundle = {one.name: one for one in self._of_bundle}
        for name in (*of_bundle, *(name for name in users if name not in of_bundle)):
            if ALL_TOOLS in enabled or name in enabled:
                try:
                    if name in of_bundle:
                        yield self._bundle_server(of_bundle[name], users.get(name))
                        continue
                    entry = users[name]  # one without a location extends a server that a bundle may have
                    if entry.command is not None:
                        yield self._stdio(entry, entry.name, entry.command, entry.args, entry.environment_names)
                    elif entry.url is not None:
                        yield self._http(entry, entry.name, entry.url)
                except _NotUsed as problem:
                    yield UnusedServer(name, str(problem))

    @property
    def _of_bundle(self) -> tuple[McpServer, ...]:
        return () if self.bundle is None else self.bundle.mcp_servers

    def incomplete(self) -> Iterator[UnusedServer]:
        """The user's entries that have no location of a server, and extend none of the bundle."""
        of_bundle = {one.name for one in self._of_bundle}
        for place, entry in enumerate(user_servers(self.settings).values()):
            if entry.command is None and entry.url is None and entry.name not in of_bundle:
                why = f"{SETTING}[{place}] has neither command nor url, and the policy has no server of this name"
                yield UnusedServer(entry.name, f"{why}: give it one of them")

    def _servers_of_client(self, servers: Sequence[ClientServer]) -> Iterator[ServerConfig | UnusedServer]:
        """Those that a client names, as far as they are enabled; one that the policy or the user has goes before."""
        enabled = self.settings.mcp.enabled
        known = {*user_servers(self.settings), *(one.name for one in self._of_bundle)}
        for one in servers:
            if one.name in known:
                yield UnusedServer(one.name, "the policy or the configuration has a server of this name, which is used")
            elif ALL_TOOLS in enabled or one.name in enabled:
                known.add(one.name)
                try:
                    yield self._client_server(one)
                except _NotUsed as problem:
                    yield UnusedServer(one.name, str(problem))

    def _client_server(self, server: ClientServer) -> ServerConfig:
        """A server that a client names, which may have it from a file of the workspace: sandboxed or not at all, with
        no place to write and no host to reach, and with nothing of the workspace as its program."""
        if not re.fullmatch(SERVER_NAME, server.name):
            raise _NotUsed("its name is none: 1 to 64 of A-Z a-z 0-9 _ - .")
        self._refuse_unsandboxed()
        if self.scoping is None or not self.scoping.holds or self.bundle is None:
            raise _NotUsed("a server that a client names is only started in a sandbox, and there is none")
        program = self._program(server.command)
        words = [word for one in server.args for word in (one, one.partition("=")[2])]
        inside = next(filter(self._is_inside, (program or server.command, *words)), None)
        if program is None or inside is not None:
            raise _NotUsed(f"{inside or server.command} is in the workspace: a client must not name such a program")
        own = {
            name: value
            for name, value in server.environment.items()
            if _VARIABLE.fullmatch(name) and not _STEERS.fullmatch(name.upper())
        }
        environment = {**own, **self._server_environment(())}
        scope = self._scope(UserServer(server.name, command=program), (program,))
        argv, mark = (program, *server.args), f"{self.session_id}-mcp-{server.name}"
        place = Stdio(argv, os.path.abspath(os.sep), environment, mark, scope)
        return self._config(None, server.name, place, may_ask=False)

    def _is_inside(self, word: str) -> bool:
        path = os.path.realpath(self.environment.absolute(word))
        outside = (os.path.realpath(one) + os.sep for one in self._outside)
        return os.path.isfile(path) and path.startswith(tuple(outside))

    def _bundle_server(self, server: McpServer, entry: UserServer | None) -> ServerConfig:
        if server.url is not None:
            return self._http(entry, server.name, server.url)
        command = server.command or ""
        self._refuse_program(command, server.args)
        return self._stdio(entry, server.name, command, server.args, server.environment_names)

    def _refuse_program(self, command: str, args: tuple[str, ...]) -> None:
        """Raise for a program that a bundle names and that its own Shell.Exec does not allow, unasked."""
        try:
            facts = program_facts({"command": command, "args": list(args)}, self.environment, THIS_DISK)
        except UnusableArguments as error:
            raise _NotUsed(str(error)) from error
        if self.bundle is None:
            raise RuntimeError("only a bundle's programs are judged")
        system, workspace = self.environment.os_family, self.environment.workspace
        facts = facts._replace(argv=())
        decision = check_tool(
            self.bundle, CapabilityName.SHELL_EXEC, facts, now=self.now, os=system, workspace=workspace
        )
        if not decision.allowed:
            raise _NotUsed(
                f"the bundle names the program {command}, and its Shell.Exec does not allow it: {decision.reason}"
            )

    def _stdio(
        self, entry: UserServer | None, name: str, command: str, args: tuple[str, ...], names: tuple[str, ...]
    ) -> ServerConfig:
        self._refuse_unsandboxed()
        environment = self._server_environment(names)
        mark = f"{self.session_id}-mcp-{name}"
        program = self._program(command)
        if program is None:
            raise _NotUsed(f"the program {command} is in the workspace: name it by its absolute path")
        argv = (program, *args)
        scope = self._scope(entry if entry is not None and entry.command is not None else None, argv)
        place = Stdio(argv, self.environment.workspace, environment, mark, scope)
        same = entry is not None and (entry.command, *entry.args) == (command, *args)
        return self._config(entry, name, place, may_ask=same)

    def _server_environment(self, names: Iterable[str]) -> dict[str, str]:
        """The basic variables and those of these names, but for secrets of the host."""
        wanted = (*_BASICS, *(one for one in names if one not in secret_variables(self.settings)))
        environment = {one: os.environ[one] for one in wanted if one in os.environ}
        environment["PATH"] = path_to_trust(environment.get("PATH", os.defpath), self._outside)
        if self.temporary is not None:
            environment |= dict.fromkeys(("TMPDIR", "TMP", "TEMP"), self.temporary)
        return environment

    def _program(self, command: str) -> str | None:
        """The absolute path of a server's program: as it is named, else as found on PATH outside the workspace; None
        for one inside it. A name that is not on PATH stays as it is, and does not start."""
        if os.path.isabs(command):
            return command
        path = os.environ.get("PATH", os.defpath)
        found = None if os.path.dirname(command) else find_program(command, path, self._outside)
        is_inside = bool(os.path.dirname(command)) or find_program(command, path, ()) is not None
        return found or (None if is_inside else command)

    @property
    def _outside(self) -> tuple[str, ...]:
        """Directories in which no program of a server is looked up; an entry has to name it by its full path."""
        return (self.environment.workspace, *filter(None, (self.temporary,)))

    def _refuse_unsandboxed(self) -> None:
        """Raise if programs are to be sandboxed, and no sandbox works here."""
        if self.scoping is not None and self.bundle is not None:
            denial = self.scoping.denial(self.bundle, CapabilityName.MCP_INVOKE)
            if denial is not None:
                raise _NotUsed(denial.reason)

    def _scope(self, entry: UserServer | None, argv: tuple[str, ...]) -> CommandScope | None:
        """The scope of a server's program: one of the user's has the access in its entry, one of the bundle's that of
        any command. The user's program may be read wherever it is, and so may the absolute paths of its arguments: its
        script, a directory that it serves."""
        if self.scoping is None or not self.scoping.holds or self.bundle is None:
            return None
        if entry is None:
            return self.scoping.scope(self.bundle, self.environment)
        workspace = self.environment.workspace
        for one in entry.write:
            if leads_out(self.environment.absolute(one), workspace):
                raise _NotUsed(f"write: {one} is led out of the workspace by a link in it; write where that leads")
        places = (os.path.realpath(self.environment.absolute(one)) for one in entry.write)
        domains = tuple(map(canonical_domain, entry.domains))
        found = self.scoping.server_scope(self.bundle, self.environment, write=tuple(places), domains=domains)
        system = self.environment.os_family
        reads = [place for one in argv for place in places_of_program(one, self.environment.home, workspace)]
        named = (one for one in argv[1:] if os.path.isabs(one) and os.path.exists(one))
        reads += [os.path.realpath(one) for one in named if not leads_out(one, workspace)]
        return add_own_places(found, system, reads=tuple(one for one in reads if not is_hidden(found, one, system)))

    def _http(self, entry: UserServer | None, name: str, url: str) -> ServerConfig:
        same = entry is not None and entry.url is not None and _same_origin(entry.url, url)
        if not url.lower().startswith("https:") and not (same and entry is not None and entry.allow_http):
            raise _NotUsed(f"{url} is not https; allow_http = true in your own entry of it lets it be used")
        place = Http(url, proxy=self.settings.tools.https_proxy or None)
        if entry is None or not same:
            return self._config(entry, name, place, may_ask=False)
        token = token_of(entry)
        folder = os.path.join(self.state_dir, TOKENS) if entry.oauth else None
        place = place._replace(
            token=token,
            ca_file=_expand(entry.ca_file),
            client_cert=_expand(entry.client_cert),
            client_key=_expand(entry.client_key),
            oauth_folder=folder,
        )
        return self._config(entry, name, place, may_ask=True)

    def _config(self, entry: UserServer | None, name: str, place: Http | Stdio, *, may_ask: bool) -> ServerConfig:
        """`may_ask`: it is the very server that the user's entry names, which may let it ask the person."""
        usual = self.settings.mcp.timeout_s
        own = None if entry is None else entry.timeout_s
        connect_s = max(self.settings.mcp.connect_timeout_s, 1.0)
        elicitation = may_ask and entry is not None and entry.elicitation
        return ServerConfig(name, place, own or usual, connect_s, elicitation)


_STEERS: Final = re.compile(
    f"{STEERING_VARIABLE.pattern}|PYTHON.*|NODE_.*|NPM_CONFIG_.*|LUA_.*|CLASSPATH|GEM_.*|BUNDLE_.*|DENO_.*|BUN_.*"
)
"""Variables that make a loader, a shell or an interpreter run something else, in upper case."""


_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")


def _same_origin(one: str, other: str) -> bool:
    try:
        return origin_of(one) == origin_of(other)
    except ValueError:
        return False


def _expand(path: Any) -> str | None:
    return None if path is None else os.path.abspath(os.path.expanduser(str(path)))


# The entries of `[[mcp.servers]]` in the user's configuration: read, checked, and their tokens fetched.

SETTING: Final = "mcp.servers"


class UserServer(NamedTuple):
    """An entry of `[[mcp.servers]]`. `write` are places that a sandbox lets its program write to, `domains` hosts that
    it lets it reach. With `elicitation` it may ask the person something in the middle of a call."""

    name: str
    transport: str | None = None
    command: str | None = None
    args: tuple[str, ...] = ()
    environment_names: tuple[str, ...] = ()
    url: str | None = None
    ca_file: str | None = None
    client_cert: str | None = None
    client_key: str | None = None
    token_env: str | None = None
    token_keyring: str | None = None
    oauth: bool = False
    elicitation: bool = False
    timeout_s: float | None = None
    allow_http: bool = False
    write: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()


_SHAPES: Final[Mapping[str, Shape]] = {
    "str": TEXT,
    "str | None": TEXT,
    "tuple[str, ...]": ListOf(TEXT),
    "bool": FLAG,
    "float | None": number(0.1, 86_400),
}
"""The shapes of an entry's values, by the types of its fields."""
_KEYS = {key: _SHAPES[kind] for key, kind in UserServer.__annotations__.items()}
_SHAPE: Final = Record({"name": _KEYS.pop("name")}, {**_KEYS, "transport": one_of("stdio", "http")}, closed=True)


class UnusedServer(NamedTuple):
    """A server that is not used, and why."""

    name: str
    why: str


class _NotUsed(Exception):
    """A server cannot be used; `str()` is the reason."""


def user_servers(settings: Settings) -> dict[str, UserServer]:
    """The entries of the user's configuration, by name. Raises UsageError."""
    found: dict[str, UserServer] = {}
    wrong: list[str] = []
    for place, table in enumerate(settings.mcp.servers):
        path = f"{SETTING}[{place}]"
        problems = all_problems(_SHAPE, table, path)
        wrong += [f"configuration: {problem.sentence}" for problem in problems]
        if problems:
            continue
        fields: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in table.items()}
        entry = UserServer(**fields)
        problem = _wrong(entry, found)
        if problem is not None:
            wrong.append(f"configuration: {path}: {problem}")
        found[entry.name] = entry
    if wrong:
        raise UsageError(*wrong)
    return found


def _wrong(entry: UserServer, others: Mapping[str, UserServer]) -> str | None:
    if not re.fullmatch(SERVER_NAME, entry.name):
        return f"name: {entry.name!r} names no server: 1 to 64 of A-Z a-z 0-9 _ - ."
    if entry.name in others:
        return f"name: there is another server called {entry.name}"
    if entry.transport == "stdio" and (not entry.command or entry.url is not None):
        return "a server over stdio has command, and no url"
    if entry.transport == "http" and (not entry.url or entry.command is not None):
        return "a server over http has url, and no command"
    if entry.url is not None and not re.match(r"(?i)https?://[^/]", entry.url):
        return f"url: {entry.url!r} is not an http or https URL"
    with_credentials = entry.token_env or entry.token_keyring or entry.client_cert or entry.oauth or entry.allow_http
    if with_credentials and entry.url is None:
        return "credentials are for one URL: name it as url"
    if (entry.write or entry.domains) and entry.command is None:
        return "write and domains are for a program: name it as command"
    for domain in entry.domains:
        try:
            canonical_domain(domain)
        except UrlProblem as error:
            return f"domains: {error}"
    if (entry.token_env is not None) + (entry.token_keyring is not None) + entry.oauth > 1:
        return "give one of token_env, token_keyring and oauth"
    return None


def token_of(entry: UserServer) -> str | None:
    """The user's token for a server, from the environment or the keyring."""
    if entry.token_env is not None:
        token, place = os.environ.get(entry.token_env, ""), f"${entry.token_env}"
    elif entry.token_keyring is not None:
        place = "the keyring"
        try:
            token = from_keyring(entry.token_keyring, "token_keyring")
        except UsageError as error:
            raise _NotUsed(str(error)) from error
    else:
        return None
    if not token:
        raise _NotUsed(f"there is no token in {place}")
    if not usable_in_header(token):
        raise _NotUsed(f"{place} does not contain a token")
    return token
