"""Commands that a sandbox holds, as a user and a model meet them: a real host, and what its commands can do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.interaction.test_skills import in_workspace, plain, skill
from tests.support.process import call, eventually, gateway, say, shell, use

if sys.platform == "win32":
    pytest.skip("there is no sandbox", allow_module_level=True)

from tests.support.terminal import AtTerminal
from tool_runtime import sandbox

if TYPE_CHECKING:
    from tests.support.process import Gateway, Host

ROOT = Path(__file__).resolve().parents[2]
WORKING = [level for level in sandbox.LEVELS if sandbox.look(level).works]
pytestmark = pytest.mark.skipif("landlock" not in WORKING, reason="no level of the sandbox works here")
LEVELS = pytest.mark.parametrize("level", WORKING)
HELD = ("--sandbox", "landlock")
JSON = ("--output", "json")
LS = '{"command": "ls"}'


def secret(host: Host) -> Path:
    """A file of the user's that no command of the workspace has to see."""
    folder = host.home / ".ssh"
    folder.mkdir(mode=0o700)
    path = folder / "id_rsa"
    path.write_text("PRIVATE")
    return path


def answer(served: Gateway, request: int = -1) -> str:
    """What the model reads of the only call of a turn."""
    (result,) = served.results(request)
    return result.text


def repository(path: Path) -> Path:
    """A git repository with one commit."""
    path.mkdir(exist_ok=True)
    for words in (
        ("init", "-q", "-b", "main"),
        ("config", "user.email", "a@example.org"),
        ("config", "user.name", "A"),
        ("commit", "-q", "--allow-empty", "-m", "first"),
    ):
        subprocess.run(["git", "-C", str(path), *words], check=True)
    return path


@pytest.mark.parametrize("policy", ["workspace", "ci"])
def test_a_command_reads_and_writes_what_its_policy_says(host: Host, policy: str) -> None:
    path, outside = secret(host), host.home / "outside"
    line = (
        f"python3 -c \"print(open('{path}').read())\"; python3 -c \"open('{outside}', 'w')\"; "
        "echo kept > a; cat a; "
        'touch "$TMPDIR/b" && echo temporary'
    )
    with gateway(use(shell(line)), say("Done.")) as served:
        done = host.task(served.url, *HELD, policy=policy)
    assert done.code == 0, done.stderr
    said = answer(served)
    assert "PRIVATE" not in said
    assert "kept" in said
    assert "temporary" in said
    assert (host.workspace / "a").read_text() == "kept\n"
    assert not outside.exists()


@pytest.mark.slow
@LEVELS
def test_full_opens_all_but_what_it_blocks(host: Host, level: str) -> None:
    path = secret(host)
    elsewhere = host.root / "elsewhere"
    elsewhere.mkdir()
    with gateway(
        use(shell(f"cat {path}; echo x > {elsewhere}/a; echo y > b; cat {host.state}/sandbox-levels.json")),
        say("Done."),
    ) as at:
        host.task(at.url, "--sandbox", level, policy="full")
    assert "PRIVATE" not in answer(at)
    assert "machines" not in answer(at)
    assert (elsewhere / "a").read_text() == "x\n"
    assert (host.workspace / "b").read_text() == "y\n"


@pytest.mark.slow
def test_without_a_sandbox_the_lists_decide(host: Host) -> None:
    with gateway(use(shell("unheard-of")), say("Done.")) as served:
        done = host.task(served.url, "--sandbox", "none", policy="ci")
    assert done.result["toolCalls"] == [{"toolName": "RunCommand", "status": "denied", "code": "CAPABILITY_DENIED"}]
    with gateway(use(shell("unheard-of")), say("Done.")) as served:
        done = host.task(served.url, *HELD, policy="ci")
    assert done.result["toolCalls"][0]["exitCode"] == 127


def test_no_host_is_reached_that_nobody_opened(host: Host) -> None:
    program = "import socket; socket.create_connection(('192.0.2.1', 80), 5)"
    with gateway(use(shell(f'python3 -c "{program}"')), say("Done.")) as served:
        done = host.task(served.url, *HELD, policy="ci")
    assert done.result["toolCalls"][0]["exitCode"] == 1
    assert "192.0.2.1" in answer(served)
    assert "refused" in answer(served)


