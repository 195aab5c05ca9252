"""A local agent host: one process per session that survives kill -9 and does no tool effect twice.

The public API is what `__all__` names; it is imported when it is first used. All other modules of this package are
inner ones and may change without notice. docs/embedding.md has an example.
"""

from agent_host import own_packages

own_packages.settle()

TYPE_CHECKING = False  # importing it from typing would cost every start
if TYPE_CHECKING:
    from agent_host.api.callbacks import Approve, Decision, OnEvent
    from agent_host.api.options import SessionOptions
    from agent_host.api.python_tools import PythonTool, tool
    from agent_host.api.results import Result
    from agent_host.api.sessions import Closing, Session, open_session, resume_session
    from agent_host.api.tasks import OnOpen, OnResult, resume_task, run_task
    from agent_host.approval.forms import Form, FormField
    from agent_host.approval.request import ApprovalAnswer, ApprovalRequest
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
    from agent_host.version import __version__

__all__ = [
    "AgentHostError",
    "ApprovalAnswer",
    "ApprovalRequest",
    "Approve",
    "BudgetExceeded",
    "CheckpointUnreadable",
    "CheckpointWriteFailed",
    "Closing",
    "Decision",
    "ErrorCode",
    "Form",
    "FormField",
    "GatewayError",
    "GuardrailBlocked",
    "Incompatible",
    "NoActiveTask",
    "OnEvent",
    "OnOpen",
    "OnResult",
    "PolicyError",
    "PythonTool",
    "Result",
    "ServiceError",
    "Session",
    "SessionError",
    "SessionExpired",
    "SessionHeld",
    "SessionNotFound",
    "SessionNotReady",
    "SessionOptions",
    "TaskAlreadyRunning",
    "UsageError",
    "__version__",
    "open_session",
    "resume_session",
    "resume_task",
    "run_task",
    "tool",
]

# The cheap ones first.
_HOMES = (
    "version",
    "errors",
    "approval.request",
    "api.results",
    "api.options",
    "api.callbacks",
    "api.python_tools",
    "api.sessions",
    "api.tasks",
    "approval.forms",
)


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
