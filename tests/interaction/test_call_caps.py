"""What the calls of one turn may take of the machine, however many there are (AH 4.2, TR 7.2)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.process import Process, bundle, call, eventually, gateway, say, shell, use

if TYPE_CHECKING:
    from tests.support.process import Gateway, Host

_PATIENCE_S = 300.0
"""A guard against a hang: one of these turns takes some seconds of two cores."""
MIB = 1024 * 1024

needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="looks at the process through /proc")


def status_kib(pid: int, name: str) -> int:
    """A size that the kernel tells of process `pid`."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (found,) = [line.split()[1] for line in lines if line.startswith(name + ":")]
    return int(found)


def start(host: Host, model: Gateway, *, descriptors: int | None = None) -> Process:
    """A task under a bundle that lets it do everything, in a process that may have so many descriptors."""
    policy = host.root / "policy.json"
    policy.write_text(json.dumps(bundle(host.workspace, llm={"maxSessionTokens": 10**9, "maxInputTokens": 10**8})))
    if descriptors is None:
        return host.start_task(model.url, policy=policy)
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({descriptors}, {descriptors}))"
    program = f"{limit}; import sys; from agent_host.cli.main import main; sys.exit(main())"
    options = ("run", "Do it.", "--gateway", model.url, "--policy", str(policy), "--output", "json")
    popen = subprocess.Popen(
        [sys.executable, "-c", program, *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=host.environment(),
        cwd=host.workspace,
        start_new_session=True,
    )
    process = Process(popen, None)
    host.started.append(process)
    return process


@pytest.mark.slow
@needs_proc
def test_sixty_floods_stay_within_64_mib(host: Host) -> None:
    """Each prints 16 MB that differ; what it costs is the peak above what the process held before its first turn. All
    of them together are less than a session may store."""
    flood = "yes 'line {} of what it prints, which is not short' | head -c 16000000"
    floods = use(*(shell(flood.format(number), timeout=300) for number in range(60)))
    idle = use(shell("mkfifo held; echo idle > held"))
    done = use(shell("mkfifo end; echo floods > end"))
    with gateway(idle, floods, done, say("Done.")) as model:
        process = start(host, model)
        eventually(lambda: (host.workspace / "held").exists() or not process.alive, "the first call")
        before = status_kib(process.pid, "VmRSS")
        assert (host.workspace / "held").read_text() == "idle\n"
        eventually(lambda: (host.workspace / "end").exists() or not process.alive, "the end", within_s=_PATIENCE_S)
        assert process.alive, process.printed(on="stderr")
        peak = status_kib(process.pid, "VmHWM")
        assert (host.workspace / "end").read_text() == "floods\n"
        outcome = process.finish()
        answers = model.results(2)
    assert outcome.code == 0, outcome.stderr
    assert [answer.is_error for answer in answers] == [False] * 60
    assert all("[... truncated " in answer.text for answer in answers)
    kept = [path.stat().st_size for path in (host.records(outcome.result["sessionId"]) / "artifacts").glob("art*")]
    assert len(kept) == 60
    assert all(16_000_000 <= size < 17 * MIB for size in kept)
    print(f"peak {(peak - before) / 1024:.1f} MiB above the {before / 1024:.1f} MiB of an idle process")
    assert peak - before < 64 * 1024, "KiB"


@pytest.mark.slow
def test_six_hundred_calls_all_run_with_1024_descriptors(host: Host) -> None:
    (host.workspace / "notes.txt").write_text("some notes\n")
    read = call("ReadFile", path=str(host.workspace / "notes.txt"))
    commands = [shell(f"echo {number} >> done; cat notes.txt") for number in range(500)]
    mixed = [one for number, command in enumerate(commands) for one in ([command] if number % 5 else [read, command])]
    with gateway(use(*mixed), say("Done.")) as model:
        outcome = start(host, model, descriptors=1024).finish(within_s=_PATIENCE_S)
        answers = model.results(1)
    assert outcome.code == 0, outcome.stderr
    assert [answer.text for answer in answers if answer.is_error] == []
    assert len(answers) == 600
    assert sorted(map(int, (host.workspace / "done").read_text().split())) == list(range(500))


@pytest.mark.slow
def test_few_descriptors_are_enough_for_many_commands(host: Host) -> None:
    """The cap is what keeps them: as many at once as there are slots, each with its pipes and its spooled output."""
    commands = [shell("seq 1 60000; seq 1 60000 >&2") for _ in range(40)]
    with gateway(use(*commands), say("Done.")) as model:
        outcome = start(host, model, descriptors=96).finish(within_s=_PATIENCE_S)
        answers = model.results(1)
    assert outcome.code == 0, outcome.stderr
    assert [answer.text for answer in answers if answer.is_error] == []


@needs_proc
def test_spooled_output_has_no_name_and_goes_with_the_process(host: Host) -> None:
    with gateway(use(shell("mkfifo held; seq 1 100000; echo printed > held; sleep 60"))) as model:
        process = start(host, model)
        eventually(lambda: (host.workspace / "held").exists() or not process.alive, "the command")
        (session,) = host.temporary.iterdir()
        assert (host.workspace / "held").read_text() == "printed\n"

        def spooled() -> list[str]:
            folder = f"/proc/{process.pid}/fd"
            return [link for name in os.listdir(folder) if str(session) in (link := _link(f"{folder}/{name}"))]

        eventually(spooled, "the output is in a file")
        assert all(link.endswith("(deleted)") for link in spooled())
        assert list(session.iterdir()) == []
        process.kill()
        assert list(session.iterdir()) == []


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except FileNotFoundError:  # it was closed since it was listed
        return ""


def test_output_that_no_disk_takes_is_cut_and_said_so(host: Host) -> None:
    """A command may remove the directory for temporary files, and its own output is to come back all the same."""
    with gateway(use(shell('rmdir "$TMPDIR"; seq 1 200000')), say("Done.")) as model:
        outcome = host.task(model.url)
        (answer,) = model.results(1)
    assert outcome.code == 0, outcome.stderr
    assert not answer.is_error
    assert answer.text.startswith("Exit code: 0\n--- stdout ---\n1\n2\n")
    assert "[Of stdout only a part is kept, for the rest could not be written: No such file or dir" in answer.text
    (kept,) = (host.records(outcome.result["sessionId"]) / "artifacts").glob("art*")
    text = kept.read_text()
    assert text.startswith("1\n2\n")
    assert "\n[... truncated " in text
    assert text.endswith("\n200000\n")


def test_one_slot_each_is_enough(host: Host) -> None:
    with open(host.root / "user.toml", "a", encoding="utf-8") as handle:
        handle.write("[tools]\nmax_parallel_commands = 1\nmax_parallel_files = 1\n")
    commands = [shell(f"mkdir alone && echo {number} >> order && rmdir alone") for number in range(5)]
    files = [call("WriteFile", path=str(host.workspace / "a"), content=str(number)) for number in range(3)]
    with gateway(use(*files, *commands), say("Done.")) as model:
        outcome = start(host, model).finish()
        answers = model.results(1)
    assert outcome.code == 0, outcome.stderr
    assert [answer.text for answer in answers if not answer.text.startswith(("Exit code: 0", "Wrote"))] == []
    assert (host.workspace / "order").read_text().split() == list("01234")
    assert (host.workspace / "a").read_text() == "2"
