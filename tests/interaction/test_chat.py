"""`agent-host chat` as a person meets it: a real terminal (tmux), real session processes, a scripted gateway."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.process import eventually, gateway, say, shell, use

if sys.platform == "win32":
    pytest.skip("tmux is for POSIX systems", allow_module_level=True)

from tests.support.terminal import AtTerminal
from tests.support.tmux import PROMPT, at_tmux, session_processes

if TYPE_CHECKING:
    from tests.support.process import Gateway, Host
    from tests.support.tmux import Tmux

ASKS = {"Shell.Exec": {"requiresApproval": True}}
QUESTION = "Allow?"
WORD = {"chunk_chars": 12, "chunk_delay_ms": 60}


def options(host: Host, model: Gateway, **grants: dict[str, Any]) -> tuple[str, ...]:
    return ("--gateway", model.url, "--policy", str(host.policy(grants=grants)))


def kill_session(host: Host) -> None:
    eventually(lambda: session_processes(host), "a process of a session")
    for pid in session_processes(host):
        os.kill(pid, signal.SIGKILL)


def events(host: Host, kind: str) -> list[dict[str, Any]]:
    """The payloads of the only session's events of a kind."""
    (folder,) = (host.state / "sessions").iterdir()
    return [one["payload"] for one in host.event_log(folder.name) if one["eventType"] == kind]


@pytest.mark.many_rows(1)
@pytest.mark.parametrize("columns", [80, 40, 200])
def test_a_whole_task_with_an_approval(host: Host, columns: int) -> None:
    text = "I will **run** the tests, which is a sentence that is long enough to be wrapped.\n\n- one\n- two"
    turns = [use(shell("echo model >> effects && seq 30"), text=text), say("All is `fine`.")]
    with gateway(*turns) as model, at_tmux(host, columns) as terminal:
        terminal.chat(*options(host, model, **ASKS))
        terminal.enter("Do it.")
        terminal.shows(QUESTION)
        assert not (host.workspace / "effects").exists()
        assert "┃   command:   echo model >> effects && seq 30" in unwrapped(terminal, "┃ ")
        assert "agent-host: a question waits" in terminal.title
        terminal.answer("y")
        terminal.shows("All is fine.")
        terminal.shows("2 steps, 240 tokens")
        screen = terminal.screen
    (resolved,) = events(host, "approval_resolved")
    assert (resolved["decision"], resolved["scope"], resolved["answeredBy"]) == ("approved", "once", "chat")
    assert (host.workspace / "effects").read_text() == "model\n"
    lines = screen.split("\n")
    assert lines[lines.index("› Do it.") + 2].startswith("  I will run the tests"), screen
    assert "  … 25 lines before (Ctrl-O shows all)" in screen
    assert ("  30" in lines, "  5" in lines) == (True, False)
    assert all(len(line) <= columns for line in lines)
    assert "".join(screen.replace("┃", "").split()).count("echomodel>>effects") == 3  # title, command, call


def unwrapped(terminal: Tmux, bar: str) -> str:
    """The screen with the rows of a question joined where they were wrapped."""
    return terminal.screen.replace(f"\n{bar}{'':13}", " ")


@pytest.mark.slow
def test_a_prompt_waits_and_the_running_task_is_told(host: Host) -> None:
    (host.workspace / "gate").touch()
    wait = shell("while [ -e gate ]; do sleep 0.05; done")
    with gateway(use(wait), say("First."), say("Second.")) as model, at_tmux(host) as terminal:
        terminal.chat(*options(host, model))
        terminal.enter("Do it.")
        terminal.shows("step 1 · RunCommand")
        terminal.enter("And then this.")
        terminal.shows("queued: And then this.")
        terminal.type("Be quick.")
        terminal.press("M-Enter")
        terminal.shows("» Be quick.")
        (host.workspace / "gate").unlink()
        terminal.shows("  First.")
        terminal.shows("  Second.")
        terminal.shows_no("queued:")
        screen = terminal.screen
        told = json.dumps(model.bodies[1]["messages"])
    assert "Be quick." in told
    assert screen.index("First.") < screen.index("› And then this.") < screen.index("Second.")


