"""Real git for tests, with a configuration of its own and nothing of the machine's."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def git(folder: Path, *arguments: str, feed: bytes | None = None) -> str:
    """What git prints; an error of it raises."""
    who = {f"GIT_{role}_{part}": "x@y" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1", **who}
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=environment, input=feed, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def commit_all(folder: Path) -> None:
    """A repository in `folder` that has all that lies there."""
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", "all")
