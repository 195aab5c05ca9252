"""Preparation of each call of a turn (AH 4.2, phase 1): its facts, policy's decision, its effect on a file, and the id
of its approval if it needs one. The same functions judge a call again after a wait."""

from __future__ import annotations

import os
from functools import reduce
from typing import TYPE_CHECKING, Any

from agent_host.contracts import ToolConstraints, ToolRequest
from agent_host.errors import CheckpointWriteFailed, ErrorCode
from agent_host.events import EventType
from agent_host.judging import NO_EFFECT, PreparedCall, Refusal
from agent_host.loop import placeholder_problem
from agent_host.safe_open import link_at, read_real
from config.lean_typing import NamedTuple
from policy import CapabilityName
from policy.bundle import common_limits, scope_of_call
from policy.facts import CommandFacts, OutputFacts, PathFacts, UrlFacts
from policy.rules.canonical import exact_call
from state.blobs import LINK, PLAIN_FILE, UNAVAILABLE, add_mode, git_mode, mode_and_blob, sha256_hex, unavailable_at
from state.records import CallStarted, FileEffect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from agent_host.contracts import ToolSpec
    from agent_host.loop import LoopContext
    from agent_host.thread.messages import ToolCall
    from policy.facts import ActionFacts
    from state.checkpoint import CallRow, FirstVersions, Intent, OpenCall


PlannedContent = tuple[str | None, bytes | str | None]
"""SHA-256 and content that a path will have: both None for no file, UNAVAILABLE if unknown."""

# Larger files are written too; after a crash in the middle the outcome is "unknown", and the patch says that the first
# version was not kept.
_MAX_BASELINE_BYTES = 16 * 1024 * 1024


def prepare_calls(
    ctx: LoopContext, calls: Sequence[ToolCall], on_record: Mapping[str, OpenCall] | None = None
) -> tuple[PreparedCall, ...]:
    """Determine facts, decision and effect of each call in order (AH 4.2, phase 1), and the ids of their approvals (AH
    10.1). `on_record` maps the ids of calls that a crash left open to their records."""
    planned: dict[str, PlannedContent] = {}
    prepared_calls: list[PreparedCall] = []
    for call in calls:
        prepared = judge(ctx, call)
        if on_record is not None:
            prepared = _restore_approval(ctx, prepared, on_record[call.call_id])
        if prepared.needs_approval:
            prepared = prepared._replace(approval_id=prepared.approval_id or ctx.outside.new_id("appr"))
        elif prepared.decision is not None and prepared.decision.allowed:
            prepared = _add_effect(ctx, prepared, planned)
        prepared_calls.append(prepared)
    return tuple(prepared_calls)


def judge(ctx: LoopContext, call: ToolCall) -> PreparedCall:
    """Gather the call's facts and get policy's decision; calls that can never run are refused here."""
    from agent_host.judging.decisions import decide  # with the first call comes all that judges one

    prepared = decide(ctx.judge, call)
    spec, refusal, decision = prepared.spec, prepared.refusal, prepared.decision
    if spec is None:
        return prepared
    problem = call.problem or placeholder_problem(call)
    if problem is None and decision is None and refusal is not None and refusal.withheld is None:
        # The tool's schema explains arguments that name nothing to act on.
        problem = ctx.router.argument_problem(call.name, call.arguments)
    if problem is not None:
        return PreparedCall(call, spec, refusal=Refusal("failed", ErrorCode.INVALID_REQUEST, problem))
    if decision is not None and decision.expired:
        ctx.emit(EventType.POLICY_EXPIRED, None, toolCallId=call.call_id)
    return prepared


def judge_again(ctx: LoopContext, prepared: PreparedCall) -> PreparedCall:
    """Judge a call again after a wait, and update its effect to the file's present content."""
    again = judge(ctx, prepared.call)._replace(
        renewed=True, approval_id=prepared.approval_id, answer=prepared.answer, edited=prepared.edited
    )
    again = ask_after_all(again)
    return again if again.refusal is not None else _add_effect(ctx, again, {})