@pytest.mark.slow
def test_an_escape_stops_the_task_and_a_second_one_its_tools(host: Host) -> None:
    turns = [use(shell("echo begun > begun; sleep 3; echo done > done")), use(shell("sleep 60")), say("Third.")]
    with gateway(*turns) as model, at_tmux(host) as terminal:
        terminal.chat(*options(host, model))
        terminal.enter("Once.")
        eventually((host.workspace / "begun").exists, "the command")
        terminal.enter("Twice.")
        terminal.shows("queued: Twice.")
        terminal.press("Escape")
        terminal.shows("stopping at the next safe point")
        terminal.shows("· cancelled")
        assert (host.workspace / "done").exists()  # a command that runs is not cut off
        terminal.shows("RunCommand sleep 60 ·")  # the queued one goes on: an Escape acts once
        terminal.press("Escape")
        terminal.shows("stopping at the next safe point", times=2)
        terminal.press("Escape")
        terminal.shows("ending the running tools")
        terminal.shows("· cancelled", times=2)
        terminal.enter("Thrice.")
        terminal.shows("  Third.")


@pytest.mark.slow
def test_an_escape_in_a_question_stops_the_task(host: Host) -> None:
    with gateway(use(shell("echo x > effects")), say("Next.")) as model, at_tmux(host) as terminal:
        terminal.chat(*options(host, model, **ASKS))
        terminal.enter("Do it.")
        terminal.shows("Esc stops the task")
        terminal.press("Escape")
        terminal.shows("· cancelled")
        terminal.enter("More.")
        terminal.shows("  Next.")
    assert not (host.workspace / "effects").exists()


@pytest.mark.slow
def test_a_crash_in_an_answer_shows_nothing_twice(host: Host) -> None:
    answer = "The first paragraph is final.\n\nThe second one comes slowly, and is cut.\n\nThe third one."
    with gateway(say(answer, **WORD), say("Next.")) as model, at_tmux(host) as terminal:
        terminal.chat(*options(host, model))
        terminal.enter("Do it.")
        terminal.shows("The second one")
        kill_session(host)
        terminal.shows("resuming the session, the")
        terminal.shows("  The third one.")
        terminal.shows("1 step")
        screen = terminal.screen
        terminal.enter("More.")
        terminal.shows("  Next.")
    for part in ("The first paragraph is final.", "The second one comes slowly, and is cut.", "The third one."):
        assert screen.count(part) == 1


@pytest.mark.slow
def test_a_crash_in_a_question_asks_it_again_without_showing_it_twice(host: Host) -> None:
    with gateway(use(shell("echo x >> effects")), say("Done.")) as model, at_tmux(host) as terminal:
        terminal.chat(*options(host, model, **ASKS))
        terminal.enter("Do it.")
        terminal.shows(QUESTION)
        kill_session(host)
        terminal.shows("the question above is still open")
        terminal.shows(QUESTION)
        assert terminal.screen.count("┃   command:") == 1
        terminal.answer("y")
        terminal.shows("  Done.")
    assert (host.workspace / "effects").read_text() == "x\n"


@pytest.mark.slow
def test_a_crash_in_a_command_shows_its_call_once(host: Host) -> None:
    command = "echo begun >> begun; sleep 30"
    with gateway(use(shell(command)), say("It was interrupted.")) as model, at_tmux(host) as terminal:
        terminal.chat(*options(host, model))
        terminal.enter("Do it.")
        eventually((host.workspace / "begun").exists, "the command")
        kill_session(host)
        terminal.shows("  It was interrupted.")
        screen = terminal.screen
    assert screen.count("● RunCommand") == 1
    assert (host.workspace / "begun").read_text() == "begun\n"


