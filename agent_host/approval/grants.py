"""Identities that approvals are bound to: one exact call, or the action that a wider one is for (AH 10.2, SK 3.3).
Pure."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

import orjson

from policy import SANDBOX_GRANT
from policy.facts import CommandFacts, PathFacts, UrlFacts
from policy.rules.canonical import canonical_form

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from policy.facts import ActionFacts, OsFamily
    from state.records import ApprovalGranted


_BETWEEN: Final = "\n\0"
"""Between the places of one call: no real path that stands behind another begins so."""


def exact_call(tool_name: str, arguments: Mapping[str, Any], facts: ActionFacts, policy_hash: str) -> str:
    """The identity of one call, as sha256 in hex: the arguments, where it acts, and the policy that asked."""
    place = place_of(facts)
    where = {"cwd": place} if place is None or isinstance(facts, CommandFacts) else {"cwd": None, "file": place}
    return _digest(toolName=tool_name, arguments=dict(arguments), policy=policy_hash, **where)


def place_of(facts: ActionFacts | None) -> str | None:
    """The real paths where a call acts, in a form that can be put on record: the directory of a command, with the
    script of a skill as it is and the places that its scope is to be wider by, the files of a file call or of a
    request; None if it has none. The arguments do not say it: a link on the way may be moved between the question and
    the start."""
    if isinstance(facts, CommandFacts):
        script = () if facts.script is None else (f"{facts.script.path} (SHA-256 {facts.script.identity})",)
        opened = () if facts.widening is None else facts.widening.write
        return _BETWEEN.join(map(_recordable, (facts.cwd, *script, *opened)))
    paths = facts.real_paths if isinstance(facts, PathFacts | UrlFacts) else ()
    return _BETWEEN.join(map(_recordable, paths)) if paths else None


def move_problem(asked: str | None, now: str | None) -> str | None:
    """Why an approval of what acts at the place `asked` is none for what acts at `now`; None when it is one."""
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
    told_by_facts: frozenset[str | None],
    os: OsFamily,
) -> str:
    """The identity of an action, as sha256 in hex: the tool, what it acts on in one spelling, its other arguments, and
    the policy that asked. `told_by_facts` are the arguments that say on what it acts, and the one with the content that
    it writes to a file."""
    seen = told_by_facts | ({"cwd", SANDBOX_GRANT} if isinstance(facts, CommandFacts) else {SANDBOX_GRANT})
    return _digest(
        toolName=tool_name,
        form=tuple(map(_recordable, canonical_form(facts, os))),
        others={name: value for name, value in arguments.items() if name not in seen},
        policy=policy_hash,
    )


def covering(grants: Iterable[ApprovalGranted], *, action: str, task_id: str) -> str | None:
    """The approvalId of the first of `grants` that covers the `action`, None when it has to be asked for. One of scope
    task ends with its task; one that an earlier version recorded without an action covers nothing."""
    for grant in grants:
        in_scope = grant.scope == "session" or (grant.scope == "task" and grant.task_id == task_id)
        if in_scope and grant.action_hash == action:
            return grant.approval_id
    return None


def _recordable(text: str) -> str:
    """The text; where it is a name that is not UTF-8, its bytes in hex behind a character that no name has."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return "\0" + text.encode("utf-8", "surrogatepass").hex()
    return text


def _digest(**parts: Any) -> str:
    return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).hexdigest()
