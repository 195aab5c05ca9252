"""Tasks in the form of batches as a task of inspect_ai, scored by their checks."""

import json
from pathlib import Path
from typing import Any

from inspect_ai import Task, task
from inspect_ai.agent import Agent
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.scorer import CORRECT, INCORRECT, Score, Scorer, Target, accuracy, scorer
from inspect_ai.solver import TaskState
from inspect_ai.util import sandbox

from inspect_agent_host.agent import agent_host

WORKSPACE = "workspace"


@task
def repairs(tasks: str, agent: Agent | None = None, sandbox: str = "local") -> Task:
    """Run the tasks of a file of batches whose workspaces are directories.

    Args:
        tasks: The file.
        agent: The agent; by default agent-host with the policy `ci`.
        sandbox: The kind of sandbox.
    """
    return Task(
        dataset=MemoryDataset(read_samples(Path(tasks)), name=Path(tasks).stem),
        solver=agent or agent_host(policy="ci", workspace=WORKSPACE),
        scorer=check(),
        sandbox=sandbox,
    )


def read_samples(path: Path) -> list[Sample]:
    """A sample for each task; the files of its directory go into the sandbox."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row: dict[str, Any] = json.loads(line)
        folder = path.parent / row["workspace"]
        files = {
            f"{WORKSPACE}/{file.relative_to(folder).as_posix()}": str(file)
            for file in sorted(folder.rglob("*"))
            if file.is_file() and "__pycache__" not in file.parts
        }
        found.append(Sample(id=row["id"], input=row["prompt"], files=files, metadata={"check": row["check"]}))
    return found


@scorer(metrics=[accuracy()])
def check() -> Scorer:
    """Score by the shell line of the task: 0 is correct."""

    async def score(state: TaskState, target: Target) -> Score:  # noqa: ARG001  # inspect_ai gives it by name
        ended = await sandbox().exec(["sh", "-c", state.metadata["check"]], cwd=WORKSPACE, timeout=120)
        value = CORRECT if ended.success else INCORRECT
        return Score(
            value=value, explanation=(ended.stdout + ended.stderr)[-4000:], metadata={"exitCode": ended.returncode}
        )

    return score
