"""Layers of configuration, what each may say, and what a workspace may not."""

from __future__ import annotations

import json
import os
import tomllib
from typing import TYPE_CHECKING, Any

import pytest

from config.load import DEFAULTS, ConfigError, load, load_defaults
from config.settings import SETTINGS, Settings, Tightening

if TYPE_CHECKING:
    from pathlib import Path


class Layers:
    """A user's file, an environment and a workspace in a scratch directory."""

    def __init__(self, directory: Path) -> None:
        self._user = directory / "user.toml"
        self.workspace = directory / "ws"
        (self.workspace / ".agent").mkdir(parents=True)
        self.environ = {"AGENT_HOST_CONFIG": str(self._user)}
        self.user("")

    def user(self, text: str) -> None:
        self._user.write_text(text)

    def project(self, text: str) -> None:
        (self.workspace / ".agent" / "config.toml").write_text(text)

    def load(self, **flags: Any) -> Settings:
        given = {key.replace("__", "."): value for key, value in flags.items()}
        return load(given, workspace=str(self.workspace), environ=self.environ)


@pytest.fixture
def layers(tmp_path: Path) -> Layers:
    return Layers(tmp_path)


# --- the table --------------------------------------------------------------------------------------------------------


def test_the_defaults_and_the_table_have_the_same_keys_in_the_same_order() -> None:
    with open(DEFAULTS, "rb") as handle:
        raw = tomllib.load(handle)
    keys = [f"{section}.{name}" if name else section for section, content in raw.items() for name in content or [""]]
    assert keys == list(SETTINGS)


def test_the_defaults_are_read_as_toml_and_pass_the_checks_of_any_other_file(layers: Layers) -> None:
    shipped = layers.load()
    with open(DEFAULTS, encoding="utf-8") as handle:
        layers.user(handle.read())
    again = layers.load()
    assert {key: repr(again[key]) for key in SETTINGS} == {key: repr(shipped[key]) for key in SETTINGS}


def test_every_default_is_a_value_that_its_setting_takes(layers: Layers) -> None:
    settings = layers.load()
    for key, setting in SETTINGS.items():
        assert type(settings[key]) is setting.kind, key
        section, _, name = key.partition(".")
        if name:
            assert getattr(getattr(settings, section), name) in (
                settings[key],
                tuple(settings[key] if setting.kind is list else ()),
            )
    assert settings.ignored == ()


def test_settings_come_out_in_their_own_types(layers: Layers) -> None:
    settings = layers.load()
    assert settings.llm.dialect == "anthropic"
    assert settings.host.max_steps == 40
    assert settings.llm.connect_timeout_s == 10.0
    assert settings.host.toolset == ("desktop",)
    assert settings.llm.headers == {}


# --- layers -----------------------------------------------------------------------------------------------------------


def test_each_layer_goes_over_the_one_before(layers: Layers) -> None:
    assert layers.load()["llm.gateway"] == ""
    layers.user('[llm]\ngateway = "http://user"\nmodel = "m"\n')
    assert layers.load()["llm.gateway"] == "http://user"
    layers.environ["LLM_GATEWAY_ENDPOINT"] = "http://environment"
    assert layers.load()["llm.gateway"] == "http://environment"
    settings = layers.load(llm__gateway="http://flag")
    assert settings["llm.gateway"] == "http://flag"
    assert settings["llm.model"] == "m"
    assert settings["host.max_steps"] == 40


def test_an_empty_variable_says_nothing(layers: Layers) -> None:
    layers.user('[llm]\ngateway = "http://user"\n')
    layers.environ["LLM_GATEWAY_ENDPOINT"] = ""
    assert layers.load()["llm.gateway"] == "http://user"


def test_the_process_environment_is_the_default(layers: Layers, monkeypatch: pytest.MonkeyPatch) -> None:
    layers.user("[host]\nmax_steps = 7\n")
    monkeypatch.setenv("AGENT_HOST_CONFIG", layers.environ["AGENT_HOST_CONFIG"])
    assert load({}, workspace=None)["host.max_steps"] == 7


