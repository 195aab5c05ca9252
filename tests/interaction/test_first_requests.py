"""What a session's first request holds: few tokens, and a beginning that sessions of a workspace share."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.testing import MockGateway, Script
from agent_host.thread.messages import estimate
from tests.support.process import call, gateway, say, use

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.process import Host

SLIM = ["ReadFile", "WriteFile", "EditFile", "ListDirectory", "Grep", "RunCommand"]
# Arguments that no definition has once the errors that call for them introduce them.
RARE = ("expectedSha256", "sandboxGrant")


def body_of(host: Host, *options: str, policy: str = "workspace", dialect: str = "anthropic") -> dict[str, Any]:
    with gateway(say("Done.")) as model:
        host.task(model.url, "--dialect", dialect, *options, policy=policy)
        (body,) = model.bodies
    assert isinstance(body, dict)
    return body


# Of the estimate on such requests over o200k_base, which counts 1,724 where it says 2,009.
HIGH = 1.15


def tokens(body: Mapping[str, Any]) -> float:
    """Of the whole request as it is sent."""
    for tool in body["tools"]:
        for name in RARE:
            tool["input_schema"]["properties"].pop(name, None)
    return estimate(json.dumps(body, separators=(",", ":"))) / HIGH


@pytest.mark.parametrize(("options", "most"), [([], 2000), (["--toolset", "slim"], 1200)])
def test_the_first_request_is_short(host: Host, options: list[str], most: int) -> None:
    assert tokens(body_of(host, *options)) <= most


def test_slim_has_six_tools_of_the_desktop_family(host: Host) -> None:
    body = body_of(host, "--toolset", "slim")
    assert [tool["name"] for tool in body["tools"]] == SLIM
    assert "background" not in json.dumps(body)


def parts(body: Mapping[str, Any]) -> str:
    """A request in the order in which its provider reads it: tools, system prompt, messages."""
    system = "".join(block["text"] for block in body.get("system", ()))
    return json.dumps(body["tools"]) + system + json.dumps(body.get("messages") or body["input"])


@pytest.mark.many_rows(4)
@pytest.mark.parametrize("dialect", ["anthropic", "openai", "responses"])
@pytest.mark.parametrize("toolset", ["desktop", "slim"])
@pytest.mark.parametrize("policy", ["workspace", "ci"])
def test_sessions_of_a_workspace_share_their_beginning(host: Host, dialect: str, toolset: str, policy: str) -> None:
    """All of it, in whichever order the template of a local model has tools and system prompt."""
    options = ("--toolset", toolset)
    first, second = (parts(body_of(host, *options, policy=policy, dialect=dialect)) for _ in range(2))
    assert first == second
    assert "$TMPDIR" in first


@pytest.mark.many_rows(1)
@pytest.mark.parametrize("dialect", ["anthropic", "openai", "responses"])
async def test_a_second_session_reads_the_cache_of_the_first(host: Host, dialect: str) -> None:
    """The project's own instructions make the beginning longer than what providers keep at least."""
    (host.workspace / "AGENTS.md").write_text("Use make.\n" * 300)
    usages = []
    async with MockGateway(Script.from_turns([say("Done.")], count_tokens=True)) as model:
        for _ in range(2):
            outcome = await in_thread(host, model.url, "--dialect", dialect)
            usages.append(outcome["usage"])
    assert usages[0]["cachedInputTokens"] == 0
    assert usages[1]["cachedInputTokens"] >= 0.95 * usages[1]["inputTokens"]


async def in_thread(host: Host, url: str, *options: str) -> dict[str, Any]:
    import asyncio

    outcome = await asyncio.to_thread(host.task, url, *options, policy="workspace")
    return outcome.result


def test_the_error_that_needs_a_rule_brings_it(host: Host) -> None:
    """Bounds of arguments stand in no definition."""
    with gateway(use(call("ReadFile", path="x", limit=0)), say("Done.")) as model:
        host.task(model.url)
        first, second = model.bodies
    assert "minimum" not in json.dumps(first["tools"])
    assert "limit" in str(second["messages"][-1]["content"])