def test_commits_work_and_hooks_stay(host: Host) -> None:
    repository(host.workspace)
    hook = host.workspace / ".git" / "hooks" / "pre-commit"
    with gateway(use(shell("echo x > a && git add a && git commit -q -m second && git log --oneline")), say(".")) as at:
        host.task(at.url, *HELD, policy="ci")
    assert "second" in answer(at)
    assert not hook.exists()


@pytest.mark.slow
@LEVELS
def test_putting_a_file_back_follows_no_link_that_the_command_left(host: Host, level: str) -> None:
    own, guarded = host.home / ".bashrc", host.workspace / ".envrc"
    own.write_text("mine")
    guarded.write_text("echo of the repository")
    (host.workspace / "build.py").write_text(
        "import os\n"
        "for end in ('.agent-host', '.new', '.tmp', '~', '.bak'):\n"
        f"    os.symlink({str(own)!r}, '.envrc' + end)\n"
        "open('.envrc', 'a').write('x')\n"
    )
    with gateway(use(shell("python3 build.py")), say("Done.")) as served:
        host.task(served.url, "--sandbox", level)
    assert own.read_text() == "mine"
    assert guarded.read_text() == "echo of the repository"
    assert level == "namespace" or "it was put back" in answer(served)


@pytest.mark.slow
@LEVELS
def test_a_folder_that_is_exchanged_for_a_link_opens_no_hook(host: Host, level: str) -> None:
    repository(host.workspace)
    (host.workspace / "a.py").write_text("import os\nos.rename('.git', 'e')\nos.symlink('e', '.git')\n")
    (host.workspace / "b.py").write_text("open('.git/hooks/pre-commit', 'w').write('#!/bin/sh')\n")
    lines = use(shell("python3 a.py")), use(shell("python3 b.py"))
    with gateway(*lines, say("Done.")) as served:
        host.task(served.url, "--sandbox", level)
    assert not (host.workspace / ".git").is_symlink()
    assert not (host.workspace / ".git/hooks/pre-commit").exists()
    assert (host.workspace / ".git/HEAD").exists()


@pytest.mark.slow
@LEVELS
def test_no_file_gets_its_owners_rights(host: Host, level: str) -> None:
    line = (
        "python3 -c 'import os; os.close(os.open(\"tool\", os.O_CREAT | os.O_WRONLY, 0o4755))' || "
        "python3 -c 'import os; os.mknod(\"tool\", 0o104755)' || echo refused"
    )
    path = host.workspace / "theirs"
    path.write_text("x")
    path.chmod(0o4755)
    write = call("WriteFile", path="theirs", content="any program")
    with gateway(use(shell(line)), use(write), say("Done.")) as served:
        host.task(served.url, "--sandbox", level, "--approve-all")
    assert "refused" in answer(served, 1)
    assert not (host.workspace / "tool").exists()
    assert (path.read_text(), path.stat().st_mode & 0o7777) == ("any program", 0o755)


@LEVELS
def test_commits_work_in_a_linked_working_tree(host: Host, tmp_path: Path, level: str) -> None:
    main = repository(tmp_path / "main")
    host.workspace.rmdir()
    subprocess.run(["git", "-C", str(main), "worktree", "add", "-q", str(host.workspace)], check=True)
    hook = main / ".git" / "hooks" / "pre-commit"
    line = (
        f"echo x > a && git add a && git commit -q -m second && git log --oneline && python3 -c \"open('{hook}', 'w')\""
    )
    with gateway(use(shell(line)), say(".")) as at:
        host.task(at.url, "--sandbox", level, policy="ci")
    assert "second" in answer(at)
    assert not hook.exists()


COMMONDIR = """
import os, subprocess
subprocess.run(["git", "init", "-q", "--bare", "build/c"])
open("build/c/config", "a").write('[core]\\n\\tbare = false\\n\\tfsmonitor = "touch %s/../ran; false"\\n' % os.getcwd())
open(".git/commondir", "w").write(os.getcwd() + "/build/c\\n")
"""


