"""Policy bundles to measure with."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def document(capabilities: Sequence[dict[str, Any]], *rules: dict[str, Any]) -> dict[str, Any]:
    """A bundle with these capabilities and approval rules. Its token limits never cut a thread: the floor, which
    sessions are measured against, never cuts one either."""
    return {
        "policyBundleVersion": "bench.1",
        "schemaVersion": "1.0",
        "tenantId": "bench",
        "userId": "bench",
        "sessionId": "*",
        "expiresAt": "2100-01-01T00:00:00Z",
        "capabilities": [*capabilities, {"name": "LLM.Call"}],
        "llmPolicy": {
            "allowedModels": ["mock-model"],
            "maxInputTokens": 10**9,
            "maxOutputTokens": 16_384,
            "maxSessionTokens": 10**12,
        },
        "approvalRules": list(rules),
    }


def of_a_user(workspace: str) -> dict[str, Any]:
    """A user's bundle: work on the files of one project, and listed programs after an approval."""
    files = {"allowedPaths": [workspace], "blockedPaths": [os.path.join(workspace, ".git")]}
    return document(
        [
            {"name": "File.Read", **files},
            {"name": "File.Write", **files},
            {
                "name": "Shell.Exec",
                "allowedCommands": ["cat", "git", "ls", "pytest"],
                "requiresApproval": True,
                "approvalRuleId": "commands",
            },
        ],
        {"approvalRuleId": "commands", "title": "Run a command", "description": "It may do harm."},
    )
