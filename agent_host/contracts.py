"""The border between the host and whatever runs tools (AH 7.1, TR 3): values and one Protocol, no behaviour.

Values on the way to a session's first request are NamedTuples: a frozen dataclass takes six times as long to define.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from policy import CommandScope

    After = Callable[[Mapping[str, Any], bytes | None], bytes | None]
    AskPerson = Callable[["ToolRequest", "PersonAsked"], Awaitable["PersonAnswer"]]

MAX_ARTIFACT_BYTES: Final = 50 * 1024 * 1024
"""The largest artifact that the Workspace Service takes (AH 7.5)."""
ToolStatus = Literal["succeeded", "failed", "denied"]
ArtifactType = Literal["tool_output", "file_diff", "session_history"]


Category = Literal["commands", "files", "requests", "uploads"]
"""The resource that a call uses: `tools.max_parallel_*` in the settings limits how many of each run at once."""
Effect = Literal["none", "replace", "edit", "delete", "move", "other"]
"""The effect of a call. `none`: running it twice changes nothing (invariant 3). `replace`, `edit`, `delete` and `move`:
exactly that, to one file, so that the disk shows whether it happened; anything else is `other`. After a `move` the
content of its subject is at the path that File.Write is needed for."""
SubjectKind = Literal["path", "command", "program", "script", "url", "name", "output"]
Display = Literal["arguments", "command", "delete", "move", "read", "request", "upload", "write"]
"""The form in which an approval question shows a call: the describers of `agent_host.approval`."""


class Subject(NamedTuple):
    """The source of a call's facts (AH 8.2): the `argument` with a path, a command line or a URL. With kind `program`
    it is the path of a program, started without a shell (`policy.shell`), with kind `script` the path of a script in
    the skill named by the argument `skill`; with kind `name` a call is judged by its tool's name. `by_name`: the
    capability lists tools by name, so the facts of a path include the name, and a call with content instead of a path
    is judged by it. `or_workspace`: an omitted path means the workspace. If the argument named `tree_flag` is true, the
    path may be a directory, and the call acts on everything in it."""

    kind: SubjectKind
    argument: str = ""
    by_name: bool = False
    or_workspace: bool = False
    tree_flag: str = ""


class Need(NamedTuple):
    """Another capability that a call needs, and the subject that is judged under it. `optional`: only calls with the
    subject's argument need it."""

    capability: str
    subject: Subject
    optional: bool = False


