"""The messages of a session (AH 5.1), encoded once: journal, snapshot and history contain the same bytes.

The large parts of a message, its text and the arguments of its calls, are encoded once for the gateway too: their JSON
is made on first use and cached with the message.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal

import orjson

from agent_host.contracts import Image
from config.json_text import copy_to_keep
from config.json_text import encodable as encodable
from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from agent_host.ids import Outside

CONTINUE_NOTE: Final = "[Your answer was cut at the output limit. Go on where it stopped.]"
"""The host's note after an incomplete answer."""
CONTINUE_IN_NEW_WINDOW: Final = (
    "[Your answer ended where your context was full. The oldest part of the conversation is left out now. "
    "Go on where it stopped.]"
)
BRANCH: Final = "main"
"""The branch of the conversation that every message is on: there is one. Messages of earlier versions name none."""
_ID_KEY: Final = b'{"messageId":"'
NO_TEXT: Final = "(no text)"
"""Sent for a message without text, which providers refuse."""

Role = Literal["system", "user", "assistant", "tool"]


class _CallFields(NamedTuple):
    call_id: str
    name: str
    arguments: dict[str, Any]
    problem: str | None = None


class ToolCall(_CallFields):
    """One call as the model requested it. `problem` is the reason why the arguments are unusable, None if they are
    usable."""

    @cached_property
    def arguments_json(self) -> bytes:
        """The arguments as JSON. Raises orjson.JSONEncodeError when they nest too deep for a message on record."""
        # A resume writes the whole message without fragments, so the depth is counted from the message.
        return orjson.dumps([[[self.arguments]]])[3:-3]

    def change_id(self, call_id: str) -> ToolCall:
        """The same call under another id, with the cached encoding."""
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
    asks_to_continue: bool = False
    workspace: str | None = None
    blocks: tuple[Block, ...] = ()
    order: Order = ()
    images: tuple[Image, ...] = ()


class Message(_MessageFields):
    """One ConversationMessage. `tokens` is an estimate made when the message was.

    `edited_arguments` are the arguments of a result's call if the approving person wrote them. `asks_to_continue`
    marks the note after an answer that was cut, `workspace` the note that names a new workspace. `blocks` are the parts
    of an assistant's message that only the provider reads, `order` is their position. `images` are the pictures of a
    result, which its content describes.
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
        """The parts that are sent to `model`: without blocks of other models, and without text that a block
        contains."""
        is_in_block = False
        for part in self.parts():
            if isinstance(part, Block):
                if (part.dialect, part.model) != (dialect, model):
                    continue
                is_in_block = part.holds_text
            elif isinstance(part, str) and is_in_block:
                is_in_block = False
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
    if message.asks_to_continue:
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
    """The model's last message, preceded by the earlier parts of the same answer if the output limit cut it."""
    parts: list[str] = []
    notes: list[Message] = []
    for data in reversed(thread):
        message = decode(data)
        if message.role == "system":
            notes.append(message)
            continue
        # Without a note between them the model continued by itself, as after a pause.
        is_continued = not (parts and notes) or any(
            note.asks_to_continue or note.content == CONTINUE_NOTE  # older records
            for note in notes
        )
        if message.role != "assistant" or message.tool_calls or not is_continued:
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
        if image["data"]  # a store that lost it leaves it empty and notes that in the content
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
    """`raw` is JSON. `holds_text`: the text directly after the block is also in `raw`, so a dialect that sends the
    block omits that text. The loop sets `model`, because a dialect does not have it."""

    raw: str
    dialect: str
    model: str = ""
    holds_text: bool = False


ARGUMENTS_TEXT: Final = "arguments_text"
"""The only member of a block after a call: the text of its arguments as the model wrote it."""


def arguments_block(text: str, dialect: str) -> Block:
    """A block with the arguments of the call in front of it, for wires that send them as text: a provider finds its
    cache by every byte of a request, and another spelling of the same arguments is another beginning."""
    return Block(f'{{"{ARGUMENTS_TEXT}":{orjson.dumps(text).decode()}}}', dialect)


