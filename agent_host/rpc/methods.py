"""The methods of `serve` (interface section 2): their parameters as data, and what each asks of the session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from agent_host import lenient_json
from agent_host.errors import Incompatible, UsageError
from agent_host.rpc.messages import InvalidParams, name, params, prose
from agent_host.rpc.server import Method
from agent_host.services.session import NewSession
from agent_host.session.opening import Owner
from config.shapes import FLAG, OBJECT, ListOf, Text, number, one_of, whole
from policy.rules.case import TaskOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from agent_host.rpc.feed import Feed
    from agent_host.rpc.messages import Params
    from agent_host.session.host import Opened, SessionHost

PROTOCOL_VERSIONS: Final = ("1.0",)
"""What this host speaks, the highest last."""
DEFAULT_REASON: Final = "shutdown"
_MAX_TEXT: Final = 16 * 1024 * 1024
_MAX_EVENT_ID: Final = 2**53
_MAX_EVENTS_BYTES: Final = 16 * 1024 * 1024

_MAX_MEMBERS: Final = 1000
_MAX_SEARCH: Final = 256
_MAX_CURSOR: Final = 256
_PAGE, _MAX_PAGE = 50, 500
_MAX_VERSIONS: Final = 100

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
        "model": name(256),
        "maxCost": number(0, 10**9),
        "queue": FLAG,
    }
)

_OWNER: Final = {"userId": name(), "tenantId": name()}
_PARAMS: Final[dict[str, Params]] = {
    "CreateSession": params(
        {
            **_OWNER,
            "executionEnvironment": one_of("desktop", "cloud_sandbox", "ci"),
            "clientInfo": _CLIENT,
            "supportedCapabilities": ListOf(name(256), most=_MAX_MEMBERS),
        },
        {
            "workspaceHint": params(optional={"localPaths": _PATHS}),
            "protocolVersions": ListOf(Text(most=64), most=_MAX_VERSIONS),
        },
    ),
    "StartTask": params(
        {"sessionId": _ID, "taskId": _ID, "prompt": prose(_MAX_TEXT, least_chars=1)}, {"taskOptions": _TASK_OPTIONS}
    ),
    "CancelTask": params({"sessionId": _ID, "taskId": _ID}, {"force": FLAG}),
    "ResumeSession": params({"sessionId": _ID}, {"checkpointCursor": name(256), "autoContinue": FLAG}),
    "GetSessionState": params({"sessionId": _ID}, {"taskId": _ID, **_OWNER}),
    "CompactContext": params({"sessionId": _ID}),
    "GetPatchPreview": params({"sessionId": _ID}, {"filePaths": _PATHS, "taskId": _ID, **_OWNER}),
    "ApproveAction": params(
        {"approvalId": _ID, "decision": one_of("approved", "denied")},
        {
            "scope": one_of("once", "task", "session"),
            "reason": prose(4096),
            "arguments": OBJECT,  # what it may hold is for the tool's own schema to say
        },
    ),
    "GetEvents": params({"sessionId": _ID, "sinceId": whole(0, _MAX_EVENT_ID)}),
    "ListSessions": params(
        optional={
            "search": prose(_MAX_SEARCH),
            "limit": whole(1, _MAX_PAGE),
            "cursor": name(_MAX_CURSOR),
            **_OWNER,
        }
    ),
    "GetTranscript": params(
        {"sessionId": _ID}, {"taskId": _ID, "cursor": name(_MAX_CURSOR), "limit": whole(1, _MAX_PAGE), **_OWNER}
    ),
    "Shutdown": params(optional={"reason": prose(1024)}),
}
"""The parameters of each method (interface section 2)."""


class Methods:
    """Serves the methods out of one session host; `feed` is what GetEvents looks into."""

    def __init__(self, host: SessionHost, feed: Feed) -> None:
        self._host = host
        self._feed = feed

    def table(self) -> dict[str, Method]:
        """Every method by its name."""
        serves = {
            "CreateSession": self._create_session,
            "StartTask": self._start_task,
            "CancelTask": self._cancel_task,
            "ResumeSession": self._resume_session,
            "GetSessionState": self._get_session_state,
            "CompactContext": self._compact_context,
            "GetPatchPreview": self._get_patch_preview,
            "ApproveAction": self._approve_action,
            "GetEvents": self._get_events,
            "ListSessions": self._list_sessions,
            "GetTranscript": self._get_transcript,
            "Shutdown": self._shutdown,
        }
        return {name: Method(shape, serves[name]) for name, shape in _PARAMS.items()}

    async def _create_session(self, params: Mapping[str, Any]) -> dict[str, Any]:
        version = _common_version(params.get("protocolVersions"))
        local_paths = params.get("workspaceHint", {}).get("localPaths", ())
        if len(local_paths) > 1:
            raise InvalidParams(f"workspaceHint.localPaths: one workspace path is supported, not {len(local_paths)}")
        opened = await self._host.create(
            NewSession(
                params["userId"],
                params["tenantId"],
                params["executionEnvironment"],
                tuple(local_paths),
                params["clientInfo"],
                tuple(params["supportedCapabilities"]),
            )
        )
        # Told and begun behind the reply, which goes out before the event loop turns.
        opened.session.announce(params["executionEnvironment"])
        opened.session.warm_up()
        return _fields(opened, version)

    async def _start_task(self, params: Mapping[str, Any]) -> dict[str, Any]:
        session = self._host.running_session(params["sessionId"])
        if not params["prompt"].strip():
            raise UsageError("the prompt is empty")
        options = params.get("taskOptions", {})
        waits = session.start_task(
            params["taskId"],
            params["prompt"],
            max_steps=options.get("maxSteps"),
            options=TaskOptions(options.get("approvalMode"), options.get("allowNetwork")),
            model=options.get("model"),
            max_cost=options.get("maxCost"),
            queue=options.get("queue", False),
        )
        return {"taskId": params["taskId"], "status": "queued" if waits else "running"}

    async def _cancel_task(self, params: Mapping[str, Any]) -> dict[str, Any]:
        session = self._host.running_session(params["sessionId"])
        session.cancel_task(params["taskId"], force=params.get("force", False))
        return {"taskId": params["taskId"], "status": "cancelling"}

    async def _resume_session(self, params: Mapping[str, Any]) -> dict[str, Any]:
        is_here = self._host.session is not None
        opened = await self._host.resume(params["sessionId"], cursor=params.get("checkpointCursor"))
        session = opened.session
        fields = _fields(opened, PROTOCOL_VERSIONS[-1])
        incomplete = session.incomplete_task
        fields["resumedFromStep"] = session.step_count
        if incomplete is not None:
            fields["incompleteTask"] = incomplete
            if params.get("autoContinue", True):
                session.go_on()
        elif not is_here:
            session.announce_return()
        if session.queue:
            fields["queuedTasks"] = session.queue
            if incomplete is None and params.get("autoContinue", True):
                session.start_queued()
        return fields

    async def _get_session_state(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return await self._host.state(params["sessionId"], _owner_in(params), params.get("taskId"))

    async def _compact_context(self, params: Mapping[str, Any]) -> dict[str, Any]:
        session = self._host.running_session(params["sessionId"])
        session.compact()
        return {"sessionId": session.session_id, "status": "scheduled"}

    async def _get_patch_preview(self, params: Mapping[str, Any]) -> dict[str, Any]:
        files, unseen = await self._host.preview(
            params["sessionId"], _owner_in(params), params.get("taskId"), params.get("filePaths")
        )
        return {"files": [file.to_wire() for file in files], **({} if unseen is None else {"unseen": unseen})}

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
        self._host.running_session(params["sessionId"])
        since_id = params["sinceId"]
        found = self._feed.since(since_id)
        if since_id > found.latest_id:
            raise UsageError(
                f"sinceId {since_id} is beyond the latest event of session {params['sessionId']}, {found.latest_id}; "
                "ask with 0 for all events",
                latestId=found.latest_id,
            )
        return {
            "events": [orjson.Fragment(event) for event in _events_that_fit(found.events)],
            "gapDetected": found.gap_detected,
            "latestId": found.latest_id,
        }

    async def _list_sessions(self, params: Mapping[str, Any]) -> dict[str, Any]:
        found = await self._host.list_sessions(_owner_in(params), params.get("search", ""))
        keys = [f"{one.updated_at}~{one.session_id}" for one in found]
        cursor = params.get("cursor")
        # Newest first: a session that ran since the last page is not on a later one.
        start = 0 if cursor is None else sum(key >= cursor for key in keys)
        end = start + params.get("limit", _PAGE)
        fields: dict[str, Any] = {"sessions": [one.to_wire() for one in found[start:end]]}
        return fields | ({"nextCursor": keys[end - 1]} if end < len(found) else {})

    async def _get_transcript(self, params: Mapping[str, Any]) -> dict[str, Any]:
        items = await self._host.transcript(params["sessionId"], _owner_in(params), params.get("taskId"))
        cursor = params.get("cursor", "0")
        if not (cursor.isascii() and cursor.isdecimal()):
            raise InvalidParams("cursor: give the nextCursor of an earlier reply")
        start, most = int(cursor), params.get("limit", _PAGE)
        encoded = (lenient_json.dumps(item) for item in items[start : start + most])
        page = [orjson.Fragment(item) for item in _events_that_fit(encoded)]
        end = start + len(page)
        return {"items": page} | ({"nextCursor": str(end)} if end < len(items) else {})

    async def _shutdown(self, params: Mapping[str, Any]) -> dict[str, Any]:
        session_id = await self._host.shutdown(params.get("reason") or DEFAULT_REASON)
        fields: dict[str, Any] = {"status": "shutdown", "sessionId": session_id}
        losses = [] if self._host.session is None else self._host.session.losses.so_far()
        return {**fields, "undelivered": [loss.to_wire() for loss in losses]} if losses else fields


def _owner_in(params: Mapping[str, Any]) -> Owner | None:
    """The owner of the sessions that are asked for, if a request says both parts; a session of this process says it
    better."""
    if "userId" in params and "tenantId" in params:
        return Owner(params["tenantId"], params["userId"])
    return None


def _events_that_fit(events: Iterable[bytes]) -> Iterator[bytes]:
    """The first of `events` that one answer may hold, at least one."""
    room = _MAX_EVENTS_BYTES
    for event in events:
        if room < _MAX_EVENTS_BYTES and len(event) > room:
            return
        room -= len(event)
        yield event


def _common_version(offered: Sequence[str] | None) -> str:
    """The highest version of the protocol that the client speaks as well; the host's highest where it does not say.
    Raises Incompatible where there is none."""
    common = [version for version in PROTOCOL_VERSIONS if offered is None or version in offered]
    if not common:
        raise Incompatible(
            f"none of the client's protocol versions is supported; this host speaks {', '.join(PROTOCOL_VERSIONS)}",
            protocolVersions=list(PROTOCOL_VERSIONS),
        )
    return common[-1]


def _fields(opened: Opened, version: str) -> dict[str, Any]:
    return {
        "sessionId": opened.session.session_id,
        "workspaceId": opened.session.workspace_id,
        "status": "ready",
        "compatibilityStatus": opened.compatibility_status,
        "featureFlags": dict(opened.feature_flags),
        "protocolVersion": version,
    }
