"""Read the result of a call as the model and the host take it (TR 9.5), item by item (decision 0096).

All of it is what another program says, and the call has taken effect whatever form the result has. So a part that
cannot be read costs only itself, and is named in its place; of a kind that is not known its JSON is shown.
"""

from __future__ import annotations

import base64
import binascii
import mimetypes
import re
from typing import TYPE_CHECKING, Any, Final

import orjson

from agent_host.contracts import Artifact, Image
from config import json_text
from config.shapes import display
from tool_runtime.files.images import check_image
from tool_runtime.schema import UnusableSchema, judge_of
from tool_runtime.tool import FaultKind, ToolFault, ToolOutput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent_host.contracts import ToolRequest

_MAX_PARTS: Final = 200
_MAX_LINE: Final = 500
_MAX_SHOWN_CHARS: Final = 4_000
"""Of a part of a kind that is not known: it may hold a file."""
_UNKNOWN_BYTES: Final = "application/octet-stream"
_NO: Final = ("", "0", "false", "no", "null", "none")
_BESIDE: Final = frozenset({"content", "structuredContent", "isError", "_meta", "resultType", "ttlMs", "cacheScope"})


def output_of(
    result: Any, request: ToolRequest, output_schema: Mapping[str, Any] | None, threshold_bytes: int
) -> ToolOutput:
    """The output of a call: text joined, everything else as artifacts that the text names; a text of more than
    `threshold_bytes` is an artifact as well. `result` is whatever the server sent. Raises ToolFault for a result that
    says of itself that the call failed, with what there was as partial output."""
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
    others = {name: value for name, value in fields.items() if name not in _BESIDE}
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
        first = next((line for line in text.splitlines() if line.strip()), "the tool failed and says nothing of it")
        raise ToolFault(FaultKind.SYSTEM, first[:_MAX_LINE], partial=output)
    return output


def _is_true(flag: Any) -> bool:
    return flag.strip().lower() not in _NO if isinstance(flag, str) else bool(flag)


def _problem(value: Any, schema: Mapping[str, Any] | None) -> str | None:
    """Why the structured content is not what the tool promises; None where it is (TR 9.3)."""
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
        """The structured content, unless a text says the same."""
        if value is not None and not _say(self._texts, value):
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
        name, uri, *about = (_word(block, key) for key in ("name", "uri", "mimeType", "description"))
        said = " ".join(filter(None, about))
        named = ": ".join(filter(None, (name or _word(block, "title"), uri)))
        self.lines.append(f"[resource {named or 'without a name'}{f' ({said})' if said else ''}]"[:_MAX_LINE])

    def _resource(self, resource: Any) -> None:
        if isinstance(resource, str):
            resource = {"text": resource}
        if not isinstance(resource, dict):
            self._leave_out("it is a resource without content")
            return
        text, blob = resource.get("text"), resource.get("blob")
        self.lines.append(f"[resource {_word(resource, 'uri')}]"[:_MAX_LINE].replace(" ]", "]"))
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
        """Have a part stored."""
        plain = media_type if media_type.isascii() and media_type.isprintable() else _UNKNOWN_BYTES
        suffix = mimetypes.guess_extension(plain.partition(";")[0]) or ".bin"
        tool = self._request.tool_name.replace("/", "_")
        number = f"-{len(self.artifacts) + 1}" if self.artifacts else ""
        name = f"{tool}-{self._request.tool_call_id}-{part}{number}{suffix}"
        self.artifacts.append(Artifact("tool_output", name, plain[:128], content))


def _word(block: Mapping[str, Any], key: str) -> str:
    value = block.get(key)
    return value if isinstance(value, str) else ""


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


def _say(texts: Sequence[str], value: Any) -> bool:
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
