"""Addresses of the backend services: the variables of interface section 1. An unset variable selects the embedded
service. Also: a queue of items to deliver to services in the background, and checks of their responses, which are
outside input: each value is checked before it is used."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import urlsplit

from agent_host.errors import ServiceRejected, UsageError
from agent_host.http import displayable_url
from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

Item = TypeVar("Item")
TOKEN_VARIABLE = "AGENT_HOST_SERVICES_TOKEN"  # noqa: S105  the variable's name, not its value
TOOLS_URL_VARIABLE = "BACKEND_TOOL_SERVICE_URL"
TOOLS_TOKEN_VARIABLE = "BACKEND_TOOL_SERVICE_TOKEN"  # noqa: S105  the same
GRANT_KEY_VARIABLE = "AGENT_HOST_GRANT_KEY"
"""The same as in `agent_host.capability_grants`, which would slow down the start if it were imported."""


_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_MAX_LINE = 300
_MAX_URI_BYTES = 2048


class Endpoints(NamedTuple):
    """Base URLs without a trailing slash; None means the embedded service or, for `backend_tools`, no backend tools."""

    session: str | None = None
    workspace: str | None = None
    approval: str | None = None
    audit: str | None = None
    telemetry: str | None = None
    backend_tools: str | None = None


_VARIABLES = Endpoints(
    "SESSION_SERVICE_URL",
    "WORKSPACE_SERVICE_URL",
    "APPROVAL_SERVICE_URL",
    "AUDIT_SERVICE_URL",
    "TELEMETRY_SERVICE_URL",
    TOOLS_URL_VARIABLE,
)
_OF_OBSERVERS = frozenset(_VARIABLES) - {_VARIABLES.session}


def drop_observers(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` without the variables by which a session is reported to a service or has remote tools."""
    kept = {name: value for name, value in environ.items() if name not in _OF_OBSERVERS}
    return {name: value for name, value in kept.items() if not name.startswith("OTEL_")}


def endpoints(environ: Mapping[str, str]) -> Endpoints:
    """Return the services that `environ` names; an empty variable counts as unset. Raises UsageError, which names the
    variable, for a value that is not a usable http or https URL."""
    found = ((variable, environ.get(variable or "")) for variable in _VARIABLES)
    return Endpoints(*(check_service_url(url, f"${variable}") if url else None for variable, url in found))


def check_service_url(url: str, named: str) -> str:
    """Return `url` without a trailing slash. Raises UsageError, whose message calls it `named` and contains no
    password.

    A password in it would be used in place of the token, and a query would end up in the middle of every path, so both
    are refused.
    """
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise UsageError(f"{named} contains characters that no URL can have")
    problem = None
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid port or bracket
        usable = False
    if not usable:
        problem = "is not an http:// or https:// URL"
    elif "@" in parts.netloc:
        problem = f"contains a user or password: set {_token_of(named)} instead"
    elif parts.query or parts.fragment or url.endswith(("?", "#")):
        problem = "contains a query or a fragment"
    if problem is not None:
        raise UsageError(f"{named} {problem}: {displayable_url(re.split('[?#]', url)[0])!r}")
    return url.rstrip("/")


def _token_of(named: str) -> str:
    return TOOLS_TOKEN_VARIABLE if named == f"${TOOLS_URL_VARIABLE}" else TOKEN_VARIABLE


class BackgroundQueue(Generic[Item]):
    """Items that one task processes in order, so that no sender has to wait. Use it on one event loop."""

    def __init__(self) -> None:
        self._line: deque[Item] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    @property
    def is_closed(self) -> bool:
        """True once closing has started; items added from then on are dropped at once."""
        return self._closing.is_set()

    def _add(self, item: Item) -> None:
        self._line.append(item)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        raise NotImplementedError

    async def _pause(self, wait_s: float) -> None:
        """Wait `wait_s` seconds, or until closing starts."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._closing.wait()

    async def _finish(self, within_s: float) -> None:
        """Start closing, and give the worker `within_s` seconds. Leaves no task running."""
        self._closing.set()
        worker = self._worker
        if worker is not None and not worker.done():
            try:
                await asyncio.wait([worker], timeout=within_s)
            finally:
                if worker.cancel():
                    await asyncio.wait([worker])


def check_id(value: object, name: str) -> str:
    """Return `value` if it is an id that is safe in paths and URLs. Raises ServiceRejected for any other value of the
    field `name`."""
    if isinstance(value, str) and _ID.fullmatch(value):
        return value
    raise ServiceRejected(
        f"the service returned an invalid {name}: it must have 1 to 128 of A-Z a-z 0-9 _ -", status=200
    )


def check_uri(value: object, name: str) -> str:
    """Return `value` if it is a URI that can be displayed and recorded: printable, at most 2 KiB. Raises
    ServiceRejected."""
    # Printable text contains no lone surrogate, so it can be encoded.
    if isinstance(value, str) and value.isprintable() and 0 < len(value.encode()) <= _MAX_URI_BYTES:
        return value
    raise ServiceRejected(
        f"the service returned a {name} that is not a URI of at most {_MAX_URI_BYTES} bytes", status=200
    )


def check_object(value: object, name: str) -> dict[str, Any]:
    """Return `value` if it is a JSON object. Raises ServiceRejected."""
    if isinstance(value, dict):
        return value
    raise ServiceRejected(f"{name} is not a JSON object", status=200)


def check_line(value: object) -> str | None:
    """Return `value` as one short printable line; None if it is not a string or is empty."""
    return printable(" ".join(value.split())[:_MAX_LINE]) or None if isinstance(value, str) else None


def printable(text: str) -> str:
    """Replace each character of `text` that a terminal could interpret."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text)
