"""Tools for the router: each is a specification and a coroutine from a call to an output.

Frozen values inside this package are NamedTuples: a frozen dataclass costs ten times as much to import.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Protocol

from agent_host.contracts import Artifact, CommandObserver, Denial, Image, Leftovers, LoadedSkill, ToolRequest, ToolSpec
from config.lean_typing import NamedTuple
from tool_runtime.output import truncate_text
from tool_runtime.output.artifacts import BUFFER_BYTES
from tool_runtime.schema import Judge, own_judge

if TYPE_CHECKING:
    from agent_host.errors import ErrorCode
    from agent_host.ids import Outside
    from tool_runtime.threads import DaemonPool


class ToolOutput(NamedTuple):
    """Text for the model and artifacts for the host. `capped`: the tool has applied the output limit itself. The other
    fields are those of ToolResult."""

    text: str
    artifacts: tuple[Artifact, ...] = ()
    capped: bool = False
    exit_code: int | None = None
    seen: str | None = None
    command_id: str | None = None
    images: tuple[Image, ...] = ()
    skill: LoadedSkill | None = None
    stderr: str = ""
    artifact_uris: tuple[str, ...] = ()
    denials: tuple[Denial, ...] = ()
    settle: Callable[[], None] | None = None
    coloured: Mapping[str, str] = {}


class Abandoned:
    """Flag that is set when no caller waits for a call any more; work in a thread checks it before its point of no
    return."""

    __slots__ = ("flag",)

    def __init__(self) -> None:
        self.flag = False

    def refuse(self) -> None:
        """Raise ToolFault(TIMED_OUT) if the call was abandoned."""
        if self.flag:
            raise ToolFault(FaultKind.TIMED_OUT, "this call has been abandoned")


class CallClock:
    """The time limit of a call (`add_timeout`); it is paused while a person is asked something."""

    __slots__ = ("_left_s", "_paused", "limit")

    def __init__(self) -> None:
        self.limit: asyncio.Timeout | None = None
        self._paused = 0
        self._left_s = 0.0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the clock inside the block."""
        limit = self.limit
        if limit is None or limit.expired() or (limit.when() is None and not self._paused):
            yield
            return
        now = asyncio.get_running_loop().time
        if not self._paused:
            self._left_s = (limit.when() or 0.0) - now()
            limit.reschedule(None)
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1
            if not self._paused and self.limit is limit and not limit.expired():
                limit.reschedule(now() + self._left_s)


class CallContext(NamedTuple):
    """One call, passed through the wrappers. Byte limits are the tighter of the settings' and the request's."""

    request: ToolRequest
    settings: RuntimeSettings
    max_output_bytes: int
    max_file_size_bytes: int | None
    abandoned: Abandoned
    clock: CallClock
    at_once: bool = False
    """The call runs on the event loop, see `Work`."""

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments of the request."""
        return self.request.arguments

    def need_thread(self) -> None:
        """Raise NeedsThread on the event loop, because the next step may take longer than starting a thread."""
        if self.at_once:
            raise NeedsThread

    @classmethod
    def make(cls, request: ToolRequest, settings: RuntimeSettings) -> CallContext:
        """Return the context of `request` under `settings`."""
        limits = request.constraints
        output = smallest(settings.max_output_bytes, limits.max_output_bytes) or 0
        file = smallest(settings.max_file_size_bytes, limits.max_file_size_bytes)
        return cls(request, settings, output, file, Abandoned(), CallClock())


def mark_of(request: ToolRequest) -> str:
    """Return a mark that is unique to the call, because step ids are random, and the same in the process that resumes
    its session. It is a digest, because clients and gateways choose ids that do not fit in an environment variable."""
    named = f"{request.task_id}/{request.step_id}/{request.tool_call_id}"
    return hashlib.sha256(named.encode("utf-8", "surrogatepass")).hexdigest()


def place_to_keep(settings: RuntimeSettings, request: ToolRequest) -> str | None:
    """Return the path where the call saves a file's content before it overwrites the file in place; None if it saves
    none."""
    return None if settings.kept is None else os.path.join(settings.kept, mark_of(request))


def smallest(*limits: int | None) -> int | None:
    """Return the tightest of the limits; None for no limit."""
    return min([limit for limit in limits if limit is not None], default=None)


Handler = Callable[[CallContext], Awaitable[ToolOutput]]
"""Runs one call. Raises ToolFault with a message for the model, CancelledError if cancelled."""
Work = Callable[[CallContext], ToolOutput]
"""Runs one call, blocking. Raises ToolFault; with `at_once` NeedsThread, before it has done anything."""


class Tool(NamedTuple):
    """One tool of one provider, wrapped and ready to run; `codes` are its family's fault codes. `at_once` runs a call
    that need not wait, and returns None for any other call without doing any of it. `names` are the fault names that
    the model reads, if they differ from the code's name. `outcome` returns the result of a call whose host died before
    the answer came, None if unknown, and never runs the call. `check` describes problems of arguments that fit the
    schema, in words for the model."""

    spec: ToolSpec
    run: Handler
    codes: Mapping[FaultKind, str]
    at_once: Callable[[CallContext], ToolOutput | None] | None = None
    names: Mapping[FaultKind, str] = {}
    outcome: Callable[[CallContext], Awaitable[ToolOutput | None]] | None = None
    check: Callable[[Mapping[str, Any]], str | None] | None = None


class Provider(Protocol):
    """A source of tools: a family of this package, an MCP server, the backend service."""

    async def tools(self) -> Sequence[ToolSpec]:
        """Return the current tools; the list may change during a session."""

    def get(self, name: str) -> Tool | None:
        """Return the tool of this name; None if it is not this provider's."""

    async def end_leftovers(self, request: ToolRequest) -> Leftovers:
        """See ToolRouter, for a call of one of its tools. By default it leaves nothing."""
        del request
        return Leftovers()

    async def aclose(self) -> None:
        """Release the provider's resources."""


