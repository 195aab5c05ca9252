"""The fork server: a session that was forked is a process like one that an interpreter was started for, and nothing of
one session is in another."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from agent_host.clients import fork_server
from agent_host.clients.fork_server import ForkServer, SpareStarter, can_be_given, default_starter
from agent_host.clients.supervisor import Starter, Supervisor
from config.load import load
from tests.interaction.test_clients import Heard, spec
from tests.interaction.test_serve_stops import EFFECT, HANG, effects
from tests.support.forked_probe import ROOT, program
from tests.support.process import PATIENCE_S, eventually, gateway, say, shell, use
from tests.support.rpc_client import WHO

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from agent_host.clients.supervisor import SessionProcess
    from tests.support.process import Host

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")

SECRET = "hush-4711-of-a-session"
PLAIN = {"PATH": os.environ["PATH"]}


@contextlib.asynccontextmanager
async def supervising(starter: Starter) -> AsyncIterator[Supervisor]:
    """A supervisor that is closed at the end, the starter with it."""
    supervisor = Supervisor(starter)
    try:
        yield supervisor
    finally:
        await supervisor.aclose()


def forking(test: Callable[[ForkServer], Awaitable[None]], function: str | None = None) -> list[str]:
    """Run the test with a server that is ready, of the probe or of `agent-host`; what it told."""
    told: list[str] = []

    async def run() -> None:
        server = ForkServer(told.append) if function is None else ForkServer(told.append, program(function))
        try:
            await server.prepare()
            await asyncio.wait_for(test(server), PATIENCE_S)
        finally:
            await server.aclose()

    asyncio.run(run())
    return told


async def ended(process: SessionProcess) -> tuple[int, bytes]:
    """How it ended, and what it printed; nothing is typed."""
    process.writer.close()
    printed = await process.reader.read()
    return await process.wait(), printed


async def probed(
    server: Starter, *words: str, environment: Mapping[str, str] = PLAIN, directory: str | os.PathLike[str] = "/"
) -> tuple[int, bytes]:
    process = await server.start(words, environment=environment, directory=os.fspath(directory))
    return await ended(process)


async def parent_of_next(server: ForkServer, **variables: str) -> int:
    """The parent of the next process, which serves nobody and ends well."""
    environment = {**PLAIN, "HOME": "/nowhere", **variables}
    process = await server.start(["serve"], environment=environment, directory="/")
    parent = parent_of(process.pid)
    assert await ended(process) == (0, b""), process.last_words()
    return parent


def as_an_interpreter_starts_it(environment: Mapping[str, str], folder: Path) -> subprocess.CompletedProcess[bytes]:
    argv = [*program("plain"), "has", "3"]
    pipe = subprocess.PIPE
    return subprocess.run(argv, env=environment, cwd=folder, stdin=pipe, stdout=pipe, process_group=0)


def in_process_table(pid: int, name: str) -> list[bytes]:
    """What /proc shows of the process: its `environ`, or its `cmdline`."""
    return Path(f"/proc/{pid}/{name}").read_bytes().rstrip(b"\0").split(b"\0")


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def has_ended(pid: int) -> bool:
    """Whether nothing runs under this number: one that nobody waits for stays in the table."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


# Like a process of its own


@pytest.mark.many_rows(1)
@pytest.mark.parametrize(
    "environment",
    [
        {"LANG": "C.UTF-8", "TZ": "XYZ-5:30", "A": "ü", "LLM_GATEWAY_AUTH_TOKEN": SECRET},
        {"TZ": "ABC3", "HOME": "/nowhere", "PYTHONDONTWRITEBYTECODE": "1"},
        {"LC_ALL": "C", "TMPDIR": "/dev/shm"},
        {"LC_CTYPE": "xx_YY.UTF-8", "EMPTY": ""},
    ],
    ids=["utf-8", "none", "c", "not-installed"],
)
def test_it_has_what_an_interpreter_that_is_started_so_has(environment: dict[str, str], tmp_path: Path) -> None:
    environment = {**PLAIN, **environment}
    folder = tmp_path / "ü"
    folder.mkdir()

    async def test(server: ForkServer) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        umask = os.umask(0o027)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 7, hard))
        try:
            plain = as_an_interpreter_starts_it(environment, folder)
            code, printed = await probed(server, "has", "3", environment=environment, directory=folder)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            os.umask(umask)
        assert (code, plain.returncode) == (3, 3)
        (line, last), (expected, expected_last) = printed.splitlines(), plain.stdout.splitlines()
        assert last == expected_last == b"at the end"
        forked, fresh = json.loads(line), json.loads(expected)
        assert forked["has"] == fresh["has"]
        assert forked["has"]["umask"] == 0o027
        assert forked["has"]["directory"] == str(folder)
        assert forked["has"]["limits"]["RLIMIT_NOFILE"] == [soft - 7, hard]
        assert forked["fresh"]["original"] == [sys.executable, "-P", "-m", "agent_host", "has", "3"]

    assert forking(test, "serve") == []


