"""The provider that a run asks, where its key goes, and where it does not go: real processes over real HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
from typing import TYPE_CHECKING, Any

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from config.providers import KNOWN
from tests.support.model_server import ModelServer, keyring, model_server, redirecting
from tests.support.process import PATIENCE_S, say, shell, use
from tests.support.secrets import assert_not_kept, assert_nowhere

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.support.process import Host, Outcome
    from tests.support.serve_process import Servers

KEY, OTHER_KEY, TOKEN = "key-8f1c02d94b7ae653", "key-51d7a90be2c84f36", "tok-c4e81f0a72b6935d"
FOUND = ("anthropic", "openai", "openrouter", "gemini")
ANTHROPIC = {"dialect": "anthropic", "model": "m"}
PATHS = {"anthropic": "/v1/messages"}


def found(name: str, server: ModelServer, key: str = KEY) -> dict[str, str]:
    """The variables by which a provider is found, at this server."""
    return {KNOWN[name].key_env: key, KNOWN[name].url_env: server.url}


def header(name: str, key: str = KEY) -> tuple[str, str]:
    """The header that carries the key of a provider."""
    return ("x-api-key", key) if KNOWN[name].dialect == "anthropic" else ("authorization", f"Bearer {key}")


def configure(host: Host, text: str) -> None:
    host.configure(max_retries=0)
    path = host.root / "user.toml"
    path.write_text(path.read_text() + text)


def entry(name: str, server: ModelServer | None, **fields: Any) -> str:
    """A section of the configuration."""
    given = {"base_url": server.url, **fields} if server is not None else fields
    rows = "".join(
        f"{key} = {{ {', '.join(f'{json.dumps(a)} = {json.dumps(b)}' for a, b in value.items())} }}\n"
        if isinstance(value, dict)
        else f"{key} = {json.dumps(value)}\n"
        for key, value in given.items()
    )
    return f"[providers.{name}]\n{rows}"


def run(host: Host, *options: str | os.PathLike[str], env: Mapping[str, str] | None = None) -> Outcome:
    return host.run("run", "Do it.", "--policy", "full", *options, env=env)


# --- which one --------------------------------------------------------------------------------------------------------


@pytest.mark.many_rows(2)
@pytest.mark.parametrize("name", FOUND)
def test_one_key_in_the_environment_is_enough(host: Host, name: str) -> None:
    known = KNOWN[name]
    with model_server() as server:
        outcome = run(host, env={**found(name, server), "LLM_GATEWAY_AUTH_TOKEN": TOKEN})
        (asked,) = server.posted
    assert (outcome.code, outcome.text) == (0, "Done.\n"), outcome.stderr
    assert outcome.lines[0] == f"agent-host: {name}: {known.model} at {server.url} (${known.key_env})"
    assert asked.body["model"] == known.model
    assert asked.path == PATHS.get(name, "/v1/chat/completions")
    assert server.keys == {header(name)}
    assert_nowhere(outcome.stdout + outcome.stderr.encode(), "what was printed", [KEY, TOKEN])
    assert_not_kept(host, [KEY, TOKEN])


def test_the_line_that_names_the_provider_has_no_user_and_no_password(host: Host) -> None:
    with model_server() as server:
        url = server.url.replace("//", "//me:pass-7c31@")
        outcome = run(host, env={"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": url})
    assert outcome.code == 0, outcome.stderr
    assert outcome.lines[0] == f"agent-host: anthropic: claude-sonnet-5 at {server.url} ($ANTHROPIC_API_KEY)"
    assert "pass-7c31" not in outcome.stderr + outcome.text
    assert_not_kept(host, ["pass-7c31", KEY])


@pytest.mark.slow
def test_the_line_is_for_standard_error_whatever_standard_output_is_for(host: Host) -> None:
    with model_server() as server:
        outcome = run(host, "--output", "json", env=found("anthropic", server))
    assert outcome.result["status"] == "TASK_COMPLETED"
    assert outcome.lines[0].startswith("agent-host: anthropic: claude-sonnet-5 at ")


@pytest.mark.many_rows(1)
@pytest.mark.parametrize("way", ["--gateway", "LLM_GATEWAY_ENDPOINT", "[llm]"])
def test_a_gateway_gets_its_own_token_and_no_key_that_was_found(host: Host, way: str) -> None:
    with model_server() as server, model_server() as other:
        env = {**found("anthropic", other), "OPENAI_API_KEY": OTHER_KEY, "LLM_GATEWAY_AUTH_TOKEN": TOKEN}
        env |= {"LLM_GATEWAY_ENDPOINT": server.url} if way == "LLM_GATEWAY_ENDPOINT" else {}
        configure(host, f'gateway = "{server.url}"\n' if way == "[llm]" else "")
        outcome = run(host, *(["--gateway", server.url] if way == "--gateway" else []), env=env)
        assert other.asked == []
        assert server.keys == {("x-api-key", TOKEN), ("authorization", f"Bearer {TOKEN}")}
    assert outcome.code == 0, outcome.stderr
    assert "anthropic:" not in outcome.stderr


def test_each_place_goes_over_those_below_it_with_its_own_key(host: Host) -> None:
    """The command line over a variable, over the configuration, over what is found."""
    with model_server(say("1", repeat=9)) as work, model_server() as plain, model_server() as key_only:
        configure(host, f'[providers]\ndefault = "work"\n{entry("work", work, key_env="WORK_KEY", **ANTHROPIC)}')
        env = {**found("anthropic", key_only), "WORK_KEY": OTHER_KEY, "LLM_GATEWAY_AUTH_TOKEN": TOKEN}
        assert run(host, env=env).lines[0].endswith(f" at {work.url} (providers.default)")
        assert run(host, "--provider", "work", env=env | {"LLM_GATEWAY_ENDPOINT": plain.url}).code == 0
        assert len(work.posted) == 2
        assert plain.asked == []
        assert run(host, env=env | {"LLM_GATEWAY_ENDPOINT": plain.url}).code == 0
        assert (len(work.posted), len(plain.posted), key_only.asked) == (2, 1, [])
        assert run(host, "--provider", "anthropic", env=env).lines[0].endswith(f" at {key_only.url} (--provider)")
        assert (work.keys, key_only.keys) == ({("x-api-key", OTHER_KEY)}, {("x-api-key", KEY)})


def test_an_entry_says_all_that_a_request_needs(host: Host) -> None:
    with model_server() as server:
        fields = {"dialect": "openai", "model": "m-1", "key_env": "WORK_KEY", "context_tokens": 12_000}
        configure(host, entry("work", server, **fields, headers={"x-team": "blue"}))
        host_options = ("--provider", "work", "--policy", "workspace", "--output", "json")
        outcome = host.run("run", "Do it.", *host_options, env={"WORK_KEY": KEY})
        (asked,) = server.posted
    assert outcome.code == 0, outcome.stderr
    assert (asked.path, asked.body["model"], asked.headers["x-team"]) == ("/v1/chat/completions", "m-1", "blue")
    assert asked.key == {"authorization": f"Bearer {KEY}"}
    assert len(asked.body["tools"]) == 6, "a window of this size gets the slim tools"


def test_headers_of_the_gateway_do_not_go_to_a_provider(host: Host) -> None:
    with model_server() as server:
        configure(host, f'headers = {{ authorization = "Bearer {TOKEN}", x-org = "gateway" }}\n')
        assert run(host, env=found("anthropic", server)).code == 0
        (asked,) = server.posted
    assert asked.key == {"x-api-key": KEY}
    assert "x-org" not in asked.headers


@pytest.mark.many_rows(1)
@pytest.mark.parametrize("name", ["anthropic", "openai"])
def test_a_key_in_plain_text_takes_the_place_of_the_variable(host: Host, name: str) -> None:
    field, value = header(name)
    with model_server() as server:
        configure(host, entry(name, server, headers={field: value}))
        outcome = run(host, "--provider", name, env={})
        assert server.keys == {(field, value)}
    assert outcome.code == 0, outcome.stderr
    assert_not_kept(host, [KEY])


def test_without_any_provider_the_message_says_what_to_do(host: Host) -> None:
    (host.workspace / ".env").write_text(f"ANTHROPIC_API_KEY={KEY}\n")
    (host.workspace / ".agent").mkdir()
    (host.workspace / ".agent" / ".env").write_text(f"OPENAI_API_KEY={KEY}\n")
    outcome = run(host)
    assert outcome.code == 2
    for part in ("agent-host init", "ANTHROPIC_API_KEY", "OPENAI_API_KEY", "--gateway", "LLM_GATEWAY_ENDPOINT"):
        assert part in outcome.error


def test_a_workspace_names_no_provider_and_no_place_for_a_key(host: Host) -> None:
    (host.workspace / ".agent").mkdir()
    with model_server() as theirs, model_server() as server:
        text = '[llm]\nprovider = "evil"\n[providers]\ndefault = "evil"\n'
        text += entry("evil", theirs, key_env="OPENAI_API_KEY")
        (host.workspace / ".agent" / "config.toml").write_text(text + entry("anthropic", theirs))
        (host.workspace / ".env").write_text(f"ANTHROPIC_BASE_URL={theirs.url}\n")
        outcome = run(host, env={**found("anthropic", server), "OPENAI_API_KEY": OTHER_KEY})
        assert (theirs.asked, server.keys) == ([], {("x-api-key", KEY)})
    assert outcome.code == 0, outcome.stderr
    outcome.names_once(".agent/config.toml", "providers")
    outcome.names_once(".agent/config.toml", "llm.provider")


def test_a_provider_that_is_none_and_a_key_that_is_not_there(host: Host) -> None:
    unknown = run(host, "--provider", "antropic")
    assert unknown.code == 2
    assert "anthropic" in unknown.error
    unset = run(host, "--provider", "openai", env={"ANTHROPIC_API_KEY": KEY})
    assert unset.code == 2
    assert "OPENAI_API_KEY" in unset.error
    odd = run(host, env={"ANTHROPIC_API_KEY": f"{KEY}\tx"})
    assert odd.code == 2
    assert "ANTHROPIC_API_KEY" in odd.error
    assert KEY not in odd.error
    assert not host.state.exists() or host.checkpoints() == []


# --- one origin -------------------------------------------------------------------------------------------------------


@pytest.mark.many_rows(3)
@pytest.mark.parametrize("url", ["http://192.0.2.1", "HTTP://llm.example.com/v1", "http://10.0.0.1:8080"])
@pytest.mark.parametrize("way", ["variable", "entry", "header"])
def test_no_key_goes_over_plain_http_to_another_machine(host: Host, url: str, way: str) -> None:
    env = {"ANTHROPIC_API_KEY": KEY} if way != "header" else {}
    if way == "variable":
        env["ANTHROPIC_BASE_URL"] = url
    else:
        headers = f'headers = {{ X-Api-Key = "{KEY}" }}\n' if way == "header" else ""
        configure(host, f'[providers]\ndefault = "anthropic"\n[providers.anthropic]\nbase_url = "{url}"\n{headers}')
    outcome = run(host, env=env)
    assert outcome.code == 2, outcome.stderr
    assert "plain http" in outcome.error
    assert KEY not in outcome.error


@pytest.mark.many_rows(1)
@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_over_plain_http_a_key_goes_to_this_machine_and_to_no_proxy(host: Host, name: str) -> None:
    with model_server() as server, model_server() as proxy:
        env = {**found("anthropic", server), "http_proxy": proxy.url, "all_proxy": proxy.url}
        env["ANTHROPIC_BASE_URL"] = f"http://{name}:{server.port}"
        assert run(host, env=env).code == 0
        assert (proxy.asked, server.keys) == ([], {("x-api-key", KEY)})


@pytest.mark.many_rows(1)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_key_does_not_go_along_a_redirect(host: Host, status: int) -> None:
    configure(host, "")
    with model_server(models=["claude-sonnet-5"]) as elsewhere, redirecting(elsewhere.url, status) as server:
        outcome = run(host, env=found("anthropic", server))
        assert outcome.code in (1, 3), outcome.stderr
        assert server.keys == {("x-api-key", KEY)}
        assert elsewhere.asked == []
    assert_nowhere(outcome.stdout + outcome.stderr.encode(), "what was printed", [KEY])
    assert_not_kept(host, [KEY])


@pytest.mark.parametrize("way", ["models", "dialect", pytest.param("doctor", marks=pytest.mark.slow)])
def test_nothing_else_that_is_asked_follows_a_redirect(host: Host, way: str) -> None:
    with model_server(models=["m"]) as elsewhere, redirecting(elsewhere.url, 307) as server:
        fields = {"dialect": "auto"} if way == "dialect" else {}
        configure(host, entry("anthropic", server, **fields))
        policy = host.policy(llm={"allowedModels": ["m"]}) if way == "models" else "full"
        words = ("doctor", "--deep") if way == "doctor" else ("run", "Do it.", "--policy", str(policy))
        outcome = host.run(*words, env={"ANTHROPIC_API_KEY": KEY})
        assert outcome.code != 0
        assert {value.removeprefix("Bearer ") for _, value in server.keys} == {KEY}
        assert elsewhere.asked == []
        assert way != "doctor" or f"redirects to {elsewhere.url}" in outcome.stderr + outcome.text
    assert KEY not in outcome.stderr + outcome.text


# --- the model --------------------------------------------------------------------------------------------------------


def bundle_of(host: Host, *models: str) -> Path:
    return host.policy(llm={"allowedModels": list(models)})


def under(host: Host, policy: Path, *options: str, env: Mapping[str, str]) -> Outcome:
    return host.run("run", "Do it.", "--policy", policy, *options, env=env)


def test_under_a_bundle_the_first_allowed_model_that_is_served_is_taken(host: Host) -> None:
    policy = bundle_of(host, "a", "b", "c")
    with model_server(models=["c", "x", "b"]) as server:
        configure(host, "[providers.anthropic]\ncontext_tokens = 12000\n")
        outcome = under(host, policy, env=found("anthropic", server))
        (asked,), listed = server.posted, server.listed
    assert outcome.code == 0, outcome.stderr
    assert asked.body["model"] == "b"
    assert len(asked.body["tools"]) == 6, "a window of this size gets the slim tools"
    assert outcome.lines[0].startswith("agent-host: anthropic: b at ")
    assert [one.key for one in listed] == [{"x-api-key": KEY}] * len(listed)
    assert listed


def test_where_no_allowed_model_is_served_both_lists_are_named(host: Host) -> None:
    policy = bundle_of(host, "a", "b")
    with model_server(models=["c", "d"]) as server:
        outcome = under(host, policy, env=found("openai", server))
        assert server.posted == []
    assert outcome.code == 2
    for part in ("a, b", "c, d"):
        assert part in outcome.error


def test_a_model_that_an_entry_names_and_the_bundle_allows_is_not_asked_for(host: Host) -> None:
    policy = bundle_of(host, "a", "b")
    with model_server(models=["a"]) as server:
        configure(host, entry("anthropic", server, model="b"))
        outcome = under(host, policy, env={"ANTHROPIC_API_KEY": KEY})
        (asked,) = server.posted
    assert outcome.code == 0, outcome.stderr
    assert asked.body["model"] == "b"


@pytest.mark.slow
def test_a_model_that_is_named_goes_over_the_provider_s(host: Host) -> None:
    with model_server(say("1"), say("2")) as server:
        configure(host, entry("anthropic", server, model="of-the-entry"))
        assert run(host, "--model", "mine", env={"ANTHROPIC_API_KEY": KEY}).code == 0
        assert run(host, env={"ANTHROPIC_API_KEY": KEY}).code == 0
        assert [one.body["model"] for one in server.posted] == ["mine", "of-the-entry"]


@pytest.mark.many_rows(1)
@pytest.mark.parametrize("policy", ["workspace", "ci", "read-only"])
def test_a_built_in_allows_the_provider_s_model(host: Host, policy: str) -> None:
    with model_server() as server:
        configure(host, entry("work", server, dialect="openai", model="unheard-of", key_env="WORK_KEY"))
        outcome = host.run("run", "Do it.", "--provider", "work", "--policy", policy, env={"WORK_KEY": KEY})
        assert [one.body["model"] for one in server.posted] == ["unheard-of"]
    assert outcome.code == 0, outcome.stderr


@pytest.mark.many_rows(2)
@pytest.mark.parametrize(("models", "code"), [(["qwen"], 0), (["qwen", "llama"], 2), ([], 2)])
def test_a_server_without_a_usual_model_is_asked_for_it(host: Host, models: list[str], code: int) -> None:
    with model_server(models=models) as server:
        configure(host, entry("mine", server, dialect="openai"))
        outcome = run(host, "--provider", "mine", env={"ANTHROPIC_API_KEY": KEY})
        assert [one.body["model"] for one in server.posted] == (["qwen"] if code == 0 else [])
        assert server.keys == set()
        if code == 0:
            assert outcome.lines[0].startswith("agent-host: mine: qwen at ")
        else:
            assert "--model" in outcome.error
            assert ", ".join(models) in outcome.error
        assert outcome.code == code
        if len(models) == 2:
            assert run(host, "--provider", "mine", "--model", "llama").code == 0


# --- the keyring ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_key_comes_from_the_keyring(host: Host, tmp_path: Path) -> None:
    env = keyring(tmp_path, work=KEY)
    with model_server() as server:
        configure(host, entry("work", server, dialect="openai", model="m", key_keyring="work"))
        outcome = run(host, "--provider", "work", env={**env, "OPENAI_API_KEY": OTHER_KEY})
        assert server.keys == {("authorization", f"Bearer {KEY}")}
    assert outcome.code == 0, outcome.stderr
    assert_nowhere(outcome.stdout + outcome.stderr.encode(), "what was printed", [KEY])
    assert_not_kept(host, [KEY])


@pytest.mark.many_rows(1)
@pytest.mark.parametrize(
    ("holds", "said"), [("{}", "has nothing under work"), ("null", "it is locked"), ("", "not installed")]
)
def test_a_keyring_that_does_not_give_the_key(host: Host, tmp_path: Path, holds: str, said: str) -> None:
    env = keyring(tmp_path)
    if holds:
        (tmp_path / "site" / "keyring" / "secrets.json").write_text(holds)
    else:
        (tmp_path / "site" / "keyring" / "__init__.py").write_text("raise ImportError('no such thing')\n")
    with model_server() as server:
        configure(host, entry("work", server, dialect="openai", model="m", key_keyring="work"))
        outcome = run(host, "--provider", "work", env=env)
        assert server.asked == []
    assert outcome.code == 2
    assert said in outcome.error


# --- a resume ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_resume_goes_on_with_the_provider_and_the_model_that_the_session_began_with(host: Host) -> None:
    trouble = {"status": 500}
    with (
        model_server(use(shell("true")), trouble, say("One."), trouble, say("Two.")) as openai,
        model_server() as anthropic,
        model_server(say("Other.", repeat=9)) as work,
    ):
        configure(host, "")
        began = run(host, "--session-id", "s", env=found("openai", openai))
        assert began.code == 3, began.stderr
        env = {**found("openai", openai), **found("anthropic", anthropic, OTHER_KEY)}
        configure(host, f'[providers]\ndefault = "work"\n{entry("work", work, dialect="openai", model="w")}')
        again = host.run("resume", "s", env=env)
        assert (again.code, again.text) == (0, "One.\n"), again.stderr
        assert f"openai: {KNOWN['openai'].model} at {openai.url}" in again.lines[1]
        next_task = host.run("resume", "s", "Again.", env=env)
        assert next_task.code == 3
        assert (anthropic.asked, work.asked) == ([], [])
        assert {one.body["model"] for one in openai.posted} == {KNOWN["openai"].model}
        assert openai.keys == {header("openai")}
        gone = host.run("resume", "s", env=found("anthropic", anthropic))
        assert gone.code == 2
        assert "OPENAI_API_KEY" in gone.error
        replaced = host.run("resume", "s", "--provider", "work", env=env)
        assert (replaced.code, replaced.text) == (0, "Other.\n"), replaced.stderr
        assert [(one.body["model"], one.key) for one in work.posted] == [("w", {})]


@pytest.mark.slow
def test_a_resume_under_a_bundle_keeps_the_model_that_was_found(host: Host) -> None:
    policy = bundle_of(host, "a", "b")
    configure(host, "")
    with model_server({"status": 500}, say("Done."), models=["b"]) as server:
        began = host.run("run", "Do it.", "--policy", policy, "--session-id", "s", env=found("anthropic", server))
        assert began.code == 3, began.stderr
        asked = len(server.listed)
        again = host.run("resume", "s", env=found("anthropic", server))
        assert again.code == 0, again.stderr
        assert [one.body["model"] for one in server.posted] == ["b", "b"]
        assert len(server.listed) == asked


@pytest.mark.slow
def test_a_named_provider_is_that_of_a_resume_as_well(host: Host) -> None:
    with (
        model_server({"status": 500}, say("Done.")) as server,
        model_server(say("At the gateway.", repeat=9)) as plain,
    ):
        configure(host, entry("work", server, dialect="anthropic", model="w", key_env="WORK_KEY"))
        env = {"WORK_KEY": KEY, "LLM_GATEWAY_AUTH_TOKEN": TOKEN}
        assert run(host, "--provider", "work", "--session-id", "s", env=env).code == 3
        again = host.run("resume", "s", env={**env, "ANTHROPIC_API_KEY": OTHER_KEY})
        assert (again.code, again.text) == (0, "Done.\n"), again.stderr
        assert server.keys == {("x-api-key", KEY)}
        elsewhere = host.run("resume", "s", "Again.", "--gateway", plain.url, env=env)
        assert elsewhere.code == 0, elsewhere.stderr
        assert plain.keys == {("x-api-key", TOKEN), ("authorization", f"Bearer {TOKEN}")}


@pytest.mark.slow
def test_a_session_of_a_gateway_goes_on_with_a_provider_and_back(host: Host) -> None:
    trouble = {"status": 500}
    with model_server(trouble, trouble, say("Plain.")) as plain, model_server(trouble, say("Work.")) as work:
        configure(host, entry("work", work, key_env="WORK_KEY", **ANTHROPIC))
        env = {"WORK_KEY": KEY, "LLM_GATEWAY_AUTH_TOKEN": TOKEN, "ANTHROPIC_API_KEY": OTHER_KEY}
        assert run(host, "--gateway", plain.url, "--session-id", "s", env=env).code == 3
        assert host.run("resume", "s", "--provider", "work", env=env).code == 3
        assert host.run("resume", "s", env=env).code == 3, "the gateway of its beginning"
        assert (len(plain.posted), len(work.posted)) == (2, 1)
        assert host.run("resume", "s", "--provider", "work", env=env).text == "Work.\n"
        assert work.keys == {("x-api-key", KEY)}
        assert {value.removeprefix("Bearer ") for _, value in plain.keys} == {TOKEN}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["--gateway", "LLM_GATEWAY_ENDPOINT"])
def test_a_session_of_a_gateway_that_is_not_on_record_goes_to_no_other_one(host: Host, way: str) -> None:
    trouble = {"status": 500}
    with model_server(trouble, trouble, say("Plain.")) as plain, model_server(say("Work.")) as work:
        url = plain.url.replace("//", "//me:pass-7c31@")
        named, env = (("--gateway", url), {}) if way == "--gateway" else ((), {way: url})
        configure(host, f'[providers]\ndefault = "work"\n{entry("work", work, key_env="WORK_KEY", **ANTHROPIC)}')
        keys = {"WORK_KEY": KEY}
        paused = run(host, *named, "--session-id", "s", env=keys | env)
        shown = f" --gateway {plain.url}" if named else ""
        assert (paused.code, paused.lines[-1]) == (3, f"agent-host: resume with: agent-host resume s{shown}")
        refused = host.run("resume", "s", env=keys)
        assert refused.code == 2
        assert "not recorded: give --gateway again" in refused.error
        assert (plain.url in refused.error) == bool(named)
        if named:
            elsewhere = host.run("resume", "s", env=keys | {"LLM_GATEWAY_ENDPOINT": work.url})
            assert (elsewhere.code, work.asked) == (2, []), elsewhere.stderr
        as_printed = host.run("resume", "s", *shown.split(), env=keys | env)
        assert (as_printed.code, as_printed.lines[-1]) == (3, paused.lines[-1])
        resumed = host.run("resume", "s", *named, env=keys | env)
        assert (resumed.code, resumed.text, work.asked) == (0, "Plain.\n", []), resumed.stderr
    for outcome in (paused, refused, as_printed, resumed):
        assert "pass-7c31" not in outcome.stderr + outcome.text
    assert_not_kept(host, ["pass-7c31"])


@pytest.mark.slow
def test_a_gateway_of_the_environment_takes_the_place_of_a_provider_in_a_resume(host: Host) -> None:
    with model_server({"status": 500}, {"status": 500}) as server, model_server() as plain:
        configure(host, entry("work", server, key_env="WORK_KEY", **ANTHROPIC))
        env = {"WORK_KEY": KEY, "LLM_GATEWAY_AUTH_TOKEN": TOKEN}
        assert run(host, "--provider", "work", "--session-id", "named", env=env).code == 3
        env["LLM_GATEWAY_ENDPOINT"] = plain.url
        still = host.run("resume", "named", env=env)
        assert (len(server.posted), plain.asked) == (2, []), still.stderr
    with model_server({"status": 500}) as server, model_server() as plain:
        configure(host, f'[providers]\ndefault = "work"\n{entry("work", server, key_env="WORK_KEY", **ANTHROPIC)}')
        env = {"WORK_KEY": KEY, "LLM_GATEWAY_AUTH_TOKEN": TOKEN}
        assert run(host, "--session-id", "s", env=env).code == 3
        moved = host.run("resume", "s", env=env | {"LLM_GATEWAY_ENDPOINT": plain.url})
        assert (moved.code, moved.text) == (0, "Done.\n"), moved.stderr
        assert {value.removeprefix("Bearer ") for _, value in plain.keys} == {TOKEN}


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--provider", "work")])
def test_a_session_of_a_provider_runs_again_without_it(host: Host, options: tuple[str, ...]) -> None:
    with model_server(use(shell("echo once")), say("Done.")) as server:
        configure(host, entry("work", server, key_env="WORK_KEY", **ANTHROPIC))
        env = {**found("openai", server), "WORK_KEY": OTHER_KEY}
        assert run(host, *options, "--session-id", "s", env=env).code == 0
        asked = len(server.asked)
        for variables in ({}, {"GEMINI_API_KEY": KEY}):
            again = host.run("replay", "s", "--workspace", str(host.workspace), env=variables)
            assert (again.code, again.text) == (0, "1 call, all as on record\n"), again.stderr
        assert len(server.asked) == asked


# --- what nobody gets to know -----------------------------------------------------------------------------------------

LOOK = """
import os
for name, value in os.environ.items():
    print(f"{name}={value}")
