"""Bundles from outside: every problem at once, each with its JSON path and a hint (AH 3.2 step 5, 8.1)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from config.json_text import TooDeep, check_depth
from policy.bundle.meaning import command_policy_problems, meaning
from policy.bundle.model import BundleProblem, BundleProblems, CommandPolicy, PolicyBundle, together
from policy.bundle.typed import WRONG, read_list, read_object
from policy.names import ANY_SESSION, SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

MAX_BYTES = 16 * 1024 * 1024


def parse_bundle(raw: bytes | dict[str, Any]) -> PolicyBundle:
    """A bundle from JSON text or from its JSON shape. Raises BundleProblems with all of them."""
    shape, problems = read_shape(raw)
    bundle, of_types = read_typed(shape)
    found = tuple(dict.fromkeys((*problems, *together(of_types, meaning(shape)))))
    if found or bundle is None:
        raise BundleProblems(found)
    return bundle


def check_usable(bundle: PolicyBundle, *, session_id: str, now: datetime) -> list[BundleProblem]:
    """Why a valid bundle can't be used for this session now; empty when it can (AH 3.2 step 5, 8.6)."""
    problems: list[BundleProblem] = []
    if bundle.schema_version != SCHEMA_VERSION:
        problems.append(
            BundleProblem("schemaVersion", f"is {bundle.schema_version}", f"this host reads {SCHEMA_VERSION}")
        )
    if now >= bundle.expires_at:
        problems.append(BundleProblem("expiresAt", f"the bundle expired at {bundle.expires_at.isoformat()}"))
    if bundle.session_id not in {ANY_SESSION, session_id}:
        problems.append(BundleProblem("sessionId", f"the bundle is for session {bundle.session_id}, not {session_id}"))
    return problems


# Text to shape


def read_shape(raw: bytes | dict[str, Any]) -> tuple[dict[str, Any], list[BundleProblem]]:
    """The JSON object, and what is wrong with how it is written. Raises BundleProblems for no object."""
    problems: list[BundleProblem] = []
    shape = _read(raw, problems) if isinstance(raw, bytes) else _load_json(raw)
    if not isinstance(shape, dict):
        raise BundleProblems(tuple(problems) or (BundleProblem("", "is not a JSON object"),))
    return shape, problems


def _load_json(raw: Any) -> Any:
    try:
        text = json.dumps(raw, allow_nan=False)
        check_depth(text)
        return json.loads(text)
    except RecursionError:
        raise BundleProblems((BundleProblem("", f"is not JSON: {TooDeep()}"),)) from None
    except (ValueError, TypeError) as fault:
        raise BundleProblems((BundleProblem("", f"is not JSON: {fault}"),)) from None


def _read(raw: bytes, problems: list[BundleProblem]) -> Any:
    if len(raw) > MAX_BYTES:
        problems.append(BundleProblem("", f"is longer than {MAX_BYTES} bytes"))
        return None

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        shape = dict(pairs)
        left = dict.fromkeys(shape, 1)
        twice: dict[str, None] = {}
        for name, _ in pairs:
            left[name] -= 1
            if left[name] < 0:
                twice[name] = None
        problems.extend(BundleProblem(name, "the field stands twice in one object") for name in twice)
        return shape

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not a JSON number")

    try:
        text = raw.decode(json.detect_encoding(raw), "surrogatepass")
        check_depth(text)
        return json.loads(text, object_pairs_hook=once, parse_constant=refuse)
    except ValueError as fault:
        problems.append(BundleProblem("", f"is not JSON: {fault}"))
        return None


def read_typed(shape: Any) -> tuple[PolicyBundle | None, list[BundleProblem]]:
    """The bundle of a JSON shape, None where there are problems with its types."""
    problems: list[BundleProblem] = []
    bundle = read_object(PolicyBundle, shape, problems)
    return None if bundle is WRONG else bundle, problems


# commandPolicies from configuration, which only narrows: the rules and messages of a bundle, and one rule more.


def command_policies(entries: Sequence[dict[str, Any]], name: str) -> tuple[CommandPolicy, ...]:
    """The entries (JSON shape) as values. `name` is what the problems call the list.

    Raises BundleProblems with all that is wrong, `startsPrograms: true` included: nothing here can add.
    """
    try:
        shape = json.loads(json.dumps(list(entries), allow_nan=False))
    except (ValueError, TypeError) as fault:
        raise BundleProblems((BundleProblem(name, f"is not JSON: {fault}"),)) from None
    of_types: list[BundleProblem] = []
    policies = read_list(CommandPolicy, shape, of_types, (name,))
    of_values: list[BundleProblem] = []
    for place, entry in enumerate(entries):
        of_values += command_policy_problems(f"{name}[{place}]", entry)
        of_values += _grants(f"{name}[{place}]", entry)
    problems = together(of_types, of_values)
    if problems:
        raise BundleProblems(problems)
    return tuple(policies)


def _grants(path: str, entry: dict[str, Any]) -> Iterator[BundleProblem]:
    if entry.get("startsPrograms") is True:
        yield BundleProblem(
            f"{path}.startsPrograms", "is true, and configuration only narrows", "false, or leave it out"
        )
