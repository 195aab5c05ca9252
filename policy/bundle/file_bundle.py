"""Bundles given by file: what their user need not write down, and what they build on (interface section 3).

A file may hold placeholders and groups, leave `expiresAt` out, and start from a built-in with `extends`. Problems name
the JSON path in the file, so its own shape is judged before anything is added to it.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from config.lean_typing import NamedTuple
from policy.bundle.builtin import expiry
from policy.bundle.file_forms import file_checks
from policy.bundle.meaning import meaning
from policy.bundle.model import PolicyBundle, json_names
from policy.bundle.placeholders import filled, of_configured_tools
from policy.bundle.problems import BundleProblems, Problem, nearest, together
from policy.bundle.typed import MISSING, UNKNOWN
from policy.bundle.validate import read_shape, typed
from policy.names import ANY_SESSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import datetime

    from policy.bundle.placeholders import Places

EXTENDS = "extends"
_VERSION = "policyBundleVersion"
_HASH_DIGITS = 8
_BY_ID = {"approvalRules": "approvalRuleId", "mcpServers": "name", "redactionRules": "redactionRuleId"}
"""Lists of objects, and the field that says which of two replaces which."""
_NOT_IN_BUNDLES = frozenset({"expiresInS", EXTENDS})


class BuiltIns(NamedTuple):
    """What `extends` may name: the names, and how to get a template, with placeholders and groups in it. `models` are
    the user's own; a built-in puts them before its own, and `more_models` behind them."""

    names: tuple[str, ...]
    template: Callable[[str], Mapping[str, Any]]
    models: tuple[str, ...] = ()
    more_models: tuple[str, ...] = ()


def parse_file_bundle(
    raw: bytes | dict[str, Any], *, places: Places, built_ins: BuiltIns, now: datetime
) -> PolicyBundle:
    """A bundle from the JSON text of a file, or from its shape. `now` is aware: without `expiresAt` the bundle holds as
    long as a built-in that begins now. Raises BundleProblems with all that is wrong."""
    shape, problems = read_shape(raw)
    base = _base(shape, built_ins)
    rules = () if base is None else tuple(rule["approvalRuleId"] for rule in base["approvalRules"])
    values = (*_extends(shape, built_ins), *meaning(shape, checks=file_checks(places), more_rules=rules))
    found = tuple(dict.fromkeys((*problems, *together(_types(shape), values))))
    if found:
        raise BundleProblems(found)
    whole = dict(shape) if base is None else extended(base, shape)
    whole.setdefault("expiresAt", expiry(base or {}, now).isoformat())
    entries = (entry for entry in whole["capabilities"] if not of_configured_tools(entry, places))
    whole["capabilities"] = [filled(entry, places) for entry in entries]
    bundle, wrong = typed(whole)
    if bundle is None:
        raise BundleProblems(tuple(wrong))
    return bundle


def extended(base: Mapping[str, Any], shape: Mapping[str, Any]) -> dict[str, Any]:
    """The shape of a bundle that starts from the template `base`: scalars replace, lists of the same capability are
    added to, objects of the same id replace. Both shapes are good."""
    whole = {name: value for name, value in base.items() if name not in _NOT_IN_BUNDLES}
    whole["sessionId"] = ANY_SESSION
    whole[_VERSION] = f"{base[_VERSION]}+{_short_hash(shape)}"
    for name, value in shape.items():
        if name == "capabilities":
            whole[name] = _by_id(base[name], value, "name", _merged)
        elif name in _BY_ID:
            whole[name] = _by_id(base.get(name, ()), value, _BY_ID[name], lambda _, new: dict(new))
        elif name == "llmPolicy":
            whole[name] = _merged(base[name], value)
        elif name not in _NOT_IN_BUNDLES:
            whole[name] = value
    return whole


def _short_hash(shape: Mapping[str, Any]) -> str:
    """Of what the file says; how it is laid out does not count."""
    return sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:_HASH_DIGITS]


def _by_id(
    present: Iterable[Mapping[str, Any]],
    added: Iterable[Mapping[str, Any]],
    field: str,
    join: Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]],
) -> list[dict[str, Any]]:
    """Those of `present` in their order, each joined with the one of the same id, then what is new."""
    known = {one[field]: dict(one) for one in present}
    for one in added:
        known[one[field]] = join(known[one[field]], one) if one[field] in known else dict(one)
    return list(known.values())


def _merged(present: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """Scalars replace, lists are added to, each entry once. `null` for a list says nothing, as everywhere."""
    whole = dict(present)
    for name, value in added.items():
        before = whole.get(name)
        if isinstance(value, list) and isinstance(before, list):
            whole[name] = [*before, *(one for place, one in enumerate(value) if one not in [*before, *value[:place]])]
        elif not (value is None and isinstance(before, list)):
            whole[name] = value
    return whole


# What is wrong


def _base(shape: Mapping[str, Any], built_ins: BuiltIns) -> dict[str, Any] | None:
    """The template that a good `extends` names, with the user's models around its own."""
    name = shape.get(EXTENDS)
    if not isinstance(name, str) or name not in built_ins.names:
        return None
    base = dict(built_ins.template(name))
    llm = base["llmPolicy"]
    models = (*built_ins.models, *llm["allowedModels"], *built_ins.more_models)
    base["llmPolicy"] = {**llm, "allowedModels": list(dict.fromkeys(models))}
    return base


def _extends(shape: Mapping[str, Any], built_ins: BuiltIns) -> Iterator[Problem]:
    name = shape.get(EXTENDS, built_ins.names[0])
    if not isinstance(name, str):
        yield Problem(EXTENDS, "must be text", f"the name of a built-in: {', '.join(built_ins.names)}")
    elif name not in built_ins.names:
        yield Problem(EXTENDS, f"{name!r} is not a built-in", nearest(name, built_ins.names))


def _types(shape: Mapping[str, Any]) -> Iterator[Problem]:
    """Problems with types, but for what a file may leave out."""
    _, problems = typed({name: value for name, value in shape.items() if name != EXTENDS})
    for one in problems:
        may_miss = one.path == "expiresAt" or (EXTENDS in shape and "[" not in one.path)
        if one.message == MISSING and may_miss:
            continue
        is_top = one.message == UNKNOWN and one.path in shape
        yield one._replace(hint=nearest(one.path, (*json_names(PolicyBundle), EXTENDS))) if is_top else one