class NeedsThread(Exception):
    """Raised if a call would take too long on the event loop."""


def run_in_thread(work: Work, pool: DaemonPool, timeout_s: float) -> Handler:
    """Return a handler that runs `work` in a thread of the pool for at most `timeout_s` and limits its text."""
    return cap(add_timeout(lambda call: pool.run(lambda: work(call)), timeout_s))


def run_at_once(work: Work) -> Callable[[CallContext], ToolOutput | None]:
    """Return a function that runs `work` on the event loop, or returns None if `work` needs a thread."""

    def run(call: CallContext) -> ToolOutput | None:
        try:
            return cap_output(work(call._replace(at_once=True)), call)
        except NeedsThread:
            return None

    return run


def add_timeout(handler: Handler, timeout_s: float) -> Handler:
    """Wrap a handler to end a call after `timeout_s` (AH 7.4). Work that continues in a thread finds `abandoned`
    set."""

    async def run(call: CallContext) -> ToolOutput:
        try:
            async with asyncio.timeout(timeout_s) as call.clock.limit:
                return await handler(call)
        except TimeoutError as error:
            message = f"{call.request.tool_name} timed out after {timeout_s:g} seconds"
            raise ToolFault(FaultKind.TIMED_OUT, message) from error
        finally:
            call.clock.limit = None
            call.abandoned.flag = True

    return run


def cap(handler: Handler) -> Handler:
    """Wrap a handler to cut text over the output limit (TR 7.1), unless the tool has done so itself."""

    async def run(call: CallContext) -> ToolOutput:
        return cap_output(await handler(call), call)

    return run


def cap_output(output: ToolOutput, call: CallContext) -> ToolOutput:
    """Cut the output's text to the call's limit."""
    if output.capped:
        return output
    return output._replace(text=truncate_text(output.text, call.max_output_bytes), capped=True)


class FaultKind(Enum):
    """The kind of a fault, independent of families; `tool_runtime.families` has the families' codes."""

    UNKNOWN_TOOL = auto()
    INVALID_ARGUMENT = auto()
    NOT_FOUND = auto()
    IS_DIRECTORY = auto()
    NOT_REGULAR = auto()
    TOO_LARGE = auto()
    RESPONSE_TOO_LARGE = auto()
    OUT_OF_SCOPE = auto()
    PATH_CHANGED = auto()
    CHANGED = auto()
    EXISTS = auto()
    ACCESS_DENIED = auto()
    ADDRESS_REFUSED = auto()
    NETWORK = auto()
    SYSTEM = auto()
    TIMED_OUT = auto()
    EXIT_NONZERO = auto()
    INTERRUPTED = auto()
    RATE_LIMITED = auto()
    REFUSED = auto()


