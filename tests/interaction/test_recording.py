"""`mock-gateway --record`: a real gateway's answers as a script, which gives the same session again."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.process import call, eventually, gateway, say, shell, use

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.process import Host, Process

TOKEN = "s3cr3t-t0ken-of-the-gateway"


def recorder(host: Host, url: str, script: Path) -> tuple[Process, str]:
    process = host.start("mock-gateway", "--record", url, "--script", script, "--workspace", host.workspace)
    eventually(lambda: "http://" in process.printed() or not process.alive, "the recorder's URL")
    return process, process.printed().strip()


def stopped(process: Process) -> None:
    process.interrupt(signal.SIGTERM)
    outcome = process.finish()
    assert (outcome.code, outcome.stderr) == (0, "")


def lines(script: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in script.read_text().splitlines()]


@pytest.mark.many_rows(1)
@pytest.mark.parametrize("dialect", ["anthropic", "openai", "responses"])
def test_a_recorded_session_runs_again_from_its_script(host: Host, dialect: str) -> None:
    script, path = host.root / "recorded.jsonl", str(host.workspace / "a.txt")
    turns = (
        {"status": 429, "error": {"type": "rate_limit_error", "message": "slow down"}, "headers": {"retry-after": "0"}},
        {"text": "Half", "stream_error": {"type": "overloaded_error", "message": f"Busy with {TOKEN}"}},
        use(
            call("WriteFile", path=path, content="price: ${x}\n".replace("${", "$${")),
            shell(f"echo {TOKEN} key=AKIA{'Q' * 16} >> log"),
            text="Now.",
            thinking="Hm.",
            usage={"input_tokens": 7, "output_tokens": 3, "cache_read_input_tokens": 2},
        ),
        say("Done."),
    )
    options = ("--policy", "full", "--output", "json", "--dialect", dialect)
    with gateway(*turns) as model:
        process, url = recorder(host, model.url, script)
        first = host.run("run", "Do it.", "--gateway", url, *options, env={"LLM_GATEWAY_AUTH_TOKEN": TOKEN})
        assert first.code == 0, first.stderr
        stopped(process)
    limited, broken, worked, done = lines(script)
    assert (broken["text"], broken["stream_error"]["type"]) == ("Half", "overloaded_error")
    assert (limited["status"], limited["error"]["message"]) == (429, "slow down")
    assert limited["headers"] == {"retry-after": "0"}
    assert (worked["text"], worked["thinking"], done["text"]) == ("Now.", "Hm.", "Done.")
    assert worked["tool_calls"][0]["arguments"] == {"path": "${workspace}/a.txt", "content": "price: $${x}\n"}
    assert worked["usage"] == {
        "input_tokens": 7, "output_tokens": 3, "cache_read_input_tokens": 2, "cache_creation_input_tokens": 0
    }  # fmt: skip
    assert TOKEN not in script.read_text()
    assert "AKIA" not in script.read_text()
    (host.workspace / "a.txt").unlink()
    again = host.run("run", "Do it.", "--gateway", f"mock:{script}", *options)
    assert (again.result["text"], again.result["toolCalls"][0]["status"]) == ("Done.", "succeeded"), again.stderr
    assert (host.workspace / "a.txt").read_text() == "price: ${x}\n"


def test_an_answer_whose_connection_is_cut_behind_it_is_recorded(host: Host) -> None:
    script = host.root / "recorded.jsonl"
    with gateway({"text": "Done.", "cut_after_events": 6}) as model:
        process, url = recorder(host, model.url, script)
        assert host.run("run", "Do it.", "--gateway", url, "--policy", "full").text == "Done.\n"
        assert model.count == 1
        stopped(process)
    assert [one["text"] for one in lines(script)] == ["Done."]


@pytest.mark.slow
def test_an_answer_that_breaks_off_is_said_and_left_out(host: Host) -> None:
    script = host.root / "recorded.jsonl"
    with gateway({"text": "Half of it", "cut_after_events": 3}, say("Done.")) as model:
        process, url = recorder(host, model.url, script)
        assert host.task(url).code == 0
        process.interrupt(signal.SIGTERM)
        outcome = process.finish()
    assert outcome.code == 1
    assert [turn["text"] for turn in lines(script)] == ["Done."]
    assert "mock-gateway: " in outcome.stderr


@pytest.mark.parametrize(
    ("name", "url", "said"),
    [
        ("there.jsonl", "http://127.0.0.1:9", "there is such a file already"),
        ("script.toml", "http://127.0.0.1:9", "its name ends in .jsonl"),
        ("missing/script.jsonl", "http://127.0.0.1:9", "cannot be written"),
        ("new.jsonl", "ftp://x", "give an http:// or https:// URL"),
    ],
)
def test_what_cannot_be_recorded(host: Host, name: str, url: str, said: str) -> None:
    (host.root / "there.jsonl").write_text("kept")
    outcome = host.run("mock-gateway", "--record", url, "--script", host.root / name)
    assert (outcome.code, outcome.stdout) == (2, b"")
    assert said in outcome.error
    assert (host.root / "there.jsonl").read_text() == "kept"
    assert not (host.root / "new.jsonl").exists()