def test_without_a_variable_the_users_own_file_is_read_if_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "conf"))
    assert load({}, workspace=None, environ={})["host.max_steps"] == 40
    import platformdirs

    path = os.path.join(platformdirs.user_config_dir("agent-host", appauthor=False), "config.toml")
    assert path.startswith(str(tmp_path))
    os.makedirs(os.path.dirname(path))
    with open(path, "w") as handle:
        handle.write("[host]\nmax_steps = 3\n")
    assert load({}, workspace=None, environ={})["host.max_steps"] == 3


def test_a_file_named_on_purpose_must_be_there(layers: Layers, tmp_path: Path) -> None:
    layers.environ["AGENT_HOST_CONFIG"] = str(tmp_path / "nowhere.toml")
    with pytest.raises(ConfigError, match=r"nowhere\.toml: No such file"):
        layers.load()


def test_a_workspace_need_not_have_a_file(layers: Layers, tmp_path: Path) -> None:
    assert load({}, workspace=str(tmp_path), environ=layers.environ).ignored == ()


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[llm]\ngatway = 'x'", "unknown key llm.gatway; did you mean llm.gateway?"),
        ("[host]\nmaxsteps = 1", "unknown key host.maxsteps; did you mean host.max_steps?"),
        ("[lmm]\nmodel = 'x'", "unknown section [lmm]; did you mean llm?"),
        ("[mcp_servers.a]\ncommand = 'x'", "unknown section [mcp_servers]; a server is a [[mcp.servers]] with name"),
        (
            "[zzzzzzzz]\nq = 1",
            "unknown section [zzzzzzzz]; known are acp, approvals, backend, batch, clients, host, limits, llm, loop, ",
        ),
        ("max_steps = 3", "max_steps is outside of any section; did you mean host.max_steps?"),
        ("[host]\nmax_steps = '3'", 'host.max_steps must be a whole number from 1 to 10,000, not "3"'),
        ("[host]\nmax_steps = 3.0", "host.max_steps must be a whole number from 1 to 10,000, not 3.0"),
        ("[host]\nmax_steps = true", "host.max_steps must be a whole number from 1 to 10,000, not true"),
        ("[host]\nmax_steps = 0", "host.max_steps must be a whole number from 1 to 10,000, not 0"),
        ("[host]\nmax_steps = 10001", "host.max_steps must be a whole number from 1 to 10,000, not 10001"),
        ("[llm]\nread_timeout_s = nan", "llm.read_timeout_s must be a number from 0.1 to 3,600, not NaN"),
        ("[llm]\nread_timeout_s = inf", "llm.read_timeout_s must be a number from 0.1 to 3,600, not Infinity"),
        ("[llm]\nread_timeout_s = true", "llm.read_timeout_s must be a number from 0.1 to 3,600, not true"),
        ("[limits]\nmax_session_tokens = -1", "limits.max_session_tokens must be a whole number of at least 0, not -1"),
        ("[llm]\ndialect = 'klingon'", 'llm.dialect must be one of anthropic, openai, responses, auto, not "klingon"'),
        (
            "[host]\ntoolset = ['desktop', 'mobile']",
            'host.toolset[1] must be one of desktop, native, skills, slim, not "mobile"',
        ),
        ("[llm]\nmodel = 2026-01-01", "llm.model must be a string"),
        ("[tools]\ndisabled = 'RunCommand'", 'tools.disabled must be a list, not "RunCommand"'),
        ("[tools]\ndisabled = [1]", "tools.disabled[0] must be a string, not 1"),
        ("[host", "not valid TOML"),
        ("[host]\nmax_steps = 1\nmax_steps = 2", "not valid TOML"),
    ],
)
@pytest.mark.parametrize("where", ["user", "project"])
def test_a_mistake_is_named_with_its_file(layers: Layers, where: str, text: str, said: str) -> None:
    getattr(layers, where)(text)
    with pytest.raises(ConfigError) as caught:
        layers.load()
    assert said in str(caught.value)
    assert str(caught.value).startswith(
        layers.environ["AGENT_HOST_CONFIG"] if where == "user" else str(layers.workspace / ".agent" / "config.toml")
    )
    assert "\n" not in str(caught.value)


