"""Nodes of the grammar's tree, and the text that they stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node


def text_of(source: bytes, node: Node) -> str:
    """The text that a node stands for."""
    return source[node.start_byte : node.end_byte].decode()


def without_parts(source: bytes, node: Node, kinds: frozenset[str], mark: bytes = b"x") -> str:
    """A node's text with `mark` in the place of each byte of the outermost nodes of these kinds below it."""
    text = bytearray(source[node.start_byte : node.end_byte])
    pending = list(node.children)
    while pending:
        one = pending.pop()
        if one.type in kinds:
            text[one.start_byte - node.start_byte : one.end_byte - node.start_byte] = mark * (
                one.end_byte - one.start_byte
            )
        else:
            pending.extend(one.children)
    return text.decode()


def descendants(node: Node) -> list[Node]:
    """A node and all below it."""
    seen, pending = [], [node]
    while pending:
        one = pending.pop()
        seen.append(one)
        pending.extend(one.children)
    return seen
