"""Programs that reach an allowed host by the proxy, each by the variables that it obeys, from a server on loopback."""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import threading
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.contracts import ToolConstraints
from policy import CommandScope
from tests.unit.tool_runtime.conftest import MakeRouter, request
from tool_runtime import sandbox as levels
from tool_runtime.tool import SandboxSettings
from tool_runtime.web import proxy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not levels.look("landlock").works, reason=levels.look("landlock").problem),
]
_CLIENT = (
    "public class J { public static void main(String[] a) throws Exception {"
    " System.out.println(new String(new java.net.URL(a[0]).openStream().readAllBytes())); } }"
)
PROGRAMS = {
    "curl": "curl -sSf {at}/",
    "wget": "wget -qO- {at}/",
    "git": "git clone -q {at}/own.git cloned && git -C cloned log --format=%s",
    "pip": "pip --version > /dev/null && pip download -q --trusted-host {host} --index-url {at}/simple own"
    " && unzip -p own-1-py3-none-any.whl own.py",
    "npm": "npm install --no-audit --no-fund --loglevel=error --registry {at} own && cat node_modules/own/own.txt",
    "node": "node -e 'fetch(\"{at}/\").then(r => r.text()).then(console.log)'",
    "java": f"echo '{_CLIENT}' > J.java && java J.java {{at}}/",
}


def wheel() -> bytes:
    """Of a package `own` for pip."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("own.py", "# served\n")
        archive.writestr("own-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: own\nVersion: 1\n")
        archive.writestr("own-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("own-1.dist-info/RECORD", "")
    return data.getvalue()


def tarball() -> bytes:
    """Of a package `own` for npm."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, text in {"package.json": '{"name": "own", "version": "1.0.0"}', "own.txt": "served\n"}.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return data.getvalue()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL, by a name that leads to it, of what serves a page, a repository and a package of each registry."""
    folder = tmp_path_factory.mktemp("site")
    own = tmp_path_factory.mktemp("own")
    as_someone = ("-c", "user.name=a", "-c", "user.email=b@c")
    for words in (("init", "-q"), (*as_someone, "commit", "-q", "--allow-empty", "-m", "served")):
        subprocess.run(["git", *words], cwd=own, check=True)
    subprocess.run(["git", "clone", "-q", "--bare", own, folder / "own.git"], check=True)
    subprocess.run(["git", "update-server-info"], cwd=folder / "own.git", check=True)
    (folder / "index.html").write_text("served")
    (folder / "own-1-py3-none-any.whl").write_bytes(wheel())
    (folder / "simple" / "own").mkdir(parents=True)
    (folder / "simple" / "own" / "index.html").write_text(
        '<a href="/own-1-py3-none-any.whl">own-1-py3-none-any.whl</a>'
    )
    packed = tarball()
    (folder / "own-1.0.0.tgz").write_bytes(packed)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(folder))

        def log_message(self, *_: Any) -> None:
            pass

    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    at = f"http://allowed.test:{served.server_port}"
    dist = {"tarball": f"{at}/own-1.0.0.tgz", "shasum": hashlib.sha1(packed).hexdigest()}
    version = {"name": "own", "version": "1.0.0", "dist": dist}
    (folder / "own").write_text(
        json.dumps({"name": "own", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}})
    )
    thread = threading.Thread(target=served.serve_forever)
    thread.start()
    yield at
    served.shutdown()
    thread.join()
    served.server_close()


def obeys(program: str) -> bool:
    """Whether it goes by the variables: fetch of node does from versions 22.21 and 24 on."""
    if program != "node":
        return True
    said = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout
    major, minor = (int(number) for number in re.findall(r"\d+", said)[:2])
    return major >= 24 or (major, minor) >= (22, 21)


@pytest.mark.parametrize("program", PROGRAMS)
async def test_it_reaches_an_allowed_host_and_no_other(
    make_router: MakeRouter, workspace: Path, site: str, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"there is no {program}")
    monkeypatch.setattr(proxy, "resolve", lambda _host, _port: ["127.0.0.1"])
    for name in [name for name in os.environ if name.startswith(("PIP_", "npm_"))]:
        monkeypatch.delenv(name)
    router = make_router(sandbox=SandboxSettings("landlock", caches=str(workspace / "caches")))
    constraints = ToolConstraints(command_scope=CommandScope(writes=(str(workspace),), domains=("allowed.test",)))

    async def run(at: str) -> Any:
        host = at.removeprefix("http://").partition(":")[0]
        line = f"mkdir {host} && cd {host} && " + PROGRAMS[program].replace("{at}", at).replace("{host}", host)
        return await router.execute(request("RunCommand", constraints, command=line))

    reached = await run(site)
    other = site.replace("allowed", "other")
    refused = await run(other)
    if not obeys(program):
        assert [(denial.what, denial.rule) for denial in reached.denials] == [("allowed.test", "proxy")]
        return
    assert "served" in (reached.output_text or ""), reached
    assert (other.removeprefix("http://"), "domains") in [(denial.what, denial.rule) for denial in refused.denials]
    assert "served" not in (refused.output_text or "")