def test_a_byte_order_mark_is_read_over(layers: Layers, tmp_path: Path) -> None:
    (tmp_path / "user.toml").write_bytes(b"\xef\xbb\xbf[host]\r\nmax_steps = 7\r\n")
    layers.project("\ufeff[host]\nmax_steps = 5\n")
    assert layers.load()["host.max_steps"] == 5


def test_a_file_that_is_not_utf_8_is_named(layers: Layers, tmp_path: Path) -> None:
    (tmp_path / "user.toml").write_bytes(b"# \xff\n")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        layers.load()


@pytest.mark.parametrize("text", ["host = 5", "[[host]]\nmax_steps = 3"])
def test_a_known_section_that_is_no_table_is_not_called_unknown(layers: Layers, text: str) -> None:
    layers.user(text)
    with pytest.raises(ConfigError) as caught:
        layers.load()
    assert "unknown" not in str(caught.value)


def test_variables_and_flags_are_checked_like_files(layers: Layers) -> None:
    with pytest.raises(
        ConfigError, match=r"the command line: host\.max_steps must be a whole number from 1 to 10,000, not 0"
    ):
        layers.load(host__max_steps=0)
    with pytest.raises(ConfigError, match=r"the command line: llm\.dialect must be one of anthropic, openai"):
        layers.load(llm__dialect="x")


def test_a_whole_number_does_for_a_number(layers: Layers) -> None:
    layers.user("[llm]\nread_timeout_s = 5\n")
    value = layers.load()["llm.read_timeout_s"]
    assert (value, type(value)) == (5.0, float)


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        ("", True),
        ("http://proxy.example:3128", True),
        ("https://me:p%40ss@proxy.example", True),
        ("http://[::1]:3128/", True),
        ("http://proxy.example:0", False),
        ("http://proxy.example:65536", False),
        ("http://[:::]:80", False),
        ("http://me:pa?ss@proxy.example", False),
        ("socks5://proxy.example", False),
        ("proxy.example:3128", False),
        ("http://proxy.example/path", False),
        ("http://proxy.example\\n", False),
    ],
)
def test_a_proxy_is_a_url_that_no_problem_quotes(layers: Layers, value: str, fits: bool) -> None:
    layers.user(f'[tools]\nhttp_proxy = "{value}"\n')
    if fits:
        assert layers.load()["tools.http_proxy"] == value
        return
    with pytest.raises(ConfigError, match=r"tools\.http_proxy must be empty or the URL of a proxy") as caught:
        layers.load()
    assert not value or value not in str(caught.value)


# --- the workspace may only tighten -----------------------------------------------------------------------------------