@pytest.mark.many_rows(2)
@LEVELS
@pytest.mark.parametrize("policy", ["workspace", "ci"])
def test_what_a_command_leaves_starts_nothing_at_the_users_next_git_status(host: Host, level: str, policy: str) -> None:
    repository(host.workspace)
    (host.workspace / "build.py").write_text(COMMONDIR)
    with gateway(use(shell("python3 build.py")), say(".")) as at:
        done = host.task(at.url, "--sandbox", level, policy=policy)
    assert done.code == 0, done.stderr
    assert ".git/commondir: it was put back" in answer(at)
    for where in (host.workspace, host.workspace / "build" / "c"):
        subprocess.run(["git", "status", "-s"], cwd=where, check=False, capture_output=True)
    assert not (host.root / "ran").exists()


@LEVELS
def test_settings_of_everyday_stay_and_those_that_start_programs_do_not(host: Host, level: str) -> None:
    repository(host.workspace)
    line = "git config user.name Somebody && git remote add origin https://example.org/x && git config core.pager evil"
    with gateway(use(shell("git config user.name Somebody")), use(shell(line)), say(".")) as at:
        host.task(at.url, "--sandbox", level, policy="ci")
    kept = (host.workspace / ".git" / "config").read_text()
    assert "Somebody" in kept
    assert "evil" not in kept
    assert "core.pager" in answer(at)


@LEVELS
def test_what_starts_programs_and_is_new_below_is_named(host: Host, level: str) -> None:
    (host.workspace / "old").mkdir()
    (host.workspace / "old" / ".envrc").write_text("mine")
    (host.workspace / "build.py").write_text(
        "import os; os.makedirs('a/.vscode')\n"
        "for name in ('a/.vscode/tasks.json', 'old/.envrc', 'new.code-workspace'): open(name, 'a').write('x')\n"
    )
    with gateway(use(shell("true")), use(shell("python3 build.py")), say(".")) as at:
        done = host.task(at.url, "--sandbox", level, policy="ci")
    assert f"{host.workspace}/a/.vscode: it is new and was left there" in answer(at)
    assert f"{host.workspace}/old/.envrc: it was put back" in answer(at)
    assert f"{host.workspace}/new.code-workspace: it was put back" in answer(at)
    assert (host.workspace / "old" / ".envrc").read_text() == "mine"
    assert str(host.workspace / "a" / ".vscode" / "tasks.json") in done.result["filesChanged"]


def test_a_literal_git_ends_commits(host: Host) -> None:
    repository(host.workspace)
    path = host.root / "policy.json"
    shape: dict[str, Any] = {"extends": "ci", "capabilities": [{"name": "File.Write", "blockedPaths": [".git"]}]}
    path.write_text(json.dumps(shape))
    said = host.run("policy", "validate", str(path)).text
    assert "no command commits" in said
    checked = host.run("policy", "check", "--policy", str(path), "--sandbox", "landlock", "RunCommand", LS, *JSON)
    assert str(host.workspace / ".git") in json.loads(checked.text)["commandScope"]["guarded"]


def test_the_start_and_the_turn_say_how_commands_are_held(host: Host) -> None:
    with gateway(use(shell("true")), use(shell("true")), say("Done.")) as served:
        done = host.task(served.url, *HELD, policy="ci")
    events = host.event_log(done.result["sessionId"])
    (started,) = [event["payload"]["sandbox"] for event in events if event["eventType"] == "session_started"]
    assert started["level"] == "landlock"
    assert str(host.workspace) in started["scope"]["writes"]
    assert started["scope"]["domains"] == []
    assert any(".envrc" in one for one in started["scope"]["unheld"])


def test_read_only_starts_nothing_and_asks_for_no_sandbox(host: Host) -> None:
    with gateway(say("Done.")) as served:
        done = host.task(served.url, "--sandbox", "auto", policy="read-only")
    assert done.code == 0


OUTSIDE = "tests.support.without_landlock"


