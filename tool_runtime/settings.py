"""Frozen settings of the runtime; units stand in the names."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, Literal

from config.lean_typing import NamedTuple
from tool_runtime.output.artifacts import BUFFER_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent_host.contracts import CommandObserver, ToolRequest
    from agent_host.ids import Outside


StreamName = Literal["stdout", "stderr"]

MIB = 1024 * 1024


SandboxLevel = Literal["none", "landlock", "namespace", "auto"]


class SandboxSettings(NamedTuple):
    """Settings of the sandbox for commands that have a `CommandScope`. `auto` is the strongest level that works here.
    Where the level does not work commands run without, or are refused where it is `required`. `directory` is the
    session's own, for what has to be known after a crash; None keeps nothing. Caches of package managers lie in
    `caches`, which the scope has to let commands write; None leaves them where they are."""

    level: SandboxLevel = "auto"
    required: bool = False
    directory: str | None = None
    caches: str | None = None


class RuntimeSettings(NamedTuple):
    """Settings of one `LocalToolRouter`; a request's own constraints can only make it tighter.

    `outside` is the clock and chance of the session (decision 0110). `workspace` is an absolute real path and
    RunCommand's default directory. `shell` is a program path, None for the platform's choice (TR 6.2). `secret_env`
    names variables that no child process gets, beside those whose name looks like a secret; `env_passthrough` names the
    exceptions. `env_allowed` are the only variables that they get besides these and those that every program needs,
    None for all. `open_output` opens what a call of the session stored under a reference, and gives None for any other.
    `address_allowed` says whether HttpRequest may connect to an IP address, whatever its host is called; None means
    `policy.addresses.address_is_public`, and no local names. `http_proxy` and `https_proxy` are the URLs of the proxies
    for requests of that scheme, None for none. `temporary` is where child processes put temporary files, None for the
    host's own place; a stream of a command's output that is longer than `output_buffer_bytes` is spooled there.
    `on_output` is called on the event loop with every chunk a command prints and must not block. `guard_processes`:
    what commands start ends with this process, also where it is killed; it adopts orphans then, and has a watcher
    process (`processes.guard`). Of the children that the rest of this process starts it leaves alone those in its own
    process group; others it takes for a command's, so one runtime of a process may ask for it. `max_background`
    commands run in the background at once, each for `background_lifetime_s` at most, None for as long as the session;
    `commands_before` is how many the session has had, so that ids do not come twice, and `commands` is told of each.
    `families` are those whose tools are offered. `native_roots` are real paths, the only places of the native family's
    tools; empty for the workspace. Without `native_tls_checks` its requests take any certificate; `native_shadowed` are
    its tools that others take the place of. A script of a skill runs for `script_timeout_s` at most; `hidden_files` are
    globs of names that the skills family passes over. `elsewhere` are capabilities whose tools do not run here, but for
    those of sources elsewhere. `sandbox` says how commands are held to their scope, None for not at all. `kept` is a
    directory of the session for what a file holds before it is written in place, None to keep that in memory alone.
    """

    workspace: str
    outside: Outside
    shell: str | None = None
    file_timeout_s: float = 30.0
    command_timeout_s: float = 300.0
    command_timeout_max_s: int = 600
    kill_grace_s: float = 5.0
    drain_s: float = 0.2
    http_timeout_s: float = 60.0
    http_timeout_max_s: int = 60
    http_max_body_bytes: int = 10 * MIB
    http_max_download_bytes: int = 64 * MIB
    http_max_redirects: int = 5
    http_proxy: str | None = None
    https_proxy: str | None = None
    max_output_bytes: int = 102_400
    max_file_size_bytes: int | None = None
    artifact_threshold_bytes: int = 10_240
    artifact_max_bytes: int = 64 * MIB
    output_buffer_bytes: int = BUFFER_BYTES
    secret_env: frozenset[str] = frozenset()
    env_passthrough: frozenset[str] = frozenset()
    env_allowed: frozenset[str] | None = None
    open_output: Callable[[str], BinaryIO | None] | None = None
    temporary: str | None = None
    address_allowed: Callable[[str], bool] | None = None
    on_output: Callable[[ToolRequest, StreamName, bytes], None] | None = None
    guard_processes: bool = False
    max_background: int = 8
    background_lifetime_s: float | None = None
    commands_before: int = 0
    commands: CommandObserver | None = None
    families: tuple[str, ...] = ("desktop",)
    native_roots: tuple[str, ...] = ()
    native_tls_checks: bool = True
    native_shadowed: frozenset[str] = frozenset()
    script_timeout_s: float = 30.0
    hidden_files: tuple[str, ...] = ()
    elsewhere: frozenset[str] = frozenset()
    sandbox: SandboxSettings | None = None
    kept: str | None = None

    @property
    def default_command_s(self) -> float:
        """The seconds of a command that names none."""
        return min(self.command_timeout_s, self.command_timeout_max_s)

    @property
    def default_request_s(self) -> float:
        """The seconds of a request that names none."""
        return min(self.http_timeout_s, self.http_timeout_max_s)

    @property
    def writable_places(self) -> tuple[str, ...]:
        """The places that tools and commands write to: the host starts none of its own programs from there."""
        return (self.workspace, *self.native_roots, *(() if self.temporary is None else (self.temporary,)))
