"""The policy bundle as frozen values: one definition for shipped files, for files from outside and for the wire.

JSON uses camelCase, Python snake_case. An absent list means 'no restriction of that kind', an empty one 'nothing';
an empty block list blocks nothing. Lists of paths hold absolute prefixes, compared by path component.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping


def camel(name: str) -> str:
    """`max_file_size_bytes` as `maxFileSizeBytes`."""
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


@dataclass(frozen=True, slots=True)
class ArgumentRule:
    """What the argument at `index` (from 0) may be: a full match of `pattern`, one of `enum`, or both."""

    index: int
    pattern: str | None = None
    enum: tuple[str, ...] | None = None
    optional: bool = False


@dataclass(frozen=True, slots=True)
class CommandPolicy:
    """Argument rules of one program of Shell.Exec; they narrow, they never admit a program that is not listed.

    `additional_arguments` says whether arguments without a rule of their own may follow; `subcommands` are the values
    that the first argument may have. With `starts_programs` False the program may not start what the line does not show
    (code in its arguments, the commands of a makefile); who lists it permits that otherwise.
    """

    command: str
    max_arguments: int | None = None
    arguments: tuple[ArgumentRule, ...] = ()
    additional_arguments: bool = True
    subcommands: tuple[str, ...] | None = None
    starts_programs: bool | None = None


@dataclass(frozen=True, slots=True)
class Capability:
    """One grant and its limits (AH 8.2). With `requires_approval` every use waits for a person; without an
    `approval_rule_id` the request carries no title of its own."""

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


@dataclass(frozen=True, slots=True)
class LlmPolicy:
    """Models that may be called and token limits: a request's input, a response's output, the whole session."""

    allowed_models: tuple[str, ...]
    max_input_tokens: int
    max_output_tokens: int
    max_session_tokens: int


@dataclass(frozen=True, slots=True)
class ApprovalRule:
    """What the person who approves is shown as heading."""

    approval_rule_id: str
    title: str
    description: str


@dataclass(frozen=True, slots=True)
class McpServer:
    """One MCP server: a program to start (`stdio`: command, args, names of variables to pass on) or a URL to call."""

    name: str
    transport: Literal["stdio", "http"]
    command: str | None = None
    args: tuple[str, ...] = ()
    environment_names: tuple[str, ...] = ()
    url: str | None = None


@dataclass(frozen=True, slots=True)
class RedactionRule:
    """Text to take out of what leaves the process: matches of `pattern` become `replacement`."""

    redaction_rule_id: str
    pattern: str
    description: str = ""
    replacement: str | None = None


@dataclass(frozen=True, slots=True)
class PolicyBundle:
    """Everything a session may do, until `expires_at` (aware). `session_id` `*` stands for any session."""

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
    _capability_index: dict[str, Capability] = field(init=False, repr=False, compare=False, default_factory=dict)
    _rule_index: dict[str, ApprovalRule] = field(init=False, repr=False, compare=False, default_factory=dict)
    real_places: dict[str, dict[str, str]] = field(init=False, repr=False, compare=False, default_factory=dict)
    """Where entries of path lists that are links, or behind links, really lead: a fact, see `on_disk`."""
    memo: dict[object, Any] = field(init=False, repr=False, compare=False, default_factory=dict)
    """Look-up tables that the check derives from the lists, kept so that a decision does not follow their length."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_capability_index", {entry.name: entry for entry in self.capabilities})
        object.__setattr__(self, "_rule_index", {rule.approval_rule_id: rule for rule in self.approval_rules})
        object.__setattr__(self, "real_places", {})
        object.__setattr__(self, "memo", {})

    def on_disk(self, real_places: dict[str, dict[str, str]]) -> PolicyBundle:
        """The same bundle with what the disk says of its path lists: entry → real path where they differ, for `allowed`
        and for `blocked`. Both places count then (AH 8.3)."""
        bundle = replace(self)
        object.__setattr__(bundle, "real_places", real_places)
        return bundle

    def capability(self, name: str) -> Capability | None:
        """The grant of this name, or None (AH 8.1)."""
        return self._capability_index.get(name)

    def approval_rule(self, approval_rule_id: str) -> ApprovalRule | None:
        """The approval rule of this id, or None (AH 8.1)."""
        return self._rule_index.get(approval_rule_id)

    def to_json(self) -> dict[str, Any]:
        """The bundle's JSON shape; fields at their default are left out."""
        result: dict[str, Any] = _to_json(self)
        return result


_PARTS: dict[tuple[type, str], type] = {
    (PolicyBundle, "capabilities"): Capability,
    (PolicyBundle, "llmPolicy"): LlmPolicy,
    (PolicyBundle, "approvalRules"): ApprovalRule,
    (PolicyBundle, "mcpServers"): McpServer,
    (PolicyBundle, "redactionRules"): RedactionRule,
    (Capability, "commandPolicies"): CommandPolicy,
    (CommandPolicy, "arguments"): ArgumentRule,
}


@lru_cache(maxsize=16)
def _json_fields(cls: Any) -> dict[str, tuple[str, object]]:
    """JSON name → Python name and default of every field that the wire knows."""
    return {camel(item.name): (item.name, item.default) for item in fields(cls) if item.init}


def json_names(cls: type) -> tuple[str, ...]:
    """The JSON names of a bundle class's fields."""
    return tuple(_json_fields(cls))


def bundle_part(cls: type, json_name: str) -> type | None:
    """The class of the object, or of the list's items, that stands at a field; None for plain values."""
    return _PARTS.get((cls, json_name))


def _to_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if not hasattr(value, "__dataclass_fields__"):
        return value
    shape: dict[str, Any] = {}
    for json_name, (name, default) in _json_fields(value.__class__).items():
        item = getattr(value, name)
        if default is MISSING or item != default:
            shape[json_name] = _to_json(item)
    return shape


def _from_json(cls: type, raw: Mapping[str, Any]) -> Any:
    names = _json_fields(cls)
    values: dict[str, Any] = {}
    for json_name, item in raw.items():
        part = _PARTS.get((cls, json_name))
        if isinstance(item, list):
            value: Any = tuple(_from_json(part, one) if part else one for one in item)
        else:
            value = item if part is None else _from_json(part, item)
        values[names[json_name][0]] = value
    return cls(**values)


def bundle_from_trusted(raw: Mapping[str, Any]) -> PolicyBundle:
    """Builds a bundle from JSON that is known to be good: our own files, or what `to_json` gave. Not for anything else:
    a wrong shape raises KeyError or TypeError at best. `expiresAt` is RFC 3339 text or an aware datetime."""
    expires_at = raw["expiresAt"]
    if isinstance(expires_at, str):
        expires_at = datetime.fromisoformat(expires_at)
    bundle: PolicyBundle = _from_json(PolicyBundle, {**raw, "expiresAt": expires_at})
    return bundle
