"""Identity of actions, for an approval that reaches further than one call: the same file, the same command in the same
directory, the same request (SK 3.3). Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from policy.facts import CommandFacts, NamedToolFacts, PathFacts, UrlFacts
from policy.paths import key, normalize
from policy.urls import UrlProblem, host_of, port_of

if TYPE_CHECKING:
    from policy import Widening
    from policy.facts import ActionFacts, OsFamily

# A line of these alone means the same however many blanks stand between its words.
_PLAIN_LINE = re.compile(r"[A-Za-z0-9_./:=,@%+ \t-]*\n?")
_SPLITTING_SHELLS = frozenset({"bash", "sh", "zsh"})
_URL = re.compile(r"([A-Za-z]+)://[^/?#]*([^?#]*)([^#]*)", re.DOTALL)
_DEFAULT_PORTS = {"http": 80, "https": 443}


def canonical_form(facts: ActionFacts, os: OsFamily) -> tuple[str, ...]:
    """The action in one spelling: two calls of one tool with the same form act on the same thing in the same way.

    For a file that is where it really is, whatever is written there; for a command its working directory, shell and
    text, the content of a skill's script, and what its scope is to be wider by; for a request its method, its URL and
    the files that it sends or saves.
    """
    if isinstance(facts, PathFacts):
        return ("path", *(key(normalize(path, os), os, "narrow") for path in facts.real_paths))
    if isinstance(facts, CommandFacts):
        line = facts.command
        # Programs on Windows get the line as it is.
        if _PLAIN_LINE.fullmatch(line) and facts.shell in _SPLITTING_SHELLS:
            line = " ".join(line.split())
        script = () if facts.script is None else (facts.script.identity,)
        return ("command", facts.shell, facts.cwd, line, *script, *_additions(facts.widening))
    if isinstance(facts, UrlFacts):
        files = (f"{needed} {key(normalize(one.real_path, os), os, 'narrow')}" for needed, one in facts.also)
        return ("request", facts.method, canonical_url(facts.url), *files)
    if not isinstance(facts, NamedToolFacts):
        return ("tool", facts.tool_name)
    identity = (facts.identity,) if facts.identity else ()
    others = (part for needed, one in facts.also for part in (needed, *canonical_form(one, os)))
    return ("tool", facts.tool_name, *identity, *others, *_additions(facts.widening))


def _additions(widening: Widening | None) -> tuple[str, ...]:
    """The additions to a call's scope; the reason does not count."""
    return () if widening is None else ("opened", *sorted(widening.lines))


def canonical_url(url: str) -> str:
    """Scheme, host and port in one spelling, path and query as they are, no fragment. What is no URL stays as it is."""
    match = _URL.match(url)
    if match is None:
        return url
    try:
        host, port = host_of(url), port_of(url)
    except UrlProblem:
        return url
    scheme = match[1].lower()
    shown = f"[{host}]" if ":" in host else host
    shown += f":{port}" if port and port != _DEFAULT_PORTS.get(scheme) else ""
    return f"{scheme}://{shown}{match[2] or '/'}{match[3]}"
