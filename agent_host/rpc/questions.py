"""The channel of open questions: each session process answers at a socket of its own in the state directory, from its
first open question to its end, and anyone who can access that directory finds all of them there.

The methods are two, in the framing of `serve`: ListApprovals and ApproveAction. Connections are limited in time, size
and number, so that no client blocks the session. Who connects is checked as for `serve --socket`.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import stat
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from agent_host.errors import UsageError
from agent_host.events.outbox import Outbox
from agent_host.rpc.channels import listening, short_name
from agent_host.rpc.messages import Framing, name, params, prose
from agent_host.rpc.server import ClientConnection, Method
from config import json_text
from config.shapes import one_of
from state import FILE_MODE, SessionPaths, is_session_id
from state.disk import holder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from agent_host.rpc.channels import ClientCheck, SocketChannel
    from agent_host.rpc.server import Receiver

_MOST_CLIENTS: Final = 8
_CLIENT_S: Final = 10.0
_MAX_REQUEST: Final = 64 * 1024
_MAX_ANSWER: Final = 64 * 1024 * 1024
_LISTED_S: Final = 5.0


class GivenAnswer(Protocol):
    """An answer that was given (`agent_host.approval.ApprovalAnswer`)."""

    @property
    def approved(self) -> bool:
        """True for an approval."""

    @property
    def answered_by(self) -> str | None:
        """The face that the person used."""


class Desk(Protocol):
    """The open questions of a session (`agent_host.approval.gate.PendingApprovals`)."""

    def rows(self) -> list[dict[str, Any]]:
        """The questions."""

    def is_form(self, approval_id: str) -> bool:
        """True if it is the form of an MCP server."""

    def answer_to(self, approval_id: str) -> GivenAnswer | None:
        """The answer that it got."""

    def decide(self, approval_id: str, *, approved: bool, scope: Any, reason: str | None, answered_by: Any) -> str:
        """Answer it: `delivered` or `not_found`."""


class QuestionChannel:
    """The channel of this process's session. `check` is that of `listening`; `notice` gets a line for the user if the
    channel cannot be opened."""

    def __init__(self, state_dir: str, check: Callable[[Any], ClientCheck], notice: Callable[[str], None]) -> None:
        self._state_dir = state_dir
        self._check = check
        self._notice = notice
        self._desk: Desk | None = None
        self._clients: dict[ClientConnection, asyncio.TimerHandle] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._over = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    def open(self, desk: Desk, session_id: str) -> None:
        """A question waits at `desk`; the first one opens the channel."""
        if self._serving is None and not self._over.is_set():
            self._desk = desk
            self._serving = asyncio.ensure_future(self._serve(SessionPaths(self._state_dir, session_id).questions))

    async def close(self) -> None:
        """Remove the channel."""
        self._over.set()
        if self._serving is not None:
            await self._serving

    async def _serve(self, path: str) -> None:
        at = f"agent-host-{secrets.token_hex(16)}" if sys.platform == "win32" else path
        try:
            async with listening(at, self._accept, self._check, option="open questions", long=True):
                if sys.platform == "win32":
                    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
                    with os.fdopen(fd, "w", encoding="utf-8") as file:
                        file.write(at)
                await self._over.wait()
                for client in list(self._clients):
                    self._drop(client)
                if self._leaving:
                    await asyncio.wait(self._leaving)
        except (UsageError, OSError) as error:
            self._notice(f"`agent-host approvals` does not see this session's questions: {error}")
        finally:
            if sys.platform == "win32":
                with suppress(OSError):
                    os.unlink(path)

    def _accept(self, channel: SocketChannel) -> Receiver | None:
        if len(self._clients) + len(self._leaving) >= _MOST_CLIENTS:
            return None
        outbox = Outbox()
        outbox.close()  # there are no events here
        client = ClientConnection(channel, self._methods(), outbox, self._drop, Framing(_MAX_REQUEST))
        self._clients[client] = asyncio.get_running_loop().call_later(_CLIENT_S, self._drop, client)
        return client

    def _drop(self, client: ClientConnection) -> None:
        """Send the client its answers, within its time: it has sent everything, its time is over, or the session
        ends."""
        timer = self._clients.pop(client, None)
        if timer is None:
            return
        left_s = max(timer.when() - asyncio.get_running_loop().time(), 0.0)
        timer.cancel()
        task = asyncio.ensure_future(_finish(client, min(left_s, 1.0) if self._over.is_set() else left_s))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def _methods(self) -> Mapping[str, Method]:
        return {
            "ListApprovals": Method(params(), self._list),
            "ApproveAction": Method(
                params(
                    {"approvalId": name(128), "decision": one_of("approved", "denied")},
                    {
                        "scope": one_of("once", "task", "session"),
                        "reason": prose(4096),
                        "answeredBy": one_of("command", "view"),
                    },
                ),
                self._answer,
            ),
        }

    async def _list(self, _: Mapping[str, Any]) -> dict[str, Any]:
        return {"approvals": [] if self._desk is None else self._desk.rows()}

    async def _answer(self, params: Mapping[str, Any]) -> dict[str, Any]:
        desk, approval_id = self._desk, params["approvalId"]
        if desk is None:
            return {"status": "not_found"}
        if desk.is_form(approval_id):
            return {"status": "form"}
        status = desk.decide(
            approval_id,
            approved=params["decision"] == "approved",
            scope=params.get("scope", "once"),
            reason=params.get("reason"),
            answered_by=params.get("answeredBy", "command"),
        )
        before = desk.answer_to(approval_id) if status == "not_found" else None
        if before is None:
            return {"status": status}
        by = {} if before.answered_by is None else {"answeredBy": before.answered_by}
        return {"status": status, "decision": "approved" if before.approved else "denied", **by}


async def _finish(client: ClientConnection, within_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await client.finish()
    await client.close()


# The other side: a command that asks every session of a state directory.


class Unanswered(Exception):
    """A live session does not report its questions; `str()` is the reason."""


def live_sessions(state_dir: str) -> list[str]:
    """The ids of the sessions that a process has and that have had a question, sorted."""
    folder = os.path.dirname(SessionPaths(state_dir, "any").lock)
    try:
        found = sorted(one.removesuffix(".lock") for one in os.listdir(folder) if one.endswith(".lock"))
    except FileNotFoundError:
        return []
    places = [SessionPaths(state_dir, one) for one in found if is_session_id(one)]
    return [one.session_id for one in places if os.path.lexists(one.questions) and holder(one.lock) is not None]


def open_questions(state_dir: str, problem: Callable[[str], object]) -> list[dict[str, Any]]:
    """The open questions of all live sessions, as GetSessionState has them; `problem` gets a line for each session that
    does not report them."""
    found: list[dict[str, Any]] = []
    for session_id, reply in _asked(state_dir, {"ListApprovals": {}}, problem):
        rows = reply.get("approvals", [])
        found += [row for row in rows if isinstance(row, dict) and row.get("sessionId") == session_id]
    return found


def answer(state_dir: str, given: Mapping[str, Any], problem: Callable[[str], object]) -> dict[str, Any] | None:
    """The outcome of an answer, `given` as the parameters of ApproveAction: {status, decision?, answeredBy?}; None if
    no live session has the question."""
    for _, reply in _asked(state_dir, {"ApproveAction": given}, problem):
        if reply.get("status") != "not_found" or "decision" in reply:
            return reply
    return None


def _asked(
    state_dir: str, request: Mapping[str, Mapping[str, Any]], problem: Callable[[str], object]
) -> Iterator[tuple[str, dict[str, Any]]]:
    ((method, params),) = request.items()
    line = json_text.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}) + b"\n"
    for session_id in live_sessions(state_dir):
        try:
            yield session_id, _result(_exchange(SessionPaths(state_dir, session_id).questions, line))
        except (ConnectionRefusedError, FileNotFoundError):
            continue  # it has just ended, or another process has just resumed it
        except (OSError, ValueError, Unanswered) as error:
            detail = error.strerror if isinstance(error, OSError) else None
            problem(f"session {session_id} does not answer: {detail or error}")


def _result(data: bytes) -> dict[str, Any]:
    """The result of a reply. Raises ValueError, Unanswered."""
    if not data.strip():
        raise Unanswered("it hung up")
    reply = orjson.loads(data.split(b"\n", 1)[0])
    if not isinstance(reply, dict) or not isinstance(reply.get("result"), dict):
        fault = reply.get("error") if isinstance(reply, dict) else None
        raise Unanswered(str(fault.get("message")) if isinstance(fault, dict) else "it is not a session")
    result: dict[str, Any] = reply["result"]
    return result


def _exchange(path: str, line: bytes) -> bytes:
    """The reply to one request. Raises OSError, Unanswered for a socket that another user has made."""
    if sys.platform == "win32":
        with open(path, encoding="utf-8") as file:
            pipe = file.read(256)
        with open(f"\\\\.\\pipe\\{pipe}", "r+b", buffering=0) as wire:
            wire.write(line)
            return b"".join(_pieces(wire.read))
    found = os.lstat(path)
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
        raise Unanswered(f"{path} is not this user's socket")
    with socket.socket(socket.AF_UNIX) as connection, short_name(path) as at:
        connection.settimeout(_LISTED_S)
        connection.connect(at)
        with suppress(BrokenPipeError, ConnectionResetError):  # it may have sent the reason already
            connection.sendall(line)
        return b"".join(_pieces(connection.recv))


def _pieces(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """Yield the data read up to the end of a line. Raises Unanswered for a line that is too long."""
    size = 0
    while True:
        try:
            piece = read(64 * 1024)
        except ConnectionResetError:
            piece = b""
        size += len(piece)
        if size > _MAX_ANSWER:
            raise Unanswered("it says too much")
        yield piece
        if not piece or b"\n" in piece:
            return