def edit(ctx: LoopContext, prepared: PreparedCall, arguments: Mapping[str, Any]) -> PreparedCall:
    """Give the call the arguments that the person who approved it wrote, and judge it with them. They were approved
    with them, so that policy asks for an approval of this form too makes no difference; its denial does."""
    call = prepared.call._replace(arguments=dict(arguments), problem=None)
    return judge(ctx, call)._replace(
        renewed=prepared.renewed, approval_id=prepared.approval_id, answer=prepared.answer, edited=True
    )


def ask_after_all(prepared: PreparedCall) -> PreparedCall:
    """Lift the refusal of a call that was denied because no approver was present, if a person has approved it since.
    This applies to tasks without approvals too."""
    decision, answer = prepared.decision, prepared.answer
    if answer is None or not answer.approved or decision is None or not decision.no_approver:
        return prepared
    return prepared._replace(decision=decision._replace(decision="APPROVAL_REQUIRED", no_approver=False), refusal=None)


def bound_to(ctx: LoopContext, prepared: PreparedCall) -> str | None:
    """Return the identity that an approval of the call is bound to; None for a call without facts."""
    if prepared.facts is None:
        return None
    return exact_call(prepared.call.name, prepared.call.arguments, prepared.facts, ctx.judge.policy_identity)


def _restore_approval(ctx: LoopContext, prepared: PreparedCall, left: OpenCall) -> PreparedCall:
    """Restore the call's approval after a crash. An approval for another directory or under another policy does not
    apply: the question is repeated under a new id."""
    approval_id = left.approval_id or (ctx.outside.new_id("appr") if left.gated else None)
    answer = left.answer
    if answer is not None and answer.approved and answer.bound_to not in (None, bound_to(ctx, prepared)):
        approval_id, answer = ctx.outside.new_id("appr"), None
    edited = left.edited_arguments is not None
    return ask_after_all(prepared._replace(renewed=True, approval_id=approval_id, answer=answer, edited=edited))


def row_of(prepared: PreparedCall) -> CallRow:
    """The call's part of the turn record."""
    row: CallRow = {"callId": prepared.call.call_id, "sideEffects": prepared.side_effects}
    if prepared.needs_approval and prepared.approval_id is not None:
        row["gated"], row["approvalId"] = True, prepared.approval_id
    if prepared.effect.intent is not None:
        row["intent"] = prepared.effect.intent
    return row


def first_versions(calls: Sequence[PreparedCall]) -> FirstVersions:
    """The first versions of files that the calls of a turn are about to write."""
    return {path: blob for prepared in calls for path, blob in prepared.effect.baselines.items()}


def record_start(ctx: LoopContext, prepared: PreparedCall) -> None:
    """Record the start of the call before it starts: without a record, a resume concludes that the call did not start.
    The record of an approved call is synced, so that this holds after a power failure too. A call without side effects
    needs no record. Raises CheckpointWriteFailed."""
    if not prepared.side_effects and prepared.approval_id is None:
        return
    try:
        ctx.journal.record(CallStarted(prepared.call.call_id, prepared.effect if prepared.renewed else None))
        if prepared.approval_id is not None:
            ctx.journal.write_ahead()
    except CheckpointWriteFailed:
        ctx.state.open_call(prepared.call.call_id).started = False  # nor is there a record that it did
        raise


def _add_effect(ctx: LoopContext, prepared: PreparedCall, planned: dict[str, PlannedContent]) -> PreparedCall:
    """Add the call's effect on its file, if it changes one, and store the file's first version."""
    if prepared.spec is None:
        return prepared

    def keep(facts: PathFacts, data: bytes) -> str:
        """Without secrets; not of a file that the bundle does not let anybody read."""
        return ctx.journal.keep(ctx.scrubber.data(data)) if ctx.judge.may_read(facts) else UNAVAILABLE

    versions = Versions(keep, ctx.task.baselines, ctx.journal.keeps_versions)
    effect = capture_intent(prepared.spec, prepared.facts, prepared.call.arguments, versions, planned)
    return prepared._replace(effect=effect)


