"""Remote tools: a Provider of the tools listed by an MCP server or a backend service (TR 9.2, 9.5, AH 7.6).

A source is queried concurrently with the session's start; only a first task with an entirely unknown source waits for
it, and only for a moment. Its list is stored by its SHA-256, and the next session starts with it. The list of a task is
fixed: it is the newest one at the task's start, and a task resumed after a crash has the same list. A change is
reported by the first task that uses it.

`mcp/` speaks the Model Context Protocol over the SDK's types and our own transports, `backend` to the Backend
Tool Service, with an idempotency key for each call.

Rules:

- A definition, a description, a result and an error text are input from outside: each is bounded, checked and taken
  item by item. A tool that cannot be used is left out and named in `tools_listed`; the others stay.
- Each tool has an identity, the SHA-256 of its definition. A tool that is not what it was runs only with somebody's
  consent. What a source says of its effects is not believed.
- A call that may have taken effect is never reported as failed for the form of its answer, and never sent twice unless
  policy says `repeatable`.

Traps: a server over stdio may print anything to standard output, start slowly, or end in the middle of a call. The SDK
takes half a second to import, so it is loaded by a thread, and its import stops if the session ends meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import re
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from agent_host.contracts import SourceNotice, ToolSpec
from agent_host.display_text import UNSEEN
from config.lean_typing import NamedTuple
from tool_runtime.families import ELSEWHERE
from tool_runtime.families.schemas import INVOKES
from tool_runtime.schema import UnusableSchema
from tool_runtime.tool import CallContext, Provider, Tool, ToolFault, ToolOutput, add_timeout, cap

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence


MAX_TOOLS: Final = 500
MAX_DESCRIPTION_CHARS: Final = 4096
MAX_NAME_CHARS: Final = 200
_MAX_SHOWN: Final = 20  # number of omitted tools that a message lists with reasons
_PAUSE_S: Final = 0.5  # before a changed list is read again; it doubles with each change that is reported meanwhile
_MAX_PAUSE_S: Final = 30.0
_NAME: Final = r"[A-Za-z0-9_.:/@+-]+"
_HIDDEN_CHARACTERS: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]|" + UNSEEN
)
"""Characters that a model reads but a person does not see: controls, directions, tags, selectors."""
_MISLEADING: Final = (
    r"[\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]|[\u200b-\u200f\u2060-\u2065\ufeff]{2}|" + UNSEEN
)
"""The same in a name or a value, which may have a line end, or a joiner between two letters or pictures."""
_VALUES: Final = frozenset({"enum", "const", "default", "required", "pattern", "examples"})
_MAPS: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})


class Definition(NamedTuple):
    """A tool as its source describes it, by its whole name, `server/tool`. `usable` checks the schemas."""

    name: str
    description: str
    input_schema: Any
    output_schema: Any = None

    def to_json(self) -> dict[str, Any]:
        """Its shape on disk."""
        shape = {"name": self.name, "description": self.description, "inputSchema": dict(self.input_schema)}
        return shape if self.output_schema is None else {**shape, "outputSchema": dict(self.output_schema)}

    @property
    def identity(self) -> str:
        """The SHA-256 of its content, in hex."""
        return _sha256(self.to_json())


class ToolList(NamedTuple):
    """The usable tools that a source listed, and the problems of the others, by name."""

    definitions: tuple[Definition, ...]
    rejected: Mapping[str, str] = {}

    @property
    def note(self) -> str:
        """The end of a line about usable tools: the other tools, with reasons."""
        if not self.rejected:
            return ""
        shown = "; ".join(f"{tool}: {why}" for tool, why in list(self.rejected.items())[:_MAX_SHOWN])
        remainder = f"; and {len(self.rejected) - _MAX_SHOWN} more" if len(self.rejected) > _MAX_SHOWN else ""
        return f", and {len(self.rejected)} that cannot be used: {shown}{remainder}"


class StoredLists(Protocol):
    """Stored lists of one source (`state.tool_lists`). Nothing raises: what cannot be read is not there."""

    def newest(self) -> str | None:
        """The SHA-256 of the list that the source gave last."""

    def list_in_use(self) -> str | None:
        """The SHA-256 of the list that a task had last."""

    def read(self, sha256: str) -> Sequence[Mapping[str, Any]] | None:
        """The list with this SHA-256; None if it is not stored."""

    def keep(self, sha256: str, definitions: Sequence[Mapping[str, Any]]) -> None:
        """Keep a list, as the newest."""

    def use(self, sha256: str, identities: Mapping[str, str]) -> None:
        """Record that a task uses this list. Tools with new names count as approved in this version."""


class Source(Protocol):
    """A source of tools. `name` is its name for people and records: `mcp:fs`."""

    name: str

    async def list(self) -> ToolList:
        """Its present tools. Raises ToolFault if it cannot be reached."""

    async def call(self, tool: Definition, call: CallContext) -> ToolOutput:
        """Run one call. Raises ToolFault with a message for the model."""

    async def outcome(self, tool: Definition, call: CallContext) -> ToolOutput | None:
        """The outcome of a call whose host died before it had the answer; None if unknown. Nothing is run for it.
        Raises ToolFault for a call that has failed, or not come."""
        del tool, call
        return None

    async def aclose(self) -> None:
        """Release its resources."""
        return


class SourceTerms(NamedTuple):
    """Settings for a source's tools. `capability` is required by their calls; `elsewhere`: calls go over the network.
    `timeout_s` limits a call; a first task waits `connect_timeout_s` for an unknown source. A source with known tools
    is queried `ask_after_s` after the session's start, or with the first call, because a session may be over
    earlier."""

    capability: str
    elsewhere: bool
    timeout_s: float
    connect_timeout_s: float
    ask_after_s: float = 0.0


class RemoteTools(Provider):
    """A Provider of one source's tools. A tool that `admits` rejects is not registered (TR 9.4). `report` gets notices
    for people, on the event loop; `completed` adds fields to a tool that its source lacks. `pause` waits this many
    seconds between two lists."""

    def __init__(
        self,
        source: Source,
        terms: SourceTerms,
        kept: StoredLists,
        *,
        admits: Callable[[str], bool],
        report: Callable[[SourceNotice], None],
        completed: Callable[[ToolSpec], ToolSpec] | None = None,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._pause = pause
        self._completed = completed
        self.name = source.name
        self._source = source
        self._terms = terms
        self._kept = kept
        self._admits = admits
        self._report = report
        self._asking: asyncio.Task[None] | None = None
        self._again = False
        self._closed = False
        self._listed: tuple[str, str] | None = None
        self._needed = asyncio.Event()
        self._asked = asyncio.Event()
        self._fixed: Mapping[str, Definition] = {}
        self._has_reported_hidden = False
        self._reported_unavailable: set[str] = set()

    def begin(self) -> None:
        """Query the source's tools concurrently; also after it reports a change."""
        if self._closed:
            return
        if self._asking is not None and not self._asking.done():
            self._again = True
            return
        self._asking = asyncio.create_task(self._ask())

    async def fix(self, wanted: str | None) -> str | None:
        """Fix the tools for a task: the list with the SHA-256 `wanted`, if stored, else the newest. Returns the SHA-256
        of the list, None if the source has no known list."""
        definitions = None if wanted is None else await self._read(wanted)
        sha256 = wanted
        if definitions is None:
            sha256 = await self._newest()
            definitions = None if sha256 is None else await self._read(sha256)
        if sha256 is None or definitions is None:
            self._fixed = {}
            return None
        await self._report_change(sha256, definitions)
        await asyncio.to_thread(self._kept.use, sha256, {one.name: one.identity for one in definitions})
        self._fixed = {one.name: one for one in definitions if self._admits(one.name)}
        if definitions and not self._fixed and not self._has_reported_hidden:
            self._has_reported_hidden = True
            self._report(SourceNotice(self.name, "hidden", self._hidden(definitions), len(definitions)))
        return sha256

    async def tools(self) -> Sequence[ToolSpec]:
        """See Provider: those that are fixed."""
        return tuple(map(self._spec, self._fixed.values()))

    def _spec(self, tool: Definition) -> ToolSpec:
        spec = spec_of(tool, self._terms.capability, elsewhere=self._terms.elsewhere)
        return spec if self._completed is None else self._completed(spec)

    def get(self, name: str) -> Tool | None:
        """See Provider."""
        tool = self._fixed.get(name)
        if tool is None:
            return None
        run = cap(add_timeout(functools.partial(self._call, tool), self._terms.timeout_s))
        return Tool(self._spec(tool), run, ELSEWHERE, outcome=functools.partial(self._source.outcome, tool))

    async def _call(self, tool: Definition, call: CallContext) -> ToolOutput:
        self._needed.set()
        if self._asking is not None:  # a change is stored before it causes a denial, so that the next task has it
            await self._asked.wait()
        return await self._source.call(tool, call)

    async def aclose(self) -> None:
        """See Provider."""
        self._closed = True
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])
        await self._source.aclose()

    async def _ask(self) -> None:
        if self._terms.ask_after_s and await asyncio.to_thread(self._kept.newest) is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._needed.wait(), self._terms.ask_after_s)
        self._needed.set()
        try:
            await self._list()
        finally:
            self._asked.set()

    async def _list(self) -> None:
        pause_s = _PAUSE_S
        while True:
            self._again = False
            self._asked.clear()
            await self._list_once()
            self._asked.set()
            await self._pause(pause_s)  # a source may report a change with each list
            if not self._again:
                return
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)

    async def _list_once(self) -> None:
        try:
            listed = await self._source.list()
        except ToolFault as fault:
            self._report_unavailable(str(fault))
            return
        self._reported_unavailable.clear()
        shapes = [one.to_json() for one in listed.definitions]
        sha256 = _sha256(shapes)
        await asyncio.to_thread(self._kept.keep, sha256, shapes)
        if self._listed != (sha256, listed.note):
            self._listed = sha256, listed.note
            count, rejected = len(listed.definitions), sorted(listed.rejected)
            message = f"{self.name} has {count} tools{listed.note}"
            self._report(SourceNotice(self.name, "listed", message, count, rejected=rejected))

    async def _newest(self) -> str | None:
        known = await asyncio.to_thread(self._kept.newest)
        if known is not None or self._asking is None:
            return known
        limit_s, is_over = self._terms.connect_timeout_s, self._asked.is_set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._asked.wait()
        known = await asyncio.to_thread(self._kept.newest)  # the list may have come during the first look, too
        if known is None and is_over:  # it may be there for the task after this one
            self.begin()
        elif known is None and not self._asked.is_set():  # the session may end before the source is given up
            self._report_unavailable(f"it did not answer within {limit_s:g} s")
        return known

    def _report_unavailable(self, why: str) -> None:
        if why not in self._reported_unavailable:
            self._reported_unavailable.add(why)
            self._listed = None
            self._report(SourceNotice(self.name, "unavailable", f"{self.name} does not answer: {why}"))

    async def _read(self, sha256: str) -> tuple[Definition, ...] | None:
        shapes = await asyncio.to_thread(self._kept.read, sha256)
        return None if shapes is None else tuple(map(definition_of, shapes))

    async def _report_change(self, sha256: str, now: Iterable[Definition]) -> None:
        was = await asyncio.to_thread(self._kept.list_in_use)
        before = None if was is None or was == sha256 else await self._read(was)
        if before is None:
            return
        old, new = ({one.name: one.identity for one in each} for each in (before, now))
        added, removed = sorted(new.keys() - old.keys()), sorted(old.keys() - new.keys())
        changed = sorted(name for name in new.keys() & old.keys() if new[name] != old[name])
        differences = (("new", added), ("gone", removed), ("changed", changed))
        text = "; ".join(f"{word}: {', '.join(names[:20])}" for word, names in differences if names)
        message = f"the tools of {self.name} have changed: {text}"
        self._report(SourceNotice(self.name, "changed", message, len(new), added, removed, changed))

    def _hidden(self, definitions: Sequence[Definition]) -> str:
        pattern = definitions[0].name.partition("/")[0] + "/*" if "/" in definitions[0].name else definitions[0].name
        line = orjson.dumps({"name": self._terms.capability, "allowedToolNames": [pattern], "requiresApproval": True})
        hidden = f"the policy admits none of the {len(definitions)} tools of {self.name}"
        return f"{hidden}; to have them, add to its capabilities: {line.decode()}"


