"""The client as the conformance suite drives one: `python -m tests.support.mcp_conformance_client [--oauth] URL`.

It lists the server's tools and calls each once, with arguments that its schema allows.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.shared.auth import AuthorizationCodeResult

from agent_host.approval import form_of
from agent_host.contracts import PersonAnswer, PersonAsked, ToolRequest
from agent_host.ids import MACHINE
from state.tool_lists import ToolLists
from tool_runtime.processes.command import LocalCommand
from tool_runtime.remote import RemoteTools, SourceTerms
from tool_runtime.remote.mcp import Http, ServerConfig
from tool_runtime.remote.mcp.oauth import DEFAULT_PORT, Browser
from tool_runtime.remote.mcp.source import McpSource
from tool_runtime.router import LocalToolRouter
from tool_runtime.tool import RuntimeSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

_PATIENCE_S = 60.0
_PLAIN: dict[str, Any] = {"integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}, "null": None}


def fitting(schema: Mapping[str, Any]) -> Any:
    """A value that a simple schema allows."""
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    if "default" in schema:
        return schema["default"]
    kind = schema.get("type", "string")
    if kind == "object":
        wanted = schema.get("required", schema.get("properties", {}))
        return {name: fitting(schema.get("properties", {}).get(name, {})) for name in wanted}
    return _PLAIN.get(kind, "text")


def _browser() -> Browser:
    """Somebody at a browser who agrees to everything: the page redirects to us at once."""
    pages: asyncio.Queue[str] = asyncio.Queue()

    async def sent_back() -> AuthorizationCodeResult:
        async with httpx2.AsyncClient() as client:
            answer = await client.get(await pages.get(), follow_redirects=False)
        said = parse_qs(urlsplit(answer.headers["location"]).query)
        return AuthorizationCodeResult(
            code=said["code"][0], state=said.get("state", [None])[0], iss=said.get("iss", [None])[0]
        )

    return Browser(pages.put, sent_back, DEFAULT_PORT)


async def _person(_: ToolRequest, asked: PersonAsked) -> PersonAnswer:
    """Takes what a form proposes, and fills in the rest."""
    fields = form_of(asked.source, asked.message, asked.schema, asked.url, str).fields
    return PersonAnswer("accept", {one.name: fitting(one.to_json()) for one in fields})


async def main(url: str, *, with_oauth: bool) -> int:
    """Do it; 0 where the server could be asked for its tools."""
    with tempfile.TemporaryDirectory() as folder:
        settings = RuntimeSettings(outside=MACHINE, workspace=folder)
        router = LocalToolRouter(settings, LocalCommand)
        place = Http(url, oauth_folder=os.path.join(folder, "tokens") if with_oauth else None)
        config = ServerConfig("peer", place, _PATIENCE_S, _PATIENCE_S, elicitation=True)
        source = McpSource(config, settings, router.start_program, browser=_browser(), ask_person=_person)
        remote = RemoteTools(
            source,
            SourceTerms("Mcp.Invoke", elsewhere=True, timeout_s=_PATIENCE_S, connect_timeout_s=_PATIENCE_S),
            ToolLists(folder, url),
            admits=lambda _: True,
            report=lambda notice: print(notice.message),
        )
        router.add_remote(remote)
        lists = await router.fix({})
        for spec in await router.tools():
            if spec.capability == "Mcp.Invoke":
                request = ToolRequest(spec.name, fitting(spec.input_schema), "s", "t", "st", "c", "Mcp.Invoke")
                print(await router.execute(request))
        await router.aclose()
    return 0 if lists else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[-1], with_oauth="--oauth" in sys.argv)))