@pytest.mark.slow
@pytest.mark.parametrize(("wanted", "run"), [("landlock", False), ("namespace", False), ("auto", True)])
def test_only_auto_goes_on_where_no_level_works(host: Host, wanted: str, run: bool) -> None:
    """A level that is named and does not work refuses every call that starts a program, and each server of MCP."""
    write_tools(host, "import pathlib; pathlib.Path('inside').write_text('x'); print('{}')")
    with open(host.root / "user.toml", "a", encoding="utf-8") as file:
        file.write(server_that_says_it_ran(host))
    calls = [shell("find . -name look.py"), shell("touch inside", background=True)]
    calls += [call("cp__exec", command=PYTHON, args=["look.py"]), call("look")]
    calls += [call("run_script", skill="looking", relative_path="scripts/look.py")]
    families = [word for name in ("desktop", "native", "skills") for word in ("--toolset", name)]
    arguments: list[str | Path] = [
        *families,
        "--approve",
        "look",
        "--approve",
        "run_script",
        "--policy",
        host.root / "own.json",
    ]
    with gateway(use(*calls), say("Done.")) as served:
        task = ("run", "Do it.", "--gateway", served.url, "--sandbox", wanted, *JSON)
        done = host.start(*task, *arguments, program=OUTSIDE, env={"PYTHONPATH": str(ROOT)}).finish()
    said = [one["status"] for one in done.result["toolCalls"]]
    assert said == ["succeeded" if run else "denied"] * len(calls), served.results()
    assert (host.workspace / "inside").exists() is run
    assert (host.root / "served").exists() is run
    assert done.result["sandbox"]["level"] == "none"
    assert "the kernel has no Landlock" in done.result["sandbox"]["why"]
    follows = "only the policy's lists and approvals restrict commands" if run else "commands are denied"
    assert f"no sandbox works here ({wanted if not run else 'namespace'}: " in done.stderr
    assert follows in done.stderr
    if not run:
        assert f"the sandbox level {wanted} was asked for and does not work here" in answer_of(served, 0)


@pytest.mark.many_rows(1)
@pytest.mark.parametrize(
    "answer", ["landlock_restrict_self:ENOSPC", "seccomp:EMFILE", "landlock_create_ruleset:ENOMEM"]
)
def test_a_trial_that_fails_for_a_reason_of_its_own_is_no_lack_of_a_sandbox(host: Host, answer: str) -> None:
    with gateway(use(shell("touch inside")), say("Done.")) as served:
        task = ("run", "Do it.", "--gateway", served.url, "--sandbox", "auto", "--policy", "ci", *JSON)
        done = host.start(*task, program=OUTSIDE, env={"PYTHONPATH": str(ROOT), "ANSWER": answer}).finish()
        said = answer_of(served, 0)
    assert [one["status"] for one in done.result["toolCalls"]] == ["denied"]
    assert not (host.workspace / "inside").exists()
    assert "the sandbox could not be tried" in said
    assert "--sandbox none" in said
    assert "commands are denied; --sandbox none runs them without one" in done.stderr
    assert not (host.state / "sandbox-levels.json").exists()


def test_a_temporary_directory_that_is_not_there_costs_no_sandbox(host: Host) -> None:
    with gateway(use(shell("touch inside; touch ../outside")), say("Done.")) as served:
        task = ("run", "Do it.", "--gateway", served.url, "--sandbox", "auto", "--policy", "ci", *JSON)
        done = host.run(*task, env={"TMPDIR": "/nonexistent"})
    assert done.result["sandbox"]["level"] == WORKING[0]
    assert (host.workspace / "inside").exists()
    assert not (host.root / "outside").exists()


def answer_of(served: Gateway, number: int) -> str:
    """What the model reads of one of several calls."""
    return served.results()[number].text


def server_that_says_it_ran(host: Host) -> str:
    """The program of a server that writes a file, and is no server besides."""
    code = f"open({str(host.root / 'served')!r}, 'w')"
    fields = {"name": "odd", "transport": "stdio", "command": PYTHON, "args": ["-c", code]}
    lines = [f"{key} = {json.dumps(value)}" for key, value in fields.items()]
    return "\n".join(["[mcp]", 'enabled = ["odd"]', "[[mcp.servers]]", *lines, ""])


