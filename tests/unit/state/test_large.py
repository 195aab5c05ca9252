"""Large parts of messages: named in the snapshot, whole everywhere else, and told of where they are lost."""

from __future__ import annotations

import os
import tracemalloc
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.blobs import LARGE_BYTES, blobs_in, restore, sha256_hex, shorten
from state.records import record_of
from tests.unit.state.helpers import SESSION, create, load, message, reopen, start_task, turn, unnumbered, whole_step

if TYPE_CHECKING:
    from pathlib import Path

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40).flatmap(
    lambda text: st.sampled_from([text, (text or "x") * LARGE_BYTES])
)
values = st.recursive(texts | st.integers(-(2**63), 2**64 - 1) | st.booleans() | st.none(), st.lists, max_leaves=4)
arguments = st.dictionaries(st.sampled_from(["content", "contentBlob", "path", "sha256"]), values, max_size=3)


@given(texts, st.lists(arguments, max_size=2))
def test_every_message_comes_back_byte_for_byte(text: str, given: list[dict[str, Any]]) -> None:
    calls = [{"id": f"c{number}", "name": "T", "arguments": each} for number, each in enumerate(given)]
    whole = message("assistant", text, **({"toolCalls": calls} if calls else {}))
    short, parts = shorten(whole)
    kept: dict[str, bytes | None] = {sha256_hex(part): part for part in parts}
    assert restore(short, kept.get) == (whole, [])
    assert set(blobs_in(short)) == set(kept)
    assert all(len(part) > LARGE_BYTES for part in parts)


def test_what_comes_back_takes_about_what_it_holds() -> None:
    short, parts = shorten(message("user", "x" * 1_000_000))
    kept = dict(zip(map(sha256_hex, parts), parts, strict=True))
    tracemalloc.start()
    try:
        whole, _ = restore(short, kept.get)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 2 * len(whole)


def test_what_looks_like_a_reference_is_none() -> None:
    reference = {"sha256": "0" * 64, "bytes": 1}
    call = {"id": "c", "name": "T", "arguments": {"contentBlob": reference, "argumentsBlob": reference}}
    whole = message("assistant", orjson.dumps({"contentBlob": reference}).decode(), toolCalls=[call])
    assert restore(whole, lambda name: None) == (whole, [])
    assert blobs_in(whole) == []


def damaged_session(directory: Path) -> list[bytes]:
    """A session whose large texts are damaged on disk; its thread before that."""
    session = create(directory)
    start_task(session)
    whole_step(session, 1, "r" * 20_000)
    named = [{"id": "c2", "name": "WriteFile", "arguments": {"content": "w" * 30_000, "path": "/a"}}]
    rows = [{"callId": "c2", "sideEffects": True}]
    fields = {"stepId": "step_2", "stopReason": "tool_use", "boot": "b", "usage": {}, "calls": rows}
    session.append(record_of("turn", fields, message("assistant", "", toolCalls=named)))
    session.compact()
    session.close()
    folder = directory / "sessions" / SESSION / "blobs"
    assert len(os.listdir(folder)) == 2
    for name in os.listdir(folder):
        (folder / name).write_bytes(b"x")
    return session.state.thread


def test_a_lost_text_is_told_in_its_place(tmp_path: Path) -> None:
    before = damaged_session(tmp_path)
    blobs = tmp_path / "sessions" / SESSION / "blobs"
    session = reopen(tmp_path)
    assert len(session.report.lost_blobs) == 2
    said = "bytes here were damaged on disk and are lost"
    result = next(each for each in map(orjson.loads, session.state.thread) if each["role"] == "tool")
    assert result["content"] == f"[20000 {said}]"
    assert session.state.open_step is not None
    (call,) = session.state.open_step.calls
    assert (call.arguments, (call.problem or "").endswith(said)) == ({}, True)
    assert len(session.state.thread) == len(before)
    session.close()
    (blobs / sha256_hex(b"r" * 20_000)).write_bytes(b"r" * 20_000)
    again = reopen(tmp_path)
    assert len(again.report.lost_blobs) == 1
    assert [data in again.state.thread for data in before] == [True] * (len(before) - 1) + [False]
    again.close()


@pytest.mark.parametrize("size", [10, 70_000])
def test_what_no_record_names_is_swept(tmp_path: Path, size: int) -> None:
    session = create(tmp_path)
    start_task(session)
    session.keep(b"n" * size)
    turn(session, "step_1", "c1")
    session.compact()
    session.close()
    folder = tmp_path / "sessions" / SESSION / "blobs"
    assert len(os.listdir(folder)) == 1
    (folder / f"{'0' * 64}.tmp").write_bytes(b"half")
    reopen(tmp_path).close()
    assert os.listdir(folder) == []
    assert unnumbered(load(tmp_path)) == unnumbered(session.state)


@pytest.mark.parametrize("blob", [b"\xff", b"no JSON", b"[]"])
def test_the_blob_of_something_else_is_as_good_as_lost(blob: bytes) -> None:
    """Its name is right for what it holds, and a checkpoint names it in the wrong place."""
    reference = {"sha256": sha256_hex(blob), "bytes": len(blob)}
    call = {"id": "c", "name": "T", "arguments": {}, "argumentsBlob": reference}
    whole, lost = restore(message("assistant", "", toolCalls=[call]), lambda _: blob)
    assert lost == [reference["sha256"]]
    (named,) = orjson.loads(whole)["toolCalls"]
    assert (named["arguments"], "are lost" in named["problem"]) == ({}, True)


def test_a_text_that_is_none_is_told_in_its_place() -> None:
    reference = {"sha256": sha256_hex(b"\xff"), "bytes": 1}
    whole, lost = restore(message("tool", "", toolCallId="c", contentBlob=reference), lambda _: b"\xff")
    assert lost == [reference["sha256"]]
    assert "are lost" in orjson.loads(whole)["content"]
