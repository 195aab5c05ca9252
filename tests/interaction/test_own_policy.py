"""The line that `a` offers for a policy: for the calls of a real session, tried before it is shown; and for what it is
never offered."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.host.own_policy import propose
from tests.support.process import call, gateway, say, shell, use

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agent_host.host.own_policy import Proposal
    from tests.support.process import Host

if sys.platform == "win32":
    pytest.skip("command lines of POSIX shells", allow_module_level=True)

ASKS = {name: {"requiresApproval": True} for name in ("Shell.Exec", "File.Write", "File.Delete")}
ASKS["Network.Http"] = {"requiresApproval": True}

OFFERED = {
    "ls -la": ["ls"],
    "cat a | grep b > out": ["cat", "grep"],
    "echo 'ls; rm -rf /' && true": ["echo", "true"],
    "git status": ["git"],
}
HOSTILE = (
    "./ls -la",  # the workspace's own
    "/tmp/../bin/ls",
    "sub/ls",
    "python3 x.py",
    "make",
    "npm test",
    "bash -c 'ls'",
    "unheard-of",
    "ls; unheard-of",
    "ls $(unheard-of)",
    "$TOOL ls",
    '"$(printf l)s"',
    "eval ls",
    ". ./ls",
    "find . -exec ./ls ;",
    "xargs sh",
    "git -c alias.x='!sh' x",
    "ls\n./ls",
    "ls; tar xf a.tar --to-command=sh",
    "awk 'BEGIN { system(\"sh\") }'",
    "ls <<E\n$(sh)\nE",
    "l\\s; s\\h",
    "ls \x00",
    "alias ls=sh; ls",
    "PATH=. ls",
    "ls 'unclosed",
)


def session(host: Host, calls: list[dict[str, Any]], **options: Any) -> str:
    """A session that has asked about the calls, each of which was denied because nobody was there."""
    turns = [use(*calls[at : at + 8]) for at in range(0, len(calls), 8)]
    with gateway(*turns, say("Done.")) as model:
        return str(host.task(model.url, **options).result["sessionId"])


def proposal(
    host: Host,
    session_id: str,
    made: Mapping[str, Any],
    *,
    policy: str | Path | None = None,
    workspace: Path | None = None,
) -> Proposal | None:
    return propose(
        {} if policy is None else {"host.policy": os.fspath(policy)},
        made["name"],
        made["arguments"],
        session_id=session_id,
        workspace=os.fspath(workspace or host.workspace),
        state_dir=os.fspath(host.state),
    )


@pytest.fixture
def user(host: Host, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's environment is also this process's."""
    for name, value in host.environment().items():
        monkeypatch.setenv(name, value)
    return host.root / "policies" / "workspace-own.json"


@pytest.mark.slow
def test_a_line_is_offered_for_programs_that_start_no_others_and_for_none_else(host: Host, user: Path) -> None:
    del user
    (host.workspace / "a").touch()
    policy = host.policy(grants={"Shell.Exec": ASKS["Shell.Exec"]})
    commands = [*OFFERED, *HOSTILE]
    session_id = session(host, [shell(one) for one in commands], policy=policy)
    found = {one: proposal(host, session_id, shell(one), policy=policy) for one in commands}
    assert [one for one in HOSTILE if found[one] is not None] == []
    for command, programs in OFFERED.items():
        offered = found[command]
        assert offered is not None, command
        (entry,) = (one for one in json.loads(offered.after)["capabilities"] if one["name"] == "Shell.Exec")
        assert entry == {"name": "Shell.Exec", "allowedCommands": programs, "requiresApproval": False}
        assert any("others are denied" in line for line in offered.lines)
        assert any(line.startswith("  APPROVAL_REQUIRED → ALLOWED: RunCommand") for line in offered.lines)
        assert offered.sets_default == ""


