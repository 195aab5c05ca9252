"""The script of the mock gateway: its answers turn by turn, and its expectations of each request.

`docs/mock-gateway.md` describes every key. All of a script is checked when it is read; each mistake is reported in one
line with the file, the turn and the key.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, NamedTuple, TypeVar, cast

import orjson

from config.shapes import FLAG, TEXT, AnyOf, Shape, Text, display, first_problem, hint_at, integer


@dataclass(frozen=True, slots=True)
class RequestView:
    """The part of a request that a script can see, independent of the dialect.

    `turn_index` is the number of assistant messages in the conversation before this request, `position` the same
    without those from turns with `when` (as far as tool ids show). `last_text` is all text of the newest message: prose
    and tool results, joined by newlines. `last_images` are the media types of its images, `image_count` is the number
    of images in the whole request. `wants_usage`: a streamed answer has to contain token counts.
    """

    session: str
    model: str
    system: str
    max_tokens: int | None
    stream: bool
    tools: tuple[str, ...]
    message_count: int
    turn_index: int
    position: int
    last_role: str
    last_text: str
    last_tool_error: bool
    headers: Mapping[str, str]
    last_images: tuple[str, ...] = ()
    image_count: int = 0
    wants_usage: bool = True


# Readers of values: each converts a value from TOML or JSON to a checked, immutable value. The checks are shapes
# (`config.shapes`); the conversions are here.

Reader = Callable[[Any], Any]

_UTF8 = Text(nul=True)


class BadValue(ValueError):
    """A value is invalid for its key. `path` is the key below the turn, such as `tool_calls[1].name`."""

    def __init__(self, text: str, path: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.path = path

    def nest(self, key: str) -> BadValue:
        """Return the same problem with a path from the table that contains `key`."""
        joint = "" if not self.path or self.path.startswith("[") else "."
        return BadValue(self.text, f"{key}{joint}{self.path}")


def reader(shape: Shape) -> Reader:
    """Return a reader that checks values of one shape and returns them unchanged."""

    def read(raw: Any) -> Any:
        problem = first_problem(shape, raw)
        if problem is not None:
            raise BadValue(problem.text, problem.path)
        return raw

    return read


string: Callable[[Any], str] = reader(_UTF8)
"""Reads a string that can be sent as UTF-8."""
boolean: Callable[[Any], bool] = reader(FLAG)
natural: Callable[[Any], int] = reader(integer(0))
"""Reads a whole number, zero or more."""


def strings(raw: Any) -> tuple[str, ...]:
    """Read a string or an array of strings; a string is treated as an array of one."""
    if isinstance(raw, str):
        return (string(raw),)
    if not isinstance(raw, (list, tuple)):
        raise BadValue(f"must be a string or an array of strings, not {display(raw)}")
    return array_of(string)(raw)


def whole_number(lowest: int, highest: int | None = None) -> Callable[[Any], int]:
    """Return a reader of whole numbers from `lowest` to `highest`."""
    return reader(integer(lowest, highest))


def positions(raw: Any) -> tuple[int, ...]:
    """Read one whole number or an array of them, from 1."""
    return array_of(whole_number(1))(raw if isinstance(raw, (list, tuple)) else [raw])


def pattern(raw: Any) -> re.Pattern[str]:
    """Read a regular expression in Python's syntax; `.` also matches newlines."""
    try:
        return re.compile(string(raw), re.DOTALL)
    except re.error as error:
        raise BadValue(f"is not a regular expression: {error}") from None


def table_of(item: Shape) -> Callable[[Any], Mapping[str, Any]]:
    """Return a reader of tables whose values all have one shape."""

    def read(raw: Any) -> Mapping[str, Any]:
        entries = _table(raw)
        return table(entries, dict.fromkeys(entries, reader(item)))

    return read


def array_of(read_item: Reader) -> Callable[[Any], tuple[Any, ...]]:
    """Return a reader of arrays."""

    def read(raw: Any) -> tuple[Any, ...]:
        if not isinstance(raw, (list, tuple)):
            raise BadValue(f"must be an array, not {display(raw)}")
        return tuple(_read_at(f"[{index}]", read_item, item) for index, item in enumerate(raw))

    return read