@pytest.mark.parametrize(
    "field", [{"required": True}, {"minimumLevel": "landlock"}, {"minimumLevel": "namespace", "required": True}]
)
def test_a_policy_that_wants_a_sandbox_gets_one_or_no_command_runs(host: Host, field: dict[str, Any]) -> None:
    policy = host.policy(sandbox=field)
    with gateway(use(shell("touch a")), say("Done.")) as served:
        done = host.task(served.url, "--sandbox", "none", policy=policy)
    assert done.result["toolCalls"][0]["status"] == "denied"
    assert "sandbox" in answer(served)
    assert not (host.workspace / "a").exists()


GRANT = {"write": ["../outside"], "reason": "the build writes there"}


def test_a_call_may_ask_for_more(host: Host) -> None:
    (host.root / "outside").mkdir()
    asks = shell("echo x > ../outside/a && echo wrote", sandboxGrant=GRANT)
    with gateway(use(asks), say("Done.")) as served:
        denied = host.task(served.url, *HELD, "--approve", "RunCommand", "--approve", "Shell.Exec")
    assert denied.code == 4
    assert denied.result["deniedApprovals"][0]["replay"]["approve"] == "sandboxGrant"
    assert not (host.root / "outside" / "a").exists()
    with gateway(use(asks), say("Done.")) as served:
        done = host.task(served.url, *HELD, "--approve", "sandboxGrant")
    assert done.code == 0, done.stderr
    assert "wrote" in answer(served)
    assert (host.root / "outside" / "a").exists()
    schema = next(tool for tool in served.bodies[0]["tools"] if tool["name"] == "RunCommand")["input_schema"]
    assert "sandboxGrant" not in schema["properties"]  # what is refused introduces it


@pytest.mark.slow
def test_show_and_replay_say_how_commands_were_held_and_what_was_refused(host: Host) -> None:
    outside = host.root / "outside"
    outside.mkdir()
    refused, asks = shell(f"touch {outside}/a"), shell(f"touch {outside}/b", sandboxGrant=GRANT)
    with gateway(use(refused), use(asks), say("Done.")) as served:
        host.task(served.url, *HELD, "--approve", "sandboxGrant", "--session-id", "s", policy="ci")
    told = f"write {outside}/a: refused (it is not among the places that may be written)"
    row = json.loads(host.run("show", "s", *JSON).stdout)
    assert row["sandbox"]["level"] == "landlock"
    assert str(host.workspace) in row["sandbox"]["scope"]["writes"]
    assert [item.get("denials") for item in row["items"] if item["kind"] == "call"] == [[told], None]
    text = host.run("show", "s").text
    assert "commands run in the landlock sandbox:\n  reads " in text
    assert f"    sandbox: {told}\n" in text
    assert '    asked of the sandbox: {"write":["../outside"],"reason":"the build writes there"}' in text
    copy = host.root / "copy"
    copy.mkdir()
    done = json.loads(host.run("replay", "s", "--workspace", copy, *JSON).stdout)
    assert [done["sandbox"][when]["level"] for when in ("before", "now")] == ["landlock", "landlock"]
    assert str(copy) in done["sandbox"]["now"]["scope"]["writes"]
    assert done["refusals"] == [
        {"call": 1, "toolName": "RunCommand", "before": [told], "now": [told]},
        {"call": 2, "toolName": "RunCommand", "before": [], "now": [], "sandboxGrant": GRANT},
    ]


def test_a_grant_means_nothing_without_a_sandbox(host: Host) -> None:
    with gateway(use(shell("true", sandboxGrant=GRANT)), say("Done.")) as served:
        done = host.task(served.url, "--sandbox", "none")
    assert done.result["toolCalls"][0]["status"] == "succeeded"


