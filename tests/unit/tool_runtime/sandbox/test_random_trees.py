"""Random trees with links, and random bundles over them: what the kernel lets a command do is what its scope says."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.contracts import ToolConstraints
from agent_host.judging import Environment, resolve_places
from agent_host.judging.scoping import scope_facts
from policy.rules.sandbox import command_scope, may_read, may_write
from tests.unit.policy.helpers import bundle
from tests.unit.tool_runtime.conftest import MakeRouter, request, text_of
from tool_runtime import sandbox as levels
from tool_runtime.tool import SandboxSettings

if TYPE_CHECKING:
    from pathlib import Path

    from policy import CommandScope

LEVELS = [level for level in levels.LEVELS if levels.look(level).works]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not LEVELS, reason="no level of the sandbox works here"),
]
TREES = 4
# Each path of the list is read, and written without a change.
TRIES = """while IFS= read -r path; do
  if cat "$path" >/dev/null 2>&1; then echo "r $path"; fi
  if (: >> "$path") 2>/dev/null; then echo "w $path"; fi
done < "$TMPDIR/paths"
"""


def tree(root: Path, chance: random.Random) -> list[str]:
    """Directories, files and links to any of them; returns every path of a file, also through links."""
    folders = [root]
    for number in range(8):
        folder = chance.choice(folders) / f"d{number}"
        folder.mkdir()
        folders.append(folder)
    for number in range(14):
        (chance.choice(folders) / f"f{number}").write_text("x")
    for number in range(5):
        (chance.choice(folders) / f"l{number}").symlink_to(chance.choice([*folders, *root.rglob("f*")]))
    found = []
    for at, names, files in os.walk(root):
        found += [os.path.join(at, name) for name in files]
        for name in names:
            linked = os.path.join(at, name)
            if os.path.islink(linked):
                found += [os.path.join(linked, one) for one in os.listdir(linked)]
    return [path for path in found if os.path.isfile(path)]


def places(root: Path, chance: random.Random) -> list[str]:
    several = sorted(str(path) for path in (root, *root.rglob("*")))
    return chance.sample(several, chance.randint(0, 3))


def capabilities(root: Path, chance: random.Random, *, blocks_writes: bool) -> list[dict[str, Any]]:
    read: dict[str, Any] = {"name": "File.Read", "blockedPaths": places(root, chance)}
    if chance.random() < 0.7:
        read["allowedPaths"] = places(root, chance)
    write: dict[str, Any] = {"name": "File.Write", "allowedPaths": places(root, chance)}
    if blocks_writes:
        write["blockedPaths"] = places(root, chance)
    return [read, write]


def said(scope: CommandScope, paths: list[str]) -> set[str]:
    """What the scope says of each path, in the words of TRIES."""
    real = {path: os.path.realpath(path) for path in paths}
    read = {f"r {path}" for path in paths if may_read(scope, real[path], "posix")}
    return read | {f"w {path}" for path in paths if may_write(scope, real[path], "posix")}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("level", LEVELS)
async def test_the_kernel_says_what_the_scope_says(
    make_router: MakeRouter, tmp_path: Path, level: Any, seed: int
) -> None:
    router = make_router(sandbox=SandboxSettings(level))
    chance = random.Random(seed)
    for number in range(TREES):
        root, temporary = tmp_path / str(number), tmp_path / f"t{number}"
        root.mkdir()
        temporary.mkdir()
        paths = tree(root, chance)
        (temporary / "paths").write_text("".join(f"{path}\n" for path in paths))
        # What may be read and not written is looked at and not refused by Landlock.
        granted = bundle(*capabilities(root, chance, blocks_writes=level == "namespace"))
        here = Environment(str(root), None, "posix", "sh")
        facts = scope_facts(str(root), home=None, tmp=str(temporary), environment={"PATH": os.environ["PATH"]})
        scope = command_scope(resolve_places(granted, here), facts, "posix")
        line = TRIES.replace("$TMPDIR", str(temporary))
        answer = text_of(
            await router.execute(request("RunCommand", ToolConstraints(command_scope=scope), command=line, cwd="/usr"))
        )
        found = {row for row in answer.splitlines() if row[:2] in ("r ", "w ")}
        assert found == said(scope, paths), (scope, found ^ said(scope, paths))
