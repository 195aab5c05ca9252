"""cp__exec and cp__fetch through the router, with real processes and HTTP on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from agent_host.errors import ErrorCode
from tests.unit.tool_runtime.conftest import error_of, request, until
from tests.unit.tool_runtime.test_http import Server, response, serving
from tests.unit.tool_runtime.test_native_files import answered
from tool_runtime.families import native as specs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from agent_host.contracts import ToolConstraints, ToolResult
    from tests.unit.tool_runtime.conftest import MakeRouter

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX programs")


@pytest.fixture
def call(make_router: MakeRouter) -> Callable[..., Awaitable[ToolResult]]:
    router = make_router(families=("native",), kill_grace_s=0.05)

    async def run(tool: str, constraints: ToolConstraints | None = None, **arguments: Any) -> ToolResult:
        return await router.execute(request(tool, constraints, **arguments))

    return run


async def python(call: Any, code: str, *words: str, **more: Any) -> ToolResult:
    result: ToolResult = await call("cp__exec", command=sys.executable, args=["-c", code, *words], **more)
    return result


async def test_a_program_with_its_arguments_and_no_shell(call: Any, workspace: Path) -> None:
    code = (
        "import os,sys; print(sys.argv[1:], os.getcwd(), os.environ['A']); print('odd', file=sys.stderr); sys.exit(3)"
    )
    (workspace / "d").mkdir()
    result = await python(call, code, "$(id)", "a b;*", working_dir="d", env={"A": "$B"})
    answer = answered(result)
    assert answer.pop("duration_ms") > 0
    assert answer == {
        "stdout": f"['$(id)', 'a b;*'] {workspace}/d $B\n",
        "stderr": "odd\n",
        "exit_code": 3,
        "success": False,
        "timed_out": False,
        "stdout_truncated": False,
        "stderr_truncated": False,
    }
    assert result.exit_code == 3


async def test_long_output_is_cut_and_kept_whole(call: Any) -> None:
    count = specs.STDOUT_BYTES + 10
    result = await python(call, f"import sys; print('x' * {count}); print('y' * 5000, file=sys.stderr)")
    answer = answered(result)
    assert (answer["stdout_truncated"], answer["stderr_truncated"]) == (True, True)
    assert len(answer["stderr"]) < specs.STDERR_BYTES + 100
    assert [one.size for one in result.artifacts] == [count + 1]
    for one in result.artifacts:
        one.close()


async def test_a_time_out_ends_the_tree(call: Any, workspace: Path) -> None:
    code = "import os,time; print(os.getpid(), flush=True); os.fork(); time.sleep(60)"
    result = await python(call, code, timeout_ms=150)
    assert error_of(result)[0] == ErrorCode.TOOL_EXECUTION_TIMEOUT
    answer = json.loads(result.output_text or "")
    assert (answer["timed_out"], answer["success"]) == (True, False)
    pid = int(answer["stdout"])
    await until(lambda: not os.path.exists(f"/proc/{pid}"))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"command": "/no/such/program"}, ErrorCode.FILE_NOT_FOUND),
        ({"command": "ls"}, ErrorCode.INVALID_REQUEST),
        ({"command": "/bin/ls", "working_dir": "/etc"}, ErrorCode.PERMISSION_DENIED),
        ({"command": "/bin/ls", "working_dir": "missing"}, ErrorCode.FILE_NOT_FOUND),
        ({"command": "/bin/ls", "args": ["a\0"]}, ErrorCode.INVALID_REQUEST),
        ({"command": "/bin/ls", "env": {"A=B": "x"}}, ErrorCode.INVALID_REQUEST),
    ],
)
async def test_what_cannot_be_started(call: Any, arguments: dict[str, Any], code: str) -> None:
    assert error_of(await call("cp__exec", **arguments))[0] == code


async def test_secrets_do_not_reach_the_program(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "hidden")
    assert "hidden" not in answered(await python(call, "import os; print(dict(os.environ))"))["stdout"]


# Requests


async def test_a_request_and_its_answer(call: Any) -> None:
    body = json.dumps({"ä": [1]}, ensure_ascii=False).encode()
    async with serving({"/a": response("201 Created", body, Content_Type="application/json")}) as server:
        url = f"http://127.0.0.1:{server.port}/a"
        answer = answered(await call("cp__fetch", url=url, method="POST", body={"k": ["ü"]}, headers={"X-A": "b"}))
    assert (answer["status_code"], answer["status_text"]) == (201, "Created")
    assert json.loads(answer["body"]) == {"ä": [1]}
    assert answer["headers"]["content-type"] == "application/json"
    assert answer["body_truncated"] is False
    line, headers, sent = server.requests[0]
    assert line.startswith("POST /a ")
    assert (headers["content-type"], headers["x-a"]) == ("application/json", "b")
    assert json.loads(sent) == {"k": ["ü"]}


async def test_a_long_body_is_cut_and_no_failure(call: Any) -> None:
    body = "ü".encode() * specs.FETCH_BODY_BYTES
    async with serving({"/": response("404 Not Found", body, Content_Type="text/plain")}) as server:
        result = await call("cp__fetch", url=f"http://127.0.0.1:{server.port}/")
    answer = answered(result)
    assert (answer["status_code"], answer["body_truncated"]) == (404, True)
    assert answer["body"].startswith("üü")
    assert result.artifacts[0].size <= specs.FETCH_BODY_BYTES


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"method": "TRACE"}, ErrorCode.INVALID_REQUEST),
        ({"headers": {"Host": "x"}}, ErrorCode.INVALID_REQUEST),
        ({"timeout_ms": 5001}, ErrorCode.INVALID_REQUEST),
        ({"timeout_ms": 100}, ErrorCode.TOOL_EXECUTION_TIMEOUT),
    ],
)
async def test_what_is_refused_or_takes_too_long(call: Any, arguments: dict[str, Any], code: str) -> None:
    async with serving({}) as server:
        result = await call("cp__fetch", url=f"http://127.0.0.1:{server.port}/", **arguments)
    assert error_of(result)[0] == code


async def test_redirects_end_and_are_judged(call: Any) -> None:
    again = {f"/{number}": response("302 Found", Location=f"/{number + 1}") for number in range(7)}
    async with serving({**again, "/x": response("302 Found", Location="http://10.0.0.1/")}) as server:
        base = f"http://127.0.0.1:{server.port}"
        assert error_of(await call("cp__fetch", url=f"{base}/0"))[0] == ErrorCode.TOOL_EXECUTION_FAILED
        assert error_of(await call("cp__fetch", url=f"{base}/x"))[0] == ErrorCode.INVALID_REQUEST


async def test_a_private_address_is_refused_by_default(make_router: MakeRouter) -> None:
    router = make_router(families=("native",), address_allowed=None)
    result = await router.execute(request("cp__fetch", url="http://169.254.169.254/"))
    assert error_of(result)[0] == ErrorCode.INVALID_REQUEST


async def test_certificates_are_checked_unless_the_user_says_otherwise(make_router: MakeRouter) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(context)
    server = Server({"/": response(body=b"in")})
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=context)
    async with listener:
        url = f"https://localhost:{listener.sockets[0].getsockname()[1]}/"
        checked, unchecked = (make_router(families=("native",), native_tls_checks=checks) for checks in (True, False))
        code, message = error_of(await checked.execute(request("cp__fetch", url=url)))
        assert (code, "CERTIFICATE_VERIFY_FAILED" in message) == (ErrorCode.TOOL_EXECUTION_FAILED, True)
        assert answered(await unchecked.execute(request("cp__fetch", url=url)))["body"] == "in"
        for writer in server.writers:
            writer.close()