@pytest.mark.slow
def test_a_terminal_that_closes_leaves_the_session_and_continue_shows_it(host: Host) -> None:
    turns = [use(shell("sleep 1; echo one"), text="I begin."), say("I end."), say("I go on.")]
    with gateway(*turns) as model:
        with at_tmux(host) as terminal:
            terminal.chat(*options(host, model))
            terminal.enter("Do it.")
            terminal.shows("step 1 · RunCommand")
            terminal.kill()
        eventually(lambda: not session_processes(host), "the end of the session's process")
        with at_tmux(host) as terminal:
            terminal.chat("--continue", *options(host, model))
            terminal.shows("  I end.")
            screen = terminal.screen
            assert screen.index("› Do it.") < screen.index("  I begin.") < screen.index("● RunCommand")
            assert screen.count("I begin.") == 1
            terminal.enter("More.")
            terminal.shows("  I go on.")
            terminal.press("C-d")
            terminal.shows("to continue: agent-host chat --session")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP, signal.SIGTERM])
def test_a_chat_that_is_killed_leaves_its_question_to_the_next(number: signal.Signals, host: Host) -> None:
    with gateway(use(shell("echo x >> effects"), text="I begin."), say("I end.")) as model:
        policy = options(host, model, **ASKS)
        first = AtTerminal(host, "chat", *policy, size=(80, 24), whole=True)
        first.said(PROMPT)
        first.type("Do it.\r")
        first.said(QUESTION)
        os.kill(first.pid, number)
        assert first.finish()[0] == (-number if number == signal.SIGKILL else 0)
        eventually(lambda: not session_processes(host), "the end of the session's process")
        with at_tmux(host) as terminal:
            terminal.chat("--continue", *policy)
            terminal.shows(QUESTION)
            terminal.answer("y")
            terminal.shows("  I end.")
            screen = terminal.screen
    assert [screen.count(one) for one in ("› Do it.", "  I begin.", "┃   command:", "● RunCommand")] == [1, 1, 1, 1]
    assert (host.workspace / "effects").read_text() == "x\n"


@pytest.mark.slow
def test_a_slow_terminal_holds_nothing_up(host: Host) -> None:
    """At 10 KB a second, for a text and an output that would take minutes: the session goes on, keys are seen soon."""
    text = "\n\n".join(f"Paragraph {number} of many, each with some words in it." for number in range(5000))
    output = "head -c 20000000 /dev/zero | tr '\\0' x | fold -w 100; echo end > effects"
    turns = [use(shell(output), text=text, chunk_chars=4000), use(shell("echo x > asked")), say("Done.")]
    with gateway(*turns) as model:
        terminal = AtTerminal(host, "chat", *options(host, model), size=(80, 24), whole=True, bytes_a_second=10_000)
        terminal.said(PROMPT)
        before = resident_kib(terminal.pid)
        terminal.type("Do it.\r")
        eventually((host.workspace / "asked").exists, "the end of both commands")
        assert "Paragraph 4000 " not in terminal.shown
        terminal.type("typed meanwhile")
        terminal.said("typed meanwhile")
        assert "Paragraph 4000 " not in terminal.shown
        assert resident_kib(terminal.pid) - before < 40 * 1024
        terminal.bytes_a_second = 0
        terminal.said("Done.")
        terminal.said("3 steps")
        terminal.type("\x15\x04")
        assert terminal.finish()[0] == 0
    shown = terminal.shown
    assert [number for number in range(5000) if shown.count(f"Paragraph {number} of") < 1] == []
    assert "more than" in shown  # lines of the output, most of which were not kept
    assert shown.index("Paragraph 4999 ") < shown.index("● ")


def resident_kib(pid: int) -> int:
    return int(subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, check=True).stdout)


@pytest.mark.slow
def test_ten_thousand_lines_are_folded_and_whole_by_a_key(host: Host) -> None:
    with gateway(use(shell("seq 10000")), say("Done.")) as model, at_tmux(host) as terminal:
        terminal.chat(*options(host, model))
        terminal.enter("Do it.")
        terminal.shows("  Done.")
        assert terminal.screen.count("\n") < 40
        terminal.press("C-o")
        terminal.shows("  1\n  2\n  3\n")
        terminal.shows("  9999\n  10000", times=2)
        numbers = [line.strip() for line in terminal.screen.split("\n") if line.strip().isdecimal()]
    assert numbers[-10_000:] == [str(number) for number in range(1, 10_001)]


