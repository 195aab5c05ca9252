"""The trials of the levels: what is kept of them for later starts, and what is left."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent_host.host.environment import level_of, try_levels
from agent_host.version import __version__
from config.load import load
from state.keys import SANDBOX_LEVELS_FILE, SandboxLevels
from tool_runtime import sandbox as levels
from tool_runtime.tool import SandboxSettings, ToolFault

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[4]

pytestmark = pytest.mark.skipif(not levels.look("landlock").works, reason="no level of the sandbox works here")


@pytest.fixture(autouse=True)
def _tried_anew() -> Iterator[None]:
    levels.forget()
    yield
    levels.forget()


def kept(state: Path) -> dict[str, bool]:
    """The levels of which a later start knows whether they work, once they have been written."""
    for thread in threading.enumerate():
        if thread.name == "sandbox-levels-kept":
            thread.join()
    return {level: row["works"] for level, row in SandboxLevels(str(state), __version__).findings().items()}


@contextmanager
def few_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 1, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_variable_that_names_no_directory_is_passed_over_as_by_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    assert try_levels(str(tmp_path))["landlock"]["works"]


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary directory in which nobody makes a file, not even root: it is gone from the disk, and still has its
    name by a descriptor."""
    gone = tmp_path / "gone"
    gone.mkdir()
    fd = os.open(gone, os.O_RDONLY)
    gone.rmdir()
    monkeypatch.setenv("TMPDIR", f"/proc/self/fd/{fd}")
    return tmp_path


def test_a_trial_that_had_no_directory_is_made_again_in_the_sessions(full: Path) -> None:
    found = try_levels(str(full), str(full / "session"))
    assert found["landlock"]["works"]
    assert kept(full) == {level: row["works"] for level, row in found.items()}
    assert [name for name in os.listdir(full) if name != SANDBOX_LEVELS_FILE] == []


def test_a_trial_that_fails_for_a_reason_of_its_own_is_not_kept_and_no_lack_of_a_sandbox(full: Path) -> None:
    found = try_levels(str(full), str(full / "no" / "session"))
    assert all("No such file or directory" in row["problem"] for row in found.values())
    assert kept(full) == {}
    level = level_of(load({}, workspace=None, environ={}), str(full), str(full / "no" / "session"))
    assert (level.level, level.wanted, level.is_untried) == ("none", "auto", True)
    with pytest.raises(ToolFault, match="--sandbox none"):
        levels.find(SandboxSettings(), str(full / "no"))


def test_a_trial_that_had_no_descriptors_says_nothing_of_later_ones(tmp_path: Path) -> None:
    with few_descriptors():
        found = try_levels(str(tmp_path), str(tmp_path / "session"))
        assert level_of(load({}, workspace=None, environ={}), str(tmp_path), found=found).is_untried
    assert "Too many open files" in found["namespace"]["problem"]
    assert kept(tmp_path) == {}
    assert try_levels(str(tmp_path))["landlock"]["works"]


NONE_HERE = ("ENOSYS", "EPERM", "EACCES")


@pytest.mark.many_rows(6)
@pytest.mark.many_rows(8)
@pytest.mark.parametrize("name", [*NONE_HERE, "ENOENT", "ENOSPC", "EROFS", "EMFILE", "ENFILE", "ENOMEM", "EIO"])
@pytest.mark.parametrize("call", ["landlock_create_ruleset", "landlock_restrict_self", "seccomp"])
def test_what_the_kernel_answers_says_whether_there_is_no_sandbox(tmp_path: Path, call: str, name: str) -> None:
    """By a filter that answers so, in a process of its own."""
    code = "import sys; from tests.support.without_landlock import answer_to; answer_to(sys.argv[2], sys.argv[3])\n"
    code += "from agent_host.host.environment import level_of; from config.load import load\n"
    code += "found = level_of(load({}, workspace=None, environ={}), sys.argv[1])\n"
    code += "print(found.level, found.is_untried)"
    argv = [sys.executable, "-c", code, str(tmp_path), call, name]
    ended = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert ended.stdout.split() == ["none", str(name not in NONE_HERE)], ended.stderr
