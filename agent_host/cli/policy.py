"""`agent-host policy`: what a bundle would say to a call, and what is wrong with a bundle. Nothing is executed."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from agent_host import lenient_json
from agent_host.app.launches import anchored
from agent_host.app.tools import BUILT_IN as BUILT_IN_TOOLS
from agent_host.app.tools import argument_problem
from agent_host.approval.display import escaped
from agent_host.cli import exit_codes
from agent_host.cli.shared import given_settings, state_dir_of
from agent_host.cli.streams import answer, notice
from agent_host.errors import ErrorCode, UsageError
from agent_host.routing.dry_run import DryRunCase, InvalidCase, case_from, judge_case
from agent_host.routing.facts import on_this_disk
from agent_host.session.handshake import SESSION_TO_TRY, bundle_in_file, bundle_to_try
from config.load import ConfigError, load, read_regular_file
from config.policies import BUILT_IN, as_file
from policy.bundle.builtin import DEFAULT_LIFETIME_S
from policy.bundle.problems import BundleProblems
from policy.bundle.validate import check_usable, parse_bundle
from policy.names import ANY_SESSION
from policy.rules.admitted import admitted
from policy.rules.case import denied
from policy.rules.risk import DEFAULT_RISK
from policy.rules.toolset import why_not_offered
from state.temporary import session_directory

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

    from agent_host.routing.facts import Environment
    from policy.bundle.model import PolicyBundle
    from policy.decision import Decision
    from policy.rules.toolset import Limits

_MAX_LINE_BYTES = 32 * 1024 * 1024


def check(namespace: argparse.Namespace) -> int:
    """`policy check`: one decision for a call, or one a line for a file of cases; exit 2 when a case cannot be read."""
    workspace = anchored(namespace.workspace or ".", os.path.realpath)
    trial = _Trial(policy_and_place(namespace, workspace), datetime.now(UTC))
    if namespace.batch is not None:
        if namespace.tool is not None:
            raise UsageError("give a tool with its arguments, or --batch, not both")
        return _batch(trial, namespace.batch)
    if namespace.tool is None or namespace.arguments is None:
        raise UsageError("give a tool and its arguments as JSON, or --batch FILE")
    decision = trial.judge(DryRunCase(namespace.tool, _arguments(namespace.arguments)))
    if namespace.output == "json":
        answer(orjson.dumps(_shown(decision), option=orjson.OPT_APPEND_NEWLINE))
    else:
        answer(_in_words(decision))
    return exit_codes.COMPLETED


def validate(namespace: argparse.Namespace) -> int:
    """`policy validate`: every problem of a bundle with its JSON path, exit 2 when there is one; else what its
    lists admit beyond what they name."""
    try:
        raw = read_regular_file(anchored(namespace.file))
    except OSError as error:
        raise UsageError(f"policy {namespace.file!r}: {error.strerror}") from error
    verdict, admits = "", list[str]()
    now = datetime.now(UTC)
    try:
        bundle = bundle_in_file(raw, _here(namespace), state_dir=state_dir_of(namespace), now=now)
        found = check_usable(bundle, session_id=bundle.session_id, now=now)
        verdict = f"valid: version {_line(bundle.policy_bundle_version)}, {len(bundle.capabilities)} capabilities, "
        hours = DEFAULT_LIFETIME_S // 3600
        ends = "expiresAt" in json.loads(raw)
        verdict += (
            f"expires {bundle.expires_at.isoformat()}\n" if ends else f"holds for {hours} hours from each start on\n"
        )
        admits = admitted(bundle)
    except BundleProblems as error:
        found = list(error.problems)
    problems = [{"path": one.path, "message": one.message, "hint": one.hint} for one in found]
    if namespace.output == "json":
        result = {"valid": not problems, "problems": problems, "admits": [] if problems else admits}
        answer(orjson.dumps(result, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    else:
        answer("".join(f"{_line(one)}\n" for one in found) or verdict + "".join(f"{_line(one)}\n" for one in admits))
    return exit_codes.USAGE if problems else exit_codes.COMPLETED


def _here(namespace: argparse.Namespace) -> Environment:
    """This machine, with the workspace of the command line. Raises UsageError."""
    from agent_host.app.assembly import this_environment

    workspace = anchored(namespace.workspace or ".", os.path.realpath)
    if not os.path.isdir(workspace):
        raise UsageError(f"--workspace {workspace}: there is no such directory")
    return this_environment(workspace)


def show(namespace: argparse.Namespace) -> int:
    """`policy show`: a built-in as a bundle to start from. Raises UsageError for a name that is none."""
    if namespace.name not in BUILT_IN:
        known = ", ".join(BUILT_IN)
        raise UsageError(f"policy show {namespace.name!r}: there is no such built-in; known are {known}")
    answer(as_file(namespace.name))
    return exit_codes.COMPLETED


def tools(namespace: argparse.Namespace) -> int:
    """`policy tools`: which tools the model would be shown, and who keeps the others from it (SK 3.1)."""
    tried = policy_and_place(namespace, anchored(namespace.workspace or ".", os.path.realpath))
    rows = []
    for spec in BUILT_IN_TOOLS:
        entry = tried.bundle.capability(spec.capability)
        withheld = why_not_offered(
            tried.bundle,
            spec.name,
            spec.capability,
            limits=tried.limits,
            workspace=tried.here.workspace,
            os=tried.here.os_family,
        )
        rows.append(
            {
                "toolName": spec.name,
                "capability": spec.capability,
                "offered": withheld is None,
                "requiresApproval": entry is not None and entry.requires_approval,
                "riskLevel": DEFAULT_RISK[spec.capability],
                "reason": withheld,
            }
        )
    if namespace.output == "json":
        answer(orjson.dumps(rows, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    else:
        answer("".join(map(_tool_line, rows)))
    return exit_codes.COMPLETED


def _tool_line(row: dict[str, Any]) -> str:
    said = f"no: {row['reason']}" if row["reason"] else "with approval" if row["requiresApproval"] else "yes"
    return _line(f"{row['toolName']:<16}{row['capability']:<18}{row['riskLevel']:<8}{said}") + "\n"


class Tried(NamedTuple):
    """A policy to try: the bundle as a session would have it, this machine, what the configuration takes away."""

    bundle: PolicyBundle
    here: Environment
    limits: Limits


def policy_and_place(namespace: argparse.Namespace, workspace: str, session_id: str = ANY_SESSION) -> Tried:
    """The bundle that `--policy` names, as a session in `workspace` would have it. Raises UsageError,
    PolicyBundleInvalid."""
    from agent_host.app.assembly import command_environment, limits_of, this_environment

    if not os.path.isdir(workspace):
        raise UsageError(f"--workspace {workspace}: there is no such directory")
    try:
        settings = load(_policy_only(namespace), workspace=workspace)
    except ConfigError as error:
        raise UsageError(str(error)) from error
    state_dir, now = state_dir_of(namespace), datetime.now(UTC)
    named = SESSION_TO_TRY if session_id == ANY_SESSION else session_id
    here = this_environment(workspace, command_environment(settings, session_directory(state_dir, named, os.environ)))
    bundle = bundle_to_try(settings, here, state_dir=state_dir, now=now, session_id=session_id)
    return Tried(bundle, here, limits_of(settings))


class _Trial:
    """Cases against one bundle, or against the capabilities that a case brings along."""

    def __init__(self, tried: Tried, now: datetime) -> None:
        self._bundle, self._here, self._limits = tried
        self._now = now
        self._with = lru_cache(maxsize=64)(self._bundle_with)

    def judge(self, case: DryRunCase) -> Decision:
        """The decision. Raises InvalidCase for capabilities that are none. What policy lets pass is refused for the
        arguments that its tool refuses: the call would not run."""
        bundle = self._bundle
        if case.capabilities is not None:
            bundle = self._with(lenient_json.dumps(case.capabilities))
        if case.facts is not None:  # which say where paths lead, whatever this disk says
            bundle = bundle.on_disk({})
        decision = judge_case(bundle, case, self._here, BUILT_IN_TOOLS, now=self._now, limits=self._limits)
        problem = None if decision.decision == "DENIED" else argument_problem(case.tool_name, case.arguments)
        if problem is not None:
            return denied(decision.capability, "case", f"{ErrorCode.INVALID_REQUEST}: {problem}")
        return decision

    def _bundle_with(self, capabilities: bytes) -> PolicyBundle:
        try:
            bundle = parse_bundle({**self._bundle.to_json(), "capabilities": orjson.loads(capabilities)})
        except BundleProblems as error:
            raise InvalidCase(str(error)) from error
        return on_this_disk(bundle, self._here)


def _batch(trial: _Trial, file: str) -> int:
    unread = 0
    for number, line in enumerate(_lines(file), start=1):
        if not line.strip():
            continue
        row: dict[str, Any] = {}
        try:
            raw, wrong = _once(line)
            if not isinstance(raw, dict):
                raise InvalidCase("a case is a JSON object")
            if "id" in raw:
                row["id"] = raw["id"]
            if wrong is not None:
                raise InvalidCase(wrong)
            decision = trial.judge(case_from(raw))
        except (orjson.JSONDecodeError, InvalidCase) as error:
            unread += 1
            notice(f"line {number}: {error}")
            decision = denied("", "case", f"the case cannot be read: {error}")
        answer(lenient_json.dumps({**row, **_shown(decision)}, option=orjson.OPT_APPEND_NEWLINE))
    return exit_codes.USAGE if unread else exit_codes.COMPLETED


def _once(line: bytes) -> tuple[Any, str | None]:
    """The JSON value of a line, and what is wrong with it: a name that stands twice in one of its objects, of which two
    readers may take two values. Raises orjson.JSONDecodeError."""
    raw = orjson.loads(line)
    twice: list[str] = []

    def pairs(found: list[tuple[str, Any]]) -> None:
        counts = Counter(name for name, _ in found)
        twice.extend(name for name, count in counts.items() if count > 1)

    try:
        json.loads(line, object_pairs_hook=pairs, parse_int=str, parse_float=str)
    except RecursionError:
        return raw, "it nests too deep"
    return raw, f"{twice[0]!r} stands twice in one object" if twice else None


def _lines(file: str) -> Iterator[bytes]:
    """The lines of `file`, `-` for standard input. Raises UsageError."""
    if file == "-":
        yield from _bounded(sys.stdin.buffer)
        return
    try:
        with open(anchored(file), "rb") as handle:
            yield from _bounded(handle)
    except OSError as error:
        raise UsageError(f"--batch {file}: {error.strerror}") from error


def _bounded(handle: Any) -> Iterable[bytes]:
    while line := handle.readline(_MAX_LINE_BYTES):
        yield line


def _policy_only(namespace: argparse.Namespace) -> dict[str, Any]:
    """`--output` is another thing here than in a session's settings."""
    return {key: value for key, value in given_settings(namespace).items() if key == "host.policy"}