def test_random_state_is_fresh_and_nothing_of_one_is_in_the_next() -> None:
    async def test(server: ForkServer) -> None:
        first, second = [
            json.loads((await probed(server, "has", "0", environment={**PLAIN, **variables}))[1].splitlines()[0])
            for variables in ({"A": SECRET}, {"B": "b"})
        ]
        shared = {"original", "sockets"}
        same = {key for key, value in first["fresh"].items() if second["fresh"][key] == value}
        assert same == shared
        assert first["fresh"]["sockets"] == 1  # that of its own control
        assert "A" not in second["has"]["environment"]
        assert SECRET not in json.dumps(second)

    assert forking(test, "serve") == []


@pytest.mark.slow
def test_how_it_ends_is_passed_on() -> None:
    async def test(server: ForkServer) -> None:
        for how, number, code in [
            ("exit", 0, 0),
            ("exit", 1, 1),
            ("raise", 2, 2),
            ("exit", 75, 75),
            ("raise", 143, 143),
            ("signal", signal.SIGTERM, -15),
            ("signal", signal.SIGKILL, -9),
        ]:
            assert await probed(server, how, str(number)) == (code, b""), how

    assert forking(test, "serve") == []


def test_what_the_program_ends_with(host: Host) -> None:
    async def test(server: ForkServer) -> None:
        async def start(*arguments: str) -> SessionProcess:
            return await server.start(arguments, environment=host.environment(), directory=str(host.workspace))

        version = await start("--version")
        code, printed = await ended(version)
        assert (code, printed.startswith(b"agent-host ")) == (0, True)
        wrong = await start("serve", "--nonsense")
        assert ((await ended(wrong))[0], "--nonsense" in wrong.last_words()) == (2, True)
        stopped = await start("run", "Do it.", "--gateway", model.url, "--policy", "full")
        await asyncio.to_thread(eventually, lambda: model.count == 1, "a request")
        os.kill(stopped.pid, signal.SIGTERM)
        assert (await ended(stopped))[0] == 143
        killed = await start("serve")
        killed.kill()
        assert (await ended(killed))[0] == -9
        with pytest.raises(FileNotFoundError, match="nowhere"):
            await server.start(["serve"], environment={}, directory="/nowhere")

    with gateway({"hang": True}) as model:
        assert forking(test) == []


@pytest.mark.slow
def test_events_and_records_are_those_of_a_process_of_its_own(host: Host) -> None:
    """The same task twice: what is heard and every file that is left, but for ids, times and measures."""

    async def run(starter: Starter, url: str) -> tuple[list[Any], dict[str, str]]:
        await starter.prepare()
        async with supervising(starter) as supervisor:
            heard = Heard()
            session = await supervisor.create(spec(host, url), heard)
            await session.start_task("a", "Do it.")
            await heard.until("task_completed")
            await session.request("Shutdown")
            assert await heard.until("gone") == (0, "")
            files = {plain(name): plain(data.decode()) for name, (data, _) in host.state_files().items()}
            for folder in (host.state, host.workspace):
                shutil.rmtree(folder)
                folder.mkdir()
            return [(kind, plain(json.dumps(what))) for kind, what in heard.all], files

    def plain(text: str) -> str:
        text = re.sub(r"\b(sess|ws|msg|toolu|step)_\w+(-[0-9a-f]+)?", r"\1_", text)
        text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|\+00:00)", "NOW", text).replace(model.url, "URL")
        text = re.sub(r"J2 [\d ]+ [0-9a-f]{8} |crc32:[0-9a-f]{8}", "SUM", text)
        text = re.sub(r"\b[0-9a-f]{32,64}\b", "HEX", text)
        return re.sub(r'"(\w*(Ms|Pid|pid|mtime|ctime|inode|at))": ?[-\d.]+', r'"\1":0', text)

    outcomes = []
    for starter in (Starter(), ForkServer(), SpareStarter()):
        with gateway(use(shell('echo one > file; echo "$LANG $(umask) $PWD"')), say("Done.")) as model:
            outcomes.append(asyncio.run(run(starter, model.url)))
    first, *others = outcomes
    for heard, files in others:
        assert heard == first[0]
        assert files == first[1]