def holds_arguments(block: Block) -> bool:
    """True if the block was made by `arguments_block`, so it contains nothing beyond the call."""
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
    """`order`, or the empty tuple if it is the default order."""
    blocks, calls = order.count("block"), order.count("call")
    texts = [entry for entry in order if isinstance(entry, int)]
    usual = [*["block"] * blocks, *texts, *["call"] * calls]
    return () if list(order) == usual and len(texts) < 2 else order


def filter_order(order: Order, kept: Sequence[bool]) -> Order:
    """`order` for those blocks that are kept, one flag a block."""
    flags = iter(kept)
    return shortest(tuple(entry for entry in order if entry != "block" or next(flags, True)))


def set_lengths(order: Order, lengths: Sequence[int]) -> Order:
    """`order` with other lengths for its texts; texts after the last of `lengths` are omitted."""
    remaining = iter(lengths)
    replaced = (next(remaining, None) if isinstance(entry, int) else entry for entry in order)
    return shortest(tuple(entry for entry in replaced if entry is not None))


# Estimates of the tokens of a text, before the gateway counts them (AH 5.3).
#
# The built-in estimate is a sum over kinds of characters and over the places where one kind follows another, because
# tokenizers cut there. Its weights were fitted to OpenAI's encodings on prose, code, listings, logs, numbers, hex and
# base64, and raised by a tenth: it errs high, by about the same ratio on each of them. The gateway's counts then give
# that ratio (`loop.requests`). Bytes divided by four would be half of the true number for typical tool output.

PER_MESSAGE_OVERHEAD = 6
_PIXELS_PER_TOKEN = 750
_MAX_IMAGE_TOKENS = 4784
_PER_CALL_OVERHEAD = 12

# The kind of a character by the first byte of its UTF-8; punctuation (".") if nothing else.
_KINDS: tuple[tuple[bytes, range], ...] = (
    (b"a", range(0x61, 0x7B)),  # small letters
    (b"A", range(0x41, 0x5B)),  # capitals
    (b"0", range(0x30, 0x3A)),
    (b"n", range(0x0A, 0x0E)),
    (b"s", range(0x20, 0x21)),
    (b"s", range(0x09, 0x0A)),
    (b"M", range(0xC2, 0xE0)),  # letters of two bytes: with accents, Greek, Cyrillic, Hebrew, Arabic
    (b"C", range(0xE0, 0xF0)),  # letters of three bytes, most of them Chinese, Japanese or Korean
    (b"S", range(0xE2, 0xE3)),  # quotation marks, lines, arrows
    (b"S", range(0xF0, 0x100)),  # emoji
)
_KIND_OF = bytearray(b"." * 256)
for _kind, _first_bytes in _KINDS:
    for _byte in _first_bytes:
        _KIND_OF[_byte] = _kind[0]
_FURTHER_BYTES = bytes(range(0x80, 0xC0))
# Hundredths of a token for each place where these kinds follow each other. Long runs of letters are not words.
_WEIGHTS: tuple[tuple[bytes, int], ...] = (
    (b"a", 6), (b"A", 21), (b"0", 30), (b".", 35), (b"n", 78), (b"s", 1), (b"M", 53), (b"S", 132), (b"C", 100),
    (b"sa", 98), (b".a", 98), (b".A", 23), (b"Aa", 81), (b"aA", 85),
    (b"0A", 82), (b"0a", 35), (b"a0", 167), (b"A0", 126), (b"s0", 220), (b".0", 151), (b"s.", 101),
    (b"a" * 12, 328), (b"A" * 12, 246),
)  # fmt: skip

AUTO, ESTIMATE = "auto", "estimate"


_RANK_FILES_AT = "https://openaipublic.blob.core.windows.net/encodings"


class _RankFile(NamedTuple):
    """tiktoken's file of an encoding: its name in TIKTOKEN_CACHE_DIR, which is the SHA-1 of its URL, and the SHA-256
    that tiktoken asks of it."""

    name: str
    sha256: str


