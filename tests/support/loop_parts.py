"""Around a session's loop in tests: a model that follows a script, tools that are functions, somebody at the desk."""

from __future__ import annotations

import asyncio
import inspect
import io
import itertools
import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, BinaryIO

import orjson

from agent_host.approval.gate import PendingApprovals
from agent_host.contracts import Leftovers, ToolResult, ToolSpec
from agent_host.llm import ModelTurn
from agent_host.llm.deferred import Model
from agent_host.llm.dialects.anthropic import AnthropicAssembler, AnthropicDialect
from agent_host.services.workspace import ArtifactOnDisk, EmbeddedWorkspaceService, UploadFailed
from agent_host.testing.dialects import read_request
from agent_host.thread.messages import ToolCall
from policy.bundle import ApprovalRule, Capability, LlmPolicy, PolicyBundle
from state.checkpoint import TokenUsage
from tests.support.tools import TOOLS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from agent_host.approval import ApprovalAnswer, ApprovalRequest
    from agent_host.contracts import Artifact, Maker, ToolRequest

SESSION, TASK, MODEL = "s", "t", "m"
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
USAGE = TokenUsage(100, 10, 0)
_numbers = itertools.count(1)

Turn = ModelTurn | BaseException


# What the model says


def says(text: str = "Done.", *, stop: str = "end_turn", usage: TokenUsage = USAGE) -> ModelTurn:
    """A turn without calls."""
    return ModelTurn(text, (), stop, AnthropicAssembler.meaning_of(stop), usage)


def calls(*wanted: ToolCall, text: str = "", stop: str = "tool_use", usage: TokenUsage = USAGE) -> ModelTurn:
    """A turn with calls."""
    return ModelTurn(text, wanted, stop, AnthropicAssembler.meaning_of(stop), usage)


def call(name: str, call_id: str | None = None, /, **arguments: Any) -> ToolCall:
    """One call, under an id of its own."""
    return ToolCall(call_id or f"c{next(_numbers)}", name, arguments)


def shell(command: str, call_id: str | None = None) -> ToolCall:
    """A call with side effects whose effect no disk can tell."""
    return call("RunCommand", call_id, command=command)


def write(path: Path | str, content: str, call_id: str | None = None) -> ToolCall:
    """A call that changes one file."""
    return call("WriteFile", call_id, path=os.fspath(path), content=content)


def read(path: Path | str, call_id: str | None = None) -> ToolCall:
    """A call without side effects."""
    return call("ReadFile", call_id, path=os.fspath(path))


