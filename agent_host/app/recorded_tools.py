"""Backend tools of a session that is run again: their definitions as the state directory keeps them, and their answers
from the record. Nothing is connected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent_host.app.backend_tools import stand_ins
from config.lean_typing import NamedTuple
from tool_runtime.backend.answers import CAPABILITY
from tool_runtime.backend.source import NAME
from tool_runtime.faults import FaultKind, ToolFault
from tool_runtime.remote import Definition, Listed, Terms
from tool_runtime.tool import ToolOutput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent_host.app.elsewhere import ToolsElsewhere
    from agent_host.routing.judge import Judge
    from config.settings import Settings
    from state.checkpoint import SessionIdentity
    from tool_runtime.remote import RemoteTools
    from tool_runtime.tool import CallContext

_TIMEOUT_S: Final = 10.0
_PLACE: Final = "the record"
_NO_ANSWER: Final = "the record has no answer to this call: it did not run then"


class Answer(NamedTuple):
    """What the model read of a call then."""

    text: str
    failed: bool


class RecordedToolService(NamedTuple):
    """In place of `ToolService`: the tools of `definitions`, whose calls are answered by their ids from `answers`."""

    definitions: tuple[Definition, ...]
    answers: Mapping[str, Answer]

    def provider(
        self,
        elsewhere: ToolsElsewhere,
        judge: Judge,
        identity: SessionIdentity,  # noqa: ARG002 - as ToolService has it
        settings: Settings,
    ) -> RemoteTools:
        """The Provider of these tools."""
        terms = Terms(CAPABILITY, True, _TIMEOUT_S, _TIMEOUT_S)
        return elsewhere.provider(_RecordedSource(self), _PLACE, terms, stand_ins(settings, judge.bundle))


class _RecordedSource:
    """A Source."""

    name = NAME

    def __init__(self, service: RecordedToolService) -> None:
        self._service = service

    async def list(self) -> Listed:
        """See Source."""
        return Listed(self._service.definitions)

    async def call(self, tool: Definition, call: CallContext) -> ToolOutput:  # noqa: ARG002 - see Source
        """See Source."""
        answer = self._service.answers.get(call.request.tool_call_id)
        if answer is None:
            raise ToolFault(FaultKind.SYSTEM, _NO_ANSWER)
        if answer.failed:
            raise ToolFault(FaultKind.SYSTEM, answer.text)
        return ToolOutput(answer.text)

    async def outcome(self, tool: Definition, call: CallContext) -> ToolOutput | None:  # noqa: ARG002 - see Source
        """See Source."""
        return None

    async def aclose(self) -> None:
        """See Source."""
