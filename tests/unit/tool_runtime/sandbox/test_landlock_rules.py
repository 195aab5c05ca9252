"""Which rules a scope gives, and what they cannot say of it."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from policy import CommandScope
from tool_runtime.platform import landlock

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Landlock is Linux's")

if TYPE_CHECKING:
    from tool_runtime.platform.landlock import Rules

rules_in_view = functools.partial(landlock.rules_for, in_view=True)


def rights(rules: Rules, path: str) -> int:
    """What is granted right at a path."""
    found = 0
    for rule in rules.rules:
        found |= rule.rights if rule.path == path else 0
    return found


@pytest.mark.parametrize("build", [landlock.rules_for, rules_in_view])
def test_of_devices_and_of_the_kernel_no_scope_gives_more_than_is_harmless(
    build: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(build)
    rules = build(CommandScope(writes=("/",)))
    for place in ("/dev", "/"):
        assert rights(rules, place) == landlock.READ_DIR, place
    for place in ("/proc", "/sys"):
        assert rights(rules, place) == landlock.READ, place
    assert rights(rules, "/dev/null") & landlock.WRITE_FILE
    assert rights(rules, "/usr") == landlock.READ | landlock.WRITE
    computing = {f"/dev/{name}" for name in ("kvm", "dri", "kfd") if (Path("/dev") / name).exists()}
    assert all(rights(rules, place) & landlock.IOCTL_DEV for place in computing)
    below = {rule.path for rule in rules.rules if rule.path.startswith("/dev/")}
    below = {path for path in below if not path.startswith(("/dev/nvidia", "/dev/accel", "/dev/dxg"))} - computing
    assert below - {"/dev/pts"} == {
        f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "shm")
    }
    named = build(CommandScope(reads=("/dev/kvm",)))
    assert rights(named, "/dev/kvm") == landlock.READ
    written = build(CommandScope(reads=(), writes=("/dev/kvm",)))
    assert rights(written, "/dev/kvm") & landlock.IOCTL_DEV
    assert rights(build(CommandScope(writes=("/w",))), "/dev/kvm") == 0


def test_terminals_are_granted_where_nobody_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "_TERMINALS", str(tmp_path))
    scope = CommandScope(reads=(), writes=(str(tmp_path),))
    (tmp_path / "ptmx").touch()
    free = landlock.rules_for(scope)
    assert rights(free, str(tmp_path)) & landlock.WRITE_FILE
    assert free.notes == ()
    (tmp_path / "3").touch()
    taken = landlock.rules_for(scope)
    assert rights(taken, str(tmp_path)) == 0
    assert taken.notes == (landlock.NO_TERMINALS,)
    assert rights(rules_in_view(scope), str(tmp_path)) & landlock.WRITE_FILE


def test_what_rules_cannot_say_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "_TERMINALS", str(tmp_path / "none"))
    for name in ("secret", *"abcdef"):
        (tmp_path / name).touch()
    scope = CommandScope(reads=(), writes=(str(tmp_path),), hidden=(str(tmp_path / "secret"), str(tmp_path / "gone")))
    told = landlock.rules_for(scope)
    assert told.notes == (f"nothing new can be made directly in {tmp_path}, since not all of it is granted: secret",)
    assert told.closed == (str(tmp_path),)
    assert rights(told, str(tmp_path / "a")) & landlock.WRITE_FILE
    assert rights(told, str(tmp_path / "secret")) == 0
    monkeypatch.setattr(landlock, "MAX_RULES", len(told.rules) - 2)
    few = landlock.rules_for(scope)
    assert len(few.rules) == len(told.rules) - 2
    assert few.notes[-1].endswith(f"{tmp_path / 'e'} is the first not")


def test_thousands_of_names_beside_a_hidden_one_take_nothing_from_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each name of a directory with a hidden one is a rule, and there is a bound on rules."""
    top = len(os.listdir("/"))
    monkeypatch.setattr(landlock, "MAX_RULES", top + 50)
    (tmp_path / "many").mkdir()
    (tmp_path / "own").mkdir()
    for number in range(top + 100):
        (tmp_path / "many" / f"{number}").mkdir()
    scope = CommandScope(reads=None, writes=(str(tmp_path / "own"),), hidden=(str(tmp_path / "many" / "7"),))
    found = landlock.rules_for(scope)
    assert len(found.rules) == landlock.MAX_RULES
    assert rights(found, "/usr") & landlock.EXECUTE
    assert rights(found, str(tmp_path / "own")) & landlock.WRITE_FILE


def test_of_what_lies_beside_hidden_places_the_widest_directory_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("wide/home/state", "wide/home/work"):
        (tmp_path / name).mkdir(parents=True)
    for number in range(300):
        (tmp_path / "wide" / f"a{number}").mkdir()
    scope = CommandScope(reads=(), writes=(str(tmp_path),), hidden=(str(tmp_path / "wide" / "home" / "state"),))
    monkeypatch.setattr(landlock, "MAX_RULES", 100)
    found = landlock.rules_for(scope)
    assert rights(found, str(tmp_path / "wide" / "home" / "work")) & landlock.WRITE_FILE
    assert rights(found, str(tmp_path / "wide" / "home" / "state")) == 0
    assert "only 100 are granted" in found.notes[-1]
