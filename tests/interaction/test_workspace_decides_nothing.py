"""Nothing of a workspace chooses a policy, a setting or a program of the host (design, invariant 12)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agent_host import SessionOptions
from config.policies import BUILT_IN
from state.temporary import session_directory
from tests.support.process import bundle, call, gateway, say, shell, use
from tool_runtime import sandbox as levels

if TYPE_CHECKING:
    from tests.support.process import Host, Outcome

ROOT = Path(__file__).resolve().parents[2]
NOWHERE = "http://127.0.0.1:9"
OPEN = {"extends": "full"}


def plant(folder: Path, *names: str) -> Path:
    """Programs that leave a file of their name and ".ran" beside them."""
    folder.mkdir(exist_ok=True)
    for name in names:
        program = folder / name
        program.write_text(f'#!/bin/sh\necho "$0 $*" >> {folder}/{name}.ran\nexit 3\n')
        program.chmod(0o755)
    return folder


def ran(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.glob("*.ran"))


def judged(host: Host, *options: str | Path, env: dict[str, str] | None = None) -> Any:
    line = json.dumps({"command": "unheard-of x"})
    return host.run("policy", "check", "RunCommand", line, "--output", "json", *options, env=env).result["decision"]


# Policies


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_a_built_ins_name_is_the_built_in(host: Host, kind: str) -> None:
    for name in BUILT_IN:
        if kind == "file":
            (host.workspace / name).write_text(json.dumps(OPEN))
        else:
            (host.workspace / name).mkdir()
    assert judged(host, "--policy", "ci") == "DENIED"
    (host.root / "user.toml").write_text('[sandbox]\nlevel = "none"\n[host]\npolicy = "ci"\n')
    assert judged(host) == "DENIED"
    host.configure()
    with gateway(use(shell("unheard-of x")), say("Done.")) as served:
        done = host.task(served.url, policy="ci")
    assert [one["status"] for one in done.result["toolCalls"]] == ["denied"]
    assert SessionOptions(policy="ci").flags["host.policy"] == "ci"
    assert SessionOptions(policy=Path("ci")).flags["host.policy"] == "ci"
    assert SessionOptions(policy=Path("mine")).flags["host.policy"] == os.path.abspath("mine")


@pytest.mark.parametrize(
    ("name", "hint"),
    [("cii", "did you mean ci?"), ("mine", "a file's name has a slash in it or ends in .json, as './mine'")],
)
def test_any_other_name_without_a_slash_is_refused(host: Host, name: str, hint: str) -> None:
    (host.workspace / name).write_text(json.dumps(OPEN))
    said = f"policy '{name}' is not a built-in: give a bundle file or one of read-only, workspace, ci, full"
    commands: list[tuple[str | Path, ...]] = [
        ("run", "x", "--gateway", NOWHERE, "--policy", name),
        ("policy", "check", "--policy", name, "ReadFile", '{"path": "a"}'),
        ("policy", "tools", "--policy", name),
    ]
    for command in commands:
        outcome = host.run(*command)
        assert outcome.code == 2
        assert said in outcome.stderr
        assert hint in outcome.stderr
    assert judged(host, "--policy", f"./{name}") == "ALLOWED"


def test_a_file_is_named_by_a_slash_or_its_ending(host: Host) -> None:
    (host.workspace / "own.json").write_text(json.dumps(OPEN))
    (host.workspace / "own").write_text(json.dumps(OPEN))
    for name in ("own.json", "./own", str(host.workspace / "own")):
        assert judged(host, "--policy", name) == "ALLOWED"
        with gateway(say("Done.")) as served:
            assert host.task(served.url, policy=name).code == 0


# Settings


def test_a_relative_file_of_the_configuration_lies_beside_it(host: Host) -> None:
    (host.workspace / "own.json").write_text(json.dumps(OPEN))
    (host.root / "own.json").write_text(json.dumps({"extends": "ci"}))
    (host.workspace / "s.jsonl").write_text('{"text": "of the workspace"}\n')
    (host.root / "s.jsonl").write_text('{"text": "of the user"}\n')
    (host.root / "user.toml").write_text(
        '[sandbox]\nlevel = "none"\n[host]\npolicy = "own.json"\n[llm]\ngateway = "mock:s.jsonl"\n'
    )
    assert judged(host) == "DENIED"
    assert host.run("run", "x").stdout.decode().strip() == "of the user"


@pytest.mark.parametrize("variable", ["XDG_CONFIG_HOME", "XDG_DATA_HOME"])
def test_a_relative_base_directory_is_ignored(host: Host, variable: str) -> None:
    own = host.workspace / "agent-host"
    own.mkdir()
    (own / "config.toml").write_text('[host]\npolicy = "full"\n[sandbox]\nlevel = "none"\n')
    env = {variable: ".", "AGENT_HOST_CONFIG": "", "AGENT_HOST_STATE_DIR": ""}
    assert judged(host, "--policy", "workspace", "--sandbox", "none", env=env) == "APPROVAL_REQUIRED"
    assert judged(host, "--sandbox", "none", env=env) != "ALLOWED"
    with gateway(say("Done.")) as served:
        host.start("run", "x", "--gateway", served.url, "--policy", "read-only", env=env).finish()
    assert os.listdir(own) == ["config.toml"]


@pytest.mark.parametrize("place", ["workspace", "home"])
def test_skills_beside_a_configuration_in_the_workspace_are_the_workspaces(host: Host, place: str) -> None:
    """A skill that is a link, as only the user's may be."""
    folder, outside = getattr(host, place), host.root / "outside"
    (folder / "skills").mkdir()
    outside.mkdir()
    (outside / "SKILL.md").write_text("---\nname: one\ndescription: x\n---\nText.\n")
    (folder / "skills" / "one").symlink_to(outside)
    (folder / "own.toml").write_text("[llm]\nmax_retries = 0\n")
    env = {"AGENT_HOST_CONFIG": str(folder / "own.toml")}
    with gateway(use(call("load_skill", name="one")), say("Done.")) as served:
        host.start("run", "x", "--gateway", served.url, "--policy", "full", "--toolset", "skills", env=env).finish()
        loaded = served.results()[0].text
    assert ("Text." in loaded) is (place == "home"), loaded


