"""`agent_host.tool`: a typed function becomes a tool of the sessions that get it in their options."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, overload

from tool_runtime.families.python_tools import TIMEOUT_S, PythonTool

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PythonTool", "tool"]


@overload
def tool(function: Callable[..., Any], /) -> PythonTool: ...


@overload
def tool(
    *, name: str | None = None, description: str | None = None, side_effects: bool = True, timeout_s: float = TIMEOUT_S
) -> Callable[[Callable[..., Any]], PythonTool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    side_effects: bool = True,
    timeout_s: float = TIMEOUT_S,
) -> PythonTool | Callable[[Callable[..., Any]], PythonTool]:
    """Make a tool of a function, as `@tool` or `@tool(side_effects=False)`; `SessionOptions.tools` takes it.

    The model reads `name`, by default the function's own, and `description`, by default its docstring. Its parameters
    need annotations: pydantic makes the input schema from them, and checks the arguments of each call. A coroutine
    function runs on the session's event loop, any other in a thread. What it returns goes to the model, text as it is
    and anything else as JSON; what it raises fails the call, with the message. A call may take `timeout_s` seconds.
    With `side_effects=False` a call that a crash interrupted is run again: it must change nothing.

    Policy judges each call by Tool.Invoke. Raises TypeError for a function that cannot be a tool.
    """

    def made(function: Callable[..., Any]) -> PythonTool:
        text = description if description is not None else inspect.getdoc(function)
        called = str(name or getattr(function, "__name__", ""))
        if not text:
            raise TypeError(f"the tool {called} has neither a docstring nor a description for the model")
        return PythonTool(function, name=called, description=text, side_effects=side_effects, timeout_s=timeout_s)

    return made if function is None else made(function)
