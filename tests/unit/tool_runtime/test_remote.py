"""Tools from elsewhere: what is kept, fixed for a task, reported, and refused, around a source that is a list."""

from __future__ import annotations

import asyncio
import itertools
import threading
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.contracts import SourceNotice, ToolRequest
from agent_host.ids import MACHINE
from agent_host.llm.dialects import sendable_name
from state.tool_lists import ToolLists
from tool_runtime.families.schemas import definition_of
from tool_runtime.processes.command import LocalCommand
from tool_runtime.remote import (
    MAX_DESCRIPTION_CHARS,
    MAX_TOOLS,
    Definition,
    RemoteTools,
    SourceTerms,
    ToolList,
    spec_of,
    usable,
)
from tool_runtime.router import LocalToolRouter
from tool_runtime.tool import CallContext, FaultKind, RuntimeSettings, ToolFault, ToolOutput

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

OBJECT: dict[str, Any] = {"type": "object", "properties": {"path": {"type": "string"}}}


def defined(name: str, description: str = "d", **schema: Any) -> Definition:
    return Definition(name, description, {**OBJECT, **schema})


class Listing:
    """A source of these tools; `down` has it not answer; it waits for `may_answer`. `on_list` is called with each
    list."""

    name = "mcp:fs"

    def __init__(self, *tools: Definition) -> None:
        self.tools = tools
        self.down = False
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.calls: list[dict[str, Any]] = []
        self.closed = False
        self.asked = 0
        self.on_list: Callable[[], None] = lambda: None

    async def list(self) -> ToolList:
        self.asked += 1
        self.on_list()
        await self.may_answer.wait()
        if self.down:
            raise ToolFault(FaultKind.NETWORK, "connection refused")
        return usable(self.tools)

    async def call(self, tool: Definition, call: CallContext) -> ToolOutput:
        self.calls.append({"tool": tool.name, **call.request.arguments})
        if self.down:
            raise ToolFault(FaultKind.NETWORK, "connection refused")
        return ToolOutput(f"{tool.description} done", artifact_uris=("workspaces/w/artifacts/a",))

    async def outcome(self, tool: Definition, call: CallContext) -> ToolOutput | None:
        if tool.name == "fs/lost":
            raise ToolFault(FaultKind.INTERRUPTED, "it never came")
        return ToolOutput("it was done") if tool.name == "fs/read" else None

    async def aclose(self) -> None:
        self.closed = True