def test_it_is_never_offered_for_what_steers_asks_for_more_or_is_not_asked_about(host: Host, user: Path) -> None:
    del user
    policy = host.policy(grants=ASKS)
    grant = {"network": ["example.com"], "reason": "to look"}
    never = [
        shell("ls", sandboxGrant=grant),
        *(
            call("WriteFile", path=path, content="x")
            for path in (".git/hooks/pre-commit", ".vscode/settings.json", ".envrc")
        ),
        call("WriteFile", path=os.fspath(host.home / ".bashrc"), content="x"),
        call("DeleteFile", path=".git"),
        call("ReadFile", path="a"),  # nobody asks about it
        call("Unheard", path="a"),
    ]
    fine = [call("WriteFile", path="a", content="x"), call("HttpRequest", url="http://example.com/x")]
    session_id = session(host, [*never, *fine], policy=policy)
    assert [one for one in never if proposal(host, session_id, one, policy=policy) is not None] == []
    write, request = (proposal(host, session_id, one, policy=policy) for one in fine)
    assert write is not None
    assert request is not None
    assert b'"allowedDomains": [\n        "example.com"\n      ]' in request.after


def test_a_bundle_in_the_workspace_is_left_alone_wherever_links_lead(host: Host, user: Path) -> None:
    bundle = host.policy(grants=ASKS).read_text()
    outside, linked = host.root / "outside.json", host.root / "linked.json"
    inside = host.workspace / "policy.json"
    for path in (outside, inside):
        path.write_text(bundle)
    linked.symlink_to(inside)
    session_id = session(host, [shell("ls")], policy=outside)
    assert proposal(host, session_id, shell("ls"), policy=inside) is None
    assert proposal(host, session_id, shell("ls"), policy=linked) is None
    link_to_outside = host.workspace / "link.json"
    link_to_outside.symlink_to(outside)
    found = proposal(host, session_id, shell("ls"), policy=link_to_outside)
    assert found is not None
    assert found.path == os.path.realpath(outside)  # where it is, and not the link's
    folder = host.workspace / "policies"
    folder.mkdir()
    user.parent.symlink_to(folder)
    assert proposal(host, session_id, shell("ls")) is None
    assert proposal(host, session_id, shell("ls"), workspace=host.root) is None
    assert list(folder.iterdir()) == []


def test_a_built_in_gets_a_bundle_of_the_users_own_and_the_default_is_set_apart(host: Host, user: Path) -> None:
    session_id = session(host, [shell("ls"), shell("cat a")], policy="workspace")
    first = proposal(host, session_id, shell("ls"))
    assert first is not None
    assert not user.exists()
    assert "it counts for this session too" in first.write()
    assert user.stat().st_mode & 0o777 == 0o600
    entry = {"name": "Shell.Exec", "allowedCommands": ["ls"], "requiresApproval": False}
    assert json.loads(user.read_text()) == {"extends": "workspace", "capabilities": [entry]}
    with pytest.raises(OSError, match="was changed in the meantime"):
        first.write()
    settings = host.root / "user.toml"
    before = settings.read_text()
    assert "policy" not in before
    assert first.sets_default
    first.make_default()
    assert settings.read_text().startswith(before)
    assert proposal(host, session_id, shell("ls")) is None  # it is allowed by now
    assert proposal(host, session_id, shell("cat a")) is None  # it is denied by now, and not asked about


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"extends": "full"}', '{"extends": "workspace", "capabilities": 7}']
)
def test_a_bundle_of_the_users_own_that_is_none_is_not_written_over(content: str, host: Host, user: Path) -> None:
    session_id = session(host, [shell("ls")], policy="workspace")
    user.parent.mkdir()
    user.write_text(content)
    assert proposal(host, session_id, shell("ls")) is None
    assert user.read_text() == content


def test_the_configuration_of_a_workspace_chooses_no_file_and_keeps_what_it_blocks(host: Host, user: Path) -> None:
    session_id = session(host, [shell("ls")], policy="workspace")
    assert proposal(host, session_id, shell("ls")) is not None
    settings = host.workspace / ".agent" / "config.toml"
    settings.parent.mkdir()
    settings.write_text('[host]\npolicy = "ci"\n')  # a workspace cannot choose one
    found = proposal(host, session_id, shell("ls"))
    assert found is not None
    assert found.path == os.fspath(user)
    settings.write_text('[policy]\nblocked_commands = ["ls"]\n')
    assert proposal(host, session_id, shell("ls")) is None


def test_nothing_is_offered_under_a_bundle_of_the_session_service(
    host: Host, user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del user
    session_id = session(host, [shell("ls")], policy="workspace")
    assert proposal(host, session_id, shell("ls")) is not None
    monkeypatch.setenv("SESSION_SERVICE_URL", "http://127.0.0.1:9")
    assert proposal(host, session_id, shell("ls")) is None
