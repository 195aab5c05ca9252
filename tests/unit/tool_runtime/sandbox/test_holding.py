"""Commands that are held, through the tools that start them."""

from __future__ import annotations

import asyncio
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.contracts import ToolConstraints
from policy import CommandScope
from tests.unit.tool_runtime.conftest import MakeRouter, error_of, open_descriptors, request, text_of, until
from tests.unit.tool_runtime.sandbox.conftest import held
from tool_runtime import sandbox as levels
from tool_runtime.platform import current
from tool_runtime.platform.mounts import LevelFinding
from tool_runtime.tool import SandboxSettings
from tool_runtime.web import proxy

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

ROOT = Path(__file__).resolve().parents[4]
HOST = "tests.support.held_host"

pytestmark = pytest.mark.skipif(not levels.look("landlock").works, reason=levels.look("landlock").problem)


async def test_a_command_is_held_and_told_why(
    make_router: MakeRouter, scope: CommandScope, tmp_path: Path, level: Any
) -> None:
    router = make_router(sandbox=SandboxSettings(level))
    result = await router.execute(request("RunCommand", held(scope), command=f"echo a > b && echo x > {tmp_path}/new"))
    text = text_of(result)
    assert f"write {tmp_path}/new: refused (it is not among the places that may be written)" in text
    assert f"Commands may write in: {scope.writes[0]}" in text
    assert "sandboxGrant" in text
    assert [(denial.kind, denial.what, denial.rule) for denial in result.denials] == [
        ("path", f"{tmp_path}/new", "writes")
    ]
    assert (Path(scope.writes[0]) / "b").read_text() == "a\n"
    assert not (tmp_path / "new").exists()
    result = await router.execute(request("RunCommand", held(scope), command=f"cat {tmp_path}/secret"))
    assert "hidden" not in text_of(result).partition("--- stderr")[0]
    assert [denial.rule for denial in result.denials] == ["hidden"]


async def test_what_cannot_be_made_beside_a_hidden_place_is_told(make_router: MakeRouter, workspace: Path) -> None:
    (workspace / "secret").write_text("hidden")
    scope = CommandScope(writes=(str(workspace),), hidden=(str(workspace / "secret"),))
    router = make_router(sandbox=SandboxSettings("landlock"))
    result = await router.execute(request("RunCommand", held(scope), command="echo x > new"))
    assert [(one.what, one.rule) for one in result.denials] == [(f"{workspace}/new", "beside")]
    assert "nothing new can be created directly next to hidden files" in text_of(result)


async def test_without_a_scope_or_a_sandbox_commands_run_as_ever(
    make_router: MakeRouter, scope: CommandScope, tmp_path: Path
) -> None:
    command = f"echo x > {tmp_path}/new && cat {tmp_path}/secret"
    for settings, constraints in ((None, held(scope)), (SandboxSettings("landlock"), ToolConstraints())):
        router = make_router(sandbox=settings)
        assert "hidden" in text_of(await router.execute(request("RunCommand", constraints, command=command)))


async def test_programs_and_background_commands_are_held_too(
    make_router: MakeRouter, scope: CommandScope, tmp_path: Path, level: Any
) -> None:
    router = make_router(sandbox=SandboxSettings(level), families=("desktop", "native"))
    line = f"echo x > {tmp_path}/new"
    made = request("cp__exec", held(scope), command="/bin/sh", args=["-c", line])
    answer = json.loads(text_of(await router.execute(made)))
    assert answer["exit_code"] != 0
    assert any(f"{tmp_path}/new" in told for told in answer["denials"])
    await router.execute(request("RunCommand", held(scope), command=line, background=True))
    output = request("CommandOutput", id="cmd_1", offset=0)
    shown = ""
    async with asyncio.timeout(10):
        while "exit code" not in shown:
            await asyncio.sleep(0.005)
            shown = text_of(await router.execute(output))
    assert f"write {tmp_path}/new: refused" in shown
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
@pytest.mark.many_rows(1)
async def test_a_server_in_the_background_serves_the_next_command(
    make_router: MakeRouter, scope: CommandScope, level: Any
) -> None:
    router = make_router(sandbox=SandboxSettings(level))
    line = (
        "python3 -c \"import http.server as h; s = h.HTTPServer(('', 0), h.SimpleHTTPRequestHandler); "
        "open('port', 'w').write(str(s.server_port)); s.serve_forever()\""
    )
    await router.execute(request("RunCommand", held(scope), command=line, background=True))
    port = Path(scope.writes[0]) / "port"
    await until(lambda: port.exists() and bool(port.read_text()))
    ask = "python3 -c \"import urllib.request as u; print(u.urlopen('http://localhost:$(cat port)/').status)\""
    assert "\n200\n" in text_of(await router.execute(request("RunCommand", held(scope), command=ask)))
    wider = scope._replace(writes=(*scope.writes, "/nowhere"))
    refused = await router.execute(request("RunCommand", held(wider), command=ask))
    assert [denial.rule for denial in refused.denials if denial.kind == "host"][:1] == ["own"]