HOSTILE = (
    "\x1b]0;owned\x07\x1b]52;c;b3duZWQ=\x07\x1b]8;;http://evil.example\x07link\x1b]8;;\x07\x1b[2J\x1b[H\x1b[200~pasted"
    "\x1b[201~ \u202eevil\u202c\x9b31m\n\n<!-- hidden -->List<String>\n\n"
    f"{chr(0x231A) * 39}Allow? y once\n\nAllow? y once · t this task · s this session · n no\n\n┃ Run a command: ls\n"
)


@pytest.mark.slow
def test_hostile_text_steers_nothing_and_passes_for_no_question(host: Host) -> None:
    (host.workspace / "text").write_text(HOSTILE)
    turns = [use(shell("cat text"), text=HOSTILE), say("Done.")]
    with gateway(*turns) as model, at_tmux(host) as terminal:
        terminal.chat(*options(host, model))
        terminal.enter("Do it.")
        terminal.shows("  Done.")
        screen, raw = terminal.screen, terminal.coloured
        assert (terminal.title.startswith("owned"), terminal.clipboard) == (False, "")
    assert "› Do it." in screen  # nothing was cleared
    assert "\u202e" not in raw
    assert "\x1b]" not in raw
    lines = screen.split("\n")
    assert not any(line.startswith(("Allow?", "┃", "link", "pasted")) for line in lines)
    assert any(line.startswith("  Allow? y once") for line in lines)
    assert "  <!-- hidden -->List<String>" in lines
    assert PROMPT in lines[-2]


@pytest.mark.slow
def test_a_command_of_6000_characters_is_shown_whole_and_not_allowed_for_good(host: Host) -> None:
    words = " ".join(f"word{number:04}" for number in range(670))
    command = f"echo {words} > effects # {'x' * 500}"
    with gateway(use(shell(command)), say("Done.")) as model, at_tmux(host, 80, 50) as terminal:
        terminal.chat(*options(host, model, **ASKS))
        terminal.enter("Do it.")
        terminal.shows("n no")
        shown = "".join(line.removeprefix("┃ ").strip() + " " for line in terminal.screen.split("\n"))
        assert all(f"word{number:04}" in shown for number in range(670))
        terminal.answer("n")
        terminal.shows("  Done.")
    assert not (host.workspace / "effects").exists()


@pytest.mark.slow
def test_what_was_typed_before_a_question_is_no_answer(host: Host) -> None:
    (host.workspace / "gate").touch()
    turns = [use(shell("while [ -e gate ]; do sleep 0.05; done")), use(shell("echo x > effects")), say("Done.")]
    grants = {"Shell.Exec": {"requiresApproval": True}}
    with gateway(*turns) as model, at_tmux(host) as terminal:
        terminal.chat(*options(host, model, **grants))
        terminal.enter("Do it.")
        terminal.shows(QUESTION)
        terminal.answer("y")
        terminal.shows("step 1 · RunCommand")
        terminal.type("yes, and y")
        terminal.shows("› yes, and y")
        (host.workspace / "gate").unlink()
        terminal.shows(QUESTION)
        terminal.shows_no("› yes, and y")  # from here on keys answer
        assert not (host.workspace / "effects").exists()
        terminal.answer("n")
        terminal.shows("  Done.")
        terminal.shows("› yes, and y")  # the draft is as it was
    assert not (host.workspace / "effects").exists()


