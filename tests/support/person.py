"""Somebody who is asked for approvals: a gate of their own in a session that is otherwise the program's.

    python -m tests.support.person WORD KILL_AFTER_RECORD PROMPT GATEWAY POLICY

runs (or with an empty PROMPT resumes) session "s" in the working directory. The process prints the result object.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Any, Literal

import orjson

from agent_host.approval import ApprovalAnswer
from agent_host.faults.crash import kill_after_record
from agent_host.host.opening import SessionOpener
from agent_host.host.sessions import run_headless
from agent_host.session.opening import ResolvedOptions
from config.load import load

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent_host.approval import ApprovalRequest, Scope
    from agent_host.events.emitter import Sink
    from agent_host.host.records import Result

Word = Literal["silent", "no", "once", "task", "session", "edits", "late"]
SESSION = "s"
REASONS = {
    "no": "not today",
    "once": "this time",
    "task": "for now",
    "session": "as often as you like",
    "edits": "rather so",
    "late": "too late",
}


class Person:
    """Says the same to everything: no, yes as far as `word` says, yes with "person" where an argument has "model", or
    nothing at all; or is late, as if the time were over. `asked` is what came."""

    def __init__(self, word: Word) -> None:
        self._word = word
        self.asked: list[ApprovalRequest] = []

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        """The answer, or a wait without end."""
        self.asked.append(request)
        answer = await self.answer()
        return answer._replace(arguments=edited(request.arguments)) if self._word == "edits" else answer

    async def answer(self) -> ApprovalAnswer:
        """What they say to everything."""
        if self._word == "silent":
            await asyncio.Event().wait()
        scope: Scope = "task" if self._word == "task" else "session" if self._word == "session" else "once"
        late = self._word == "late"
        return ApprovalAnswer(self._word != "no" and not late, REASONS[self._word], scope=scope, timed_out=late)


def edited(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What a person who edits makes of `arguments`."""
    return {
        name: value.replace("model", "person") if isinstance(value, str) else value for name, value in arguments.items()
    }


def resolved_options(gateway: str, policy: str, *, workspace: str, state_dir: str) -> ResolvedOptions:
    """A session with this policy and the user's configuration."""
    flags = {"llm.gateway": gateway, "host.policy": policy}
    return ResolvedOptions(load(flags, workspace=workspace), flags, workspace, state_dir, SESSION)


async def drive(start: ResolvedOptions, prompt: str | None, person: Person, sinks: Sequence[Sink] = ()) -> Result:
    """One task to its end, or on with it."""
    opener = SessionOpener(start, gate=lambda _: person, watch=lambda _: sinks)
    return await run_headless(opener, start, prompt)


async def _main(word: Word, prompt: str, gateway: str, policy: str) -> None:
    start = resolved_options(gateway, policy, workspace=os.getcwd(), state_dir=os.environ["AGENT_HOST_STATE_DIR"])
    finished = await drive(start, prompt or None, Person(word))
    sys.stdout.buffer.write(orjson.dumps(finished.details, option=orjson.OPT_APPEND_NEWLINE))


if __name__ == "__main__":
    said, kill_after, *others = sys.argv[1:]
    if int(kill_after):
        kill_after_record(int(kill_after))
    asyncio.run(_main(said, *others))  # type: ignore[arg-type]  # the word is one of the test's
