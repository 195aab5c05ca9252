"""Signals on the event loop."""

from __future__ import annotations

import asyncio
import signal

import pytest

from agent_host.cli.shared import on_signals


@pytest.mark.skipif("os.name == 'nt'", reason="signals of the loop")
async def test_signals_that_come_together_count_once() -> None:
    """`timeout` signals its child, and then its process group, which the child is in."""
    seen: asyncio.Queue[int] = asyncio.Queue()
    try:
        on_signals(seen.put_nowait)
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(number)
        async with asyncio.timeout(10):
            assert sorted([await seen.get(), await seen.get()]) == [signal.SIGINT, signal.SIGTERM]
            assert seen.empty()
            signal.raise_signal(signal.SIGTERM)
            assert await seen.get() == signal.SIGTERM
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().remove_signal_handler(number)
