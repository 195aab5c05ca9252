"""A local agent host: one process per session that survives kill -9 and repeats no tool effect.

The public API is listed in `__all__` and imported on first use. All other modules of this package are internal and may
change without notice. docs/embedding.md has an example.
"""

from agent_host import import_isolation

import_isolation.settle()

TYPE_CHECKING = False  # importing it from typing would slow every start
if TYPE_CHECKING:
    from agent_host.approval import ApprovalAnswer, ApprovalRequest, Form, FormField
    from agent_host.errors import (
        AgentHostError,
        BudgetExceeded,
        CheckpointUnreadable,
        CheckpointWriteFailed,
        ErrorCode,
        GatewayError,
        GuardrailBlocked,
        Incompatible,
        NoActiveTask,
        PolicyError,
        ServiceError,
        SessionError,
        SessionExpired,
        SessionHeld,
        SessionNotFound,
        SessionNotReady,
        TaskAlreadyRunning,
        UsageError,
    )
    from agent_host.host.environment import PythonTool, tool
    from agent_host.host.options import SessionOptions
    from agent_host.host.records import Result, read_transcript
    from agent_host.host.sessions import (
        Approve,
        Closing,
        Decision,
        OnEvent,
        OnOpen,
        OnResult,
        Session,
        open_session,
        resume_session,
        resume_task,
        run_task,
    )
    from agent_host.session.transcript import Doubt, Item, Transcript, Wait
    from agent_host.version import __version__

__all__ = [
    "AgentHostError", "ApprovalAnswer", "ApprovalRequest", "Approve", "BudgetExceeded", "CheckpointUnreadable",
    "CheckpointWriteFailed", "Closing", "Decision", "Doubt", "ErrorCode", "Form", "FormField", "GatewayError",
    "GuardrailBlocked", "Incompatible", "Item", "NoActiveTask", "OnEvent", "OnOpen", "OnResult", "PolicyError",
    "PythonTool", "Result", "ServiceError", "Session", "SessionError", "SessionExpired", "SessionHeld",
    "SessionNotFound", "SessionNotReady", "SessionOptions", "TaskAlreadyRunning", "Transcript", "UsageError", "Wait",
    "__version__", "open_session", "read_transcript", "resume_session", "resume_task", "run_task", "tool",
]  # fmt: skip

# Cheap ones first.
_HOMES = (
    "version", "errors", "approval", "session.transcript", "host.records", "host.options", "host.environment",
    "host.sessions",
)  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    for home in _HOMES:
        module = importlib.import_module(f"{__name__}.{home}")
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
