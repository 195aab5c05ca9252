"""The methods of `serve` (interface section 2), one function for each.

A method is a function with `@_method`, which declares everything about it: the shapes of its parameters, the members of
its result, its errors. Its docstring is the sentence in docs/serve.md, whose tables
`python -m tests.support.serve_page` writes. To add a method, write its function here, run that and add a request to
`tests/interaction/test_serve.py`.

What a method may rely on:

- Its parameters fit their shape. `Connection` (`agent_host.rpc.server`) checks them before it calls, names unknown ones
  in `ignored` of the reply, and turns whatever the function raises into an error object.
- It runs on the event loop beside a running task and beside up to 63 other requests. It reads files only in a thread
  (`SessionHost` does so) and waits for nothing that a client has to do.
- An event that it emits before it returns reaches the client after the reply, because the reply is written before the
  event loop turns. `create_session` relies on this: the session is announced after its id is known.

Parameters narrow and never widen: limits, modes and models go through the policy bundle (`policy.rules.toolset`). Whose
sessions a client may read is decided in `SessionHost`; the owner in a request counts only before there is a session.

A reply has a bound (`_MAX_EVENTS_BYTES`). Pages of events and transcripts keep it by returning fewer items, but never
none, so that a client that asks again always advances. Cursors are positions in a list that grows at its end
(transcripts) or keys in one that is sorted by time (sessions): both stay valid while the session runs.

The parameters' bounds (`_MAX_TEXT` and others) protect the process; the policy's own are narrower. `arguments` of
`ApproveAction` have no shape here, because only the schema of the approved tool knows it; a ValueError from there is
-32602 and the approval keeps waiting.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson

from agent_host import errors
from agent_host.rpc.messages import MAX_LINE_BYTES, InvalidParams, name, params, prose
from agent_host.rpc.server import AFTER, Method, Notification
from agent_host.services.session import NewSession
from agent_host.session.opening import ClientServer
from agent_host.session.reports import Owner
from agent_host.session.tasks import KINDS, picture_in
from config import json_text
from config.lean_typing import NamedTuple
from config.shapes import FLAG, OBJECT, ListOf, MapOf, Text, integer, number, one_of
from policy.rules import TaskOptions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    from agent_host.rpc.server import Feed
    from agent_host.session.lifecycle import LiveSession
    from agent_host.session.start import Opened, SessionHost
    from agent_host.session.transcript import Item, Transcript
    from config.shapes import Shape

    Serve = Callable[["Served", Mapping[str, Any]], Awaitable[dict[str, Any]]]

PROTOCOL_VERSIONS: Final = ("1.0",)
"""The protocol versions of this host, the highest last."""
DEFAULT_REASON: Final = "shutdown"
_MAX_TEXT: Final = 16 * 1024 * 1024
_MAX_EVENTS_BYTES: Final = 16 * 1024 * 1024

_MAX_MEMBERS: Final = 1000
_MAX_CURSOR: Final = 256
_PAGE, _MAX_PAGE = 50, 500
_MAX_ARGUMENT: Final = 32 * 1024

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
        "maxSteps": integer(1, 10_000),
        "approvalMode": one_of("always", "on_risky_actions", "never"),
        "allowNetwork": FLAG,
        "model": name(256),
        "maxCost": number(0, 10**9),
        "queue": FLAG,
    }
)

_OWNER: Final = {"userId": name(), "tenantId": name()}
_PICTURES: Final = ListOf(params({"mediaType": one_of(*KINDS), "data": Text(1, MAX_LINE_BYTES)}), most=20)
_CLIENT_SERVERS: Final = ListOf(
    params(
        {"name": name(64), "command": name(4096)},
        {"args": ListOf(Text(most=_MAX_ARGUMENT), most=_MAX_MEMBERS), "env": MapOf(Text(most=_MAX_ARGUMENT))},
    ),
    most=100,
)

_TASK_ID: Final = {"taskId": "the task"}
_OPENED: Final = {
    "sessionId": "the session",
    "workspaceId": "its workspace",
    "status": "`ready`",
    "compatibilityStatus": "the answer of the Session Service, `compatible` without one",
    "featureFlags": "flags of the Session Service by name",
    "protocolVersion": "the version of the protocol that both support",
}
_OPENING_ERRORS: Final = (
    errors.OutOfOrder,
    errors.SessionNotReady,
    errors.Incompatible,
    errors.PolicyBundleInvalid,
    errors.PolicyExpired,
    errors.PolicyDenied,
    errors.SessionExpired,
    errors.CheckpointWriteFailed,
    errors.ServiceUnavailable,
    errors.ServiceRejected,
    errors.ServiceUnauthorized,
)
_RUNNING_ERRORS: Final = (errors.SessionNotReady, errors.SessionNotFound)

METHODS: Final[dict[str, Method]] = {}
"""Every method by its name; `serve` takes the session host and the feed before the parameters."""


class Served(NamedTuple):
    """The parts of the process that methods use; GetEvents reads the feed."""

    host: SessionHost
    feed: Feed


def method_table(host: SessionHost, feed: Feed) -> dict[str, Method]:
    """Return every method by its name, bound to the parts that it uses."""
    served = Served(host, feed)
    return {name: row._replace(serve=partial(row.serve, served)) for name, row in METHODS.items()}


def _method(
    required: Mapping[str, Shape] | None = None,
    optional: Mapping[str, Shape] | None = None,
    *,
    result: Mapping[str, str],
    errors: Sequence[type[errors.AgentHostError]] = (),
) -> Callable[[Serve], Serve]:
    """Make a function a method: `start_task` serves `StartTask`.

    docs/serve.md is generated from these arguments and from the function's docstring. `result` describes each member of
    the result; a name that ends with `?` may be missing. `errors` are those apart from -32602 and -32603, which every
    method has.
    """

    def register(serve: Serve) -> Serve:
        title = "".join(map(str.capitalize, serve.__name__.split("_")))
        METHODS[title] = Method(params(required, optional), serve, result, tuple(errors), serve.__doc__ or "")
        return serve

    return register


@_method(
    {
        **_OWNER,
        "executionEnvironment": one_of("desktop", "cloud_sandbox", "ci"),
        "clientInfo": _CLIENT,
        "supportedCapabilities": ListOf(name(256), most=_MAX_MEMBERS),
    },
    {
        "workspaceHint": params(optional={"localPaths": _PATHS}),
        "protocolVersions": ListOf(Text(most=64), most=100),
        "clientServers": _CLIENT_SERVERS,
    },
    result=_OPENED,
    errors=_OPENING_ERRORS,
)
async def create_session(served: Served, params: Mapping[str, Any]) -> dict[str, Any]:
    """Create the session of this process."""
    version = _common_version(params.get("protocolVersions"))
    local_paths = params.get("workspaceHint", {}).get("localPaths", ())
    if len(local_paths) > 1:
        raise InvalidParams(f"workspaceHint.localPaths: one workspace path is supported, not {len(local_paths)}")
    opened = await served.host.create(
        NewSession(
            params["userId"],
            params["tenantId"],
            params["executionEnvironment"],
            tuple(local_paths),
            params["clientInfo"],
            tuple(params["supportedCapabilities"]),
        ),
        servers=_servers_in(params),
    )
    # Announced and started after the reply, which is sent before the event loop turns.
    opened.session.announce(params["executionEnvironment"])
    opened.session.warm_up()
    return _fields(opened, version)


@_method(
    {"sessionId": _ID, "taskId": _ID, "prompt": prose(_MAX_TEXT, least_chars=1)},
    {"taskOptions": _TASK_OPTIONS, "pictures": _PICTURES},
    result={**_TASK_ID, "status": "`running` or `queued`"},
    errors=(*_RUNNING_ERRORS, errors.TaskAlreadyRunning, errors.CheckpointWriteFailed),
)
async def start_task(served: Served, params: Mapping[str, Any]) -> dict[str, Any]:
    """Start a task, or queue it; the reply comes at once. Pictures are written to the session's temporary directory,
    and the prompt names them."""
    session = served.host.running_session(params["sessionId"])
    prompt = params["prompt"]
    if not prompt.strip():
        raise errors.UsageError("the prompt is empty")
    options = params.get("taskOptions", {})
    pictures = [picture_in(one, f"pictures[{place}]") for place, one in enumerate(params.get("pictures", ()))]
    if pictures:
        prompt = f"{prompt}\n\n{await session.keep_pictures(pictures)}"
    waits = session.start_task(
        params["taskId"],
        prompt,
        max_steps=options.get("maxSteps"),
        options=TaskOptions(options.get("approvalMode"), options.get("allowNetwork")),
        model=options.get("model"),
        max_cost=options.get("maxCost"),
        queue=options.get("queue", False),
    )
    return {"taskId": params["taskId"], "status": "queued" if waits else "running"}


@_method(
    {"sessionId": _ID, "taskId": _ID},
    {"force": FLAG},
    result={**_TASK_ID, "status": "`cancelling`"},
    errors=(*_RUNNING_ERRORS, errors.NoActiveTask),
)
async def cancel_task(served: Served, params: Mapping[str, Any]) -> dict[str, Any]:
    """Cancel the running task, or a queued one."""
    session = served.host.running_session(params["sessionId"])
    session.tasks.cancel(params["taskId"], force=params.get("force", False))
    return {"taskId": params["taskId"], "status": "cancelling"}


@_method(
    {"sessionId": _ID, "taskId": _ID, "text": prose(64 * 1024, least_chars=1)},
    result={**_TASK_ID, "status": "`accepted`"},
    errors=(*_RUNNING_ERRORS, errors.NoActiveTask, errors.CheckpointWriteFailed),
)
async def steer_task(served: Served, params: Mapping[str, Any]) -> dict[str, Any]:
    """Send text to the running task: the model reads it before its next turn."""
    served.host.running_session(params["sessionId"]).tasks.steer(params["taskId"], params["text"])
    return {"taskId": params["taskId"], "status": "accepted"}


@_method(
    {"sessionId": _ID},
    {
        "policy": name(4096),
        "model": name(256),
        "sandbox": one_of("none", "landlock", "namespace", "auto", "launch"),
        "approvalMode": one_of("always", "on_risky_actions", "never", "launch"),
        "plan": FLAG,
    },
    result={
        "sessionId": "the session",
        "policy?": "the built-in or the file that narrows the launch bundle, else that of the launch; left out if that "
        "is the Session Service's",
        "model": "the model of requests",
        "sandbox": "the level by which commands are sandboxed",
        "approvalMode?": "the approval mode, if one was set",
    },
    errors=(*_RUNNING_ERRORS, errors.PolicyBundleInvalid, errors.PolicyExpired, errors.CheckpointWriteFailed),
)
async def set_mode(served: Served, params: Mapping[str, Any]) -> dict[str, Any]:
    """Set options of the session from its next decision on. A mode can only narrow: a call is decided under the launch
    bundle and under the mode's, and the stricter decision counts; the sandbox is never weaker than at the launch, and
    the model is one that the launch bundle allows. `launch` restores the option of the launch."""
    if "plan" in params:
        raise InvalidParams("plan: is not available yet; set policy to read-only instead")
    changes = {key: value for key, value in params.items() if key in ("policy", "model", "sandbox", "approvalMode")}
    mode = await served.host.set_mode(params["sessionId"], changes)
    return {"sessionId": params["sessionId"], **mode}


@_method(
    {"sessionId": _ID},
    {"checkpointCursor": name(256), "autoContinue": FLAG, "replay": FLAG, "clientServers": _CLIENT_SERVERS},
    result={
        **_OPENED,
        "resumedFromStep": "completed steps of the session",
        "incompleteTask?": "the task that the resume continues",
        "queuedTasks?": "ids of the tasks that wait",
    },
    errors=(*_OPENING_ERRORS, errors.SessionNotFound, errors.SessionHeld, errors.CheckpointUnreadable),
)
async def resume_session(served: Served, params: Mapping[str, Any]) -> dict[str, Any]:
    """Resume a session of an earlier process, also one that has ended, for its next task; or the paused session of
    this one. With `replay` its items and its open questions follow the reply, before any event."""
    was_open = served.host.session is not None
    opened = await served.host.resume(
        params["sessionId"], cursor=params.get("checkpointCursor"), servers=_servers_in(params)
    )
    session = opened.session
    again = await _replay(served.host, session) if params.get("replay", False) else []
    fields = _fields(opened, PROTOCOL_VERSIONS[-1])
    incomplete = session.incomplete_task
    fields["resumedFromStep"] = session.step_count
    if incomplete is not None:
        fields["incompleteTask"] = incomplete
        if params.get("autoContinue", True):
            session.continue_task()
    elif not was_open:
        session.announce_return()
    if queue := session.tasks.queue.rows():
        fields["queuedTasks"] = queue
        if incomplete is None and params.get("autoContinue", True):
            session.tasks.start_queued()
    return {**fields, AFTER: again} if again else fields


async def _replay(host: SessionHost, session: LiveSession) -> list[Notification]:
    items = (await host.transcript(session.session_id, None)).items
    questions = session.state()["pendingApprovals"]
    envelope = {"sessionId": session.session_id, "replayed": True}
    return [
        *(Notification("SessionItem", {**envelope, "item": item}) for item in items),
        *(
            Notification(
                "SessionEvent",
                {**envelope, "eventType": "approval_requested", "payload": {**question, "replayed": True}},
            )
            for question in questions
        ),
        Notification("SessionEvent", {**envelope, "eventType": "replay_finished", "payload": {"items": len(items)}}),
    ]


@_method(
    {"sessionId": _ID},
    {"taskId": _ID, **_OWNER},
    result={
        "sessionId": "the session",
        "sessionStatus": "its [state](states.md)",
        "verdict": "the outcome of its last task",
        "endedBy?": "who ended it",
        "retryable?": "true if another try can help",
        "task?": "the open task, or the requested one",
        "tokenUsage": "{inputTokens, outputTokens, totalTokens, remaining, maxSessionTokens, cachedInputTokens?, "
        "cacheWriteTokens?, cacheWrite1hTokens?, cost?, costCurrency?, maxCost?} ([costs.md](costs.md))",
        "pendingApprovals": "open approvals",
        "grants?": "[{tool, scope, since, beforeRestart}], the approvals for the task or the session that count; "
        "`beforeRestart`: given to an earlier process",
        "mode?": "{policy?, model?, sandbox?, approvalMode?}, the options that SetMode has changed",
        "queuedTasks?": "ids of the tasks that wait",
        "resumable?": "true if a resume continues it",
    },
    errors=_RUNNING_ERRORS,
)
async def get_session_state(served: Served, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a session, with `taskId` all of that task."""
    return await served.host.state(params["sessionId"], _owner_in(params), params.get("taskId"))


