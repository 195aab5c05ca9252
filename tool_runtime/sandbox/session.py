"""The sandbox of a session's commands on Linux (decision 0055). Imported and created with the first command.

A policy list decides by the words of a command line; the sandbox is enforced by the kernel, for the process and
everything that it starts. Both come from the same bundle: policy turns the grants into a `CommandScope` (paths to read
and write, hidden and guarded places, hosts), and this package gives that scope to the kernel.

Levels, strongest first (each is tried before it is used, see `launching`):

- `namespace`: the launcher, a helper process, starts the program in namespaces of its own, in which hidden places are
  covered by empty mounts and other processes cannot be seen.
- `landlock`: a fresh thread gives up its rights by Landlock and seccomp, starts the program and exits.
- `none`: nothing is enforced; the bundle may forbid this level.

Parts: `protected_paths` restores guarded places (git hooks, configuration that steers tools) if a command changed them;
`supervisor` and `sockets` answer the kernel's questions about sockets, and let commands reach the servers of the same
session's commands; `web.proxy` is the only way out for a command that may reach some hosts; `denials` explains an error
from the kernel by the rule of the scope.

Rules: the host itself is never restricted, only what it starts. A trial that itself fails does not count as "no
sandbox": commands are then denied. Parts of a scope that a level cannot enforce are listed in `unheld` and reported,
never silently dropped. Each command is prepared from the current state of the disk, because the workspace changes; what
is reused between two commands is checked by the identity of the files (`RulesCache`, `mounts.SeenPlaces`).

Traps: Landlock grants a whole directory and cannot exclude anything inside it, so the neighbours of a hidden place are
granted one by one. A file descriptor that a program already has is not restricted. A process that leaves its group or
session is still found (`processes.guard`).
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import os
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from policy.urls import address_is_public
from tool_runtime.files.writer import PRIVATE_DIRECTORY, open_directory
from tool_runtime.platform import landlock, linux_sandbox
from tool_runtime.platform.linux_sandbox import RulesCache
from tool_runtime.platform.mounts import DiskView, folders_between
from tool_runtime.sandbox import directory_of, find
from tool_runtime.sandbox.denials import Disk, denials_in, filter_denials
from tool_runtime.sandbox.launching import LaunchedPopen, Launcher
from tool_runtime.sandbox.protected_paths import Guarded, Watched
from tool_runtime.sandbox.sockets import SocketRules
from tool_runtime.sandbox.supervisor import OwnSockets, SocketSupervisor
from tool_runtime.sandbox.workspace_places import writable_roots
from tool_runtime.threads import run_in_fresh_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agent_host.contracts import Denial
    from policy import CommandScope
    from tool_runtime.platform.landlock import Rules
    from tool_runtime.platform.linux_sandbox import Restriction
    from tool_runtime.platform.seccomp import Network
    from tool_runtime.threads import DaemonPool
    from tool_runtime.tool import RuntimeSettings, SandboxSettings
    from tool_runtime.web.proxy import DomainProxy

    Opened = Callable[..., subprocess.Popen[bytes]]

MAX_DENIALS: Final = 50
"""Maximum denials recorded per command; repeats count once."""
_REAPED_S: Final = (0.2, 3.2)
"""Delay from the end of a command to the reaping of helpers; it is doubled and repeated up to the second value, because
the machine may be busy."""
_KEPT_S: Final = 60.0
"""Time that the rules of a command are kept. No longer, because the space of a deleted file that they grant is not
freed."""
_MAX_SETTINGS_BYTES: Final = 1024 * 1024
_CACHES: Final[Mapping[str, str]] = {
    "XDG_CACHE_HOME": "",
    "PIP_CACHE_DIR": "pip",
    "UV_CACHE_DIR": "uv",
    "npm_config_cache": "npm",
    "YARN_CACHE_FOLDER": "yarn",
    "CARGO_HOME": "cargo",
    "GOCACHE": "go-build",
    "GOMODCACHE": "go-mod",
}
_CARGO_OFFLINE: Final = "cargo-offline"


class SandboxedCommand:
    """One sandboxed command. `variables` override its environment. `denials` are those that the supervisor, the proxy
    and the checks of guarded places reported; `on_denial` is called with each, from any thread."""

    def __init__(
        self, sandbox: Sandbox, scope: CommandScope, cwd: str, on_denial: Callable[[Denial], None], mark: str
    ) -> None:
        self._sandbox = sandbox
        self._on_denial = on_denial
        self._cwd = cwd
        self._mark = mark
        self._before: Watched | None = None
        self._is_over = False
        self._listener: int | None = None
        self.scope = scope
        self.is_looked_at = bool(scope.guarded) or sandbox.may_write_here(scope)
        self.denials: dict[Denial, None] = {}
        self.proxy = sandbox.proxy_for(scope, self.report)
        self.variables: Mapping[str, str] = {
            **sandbox.variables,
            **(offline_variables(sandbox.settings.caches) if scope.domains == () else {}),
            **({} if self.proxy is None else _proxy_variables(self.proxy.port, os.environ)),
        }

    def start(self, launch: Callable[[Opened], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        """Start a program in the sandbox by `launch`, which gets the Popen to use. Raises what `launch` raises, and
        OSError."""
        try:
            restriction = self._sandbox.restriction(self.scope)
            if self.is_looked_at:
                self._look()
            self._sandbox.running.add(self)
            if self._sandbox.found.is_supervised:
                self._sandbox.with_programs.add(self)
            process, listener = self._sandbox.launch(self.scope, restriction, launch)
        except OSError:
            self.over()
            self.clean_up()
            raise
        if listener is not None:
            self._listener = listener
            self._sandbox.watch(listener, self, restriction)
        return process

    def _look(self) -> None:
        """Look at the guarded places, and undo changes by programs of other commands that still run."""
        guarded, quiet = self._sandbox.guarded, self._sandbox.is_quiet()
        folders = folders_between(self.scope.writes, self.scope.guarded)
        self._before = guarded.begin(self._mark, self.scope.unchangeable, self.scope, folders=folders, quiet=quiet)
        if not quiet:
            self._sandbox.late += guarded.check(self._before)

    def report(self, denial: Denial) -> None:
        """Record a denial. Safe from any thread."""
        if denial not in self.denials and len(self.denials) < MAX_DENIALS:
            self.denials[denial] = None
            if denial.action != "use":  # many programs try sockets that they do not need
                self._on_denial(denial)

    def over(self) -> None:
        """Check guarded places after the command ended or was abandoned. Harmless when repeated."""
        before, self._before = self._before, None
        try:
            if not self._sandbox.has_programs(self._listener):
                self._sandbox.leave(self._sandbox.with_programs, self)
            if before is not None:
                self._is_over = True
                found = self._sandbox.guarded.end(self._mark, before, alone=True)
                late, self._sandbox.late = self._sandbox.late, []
                for denial in (*late, *found):
                    self.report(denial)
        finally:
            self._sandbox.leave(self._sandbox.running, self)

    def finish(self, exit_code: int, printed: bytes, *, was_ended: bool = False) -> tuple[Denial, ...]:
        """Return the denials of the command, which is over and has `printed` this. `was_ended` means that it was
        stopped while it ran, so it may still have been retrying without having printed an error."""
        if exit_code == 0:
            return tuple(denial for denial in self.denials if denial.action == "change")
        text = printed.decode("utf-8", "replace")
        allows: Callable[[str], bool] = (lambda _: False) if self.proxy is None else self.proxy.allows
        seen = filter_denials(self.denials, text, allows, was_ended=was_ended)

        def closed() -> Sequence[str]:
            return self._sandbox.kept.rules(self.scope).closed

        found = denials_in(text, exit_code, self.scope, self._cwd, Disk(), closed)
        # Such as the path of a socket, which the command did not mean to write.
        reported = {denial.what for denial in seen}
        return tuple(dict.fromkeys([*seen, *(denial for denial in found if denial.what not in reported)]))

    def clean_up(self) -> None:
        """Clean up after the last program of the command has exited. Safe from any thread."""
        if self._is_over and self in self._sandbox.with_programs:  # programs that outlived it may have written since
            with suppress(OSError):  # the next command's look finds the rest
                self._sandbox.late += self._sandbox.guarded.check(Watched(self.scope.unchangeable, {}, self.scope))
        self._sandbox.leave(self._sandbox.with_programs, self)
        if self.proxy is not None:
            self._sandbox.end_proxy(self.proxy)


class Sandbox:
    """The sandbox for the commands of one session. Raises ToolFault if the required level does not work."""

    def __init__(self, settings: SandboxSettings, runtime: RuntimeSettings, pool: DaemonPool) -> None:
        self.found = find(settings, directory_of(runtime))
        self.settings = settings
        self._runtime = runtime
        self._pool = pool
        self._supervisor: SocketSupervisor | None = None
        self._launcher: Launcher | None = None
        self._own: dict[CommandScope, OwnSockets] = {}
        self.running: set[SandboxedCommand] = set()
        self._has_looked = False
        self.late: list[Denial] = []
        """Changes by programs that outlived their command, for the next result."""
        self.with_programs: set[SandboxedCommand] = set()
        """Commands that still had programs at the last check."""
        self._agents = _agent_sockets(os.environ)
        self._proxies: set[DomainProxy] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self.kept = RulesCache(self._restriction, in_view=self.found.level == "namespace")
        self._forgetting: asyncio.TimerHandle | None = None
        self._reaping: asyncio.TimerHandle | None = None

    async def look_around(self, scope: CommandScope) -> None:
        """Search the workspace in another thread, before the first command that may write there."""
        if not self._has_looked and self.may_write_here(scope):
            await self._pool.run(lambda: self.guarded.find(scope))
            self._has_looked = True

    def prepare(
        self, scope: CommandScope, cwd: str, on_denial: Callable[[Denial], None], mark: str
    ) -> SandboxedCommand:
        """Prepare the start of a command in `cwd` under `scope`. `on_denial` is called with each denial, from any
        thread. `mark` identifies the command after a crash, for the check of its changes."""
        return SandboxedCommand(self, scope, cwd, on_denial, mark)

    def leave(self, group: set[SandboxedCommand], command: SandboxedCommand) -> None:
        """Remove a command from `running` when it is over, or from `with_programs` when none of its programs is left.
        Safe from any thread."""
        group.discard(command)
        # Reaped later, because the first process of a namespace exits a little after the last program.
        if self._launcher is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._reap_later)

    def _reap_later(self, after_s: float = _REAPED_S[0]) -> None:
        if self._reaping is not None:
            self._reaping.cancel()
        self._reaping = self._loop.call_later(after_s, self._reap, after_s)

    def _reap(self, after_s: float) -> None:
        if self._launcher is not None:
            self._launcher.reap()
            if 2 * after_s <= _REAPED_S[1]:
                self._reap_later(2 * after_s)

    def has_programs(self, listener: int | None) -> bool:
        """True if the command with this listener still has programs."""
        return listener is not None and self._supervisor is not None and self._supervisor.has_programs(listener)

    def is_quiet(self) -> bool:
        """True if no command or leftover program of one runs that could write to the workspace or a guarded place."""
        return not any(one.is_looked_at for one in (*self.running, *self.with_programs))

    def may_write_here(self, scope: CommandScope) -> bool:
        """True if a command under `scope` may write to the workspace."""
        return bool(writable_roots(scope, self._runtime.workspace))

    @functools.cached_property
    def guarded(self) -> Guarded:
        """The protection of guarded places."""
        return Guarded(self.settings.directory, self._runtime.workspace)

    @functools.cached_property
    def variables(self) -> Mapping[str, str]:
        """The environment variables of every sandboxed command."""
        return _session_variables(self.settings.caches, os.environ)

    def restriction(self, scope: CommandScope) -> Restriction:
        """Return the restriction for a command under `scope`, from the current state of the disk. Raises OSError."""
        if self._forgetting is not None:
            self._forgetting.cancel()
        self._forgetting = self._loop.call_later(_KEPT_S, self.kept.forget)
        return self.kept.get(scope).restriction

    def _restriction(self, scope: CommandScope, rules: Rules) -> Restriction:
        supervised = self.found.is_supervised
        network: Network = "open" if _is_open(scope) else "supervised" if supervised else "closed"
        return linux_sandbox.Restriction(rules.rules, self.found.abi, network, supervised)

    def launch(
        self, scope: CommandScope, restriction: Restriction, launch: Callable[[Opened], subprocess.Popen[bytes]]
    ) -> tuple[subprocess.Popen[bytes], int | None]:
        """Start a program by `launch`; return the process and the listener of its sockets, if it has one. Raises
        OSError."""
        if self.found.level != "namespace":
            start = functools.partial(launch, subprocess.Popen)
            return run_in_fresh_thread(lambda: linux_sandbox.launch_by_this_thread(restriction, start))
        launcher = self._launcher = self._launcher or Launcher(self.found.namespaces)
        guarded = (*scope.unchangeable, *self.guarded.places_at_top(scope))
        view = DiskView(scope.writes, guarded, scope.hidden, self.found.namespaces.processes)
        listeners: list[int | None] = []

        def run(argv: Sequence[str], cwd: str, env: Mapping[str, str], streams: Sequence[int]) -> int:
            started = launcher.start(argv, cwd, env, streams, view, restriction)
            listeners.append(started.listener)
            return started.pid

        return launch(functools.partial(LaunchedPopen, run)), listeners[0]

    def watch(self, listener: int, command: SandboxedCommand, restriction: Restriction) -> None:
        """Let the supervisor decide on the sockets of a started command."""
        supervisor = self._supervisor = self._supervisor or SocketSupervisor()
        own = self._own.setdefault(command.scope, OwnSockets(supervisor.listeners))
        rules = SocketRules(
            command.scope,
            restriction._replace(ruleset=None),
            own,
            agents=frozenset().union(*(self._agents.get(name, ()) for name in command.scope.agents)),
            all_agents=frozenset().union(*self._agents.values()),
            proxy_port=None if command.proxy is None else command.proxy.port,
            is_open=restriction.network == "open",
            private=(landlock.SHARED_MEMORY,) if self.found.level == "namespace" else (),
            address_allowed=self._runtime.address_allowed or address_is_public,
            opens_here=(lambda *_: False) if command.proxy is None else command.proxy.opens_here,
            report=command.report,
        )
        supervisor.watch(listener, rules.decide, command.clean_up)

    def proxy_for(self, scope: CommandScope, report: Callable[[Denial], None]) -> DomainProxy | None:
        """Return a new proxy for one command under `scope`; None if it needs none or could not reach it."""
        if scope.domains == () or _is_open(scope) or not self.found.is_supervised:
            return None
        from tool_runtime.web.proxy import proxy_of  # few commands may reach hosts

        proxy = proxy_of(scope, self._runtime, report, self._pool)
        self._proxies.add(proxy)
        return proxy

    def end_proxy(self, proxy: DomainProxy) -> None:
        """Close the proxy of a command after its last program has exited. Safe from any thread."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._end_proxy, proxy)

    def _end_proxy(self, proxy: DomainProxy) -> None:
        if proxy in self._proxies:
            self._proxies.discard(proxy)
            task = asyncio.create_task(proxy.aclose(), name="sandbox-proxy-end")
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def aclose(self) -> None:
        """Close the supervisor, the launcher and the proxies. No command may be started afterwards."""
        for timer in (self._forgetting, self._reaping):
            if timer is not None:
                timer.cancel()
        self.kept.forget()
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            await self._pool.run(supervisor.close)
        if self._launcher is not None:
            await self._pool.run(self._launcher.close)
            self._launcher = None
        if "guarded" in vars(self):
            self.guarded.close()
        for proxy in list(self._proxies):
            self._end_proxy(proxy)
        if self._ending:
            await asyncio.wait(self._ending)


