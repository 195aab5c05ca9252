"""Typed Python functions as tools of an embedding program, as its author meets them (docs/embedding.md)."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from datetime import date
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from pydantic import BaseModel, Field

import agent_host
from tests.support.process import call, gateway, say, use

if TYPE_CHECKING:
    from tests.support.process import Host

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "embedding.md").read_text()


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


class Order(BaseModel):
    number: int
    due: date


@agent_host.tool(side_effects=False)
def find_order(
    number: Annotated[int, Field(ge=1, description="Number of the order")], *, size: Size = Size.SMALL
) -> Order:
    """Find an order."""
    return Order(number=number if size is Size.SMALL else number * 100, due=date(2026, 1, 31))


@agent_host.tool
async def whisper(text: str, copy: bool = False) -> str:
    """Say it quietly."""
    await asyncio.sleep(0)
    return text.lower() * (2 if copy else 1)


@agent_host.tool(name="fail-now", description="It fails.")
def fails(why: str) -> None:
    raise LookupError(why)


def options(host: Host, url: str, *tools: agent_host.PythonTool, **more: Any) -> agent_host.SessionOptions:
    given = {"workspace": host.workspace, "state_dir": host.state, "gateway": url, "policy": "full", **more}
    return agent_host.SessionOptions(**given, tools=tools)


async def called(
    host: Host, *calls: dict[str, Any], tools: tuple[agent_host.PythonTool, ...], **more: Any
) -> tuple[agent_host.Result, list[dict[str, Any]], list[dict[str, Any]]]:
    """The result of a task that makes these calls in one turn; their results as the model read them; the tools that it
    was offered."""
    with gateway(use(*calls), say("Done.")) as model:
        result = await agent_host.run_task("Do it.", options(host, model.url, *tools, **more))
    read = [block for block in model.bodies[1]["messages"][-1]["content"] if block["type"] == "tool_result"]
    return result, read, model.bodies[0]["tools"]


async def test_a_function_is_offered_by_its_annotations_and_run(host: Host) -> None:
    result, read, offered = await called(
        host,
        call("find_order", number=7),
        call("find_order", number=7, size="large"),
        call("whisper", text="HO", copy=True),
        tools=(find_order, whisper),
    )
    texts = [block["content"] for block in read]
    assert [json.loads(text)["number"] for text in texts[:2]] == [7, 700]
    assert json.loads(texts[0])["due"] == "2026-01-31"
    assert texts[2] == "hoho"
    assert result.details["tools"]["find_order"]["calls"] == 2
    (shown,) = [tool for tool in offered if tool["name"] == "find_order"]
    assert shown["description"] == "Find an order."
    schema = shown["input_schema"]
    assert schema["required"] == ["number"]
    assert schema["properties"]["number"] == {"type": "integer", "minimum": 1, "description": "Number of the order"}
    assert schema["additionalProperties"] is False


async def test_what_does_not_fit_the_annotations_never_reaches_the_function(host: Host) -> None:
    ran: list[int] = []

    @agent_host.tool
    def count(number: int) -> None:
        """Count."""
        ran.append(number)

    wrong: list[dict[str, Any]] = [{"number": "seven"}, {}, {"number": 1, "more": 2}, {"number": True}]
    result, read, _ = await called(host, *(call("count", **one) for one in wrong), tools=(count,))
    assert all(block["is_error"] and "INVALID_REQUEST" in block["content"] for block in read)
    assert ran == []
    assert result.completed


async def test_what_a_function_raises_is_a_failed_call(host: Host) -> None:
    _, (block,), _ = await called(host, call("fail-now", why="no such order"), tools=(fails,))
    assert block["is_error"]
    assert block["content"] == "TOOL_EXECUTION_FAILED: LookupError: no such order"


async def test_policy_judges_a_function_by_its_name(host: Host) -> None:
    granted = {"name": "Tool.Invoke", "allowedToolNames": ["whisper"], "requiresApproval": True}
    policy = host.policy(capabilities=[{"name": "File.Read"}, {"name": "LLM.Call"}, granted])
    result, read, offered = await called(
        host, call("whisper", text="A"), call("find_order", number=1), tools=(whisper, find_order), policy=policy
    )
    assert "find_order" not in [tool["name"] for tool in offered]
    assert "APPROVAL_REQUIRED" in read[0]["content"]
    assert "CAPABILITY_DENIED" in read[1]["content"]
    assert [one["toolName"] for one in result.details["deniedApprovals"]] == ["whisper"]
    approved, read, _ = await called(
        host, call("whisper", text="A"), tools=(whisper,), policy=policy, approvals=["whisper"]
    )
    assert read[0]["content"] == "a"
    assert approved.completed


async def test_functions_of_one_turn_run_at_once_and_in_threads(host: Host) -> None:
    together = threading.Barrier(2, timeout=20)

    @agent_host.tool
    def meet() -> int:
        """Wait for the other."""
        return together.wait()

    _, read, _ = await called(host, call("meet"), call("meet"), tools=(meet,))
    assert sorted(block["content"] for block in read) == ["0", "1"]


async def test_a_function_that_takes_too_long_fails(host: Host) -> None:
    cancelled = asyncio.Event()

    @agent_host.tool(timeout_s=0.05)
    async def sleep() -> None:
        """Sleep."""
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    _, (block,), _ = await called(host, call("sleep"), tools=(sleep,))
    assert "TOOL_EXECUTION_TIMEOUT" in block["content"]
    assert cancelled.is_set()


async def test_long_results_are_cut_and_stored(host: Host) -> None:
    @agent_host.tool
    def recite() -> str:
        """Recite."""
        return "line\n" * 100_000

    _, (block,), _ = await called(host, call("recite"), tools=(recite,))
    assert len(block["content"]) < 200_000
    assert "[storage_ref: " in block["content"]


def test_a_tool_is_still_the_function() -> None:
    assert find_order(3).number == 3
    assert asyncio.run(whisper("A")) == "a"
    assert (find_order.name, find_order.__doc__) == ("find_order", "Find an order.")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: agent_host.tool(description="d")(lambda: 1), "is no name of a tool"),
        (lambda: agent_host.tool(name="x", description="d")(lambda number: number), "number has no annotation"),
        (lambda: agent_host.tool(name="x")(lambda: 1), "neither a docstring nor a description"),
        (lambda: agent_host.tool(name="x", description="d")(print), "cannot be given by its name"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_at_once(make: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        make()


async def test_names_and_schemas_are_checked_before_anything_is_on_disk(host: Host) -> None:
    @agent_host.tool(name="ReadFile", description="Mine.")
    def mine() -> None: ...

    @agent_host.tool(description="It takes a thread.")
    def odd(thread: threading.Thread) -> None: ...

    for tools, says in (
        ((agent_host.tool(name="cp__read", description="d")(whisper),), "begin with cp__ are reserved"),
        ((mine,), "ReadFile already"),
        ((whisper, whisper), "whisper already"),
        ((odd,), "the tool odd"),
    ):
        with pytest.raises(agent_host.UsageError, match=says):
            await agent_host.run_task("Do it.", options(host, "http://127.0.0.1:9", *tools))
    mine_too = agent_host.tool(name="write_file", description="Mine.")(whisper)
    of_skills = {"host.toolset": ["skills"]}
    with pytest.raises(agent_host.UsageError, match="write_file already"):
        await agent_host.run_task("Do it.", options(host, "http://127.0.0.1:9", mine_too, settings=of_skills))
    assert host.checkpoints() == []


async def test_a_tool_with_the_name_of_one_that_is_not_there_is_judged_as_its_own(host: Host) -> None:
    """What is said of a family that is not chosen is nothing to it."""

    @agent_host.tool(name="write_file", description="Mine.")
    def mine(path: str) -> str:
        return f"mine: {path}"

    _, (block,), _ = await called(
        host, call("write_file", path="a"), tools=(mine,), policy=host.policy(grants={"Tool.Invoke": {}})
    )
    assert block["content"] == "mine: a"


async def test_the_user_may_let_a_tool_take_the_place_of_a_native_one(host: Host) -> None:
    """It is judged by Tool.Invoke then, and the others of the family stay."""

    @agent_host.tool(name="cp__read_file", description="Mine.")
    def mine(path: str) -> str:
        return f"mine: {path}"

    wanted = {"host.toolset": ["native"], "native.allow_shadow": True}
    _, (block, listed), offered = await called(
        host,
        call("cp__read_file", path="/etc/passwd"),
        call("cp__list_dir", path="."),
        tools=(mine,),
        settings=wanted,
        policy=host.policy(grants={"Tool.Invoke": {}}),
    )
    assert block["content"] == "mine: /etc/passwd"
    assert "entries" in json.loads(listed["content"])
    assert [tool["name"] for tool in offered].count("cp__read_file") == 1


PACKAGE = """
import agent_host