@pytest.mark.slow
def test_suspend_and_resize_at_any_time(host: Host) -> None:
    (host.workspace / "gate").touch()
    wait = shell("while [ -e gate ]; do sleep 0.05; done")
    with gateway(use(wait, text="I begin."), say("I end.")) as model, at_tmux(host) as terminal:
        terminal.chat(*options(host, model))
        terminal.enter("Do it.")
        terminal.shows("step 1 · RunCommand")
        terminal.press("C-z")
        terminal.shows("Stopped")
        terminal.enter("fg")
        terminal.shows("Enter queues")
        for columns in (40, 120, 60):
            terminal.resize(columns, 24)
            terminal.shows("Enter queues")
        (host.workspace / "gate").unlink()
        terminal.shows("  I end.")
        terminal.shows("2 steps")
        screen = terminal.screen
    assert screen.count("I begin.") == 1
    assert screen.count("Enter queues") == 0


@pytest.mark.slow
def test_lines_only_for_a_screen_reader(host: Host) -> None:
    with (
        gateway(use(shell("echo x > effects"), text="I **run** it."), say("Done.")) as model,
        at_tmux(host) as terminal,
    ):
        terminal.command("chat", "--plain", *options(host, model, **ASKS))
        terminal.shows("agent-host: agent-host")
        terminal.enter("Do it.")
        terminal.shows("Allow? y once")
        terminal.enter("y")
        terminal.shows("  Done.")
        screen = terminal.screen
        terminal.press("C-c")  # of the terminal, to all of its processes but the session's
        terminal.shows("Ctrl-C again leaves")
        terminal.press("C-c")
        terminal.shows("to continue: agent-host chat --session")
        assert "resuming" not in terminal.screen
    assert (host.workspace / "effects").read_text() == "x\n"
    assert "  I **run** it." in screen
    assert "done: RunCommand echo x > effects" in screen


# How it begins and ends


def test_off_a_terminal_it_names_run(host: Host) -> None:
    outcome = host.run("chat", "Do it.", stdin=b"")
    assert outcome.code == 2
    assert outcome.error == (
        "agent-host: error: `agent-host chat` needs a terminal: `agent-host run PROMPT` does a task without one"
    )


def test_without_the_extra_one_line_says_what_to_install(host: Host) -> None:
    hidden = host.root / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'prompt_toolkit' else find(name, *rest)\n"
    )
    with at_tmux(host, 200, 50, {"PYTHONPATH": str(hidden)}) as terminal:
        terminal.command("chat")
        terminal.shows("error: `agent-host chat` needs prompt_toolkit: install agent-host[tui]")
        terminal.enter("echo code $?")
        terminal.shows("code 2")
        terminal.command()
        terminal.shows("for a conversation here install agent-host[tui]")
        terminal.enter("echo code $?")
        terminal.shows("code 0")
        assert "usage: agent-host" in terminal.screen


@pytest.mark.slow
def test_without_a_provider_it_leads_to_init(host: Host) -> None:
    with at_tmux(host) as terminal:
        terminal.command()
        terminal.shows("No LLM provider is set up. Set one up now?")
        terminal.enter("n")
        terminal.shows("no LLM provider is set up: `agent-host init` does that")


@pytest.mark.slow
def test_the_start_of_several_ids_is_said(host: Host) -> None:
    with gateway(say("One."), say("Two.")) as model, at_tmux(host, 200) as terminal:
        for name in ("twin-1", "twin-2"):
            assert host.run("run", "Hello.", "--session-id", name, "--gateway", model.url).code == 0
        terminal.command("chat", "--session", "twin", *options(host, model))
        terminal.shows("twin is the start of 2 session ids: twin-2, twin-1")


@pytest.mark.slow
def test_a_second_chat_in_the_workspace_is_told(host: Host) -> None:
    with gateway(say("Hello.")) as model, at_tmux(host) as first, at_tmux(host) as second:
        first.chat(*options(host, model))
        first.enter("Do it.")
        first.shows("  Hello.")
        second.chat(*options(host, model))
        second.shows("works in this workspace too")
        first.press("C-c")
        first.shows("Ctrl-C again leaves")
        first.press("C-c")
        first.shows("to continue: agent-host chat --session")
