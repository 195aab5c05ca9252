"""An approval is for the real directory or file that was asked about, also when a link on the way is moved since."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.faults.disk import SimulatedDisk
from state.records import JournalRecord, TurnTaken
from tests.support.loop import Loop
from tests.support.loop_crashes import killed_before, resumed
from tests.support.loop_parts import NO, Person, bundle, call, calls, do, says, says_yes, write
from tests.support.task_runner import ended, work_on

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.approval import ApprovalRequest
    from agent_host.approval.gate import ApprovalGate
    from agent_host.contracts import ToolRequest, ToolResult
    from agent_host.llm import ModelTurn
    from agent_host.thread.messages import ToolCall

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links are for administrators there")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """`one`, `two`, and `link`, which leads to the first."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    lead(tmp_path, "one")
    return tmp_path


def lead(place: Path, name: str, link: str = "link") -> None:
    """Have the link lead elsewhere."""
    spare = place / "spare"
    spare.symlink_to(name)
    spare.replace(place / link)


def make(cwd: str | os.PathLike[str]) -> ToolCall:
    return call("RunCommand", command="make", cwd=os.fspath(cwd))


def asking(place: Path, gate: ApprovalGate | None, *turns: ModelTurn, **more: Any) -> Loop:
    policy = bundle(place, asks=["Shell.Exec", "File.Write"])
    return Loop(place, *turns, says(), gate=gate, policy=policy, **more)


def for_the_session() -> Person:
    return Person(lambda _: {"approved": True, "scope": "session"})


# A grant


async def test_a_grant_for_a_link_is_none_for_where_the_link_leads_later(place: Path) -> None:
    person = for_the_session()
    loop = asking(place, person, calls(make("link")), calls(make("link")))
    loop.tools.run = lambda request: moved(place, request)
    await loop.run()
    assert [question.details["cwd"] for question in person.asked] == [f"{loop.folder}/one", f"{loop.folder}/two"]


def moved(place: Path, request: ToolRequest) -> ToolResult:
    lead(place, "two")
    return do(request)


async def test_a_grant_holds_for_the_same_directory_under_each_of_its_names(place: Path) -> None:
    person = for_the_session()
    lead(place, "link", link="further")
    names: list[str | Path] = ["link", "one", "further", place / "one", "two/../link/", f"/{place}/link/."]
    loop = asking(place, person, *(calls(make(name)) for name in names))
    await loop.run()
    assert (len(person.asked), len(loop.tools.ran)) == (1, len(names))


async def test_a_grant_is_not_used_where_the_link_moves_before_the_call_starts(place: Path) -> None:
    person = for_the_session()
    loop = asking(place, person, calls(make("link")), calls(make("link")), calls(make("two")))
    moves_at_turn(loop, place, 2)
    await loop.run()
    assert [question.details["cwd"] for question in person.asked] == [f"{loop.folder}/one", f"{loop.folder}/two"]
    assert [request.arguments["cwd"] for request in loop.tools.requests] == ["link", "two"]
    refused = loop.answers()[1]
    assert (refused.code, loop.finished()[1][1]) == ("APPROVAL_REQUIRED", "denied")
    assert all(f"{loop.folder}/{name}" in refused.text for name in ("one", "two"))
    assert loop.ctx.task.denied == [], "somebody is there who can be asked again"


def moves_at_turn(loop: Loop, place: Path, number: int) -> None:
    """The link leads elsewhere just when a turn goes on record: its calls are judged, and none has started."""
    turns: list[JournalRecord] = []
    append = loop.ctx.journal.store.append

    def noted(record: JournalRecord) -> None:
        append(record)
        turns.extend([record] * isinstance(record, TurnTaken))
        if isinstance(record, TurnTaken) and len(turns) == number:
            lead(place, "two")

    loop.ctx.journal.store.append = noted  # type: ignore[method-assign]  # a place to look from


async def test_a_grant_for_a_file_is_not_used_where_the_call_before_it_moves_the_link(place: Path) -> None:
    def first_moves(request: ToolRequest) -> ToolResult:
        result = do(request)
        if request.arguments["content"] == "2":
            lead(place, "two")
        return result

    path = place / "link" / "a"
    loop = asking(place, for_the_session(), calls(write(path, "1")), calls(write(path, "2"), write(path, "3")))
    loop.tools.run = first_moves
    await loop.run()
    assert ((place / "one" / "a").read_text(), (place / "two" / "a").exists()) == ("2", False)
    assert [answer.code for answer in loop.answers()] == ["ok", "ok", "APPROVAL_REQUIRED"]


