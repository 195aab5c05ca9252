"""An MCP server as a source of tools: connected on first use, and again after a lost connection.

The result of a call is converted for the model and the host (TR 9.5), item by item (decision 0096). It comes from
another program, and the call has taken effect whatever form the result has. So only an unreadable part is lost, and a
line names it; a part of an unknown kind is shown as JSON.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import functools
import mimetypes
import re
import sys
import threading
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, Any, Final

import orjson

from agent_host.contracts import Artifact, Image
from config import json_text
from config.shapes import display
from tool_runtime.files.images import check_image
from tool_runtime.remote import MAX_TOOLS, Definition, Source, ToolList, usable
from tool_runtime.remote.mcp import Asking, Http, NotSent, ServerConfig
from tool_runtime.schema import UnusableSchema
from tool_runtime.tool import CallContext, FaultKind, RuntimeSettings, ToolFault, ToolOutput, judge_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
    from importlib.machinery import ModuleSpec

    from agent_host.contracts import AskPerson, ToolRequest
    from tool_runtime.processes.background import ServerProcess
    from tool_runtime.processes.command import ServerParams
    from tool_runtime.remote.mcp.connection import ServerConnection
    from tool_runtime.remote.mcp.oauth import Browser

_TRIES: Final = 3
_PAUSE_S: Final = 0.25
_MAX_PARTS: Final = 200
_MAX_LINE: Final = 500
_MAX_SHOWN_CHARS: Final = 4_000  # of a part of an unknown kind, which may contain a file
_UNKNOWN_BYTES: Final = "application/octet-stream"
_NO: Final = ("", "0", "false", "no", "null", "none")
_RESULT_FIELDS: Final = frozenset(
    {"content", "structuredContent", "isError", "_meta", "resultType", "ttlMs", "cacheScope"}
)


class McpSource(Source):
    """A Source. `start` starts a long-running program; `on_changed` is called when the server reports changed tools.
    Without a `browser` this program cannot be authorized; `ask_person` asks a person a server's question, if its entry
    allows that. `on_secrets` gets OAuth tokens, `pause` waits this many seconds between two attempts to connect."""

    def __init__(
        self,
        config: ServerConfig,
        settings: RuntimeSettings,
        start: Callable[[ServerParams], ServerProcess],
        *,
        browser: Browser | None = None,
        ask_person: AskPerson | None = None,
        on_secrets: Callable[[Iterable[str | None]], None] = lambda _: None,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.name = f"mcp:{config.name}"
        self._pause = pause
        self._on_secrets = on_secrets
        self._ask_person = ask_person if config.elicitation else None
        self._config = config
        self._settings = settings
        self._start = start
        self._browser = browser
        self._connection: ServerConnection | None = None
        self._opening = asyncio.Lock()
        self._import = SdkImport()
        self._closed = False
        self._identities: tuple[ServerConnection, dict[str, str]] | None = None
        self.on_changed: Callable[[], None] = lambda: None

    async def list(self) -> ToolList:
        """See Source."""
        return await self._list(await self._connect())

    async def _list(self, connection: ServerConnection) -> ToolList:
        tools, rejected = await connection.tools()
        found = list(_definitions(self._config.name, tools, rejected))
        listed = await asyncio.to_thread(usable, found, rejected)
        self._identities = connection, {one.name: one.identity for one in listed.definitions}
        return listed

    async def _refuse_changed(self, connection: ServerConnection, tool: Definition) -> None:
        """Raises ToolFault for a tool that differs from the task's version, because policy judged another one. A new
        connection, or one that reported changes, is queried first."""
        if self._identities is None or self._identities[0] is not connection:
            await self._list(connection)
        if self._identities is None or self._identities[1].get(tool.name) == tool.identity:
            return
        self._on_change()
        raise ToolFault(
            FaultKind.CHANGED,
            f"{tool.name} has changed since this task started, and was not called: the next task has its new version",
        )

    async def call(self, tool: Definition, call: CallContext) -> ToolOutput:
        """See Source. A call is sent once, and again only if the server cannot have received it."""
        name, put = tool.name.partition("/")[2], self._ask_person
        asking = None if put is None else Asking(functools.partial(put, call.request), call.clock.paused)
        for again in (True, False):
            connection = await self._connect()
            try:
                await self._refuse_changed(connection, tool)
                progress = functools.partial(self._progress, call.request)
                result = await connection.call(name, call.arguments, progress, asking)
            except NotSent:
                if again:
                    continue
                raise ToolFault(FaultKind.NETWORK, f"{self.name} has not taken the call") from None

            try:
                return output_of(result, call.request, tool.output_schema, self._settings.artifact_threshold_bytes)
            except ToolFault as fault:
                raise connection.explain(fault) from fault
        raise AssertionError("one of the two ways out was taken")

    async def aclose(self) -> None:
        """See Source."""
        self._closed = True
        if self._settings.guard_processes:  # the process is the session's own, and ends with it
            self._import.stop()
        if self._connection is not None:
            await self._connection.aclose()

    async def _connect(self) -> ServerConnection:
        async with self._opening:
            if self._connection is not None and self._connection.is_open:
                return self._connection
            if self._connection is not None:
                await self._connection.aclose()
            module = await asyncio.to_thread(self._import.load)
            tries = _TRIES if isinstance(self._config.place, Http) else 1  # a program that ends does so again
            for number in range(tries):
                if self._closed:
                    raise ToolFault(FaultKind.NETWORK, f"{self.name} is closed")
                connection: ServerConnection = module.ServerConnection(
                    self._config, self._start, self._on_change, self._auth()
                )
                try:
                    await connection.open()
                except ToolFault as fault:
                    if number + 1 == tries or fault.kind is not FaultKind.NETWORK or connection.is_refused:
                        raise
                    await self._pause(_PAUSE_S * 4**number)
                    continue
                self._connection = connection
                return connection
            raise AssertionError("the last try returns or raises")

    def _auth(self) -> Any:
        place = self._config.place
        if not isinstance(place, Http) or place.oauth_folder is None:
            return None
        from tool_runtime.remote.mcp.oauth import oauth_of

        extra: dict[str, Any] = {"browser": self._browser, "on_secrets": self._on_secrets}
        return oauth_of(self._config.name, place.url, place.oauth_folder, self._settings.outside.time, **extra)

    def _on_change(self) -> None:
        self._identities = None
        self.on_changed()

    async def _progress(self, request: ToolRequest, done: float, total: float | None, message: str | None) -> None:
        if self._settings.on_output is None:
            return
        of = "" if total is None else f" of {total:g}"
        line = f"{done:g}{of}{f': {message}' if message else ''}\n"
        self._settings.on_output(request, "stdout", line[:1000].encode("utf-8", "replace"))


def _definitions(server: str, tools: Sequence[Any], rejected: dict[str, str]) -> Iterator[Definition]:
    for number, tool in enumerate(tools, 1):
        name = tool.get("name") if isinstance(tool, dict) else None
        if isinstance(name, str) and name:
            described = [text for key in ("description", "title") if isinstance(text := tool.get(key), str) and text]
            schemas = tool.get("inputSchema"), tool.get("outputSchema")
            yield Definition(f"{server}/{name}", described[0] if described else "", *schemas)
        elif len(rejected) < MAX_TOOLS:
            rejected[f"{server}/#{number}"] = "it has no name" if isinstance(tool, dict) else "it is not an object"


# The SDK is imported in a thread: it takes most of a second. Python waits for its threads at its exit, and a thread
# that it does not wait for may crash in the code of an extension. An import can be stopped only between two modules,
# the largest of which takes less than a tenth of a second: there a finder raises what nothing catches.

_CHANGING = threading.Lock()
"""`sys.meta_path` gets a new list: an import in another thread may be iterating over the present one, and would skip a
finder if that moved."""


class Stopped(BaseException):
    """This import was abandoned. Not an Exception, because modules catch those and continue without the import."""


class SdkImport(MetaPathFinder):
    """One import of it, by `load` in a thread."""

    def __init__(self) -> None:
        self._stopped = False
        self._thread: int | None = None

    def load(self) -> Any:
        """The module that imports the SDK. Raises ToolFault if it is not installed, or after `stop`."""
        self._thread = threading.get_ident()
        with _CHANGING:
            sys.meta_path = [self, *sys.meta_path]
        try:
            from tool_runtime.remote.mcp import connection
        except ImportError as error:
            raise ToolFault(
                FaultKind.SYSTEM, f"MCP servers need the extra mcp, which is not installed ({error.name})"
            ) from error
        except Stopped:
            raise ToolFault(FaultKind.NETWORK, "the session is over") from None
        finally:
            with _CHANGING:
                sys.meta_path = [one for one in sys.meta_path if one is not self]
        return connection

    def stop(self) -> None:
        """End `load` at its next module. Its imports must not be used afterwards, because packages may be incomplete;
        so this is for a process that ends."""
        self._stopped = True

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        """See MetaPathFinder: it finds nothing, and stops one thread."""
        if self._stopped and threading.get_ident() == self._thread:
            raise Stopped
        return None


def output_of(
    result: Any, request: ToolRequest, output_schema: Mapping[str, Any] | None, threshold_bytes: int
) -> ToolOutput:
    """The output of a call from any answer of the server: joined text, and everything else as artifacts that it names;
    a text of more than `threshold_bytes` is one as well. Raises ToolFault, with partial output, for a result that
    reports a failed call."""
    fields = result if isinstance(result, dict) else {"content": result}
    parts = _ResultParts(request)
    content = fields.get("content")
    blocks = content if isinstance(content, list) else [] if content is None else [content]
    for block in blocks[:_MAX_PARTS]:
        parts.add(block)
    if len(blocks) > _MAX_PARTS:
        parts.lines.append(f"[{len(blocks) - _MAX_PARTS} more parts of the result are left out]")
    is_error = _is_true(fields.get("isError"))
    structured = fields.get("structuredContent")
    problem = None if is_error else _problem(structured, output_schema)
    if problem is None:
        parts.add_structured(structured)
    others = {name: value for name, value in fields.items() if name not in _RESULT_FIELDS}
    if others and not parts.lines:  # a result as no version of the protocol has it
        parts.lines.append(_json(others))
    if problem is not None:
        parts.lines.append(f"[{problem}]")
    text = "\n".join(parts.lines)
    data = text.encode("utf-8", "replace")
    if len(data) > threshold_bytes:
        parts.keep("text", "text/plain; charset=utf-8", data)
    output = ToolOutput(text, tuple(parts.artifacts), images=tuple(parts.images))
    if is_error:
        first = next((line for line in text.splitlines() if line.strip()), "the tool failed without a message")
        raise ToolFault(FaultKind.SYSTEM, first[:_MAX_LINE], partial=output)
    return output


def _is_true(flag: Any) -> bool:
    return flag.strip().lower() not in _NO if isinstance(flag, str) else bool(flag)


def _problem(value: Any, schema: Mapping[str, Any] | None) -> str | None:
    """Return why the structured content does not match the tool's schema; None if it does (TR 9.3)."""
    if schema is None:
        return None
    if value is None:
        return "the result has no structuredContent, which the tool promises"
    try:
        wrong = judge_of(schema, foreign=True)(value)
    except UnusableSchema as error:
        wrong = f"that cannot be used: {error}"
    return wrong and f"structuredContent is left out, since it does not fit the tool's output schema: {wrong}"


