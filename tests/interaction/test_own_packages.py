"""Nothing of the workspace is imported, and nothing of ours gets into the way of a program that embeds us."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.process import call, gateway, say, shell, use

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.process import Host
    from tests.support.serve_process import Servers

pytestmark = pytest.mark.slow

PLANTED = (
    "httpx",
    "httpx_sse",
    "orjson",
    "json",
    "config",
    "pydantic",
    "h11",
    "asyncio",
    "tomllib",
    "platformdirs",
    "__future__",
)
PROGRAMS = {
    "module": [sys.executable, "-m", "agent_host"],
    "safe module": [sys.executable, "-P", "-m", "agent_host"],
    "with options": [sys.executable, "-W", "ignore", "-X", "utf8", "-Bm", "agent_host"],
    "script": [sys.executable, os.path.join(os.path.dirname(sys.executable), "agent-host")],
}


def plant(folder: Path, *names: str) -> None:
    """Modules that leave a trace when they are imported, and end the program."""
    folder.mkdir(exist_ok=True)
    for name in names or PLANTED:
        (folder / f"{name}.py").write_text(
            f"open({str(folder / 'imported')!r}, 'a').write({name!r})\nraise SystemExit(9)\n"
        )
    for name in ("policy", "state", "tool_runtime"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text((folder / "config.py").read_text())


def task_in(folder: Path, host: Host, program: str, path: str, *options: str) -> None:
    """Run a task in `folder` with PYTHONPATH `path`."""
    with gateway(use(shell("echo hi")), say("Done.")) as model:
        ended = subprocess.run(
            [*PROGRAMS[program], "run", "x", "--gateway", model.url, "--policy", "full", *options],
            env=host.environment({"PYTHONPATH": path}),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    assert (ended.returncode, ended.stdout) == (0, "Done.\n"), ended.stderr


@pytest.mark.parametrize("path", [".", "{work}", "{work}/sub", os.pathsep.join(["/nowhere", "{work}", ""])])
@pytest.mark.parametrize("program", PROGRAMS)
def test_no_way_of_starting_imports_from_the_workspace(host: Host, program: str, path: str) -> None:
    plant(host.workspace)
    plant(host.workspace / "sub")
    task_in(host.workspace, host, program, path.format(work=host.workspace))
    assert not (host.workspace / "imported").exists()
    assert not (host.workspace / "sub" / "imported").exists()


@pytest.mark.parametrize("option", [["--workspace", "{work}"], ["--workspace={work}"]])
def test_the_workspace_may_be_elsewhere(host: Host, option: list[str]) -> None:
    plant(host.workspace)
    given = [one.format(work=host.workspace) for one in option]
    task_in(host.home, host, "safe module", str(host.workspace), *given)
    assert not (host.workspace / "imported").exists()


def test_a_client_of_serve_may_name_the_workspace(servers: Servers, tmp_path: Path) -> None:
    """By then the program runs; what it imports later is not taken from there."""
    project = tmp_path / "project"
    plant(project, "tree_sitter", "tree_sitter_bash", "difflib", "idna", "config")
    with gateway(use(shell("echo hi"), call("HttpRequest", url="http://127.0.0.1:9")), say("Done.")) as model:
        serve = servers.start("--gateway", model.url, "--policy", "full", env={"PYTHONPATH": str(project)})
        client = serve.on_streams()
        client.create(workspaceHint={"localPaths": [str(project)]})
        client.task()
        client.event("task_completed")
        client.call("Shutdown")
        serve.ended_well()
    assert not (project / "imported").exists()


def test_doctor_tries_processes_without_the_workspace(host: Host) -> None:
    plant(host.workspace)
    outcome = host.run("doctor", env={"PYTHONPATH": "."})
    assert "leftovers  processes started by commands end with the host" in outcome.text
    assert not (host.workspace / "imported").exists()


def test_what_else_is_on_the_path_stays(host: Host) -> None:
    """A directory outside of the workspace is the user's business, but for the names of our own packages."""
    tools = host.root / "tools"
    tools.mkdir()
    (tools / "config.py").write_text("raise SystemExit(9)\n")
    ended = subprocess.run(
        [*PROGRAMS["script"], "policy", "check", "--policy", "ci", "ReadFile", '{"path": "/etc/hosts"}'],
        env=host.environment({"PYTHONPATH": str(tools)}),
        cwd=host.workspace,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout.startswith("DENIED"), ended.stderr


def embedded(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(code)
    return subprocess.run(
        [sys.executable, str(folder / "program.py")], capture_output=True, text=True, check=False, cwd="/"
    )


def test_an_embedding_program_is_left_as_it_is(tmp_path: Path) -> None:
    code = (
        "import sys\nbefore = list(sys.path), list(sys.meta_path), dict(__import__('os').environ)\n"
        "import agent_host\n"
        "assert before == (list(sys.path), list(sys.meta_path), dict(__import__('os').environ))\n"
        "import config.settings\nprint('fine')\n"
    )
    ended = embedded(tmp_path, code)
    assert (ended.returncode, ended.stdout) == (0, "fine\n"), ended.stderr


@pytest.mark.parametrize("name", ["benchmarks", "state_machine", "agent_hosting"])
def test_a_program_that_is_run_as_a_module_is_none_of_ours(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text(
        "import sys; before = list(sys.meta_path); import agent_host; print(before == sys.meta_path)"
    )
    ended = subprocess.run([sys.executable, "-m", name], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.stdout == "True\n", ended.stderr


@pytest.mark.parametrize("first", ["", "import config\n"])
@pytest.mark.parametrize("is_package", [False, True])
def test_an_embedding_program_with_a_config_of_its_own_is_told(tmp_path: Path, first: str, is_package: bool) -> None:
    own = tmp_path / "config" if is_package else tmp_path / "config.py"
    if is_package:
        own.mkdir()
    (own / "__init__.py" if is_package else own).write_text("")
    code = (
        f"import sys\n{first}before = set(sys.modules)\n"
        "try:\n    import agent_host\nexcept ImportError as error:\n    print(error)\n"
        "print(sorted(set(sys.modules) - before))\n"
    )
    ended = embedded(tmp_path, code)
    message, left = ended.stdout.splitlines()
    assert str(own) in message
    assert "a package 'config' at " in message
    assert "`agent-host serve`" in message
    assert left == "[]"