@pytest.mark.many_rows(3)
@pytest.mark.parametrize(
    ("grant", "said"),
    [
        ({"write": ["~/.ssh"], "reason": "r"}, "path is blocked"),
        ({"write": [".agent"], "reason": "r"}, "path is blocked"),
        ({"off": True, "reason": "r"}, "without a sandbox"),
        ({"write": ["~/x"]}, "reason"),
        ({"domains": ["http://x"], "reason": "r"}, "domains"),
    ],
)
def test_what_no_approval_opens(host: Host, grant: dict[str, Any], said: str) -> None:
    with gateway(use(shell("true", sandboxGrant=grant)), say("Done.")) as served:
        done = host.task(served.url, *HELD, "--approve-all", policy="workspace")
    assert done.result["toolCalls"][0]["status"] in ("denied", "failed")
    assert said in answer(served)


def test_a_call_runs_without_where_the_policy_allows_it(host: Host) -> None:
    path = secret(host)
    policy = host.policy(sandbox={"allowOff": True})
    asks = shell(f"cat {path}", sandboxGrant={"off": True, "reason": "it has to"})
    with gateway(use(shell(f"cat {path}"), asks), say("Done.")) as served:
        host.task(served.url, *HELD, "--approve", "sandboxGrant", policy=policy)
    held, free = (result.text for result in served.results())
    assert "PRIVATE" not in held
    assert "PRIVATE" in free


def test_a_domain_is_opened_by_its_user_only(host: Host) -> None:
    with gateway(say("Done.")) as served:
        done = host.task(served.url, *HELD, "--allow-domain", "pypi.org", policy="ci")
    events = host.event_log(done.result["sessionId"])
    (started,) = [event["payload"]["sandbox"] for event in events if event["eventType"] == "session_started"]
    assert started["scope"]["domains"] == ["pypi.org"]
    refused = host.run("run", "x", "--gateway", "http://127.0.0.1:9", "--allow-domain", "http://x")
    assert refused.code == 2
    assert "--allow-domain http://x" in refused.error


HANG: dict[str, Any] = {"hang": True, "times": 1}


def wants(host: Host, level: str) -> None:
    """Have the user's configuration name a level."""
    (host.root / "user.toml").write_text(f'[sandbox]\nlevel = "{level}"\n')


@pytest.mark.slow
def test_a_resume_under_a_weaker_level_asks(host: Host) -> None:
    """Nothing is done until an explicit `--sandbox` answers it, and that answer is on record."""
    wants(host, "landlock")
    with gateway(use(shell("true")), HANG, use(shell("true")), HANG, say("Done.")) as served:
        process = host.start_task(served.url, "--session-id", "s1")
        eventually(lambda: served.count == 2, "a request behind a command")
        process.kill()
        process.finish()
        wants(host, "none")
        asked = host.resume("s1")
        assert asked.code == 3
        assert "resume with: agent-host resume s1" in asked.error
        assert asked.error.endswith("--sandbox none")
        assert served.count == 2
        process = host.start("resume", "s1", "--sandbox", "none", "--output", "json")
        eventually(lambda: served.count == 4, "a request behind another command")
        process.kill()
        process.finish()
        assert host.resume("s1").code == 0


@pytest.mark.slow
@pytest.mark.parametrize(("key", "code", "requests"), [("y", 0, 3), ("n", 3, 2)])
def test_a_person_is_asked_at_the_terminal(host: Host, key: str, code: int, requests: int) -> None:
    wants(host, "landlock")
    with gateway(use(shell("true")), HANG, say("Done.")) as served:
        process = host.start_task(served.url, "--session-id", "s1")
        eventually(lambda: served.count == 2, "a request behind a command")
        process.kill()
        process.finish()
        wants(host, "none")
        terminal = AtTerminal(host, "resume", "s1")
        terminal.said("Go on so?")
        assert served.count == 2
        terminal.type(f"{key}\n")
        assert terminal.finish()[0] == code
        assert served.count == requests


@pytest.mark.slow
def test_a_resume_under_the_same_level_goes_on(host: Host) -> None:
    with gateway(use(shell("true")), HANG, use(shell("touch ../x; touch a")), say("Done.")) as served:
        process = host.start_task(served.url, *HELD, "--session-id", "s1")
        eventually(lambda: served.count == 2, "a request behind a command")
        process.kill()
        process.finish()
        assert host.resume("s1").code == 0


