"""The policy bundle as frozen values: one definition for shipped files, for files from outside and for the wire.

JSON uses camelCase, Python snake_case. An absent list means 'no restriction of that kind', an empty one 'nothing';
an empty block list blocks nothing. Lists of paths hold absolute prefixes, compared by path component.
"""

from __future__ import annotations

import json
from collections.abc import Mapping  # noqa: TC003  `get_type_hints` looks for it
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from hashlib import sha256
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from config.lean_typing import NamedTuple
from policy import CHANGING, FILE_CAPABILITIES, READS_TOO, CapabilityName
from policy.paths import is_under, normalize, process_place, split_nested
from policy.urls import common_domains

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from policy.facts import OsFamily

_T = TypeVar("_T")
_N = TypeVar("_N", int, float | None)


def camel(name: str) -> str:
    """`max_file_size_bytes` as `maxFileSizeBytes`."""
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


class ArgumentRule(NamedTuple):
    """The values that the argument at `index` (from 0) may have: a full match of `pattern`, one of `enum`, or both."""

    index: int  # type: ignore[assignment]  # in place of `tuple.index`, which is not called on a rule
    pattern: str | None = None
    enum: tuple[str, ...] | None = None
    optional: bool = False


class CommandPolicy(NamedTuple):
    """Argument rules of one program of Shell.Exec; they narrow, and never admit an unlisted program.

    `additional_arguments`: arguments without a rule may follow; `subcommands` are the allowed values of the first
    argument. With `starts_programs` False the program must not start anything that the line does not show (code in its
    arguments, the commands of a makefile); otherwise listing it permits that.
    """

    command: str
    max_arguments: int | None = None
    arguments: tuple[ArgumentRule, ...] = ()
    additional_arguments: bool = True
    subcommands: tuple[str, ...] | None = None
    starts_programs: bool | None = None


class ToolPolicy(NamedTuple):
    """The policy for the tools that fit `tool`, a name, or a pattern in which `*` stands for any characters: whether a
    call waits for a person, under which rule, and whether a call that a crash cut off may be sent again. A field that
    is left out is as the capability has it. A policy that names a tool decides about it; of several patterns that fit
    the strictest."""

    tool: str
    requires_approval: bool | None = None
    approval_rule_id: str | None = None
    repeatable: bool | None = None


class Capability(NamedTuple):
    """One grant and its limits (AH 8.2). With `requires_approval` every use waits for a person; without an
    `approval_rule_id` the request carries no title of its own. `instead_of` are capabilities whose tools run in the
    Backend Tool Service and not on this machine. `allowed_variables` are those that a line may set for a program
    under a list of programs that start nothing by themselves, beside the harmless ones."""

    name: str
    allowed_paths: tuple[str, ...] | None = None
    blocked_paths: tuple[str, ...] | None = None
    allowed_commands: tuple[str, ...] | None = None
    blocked_commands: tuple[str, ...] | None = None
    command_policies: tuple[CommandPolicy, ...] | None = None
    allowed_domains: tuple[str, ...] | None = None
    blocked_domains: tuple[str, ...] | None = None
    allowed_tool_names: tuple[str, ...] | None = None
    max_file_size_bytes: int | None = None
    max_output_bytes: int | None = None
    requires_approval: bool = False
    approval_rule_id: str | None = None
    tool_policies: tuple[ToolPolicy, ...] | None = None
    instead_of: tuple[str, ...] | None = None
    allowed_variables: tuple[str, ...] | None = None


class LlmPolicy(NamedTuple):
    """Models that may be called and token limits: a request's input, a response's output, the whole session."""

    allowed_models: tuple[str, ...]
    max_input_tokens: int
    max_output_tokens: int
    max_session_tokens: int


class ApprovalRule(NamedTuple):
    """The heading that the person who approves is shown."""

    approval_rule_id: str
    title: str
    description: str


class McpServer(NamedTuple):
    """One MCP server: a program to start (`stdio`: command, args, names of variables to pass on) or a URL to call."""

    name: str
    transport: Literal["stdio", "http"]
    command: str | None = None
    args: tuple[str, ...] = ()
    environment_names: tuple[str, ...] = ()
    url: str | None = None