def request_for(ctx: LoopContext, prepared: PreparedCall, names: Sequence[PathFacts] | None = None) -> ToolRequest:
    """The call as it crosses to the runtime, with the scope that the bundle gives it and that of its sandbox."""
    call, spec, facts, decision = prepared.call, prepared.spec, prepared.facts, prepared.decision
    if spec is None:
        raise RuntimeError("only a call of a known tool is executed")
    needed = (spec.capability, *(need.capability for need in spec.needs(call.arguments)))
    scopes = {name: _constraints(ctx, name) for name in needed}
    if spec.changes_file and isinstance(facts, PathFacts):  # an error may quote the file only if policy lets it be read
        is_granted = all(bundle.capability(CapabilityName.FILE_READ) is not None for bundle in ctx.judge.bundles)
        if is_granted and ctx.judge.may_read(facts):
            scopes[CapabilityName.FILE_READ] = _constraints(ctx, CapabilityName.FILE_READ)
    arguments = dict(spec.complete(call.arguments, ctx.judge.environment.workspace))
    taken = {one.requested: one.absolute for one in (names_taken(ctx, facts) if names is None else names)}
    # Relative to the workspace if this machine runs the call; its tools take absolute paths.
    is_place = not spec.elsewhere and not isinstance(facts, OutputFacts)
    for argument in spec.paths & arguments.keys() if is_place else frozenset():
        path = arguments[argument]
        if isinstance(path, str):
            arguments[argument] = taken.get(path) or ctx.judge.environment.absolute(path)
    command_scope = None if decision is None else decision.command_scope
    return ToolRequest(
        call.name,
        arguments,
        ctx.session_id,
        ctx.task.task_id,
        ctx.step_id,
        call.call_id,
        spec.capability,
        scopes.pop(spec.capability)._replace(command_scope=command_scope),
        scopes,
        ctx.state.seen.get(facts.real_path) if isinstance(facts, PathFacts) else None,
        facts.script.identity if isinstance(facts, CommandFacts) and facts.script is not None else None,
    )


def names_taken(ctx: LoopContext, facts: ActionFacts | None) -> Iterator[PathFacts]:
    """The call's paths whose spelling differs from the real name, as displayed or by look-alike characters."""
    also = facts.also if isinstance(facts, PathFacts | UrlFacts) else ()
    for one in (facts, *(other for _, other in also)):
        if isinstance(one, PathFacts) and one.absolute != os.path.normpath(
            ctx.judge.environment.absolute(one.requested)
        ):
            yield one


def _constraints(ctx: LoopContext, capability_name: str) -> ToolConstraints:
    system = ctx.judge.environment.os_family
    capability = reduce(
        lambda one, other: common_limits(one, other, system),
        (scope_of_call(bundle, capability_name, system) for bundle in ctx.judge.bundles),
    )
    if capability is None:
        return ToolConstraints()
    return ToolConstraints(
        capability.max_file_size_bytes,
        capability.max_output_bytes,
        capability.allowed_paths,
        capability.blocked_paths,
        capability.allowed_domains,
        capability.blocked_domains,
    )


class Versions(NamedTuple):
    """Stored versions of the files that calls change. `keep` stores a version of a file and returns its name. `known`
    are the paths whose first version is recorded. `all`: every overwritten version is stored, not only the first."""

    keep: Callable[[PathFacts, bytes], str]
    known: Mapping[str, str | None]
    all: bool


def capture_intent(
    spec: ToolSpec,
    facts: ActionFacts | None,
    arguments: Mapping[str, Any],
    versions: Versions,
    planned: dict[str, PlannedContent],
) -> FileEffect:
    """Return the effect of a call on its one file; NO_EFFECT for any other call, and for a request, whose response is
    unknown. `planned` is what earlier calls of the turn will leave at a path, with its SHA-256; it is updated
    here."""
    facts = file_to_write(spec, facts)
    if facts is None:
        return NO_EFFECT
    baselines: dict[str, str | None] = {}
    is_removed = spec.effect in ("delete", "move")
    changes_mode = is_removed or (spec.effect == "replace" and isinstance(arguments.get("mode"), str))
    mode = mode_at(facts.real_path) if changes_mode else None
    if spec.effect != "replace" and mode == PLAIN_FILE:  # a missing file counts as one
        mode = None
    before, data, kept = _found(facts, versions, planned, baselines, mode)
    content = _content_after(spec, arguments, data)
    after = None if content is None else sha256_hex(content) if isinstance(content, bytes) else content
    intent: Intent = {"path": facts.real_path, "before": before, "after": after}
    if kept is not None:
        intent["kept"] = kept
    if spec.effect == "move":
        target = next(other for needed, other in facts.also if needed == CapabilityName.FILE_WRITE)
        target_before, _, _ = _found(target, versions, planned, baselines)
        intent["target"] = {"path": target.real_path, "before": target_before}
        planned[target.real_path] = (before, data)
    planned[facts.real_path] = (after, content)
    return FileEffect(intent, baselines)