print("processes that have it:")
for pid in filter(str.isdecimal, os.listdir("/proc")):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            if KEY.encode() in file.read():
                print(pid)
    except OSError:
        pass
print("looked")
"""


def look(host: Host, key: str) -> dict[str, Any]:
    """A command that prints its variables, and the processes of this machine that have the key in theirs."""
    (host.root / "look.py").write_text(f"KEY = {key[:8]!r} + {key[8:]!r}\n{LOOK}")
    return shell(f"{sys.executable} -I {host.root / 'look.py'}")


def fresh_key() -> str:
    """A key that no other process of this machine has, which runs the same test."""
    return f"key-{secrets.token_hex(8)}"


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
@pytest.mark.parametrize(
    ("name", "variable"),
    [("work", "WORK_KEY"), pytest.param("anthropic", "ANTHROPIC_API_KEY", marks=pytest.mark.slow)],
)
@pytest.mark.slow
def test_no_child_and_no_record_has_the_key(host: Host, name: str, variable: str) -> None:
    """Nor has a process that helps, such as the one that ends what a background command has left."""
    host.cold, key = True, fresh_key()
    turns = [
        use(shell("sleep 50", background=True), look(host, key)),
        use(shell(f"echo {key}; echo {key} > left")),
        {"status": 401, "error": {"type": "authentication_error", "message": f"bad key {key}"}, "times": "always"},
    ]
    with model_server(*turns) as server:
        fields = {"model": "m", "dialect": "anthropic", "key_env": variable}
        configure(host, entry(name, server, **fields))
        path = host.root / "user.toml"
        path.write_text(path.read_text() + f'[tools]\nenv_passthrough = ["{variable}", "SHOWN_TOKEN"]\n')
        env = {variable: key, "SHOWN_TOKEN": "shown"}
        outcome = run(host, "--provider", name, "--output", "jsonl", "--session-id", "s", env=env)
        assert outcome.code == 1, outcome.stderr
        looked = server.model.results(1)[1].text if server.model else ""
        assert server.keys == {("x-api-key", key)}
        bodies = json.dumps([one.body for one in server.asked]).encode()
    assert "SHOWN_TOKEN=shown" in looked
    assert f"{variable}={key}" not in looked
    assert "processes that have it:\nlooked" in looked
    assert_nowhere(bodies, "requests", [key])
    assert_nowhere(outcome.stdout + outcome.stderr.encode(), "what was printed", [key])
    assert_not_kept(host, [key])
    shown = host.run("show", "s", "--output", "json", env=env)
    assert_nowhere(shown.stdout + shown.stderr.encode(), "show", [key])


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
def test_a_server_finds_its_provider_and_keeps_the_key_to_itself(servers: Servers) -> None:
    servers.host.cold, key = True, fresh_key()
    with model_server(use(look(servers.host, key)), say("Done.")) as server:
        configure(servers.host, entry("work", server, dialect="anthropic", model="m", key_env="INNOCENT"))
        serve = servers.start("--policy", "full", "--provider", "work", env={"INNOCENT": key})
        client = serve.on_streams()
        client.create()
        client.task()
        client.event("task_completed")
        looked = server.model.results(1)[0].text if server.model else ""
        assert server.keys == {("x-api-key", key)}
        client.call("Shutdown")
        serve.finish()
    assert "processes that have it:\nlooked" in looked
    assert_not_kept(servers.host, [key])


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
@pytest.mark.parametrize("variable", ["INNOCENT", "ANTHROPIC_API_KEY"])
def test_a_server_for_other_agents_finds_its_provider_and_shows_no_process_its_key(host: Host, variable: str) -> None:
    key = fresh_key()

    async def ask() -> str:
        command = StdioServerParameters(
            command=sys.executable,
            args=["-P", "-m", "agent_host", "mcp", "--policy", str(host.policy(llm={"allowedModels": ["m"]}))],
            env=host.environment({variable: key, "OPENAI_API_KEY": OTHER_KEY}),
            cwd=os.fspath(host.workspace),
        )
        async with Client(command, read_timeout_seconds=PATIENCE_S) as client:
            result = await client.call_tool("run_task", {"prompt": "Do it."})
            return str(result.structured_content)

    with model_server(use(look(host, key)), say("Done.")) as server:
        text = f'[providers]\ndefault = "work"\n{entry("work", server, key_env=variable, **ANTHROPIC)}'
        configure(host, text)
        said = asyncio.run(ask())
        looked = server.model.results(1)[0].text if server.model else ""
        assert server.keys == {("x-api-key", key)}
    assert "Done." in said
    assert "processes that have it:\nlooked" in looked
    assert_not_kept(host, [key, OTHER_KEY])