async def test_a_directory_whose_name_is_not_utf_8_can_be_approved(place: Path) -> None:
    strange = os.fsencode(place) + b"/\xff"
    try:
        os.mkdir(strange)
    except OSError:
        pytest.skip("this file system takes only UTF-8")
    lead(place, os.fsdecode(strange))
    person = for_the_session()
    loop = asking(place, person, calls(make("link")), calls(make("link")), calls(make("one")))
    await loop.run()
    assert (len(person.asked), len(loop.tools.ran)) == (2, 3)
    following = await denied(place, make("link"))
    assert (await approved(following)).tools.ran == ["make"]


# One call


@pytest.mark.parametrize("wanted", ["command", "file"])
async def test_what_is_moved_while_somebody_thinks_is_not_what_was_approved(place: Path, wanted: str) -> None:
    def move_and_approve(_: ApprovalRequest) -> dict[str, Any]:
        lead(place, "two")
        return {"approved": True}

    one = make("link") if wanted == "command" else write(place / "link" / "a", "1")
    loop = asking(place, Person(move_and_approve), calls(one))
    await loop.run()
    assert loop.tools.requests == []
    (answer,) = loop.answers()
    assert answer.code == "APPROVAL_REQUIRED"
    assert all(f"{loop.folder}/{name}" in answer.text for name in ("one", "two"))


@pytest.mark.parametrize("wanted", ["command", "file"])
async def test_an_approval_on_record_is_asked_for_again_where_the_link_was_moved(place: Path, wanted: str) -> None:
    disk, person = SimulatedDisk(), Person(lambda _: NO)
    one = make("link") if wanted == "command" else write(place / "link" / "a", "1")
    loop = asking(place, says_yes(), calls(one), disk=disk)
    sessions = await killed_before(loop, disk, "call_started")
    lead(place, "two")
    following = await resumed(Loop(place, sessions=sessions, policy=loop.ctx.judge.bundle), gate=person)
    assert (following.tools.requests, len(person.asked)) == ([], 1)


# A replay


async def denied(place: Path, *wanted: ToolCall) -> Loop:
    """A process after a task whose calls were denied since nobody was there."""
    loop = asking(place, None, calls(*wanted))
    await loop.run()
    assert len(loop.ctx.task.denied) == len(wanted)
    return loop


async def approved(loop: Loop) -> Loop:
    """The process that was told to run all of the denied calls."""
    following = loop.again(says("Done now."))
    work, task = work_on(following), following.ctx.task
    from agent_host.session.reports import denied_approvals

    rows = denied_approvals(task, following.ctx.state.thread, "s")
    work.continue_task(replay_ids={row["replay"]["id"] for row in rows}, more_steps=5)
    await ended(work)
    return following


@pytest.mark.parametrize("wanted", ["command", "file"])
async def test_a_replay_is_refused_where_the_link_was_moved_since_the_question(place: Path, wanted: str) -> None:
    one = make("link") if wanted == "command" else write(place / "link" / "a", "1")
    loop = await denied(place, one)
    lead(place, "two")
    second = await approved(loop)
    assert (second.tools.requests, second.answers()[-1].code) == ([], "APPROVAL_REQUIRED")
    assert all(f"{loop.folder}/{name}" in second.answers()[-1].text for name in ("one", "two"))
    assert len(second.ctx.task.denied) == 1, "it can be approved for where it leads now"
    third = await approved(second)
    assert (len(third.tools.requests), third.ctx.task.denied) == (1, [])


async def test_a_replay_runs_where_another_link_leads_to_the_same_directory_by_now(place: Path) -> None:
    loop = await denied(place, make("link"))
    lead(place, "../" + place.name + "/one")
    assert (await approved(loop)).tools.ran == ["make"]


async def test_of_a_call_that_was_asked_about_twice_the_last_question_counts(place: Path) -> None:
    loop = asking(place, None, calls(make("link")), calls(make("link")))
    moves_at_turn(loop, place, 1)
    await loop.run()
    assert (await approved(loop)).tools.ran == ["make"]


async def test_a_replay_of_an_earlier_version_runs_without_a_place_on_record(place: Path) -> None:
    loop = await denied(place, make("link"))
    for row in loop.ctx.task.denied:
        del row["replay"]["place"]
    assert (await approved(loop)).tools.ran == ["make"]


async def test_what_is_no_place_is_replayed_as_before(place: Path) -> None:
    policy = bundle(place, asks=["Network.Http", "Workspace.Upload"])
    wanted = [call("HttpRequest", url="https://example.com/a"), call("UploadArtifact", content="a", name="n")]
    loop = Loop(place, calls(*wanted), says(), policy=policy)
    await loop.run()
    assert all("place" not in row["replay"] for row in loop.ctx.task.denied)
    assert len((await approved(loop)).tools.requests) == 2
