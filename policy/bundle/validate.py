"""Bundles from outside: every problem at once, each with its JSON path and a hint (AH 3.2 step 5, 8.1).

The classes of `policy.bundle.model` are the schema; pydantic's validator, which is imported here and nowhere else, gets
them from `policy.bundle.schema`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pydantic_core import ValidationError

from policy.bundle.meaning import meaning
from policy.bundle.model import PolicyBundle, bundle_part, json_names
from policy.bundle.problems import BundleProblems, Problem, nearest, together
from policy.bundle.schema import bundle_validator
from policy.names import ANY_SESSION, SCHEMA_VERSION

if TYPE_CHECKING:
    from datetime import datetime


MAX_BYTES = 16 * 1024 * 1024


def parse_bundle(raw: bytes | dict[str, Any]) -> PolicyBundle:
    """A bundle from JSON text or from its JSON shape. Raises BundleProblems with all of them."""
    shape, text, problems = read_shape(raw)
    bundle, of_types = typed(text)
    found = tuple(dict.fromkeys((*problems, *together(of_types, meaning(shape)))))
    if found or bundle is None:
        raise BundleProblems(found)
    return bundle


def check_usable(bundle: PolicyBundle, *, session_id: str, now: datetime) -> list[Problem]:
    """Why a valid bundle can't be used for this session now; empty when it can (AH 3.2 step 5, 8.6)."""
    problems: list[Problem] = []
    if bundle.schema_version != SCHEMA_VERSION:
        problems.append(Problem("schemaVersion", f"is {bundle.schema_version}", f"this host reads {SCHEMA_VERSION}"))
    if now >= bundle.expires_at:
        problems.append(Problem("expiresAt", f"the bundle expired at {bundle.expires_at.isoformat()}"))
    if bundle.session_id not in {ANY_SESSION, session_id}:
        problems.append(Problem("sessionId", f"the bundle is for session {bundle.session_id}, not {session_id}"))
    return problems


# Text to shape


def read_shape(raw: bytes | dict[str, Any]) -> tuple[dict[str, Any], str, list[Problem]]:
    """The JSON object, as text too, and what is wrong with how it is written. Raises BundleProblems for no object."""
    problems: list[Problem] = []
    shape = _read(raw, problems) if isinstance(raw, bytes) else raw
    if not isinstance(shape, dict):
        raise BundleProblems(tuple(problems) or (Problem("", "is not a JSON object"),))
    try:
        return shape, json.dumps(shape, allow_nan=False), problems
    except (ValueError, TypeError, RecursionError) as fault:
        raise BundleProblems((*problems, Problem("", f"is not JSON: {fault}"))) from None


def _read(raw: bytes, problems: list[Problem]) -> Any:
    if len(raw) > MAX_BYTES:
        problems.append(Problem("", f"is longer than {MAX_BYTES} bytes"))
        return None

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        shape = dict(pairs)
        left = dict.fromkeys(shape, 1)
        twice: dict[str, None] = {}
        for name, _ in pairs:
            left[name] -= 1
            if left[name] < 0:
                twice[name] = None
        problems.extend(Problem(name, "the field stands twice in one object") for name in twice)
        return shape

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not a JSON number")

    try:
        return json.loads(raw, object_pairs_hook=once, parse_constant=refuse)
    except (ValueError, RecursionError) as fault:
        problems.append(Problem("", f"is not JSON: {fault}"))
        return None


# Shape to types


def typed(text: str) -> tuple[PolicyBundle | None, list[Problem]]:
    """The bundle of JSON text, None where there are problems with its types."""
    try:
        bundle: PolicyBundle = bundle_validator().validate_json(text)
        return bundle, []
    except ValidationError as fault:
        return None, type_problems(fault)


def type_problems(fault: ValidationError, place: tuple[int | str, ...] = ()) -> list[Problem]:
    """What the validator says, in our words; `place` is where in a bundle stands what it was given."""
    errors = fault.errors(include_url=False, include_context=False, include_input=False)
    return [_from_pydantic((*place, *error["loc"]), error["type"], error["msg"]) for error in errors]


MISSING = "is missing"
UNKNOWN = "is not a field of this object"
_MESSAGES = {
    "missing": MISSING,
    "unexpected_keyword_argument": UNKNOWN,
    "tuple_type": "must be a list",
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "bool_type": "must be true or false",
}
_HINTS = {
    "tuple_type": "in square brackets",
    "string_type": "in double quotes",
    "int_type": "in digits, without quotes",
    "bool_type": "without quotes",
}
_EXAMPLES = {
    "policyBundleVersion": '"2026-01-31.1"',
    "schemaVersion": f'"{SCHEMA_VERSION}"',
    "tenantId": '"acme"',
    "userId": '"jo"',
    "sessionId": f'"{ANY_SESSION}", which stands for any session',
    "expiresAt": '"2026-01-31T12:00:00Z"',
    "capabilities": '[{"name": "LLM.Call"}]',
    "allowedModels": '["claude-sonnet-4-5"]',
    "maxInputTokens": "200000",
    "maxOutputTokens": "16384",
    "maxSessionTokens": "1000000",
    "approvalRules": "[]",
    "approvalRuleId": '"shell"',
    "title": '"Run a command"',
    "description": '"It runs on this machine with your rights."',
    "transport": '"stdio" or "http"',
    "redactionRuleId": '"ticket-numbers"',
    "pattern": '"T-[0-9]{6}"',
    "command": '"git"',
    "index": "0",
}
"""What a required field may look like, by its name."""


def _from_pydantic(loc: tuple[int | str, ...], kind: str, message: str) -> Problem:
    field = str(loc[-1]) if loc else ""
    hint = _HINTS.get(kind)
    if kind == "unexpected_keyword_argument":
        hint = nearest(field, _fields_at(loc[:-1]))
    elif kind == "missing" and field in _EXAMPLES:
        hint = f"such as {_EXAMPLES[field]}"
    return Problem(_json_path(loc), _MESSAGES.get(kind, message.replace("Input should be", "must be")), hint)


def _fields_at(loc: tuple[int | str, ...]) -> tuple[str, ...]:
    cls: type = PolicyBundle
    for step in loc:
        if isinstance(step, str):
            cls = bundle_part(cls, step) or cls
    return json_names(cls)


def _json_path(loc: tuple[int | str, ...]) -> str:
    path = ""
    for step in loc:
        path += f"[{step}]" if isinstance(step, int) else (f".{step}" if path else step)
    return path