def _read_at(place: str, read: Reader, value: Any) -> Any:
    try:
        return read(value)
    except BadValue as problem:
        raise problem.nest(place) from None


def table(raw: Any, readers: Mapping[str, Reader], required: Sequence[str] = ()) -> dict[str, Any]:
    """Read the values of a table by key, each with its reader. Raises BadValue if it is not a table, for a key that
    `readers` lacks (with the nearest known one), for a value that its reader refuses, and for a missing `required`
    key."""
    values = {}
    for key, value in _table(raw).items():
        if key not in readers:
            raise BadValue(unknown_key(key, readers), key)
        values[key] = _read_at(key, readers[key], value)
    for key in required:
        if key not in values:
            raise BadValue("is missing", key)
    return values


def unknown_key(key: str, known: Iterable[str]) -> str:
    """Return the message for a key that is not in `known`."""
    return f"is not known{hint_at(key, list(known))}"


def _table(raw: Any) -> Mapping[str, Any]:
    if not isinstance(raw, Mapping):
        raise BadValue(f"must be a table, not {display(raw)}")
    return raw


# Conditions on a request: one table for matching by `when` and for requirements of `expect`.

_EXCERPT_CHARS = 400


@dataclass(frozen=True, slots=True)
class Condition:
    """One key of a `when` or `expect` table, with its value as returned by the reader in `CONDITIONS`."""

    key: str
    value: Any

    def miss(self, view: RequestView) -> str | None:
        """Return None if `view` meets the condition, else a description of the difference."""
        _, field, miss = CONDITIONS[self.key]
        return miss(self.value, getattr(view, field))


class ConditionKind(NamedTuple):
    """The reader of one condition (raises BadValue), the field of RequestView that it checks, and a function of the
    wanted and the found value that returns the difference; None means met."""

    read: Callable[[Any], Any]
    field: str
    miss: Callable[[Any, Any], str | None]


def _equals(wanted: Any, found: Any) -> str | None:
    return None if found == wanted else f"is {found!r}, wanted {wanted!r}"


def _contains(wanted: tuple[str, ...], found: str) -> str | None:
    lacking = [part for part in wanted if part not in found]
    return f"lacks {_list(lacking)} in {_excerpt(found)}" if lacking else None


def _matches(wanted: re.Pattern[str], found: str) -> str | None:
    return None if wanted.search(found) else f"{wanted.pattern!r} finds nothing in {_excerpt(found)}"


def _are_images(wanted: tuple[str, ...], found: tuple[str, ...]) -> str | None:
    return None if found == wanted else f"is {_list(found) or 'none'}, wanted {_list(wanted) or 'none'}"


def _are_offered(wanted: tuple[str, ...], offered: tuple[str, ...]) -> str | None:
    lacking = [name for name in wanted if name not in offered]
    return f"lacks {_list(lacking)}; offered: {_list(offered) or 'none'}" if lacking else None


def _are_not_offered(unwanted: tuple[str, ...], offered: tuple[str, ...]) -> str | None:
    found = [name for name in unwanted if name in offered]
    return f"offered all the same: {_list(found)}" if found else None


def _is_position(wanted: tuple[int, ...], before: int) -> str | None:
    return None if before + 1 in wanted else f"is {before + 1}, wanted {' or '.join(map(str, wanted))}"


def _have_headers(wanted: Mapping[str, str | bool], headers: Mapping[str, str]) -> str | None:
    problems = []
    for name, value in wanted.items():
        found = headers.get(name.lower())
        met = (found is not None) is value if isinstance(value, bool) else found == value
        if not met:
            # A header may contain a secret, so its value is shown only if the script contains the expected value.
            shown = "absent" if found is None else "present" if isinstance(value, bool) else repr(found)
            asked = repr(value) if isinstance(value, str) else "present" if value else "absent"
            problems.append(f"{name} is {shown}, wanted {asked}")
    return "; ".join(problems) or None


def _list(names: list[str] | tuple[str, ...]) -> str:
    return ", ".join(repr(name) for name in names)