# Nothing secret


def memory_of(pid: int) -> bytes:
    """All that the process can read and write."""
    found = []
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, rights, *_ = line.split()
            if not rights.startswith("rw"):
                continue
            begin, end = (int(one, 16) for one in span.split("-"))
            memory.seek(begin)
            found.append(memory.read(end - begin))
    return b"".join(found)


@pytest.mark.slow
def test_no_secret_is_in_the_server_nor_in_the_process_table(host: Host) -> None:
    secret = SECRET[::-1]  # this process has the other in its own code

    async def test(server: ForkServer) -> None:
        async with supervising(server) as supervisor:
            first = await supervisor.create(
                spec(host, model.url, LLM_GATEWAY_AUTH_TOKEN=secret, ABC_KEY=secret), Heard()
            )
            heard = Heard()
            second = await supervisor.create(spec(host, model.url), heard)
            assert server.pid is not None
            for pid in (server.pid, first.pid, second.pid):
                assert parent_of(pid) in (server.pid, os.getpid())
                assert in_process_table(pid, "environ") == [b""]
                assert in_process_table(pid, "cmdline")[1:-1] == [b"-P", b"-m", b"agent_host.clients.warm_process"]
            assert os.readlink(f"/proc/{server.pid}/cwd") == "/"
            assert secret.encode() in memory_of(first.pid)
            for pid in (server.pid, second.pid):
                assert secret.encode() not in memory_of(pid)
            assert "x-api-key" not in json.dumps(heard.all)

    with gateway(HANG) as model:
        assert forking(test) == []


def test_no_module_reads_the_environment_when_it_is_imported() -> None:
    """What did would have read that of the fork server, which is empty."""
    code = """
import os, sys
reads = []
kind = type(os.environ)
read = kind.__getitem__
kind.__getitem__ = lambda self, key: (reads.append(key), read(self, key))[1]
import importlib
from agent_host.clients.warm_process import import_all
import_all()
kind.__getitem__ = read
print(reads, "httpx" in sys.modules, "rich" in sys.modules)
"""
    argv, environment = [sys.executable, "-P", "-c", code], {"PYTHONPATH": str(ROOT)}
    assert subprocess.run(argv, cwd=ROOT, env=environment, stdout=-1, check=True).stdout == b"[] True False\n"


