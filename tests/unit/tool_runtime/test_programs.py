"""Programs that the host starts for itself, and where they are looked for."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent_host import import_isolation
from tool_runtime.platform import posix, windows
from tool_runtime.platform.environment import find_program, is_within, path_to_trust, spellings

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("agent_host", "tool_runtime", "policy", "state", "config")


def program(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def test_entries_that_commands_write_to_are_passed_over(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work)
    program(work, "tool")
    program(work / "bin", "tool")
    (tmp_path / "link").symlink_to(work / "bin")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "tool").symlink_to(work / "tool")
    (tmp_path / "work-beside").mkdir()
    good = program(tmp_path / "work-beside", "tool")
    bad = [
        "",
        ".",
        "bin",
        str(work),
        str(work / "bin"),
        str(tmp_path / "link"),
        os.path.join(tmp_path, "own", "..", "work", "bin"),
    ]
    for entry in bad:
        assert find_program("tool", entry, [str(work)]) is None, entry
        assert path_to_trust(entry, [str(work)]) == "", entry
    assert find_program("tool", str(tmp_path / "own"), [str(work)]) is None  # the file leads there
    every = os.pathsep.join([*bad, str(tmp_path / "own"), str(good.parent)])
    assert find_program("tool", every, [str(work)]) == str(good)
    assert find_program("tool", str(work), ["/nowhere"]) == str(work / "tool")
    assert path_to_trust(every, [str(work)]).split(os.pathsep) == [str(tmp_path / "own"), str(good.parent)]


def test_what_is_no_program_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a" / "tool").mkdir(parents=True)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "tool").write_text("")
    good = program(tmp_path / "c", "tool")
    path = os.pathsep.join(str(tmp_path / one) for one in ("none", "a", "b", "c"))
    assert find_program("tool", path, ()) == str(good)


def test_a_workspace_that_is_a_link_is_the_same_place(tmp_path: Path, work: Path) -> None:
    program(work, "bash")
    (tmp_path / "link").symlink_to(work)
    assert is_within(str(work / "bash"), [str(tmp_path / "link")])
    assert find_program("bash", str(work), [str(tmp_path / "link")]) is None


def test_no_shell_of_the_workspace(work: Path) -> None:
    bash, zsh = program(work, "bash"), program(work, "zsh")
    named = {"SHELL": str(zsh), "PATH": str(bash.parent)}
    assert posix.default_shell(named) == str(zsh)
    assert posix.default_shell(named, (str(work),)) == "/bin/sh"
    assert posix.default_shell({"SHELL": "zsh", "PATH": ""}) == "/bin/sh"


@pytest.mark.parametrize(
    ("named", "shell"),
    [
        (r"C:\tools\cmd.exe", r"C:\tools\cmd.exe"),
        (r"C:\Work\cmd.exe", r"C:\Windows\System32\cmd.exe"),
        (r"c:/WORK/bin\..\cmd.exe", r"C:\Windows\System32\cmd.exe"),
        (r"C:\workshop\cmd.exe", r"C:\workshop\cmd.exe"),
        ("cmd.exe", r"C:\Windows\System32\cmd.exe"),
    ],
)
def test_the_shell_of_windows(named: str, shell: str) -> None:
    assert windows.default_shell({"COMSPEC": named}, (r"C:\work",)) == shell


def test_endings_of_windows() -> None:
    assert spellings("npx", ".COM;.EXE;.CMD") == ("npx.com", "npx.exe", "npx.cmd")
    assert spellings("node.EXE", ".COM;.EXE;.CMD") == ("node.EXE",)


# One home for it


def calls_in(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


STARTS = ("subprocess.run", "subprocess.Popen", "subprocess.call", "subprocess.check_output", "os.system", "os.popen")
LOOKS = ("shutil.which",)
MAY_LOOK = {"agent_host/judging/facts.py", "agent_host/faults/faults.py"}
"""What asks what a command would find, and a proof that runs the program from outside."""


def test_no_other_file_looks_a_program_up_or_starts_one_by_its_bare_name() -> None:
    wrong = []
    for path in (one for package in PACKAGES for one in (ROOT / package).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        code = path.read_text(encoding="utf-8")
        if not any(called in code for called in (*STARTS, *LOOKS)):
            continue  # to parse them all takes seconds
        for called, node in calls_in(ast.parse(code)):
            if called in LOOKS and name not in MAY_LOOK:
                wrong.append(f"{name}: {called}")
            argv = node.args[0] if called in STARTS and node.args else None
            first = argv.elts[0] if isinstance(argv, ast.List | ast.Tuple) and argv.elts else argv
            is_bare = isinstance(first, ast.Constant) and not str(first.value).startswith("/")
            if is_bare:
                wrong.append(f"{name}: {ast.unparse(node)[:80]}")
    assert wrong == []


# What the program runs from


def test_what_lies_in_the_workspace_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = tmp_path / "work" / "env"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "pyvenv.cfg").write_text("")
    (prefix / "bin" / "python").symlink_to("/usr/bin/python3")
    monkeypatch.setattr("sys.prefix", str(prefix))
    monkeypatch.setattr("sys.executable", str(prefix / "bin" / "python"))
    found = import_isolation.places_in(str(tmp_path / "work"))
    assert set(found) == {str(prefix), str(prefix / "bin" / "python")}
    assert import_isolation.places_in(str(tmp_path / "elsewhere")) == ()
    inside = import_isolation.places_in(str(prefix))  # an environment in the project's directory itself
    assert {str(prefix / "bin"), str(prefix / "pyvenv.cfg")} <= set(inside)
    assert str(prefix) not in inside


def test_our_packages_in_the_workspace() -> None:
    found = import_isolation.places_in(import_isolation.ROOT)
    assert {os.path.join(import_isolation.ROOT, one) for one in PACKAGES} <= set(found)
    assert import_isolation.ROOT not in found
