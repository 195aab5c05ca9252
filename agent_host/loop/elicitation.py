"""Elicitation: an MCP server asks the person during a call (TR 9), through the gate that approvals use.

The answer goes to another program, so it must contain no secret, and it is not recorded: a call interrupted by a crash
is not sent again with it. If no person is present, the server gets a refusal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_host.approval import ApprovalAnswer, ApprovalRequest, UnusableForm, form_of
from agent_host.contracts import PersonAnswer
from agent_host.display_text import one_line
from agent_host.events import EventType
from agent_host.loop.calls import emit_answer
from agent_host.loop.progress import TaskCancelled

if TYPE_CHECKING:
    from agent_host.approval import Form
    from agent_host.contracts import PersonAsked, ToolRequest
    from agent_host.loop import LoopContext

_SENT = "what is answered is sent to another program: give it no passwords, tokens or other secrets"
_OPENED = "nothing opens the page by itself, and another program chose it: look at its host first"
_OVER = "the call was over before anybody answered"


async def ask_person(ctx: LoopContext, request: ToolRequest, asked: PersonAsked) -> PersonAnswer:
    """Return the person's answer to a question that a server asks while `request` runs. Raises nothing but
    cancellation."""
    try:
        form = form_of(asked.source, asked.message, asked.schema, asked.url, ctx.scrubber.text)
    except UnusableForm as error:
        return PersonAnswer("decline", problem=f"this question cannot be displayed: {error}")
    approval = _request(ctx, request, form)
    started = ctx.outside.monotonic()
    call_id, step_id = request.tool_call_id, request.step_id
    ctx.emit(EventType.APPROVAL_REQUESTED, step_id, toolCallId=call_id, **approval.to_payload())
    ctx.emitter.flush()
    answer = over = ApprovalAnswer(False, _OVER)
    try:
        answer = await ctx.cancellation.interruptible(ctx.gate.ask(approval))
        answer = _check(ctx, form, answer)
    except TaskCancelled:
        pass  # the call itself is over at its own next safe point
    finally:
        waited_s = ctx.outside.monotonic() - started
        emit_answer(
            ctx, step_id, call_id, approval.approval_id, answer._replace(scope="once"), waited_s, isQuestion=True
        )
    if answer.approved:
        return PersonAnswer("accept", None if form.url is not None else dict(answer.arguments or {}))
    return PersonAnswer("decline" if answer is not over and answer.is_denial else "cancel")


def _request(ctx: LoopContext, request: ToolRequest, form: Form) -> ApprovalRequest:
    return ApprovalRequest(
        ctx.outside.new_id("appr"),
        ctx.session_id,
        request.task_id,
        request.step_id,
        request.tool_name,
        request.capability,
        {},
        f"{form.source} asks you",
        form.message,
        None,
        "medium",
        (_SENT if form.url is None else _OPENED,),
        one_line(form.message),
        {"toolCallId": request.tool_call_id, **form.to_json()},
        timeout_s=ctx.judge.approval_timeout_s,
        form=form,
    )


def _check(ctx: LoopContext, form: Form, answer: ApprovalAnswer) -> ApprovalAnswer:
    if not answer.approved:
        return answer
    content = dict(answer.arguments or {})
    wrong = form.problem(content)
    if wrong is not None:
        return ApprovalAnswer(False, f"the answer does not fit the question, and was not sent: {wrong}")
    if ctx.scrubber.value(content) != content:
        return ApprovalAnswer(False, "the answer contains a secret, and was not sent")
    return answer
