"""`agent-host resume ID PROMPT`: another task in a session whose last one is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.process import call, gateway, say, shell, use

if TYPE_CHECKING:
    from tests.support.process import Host


def test_a_session_that_has_ended_goes_on_with_its_whole_conversation(host: Host) -> None:
    with gateway(say("One."), use(shell("echo made >> effects")), say("Two."), say("Three.")) as model:
        assert host.task(model.url, "--session-id", "s").code == 0
        second = host.run("resume", "s", "And then?", "--output", "json")
        assert (second.code, second.result["text"], second.result["stepCount"]) == (0, "Two.", 2)
        third = host.run("resume", "s", "-", "--output", "json", stdin=b"Once more.")
        assert (third.code, third.result["text"]) == (0, "Three.")
        texts = [str(message["content"]) for message in model.bodies[-1]["messages"]]
    for said in ("Do it.", "One.", "And then?", "Two.", "Once more."):
        assert any(said in text for text in texts), said
    assert (host.workspace / "effects").read_text() == "made\n"
    assert host.checkpoints() == []


def test_a_session_that_waits_for_approvals_takes_another_task(host: Host) -> None:
    with gateway(use(shell("true")), say("Could not."), say("Something else.")) as model:
        policy = host.policy(grants={"Shell.Exec": {"requiresApproval": True}})
        assert host.task(model.url, "--session-id", "s", policy=policy).code == 4
        outcome = host.run("resume", "s", "Do something else.", "--output", "json")
    assert (outcome.code, outcome.result["text"]) == (0, "Something else.")


@pytest.mark.slow
def test_an_open_task_comes_first(host: Host) -> None:
    with gateway(use(shell("kill -9 $PPID; sleep 60")), say("Done."), say("Next.")) as model:
        assert host.task(model.url, "--session-id", "s").code == -9
        refused = host.run("resume", "s", "Something else.", "--output", "json")
        assert refused.code in (1, 2)
        assert "is not over" in refused.error
        assert host.resume("s").code == 0
        assert host.run("resume", "s", "Now.", "--output", "json").result["text"] == "Next."


def test_what_was_not_kept_cannot_go_on(host: Host) -> None:
    with (host.root / "user.toml").open("a") as file:
        file.write("[retention]\nkeep_file_versions = false\n")
    with gateway(say("One.")) as model:
        assert host.task(model.url, "--session-id", "s").code == 0
        refused = host.run("resume", "s", "And then?")
    assert refused.code == 2
    assert "were not kept" in refused.error
    assert host.run("resume", "nope", "And then?").code == 2


@pytest.mark.slow
def test_the_patch_is_that_of_the_task(host: Host) -> None:
    (host.workspace / "a.txt").write_text("old\n")
    first, second = (use(call("WriteFile", path="a.txt", content=text)) for text in ("new\n", "newer\n"))
    with gateway(first, say("One."), second, say("Two."), say("Three.")) as model:
        assert host.task(model.url, "--session-id", "s").code == 0
        outcome = host.run("resume", "s", "And then?")
        nothing = host.run("resume", "s", "And now?")
    assert (outcome.code, nothing.code) == (0, 0)
    assert "-new\n+newer\n" in outcome.stderr
    assert "-old" not in outcome.stderr
    assert "diff" not in nothing.stderr
