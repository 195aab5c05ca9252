from __future__ import annotations

import asyncio
import os
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent_host.judging import Environment
from agent_host.judging.facts import gather
from policy.facts import CommandFacts
from tests.support.tools import TOOLS
from tests.unit.tool_runtime.conftest import Call, MakeRouter, error_of, request, text_of, until
from tool_runtime.platform import posix
from tool_runtime.processes.command import CommandParams, LocalCommand, run_command
from tool_runtime.threads import DaemonPool

if TYPE_CHECKING:
    from agent_host.contracts import ToolRequest

# Leaves the process group, and by a second fork the family too; then says who it is.
STRAY = (
    "python3 -c 'import os,time\n"
    "if os.fork(): os._exit(0)\n"
    "os.setsid()\n"
    "if os.fork(): os._exit(0)\n"
    'open("stray.tmp","w").write(str(os.getpid())); os.rename("stray.tmp","stray")\n'
    "time.sleep(60)'"
)


def alive(pid_file: Path) -> bool:
    try:
        state = Path(f"/proc/{pid_file.read_text().strip()}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def test_output_format_and_exit_code(call: Call) -> None:
    text = text_of(await call("RunCommand", command="echo out; echo err >&2; exit 3"))
    assert text == "Exit code: 3\n--- stdout ---\nout\n--- stderr ---\nerr\n"
    assert text_of(await call("RunCommand", command="printf x")).endswith("stdout ---\nx\n--- stderr ---\n")
    assert text_of(await call("RunCommand", command="kill -9 $$")).startswith("Exit code: 137\n")


async def test_colours_of_short_output_are_for_people(call: Call) -> None:
    result = await call("RunCommand", command=r"printf '\033[31mred\033[0m\n'; echo plain >&2")
    assert text_of(result) == "Exit code: 0\n--- stdout ---\nred\n--- stderr ---\nplain\n"
    assert result.coloured == {"stdout": "\x1b[31mred\x1b[0m\n"}
    long = await call("RunCommand", command=r"for n in $(seq 3000); do printf '\033[31mred\033[0m\n'; done")
    assert long.coloured == {}
    assert b"\x1b[31mred" in long.artifacts[0].data, "an artifact is stored as it was printed"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The real path of a home directory that $HOME names by a link."""
    for name in ("far/home", "far/x", "x"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "home").symlink_to("far/home")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return os.path.realpath(tmp_path / "home")


@pytest.mark.parametrize("asked", ["sub", "~root", "~", "link/..", "link/../../outer", "~/../x", "."])
async def test_the_directory_is_the_one_that_policy_was_told(
    call: Call, workspace: Path, home: str, asked: str
) -> None:
    for name in ("sub", "~root", "a/b", "a/outer", "outer"):
        (workspace / name).mkdir(parents=True, exist_ok=True)
    (workspace.parent / "outer").mkdir(exist_ok=True)
    (workspace / "link").symlink_to("a/b")
    where = Environment(str(workspace), home, "posix", "bash")
    facts = gather(TOOLS["RunCommand"], {"command": "pwd -P", "cwd": asked}, where)
    assert isinstance(facts, CommandFacts)
    assert f"stdout ---\n{facts.cwd}\n" in text_of(await call("RunCommand", command="pwd -P", cwd=asked))


async def test_git_starts_no_editor(call: Call, workspace: Path) -> None:
    """vi would run what its input says."""
    (workspace / "editor").write_text(f"#!/bin/sh\ntouch {workspace}/started\n")
    (workspace / "editor").chmod(0o755)
    setting = f"-c user.name=a -c user.email=a@b -c core.editor={workspace}/editor"
    line = f"git init -q . && git {setting} commit --allow-empty"
    text = text_of(await call("RunCommand", command=line, stdin=":!touch started\n:q\n"))
    assert "problem with the editor" in text
    assert not (workspace / "started").exists()


async def test_working_directory(call: Call, workspace: Path) -> None:
    (workspace / "sub").mkdir()
    assert f"\n{workspace}\n" in text_of(await call("RunCommand", command="pwd"))
    assert f"\n{workspace}/sub\n" in text_of(await call("RunCommand", command="pwd", cwd=f"{workspace}/sub"))
    assert f"\n{workspace}/sub\n" in text_of(await call("RunCommand", command="pwd", cwd="sub"))
    assert error_of(await call("RunCommand", command="pwd", cwd=f"{workspace}/none"))[0] == "FILE_NOT_FOUND"


async def test_an_argument_is_judged_before_the_working_directory_is_looked_up(call: Call) -> None:
    for arguments in ({"command": " "}, {"command": "true", "timeout": 601}):
        code, message = error_of(await call("RunCommand", cwd="sub\0", **arguments))
        assert (code, message[:2]) == ("INVALID_REQUEST", "$."), message


async def test_stdin_is_piped_or_empty(call: Call) -> None:
    assert "\nstdin says ü\n" in text_of(await call("RunCommand", command="cat", stdin="stdin says ü"))
    assert text_of(await call("RunCommand", command="cat")).startswith("Exit code: 0")


async def test_large_streams_in_all_directions_do_not_deadlock(call: Call) -> None:
    script = "head -c 3000000 /dev/zero | tr '\\0' e >&2; tee /dev/stderr | wc -c"
    text = text_of(await call("RunCommand", command=script, stdin="i" * 2_000_000))
    assert "\n2000000\n" in text
    assert "of 5000000 ..." in text
    assert "Exit code: 0" in text_of(await call("RunCommand", command="exec <&-; true", stdin="i" * 2_000_000))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"command": ""}, "$.command"),
        ({"command": "  "}, "$.command"),
        ({"command": "a\0b"}, "$.command"),
        ({"command": "echo \ud800"}, "$.command"),
        ({"command": "true", "timeout": 0}, "$.timeout"),
        ({"command": "true", "timeout": 601}, "$.timeout"),
        ({"command": "true", "shell": "zsh"}, "$.shell"),
    ],
)
async def test_refused_arguments(call: Call, arguments: dict[str, object], said: str) -> None:
    code, message = error_of(await call("RunCommand", **arguments))
    assert code == "INVALID_REQUEST"
    assert said in message


async def test_a_missing_shell_is_a_result(make_router: MakeRouter) -> None:
    router = make_router(shell="/no/such/shell")
    code, message = error_of(await router.execute(request("RunCommand", command="true")))
    assert (code, "/no/such/shell" in message) == ("FILE_NOT_FOUND", True)


async def test_truncation_shares_the_limit_and_keeps_characters_whole(make_router: MakeRouter) -> None:
    router = make_router(max_output_bytes=1001)
    command = 'python3 -c \'print("ü" * 5000, end="")\'; echo short >&2'
    text = text_of(await router.execute(request("RunCommand", command=command)))
    out = text.split("--- stdout ---\n")[1].split("\n--- stderr ---\n")[0]
    assert "�" not in out
    head, tail = out.split("\n[... truncated ")
    omitted, _, rest = tail.partition(" bytes of 10000 ...]\n")
    assert int(omitted) + 2 * (len(head) + len(rest)) == 10_000
    assert 980 <= 2 * (len(head) + len(rest)) <= 1001 - len("short\n")
    assert text.endswith("--- stderr ---\nshort\n")


async def test_long_stdout_is_kept_whole_as_an_artifact(call: Call) -> None:
    result = await call("RunCommand", command="seq 1 50000")
    (artifact,) = result.artifacts
    assert artifact.artifact_type == "tool_output"
    assert artifact.data == b"".join(b"%d\n" % n for n in range(1, 50_001))
    assert len(text_of(result)) < 103_000
    assert (await call("RunCommand", command="seq 1 100")).artifacts == ()


async def test_what_is_not_kept_of_a_stream_is_said(make_router: MakeRouter) -> None:
    router = make_router(artifact_max_bytes=65_536, max_output_bytes=1000)
    result = await router.execute(request("RunCommand", command="seq 1 20000"))
    whole = b"".join(b"%d\n" % n for n in range(1, 20_001))
    (out,) = result.artifacts
    assert out.data.startswith(whole[:65_536] + b"\n[... truncated ")
    assert out.data.endswith(b"\n20000\n")
    assert text_of(result).endswith(f"[Of the {len(whole)} bytes of stdout the first 65536 are stored, and the end]\n")


@pytest.mark.slow
async def test_a_flood_costs_bounded_memory_and_does_not_delay_the_time_out(make_router: MakeRouter) -> None:
    router = make_router(artifact_max_bytes=1024 * 1024)
    # Of this process's own time: chunks that cost too much would starve the time-out, a busy machine does not count.
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    result = await router.execute(request("RunCommand", command="yes", timeout=1))
    assert error_of(result) == ("TOOL_EXECUTION_TIMEOUT", "Command timed out after 1 seconds")
    assert time.process_time() - began < 3
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30_000, "KiB"
    assert 1024 * 1024 < len(result.artifacts[0].data) < 1024 * 1024 + 110_000


@pytest.mark.slow
async def test_time_out_gives_what_was_printed_and_ends_the_tree(make_router: MakeRouter, workspace: Path) -> None:
    command = f"{STRAY}; echo begun; (trap '' TERM; echo $BASHPID > stubborn; sleep 60; sleep 60) & sleep 60"
    router = make_router(kill_grace_s=0.1, shell="/bin/bash")
    task = asyncio.create_task(router.execute(request("RunCommand", command=command, timeout=1)))
    await until(lambda: (workspace / "stray").exists() and (workspace / "stubborn").exists())
    result = await task
    assert error_of(result) == ("TOOL_EXECUTION_TIMEOUT", "Command timed out after 1 seconds")
    assert result.output_text is not None
    assert "--- stdout ---\nbegun\n" in result.output_text
    assert not alive(workspace / "stray")
    assert not alive(workspace / "stubborn")


@pytest.mark.slow
async def test_time_out_lets_a_command_that_listens_clean_up(make_router: MakeRouter, workspace: Path) -> None:
    command = "trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.01; done"
    result = await make_router().execute(request("RunCommand", command=command, timeout=1))
    assert result.output_text is not None
    assert result.output_text.startswith("Exit code: 5\n--- stdout ---\nready\nbye\n")


@pytest.mark.parametrize("impatient", [False, True])
async def test_cancelling_ends_the_tree_and_propagates(
    make_router: MakeRouter, workspace: Path, impatient: bool
) -> None:
    router = make_router(kill_grace_s=60.0 if impatient else 0.05)
    command = f"{STRAY}; trap '' TERM; echo $$ > leader; sleep 60"
    tasks = asyncio.all_tasks()
    task = asyncio.create_task(router.execute(request("RunCommand", command=command)))
    await until(lambda: (workspace / "stray").exists() and (workspace / "leader").exists())
    task.cancel()
    if impatient:
        await until(lambda: not alive(workspace / "stray"))  # it heard the SIGTERM, the shell does not want to
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not alive(workspace / "stray")
    assert not (Path("/proc") / (workspace / "leader").read_text().strip()).exists(), "reaped, not a zombie"
    assert asyncio.all_tasks() == tasks


async def test_closing_the_router_ends_what_is_running(make_router: MakeRouter, workspace: Path) -> None:
    router = make_router()
    task = asyncio.create_task(router.execute(request("RunCommand", command="echo $$ > leader; sleep 60; true")))
    await until((workspace / "leader").exists)
    await router.aclose()
    assert task.cancelled()
    assert not alive(workspace / "leader")


async def test_a_background_child_that_holds_the_pipes_does_not_hold_the_call(
    make_router: MakeRouter, workspace: Path
) -> None:
    router = make_router(drain_s=0.05)
    began = time.monotonic()
    command = "sleep 60 & echo $! > child; echo done"
    text = text_of(await router.execute(request("RunCommand", command=command)))
    os.kill(int((workspace / "child").read_text()), 9)
    assert text == "Exit code: 0\n--- stdout ---\ndone\n--- stderr ---\n"
    assert time.monotonic() - began < 20


async def test_secrets_do_not_reach_the_child(make_router: MakeRouter, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = ("GITHUB_TOKEN", "LLM_GATEWAY_AUTH_TOKEN", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "MY_OWN")
    shown = ("ORDINARY", "NPM_TOKEN")
    for name in (*hidden, *shown):
        monkeypatch.setenv(name, "VALUE-" + name)
    router = make_router(secret_env=frozenset({"MY_OWN"}), env_passthrough=frozenset({"NPM_TOKEN"}))
    text = text_of(await router.execute(request("RunCommand", command="env")))
    assert [name for name in hidden if "VALUE-" + name in text] == []
    assert [name for name in shown if "VALUE-" + name in text] == list(shown)


async def test_commands_get_listed_variables_only(make_router: MakeRouter, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CI_JOB", "ORDINARY"):
        monkeypatch.setenv(name, "VALUE-" + name)
    router = make_router(env_allowed=frozenset({"CI_*"}))
    lines = text_of(await router.execute(request("RunCommand", command="env"))).splitlines()
    assert "CI_JOB=VALUE-CI_JOB" in lines
    assert not any(line.startswith("ORDINARY=") for line in lines)
    assert any(line.startswith("PATH=") for line in lines)


async def test_output_is_reported_as_it_comes(make_router: MakeRouter, workspace: Path) -> None:
    seen: list[tuple[str, str, bytes]] = []

    def hear(call: ToolRequest, stream: str, chunk: bytes) -> None:
        seen.append((call.tool_call_id, stream, chunk))
        (workspace / "heard").touch()

    router = make_router(on_output=hear)
    command = "echo one; until [ -e heard ]; do sleep 0.01; done; echo two >&2"
    assert text_of(await router.execute(request("RunCommand", command=command, timeout=10))).startswith("Exit code: 0")
    assert seen == [("call1", "stdout", b"one\n"), ("call1", "stderr", b"two\n")]


async def test_commands_run_side_by_side(call: Call, workspace: Path) -> None:
    # Each waits for all the others to have started: one after another they would never end.
    command = "touch step{0}; until [ $(ls | wc -l) -ge 8 ]; do sleep 0.01; done; echo met"
    results = await asyncio.gather(*(call("RunCommand", command=command.format(n), timeout=10) for n in range(8)))
    assert all("met" in text_of(result) for result in results)


@pytest.mark.parametrize("pidfd", [True, False])
@pytest.mark.parametrize("threaded", [True, False])
async def test_every_way_of_moving_bytes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pidfd: bool, threaded: bool
) -> None:
    if not pidfd:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    params = CommandParams(
        argv=posix.shell_argv("/bin/sh", "tee /dev/stderr; exit 4"),
        cwd=str(tmp_path),
        environment=dict(os.environ),
        mark="a call",
        timeout_s=10,
        max_output_bytes=10_000_000,
        artifact_max_bytes=100,
        stdin=b"0123456789" * 100_000,
        drain_s=10,
        threaded=threaded,
    )
    outcome = await run_command(LocalCommand, params, DaemonPool())
    assert (outcome.exit_code, outcome.timed_out) == (4, False)
    assert outcome.stdout.ends.render(10_000_000) == params.stdin
    assert outcome.stderr.ends.render(10_000_000) == params.stdin
