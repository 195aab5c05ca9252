"""What sessions cost: told by the program, and limited by `--max-cost` (docs/costs.md)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import agent_host
from tests.support.process import MODEL, call, gateway, say, shell, use

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.process import Host
    from tests.support.serve_process import Servers

# A million tokens of input for 10, of output for 100.
PRICES = "price_input = 10\nprice_output = 100\nprice_cache_read = 1\nprice_cache_write = 10\n"
# Each answer costs 0.02: 0.01 for its input, 0.01 for its output.
USED = {"input_tokens": 1000, "output_tokens": 100}
# About what these requests really have: 0.04.
REAL = {"input_tokens": 3000, "output_tokens": 100}


def priced(host: Host, text: str = PRICES, *, name: str = MODEL) -> None:
    host.configure()
    path = host.root / "user.toml"
    path.write_text(path.read_text() + f'[models."{name}"]\n{text}')


def bundle(host: Host, *models: str) -> Path:
    return host.policy(llm={"allowedModels": list(models or [MODEL])})


def calls(*commands: str, usage: dict[str, int] | None = None) -> dict[str, Any]:
    return use(*map(shell, commands), usage=usage or USED)


# Told


def test_the_cost_is_in_the_result_in_events_and_in_what_is_shown(host: Host) -> None:
    priced(host)
    cached = {**USED, "input_tokens": 100, "cache_read_input_tokens": 800, "cache_creation_input_tokens": 200}
    with gateway(calls("true"), say("Done.", usage=cached)) as model:
        done = host.run(
            "run", "Do it.", "--gateway", model.url, "--policy", bundle(host), "--output", "jsonl", "--session-id", "s"
        )
    result = done.last_line
    assert (result["cost"], result["costCurrency"]) == (0.0338, "USD"), "0.02, and 0.0008 + 0.003 + 0.01"
    assert result["usage"] == {
        "inputTokens": 2100, "outputTokens": 200, "cachedInputTokens": 800, "cacheWriteTokens": 200,
    }  # fmt: skip
    answers = [event["payload"] for event in done.events if event["eventType"] == "llm_request_completed"]
    assert [(answer["cost"], answer["costCurrency"]) for answer in answers] == [(0.02, "USD"), (0.0138, "USD")]
    assert answers[1]["cacheWriteTokens"] == 200
    shown = host.run("show", "s").text.splitlines()
    assert "tokens: 2100 tokens in (800 cached, 200 written), 200 out, 0.0338 USD" in shown
    assert shown[shown.index("step 2") + 1] == (
        f"  {MODEL}: 1100 tokens in (800 cached, 200 written), 100 out, 0.0138 USD"
    )
    row = json.loads(host.run("show", "s", "--output", "json").stdout)
    assert (row["usage"]["cost"], row["usage"]["costCurrency"], row["usage"]["cacheWriteTokens"]) == (
        0.0338, "USD", 200,
    )  # fmt: skip
    assert [(step["step"], step["model"], step["cost"]) for step in row["steps"]] == [
        (1, MODEL, 0.02), (2, MODEL, 0.0138),
    ]  # fmt: skip
    (listed,) = json.loads(host.run("sessions", "--output", "json").stdout)
    assert listed["usage"] == row["usage"]


def test_the_cost_stands_in_the_last_line_for_a_person(host: Host) -> None:
    priced(host, PRICES + 'currency = "EUR"\n')
    with gateway(say("Done.", usage=USED)) as model:
        done = host.run("run", "Do it.", "--gateway", model.url, "--policy", bundle(host))
    assert done.code == 0
    assert done.names_once("1 step, 0 tool calls, 1000 tokens in, 100 out, 0.0200 EUR, ")
    assert done.names_once("  model   1000 tokens in, 100 out, 0.0200 EUR, ")


def test_without_a_price_nothing_is_said_of_costs(host: Host) -> None:
    priced(host, name="another")
    with gateway(say("Done.", usage=USED)) as model:
        done = host.task(model.url, "--session-id", "s", policy=bundle(host))
    assert done.result["status"] == "TASK_COMPLETED"
    assert "cost" not in done.result
    assert "cost" not in host.run("show", "s", "--output", "json").text
    assert "USD" not in host.run("show", "s").text


def test_each_model_has_its_own_price(servers: Servers) -> None:
    host = servers.host
    priced(host, PRICES + '[models."cheap-*"]\nprice_input = 1\nprice_output = 10\n')
    with gateway(say("One.", usage=USED), say("Two.", usage=USED)) as model:
        serve, client = servers.session(model.url, policy=bundle(host, MODEL, "cheap-model"))
        client.task("a")
        ended = client.event("task_completed")["eventId"]
        assert client.ask("GetSessionState")["tokenUsage"]["cost"] == 0.02
        client.task("b", taskOptions={"model": "cheap-model"})
        assert client.event("llm_request_completed", model="cheap-model")["payload"]["cost"] == 0.002
        client.event("task_completed", ended)
        assert client.ask("GetSessionState")["tokenUsage"]["cost"] == 0.022
        client.call("Shutdown")
        serve.ended_well()


# Limited


def test_a_session_ends_before_the_call_that_would_pass_its_limit(host: Host) -> None:
    priced(host)
    with gateway(calls("true"), calls("true"), calls("true"), say("Never.")) as model:
        ended = host.task(model.url, "--max-cost", "0.05", "--session-id", "s", policy=bundle(host))
        assert ended.code == 1
        result = ended.result
        assert (result["status"], result["reason"], result["stepCount"]) == ("TASK_FAILED", "LLM_BUDGET_EXCEEDED", 2)
        assert result["cost"] == 0.04
        assert "0.0400 USD spent" in result["message"]
        assert "of 0.0500 (--max-cost, llm.max_cost)" in result["message"]
        assert model.count == 2
        again = host.resume("s")
        assert (again.code, again.result["reason"], model.count) == (1, "LLM_BUDGET_EXCEEDED", 2), "it is on record"
        done = host.resume("s", "--max-cost", "0.2")
        assert (done.code, done.result["status"], model.count) == (0, "TASK_COMPLETED", 4)
        assert done.result["cost"] > 0.06


def test_the_answer_is_limited_to_what_is_left(host: Host) -> None:
    priced(host)
    with gateway(calls("true"), say("Done.", usage=USED)) as model:
        assert host.task(model.url, "--max-cost", "0.06", policy=bundle(host)).code == 0
    first, second = model.bodies
    assert first["max_tokens"] < 4096 * 0.15, "0.06 less the input is what less than 600 tokens cost"
    left = (0.06 - 0.02 - 0.01) / 100e-6
    assert left * 0.9 < second["max_tokens"] <= left
    same = {key: value for key, value in first.items() if key not in ("max_tokens", "messages")}
    assert same == {key: value for key, value in second.items() if key not in ("max_tokens", "messages")}
    assert second["messages"][0] == first["messages"][0], "what is cached is as it was"


def test_a_limit_far_away_changes_nothing(host: Host) -> None:
    priced(host)
    with gateway(calls("true"), say("Done.", usage=USED)) as model:
        assert host.task(model.url, "--max-cost", "5", policy=bundle(host)).code == 0
    assert [body["max_tokens"] for body in model.bodies] == [4096, 4096]


def test_a_resume_counts_what_was_spent_before_a_crash(host: Host) -> None:
    priced(host)
    with gateway(calls("true"), calls("kill -9 $PPID; sleep 60"), calls("true"), say("Never.")) as model:
        assert host.task(model.url, "--max-cost", "0.05", "--session-id", "s", policy=bundle(host)).code == -9
        ended = host.resume("s")
    assert (ended.code, ended.result["reason"], model.count) == (1, "LLM_BUDGET_EXCEEDED", 2)
    assert ended.result["cost"] == 0.04


def test_a_first_call_that_costs_too_much_is_not_made(host: Host) -> None:
    priced(host)
    with gateway(say("Never.")) as model:
        ended = host.task(model.url, "--max-cost", "0.0001", policy=bundle(host))
        assert (ended.code, ended.result["reason"], model.count) == (1, "LLM_BUDGET_EXCEEDED", 0)
    assert ended.result["cost"] == 0


def test_the_configuration_and_a_workspace_may_limit(host: Host) -> None:
    priced(host)
    (host.workspace / ".agent").mkdir()
    (host.workspace / ".agent/config.toml").write_text(
        f'[llm]\nmax_cost = 0.055\n[models."{MODEL}"]\nprice_input = 0\nprice_output = 0\n'
    )
    with gateway(calls("true", usage=REAL), say("Never.")) as model:
        ended = host.task(model.url, "--max-cost", "9", policy=bundle(host))
        assert (ended.code, ended.result["reason"], model.count) == (1, "LLM_BUDGET_EXCEEDED", 1)
    assert ended.result["cost"] == 0.04, "a workspace's prices do not count"
    assert "models = " in ended.names_once("is ignored")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--max-cost", "-1"), "--max-cost: give an amount above 0, not -1"),
        (("--max-cost", "0"), "--max-cost: give an amount above 0, not 0"),
        (("--max-cost", "nan"), "--max-cost: give an amount above 0, not nan"),
        (("--max-cost", "much"), "--max-cost: give an amount above 0, not much"),
        (("--max-cost", "inf"), "--max-cost must be a number from 0 to 1,000,000,000, not Infinity"),
        (("--max-cost", "1", "--model", "another"), "another has no price"),
    ],
)
def test_a_limit_that_cannot_be_used_is_exit_code_2(host: Host, given: tuple[str, ...], said: str) -> None:
    priced(host)
    policy = bundle(host, MODEL, "another")
    ended = host.run("run", "Do it.", "--gateway", "http://127.0.0.1:9", "--policy", policy, *given)
    assert ended.code == 2
    assert said in ended.error
    assert host.checkpoints() == [], "nothing was begun"


def test_a_resume_needs_the_price_of_what_was_used(host: Host) -> None:
    priced(host)
    with gateway(calls("kill -9 $PPID; sleep 60"), say("Done.")) as model:
        policy = bundle(host, MODEL, "another")
        assert host.task(model.url, "--session-id", "s", policy=policy).code == -9
        priced(host, name="another")
        ended = host.resume("s", "--max-cost", "1", "--model", "another")
        assert ended.code == 2
        assert f"the cost so far is unknown: {MODEL}, which it has used, has no price" in ended.error
        assert host.resume("s").code == 0, "it stays resumable"


def test_a_task_of_a_client_has_a_limit_of_its_own(servers: Servers) -> None:
    host = servers.host
    priced(host)
    with gateway(calls("true", usage=REAL), calls("true"), say("Done.", usage=USED)) as model:
        serve, client = servers.session(model.url, policy=bundle(host, MODEL, "another"))
        client.task("a", taskOptions={"maxCost": 0.055})
        failed = client.event("task_failed")["payload"]
        assert failed["reason"] == "LLM_BUDGET_EXCEEDED"
        assert "(taskOptions.maxCost)" in failed["message"]
        assert model.count == 1
        client.task("b")
        client.event("task_completed")
        for options in ({"maxCost": 1, "model": "another"}, {"maxCost": -1}, {"maxCost": "1"}):
            refused = client.refusal("StartTask", sessionId=client.session_id, taskId="c", prompt="x",
                                     taskOptions=options)  # fmt: skip
            assert refused.code == -32602
        client.call("Shutdown")
        serve.ended_well()
    assert model.bodies[-1]["max_tokens"] == 4096


def test_a_server_s_limit_is_told_and_holds_for_all_its_tasks(servers: Servers) -> None:
    host = servers.host
    priced(host)
    with gateway(say("One.", usage=USED), say("Two.", usage=USED), say("Never.")) as model:
        serve, client = servers.session(model.url, "--max-cost", "0.05", policy=bundle(host))
        ended = 0
        for task in ("a", "b"):
            client.task(task)
            ended = client.event("task_completed", ended)["eventId"]
        client.task("c")
        assert client.event("task_failed")["payload"]["reason"] == "LLM_BUDGET_EXCEEDED"
        usage = client.ask("GetSessionState")["tokenUsage"]
        assert (usage["cost"], usage["costCurrency"], usage["maxCost"]) == (0.04, "USD", 0.05)
        assert "incompleteTask" in client.ask("ResumeSession", autoContinue=False), "under a higher limit it goes on"
        client.call("Shutdown")
        serve.ended_well()
    assert model.count == 2


# Counted


def test_what_fills_the_context_of_a_model_is_left_out(host: Host) -> None:
    """The table of models knows less room than the bundle allows."""
    priced(host, "context_tokens = 12000\nmax_output_tokens = 2000\n")
    (host.workspace / "long.txt").write_text("All work and no play makes Jack a dull boy.\n" * 400)
    read = [use(call("ReadFile", path=str(host.workspace / "long.txt"))) for _ in range(4)]
    with gateway(*read, say("Done.")) as model:
        assert host.task(model.url, policy=bundle(host)).code == 0
    assert {body["max_tokens"] for body in model.bodies} == {2000}
    assert "truncated" in json.dumps(model.bodies[-1]["messages"][0])


async def test_a_program_that_embeds_the_host_may_limit_costs(host: Host) -> None:
    table = {MODEL: {"price_input": 10, "price_output": 100}}
    with gateway(calls("true", usage=REAL), say("Never.")) as model:
        given: dict[str, Any] = {"workspace": host.workspace, "state_dir": host.state, "gateway": model.url}
        given |= {"policy": bundle(host), "settings": {"models": table}}
        result = await agent_host.run_task("Do it.", agent_host.SessionOptions(**given, max_cost=0.055))
        assert (result.reason, result.details["cost"], result.resumable) == ("LLM_BUDGET_EXCEEDED", 0.04, True)
        assert model.count == 1
        for wrong in (0, -1, float("nan")):
            with pytest.raises(agent_host.UsageError, match="give an amount above 0"):
                await agent_host.run_task("Do it.", agent_host.SessionOptions(**given, max_cost=wrong))