HIDDEN = load_defaults()["skills.hidden_files"]
assert isinstance(HIDDEN, list)
NARROWER: dict[str, tuple[str, Any]] = {
    "host.max_steps": ("5", 5),
    "host.max_stored_bytes": ("1000", 1000),
    "llm.progress_timeout_s": ("5", 5.0),
    "llm.answer_timeout_s": ("5", 5.0),
    "llm.max_wait_s": ("5", 5.0),
    "llm.max_line_bytes": ("2048", 2048),
    "llm.max_event_bytes": ("2048", 2048),
    "llm.max_call_arguments_bytes": ("2048", 2048),
    "llm.max_answer_bytes": ("2048", 2048),
    "llm.max_cost": ("2.5", 2.5),
    "tools.allowed": ('["ReadFile"]', ["ReadFile"]),
    "tools.env_allowed": ('["CI_*"]', ["CI_*"]),
    "tools.disabled": ('["RunCommand"]', ["RunCommand"]),
    "tools.file_timeout_s": ("1", 1.0),
    "tools.command_timeout_s": ("2.5", 2.5),
    "tools.command_timeout_max_s": ("2", 2),
    "tools.http_timeout_s": ("1", 1.0),
    "tools.http_timeout_max_s": ("2", 2),
    "tools.max_response_bytes": ("2048", 2048),
    "tools.max_download_bytes": ("2048", 2048),
    "tools.max_output_bytes": ("2048", 2048),
    "tools.max_artifact_bytes": ("65536", 65_536),
    "tools.output_buffer_bytes": ("2048", 2048),
    "tools.max_parallel_commands": ("1", 1),
    "tools.max_parallel_files": ("1", 1),
    "tools.max_parallel_requests": ("1", 1),
    "tools.max_parallel_uploads": ("1", 1),
    "tools.max_background_commands": ("1", 1),
    "tools.background_lifetime_s": ("60", 60),
    "loop.repeat_note": ("2", 2),
    "loop.repeat_limit": ("5", 5),
    "approvals.timeout_s": ("60", 60.0),
    "limits.max_file_size_bytes": ("10", 10),
    "limits.max_session_tokens": ("10", 10),
    "policy.risk_ceiling": ('"low"', "low"),
    "sandbox.level": ('"namespace"', "namespace"),
    "policy.blocked_paths": ('["secrets"]', ["secrets"]),
    "policy.blocked_commands": ('["rm"]', ["rm"]),
    "skills.enabled_tools": ("[]", []),
    "backend.timeout_s": ("5", 5.0),
    "backend.connect_timeout_s": ("1", 1.0),
    "mcp.enabled": ('["one"]', ["one"]),
    "mcp.connect_timeout_s": ("1", 1.0),
    "mcp.timeout_s": ("5", 5.0),
    "skills.max_script_runs": ("1", 1),
    "skills.script_timeout_s": ("1", 1.0),
    "skills.hidden_files": ('["*.mine"]', [*HIDDEN, "*.mine"]),
    "policy.blocked_domains": ('["evil.example"]', ["evil.example"]),
    "policy.command_policies": ('[{command = "ls", maxArguments = 1}]', [{"command": "ls", "maxArguments": 1}]),
}
# Values that differ from the default, for what a workspace must never change.
FORBIDDEN: dict[str, str] = {
    "redaction.detectors": "false",
    "policy.allowed_commands": '["evil"]',
    "sandbox.allowed_domains": '["evil.example"]',
    "host.policy": '"full"',
    "host.toolset": "[]",
    "host.max_run_log_bytes": "100000",
    "host.max_snapshot_bytes": "100000",
    "host.output": '"json"',
    "tools.http_proxy": '"http://evil.example"',
    "tools.https_proxy": '"http://evil.example"',
    "llm.headers": '{ "x-a" = "b" }',
    "models": "{ price_input = 0, price_output = 0 }",
    "host.verbose": "true",
    "serve.begin_timeout_s": "1",
    "batch.node_storage": "'objects'",
    "clients.fork_server": "false",
    "llm.gateway": '"http://evil.example"',
    "llm.dialect": '"openai"',
    "llm.max_tokens_field": '"max_tokens"',
    "llm.prompt_cache_key": '"never"',
    "llm.model": '"other"',
    "llm.fallback_models": '["other"]',
    "llm.tokenizer": '"o200k_base"',
    "llm.connect_timeout_s": "1",
    "llm.read_timeout_s": "1",
    "llm.max_retries": "0",
    "llm.retry_base_s": "0",
    "llm.retry_max_s": "0",
    "tools.env_passthrough": '["LLM_GATEWAY_AUTH_TOKEN"]',
    "tools.installed": '["evil"]',
    "tools.watch_changes": "false",
    "services.timeout_s": "1",
    "services.max_retries": "0",
    "services.retry_base_s": "0",
    "services.retry_max_s": "0",
    "services.upload_max_pending_bytes": "0",
    "services.upload_max_behind_s": "1",
    "services.upload_end_s": "0",
    "retention.max_age_days": "1",
    "retention.max_sessions": "1",
    "retention.max_bytes": "1",
    "retention.keep_file_versions": "false",
    "llm.images": "false",
    "llm.provider": '"openai"',
    "llm.structured_answers": '"never"',
    "host.answer_schema": '"{}"',
    "providers": '{base_url = "https://evil.example"}',
    "host.project_instructions": "false",
    "llm.context_strategy": '"summarize"',
    "llm.summary_model": '"cheap"',
    "llm.cache_ttl": '"1h"',
    "mcp.servers": '[{name = "evil", transport = "stdio", command = "/bin/sh"}]',
    "native.root_dir": '"/"',
    "native.additional_roots": '["/"]',
    "native.exec": '[{command = "/bin/sh"}]',
    "native.tls_checks": "false",
    "native.allow_shadow": "true",
    "acp.client_servers": "true",
}