class RedactionRule(NamedTuple):
    """Text to take out of what leaves the process: matches of `pattern` become `replacement`."""

    redaction_rule_id: str
    pattern: str
    description: str = ""
    replacement: str | None = None


class SandboxPolicy(NamedTuple):
    """The sandbox of commands. `required`: they do not run without it; `minimum_level` is the weakest acceptable level.
    `allow_off`: a person may let a call run without it. `reads`: a command reads what File.Read allows (`strict`) or
    everything that it does not block (`open`); by default it follows File.Read. `agents` are those whose sockets
    commands may use."""

    required: bool = False
    minimum_level: Literal["landlock", "namespace"] | None = None
    allow_off: bool = False
    reads: Literal["strict", "open"] | None = None
    agents: tuple[Literal["ssh", "gpg"], ...] = ()


class _Content(NamedTuple):
    policy_bundle_version: str
    schema_version: str
    tenant_id: str
    user_id: str
    session_id: str
    expires_at: datetime
    capabilities: tuple[Capability, ...]
    llm_policy: LlmPolicy
    approval_rules: tuple[ApprovalRule, ...]
    mcp_servers: tuple[McpServer, ...] = ()
    redaction_rules: tuple[RedactionRule, ...] = ()
    sandbox: SandboxPolicy | None = None
    approval_timeout_s: float | None = None


class PolicyBundle(_Content):
    """Everything a session may do, until `expires_at` (aware). `session_id` `*` stands for any session."""

    real_places: Mapping[str, dict[str, str]] = MappingProxyType({})
    """Real paths of path-list entries that are links or below links: a fact, see `set_real_places`."""
    by_groups: frozenset[str] = frozenset()
    """Blocked paths that a group names (`@steering`), and that no entry of a list spells out."""
    sandboxed: bool = False
    """True if a sandbox enforces the bundle's rules for files on commands."""
    lines_ask: bool = True
    """True if a command needs the approvals that File.* wants for the files that its line names."""

    def set_real_places(self, real_places: dict[str, dict[str, str]]) -> PolicyBundle:
        """The bundle with the real paths of `allowed` and `blocked` entries that are links: both count (AH 8.3)."""
        return self.keep_known(self, real_places=real_places)

    def keep_known(self, like: PolicyBundle, **facts: Any) -> PolicyBundle:
        """This bundle with another one's data that is not in its JSON, except for these `facts`."""
        bundle = self._replace()
        bundle.real_places, bundle.by_groups = like.real_places, like.by_groups
        bundle.sandboxed, bundle.lines_ask = like.sandboxed, like.lines_ask
        vars(bundle).update(facts)
        return bundle

    @cached_property
    def memo(self) -> dict[object, Any]:
        """The results of `remember`."""
        return {}

    def remember(self, key: object, make: Callable[[], _T]) -> _T:
        """A value derived from the lists, made once, so that the cost of a decision does not follow their length."""
        if key not in self.memo:
            self.memo[key] = make()
        made: _T = self.memo[key]
        return made

    @cached_property
    def _grants(self) -> dict[str, Capability]:
        return {entry.name: entry for entry in self.capabilities}

    @cached_property
    def _rules(self) -> dict[str, ApprovalRule]:
        return {rule.approval_rule_id: rule for rule in self.approval_rules}

    def capability(self, name: str) -> Capability | None:
        """The grant of this name, or None (AH 8.1)."""
        return self._grants.get(name)

    def approval_rule(self, approval_rule_id: str) -> ApprovalRule | None:
        """The approval rule of this id, or None (AH 8.1)."""
        return self._rules.get(approval_rule_id)

    def to_json(self) -> dict[str, Any]:
        """The bundle's JSON shape; fields at their default are left out."""
        result: dict[str, Any] = _to_json(self)
        return result


PARTS: Final[dict[str, type]] = {
    cls.__name__: cls
    for cls in (
        PolicyBundle, Capability, LlmPolicy, ApprovalRule, McpServer, RedactionRule, SandboxPolicy, CommandPolicy,
        ToolPolicy, ArgumentRule,
    )
}  # fmt: skip
"""The classes that a bundle is made of."""
NO_DEFAULT: Final = object()


