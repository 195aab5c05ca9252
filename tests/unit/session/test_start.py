"""The policy bundle that a session starts from: where it comes from, and what the settings take away (AH 3.2)."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.errors import PolicyBundleInvalid, PolicyExpired, UsageError
from agent_host.judging import Environment
from agent_host.session.start import load_bundle
from config.load import load
from policy import ANY_SESSION
from tests.support.loop_parts import NOW, SESSION
from tests.support.policy_cases import shape_of

if TYPE_CHECKING:
    from pathlib import Path

    from config.settings import Settings
    from policy.bundle import PolicyBundle

GRANTS: list[dict[str, Any]] = [
    {"name": "LLM.Call"},
    {"name": "File.Write", "allowedPaths": ["/ws"], "maxFileSizeBytes": 500},
    {"name": "Shell.Exec", "maxOutputBytes": 10_000},
    {"name": "Network.Http"},
]


class Case:
    """Settings, a bundle file, and a place."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "bundle.json"
        self.state_dir = folder / "state"
        (folder / "config.toml").touch()
        self.where = Environment(str(folder), str(folder / "home"), "posix", "bash")

    def settings(self, **values: Any) -> Settings:
        given = {"host.policy": str(self.file)} | {key.replace("__", "."): value for key, value in values.items()}
        return load(given, workspace=None, environ={"AGENT_HOST_CONFIG": str(self.folder / "config.toml")})

    def write(self, **fields: Any) -> bytes:
        data = json.dumps({**shape_of(GRANTS), "sessionId": SESSION, **fields}).encode()
        self.file.write_bytes(data)
        return data

    def load(self, granted: bytes | None = None, **values: Any) -> PolicyBundle:
        return load_bundle(
            self.settings(**values), self.where, session_id=SESSION, state_dir=str(self.state_dir), now=NOW,
            granted=granted,
        )  # fmt: skip

    def grant(self, bundle: PolicyBundle, name: str) -> Any:
        found = bundle.capability(name)
        assert found is not None
        return found


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def test_a_built_in_is_for_this_session_and_these_places(case: Case) -> None:
    bundle = case.load(host__policy="workspace", llm__model="mine")
    assert (bundle.session_id, bundle.llm_policy.allowed_models[0]) == (SESSION, "mine")
    assert bundle.expires_at == NOW + timedelta(days=1)
    writes = case.grant(bundle, "File.Write")
    assert str(case.folder) in writes.allowed_paths
    assert str(case.state_dir) in writes.blocked_paths


def test_a_built_in_has_its_own_models_where_none_is_named(case: Case) -> None:
    models = case.load(host__policy="workspace").llm_policy.allowed_models
    assert models
    assert "" not in models


