"""OpenTelemetry from a real run to a real receiver (extra `otel`)."""

from __future__ import annotations

import pytest

from tests.support.process import Host, eventually, gateway, say, shell, use

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


@pytest.mark.slow
def test_a_receiver_that_is_away_costs_nothing_but_its_traces(host: Host) -> None:
    with gateway(use(shell("true")), say("done")) as served:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
        process = host.start("run", "Do it.", "--gateway", served.url, "--policy", str(host.policy()), env=env)
        outcome = process.finish(within_s=8.0)
    assert outcome.code == 0
    assert outcome.text == "done\n"
