"""`agent_host.tool`: a typed function becomes a tool of the sessions that get it in their options."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final, overload

from agent_host.errors import UsageError
from agent_host.host.environment import BUILT_IN, built_in, families_of
from agent_host.judging import Registry
from policy.names import READ_SKILLS
from tool_runtime.families.catalogue import RESERVED, specs_of
from tool_runtime.families.python_tools import TIMEOUT_S, PythonTool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from config.settings import Settings

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
    function runs on the session's event loop, any other in a thread. Its return value goes to the model, text unchanged
    and anything else as JSON; an exception fails the call, with its message. A call may take `timeout_s` seconds. With
    `side_effects=False` a call that a crash interrupted is run again: it must change nothing.

    Policy judges each call by Tool.Invoke. Raises TypeError for a function that cannot be a tool.
    """

    def make(function: Callable[..., Any]) -> PythonTool:
        text = description if description is not None else inspect.getdoc(function)
        called = str(name or getattr(function, "__name__", ""))
        if not text:
            raise TypeError(f"the tool {called} has neither a docstring nor a description for the model")
        return PythonTool(function, name=called, description=text, side_effects=side_effects, timeout_s=timeout_s)

    return make if function is None else make(function)


# The Python tools of a session: those that the embedding program gives, and those of installed packages that the
# user's configuration names.

ENTRY_POINTS: Final = "agent_host.tools"
"""The group in which a package names its tools: each entry is a tool or a list of them."""
_SETTING: Final = "tools.installed"
_ALLOW_SHADOW: Final = "native.allow_shadow"


def python_tools(settings: Settings, given: Sequence[PythonTool]) -> tuple[PythonTool, ...]:
    """All Python tools of a session. Raises UsageError for a name that is taken or reserved, an entry point that is not
    there or gives no tools, and annotations without a schema."""
    tools = (*given, *_load(settings.tools.installed))
    chosen = specs_of(families_of(settings))
    taken = {*BUILT_IN.names, *READ_SKILLS, *(spec.name for spec in chosen if not spec.name.startswith(RESERVED))}
    may_shadow = frozenset(tool.name for tool in given) if settings.native.allow_shadow else frozenset()
    for tool in tools:
        if tool.name.startswith(RESERVED) and tool.name not in may_shadow:
            raise UsageError(
                f"{tool.name}: names that begin with {RESERVED} are reserved; {_ALLOW_SHADOW} in your configuration "
                "lets a tool of an embedding program have one"
            )
        if tool.name in taken:
            raise UsageError(f"there is a tool called {tool.name} already: give the Python tool another name")
        taken.add(tool.name)
        try:
            _ = tool.spec
        except TypeError as error:
            raise UsageError(str(error)) from error
    return tools


def names_of_packages(settings: Settings) -> tuple[str, ...]:
    """The names of the tools of the packages that the configuration names. Raises UsageError."""
    return tuple(tool.name for tool in _load(settings.tools.installed))


def registry_with(tools: Sequence[PythonTool], families: Sequence[str]) -> Registry:
    """The tools of these families, and the Python tools."""
    return Registry((*(tool.spec for tool in tools), *built_in(families)))


def _load(names: Sequence[str]) -> Iterator[PythonTool]:
    if not names:
        return
    from importlib.metadata import entry_points

    for name in names:
        found = entry_points(group=ENTRY_POINTS, name=name)
        if not found:
            known = ", ".join(sorted(entry_points(group=ENTRY_POINTS).names)) or "none"
            raise UsageError(f"configuration: {_SETTING}: no installed package has {name!r}; there are: {known}")
        for entry in found:
            try:
                value = entry.load()
            except (ImportError, AttributeError) as error:
                raise UsageError(f"configuration: {_SETTING}: {name}: {error}") from error
            loaded = value if isinstance(value, list | tuple) else (value,)
            if not all(isinstance(one, PythonTool) for one in loaded):
                raise UsageError(f"configuration: {_SETTING}: {name} ({entry.value}) is no tool nor a list of tools")
            yield from loaded
