"""Narrowing a bundle: what a workspace, a mode or a user may take away (SK 3). Nothing here can add."""

from __future__ import annotations

from typing import TYPE_CHECKING

from config.lean_typing import NamedTuple
from policy.names import CHANGING, FILE_CAPABILITIES, READS_TOO, CapabilityName
from policy.paths import is_under, normalize, split_nested
from policy.urls import common_domains

if TYPE_CHECKING:
    from policy.bundle import Capability, CommandPolicy, LlmPolicy, PolicyBundle
    from policy.facts import OsFamily


class Narrowing(NamedTuple):
    """Limits to add to a bundle: more blocked entries, capabilities switched off, smaller limits (bytes, tokens,
    seconds of a wait that the bundle names), more rules for the arguments of commands, which append to the bundle's and
    replace none (NT).

    `unchanged_paths` may be read, and neither written nor deleted. `allowed_tools` narrows which tools are offered; it
    is not part of the bundle, so `narrow` leaves it to the caller.
    """

    blocked_paths: tuple[str, ...] = ()
    unchanged_paths: tuple[str, ...] = ()
    blocked_commands: tuple[str, ...] = ()
    blocked_domains: tuple[str, ...] = ()
    allowed_tools: tuple[str, ...] | None = None
    disabled_capabilities: tuple[str, ...] = ()
    max_file_size_bytes: int | None = None
    max_output_bytes: int | None = None
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    max_session_tokens: int | None = None
    command_policies: tuple[CommandPolicy, ...] = ()
    approval_timeout_s: float | None = None


def narrow(bundle: PolicyBundle, narrowing: Narrowing) -> PolicyBundle:
    """The bundle with less in it: smaller of two limits, union of block lists, capabilities removed."""
    kept = [entry for entry in bundle.capabilities if entry.name not in narrowing.disabled_capabilities]
    less = bundle._replace(
        capabilities=tuple(_narrow_capability(entry, narrowing) for entry in kept),
        llm_policy=_narrow_llm(bundle.llm_policy, narrowing),
        approval_timeout_s=_shorter(bundle.approval_timeout_s, narrowing.approval_timeout_s),
    )
    return less.keep_known(bundle, by_groups=bundle.by_groups.difference(narrowing.blocked_paths))


def scope_of_call(bundle: PolicyBundle, capability_name: str, os: OsFamily) -> Capability | None:
    """The limits that one call under a capability has, for the code that checks them again at the time of use; None
    when it is not granted. For a capability that reads a file they are its own and those of File.Read together. Paths
    that are links stand beside where they lead."""
    entry = _add_real_places(bundle, bundle.capability(capability_name), os)
    reading = _add_real_places(bundle, bundle.capability(CapabilityName.FILE_READ), os)
    if entry is None or reading is None or capability_name not in READS_TOO:
        return entry
    return entry._replace(
        allowed_paths=_common(entry.allowed_paths, reading.allowed_paths, os),
        blocked_paths=_union(entry.blocked_paths, reading.blocked_paths or ()),
        max_file_size_bytes=_smaller(entry.max_file_size_bytes, reading.max_file_size_bytes),
    )


def common_limits(one: Capability | None, other: Capability | None, os: OsFamily) -> Capability | None:
    """The limits of a call that two bundles allow; None if neither has any."""
    if one is None or other is None:
        return one or other
    return one._replace(
        allowed_paths=_common(one.allowed_paths, other.allowed_paths, os),
        blocked_paths=_union(one.blocked_paths, other.blocked_paths or ()),
        allowed_domains=common_domains(one.allowed_domains, other.allowed_domains),
        blocked_domains=_union(one.blocked_domains, other.blocked_domains or ()),
        max_file_size_bytes=_smaller(one.max_file_size_bytes, other.max_file_size_bytes),
        max_output_bytes=_smaller(one.max_output_bytes, other.max_output_bytes),
    )


