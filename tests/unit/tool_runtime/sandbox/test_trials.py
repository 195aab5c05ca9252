"""The trials of the levels: what is kept of them for later starts, and what is left."""

from __future__ import annotations

import os
import resource
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from agent_host.app.sandboxing import try_levels
from agent_host.version import __version__
from state.sandbox_levels import SandboxLevels
from tool_runtime.core import sandbox

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(not sandbox.look("landlock").works, reason="no level of the sandbox works here")


@pytest.fixture(autouse=True)
def _tried_anew() -> Iterator[None]:
    sandbox._look.cache_clear()
    yield
    sandbox._look.cache_clear()


def kept(state: Path) -> dict[str, bool]:
    """The levels of which a later start knows whether they work, once they have been written."""
    for thread in threading.enumerate():
        if thread.name == "sandbox-levels-kept":
            thread.join()
    return {level: row["works"] for level, row in SandboxLevels(str(state), __version__).known().items()}


@contextmanager
def few_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 1, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_trial_that_had_no_directory_says_nothing_of_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path / "nowhere"))
        found = try_levels(str(tmp_path))
        assert {level: (row["works"], row["problem"].split(" (")[0]) for level, row in found.items()} == dict.fromkeys(
            ("landlock", "namespace"), (False, "No such file or directory")
        )
        assert kept(tmp_path) == {}
    sandbox._look.cache_clear()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    found = try_levels(str(tmp_path))
    assert found["landlock"]["works"]
    assert kept(tmp_path) == {level: row["works"] for level, row in found.items()}
    assert [name for name in os.listdir(tmp_path) if name.startswith("agent-host-probe")] == []


def test_a_trial_that_had_no_descriptors_says_nothing_of_later_ones(tmp_path: Path) -> None:
    with few_descriptors():
        found = try_levels(str(tmp_path))
    assert "Too many open files" in found["namespace"]["problem"]
    assert kept(tmp_path) == {}
