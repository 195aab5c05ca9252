"""The stream of a live page: what changes while a session is read."""

from __future__ import annotations

import asyncio
import json
import socket
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from agent_host.view import server
from agent_host.view.server import View

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from starlette.requests import Request
    from starlette.responses import StreamingResponse


class Changing:
    """A session that changes while it is read for the first time; its second reading fails."""

    def __init__(self) -> None:
        self.version = 1
        self.readings = 0

    def look(self, *_: str) -> int:
        return self.version

    def read(self, *_: str) -> dict[str, Any]:
        self.readings += 1
        if self.readings == 2:
            raise OSError
        read, self.version = self.version, 2
        return {"title": "t", "parts": {"text": f"version {read}"}}


def test_a_change_during_a_reading_is_sent_though_nothing_else_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Changing()
    monkeypatch.setattr(server, "state_of_files", session.look)
    view = View(str(tmp_path), 1, can_approve=False)
    monkeypatch.setattr(view, "_read_session", session.read)

    async def two_lines() -> list[str]:
        request = cast("Request", SimpleNamespace(path_params={"session_id": "s"}))
        lines = cast("AsyncIterator[bytes]", cast("StreamingResponse", await view._session(request)).body_iterator)
        return [json.loads(await anext(lines))["parts"]["text"] for _ in range(2)]

    assert asyncio.run(asyncio.wait_for(two_lines(), 30)) == ["version 1", "version 2"]


def test_whoever_is_told_the_url_can_connect_at_once(tmp_path: Path) -> None:
    class ToldError(Exception):
        pass

    def connect(url: str) -> None:
        port = int(url.partition("/#")[0].rpartition(":")[2])
        with socket.create_connection((server.HOST, port), timeout=5):
            raise ToldError

    with pytest.raises(ToldError):
        server.serve(str(tmp_path), port=0, can_approve=False, on_ready=connect)