# Programs


PROGRAMS = ("bash", "sh", "zsh", "env", "setsid", "rg", "git", "node", "python3", "python", "newuidmap", "bwrap", "ps")


@pytest.mark.many_rows(1)
@pytest.mark.parametrize("entry", ["workspace", "link", "relative", "empty", "temporary"])
def test_no_program_of_the_workspace_is_started_by_the_host(host: Host, entry: str) -> None:
    own = Path(session_directory(str(host.state), "one", {"TMPDIR": str(host.temporary)}))
    own.mkdir(mode=0o700)
    folder = {"empty": host.workspace, "temporary": own / "bin"}.get(entry, host.workspace / "bin")
    planted = plant(folder, *PROGRAMS)
    (host.root / "link").symlink_to(planted)
    first = {"relative": "bin", "empty": "", "link": str(host.root / "link")}.get(entry, str(planted))
    env = {"PATH": f"{first}{os.pathsep}{os.environ['PATH']}", "SHELL": str(planted / "zsh")}
    for number in range(200):
        (host.workspace / f"{number}.txt").write_text("needle\n")
    if entry != "temporary":  # which is no session's here
        assert "processes started by commands end with the host" in host.run("doctor", env=env).text
    with gateway(use(shell("echo from the shell"), call("SearchFiles", pattern="needle")), say("Done.")) as served:
        outcome = run(host, served.url, "--session-id", "one", env=env)
        text = served.results()[0].text
    assert outcome.code == 0
    assert "from the shell" in text
    assert ran(planted) == []


def test_a_file_that_a_link_of_path_leads_to_is_the_workspaces(host: Host) -> None:
    planted, outside = plant(host.workspace / "bin", "bash"), host.root / "outside"
    outside.mkdir()
    (outside / "bash").symlink_to(planted / "bash")
    env = {"PATH": f"{outside}{os.pathsep}{os.environ['PATH']}"}
    with gateway(use(shell("echo from the shell")), say("Done.")) as served:
        run(host, served.url, env=env)
        assert "from the shell" in served.results()[0].text
    assert ran(planted) == []


