"""Policy is pure (AH 2): what it decides by comes in as values, and it looks at nothing itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# Everything is imported by the first round. From then on whatever looks at the disk, the network, other processes or
# the clock raises, and the second round decides the same.
_DECIDES = """
import os, sys, time
from datetime import UTC, datetime
from policy.bundle.builtin import PlaceholderValues, instantiate
from config.policies import BUILT_IN, template
from policy.decide import check_tool
from policy.rules import check_llm
from policy.facts import CommandFacts, NamedToolFacts, PathFacts, UrlFacts

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BUNDLES = [
    instantiate(template(name), PlaceholderValues("/w", "/home/u", "/state", "posix", "/t"), session_id="s", now=NOW,
                models=("m",), unchanged=(), programs=())
    for name in BUILT_IN
]
CALLS = [
    *((name, PathFacts(path, path, path, "file", size_bytes=3))
      for name in ("File.Read", "File.Write", "File.Delete") for path in ("/w/a", "/etc/passwd", "/w/.git/hooks/x")),
    *(("Shell.Exec", CommandFacts(line, "/w", shell, "/home/u"))
      for line in ("ls -l | wc", "git push && rm -rf /", "make $X", "for f in *; do cat $f > out; done")
      for shell in ("bash", "sh", "zsh", "cmd", "powershell")),
    *(("Network.Http", UrlFacts(url, url)) for url in ("https://pypi.org/x", "http://10.0.0.1/")),
    ("Tool.Invoke", NamedToolFacts("t")),
]

def decided():
    return [
        *(check_tool(held, name, facts, now=NOW, workspace="/w") for held in BUNDLES for name, facts in CALLS),
        *(check_llm(held, model="m", now=NOW) for held in BUNDLES),
    ]

first = decided()
seen = []
def refuse(event, arguments):
    if event == "open" or event.partition(".")[0] in ("os", "socket", "subprocess", "shutil", "glob", "pathlib"):
        seen.append(event)
        raise RuntimeError(f"policy looked: {event} {arguments}")
def no_clock(*_):
    raise RuntimeError("policy asked for the time")
def no_look(*arguments, **_):  # these tell no hook
    seen.append("look")
    raise RuntimeError(f"policy looked: {arguments}")
for name in "stat lstat fstat readlink access getcwd getenv open listdir scandir".split():
    setattr(os, name, no_look)
for name in ("time", "monotonic", "time_ns", "monotonic_ns", "perf_counter"):
    setattr(time, name, no_clock)
sys.addaudithook(refuse)
second = decided()
print("decisions", len(second), "the same", first == second, "looks", len(seen))
"""


def test_a_decision_looks_at_no_disk_no_network_and_no_clock() -> None:
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", _DECIDES], capture_output=True, text=True, cwd=root, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    words = done.stdout.split()
    assert int(words[1]) > 100
    assert words[2:] == ["the", "same", "True", "looks", "0"]
