"""The messages of a session (AH 5.1), encoded once: the bytes go into journal, snapshot and history as they are.

What is large in a message, its text and the arguments of its calls, is encoded once for the gateway too: its JSON is
made when it is first asked for and is kept as long as the message is.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal

import orjson

from agent_host.contracts import Image
from agent_host.thread.tokens import image_tokens
from config.json_text import copy_to_keep
from config.json_text import encodable as encodable
from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from agent_host.ids import Outside

GO_ON: Final = "[Your answer was cut at the output limit. Go on where it stopped.]"
"""The host's note after an incomplete answer."""
GO_ON_IN_A_NEW_WINDOW: Final = (
    "[Your answer ended where your context was full. The oldest part of the conversation is left out now. "
    "Go on where it stopped.]"
)
BRANCH: Final = "main"
"""The branch of the conversation that every message is on: there is one. Messages of earlier versions name none."""
_ID_KEY: Final = b'{"messageId":"'
NOTHING_SAID: Final = "(no text)"
"""Sent for a message without text, which providers refuse."""

Role = Literal["system", "user", "assistant", "tool"]


class _CallFields(NamedTuple):
    call_id: str
    name: str
    arguments: dict[str, Any]
    problem: str | None = None


class ToolCall(_CallFields):
    """One call as the model asked for it. `problem` says why the arguments cannot be used, None when they can."""

    @cached_property
    def arguments_json(self) -> bytes:
        """The arguments as JSON. Raises orjson.JSONEncodeError when they nest too deep for a message on record."""
        # A resume writes the whole message without fragments, so what counts is the depth at which they stand in it.
        return orjson.dumps([[[self.arguments]]])[3:-3]

    def change_id(self, call_id: str) -> ToolCall:
        """The same call under another id; what is encoded stays encoded."""
        other = self._replace(call_id=call_id)
        vars(other).update(vars(self))
        return other


class _MessageFields(NamedTuple):
    role: Role
    content: str
    tokens: int
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    is_error: bool = False
    edited_arguments: dict[str, Any] | None = None
    goes_on: bool = False
    workspace: str | None = None
    blocks: tuple[Block, ...] = ()
    order: Order = ()
    images: tuple[Image, ...] = ()


class Message(_MessageFields):
    """One ConversationMessage. `tokens` is an estimate made when the message was.

    `edited_arguments` are those that the call of a result ran with where the person who approved it wrote them.
    `goes_on` marks the note behind an answer that was cut, `workspace` the note that names a new workspace. `blocks`
    are what the provider alone reads of an assistant's message, `order` is their place (`agent_host.thread.messages`).
    `images` are the pictures of a result, which its content describes.
    """

    @cached_property
    def content_json(self) -> bytes:
        """The content as a JSON string. Raises orjson.JSONEncodeError for a lone surrogate."""
        return orjson.dumps(self.content)

    def drop_images(self, why: str) -> Message:
        """The same result without its pictures, and why in their place."""
        if not self.images:
            return self
        tokens = max(0, self.tokens - sum(image_tokens(image.width, image.height) for image in self.images))
        return self._replace(content=f"{self.content}; {why}", tokens=tokens, images=())

    def parts(self) -> Iterator[str | ToolCall | Block]:
        """Text, calls and blocks of an assistant's message in order."""
        return sort_parts(self.content, self.tool_calls, self.blocks, self.order)

    def parts_for(self, dialect: str, model: str) -> Iterator[str | ToolCall | Block]:
        """The parts that are sent to `model`: without the blocks of others, and without text that stands in a block."""
        held = False
        for part in self.parts():
            if isinstance(part, Block):
                if (part.dialect, part.model) != (dialect, model):
                    continue
                held = part.holds_text
            elif isinstance(part, str) and held:
                held = False
                continue
            yield part

    def keeping(self, is_kept: Callable[[Block], bool]) -> Message:
        """The same message with those of its blocks for which `is_kept` is true."""
        kept = [is_kept(block) for block in self.blocks]
        if all(kept):
            return self
        blocks = tuple(block for block, flag in zip(self.blocks, kept, strict=True) if flag)
        return self._replace(blocks=blocks, order=filter_order(self.order, kept))


def encode(
    message: Message,
    outside: Outside,
    *,
    session_id: str,
    task_id: str | None = None,
    step_id: str | None = None,
    parent: bytes | None = None,
) -> bytes:
    """Return the ConversationMessage JSON of `message` (interface section 3), with a fresh messageId and timestamp.
    `parent` is the encoded message that it follows: a result follows its turn, all else the message before it. Raises
    orjson.JSONEncodeError for a lone surrogate."""
    wire: dict[str, Any] = {
        "messageId": outside.new_id("msg"),
        "sessionId": session_id,
        "role": message.role,
        "content": orjson.Fragment(message.content_json),
        "timestamp": outside.stamp(),
        "tokenCount": message.tokens,
        **_optional_fields(message),
    }
    if task_id is not None:
        wire["taskId"] = task_id
    if step_id is not None:
        wire["stepId"] = step_id
    if parent is not None:
        wire["parentId"] = message_id(parent)
    wire["branch"] = BRANCH
    return copy_to_keep(orjson.dumps(wire))