def spec_of(tool: Definition, capability: str, *, elsewhere: bool) -> ToolSpec:
    """The specification of a definition. Its source's word on effects is not believed; a bundle's `repeatable` is."""
    acts: dict[str, Any] = {**INVOKES, "capability": capability, "effect": "other", "category": "requests"}
    extra: dict[str, Any] = {"identity": tool.identity, "output_schema": tool.output_schema, "elsewhere": elsewhere}
    return ToolSpec(tool.name, tool.description, tool.input_schema, **acts, **extra)


def usable(definitions: Iterable[Definition], rejected: Mapping[str, str] = {}) -> ToolList:
    """The usable tools of a source, and the reasons why others are unusable. Names, schemas and their number have
    bounds; descriptions are cut; schemas are repaired if their meaning is clear. Of two tools with one name the first
    counts."""
    found: dict[str, Definition] = {}
    wrong = dict(rejected)
    for one in definitions:
        try:
            found[one.name] = _usable(one, found)
        except UnusableSchema as error:
            if len(wrong) < MAX_TOOLS:
                wrong[displayable_name(one.name)] = str(error)
    return ToolList(tuple(found.values()), wrong)


def displayable_name(name: str) -> str:
    """The name of a tool that may be anything, for people."""
    return _HIDDEN_CHARACTERS.sub("", name)[:MAX_NAME_CHARS]