def toml(key: str, value: str) -> str:
    section, _, name = key.partition(".")
    return f"[{section}]\n{name or 'm'} = {value}\n"


def test_every_setting_is_one_or_the_other() -> None:
    assert {*NARROWER, *FORBIDDEN} == {*SETTINGS}
    assert {key for key in SETTINGS if SETTINGS[key].tightening is Tightening.NEVER} == {*FORBIDDEN}


@pytest.mark.parametrize("key", NARROWER)
def test_a_workspace_may_narrow(layers: Layers, key: str) -> None:
    text, value = NARROWER[key]
    layers.project(toml(key, text))
    settings = layers.load()
    assert settings[key] == value
    assert settings.ignored == ()


@pytest.mark.parametrize("key", FORBIDDEN)
def test_a_workspace_may_not_touch_the_rest(layers: Layers, key: str) -> None:
    before = layers.load()[key]
    layers.project(toml(key, FORBIDDEN[key]))
    settings = layers.load()
    assert settings[key] == before
    (said,) = settings.ignored
    assert said.startswith(str(layers.workspace / ".agent" / "config.toml") + f": {key} = ")
    assert "ignored" in said


@pytest.mark.parametrize(
    ("key", "present", "wider"),
    [
        ("host.max_steps", "5", "6"),
        ("tools.file_timeout_s", "1", "1.5"),
        ("tools.command_timeout_s", "10", "600"),
        ("tools.http_timeout_s", "1", "60"),
        ("tools.command_timeout_max_s", "10", "600"),
        ("tools.http_timeout_max_s", "1", "60"),
        ("tools.max_response_bytes", "2000", "2001"),
        ("tools.max_download_bytes", "2000", "2001"),
        ("tools.max_output_bytes", "2000", "2001"),
        ("limits.max_file_size_bytes", "10", "11"),
        ("limits.max_file_size_bytes", "10", "0"),
        ("limits.max_session_tokens", "10", "0"),
        ("llm.max_cost", "0.5", "0.6"),
        ("llm.max_cost", "0.5", "0"),
    ],
)
def test_a_workspace_may_not_widen_and_is_told_so(layers: Layers, key: str, present: str, wider: str) -> None:
    layers.user(toml(key, present))
    before = layers.load()[key]
    layers.project(toml(key, wider))
    settings = layers.load()
    assert settings[key] == before
    assert len(settings.ignored) == 1
    assert "a workspace may change it to a smaller number" in settings.ignored[0]


@pytest.mark.parametrize(
    "key", ["tools.disabled", "policy.blocked_paths", "policy.blocked_commands", "policy.blocked_domains"]
)
def test_a_workspace_adds_to_lists_and_takes_nothing_away(layers: Layers, key: str) -> None:
    layers.user(toml(key, '["a", "b"]'))
    layers.project(toml(key, "[]"))
    assert layers.load()[key] == ["a", "b"]
    layers.project(toml(key, '["b", "c"]'))
    settings = layers.load()
    assert settings[key] == ["a", "b", "c"]
    assert settings.ignored == ()


