"""MCP servers that an editor names: started only if the user's own configuration says so, and then sandboxed."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.llm.dialects import sendable_name
from tests.support.acp_client import Editor
from tests.support.process import call, gateway, say, use
from tests.support.rpc_client import WHO
from tool_runtime import sandbox as levels

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.process import Gateway, Host, Turn
    from tests.support.serve_process import Servers

pytestmark = [
    pytest.mark.peer,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="Landlock"),
]

_LEVEL = "landlock" if levels.look("landlock").works else "none"
SERVER = r"""
import json, os, socket, sys

def answer(method):
    if method == "initialize":
        about = {"name": "x", "version": "1"}
        return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": about}
    if method == "tools/list":
        return {"tools": [{"name": "look", "inputSchema": {"type": "object", "properties": {}}}]}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": json.dumps(seen())}]}
    return {}

def seen():
    return {"env": dict(os.environ), "cwd": os.getcwd(), "writes": tried(write), "reaches": tried(reach)}

def write():
    open(sys.argv[1] + "/written", "w").close()

def reach():
    socket.create_connection(("127.0.0.1", int(sys.argv[2])), 2).close()

def tried(act):
    try:
        act()
    except OSError as error:
        return type(error).__name__
    return "done"

for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": answer(message["method"])}), flush=True)
"""


@contextlib.contextmanager
def _editing(host: Host, *turns: Turn, allows: bool = True) -> Iterator[tuple[Editor, Gateway]]:
    """An editor of a user who lets it name servers, under a policy that admits their tools."""
    host.configure(sandbox=_LEVEL)
    with open(host.root / "user.toml", "a", encoding="utf-8") as file:
        file.write(f"[acp]\nclient_servers = {json.dumps(allows)}\n[mcp]\nconnect_timeout_s = 25.0\n")
    policy = host.policy(grants={"Mcp.Invoke": {"allowedToolNames": ["named/*"]}})
    with gateway(*turns) as model:
        editor = Editor(host, "--policy", str(policy), "--gateway", model.url)
        try:
            editor.initialize()
            yield editor, model
            editor.leave()
        finally:
            editor.close()


def _named(*arguments: str, **fields: Any) -> dict[str, Any]:
    env = {"OWN": "a value of its own", "LD_PRELOAD": "/x.so", "PYTHONPATH": "/x", "BASH_ENV": "/x", "HOME": "/x"}
    given = {"command": sys.executable, "args": ["-c", SERVER, *arguments], **fields}
    return {"name": "named", "env": [{"name": name, "value": value} for name, value in env.items()], **given}


@pytest.mark.skipif(_LEVEL == "none", reason="no sandbox works here")
def test_a_server_that_an_editor_names_runs_in_the_sandbox(host: Host) -> None:
    look = use(call(sendable_name("named/look")))
    with _editing(host, look, say("Done."), look, say("Again.")) as (editor, model):
        port = model.url.rpartition(":")[2].partition("/")[0]
        place = {"cwd": str(host.workspace), "mcpServers": [_named(str(host.workspace), port)]}
        session_id = editor.new(host.workspace, mcpServers=place["mcpServers"])
        assert editor.prompt(session_id) == "end_turn"
        seen = json.loads(model.results()[0].text)
        assert (seen["writes"], seen["reaches"]) == ("PermissionError", "PermissionError")
        assert (seen["cwd"], seen["env"]["HOME"]) == ("/", str(host.home))
        assert {"LD_PRELOAD", "PYTHONPATH", "BASH_ENV"}.isdisjoint(seen["env"])
        assert "OWN" in seen["env"]
        assert "a value of its own" not in json.dumps(editor.recorder.of("agent"))
        editor.call("session/load", sessionId=session_id, cwd=str(host.workspace), mcpServers=place["mcpServers"])
        assert editor.prompt(session_id, "Again.") == "end_turn"
        assert json.loads(model.results()[0].text)["writes"] == "PermissionError"
    assert not (host.workspace / "written").exists()
    assert all(b"a value of its own" not in data for data, _ in host.state_files().values())


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"command": "./server"}, "is in the workspace"),
        ({"command": "{workspace}/server"}, "is in the workspace"),
        ({"command": "{home}/link"}, "is in the workspace"),
        ({"args": ["server"]}, "is in the workspace"),
        ({"args": ["--require={workspace}/server"]}, "is in the workspace"),
        ({"name": "no name"}, "its name is none"),
        ({"type": "http", "url": "https://example.com/mcp", "headers": []}, "not started"),
    ],
)
def test_a_server_of_the_workspace_is_not_started(host: Host, fields: dict[str, Any], why: str) -> None:
    server = host.workspace / "server"
    server.write_text(f"#!/bin/sh\ntouch {host.workspace}/started\n")
    server.chmod(0o755)
    (host.home / "link").symlink_to(server)
    places = {"workspace": host.workspace, "home": host.home}
    with _editing(host, say("Done.")) as (editor, _):
        named = _named(str(host.workspace), "9", **_filled(fields, places))
        if "url" in named:
            del named["command"], named["args"], named["env"]
        session_id = editor.new(host.workspace, mcpServers=[named])
        assert editor.prompt(session_id) == "end_turn"
        assert why in json.dumps(editor.updates("notice"))
    assert not (host.workspace / "started").exists()


def _filled(fields: dict[str, Any], places: dict[str, Path]) -> dict[str, Any]:
    return {
        name: [one.format(**places) for one in value] if isinstance(value, list) else value.format(**places)
        for name, value in fields.items()
    }


def test_without_a_sandbox_no_server_of_an_editor_is_started(host: Host) -> None:
    with _editing(host, say("Done.")) as (editor, _):
        (host.root / "user.toml").write_text((host.root / "user.toml").read_text().replace(_LEVEL, "none", 1))
        assert editor.prompt(editor.new(host.workspace, mcpServers=[_named("/", "9")])) == "end_turn"
        assert "there is none" in json.dumps(editor.updates("notice"))


def test_a_session_process_starts_none_unless_the_users_configuration_says_so(servers: Servers) -> None:
    host = servers.host
    with gateway(say("Done.")) as model:
        serve, client = servers.client(model.url)
        named = {"name": "named", "command": sys.executable, "args": ["-c", SERVER, "/", "9"], "env": {}}
        refused = client.refusal("CreateSession", **WHO, clientServers=[named])
        assert (refused.code, "client_servers = true" in refused.message) == (-32602, True)
        folder = host.workspace / ".agent"
        folder.mkdir()
        (folder / "config.toml").write_text("[acp]\nclient_servers = true\n")
        again = client.refusal("CreateSession", **WHO, clientServers=[named])
        assert again.code == -32602
        client.done()
        serve.finish()