class Here:
    """One session's router over a source, in a state directory that others share."""

    def __init__(
        self,
        folder: Path,
        source: Listing,
        *,
        admits: str = "fs/",
        place: str = "here",
        ask_after_s: float = 0.0,
        connect_timeout_s: float = 60,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        (folder / "state").mkdir(exist_ok=True)
        self.kept = ToolLists(str(folder / "state"), f"{source.name} {place}")
        self.source = source
        self.told: list[SourceNotice] = []
        self.news = asyncio.Condition()
        self.router = LocalToolRouter(
            RuntimeSettings(outside=MACHINE, workspace=str(folder), shell="/bin/sh"), LocalCommand
        )
        terms = SourceTerms(
            "Mcp.Invoke", True, timeout_s=60, connect_timeout_s=connect_timeout_s, ask_after_s=ask_after_s
        )
        self.remote = RemoteTools(
            source, terms, self.kept, admits=lambda name: name.startswith(admits), report=self.tell, pause=pause
        )
        self.router.add_remote(self.remote)

    def tell(self, notice: SourceNotice) -> None:
        self.told.append(notice)
        self.telling = asyncio.create_task(self._tell())

    async def _tell(self) -> None:
        async with self.news:
            self.news.notify_all()

    async def names(self) -> list[str]:
        return [spec.name for spec in await self.router.tools() if spec.capability == "Mcp.Invoke"]

    def of(self, kind: str) -> list[SourceNotice]:
        return [one for one in self.told if one.kind == kind]

    async def listed(self, times: int = 1) -> None:
        async with asyncio.timeout(10), self.news:
            await self.news.wait_for(lambda: len(self.of("listed")) + len(self.of("unavailable")) >= times)


@pytest.fixture
async def opened() -> AsyncIterator[list[Here]]:
    """Sessions to be closed at the end."""
    sessions: list[Here] = []
    yield sessions
    for one in sessions:
        await one.router.aclose()
        assert one.source.closed


def request(tool: str, **arguments: Any) -> ToolRequest:
    return ToolRequest(tool, arguments, "s", "t", "st", "c", "Mcp.Invoke")


async def test_a_first_task_waits_for_a_source_that_nothing_is_known_of(tmp_path: Path, opened: list[Here]) -> None:
    here = Here(tmp_path, Listing(defined("fs/read"), defined("fs/write")))
    opened.append(here)
    assert await here.names() == []  # nothing waits for it before the first task
    (sha256,) = (await here.router.fix({})).values()
    assert await here.names() == ["fs/read", "fs/write"]
    result = await here.router.execute(request("fs/read", path="x"))
    assert (result.status, result.output_text) == ("succeeded", "d done")
    assert result.artifact_uris == ("workspaces/w/artifacts/a",)
    assert here.source.calls == [{"tool": "fs/read", "path": "x"}]
    assert len(sha256) == 64


async def test_a_list_that_comes_while_it_is_looked_for_is_the_first_tasks(
    tmp_path: Path, opened: list[Here], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Here(tmp_path, Listing(defined("fs/read")))
    opened.append(here)
    looks, listed = itertools.count(), threading.Event()
    tell, newest = here.tell, here.kept.newest

    def look() -> str | None:
        found = newest()
        if next(looks) == 0:
            assert listed.wait(60)
        return found

    def told(notice: SourceNotice) -> None:
        tell(notice)
        listed.set()

    monkeypatch.setattr(here.kept, "newest", look)
    monkeypatch.setattr(here.remote, "_report", told)
    assert list(await here.router.fix({})) == ["mcp:fs"]


async def test_the_next_session_begins_with_what_is_kept_and_waits_for_nothing(
    tmp_path: Path, opened: list[Here]
) -> None:
    first = Here(tmp_path, Listing(defined("fs/read")))
    opened.append(first)
    kept = await first.router.fix({})
    hanging = Listing(defined("fs/read", "another"))
    hanging.may_answer.clear()
    second = Here(tmp_path, hanging)
    opened.append(second)
    assert await second.router.fix({}) == kept
    assert await second.names() == ["fs/read"]


async def test_a_source_that_is_down_keeps_its_tools_and_their_calls_fail(tmp_path: Path, opened: list[Here]) -> None:
    opened.append(Here(tmp_path, Listing(defined("fs/read"))))
    await opened[0].router.fix({})
    down = Listing()
    down.down = True
    here = Here(tmp_path, down)
    opened.append(here)
    await here.listed()
    await here.router.fix({})
    result = await here.router.execute(request("fs/read"))
    assert result.error is not None
    assert (result.error.code, result.error.message) == ("TOOL_EXECUTION_FAILED", "connection refused")
    assert [one.message for one in here.of("unavailable")] == ["mcp:fs does not answer: connection refused"]


async def test_a_source_that_never_answered_has_no_tools_until_it_does(tmp_path: Path, opened: list[Here]) -> None:
    """Each task asks anew, and waits only for the first answer."""
    down = Listing(defined("fs/read"))
    down.down = True
    here = Here(tmp_path, down)
    opened.append(here)
    assert await here.router.fix({}) == {}
    assert await here.names() == []
    down.down = False
    assert await here.router.fix({}) == {}
    await here.listed(2)
    assert list(await here.router.fix({})) == ["mcp:fs"]
    assert [one.message for one in here.of("unavailable")] == ["mcp:fs does not answer: connection refused"]


async def test_a_source_that_does_not_answer_in_time_is_said_when_the_task_begins(
    tmp_path: Path, opened: list[Here]
) -> None:
    slow = Listing(defined("fs/read"))
    slow.may_answer.clear()
    here = Here(tmp_path, slow, connect_timeout_s=0.01)
    opened.append(here)
    assert await here.router.fix({}) == {}
    assert [one.message for one in here.told] == ["mcp:fs does not answer: it did not answer within 0.01 s"]
    slow.may_answer.set()
    await here.listed(2)
    assert list(await here.router.fix({})) == ["mcp:fs"]


async def test_a_change_takes_effect_with_the_next_task_and_is_told_then(tmp_path: Path, opened: list[Here]) -> None:
    source = Listing(defined("fs/read"), defined("fs/gone"))
    here = Here(tmp_path, source)
    opened.append(here)
    first = await here.router.fix({})
    source.tools = (defined("fs/read", "reads more"), defined("fs/new"))
    here.remote.begin()
    await here.listed(2)
    assert await here.names() == ["fs/read", "fs/gone"]
    assert not here.of("changed")
    second = await here.router.fix({})
    assert second != first
    assert await here.names() == ["fs/read", "fs/new"]
    (told,) = here.of("changed")
    assert (list(told.added), list(told.removed), list(told.changed)) == (["fs/new"], ["fs/gone"], ["fs/read"])
    # A task that a crash left has the tools that it began with.
    assert await here.router.fix(first) == first
    assert await here.names() == ["fs/read", "fs/gone"]


async def test_a_changed_tool_is_not_approved_until_somebody_says_so(tmp_path: Path, opened: list[Here]) -> None:
    source = Listing(defined("fs/read"))
    here = Here(tmp_path, source)
    opened.append(here)
    await here.router.fix({})
    assert here.kept.is_approved("fs/read", source.tools[0].identity)
    other = defined("fs/read", command={"type": "string"})
    source.tools = (other,)
    here.remote.begin()
    await here.listed(2)
    await here.router.fix({})
    assert not here.kept.is_approved("fs/read", other.identity)
    here.kept.approve("fs/read", other.identity)
    assert ToolLists(str(tmp_path / "state"), "mcp:fs here").is_approved("fs/read", other.identity)


async def test_tools_that_policy_does_not_list_are_not_registered(tmp_path: Path, opened: list[Here]) -> None:
    here = Here(tmp_path, Listing(defined("fs/read"), defined("other/x")))
    opened.append(here)
    await here.router.fix({})
    assert await here.names() == ["fs/read"]
    result = await here.router.execute(request("other/x"))
    assert result.error is not None
    assert result.error.code == "TOOL_NOT_FOUND"


async def test_a_session_that_hides_all_of_a_source_says_so_once_with_the_line_to_add(
    tmp_path: Path, opened: list[Here]
) -> None:
    here = Here(tmp_path, Listing(defined("fs/read")), admits="nothing")
    opened.append(here)
    await here.router.fix({})
    await here.router.fix({})
    (told,) = here.of("hidden")
    assert '{"name":"Mcp.Invoke","allowedToolNames":["fs/*"],"requiresApproval":true}' in told.message


async def test_another_place_under_the_same_name_is_another_source(tmp_path: Path, opened: list[Here]) -> None:
    opened.append(Here(tmp_path, Listing(defined("fs/read"))))
    await opened[0].router.fix({})
    down = Listing()
    down.down = True
    opened.append(Here(tmp_path, down, place="elsewhere"))
    assert await opened[1].router.fix({}) == {}


async def test_what_became_of_a_call_is_asked_of_its_source(tmp_path: Path, opened: list[Here]) -> None:
    here = Here(tmp_path, Listing(defined("fs/read"), defined("fs/write"), defined("fs/lost")))
    opened.append(here)
    await here.router.fix({})
    done = await here.router.outcome(request("fs/read"))
    assert done is not None
    assert (done.status, done.output_text) == ("succeeded", "it was done")
    assert await here.router.outcome(request("fs/write")) is None
    lost = await here.router.outcome(request("fs/lost"))
    assert lost is not None
    assert lost.error is not None
    assert lost.error.code == "TOOL_INTERRUPTED"
    assert await here.router.outcome(request("RunCommand", command="ls")) is None
    assert here.source.calls == []


def test_what_cannot_be_used_is_left_out_one_by_one_with_a_reason() -> None:
    remote = {"$ref": "https://evil.example/schema"}
    listed = usable(
        (
            defined("fs/good"),
            defined("fs/good"),
            defined("fs/bad name"),
            defined("fs/" + "x" * 300),
            defined("fs/fetches", properties={"a": remote}),
            Definition("fs/list", "d", {"type": "array"}),
            Definition("fs/answers", "d", OBJECT, remote),
        )
    )
    assert [one.name for one in listed.definitions] == ["fs/good"]
    reasons = {name[:10]: why for name, why in listed.rejected.items()}
    assert reasons["fs/good"] == "another tool has this name"
    assert "must lead into the schema itself" in reasons["fs/fetches"]
    assert "must lead into the schema itself" in reasons["fs/answers"]
    assert "not of an object" in reasons["fs/list"]
    assert len(listed.rejected) == 6


A = {"type": "string"}
B = {"type": "integer"}
OF_B = {"properties": {"b": B}, "required": ["b"]}


@pytest.mark.parametrize(
    ("schema", "offered"),
    [
        ({"properties": {"a": A}}, {"properties": {"a": A}}),
        (
            {"properties": {"a": A, "b": B}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
            {"properties": {"a": A, "b": B}},
        ),
        (
            {"oneOf": [{"properties": {"b": A, "c": A}, "required": ["b", "c"]}, OF_B]},
            {"properties": {"b": {"anyOf": [A, B]}, "c": A}, "required": ["b"]},
        ),
        (
            {"allOf": [{"required": ["a"]}, {"$ref": "#/$defs/b"}], "$defs": {"b": OF_B}},
            {"properties": {"b": B}, "required": ["a", "b"], "$defs": {"b": OF_B}},
        ),
        (
            {"additionalProperties": False, "not": {"required": ["a"]}, "anyOf": [{"properties": {"a": A}}]},
            {"additionalProperties": False},
        ),
    ],
)  # fmt: skip
def test_requests_offer_one_object_in_place_of_choices_at_the_top(schema: Any, offered: Any) -> None:
    """Gateways refuse a whole request for them. Calls are judged by the schema itself."""
    (tool,) = usable([Definition("fs/read", "d", schema)]).definitions
    spec = spec_of(tool, "Mcp.Invoke", elsewhere=False)
    assert definition_of(spec).input_schema == {"type": "object", **offered}
    assert spec.schema_to_check == {"type": "object", **schema}


def test_descriptions_are_cut_and_lose_what_nobody_sees() -> None:
    hidden = "Reads\u202e a file.\x1b[31m\U000e0041\U000e0042\nSecond line " + "x" * 10_000
    (one,) = usable((defined("fs/read", hidden),)).definitions
    assert one.description.startswith("Reads a file.[31m\nSecond line xxx")
    assert len(one.description) == MAX_DESCRIPTION_CHARS


def test_a_schema_hides_nothing_either() -> None:
    unseen = "\U000e0049\u202e\x1b[31m\U000e0132\ufe05"
    path = {"type": "string", "title": f"Path{unseen}", "description": f"The path ⚠\ufe0f{unseen}"}
    (one,) = usable((defined("fs/read", f"Reads{unseen}", properties={"description": path}),)).definitions
    shown = {"type": "string", "title": "Path[31m", "description": "The path ⚠\ufe0f[31m"}
    assert (one.description, one.input_schema["properties"]) == ("Reads[31m", {"description": shown})
    named = defined("fs/a", properties={f"x{unseen}": {"type": "string"}})
    valued = defined("fs/b", properties={"enum": {"enum": [f"x{unseen}"]}})
    found = usable((named, valued))
    assert (found.definitions, list(found.rejected)) == ((), ["fs/a", "fs/b"])
    assert all(reason.isascii() and "are not seen" in reason for reason in found.rejected.values())


def test_names_and_values_of_a_schema_stay_as_they_are() -> None:
    hindi, family = "क्\u200dष", "👨\u200d👩\u200d👧"
    fields: dict[str, Any] = {
        hindi: {"enum": ["\n", "\r\n", "\ufeff", "\x1b[31m"], "default": {"description": "\r\n"}},
        "enum": {"type": "string", "examples": [family], "markdownDescription": "one\u202etwo"},
    }
    (one,) = usable((defined("fs/a", properties=fields),)).definitions
    fields["enum"]["markdownDescription"] = "onetwo"
    assert one.input_schema["properties"] == fields


def test_a_source_with_too_many_tools_keeps_the_first() -> None:
    listed = usable(defined(f"fs/t{number}") for number in range(MAX_TOOLS + 5))
    assert (len(listed.definitions), len(listed.rejected)) == (MAX_TOOLS, 5)


@pytest.mark.parametrize("damage", [b"", b"{", b'{"source": 1}', b'{"source": "other"}'])
def test_damaged_files_are_as_if_they_were_not_there(tmp_path: Path, damage: bytes) -> None:
    kept = ToolLists(str(tmp_path), "mcp:fs here")
    definition = defined("fs/read")
    shapes = [definition.to_json()]
    kept.keep("0" * 64, shapes)
    assert kept.read("0" * 64) is None  # its name is not its hash
    for path in (tmp_path / "tool-lists").glob("*/*"):
        path.write_bytes(damage)
    assert (kept.newest(), kept.list_in_use(), kept.read("0" * 64)) == (None, None, None)


async def test_a_known_source_is_asked_later_or_with_the_first_call(tmp_path: Path, opened: list[Here]) -> None:
    first = Here(tmp_path, Listing(defined("fs/read")), ask_after_s=3600)
    opened.append(first)
    await first.router.fix({})  # nothing is known of it
    assert (await first.names(), first.source.asked) == (["fs/read"], 1)
    second = Here(tmp_path, Listing(defined("fs/read"), defined("fs/write")), ask_after_s=3600)
    opened.append(second)
    await second.router.fix({})
    assert (await second.names(), second.source.asked) == (["fs/read"], 0)
    assert (await second.router.execute(request("fs/read"))).status == "succeeded"
    await second.listed()
    assert (second.source.asked, second.of("listed")[0].tool_count) == (1, 2)
    second.source.tools = (defined("fs/read"),)
    second.remote.begin()  # its source says that its tools have changed
    await second.listed(times=2)


@pytest.mark.parametrize("down", [False, True])
async def test_a_source_that_reports_a_change_with_each_list_is_listed_with_growing_pauses(
    tmp_path: Path, *, down: bool
) -> None:
    pauses: list[float] = []
    paused, ended = asyncio.Event(), asyncio.Event()

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 8:
            paused.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

    source = Listing(defined("fs/read"))
    source.down = down
    here = Here(tmp_path, source, pause=pause)
    source.on_list = here.remote.begin
    async with asyncio.timeout(10):
        assert list(await here.router.fix({})) == ([] if down else ["mcp:fs"])
        await paused.wait()
        await here.router.aclose()
    assert (pauses, ended.is_set()) == ([0.5, 1, 2, 4, 8, 16, 30, 30], True)
    assert [one.kind for one in here.told] == ["unavailable" if down else "listed"]
    here.remote.begin()  # its last message comes after the end
    assert source.asked == 8
    assert here.remote._asking is not None
    assert here.remote._asking.done()


async def test_a_task_waits_for_the_first_list_only(tmp_path: Path, opened: list[Here]) -> None:
    source = Listing(defined("fs/read"))
    here = Here(tmp_path, source)
    opened.append(here)

    def hang() -> None:
        if source.asked == 1:
            here.remote.begin()
        else:
            source.may_answer.clear()

    source.on_list = hang
    async with asyncio.timeout(10):
        assert list(await here.router.fix({})) == ["mcp:fs"]
    assert not here.of("unavailable")


async def test_a_list_is_reported_if_it_differs_from_the_last(tmp_path: Path, opened: list[Here]) -> None:
    source = Listing(defined("fs/read"))
    lists = iter([(defined("fs/read"),), (defined("fs/read", "other"),), (defined("fs/read", "other"),), ()])
    here = Here(tmp_path, source, pause=lambda _: asyncio.sleep(0))
    opened.append(here)

    def change() -> None:
        source.tools = next(lists)
        if source.tools:
            here.remote.begin()

    source.on_list = change
    await here.listed(3)
    assert [one.tool_count for one in here.of("listed")] == [1, 1, 0]
    assert source.asked == 4


async def test_a_tool_named_like_a_built_in_is_the_servers(tmp_path: Path, opened: list[Here]) -> None:
    """The name of its server stands in front of it, and another name of a server in front changes nothing."""
    here = Here(tmp_path, Listing(defined("fs/ReadFile"), defined("fs/ReadFile/ReadFile"), defined("fs/DeleteFile")))
    opened.append(here)
    await here.router.fix({})
    assert await here.names() == ["fs/ReadFile", "fs/ReadFile/ReadFile", "fs/DeleteFile"]
    names = [spec.name for spec in await here.router.tools()]
    assert len(names) == len(set(names))
    assert len({sendable_name(name) for name in names}) == len(names)
    (tmp_path / "a").write_text("of the file")
    own = ToolRequest("ReadFile", {"path": str(tmp_path / "a")}, "s", "t", "st", "c", "File.Read")
    assert "of the file" in ((await here.router.execute(own)).output_text or "")
    assert here.source.calls == []
    assert (await here.router.execute(request("fs/ReadFile", path="a"))).output_text == "d done"
    assert here.source.calls == [{"tool": "fs/ReadFile", "path": "a"}]
