"""`agent-host init`: what it finds, asks, proves and writes; real processes over real HTTP, at a terminal and without
one."""

from __future__ import annotations

import contextlib
import errno
import json
import stat
import tomllib
from typing import TYPE_CHECKING, Any

import pytest

from config.providers import KNOWN, LOCAL
from tests.support.model_server import PROOF, keyring, model_server, redirecting
from tests.support.process import call, say, use
from tests.support.secrets import assert_nowhere
from tests.support.terminal import AtTerminal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.support.model_server import ModelServer
    from tests.support.process import Host, Outcome

KEY, OTHER_KEY, TOKEN = "key-8f1c02d94b7ae653", "key-51d7a90be2c84f36", "tok-c4e81f0a72b6935d"
CLOSED = "http://127.0.0.1:1"
TASK = say("It works.")


@pytest.fixture(autouse=True)
def _nothing_configured(host: Host) -> None:
    config(host).unlink()
    host.imports = ("agent_host.cli.init", "agent_host.llm.client", "httpx")


def config(host: Host) -> Path:
    return host.root / "user.toml"


def written(host: Host) -> dict[str, Any]:
    """The section of the providers; the file is its owner's alone."""
    assert stat.S_IMODE(config(host).stat().st_mode) == 0o600
    assert [path.name for path in host.root.iterdir() if path.name.startswith("user.toml")] == ["user.toml"]
    section = tomllib.loads(config(host).read_text())["providers"]
    assert isinstance(section, dict)
    return section


def init(host: Host, *options: str, env: Mapping[str, str] | None = None) -> Outcome:
    return host.run("init", *options, env=env)


def found(name: str, server: ModelServer, key: str = KEY) -> dict[str, str]:
    return {KNOWN[name].key_env: key, KNOWN[name].url_env: server.url}


# --- without a terminal -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.many_rows(1)
@pytest.mark.parametrize("name", ["anthropic", "openai", "openrouter", "gemini"])
def test_yes_takes_the_one_provider_that_a_variable_names(host: Host, name: str) -> None:
    env_name = KNOWN[name].key_env
    with model_server(PROOF, TASK) as server:
        env = {**found(name, server), "LLM_GATEWAY_AUTH_TOKEN": TOKEN}
        outcome = init(host, "--yes", env=env)
        assert outcome.code == 0, outcome.stderr
        entry = {"key_env": env_name, "base_url": server.url, "model": KNOWN[name].model}
        assert written(host) == {"default": name, name: entry}
        (asked,) = server.posted
        assert [tool.get("name") or tool["function"]["name"] for tool in asked.body["tools"]] == ["look_up"]
        assert {value.removeprefix("Bearer ") for _, value in server.keys} == {KEY}
    assert outcome.text.startswith(f"wrote {config(host)}\n")
    assert f'  default = "{name}"\n' in outcome.text
    assert "agent-host run" in outcome.text
    assert_nowhere(outcome.stdout + outcome.stderr.encode() + config(host).read_bytes(), "init", [KEY, TOKEN])


def test_what_was_written_is_what_a_run_uses(host: Host) -> None:
    with model_server(PROOF) as server, model_server(TASK) as other:
        assert init(host, "--yes", env=found("anthropic", server)).code == 0
        assert init(host, "--yes", env=found("anthropic", server)).code == 0
        text = config(host).read_text().replace(server.url, other.url)
        config(host).write_text(text)
        outcome = host.run("run", "Do it.", "--policy", "full", env={"ANTHROPIC_API_KEY": KEY, "OPENAI_API_KEY": "x"})
        assert other.keys == {("x-api-key", KEY)}
    assert (outcome.code, outcome.text) == (0, "It works.\n"), outcome.stderr
    assert outcome.lines[0].endswith("(providers.default)")


@pytest.mark.slow
def test_what_is_written_already_is_not_written_again(host: Host) -> None:
    with model_server(PROOF) as server:
        assert init(host, "--yes", env=found("anthropic", server)).code == 0
        before = config(host).stat()
        again = init(host, env=found("anthropic", server))
        assert again.code == 2, "it still asks which one, without --yes"
        again = init(host, "--provider", "anthropic", env=found("anthropic", server))
        after = config(host).stat()
    assert (again.code, again.text) == (0, ""), again.stderr
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