@pytest.fixture
def server() -> Iterator[int]:
    """A stranger's server on loopback."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"served")

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its signature
            pass

    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=served.serve_forever)
    thread.start()
    yield served.server_port
    served.shutdown()
    thread.join()
    served.server_close()


_FETCH = "python3 -c \"import urllib.request as u; print(u.urlopen('http://{host}:{port}/').read())\""


@pytest.mark.slow
@pytest.mark.many_rows(2)
async def test_allowed_hosts_are_reached_by_the_proxy_and_no_others(
    make_router: MakeRouter, scope: CommandScope, server: int, level: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy, "resolve", lambda _host, _port: ["127.0.0.1"])
    live: list[bytes] = []
    router = make_router(sandbox=SandboxSettings(level), on_output=lambda _request, _stream, chunk: live.append(chunk))
    granted = held(scope._replace(domains=("allowed.test", "*.other.test")))
    fetch = _FETCH.format(host="allowed.test", port=server)
    assert "b'served'" in text_of(await router.execute(request("RunCommand", granted, command=fetch)))
    refused = await router.execute(request("RunCommand", granted, command=_FETCH.format(host="evil.test", port=server)))
    assert [(one.what, one.rule) for one in refused.denials] == [(f"evil.test:{server}", "domains")]
    assert f"[sandbox: connect evil.test:{server}: refused".encode() in b"".join(live)
    # A server of the loopback that is named is reached past the proxy, as programs do.
    near = held(scope._replace(domains=(f"localhost:{server}",)))
    fetch_near = _FETCH.format(host="localhost", port=server)
    assert "b'served'" in text_of(await router.execute(request("RunCommand", near, command=fetch_near)))
    closed = await router.execute(request("RunCommand", held(scope), command=fetch))
    assert "served" not in text_of(closed)
    assert closed.denials


async def test_a_command_that_was_ended_while_it_tried_is_told_why(
    make_router: MakeRouter, scope: CommandScope, level: Any
) -> None:
    """npm tries again for more than a minute, and prints nothing meanwhile."""
    router = make_router(sandbox=SandboxSettings(level))
    look = "python3 -c \"import socket; socket.getaddrinfo('example.com', 80)\" 2>/dev/null; touch tried; sleep 60"
    await router.execute(request("RunCommand", held(scope), command=look, background=True))
    await until((Path(scope.writes[0]) / "tried").exists)
    text_of(await router.execute(request("StopCommand", id="cmd_1")))
    told = text_of(await router.execute(request("CommandOutput", id="cmd_1", offset=0)))
    assert told.count("look up names by UDP: refused (commands have no network") == 2, (
        told
    )  # as it came, and at the end
    assert "sandboxGrant" in told


async def test_a_level_that_does_not_work_refuses_where_it_is_required(
    make_router: MakeRouter, scope: CommandScope, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(levels, "look", lambda level, _: LevelFinding(level, works=False, problem="not today"))
    router = make_router(sandbox=SandboxSettings("auto", required=True))
    _, message = error_of(await router.execute(request("RunCommand", held(scope), command="true")))
    assert "commands are denied" in message
    assert "landlock: not today" in message
    router = make_router(sandbox=SandboxSettings("auto"))
    assert text_of(await router.execute(request("RunCommand", held(scope), command="true"))).startswith("Exit code: 0")


async def test_what_cannot_be_started_leaves_nothing(make_router: MakeRouter, scope: CommandScope, level: Any) -> None:
    router = make_router(sandbox=SandboxSettings(level), families=("desktop", "native"))
    granted = held(scope._replace(domains=("example.com",)))
    await router.execute(request("RunCommand", granted, command="true"))
    await until(lambda: not [task for task in asyncio.all_tasks() if task.get_name().startswith("sandbox-proxy")])
    before = open_descriptors()
    for _ in range(3):
        error_of(await router.execute(request("cp__exec", granted, command="/nowhere/program")))
    await until(lambda: open_descriptors() <= before)


def what_there_is(others: Collection[int]) -> tuple[int, int, int, int]:
    """Threads and descriptors of this process; its descendants but `others`, which are what starts programs in
    namespaces, and their descriptors."""
    below = [Path(f"/proc/{pid}") for pid in current.descendants(os.getpid()) if pid not in others]
    theirs = 0
    for one in below:
        with suppress(OSError):  # it ends just now
            theirs += len(os.listdir(one / "fd"))
    return threading.active_count(), open_descriptors(), len(below), theirs


@pytest.mark.slow
async def test_64_commands_at_once_leak_nothing(make_router: MakeRouter, scope: CommandScope, level: Any) -> None:
    others = current.descendants(os.getpid()).keys()  # that tests before this one have left running
    router = make_router(sandbox=SandboxSettings(level))
    line = "python3 -c \"import socket; s = socket.create_server(('', 0)); socket.create_connection(s.getsockname())\""
    call = request("RunCommand", held(scope), command=line)
    for _ in range(3):  # then the next process is held as these were
        text_of(await router.execute(call))
    helpers = 3 if level == "namespace" else 0  # the launcher, the process that is ready, and the first beside it
    await until(lambda: what_there_is(others)[2] == helpers)
    *before, theirs = what_there_is(others)
    before.append(theirs + helpers)  # it may not have had all of its own by then
    results = await asyncio.gather(*(router.execute(call) for _ in range(64)))
    assert all(text_of(result).startswith("Exit code: 0") for result in results)
    await until(lambda: all(now <= then for now, then in zip(what_there_is(others), before, strict=True)))


@pytest.mark.slow
async def test_a_host_inside_holds_its_commands_as_well(
    make_router: MakeRouter, scope: CommandScope, workspace: Path, tmp_path: Path
) -> None:
    """There no second supervisor can be had: it goes on without one, and says so."""
    inner = workspace / "inner"
    inner.mkdir()
    router = make_router(sandbox=SandboxSettings("landlock"))
    line = f"echo x > {inner}/mine; echo x > {workspace}/above || echo held"
    command = f"TMPDIR={workspace} PYTHONPATH={ROOT} {sys.executable} -m {HOST} {inner} '{line}' landlock"
    text = text_of(await router.execute(request("RunCommand", held(scope), command=command)))
    assert "False\n0 held" in text, text
    assert (inner / "mine").exists()
    assert not (workspace / "above").exists()


@pytest.mark.slow
def test_after_kill_9_of_the_host_the_command_stays_held(workspace: Path, tmp_path: Path, level: str) -> None:
    # It waits until its host is gone, tries what it may not, and says so where it may.
    line = (
        f"exec 2> said; echo $$ > pid; while [ ! -e go ]; do sleep 0.01; done; echo x > {tmp_path}/out; "
        "python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 9))'; echo done > done"
    )
    argv = [sys.executable, "-m", HOST, str(workspace), line, level]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL) as host:
        deadline = time.monotonic() + 20
        while not (workspace / "pid").exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        assert (workspace / "pid").exists()
        host.send_signal(signal.SIGKILL)
        host.wait()
    (workspace / "go").touch()
    if level == "namespace" and not (workspace / "done").exists():
        time.sleep(1)  # there the end of its first process may end all of it
        assert not (tmp_path / "out").exists()
        return
    while not (workspace / "done").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert (workspace / "done").exists()
    assert not (tmp_path / "out").exists()
    assert "Error" in (workspace / "said").read_text()
