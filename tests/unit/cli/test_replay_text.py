"""What `replay` says to a person of the sandbox."""

from __future__ import annotations

from typing import Any

from agent_host.cli import replay
from agent_host.host.replay import ReplayDenials, Replayed

SCOPE: dict[str, Any] = {
    "level": "landlock", "reads": None, "writes": ["/w"], "hidden": [], "guarded": [], "domains": [],
    "blockedDomains": [], "agents": [], "unheld": ["a", "b"], "withheld": ["c"],
}  # fmt: skip


def test_how_commands_are_held_and_what_was_refused_then_and_now() -> None:
    then, now = {"level": "namespace", "wanted": "auto"}, {"level": "landlock", "wanted": "auto", "scope": SCOPE}
    refusals = (
        ReplayDenials(2, "RunCommand", ("write /a: refused", "read /b: refused"), ("read /b: refused", "x\x1b: y")),
    )
    said = "".join(
        replay._text(Replayed(2, None, None, then, now, (*refusals, ReplayDenials(3, "look", (), (), {"off": True}))))
    )
    assert said.splitlines() == [
        "2 calls, all as on record",
        "commands run in the landlock sandbox:",
        "  reads every place",
        "  writes /w",
        "  reaches no host",
        "  not held: 2 rules, which --output json names",
        "  refused as well: c",
        "  on record they ran at the level namespace",
        "call 2, RunCommand: read /b: refused",
        "call 2, RunCommand: x\\x1b: y (not on record)",
        "call 2, RunCommand: on record, and not now: write /a: refused",
        'call 3, look: asked of the sandbox: {"off":true}',
    ]


def test_that_nothing_holds_commands() -> None:
    said = "".join(replay._text(Replayed(1, None, now={"level": "none", "wanted": "auto", "why": "no kernel"})))
    assert said.endswith("commands run without a sandbox (no kernel)\n")
    assert "".join(replay._text(Replayed(1, None))) == "1 call, all as on record\n"
