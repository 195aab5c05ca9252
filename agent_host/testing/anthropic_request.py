"""Reading requests in the Anthropic Messages dialect, as strictly as the real endpoint where clients go wrong.

Above all a thread must be sendable: each tool call answered by exactly one result, in the very next message.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any

import orjson

from agent_host.testing.anthropic_images import check_image, images_in
from agent_host.testing.anthropic_thinking import check_thinking
from agent_host.testing.dialect import BadRequest, RequestView
from agent_host.testing.prompt_cache import Piece
from agent_host.testing.tool_ids import progress

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_ROLES = ("user", "assistant")


def read_request(payload: Any, headers: Mapping[str, str]) -> RequestView:
    """Check a decoded body of `POST /v1/messages` and take from it what scripts look at.

    Raises:
        BadRequest: the body is not one that can be answered.
    """
    if not isinstance(payload, dict):
        raise BadRequest("the body must be a JSON object")
    model = _required(payload, "model", str)
    max_tokens = _required(payload, "max_tokens", int)
    messages = _required(payload, "messages", list)
    if not messages:
        raise BadRequest("messages: at least one message is required")
    _check_messages(messages)
    check_thinking(messages, model)
    last = messages[-1]
    turn_index, position = progress(
        [block.get("id") for block in _blocks(message, "tool_use")]
        for message in reversed(messages)
        if message["role"] == "assistant"
    )
    return RequestView(
        session=headers.get("x-session-id") or _thread_key(messages),
        model=model,
        system=_text(payload.get("system", "")),
        max_tokens=max_tokens,
        stream=payload.get("stream") is True,
        tools=tuple(str(tool.get("name", "")) for tool in payload.get("tools") or () if isinstance(tool, dict)),
        message_count=len(messages),
        turn_index=turn_index,
        position=position,
        last_role=last["role"],
        last_text=_text(last["content"]),
        last_tool_error=any(block.get("is_error") is True for block in _blocks(last, "tool_result")),
        last_images=tuple(images_in(last["content"])),
        image_count=sum(1 for message in messages for _ in images_in(message["content"])),
        headers=headers,
    )


def pieces_of(payload: dict[str, Any]) -> list[Piece]:
    """Tools, system prompt and the blocks of all messages, as a cache keeps them. A mark is no part of what is kept."""
    blocks: list[tuple[str, Any]] = [("tools", tool) for tool in payload.get("tools") or ()]
    blocks += [("system", block) for block in _as_blocks(payload.get("system") or ())]
    blocks += [
        (f"{number} {message['role']}", block)
        for number, message in enumerate(payload["messages"])
        for block in _as_blocks(message["content"])
    ]
    return [_piece(place, block) for place, block in blocks]


def _as_blocks(content: Any) -> Sequence[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _piece(place: str, block: Any) -> Piece:
    if not isinstance(block, dict):
        return Piece(orjson.dumps([place, block]))
    kept = {name: value for name, value in block.items() if name != "cache_control"}
    mark = block.get("cache_control")
    is_long = isinstance(mark, dict) and mark.get("ttl") == "1h"
    return Piece(orjson.dumps([place, kept]), marked=mark is not None, long=is_long)


def _required(payload: dict[str, Any], key: str, kind: type) -> Any:
    value = payload.get(key)
    if value is None:
        raise BadRequest(f"{key}: field required")
    if not isinstance(value, kind) or isinstance(value, bool):
        raise BadRequest(f"{key}: must be of type {kind.__name__}")
    return value


def _check_messages(messages: Sequence[Any]) -> None:
    """Roles, contents and the pairing of tool calls with results, in one pass: threads may hold thousands."""
    open_calls: list[str] = []
    seen: set[str] = set()
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise BadRequest(f"messages.{index}: role must be one of {', '.join(_ROLES)}")
        calls, results = _check_content(index, message.get("content"))
        if open_calls or results:
            _check_pairing(index, open_calls, results)
        if calls and message["role"] != "assistant":
            raise BadRequest(f"messages.{index}: tool_use blocks belong to the assistant")
        if calls and (len(set(calls)) < len(calls) or not seen.isdisjoint(calls)):
            raise BadRequest(f"messages.{index}: tool_use ids must be unique in a conversation: {', '.join(calls)}")
        seen.update(calls)
        open_calls = calls
    if messages[0]["role"] != "user":
        raise BadRequest("messages.0: the first message must be the user's")
    if open_calls:
        _check_pairing(len(messages), open_calls, [])


def _check_content(index: int, content: Any) -> tuple[list[str], list[str]]:
    """The ids of the tool calls and of the tool results in one message's content."""
    calls: list[str] = []
    results: list[str] = []
    if isinstance(content, str) and content:
        return calls, results
    if not isinstance(content, list) or not content:
        raise BadRequest(f"messages.{index}: content must be text or an array of blocks, and not empty")
    for position, block in enumerate(content):
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_result":
            results.append(str(block.get("tool_use_id")))
            _check_result(block.get("content"), f"messages.{index}.content.{position}")
        elif kind == "image":
            check_image(block, f"messages.{index}.content.{position}")
        elif kind == "tool_use":
            calls.append(str(block.get("id")))
            if not isinstance(block.get("input"), dict):
                raise BadRequest(f"messages.{index}.content.{position}: the input of tool_use must be an object")
        elif kind == "text" and not block.get("text"):
            raise BadRequest(f"messages.{index}.content.{position}: text blocks must not be empty")
        elif not isinstance(kind, str):
            raise BadRequest(f"messages.{index}.content.{position}: must be an object with a type")
    return calls, results


def _check_result(content: Any, where: str) -> None:
    """The content of a tool result, where it is blocks: texts that are not empty, and images."""
    for position, block in enumerate(content if isinstance(content, list) else ()):
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "image":
            check_image(block, f"{where}.content.{position}")
        elif kind == "text" and not block.get("text"):
            raise BadRequest(f"{where}.content.{position}: text blocks must not be empty")
        elif not isinstance(kind, str):
            raise BadRequest(f"{where}.content.{position}: must be an object with a type")


def _check_pairing(index: int, calls: list[str], results: list[str]) -> None:
    if calls == results:
        return
    if lacking := [call for call in calls if call not in results]:
        raise BadRequest(f"messages.{index - 1}: tool_use without tool_result right after it: {', '.join(lacking)}")
    if strays := [result for result in results if result not in calls]:
        raise BadRequest(f"messages.{index}: tool_result without tool_use right before it: {', '.join(strays)}")
    if len(results) > len(calls):
        raise BadRequest(f"messages.{index}: more than one tool_result for one tool_use")


def _thread_key(messages: Sequence[dict[str, Any]]) -> str:
    """A key for conversations that do not say their session: it stays the same as long as the first message does."""
    return sha256(_text(messages[0]["content"]).encode()).hexdigest()[:16]


def _blocks(message: Mapping[str, Any], kind: str) -> Sequence[dict[str, Any]]:
    content = message["content"]
    return () if isinstance(content, str) else [block for block in content if block.get("type") == kind]


def _text(content: Any) -> str:
    """The text of a string, of blocks, or of tool results in blocks, one part a line."""
    return content if isinstance(content, str) else "\n".join(_texts(content))


def _texts(blocks: Any) -> Iterable[str]:
    if not isinstance(blocks, list):
        return
    for block in blocks:
        if not isinstance(block, dict):
            continue
        if block.get("type") == "text":
            yield str(block.get("text", ""))
        elif block.get("type") == "tool_result":
            yield _text(block.get("content", ""))