def test_what_steers_the_host_for_its_user_is_not_changed(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = case.folder / "my.toml"
    monkeypatch.setenv("AGENT_HOST_CONFIG", str(chosen))
    assert str(chosen) in case.grant(case.load(host__policy="full"), "File.Write").blocked_paths


def test_a_bundle_in_a_file(case: Case) -> None:
    case.write()
    assert case.load().policy_bundle_version == "2026-01-01.1"


@pytest.mark.parametrize("session", [SESSION, "*"])
def test_a_file_may_be_for_any_session_and_a_grant_may_not(case: Case, session: str) -> None:
    data = case.write(sessionId=session)
    assert case.load().session_id == session
    case.file.unlink()
    if session == SESSION:
        assert case.load(data).session_id == SESSION, "what the service grants goes before the settings"
    else:
        with pytest.raises(PolicyBundleInvalid, match=r"policy of the session service: .*this one is for s"):
            case.load(data)


def test_the_bundle_of_another_session(case: Case) -> None:
    case.write(sessionId="other")
    with pytest.raises(PolicyBundleInvalid, match=r"bundle\.json: sessionId"):
        case.load()


def test_every_problem_of_a_bundle_is_told(case: Case) -> None:
    data = case.write(colour="red", capabilities=[{"name": "LLM.Call", "requiresApproval": "maybe"}])
    for granted, source in ((None, "bundle.json"), (data, "of the session service")):
        with pytest.raises(PolicyBundleInvalid) as raised:
            case.load(granted)
        assert all(word in str(raised.value) for word in (source, "colour", "requiresApproval"))


@pytest.mark.parametrize("expires", ["2026-01-01T12:00:00Z", "2025-01-01T00:00:00Z"])
def test_an_expired_bundle(case: Case, expires: str) -> None:
    case.write(expiresAt=expires)
    with pytest.raises(PolicyExpired, match="get a new one"):
        case.load()
    assert (
        load_bundle(
            case.settings(), case.where, session_id=ANY_SESSION, state_dir=str(case.state_dir), now=NOW, to_try=True
        ).expires_at
        <= NOW
    )


def test_a_bundle_to_try_is_anybodys(case: Case) -> None:
    case.write(sessionId="other")
    settings = case.settings(policy__blocked_commands=["rm"])
    found = load_bundle(
        settings, case.where, session_id=ANY_SESSION, state_dir=str(case.state_dir), now=NOW, to_try=True
    )
    assert found.session_id == "other"
    assert case.grant(found, "Shell.Exec").blocked_commands == ("rm",)
    built_in = load_bundle(
        case.settings(host__policy="full"), case.where, session_id=ANY_SESSION, state_dir="/s", now=NOW, to_try=True
    )
    assert built_in.session_id == "*"


def test_a_file_that_is_not_there(case: Case) -> None:
    with pytest.raises(UsageError, match=r"No such file .*; give a bundle file or one of .*workspace"):
        case.load()


def test_the_settings_take_away(case: Case) -> None:
    case.write()
    bundle = case.load(
        policy__blocked_paths=["secret", "/abs"],
        policy__blocked_commands=["rm"],
        policy__blocked_domains=["evil.test"],
        limits__max_file_size_bytes=100,
        tools__max_output_bytes=2000,
        limits__max_session_tokens=7,
    )
    writes, shell = case.grant(bundle, "File.Write"), case.grant(bundle, "Shell.Exec")
    assert {str(case.folder / "secret"), "/abs"} <= set(writes.blocked_paths)
    assert (writes.max_file_size_bytes, shell.max_output_bytes) == (100, 2000)
    assert (shell.blocked_commands, case.grant(bundle, "Network.Http").blocked_domains) == (("rm",), ("evil.test",))
    assert bundle.llm_policy.max_session_tokens == 7


def test_limits_that_are_not_set_take_nothing_away(case: Case) -> None:
    case.write()
    bundle = case.load(limits__max_file_size_bytes=0, limits__max_session_tokens=0)
    assert case.grant(bundle, "File.Write").max_file_size_bytes == 500
    assert bundle.llm_policy.max_session_tokens == 9000


def test_rules_for_the_arguments_of_programs(case: Case) -> None:
    case.write()
    config = case.folder / "config.toml"
    config.write_text('[[policy.command_policies]]\ncommand = "git"\nsubcommands = ["status"]\n')
    (policy,) = case.grant(case.load(), "Shell.Exec").command_policies
    assert (policy.command, policy.subcommands) == ("git", ("status",))
    config.write_text('[[policy.command_policies]]\nprogram = "git"\n')
    with pytest.raises(UsageError, match=r"configuration: .*command"):
        case.load()


# What only files and the user's configuration may say


def test_a_file_builds_on_a_built_in(case: Case) -> None:
    added = [{"name": "Shell.Exec", "allowedCommands": ["terraform", "${workspace}/bin/*"]}]
    added.append({"name": "File.Read", "allowedPaths": ["${home}/docs", "${tmp}", "sub"]})
    case.file.write_text(json.dumps({"extends": "ci", "capabilities": added}))
    bundle = case.load(llm__model="mine")
    shell, reads, writes = (case.grant(bundle, name) for name in ("Shell.Exec", "File.Read", "File.Write"))
    assert {"ls", "terraform", f"{case.folder}/bin/*"} <= set(shell.allowed_commands)
    own = next(path for path in reads.allowed_paths if f"agent-host-{SESSION}-" in path)
    assert {str(case.folder), f"{case.folder}/home/docs", f"{case.folder}/sub", own} <= set(reads.allowed_paths)
    assert str(case.folder / "config.toml") not in reads.blocked_paths
    assert (bundle.session_id, bundle.llm_policy.allowed_models[0]) == ("*", "mine")
    assert bundle.expires_at == NOW + timedelta(days=1)
    assert str(case.state_dir) in writes.blocked_paths


def test_what_steers_the_host_is_among_what_steers(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_HOST_CONFIG", str(case.folder / "my.toml"))
    case.write(capabilities=[{"name": "File.Write", "blockedPaths": ["@steering"]}])
    assert str(case.folder / "my.toml") in case.grant(case.load(), "File.Write").blocked_paths


def test_a_grant_of_the_service_has_none_of_this(case: Case) -> None:
    data = case.write(capabilities=[{"name": "File.Read", "allowedPaths": ["${workspace}"]}])
    case.load()
    with pytest.raises(PolicyBundleInvalid, match="is not absolute"):
        case.load(data)
    with pytest.raises(PolicyBundleInvalid, match="extends: is not a field"):
        case.load(b'{"extends": "ci"}')


def test_programs_that_the_user_adds_to_a_built_in(case: Case) -> None:
    programs: dict[str, Any] = {"policy__allowed_commands": ["terraform", "ls", "${workspace}/bin/*"]}
    listed = case.grant(case.load(host__policy="ci", **programs), "Shell.Exec").allowed_commands
    assert listed[-2:] == ("terraform", f"{case.folder}/bin/*")
    assert listed.count("ls") == 1
    assert case.grant(case.load(host__policy="full", **programs), "Shell.Exec").allowed_commands is None
    data = case.write(capabilities=[{"name": "Shell.Exec", "allowedCommands": ["ls"]}])
    for granted in (None, data):
        assert case.grant(case.load(granted, **programs), "Shell.Exec").allowed_commands == ("ls",)
    case.file.write_text('{"extends": "ci"}')
    assert "terraform" not in case.grant(case.load(**programs), "Shell.Exec").allowed_commands


@pytest.mark.parametrize("name", ["", "a b", "r?", "${workspace}/x", "${home}/bin/*"])
def test_programs_that_are_none(case: Case, name: str) -> None:
    with pytest.raises(UsageError, match=r"configuration: policy\.allowed_commands\[1\]: "):
        case.load(host__policy="ci", policy__allowed_commands=["ls", name])
