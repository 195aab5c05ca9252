"""One task from start to end, in a session of its own.

A program that embeds the host stays as it is: nothing is read from its environment but configuration, no signal handler
is set, and what commands leave behind is ended with the session, not with the process.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from agent_host.api.callbacks import gate_of, sinks_of
from agent_host.api.options import LayeredOptions, SessionOptions
from agent_host.api.results import Result, result_of
from agent_host.api.sessions import Session, checked_prompt, tokens_of
from agent_host.app.headless import run_headless
from agent_host.app.secrets import Tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent_host.api.callbacks import Approve, OnEvent
    from agent_host.app.headless import Finished
    from agent_host.approval.gate import ApprovalGate
    from agent_host.events.emitter import Sink
    from agent_host.session.lifecycle import Session as OpenSession
    from agent_host.session.opening import ResolvedOptions
    from tool_runtime.families.python_tools import PythonTool

OnOpen = Callable[[Session], object]
"""Takes the session of a task once it is open, before the task begins."""
OnResult = Callable[[Result], object]
"""Takes the result while the session is still on record: a process that ends before that resumes to the same result."""


async def run_task(
    prompt: str,
    options: SessionOptions | None = None,
    *,
    approve: Approve | None = None,
    on_event: OnEvent | None = None,
    on_open: OnOpen | None = None,
    on_result: OnResult | None = None,
) -> Result:
    """Start a session, run one task in it to its end, and end the session.

    Without `approve` nobody is there to be asked: what needs an approval that `options` do not give is denied.
    `on_open` gets the session, which can be interrupted or cancelled, and `on_result` the result while the session is
    still on record. Cancelling leaves the session resumable. Raises AgentHostError for what keeps the session from
    starting; everything later is in the result.
    """
    options = options or SessionOptions()
    resolved = LayeredOptions(options).new()
    return await _run(resolved, checked_prompt(prompt), options, approve, on_event, on_open, on_result)


async def resume_task(
    session_id: str,
    options: SessionOptions | None = None,
    *,
    prompt: str | None = None,
    approve: Approve | None = None,
    on_event: OnEvent | None = None,
    on_open: OnOpen | None = None,
    on_result: OnResult | None = None,
) -> Result:
    """Go on with the task of a session that another process left, to its end; see `run_task`. With `prompt` go on with
    a session whose last task is over, one that has ended included: it is the next task. Raises SessionNotFound,
    SessionHeld, CheckpointUnreadable and what `run_task` raises."""
    options = options or SessionOptions()
    source = LayeredOptions(options)
    if prompt is not None:
        prompt = checked_prompt(prompt)
    resolved = source.resumed(session_id, ended_too=prompt is not None)
    return await _run(resolved, prompt, options, approve, on_event, on_open, on_result, resumes=True)


async def run_to_end(
    resolved: ResolvedOptions,
    prompt: str | None,
    *,
    resumes: bool,
    sinks: Sequence[Sink],
    on_open: OnOpen,
    on_result: OnResult,
    approve: Approve | None = None,
) -> Result:
    """Inner; for a process that is the program's own, which takes the tokens out of its environment: `prompt` in a new
    session, or as `resumes` has it the next task, or the open one, of the session that `resolved` names. Raises what
    `run_task` raises."""
    return await _drive(
        resolved,
        prompt,
        resumes=resumes,
        tokens=Tokens.taken(),
        owns_process=True,
        gate=gate_of(resolved, approve),
        sinks=sinks,
        on_open=on_open,
        on_result=on_result,
    )


async def _drive(
    resolved: ResolvedOptions,
    prompt: str | None,
    *,
    resumes: bool,
    tokens: Tokens,
    owns_process: bool,
    gate: ApprovalGate,
    sinks: Sequence[Sink],
    on_open: OnOpen | None,
    on_result: OnResult | None,
    tools: Sequence[PythonTool] = (),
) -> Result:
    """`prompt` in a new session; with `resumes` in the one of `resolved`, or None for its open task."""

    def opened(session: OpenSession) -> None:
        if on_open is not None:
            on_open(Session(session, resolved))

    def ended(finished: Finished) -> None:
        if on_result is not None:
            on_result(_result(finished))

    return _result(
        await run_headless(
            resolved,
            prompt,
            resumes=resumes,
            sinks=sinks,
            on_open=opened,
            on_end=ended,
            gate=gate,
            tokens=tokens,
            owns_process=owns_process,
            tools=tools,
        )
    )


async def _run(
    resolved: ResolvedOptions,
    prompt: str | None,
    options: SessionOptions,
    approve: Approve | None,
    on_event: OnEvent | None,
    on_open: OnOpen | None,
    on_result: OnResult | None,
    *,
    resumes: bool = False,
) -> Result:
    result = await _drive(
        resolved,
        prompt,
        resumes=resumes,
        tokens=tokens_of(options),
        owns_process=options.guard_processes,
        tools=tuple(options.tools),
        gate=gate_of(resolved, approve),
        sinks=sinks_of(on_event),
        on_open=on_open,
        on_result=on_result,
    )
    await asyncio.sleep(0)  # for the events of the end
    return result


def _result(finished: Finished) -> Result:
    unfinished = finished.end.resumable
    return result_of(
        finished.result,
        message=finished.end.message,
        records=finished.records,
        unfinished=unfinished,
        resumable=(unfinished or bool(finished.result["deniedApprovals"])) and os.path.isdir(finished.records),
    )