def _usable(one: Definition, found: Mapping[str, Definition]) -> Definition:
    """Raises UnusableSchema for an unusable tool; the message is the reason."""
    if len(one.name) > MAX_NAME_CHARS or not re.fullmatch(_NAME, one.name):
        raise UnusableSchema(f"its name is not one of {MAX_NAME_CHARS} letters, digits and _ . : / @ + - at most")
    if one.name in found:
        raise UnusableSchema("another tool has this name")
    if len(found) >= MAX_TOOLS:
        raise UnusableSchema(f"there are more than {MAX_TOOLS} tools")
    text = _HIDDEN_CHARACTERS.sub("", one.description)[:MAX_DESCRIPTION_CHARS]
    from tool_runtime.foreign_schema import mend_schema  # a library of 15 MB, for those who need it

    try:
        arguments = mend_schema(one.input_schema, of_object=True)
        output = None if one.output_schema is None else mend_schema(one.output_schema)
        arguments, output = _without_hidden(arguments), _without_hidden(output)
    except UnusableSchema as error:
        raise UnusableSchema(f"its schema cannot be used: {error}") from None
    return one._replace(description=text, input_schema=arguments, output_schema=output)


def _without_hidden(schema: Any, key: str = "", *, is_exact: bool = False) -> Any:
    """A schema whose texts for people have no hidden characters. Names and values have a meaning, and stay as they are.
    Raises UnusableSchema for one that misleads."""
    is_exact = is_exact or key in _VALUES
    if isinstance(schema, dict):
        inner = {
            name: _without_hidden(one, "" if key in _MAPS else name, is_exact=is_exact) for name, one in schema.items()
        }
        return {_without_hidden(name, is_exact=True): one for name, one in inner.items()}
    if isinstance(schema, list):
        return [_without_hidden(one, key, is_exact=is_exact) for one in schema]
    if not isinstance(schema, str) or (schema.isascii() and schema.isprintable()):
        return schema
    if is_exact and re.search(_MISLEADING, schema):
        raise UnusableSchema(f"{schema[:80]!a} has characters that are not seen")
    return schema if is_exact else _HIDDEN_CHARACTERS.sub("", schema)


def definition_of(shape: Mapping[str, Any]) -> Definition:
    """The definition of a shape on disk; see `Definition.to_json`."""
    return Definition(shape["name"], shape["description"], shape["inputSchema"], shape.get("outputSchema"))


def _sha256(shape: object) -> str:
    return hashlib.sha256(orjson.dumps(shape, option=orjson.OPT_SORT_KEYS)).hexdigest()
