"""The simulated cache of a provider."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from agent_host.testing.dialects import CachePiece, Counts, PromptCache
from agent_host.testing.gateway import MockGateway, Script
from agent_host.testing.script import ScriptError

LONG = CachePiece(b"x" * 8000)


def test_without_marks_the_longest_known_beginning_is_read() -> None:
    cache = PromptCache()
    assert cache.count("m", [LONG, LONG], has_marks=False) == Counts(4000, 0, 4000)
    assert cache.count("m", [LONG, LONG, LONG], has_marks=False) == Counts(6000, 4000, 2000)
    assert cache.count("m", [LONG, CachePiece(b"y" * 8000)], has_marks=False) == Counts(4000, 2000, 2000)
    assert cache.count("other", [LONG], has_marks=False) == Counts(2000, 0, 2000)


def test_with_marks_only_what_is_marked_is_kept_and_looked_for() -> None:
    cache, mark = PromptCache(), CachePiece(b"x" * 8000, marked=True)
    assert cache.count("m", [LONG, LONG], has_marks=True) == Counts(4000, 0, 0)
    assert cache.count("m", [LONG, mark, LONG], has_marks=True) == Counts(6000, 0, 4000)
    assert cache.count("m", [LONG, LONG, LONG], has_marks=True) == Counts(6000, 0, 0)
    assert cache.count("m", [LONG, LONG, mark], has_marks=True) == Counts(6000, 4000, 2000)


def test_a_mark_is_looked_back_from_only_so_far() -> None:
    cache, small = PromptCache(), CachePiece(b"s" * 40)
    first = [LONG, CachePiece(b"", marked=True)]
    cache.count("m", first, has_marks=True)
    near = [LONG, CachePiece(b""), *[small] * 18, CachePiece(b"", marked=True)]
    far = [LONG, CachePiece(b""), *[small] * 19, CachePiece(b"", marked=True)]
    assert cache.count("m", far, has_marks=True).read == 0
    assert cache.count("m", near, has_marks=True).read == 2000


def test_a_short_beginning_is_not_kept() -> None:
    cache, short = PromptCache(minimum_tokens=1024), CachePiece(b"x" * 4092, marked=True)
    assert cache.count("m", [short], has_marks=True) == Counts(1023, 0, 0)
    assert cache.count("m", [CachePiece(b"x" * 4096, marked=True)], has_marks=True) == Counts(1024, 0, 1024)


def test_what_is_written_for_an_hour_is_counted_apart() -> None:
    cache = PromptCache()
    hour, short = CachePiece(b"x" * 8000, marked=True, long=True), CachePiece(b"y" * 8000, marked=True)
    assert cache.count("m", [hour, LONG, short], has_marks=True) == Counts(6000, 0, 6000, 2000)
    assert cache.count("m", [hour, LONG, short, hour], has_marks=True) == Counts(8000, 6000, 2000, 2000)
    assert cache.count("m", [hour, LONG, short, LONG], has_marks=True) == Counts(8000, 6000, 0, 0)


async def ask(gateway: MockGateway, text: str) -> dict[str, Any]:
    block = {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}
    body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": [block]}]}
    async with httpx.AsyncClient() as client:
        answer = await client.post(f"{gateway.url}/v1/messages", json=body)
    usage: dict[str, Any] = answer.json()["usage"]
    return usage


async def test_a_script_may_have_the_gateway_count() -> None:
    turns = [{"text": "four", "repeat": 3}]
    async with MockGateway(Script.from_turns(turns, count_tokens=True)) as gateway:
        first, second = [await ask(gateway, "word " * 2000) for _ in range(2)]
    assert first["cache_creation_input_tokens"] == second["cache_read_input_tokens"] > 2000
    assert (first["input_tokens"], second["input_tokens"], first["output_tokens"]) == (0, 0, 1)
    async with MockGateway(Script.from_turns(turns)) as gateway:
        assert (await ask(gateway, "word " * 2000))["input_tokens"] == 100


async def test_what_a_turn_says_itself_stands() -> None:
    turns = [{"text": "four", "usage": {"input_tokens": 7}}]
    async with MockGateway(Script.from_turns(turns, count_tokens=True)) as gateway:
        assert (await ask(gateway, "x"))["input_tokens"] == 7


def test_a_script_file_may_say_it(tmp_path: Any) -> None:
    file = tmp_path / "script.toml"
    file.write_text('count_tokens = true\n[[turn]]\ntext = "Done."\n')
    assert Script.load(file, {}).count_tokens
    file.write_text('count_tokens = 1\n[[turn]]\ntext = "Done."\n')
    with pytest.raises(ScriptError, match="'count_tokens' must be true or false"):
        Script.load(file)
