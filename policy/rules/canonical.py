"""Identities that approvals are bound to: one exact call, or the action that a wider one is for, as the same file, the
same command in the same directory, the same request (AH 10.2, SK 3.3). Pure."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, Final

import orjson

from policy import SANDBOX_GRANT
from policy.facts import CommandFacts, NamedToolFacts, PathFacts, UrlFacts
from policy.paths import key, normalize
from policy.urls import UrlProblem, host_of, port_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from policy import Widening
    from policy.facts import ActionFacts, OsFamily

_BETWEEN: Final = "\n\0"
"""Separator of a call's paths: no real path begins like this after another."""
# A line of only these characters does not depend on the number of blanks between its words.
_PLAIN_LINE = re.compile(r"[A-Za-z0-9_./:=,@%+ \t-]*\n?")
_SPLITTING_SHELLS = frozenset({"bash", "sh", "zsh"})
_URL = re.compile(r"([A-Za-z]+)://[^/?#]*([^?#]*)([^#]*)", re.DOTALL)
_DEFAULT_PORTS = {"http": 80, "https": 443}


def exact_call(tool_name: str, arguments: Mapping[str, Any], facts: ActionFacts, policy_hash: str) -> str:
    """The identity of one call, as SHA-256 in hex: its arguments, its paths, and the policy that required the
    approval."""
    place = place_of(facts)
    where = {"cwd": place} if place is None or isinstance(facts, CommandFacts) else {"cwd": None, "file": place}
    return _digest(toolName=tool_name, arguments=dict(arguments), policy=policy_hash, **where)


def place_of(facts: ActionFacts | None) -> str | None:
    """The real paths of a call, in recordable form: the directory of a command, with the script of a skill and the
    places that widen its scope, the files of a file call or of a request; None if it has none. The arguments do not
    determine them: a link may change between the question and the start."""
    if isinstance(facts, CommandFacts):
        script = () if facts.script is None else (f"{facts.script.path} (SHA-256 {facts.script.identity})",)
        opened = () if facts.widening is None else facts.widening.write
        return _BETWEEN.join(map(_recordable, (facts.cwd, *script, *opened)))
    paths = facts.real_paths if isinstance(facts, PathFacts | UrlFacts) else ()
    return _BETWEEN.join(map(_recordable, paths)) if paths else None


def move_problem(asked: str | None, now: str | None) -> str | None:
    """Return why an approval for the paths `asked` does not apply to the paths `now`; None if it does."""
    if asked is None or asked == now:
        return None
    then, leads = (" and ".join((place or "").split(_BETWEEN)) for place in (asked, now))
    return f"it was to act in {then} when that was asked, and leads to {leads} now: that needs an approval of its own"


def same_action(
    tool_name: str,
    arguments: Mapping[str, Any],
    facts: ActionFacts,
    policy_hash: str,
    *,
    fact_arguments: frozenset[str | None],
    os: OsFamily,
) -> str:
    """The identity of an action, as SHA-256 in hex: the tool, the canonical form of its subject, its other arguments,
    and the policy that required the approval. `fact_arguments` are the arguments with its subject, and the one with the
    content that it writes to a file."""
    seen = fact_arguments | ({"cwd", SANDBOX_GRANT} if isinstance(facts, CommandFacts) else {SANDBOX_GRANT})
    return _digest(
        toolName=tool_name,
        form=tuple(map(_recordable, canonical_form(facts, os))),
        others={name: value for name, value in arguments.items() if name not in seen},
        policy=policy_hash,
    )


def canonical_form(facts: ActionFacts, os: OsFamily) -> tuple[str, ...]:
    """The canonical form of an action: two calls of one tool with the same form act on the same thing in the same way.

    For a file it is its real path, whatever is written there; for a command its working directory, shell and text, the
    content of a skill's script, and the additions to its scope; for a request its method, its URL and the files that it
    sends or saves.
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
    """Scheme, host and port in one spelling, path and query unchanged, no fragment. A text that is not a URL is
    unchanged."""
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


def _recordable(text: str) -> str:
    """The text; for a name that is not UTF-8, its bytes in hex after a character that no name contains."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return "\0" + text.encode("utf-8", "surrogatepass").hex()
    return text


def _digest(**parts: Any) -> str:
    return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).hexdigest()
