"""Who approves a call of a task that another program has handed in: the person behind that program, by elicitation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import mcp_types as types
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp.server import ServerRequestContext

    from agent_host.mcp_server.questions import Question

NOBODY: Final = "nobody could be asked: the client has no elicitation"
_NO_ANSWER: Final = "the client did not answer, or with nothing that is an answer"
_FORM: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "decision": {"type": "string", "enum": ["approve", "deny"], "description": "Whether the call may run"},
        "scope": {
            "type": "string",
            "enum": ["once", "task", "session"],
            "default": "once",
            "description": "How far it holds for the same action",
        },
        "reason": {"type": "string", "maxLength": 2000, "description": "What the model is to know"},
    },
    "required": ["decision"],
}


class Answer(NamedTuple):
    """What a person said to a question; `answers` are the fields of a form."""

    approved: bool
    scope: str = "once"
    reason: str = ""
    answers: Mapping[str, Any] | None = None


def can_elicit(context: ServerRequestContext[Any, Any]) -> bool:
    """True if the client shows forms to a person."""
    capabilities = context.session.client_capabilities
    elicitation = None if capabilities is None else capabilities.elicitation
    if elicitation is None:
        return False
    return elicitation.form is not None or elicitation.url is None  # with neither, forms are meant


async def elicited(context: ServerRequestContext[Any, Any], question: Question) -> Answer:
    """Ask within a request, of a client that takes requests. No answer is a denial."""
    try:
        result = await context.session.elicit_form(
            message_of(question), _form_of(question), related_request_id=context.request_id
        )
    except (MCPError, ValidationError):
        return Answer(False, reason=_NO_ANSWER)
    return answer_in(question, result)


def form_request(question: Question) -> types.ElicitRequest:
    """The question for a client that is asked by the answer to its own request (MCP 2026-07-28)."""
    return types.ElicitRequest(
        params=types.ElicitRequestFormParams(message=message_of(question), requested_schema=_form_of(question))
    )


def _form_of(question: Question) -> dict[str, Any]:
    """What is asked for: whether a call may run, or what a server that the task uses asks in the middle of one."""
    return _FORM if question.form is None else dict(question.form)


def message_of(question: Question) -> str:
    """What the person reads."""
    why = "" if question.description in ("", question.summary) else f"\n{question.description}"
    return f"{question.title}: {question.summary}{why}\n\nrisk: {question.risk}\n{question.details}"


def answer_in(question: Question, result: types.ElicitResult) -> Answer:
    """What a form says. All but an approval is a denial."""
    content: Mapping[str, Any] = result.content or {}
    if question.form is not None:
        return Answer(result.action == "accept", answers=content)
    scope, reason = content.get("scope"), content.get("reason")
    return Answer(
        result.action == "accept" and content.get("decision") == "approve",
        scope if scope in ("once", "task", "session") else "once",
        reason[:2000] if isinstance(reason, str) else "",
    )
