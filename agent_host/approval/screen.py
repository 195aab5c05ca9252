"""What the describers of a call share: the call as a value, and the one way that its text takes to a person."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from agent_host import lenient_json
from agent_host.shown_text import LINE_BYTES, clipped, one_line
from policy.facts import CommandFacts, NamedToolFacts
from policy.names import SANDBOX_GRANT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent_host.contracts import ToolSpec
    from policy.facts import ActionFacts
    from policy.scope import Widening

_PATH_BYTES = 2048
_MAX_OTHER_BYTES = 16 * 1024


class Act(NamedTuple):
    """A call that is to be described; `workspace` is a real path."""

    spec: ToolSpec
    arguments: Mapping[str, Any]
    facts: ActionFacts
    workspace: str


class Description(NamedTuple):
    """`summary` is one line; `details` what follows toolName and capability in the request's details."""

    summary: str
    details: dict[str, Any]


class Screen(NamedTuple):
    """Secrets of this process out first, then escapes, then the cut: no half of a secret is left at an end."""

    scrub: Callable[[str], str]

    def line(self, text: str, max_bytes: int = LINE_BYTES) -> str:
        """`text` on one line, in at most `max_bytes` of JSON."""
        return one_line(self.scrub(text), max_bytes)

    def text(self, text: str, max_bytes: int) -> str:
        """`text` with its lines, in at most `max_bytes` of JSON and the note of a cut."""
        return clipped(self.scrub(text), max_bytes)

    def path(self, path: str) -> str:
        """A path, whole in all but odd cases."""
        return self.line(path, _PATH_BYTES)

    def others(self, act: Act, *described: str | None, max_bytes: int = _MAX_OTHER_BYTES) -> dict[str, str]:
        """The arguments that nothing else in the description shows, so that none goes unseen."""
        grant = SANDBOX_GRANT if widening_of_facts(act.facts) is not None else None
        shown_already = (*act.spec.subjects, grant, *described)
        rest = {name: value for name, value in act.arguments.items() if name not in shown_already}
        if not rest:
            return {}
        shown = lenient_json.dumps(rest, option=orjson.OPT_INDENT_2).decode()
        return {"otherArguments": self.text(shown, max_bytes)}


def widening_of_facts(facts: ActionFacts) -> Widening | None:
    """What a call that starts a program asks for beyond its sandbox."""
    return facts.widening if isinstance(facts, CommandFacts | NamedToolFacts) else None


def short_path(path: str, workspace: str) -> str:
    """`path` relative to the workspace where it is in it."""
    inside = path.startswith(workspace.rstrip(os.sep) + os.sep)
    return path[len(workspace.rstrip(os.sep)) + 1 :] if inside else path
