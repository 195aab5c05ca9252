"""What held commands find to work with: variables, caches, root's rights."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.tool_runtime.conftest import MakeRouter, request, text_of
from tests.unit.tool_runtime.sandbox.conftest import held
from tool_runtime import sandbox as levels
from tool_runtime.sandbox.session import cargo_settings
from tool_runtime.tool import SandboxSettings

if TYPE_CHECKING:
    from policy import CommandScope

pytestmark = pytest.mark.skipif(not levels.look("landlock").works, reason=levels.look("landlock").problem)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
async def test_root_works_on_files_of_others_where_nothing_outside_can_be_changed(
    make_router: MakeRouter, scope: CommandScope, tmp_path: Path, level: Any
) -> None:
    """As in a container whose user's files are mounted."""
    inside, outside = Path(scope.writes[0]) / "theirs", tmp_path / "secret"
    inside.write_text("x")
    for path in (inside, outside):
        os.chown(path, 4321, 4321)
    router = make_router(sandbox=SandboxSettings(level))
    assert (await router.execute(request("RunCommand", held(scope), command="chown 0 theirs"))).exit_code
    line = "chmod +x theirs && touch -d yesterday theirs && tar cf t theirs && tar xf t"
    result = await router.execute(request("RunCommand", held(scope), command=line))
    assert (result.exit_code == 0) == (level == "namespace"), result
    for change in (f"chmod 777 {outside}", f"chown 4321 {tmp_path}", f"touch -d yesterday {outside}"):
        assert (await router.execute(request("RunCommand", held(scope), command=change))).exit_code, change
    assert [os.stat(path).st_uid for path in (outside, tmp_path)] == [4321, os.geteuid()]


@pytest.mark.parametrize(
    ("settings", "found"), [("[net]\noffline = true\n", "offline = true"), ('[registry]\ntoken = "t"\n', "none")]
)
async def test_cargo_finds_the_users_settings_in_its_new_place_but_no_token(
    make_router: MakeRouter, scope: CommandScope, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    settings: str, found: str,
) -> None:  # fmt: skip
    own = tmp_path / "own"
    own.mkdir()
    (own / "config.toml").write_text(settings)
    monkeypatch.setenv("CARGO_HOME", str(own))
    router = make_router(sandbox=SandboxSettings("landlock", caches=str(tmp_path / "caches")))
    line = "cat $CARGO_HOME/config.toml 2>/dev/null || echo none"
    text = text_of(await router.execute(request("RunCommand", held(scope), command=line)))
    assert found in text
    assert str(own) not in text


@pytest.mark.parametrize("link", ["caches", "caches/cargo", "caches/cargo/config.toml"])
def test_no_link_is_followed_that_an_earlier_command_has_left(tmp_path: Path, link: str) -> None:
    own, elsewhere = tmp_path / "own", tmp_path / "elsewhere"
    for path in (own / "registry", elsewhere, (tmp_path / link).parent):
        path.mkdir(parents=True, exist_ok=True)
    (own / "config.toml").write_text("offline = true")
    (tmp_path / link).symlink_to(elsewhere if "." not in link else elsewhere / "made")
    with suppress(OSError):
        cargo_settings(str(tmp_path / "caches"), {"CARGO_HOME": str(own)})
    assert list(elsewhere.iterdir()) == []


async def test_cargo_reads_what_it_has_downloaded_where_it_can_download_nothing(
    make_router: MakeRouter, scope: CommandScope, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    (own / "registry").mkdir(parents=True)
    (own / "registry" / "crate").write_text("downloaded")
    monkeypatch.setenv("CARGO_HOME", str(own))
    caches = tmp_path / "caches"
    caches.mkdir()
    scope = scope._replace(writes=(*scope.writes, str(caches)))
    router = make_router(sandbox=SandboxSettings("landlock", caches=str(caches)))

    async def run(domains: tuple[str, ...], line: str) -> str:
        constraints = held(scope._replace(domains=domains))
        return text_of(await router.execute(request("RunCommand", constraints, command=line)))

    assert "downloaded" in await run((), "cat $CARGO_HOME/registry/crate")
    assert "Permission denied" in await run((), "echo x > $CARGO_HOME/registry/crate")
    made = await run(("crates.test",), "mkdir -p $CARGO_HOME/registry && echo fetched > $CARGO_HOME/registry/crate")
    assert made.startswith("Exit code: 0"), made
    assert "fetched" in await run((), "cat $CARGO_HOME/registry/crate")
    assert (own / "registry" / "crate").read_text() == "downloaded"
