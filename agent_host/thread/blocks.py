"""Parts of a model's turn that only its provider can read, and their place among text and tool calls.

A block is kept as the JSON text that its dialect made or received, and goes back to that dialect and model unchanged.
For all others the turn is text and tool calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import orjson

from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agent_host.thread.messages import ToolCall

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


def in_order(
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


def without(order: Order, kept: Sequence[bool]) -> Order:
    """`order` for those blocks that are kept, one flag a block."""
    flags = iter(kept)
    return shortest(tuple(entry for entry in order if entry != "block" or next(flags, True)))


def with_lengths(order: Order, lengths: Sequence[int]) -> Order:
    """`order` with other lengths for its texts; texts behind the last of `lengths` are left out."""
    remaining = iter(lengths)
    replaced = (next(remaining, None) if isinstance(entry, int) else entry for entry in order)
    return shortest(tuple(entry for entry in replaced if entry is not None))
