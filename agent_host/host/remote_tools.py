"""Remote tools in a session: their stored lists, their approvals, and notices to the user."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent_host.capability_grants import GRANT_HEADER, CapabilityGrant, sign
from agent_host.contracts import Need
from agent_host.events import EventType
from agent_host.host.environment import families_of
from agent_host.http import RetryPolicy
from agent_host.services import endpoints
from agent_host.session.opening import LOCAL
from config.lean_typing import NamedTuple
from policy.rules.toolset import delegated_capabilities, lists
from state.tool_lists import ToolLists
from tool_runtime.families.catalogue import specs_of
from tool_runtime.remote import Definition, RemoteTools, Source, SourceTerms, ToolList, definition_of, spec_of
from tool_runtime.remote.backend import CAPABILITY, NAME, BackendSource
from tool_runtime.remote.backend import InvocationTerms as CallTerms
from tool_runtime.tool import FaultKind, ToolFault, ToolOutput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent_host.contracts import NoticeKind, SourceNotice, ToolSpec
    from agent_host.events.emitter import Emitter
    from agent_host.ids import Outside
    from agent_host.judging import Approved, Judge
    from config.settings import Settings
    from policy.bundle import PolicyBundle
    from state.checkpoint import SessionIdentity
    from tool_runtime.remote.backend import Service
    from tool_runtime.tool import CallContext

_EVENTS: dict[NoticeKind, EventType] = {
    "listed": EventType.TOOLS_LISTED,
    "changed": EventType.TOOLS_CHANGED,
    "hidden": EventType.TOOLS_HIDDEN,
    "unavailable": EventType.TOOLS_UNAVAILABLE,
}


class ToolsElsewhere:
    """The sources of a session. `bundle` gives the bundle that lists their tools. It also reports which tools that may
    change are approved in their present form: `others` are those of the workspace."""

    def __init__(
        self, state_dir: str, bundle: Callable[[], PolicyBundle], emitter: Emitter, others: Approved | None
    ) -> None:
        self._bundle = bundle
        self._state_dir = state_dir
        self._emitter = emitter
        self._others = others
        self._kept: list[ToolLists] = []

    def provider(
        self, source: Source, place: str, terms: SourceTerms, completed: Callable[[ToolSpec], ToolSpec] | None = None
    ) -> RemoteTools:
        """A Provider of a source's tools. `place` is what makes it this source and no other: its URL, its command.
        `completed` as of RemoteTools."""
        kept = ToolLists(self._state_dir, f"{source.name} {place}")
        self._kept.append(kept)

        def admits(tool_name: str) -> bool:
            entry = self._bundle().capability(terms.capability)
            return entry is not None and lists(entry, tool_name)

        return RemoteTools(source, terms, kept, admits=admits, report=self.report, completed=completed)

    def is_approved(self, name: str, identity: str) -> bool:
        """See Approved."""
        others = () if self._others is None else (self._others,)
        return any(one.is_approved(name, identity) for one in (*self._kept, *others))

    def approve(self, name: str, identity: str) -> None:
        """See Approved."""
        for one in self._kept:
            if one.lists(name):
                one.approve(name, identity)
                return
        if self._others is not None:
            self._others.approve(name, identity)

    def report(self, notice: SourceNotice) -> None:
        """Notify the user about a source."""
        names = ("added", "removed", "changed", "rejected")
        changes = {name: list(value) for name in names if (value := getattr(notice, name))}
        payload = {"source": notice.source, "toolCount": notice.tool_count, "message": notice.message, **changes}
        self._emitter.emit(_EVENTS[notice.kind], payload)


# The Backend Tool Service in a session (AH 7.6): its address, the data of the session that it gets, and the limits of a
# call of its tools.

GRANT_S: Final = 900
"""Lifetime of a grant that the host signs, unless the bundle ends sooner: longer than a call takes with all retries,
and not long enough to be worth stealing."""
_MARGIN_S: Final = 5.0


class ToolService(NamedTuple):
    """The service at `url`, the key of grants, and `given`, which is asked for the Session Service's grant each time: a
    refresh of the session brings another."""

    url: str
    client: Service
    key: bytes | None
    given: Callable[[], str | None]
    outside: Outside

    def provider(
        self, elsewhere: ToolsElsewhere, judge: Judge, identity: SessionIdentity, settings: Settings
    ) -> RemoteTools:
        """The Provider of its tools, whose grants name the tenant of the judge's bundle. Retries are as for every
        service; a call's own timeout ends before that of the runtime, and its message is more precise."""
        longest_s, timeout_s = settings.services.retry_max_s, settings.backend.timeout_s
        retry = RetryPolicy(settings.services.max_retries, settings.services.retry_base_s, longest_s, longest_s)
        grant = grant_maker(identity, lambda: judge.bundle, self.given, self.key, self.outside.time)
        terms = CallTerms(grant, GRANT_HEADER, identity.workspace_id, timeout_s, retry, self.outside)
        of_calls = SourceTerms(CAPABILITY, True, timeout_s + _MARGIN_S, settings.backend.connect_timeout_s)
        source = BackendSource(self.client, terms)
        return elsewhere.provider(source, self.url, of_calls, stand_ins(settings, judge.bundle))


