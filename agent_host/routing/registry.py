"""The tools of a session, by name: a value that goes to all code that asks about a tool."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agent_host.contracts import ToolSpec


class Registry:
    """Tools in the order in which the model is shown them. Of two with one name the first counts."""

    def __init__(self, specs: Iterable[ToolSpec] = ()) -> None:
        self._by_name: dict[str, ToolSpec] = {}
        for spec in specs:
            self._by_name.setdefault(spec.name, spec)

    def get(self, name: str) -> ToolSpec | None:
        """The tool of this name; None where there is none, and a call of it never runs (invariant 1)."""
        return self._by_name.get(name)

    def __iter__(self) -> Iterator[ToolSpec]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def names(self) -> frozenset[str]:
        """The names of all."""
        return frozenset(self._by_name)

    @property
    def capabilities(self) -> frozenset[str]:
        """The capabilities that they need."""
        return frozenset(capability for spec in self for capability in spec.capabilities)
