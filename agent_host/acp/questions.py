"""Questions of a session to the person at the editor: a call that waits for approval, and what an MCP server asks in
the middle of one. Pure but for the request itself. Whatever is no answer is a denial.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from agent_host.acp.peer import AcpError
from agent_host.acp.updates import diff_contents, text_contents, title_of
from agent_host.display_text import clip, one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent_host.acp.peer import RpcPeer

_DETAILS_BYTES: Final = 32_000
_CUT: Final = ("more characters are not shown]", "more]", "…")
_OPTIONS: Final = {
    "allow_once": ("Allow", "once"),
    "allow_always": ("Allow the same in this session", "session"),
}
_DENY: Final = "reject_once"
NO_FORM: Final = "an MCP server asked something, and this editor shows no forms"


class ApprovalParams(NamedTuple):
    """The parameters of an ApproveAction but for the id; `note` tells the person why nobody was asked."""

    params: Mapping[str, Any]
    note: str = ""


def denial(reason: str, note: str = "") -> ApprovalParams:
    """A denial in these words."""
    return ApprovalParams({"decision": "denied", "reason": reason}, note)


class Forms(NamedTuple):
    """The elicitations that a client takes."""

    form: bool
    url: bool


async def ask(peer: RpcPeer, session_id: str, payload: Mapping[str, Any], kind: str, forms: Forms) -> ApprovalParams:
    """Ask the question of an `approval_requested`. Raises PeerGone."""
    try:
        if "isQuestion" in payload:
            return await _elicit(peer, session_id, payload, forms)
        result = await peer.request(
            "session/request_permission",
            {"sessionId": session_id, "toolCall": _call_of(payload, kind), "options": _options(payload)},
        )
    except AcpError as error:
        return denial(f"the editor could not ask: {one_line(str(error))}")
    return _permission_in(result, payload)


def _call_of(payload: Mapping[str, Any], kind: str) -> dict[str, Any]:
    details = payload["details"]
    path, diff = details.get("path"), details.get("diff")
    has_diff = isinstance(path, str) and isinstance(diff, str)
    contents = diff_contents(path, diff) if has_diff else []
    return {
        "toolCallId": payload["toolCallId"],
        "title": title_of(payload["actionSummary"], ""),
        "kind": kind,
        "status": "pending",
        "content": [*contents, *text_contents(_text_of(payload, but=("diff",) if has_diff else ()))],
        **({"locations": [{"path": path}]} if isinstance(path, str) else {}),
    }


def _text_of(payload: Mapping[str, Any], but: tuple[str, ...] = ()) -> str:
    """The question in lines: the rule, the risk and why, and what would happen."""
    rows = {name: value for name, value in payload["details"].items() if name not in but and value not in (None, [])}
    shown = (f"{name}: {value if isinstance(value, str) else json.dumps(value)}" for name, value in rows.items())
    why = [] if payload["description"] in ("", payload["actionSummary"]) else [payload["description"]]
    lines = [payload["title"], *why, f"risk: {payload['riskLevel']}", *payload["risks"], *shown]
    return clip("\n".join(lines), _DETAILS_BYTES)


def _options(payload: Mapping[str, Any]) -> list[dict[str, str]]:
    """Allow, deny, and allow for the session if the question shows all of what that would allow."""
    kinds = _OPTIONS if _is_whole(payload) else {"allow_once": _OPTIONS["allow_once"]}
    allowed = [{"optionId": kind, "name": name, "kind": kind} for kind, (name, _) in kinds.items()]
    return [*allowed, {"optionId": _DENY, "name": "Deny", "kind": _DENY}]


def _is_whole(payload: Mapping[str, Any]) -> bool:
    """True if nothing of the call was cut for being shown."""
    details = payload["details"]
    if "segmentsNotShown" in details or "headersNotShown" in details:
        return False
    ends = (line.rstrip() for line in _text_of(payload).splitlines())
    return not any(line.endswith(_CUT) for line in ends)


def _permission_in(result: Any, payload: Mapping[str, Any]) -> ApprovalParams:
    outcome = result.get("outcome") if isinstance(result, dict) else None
    chosen = outcome.get("optionId") if isinstance(outcome, dict) and outcome.get("outcome") == "selected" else None
    offered = {one["optionId"] for one in _options(payload)}
    if chosen in offered and chosen in _OPTIONS:
        return ApprovalParams({"decision": "approved", "scope": _OPTIONS[chosen][1]})
    return denial("denied by the user" if chosen == _DENY else "the editor gave no answer")


# What an MCP server asks


async def _elicit(peer: RpcPeer, session_id: str, payload: Mapping[str, Any], forms: Forms) -> ApprovalParams:
    details = payload["details"]
    is_page = "url" in details
    if not (forms.url if is_page else forms.form):
        return denial(NO_FORM, f"{details.get('source', 'An MCP server')} asked: {details.get('question', '')}")
    asked: dict[str, Any] = {
        "sessionId": session_id,
        "toolCallId": payload["toolCallId"],
        "message": clip(f"{details.get('source', 'mcp')}: {details.get('question', '')}", _DETAILS_BYTES),
    }
    if is_page:
        asked |= {"mode": "url", "elicitationId": payload["approvalId"], "url": details["url"]}
    else:
        asked |= {"mode": "form", "requestedSchema": details.get("form", {"type": "object", "properties": {}})}
    result = await peer.request("elicitation/create", asked)
    action = result.get("action") if isinstance(result, dict) else None
    if action != "accept":
        return denial("declined by the user" if action == "decline" else "the user gave no answer")
    content = result.get("content")
    return ApprovalParams({"decision": "approved", "arguments": content if isinstance(content, dict) else {}})
