"""Hostile programs and ordinary work at each level, as root and as a plain user."""

from __future__ import annotations

import atexit
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.held import PYTHON, rows_of
from tool_runtime import sandbox as levels
from tool_runtime.platform import linux_sandbox

HERE = Path(__file__).parent
HOSTILE = rows_of((HERE / "hostile.txt").read_text(encoding="utf-8"))
ORDINARY = rows_of((HERE / "ordinary.txt").read_text(encoding="utf-8"))
GIT = rows_of((HERE / "git_hostile.txt").read_text(encoding="utf-8"))
ARRANGED = rows_of((HERE / "arranged.txt").read_text(encoding="utf-8"))
ROOT = Path(__file__).resolve().parents[4]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.path.exists(PYTHON), reason="rows are run by the system's own Python"),
]


@functools.cache
def sources_for(user: str) -> Path:
    """The sources as this user can read them: in a copy if the checkout is in somebody's own directory."""
    if user == "root" or os.getuid() != 0 or all(one.stat().st_mode & 0o001 for one in ROOT.parents):
        return ROOT
    copy = Path(tempfile.mkdtemp(dir="/tmp"))
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    copy.chmod(0o755)
    for part in ("agent_host", "config", "policy", "state", "tool_runtime", "tests/support"):
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
    (copy / "tests" / "__init__.py").touch()
    return copy


def run(
    level: levels.Level, user: str, kind: str, rows: list[tuple[str, str]], **more: Any
) -> dict[str, dict[str, Any]]:
    """What came of each row."""
    if user == "root" and os.getuid() != 0:
        pytest.skip("needs root")
    if level != "none" and not levels.look(level).works:
        pytest.skip(f"{level} does not work here: {levels.look(level).problem}")
    asked = {"level": level, "user": user, "kind": kind, "rows": rows, **more}
    argv = [sys.executable, "-m", "tests.support.held"]
    env = {**os.environ, "TMPDIR": "/tmp"}  # the directory of the tests is for their user alone
    ended = subprocess.run(
        argv, input=json.dumps(asked), capture_output=True, text=True, cwd=sources_for(user), env=env, timeout=300
    )
    assert ended.returncode == 0, ended.stderr[:1500] + " ... " + ended.stderr[-1500:]
    found = [json.loads(line) for line in ended.stdout.splitlines()]
    return {row["name"]: row for row in found}


def not_held(level: levels.Level) -> set[str]:
    return {name for name, _ in HOSTILE if f"not held by {level}" in name}


@pytest.mark.parametrize("user", ["root", "plain"])
@pytest.mark.parametrize("level", ["landlock", "namespace"])
def test_hostile_programs_are_held(level: levels.Level, user: str) -> None:
    came = run(level, user, "hostile", HOSTILE)
    assert len(came) == len(HOSTILE) > 220
    through = {name: row["printed"] for name, row in came.items() if row["through"]}
    assert through.keys() <= not_held(level), through


@pytest.mark.parametrize("user", ["root", "plain"])
@pytest.mark.parametrize("level", ["landlock", "namespace"])
def test_nothing_that_steers_git_is_left(level: levels.Level, user: str) -> None:
    came = run(level, user, "git", GIT)
    assert len(came) == len(GIT) > 40
    assert not {name: row["printed"] for name, row in came.items() if row["through"]}


def test_most_of_it_steers_git_where_nothing_judges_it() -> None:
    """Else the table would show nothing."""
    came = run("none", "plain", "git", GIT)
    assert sum(row["through"] for row in came.values()) >= 25


@pytest.mark.parametrize("user", ["root", "plain"])
@pytest.mark.parametrize("level", ["landlock", "namespace"])
def test_what_is_arranged_for_the_host_leads_nowhere(level: levels.Level, user: str) -> None:
    came = run(level, user, "arranged", ARRANGED)
    assert came.keys() == {name for name, _ in ARRANGED}
    assert {name: row["printed"] for name, row in came.items() if row["through"]} == {}


def test_what_is_arranged_is_found_where_nothing_holds_it() -> None:
    came = run("none", "plain", "arranged", ARRANGED)
    assert sum(row["through"] for row in came.values()) > len(ARRANGED) - 3


def test_most_of_them_get_through_where_nothing_holds_them() -> None:
    """Else the table would show nothing."""
    dangerous = re.compile(r"host name|clock|core_pattern|sysrq|module|kernel: disk|sleep|group")
    rows = [(name, code) for name, code in HOSTILE if not dangerous.search(name)]
    came = run("none", "plain", "hostile", rows)
    assert len(came) == len(rows)
    assert sum(row["through"] for row in came.values()) >= 120  # what gets through depends on the machine


@pytest.mark.parametrize("user", ["root", "plain"])
@pytest.mark.parametrize("level", ["landlock", "namespace"])
def test_ordinary_work_goes_on(level: levels.Level, user: str) -> None:
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}" if user == "root" else "/usr/bin:/bin"
    rows = [(name, code) for name, code in ORDINARY if has_what_it_needs(name, path)]
    came = run(level, user, "ordinary", rows, path=path)
    assert came.keys() == {name for name, _ in rows} >= {name for name, _ in ORDINARY if "(needs" not in name}
    stopped = {name: row["printed"] for name, row in came.items() if not row["through"]}
    assert not stopped


def has_what_it_needs(name: str, path: str) -> bool:
    """A program that is there may still be none that runs: rustup's `cargo` without a toolchain."""
    needed = re.search(r"\(needs ([\w-]+)\)", name)
    program = None if needed is None else shutil.which(needed[1], path=path)
    if program is None:
        return needed is None
    if program.endswith("keygen"):  # it has no version
        return True
    argument = "version" if program.endswith("go") else "--version"
    return subprocess.run([program, argument], capture_output=True).returncode == 0


# What an older kernel cannot hold: signals, before version 6. Sockets are judged by the host.
BELOW_6 = {
    "process: signal to the host",
    "process: signal to another process",
    "process: signal by a descriptor",
    "process: signal by a descriptor that is ready",
    "process: signal to a thread of the host",
    "process: signal to the host's group",
    "process: queued signal",
    "network: stranger's abstract socket",
}


@pytest.mark.parametrize("abi", [3, 4, 5, 6, 7])
def test_older_versions_of_landlock_hold_what_they_say(abi: int) -> None:
    if abi >= linux_sandbox.abi():
        pytest.skip("all rows are tried with this version")
    came = run("landlock", "plain", "hostile", HOSTILE, abi=abi)
    through = {name for name, row in came.items() if row["through"]}
    assert through <= not_held("landlock") | (BELOW_6 if abi < 6 else set())
    assert not abi < 6 or through & BELOW_6


@pytest.mark.parametrize("abi", [0, 1, 2])
def test_versions_that_hold_too_little_are_refused(abi: int) -> None:
    code = (
        "import sys; from tests.support import held; from tool_runtime import sandbox;"
        f"held.mask({abi}); found = sandbox.look('landlock'); print(found.works, found.problem)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert ended.stdout.startswith("False the kernel has ")
    assert "version 3 is needed" in ended.stdout
