"""HttpRequest with a body from a file, and with a response that goes to a file."""

from __future__ import annotations

import gzip
import os
import sys
from typing import TYPE_CHECKING

import pytest

from agent_host.contracts import ToolConstraints
from tests.unit.tool_runtime.conftest import Call, MakeRouter, error_of, request, text_of
from tests.unit.tool_runtime.test_http import response, serving
from tool_runtime.files.read import FileStamp

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_body_from_a_file_is_sent_as_it_is(call: Call, workspace: Path) -> None:
    (workspace / "body").write_bytes(b"\x00\xffbytes\r\n")
    async with serving({"/": response(body=b"ok")}) as server:
        url, body_file = f"http://127.0.0.1:{server.port}/", str(workspace / "body")
        text_of(await call("HttpRequest", url=url, method="POST", bodyFile=body_file))
        assert [body for _, _, body in server.requests] == [b"\x00\xffbytes\r\n"]
        code, message = error_of(await call("HttpRequest", url=url, method="POST", bodyFile=body_file, body=""))
        assert (code, "not both" in message) == ("INVALID_REQUEST", True)
        missing = await call("HttpRequest", url=url, method="POST", bodyFile=str(workspace / "none"))
        assert error_of(missing)[0] == "FILE_NOT_FOUND"
        assert error_of(await call("HttpRequest", url=url, bodyFile=str(workspace)))[0] == "TOOL_EXECUTION_FAILED"
        assert len(server.requests) == 1


async def test_a_response_replaces_the_file_in_one_step(call: Call, workspace: Path) -> None:
    target = workspace / "new" / "data.bin"
    data = bytes(range(256)) * 100
    answers = {"/a": response(body=data), "/b": response(body=gzip.compress(data), Content_Encoding="gzip")}
    async with serving(answers) as server:
        for path in ("a", "b"):
            found = await call("HttpRequest", url=f"http://127.0.0.1:{server.port}/{path}", saveTo=str(target))
            assert text_of(found).endswith(f"\n\nSaved {len(data)} bytes to {target}")
            assert found.artifacts == ()
            assert target.read_bytes() == data
            assert found.seen == str(FileStamp.make(target.stat(), data))
            target.write_bytes(b"old")
    assert os.listdir(target.parent) == ["data.bin"]


async def test_a_redirect_is_followed_to_what_is_saved(call: Call, workspace: Path) -> None:
    answers = {"/": response("302 Found", b"not this", Location="/x"), "/x": response(body=b"this")}
    async with serving(answers) as server:
        found = await call("HttpRequest", url=f"http://127.0.0.1:{server.port}/", saveTo=str(workspace / "f"))
        text_of(found)
    assert (workspace / "f").read_bytes() == b"this"


async def test_an_error_status_saves_nothing_and_is_shown(call: Call, workspace: Path) -> None:
    (workspace / "f").write_text("kept")
    async with serving({"/": response("404 Not Found", b"no such page")}) as server:
        found = await call("HttpRequest", url=f"http://127.0.0.1:{server.port}/", saveTo=str(workspace / "f"))
        text = text_of(found)
    assert text.startswith(f"[Nothing was saved to {workspace / 'f'}: the status is 404]\nHTTP 404 Not Found\n")
    assert text.endswith("no such page")
    assert (workspace / "f").read_text() == "kept"


@pytest.mark.parametrize("limited_by", ["configuration", "policy", "file size"])
async def test_a_response_that_is_too_large_saves_nothing(
    make_router: MakeRouter, workspace: Path, limited_by: str
) -> None:
    settings = {"configuration": {"http_max_download_bytes": 1000}, "file size": {"max_file_size_bytes": 1000}}
    router = make_router(http_max_body_bytes=10, **settings.get(limited_by, {}))
    limits = ToolConstraints(max_file_size_bytes=1000) if limited_by == "policy" else None
    answers = {"/fits": response(body=b"x" * 1000), "/large": response(body=b"x" * 1001)}
    async with serving(answers) as server:
        for path, code in (("large", "TOOL_EXECUTION_FAILED"), ("fits", None)):
            url = f"http://127.0.0.1:{server.port}/{path}"
            found = await router.execute(request("HttpRequest", limits, url=url, saveTo=str(workspace / path)))
            assert (found.error.code if found.error else None) == code
    assert os.listdir(workspace) == ["fits"]


async def test_a_file_that_is_too_large_is_not_sent(make_router: MakeRouter, workspace: Path) -> None:
    (workspace / "body").write_bytes(b"x" * 1001)
    router = make_router(http_max_download_bytes=1000)
    async with serving({}) as server:
        found = await router.execute(
            request("HttpRequest", url=f"http://127.0.0.1:{server.port}/", bodyFile=str(workspace / "body"))
        )
        assert error_of(found)[0] == "FILE_TOO_LARGE"
        assert server.connections == 0


async def test_files_are_held_to_the_scope_of_their_own_capability(make_router: MakeRouter, workspace: Path) -> None:
    (workspace / "body").write_text("x")
    router = make_router()
    within, elsewhere = ToolConstraints(allowed_paths=(str(workspace),)), ToolConstraints(allowed_paths=())
    async with serving({"/": response(body=b"new")}) as server:
        asked = request(
            "HttpRequest",
            url=f"http://127.0.0.1:{server.port}/",
            bodyFile=str(workspace / "body"),
            saveTo=str(workspace / "f"),
        )
        for reading, writing in ((elsewhere, within), (within, elsewhere)):
            found = await router.execute(asked._replace(also={"File.Read": reading, "File.Write": writing}))
            assert error_of(found)[0] == "PERMISSION_DENIED"
            assert not (workspace / "f").exists()
        text_of(await router.execute(asked._replace(also={"File.Read": within, "File.Write": within})))
    assert (workspace / "f").read_text() == "new"


@pytest.mark.skipif(sys.platform == "win32", reason="links are for administrators there")
async def test_a_link_out_of_the_scope_is_not_written_through(call: Call, workspace: Path, tmp_path: Path) -> None:
    (workspace / "out").symlink_to(tmp_path / "outside")
    within = ToolConstraints(allowed_paths=(str(workspace),))
    async with serving({"/": response(body=b"new")}) as server:
        url = f"http://127.0.0.1:{server.port}/"
        assert error_of(await call("HttpRequest", within, url=url, saveTo=str(workspace / "out")))[0] != ""
    assert not (tmp_path / "outside").exists()
