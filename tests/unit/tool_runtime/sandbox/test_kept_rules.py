"""Rules that are kept between commands give no command more, and none less, than rules that were made for it."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from policy import CommandScope
from tests.unit.tool_runtime.conftest import MakeRouter, request, text_of, until
from tests.unit.tool_runtime.sandbox.conftest import held
from tool_runtime import sandbox as levels
from tool_runtime.platform import landlock, linux_sandbox, mounts
from tool_runtime.tool import SandboxSettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.skipif(not levels.look("landlock").works, reason=levels.look("landlock").problem)

SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc")


def tree(root: Path) -> CommandScope:
    """A scope that reads a directory with something hidden in it, and one that it names."""
    for name in ("area/hidden", "area/beside", "named", "elsewhere"):
        (root / name).mkdir(parents=True)
        (root / name / "x").write_text(f"{os.path.basename(name)} ")
    (root / "area" / "file").write_text("file ")
    area = str(root / "area")
    return CommandScope(
        reads=(*SYSTEM, area, str(root / "named")),
        writes=(str(root / "workspace"),),
        hidden=(f"{area}/hidden", f"{area}/later"),
    )


def swap(root: Path) -> None:
    """Hidden and visible exchange their names."""
    area = root / "area"
    (area / "beside").rename(root / "third")
    (area / "hidden").rename(area / "beside")
    (root / "third").rename(area / "hidden")


def swap_and_set_times_back(root: Path) -> None:
    before = (root / "area").stat()
    swap(root)
    os.utime(root / "area", ns=(before.st_atime_ns, before.st_mtime_ns))


def link(root: Path) -> None:
    """A visible directory becomes a link to a hidden one."""
    (root / "area" / "beside").rename(root / "third")
    (root / "area" / "beside").symlink_to("hidden")


def replace(root: Path) -> None:
    """As editors write a file."""
    (root / "area" / "other").write_text("other ")
    (root / "area" / "other").rename(root / "area" / "file")


def replace_named(root: Path) -> None:
    (root / "named").rename(root / "before")
    (root / "elsewhere").rename(root / "named")


@pytest.mark.many_rows(6)
@pytest.mark.many_rows(8)
@pytest.mark.parametrize(
    ("change", "seen"),
    [
        (lambda _: None, "beside file named"),
        (lambda root: (root / "area" / "new").write_text("new "), "beside file named new"),
        (lambda root: (root / "area" / "later").write_text("later "), "beside file named"),
        (lambda root: (root / "area" / "beside").rename(root / "third"), "file named"),
        (swap, "file hidden named"),
        (swap_and_set_times_back, "file hidden named"),
        (link, "file named"),
        (replace, "beside named other"),
        (replace_named, "beside elsewhere file"),
    ],
)
async def test_what_has_changed_counts_for_the_next_command(
    make_router: MakeRouter, workspace: Path, tmp_path: Path, change: Callable[[Path], Any], seen: str, level: Any
) -> None:
    scope = tree(tmp_path)
    router = make_router(sandbox=SandboxSettings(level))
    places = "area/*/x area/file area/new area/later named/x before/x third/x elsewhere/x"
    command = "cat " + " ".join(f"{tmp_path}/{place}" for place in places.split()) + " 2> /dev/null; true"

    async def told() -> list[str]:
        text = text_of(await router.execute(request("RunCommand", held(scope), command=command)))
        return sorted(text.partition("--- stdout ---\n")[2].partition("---")[0].split())

    await until(lambda: mounts.is_settled((tmp_path / "area").stat().st_ctime_ns, time.time_ns()))
    for _ in range(3):
        assert await told() == ["beside", "file", "named"]
    change(tmp_path)
    for _ in range(2):
        assert await told() == seen.split()


def newest_change(folder: Path) -> int:
    return max(path.stat().st_ctime_ns for path in (folder, *folder.rglob("*")))


async def test_rules_are_made_once_for_many_commands(
    make_router: MakeRouter, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope = tree(tmp_path)
    made: list[linux_sandbox.Ruleset] = []
    make = linux_sandbox.ruleset_of

    def noted(wanted: linux_sandbox.Restriction) -> linux_sandbox.Ruleset:
        made.append(make(wanted))
        return made[-1]

    monkeypatch.setattr(linux_sandbox, "ruleset_of", noted)
    monkeypatch.setattr(landlock, "has_terminals", lambda: False)  # other tests open and close some
    router = make_router(sandbox=SandboxSettings("landlock"))
    newest = newest_change(tmp_path)
    await until(lambda: mounts.is_settled(newest, time.time_ns()))
    for number in range(6):
        (workspace / f"made-{number}").touch()
        await router.execute(request("RunCommand", held(scope), command="true"))
    assert len(made) == 1
    os.fstat(made[0].descriptor)
    await router.aclose()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(made[0].descriptor)
