"""Questions to a person (AH 10.1), and the machine-readable reply if no approver is present (SK 4.2, 4.3)."""

from __future__ import annotations

import hashlib
import math
import re
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import orjson

from agent_host.display_text import clip, one_line
from agent_host.ids import REPLAY_PREFIX
from config import json_text
from config.lean_typing import NamedTuple
from config.shapes import FLAG, ListOf, Record, Text, first_problem, integer, number, one_of
from policy.urls import UrlProblem, host_of
from state.checkpoint import ApprovalAnswered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from config.shapes import Shape
    from state.checkpoint import ApprovalGranted

Scope = Literal["once", "task", "session"]
AnsweredBy = Literal["client", "command", "chat", "acp", "view"]
"""The interface through which a person answered: the session's client (also the terminal of `run`), the commands
`approve` and `deny`, a chat, an editor, the local page."""

Kind = Literal["string", "integer", "number", "boolean", "choice", "choices"]

MAX_FIELDS: Final = 20
MAX_CHOICES: Final = 100
MAX_ANSWER_CHARS: Final = 4000
_MAX_WORDS_BYTES: Final = 1000
_MAX_SCHEMA_BYTES: Final = 65_536
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_FORMATS: Final = ("email", "uri", "date", "date-time")


class ApprovalRequest(NamedTuple):
    """One call that waits for a person. `rule_id` names the bundle's rule, None if the capability has none.

    `summary` and `details` come from `agent_host.approval.details`: safe to show, bounded, with the secrets of this
    process removed. All other text is escaped and bounded by `to_payload`. With `by_name` only the name of the tool
    approves it in advance. `timeout_s` is the bundle's timeout, None if it has none. With a `form` the request is a
    question of an MCP server during a call: it cannot be answered in advance, and an approval has the answers as its
    `arguments`. `replay` says how the call can be approved later if no person answers now (`replay_of`); it is empty
    for a form."""

    approval_id: str
    session_id: str
    task_id: str
    step_id: str
    tool_name: str
    capability: str
    arguments: Mapping[str, Any]
    title: str
    description: str
    rule_id: str | None
    risk_level: str
    risks: tuple[str, ...]
    summary: str = ""
    details: Mapping[str, Any] = {}
    by_name: bool = False
    timeout_s: float | None = None
    form: Form | None = None
    replay: Mapping[str, Any] = {}

    @property
    def action_summary(self) -> str:
        """The call in one line, for people."""
        return self.summary or one_line(self.tool_name)

    def to_payload(self) -> dict[str, Any]:
        """The payload of `approval_requested`."""
        return {
            "approvalId": self.approval_id,
            "title": one_line(self.title),
            "description": clip(self.description, 4096),
            "actionSummary": self.action_summary,
            "riskLevel": self.risk_level,
            "risks": [one_line(risk) for risk in self.risks[:20]],
            **({} if self.form is None else {"isQuestion": True}),
            "details": {"toolName": one_line(self.tool_name), "capability": self.capability, **self.details},
            **({"replay": dict(self.replay)} if self.replay else {}),
        }


class ApprovalAnswer(NamedTuple):
    """The answer to a request: `approved`, and the reason of a denial. `unattended` marks a denial because no person
    could be asked, `timed_out` one because no answer came in time. `scope` is the range of an approval: this call, the
    same call again in this task, or in this session. `arguments` are the person's edited arguments, None if the model's
    were approved unchanged; for a form they are its fields. `answered_by` is the interface that the person used, None
    without a question or an answer."""

    approved: bool
    reason: str
    unattended: bool = False
    scope: Scope = "once"
    timed_out: bool = False
    arguments: Mapping[str, Any] | None = None
    answered_by: AnsweredBy | None = None

    @property
    def is_denial(self) -> bool:
        """True if a person denied it; False if it was denied because no approver was present or answered in time."""
        return not (self.approved or self.unattended or self.timed_out)

    def to_record(self, call_id: str, approval_id: str, bound_to: str | None = None) -> ApprovalAnswered:
        """Return the record of the answer to this call; `bound_to` is what an approval is bound to (`exact_call`)."""
        arguments = None if self.arguments is None else dict(self.arguments)
        return ApprovalAnswered(call_id, approval_id, bound_to=bound_to, **self._replace(arguments=arguments)._asdict())

    @classmethod
    def from_record(cls, record: ApprovalAnswered) -> Self:
        """Return the answer that `to_record` recorded."""
        return cls(**{name: getattr(record, name) for name in cls._fields})


def replay_of(tool_name: str, arguments: Mapping[str, Any], *, session_id: str, approve: str) -> dict[str, Any]:
    """Return the means to approve a denied call later: an id bound to the exact arguments, a command that runs exactly
    this call and lets the task continue, and the call as JSON; `approve` is the option that approves its kind in
    advance."""
    replay_id = f"{REPLAY_PREFIX}{call_digest(tool_name, arguments)[:32]}"
    return {
        "id": replay_id,
        "approve": approve,
        "command": f"agent-host resume {session_id} --approve {replay_id}",
        "request": {"toolName": tool_name, "arguments": dict(arguments)},
    }


