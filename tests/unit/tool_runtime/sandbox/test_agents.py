"""Agents that keep keys, and commands that ask them: a real ssh-agent and a real gpg-agent."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.contracts import ToolConstraints
from policy import CommandScope
from tests.unit.tool_runtime.conftest import MakeRouter, request, text_of
from tool_runtime import sandbox as levels
from tool_runtime.sandbox.session import _folder_of
from tool_runtime.tool import SandboxSettings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NEEDED = ("ssh-agent", "ssh-add", "ssh-keygen", "gpg-agent", "gpg-connect-agent")
pytestmark = [
    pytest.mark.skipif(not levels.look("landlock").works, reason=levels.look("landlock").problem),
    pytest.mark.skipif(not all(map(shutil.which, NEEDED)), reason=f"needs {', '.join(NEEDED)}"),
]
LIST_KEYS = "ssh-add -l"
ASK_GPG = "gpg-connect-agent --no-autostart 'getinfo pid' /bye"


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Both agents, in a home whose path is short enough for a socket's; an own key is in the first."""
    home = tempfile.mkdtemp(prefix="agents-", dir="/tmp")
    keys, place = os.path.join(home, ".gnupg"), os.path.join(home, "ssh")
    os.mkdir(keys, 0o700)
    environment = {"HOME": home, "SSH_AUTH_SOCK": place, "GNUPGHOME": keys}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    ssh = subprocess.Popen(["ssh-agent", "-D", "-a", place], stdout=subprocess.DEVNULL)
    # It listens as soon as the line that starts it has returned, and ends with the command it is given.
    gpg = subprocess.Popen(
        ["gpg-agent", "--daemon", "sh", "-c", "echo; read line"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert gpg.stdout is not None
    gpg.stdout.readline()
    key = os.path.join(home, "key")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "a-key-of-mine", "-f", key], check=True)
    subprocess.run(["ssh-add", "-q", key], check=True)
    os.unlink(key)
    yield environment
    subprocess.run(["gpg-connect-agent", "--no-autostart", "killagent", "/bye"], stdout=subprocess.DEVNULL)
    ssh.terminate()
    ssh.wait()
    gpg.communicate()
    shutil.rmtree(home, ignore_errors=True)


@pytest.mark.parametrize("level", ["landlock", "namespace"])
async def test_agents_are_used_where_they_are_granted_and_nowhere_else(
    make_router: MakeRouter, workspace: Path, agents: dict[str, str], level: Any
) -> None:
    if not levels.look(level).works:
        pytest.skip(levels.look(level).problem)
    router = make_router(sandbox=SandboxSettings(level))
    # The home of GnuPG is hidden, as any policy's credentials are: its agent answers all the same.
    plain = CommandScope(writes=(str(workspace),), hidden=(agents["GNUPGHOME"],))
    for granted, line, shown in (("ssh", LIST_KEYS, "a-key-of-mine"), ("gpg", ASK_GPG, "OK")):
        with_agent = ToolConstraints(command_scope=plain._replace(agents=(granted,)))
        told = await router.execute(request("RunCommand", with_agent, command=line))
        assert (shown in text_of(told), told.denials) == (True, ()), text_of(told)
        other = ToolConstraints(command_scope=plain._replace(agents=("gpg" if granted == "ssh" else "ssh",)))
        for constraints in (ToolConstraints(command_scope=plain), other):
            refused = await router.execute(request("RunCommand", constraints, command=f"{line} || exit 3; exit 4"))
            assert shown not in text_of(refused).partition("--- sandbox")[0]
            assert [(one.kind, one.rule, one.action) for one in refused.denials] == [("socket", "agents", "connect")]
            assert "agents may be used only where they are granted" in text_of(refused)


def test_where_gnupg_has_the_sockets_of_another_home() -> None:
    assert _folder_of("/tmp/gh") == "d.ffabiqijjfckceggnzrykjtw"
