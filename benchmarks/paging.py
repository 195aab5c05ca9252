"""A large directory in pages, against one look at all of it, for `benchmarks tools`."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from typing import Any

import orjson

from benchmarks.report import MIB, Row, milliseconds
from benchmarks.tool_calls import Calls

PAGES = 10
GOAL = 3.0
_SETTLED_S = 0.2
_WHOLE_PAGES_BYTES = 16 * MIB


async def paging(folder: str, entries: int, rounds: int) -> Row:
    """All pages of a directory, against one scandir that is sorted by name and kind. A directory that has changed just
    now is read for each page: the first look waits until it has not."""
    place = os.path.join(folder, "many")
    calls = Calls(folder, max_output_bytes=_WHOLE_PAGES_BYTES)
    os.mkdir(place)
    for number in range(entries):
        os.close(os.open(os.path.join(place, f"entry-{number * 7919 % entries:06}.txt"), os.O_CREAT | os.O_WRONLY))
    await asyncio.sleep(_SETTLED_S)
    times = []
    for number in range(rounds):
        os.utime(place, (number, number))  # what was kept of the round before is of no use
        await asyncio.sleep(_SETTLED_S)
        began = time.perf_counter()
        listed = await _all_pages(calls, place, entries // PAGES)
        ours = (time.perf_counter() - began) * 1000
        if listed != entries:
            raise SystemExit(f"{listed} entries were listed, not {entries}")
        times.append((ours, milliseconds(lambda: _at_once(place))))
    await calls.aclose()
    ours, bare = (statistics.median(column) for column in zip(*times, strict=True))
    what = f"{entries:,} entries in {PAGES} pages, against one sorted scandir"
    return Row(what, ours / bare, "x", GOAL, f"{ours:.0f} / {bare:.0f} ms")


async def _all_pages(calls: Calls, place: str, size: int) -> int:
    count = 0
    more: dict[str, Any] = {}
    while True:
        page = orjson.loads(await calls.call("cp__list_dir", path=place, page_size=size, **more))
        count += len(page["entries"])
        if "next_page_token" not in page:
            return count
        more = {"page_token": page["next_page_token"]}


def _at_once(place: str) -> list[tuple[str, bool]]:
    with os.scandir(place) as entries:
        return sorted((entry.name, entry.is_file(follow_symlinks=False)) for entry in entries)
