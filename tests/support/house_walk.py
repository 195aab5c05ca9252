"""The way of one warm ReadFile through the source, and the modules that a run without tools imports.

Run as a program of its own by `tests.support.house`: a profiler and a count of modules want a fresh process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

ROOT = Path(__file__).resolve().parents[2]
OWN = tuple(f"{ROOT}{os.sep}{name}{os.sep}" for name in ("agent_host", "config", "policy", "state", "tool_runtime"))
SERVED = f"{ROOT}{os.sep}agent_host{os.sep}testing{os.sep}"
STEPS = 3
ANSWER = "Assembler.__init__"
"""The function that is called once for each answer of the model."""


def _arguments(workspace: Path, url: str) -> list[str]:
    return ["run", "Read it.", "--workspace", str(workspace), "--gateway", url, "--policy", "ci", "--output", "json"]


def _prepare(root: Path) -> Path:
    os.environ.update(HOME=str(root), XDG_CONFIG_HOME=str(root / "c"), AGENT_HOST_STATE_DIR=str(root / "s"))
    os.environ["LLM_PROXY_TOKEN"] = "token"
    workspace = root / "w"
    workspace.mkdir()
    for number in range(STEPS):
        (workspace / f"{number}.txt").write_text("text\n")
    return workspace


def walk() -> list[tuple[str, str]]:
    """Our functions that one warm step calls, in order, from one answer of the model to the next."""
    from agent_host.cli.main import main
    from tests.support.process import call, gateway, say, use

    seen: list[tuple[str, str]] = []
    turns = [use(call("ReadFile", path=f"{number}.txt")) for number in range(STEPS)]
    with tempfile.TemporaryDirectory() as scratch, gateway(*turns, say("Done.")) as model:
        workspace = _prepare(Path(scratch))

        def note(frame: FrameType, event: str, _: Any) -> None:
            file = frame.f_code.co_filename
            if event == "call" and file.startswith(OWN) and not file.startswith(SERVED):
                seen.append((file, frame.f_code.co_qualname))

        threading.setprofile(note)
        sys.setprofile(note)
        with open(os.devnull, "w") as nowhere:
            out, sys.stdout = sys.stdout, nowhere
            code = main(_arguments(workspace, model.url))
            sys.stdout = out
        sys.setprofile(None)
    if code:
        raise SystemExit(f"the session ended with {code}")
    answers = [place for place, (_, name) in enumerate(seen) if name == ANSWER]
    return seen[answers[STEPS - 1] : answers[STEPS]]


def modules_of_a_run() -> list[str]:
    """Our modules that a run of one answer imports."""
    from tests.support.process import gateway, say

    with tempfile.TemporaryDirectory() as scratch, gateway(say("Done.")) as model:
        workspace = _prepare(Path(scratch))
        program = (
            "import sys; from agent_host.cli.main import main; code = main(sys.argv[1:])\n"
            "print(*(n for n in sys.modules if n.partition('.')[0] in"
            " ('agent_host','config','policy','state','tool_runtime')), file=sys.stderr)"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, *_arguments(workspace, model.url)],
            cwd=ROOT, capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
    return done.stderr.splitlines()[-1].split()


def main() -> int:
    if "--modules" in sys.argv:
        print(len(modules_of_a_run()))
        return 0
    way = walk()
    files = [file for file, _ in way]
    changes = sum(1 for before, after in pairwise(files) if before != after)
    print(
        f"one ReadFile: {len(set(way))} functions, {len(set(files))} files, {changes} changes of file, {len(way)} calls"
    )
    for file, count in Counter(files).most_common():
        print(f"{count:6}  {Path(file).relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