class ToolSpec(NamedTuple):
    """The one description of a tool: for the model (TR 5), its capability and the subject of decisions (AH 7.2, 8.2),
    its effect, and its display to a person.

    `input_schema` is a JSON Schema object. `rare` are further properties that requests omit to save tokens: the error
    that needs one introduces it. `foreign_schema`: another program wrote the schema, so a library checks arguments, not
    the checker of our own definitions (decision 0032). `content` names the argument with text that is written or sent,
    `sought` the argument with a search pattern. `after` returns the file content after a call of effect `replace` or
    `edit`, from its arguments and the present content (None: no file); None if the arguments do not determine it, and
    the call then fails. `also` are further capabilities that calls need, for the same path or others: the strictest
    decision counts. `identity` is the SHA-256 of the parts of a workspace's tool, or of the definition of a remote
    tool: policy admits only an approved identity. `elsewhere`: calls go over the network. `runs` is the program with
    its arguments that a call of a workspace's tool starts. `output_schema` describes the JSON in a call's text, if it
    is JSON. `error_names` maps the host's error codes to the family's: the model reads these, results and events use
    the host's. `offered` is the schema in requests, if calls may have more arguments. `reads_outputs`: the path may be
    a reference to the output of an earlier call. A tool without a specification never runs (invariant 1).
    """

    name: str
    description: str
    input_schema: Mapping[str, Any]
    capability: str
    subject: Subject
    effect: Effect
    category: Category
    display: Display = "arguments"
    content: str | None = None
    after: After | None = None
    foreign_schema: bool = False
    also: tuple[Need, ...] = ()
    sought: str | None = None
    identity: str | None = None
    runs: tuple[str, ...] = ()
    output_schema: Mapping[str, Any] | None = None
    error_names: Mapping[str, str] = {}
    elsewhere: bool = False
    offered: Mapping[str, Any] | None = None
    reads_outputs: bool = False
    rare: Mapping[str, Any] = {}

    @property
    def schema_to_check(self) -> Mapping[str, Any]:
        """The schema that calls are judged by."""
        if not self.rare:
            return self.input_schema
        return {**self.input_schema, "properties": {**self.input_schema.get("properties", {}), **self.rare}}

    def complete(self, arguments: Mapping[str, Any], workspace: str) -> Mapping[str, Any]:
        """The arguments, with the `workspace` for an omitted path."""
        kind, name = self.subject.kind, self.subject.argument
        if kind != "path" or not self.subject.or_workspace or arguments.get(name) is not None:
            return arguments
        return {**arguments, name: workspace}

    @property
    def starts_program(self) -> bool:
        """True if a call starts a program on this machine, which a sandbox can hold."""
        return not self.elsewhere and (self.subject.kind in ("command", "program", "script") or bool(self.runs))

    @property
    def capabilities(self) -> tuple[str, ...]:
        """All that every call needs, the one that it is listed under first."""
        return (self.capability, *(need.capability for need in self.also if not need.optional))

    def needs(self, arguments: Mapping[str, Any]) -> tuple[Need, ...]:
        """The further needs of a call with these arguments."""
        return tuple(need for need in self.also if not need.optional or need.subject.argument in arguments)

    def capabilities_for(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """The capabilities that a call of these arguments needs, each once."""
        return tuple(dict.fromkeys((self.capability, *(need.capability for need in self.needs(arguments)))))

    @property
    def subjects(self) -> frozenset[str]:
        """Names of the arguments that determine what a call acts on."""
        return frozenset({self.subject.argument, *(need.subject.argument for need in self.also)} - {""})

    @property
    def paths(self) -> frozenset[str]:
        """Names of the arguments that are paths on which a call acts."""
        subjects = (self.subject, *(need.subject for need in self.also))
        return frozenset(subject.argument for subject in subjects if subject.kind == "path")

    @property
    def side_effects(self) -> bool:
        """False only where running the call twice changes nothing."""
        return self.effect != "none"

    @property
    def changes_file(self) -> bool:
        """True if the call's whole effect is on one file."""
        return self.effect in ("replace", "edit", "delete", "move")

    def summary(self, arguments: Mapping[str, Any]) -> str:
        """The target of a call as its arguments spell it; empty if they do not."""
        if self.subject.kind in ("program", "script"):
            from policy import shell  # with the first such call

            return shell.summary_of(arguments) if self.subject.kind == "program" else shell.summary_of_script(arguments)
        others = (need.subject.argument for need in self.also if not need.optional)
        named = dict.fromkeys((self.subject.argument, *others))
        places = " → ".join(str(arguments[name]) for name in named if name in arguments)
        if self.subject.kind == "url" and "method" in arguments:
            return f"{arguments['method']} {places}"
        if self.sought is None:
            return places
        return f"{arguments.get(self.sought, '')}{places and f' in {places}'}"


class ToolConstraints(NamedTuple):
    """The scope that policy allowed, which the runtime checks again at the time of use.

    None means "no restriction of that kind"; an empty tuple means "nothing". Paths are absolute, sizes are bytes.
    `command_scope` is the sandbox's scope for the call's processes, None without a sandbox.
    """

    max_file_size_bytes: int | None = None
    max_output_bytes: int | None = None
    allowed_paths: tuple[str, ...] | None = None
    blocked_paths: tuple[str, ...] | None = None
    allowed_domains: tuple[str, ...] | None = None
    blocked_domains: tuple[str, ...] | None = None
    command_scope: CommandScope | None = None


class ToolRequest(NamedTuple):
    """One tool call that policy has allowed under `capability`. `also` are the scopes of its further capabilities; for
    a call that changes a file also the scope of File.Read, if granted. `last_seen` is `seen` of the last result on the
    same file; `judged` is the identity of the script that policy has judged (`policy.facts.ScriptFacts`), the only one
    that may run."""

    tool_name: str
    arguments: Mapping[str, Any]
    session_id: str
    task_id: str
    step_id: str
    tool_call_id: str
    capability: str
    constraints: ToolConstraints = ToolConstraints()
    also: Mapping[str, ToolConstraints] = {}
    last_seen: str | None = None
    judged: str | None = None


class Spooled(Protocol):
    """Bytes that wait in a file without a name, which goes when it is closed and with the process."""

    @property
    def size(self) -> int:
        """The number of bytes in `pieces`."""

    def pieces(self) -> Iterator[bytes]:
        """All of them, a megabyte or so at a time; each call begins from the first. Raises OSError."""

    def close(self) -> None:
        """Let them go; harmless when they are gone."""


class Maker(NamedTuple):
    """The call that left an artifact: its tool, and the capabilities that it needed. Who reads the artifact needs the
    same."""

    tool_name: str
    capabilities: tuple[str, ...]


class Artifact(NamedTuple):
    """Data that is too large or too valuable for the thread, stored by the host (AH 7.5, TR 7.2). A tool may leave it
    in a file, which the receiver of the result closes. If the call's text is a JSON object, the artifact's reference
    goes into its field `ref_field`, and the SHA-256 into `hash_field`. `part` names the output of the call, as `stdout`
    or `body`; empty if it is no output."""

    artifact_type: ArtifactType
    name: str
    content_type: str
    content: bytes | Spooled
    maker: Maker | None = None
    ref_field: str = ""
    hash_field: str = ""
    part: str = ""

    @property
    def size(self) -> int:
        """Bytes of its content, which is not read for it."""
        return len(self.content) if isinstance(self.content, bytes) else self.content.size

    @property
    def data(self) -> bytes:
        """The whole content in memory; use `pieces` for large data. Each access reads the file again. Raises
        OSError."""
        return self.content if isinstance(self.content, bytes) else b"".join(self.content.pieces())

    def pieces(self) -> Iterator[bytes]:
        """The content, a file's a piece at a time. Raises OSError."""
        return iter((self.content,)) if isinstance(self.content, bytes) else self.content.pieces()

    def close(self) -> None:
        """Close the content's file, if it has one."""
        if not isinstance(self.content, bytes):
            self.content.close()


class Image(NamedTuple):
    """A picture for the model, as its file has it: a PNG, JPEG, GIF or WebP of `width` times `height` pixels."""

    media_type: str
    width: int
    height: int
    data: bytes

    @property
    def text(self) -> str:
        """A description in words for the model and for people."""
        return f"{self.media_type}, {self.width}x{self.height}, {len(self.data)} bytes"

    def to_wire(self) -> dict[str, Any]:
        """A description without its bytes: {mediaType, width, height, bytes}."""
        size = {"width": self.width, "height": self.height, "bytes": len(self.data)}
        return {"mediaType": self.media_type, **size}


class ToolError(NamedTuple):
    """`code` is one of `agent_host.errors.ErrorCode`. `name` is what the model reads in its place, if it differs from
    the family's name of the code (`ToolSpec.error_names`)."""

    code: str
    message: str
    name: str | None = None


class Denial(NamedTuple):
    """An action of a call's processes that the sandbox denied. `what` is a real path, a host with its port, a unix
    socket's path or a port; `rule` names the denying part of its `policy.CommandScope`, `network` if no host is
    granted. `action` is `read`, `write`, `connect`, `listen` or `use`; or `change` for a change of a protected path,
    whose handling `done` describes."""

    kind: Literal["path", "host", "socket", "port"]
    what: str
    rule: str
    action: str
    done: str = ""

    def note(self) -> str:
        """One line for people and the model."""
        return f"{self.action} {self.what}: {self.done or 'refused'} ({_RULES.get(self.rule, self.rule)})"


_RULES: Final[Mapping[str, str]] = {
    "reads": "it is not among the places that may be read",
    "writes": "it is not among the places that may be written",
    "hidden": "the place is hidden from commands",
    "guarded": "the place may be read only",
    "beside": "nothing new can be created directly next to hidden files or the kernel's",
    "domains": "the host is not among the allowed domains",
    "blocked_domains": "the domain is blocked",
    "proxy": "allowed hosts are reached by the proxy that HTTP_PROXY names, and the program did not ask it",
    "addresses": "it is a local or reserved address",
    "network": "commands have no network here but their own servers",
    "private": "commands have a place of their own there, in which no sockets can be made",
    "ports": "it is one of the system's own ports",
    "own": "only sockets of this session's own commands may be used",
    "agents": "agents may be used only where they are granted",
}


class LoadedSkill(NamedTuple):
    """A skill that a call has read, active until the task ends. `allowed_tools` are the only tools to be used with it,
    by its own names; None for all (SK 3.1)."""

    name: str
    allowed_tools: tuple[str, ...] | None = None


class ToolResult(NamedTuple):
    """The result of one call. `artifacts` is data to be stored; `artifact_uris` names stored data. `exit_code` is a
    command's; the call has succeeded with any exit code, because the tool did its work (TR 4.4). `seen` is the stamp
    of the file that the call read or wrote, by which tools detect later changes. `command_id` identifies a command
    left running in the background. `images` go to models that read them (TR 11). `skill` is a skill that the call has
    activated. `stderr` is the start of a program's standard error, for observers (NT). `denials` are the sandbox's
    denials, also described in `output_text`. `settle` is called after the result is recorded, and removes what was
    retained for a crash. `coloured` is a command's output with its colours (SGR), by stream, for people: the text has
    none."""

    tool_name: str
    session_id: str
    task_id: str
    step_id: str
    status: ToolStatus
    output_text: str | None = None
    artifact_uris: tuple[str, ...] = ()
    error: ToolError | None = None
    artifacts: tuple[Artifact, ...] = ()
    exit_code: int | None = None
    seen: str | None = None
    command_id: str | None = None
    images: tuple[Image, ...] = ()
    skill: LoadedSkill | None = None
    stderr: str = ""
    denials: tuple[Denial, ...] = ()
    settle: Callable[[], None] | None = None
    coloured: Mapping[str, str] = {}

    @classmethod
    def failure(cls, request: ToolRequest, code: str, message: str, *, output_text: str | None = None) -> ToolResult:
        """A failed result for `request`."""
        ids = request.session_id, request.task_id, request.step_id
        error = ToolError(str(code), message)
        return cls(request.tool_name, *ids, "failed", output_text=output_text, error=error)


class PersonAsked(NamedTuple):
    """A question of the server `source` to a person during a call (TR 9). All fields come unchecked from another
    program: `schema` is the JSON Schema of a form, `url` a page that the person should open instead."""

    source: str
    message: str
    schema: Mapping[str, Any] | None = None
    url: str | None = None


class PersonAnswer(NamedTuple):
    """The person's answer: `content` is that of an accepted form. `problem` tells the server why the question cannot be
    asked."""

    action: Literal["accept", "decline", "cancel"]
    content: Mapping[str, Any] | None = None
    problem: str | None = None


_MAX_NAMED: Final = 20


class Leftovers(NamedTuple):
    """Leftovers of a call: the numbers of terminated processes and removed files, the ids of processes that survived
    SIGKILL, and changed protected paths. `file` is the outcome of a file written in place, empty if there is none;
    `changed`: another process has changed it since. `settle` is called after the call's result is recorded."""

    ended: int = 0
    running: tuple[int, ...] = ()
    guarded: tuple[Denial, ...] = ()
    file: Literal["", "done", "not_done", "put_back", "changed"] = ""
    settle: Callable[[], None] | None = None

    def note(self) -> str:
        """The note for a reader of the result; empty if nothing runs or was changed. Names 20 processes at most, and 20
        places."""
        notes = [denial.note() for denial in self.guarded[:_MAX_NAMED]]
        if self.running:
            omitted = len(self.running) - _MAX_NAMED
            named = ", ".join(map(str, self.running[:_MAX_NAMED])) + (f" and {omitted} more" if omitted > 0 else "")
            notes.insert(0, f"still running after SIGKILL: {named}")
        return "; ".join(notes)


CommandReason = Literal["exited", "timed_out", "stopped", "session_ended", "interrupted"]
"""Why a background command is over: by itself, by its time-out, by StopCommand, by the end of the session's process, or
since that process was killed."""


_ENDED: Final[Mapping[CommandReason, str]] = {
    "exited": "ended",
    "timed_out": "ended by its time-out",
    "stopped": "stopped",
    "session_ended": "ended with the process of the session",
    "interrupted": "ended by a crash of the host",
}


class CommandEnd(NamedTuple):
    """The end of a background command. `exit_code` is as a shell reports it, None if unknown. `left` is the number of
    its processes that still run; they end with the session."""

    command_id: str
    reason: CommandReason
    exit_code: int | None = None
    left: int = 0

    def note(self) -> str:
        """The note on its end, in words for the model."""
        text = _ENDED[self.reason]
        if self.exit_code is not None:
            text = f"exit code {self.exit_code}" if self.reason == "exited" else f"{text}, exit code {self.exit_code}"
        if self.left:
            text += f"; {self.left} of its processes still run, and end with the session"
        return text


class CommandObserver(Protocol):
    """The observer of background commands, on the event loop, in the order in which things happen. `request` is the
    call that started the command."""

    def started(self, request: ToolRequest, command_id: str) -> None:
        """The command runs."""

    def ended(self, request: ToolRequest, end: CommandEnd) -> None:
        """It is over."""


NoticeKind = Literal["listed", "changed", "hidden", "unavailable"]


class SourceNotice(NamedTuple):
    """A notice about a source of remote tools: that it listed `tool_count` tools, and which of them cannot be used
    (`rejected`); that a task has others than the one before (`added`, `removed`, `changed`); that policy admits none of
    them; that it does not answer. `message` is one line."""

    source: str
    kind: NoticeKind
    message: str
    tool_count: int = 0
    added: Sequence[str] = ()
    removed: Sequence[str] = ()
    changed: Sequence[str] = ()
    rejected: Sequence[str] = ()


class ToolRouter(Protocol):
    """The sole way to a tool (AH 7.1)."""

    async def execute(self, request: ToolRequest) -> ToolResult:
        """Run one call. Tool failures come back as results; only cancellation and broken infrastructure raise."""

    def at_once(self, request: ToolRequest) -> ToolResult | None:
        """Run a call that has nothing to wait for, without the time that a task of its own takes; None for every other
        call, of which nothing has been done."""

    async def tools(self) -> Sequence[ToolSpec]:
        """All tools that this router can run by now, before policy narrows them. Each task asks again."""

    async def fix(self, lists: Mapping[str, str]) -> Mapping[str, str]:
        """Fix the remote tools for a task, before it calls `tools`: as they were in `lists`, the SHA-256 of each
        source's list by the name of the source, if these are stored, else the present lists. Waits a moment for a
        source without a known list. Returns the fixed lists in the same form."""

    async def outcome(self, request: ToolRequest) -> ToolResult | None:
        """Return the outcome of a call whose host process died before it had the answer, if the remote side knows it,
        else None. Runs nothing."""

    def argument_problem(self, tool_name: str, arguments: Mapping[str, Any]) -> str | None:
        """Return the problem with a call's arguments by the tool's own schema; None if there is none, or no such
        tool."""

    def usable_arguments(self, tool_name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments without placeholders for omitted optional ones, such as null; `arguments` itself if nothing
        changes, or there is no such tool."""

    async def end_leftovers(self, request: ToolRequest) -> Leftovers:
        """Clean up after a call whose host process died, so that it has no effect after it was reported: terminate its
        processes, remove its temporary files. What cannot be reached stays; nothing is raised."""

    async def settle(self, request: ToolRequest) -> None:
        """Remove what was retained of a call until its result was recorded; its files stay unchanged. Does nothing if
        nothing was retained."""

    async def end_commands(self) -> Leftovers:
        """Terminate the session's background commands, and then other processes left by commands, whose number is
        returned. No call follows. May be repeated."""

    async def aclose(self) -> None:
        """Release connections and terminate running processes."""
