"""Calls that wait at the desk, and the first answer that counts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent_host.approval import ApprovalAnswer, ApprovalRequest, form_of
from agent_host.approval.gate import InAdvance, PendingApprovals
from tests.unit.approval.test_grants import request

FOREVER, AT_ONCE = 3600.0, 0.001


async def waits(desk: PendingApprovals, *ids: str) -> list[asyncio.Task[ApprovalAnswer]]:
    """One call a given id that waits for its answer."""
    asked = [asyncio.ensure_future(desk.ask(request(approval_id=one))) for one in ids]
    await asyncio.sleep(0)
    return asked


def ids(desk: PendingApprovals) -> list[str]:
    return [row["approvalId"] for row in desk.rows()]


async def test_a_decision_reaches_its_call_and_no_other() -> None:
    desk = PendingApprovals(timeout_s=FOREVER)
    first, second = await waits(desk, "a", "b")
    assert ids(desk) == ["a", "b"]
    assert desk.decide("b", approved=True, scope="task", reason="go on") == "delivered"
    assert ids(desk) == ["a"]
    assert await second == ApprovalAnswer(True, "go on", scope="task", answered_by="client")
    assert desk.decide("a", approved=False, scope="session") == "delivered"
    assert await first == ApprovalAnswer(False, "denied by the user", answered_by="client")
    assert desk.rows() == []


async def test_what_waits_is_told_as_it_was_asked() -> None:
    desk = PendingApprovals(timeout_s=FOREVER)
    (asked,) = await waits(desk, "a")
    assert desk.rows() == [
        {**request(approval_id="a").to_payload(), "sessionId": "s", "taskId": "t1", "stepId": "step_1"}
    ]
    asked.cancel()


async def test_unknown_late_and_double_decisions_find_nothing() -> None:
    desk = PendingApprovals(timeout_s=FOREVER)
    assert desk.decide("a", approved=True) == "not_found"
    (asked,) = await waits(desk, "a")
    assert desk.decide("a", approved=False) == "delivered"
    assert desk.decide("a", approved=True) == "not_found"  # before the call has seen the first
    assert (await asked).approved is False
    assert desk.decide("a", approved=True) == "not_found"


async def test_nobody_answers_in_time() -> None:
    desk = PendingApprovals(timeout_s=AT_ONCE)
    (asked,) = await waits(desk, "a")
    answer = await asked
    assert answer == ApprovalAnswer(False, "approval timed out after 0.001 s", timed_out=True)
    assert desk.decide("a", approved=True) == "not_found"


async def test_a_bundle_may_say_how_long_is_waited() -> None:
    desk = PendingApprovals(timeout_s=FOREVER)
    answer = await desk.ask(request(timeout_s=AT_ONCE))
    assert answer == ApprovalAnswer(False, "approval timed out after 0.001 s", timed_out=True)


@pytest.mark.parametrize("desk_says", [InAdvance(frozenset({"shell"})), InAdvance(everything=True)])
async def test_what_was_approved_in_advance_does_not_wait(desk_says: InAdvance) -> None:
    desk = PendingApprovals(timeout_s=FOREVER, in_advance=desk_says)
    assert (await desk.ask(request())).approved


async def test_without_a_client_a_call_waits_without_end() -> None:
    desk = PendingApprovals(timeout_s=AT_ONCE)
    (first,) = await waits(desk, "a")
    desk.suspend()
    (second,) = await waits(desk, "b")
    await asyncio.wait([first, second], timeout=AT_ONCE * 20)
    assert ids(desk) == ["a", "b"]
    desk.attend()
    assert [(await one).timed_out for one in (first, second)] == [True, True]


async def test_a_decision_of_a_client_that_came_back_counts() -> None:
    desk = PendingApprovals(timeout_s=FOREVER)
    (asked,) = await waits(desk, "a")
    desk.suspend()
    desk.attend()
    assert desk.decide("a", approved=True) == "delivered"
    assert (await asked).approved


async def test_a_call_that_was_given_up_is_not_found() -> None:
    desk = PendingApprovals(timeout_s=FOREVER)
    (asked,) = await waits(desk, "a")
    asked.cancel()
    await asyncio.wait([asked])
    assert (desk.rows(), desk.decide("a", approved=True)) == ([], "not_found")
    (again,) = await waits(desk, "a")
    assert desk.decide("a", approved=True) == "delivered"
    assert (await again).approved


async def test_one_approval_is_asked_for_once_at_a_time() -> None:
    desk = PendingApprovals(timeout_s=FOREVER)
    (asked,) = await waits(desk, "a")
    with pytest.raises(RuntimeError, match="waits for its answer already"):
        await desk.ask(request(approval_id="a"))
    assert ids(desk) == ["a"]
    asked.cancel()


async def test_edited_arguments_are_a_copy() -> None:
    desk = PendingApprovals(timeout_s=FOREVER)
    (asked,) = await waits(desk, "a")
    edited: dict[str, Any] = {"command": "ls", "env": {"A": "1"}}
    assert desk.decide("a", approved=True, arguments=edited) == "delivered"
    edited["env"]["A"] = "2"
    assert (await asked).arguments == {"command": "ls", "env": {"A": "1"}}


async def test_a_denial_takes_no_arguments() -> None:
    desk = PendingApprovals(timeout_s=FOREVER)
    (asked,) = await waits(desk, "a")
    assert desk.decide("a", approved=False, arguments={"command": "ls"}) == "delivered"
    assert (await asked).arguments is None


@pytest.mark.parametrize("value", ["\ud800", 2**70, object()])
async def test_arguments_that_no_record_holds_are_refused(value: object) -> None:
    desk = PendingApprovals(timeout_s=FOREVER)
    (asked,) = await waits(desk, "a")
    with pytest.raises(ValueError, match="cannot be put on record"):
        desk.decide("a", approved=True, arguments={"command": value})
    assert ids(desk) == ["a"]
    asked.cancel()


async def test_a_reason_is_bounded_and_can_be_recorded() -> None:
    desk = PendingApprovals(timeout_s=FOREVER)
    (asked,) = await waits(desk, "a")
    desk.decide("a", approved=False, reason="\ud800" + "x" * 9999)
    assert (await asked).reason == "?" + "x" * 1999


async def test_a_form_is_answered_by_what_fits_it() -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    form = form_of("mcp:odd", "Who?", schema, None, str)
    desk = PendingApprovals(timeout_s=FOREVER, in_advance=InAdvance(frozenset({"RunCommand"}), everything=True))
    asked = asyncio.ensure_future(desk.ask(request(approval_id="a", form=form)))
    await asyncio.sleep(0)
    assert desk.tool_of("a") is None  # its arguments are not those of the tool
    with pytest.raises(ValueError, match="name is missing"):
        desk.decide("a", approved=True)
    with pytest.raises(ValueError, match="name must be a string"):
        desk.decide("a", approved=True, arguments={"name": 1})
    assert desk.decide("a", approved=True, arguments={"name": "Ada"}) == "delivered"
    assert (await asked).arguments == {"name": "Ada"}


# A prompt beside the answers from outside


async def test_a_prompt_that_is_faster_answers_as_the_client() -> None:
    async def prompt(_: ApprovalRequest) -> ApprovalAnswer:
        return ApprovalAnswer(True, "at the terminal")

    pending = PendingApprovals(timeout_s=0.001, prompt=prompt)
    answer = await pending.ask(request(approval_id="a"))
    assert answer == ApprovalAnswer(True, "at the terminal", answered_by="client")
    assert pending.answer_to("a") == answer
    assert pending.decide("a", approved=False) == "not_found"


@pytest.mark.parametrize("nobody", [{"timed_out": True}, {"unattended": True}])
async def test_a_prompt_that_nobody_answered_has_no_face(nobody: dict[str, Any]) -> None:
    async def prompt(_: ApprovalRequest) -> ApprovalAnswer:
        return ApprovalAnswer(False, "late", **nobody)

    assert (await PendingApprovals(timeout_s=1, prompt=prompt).ask(request(approval_id="a"))).answered_by is None


async def test_a_prompt_is_told_that_somebody_was_faster() -> None:
    told: list[tuple[object, ...]] = []

    async def prompt(_: ApprovalRequest) -> ApprovalAnswer:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            told.append(error.args)
            raise
        raise AssertionError("nobody sets it")

    opened: list[tuple[PendingApprovals, str]] = []
    pending = PendingApprovals(timeout_s=0.001, prompt=prompt, on_asked=lambda *by: opened.append(by))
    question = asyncio.ensure_future(pending.ask(request(approval_id="a")))
    assert (await PendingApprovals(timeout_s=AT_ONCE).ask(request(approval_id="c"))).timed_out, (
        "the time is the prompt's"
    )
    assert opened == [(pending, "s")]
    assert pending.decide("a", approved=True, scope="task", answered_by="command") == "delivered"
    assert (await question).answered_by == "command"
    given_up = asyncio.ensure_future(pending.ask(request(approval_id="b")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    assert told == [("approved elsewhere: approved by the user",), ()]
    assert (pending.rows(), pending.answer_to("b")) == ([], None)


async def test_a_fault_of_a_prompt_is_not_swallowed() -> None:
    async def prompt(_: ApprovalRequest) -> ApprovalAnswer:
        raise ZeroDivisionError

    pending = PendingApprovals(timeout_s=1, prompt=prompt)
    with pytest.raises(ZeroDivisionError):
        await pending.ask(request(approval_id="a"))
    assert pending.rows() == []