@pytest.mark.slow
@LEVELS
def test_a_host_in_a_held_command_holds_its_own_and_says_what_it_lacks(host: Host, level: str) -> None:
    """The outer one leaves it no namespaces and no second supervisor: what it starts connects to nobody."""
    inside = host.workspace / "inside"
    inside.mkdir()
    (inside / "try.sh").write_text("echo x > mine; echo x > ../above; curl -sS http://127.0.0.1:9/")
    script = host.script(use(shell("sh try.sh")), say("Done.")).rename(host.workspace / "script.jsonl")
    line = (
        f"{sys.executable} -P -m agent_host run x --gateway mock:{script} --policy ci --sandbox auto --workspace inside"
    )
    state = f"AGENT_HOST_STATE_DIR={host.workspace}/state"
    with gateway(use(shell(f"{state} {line} --output jsonl > said.jsonl")), say("Done.")) as served:
        host.task(served.url, "--sandbox", level)
    said = [json.loads(one) for one in (host.workspace / "said.jsonl").read_text().splitlines()]
    (started,) = [one["payload"]["sandbox"] for one in said if one.get("eventType") == "session_started"]
    assert started["level"] == "landlock"
    assert "namespace: " in started["why"]
    assert "no supervisor" in started["why"]
    (call_,) = [one["payload"] for one in said if one.get("eventType") == "tool_completed"]
    assert call_["exitCode"], call_
    assert (inside / "mine").exists()
    assert not (host.workspace / "above").exists()


LOOK = """
import json, pathlib
said = []
for path in ("inside", "{home}/outside"):
    try:
        pathlib.Path(path).write_text("x")
        said.append("wrote")
    except OSError:
        said.append("refused")
try:
    said.append(pathlib.Path("{home}/.ssh/id_rsa").read_text())
except OSError:
    said.append("hidden")
print(json.dumps(said))
"""
MANIFEST = """
name = "look"
description = "It looks."
argv = ["python3", "look.py"]
side_effects = true
[input]
type = "object"
"""
PYTHON = os.path.realpath(shutil.which("python3") or sys.executable)
TOOLS = ("RunCommand", "in the background", "cp__exec", "of the project", "run_script")


def calls_of(tool: str) -> list[dict[str, Any]]:
    """Turns that have a program write inside of the workspace and outside, and read a secret; the last one shows it."""
    line = "python3 look.py"
    if tool == "in the background":
        waits = shell("until test -e finished; do :; done")
        begins = shell(f"{line}; touch finished", background=True)
        return [use(begins), use(waits), use(call("CommandOutput", id="cmd_1"))]
    if tool == "cp__exec":
        return [use(call("cp__exec", command=PYTHON, args=["look.py"]))]
    if tool == "run_script":
        return [use(call("run_script", skill="looking", relative_path="scripts/look.py"))]
    return [use(shell(line) if tool == "RunCommand" else call("look"))]


def write_tools(host: Host, look: str) -> None:
    """The program `look` as a tool of each family, and a policy that lets them run."""
    (host.workspace / "look.py").write_text(look)
    folder = host.workspace / ".agent" / "tools"
    folder.mkdir(parents=True)
    (folder / "look.toml").write_text(MANIFEST)
    skill(in_workspace(host), "looking", plain("looking"), **{"scripts/look.py": look})
    more = f'[skills]\nenabled_tools = ["run_script"]\n[[native.exec]]\ncommand = "{PYTHON}"\n'
    (host.root / "user.toml").write_text(more)
    granted = [{"name": "Tool.Invoke"}, {"name": "Mcp.Invoke"}]
    bundle: dict[str, Any] = {"extends": "ci", "capabilities": granted}
    (host.root / "own.json").write_text(json.dumps(bundle))