def test_the_models_commands_find_them_as_before(host: Host) -> None:
    planted = plant(host.workspace / "bin", "git")
    with gateway(use(shell("git status")), say("Done.")) as served:
        run(host, served.url, env={"PATH": f"{planted}{os.pathsep}{os.environ['PATH']}"})
    assert ran(planted) == ["git.ran"]


def test_a_script_of_a_skill_is_run_by_an_interpreter_from_outside(host: Host) -> None:
    planted = plant(host.workspace / "bin", "python3", "bash", "env")
    scripts = host.workspace / ".agent" / "skills" / "one" / "scripts"
    scripts.mkdir(parents=True)
    (scripts.parent / "SKILL.md").write_text("---\nname: one\ndescription: x\n---\nText.\n")
    (scripts / "a.py").write_text("print('from the script')\n")
    (host.root / "user.toml").write_text('[sandbox]\nlevel = "none"\n[skills]\nenabled_tools = ["run_script"]\n')
    options = ("--toolset", "skills", "--approve", "run_script")
    with gateway(use(call("run_script", skill="one", relative_path="scripts/a.py")), say("Done.")) as served:
        env = {"PATH": f"{planted}{os.pathsep}{os.environ['PATH']}"}
        run(host, served.url, *options, env=env)
        assert "from the script" in served.results()[0].text
    assert ran(planted) == []


@pytest.mark.slow
@pytest.mark.many_rows(1)
@pytest.mark.parametrize(("command", "is_started"), [("server", False), ("./bin/server", False), ("absolute", True)])
def test_a_server_of_the_user_is_no_file_of_the_workspace_unless_it_is_named_whole(
    host: Host, command: str, is_started: bool
) -> None:
    planted = plant(host.workspace / "bin", "server")
    named = str(planted / "server") if is_started else command
    with open(host.root / "user.toml", "a", encoding="utf-8") as file:
        file.write(f'[[mcp.servers]]\nname = "one"\ntransport = "stdio"\ncommand = "{named}"\n')
    env = {"PATH": f"{planted}{os.pathsep}{os.environ['PATH']}"}
    said = host.run("doctor", env=env).text
    assert ran(planted) == (["server.ran"] if is_started else [])
    assert ("name it by its absolute path" in said) is not is_started


def run(host: Host, url: str, *options: str, env: dict[str, str]) -> Outcome:
    return host.run("run", "x", "--gateway", url, "--policy", "full", "--output", "json", *options, env=env)


# Bundle files in the workspace


WORKING = [level for level in levels.LEVELS if levels.look(level).works]
TRIES = [
    call("WriteFile", path="policies/own.json", content="{}"),
    call("EditFile", path="policies/own.json", old_string="full", new_string="ci"),
    call("DeleteFile", path="policies/own.json"),
    shell("echo '{}' > policies/own.json"),
    shell("sed -i s/full/ci/ policies/own.json"),
    shell("rm -f policies/own.json"),
    shell('python3 -c \'open("policies/own.json", "w")\''),
]


def bare(workspace: Path) -> dict[str, Any]:
    """A bundle that lets the workspace be written, and blocks nothing."""
    shape = bundle(workspace)
    for entry in shape["capabilities"]:
        entry.pop("blockedPaths", None)
    return shape


