"""What the tools of the MCP server take. The models are their input schemas as well."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

_MAX_WAIT_S = 86_400.0

SessionId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,128}$")]
WaitS = Annotated[
    float | None,
    Field(
        ge=0,
        le=_MAX_WAIT_S,
        description="Seconds to wait for the task; then the answer is how far it is. Default: until it is over",
    ),
]


class Arguments(BaseModel):
    """Base of all: other names than those given are refused."""

    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", strict=True)


class RunTask(Arguments):
    """Of `run_task`."""

    prompt: Annotated[str | None, Field(min_length=1, max_length=1_000_000, description="What to do")] = None
    session_id: Annotated[
        SessionId | None,
        Field(
            description="Session of an earlier task, which knows what was said there. Without a prompt the task that "
            "is open there goes on. Default: a new session"
        ),
    ] = None
    max_steps: Annotated[int | None, Field(ge=1, le=10_000, description="Limit of steps. Default: the host's")] = None
    model: Annotated[str | None, Field(max_length=256, description="A model that the policy allows")] = None
    wait_s: WaitS = None


class SessionStatus(Arguments):
    """Of `session_status`."""

    session_id: Annotated[SessionId | None, Field(description="Default: all sessions on record, newest first")] = None
    task_id: Annotated[
        str | None, Field(min_length=1, max_length=128, description="Default: the session's last task")
    ] = None
    wait_s: Annotated[
        float, Field(ge=0, le=_MAX_WAIT_S, description="Seconds to wait for the task to be over. Default: 0")
    ] = 0.0


class Approve(Arguments):
    """Of `approve`."""

    session_id: SessionId
    approval_id: Annotated[str, Field(min_length=1, max_length=128)]
    decision: Literal["approved", "denied"]
    scope: Annotated[
        Literal["once", "task", "session"],
        Field(description="How far it holds for the same action. Default: once"),
    ] = "once"
    reason: Annotated[str, Field(max_length=2000)] = ""
    answers: Annotated[
        dict[str, str | int | float | bool | list[str]] | None,
        Field(description="Of an approval with `form`: what is filled in"),
    ] = None
    wait_s: WaitS = None


def what_is_wrong(error: ValidationError) -> str:
    """The first mistake, in one line."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"$.{place}: {first['msg']}" if place else first["msg"]