_RANK_FILES = {
    "o200k_base": _RankFile(
        "fb374d419588a4632f3f557e76b4b70aebbca790", "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
    ),
    "cl100k_base": _RankFile(
        "9b5ad71b2ce5302211f9c61530b329a4922fc6a4", "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"
    ),
}
ENCODINGS = tuple(_RANK_FILES)
"""The encodings of tiktoken that can be chosen."""


class TokenizerUnavailable(Exception):
    """The tokenizer asked for cannot be had without a download."""


def estimate(text: str) -> int:
    """Tokens of `text`, about; linear in its length."""
    kinds = text.encode("utf-8", "replace").translate(_KIND_OF, _FURTHER_BYTES)
    hundredths = 0
    for pattern, weight in _WEIGHTS:
        hundredths += weight * kinds.count(pattern)
    return (hundredths + 99) // 100


def message_tokens(count: Callable[[str], int], content: str, encoded_calls: tuple[str, ...] = ()) -> int:
    """Tokens of a message with `content` and the JSON of its tool calls."""
    return PER_MESSAGE_OVERHEAD + count(content) + sum(_PER_CALL_OVERHEAD + count(call) for call in encoded_calls)


def image_tokens(width: int, height: int) -> int:
    """Tokens of a picture of so many pixels, by Anthropic's rule. A large one is scaled down before it is counted, to
    at most 4784 tokens with the models that see most of it."""
    return min(_MAX_IMAGE_TOKENS, -(-width * height // _PIXELS_PER_TOKEN))


def counter(name: str, encoding: str | None = None) -> Callable[[str], int]:
    """The counter called `name`: `estimate`, an encoding of tiktoken whose rank file is in TIKTOKEN_CACHE_DIR, or
    `auto`: the model's `encoding` if available, else the estimate. Raises TokenizerUnavailable."""
    if name == ESTIMATE:
        return estimate
    if name != AUTO:
        return _load_tiktoken(name)
    try:
        return estimate if encoding is None else _load_tiktoken(encoding)
    except TokenizerUnavailable:
        return estimate


def _load_tiktoken(name: str) -> Callable[[str], int]:
    """tiktoken downloads a rank file that is missing or damaged, without any time-out: so it is not asked for one
    before its rank file has been looked at."""
    if name not in _RANK_FILES:
        raise TokenizerUnavailable(f"unknown tokenizer {name!r}: choose {', '.join((AUTO, ESTIMATE, *ENCODINGS))}")
    file, folder = _RANK_FILES[name], os.environ.get("TIKTOKEN_CACHE_DIR", "")
    path = os.path.join(folder, file.name)
    if not folder or not os.path.isfile(path):
        where = folder or "TIKTOKEN_CACHE_DIR, which is not set,"
        raise TokenizerUnavailable(f"{where} contains no rank file {file.name} for {name}; {advice(name, folder)}")
    import hashlib

    import tiktoken

    with open(path, "rb") as handle:
        is_intact = hashlib.file_digest(handle, "sha256").hexdigest() == file.sha256
    if not is_intact:
        raise TokenizerUnavailable(
            f"the rank file {file.name} for {name} in {folder} is damaged; {advice(name, folder)}"
        )
    encoding = tiktoken.get_encoding(name)
    return lambda text: len(encoding.encode_ordinary(text))


def advice(encoding: str, folder: str) -> str:
    """Explain how to get the rank file of an encoding, which this program never downloads, in `folder` ("": one to
    choose): by tiktoken itself, or by hand for a machine without a network."""
    file, directory = _RANK_FILES[encoding], folder or "DIR"
    command = f"python -c 'import tiktoken; tiktoken.get_encoding(\"{encoding}\")'"
    path = os.path.join(directory, file.name)
    by_hand = f"save {_RANK_FILES_AT}/{encoding}.tiktoken as {path} (SHA-256 {file.sha256})"
    keep = "" if folder else ", and keep TIKTOKEN_CACHE_DIR=DIR set"
    return f"to have it, run once with TIKTOKEN_CACHE_DIR={directory}: {command}, or {by_hand}{keep}"