def test_a_session_imports_nothing_more_before_its_first_reply(host: Host) -> None:
    code = """
import sys
from agent_host.clients.warm_process import import_all
import_all()
before = set(sys.modules)
import agent_host.session.lifecycle as lifecycle
lifecycle.LiveSession.warm_up = lambda _: print(sorted(set(sys.modules) - before), file=sys.stderr)
from agent_host.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
    argv = [sys.executable, "-P", "-c", code, "serve", "--gateway", "http://127.0.0.1:1", "--policy", "ci"]
    request = b'{"jsonrpc":"2.0","id":1,"method":"CreateSession","params":%b}\n' % orjson.dumps(WHO)
    done = subprocess.run(argv, env=host.environment(), cwd=host.workspace, input=request, capture_output=True)
    assert done.stderr == b"[]\n"
    assert b'"status":"ready"' in done.stdout


# Guards


@pytest.mark.slow
def test_a_server_with_a_thread_is_not_forked() -> None:
    async def test(server: ForkServer) -> None:
        for _ in range(2):
            assert await parent_of_next(server) == os.getpid()  # of an interpreter
        assert server.pid is None

    (line,) = forking(test, "serve_with_a_thread")
    assert line.endswith("it refuses to fork: it has 2 threads")


@pytest.mark.slow
def test_a_server_with_a_descriptor_too_many_is_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    send = socket.send_fds

    def send_one_more(to: socket.socket, data: list[bytes], descriptors: Sequence[int]) -> int:
        return send(to, data, [*descriptors, 0])

    async def test(server: ForkServer) -> None:
        monkeypatch.setattr(socket, "send_fds", send_one_more)
        assert await parent_of_next(server) == os.getpid()

    (line,) = forking(test)
    assert "it refuses to fork: it has descriptors that it should not have: [" in line


def test_a_server_that_does_not_come_up_is_told_once() -> None:
    told: list[str] = []

    async def run() -> None:
        server = ForkServer(told.append, [sys.executable, "-c", "import nonsense"])
        await server.prepare()
        for _ in range(2):
            assert (await probed(server, "--version"))[0] == 0
        await server.aclose()

    asyncio.run(run())
    (line,) = told
    assert line.endswith("it has ended: ModuleNotFoundError: No module named 'nonsense'")


@pytest.mark.parametrize(
    ("environment", "can"),
    [
        ({}, True),
        ({"LANG": "de_DE.UTF-8", "PYTHONUNBUFFERED": "1"}, True),
        ({"LANG": "de_DE.utf8@euro"}, True),
        ({"LC_ALL": "POSIX", "LANG": "de_DE"}, True),
        ({"LANG": "de_DE"}, False),
        ({"LANG": "C", "LC_CTYPE": "de_DE.ISO-8859-1"}, False),
        ({"PYTHONPATH": "/x"}, False),
        ({"LD_PRELOAD": "x.so"}, False),
    ],
)
def test_what_only_a_start_reads_cannot_be_given_to_a_fork(environment: dict[str, str], can: bool) -> None:
    assert can_be_given(environment) is can


@pytest.mark.slow
def test_an_interpreter_is_started_for_what_cannot_be_given() -> None:
    async def test(server: ForkServer) -> None:
        assert await parent_of_next(server, PYTHONPATH="/x") == os.getpid()
        assert server.pid is not None

    assert forking(test) == []


# Ends


@pytest.mark.slow
def test_sessions_outlive_the_server_and_the_next_start_makes_another(host: Host) -> None:
    async def test(server: ForkServer) -> None:
        async with supervising(server) as supervisor:
            heard = Heard()
            session = await supervisor.create(spec(host, model.url), heard)
            before = server.pid
            assert before is not None
            assert parent_of(session.pid) == before
            os.kill(before, signal.SIGKILL)
            await session.start_task("a", "Do it.")
            await heard.until("task_completed")
            other = await supervisor.create(spec(host, model.url), Heard())
            await server.prepare()
            third = await supervisor.create(spec(host, model.url), Heard())
            assert (server.pid != before, parent_of(third.pid)) == (True, server.pid)
            await session.request("Shutdown")
            assert await heard.until("gone") == (0, "")  # by its own word
            await other.close()

    with gateway(say("Done.")) as model:
        assert forking(test) == []


@pytest.mark.slow
def test_a_server_that_answers_no_more_costs_one_start_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that dies while it is asked costs nothing: the start takes an interpreter."""
    monkeypatch.setattr(fork_server, "_ANSWERS_S", 0.5)

    async def test(server: ForkServer) -> None:
        for number in (signal.SIGSTOP, signal.SIGKILL):
            await server.prepare()
            stuck = server.pid
            assert stuck is not None
            os.kill(stuck, signal.SIGSTOP)
            starting = asyncio.create_task(parent_of_next(server))
            await asyncio.sleep(0)
            os.kill(stuck, number)
            assert await starting == os.getpid()
            eventually(lambda stuck=stuck: has_ended(stuck), "the end of the server")  # type: ignore[misc]
        monkeypatch.undo()
        await server.prepare()
        assert await parent_of_next(server) == server.pid

    assert forking(test) == []