def _excerpt(text: str) -> str:
    """Return `text` as a literal; only the end of a long one, because test runners and compilers print their summary
    there."""
    if len(text) <= _EXCERPT_CHARS:
        return repr(text)
    return f"...{text[-_EXCERPT_CHARS:]!r} ({len(text)} characters)"


CONDITIONS: Mapping[str, ConditionKind] = {
    "session": ConditionKind(string, "session", _equals),
    "model": ConditionKind(string, "model", _equals),
    "max_tokens": ConditionKind(natural, "max_tokens", _equals),
    "stream": ConditionKind(boolean, "stream", _equals),
    "position": ConditionKind(positions, "position", _is_position),
    "message_count": ConditionKind(natural, "message_count", _equals),
    "system_contains": ConditionKind(strings, "system", _contains),
    "last_role": ConditionKind(string, "last_role", _equals),
    "last_contains": ConditionKind(strings, "last_text", _contains),
    "last_matches": ConditionKind(pattern, "last_text", _matches),
    "last_tool_error": ConditionKind(boolean, "last_tool_error", _equals),
    "last_images": ConditionKind(strings, "last_images", _are_images),
    "image_count": ConditionKind(natural, "image_count", _equals),
    "tools": ConditionKind(strings, "tools", _are_offered),
    "tools_absent": ConditionKind(strings, "tools", _are_not_offered),
    "headers": ConditionKind(table_of(AnyOf(TEXT, FLAG)), "headers", _have_headers),
}


TurnKind = Literal["answer", "http_error", "garbage", "hang"]
ALWAYS = "always"


def _by(read: Reader) -> Mapping[str, Reader]:
    """Return the metadata of a field that is a key of scripts: its reader."""
    return {"read": read}


def keys_of(table_type: type) -> Mapping[str, Reader]:
    """Return the keys of a table with their readers."""
    return {one.name: one.metadata["read"] for one in fields(table_type) if one.metadata}


class ScriptError(ValueError):
    """A script cannot be used. Each of `problems` is one line: file, turn number, key, problem."""

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def _arguments(raw: Any) -> Mapping[str, Any]:
    if not isinstance(raw, Mapping):
        raise BadValue("must be a table; raw_arguments takes what is not")
    try:
        orjson.dumps(raw)
    except TypeError as error:
        raise BadValue(f"cannot be written as JSON: {error}") from None
    return dict(raw)


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A tool call in an answer. `raw_arguments` is sent verbatim and may be invalid JSON."""

    name: str = field(metadata=_by(string))
    arguments: Mapping[str, Any] = field(default_factory=dict, metadata=_by(_arguments))
    raw_arguments: str | None = field(default=None, metadata=_by(string))
    id: str | None = field(default=None, metadata=_by(string))

    def encode_arguments(self) -> str:
        """Return the JSON text of the arguments, or the raw text that replaces it."""
        return self.raw_arguments if self.raw_arguments is not None else orjson.dumps(self.arguments).decode()


TOOL_CALL_KEYS = keys_of(ScriptedCall)


def _tool_call(raw: Any) -> ScriptedCall:
    values = table(raw, TOOL_CALL_KEYS, required=("name",))
    if "arguments" in values and "raw_arguments" in values:
        raise BadValue("and arguments exclude each other", "raw_arguments")
    return ScriptedCall(**values)


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts reported with an answer. The defaults are small and fixed, so that no budget is exhausted
    unexpectedly. `cache_creation_1h_input_tokens` is the part of `cache_creation_input_tokens` that is cached for an
    hour."""

    input_tokens: int = 100
    output_tokens: int = 20
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_creation_1h_input_tokens: int = 0

    @property
    def prompt_tokens(self) -> int:
        """All input, as counted in OpenAI's dialects."""
        return self.input_tokens + self.cache_read_input_tokens + self.cache_creation_input_tokens


USAGE_KEYS: Mapping[str, Reader] = dict.fromkeys(Usage.__dataclass_fields__, natural)


