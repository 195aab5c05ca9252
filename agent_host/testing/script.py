"""The script of the mock gateway: what is answered, turn by turn, and what each request must have held.

`docs/mock-gateway.md` describes every key. Reading a script checks all of it; a mistake is one line that names the
file, the turn and the key.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import orjson

from agent_host.testing import placeholders
from agent_host.testing.values import BadValue, string, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agent_host.testing.conditions import Condition

TurnKind = Literal["answer", "http_error", "garbage", "hang"]
ALWAYS = "always"


class ScriptError(ValueError):
    """A script cannot be used. The message is one line: file, turn number, key, problem."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call in an answer. `raw_arguments` is sent as it stands and may be broken JSON."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    raw_arguments: str | None = None
    id: str | None = None

    def encoded_arguments(self) -> str:
        """The JSON text of the arguments, or the raw text that stands for it."""
        return self.raw_arguments if self.raw_arguments is not None else orjson.dumps(self.arguments).decode()


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts reported with an answer. Small fixed defaults, so that budgets never run out by surprise. Of
    `cache_creation_input_tokens` those of `cache_creation_1h_input_tokens` are kept for an hour."""

    input_tokens: int = 100
    output_tokens: int = 20
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_creation_1h_input_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """An error as the dialect reports it; an empty `type` stands for the usual one of the HTTP status. `failed`: in a
    stream it is the end of a response that failed, where the wire has such an end."""

    message: str
    type: str = ""
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a script; `number` counts from 1 in file order. The other fields are the script's keys."""

    number: int
    when: tuple[Condition, ...] | None = None
    expect: tuple[Condition, ...] = ()
    text: str = ""
    thinking: str = ""
    redacted_thinking: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage = field(default_factory=Usage)
    stop_reason: str = ""
    delay_ms: int = 0
    chunk_delay_ms: int = 0
    chunk_chars: int = 40
    split_bytes: int | None = None
    cut_after_events: int | None = None
    cut_after_bytes: int | None = None
    pings: int = 0
    status: int = 200
    error: ErrorBody = field(default_factory=lambda: ErrorBody("scripted error"))
    headers: Mapping[str, str] = field(default_factory=dict)
    stream_error: ErrorBody | None = None
    garbage: bytes | None = None
    hang: bool = False
    times: int | Literal["always"] | None = None
    repeat: int = 1

    @property
    def kind(self) -> TurnKind:
        """How the answer is sent."""
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
        """True if the client gets no complete assistant message out of this turn."""
        return self.kind != "answer" or self.cut or self.stream_error is not None

    @property
    def limit(self) -> int | None:
        """How often the turn is served in one session; None is no limit."""
        if self.times is None:
            return 1 if self.fails and self.when is None else None
        return self.times if isinstance(self.times, int) else None


@dataclass(frozen=True, slots=True)
class Script:
    """Turns in file order and the variables that the file defines. `name` is used in error messages. `count_tokens`:
    answers whose turn says no usage report what was counted of the request and the answer."""

    turns: tuple[Turn, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    name: str = "script"
    count_tokens: bool = False

    @classmethod
    def load(cls, path: str | os.PathLike[str], variables: Mapping[str, str] | None = None) -> Script:
        """Read a script: TOML when `path` ends in .toml, JSON lines when it ends in .jsonl.

        With `variables`, placeholders are checked too (see `with_variables`).

        Raises:
            ScriptError: the file cannot be read, or is not a valid script.
        """
        from agent_host.testing.script_files import read_file  # the parser is for this moment only

        name = os.fspath(path)
        file = read_file(name)
        script = cls.from_turns(file.turns, variables=file.variables, name=name, count_tokens=file.count_tokens)
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
        """A script from tables with the same keys as in a file.

        Raises:
            ScriptError: a turn is not valid.
        """
        from agent_host.testing.script_keys import read_turn

        read = []
        for number, raw in enumerate(turns, 1):
            try:
                read.append(read_turn(number, raw))
            except BadValue as problem:
                raise cls._error(name, number, problem.path, problem.text) from None
        if not read:
            raise ScriptError(f"{name}: the script has no turns")
        try:
            values = table(variables or {}, dict.fromkeys(variables or {}, string))
        except BadValue as problem:
            raise ScriptError(f"{name}: key 'vars.{problem.path}' {problem.text}") from None
        return cls(tuple(read), values, name, count_tokens)

    def with_variables(self, variables: Mapping[str, str]) -> Script:
        """The same script, its variables overlaid with `variables`; every placeholder must then have a value.

        Raises:
            ScriptError: a turn uses a placeholder that nothing defines.
        """
        known = {**self.variables, **variables}
        for turn in self.turns:
            for key in Turn.__dataclass_fields__:
                for name in placeholders.names_in(getattr(turn, key)):
                    if name not in known and name not in placeholders.BUILT_IN:
                        names: Sequence[str] = sorted({*known, *placeholders.BUILT_IN})
                        text = f"unknown placeholder ${{{name}}}; known: {', '.join(names)}"
                        raise self._error(self.name, turn.number, key, text)
        return Script(self.turns, known, self.name, self.count_tokens)

    @staticmethod
    def _error(name: str, number: int, key: str, text: str) -> ScriptError:
        return ScriptError(f"{name}: turn {number}: {f'key {key!r} ' if key else ''}{text}")
