"""JSON-RPC 2.0 in both directions over one stream of lines: an editor sends requests and receives them.

Each request runs as a task of its own, so that a prompt that takes an hour blocks nothing. A notification is served
immediately and in order: a `session/cancel` after a prompt finds that prompt. Every message is answered or ignored, and
none ends the process. Data that the other side does not read waits in a bounded buffer; once it is full, nothing more
is read.
"""

from __future__ import annotations

import asyncio
import itertools
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from agent_host.rpc import messages
from config import json_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from agent_host.rpc.server import Channel

REQUEST_CANCELLED: Final = -32800
CANCEL_REQUEST: Final = "$/cancel_request"
_MOST_IN_FLIGHT: Final = 256
_MOST_WAITING_BYTES: Final = 4 * 1024 * 1024


class AcpError(Exception):
    """An error to answer a request with, or one that the other side answered with."""

    def __init__(self, code: int, message: str, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class PeerGone(Exception):
    """The other side has left, and answers nothing more."""


class PeerMethod(NamedTuple):
    """A method: the shape of its parameters, null ones left out, and its handler; a notification's returns at once."""

    shape: messages.Params
    serve: Callable[[Mapping[str, Any]], Any]


class RpcPeer:
    """One connection; a `Receiver` for its channel. `on_end` is called once the other side sends nothing more."""

    def __init__(
        self,
        channel: Channel,
        requests: Mapping[str, PeerMethod],
        notifications: Mapping[str, PeerMethod],
        on_end: Callable[[], None],
    ) -> None:
        self._channel = channel
        self._requests = requests
        self._notifications = notifications
        self._on_end = on_end
        self._lines = messages.LineSplitter()
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._serving: dict[bytes, asyncio.Task[None]] = {}
        self._unanswered: set[bytes] = set()
        self._is_over = False
        self._draining: asyncio.Task[None] | None = None

    # Receiver

    def receive(self, data: bytes) -> None:
        """Take the next bytes."""
        for line in self._lines.feed(data):
            self._take(line)

    def end(self) -> None:
        """Take the end of the stream; a last line without its newline counts."""
        last = self._lines.end()
        if last is not None:
            self._take(last)
        self._is_over = True
        for reply in self._asked.values():
            if not reply.done():
                reply.set_exception(PeerGone())
        self._on_end()

    # Messages of the agent

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification."""
        self._write({"jsonrpc": "2.0", "method": method, "params": params})

    async def request(self, method: str, params: Mapping[str, Any]) -> Any:
        """Ask the other side and return the result, unchecked. A caller that is cancelled cancels the request there.
        Raises AcpError, PeerGone."""
        if self._is_over:
            raise PeerGone
        number = next(self._numbers)
        reply = self._asked[number] = asyncio.get_running_loop().create_future()
        self._write({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        try:
            return await reply
        except asyncio.CancelledError:
            self.notify(CANCEL_REQUEST, {"requestId": number})
            raise
        finally:
            del self._asked[number]

    async def drain(self) -> None:
        """Wait until the other side reads more, if it is far behind."""
        if self._channel.waiting_bytes > _MOST_WAITING_BYTES and not self._is_over:
            await self._channel.drain()

    async def close(self) -> None:
        """Cancel the requests in progress, and disconnect."""
        tasks = [*self._serving.values(), *([] if self._draining is None else [self._draining])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._channel.drain()
        self._channel.close()

    # Messages of the other side

    def _take(self, line: bytes | messages.FramingError) -> None:
        message = messages.read_line(line)
        if message is None:
            return
        if message.is_batch:
            message = messages.refuse_line("batches are not part of this protocol")
        for reply in message.replies:
            self._take_reply(reply)
        for request in message.requests:
            self._take_request(request)

    def _take_reply(self, reply: messages.RpcReply) -> None:
        waiting = self._asked.get(reply.id) if type(reply.id) is int else None
        if waiting is None or waiting.done():  # of a request that was cancelled, or of none
            return
        if reply.error is None:
            waiting.set_result(reply.result)
            return
        error = reply.error if isinstance(reply.error, dict) else {}
        code = error.get("code")
        waiting.set_exception(
            AcpError(code if type(code) is int else messages.INTERNAL_ERROR, str(error.get("message", "")))
        )

    def _take_request(self, request: messages.RpcRequest) -> None:
        if request.fault is not None:
            self._refuse(request.id_json, request.fault)
        elif request.id_json is None:
            self._take_notification(request)
        elif request.id_json in self._serving:
            self._refuse(
                request.id_json,
                messages.RpcError(messages.INVALID_REQUEST, "a request of this id is still being served"),
            )
        elif len(self._serving) >= _MOST_IN_FLIGHT:
            self._refuse(
                request.id_json,
                messages.RpcError(messages.INTERNAL_ERROR, f"{_MOST_IN_FLIGHT} requests are being served"),
            )
        else:
            task = asyncio.ensure_future(self._serve(request.id_json, request))
            self._serving[request.id_json] = task
            self._unanswered.add(request.id_json)
            task.add_done_callback(partial(self._on_served, request.id_json))

    def _on_served(self, id_json: bytes, _task: asyncio.Task[None]) -> None:
        del self._serving[id_json]
        if id_json in self._unanswered:  # cancelled, perhaps before it started
            self._unanswered.discard(id_json)
            self._refuse(id_json, messages.RpcError(REQUEST_CANCELLED, "the request was cancelled"))

    def _take_notification(self, request: messages.RpcRequest) -> None:
        if request.method == CANCEL_REQUEST:
            serving = self._serving.get(json_text.dumps(request.params.get("requestId")))
            if serving is not None:
                serving.cancel()
            return
        method = self._notifications.get(request.method)
        params = _given(request)
        if method is not None and method.shape.fits(params):  # a notification gets no answer, not even an invalid one
            method.serve(params)

    async def _serve(self, id_json: bytes, request: messages.RpcRequest) -> None:
        result = await self._call(request)
        self._unanswered.discard(id_json)
        if isinstance(result, messages.RpcError):
            self._refuse(id_json, result)
        else:
            self._send(messages.encode_result(id_json, result))
        await self.drain()  # the request counts as in flight until there is room again

    async def _call(self, request: messages.RpcRequest) -> Mapping[str, Any] | messages.RpcError:
        method = self._requests.get(request.method)
        if method is None:
            return messages.unknown_method(request.method, self._requests)
        try:
            params = _given(request)
            messages.check(method.shape, params)
            answer: Awaitable[Mapping[str, Any]] = method.serve(params)
            return await answer
        except messages.InvalidParams as error:
            return messages.RpcError(messages.INVALID_PARAMS, str(error))
        except AcpError as error:
            return messages.RpcError(error.code, str(error), details=error.data)
        except Exception as error:  # noqa: BLE001  one of the places that turn exceptions into what clients see
            return messages.internal_error(error)

    def _refuse(self, id_json: bytes | None, fault: messages.RpcError) -> None:
        if id_json is None:
            return
        data = {"data": dict(fault.details)} if fault.details else {}
        error = json_text.dumps({"code": fault.code, "message": fault.message, **data})
        self._send(b'{"jsonrpc":"2.0","id":' + id_json + b',"error":' + error + b"}")

    # What goes out

    def _write(self, message: Mapping[str, Any]) -> None:
        self._send(json_text.dumps(message))

    def _send(self, message: bytes) -> None:
        self._channel.write(message + b"\n")
        if self._channel.waiting_bytes > _MOST_WAITING_BYTES and self._draining is None and not self._is_over:
            self._channel.pause_reading(paused=True)
            self._draining = asyncio.ensure_future(self._read_again())

    async def _read_again(self) -> None:
        await self._channel.drain()
        self._draining = None
        self._channel.pause_reading(paused=False)


def _given(request: messages.RpcRequest) -> dict[str, Any]:
    """The parameters without those that are null, which is the same as missing."""
    return {name: value for name, value in request.params.items() if value is not None}