@agent_host.tool
def shout(text: str) -> str:
    "Say it loudly."
    return text.upper()

tools = [shout]
nothing = 5
"""


async def test_the_example_of_the_page_runs(host: Host) -> None:
    _, code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    _, (block,), _ = await called(host, call("find_order", number=3), tools=(names["find_order"],))
    assert json.loads(block["content"]) == {"number": "3", "state": "shipped"}


@pytest.mark.slow
def test_tools_of_an_installed_package_need_the_user_to_name_them(host: Host, tmp_path: Path) -> None:
    site = tmp_path / "site"
    info = site / "loud-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "loud.py").write_text(PACKAGE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: loud\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[agent_host.tools]\nloud = loud:tools\nodd = loud:nothing\n")
    env = {"PYTHONPATH": str(site)}
    turns = use(call("shout", text="hey")), say("Done.")

    def run(*installed: str) -> tuple[Any, list[str]]:
        (host.root / "user.toml").write_text(f"[tools]\ninstalled = {json.dumps(list(installed))}\n")
        with gateway(*turns) as model:
            ended = host.run(
                "run", "Do it.", "--gateway", model.url, "--policy", "full", "--output", "json",
                env={**env, "AGENT_HOST_CONFIG": str(host.root / "user.toml")},
            )  # fmt: skip
        return ended, [str(body["messages"][-1]) for body in model.bodies]

    ended, bodies = run("loud")
    assert ended.code == 0
    assert "HEY" in bodies[1]
    ended, bodies = run()
    assert "TOOL_NOT_FOUND" in bodies[1]
    for name, says in (("quiet", "there are: loud, odd"), ("odd", "neither a tool nor a list of tools")):
        ended, _ = run(name)
        assert ended.code == 2
        assert says in ended.stderr
