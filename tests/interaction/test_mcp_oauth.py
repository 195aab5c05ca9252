"""OAuth with a server of its own: `doctor --authorize` with a browser, and sessions that use and renew the tokens."""

from __future__ import annotations

import json
import socket
import sys
from typing import TYPE_CHECKING

import pytest

from agent_host.llm.dialects import sendable_name
from tests.support.mcp_servers import logged, over_http
from tests.support.process import call, gateway, say, use

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.process import Host

pytestmark = pytest.mark.slow  # each starts a server with the SDK, and the host that imports it
BROWSER = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1]).read()"
PORT = 43119
"""Where the browser is sent back to, unless another program has it."""


def browser(host: Host) -> dict[str, str]:
    """The variable that names a browser, which agrees to everything and shows nothing."""
    program = host.root / "browser"
    program.write_text(f"#!{sys.executable}\n{BROWSER}\n")
    program.chmod(0o755)
    return {"BROWSER": str(program)}


def configure(host: Host, url: str) -> None:
    entry = f'[[mcp.servers]]\nname = "odd"\nurl = "{url}"\nallow_http = true\noauth = true\n'
    with open(host.root / "user.toml", "a", encoding="utf-8") as file:
        file.write(f"[mcp]\nconnect_timeout_s = 25.0\n{entry}")


def free_port() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


def kept(host: Host) -> tuple[Path, dict[str, object]]:
    (path,) = (host.state / "mcp-tokens").iterdir()
    return path, json.loads(path.read_text())


@pytest.mark.skipif(sys.platform == "win32", reason="the browser is a script")
def test_a_person_authorizes_once_and_sessions_renew_the_tokens(host: Host) -> None:
    log = host.root / "oauth.log"
    policy = host.policy(grants={"Mcp.Invoke": {"allowedToolNames": ["odd/*"]}})
    add = call(sendable_name("odd/add"), a=1, b=2)
    with over_http("odd", log, "--oauth", "--port", free_port()) as url:
        configure(host, url)
        with gateway(say("Done.")) as model:
            outcome = host.run("run", "Do it.", "--gateway", model.url, "--policy", str(policy))
        said = outcome.names_once("mcp:odd does not answer")
        assert said.endswith("this program is not authorized yet: agent-host doctor --authorize odd")
        assert "Traceback" not in outcome.stderr
        with socket.socket() as taken:  # by another program
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", PORT))
            taken.listen()
            authorized = host.run("doctor", "--authorize", "odd", env=browser(host))
        assert authorized.code == 0, authorized.stderr
        assert "odd is authorized" in authorized.text
        path, tokens = kept(host)
        assert path.stat().st_mode & 0o077 == 0
        with gateway(use(add), say("Done.")) as model:
            assert host.task(model.url, policy=policy).code == 0
            assert model.results()[0].text == "3"
        assert kept(host)[1]["tokens"] == tokens["tokens"]
        path.write_text(json.dumps({**tokens, "expires_at": 1.0}))
        with gateway(use(add), say("Done.")) as model:
            assert host.task(model.url, policy=policy).code == 0
            assert model.results()[0].text == "3"
        assert kept(host)[1]["tokens"] != tokens["tokens"]
        (host.root / "oauth.log.refuse").touch()
        path.unlink()
        refused = host.run("doctor", "--authorize", "odd", env=browser(host))
    assert refused.code == 2
    assert refused.lines[-1].endswith("mcp.servers: odd: the authorization server says: access_denied; not today")
    came = [one["tool"] for one in logged(log)]
    assert (came.count("authorized"), came.count("renewed"), came.count("add")) == (1, 1, 2)
