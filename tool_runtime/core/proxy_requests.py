"""What a program asks of a proxy: `CONNECT host:port`, or a request for an absolute URL of http."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from policy.urls import UrlProblem, target_of

MAX_HEAD_BYTES: Final = 32 * 1024
_OF_THE_HOP: Final = frozenset({b"proxy-connection", b"proxy-authorization", b"connection", b"keep-alive"})


class BadRequest(ValueError):
    """What a program sent is no request to a proxy; the message says why."""


class Wanted(NamedTuple):
    """One request. `line` is its first line, `fields` its header lines as they came."""

    host: str
    port: int
    is_tunnel: bool
    line: bytes
    fields: tuple[bytes, ...]

    @property
    def url(self) -> str:
        """Of the host and the port, as the rules for domains take it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tunnel else 'http'}://{host}:{self.port}/"

    @property
    def shown(self) -> str:
        """The host, with the port where it is not the usual one."""
        return self.host if self.port == (443 if self.is_tunnel else 80) else f"{self.host}:{self.port}"

    def head(self, *, for_proxy: bool, more: tuple[bytes, ...] = ()) -> bytes:
        """The request as the next one gets it: a server a path, another proxy the whole URL and `more` lines. One
        request a connection: what follows on this one might be meant for another host."""
        method, target, version = self.line.split(b" ")
        # What was judged, spelled as it was judged: two readers may take one spelling for two hosts.
        host = f"[{self.host}]" if ":" in self.host else self.host
        if self.is_tunnel:
            target = f"{host}:{self.port}".encode()
        else:
            path = _path_of(target)
            target = f"{self.url[:-1]}".encode() + path if for_proxy else path
        kept = [field for field in self.fields if field.partition(b":")[0].strip().lower() not in _OF_THE_HOP]
        if not self.is_tunnel:
            kept.append(b"Connection: close")
        return b"\r\n".join([b" ".join((method, target, version)), *kept, *more, b"", b""])


def _path_of(target: bytes) -> bytes:
    """The path and the query of an absolute URL, without a fragment, which is nobody's but the client's."""
    rest = target.split(b"://", 1)[1].partition(b"#")[0]
    at = min((rest.find(mark) for mark in (b"/", b"?") if mark in rest), default=len(rest))
    return rest[at:] if rest[at : at + 1] == b"/" else b"/" + rest[at:]


async def read_request(reader: asyncio.StreamReader) -> Wanted | None:
    """The head of a request; None for a connection on which nothing came. Raises BadRequest, UrlProblem,
    asyncio.IncompleteReadError."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise BadRequest("the head of the request is too long") from error
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            return None
        raise
    return request_of(head)


def request_of(head: bytes) -> Wanted:
    """The request in `head`, which ends in an empty line. Raises BadRequest, UrlProblem."""
    if len(head) > MAX_HEAD_BYTES:
        raise BadRequest("the head of the request is too long")
    line, *fields = head[:-4].split(b"\r\n")
    parts = line.split(b" ")
    if len(parts) != 3 or not parts[2].startswith(b"HTTP/1.") or not parts[1].isascii():
        raise BadRequest("this is a proxy of HTTP/1.1: no request for one was sent")
    if any(b"\n" in field or b"\r" in field or field[:1] in b" \t" or b":" not in field for field in fields):
        raise BadRequest("a header line is malformed")
    method, target = parts[0], parts[1].decode("ascii")
    if method == b"CONNECT":
        host, port = target_of(f"https://{target}/")
        return Wanted(host, port, True, line, tuple(fields))
    if not target.lower().startswith("http://"):
        raise UrlProblem("a proxy is asked for whole URLs of http; https goes by CONNECT")
    host, port = target_of(target)
    _check_host(fields, host, port)
    return Wanted(host, port, False, line, tuple(fields))


def _check_host(fields: list[bytes], host: str, port: int) -> None:
    """A server with several names goes by this header: it must be the host that was judged. Raises BadRequest."""
    pairs = (field.partition(b":") for field in fields)
    named = [value.strip() for name, _, value in pairs if name.strip().lower() == b"host"]
    if len(named) != 1:
        raise BadRequest("there must be one Host header")
    if not named[0].isascii() or target_of(f"http://{named[0].decode('ascii')}/") != (host, port):
        raise BadRequest("the Host header and the URL name different hosts")