class Script(Model):
    """A `Model` that gives these turns, one a request. `requests` are the messages of each; `at_request` is called
    before each answer."""

    def __init__(self, *turns: Turn) -> None:
        self.turns = list(turns)
        self.heads: list[dict[str, Any]] = []
        self.requests: list[list[dict[str, Any]]] = []
        self.at_request: Callable[[], Awaitable[None] | None] = lambda: None

    async def stream(
        self,
        head: bytes,
        messages: Sequence[bytes],
        on_text: Callable[[str], None],
        on_thinking: Callable[[str], None] | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> ModelTurn:
        """See Model. Raises BadRequest for what the gateway would refuse."""
        body = orjson.loads(b"".join([head, *messages, AnthropicDialect.tail]))
        read_request(body, {})
        self.requests.append(body["messages"])
        self.heads.append({key: value for key, value in body.items() if key != "messages"})
        if on_sent is not None:
            on_sent()
        waited = self.at_request()
        if waited is not None:
            await waited
        turn = self.turns.pop(0)
        if isinstance(turn, BaseException):
            raise turn
        on_text(turn.text)
        return turn

    def warm_up(self) -> None:
        """See Model."""

    async def aclose(self) -> None:
        """See Model."""


# What the tools do


def succeeded(request: ToolRequest, text: str = "ok", artifacts: tuple[Artifact, ...] = ()) -> ToolResult:
    """A good result of `request`."""
    return ToolResult(
        request.tool_name, request.session_id, request.task_id, request.step_id, "succeeded", text, artifacts=artifacts
    )


def do(request: ToolRequest) -> ToolResult:
    """Really change files; a command has no effect but to be in `Tools.ran`."""
    path = os.path.normpath(request.arguments.get("path", ""))
    if request.tool_name == "WriteFile":
        with open(path, "w", encoding="utf-8") as handle:
            handle.write(request.arguments["content"])
    elif request.tool_name == "DeleteFile":
        os.unlink(path)
    elif request.tool_name == "ReadFile":
        with open(path, encoding="utf-8") as handle:
            return succeeded(request, handle.read())
    return succeeded(request)


class Tools:
    """A `ToolRouter` that runs every call with `run`. `requests` are those that came, `ran` what they acted on. `more`
    are tools beside the usual ones, `lists` what is fixed for a task that has had nothing, `wanted` what was asked to
    be fixed. `outcomes` say by the call's id what became of a call that a crash cut off, `asked` are the calls that
    were asked about."""

    def __init__(self, run: Callable[[ToolRequest], ToolResult | Awaitable[ToolResult]] = do) -> None:
        self.run = run
        self.requests: list[ToolRequest] = []
        self.leftovers: list[ToolRequest] = []
        self.running: tuple[int, ...] = ()
        self.more: tuple[ToolSpec, ...] = ()
        self.lists: dict[str, str] = {}
        self.wanted: list[dict[str, str]] = []
        self.outcomes: dict[str, Callable[[ToolRequest], ToolResult]] = {}
        self.asked: list[ToolRequest] = []

    @property
    def ran(self) -> list[str]:
        """The command, path or URL of each call, in the order in which they came."""
        return [str(request.arguments[TOOLS[request.tool_name].subject.argument]) for request in self.requests]

    async def execute(self, request: ToolRequest) -> ToolResult:
        """See ToolRouter."""
        self.requests.append(request)
        result = self.run(request)
        return await result if inspect.isawaitable(result) else result

    def at_once(self, _request: ToolRequest) -> ToolResult | None:
        """See ToolRouter."""
        return None

    async def fix(self, lists: Mapping[str, str]) -> Mapping[str, str]:
        """See ToolRouter."""
        self.wanted.append(dict(lists))
        return {**self.lists, **lists}

    async def outcome(self, request: ToolRequest) -> ToolResult | None:
        """See ToolRouter."""
        self.asked.append(request)
        answer = self.outcomes.get(request.tool_call_id)
        return None if answer is None else answer(request)

    async def tools(self) -> tuple[ToolSpec, ...]:
        """See ToolRouter."""
        return (*TOOLS.values(), *self.more)

    def argument_problem(self, tool_name: str, arguments: Mapping[str, Any]) -> str | None:
        return None

    def usable_arguments(self, tool_name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        return arguments

    async def end_leftovers(self, request: ToolRequest) -> Leftovers:
        """See ToolRouter."""
        self.leftovers.append(request)
        return Leftovers(running=self.running)

    async def settle(self, request: ToolRequest) -> None:
        """See ToolRouter. Nothing is kept."""

    async def end_commands(self) -> Leftovers:
        """See ToolRouter."""
        return Leftovers()

    async def aclose(self) -> None:
        """See ToolRouter."""


class Artifacts:
    """A `WorkspaceService` in memory; it takes none of the artifacts named in `refuses`. `of` has the task and the step
    of each that it has `stored`."""

    def __init__(self, *refuses: str) -> None:
        self.refuses = set(refuses)
        self.stored: list[Artifact] = []
        self.of: list[tuple[str | None, str | None]] = []

    async def upload(self, artifact: Artifact, *, task_id: str | None, step_id: str | None) -> str:
        """See WorkspaceService."""
        if artifact.name in self.refuses:
            raise UploadFailed(f"no room for {artifact.name}")
        self.stored.append(artifact)
        self.of.append((task_id, step_id))
        return f"workspaces/w/artifacts/{artifact.name}"


class Home(EmbeddedWorkspaceService):
    """The home of artifacts in memory; `held` has what was kept, by reference. It takes nothing while it is `full`."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.makers: dict[str, Maker | None] = {}
        self.full = False

    async def keep(self, artifact: Artifact, *, task_id: str | None, step_id: str | None) -> ArtifactOnDisk:
        """See EmbeddedWorkspaceService."""
        return self._keep(f"art_{len(self.held)}", artifact)

    def keep_history(self, artifact: Artifact, *, task_id: str | None) -> ArtifactOnDisk:
        """See EmbeddedWorkspaceService."""
        return self._keep("session_history", artifact)

    def read_kept(self, row: Mapping[str, Any]) -> bytes:  # type: ignore[override]  # an upload takes either
        """See EmbeddedWorkspaceService."""
        return self.held[row["ref"]]

    def uri_of(self, ref: str) -> str:
        """See EmbeddedWorkspaceService."""
        return f"workspaces/w/{ref}"

    def maker_of(self, ref: str) -> Maker | None:
        """See EmbeddedWorkspaceService."""
        return self.makers.get(ref)

    def open(self, ref: str) -> BinaryIO | None:
        """See EmbeddedWorkspaceService."""
        return io.BytesIO(self.held[ref]) if ref in self.makers else None

    def _keep(self, artifact_id: str, artifact: Artifact) -> ArtifactOnDisk:
        if self.full:
            raise UploadFailed(f"no room for {artifact.name}")
        ref = f"artifacts/{artifact_id}"
        self.held[ref], self.makers[ref] = artifact.data, artifact.maker
        return ArtifactOnDisk(artifact_id, ref, self.uri_of(ref), "", len(self.held[ref]))


# Who approves


class Person:
    """Somebody at a real desk. `say` gives the answer to each question: what `PendingApprovals.decide` takes,
    or None to leave it waiting. `asked` are the questions."""

    def __init__(self, say: Callable[[ApprovalRequest], dict[str, Any] | None], *, timeout_s: float = 600) -> None:
        self.say = say
        self.pending_approvals = PendingApprovals(timeout_s=timeout_s)
        self.asked: list[ApprovalRequest] = []

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        """See ApprovalGate."""
        self.asked.append(request)
        asyncio.get_running_loop().call_soon(self._answer, request)
        return await self.pending_approvals.ask(request)

    def _answer(self, request: ApprovalRequest) -> None:
        said = self.say(request)
        if said is not None:
            self.pending_approvals.decide(request.approval_id, **said)


YES: dict[str, Any] = {"approved": True}
NO: dict[str, Any] = {"approved": False, "reason": "not today"}


def says_yes() -> Person:
    """Somebody who approves everything."""
    return Person(lambda _: YES)


# What policy allows


def bundle(
    folder: Path | str,
    *,
    asks: Iterable[str] = (),
    without: Iterable[str] = (),
    expires_at: datetime = NOW + timedelta(days=1),
    max_input: int = 100_000,
    max_session: int = 1_000_000,
    version: str = "v1",
    models: tuple[str, ...] = (MODEL,),
    **grants: dict[str, Any],
) -> PolicyBundle:
    """Everything within `folder`; `asks` are capabilities that need an approval, `grants` change one by its name
    without the dot."""
    places = {"allowed_paths": (os.path.realpath(folder),)}
    given: dict[str, dict[str, Any]] = {
        "LLM.Call": {}, "File.Read": places, "File.Write": places, "File.Delete": places,
        "Shell.Exec": {}, "Network.Http": {"allowed_domains": ("example.com",)}, "Workspace.Upload": {},
    }  # fmt: skip
    capabilities = []
    for name, fields in given.items():
        asked = {"requires_approval": True, "approval_rule_id": f"rule-{name}"} if name in asks else {}
        if name not in without:
            capabilities.append(Capability(name, **{**fields, **asked, **grants.get(name.replace(".", ""), {})}))
    rules = tuple(ApprovalRule(f"rule-{name}", f"May it {name}?", "It wants to.") for name in asks)
    limits = LlmPolicy(models, max_input, 1000, max_session)
    return PolicyBundle(version, "1.0", "tenant", "user", SESSION, expires_at, tuple(capabilities), limits, rules)


async def settled(rounds: int = 30) -> None:
    """Let everything go on that waits for nothing."""
    for _ in range(rounds):
        await asyncio.sleep(0)
