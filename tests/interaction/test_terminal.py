"""Approvals that a person gives at the terminal of `run` and `resume`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.process import call, eventually, gateway, say, shell, use

if sys.platform == "win32":
    pytest.skip("there is no pseudo-terminal", allow_module_level=True)

from tests.support.terminal import AtTerminal

if TYPE_CHECKING:
    from tests.support.process import Gateway, Host

ASKS = {"Shell.Exec": {"requiresApproval": True}, "File.Write": {"requiresApproval": True}}
EFFECT = shell("echo model >> effects")
QUESTION = "Allow this?"


def effects(host: Host) -> str:
    path = host.workspace / "effects"
    return path.read_text() if path.exists() else ""


def run_text(host: Host, model: Gateway, **grants: dict[str, Any]) -> AtTerminal:
    """With text output, on a terminal of the usual size."""
    policy = str(host.policy(grants=grants))
    return AtTerminal(host, "run", "Do it.", "--gateway", model.url, "--policy", policy, size=(80, 24))


def run(
    host: Host, model: Gateway, *options: str, env: dict[str, str] | None = None, background: bool = False
) -> AtTerminal:
    policy = str(host.policy(grants=ASKS))
    arguments = ("run", "Do it.", "--gateway", model.url, "--policy", policy, "--output", "json", *options)
    return AtTerminal(host, *arguments, env=env, background=background)


def result(out: str) -> dict[str, Any]:
    value = json.loads(out)
    assert isinstance(value, dict)
    return value


@pytest.mark.slow
def test_a_command_is_shown_and_approved_with_one_key(host: Host) -> None:
    with gateway(use(shell("echo model >> effects && true")), say("Done.")) as model:
        terminal = run(host, model)
        terminal.said(QUESTION)
        assert "command:   echo model >> effects && true" in terminal.shown
        assert f"writes:    {host.workspace / 'effects'}" in terminal.shown
        assert effects(host) == ""
        terminal.type("sure\n")
        terminal.said("'sure' is none of y, t, s and n. " + QUESTION)
        terminal.type("yes\n")
        code, out = terminal.finish()
    assert (code, effects(host)) == (0, "model\n")
    assert result(out)["toolCalls"] == [{"toolName": "RunCommand", "status": "succeeded", "exitCode": 0}]


def test_a_write_is_shown_as_a_coloured_diff_that_steers_nothing(host: Host) -> None:
    content = "safe \x1b[2J\u202e\n"
    with gateway(use(call("WriteFile", path=str(host.workspace / "a"), content=content)), say("Done.")) as model:
        terminal = run(host, model)
        terminal.said(QUESTION)
        assert "\x1b[32m+safe \\x1b[2J\\u202e\x1b[0m" in terminal.shown
        terminal.type("n\n")
        code, _ = terminal.finish()
        assert model.results()[0].text == "APPROVAL_DENIED: denied at the terminal"
    assert (code, (host.workspace / "a").exists()) == (0, False)


@pytest.mark.slow
@pytest.mark.many_rows(1)
@pytest.mark.parametrize(("key", "questions"), [("y", 2), ("t", 1), ("s", 1)])
def test_how_far_a_key_reaches(host: Host, key: str, questions: int) -> None:
    with gateway(use(EFFECT), use(EFFECT), say("Done.")) as model:
        terminal = run(host, model)
        for number in range(questions):
            terminal.said(QUESTION, times=number + 1)
            terminal.type(f"{key}\n")
        code, _ = terminal.finish()
    assert (code, effects(host), terminal.shown.count(QUESTION)) == (0, "model\nmodel\n", questions)


def test_the_end_of_input_approves_nothing(host: Host) -> None:
    with gateway(use(EFFECT), use(EFFECT), say("Done.")) as model:
        terminal = run(host, model)
        terminal.said(QUESTION)
        terminal.type("\x04")
        code, _ = terminal.finish()
    assert (code, effects(host), terminal.shown.count(QUESTION)) == (0, "", 1)


@pytest.mark.slow
def test_control_c_approves_nothing_and_leaves_the_question_open(host: Host) -> None:
    with gateway(use(EFFECT), say("Done.")) as model:
        terminal = run(host, model, "--session-id", "s")
        terminal.said(QUESTION)
        terminal.type("\x03")
        code, _ = terminal.finish()
        assert (code, effects(host)) == (130, "")
        again = AtTerminal(host, "resume", "s", "--output", "json")
        again.said(QUESTION)
        again.type("y\n")
        code, _ = again.finish()
    assert (code, effects(host)) == (0, "model\n")


@pytest.mark.slow
def test_what_was_typed_before_the_question_is_no_answer(host: Host) -> None:
    with gateway({**use(EFFECT), "delay_ms": 300}, say("Done.")) as model:
        terminal = run(host, model)
        terminal.type("y\ny\n")
        terminal.said(QUESTION)
        terminal.type("n\n")
        code, _ = terminal.finish()
    assert (code, effects(host)) == (0, "")


@pytest.mark.parametrize(("options", "env"), [(("--no-input",), {}), ((), {"CI": "true"})])
def test_nobody_is_asked_in_ci_or_where_the_user_says_so(
    host: Host, options: tuple[str, ...], env: dict[str, str]
) -> None:
    with gateway(use(EFFECT), say("Done.")) as model:
        code, out = run(host, model, *options, env=env).finish()
    assert (code, effects(host)) == (4, "")
    assert result(out)["resumeCommand"].startswith("agent-host resume ")


@pytest.mark.slow
def test_a_command_is_seen_while_it_runs(host: Host) -> None:
    command = "echo; for i in 1 2 3 4 5 6 7; do echo line $i; done; until test -e go; do sleep 0.01; done; echo over"
    with gateway(use(shell(command)), say("Done.")) as model:
        terminal = run_text(host, model)
        terminal.said("| line 7")
        assert [line.strip() for line in terminal.screen[-6:-1]] == [f"| line {number}" for number in range(3, 8)]
        (host.workspace / "go").touch()
        code, out = terminal.finish()
    assert (code, out) == (0, "Done.\n")
    assert not [line for line in terminal.screen if "| " in line]
    assert len([line for line in terminal.screen if "RunCommand" in line]) == 1


def test_what_runs_beside_a_question_does_not_write_over_it(host: Host) -> None:
    loud = "echo begun; until test -e go; do sleep 0.01; done; for i in 1 2 3; do echo $i; done; touch over"
    (host.workspace / "a").touch()
    delete = call("DeleteFile", path=str(host.workspace / "a"))
    with gateway(use(shell(loud), delete), say("Done.")) as model:
        terminal = run_text(host, model, **{"File.Delete": {"requiresApproval": True}})
        terminal.said(QUESTION)
        asked = terminal.shown
        (host.workspace / "go").touch()
        eventually((host.workspace / "over").exists, "the end of the command beside the question")
        assert terminal.shown == asked
        terminal.type("y\n")
        code, _ = terminal.finish()
    assert (code, (host.workspace / "a").exists()) == (0, False)
    answered = terminal.shown.removeprefix(asked)
    assert "approve approved" in answered
    assert "RunCommand echo begun" in answered


@pytest.mark.slow
def test_a_question_that_is_not_answered_in_time_approves_nothing(host: Host) -> None:
    with (host.root / "user.toml").open("a") as file:
        file.write("[approvals]\ntimeout_s = 0.3\n")
    with gateway(use(EFFECT), say("Done.")) as model:
        terminal = run(host, model, "--session-id", "s")
        code, _ = terminal.finish()
    assert (code, effects(host), terminal.shown.count(QUESTION)) == (4, "", 1), "a resume can still approve it"
    assert "approval_timeout" in [event["eventType"] for event in host.event_log("s")]


@pytest.mark.slow
def test_a_key_without_its_enter_from_before_the_question_is_no_answer(host: Host) -> None:
    """Ctrl-D hands over what stands in the line without ending it; the Enter behind the question must not approve."""
    with gateway(use(EFFECT), {**use(EFFECT), "delay_ms": 500}, say("Done.")) as model:
        terminal = run(host, model)
        terminal.said(QUESTION)
        terminal.type("n\n")
        eventually(lambda: model.count == 2, "the second request")
        terminal.type("y\x04")
        terminal.said(QUESTION, times=2)
        terminal.type("\n")
        terminal.type("n\n")
        code, _ = terminal.finish()
    assert (code, effects(host)) == (0, "")


@pytest.mark.slow
def test_a_job_in_the_background_asks_nobody(host: Host) -> None:
    with gateway(use(EFFECT), say("Done.")) as model:
        code, _ = run(host, model, background=True).finish()
    assert (code, effects(host)) == (4, "")
