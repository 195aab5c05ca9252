"""What a line has evaluated as arithmetic: the text of a variable, in which a subscript runs substitutions.

It is harmless where the variable can only hold numbers, and where nothing in the line could be, or be made to, a
substitution that is not yet run.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from policy.names import words
from policy.shell.numbers import names_evaluated

if TYPE_CHECKING:
    from tree_sitter import Node

    from policy.shell.variables import Variables

_DATA = words("string_content raw_string ansi_c_string heredoc_body")
_CODE_IN_DATA = re.compile(rb"\$\(|`|\\[x0-9uU]")
_CODE_ANYWHERE = re.compile(rb"\\[$`]")


class Evaluated:
    """The names of one line, and the text that its quotes keep from being expanded."""

    def __init__(self, source: bytes) -> None:
        self._source = source
        self._names: set[str] = set()
        self._data: list[bytes] = []

    def note(self, node: Node) -> None:
        """Notes the names in a node of arithmetic, or of a comparison of numbers."""
        self._names |= names_evaluated(self._source, node)

    def note_subscript(self, node: Node) -> None:
        """Notes the names in the subscript of an element that is assigned to."""
        self._names |= names_evaluated(self._source, node.children[2])

    def note_data(self, node: Node, kind: str) -> None:
        """Notes the text of a node that is not expanded."""
        if kind in _DATA:
            self._data.append(self._source[node.start_byte : node.end_byte].strip(b"'\""))

    def may_run_code(self, variables: Variables) -> bool:
        """Whether a variable that is evaluated may hold a substitution."""
        return not all(map(variables.is_number, self._names)) and self._has_code()

    def _has_code(self) -> bool:
        if _CODE_ANYWHERE.search(self._source) or any(_CODE_IN_DATA.search(one) for one in self._data):
            return True
        # A dollar in one piece and a bracket in another can be put together.
        is_opened = b"\\(" in self._source or any(one.startswith(b"(") for one in self._data)
        return is_opened and any(one.endswith(b"$") for one in self._data)