@pytest.mark.parametrize(
    ("names", "options", "said"),
    [
        ((), ("--yes",), ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "--provider", "--gateway"]),
        ((), (), ["ANTHROPIC_API_KEY", "--provider"]),
        (("anthropic",), (), ["--yes", "anthropic", "--provider"]),
        (("openai", "gemini"), ("--yes",), ["openai ($OPENAI_API_KEY)", "gemini ($GEMINI_API_KEY)", "--provider"]),
    ],
)
def test_where_nobody_can_be_asked_none_or_several_is_a_list(
    host: Host, names: tuple[str, ...], options: tuple[str, ...], said: list[str]
) -> None:
    with model_server(PROOF) as server:
        env = {name: value for one in names for name, value in found(one, server).items()}
        outcome = init(host, *options, env=env)
        assert server.asked == []
    assert outcome.code == 2
    assert outcome.stdout == b""
    if "several" not in outcome.stderr or names:  # some other program may listen at a usual port
        assert all(part in outcome.error for part in said), outcome.stderr
    assert not config(host).exists()


@contextlib.contextmanager
def local_server(*models: str) -> Iterator[tuple[str, ModelServer]]:
    """A server at one of the usual ports, and the name of the provider that is looked for there."""
    with contextlib.ExitStack() as opened:
        for name in LOCAL:
            port = int(KNOWN[name].base_url.rpartition(":")[2])
            try:
                server = opened.enter_context(model_server(PROOF, models=models, port=port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            yield name, server
            return
        pytest.skip("every usual port is taken")


def test_a_local_server_is_listed_without_a_key_and_taken_only_by_its_name(host: Host) -> None:
    with local_server("qwen") as (name, server):
        listed = init(host, "--yes", env={"LLM_GATEWAY_AUTH_TOKEN": TOKEN})
        assert listed.code == 2
        assert f"{name} ({KNOWN[name].base_url}, 1 models)" in listed.error
        assert {(one.method, tuple(one.key)) for one in server.asked} == {("GET", ())}
        outcome = init(host, "--yes", "--provider", name)
        assert server.keys == set()
    assert outcome.code == 0, outcome.stderr
    assert written(host)[name] == {"model": "qwen"}
    assert written(host)["default"] == name


@pytest.mark.slow
def test_only_init_and_doctor_ask_local_servers_and_only_if_they_have_to(host: Host) -> None:
    with model_server(PROOF, models=["qwen"]) as server, model_server(PROOF) as far:
        headers = f'headers = {{ authorization = "Bearer {OTHER_KEY}" }}'
        rows = [f'[providers.{name}]\nbase_url = "{server.url}"\n{headers}\n' for name in LOCAL]
        config(host).write_text("".join(rows))
        assert host.run("run", "Do it.").code == 2
        assert init(host, "--yes", env=found("anthropic", far)).code == 0
        assert server.asked == [], "one variable is enough"
        config(host).write_text("".join(rows))
        doctor = host.run("doctor")
        assert init(host, "--yes").code == 2
        assert {one.path.partition("?")[0] for one in server.asked} == {"/v1/models"}
        assert (len(server.listed), server.keys) == (2 * len(LOCAL), set())
    assert doctor.code == 1
    assert "--provider" in doctor.text


def test_a_provider_by_its_url(host: Host) -> None:
    with model_server(PROOF, models=["m"]) as server:
        options = ("--gateway", server.url, "--key-env", "WORK_KEY")
        outcome = init(host, *options, env={"WORK_KEY": KEY, "ANTHROPIC_API_KEY": OTHER_KEY})
        assert outcome.code == 0, outcome.stderr
        entry = written(host)
        assert entry["default"] == "gateway"
        fields = entry["gateway"]
        assert (fields["base_url"], fields["key_env"], fields["model"]) == (server.url, "WORK_KEY", "m")
        assert fields["dialect"] in ("anthropic", "openai", "responses")
        assert {value.removeprefix("Bearer ") for _, value in server.keys} == {KEY}
        named = init(host, *options, "--provider", "work", "--yes", "--model", "n", env={"WORK_KEY": KEY})
        assert named.code == 0, named.stderr
        assert written(host)["work"]["model"] == "n"
        assert written(host)["gateway"] == fields


@pytest.mark.many_rows(2)
@pytest.mark.parametrize(("models", "code"), [(["one"], 0), (["one", "two"], 2), ([], 2), (None, 1)])
def test_a_server_with_several_models_wants_one_named(host: Host, models: list[str] | None, code: int) -> None:
    with model_server(PROOF, models=models) as server:
        outcome = init(host, "--gateway", server.url)
        assert (len(server.posted) > 1) == (code == 0)
    assert outcome.code == code, outcome.stderr
    assert config(host).exists() == (code == 0)
    if code:
        assert "--model" in outcome.stderr
        assert ", ".join(models or ()) in outcome.stderr


NO_PROOF = {
    "refused": {
        "status": 401,
        "error": {"type": "authentication_error", "message": f"bad key {KEY}"},
        "times": "always",
    },
    "text": say("I cannot do that."),
    "as text": say('look_up {"word": "ok"}'),
    "another tool": use(call("other", word="ok")),
}


@pytest.mark.many_rows(2)
@pytest.mark.parametrize("kind", NO_PROOF)
def test_a_proof_that_fails_writes_nothing(host: Host, kind: str) -> None:
    with model_server(NO_PROOF[kind]) as server:
        outcome = init(host, "--yes", env=found("anthropic", server))
    assert (outcome.code, outcome.stdout) == (1, b""), outcome.stderr
    outcome.names_once("error: anthropic:", "nothing was written")
    assert not config(host).exists()
    assert_nowhere(outcome.stderr.encode(), "init", [KEY])


@pytest.mark.many_rows(1)
@pytest.mark.parametrize("name", ["anthropic", "work", "closed"])
def test_a_server_that_is_not_there_is_a_proof_that_fails(host: Host, name: str) -> None:
    text = f'[llm]\nmax_retries = 0\nmax_wait_s = 0\n[providers.closed]\nbase_url = "{CLOSED}"\ndialect = "openai"\n'
    config(host).write_text(text)
    given = ("--gateway", CLOSED) if name == "work" else ("--provider", name)
    outcome = init(host, "--yes", *given, env={"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": CLOSED})
    assert outcome.code == 1, outcome.stderr
    assert "nothing was written" in outcome.stderr
    assert config(host).read_text() == text


@pytest.mark.parametrize("way", ["proof", "models", "dialect"])
def test_a_key_does_not_go_along_a_redirect(host: Host, way: str) -> None:
    with model_server(PROOF, models=["m"]) as elsewhere, redirecting(elsewhere.url, 308) as server:
        dialect = "" if way == "dialect" else 'dialect = "anthropic"\n'
        model = 'model = "m"\n' if way == "proof" else ""
        text = f'[providers.work]\nbase_url = "{server.url}"\nkey_env = "WORK_KEY"\n{dialect}{model}'
        config(host).write_text(text)
        outcome = init(host, "--yes", "--provider", "work", env={"WORK_KEY": KEY})
        assert elsewhere.asked == []
        assert {value.removeprefix("Bearer ") for _, value in server.keys} == {KEY}
    assert outcome.code == 1, outcome.stderr
    assert config(host).read_text() == text


def test_a_password_in_a_variable_stays_there(host: Host) -> None:
    with model_server(PROOF) as server:
        url = server.url.replace("//", "//me:pass-7c31-4e@")
        outcome = init(host, "--yes", env={"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": url})
    assert outcome.code == 0, outcome.stderr
    assert written(host)["anthropic"] == {"key_env": "ANTHROPIC_API_KEY", "model": "claude-sonnet-5"}
    assert_nowhere(outcome.stdout + outcome.stderr.encode(), "init", ["pass-7c31-4e", KEY])


def test_a_place_with_a_slash_at_its_end_is_written(host: Host) -> None:
    with model_server(PROOF) as server:
        env = {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": f"{server.url}/"}
        assert init(host, "--yes", env=env).code == 0
    assert written(host)["anthropic"]["base_url"] == f"{server.url}/"


@pytest.mark.parametrize("options", [("--key-env", KEY), ("--key-env", "KEY_OF_NOBODY"), ("--provider", "antropic")])
def test_an_option_that_cannot_be_used(host: Host, options: tuple[str, ...]) -> None:
    given = options if "--provider" in options else ("--provider", "anthropic", *options)
    outcome = init(host, "--yes", *given, env={"ANTHROPIC_API_KEY": OTHER_KEY})
    assert outcome.code == 2, outcome.stderr
    assert KEY not in outcome.stderr
    assert not config(host).exists()


def test_no_key_goes_over_plain_http_to_another_machine(host: Host) -> None:
    outcome = init(host, "--gateway", "http://192.0.2.1", "--key-env", "WORK_KEY", env={"WORK_KEY": KEY})
    assert outcome.code == 2
    assert "plain http" in outcome.stderr
    assert not config(host).exists()


# --- what is there already --------------------------------------------------------------------------------------------

EXISTING = f"""# mine
[sandbox]
level = "none"  # for now

[providers]
default = "work"  # at work

[providers.work]
# its place
base_url = "{CLOSED}"
headers = {{ authorization = "Bearer {OTHER_KEY}" }}

# of the loop
[host]
max_steps = 7
"""


def test_a_configuration_is_shown_as_a_difference_and_kept_unless_that_is_confirmed(host: Host) -> None:
    config(host).write_text(EXISTING)
    config(host).chmod(0o644)
    with model_server(PROOF) as server:
        env = found("anthropic", server)
        kept = init(host, "--provider", "anthropic", env=env)
        assert (kept.code, kept.stdout, config(host).read_text()) == (2, b"", EXISTING), kept.stderr
        assert "--yes" in kept.stderr
        done = init(host, "--yes", env=env)
    assert done.code == 0, done.stderr
    for outcome in (kept, done):
        outcome.names_once('-default = "work"  # at work')
        outcome.names_once('+default = "anthropic"  # at work')
        outcome.names_once("+[providers.anthropic]")
        assert_nowhere(outcome.stdout + outcome.stderr.encode(), "init", [KEY, OTHER_KEY])
    section = written(host)
    assert section["default"] == "anthropic"
    assert section["work"]["base_url"] == CLOSED
    lines = config(host).read_text().splitlines()
    rest = [line for line in EXISTING.splitlines() if line and "default" not in line]
    assert [line for line in lines if line in rest] == rest
    assert OTHER_KEY in config(host).read_text()


@pytest.mark.many_rows(1)
@pytest.mark.parametrize("text", ['providers = { default = "openai" }\n', '[providers]\nanthropic.model = "x"\n'])
def test_a_configuration_in_another_form_is_left_alone(host: Host, text: str) -> None:
    config(host).write_text(text)
    with model_server(PROOF) as server:
        outcome = init(host, "--yes", env=found("anthropic", server))
    assert outcome.code == 2
    assert "[providers.anthropic]" in outcome.stderr
    assert config(host).read_text() == text


def test_a_configuration_that_cannot_be_read_is_left_alone(host: Host) -> None:
    config(host).write_text("[llm\n")
    outcome = init(host, "--yes", env={"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": CLOSED})
    assert outcome.code == 2
    assert "not valid TOML" in outcome.error
    assert config(host).read_text() == "[llm\n"


def test_the_folder_of_the_configuration_is_made_and_a_link_is_kept(host: Host) -> None:
    folder = host.home / ".config" / "agent-host"
    with model_server(PROOF) as server:
        env = {**found("anthropic", server), "AGENT_HOST_CONFIG": ""}
        first = init(host, "--yes", env=env)
        assert first.code == 0, first.stderr
        assert stat.S_IMODE((folder / "config.toml").stat().st_mode) == 0o600
        (folder / "config.toml").rename(host.home / "kept.toml")
        (folder / "config.toml").symlink_to(host.home / "kept.toml")
        again = init(host, "--provider", "anthropic", "--model", "m", "--yes", env=env)
    assert again.code == 0, again.stderr
    assert (folder / "config.toml").is_symlink()
    assert tomllib.loads((host.home / "kept.toml").read_text())["providers"]["anthropic"]["model"] == "m"


def test_a_folder_that_takes_no_file(host: Host) -> None:
    (host.root / "no-folder").write_text("")
    with model_server(PROOF) as server:
        env = {**found("anthropic", server), "AGENT_HOST_CONFIG": str(host.root / "no-folder" / "config.toml")}
        outcome = init(host, "--yes", env=env)
    assert outcome.code == 2, outcome.stderr
    assert "no-folder" in outcome.stderr


# --- at a terminal ----------------------------------------------------------------------------------------------------


def at_terminal(host: Host, *options: str, env: Mapping[str, str] | None = None) -> AtTerminal:
    return AtTerminal(host, "init", *options, env=env)


def answer_number(terminal: AtTerminal, question: str, row: str, times: int = 1) -> None:
    """Choose the row that has this text."""
    terminal.said(question, times)
    (line,) = [one for one in terminal.shown.splitlines() if row in one and one.lstrip()[:1].isdigit()]
    terminal.type(f"{line.split()[0]}\n")


@pytest.mark.slow
def test_a_person_chooses_among_what_is_there(host: Host) -> None:
    with model_server(PROOF) as server, model_server(PROOF) as other:
        env = {**found("anthropic", other, OTHER_KEY), **found("openai", server)}
        terminal = at_terminal(host, env=env)
        terminal.said("Which provider?")
        terminal.type("x\n")
        terminal.said("give a number from 1 to")
        answer_number(terminal, "Which provider?", "openai ", 2)
        code, out = terminal.finish()
        assert (code, other.asked) == (0, []), terminal.shown
        assert server.keys == {("authorization", f"Bearer {KEY}")}
    assert written(host)["default"] == "openai"
    assert KEY not in terminal.shown + out


@pytest.mark.slow
def test_a_person_chooses_the_model_of_a_local_server(host: Host) -> None:
    with local_server("llama", "qwen") as (name, server):
        terminal = at_terminal(host)
        answer_number(terminal, "Which provider?", f"{KNOWN[name].base_url}, 2 models")
        answer_number(terminal, "Which model?", "qwen")
        code, _ = terminal.finish()
        assert code == 0, terminal.shown
        assert [one.body["model"] for one in server.posted] == ["qwen"]
    assert written(host) == {"default": name, name: {"model": "qwen"}}


@pytest.mark.slow
def test_a_person_gives_a_url(host: Host) -> None:
    with model_server(PROOF, models=["m"]) as server:
        terminal = at_terminal(host)
        answer_number(terminal, "Which provider?", "another one, by its URL")
        terminal.said("Its URL:")
        terminal.type("127.0.0.1:1\n")
        terminal.said("the URL '127.0.0.1:1': give an http:// or https:// URL")
        terminal.said("Its URL:", 2)
        terminal.type(f"{server.url}\n")
        terminal.said("Variable with its key (none):")
        terminal.type("\n")
        code, _ = terminal.finish()
        assert code == 0, terminal.shown
        assert server.keys == set()
    assert written(host)["gateway"]["base_url"] == server.url


def typed(host: Host, place: str, *, env: Mapping[str, str], proof: int = 0, text: str = "") -> tuple[AtTerminal, str]:
    """Type the key of anthropic, and choose its place."""
    if text:
        config(host).write_text(text)
    terminal = at_terminal(host, "--provider", "anthropic", env=env)
    terminal.said("Key of anthropic")
    terminal.type(f"{KEY}\n")
    answer_number(terminal, "Where is it kept?", place)
    if text and not proof:
        terminal.said("Write this?")
        terminal.type("y\n")
    code, out = terminal.finish()
    assert code == proof, terminal.shown
    assert KEY not in terminal.shown + out
    return terminal, out


@pytest.mark.slow
def test_a_typed_key_goes_into_the_keyring(host: Host, tmp_path: Path) -> None:
    ring = keyring(tmp_path)
    secrets = tmp_path / "site" / "keyring" / "secrets.json"
    with model_server(PROOF, TASK) as server:
        env = {**ring, "ANTHROPIC_BASE_URL": server.url}
        text = '[providers.anthropic]\nkey_env = "ANTHROPIC_API_KEY"\nheaders = { x-team = "blue-and-green" }\n'
        typed(host, "keyring", env=env, text=text)
        entry = written(host)["anthropic"]
        assert entry["key_keyring"] == "anthropic"
        assert "key_env" not in entry
        assert entry["headers"] == {"x-team": "blue-and-green"}
        assert json.loads(secrets.read_text()) == {"agent-host/anthropic": KEY}
        outcome = host.run("run", "Do it.", "--policy", "full", env={**ring, "OPENAI_API_KEY": OTHER_KEY})
        assert (outcome.code, outcome.text) == (0, "It works.\n"), outcome.stderr
        assert server.keys == {("x-api-key", KEY)}
    assert KEY not in config(host).read_text()


@pytest.mark.slow
@pytest.mark.parametrize("place", ["keyring", "plain text"])
def test_a_typed_key_is_kept_nowhere_if_the_proof_fails(host: Host, tmp_path: Path, place: str) -> None:
    ring = keyring(tmp_path)
    with model_server(say("No.")) as server:
        typed(host, place, env={**ring, "ANTHROPIC_BASE_URL": server.url}, proof=1)
    assert not config(host).exists()
    assert json.loads((tmp_path / "site" / "keyring" / "secrets.json").read_text()) == {}


@pytest.mark.slow
def test_a_keyring_that_takes_no_key_leaves_the_configuration(host: Host, tmp_path: Path) -> None:
    ring = keyring(tmp_path)
    (tmp_path / "site" / "keyring" / "secrets.json").write_text("null")
    with model_server(PROOF) as server:
        terminal, _ = typed(host, "keyring", env={**ring, "ANTHROPIC_BASE_URL": server.url}, proof=2)
    assert "it is locked" in terminal.shown
    assert not config(host).exists()


@pytest.mark.slow
def test_a_typed_key_is_plain_text_only_if_that_is_chosen(host: Host) -> None:
    with model_server(PROOF, TASK) as server:
        _, out = typed(host, "plain text", env={"ANTHROPIC_BASE_URL": server.url})
        assert "x-api-key" in out
        entry = written(host)["anthropic"]
        assert entry["headers"] == {"x-api-key": KEY}
        assert "key_env" not in entry
        outcome = host.run("run", "Do it.", "--policy", "full")
        assert outcome.code == 0, outcome.stderr
        assert server.keys == {("x-api-key", KEY)}
    assert KEY not in outcome.stderr + outcome.text


@pytest.mark.slow
def test_a_typed_key_that_the_person_sets_is_not_written(host: Host) -> None:
    with model_server(PROOF) as server:
        terminal, _ = typed(host, "which you set yourself", env={"ANTHROPIC_BASE_URL": server.url})
    assert written(host)["anthropic"]["key_env"] == "ANTHROPIC_API_KEY"
    assert "set ANTHROPIC_API_KEY" in terminal.shown
    assert KEY not in config(host).read_text()


@pytest.mark.many_rows(1)
@pytest.mark.parametrize("keys", ["n\n", "\n", "no\n", "\x04"])
def test_without_a_y_the_configuration_is_kept(host: Host, keys: str) -> None:
    config(host).write_text(EXISTING)
    with model_server(PROOF) as server:
        terminal = at_terminal(host, "--provider", "anthropic", env=found("anthropic", server))
        terminal.said("Write this?")
        terminal.type(keys)
        code, out = terminal.finish()
    assert (code, out) == (1, ""), terminal.shown
    assert "is kept as it is" in terminal.shown
    assert OTHER_KEY not in terminal.shown
    assert config(host).read_text() == EXISTING


@pytest.mark.slow
@pytest.mark.parametrize("question", ["Key of anthropic", "Which provider?", "Write this?"])
def test_ctrl_c_writes_nothing_and_leaves_the_terminal_as_it_was(host: Host, question: str) -> None:
    config(host).write_text(EXISTING)
    with model_server(PROOF) as server:
        options = () if question.startswith("Which") else ("--provider", "anthropic")
        env = found("anthropic", server) if question.startswith("Write") else {}
        terminal = at_terminal(host, *options, env=env)
        terminal.said(question)
        terminal.type("\x03")
        assert terminal.finish() == (130, "")
    assert terminal.echoes
    assert config(host).read_text() == EXISTING


@pytest.mark.slow
def test_yes_at_a_terminal_asks_nothing(host: Host) -> None:
    config(host).write_text(EXISTING)
    with model_server(PROOF) as server:
        terminal = at_terminal(host, "--yes", env=found("anthropic", server))
        code, _ = terminal.finish()
    assert code == 0, terminal.shown
    assert written(host)["default"] == "anthropic"


@pytest.mark.slow
def test_in_ci_nobody_is_asked(host: Host) -> None:
    terminal = at_terminal(host, env={"CI": "true"})
    code, _ = terminal.finish()
    assert code == 2, terminal.shown