def common_llm_limits(one: LlmPolicy, other: LlmPolicy) -> LlmPolicy:
    """The limits of model calls under two bundles: the smaller of each. The models are those of the first."""
    return one._replace(
        max_input_tokens=min(one.max_input_tokens, other.max_input_tokens),
        max_output_tokens=min(one.max_output_tokens, other.max_output_tokens),
        max_session_tokens=min(one.max_session_tokens, other.max_session_tokens),
    )


def _add_real_places(bundle: PolicyBundle, entry: Capability | None, os: OsFamily) -> Capability | None:
    if entry is None or not bundle.real_places:
        return entry
    allowed, blocked = (bundle.real_places.get(which, {}) for which in ("allowed", "blocked"))
    spelled = entry.blocked_paths or ()
    nested = filter(None, (split_nested(normalize(path, os), os) for path in spelled))
    direct = ("/".join(parts) if parts[0] != "/" else f"/{parts[1]}" for parts in nested)
    looked_up = (*spelled, *(normalize(path, os) for path in direct))
    return entry._replace(
        allowed_paths=_union(
            entry.allowed_paths, tuple(allowed[one] for one in entry.allowed_paths or () if one in allowed)
        ),
        blocked_paths=_union(entry.blocked_paths, tuple(blocked[one] for one in looked_up if one in blocked)),
    )


def _common(one: tuple[str, ...] | None, other: tuple[str, ...] | None, os: OsFamily) -> tuple[str, ...] | None:
    """The places that lie under both lists: of two nested roots the inner one."""
    if one is None or other is None:
        return other if one is None else one
    return tuple(dict.fromkeys(_inner(one, other, os) + _inner(other, one, os)))


def _inner(roots: tuple[str, ...], others: tuple[str, ...], os: OsFamily) -> tuple[str, ...]:
    return tuple(root for root in roots if any(is_under(root, other, os) for other in others))


def _narrow_capability(entry: Capability, narrowing: Narrowing) -> Capability:
    is_file = entry.name in FILE_CAPABILITIES
    unchanged = narrowing.unchanged_paths if entry.name in CHANGING else ()
    blocked = (*narrowing.blocked_paths, *unchanged) if is_file else ()
    return entry._replace(
        blocked_paths=_union(entry.blocked_paths, blocked),
        blocked_commands=_union(
            entry.blocked_commands, narrowing.blocked_commands if entry.name == CapabilityName.SHELL_EXEC else ()
        ),
        command_policies=_more_policies(entry, narrowing.command_policies),
        blocked_domains=_union(
            entry.blocked_domains, narrowing.blocked_domains if entry.name == CapabilityName.NETWORK_HTTP else ()
        ),
        max_file_size_bytes=_smaller(entry.max_file_size_bytes, narrowing.max_file_size_bytes if is_file else None),
        max_output_bytes=_smaller(entry.max_output_bytes, narrowing.max_output_bytes),
    )


def _more_policies(entry: Capability, added: tuple[CommandPolicy, ...]) -> tuple[CommandPolicy, ...] | None:
    if entry.name != CapabilityName.SHELL_EXEC or not added:
        return entry.command_policies
    return tuple(dict.fromkeys((*(entry.command_policies or ()), *added)))


def _narrow_llm(policy: LlmPolicy, narrowing: Narrowing) -> LlmPolicy:
    return policy._replace(
        max_input_tokens=_least(policy.max_input_tokens, narrowing.max_input_tokens),
        max_output_tokens=_least(policy.max_output_tokens, narrowing.max_output_tokens),
        max_session_tokens=_least(policy.max_session_tokens, narrowing.max_session_tokens),
    )


def _union(present: tuple[str, ...] | None, added: tuple[str, ...]) -> tuple[str, ...] | None:
    return tuple(dict.fromkeys((*(present or ()), *added))) if added else present


def _smaller(present: int | None, limit: int | None) -> int | None:
    return limit if present is None else _least(present, limit)


def _shorter(present: float | None, limit: float | None) -> float | None:
    return present if present is None or limit is None else min(present, limit)


def _least(present: int, limit: int | None) -> int:
    return present if limit is None else min(present, limit)
