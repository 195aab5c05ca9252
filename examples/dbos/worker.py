"""A session of agent-host as a step of DBOS, which runs steps at least once: the session's journal makes it one session.

    pip install dbos agent-host
    python worker.py task-1 "Make the tests pass" --workspace project --policy ci

Kill it at any moment, also with `kill -9`, and run the same command: the session goes on, and no effect is done twice.
"""

import json
import os
import shlex
import subprocess
import sys
import time

from dbos import DBOS, SetWorkflowID

PROGRAM = shlex.split(os.environ.get("AGENT_HOST", "agent-host"))
UNUSABLE = 2
HELD = 75


class Unfinished(RuntimeError):
    """The infrastructure ended the session, and the next attempt resumes it."""


def is_unfinished(error: BaseException) -> bool:
    """Another attempt can help."""
    return isinstance(error, Unfinished)


@DBOS.step(retries_allowed=True, max_attempts=5, interval_seconds=2, should_retry=is_unfinished)
def run_session(session_id: str, prompt: str, options: list[str]) -> dict:
    """Start the session, resume it, or repeat its stored result: whichever its journal says."""
    command = [*PROGRAM, "run", "-", "--session-id", session_id, "--or-resume", "--output", "json", *options]
    while True:
        ended = subprocess.run(command, input=prompt, capture_output=True, text=True)
        if ended.returncode != HELD:
            break
        time.sleep(1)  # the process of a worker that has died still runs the session
    if ended.returncode == UNUSABLE:
        raise ValueError(ended.stderr.strip())
    try:
        result = json.loads(ended.stdout)
    except ValueError:
        raise Unfinished(f"exit code {ended.returncode}: {ended.stderr.strip()[-500:]}") from None
    if result["endedBy"] == "infrastructure" and result["retryable"]:
        raise Unfinished(f"{result['reason']}: {result.get('message')}")
    return result


@DBOS.workflow()
def work(prompt: str, options: list[str]) -> dict:
    """Run one session; its id follows from the workflow's, so each attempt means the same session."""
    return run_session(f"dbos-{DBOS.workflow_id}", prompt, options)


def main(task: str, prompt: str, *options: str) -> None:
    """Run a task, or wait for its end if an earlier worker has begun it."""
    database = os.environ.get("DBOS_SYSTEM_DATABASE_URL", "sqlite:///agent-host-tasks.sqlite")
    DBOS(config={"name": "agent-host-tasks", "system_database_url": database})
    DBOS.launch()  # what a worker before this one left open goes on
    with SetWorkflowID(task):
        result = DBOS.start_workflow(work, prompt, list(options)).get_result()
    print(json.dumps(result))
    DBOS.destroy()


if __name__ == "__main__":
    main(*sys.argv[1:])