def call_digest(tool_name: str, arguments: Mapping[str, Any]) -> str:
    """Return the identity of a call: the sha256, in hex, of {toolName, arguments} as JSON with sorted keys."""
    call = {"toolName": tool_name, "arguments": dict(arguments)}
    return hashlib.sha256(orjson.dumps(call, option=orjson.OPT_SORT_KEYS)).hexdigest()


class UnusableForm(Exception):
    """The form cannot be shown to a person; the message is the reason."""


class FormField(NamedTuple):
    """One field of a form. `choices` are the possible values, each with its label; `limits` are the bounds by their
    names in JSON Schema. `default` counts only if it fits."""

    name: str
    kind: Kind
    title: str
    description: str
    required: bool
    choices: tuple[tuple[str, str], ...] = ()
    limits: Mapping[str, float] = {}
    format: str | None = None
    default: Any = None

    @property
    def has_answer(self) -> bool:
        """True if any answer is within the limits; otherwise the person would be asked forever."""
        low: float = self.limits.get("minimum", -math.inf)
        high: float = self.limits.get("maximum", math.inf)
        if self.kind == "integer" and math.isfinite(low) and math.isfinite(high):
            return math.ceil(low) <= math.floor(high)
        least = max(self.limits.get("minLength", 0.0), self.limits.get("minItems", 0.0))
        most: float = MAX_ANSWER_CHARS if self.kind == "string" else len(self.choices)
        most = min(most, self.limits.get("maxLength", most), self.limits.get("maxItems", most))
        return low <= high and least <= most

    @property
    def shape(self) -> Shape:
        """The values that fit."""
        low, high = self.limits.get("minimum"), self.limits.get("maximum")
        if self.kind == "boolean":
            return FLAG
        if self.kind == "integer":
            return integer(low, high)
        if self.kind == "number":
            return number(low, high)
        if self.kind == "choice":
            return one_of(*(value for value, _ in self.choices))
        if self.kind == "choices":
            item = one_of(*(value for value, _ in self.choices))
            most = min(self.limits.get("maxItems", MAX_CHOICES), MAX_CHOICES)
            return ListOf(item, int(self.limits.get("minItems", 0)), int(most))
        most = min(self.limits.get("maxLength", MAX_ANSWER_CHARS), MAX_ANSWER_CHARS)
        return Text(int(self.limits.get("minLength", 0)), int(most))

    def problem(self, value: Any) -> str | None:
        """The problem with an answer; None if it fits."""
        wrong = first_problem(self.shape, value, self.name)
        return None if wrong is None else wrong.sentence

    def to_json(self) -> dict[str, Any]:
        """Return it as a property of a JSON Schema, with only the parts that were read."""
        schema: dict[str, Any] = {"title": self.title, "description": self.description, "format": self.format}
        schema = {name: text for name, text in schema.items() if text}
        labelled = [{"const": value, "title": words} for value, words in self.choices]
        if self.kind == "choices":
            schema |= {"type": "array", "items": {"anyOf": labelled}}
        elif self.kind == "choice":
            schema |= {"type": "string", "oneOf": labelled}
        else:
            schema["type"] = self.kind
        return schema | dict(self.limits) | ({} if self.default is None else {"default": self.default})


class Form(NamedTuple):
    """A question of `source`, safe to show. `url` is a page of the host `host` for the person to open; such a question
    has no fields."""

    source: str
    message: str
    fields: tuple[FormField, ...] = ()
    url: str | None = None
    host: str | None = None

    def problem(self, content: Mapping[str, Any]) -> str | None:
        """The problem with an answer; None if it fits."""
        required = {field.name: field.shape for field in self.fields if field.required}
        optional = {field.name: field.shape for field in self.fields if not field.required}
        wrong = first_problem(Record(required, optional, closed=True), dict(content))
        return None if wrong is None else wrong.sentence

    def to_json(self) -> dict[str, Any]:
        """Return the form for clients: {source, question, form} or {source, question, url, host}."""
        form = {"source": self.source, "question": self.message}
        if self.url is not None:
            return {**form, "url": self.url, "host": self.host}
        properties = {field.name: field.to_json() for field in self.fields}
        required = [field.name for field in self.fields if field.required]
        return {**form, "form": {"type": "object", "properties": properties, "required": required}}