@LEVELS
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.slow
def test_every_tool_that_starts_a_program_is_held(host: Host, level: str, tool: str) -> None:
    secret(host)
    write_tools(host, LOOK.replace("{home}", str(host.home)))
    families = [word for name in ("desktop", "native", "skills") for word in ("--toolset", name)]
    approved = ("--approve", "look", "--approve", "run_script")
    with gateway(*calls_of(tool), say("Done.")) as served:
        done = host.task(served.url, "--sandbox", level, *families, *approved, policy=host.root / "own.json")
    assert done.code == 0, done.stderr
    said = json.dumps(served.bodies[-1]["messages"][2:])
    assert ["wrote" in said, "refused" in said, "hidden" in said, "PRIVATE" in said] == [True, True, True, False], said
    assert not (host.home / "outside").exists()


@pytest.mark.slow
def test_answers_without_a_run_are_for_the_level_that_a_run_has(host: Host) -> None:
    host.configure(sandbox="auto")
    line = json.dumps({"command": "unheard-of"})
    checked = ("policy", "check", "--policy", "ci", "RunCommand", line)
    told = host.run(*checked, *JSON).result
    assert (told["decision"], told["sandboxLevel"]) == ("ALLOWED", WORKING[0])
    assert f"at the sandbox level {WORKING[0]}\n" in host.run(*checked).text
    with gateway(use(shell("unheard-of")), say("Done.")) as served:
        assert host.task(served.url, policy="ci").result["sandbox"]["level"] == told["sandboxLevel"]
    for named, decision in (("none", "DENIED"), ("landlock", "ALLOWED"), ("namespace", "ALLOWED")):
        told = host.run(*checked, "--sandbox", named, *JSON).result
        assert (told["decision"], told["sandboxLevel"]) == (decision, named)
    rows = json.loads(host.run("policy", "tools", "--policy", "ci", *JSON).stdout)
    assert {row["sandboxLevel"] for row in rows} == {WORKING[0]}
    (host.root / "own.json").write_text(json.dumps({"extends": "ci"}))
    found = json.loads(host.run("policy", "validate", host.root / "own.json", *JSON).stdout)
    assert (found["valid"], found["sandboxLevel"]) == (True, WORKING[0])
    assert f"commands run in the {WORKING[0]} sandbox" in host.run("doctor").text


def test_each_case_of_a_batch_has_the_level_that_it_is_for(host: Host) -> None:
    host.configure(sandbox="auto")
    case = {"toolName": "RunCommand", "arguments": {"command": "unheard-of"}}
    other = "posix" if os.name == "nt" else "windows"
    cases = [
        case,
        case | {"sandbox": "none"},
        case | {"sandbox": "auto"},
        case | {"os": other, "cwd": "C:\\p"},
        case | {"os": other, "cwd": "C:\\p", "sandbox": "landlock"},
        case | {"facts": {}, "cwd": "/srv/p"},
        case | {"arguments": {"command": "ls", "bogus": 1}},
        case | {"toolName": "None"},
        case | {"sandbox": "x"},
    ]
    stdin = "".join(json.dumps(one) + "\n" for one in cases).encode()
    done = host.run("policy", "check", "--policy", "ci", "--batch", "-", stdin=stdin)
    levels = [json.loads(row)["sandboxLevel"] for row in done.stdout.splitlines()]
    best = WORKING[0]
    assert levels == [best, "none", best, "none", "landlock", best, best, best, best]
    decisions = [json.loads(row)["decision"] for row in done.stdout.splitlines()]
    assert decisions[:4] == ["ALLOWED", "DENIED", "ALLOWED", "DENIED"]


@pytest.mark.slow
def test_a_check_answers_as_a_run_whose_sandbox_could_not_be_tried(host: Host) -> None:
    host.configure(sandbox="auto")
    asked = ("policy", "check", "--policy", "full", "RunCommand", '{"command": "ls"}', *JSON)
    done = host.start(*asked, program=OUTSIDE, env={"PYTHONPATH": str(ROOT), "ANSWER": "seccomp:ENOMEM"}).finish()
    assert (done.result["decision"], done.result["sandboxLevel"]) == ("DENIED", "none")
    assert "--sandbox none" in done.result["reason"]
    checked = host.start("doctor", program=OUTSIDE, env={"PYTHONPATH": str(ROOT), "ANSWER": "seccomp:ENOMEM"}).finish()
    assert "commands are denied" in checked.text