@pytest.mark.slow
@pytest.mark.parametrize("way", ["killed", "leaves"])
def test_a_session_and_the_server_end_with_their_client(way: str, host: Host) -> None:
    """As `serve` does: the step is finished, and the session can be resumed. A client's loop that ends with sessions in
    it does not wait for them."""
    with gateway(use(EFFECT), HANG, say("Done.")) as model:
        arguments, environment, directory, *_ = spec(host, model.url)
        order = {"arguments": list(arguments), "environment": dict(environment), "directory": directory}
        argv = [sys.executable, "-m", "tests.support.forking_client", json.dumps(order), way]
        with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE) as client:
            assert client.stdout is not None
            said = json.loads(client.stdout.readline())
            assert parent_of(said["pid"]) == said["server"]
            if way == "killed":
                client.kill()
            assert client.wait(PATIENCE_S) == (-9 if way == "killed" else 0)
        eventually(lambda: has_ended(said["server"]), "the end of the server")
        eventually(lambda: has_ended(said["pid"]), "the end of the session's process")
        done = host.resume(said["session"])
        assert done.code == 0
    assert effects(host) == 1


@pytest.mark.slow
@pytest.mark.many_rows(1)
@pytest.mark.parametrize("changed", ["agent_host/cli/init.py", "config/defaults.toml"], ids=["not-imported", "data"])
def test_a_server_ends_when_the_installed_files_change(changed: str, tmp_path: Path) -> None:
    for name in ("agent_host", "config", "policy", "state", "tool_runtime"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from agent_host.clients.warm_process import main; main()"
    )

    async def run() -> None:
        server = ForkServer(print, [sys.executable, "-P", "-c", code])
        await server.prepare()
        before = server.pid
        assert await parent_of_next(server) == before
        (tmp_path / changed).touch()
        assert await parent_of_next(server) == os.getpid()
        await server.prepare()
        assert before != server.pid == await parent_of_next(server)
        await server.aclose()

    asyncio.run(run())


def test_processes_go_on_when_the_starter_is_closed(host: Host) -> None:
    async def test(server: ForkServer) -> None:
        heard = Heard()
        async with supervising(server) as supervisor:
            session = await supervisor.create(spec(host, model.url), heard)
            await server.aclose()
            await session.start_task("a", "Do it.")
            await heard.until("task_completed")
            await session.close()
        assert (await probed(server, "--version"))[0] == 0

    with gateway(say("Done.")) as model:
        assert forking(test) == []


@pytest.mark.slow
def test_many_at_once_with_large_environments() -> None:
    async def test(server: ForkServer) -> None:
        environment = {**PLAIN, **{f"V{number}": "x" * 100_000 for number in range(9)}}
        outcomes = await asyncio.gather(
            *(probed(server, "exit", str(number), environment=environment) for number in range(40))
        )
        assert outcomes == [(number, b"") for number in range(40)]

    assert forking(test, "serve") == []


# Where there is no fork


@pytest.mark.slow
def test_a_spare_process_is_there_before_it_is_needed(host: Host) -> None:
    async def run() -> None:
        starter = SpareStarter()
        await starter.prepare()
        heard = Heard()
        async with supervising(starter) as supervisor:
            first = await supervisor.create(spec(host, model.url, A=SECRET), heard)
            assert in_process_table(first.pid, "cmdline")[-1] == b"--spare"
            assert in_process_table(first.pid, "environ") == [b""]
            await first.start_task("a", "Do it.")
            await heard.until("task_completed")
            os.kill(first.pid, signal.SIGKILL)
            assert await heard.until("gone") == (-9, "")
            await starter.prepare()
            with pytest.raises(FileNotFoundError, match="nowhere"):
                await starter.start(["serve"], environment={}, directory="/nowhere")
            for code, *words in ((0, "--version"), (2, "serve", "--nonsense")):
                assert (await probed(starter, *words))[0] == code

    with gateway(say("Done.")) as model:
        asyncio.run(run())


def test_the_setting_chooses() -> None:
    for value, kind in ((True, ForkServer), (False, Starter)):
        settings = load({"clients.fork_server": value}, workspace=None, environ={})
        assert isinstance(default_starter(settings), kind)
