"""Run one evaluation with agent-host as its agent, and print what became of it as JSON: `drive.py '{"tasks": ...}'`."""

import json
import sys
from typing import Any

from inspect_agent_host import agent_host, repairs
from inspect_ai import eval as evaluate
from inspect_ai.approval import ApprovalPolicy, auto_approver


def main(order: dict[str, Any]) -> None:
    """Evaluate; the order names the file of tasks, options of the agent, and those of the evaluation."""
    approves = order.get("approves")
    approval = [ApprovalPolicy(auto_approver(approves), "*")] if approves else None
    agent = agent_host(workspace="workspace", program=order["program"], approval=approval, **order["agent"])
    (log,) = evaluate(
        repairs(order["tasks"], agent=agent),
        model="openai-api/mock/gpt-test", display="none", log_dir=order["logs"],
        **{"max_samples": 1, **order.get("eval", {})},
    )  # fmt: skip
    samples = {
        str(sample.id): {
            "score": sample.scores["check"].value if sample.scores else None,
            "error": sample.error.message if sample.error else None,
            "retries": len(sample.error_retries or []),
            "result": sample.store.get("agent_host"),
            "text": sample.output.completion,
            "usage": {name: usage.model_dump() for name, usage in sample.model_usage.items()},
            "events": sorted({event.event for event in sample.events}),
        }
        for sample in log.samples or []
    }
    print(json.dumps({"status": log.status, "samples": samples}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
