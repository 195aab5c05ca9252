"""The profile for sandbox-exec, as text: what comes last decides."""

from __future__ import annotations

import pytest

from policy.scope import CommandScope
from tool_runtime.platform.macos_sandbox import argv, not_held, profile

SCOPE = CommandScope(writes=("/ws", "/tmp/p"), hidden=("/home/.ssh", "/ws/.env"), guarded=("/ws/.git/hooks",))


def test_all_is_denied_first_and_what_is_blocked_comes_last() -> None:
    lines = profile(SCOPE).splitlines()
    assert lines[:2] == ["(version 1)", "(deny default)"]
    order = [
        lines.index(line)
        for line in (
            "(allow file-read*)",
            '(allow file-read* file-write* (subpath "/ws") (subpath "/tmp/p"))',
            '(deny file-write* (subpath "/ws/.git/hooks"))',
            '(deny file-read* file-write* (subpath "/home/.ssh") (subpath "/ws/.env"))',
        )
    ]
    assert order == sorted(order)
    assert order[-1] == len(lines) - 1


def test_strict_reading_names_its_places() -> None:
    text = profile(SCOPE._replace(reads=("/usr", "/ws")))
    assert "(allow file-read*)\n" not in text
    assert '(allow file-read* (subpath "/usr") (subpath "/ws"))' in text


def test_what_is_granted_inside_of_what_is_hidden_stays_granted() -> None:
    scope = CommandScope(writes=("/state/tmp",), hidden=("/state", "/state/tmp/x"))
    lines = profile(scope).splitlines()
    assert lines[-2:] == [
        '(allow file-read* file-write* (subpath "/state/tmp"))',
        '(deny file-read* file-write* (subpath "/state/tmp/x"))',
    ]


def test_the_network_is_loopback_alone_unless_it_is_open() -> None:
    assert "(allow network*)" not in profile(SCOPE)
    assert "localhost:4711" in profile(SCOPE._replace(domains=("a.b",)), proxy_port=4711)
    assert "(allow network*)" in profile(SCOPE._replace(domains=None))
    assert "(allow network*)" not in profile(SCOPE._replace(domains=None, blocked_domains=("a.b",)))


def test_places_are_quoted() -> None:
    assert '(subpath "/a \\"b\\\\c")' in profile(CommandScope(writes=('/a "b\\c',)))
    with pytest.raises(ValueError, match="cannot hold"):
        profile(CommandScope(writes=("/a\n(allow default)",)))


def test_it_says_what_it_does_not_hold_and_starts_the_program() -> None:
    assert len(not_held(SCOPE)) == 3
    assert argv("(version 1)", ["/bin/echo", "x"]) == ["/usr/bin/sandbox-exec", "-p", "(version 1)", "/bin/echo", "x"]
