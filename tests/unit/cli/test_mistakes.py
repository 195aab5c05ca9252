"""Mistakes as users make them, and what they are told: what is wrong and the mend, in the words of where it was
written, one line a problem, all at once, and nothing in silence. The table is `mistakes.py`."""

from __future__ import annotations

import gc
import io
import os
import re
import shlex
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

import pytest

from agent_host.cli.main import main
from agent_host.cli.options import SETTING_ARGUMENTS
from agent_host.host.options import OPTION_OF
from tests.unit.cli.mistakes import MISTAKES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.unit.cli.mistakes import Mistake

_LONGEST_LINE = 700
_BY_PROCESS = 10
_KEY_OF_OPTION = re.compile(rf"(?<![\w.])(?:{'|'.join(map(re.escape, OPTION_OF))})(?!\w)")


class Answer(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """All of it."""
        return self.out + self.err


class World:
    """A user's machine below one folder, in which commands run in this process."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self._patch = monkeypatch

    def run(self, mistake: Mistake) -> Answer:
        """The answer to what this user wrote."""
        self.prepare(mistake)
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
        self._patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(mistake.stdin), "utf-8"))
        self._patch.setattr(sys, "stdout", out)
        self._patch.setattr(sys, "stderr", err)
        try:
            code = main(self.words(mistake))
        except SystemExit as end:
            code = int(end.code or 0)
        return Answer(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))

    def words(self, mistake: Mistake) -> list[str]:
        """The arguments of the command line."""
        return [self.filled(word) for word in shlex.split(mistake.line)]

    def prepare(self, mistake: Mistake) -> None:
        """Write the user's files, and nothing of the machine's own environment."""
        for folder in ("home", "work", "tmp"):
            (self.root / folder).mkdir()
        files = {"gateway.toml": "[[turn]]\ntext = 'Done.'\n", **mistake.files}
        if mistake.config is not None:
            files["home/.config/agent-host/config.toml"] = mistake.config
        for name, content in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else self.filled(content).encode())
        for name, value in self.environment(mistake).items():
            self._patch.setenv(name, value)
        self._patch.chdir(self.root / "work")

    def environment(self, mistake: Mistake) -> dict[str, str]:
        """The variables of the user."""
        return {
            "HOME": str(self.root / "home"),
            "TMPDIR": str(self.root / "tmp"),
            "AGENT_HOST_STATE_DIR": str(self.root / "state"),
            "COLUMNS": "100",
            **{name: self.filled(value) for name, value in mistake.env.items()},
        }

    def filled(self, text: str) -> str:
        """The text with the root's path in place of `{root}`, and that of the workspace in place of `{work}`."""
        return text.replace("{root}", str(self.root)).replace("{work}", str(self.root / "work"))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A machine with nothing on it; what a command does to this process is taken back."""
    for name in list(os.environ):
        if name not in ("PATH", "LANG", "PYTHONPATH", "VIRTUAL_ENV"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(gc, "freeze", lambda: None)  # all that was collected is frozen already
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield World(tmp_path, monkeypatch)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    gc.enable()


def _check(mistake: Mistake, answer: Answer, world: World) -> None:
    text = answer.text
    assert answer.code == mistake.code, text
    assert text.strip(), "it is accepted in silence"
    for word in ("Traceback", "internal error", "\x1b"):
        assert word not in text
    for part in map(world.filled, mistake.says):
        assert part in text, f"{part!r} is not in:\n{text}"
    for part in map(world.filled, mistake.lacks):
        assert part not in text, f"{part!r} is in:\n{text}"
    problems = [line for line in answer.err.splitlines() if line.startswith("agent-host: ")]
    assert max(map(len, problems), default=0) <= _LONGEST_LINE
    assert len(set(problems)) == len(problems), "a problem is told twice"
    if mistake.config is None and mistake.code == 2:
        assert not _KEY_OF_OPTION.search(text), "an option is called by the key of the configuration"


@pytest.mark.many_rows(134)
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_is_answered(world: World, mistake: Mistake) -> None:
    answer = world.run(mistake)
    _check(mistake, answer, world)


@pytest.mark.slow
def test_a_sample_of_them_as_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = MISTAKES[:: len(MISTAKES) // _BY_PROCESS][:_BY_PROCESS]
    started = []
    for place, mistake in enumerate(sample):
        (tmp_path / str(place)).mkdir()
        world = World(tmp_path / str(place), monkeypatch)
        world.prepare(mistake)
        process = subprocess.Popen(
            [sys.executable, "-m", "agent_host.cli.main", *world.words(mistake)],
            cwd=world.root / "work",
            env={"PATH": os.environ["PATH"], **world.environment(mistake)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append((mistake, world, process))
    for mistake, world, process in started:
        out, err = process.communicate(mistake.stdin, timeout=60)
        _check(mistake, Answer(process.returncode, out.decode(), err.decode()), world)


def test_there_are_rows_enough() -> None:
    assert len({mistake.name for mistake in MISTAKES}) == len(MISTAKES) >= 250


def test_each_option_that_is_a_setting_is_named_by_one_table() -> None:
    assert list(SETTING_ARGUMENTS) == list(OPTION_OF)