def _is_open(scope: CommandScope) -> bool:
    """True if any host may be reached, so that only addresses are checked."""
    return scope.domains is None and not scope.blocked_domains


def open_sandbox(runtime: RuntimeSettings, pool: DaemonPool) -> Sandbox | None:
    """Open the sandbox of a session's commands; None if there is none. Raises ToolFault as `find` does."""
    if runtime.sandbox is None or find(runtime.sandbox, directory_of(runtime)).level == "none":
        return None
    return Sandbox(runtime.sandbox, runtime, pool)


# Environment variables of sandboxed commands: writable caches, and the host's proxy.


def _caches_in(directory: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return variables that put the caches of package managers below `directory`, shared by all commands of a session.
    Go modules that the user has downloaded are still used in place."""
    found = {name: os.path.join(directory, place) if place else directory for name, place in _CACHES.items()}
    home = environ.get("HOME", "")
    modules = environ.get("GOMODCACHE") or os.path.join(environ.get("GOPATH") or os.path.join(home, "go"), "pkg", "mod")
    downloads = os.path.join(modules, "cache", "download")
    if os.path.isdir(downloads):
        usual = environ.get("GOPROXY") or "https://proxy.golang.org,direct"
        found["GOPROXY"] = f"file://{downloads},{usual}"
    return found


def cargo_settings(directory: str, environ: Mapping[str, str]) -> None:
    """Copy the user's cargo settings (mirrors and build options) to its new homes, except files that contain a token.
    The home for commands without a network also gets links to the user's downloads, to be read. Links that an earlier
    command left in `directory` are not followed. Raises OSError."""
    home = environ.get("CARGO_HOME") or os.path.join(environ.get("HOME", ""), ".cargo")
    settings: dict[str, bytes] = {}
    for name in ("config.toml", "config"):
        source = os.path.join(home, name)
        if os.path.isfile(source):
            with open(source, "rb") as file:
                content = file.read(_MAX_SETTINGS_BYTES + 1)
            if len(content) <= _MAX_SETTINGS_BYTES and b"token" not in content:
                settings[name] = content
    downloads = [name for name in ("registry", "git") if os.path.isdir(os.path.join(home, name))]
    for place, links in ((_CACHES["CARGO_HOME"], []), (_CARGO_OFFLINE, downloads)):
        if settings or links:
            found = {one: os.path.realpath(os.path.join(home, one)) for one in links}
            _fill(os.path.join(directory, place), settings, found)


def _fill(place: str, files: Mapping[str, bytes], links: Mapping[str, str]) -> None:
    """Create the directory `place` with those of these files and links that do not exist yet."""
    with open_directory(place, create=PRIVATE_DIRECTORY) as directory:
        for name, data in files.items():
            if directory.status(name) is None:
                directory.put(name, data, 0o600, durable=False)
        for name, target in links.items():
            if directory.status(name) is None:
                directory.put_link(name, target)


def _session_variables(directory: str | None, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of every sandboxed command; `directory` is for caches. Run by root, tar would change the
    owner of files, which the sandbox denies."""
    found: dict[str, str] = {}
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        found["TAR_OPTIONS"] = " ".join(filter(None, (environ.get("TAR_OPTIONS"), "--no-same-owner")))
    if directory is not None:
        with suppress(OSError):  # cargo works without them
            cargo_settings(directory, environ)
        found |= _caches_in(directory, environ)
    return found


def offline_variables(directory: str | None) -> dict[str, str]:
    """Return variables of a command that reaches no host, which override those of the session: package managers do not
    retry, and cargo uses the user's downloads, unless a command of the session has downloaded something itself."""
    found = dict.fromkeys(("npm_config_fetch_retries", "PIP_RETRIES", "CARGO_NET_RETRY", "UV_HTTP_RETRIES"), "0")
    if directory is not None and not os.path.isdir(os.path.join(directory, _CACHES["CARGO_HOME"], "registry")):
        found["CARGO_HOME"] = os.path.join(directory, _CARGO_OFFLINE)
    return found


def _proxy_variables(port: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make programs use the host's proxy at `port` on the loopback interface."""
    url = f"http://127.0.0.1:{port}"
    local = "localhost,127.0.0.1,::1"
    java = (
        f"-Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort={port} -Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort={port} "
        "-Dhttp.nonProxyHosts=localhost|127.*|[::1]"
    )
    found = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"), url)
    return {
        **found,
        "NO_PROXY": local,
        "no_proxy": local,
        "NODE_USE_ENV_PROXY": "1",
        "npm_config_proxy": url,
        "npm_config_https_proxy": url,
        "JAVA_TOOL_OPTIONS": " ".join(filter(None, (environ.get("JAVA_TOOL_OPTIONS"), java))),
    }


# Sockets of the user's key agents (ssh, gpg). A command may use an agent if it is granted by name.

_OF_GPG = ("S.gpg-agent", "S.gpg-agent.extra", "S.gpg-agent.browser", "S.keyboxd")
_DIGITS: Final = "ybndrfg8ejkmcpqxot1uwisza345h769"
_DIGIT_BITS, _NAME_BYTES, _NAME_DIGITS = 5, 15, 24


def _agent_sockets(environ: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """Return the real paths of the existing sockets of each agent, `ssh` and `gpg`."""
    usual = os.path.join(environ.get("HOME", "/"), ".gnupg")
    home = environ.get("GNUPGHOME") or usual
    folders = [home]
    if hasattr(os, "getuid"):
        run = f"/run/user/{os.getuid()}/gnupg"
        folders.append(run if home == usual else os.path.join(run, _folder_of(home)))
    gpg = [os.path.join(folder, name) for folder in folders for name in _OF_GPG]
    ssh = [environ.get("SSH_AUTH_SOCK", ""), *(os.path.join(folder, "S.gpg-agent.ssh") for folder in folders)]
    found = {"ssh": ssh, "gpg": gpg}
    return {name: frozenset(map(os.path.realpath, filter(os.path.exists, all_))) for name, all_ in found.items()}


def _folder_of(home: str) -> str:
    """Return the name of GnuPG's socket directory for a home that is not the default: `d.` and a part of the home's
    hash."""
    digest = hashlib.sha1(os.fsencode(home), usedforsecurity=False).digest()[:_NAME_BYTES]
    number = int.from_bytes(digest, "big")
    digits = (number >> _DIGIT_BITS * place & len(_DIGITS) - 1 for place in reversed(range(_NAME_DIGITS)))
    return "d." + "".join(_DIGITS[digit] for digit in digits)
