"""Policy, which makes a scope, and the runtime, which holds and explains it, mean the same by it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from policy.rules.command_scope import may_read, may_write
from policy.scope import CommandScope
from tool_runtime.core.scope_verdict import refusal

NAMES = st.sampled_from(["a", "b", "ab"])
PATHS = st.lists(NAMES, max_size=3).map(lambda parts: "/" + "/".join(parts))
LISTS = st.lists(PATHS, max_size=3).map(tuple)


@given(st.none() | LISTS, LISTS, LISTS, LISTS, PATHS)
def test_the_same_verdict(
    reads: tuple[str, ...] | None,
    writes: tuple[str, ...],
    hidden: tuple[str, ...],
    guarded: tuple[str, ...],
    path: str,
) -> None:
    scope = CommandScope(reads, writes, hidden, guarded)
    assert (refusal(scope, path, write=False) is None) == may_read(scope, path, "posix")
    assert (refusal(scope, path, write=True) is None) == may_write(scope, path, "posix")
