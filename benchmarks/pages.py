"""Pages of sessions: a file of 2,000 steps, what a browser makes of it, a list of 1,000 sessions, and how soon an
event, a kill and a resume are on a live page. The browser's rows need Chromium and playwright, the live ones starlette
and uvicorn."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from agent_host.display_text import count_noun
from benchmarks.report import Row, milliseconds

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from playwright.sync_api import Page

    from tests.support.process import Host

STEPS, SESSIONS, EVENTS = 2000, 1000, 40
_SEARCH = """async (wanted) => {
    const field = document.getElementById('q'), began = performance.now();
    field.value = wanted;
    Pages.search();
    await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
    return performance.now() - began;
}"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """No option beside --quick."""


def rows(chosen: argparse.Namespace) -> Iterator[Row | str]:
    """Each figure against its goal."""
    from tests.support import page_sessions
    from tests.support.process import Host

    folder = Path(tempfile.mkdtemp(prefix="pages-"))
    try:
        host = Host(folder / "one")
        steps = 200 if chosen.quick else STEPS
        page_sessions.long(host, steps, text="x" * 200 if chosen.quick else "A few words about the next step.")
        yield f"one session of {count_noun(steps, 'step')}"
        yield from _file(host)
        yield from _in_a_browser(host)
        yield "many sessions"
        yield from _list(Host(folder / "many"), 100 if chosen.quick else SESSIONS)
        yield "live"
        yield from _live(Host(folder / "live"), 10 if chosen.quick else EVENTS)
        yield from _kill_and_resume(Host(folder / "killed"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _file(host: Host) -> Iterator[Row]:
    path = host.root / "long.html"
    spent = min(milliseconds(lambda: host.run("show", "long", "--html", str(path))) for _ in range(3))
    yield Row("the page is written, with the start of the program", spent, "ms", 1000)
    yield Row("its size", path.stat().st_size / 1e6, "MB", 4)


def _in_a_browser(host: Host) -> Iterator[Row]:
    from tests.support.browser import PROGRAM, Watched, launched

    if PROGRAM is None:
        return
    with launched() as browser:
        page: Page = Watched(browser).page
        spent = min(milliseconds(lambda: page.goto((host.root / "long.html").as_uri())) for _ in range(3))
        yield Row("it is loaded and can be used", spent, "ms", 1000)
        times = [float(page.evaluate(_SEARCH, wanted)) for wanted in ("step. 19", "nothing has this", "n3.txt", "")]
        yield Row("the slowest of four searches, painted", max(times), "ms", 100)


def _list(host: Host, count: int) -> Iterator[Row]:
    from tests.support import page_sessions
    from tests.support.local_view import viewing
    from tests.support.process import say

    page_sessions.answered(host, "s0", say("Done."))
    for number in range(1, count):
        shutil.copytree(host.records("s0"), host.records(f"s{number}"))
        path = host.records(f"s{number}") / "result.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "sessionId": f"s{number}"}))
    with viewing(host) as view:
        times = []
        for _ in range(5):
            began = time.perf_counter()
            with view.stream("/api/sessions") as parts:
                times.append((time.perf_counter() - began) * 1000)
            if parts.text.count("<tr class") != count:
                raise SystemExit(f"{parts.text.count('<tr class')} of {count} sessions are in the list")
        yield Row(f"{count:,} sessions listed", statistics.median(times), "ms", 300)


def _live(host: Host, count: int) -> Iterator[Row]:
    """A command writes a moment into its output; how much later is it on the page?"""
    from tests.support.local_view import viewing
    from tests.support.process import eventually, gateway, say, shell, use

    turns = [use(shell(f"sleep 0.3; date +mark{number}-%s.%N")) for number in range(count)]
    late: list[float] = []
    with gateway(*turns, say("Done.")) as model, viewing(host) as view:
        task = host.start_task(model.url, "--session-id", "s", "--max-steps", "1000")
        eventually(lambda: os.path.exists(host.records("s") / "events.jsonl"), "the session")
        with view.stream("/api/sessions/s") as parts:
            for number in range(count):
                mark = f"mark{number}-1"  # the command itself says `mark0-%s`
                eventually(lambda mark=mark: mark in parts.text, mark)  # type: ignore[misc]
                seen = time.time()
                printed = parts.text.partition(f"mark{number}-1")[2][:19]
                late.append((seen - float(f"1{printed.split()[0].split('<')[0]}")) * 1000)
            task.finish()
    yield Row("an event is on the page, median", statistics.median(late), "ms", 200, f"worst {max(late):.0f} ms")


def _kill_and_resume(host: Host) -> Iterator[Row]:
    """A session is killed in a command; another process resumes it."""
    from tests.support.local_view import viewing
    from tests.support.process import eventually, gateway, say, shell, use

    with gateway(use(shell("sleep 60")), say("All is done.")) as model, viewing(host) as view:
        task = host.start_task(model.url, "--session-id", "s")
        eventually((host.records("s") / "events.jsonl").exists, "the session")
        with view.stream("/api/sessions/s") as parts:
            eventually(lambda: "sleep 60" in parts.text, "the call")
            task.kill()
            began = time.perf_counter()
            eventually(lambda: "interrupted" in parts.title, "the kill")
            yield Row("a kill is on the page", (time.perf_counter() - began) * 1000, "ms", 1000)
            resumed = host.start("resume", "s", "--output", "json")
            eventually(lambda: "session_resumed" in (host.records("s") / "events.jsonl").read_text(), "the resume")
            began = time.perf_counter()
            eventually(lambda: "Resumed" in parts.text, "the resume on the page")
            yield Row("a resume is on the page", (time.perf_counter() - began) * 1000, "ms", 1000)
            resumed.finish()