def _usage(raw: Any) -> Usage:
    usage = Usage(**table(raw, USAGE_KEYS))
    if usage.cache_creation_1h_input_tokens > usage.cache_creation_input_tokens:
        raise BadValue("is a part of cache_creation_input_tokens, and is more", "cache_creation_1h_input_tokens")
    return usage


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """An error that the dialect reports; an empty `type` means the usual one of the HTTP status. `failed`: in a stream
    it is reported as the end of a failed response, if the dialect has such an event."""

    message: str
    type: str = ""
    failed: bool = False


ERROR_KEYS: Mapping[str, Reader] = {"type": string, "message": string}


def _error_of(keys: Mapping[str, Reader]) -> Reader:
    return lambda raw: ErrorBody(**table(raw, keys, required=("message",)))


def _conditions(raw: Any) -> tuple[Condition, ...]:
    values = table(raw, {key: kind.read for key, kind in CONDITIONS.items()})
    return tuple(Condition(key, value) for key, value in values.items())


def _garbage(raw: Any) -> bytes:
    if isinstance(raw, bytes):
        return raw
    if isinstance(raw, str):
        return string(raw).encode()
    return bytes(array_of(whole_number(0, 255))(raw))


def _times(raw: Any) -> int | str:
    if raw == ALWAYS:
        return ALWAYS
    if isinstance(raw, str):
        raise BadValue(f"must be a whole number or {ALWAYS!r}, not {raw!r}")
    return whole_number(1)(raw)


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a script; `number` counts from 1 in file order. The other fields are the script's keys."""

    number: int
    when: tuple[Condition, ...] | None = field(default=None, metadata=_by(_conditions))
    expect: tuple[Condition, ...] = field(default=(), metadata=_by(_conditions))
    text: str = field(default="", metadata=_by(string))
    thinking: str = field(default="", metadata=_by(string))
    redacted_thinking: str = field(default="", metadata=_by(string))
    tool_calls: tuple[ScriptedCall, ...] = field(default=(), metadata=_by(array_of(_tool_call)))
    usage: Usage = field(default_factory=Usage, metadata=_by(_usage))
    stop_reason: str = field(default="", metadata=_by(string))
    delay_ms: int = field(default=0, metadata=_by(natural))
    chunk_delay_ms: int = field(default=0, metadata=_by(natural))
    chunk_chars: int = field(default=40, metadata=_by(whole_number(1)))
    split_bytes: int | None = field(default=None, metadata=_by(whole_number(1)))
    cut_after_events: int | None = field(default=None, metadata=_by(natural))
    cut_after_bytes: int | None = field(default=None, metadata=_by(natural))
    pings: int = field(default=0, metadata=_by(natural))
    status: int = field(default=200, metadata=_by(whole_number(400, 599)))
    error: ErrorBody = field(default_factory=lambda: ErrorBody("scripted error"), metadata=_by(_error_of(ERROR_KEYS)))
    headers: Mapping[str, str] = field(default_factory=dict, metadata=_by(table_of(TEXT)))
    stream_error: ErrorBody | None = field(default=None, metadata=_by(_error_of({**ERROR_KEYS, "failed": boolean})))
    garbage: bytes | None = field(default=None, metadata=_by(_garbage))
    hang: bool = field(default=False, metadata=_by(boolean))
    times: int | Literal["always"] | None = field(default=None, metadata=_by(_times))
    repeat: int = field(default=1, metadata=_by(whole_number(1)))

    @property
    def kind(self) -> TurnKind:
        """The kind of answer that is sent."""
        if self.hang:
            return "hang"
        if self.garbage is not None:
            return "garbage"
        return "answer" if self.status == 200 else "http_error"

    @property
    def cut(self) -> bool:
        """True if the connection is closed before the answer is complete."""
        return self.cut_after_bytes is not None or (self.cut_after_events is not None and self.stream_error is None)

    @property
    def fails(self) -> bool:
        """True if the client receives no complete assistant message from this turn."""
        return self.kind != "answer" or self.cut or self.stream_error is not None

    @property
    def limit(self) -> int | None:
        """The maximum number of times that the turn is served in one session; None means no limit."""
        if self.times is None:
            return 1 if self.fails and self.when is None else None
        return self.times if isinstance(self.times, int) else None


TURN_KEYS = keys_of(Turn)