@pytest.mark.many_rows(2)
@pytest.mark.parametrize("level", ["none", *WORKING])
@pytest.mark.parametrize("named", ["policies/own.json", "./link"])
def test_a_bundle_file_in_the_workspace_is_changed_by_nobody(host: Host, level: str, named: str) -> None:
    own = host.workspace / "policies" / "own.json"
    own.parent.mkdir()
    text = json.dumps(bare(host.workspace))
    own.write_text(text)
    (host.workspace / "link").symlink_to(own)
    tries = TRIES if level != "none" else TRIES[:-1]  # lists read lines, and hold no program
    more = [shell("rm -f link"), shell("ln -sfn /etc/hosts link")] if named == "./link" else []
    with gateway(*(use(one) for one in [*tries, *more]), use(call("ReadFile", path=named)), say("Done.")) as served:
        done = host.task(served.url, "--sandbox", level, policy=named)
        read = served.results()[-1].text
    assert own.read_text() == text
    assert os.readlink(host.workspace / "link") == str(own)
    assert "capabilities" in read
    assert level == "landlock" or done.result["filesChanged"] == []  # which puts back what it cannot refuse


@pytest.mark.many_rows(1)
@pytest.mark.parametrize("how", ["tool", "command", "background", pytest.param("killed", marks=pytest.mark.slow)])
def test_a_change_to_the_bundle_by_an_earlier_session_is_reported(host: Host, how: str) -> None:
    own = host.workspace / "own.json"
    text = json.dumps({"extends": "full"})
    write = {
        "tool": call("WriteFile", path="own.json", content=text),
        "command": shell(f"echo '{text}' > own.json"),
        "background": shell(f"echo '{text}' > own.json", background=True),
        "killed": call("WriteFile", path="own.json", content=text),
    }[how]
    wait = shell(f"until grep -q full own.json; do :; done{'; sleep 30' if how == 'killed' else ''}")
    with gateway(use(write), use(wait), say("Done.")) as served:
        running = host.start_task(served.url, policy="full")
        if how == "killed":
            running.said("sleep 30")
            running.kill()
        else:
            assert running.finish().code == 0
    (session,) = os.listdir(host.state / "sessions")
    with gateway(say("Done.")) as served:
        done = host.task(served.url, policy="own.json")
    assert f"session {session} of this state directory has changed this file" in done.names_once("policy ", "own.json")
    assert own.read_text().strip() == text
    checked = host.run("policy", "check", "--policy", "own.json", "ReadFile", '{"path": "a"}')
    assert f"session {session} of this state directory has changed this file" in checked.stderr


@pytest.mark.slow
def test_a_bundle_that_no_session_has_changed_is_used_in_silence(host: Host) -> None:
    (host.workspace / "own.json").write_text(json.dumps({"extends": "full"}))
    tries = (call("ReadFile", path="own.json"), call("WriteFile", path="own.json", content="x"), shell("cat own.json"))
    with gateway(use(*tries), say("Done.")) as served:
        host.task(served.url, policy="own.json")
    with gateway(say("Done.")) as served:
        assert "has changed" not in host.task(served.url, policy="own.json").stderr


# The program itself


@pytest.mark.slow
@pytest.mark.parametrize("level", ["none", *WORKING[:1]])
def test_a_program_in_the_workspace_is_guarded_and_named(host: Host, level: str) -> None:
    """An environment in the workspace, whose interpreter runs the host."""
    env = host.workspace / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", env], check=True)
    (site,) = (env / "lib").glob("python*/site-packages")
    (site / "theirs.pth").write_text("".join(f"{one}\n" for one in sys.path if one.endswith("site-packages")))
    program = [str(env / "bin" / "python"), "-P", "-m", "agent_host"]
    variables = host.environment({"PYTHONPATH": str(ROOT)})

    def started(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*program, *words], env=variables, cwd=host.workspace, capture_output=True, text=True, timeout=120
        )

    assert f"runs from this workspace, and no tool or command may change {env}" in started("doctor").stdout
    tries = (
        call("WriteFile", path="env/pyvenv.cfg", content="x"),
        shell("echo x > env/pyvenv.cfg"),
        shell("rm -rf env/lib"),
        shell("echo x > beside"),
    )
    before = (env / "pyvenv.cfg").read_text()
    with gateway(*map(use, tries), say("Done.")) as served:
        done = started("run", "x", "--gateway", served.url, "--policy", "full", "--sandbox", level)
    assert done.returncode == 0, done.stderr
    assert (env / "pyvenv.cfg").read_text() == before
    assert site.is_dir()
    assert (host.workspace / "beside").exists()
