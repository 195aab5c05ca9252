"""Parts of a call that the tools of the family read."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from policy.names import CapabilityName
from tool_runtime.files.paths import Scope
from tool_runtime.files.read import FileStamp
from tool_runtime.files.write import Expected
from tool_runtime.tool import FaultKind, ToolFault

if TYPE_CHECKING:
    from agent_host.contracts import ToolConstraints, ToolRequest
    from tool_runtime.settings import RuntimeSettings
    from tool_runtime.tool import CallContext


def mark_of(request: ToolRequest) -> str:
    """Unique to the call, since step ids are random; the same in the process that resumes its session. A digest, since
    clients and gateways choose ids that no variable of a process can hold."""
    named = f"{request.task_id}/{request.step_id}/{request.tool_call_id}"
    return hashlib.sha256(named.encode("utf-8", "surrogatepass")).hexdigest()


def place_to_keep(call: CallContext) -> str | None:
    """The place where the call keeps what a file holds before it is written in place; None for nowhere."""
    return place_to_keep_by_request(call.settings, call.request)


def place_to_keep_by_request(settings: RuntimeSettings, request: ToolRequest) -> str | None:
    """`place_to_keep` for a call of which there is no context."""
    return None if settings.kept is None else os.path.join(settings.kept, mark_of(request))


def scope_of(request: ToolRequest, capability: str | None = None) -> Scope:
    """The scope in which policy lets the call act, under another capability that it needs if one is named."""
    limits = constraints_of(request, capability)
    return Scope(limits.allowed_paths, limits.blocked_paths)


def constraints_of(request: ToolRequest, capability: str | None = None) -> ToolConstraints:
    """The call's limits, under another capability that it needs where one is named. Raises KeyError for one that the
    tool does not name."""
    if capability is None or capability == request.capability:
        return request.constraints
    return request.also[capability]


def expectation_of(request: ToolRequest) -> Expected:
    """The state that the file must have for the call to change it: what it names, else what a call saw of it last."""
    named = request.arguments.get("expectedSha256")
    seen = None if request.last_seen is None else FileStamp.parse(request.last_seen)
    return Expected(named, seen, CapabilityName.FILE_READ in request.also)


def encode(text: str, argument: str) -> bytes:
    """The text in UTF-8. Raises ToolFault(INVALID_ARGUMENT)."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ToolFault(FaultKind.INVALID_ARGUMENT, f"$.{argument}: holds a lone surrogate") from error
