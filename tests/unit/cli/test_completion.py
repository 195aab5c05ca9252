"""What a shell offers at a Tab, and how much help a command gives."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from agent_host.cli.completion import completions
from agent_host.cli.main import main
from agent_host.cli.options import COMMANDS
from tests.support.rows import each_row

if TYPE_CHECKING:
    from pathlib import Path

MOST_LINES, MOST_OF_A_GROUP = 72, 26
VERBS = ("check", "test", "tools", "validate", "show", "rejudge")


@pytest.fixture(autouse=True)
def _own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("AGENT_HOST_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "state" / "sessions" / "sess_a").mkdir(parents=True)


@each_row(
    ("line", "offered"),
    [
        ("r", ["replay", "report", "resume", "run"]),
        ("report latest s", ["sess_a"]),
        ("run --po", ["--policy"]),
        ("run --policy ", ["ci", "full", "read-only", "workspace"]),
        ("run --policy=r", ["read-only"]),
        ("run --output j", ["json", "jsonl"]),
        ("run --toolset na", ["native"]),
        ("run --provider oll", ["ollama"]),
        ("init --provider an", ["anthropic"]),
        ("run --model x --sandbox l", ["landlock"]),
        ("run ", []),
        ("resume ", ["latest", "sess_a"]),
        ("show se", ["sess_a"]),
        ("policy sh", ["show"]),
        ("policy show ", ["ci", "full", "read-only", "workspace"]),
        ("policy rejudge s", ["sess_a"]),
        ("replay ", ["latest", "sess_a"]),
        ("sessions ", ["list", "rm"]),
        ("sessions rm ", ["sess_a"]),
        ("completion f", ["fish"]),
        ("completion bash --w", []),
        ("nonsense --x", []),
    ],
)
def test_what_is_offered(line: str, offered: list[str]) -> None:
    assert completions(line.split(" ")) == offered


@each_row("words", [["run", "--"], ["run", "--policy", "ci", "--"], ["run", "--", "--"], ["--", "--"]])
def test_two_dashes_are_a_word_like_any_other(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash", "--words", *words]) == 0
    assert capsys.readouterr().out.split() == completions(words)
    assert "--policy" in completions(["run", "--"])


def test_a_broken_configuration_offers_nothing_and_fails_nowhere(tmp_path: Path) -> None:
    (tmp_path / "agent-host").mkdir()
    (tmp_path / "agent-host" / "config.toml").write_text("[nonsense]\n")
    assert completions(["run", "--provider", ""]) == []


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_script_of_a_shell_asks_this_program(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    program = f'agent-host() {{ {shlex.quote(sys.executable)} -m agent_host "$@"; }}\n'
    script = f'{program}eval "$(agent-host completion {shell})"\n'
    if shell == "bash":
        script += 'COMP_WORDS=(agent-host run --policy re); COMP_CWORD=3; _agent_host; printf "%s\\n" "${COMPREPLY[@]}"'
    else:  # outside of the line editor nothing can be offered, so that what would be is printed
        head = (
            "compdef() { :; }; compadd() { shift 2; print -l -- $@; }; words=(agent-host run --policy re); CURRENT=4\n"
        )
        script = f"{head}{script}_agent_host"
    done = subprocess.run([shell, "-c", script], capture_output=True, text=True, check=False, env=dict(os.environ))
    assert (done.stdout.split(), done.stderr) == (["read-only"], "")


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS), *(("policy", verb) for verb in VERBS)])
def test_help_fits_on_a_page(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert (ended.value.code, len(lines) <= MOST_LINES) == (0, True)
    groups = "\n".join(lines).split("\n\n")
    assert max(len(group.splitlines()) for group in groups) <= MOST_OF_A_GROUP
    examples = groups[-1].splitlines()
    assert (examples[0], len(examples)) == ("examples:", 3)
    assert all(line.startswith("  agent-host") or "agent-host" in line for line in examples[1:])
