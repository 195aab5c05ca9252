"""The methods of `serve` (interface section 2): their parameters as data, and what each asks of the session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from agent_host.errors import UsageError
from agent_host.rpc.params import InvalidParams, name, params, prose
from agent_host.rpc.server import Method
from agent_host.services.session import NewSession
from config.shapes import FLAG, OBJECT, ListOf, Text, one_of, whole
from policy.rules.options import TaskOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent_host.rpc.feed import Feed
    from agent_host.session.host import Opened, SessionHost

PROTOCOL_VERSION: Final = "1.0"
DEFAULT_REASON: Final = "shutdown"
_MAX_TEXT: Final = 16 * 1024 * 1024
_MAX_EVENT_ID: Final = 2**53
_MAX_EVENTS_BYTES: Final = 16 * 1024 * 1024

_MAX_MEMBERS: Final = 1000

_ID: Final = name(128)
_PATHS: Final = ListOf(name(4096), most=_MAX_MEMBERS)
_CLIENT_TEXT: Final = Text(most=256)
_CLIENT: Final = params(
    optional=dict.fromkeys(
        ("desktopAppVersion", "localAgentHostVersion", "osFamily", "osVersion", "name", "version"), _CLIENT_TEXT
    )
)
_TASK_OPTIONS: Final = params(
    optional={
        "maxSteps": whole(1, 10_000),
        "approvalMode": one_of("always", "on_risky_actions", "never"),
        "allowNetwork": FLAG,
    }
)


class Methods:
    """Serves the methods out of one session host; `feed` is what GetEvents looks into."""

    def __init__(self, host: SessionHost, feed: Feed) -> None:
        self._host = host
        self._feed = feed

    def table(self) -> dict[str, Method]:
        """Every method by its name."""
        return {
            "CreateSession": Method(
                params(
                    {
                        "userId": name(),
                        "tenantId": name(),
                        "executionEnvironment": one_of("desktop", "cloud_sandbox", "ci"),
                        "clientInfo": _CLIENT,
                        "supportedCapabilities": ListOf(name(256), most=_MAX_MEMBERS),
                    },
                    {"workspaceHint": params(optional={"localPaths": _PATHS})},
                ),
                self._create_session,
            ),
            "StartTask": Method(
                params(
                    {"sessionId": _ID, "taskId": _ID, "prompt": prose(_MAX_TEXT, least_chars=1)},
                    {"taskOptions": _TASK_OPTIONS},
                ),
                self._start_task,
            ),
            "CancelTask": Method(params({"sessionId": _ID, "taskId": _ID}, {"force": FLAG}), self._cancel_task),
            "ResumeSession": Method(
                params({"sessionId": _ID}, {"checkpointCursor": name(256), "autoContinue": FLAG}),
                self._resume_session,
            ),
            "GetSessionState": Method(params({"sessionId": _ID}), self._get_session_state),
            "GetPatchPreview": Method(
                params({"sessionId": _ID}, {"filePaths": _PATHS, "taskId": _ID}), self._get_patch_preview
            ),
            "ApproveAction": Method(
                params(
                    {"approvalId": _ID, "decision": one_of("approved", "denied")},
                    {
                        "scope": one_of("once", "task", "session"),
                        "reason": prose(4096),
                        "arguments": OBJECT,  # what it may hold is for the tool's own schema to say
                    },
                ),
                self._approve_action,
            ),
            "GetEvents": Method(params({"sessionId": _ID, "sinceId": whole(0, _MAX_EVENT_ID)}), self._get_events),
            "Shutdown": Method(params(optional={"reason": prose(1024)}), self._shutdown),
        }

    async def _create_session(self, params: Mapping[str, Any]) -> dict[str, Any]:
        hint = params.get("workspaceHint", {})
        opened = await self._host.create(
            NewSession(
                params["userId"],
                params["tenantId"],
                params["executionEnvironment"],
                tuple(hint.get("localPaths", ())),
                params["clientInfo"],
                tuple(params["supportedCapabilities"]),
            )
        )
        # Told and begun behind the reply, which goes out before the event loop turns.
        opened.session.announce(params["executionEnvironment"])
        opened.session.warm_up()
        return _fields(opened)

    async def _start_task(self, params: Mapping[str, Any]) -> dict[str, Any]:
        session = self._host.at_work(params["sessionId"])
        if not params["prompt"].strip():
            raise UsageError("the prompt is empty")
        options = params.get("taskOptions", {})
        session.start_task(
            params["taskId"],
            params["prompt"],
            max_steps=options.get("maxSteps"),
            options=TaskOptions(options.get("approvalMode"), options.get("allowNetwork")),
        )
        return {"taskId": params["taskId"], "status": "running"}

    async def _cancel_task(self, params: Mapping[str, Any]) -> dict[str, Any]:
        session = self._host.at_work(params["sessionId"])
        session.cancel_task(params["taskId"], force=params.get("force", False))
        return {"taskId": params["taskId"], "status": "cancelling"}

    async def _resume_session(self, params: Mapping[str, Any]) -> dict[str, Any]:
        is_here = self._host.session is not None
        opened = await self._host.resume(params["sessionId"], cursor=params.get("checkpointCursor"))
        session = opened.session
        fields = _fields(opened)
        incomplete = session.incomplete_task
        fields["resumedFromStep"] = session.step_count
        if incomplete is not None:
            fields["incompleteTask"] = incomplete
            if params.get("autoContinue", True):
                session.go_on()
        elif not is_here:
            session.announce_return()
        return fields

    async def _get_session_state(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return self._host.at_work(params["sessionId"]).state()

    async def _get_patch_preview(self, params: Mapping[str, Any]) -> dict[str, Any]:
        session = self._host.at_work(params["sessionId"])
        files = await session.preview(params.get("taskId"), params.get("filePaths"))
        return {"files": [file.to_wire() for file in files]}

    async def _approve_action(self, params: Mapping[str, Any]) -> dict[str, Any]:
        decision = params["decision"]
        try:
            status = self._host.decide(
                params["approvalId"],
                approved=decision == "approved",
                scope=params.get("scope", "once"),
                reason=params.get("reason"),
                arguments=params.get("arguments"),
            )
        except ValueError as error:
            raise InvalidParams(f"arguments: {error}") from error
        return {"approvalId": params["approvalId"], "decision": decision, "status": status}

    async def _get_events(self, params: Mapping[str, Any]) -> dict[str, Any]:
        self._host.at_work(params["sessionId"])
        found = self._feed.since(params["sinceId"])
        return {
            "events": [orjson.Fragment(event) for event in _as_many_as_fit(found.events)],
            "gapDetected": found.gap_detected,
            "latestId": found.latest_id,
        }

    async def _shutdown(self, params: Mapping[str, Any]) -> dict[str, Any]:
        session_id = await self._host.shutdown(params.get("reason") or DEFAULT_REASON)
        fields: dict[str, Any] = {"status": "shutdown", "sessionId": session_id}
        losses = [] if self._host.session is None else self._host.session.losses.so_far()
        return {**fields, "undelivered": [loss.to_wire() for loss in losses]} if losses else fields


def _as_many_as_fit(events: Iterable[bytes]) -> Iterator[bytes]:
    """The first of `events` that one answer may hold, at least one."""
    room = _MAX_EVENTS_BYTES
    for event in events:
        if room < _MAX_EVENTS_BYTES and len(event) > room:
            return
        room -= len(event)
        yield event


def _fields(opened: Opened) -> dict[str, Any]:
    return {
        "sessionId": opened.session.session_id,
        "workspaceId": opened.session.workspace_id,
        "status": "ready",
        "compatibilityStatus": opened.compatibility_status,
        "featureFlags": dict(opened.feature_flags),
        "protocolVersion": PROTOCOL_VERSION,
    }