def file_to_write(spec: ToolSpec, facts: ActionFacts | None) -> PathFacts | None:
    """The file that a call changes or saves its response to; None if it has none."""
    if isinstance(facts, UrlFacts):
        return next((other for needed, other in facts.also if needed == CapabilityName.FILE_WRITE), None)
    # A directory's files are deleted one by one, so none shows whether the deletion finished.
    return facts if spec.changes_file and isinstance(facts, PathFacts) and not facts.tree else None


def _found(
    facts: PathFacts,
    versions: Versions,
    planned: dict[str, PlannedContent],
    baselines: dict[str, str | None],
    mode: str | None = None,
) -> tuple[str | None, bytes | str | None, str | None]:
    """Return hash and content of the file at a path, and the name of its stored version, None if none is stored. A
    first version is added to `baselines`, with its mode."""
    path = facts.real_path
    if path in planned:
        before, data = planned[path]
    else:
        data = _content(facts)
        before = None if data is None else sha256_hex(data) if isinstance(data, bytes) else data
        if before is not None and facts.kind == "link":
            before = add_mode(LINK, before)
    is_first = path not in versions.known and path not in planned
    if not (is_first or versions.all):
        return before, data, None
    kept = versions.keep(facts, data) if isinstance(data, bytes) else data
    if kept == UNAVAILABLE:
        kept = unavailable_at(path)
    mode = mode_and_blob(before or "")[0] or mode
    if kept is not None and mode is not None:
        kept = add_mode(mode, kept)
    if is_first:
        baselines[path] = kept
    return before, data, kept if versions.all else None


def _content_after(spec: ToolSpec, arguments: Mapping[str, Any], before: bytes | str | None) -> bytes | str | None:
    """Return the content that the call leaves: None for no file, UNAVAILABLE if unknown."""
    if spec.effect in ("delete", "move"):
        return None
    if spec.after is None or (spec.effect == "edit" and not isinstance(before, bytes)):
        return UNAVAILABLE
    content = spec.after(arguments, before if isinstance(before, bytes) else None)
    return UNAVAILABLE if content is None else content


def hash_on_disk(path: str, clean: Callable[[bytes], bytes] = bytes) -> str | None:
    """Return the hash of the file at `path` now, as intents have it: None for no file, UNAVAILABLE for what cannot be
    read or is larger than what intents hash. Of a link it is that of the path that it leads to, with its mode. With
    `clean` as it is kept as a first version."""
    try:
        return sha256_hex(clean(read_real(path, _MAX_BASELINE_BYTES)))
    except FileNotFoundError:
        return None
    except OSError:
        target = link_at(path)
        return UNAVAILABLE if target is None else add_mode(LINK, sha256_hex(clean(target)))


def mode_at(path: str) -> str | None:
    """The mode of the file or link at `path`; None if there is none or it is not readable."""
    try:
        return git_mode(os.lstat(path).st_mode)
    except OSError:
        return None


def _content(facts: PathFacts) -> bytes | str | None:
    """The content of a file or link; None if there is none, UNAVAILABLE for anything else and for large files."""
    if facts.kind == "missing":
        return None
    if facts.kind == "link":
        target = link_at(facts.real_path)
        return UNAVAILABLE if target is None else target
    if facts.kind != "file" or (facts.size_bytes or 0) > _MAX_BASELINE_BYTES:
        return UNAVAILABLE
    try:
        return read_real(facts.real_path, _MAX_BASELINE_BYTES)
    except FileNotFoundError:
        return None
    except OSError:
        return UNAVAILABLE