class ToolFault(Exception):
    """A failed tool call; `str()` is one line for the model, `partial` the output so far. `code` is the error code that
    another service of the interface gave, in place of the family's."""

    def __init__(
        self, kind: FaultKind, message: str, *, partial: ToolOutput | None = None, code: ErrorCode | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.partial = partial
        self.code = code


def judge_of(schema: Mapping[str, Any], *, foreign: bool = False) -> Judge:
    """Return the judge of arguments for `schema`; a `foreign` one comes from another program. Raises UnusableSchema."""
    if not foreign:
        return own_judge(schema)
    from tool_runtime.foreign_schema import foreign_judge  # a library of 15 MB, loaded only if needed

    return foreign_judge(schema)


def encode(text: str, argument: str) -> bytes:
    """Encode the text of an argument in UTF-8. Raises ToolFault(INVALID_ARGUMENT)."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ToolFault(FaultKind.INVALID_ARGUMENT, f"$.{argument}: contains a lone surrogate") from error


_KIND_OF_ERRNO = {
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR), FaultKind.NOT_FOUND),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), FaultKind.ACCESS_DENIED),
    errno.EISDIR: FaultKind.IS_DIRECTORY,
    errno.ELOOP: FaultKind.PATH_CHANGED,
    errno.ENAMETOOLONG: FaultKind.INVALID_ARGUMENT,
    errno.EFBIG: FaultKind.TOO_LARGE,
    errno.ENXIO: FaultKind.NOT_REGULAR,
}


def fault_of(error: OSError, subject: str) -> ToolFault:
    """Convert `error`, raised by work on `subject` (a path, a command, an address), to a fault."""
    kind = _KIND_OF_ERRNO.get(error.errno or 0, FaultKind.SYSTEM)
    return ToolFault(kind, f"{error.strerror or type(error).__name__}: {subject}")


@contextmanager
def os_faults(subject: str) -> Iterator[None]:
    """Convert an OSError of the block to the corresponding fault."""
    try:
        yield
    except OSError as error:
        raise fault_of(error, subject) from error


StreamName = Literal["stdout", "stderr"]

MIB = 1024 * 1024


SandboxLevel = Literal["none", "landlock", "namespace", "auto"]


class SandboxSettings(NamedTuple):
    """Settings of the sandbox for commands that have a `CommandScope`. `auto` is the strongest level that works here.
    If the level does not work, commands run without a sandbox, or are refused if it is `required`. `directory` belongs
    to the session and keeps data that is needed after a crash; None keeps none. `caches` is a directory for the caches
    of package managers, and the scope must let commands write there; None leaves the caches in their usual places."""

    level: SandboxLevel = "auto"
    required: bool = False
    directory: str | None = None
    caches: str | None = None


class RuntimeSettings(NamedTuple):
    """Settings of one `LocalToolRouter`; a request's own constraints can only tighten them. Names contain the units.
    `outside` is the session's clock and source of randomness (decision 0110), `workspace` an absolute real path and
    RunCommand's default directory; `shell` is a program path, None for the platform's choice (TR 6.2). Child processes
    do not get the variables of `secret_env` or variables whose name looks like a secret, except those of
    `env_passthrough`; apart from these and those that every program needs, they get only `env_allowed`, None for all.
    `open_output` opens the output that a call of the session stored under a reference; it returns None for other
    references. `address_allowed` decides if HttpRequest may connect to an IP address, whatever the name of its host;
    None means `policy.urls.address_is_public`, and no local names. `http_proxy` and `https_proxy` are the URLs of the
    proxies for that scheme. `temporary` is the directory for temporary files of child processes, None for the host's
    default; output of a command longer than `output_buffer_bytes` is spooled there. `on_output` is called on the event
    loop with every chunk a command prints and must not block. `guard_processes`: processes started by commands end with
    this process, even if it is killed; it adopts orphans and has a watcher process (`processes.guard`). Of the other
    children of this process it spares only those in its own process group, so only one runtime of a process may set it.
    `max_background` commands run in the background at once, each for `background_lifetime_s` at most, None for as long
    as the session; the session has started `commands_before` already, so that ids are not repeated, and `commands`
    observes each. `native_roots` are real paths, the only places of the native family's tools; empty for the workspace.
    Without `native_tls_checks` its requests accept any certificate; `native_shadowed` are its tools that other tools
    replace. The skills family skips names that match the globs `hidden_files`. Tools with a capability in `elsewhere`
    run only if they belong to a remote source. If `sandbox` is None, commands are not sandboxed. `kept` is a directory
    of the session for the content of files before they are overwritten in place, None to keep it only in memory."""

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
        """Timeout in seconds of a command that names none."""
        return min(self.command_timeout_s, self.command_timeout_max_s)

    @property
    def default_request_s(self) -> float:
        """Timeout in seconds of a request that names none."""
        return min(self.http_timeout_s, self.http_timeout_max_s)

    @property
    def writable_places(self) -> tuple[str, ...]:
        """Directories that tools and commands write to; the host starts none of its own programs from there."""
        return (self.workspace, *self.native_roots, *(() if self.temporary is None else (self.temporary,)))