class Member(NamedTuple):
    """A field of a bundle's class: Python name, annotation as written, default (NO_DEFAULT if it is required), and the
    class of its object or of its list's items; None for plain values."""

    name: str
    annotation: str
    default: object
    part: type | None


@lru_cache(maxsize=16)
def members(cls: Any) -> dict[str, Member]:
    """The fields of a bundle's class by their JSON names."""
    written = next(base for base in cls.__mro__ if "_fields" in base.__dict__).__annotations__
    found = {}
    for name in cls._fields:
        inner = written[name].removesuffix(" | None").removeprefix("tuple[").removesuffix(", ...]")
        member = Member(name, written[name], cls._field_defaults.get(name, NO_DEFAULT), PARTS.get(inner))
        found[camel(name)] = member
    return found


def _to_json(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if not isinstance(value, tuple):
        return value
    if value.__class__ not in PARTS.values():
        return [_to_json(item) for item in value]
    shape: dict[str, Any] = {}
    for json_name, member in members(value.__class__).items():
        item = getattr(value, member.name)
        if member.default is NO_DEFAULT or item != member.default:
            shape[json_name] = _to_json(item)
    return shape


def _from_json(cls: type, raw: Mapping[str, Any]) -> Any:
    known = members(cls)
    values: dict[str, Any] = {}
    for json_name, item in raw.items():
        name, _, _, part = known[json_name]
        if isinstance(item, list):
            value: Any = tuple(_from_json(part, one) if part else one for one in item)
        else:
            value = item if part is None or item is None else _from_json(part, item)
        values[name] = value
    return cls(**values)


def bundle_from_trusted(raw: Mapping[str, Any]) -> PolicyBundle:
    """Build a bundle from valid JSON: our own files, or the result of `to_json`. Not for anything else: a wrong shape
    raises KeyError or TypeError at best. `expiresAt` is RFC 3339 text or an aware datetime."""
    expires_at = raw["expiresAt"]
    if isinstance(expires_at, str):
        expires_at = datetime.fromisoformat(expires_at)
    bundle: PolicyBundle = _from_json(PolicyBundle, {**raw, "expiresAt": expires_at})
    return bundle


def policy_hash(bundle: PolicyBundle) -> str:
    """SHA-256, in hex, of the bundle's rules; its session, user and expiry do not count."""

    def digest() -> str:
        rules = {name: value for name, value in bundle.to_json().items() if name not in {"expiresAt", "sessionId"}}
        return sha256(json.dumps(rules, sort_keys=True).encode()).hexdigest()

    return bundle.remember(policy_hash, digest)


# Problems of a bundle, in words for its author.


class BundleProblem(NamedTuple):
    """One problem: its place (`capabilities[2].allowedPaths`, empty for the whole), the problem, and a hint."""

    path: str
    message: str
    hint: str | None = None

    def __str__(self) -> str:
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.path or 'the bundle'}: {self.message}{hint}"


class BundleProblems(ValueError):
    """A bundle that is refused; `problems` lists everything that is wrong with it, in the order of the document."""

    def __init__(self, problems: tuple[BundleProblem, ...]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems


def together(of_types: Iterable[BundleProblem], of_values: Iterable[BundleProblem]) -> tuple[BundleProblem, ...]:
    """Both in one list, each once, without the type problem of a value that has another problem."""
    first = tuple(of_values)
    places = {problem.path for problem in first}
    return tuple(dict.fromkeys((*(one for one in of_types if one.path not in places), *first)))


def nearest(name: str, known: tuple[str, ...]) -> str | None:
    """A hint at the name that was meant."""
    from difflib import get_close_matches

    folded = {one.lower(): one for one in known}
    close = get_close_matches(name.lower(), list(folded))
    return f"did you mean {folded[close[0]]}?" if close else f"known are {', '.join(known)}"


# Narrowing a bundle: restrictions by a workspace, a mode or a user (SK 3). Nothing here can add permissions.


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
        llm_policy=common_llm_limits(bundle.llm_policy, narrowing),
        approval_timeout_s=_least(bundle.approval_timeout_s, narrowing.approval_timeout_s),
    )
    return less.keep_known(bundle, by_groups=bundle.by_groups.difference(narrowing.blocked_paths))