def _arguments(text: str) -> dict[str, Any]:
    try:
        arguments, wrong = _once(text.encode("utf-8", "surrogateescape"))
    except orjson.JSONDecodeError as error:
        raise UsageError(f"the arguments are not JSON: {error}") from error
    if wrong is not None:
        raise UsageError(f"the arguments cannot be read: {wrong}")
    if not isinstance(arguments, dict):
        raise UsageError('the arguments are a JSON object, such as {"path": "/srv/project/a.txt"}')
    return arguments


def _shown(decision: Decision) -> dict[str, Any]:
    """A decision on the wire (interface section 3)."""
    row: dict[str, Any] = {
        "decision": decision.decision,
        "reason": decision.reason,
        "capability": decision.capability,
        "rule": decision.rule,
    }
    if decision.rule_id is not None:
        row["ruleId"] = decision.rule_id
    if decision.risk_level is not None:
        row["riskLevel"] = decision.risk_level
    return row


def _in_words(decision: Decision) -> str:
    """For people: every value on its line."""
    risk = "" if decision.risk_level is None else f"\nrisk: {decision.risk_level}"
    reasons = "".join(f"\n  {_line(reason)}" for reason in decision.risks)
    return f"{decision.decision}: {_line(decision.reason)}\nby {_line(decision.rule)}{risk}{reasons}\n"


def _line(said: object) -> str:
    """What is said, on one line: names and values of a bundle do not steer a terminal."""
    return escaped(str(said), keep="")
