"""OpenTelemetry from a real run to a real receiver (extra `otel`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.process import Host, eventually, gateway, say, shell, use

if TYPE_CHECKING:
    from tests.support.serve_process import Servers

otlp = pytest.importorskip("tests.support.otlp")


def test_a_run_is_one_trace(host: Host) -> None:
    wait = "while [ ! -e go ]; do sleep 0.02; done"
    with otlp.receiver() as seen, gateway(use(shell("true")), use(shell(wait)), say("done")) as served:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": seen.url, "OTEL_BSP_SCHEDULE_DELAY": "20"}
        options = ("--gateway", served.url, "--policy", str(host.policy()))
        process = host.start("run", "the-prompt-of-a-user", *options, env=env)
        eventually(lambda: any(span.name == "agent_host.step" for span in seen.spans), "the first step's span")
        (host.workspace / "go").touch()
        assert process.finish().code == 0
    assert seen.tree() == {
        "agent_host.session": None,
        "invoke_agent agent-host": "agent_host.session",
        "agent_host.step": "invoke_agent agent-host",
        "chat test-model": "agent_host.step",
        "execute_tool RunCommand": "agent_host.step",
    }
    assert len({span.trace_id for span in seen.spans}) == 1
    assert sum(span.name == "agent_host.step" for span in seen.spans) == 3
    assert "the-prompt-of-a-user" not in str(seen.spans)
    assert seen.metrics


def traced(seen: Any) -> dict[str, str]:
    """The environment of a process that sends its spans at once."""
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": seen.url, "OTEL_BSP_SCHEDULE_DELAY": "20"}


@pytest.mark.slow
def test_a_trace_goes_on_after_a_kill(host: Host) -> None:
    wait = shell("while [ ! -e go ]; do sleep 0.02; done")
    with (
        otlp.receiver() as seen,
        gateway(use(shell("echo words-of-a-tool")), use(wait), say("words-of-a-model")) as served,
    ):
        env = traced(seen)
        options = ("--gateway", served.url, "--policy", str(host.policy()), "--session-id", "s")
        process = host.start("run", "words-of-a-user", *options, env=env)
        eventually(lambda: sum(span.name == "chat test-model" for span in seen.spans) == 2, "the second answer's span")
        kept = host.records("s") / "trace.json"
        last = seen.spans[-1]
        eventually(lambda: last.span_id in kept.read_text(), "the last span, on disk")
        process.kill()
        first = list(seen.spans)
        (host.workspace / "go").touch()
        assert host.run("resume", "s", "--gateway", served.url, env=env).code == 0
    assert {span.trace_id for span in seen.spans} == {last.trace_id}
    assert not any(span.links for span in first)
    session = seen.named("agent_host.session")  # that of the process before had no end
    assert session not in first
    assert session.links == [(last.trace_id, last.span_id)]
    assert seen.named("invoke_agent agent-host").links == session.links
    address = served.url.removeprefix("http://").split(":")
    for chat in (span for span in seen.spans if span.name == "chat test-model"):
        assert [chat.attributes["server.address"], str(chat.attributes["server.port"])] == address
        assert chat.attributes["gen_ai.response.id"].startswith("msg_s_")
        assert chat.attributes["gen_ai.response.model"] == "test-model"
        assert chat.attributes["gen_ai.request.max_tokens"] > 0
    assert all(span.attributes["gen_ai.provider.name"] == "anthropic" for span in seen.spans)
    assert seen.schemas == {"https://opentelemetry.io/schemas/1.41.0"}
    assert "words-of-a" not in repr((seen.spans, seen.metrics, seen.resource))


def test_the_wait_for_a_person_is_not_the_time_of_the_tool(servers: Servers) -> None:
    rules = [{"approvalRuleId": "ask", "title": "Act", "description": "Does something."}]
    asks = {"Shell.Exec": {"requiresApproval": True, "approvalRuleId": "ask"}}
    policy = str(servers.host.policy(grants=asks, approvalRules=rules))
    with otlp.receiver() as seen, gateway(use(shell("true")), say("Done.")) as model:
        serve = servers.start("--gateway", model.url, "--policy", policy, env=traced(seen))
        client = serve.on_streams()
        client.create()
        client.task()
        asked = client.event("approval_requested")["payload"]["approvalId"]
        client.call("ApproveAction", approvalId=asked, decision="approved")
        client.event("task_completed")
        client.call("Shutdown")
        serve.ended_well()
    wait, tool = seen.named("agent_host.approval"), seen.named("execute_tool RunCommand")
    assert wait.start < wait.end <= tool.start < tool.end
    assert wait.attributes["agent_host.approval.id"] == tool.attributes["agent_host.approval.id"] == asked
    assert (wait.error, tool.error) == (None, None)


@pytest.mark.slow
def test_a_receiver_that_is_away_costs_nothing_but_its_traces(host: Host) -> None:
    with gateway(use(shell("true")), say("done")) as served:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
        process = host.start("run", "Do it.", "--gateway", served.url, "--policy", str(host.policy()), env=env)
        outcome = process.finish(within_s=8.0)
    assert outcome.code == 0
    assert outcome.text == "done\n"
