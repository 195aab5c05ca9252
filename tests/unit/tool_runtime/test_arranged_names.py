"""Files that a command arranges for whatever the host reads: each ends soon, with nothing of what lies elsewhere."""

from __future__ import annotations

import asyncio
import os
import resource
import stat
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.contracts import ToolConstraints
from tests.unit.tool_runtime.conftest import MakeRouter, request
from tests.unit.tool_runtime.test_http import response, serving
from tool_runtime.files.skills import SkillFolder, SkillIndex
from tool_runtime.platform.directories import BY_DESCRIPTOR

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(not BY_DESCRIPTOR, reason="there are no such files here")
KINDS = ("link", "link in a link", "parent that is a link", "pipe", "socket", "folder", "large", "device")
SECRET = "the secret of another place"
_PATIENCE_S = 20
_MEMORY_BYTES = 200 * 1024 * 1024


def arrange(kind: str, place: Path, secret: Path) -> None:
    """Put something of this kind where a file would be."""
    place.parent.mkdir(parents=True, exist_ok=True)
    match kind:
        case "link":
            place.symlink_to(secret)
        case "link in a link":
            (place.parent / "step").symlink_to(secret)
            place.symlink_to("step")
        case "parent that is a link":
            place.parent.rename(place.parent.with_name("away"))
            place.parent.symlink_to(secret.parent)
            (secret.parent / place.name).write_text(secret.read_text())
        case "pipe":
            os.mkfifo(place)
        case "socket":
            os.mknod(place, stat.S_IFSOCK | 0o600)
        case "folder":
            place.mkdir()
        case "large":
            place.touch()
            os.truncate(place, 3 << 40)
        case "device":
            place.symlink_to("/dev/zero")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    made = tmp_path / "outside" / "secret"
    made.parent.mkdir()
    made.write_text(f"{SECRET}\n")
    return made


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


READS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "a text": ("f/a.txt", "ReadFile", {"path": "f/a.txt"}),
    "a notebook": ("f/a.ipynb", "ReadFile", {"path": "f/a.ipynb"}),
    "a PDF": ("f/a.pdf", "ReadFile", {"path": "f/a.pdf"}),
    "a picture": ("f/a.png", "ReadFile", {"path": "f/a.png"}),
    "an edit": ("f/a.txt", "EditFile", {"path": "f/a.txt", "edits": [{"oldText": "the", "newText": "x"}]}),
    "files that are searched": ("f/a.txt", "GrepFiles", {"path": "f", "pattern": "secret"}),
    "a list of what is ignored": ("f/.gitignore", "GlobFiles", {"path": "f", "pattern": "**/*"}),
    "a body that is sent": ("f/a.txt", "HttpRequest", {"method": "POST", "bodyFile": "f/a.txt"}),
    "a file of the family of keys": ("f/a.txt", "cp__read_file", {"path": "f/a.txt"}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", READS)
async def test_a_tool_that_reads(make_router: MakeRouter, workspace: Path, secret: Path, what: str, kind: str) -> None:
    name, tool, arguments = READS[what]
    arrange(kind, workspace / name, secret)
    given = {key: str(workspace / value) if key in ("path", "bodyFile") else value for key, value in arguments.items()}
    before = peak_bytes()
    async with serving({"/": response(body=b"ok")}) as server, asyncio.timeout(_PATIENCE_S):
        if tool == "HttpRequest":
            given["url"] = f"http://127.0.0.1:{server.port}/"
        router = make_router(families=("desktop", "native"))
        scope = ToolConstraints(allowed_paths=(str(workspace),))
        asked = request(tool, scope, **given)
        asked = asked._replace(also=dict.fromkeys(asked.also, scope))
        result = await router.execute(asked)
        sent = [body for _, _, body in server.requests]
    assert SECRET not in f"{result.output_text}{result.error}"
    assert all(SECRET.encode() not in body for body in sent)
    assert peak_bytes() - before < _MEMORY_BYTES


@pytest.mark.parametrize("kind", KINDS)
async def test_a_file_that_is_uploaded(make_router: MakeRouter, workspace: Path, secret: Path, kind: str) -> None:
    arrange(kind, workspace / "d" / "f", secret)
    path = str(workspace / "d" / "f")
    scope = ToolConstraints(allowed_paths=(str(workspace),))
    before = peak_bytes()
    async with asyncio.timeout(_PATIENCE_S):
        found = await make_router().execute(request("UploadArtifact", scope, path=path))
    assert (found.status, found.artifacts) == ("failed", ())
    assert peak_bytes() - before < _MEMORY_BYTES


@pytest.mark.parametrize("kind", KINDS)
def test_a_skill_of_the_workspace(workspace: Path, secret: Path, kind: str) -> None:
    skills = workspace / ".agent" / "skills"
    secret.write_text(f"---\nname: s\ndescription: {SECRET}\n---\n")
    arrange(kind, skills / "s" / "SKILL.md", secret)
    found = SkillIndex([SkillFolder(str(skills), of_workspace=True)]).skills()
    assert SECRET not in str(found)
    assert not found.usable


@pytest.mark.parametrize("kind", KINDS)
async def test_where_an_answer_is_saved(make_router: MakeRouter, workspace: Path, secret: Path, kind: str) -> None:
    arrange(kind, workspace / "d" / "f", secret)
    scope = ToolConstraints(allowed_paths=(str(workspace),))
    async with serving({"/": response(body=b"answer")}) as server, asyncio.timeout(_PATIENCE_S):
        url = f"http://127.0.0.1:{server.port}/"
        asked = request("HttpRequest", url=url, saveTo=str(workspace / "d" / "f"))
        result = await make_router().execute(asked._replace(also=dict.fromkeys(asked.also, scope)))
    assert {path.stat().st_size for path in secret.parent.iterdir()} == {len(SECRET) + 1}
    assert (kind == "large") == (result.error is None)