@dataclass(frozen=True, slots=True)
class Script:
    """Turns in file order and the variables that the file defines. `name` is used in error messages. `count_tokens`:
    answers whose turn has no usage report the counted tokens of the request and the answer."""

    turns: tuple[Turn, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    name: str = "script"
    count_tokens: bool = False

    @classmethod
    def load(cls, path: str | os.PathLike[str], variables: Mapping[str, str] | None = None) -> Script:
        """Read a script: TOML if `path` ends in .toml, JSON lines if it ends in .jsonl. With `variables`, placeholders
        are checked too (see `with_variables`). Raises ScriptError if the file cannot be read or is not a valid
        script."""
        name = os.fspath(path)
        script = cls.from_turns(**_read_file(name), name=name)
        return script if variables is None else script.with_variables(variables)

    @classmethod
    def from_turns(
        cls,
        turns: Iterable[Mapping[str, Any]],
        *,
        variables: Mapping[str, Any] | None = None,
        name: str = "script",
        count_tokens: bool = False,
    ) -> Script:
        """Make a script from tables with the same keys as in a file. Raises ScriptError if a turn is invalid."""
        read, wrong = [], list[str]()
        for number, raw in enumerate(turns, 1):
            try:
                read.append(read_turn(number, raw))
            except BadValue as problem:
                wrong.append(cls._problem(name, number, problem.path, problem.text))
        if wrong:
            raise ScriptError(*wrong)
        if not read:
            raise ScriptError(f"{name}: the script has no turns")
        try:
            values = table(variables or {}, dict.fromkeys(variables or {}, string))
        except BadValue as problem:
            raise ScriptError(f"{name}: key 'vars.{problem.path}' {problem.text}") from None
        return cls(tuple(read), values, name, count_tokens)

    def with_variables(self, variables: Mapping[str, str]) -> Script:
        """Return the script with its variables overridden by `variables`. Raises ScriptError if a turn uses a
        placeholder without a value."""
        known = {**self.variables, **variables}
        for turn in self.turns:
            for key in Turn.__dataclass_fields__:
                for name in names_in(getattr(turn, key)):
                    if name not in known and name not in BUILT_IN:
                        names: Sequence[str] = sorted({*known, *BUILT_IN})
                        text = f"unknown placeholder ${{{name}}}; known: {', '.join(names)}"
                        raise ScriptError(self._problem(self.name, turn.number, key, text))
        return Script(self.turns, known, self.name, self.count_tokens)

    @staticmethod
    def _problem(name: str, number: int, key: str, text: str) -> str:
        return f"{name}: turn {number}: {f'key {key!r} ' if key else ''}{text}"


# Valid combinations of a turn's keys.

_ANSWER = ("text", "thinking", "redacted_thinking", "tool_calls")
_WAYS_TO_ANSWER = (*_ANSWER, "stream_error", "status", "garbage", "hang")
_ANSWER_KEYS = (*_ANSWER, "usage", "stop_reason", "chunk_chars", "cut_after_events", "pings", "stream_error")
_EXCLUDES: Mapping[str, tuple[str, ...]] = {
    "status": (*_ANSWER_KEYS, "garbage", "hang", "cut_after_bytes", "split_bytes", "chunk_delay_ms"),
    "garbage": (*_ANSWER_KEYS, "hang"),
    "hang": (*_ANSWER_KEYS, "cut_after_bytes", "split_bytes", "chunk_delay_ms", "headers"),
    "cut_after_bytes": ("cut_after_events", "stream_error"),
    "repeat": ("when",),
}
"""Keys that cannot be combined with a key, because one of the two would have no effect."""


def read_turn(number: int, raw: Any) -> Turn:
    """Read one turn from its table. Raises BadValue with the path of the key below the turn."""
    values = table(raw, TURN_KEYS)
    for key, excluded in _EXCLUDES.items():
        if key in values and (clash := next((other for other in excluded if other in values), None)):
            raise BadValue(f"cannot stand beside {clash!r}", key)
    if not any(key in values for key in _WAYS_TO_ANSWER):
        raise BadValue(f"answers nothing; give one of {', '.join(_WAYS_TO_ANSWER)}")
    if "error" in values and "status" not in values:
        raise BadValue("needs 'status' (an error inside the stream is 'stream_error')", "error")
    turn = Turn(number=number, **values)
    if turn.times is not None and not turn.fails and turn.when is None:
        raise BadValue("is for turns that fail or have 'when'; one that answers by position takes 'repeat'", "times")
    if turn.repeat > 1 and turn.fails:
        raise BadValue("is for turns that answer; one that fails takes 'times'", "repeat")
    return turn


# Script files: TOML with `count_tokens`, `[vars]` and `[[turn]]`, or JSON lines with one turn per line.

_FILE_KEYS = ("count_tokens", "turn", "vars")
_FILE_FORMS = (
    ("vars", dict, "a table: write [vars]"),
    ("turn", list, "an array of tables: write [[turn]]"),
    ("count_tokens", bool, "true or false"),
)


def _read_file(path: str) -> dict[str, Any]:
    """Read a script file into arguments for `Script.from_turns`. Raises ScriptError if it cannot be read or is not
    well-formed."""
    readers = {".toml": _read_toml, ".jsonl": _read_json_lines}
    suffix = next((suffix for suffix in readers if path.endswith(suffix)), None)
    if suffix is None:
        raise ScriptError(f"{path}: a script's name must end in {' or '.join(readers)}")
    try:
        with open(path, "rb") as file:
            text = file.read().decode("utf-8-sig")
    except OSError as error:
        raise ScriptError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ScriptError(f"{path}: is not UTF-8 at byte {error.start}") from None
    return readers[suffix](path, text)


def _read_toml(path: str, text: str) -> dict[str, Any]:
    import tomllib  # imported only if it is needed

    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ScriptError(f"{path}: is not TOML: {error}") from None
    for key in document:
        if key not in _FILE_KEYS:
            raise ScriptError(f"{path}: key {key!r} {unknown_key(key, _FILE_KEYS)}")
    for key, kind, form in _FILE_FORMS:
        if not isinstance(document.get(key, kind()), kind):
            raise ScriptError(f"{path}: key {key!r} must be {form}")
    turns, variables = document.get("turn", []), document.get("vars", {})
    return {"turns": turns, "variables": variables, "count_tokens": document.get("count_tokens", False)}


def _read_json_lines(path: str, text: str) -> dict[str, Any]:
    variables: dict[str, Any] = {}
    turns: list[Mapping[str, Any]] = []
    # Not str.splitlines, which also splits at U+2028, and JSON allows that inside a string.
    for line_number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise ScriptError(f"{path}: line {line_number} is not JSON: {error}") from None
        if not turns and not variables and isinstance(value, dict) and value.keys() == {"vars"}:
            if not isinstance(value["vars"], dict):
                raise ScriptError(f"{path}: line {line_number}: key 'vars' must be a table")
            variables = value["vars"]
        else:
            turns.append(value)
    return {"turns": turns, "variables": variables}


# Placeholders in scripts: `${name}` is replaced by its value, `$${` by a literal `${`; anything else is unchanged.

T = TypeVar("T")

BUILT_IN = frozenset({"turn"})
"""Names that the gateway defines: `turn` is the number of assistant messages before this answer."""

_PLACEHOLDER = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def names_in(value: object) -> list[str]:
    """Return the names of all placeholders in the strings of `value`, at any depth."""
    found = defaultdict[str, str](str)
    fill(value, found)
    return list(found)


def fill(value: T, variables: Mapping[str, str]) -> T:
    """Return `value` with its placeholders filled, except in table keys and compiled patterns. Raises KeyError for a
    placeholder whose name is not in `variables`."""
    filled: Any = value
    if isinstance(value, str):
        if "$" in value:
            filled = _PLACEHOLDER.sub(lambda match: variables[match[1]] if match[1] else "${", value)
    elif isinstance(value, Mapping):
        filled = {key: fill(part, variables) for key, part in value.items()}
    elif isinstance(value, (tuple, list)):
        filled = type(value)(fill(part, variables) for part in value)
    elif is_dataclass(value) and not isinstance(value, type):
        changes = {field.name: fill(getattr(value, field.name), variables) for field in fields(value)}
        filled = replace(value, **changes)
    return cast("T", filled)
