"""Typed Python functions of an embedding program as tools, judged by Tool.Invoke like any tool that is not built in.

pydantic makes the input schema from a function's annotations, checks the arguments by them and writes the result. It is
imported with the first tool that a session offers.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import re
from typing import TYPE_CHECKING, Any, Final, get_type_hints

from agent_host.contracts import ToolSpec
from config.lean_typing import NamedTuple
from tool_runtime.families import DESKTOP
from tool_runtime.families.schemas import INVOKES
from tool_runtime.output.artifacts import tool_output
from tool_runtime.threads import DaemonPool
from tool_runtime.tool import CallContext, FaultKind, Provider, Tool, ToolFault, ToolOutput, add_timeout, cap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pydantic import BaseModel, TypeAdapter

    from agent_host.contracts import Effect
    from tool_runtime.tool import RuntimeSettings

NAME: Final = r"[A-Za-z][A-Za-z0-9_-]{0,63}"  # valid names of a tool
TIMEOUT_S: Final = 60.0
_BY_NAME: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class PythonTool:
    """A function as a tool. Calling it calls the function, without a session.

    The model reads `name` and `description`; `timeout_s` limits a call. `side_effects` False means that running a call
    twice changes nothing, so it is repeated after a crash. Raises TypeError for a function that cannot be called by the
    names of its parameters or has one without an annotation.
    """

    def __init__(
        self, function: Callable[..., Any], *, name: str, description: str, side_effects: bool, timeout_s: float
    ) -> None:
        functools.update_wrapper(self, function)
        self.name = name
        self.description = description
        self.side_effects = side_effects
        self.timeout_s = timeout_s
        self._function = function
        if not re.fullmatch(NAME, name):
            raise TypeError(f"{name!r} is no name of a tool: a letter, and up to 63 letters, digits, _ or -")
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind not in _BY_NAME:
                raise TypeError(f"the tool {name}: the parameter {parameter} cannot be given by its name")
            if parameter.annotation is parameter.empty:
                raise TypeError(f"the tool {name}: the parameter {parameter.name} has no annotation")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self._function(*args, **kwargs)

    @functools.cached_property
    def signature(self) -> Signature:
        """The signature: arguments and result. Raises TypeError for annotations that pydantic has no schema for."""
        return Signature.read(self._function, self.name)

    @functools.cached_property
    def spec(self) -> ToolSpec:
        """The specification by which it is listed and judged. Raises TypeError, see `signature`."""
        effect: Effect = "other" if self.side_effects else "none"
        schema = self.signature.schema
        return ToolSpec(self.name, self.description, schema, effect=effect, category="requests", **INVOKES)


class Signature(NamedTuple):
    """The arguments of a function, as a model with a field for each parameter, and its result. `names` has the field of
    each parameter."""

    arguments: type[BaseModel]
    names: Mapping[str, str]
    result: TypeAdapter[Any]
    schema: Mapping[str, Any]

    @classmethod
    def read(cls, function: Callable[..., Any], tool: str) -> Signature:
        """Raises TypeError for annotations that pydantic has no schema for."""
        from pydantic import ConfigDict, Field, PydanticUserError, TypeAdapter, create_model

        parameters = inspect.signature(function).parameters
        names = {name: f"p{number}" for number, name in enumerate(parameters)}
        try:
            hints = get_type_hints(function, include_extras=True)
            fields: dict[str, Any] = {
                names[name]: (hints[name], Field(... if one.default is one.empty else one.default, alias=name))
                for name, one in parameters.items()
            }
            arguments = create_model(tool, __config__=ConfigDict(extra="forbid"), **fields)
            schema = arguments.model_json_schema()
            result: TypeAdapter[Any] = TypeAdapter(hints.get("return", Any))
        except (PydanticUserError, NameError) as error:
            raise TypeError(f"the tool {tool}: {str(error).splitlines()[0]}") from error
        for shown in schema.get("properties", {}).values():
            shown.pop("title", None)
        return cls(arguments, names, result, {**schema, "title": tool})

    def values(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call as the function takes them. Raises ToolFault(INVALID_ARGUMENT)."""
        from pydantic import ValidationError

        try:
            read = self.arguments.model_validate(dict(arguments))
        except ValidationError as error:
            wrong = []
            for one in error.errors(include_url=False)[:5]:
                steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in one["loc"])
                wrong.append(f"${''.join(steps)}: {one['msg']}")
            raise ToolFault(FaultKind.INVALID_ARGUMENT, "; ".join(wrong)) from error
        return {name: getattr(read, field) for name, field in self.names.items()}

    def text(self, result: Any) -> str:
        """A result for the model: text unchanged, anything else as JSON. Raises ToolFault for a value without JSON
        form."""
        if isinstance(result, str):
            return result
        if result is None:
            return "Done"
        try:
            return self.result.dump_json(result, warnings=False).decode()
        except ValueError as error:  # a PydanticSerializationError is one
            raise ToolFault(FaultKind.SYSTEM, f"the tool gave a result that is no JSON: {error}") from error


class PythonTools(Provider):
    """A Provider of such tools, whose names differ."""

    def __init__(self, tools: Iterable[PythonTool], settings: RuntimeSettings) -> None:
        self._settings = settings
        self._pool = DaemonPool()
        self._tools = {tool.name: tool for tool in tools}

    async def tools(self) -> Sequence[ToolSpec]:
        """See Provider."""
        return tuple(tool.spec for tool in self._tools.values())

    def get(self, name: str) -> Tool | None:
        """See Provider."""
        tool = self._tools.get(name)
        if tool is None:
            return None
        return Tool(tool.spec, cap(add_timeout(functools.partial(self._run, tool), tool.timeout_s)), DESKTOP)

    async def aclose(self) -> None:
        """See Provider. A function that still runs in a thread is left to its end."""
        self._pool.close()

    async def _run(self, tool: PythonTool, call: CallContext) -> ToolOutput:
        values = tool.signature.values(call.arguments)
        text = tool.signature.text(await self._call(tool, values))
        content = text.encode("utf-8", "replace")
        if len(content) <= self._settings.artifact_threshold_bytes:
            return ToolOutput(text)
        return ToolOutput(text, (tool_output(call.request, content, part="result"),))

    async def _call(self, tool: PythonTool, values: Mapping[str, Any]) -> Any:
        """Call the function; one that is no coroutine function runs in a thread. Raises ToolFault."""
        context = contextvars.copy_context()
        try:
            if inspect.iscoroutinefunction(tool.__wrapped__):  # type: ignore[attr-defined]  # update_wrapper sets it
                return await tool(**values)
            result = await self._pool.run(lambda: context.run(tool, **values))
            return await result if inspect.isawaitable(result) else result
        except asyncio.CancelledError:
            raise
        except Exception as error:  # the function is another program's: all that it raises is an answer to the model
            raise ToolFault(FaultKind.SYSTEM, ": ".join(filter(None, (type(error).__name__, str(error))))) from error
