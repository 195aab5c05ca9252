"""The scope's verdict and the kernel's agree, on random trees with links."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policy import CommandScope
from policy.rules.sandbox import may_read, may_write
from tool_runtime import sandbox as levels
from tool_runtime.platform import landlock, linux_sandbox
from tool_runtime.threads import run_in_fresh_thread

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not levels.look("landlock").works, reason=levels.look("landlock").problem),
]

FOLDERS = ["a", "a/b", "a/b/c", "a/d", "e", "e/f", "e/f/g"]
FILES = [f"{folder}/file" for folder in FOLDERS]
PLACES = st.lists(st.sampled_from([*FOLDERS, *FILES]), max_size=3, unique=True)
_ASK = """
import json, os, sys
def can(path, flags):
    try: os.close(os.open(path, flags))
    except OSError: return False
    return True
print(json.dumps([[can(path, os.O_RDONLY), can(path, os.O_WRONLY)] for path in json.loads(sys.argv[1])]))
"""


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    reads=st.none() | PLACES,
    writes=PLACES,
    hidden=PLACES,
    links=st.lists(st.tuples(st.sampled_from(FOLDERS), st.sampled_from([*FOLDERS, *FILES])), max_size=3, unique=True),
)
def test_the_scope_and_the_kernel_agree(
    reads: list[str] | None, writes: list[str], hidden: list[str], links: list[tuple[str, str]]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = os.path.realpath(directory)
        for folder in FOLDERS:
            os.makedirs(os.path.join(root, folder))
            with open(os.path.join(root, folder, "file"), "w", encoding="utf-8") as file:
                file.write("x")
        asked = [os.path.join(root, name) for name in FILES]
        for number, (folder, target) in enumerate(links):
            link = os.path.join(root, folder, f"link{number}")
            os.symlink(os.path.join(root, target), link)
            asked.append(link if target.endswith("file") else os.path.join(link, "file"))
        whole = None if reads is None else tuple(os.path.join(root, name) for name in reads)
        system = () if whole is None else ("/usr", "/lib", "/lib64", "/etc", "/proc", os.path.realpath(sys.base_prefix))
        scope = CommandScope(
            reads=None if whole is None else (*whole, *system),
            writes=tuple(os.path.join(root, name) for name in writes),
            hidden=tuple(os.path.join(root, name) for name in hidden),
        )
        rules = landlock.rules_for(scope).rules
        restriction = linux_sandbox.Restriction(rules, linux_sandbox.abi(), "closed", with_listener=False)
        argv = [os.path.realpath(sys.executable), "-I", "-S", "-c", _ASK, json.dumps(asked)]

        def start() -> subprocess.CompletedProcess[bytes]:
            linux_sandbox.restrict_this_thread(restriction)
            return subprocess.run(argv, capture_output=True, check=True)

        answers = json.loads(run_in_fresh_thread(start).stdout)
        for path, (can_read, can_write) in zip(asked, answers, strict=True):
            real = os.path.realpath(path)
            verdict = (may_read(scope, real, "posix"), may_write(scope, real, "posix"))
            assert (can_read, can_write) == verdict, (path, scope)