def scope_of_call(bundle: PolicyBundle, capability_name: str, os: OsFamily) -> Capability | None:
    """The limits of one call under a capability, for the check at the time of use; None if it is not granted. For a
    capability that reads a file they include those of File.Read. Paths that are links are listed together with their
    targets."""
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


def common_llm_limits(policy: LlmPolicy, other: LlmPolicy | Narrowing) -> LlmPolicy:
    """The limits of model calls under both: the smaller of each. The models are those of the first."""
    return policy._replace(
        max_input_tokens=_least(policy.max_input_tokens, other.max_input_tokens),
        max_output_tokens=_least(policy.max_output_tokens, other.max_output_tokens),
        max_session_tokens=_least(policy.max_session_tokens, other.max_session_tokens),
    )


def _add_real_places(bundle: PolicyBundle, entry: Capability | None, os: OsFamily) -> Capability | None:
    if entry is None or not bundle.real_places:
        return entry
    allowed, blocked = (bundle.real_places.get(which, {}) for which in ("allowed", "blocked"))
    spelled = entry.blocked_paths or ()
    nested = filter(None, (split_nested(normalize(path, os), os) for path in spelled))
    direct = ("/".join(parts) if parts[0] != "/" else f"/{parts[1]}" for parts in nested)
    looked_up = (*spelled, *(normalize(path, os) for path in direct))
    # A link into /proc does not name a place there (`policy.rules.paths.process_places`).
    real = (
        allowed[one]
        for one in entry.allowed_paths or ()
        if one in allowed and (process_place(allowed[one], os) is None or process_place(one, os) is not None)
    )
    return entry._replace(
        allowed_paths=_union(entry.allowed_paths, tuple(real)),
        blocked_paths=_union(entry.blocked_paths, tuple(blocked[one] for one in looked_up if one in blocked)),
    )


def _common(one: tuple[str, ...] | None, other: tuple[str, ...] | None, os: OsFamily) -> tuple[str, ...] | None:
    """The intersection of both lists: of two nested roots the inner one."""
    if one is None or other is None:
        return other if one is None else one
    return tuple(dict.fromkeys(_inner(one, other, os) + _inner(other, one, os)))


def _inner(roots: tuple[str, ...], others: tuple[str, ...], os: OsFamily) -> tuple[str, ...]:
    return tuple(root for root in roots if any(is_under(root, other, os) for other in others))


def _narrow_capability(entry: Capability, narrowing: Narrowing) -> Capability:
    is_file, is_shell = entry.name in FILE_CAPABILITIES, entry.name == CapabilityName.SHELL_EXEC
    unchanged = narrowing.unchanged_paths if entry.name in CHANGING else ()
    blocked = (*narrowing.blocked_paths, *unchanged) if is_file else ()
    return entry._replace(
        blocked_paths=_union(entry.blocked_paths, blocked),
        blocked_commands=_union(entry.blocked_commands, narrowing.blocked_commands if is_shell else ()),
        command_policies=_union(entry.command_policies, narrowing.command_policies if is_shell else ()),
        blocked_domains=_union(
            entry.blocked_domains, narrowing.blocked_domains if entry.name == CapabilityName.NETWORK_HTTP else ()
        ),
        max_file_size_bytes=_smaller(entry.max_file_size_bytes, narrowing.max_file_size_bytes if is_file else None),
        max_output_bytes=_smaller(entry.max_output_bytes, narrowing.max_output_bytes),
    )


def _union(present: tuple[_T, ...] | None, added: tuple[_T, ...]) -> tuple[_T, ...] | None:
    return tuple(dict.fromkeys((*(present or ()), *added))) if added else present


def _smaller(present: int | None, limit: int | None) -> int | None:
    return limit if present is None else _least(present, limit)


def _least(present: _N, limit: _N | None) -> _N:
    """A limit is for what has one already."""
    return present if present is None or limit is None else min(present, limit)