def tools_on_record(
    environ: Mapping[str, str], settings: Settings, bundle: PolicyBundle, state_dir: str
) -> tuple[ToolSpec, ...]:
    """The service's tools, as it listed them last. Nothing is connected. Raises UsageError for a URL that is none."""
    url = endpoints(environ).backend_tools
    if url is None:
        return ()
    lists, completed = ToolLists(state_dir, f"{NAME} {url}"), stand_ins(settings, bundle)
    newest = lists.newest()
    shapes = None if newest is None else lists.read(newest)
    specs = (spec_of(definition_of(shape), CAPABILITY, elsewhere=True) for shape in shapes or ())
    return tuple(completed(spec._replace(identity=None)) for spec in specs)  # a session determines who approved it


def stand_ins(settings: Settings, bundle: PolicyBundle) -> Callable[[ToolSpec], ToolSpec]:
    """Return a function that makes a tool which takes the place of one of this machine (`insteadOf`) into one whose
    calls need what that one needs as well, and are judged by the same arguments."""
    sent = delegated_capabilities(bundle)
    replaced = {spec.name: spec for spec in specs_of(families_of(settings)) if not sent.isdisjoint(spec.capabilities)}

    def complete(spec: ToolSpec) -> ToolSpec:
        local = replaced.get(spec.name)
        if local is None:
            return spec
        return spec._replace(also=(Need(local.capability, local.subject), *local.also), category=local.category)

    return complete


def grant_maker(
    identity: SessionIdentity,
    bundle_now: Callable[[], PolicyBundle],
    given: Callable[[], str | None],
    key: bytes | None,
    clock: Callable[[], float],
) -> Callable[[str], str | None]:
    """Return a function that makes the capability grant of each request: the one from the Session Service, else one for
    the one tool, signed with the key of this host; None if the host has neither. The current bundle names the tenant,
    and the grant ends with it at the latest."""

    def make(tool_name: str) -> str | None:
        grant = given()
        if grant is not None or key is None:
            return grant
        bundle = bundle_now()
        # `local` is the user of this machine, whoever that is.
        tenant = identity.tenant_id if bundle.tenant_id == LOCAL else bundle.tenant_id
        until = min(int(clock()) + GRANT_S, int(bundle.expires_at.timestamp()))
        own = CapabilityGrant(tenant, identity.session_id, (tool_name,), until, identity.user_id, identity.workspace_id)
        return sign(own, key)

    return make


# Backend tools of a session that is run again: their definitions as the state directory keeps them, and their answers
# from the record. Nothing is connected.

_TIMEOUT_S: Final = 10.0
_PLACE: Final = "the record"
_NO_ANSWER: Final = "the record has no answer to this call: it did not run then"


class RecordedAnswer(NamedTuple):
    """The answer that the model read of a call then."""

    text: str
    failed: bool


class RecordedToolService(NamedTuple):
    """In place of `ToolService`: the tools of `definitions`, whose calls are answered by their ids from `answers`."""

    definitions: tuple[Definition, ...]
    answers: Mapping[str, RecordedAnswer]

    def provider(
        self,
        elsewhere: ToolsElsewhere,
        judge: Judge,
        identity: SessionIdentity,  # noqa: ARG002 - as ToolService has it
        settings: Settings,
    ) -> RemoteTools:
        """The Provider of these tools."""
        terms = SourceTerms(CAPABILITY, True, _TIMEOUT_S, _TIMEOUT_S)
        return elsewhere.provider(_RecordedSource(self), _PLACE, terms, stand_ins(settings, judge.bundle))


class _RecordedSource(Source):
    name = NAME

    def __init__(self, service: RecordedToolService) -> None:
        self._service = service

    async def list(self) -> ToolList:
        return ToolList(self._service.definitions)

    async def call(self, tool: Definition, call: CallContext) -> ToolOutput:  # noqa: ARG002 - see Source
        answer = self._service.answers.get(call.request.tool_call_id)
        if answer is None:
            raise ToolFault(FaultKind.SYSTEM, _NO_ANSWER)
        if answer.failed:
            raise ToolFault(FaultKind.SYSTEM, answer.text)
        return ToolOutput(answer.text)
