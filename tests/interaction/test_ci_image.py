"""The Containerfile of examples/ci: linted, built on a root of Debian's packages, and `doctor` run inside without root.
Needs mmdebstrap, buildah, a package index and root."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.process import gateway, say

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "examples/ci/Containerfile"
HAS_TOOLS = all(map(shutil.which, ("mmdebstrap", "buildah"))) and hasattr(os, "geteuid") and os.geteuid() == 0
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


def test_it_has_its_base_as_an_argument_and_no_root() -> None:
    lines = FILE.read_text().splitlines()
    orders = [line for line in lines if re.match("[A-Z]+ ", line)]
    assert orders[0].startswith("ARG BASE=")
    assert orders[1] == "FROM ${BASE}"
    assert [line for line in orders if line.startswith("USER")] == ["USER 1000"]
    copied = {line.split()[1] for line in orders if line.startswith("COPY") and len(line.split()) == 3}
    assert copied == {"agent_host", "config", "policy", "state", "tool_runtime"}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("hadolint") is None, reason="hadolint is not installed")
def test_it_passes_the_linter() -> None:
    done = subprocess.run(["hadolint", str(FILE)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.fixture
def buildah(tmp_path: Path) -> Callable[..., str]:
    """Run buildah with a store of its own; what it printed."""

    def run(*words: str) -> str:
        stores = ("--storage-driver", "vfs", "--root", str(tmp_path / "store"), "--runroot", str(tmp_path / "run"))
        done = subprocess.run(["buildah", *stores, *words], cwd=ROOT, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:])
        return done.stdout

    return run


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TOOLS, reason="mmdebstrap or buildah is not installed, or this is not root")
def test_it_builds_on_debians_packages_and_works_inside(tmp_path: Path, buildah: Callable[..., str]) -> None:
    base = tmp_path / "base.tar"
    words = ["mmdebstrap", "--quiet", "--variant=minbase", "bookworm", str(base)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=900)
    if done.returncode:
        pytest.skip(f"no root can be made here: {done.stderr[-300:]}")
    made = buildah("from", "scratch").strip()
    buildah("add", "--quiet", made, str(base), "/")
    base.unlink()
    if CERTIFICATES.exists():  # a company's own proxy is known to them
        buildah("copy", "--quiet", made, str(CERTIFICATES), "/opt/ca.crt")
        buildah("config", "--env", "PIP_CERT=/opt/ca.crt", made)
    buildah("commit", "--quiet", made, "localhost/base")
    how = ("--isolation", "chroot", "--network", "host")
    buildah("bud", *how, "-f", str(FILE), "--build-arg", "BASE=localhost/base", "-t", "localhost/agent-host", ".")
    inside = buildah("from", "localhost/agent-host").strip()
    assert buildah("run", *how, inside, "--", "id", "-u").strip() == "1000"
    with gateway(*[say("Done.")] * 2) as model:
        found = buildah("run", *how, inside, "--", "agent-host", "doctor", "--gateway", model.url)
        said = buildah("run", *how, inside, "--", "agent-host", "run", "x", "--gateway", model.url, "--policy", "ci")
    assert "FAIL" not in found
    assert "ok    state dir  /home/agent/.local/share/agent-host" in found
    assert said == "Done.\n"
