"""Approvals of calls in a task that another program has handed in: by the person behind that program, by
elicitation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import mcp_types as types
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from agent_host.display_text import clip, one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp.server import ServerRequestContext

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


class PersonsAnswer(NamedTuple):
    """A person's answer to a question; `answers` are the fields of a form."""

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


async def elicit(context: ServerRequestContext[Any, Any], question: WaitingCall) -> PersonsAnswer:
    """Ask within a request, of a client that takes requests. No answer is a denial."""
    try:
        result = await context.session.elicit_form(
            message_of(question), _form_of(question), related_request_id=context.request_id
        )
    except (MCPError, ValidationError):
        return PersonsAnswer(False, reason=_NO_ANSWER)
    return answer_in(question, result)


def form_request(question: WaitingCall) -> types.ElicitRequest:
    """The question for a client that is asked by the answer to its own request (MCP 2026-07-28)."""
    return types.ElicitRequest(
        params=types.ElicitRequestFormParams(message=message_of(question), requested_schema=_form_of(question))
    )


def _form_of(question: WaitingCall) -> dict[str, Any]:
    """The form of a question: whether a call may run, or what a server that the task uses asks in the middle of one."""
    return _FORM if question.form is None else dict(question.form)


def message_of(question: WaitingCall) -> str:
    """The text for the person."""
    why = "" if question.description in ("", question.summary) else f"\n{question.description}"
    return f"{question.title}: {question.summary}{why}\n\nrisk: {question.risk}\n{question.details}"


def answer_in(question: WaitingCall, result: types.ElicitResult) -> PersonsAnswer:
    """Read the answer in a form. All but an approval is a denial."""
    content: Mapping[str, Any] = result.content or {}
    if question.form is not None:
        return PersonsAnswer(result.action == "accept", answers=content)
    scope, reason = content.get("scope"), content.get("reason")
    return PersonsAnswer(
        result.action == "accept" and content.get("decision") == "approve",
        scope if scope in ("once", "task", "session") else "once",
        reason[:2000] if isinstance(reason, str) else "",
    )


# What waits for a person in a session: a call, or what an MCP server of the task asks in the middle of one.

_DETAILS_BYTES: Final = 8000
_NO_FIELDS: Final[dict[str, Any]] = {"type": "object", "properties": {}}
"""Of a page to open: it is answered, or declined, as a whole."""


class WaitingCall(NamedTuple):
    """A call that waits for a person. The texts are those of `approval_requested`, with nothing in them that does not
    print. `form` is the JSON Schema of what an MCP server of the task asks in the middle of a call."""

    approval_id: str
    title: str
    summary: str
    description: str
    risk: str
    details: str
    form: Mapping[str, Any] | None = None

    @property
    def wire(self) -> dict[str, Any]:
        """As a client reads it."""
        return {
            "approvalId": self.approval_id,
            "title": self.title,
            "actionSummary": self.summary,
            "description": self.description,
            "riskLevel": self.risk,
            "details": self.details,
            **({} if self.form is None else {"form": self.form}),
        }


def question_in(payload: Mapping[str, Any]) -> WaitingCall:
    """The question of an `approval_requested`."""
    details = dict(payload["details"])
    form = details.pop("form", _NO_FIELDS) if "isQuestion" in payload else None
    if form is not None:
        del details["question"]  # it is the description
    lines = [*payload["risks"], *(f"{name}: {value}" for name, value in details.items())]
    return WaitingCall(
        payload["approvalId"],
        one_line(payload["title"]),
        one_line(payload["actionSummary"]),
        clip(payload["description"], _DETAILS_BYTES),
        payload["riskLevel"],
        clip("\n".join(lines), _DETAILS_BYTES),
        form,
    )
