"""What other dialects would keep of a turn as blocks: through record, journal, snapshot and resume byte for byte."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent_host.ids import MACHINE
from agent_host.thread.messages import Block, Message, ToolCall, decode, encode
from state.checkpoint import Checkpoint, SessionIdentity, TokenUsage
from state.file_store import FileCheckpointStore
from state.records import CallFinished, StepCommitted, TaskStarted, TurnTaken
from tests.support.rows import each_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent_host.thread.messages import Order
    from state.checkpoint import CallRow

WIRES = Path(__file__).parents[2] / "fixtures" / "wires"
STREAMS = sorted(WIRES.glob("*/*.sse"))
_value_at = json.JSONDecoder().raw_decode
# Where such parts stand: whole values in one event, and strings that come in pieces.
_WHOLE = re.compile(r'"(?:item|extra_content|reasoning_details)":\s*')
_PIECES = re.compile(r'"(reasoning|reasoning_content)":\s*(?=")')


def events(stream: Path) -> Iterator[str]:
    for line in stream.read_text(encoding="utf-8").split("\n"):
        if line.startswith("data: {"):
            yield line.removeprefix("data: ")


def opaque(stream: Path) -> list[str]:
    """The JSON text of each part of the stream that only its provider reads."""
    found: list[str] = []
    joined: dict[str, str] = {}
    for data in events(stream):
        if '"response.output_item.added"' in data:  # may be incomplete
            continue
        for match in _WHOLE.finditer(data):
            value, end = _value_at(data, match.end())
            if "item" not in match[0] or value["type"] in ("reasoning", "message"):
                found.append(data[match.end() : end])
        for match in _PIECES.finditer(data):
            joined[match[1]] = joined.get(match[1], "") + _value_at(data, match.end())[0]
    return [*(json.dumps({name: text}) for name, text in joined.items()), *found]


def turn(blocks: list[Block]) -> Message:
    """A turn with text, a call, and the blocks before, between and behind them."""
    call = ToolCall("c1", "ReadFile", {"path": "/a"})
    order: Order = ("call", "block")
    for _ in blocks[1:]:
        order = ("block", 1, *order)
    content = "é" * (len(blocks) - 1)
    return Message("assistant", content, 9, (call,), blocks=tuple(blocks), order=order)


def test_the_streams_are_there() -> None:
    assert [len(list(WIRES.glob(f"{dialect}/*.sse"))) for dialect in ("chat", "responses")] == [12, 10]
    for stream in STREAMS:
        assert all(json.loads(data) for data in events(stream)), stream


@each_row(
    ("stream", "count"),
    [
        ("chat/reasoning-content", 1), ("chat/reasoning-same-index", 1), ("chat/reasoning-details", 3),
        ("chat/extra-content", 1), ("chat/text", 0), ("responses/text", 1), ("responses/reasoning-and-tool-calls", 2),
        ("responses/message-behind-a-call", 2), ("responses/refusal", 1), ("responses/cut", 1),
    ],
)  # fmt: skip
def test_the_parts_are_found(stream: str, count: int) -> None:
    assert len(opaque(WIRES / f"{stream}.sse")) == count


@pytest.mark.parametrize("padding", [0, 20_000])
@pytest.mark.parametrize("stream", [stream for stream in STREAMS if opaque(stream)], ids=lambda stream: stream.stem)
def test_each_part_is_the_same_after_a_resume(stream: Path, padding: int, tmp_path: Path) -> None:
    """White space between JSON values is kept like all else; with much of it a block is large."""
    dialect = stream.parent.name
    raws = [" " * padding + raw for raw in opaque(stream)]
    message = turn([Block(raw, dialect, "model-1", holds_text=place == 0) for place, raw in enumerate(raws)])
    identity = SessionIdentity("s", "w", "tenant", "user", {"flags": {}, "workspace": "/w"})
    system = encode(Message("system", "Be careful.", 1), MACHINE, session_id="s")
    store = FileCheckpointStore(str(tmp_path))
    session = store.create("s", Checkpoint(identity, thread=[system]))
    session.append(TaskStarted("t", "p", 9, encode(Message("user", "p", 1), MACHINE, session_id="s")))
    row: CallRow = {"callId": "c1", "sideEffects": False}
    session.commit(TurnTaken("st", "stop", None, TokenUsage(9, 9), [row], encode(message, MACHINE, session_id="s")))
    session.close()

    session = store.open("s")  # which reads the journal and writes a snapshot
    assert decode(session.state.thread[2]) == message
    result = Message("tool", "text", 1, tool_call_id="c1")
    session.append(CallFinished("c1", "succeeded", encode(result, MACHINE, session_id="s")))
    session.commit(StepCommitted(1))
    session.close()
    assert len((tmp_path / "checkpoints" / "s.json").read_bytes()) < 12_000

    session = store.open("s")
    again = decode(session.state.thread[2])
    session.close()
    assert again == message
    assert [part.raw for part in again.parts_for(dialect, "model-1") if isinstance(part, Block)] == raws
    for other in (("anthropic", "model-1"), (dialect, "model-2")):
        assert not [part for part in again.parts_for(*other) if isinstance(part, Block)]