def form_of(
    source: str, message: str, schema: Mapping[str, Any] | None, url: str | None, scrub: Callable[[str], str]
) -> Form:
    """Build the question to show, with every text of it passed through `scrub`. Raises UnusableForm."""
    question = clip(scrub(message), 4 * _MAX_WORDS_BYTES)
    if url is not None:
        if scrub(url) != url:
            raise UnusableForm("its URL contains a secret")
        return Form(source, question, (), url, _host_of_page(url))
    if schema is None or schema.get("type", "object") != "object":
        raise UnusableForm("its schema is not of an object")
    if len(json_text.dumps(schema)) > _MAX_SCHEMA_BYTES:
        raise UnusableForm(f"its schema has more than {_MAX_SCHEMA_BYTES} bytes")
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise UnusableForm("its schema has no properties")
    if len(properties) > MAX_FIELDS:
        raise UnusableForm(f"it has more than {MAX_FIELDS} fields")
    return Form(source, question, tuple(_field(name, one, name in required, scrub) for name, one in properties.items()))


def _host_of_page(url: str) -> str:
    try:
        host = host_of(url)
    except UrlProblem as error:
        raise UnusableForm(f"its URL cannot be used: {error}") from error
    is_secure = url.lower().startswith("https://") or (url.lower().startswith("http://") and host in _LOOPBACK)
    if not is_secure or not url.isprintable() or len(url) > 2048:
        raise UnusableForm("its URL is not one of https that can be shown")
    return host


def _field(name: str, schema: Any, required: bool, scrub: Callable[[str], str]) -> FormField:
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name) or scrub(name) != name or not isinstance(schema, dict):
        raise UnusableForm("a field's name is not 1 to 64 of A-Z a-z 0-9 _ . -, or a secret, or it has no schema")

    def words(key: str) -> str:
        text = schema.get(key)
        return one_line(scrub(text), _MAX_WORDS_BYTES) if isinstance(text, str) else ""

    kind, choices = _kind(name, schema, scrub)
    bounds = {
        "string": ("minLength", "maxLength"),
        "integer": ("minimum", "maximum"),
        "number": ("minimum", "maximum"),
        "choices": ("minItems", "maxItems"),
    }.get(kind, ())
    limits = {key: schema[key] for key in bounds if _is_number(schema.get(key))}
    form = schema.get("format")
    field = FormField(
        name, kind, words("title"), words("description"), required, choices, limits, form if form in _FORMATS else None
    )
    if not field.has_answer:
        raise UnusableForm(f"no answer fits the limits of its field {name}")
    default = schema.get("default")
    fits = default is not None and field.problem(default) is None and _goes_back(default, scrub)
    return field._replace(default=default) if fits else field


def _goes_back(default: Any, scrub: Callable[[str], str]) -> bool:
    """True if a default is sent exactly as it is shown. A default of choices is one of the choices, which were checked
    before."""
    if isinstance(default, str):
        return default.isprintable() and scrub(default) == default
    return isinstance(default, bool | list | tuple) or _is_number(default)


def _kind(
    name: str, schema: Mapping[str, Any], scrub: Callable[[str], str]
) -> tuple[Kind, tuple[tuple[str, str], ...]]:
    kind = schema.get("type")
    if kind == "array":
        items = schema.get("items")
        return "choices", _choices(name, items if isinstance(items, dict) else {}, scrub)
    if kind == "string" and ("enum" in schema or "oneOf" in schema):
        return "choice", _choices(name, schema, scrub)
    if kind in ("string", "integer", "number", "boolean"):
        return kind, ()
    raise UnusableForm(f"its field {name} is not a string, number, flag or choice")


def _choices(name: str, schema: Mapping[str, Any], scrub: Callable[[str], str]) -> tuple[tuple[str, str], ...]:
    listed = schema.get("oneOf", schema.get("anyOf"))
    if isinstance(listed, list):
        pairs = [(one.get("const"), one.get("title")) for one in listed if isinstance(one, dict)]
    else:
        values, names = schema.get("enum"), schema.get("enumNames")
        values = values if isinstance(values, list) else []
        names = names if isinstance(names, list) and len(names) == len(values) else values
        pairs = list(zip(values, names, strict=True))
    found = [
        (value, one_line(scrub(words)) if isinstance(words, str) else value)
        for value, words in pairs
        if isinstance(value, str) and len(value) <= 200 and value.isprintable() and scrub(value) == value
    ]
    if not found or len(found) != len(pairs) or len(found) > MAX_CHOICES:
        raise UnusableForm(f"its field {name} has no choices that can be shown, or more than {MAX_CHOICES}")
    return tuple(found)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and abs(value) < 2**53


def covering(grants: Iterable[ApprovalGranted], *, action: str, task_id: str) -> str | None:
    """Return the approvalId of the first of `grants` that covers the `action`, None if an approval is needed. A grant
    of scope task ends with its task; a grant that an earlier version recorded without an action covers nothing."""
    for grant in grants:
        in_scope = grant.scope == "session" or (grant.scope == "task" and grant.task_id == task_id)
        if in_scope and grant.action_hash == action:
            return grant.approval_id
    return None