@_method(
    {"sessionId": _ID},
    result={"sessionId": "the session", "status": "`scheduled`"},
    errors=_RUNNING_ERRORS,
)
async def compact_context(served: Served, params: Mapping[str, Any]) -> dict[str, Any]:
    """Make [room](context.md) before the next request, however long the conversation is."""
    session = served.host.running_session(params["sessionId"])
    session.compact()
    return {"sessionId": session.session_id, "status": "scheduled"}


@_method(
    {"sessionId": _ID},
    {"filePaths": _PATHS, "taskId": _ID, **_OWNER},
    result={
        "files": "[{filePath, status, diff, additions, deletions, renamedFrom?, renamedTo?}]; `renamedFrom` is on the "
        "new path of a renamed file, `renamedTo` on the old one",
        "unseen?": "the reason why changes may be missing",
    },
    errors=_RUNNING_ERRORS,
)
async def get_patch_preview(served: Served, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes of a session or a task as diffs."""
    files, unseen = await served.host.preview(
        params["sessionId"], _owner_in(params), params.get("taskId"), params.get("filePaths")
    )
    return {"files": [file.to_wire() for file in files], **({} if unseen is None else {"unseen": unseen})}


@_method(
    {"approvalId": _ID, "decision": one_of("approved", "denied")},
    {
        "scope": one_of("once", "task", "session"),
        "reason": prose(4096),
        "arguments": OBJECT,  # the tool's own schema checks its members
        "answeredBy": one_of("client", "chat", "acp", "view"),  # `command` is who comes by the channel of questions
    },
    result={
        "approvalId": "the approval",
        "decision": "the given decision",
        "status": "`delivered` or `not_found`",
    },
    errors=(errors.SessionNotReady,),
)
async def approve_action(served: Served, params: Mapping[str, Any]) -> dict[str, Any]:
    """Answer an approval."""
    decision = params["decision"]
    try:
        status = served.host.decide(
            params["approvalId"],
            approved=decision == "approved",
            scope=params.get("scope", "once"),
            reason=params.get("reason"),
            arguments=params.get("arguments"),
            answered_by=params.get("answeredBy", "client"),
        )
    except ValueError as error:
        raise InvalidParams(f"arguments: {error}") from error
    return {"approvalId": params["approvalId"], "decision": decision, "status": status}


@_method(
    {"sessionId": _ID, "sinceId": integer(0, 2**53)},
    result={
        "events": "[events](events.md) after `sinceId`",
        "gapDetected": "true if some are no longer kept",
        "latestId": "`eventId` of the latest event",
    },
    errors=_RUNNING_ERRORS,
)
async def get_events(served: Served, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return events that a client missed."""
    served.host.running_session(params["sessionId"])
    since_id = params["sinceId"]
    found = served.feed.since(since_id)
    if since_id > found.latest_id:
        raise errors.UsageError(
            f"sinceId {since_id} is beyond the latest event of session {params['sessionId']}, {found.latest_id}; "
            "ask with 0 for all events",
            latestId=found.latest_id,
        )
    return {
        "events": [orjson.Fragment(event) for event in _events_that_fit(found.events)],
        "gapDetected": found.gap_detected,
        "latestId": found.latest_id,
    }


@_method(
    optional={"search": prose(256), "limit": integer(1, _MAX_PAGE), "cursor": name(_MAX_CURSOR), **_OWNER},
    result={
        "sessions": "[{sessionId, status, verdict, endedBy?, retryable?, reason, resumable, pid, title, prompt, "
        "stepCount, totalTokens, updatedAt, workspace, usage?}]; `usage` has the counts and cost of `tokenUsage`",
        "nextCursor?": "the `cursor` of the next page",
    },
)
async def list_sessions(served: Served, params: Mapping[str, Any]) -> dict[str, Any]:
    """List the sessions of the state directory, newest first."""
    found = await served.host.list_sessions(_owner_in(params), params.get("search", ""))
    keys = [f"{one.updated_at}~{one.session_id}" for one in found]
    cursor = params.get("cursor")
    # Newest first: a session that ran since the last page is not on a later one.
    start = 0 if cursor is None else sum(key >= cursor for key in keys)
    end = start + params.get("limit", _PAGE)
    fields: dict[str, Any] = {"sessions": [one.to_wire() for one in found[start:end]]}
    return fields | ({"nextCursor": keys[end - 1]} if end < len(found) else {})


@_method(
    {"sessionId": _ID},
    _OWNER,
    result={"sessionId": "the session", "status": "`deleted`"},
    errors=(errors.SessionNotFound, errors.SessionHeld, errors.CheckpointUnreadable),
)
async def delete_session(served: Served, params: Mapping[str, Any]) -> dict[str, Any]:
    """Remove a session that has ended, with all its files."""
    await served.host.delete(params["sessionId"], _owner_in(params))
    return {"sessionId": params["sessionId"], "status": "deleted"}


@_method(
    {"sessionId": _ID},
    {"taskId": _ID, "cursor": name(_MAX_CURSOR), "limit": integer(1, _MAX_PAGE), **_OWNER},
    result={
        "items": "[items](#sessions-on-record) in order of time",
        "waits": "[{on, startedAt, endedAt?, what?, itemId?, stepId?}]: what the page's items and steps waited for; "
        "the last page has those of no item",
        "doubts": "[{kind, message, itemId?}]: what the record cannot prove of the page's items; the last page has "
        "those of no item",
        "nextCursor?": "the `cursor` of the next page",
    },
    errors=(errors.SessionNotFound, errors.CheckpointUnreadable),
)
async def get_transcript(served: Served, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return a page of a session's transcript."""
    owner, task_id = _owner_in(params), params.get("taskId")
    transcript = await served.host.transcript(params["sessionId"], owner)
    items = transcript.items if task_id is None else await served.host.items(params["sessionId"], owner, task_id)
    cursor = params.get("cursor", "0")
    if not (cursor.isascii() and cursor.isdecimal()):
        raise InvalidParams("cursor: give the nextCursor of an earlier reply")
    start, most = int(cursor), params.get("limit", _PAGE)
    encoded = (json_text.dumps(item) for item in items[start : start + most])
    page = [orjson.Fragment(item) for item in _events_that_fit(encoded)]
    end = start + len(page)
    about = _about(transcript, items, range(start, end), is_rest=task_id is None and end >= len(items))
    return {"items": page, **about, **({"nextCursor": str(end)} if end < len(items) else {})}


def _about(transcript: Transcript, items: Sequence[Item], page: range, *, is_rest: bool) -> dict[str, Any]:
    """{waits, doubts} of the items of a page, a step's with its first item; with `is_rest` all that is of no item."""
    places: dict[tuple[str, str], int] = {}
    for place, item in enumerate(items):
        places.setdefault(("item", item["itemId"]), place)
        places.setdefault(("step", item.get("stepId", "")), place)

    def is_on_page(item_id: str | None, step_id: str | None = None) -> bool:
        place = places.get(("item", item_id or ""), places.get(("step", step_id or "-")))
        return is_rest if place is None else place in page

    waits = [wait.to_wire() for wait in transcript.waits if is_on_page(wait.item_id, wait.step_id)]
    doubts = [doubt.to_wire() for doubt in transcript.doubts if is_on_page(doubt.item_id)]
    return {"waits": waits, "doubts": doubts}


@_method(
    optional={"reason": prose(1024)},
    result={
        "status": "`shutdown`",
        "sessionId": "the session, null if there was none",
        "undelivered?": "[{observer, records, message}]: losses of observers",
    },
)
async def shutdown(served: Served, params: Mapping[str, Any]) -> dict[str, Any]:
    """End the session and the process."""
    session_id = await served.host.shutdown(params.get("reason") or DEFAULT_REASON)
    fields: dict[str, Any] = {"status": "shutdown", "sessionId": session_id}
    losses = [] if served.host.session is None else served.host.session.losses.so_far()
    return {**fields, "undelivered": [loss.to_wire() for loss in losses]} if losses else fields


def _servers_in(params: Mapping[str, Any]) -> tuple[ClientServer, ...]:
    return tuple(
        ClientServer(one["name"], one["command"], tuple(one.get("args", ())), one.get("env", {}))
        for one in params.get("clientServers", ())
    )


def _owner_in(params: Mapping[str, Any]) -> Owner | None:
    """The owner of the requested sessions, if a request has both parts; a session of this process takes precedence."""
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
    """The highest version of the protocol that the client supports too; the host's highest if it names none. Raises
    Incompatible if there is none."""
    common = [version for version in PROTOCOL_VERSIONS if offered is None or version in offered]
    if not common:
        raise errors.Incompatible(
            f"none of the client's protocol versions is supported; this host speaks {', '.join(PROTOCOL_VERSIONS)}",
            protocolVersions=list(PROTOCOL_VERSIONS),
        )
    return common[-1]


def _fields(opened: Opened, version: str) -> dict[str, Any]:
    return {
        "sessionId": opened.session.session_id,
        "workspaceId": opened.session.identity.workspace_id,
        "status": "ready",
        "compatibilityStatus": opened.compatibility_status,
        "featureFlags": dict(opened.feature_flags),
        "protocolVersion": version,
    }
