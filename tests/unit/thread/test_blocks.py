"""Blocks of the provider in a message: their order, and what stays when some are lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import pytest

from agent_host.ids import MACHINE
from agent_host.thread.messages import (
    CONTINUE_NOTE,
    Block,
    Message,
    ToolCall,
    decode,
    encode,
    filter_order,
    last_answer,
    set_lengths,
    shortest,
    sort_parts,
)
from state.blobs import blobs_in, restore, shorten
from tests.support.rows import each_row

if TYPE_CHECKING:
    from agent_host.thread.messages import Order

CALLS = (ToolCall("c1", "A", {}), ToolCall("c2", "B", {}))
BLOCKS = (Block('{"n":1}', "d", "m"), Block('{"n":2}', "e", "m"), Block('{"n":3}', "d", "m", holds_text=True))
MIXED: Order = (2, "block", "call", "block", 3, "call", "block", 1)
MESSAGE = Message("assistant", "abcdé!", 5, CALLS, blocks=BLOCKS, order=MIXED)


def test_parts_come_in_their_order() -> None:
    one, two, three = BLOCKS
    assert list(MESSAGE.parts()) == ["ab", one, CALLS[0], two, "cdé", CALLS[1], three, "!"]


@pytest.mark.parametrize("order", [(), (3,), (6, "call", "call"), (*MIXED, "call"), (*MIXED, 1), ("block",) * 3])
def test_an_order_that_does_not_fit_is_the_usual_one(order: Order) -> None:
    assert list(sort_parts("abcdé!", CALLS, BLOCKS, order)) == [*BLOCKS, "abcdé!", *CALLS]


@each_row(
    ("order", "short"),
    [
        ((3,), ()), (("block", 3, "call"), ()), (("call",), ()), (("block", "block"), ()), ((), ()),
        ((1, 2), (1, 2)), (("call", 3), ("call", 3)), ((3, "block"), (3, "block")),
    ],
)  # fmt: skip
def test_the_usual_order_is_not_kept(order: Order, short: Order) -> None:
    assert shortest(order) == short


def test_a_dialect_gets_its_own_blocks_and_no_text_twice() -> None:
    one, two, three = BLOCKS
    assert list(MESSAGE.parts_for("d", "m")) == ["ab", one, CALLS[0], "cdé", CALLS[1], three]
    assert list(MESSAGE.parts_for("e", "m")) == ["ab", CALLS[0], two, "cdé", CALLS[1], "!"]
    assert list(MESSAGE.parts_for("d", "other")) == ["ab", CALLS[0], "cdé", CALLS[1], "!"]


def test_blocks_leave_and_the_rest_keeps_its_order() -> None:
    left = MESSAGE.keeping(lambda block: block.dialect == "e")
    assert (left.blocks, left.order) == ((BLOCKS[1],), (2, "call", "block", 3, "call", 1))
    assert filter_order(("block", 3, "call"), [False]) == ()
    assert MESSAGE.keeping(lambda _: True) is MESSAGE


def test_texts_get_other_lengths() -> None:
    assert set_lengths(MIXED, [5, 0, 2]) == (5, "block", "call", "block", 0, "call", "block", 2)
    assert set_lengths((2, "call", 3), [9]) == ()
    assert set_lengths((), [9]) == ()


def test_a_message_on_record_has_all_of_it() -> None:
    data = encode(MESSAGE, MACHINE, session_id="s")
    assert decode(data) == MESSAGE
    wire = orjson.loads(data)
    assert (wire["blocks"][0], wire["order"]) == ({"dialect": "d", "model": "m", "raw": '{"n":1}'}, list(MIXED))
    assert {"blocks", "order"}.isdisjoint(orjson.loads(encode(Message("assistant", "x", 1), MACHINE, session_id="s")))


def test_a_large_block_that_is_lost_leaves_the_rest_sendable() -> None:
    large = BLOCKS[1]._replace(raw='"' + "x" * 20_000 + '"')
    data = encode(MESSAGE._replace(blocks=(BLOCKS[0], large, BLOCKS[2])), MACHINE, session_id="s")
    short, (part,) = shorten(data)
    assert (part.decode(), len(short) < 2000, len(blobs_in(short))) == (large.raw, True, 1)
    whole, lost = restore(short, lambda _: part)
    assert (decode(whole), lost) == (decode(data), [])
    without_it, lost = restore(short, lambda _: None)
    assert lost == blobs_in(short)
    assert decode(without_it) == MESSAGE.keeping(lambda block: block.dialect == "d")


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([("assistant", "a", False), ("assistant", "b", False)], "ab"),
        ([("assistant", "a", False), ("system", "by the way", False), ("assistant", "b", False)], "b"),
        ([("assistant", "a", False), ("system", CONTINUE_NOTE, True), ("assistant", "b", False)], "ab"),
        ([("assistant", "a", False), ("user", "more", False), ("assistant", "b", False)], "b"),
        ([("assistant", "a", False), ("assistant", "b", False), ("system", "note", False)], "ab"),
    ],
)
def test_the_last_answer_has_what_a_pause_cut_off(messages: list[tuple[str, str, bool]], text: str) -> None:
    thread = [
        encode(Message(role, content, 1, asks_to_continue=goes_on), MACHINE, session_id="s")  # type: ignore[arg-type]  # a role
        for role, content, goes_on in messages
    ]
    assert last_answer(thread) == text