def _optional_fields(message: Message) -> dict[str, Any]:
    """The fields that the message has beside those of every message."""
    wire: dict[str, Any] = {}
    if message.tool_calls:
        wire["toolCalls"] = [
            {"id": call.call_id, "name": call.name, "arguments": orjson.Fragment(call.arguments_json)}
            | ({"problem": call.problem} if call.problem else {})
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        wire["toolCallId"] = message.tool_call_id
        wire["isError"] = message.is_error
    if message.images:
        wire["images"] = [{**image.to_wire(), "data": b64encode(image.data).decode()} for image in message.images]
    if message.edited_arguments is not None:
        wire["editedArguments"] = message.edited_arguments
    if message.blocks:
        wire["blocks"] = [
            {"dialect": block.dialect, "model": block.model, "raw": block.raw}
            | ({"holdsText": True} if block.holds_text else {})
            for block in message.blocks
        ]
    if message.order:
        wire["order"] = message.order
    if message.goes_on:
        wire["goesOn"] = True
    if message.workspace is not None:
        wire["workspace"] = message.workspace
    return wire


def message_id(data: bytes) -> str:
    """Return the messageId of an encoded message, without decoding all of it if `encode` wrote it."""
    if data.startswith(_ID_KEY):
        return data[len(_ID_KEY) : data.index(b'"', len(_ID_KEY))].decode()
    wire: dict[str, str] = orjson.loads(data)
    return wire["messageId"]


def last_answer(thread: Sequence[bytes]) -> str:
    """The text that the model ended with: its last message, with the parts before it where the output limit cut the
    answer and the model went on."""
    parts: list[str] = []
    notes: list[Message] = []
    for data in reversed(thread):
        message = decode(data)
        if message.role == "system":
            notes.append(message)
            continue
        # Without a note between them the model went on by itself, as after a pause.
        goes_on = not (parts and notes) or any(note.goes_on or note.content == GO_ON for note in notes)  # older records
        if message.role != "assistant" or message.tool_calls or not goes_on:
            break
        parts.append(message.content)
        notes.clear()
    return "".join(reversed(parts))


def decode(data: bytes) -> Message:
    """The message that `encode` wrote."""
    wire = orjson.loads(data)
    calls = tuple(
        ToolCall(call["id"], call["name"], call["arguments"], call.get("problem")) for call in wire.get("toolCalls", ())
    )
    blocks = tuple(
        Block(block["raw"], block["dialect"], block["model"], block.get("holdsText", False))
        for block in wire.get("blocks", ())
    )
    images = tuple(
        Image(image["mediaType"], image["width"], image["height"], b64decode(image["data"]))
        for image in wire.get("images", ())
        if image["data"]  # a store that lost it leaves it empty, and says so in the content
    )
    message = Message(
        wire["role"],
        wire["content"],
        wire["tokenCount"],
        calls,
        wire.get("toolCallId"),
        wire.get("isError", False),
        wire.get("editedArguments"),
        wire.get("goesOn", False),
        wire.get("workspace"),
        blocks,
        tuple(wire.get("order", ())),
        images,
    )
    return message.keeping(lambda block: bool(block.raw))  # a store that lost one leaves it empty


# Parts of a model's turn that only its provider can read, and their place among text and tool calls.
#
# A block is kept as the JSON text that its dialect made or received, and goes back to that dialect and model
# unchanged. For all others the turn is text and tool calls.

Order = tuple[int | Literal["call", "block"], ...]
"""The parts of a turn in order: a number stands for that many characters of its text, the words for the next call and
the next block. The empty order is the usual one: all blocks, the text, all calls."""


class Block(NamedTuple):
    """`raw` is JSON. `holds_text`: the text directly behind the block is also in `raw`, so a dialect that sends the
    block leaves that text out. The loop sets `model`, which a dialect does not know."""

    raw: str
    dialect: str
    model: str = ""
    holds_text: bool = False


ARGUMENTS_TEXT: Final = "arguments_text"
"""The one member of a block that stands behind a call: the text of its arguments as the model wrote it."""


def arguments_block(text: str, dialect: str) -> Block:
    """A block with the arguments of the call in front of it, for wires that send them as text: a provider finds its
    cache by every byte of a request, and another spelling of the same arguments is another beginning."""
    return Block(f'{{"{ARGUMENTS_TEXT}":{orjson.dumps(text).decode()}}}', dialect)


def holds_arguments(block: Block) -> bool:
    """True if the block is one of `arguments_block`: it says nothing that the call does not say."""
    return block.raw.startswith(f'{{"{ARGUMENTS_TEXT}":')


def sort_parts(
    content: str, calls: Sequence[ToolCall], blocks: Sequence[Block], order: Order
) -> Iterator[str | ToolCall | Block]:
    """The parts of a turn. An order that does not fit them, since a part was lost, stands for the usual one."""
    lengths = [entry for entry in order if isinstance(entry, int)]
    counts = (sum(lengths), order.count("call"), order.count("block"))
    if not order or counts != (len(content), len(calls), len(blocks)):
        yield from blocks
        yield content
        yield from calls
        return
    at, next_call, next_block = 0, iter(calls), iter(blocks)
    for entry in order:
        if isinstance(entry, int):
            yield content[at : at + entry]
            at += entry
        else:
            yield next(next_call) if entry == "call" else next(next_block)


def shortest(order: Order) -> Order:
    """`order`, or the empty one where it is the usual one."""
    blocks, calls = order.count("block"), order.count("call")
    texts = [entry for entry in order if isinstance(entry, int)]
    usual = [*["block"] * blocks, *texts, *["call"] * calls]
    return () if list(order) == usual and len(texts) < 2 else order


def filter_order(order: Order, kept: Sequence[bool]) -> Order:
    """`order` for those blocks that are kept, one flag a block."""
    flags = iter(kept)
    return shortest(tuple(entry for entry in order if entry != "block" or next(flags, True)))


def set_lengths(order: Order, lengths: Sequence[int]) -> Order:
    """`order` with other lengths for its texts; texts behind the last of `lengths` are left out."""
    remaining = iter(lengths)
    replaced = (next(remaining, None) if isinstance(entry, int) else entry for entry in order)
    return shortest(tuple(entry for entry in replaced if entry is not None))