class _ResultParts:
    def __init__(self, request: ToolRequest) -> None:
        self._request = request
        self._texts: list[str] = []
        self.lines: list[str] = []
        self.artifacts: list[Artifact] = []
        self.images: list[Image] = []

    def add(self, block: Any) -> None:
        if isinstance(block, str):
            self._text(block)
            return
        if not isinstance(block, dict):
            self._leave_out(f"it is {display(block)}")
            return
        kind = block.get("type")
        kind = kind.lower() if isinstance(kind, str) else None
        if kind == "text" or (kind is None and isinstance(block.get("text"), str)):
            text = block.get("text")
            if text is None:
                self._leave_out("its text is null")
            else:
                self._text(text if isinstance(text, str) else _json(text))
        elif kind in ("image", "audio"):
            self._file(kind, block.get("data"), block.get("mimeType"))
        elif kind == "resource_link":
            self._link(block)
        elif kind == "resource":
            self._resource(block.get("resource"))
        else:
            self._unknown(block, kind)

    def add_structured(self, value: Any) -> None:
        if value is not None and not _is_content(self._texts, value):
            self.lines.append(value if isinstance(value, str) else _json(value))

    def _text(self, text: str) -> None:
        self._texts.append(text)
        self.lines.append(text)

    def _leave_out(self, why: str) -> None:
        self.lines.append(f"[a part of the result is left out: {why}]"[:_MAX_LINE])

    def _unknown(self, block: dict[str, Any], kind: str | None) -> None:
        text = _json(block)
        cut = f"… [{len(text) - _MAX_SHOWN_CHARS} characters more]" if len(text) > _MAX_SHOWN_CHARS else ""
        self.lines.append(f"[a part of {f'the unknown type {kind}' if kind else 'no type'}]"[:_MAX_LINE])
        self.lines.append(text[:_MAX_SHOWN_CHARS] + cut)

    def _link(self, block: dict[str, Any]) -> None:
        words = {key: value for key, value in block.items() if isinstance(value, str)}.get
        details = " ".join(filter(None, map(words, ("mimeType", "description"))))
        named = ": ".join(filter(None, (words("name") or words("title"), words("uri"))))
        self.lines.append(f"[resource {named or 'without a name'}{f' ({details})' if details else ''}]"[:_MAX_LINE])

    def _resource(self, resource: Any) -> None:
        if isinstance(resource, str):
            resource = {"text": resource}
        if not isinstance(resource, dict):
            self._leave_out("it is a resource without content")
            return
        text, blob = resource.get("text"), resource.get("blob")
        uri = resource.get("uri")
        self.lines.append(f"[resource {uri if isinstance(uri, str) else ''}]"[:_MAX_LINE].replace(" ]", "]"))
        if text is not None:
            self._text(text if isinstance(text, str) else _json(text))
        elif blob is not None:
            self._bytes("resource", blob, resource.get("mimeType"))
        else:
            self._leave_out("the resource has neither text nor blob")

    def _file(self, part: str, data: Any, media_type: Any) -> None:
        content = self._bytes(part, data, media_type)
        if part != "image" or content is None:
            return
        picture = check_image(content)
        if picture is None or picture.data is None:
            self.lines.append(f"[the image is not shown: {'it is none' if picture is None else picture.problem}]")
        else:
            header = picture.header
            self.images.append(Image(header.media_type, header.width, header.height, picture.data))

    def _bytes(self, part: str, data: Any, media_type: Any) -> bytes | None:
        content = _decode(data)
        if content is None:
            self.lines.append(f"[{part}: not valid base64]")
            return None
        if not isinstance(media_type, str) or not media_type:
            picture = check_image(content)
            media_type = _UNKNOWN_BYTES if picture is None else picture.header.media_type
        self.keep(part, media_type, content)
        self.lines.append(f"[{part}: {media_type}, {len(content)} bytes]"[:_MAX_LINE])
        return content

    def keep(self, part: str, media_type: str, content: bytes) -> None:
        plain = media_type if media_type.isascii() and media_type.isprintable() else _UNKNOWN_BYTES
        suffix = mimetypes.guess_extension(plain.partition(";")[0]) or ".bin"
        tool = self._request.tool_name.replace("/", "_")
        number = f"-{len(self.artifacts) + 1}" if self.artifacts else ""
        name = f"{tool}-{self._request.tool_call_id}-{part}{number}{suffix}"
        self.artifacts.append(Artifact("tool_output", name, plain[:128], content))


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def _decode(data: Any) -> bytes | None:
    """The bytes of base64 in either alphabet, in lines, without its padding, or as a data URL."""
    if not isinstance(data, str):
        return None
    plain = re.sub(r"^data:[^,]{0,200};base64,|\s", "", data).rstrip("=")
    try:
        return base64.b64decode(plain.translate(_ALPHABET) + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None


_ALPHABET: Final = str.maketrans("-_", "+/")


def _is_content(texts: Sequence[str], value: Any) -> bool:
    """True if texts are the JSON of a structured content, or of the one thing in it: one text, or one for each item."""
    inner = next(iter(value.values())) if isinstance(value, dict) and len(value) == 1 else value
    if any(_is(text, value) or _is(text, inner) for text in texts):
        return True
    return isinstance(inner, list) and len(inner) == len(texts) > 0 and all(map(_is, texts, inner))


def _is(text: str, value: Any) -> bool:
    if text == value:
        return True
    try:
        return bool(json_text.loads(text) == value)
    except orjson.JSONDecodeError:
        return False
