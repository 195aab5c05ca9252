"""The border between the host and whatever runs tools (AH 7.1, TR 3): values and one Protocol, no behaviour.

Values on the way to a session's first request are NamedTuples: a frozen dataclass takes six times as long to define.

Wire names are camelCase; `to_wire` of each value gives the closed schema of BT's "Tool Result Schema".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    After = Callable[[Mapping[str, Any], bytes | None], bytes | None]

ToolStatus = Literal["succeeded", "failed", "denied"]
ArtifactType = Literal["tool_output", "file_diff", "session_history"]


Category = Literal["commands", "files", "requests", "uploads"]
"""What a call takes of the machine: so many of each run at once (`tools.max_parallel_*` in the settings)."""
Effect = Literal["none", "replace", "edit", "delete", "other"]
"""What a call does. `none`: running it twice changes nothing (invariant 3). `replace`, `edit` and `delete` are all that
happens, and happen to one file, so that the disk shows whether they did; anything else is `other`."""
SubjectKind = Literal["path", "command", "url", "name"]
Display = Literal["arguments", "command", "delete", "read", "request", "upload", "write"]
"""How a call is shown to the person who decides about it: the describers of `agent_host.approval`."""


class Subject(NamedTuple):
    """How the facts of a call are found (AH 8.2): the `argument` that holds a path, a command line or a URL; of kind
    `name` a call is judged by its tool's name alone. `by_name`: the capability lists tools by name, so the facts of a
    path carry it, and a call that has content in place of the path is judged by the name."""

    kind: SubjectKind
    argument: str = ""
    by_name: bool = False


class ToolSpec(NamedTuple):
    """A tool, described in one place: what the model reads (TR 5), which capability it needs and by what it is
    judged (AH 7.2, 8.2), what it does, and how it is shown to a person.

    `input_schema` is a JSON Schema object. With `foreign_schema` another program wrote it: arguments are judged by a
    library, and not by the checker of our own definitions (decision 0032). `content` names the argument with text that
    is written or sent. `after` gives what a call of effect `replace` or `edit` will leave in its file, from its
    arguments and what is there now (None: no file); None where the arguments do not say, and the call then fails.
    A tool without a specification never runs (invariant 1).
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

    @property
    def side_effects(self) -> bool:
        """False only where running the call twice changes nothing."""
        return self.effect != "none"

    @property
    def changes_file(self) -> bool:
        """Whether the call's whole effect is on one file."""
        return self.effect in ("replace", "edit", "delete")

    def summary(self, arguments: Mapping[str, Any]) -> str:
        """On what a call of these arguments acts, as they say it; empty where they do not."""
        return str(arguments.get(self.subject.argument, "")) if self.subject.argument else ""


class ToolConstraints(NamedTuple):
    """The scope that policy allowed, handed on so that the runtime can check again at the time of use.

    None means "no restriction of that kind"; an empty tuple means "nothing". Paths are absolute, sizes are bytes.
    """

    max_file_size_bytes: int | None = None
    max_output_bytes: int | None = None
    allowed_paths: tuple[str, ...] | None = None
    blocked_paths: tuple[str, ...] | None = None
    allowed_domains: tuple[str, ...] | None = None
    blocked_domains: tuple[str, ...] | None = None


class ToolRequest(NamedTuple):
    """One tool call that policy has allowed, with the capability it was allowed under."""

    tool_name: str
    arguments: Mapping[str, Any]
    session_id: str
    task_id: str
    step_id: str
    tool_call_id: str
    capability: str
    constraints: ToolConstraints = ToolConstraints()


class Spooled(Protocol):
    """Bytes that wait in a file without a name, which goes when it is closed and with the process."""

    @property
    def size(self) -> int:
        """How many bytes `read` gives."""
        ...

    def read(self) -> bytes:
        """All of them. Raises OSError."""
        ...

    def close(self) -> None:
        """Let them go; harmless when they are gone."""
        ...


class Artifact(NamedTuple):
    """Bytes too large or too precious for the thread, to be stored by the host (AH 7.5, TR 7.2). A tool may leave them
    in a file. The receiver of the result closes that file."""

    artifact_type: ArtifactType
    name: str
    content_type: str
    content: bytes | Spooled

    @property
    def size(self) -> int:
        """Bytes of its content, which is not read for it."""
        return len(self.content) if isinstance(self.content, bytes) else self.content.size

    @property
    def data(self) -> bytes:
        """The whole content. A file is read each time that this is asked for. Raises OSError."""
        return self.content if isinstance(self.content, bytes) else self.content.read()

    def close(self) -> None:
        """Let go of the content's file, where it has one."""
        if not isinstance(self.content, bytes):
            self.content.close()


class ToolError(NamedTuple):
    """`code` is one of `agent_host.errors.ErrorCode` for the desktop family; each family has its own catalogue."""

    code: str
    message: str


class ToolResult(NamedTuple):
    """What came of one call. `artifacts` is data still to be stored; `artifact_uris` names what has been."""

    tool_name: str
    session_id: str
    task_id: str
    step_id: str
    status: ToolStatus
    output_text: str | None = None
    artifact_uris: tuple[str, ...] = ()
    error: ToolError | None = None
    artifacts: tuple[Artifact, ...] = ()

    @classmethod
    def failure(cls, request: ToolRequest, code: str, message: str, *, output_text: str | None = None) -> ToolResult:
        """A failed result for `request`."""
        return cls(
            request.tool_name,
            request.session_id,
            request.task_id,
            request.step_id,
            "failed",
            output_text=output_text,
            error=ToolError(str(code), message),
        )

    def to_wire(self) -> dict[str, Any]:
        """The closed JSON schema of BT; absent fields are left out."""
        wire: dict[str, Any] = {
            "toolName": self.tool_name,
            "sessionId": self.session_id,
            "taskId": self.task_id,
            "stepId": self.step_id,
            "status": self.status,
        }
        if self.output_text is not None:
            wire["outputText"] = self.output_text
        if self.artifact_uris:
            wire["artifactUris"] = list(self.artifact_uris)
        if self.error is not None:
            wire["error"] = {"code": self.error.code, "message": self.error.message}
        return wire


_MAX_NAMED: Final = 20


class Leftovers(NamedTuple):
    """What was left of a call: how many processes and files were ended and removed, and the ids of processes that are
    still there after SIGKILL."""

    ended: int = 0
    running: tuple[int, ...] = ()

    def note(self) -> str:
        """What a reader of the result has to know; empty where nothing runs. Names 20 processes at most."""
        if not self.running:
            return ""
        more = len(self.running) - _MAX_NAMED
        named = ", ".join(map(str, self.running[:_MAX_NAMED]))
        return f"still running after SIGKILL: {named}{f' and {more} more' if more > 0 else ''}"


class ToolRouter(Protocol):
    """The sole way to a tool (AH 7.1)."""

    async def execute(self, request: ToolRequest) -> ToolResult:
        """Run one call. Tool failures come back as results; only cancellation and broken infrastructure raise."""
        ...

    async def tools(self) -> Sequence[ToolSpec]:
        """All tools that this router can run by now, before policy narrows them. Each task asks again."""
        ...

    async def end_leftovers(self, request: ToolRequest) -> Leftovers:
        """Do away with what is left of a call whose host process died, so that it has no effect after it has been
        reported: end its processes, remove its temporary files. What cannot be reached stays and raises nothing."""
        ...

    async def aclose(self) -> None:
        """Release connections and end what is still running."""
        ...
