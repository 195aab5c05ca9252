"""An agent that runs agent-host in a sample's sandbox, and takes its model, approvals and limits from inspect_ai."""

import hashlib
import json
import shlex
import socket
import uuid
from collections.abc import Sequence
from typing import Any, Literal

import anyio
from inspect_ai.agent import Agent, AgentState, agent, sandbox_agent_bridge
from inspect_ai.approval import ApprovalPolicy
from inspect_ai.approval._apply import have_tool_approval
from inspect_ai.log import transcript
from inspect_ai.log._samples import sample_active
from inspect_ai.model import ModelOutput
from inspect_ai.util import ExecResult, sandbox, store

Dialect = Literal["anthropic", "openai", "responses"]

_HELD = 75
"""The exit code of a session that another live process holds."""
_HELD_TRIES = 24
_INFRASTRUCTURE_TRIES = 4
"""The bridge's proxy may begin to listen after the session has asked for its model in vain."""
_WAIT_S = 5

_PREPARE = """
set -e
mkdir -p "$1"
if [ ! -d "$1/workspace" ]; then
    rm -rf "$1/workspace.part"
    cp -a "$2" "$1/workspace.part"
    mv "$1/workspace.part" "$1/workspace"
fi
if [ ! -L "$2" ]; then
    rm -rf "$2"
    ln -s "$1/workspace" "$2"
fi
"""


class AgentHostError(RuntimeError):
    """A session that the infrastructure ended, or that could not start: an error of its sample, to be retried."""


@agent
def agent_host(
    *,
    dialect: Dialect = "anthropic",
    policy: str = "workspace",
    workspace: str = ".",
    durable: str | None = None,
    program: Sequence[str] = ("agent-host",),
    options: Sequence[str] = (),
    approval: list[ApprovalPolicy] | None = None,
    sandbox_name: str | None = None,
    user: str | None = None,
) -> Agent:
    """Run agent-host for a sample.

    Args:
        dialect: Wire format between agent-host and the bridge.
        policy: A built-in policy's name or a bundle file in the sandbox. It decides each call.
        workspace: Directory in the sandbox that the tools work in.
        durable: Directory in the sandbox that outlives an attempt (a volume; for the local sandbox, any directory of
            this machine). Session and workspace are kept there, so that a retry of the sample resumes. `workspace`
            becomes a link into it, and can't be the sandbox's own working directory.
        program: The command that is agent-host in the sandbox.
        options: More options of `agent-host run`.
        approval: Policies of inspect_ai that approve calls; those of the task or the evaluation hold without this.
        sandbox_name: The sandbox to run in.
        user: The user to run as.
    """
    if durable is not None and (workspace in (".", "") or not durable.startswith("/")):
        raise ValueError("`durable` is an absolute path, and needs a `workspace` other than the working directory")

    async def execute(state: AgentState) -> AgentState:
        # Without `durable` an attempt begins in a fresh workspace, so no earlier session is about it.
        session_id = _session_id(attempt="" if durable else uuid.uuid4().hex)
        box = sandbox(sandbox_name)
        place = workspace
        command = [*program, "run", "-", "--session-id", session_id, "--or-resume", "--output", "json"]
        if durable is not None:
            kept = f"{durable.rstrip('/')}/{session_id}"
            prepared = await box.exec(["sh", "-c", _PREPARE, "sh", kept, workspace], user=user)
            if not prepared.success:
                raise AgentHostError(f"the workspace cannot be kept: {prepared.stderr.strip()}")
            place = f"{kept}/workspace"
            command += ["--state-dir", f"{kept}/state"]
        # Inspect's approvers see every call that the model proposes, before agent-host does: what they let through is
        # approved. Without them nobody is there to ask, and what the policy asks about is denied.
        if approval or have_tool_approval():
            command += ["--approve-all"]
        port = _free_port()
        command += ["--workspace", place, "--policy", policy, "--dialect", dialect, "--model", "inspect"]
        command += ["--gateway", f"http://localhost:{port}", *options]
        prompt = "\n\n".join(message.text for message in state.messages if message.role in ("system", "user"))
        async with sandbox_agent_bridge(state, port=port, approval=approval, sandbox=sandbox_name) as bridge:
            for tries in range(1, _HELD_TRIES + 1):
                ended = await box.exec(
                    command, input=prompt, user=user, env={"LLM_GATEWAY_AUTH_TOKEN": "inspect"}, concurrency=False
                )
                if ended.returncode != _HELD:
                    result = _result(command, ended)
                    is_lost = result["endedBy"] == "infrastructure" and result["retryable"]
                    if not is_lost or tries >= _INFRASTRUCTURE_TRIES:
                        break
                await anyio.sleep(_WAIT_S)
            else:
                raise AgentHostError(f"the session {session_id} is held by another process")
        # What the session says of itself, its own usage and cost included; inspect's figures come from the bridge.
        store().set("agent_host", result)
        transcript().info(result, source="agent-host")
        if result["endedBy"] == "infrastructure":
            raise AgentHostError(f"{result['reason']}: {result.get('message')}")
        if not bridge.state.output.completion:  # a session that had ended is not asked again
            bridge.state.output = ModelOutput.from_content("inspect", result["text"])
        return bridge.state

    return execute


def _session_id(*, attempt: str) -> str:
    """The same for each `attempt` of this name at a sample, and another for each epoch, task and model."""
    sample = sample_active()
    if sample is None:
        raise RuntimeError("agent_host runs as the agent of a task's sample")
    name = json.dumps([sample.task, sample.model, sample.sample.id, sample.epoch, attempt])
    return f"i-{hashlib.sha256(name.encode()).hexdigest()[:24]}"


def _free_port() -> int:
    """A port that is free here: local sandboxes share this machine, and in a container every port is as good."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _result(command: Sequence[str], ended: ExecResult[str]) -> dict[str, Any]:
    """The result object that the run printed last."""
    for line in reversed(ended.stdout.splitlines()):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict) and "endedBy" in found:
            return found
    said = ended.stderr.strip().splitlines()[-1:] or ["no word"]
    raise AgentHostError(f"{shlex.join(command[:2])} ended with {ended.returncode} and no result: {said[0]}")