def test_a_workspace_adds_tables_to_those_of_the_user(layers: Layers) -> None:
    layers.user('[[policy.command_policies]]\ncommand = "ls"\n[[policy.command_policies]]\ncommand = "git"\n')
    layers.project('[[policy.command_policies]]\ncommand = "ls"\n[[policy.command_policies]]\ncommand = "cat"\n')
    settings = layers.load()
    assert settings.policy.command_policies == ({"command": "ls"}, {"command": "git"}, {"command": "cat"})
    assert settings.ignored == ()


def test_a_list_of_tables_is_no_list_of_strings(layers: Layers) -> None:
    layers.user('[policy]\ncommand_policies = ["ls"]\n')
    with pytest.raises(ConfigError, match=r"\[\[policy.command_policies\]\]"):
        layers.load()


@pytest.mark.parametrize(
    ("user", "project", "left"),
    [
        ('["ReadFile"]', '["ReadFile", "RunCommand"]', ["ReadFile"]),
        ('["ReadFile"]', '["RunCommand"]', []),
        ('["ReadFile"]', '["*"]', ["ReadFile"]),
        ('["ReadFile", "WriteFile"]', '["WriteFile"]', ["WriteFile"]),
        ('["*"]', '["WriteFile"]', ["WriteFile"]),
        ('["*"]', "[]", []),
        ("[]", '["*"]', []),
    ],
)
def test_of_two_lists_of_tools_counts_what_stands_in_both(
    layers: Layers, user: str, project: str, left: list[str]
) -> None:
    layers.user(toml("tools.allowed", user))
    layers.project(toml("tools.allowed", project))
    settings = layers.load()
    assert settings["tools.allowed"] == left
    wider = [one for one in json.loads(project) if one not in left and "*" not in json.loads(user)]
    assert [str(one) in line for line in settings.ignored for one in wider] == [True] * len(wider)
    assert len(settings.ignored) == bool(wider)


@pytest.mark.parametrize(
    ("user", "project", "left"), [("low", "high", "low"), ("medium", "high", "medium"), ("medium", "low", "low")]
)
def test_of_two_ceilings_the_lower_one_counts(layers: Layers, user: str, project: str, left: str) -> None:
    layers.user(toml("policy.risk_ceiling", f'"{user}"'))
    layers.project(toml("policy.risk_ceiling", f'"{project}"'))
    settings = layers.load()
    assert settings["policy.risk_ceiling"] == left
    assert bool(settings.ignored) == (left != project)


def test_a_workspace_tightens_what_the_command_line_says(layers: Layers) -> None:
    layers.project("[host]\nmax_steps = 5\n")
    assert layers.load(host__max_steps=9)["host.max_steps"] == 5
    assert layers.load(host__max_steps=3)["host.max_steps"] == 3


def test_the_present_value_said_again_is_no_attempt(layers: Layers) -> None:
    layers.project('[host]\npolicy = "workspace"\nmax_steps = 40\n')
    assert layers.load().ignored == ()


def test_what_narrows_counts_although_another_line_is_ignored(layers: Layers) -> None:
    layers.project('[host]\nmax_steps = 5\npolicy = "full"\n[limits]\nmax_session_tokens = 7\n[llm]\nmodel = "x"\n')
    settings = layers.load()
    assert (settings["host.max_steps"], settings["limits.max_session_tokens"]) == (5, 7)
    assert len(settings.ignored) == 2


def test_loading_twice_gives_lists_of_their_own(layers: Layers) -> None:
    layers.project(toml("tools.disabled", '["a"]'))
    assert layers.load()["tools.disabled"] == layers.load()["tools.disabled"] == ["a"]
