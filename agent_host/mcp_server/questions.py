"""What waits for a person in a session: a call, or what an MCP server of the task asks in the middle of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from agent_host.shown_text import clipped, one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

_DETAILS_BYTES: Final = 8000
_NO_FIELDS: Final[dict[str, Any]] = {"type": "object", "properties": {}}
"""Of a page to open: it is answered, or declined, as a whole."""


class Question(NamedTuple):
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
    def as_json(self) -> dict[str, Any]:
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


def question_in(payload: Mapping[str, Any]) -> Question:
    """The question of an `approval_requested`."""
    details = dict(payload["details"])
    form = details.pop("form", _NO_FIELDS) if "isQuestion" in payload else None
    if form is not None:
        del details["question"]  # it is the description
    lines = [*payload["risks"], *(f"{name}: {value}" for name, value in details.items())]
    return Question(
        payload["approvalId"],
        one_line(payload["title"]),
        one_line(payload["actionSummary"]),
        clipped(payload["description"], _DETAILS_BYTES),
        payload["riskLevel"],
        clipped("\n".join(lines), _DETAILS_BYTES),
        form,
    )
