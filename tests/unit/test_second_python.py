"""`.ci/second-python`: another interpreter for a part of the tests, where one really starts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "second-python"
OTHER = "3.12" if sys.version_info[:2] == (3, 13) else "3.13"
BASH = shutil.which("bash")

pytestmark = pytest.mark.skipif(BASH is None, reason="it is a script for bash")


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{BASH}\n{text}\n")
    path.chmod(0o755)


def found(tmp_path: Path) -> str:
    """What it prints where PATH has an interpreter of ours, and no other."""
    program(tmp_path / "bin" / "python3", f'exec {sys.executable} "$@"')
    environment = {"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path)}
    done = subprocess.run([str(BASH), str(SCRIPT)], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_shim_that_finds_nothing_is_no_interpreter(tmp_path: Path) -> None:
    assert found(tmp_path) == ""
    program(tmp_path / "bin" / f"python{OTHER}", "echo 'pyenv: command not found' >&2; exit 127")
    program(tmp_path / "bin" / f"python{sys.version_info[0]}.11", f'exec {sys.executable} "$@"')
    assert found(tmp_path) == ""


def test_one_of_pyenv_is_found(tmp_path: Path) -> None:
    version = f"import sys; sys.version_info = ({OTHER.replace('.', ', ')}, 0)"
    other = tmp_path / ".pyenv" / "versions" / f"{OTHER}.0" / "bin" / "python3"
    program(other, f'exec {sys.executable} -c "{version}; sys.executable = \'{other}\'; exec(sys.argv[1])" "$2"')
    assert found(tmp_path) == f"{other}\n"
