"""By which hash a repository names its objects, as its configuration says it and as nobody should."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host.workspace_changes import object_format

if TYPE_CHECKING:
    from pathlib import Path

SAID = {
    "": "sha1",
    "[core]\n\tbare = false\n": "sha1",
    "[extensions]\n\tobjectformat = sha256\n": "sha256",
    "[Extensions]\r\n  objectFormat=SHA256\r\n": "sha256",
    '[extensions] objectFormat = "sha256" ; why\n': "sha256",
    '[extensions]\nobjectformat = sha256 # why\nother = 1\n[remote "x"]\nobjectformat = sha1\n': "sha256",
    "[extensions]\nobjectformat = sha256\n[core]\na = b\n[extensions]\nobjectformat = sha1\n": "sha1",
    '[extensions "x"]\nobjectformat = sha256\n': "sha1",
    "\ufeff[extensions]\nobjectformat = sha256\n": "sha256",
    "[extensions]\nobjectformat = \\\nsha256\n": "sha256",
    "[alias]\na = b \\\n[extensions]\nobjectformat = sha256\n": "sha1",
    "# [extensions]\nobjectformat = sha256\n": None,  # a name outside of all sections
}


@pytest.mark.parametrize("config", SAID)
def test_a_configuration_is_read_as_git_reads_it(tmp_path: Path, config: str) -> None:
    assert object_format(config.encode()) == SAID[config]
    git = shutil.which("git")
    if git is None or SAID[config] is None:  # not all versions of git refuse it
        return
    (tmp_path / "config").write_bytes(config.encode())
    asked = [git, "config", "--file", str(tmp_path / "config"), "extensions.objectformat"]
    said = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip().lower()
    assert (said or "sha1") == SAID[config]


@pytest.mark.parametrize("said", ["", "=", "= sha\\n256", "= blake3", '= "sha256', "= \xff"])
def test_what_is_no_known_name_is_not_taken_for_the_usual_one(said: str) -> None:
    assert object_format(f"[extensions]\nobjectformat {said}\n".encode("latin-1")) != "sha1"


def test_what_it_includes_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("[extensions]\nobjectformat = sha256\n")
    assert object_format(f"[include]\npath = {tmp_path / 'other'}\n".encode()) == "sha1"


@given(st.binary(max_size=300))
def test_any_bytes_are_read(config: bytes) -> None:
    assert isinstance(object_format(b"[extensions]\nobjectformat" + config), str | None)
