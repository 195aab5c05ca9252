"""The JSON text of parts of one chunk of a Chat Completions stream."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from agent_host.llm.raw_json import elements, members

if TYPE_CHECKING:
    from collections.abc import Mapping


class RawChunk:
    """Each part is looked for once, when it is first asked for: nearly all chunks hold texts only. All methods raise
    ValueError or LookupError for what is not there."""

    def __init__(self, data: str) -> None:
        self._data = data
        self._deltas: dict[int, Mapping[str, str]] = {}
        self._calls: dict[int, list[str]] = {}

    def delta(self, choice: int) -> Mapping[str, str]:
        """The members of the delta of the choice at this place, by name."""
        if choice not in self._deltas:
            self._deltas[choice] = members(members(self._choices[choice])["delta"])
        return self._deltas[choice]

    def call(self, choice: int, number: int) -> Mapping[str, str]:
        """The members of an entry of that delta's `tool_calls`."""
        if choice not in self._calls:
            self._calls[choice] = elements(self.delta(choice)["tool_calls"])
        return members(self._calls[choice][number])

    def function_call(self, choice: int) -> Mapping[str, str]:
        """The delta's `function_call`, as the member of a call."""
        return {"function": self.delta(choice)["function_call"]}

    @cached_property
    def _choices(self) -> list[str]:
        return elements(members(self._data)["choices"])
