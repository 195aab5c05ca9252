"""`agent-host policy`: a bundle's decisions on calls, and the problems of a bundle. Nothing is executed."""

from __future__ import annotations

import json
import sys
from codecs import BOM_UTF8
from collections import Counter
from typing import TYPE_CHECKING, Any

import orjson

from agent_host.cli import answer, exit_codes, notice
from agent_host.cli.outputs import OutputFile, check_no_overlap
from agent_host.cli.pipeline import Tested, junit_of_policy
from agent_host.cli.shared import answer_in, scope_in_words, settings_of_options, state_dir_of, warn_if_empty
from agent_host.display_text import count_noun, escape
from agent_host.errors import UsageError
from agent_host.host.dry_runs import DryRuns, InvalidCase, case_refused, policy_to_try, report_of_bundle
from agent_host.host.options import anchor, existing_workspace
from agent_host.ids import MACHINE
from config import json_text
from config.load import read_regular_file
from config.policies import BUILT_IN, write_template
from config.shapes import hint_at, hint_at_path

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

    from agent_host.host.dry_runs import Tried
    from policy import Decision, SandboxLevel

_LEVEL = "sandbox.level"
_OF_POLICY = ("host.policy", "host.toolset", _LEVEL, "sandbox.allowed_domains")
_MAX_LINE_BYTES = 32 * 1024 * 1024


def check(namespace: argparse.Namespace) -> int:
    """`policy check`: one decision for a call, or one per line for a file of cases; exit 2 if a case cannot be read.
    With `--exit-code` each decision has its own code."""
    policy = policy_of_options(namespace)
    runs = DryRuns(policy, MACHINE.now())
    if namespace.batch is not None:
        if namespace.tool is not None:
            raise UsageError("give a tool with its arguments, or --batch, not both")
        return _batch(runs, namespace.batch, policy.level.level, exit_code=namespace.exit_code)
    if namespace.tool is None or namespace.arguments is None:
        raise UsageError("give a tool and its arguments as JSON, or --batch FILE")
    decision, level = runs.judge_call(namespace.tool, _arguments(namespace.arguments))
    answer_in(namespace.output, _to_wire(decision, level), _render(decision, level), indented=False)
    return _CODES[decision.decision] if namespace.exit_code else exit_codes.COMPLETED


_CODES = {"ALLOWED": exit_codes.COMPLETED, "DENIED": exit_codes.FAILED, "APPROVAL_REQUIRED": exit_codes.NEEDED_APPROVAL}


def validate(namespace: argparse.Namespace) -> int:
    """`policy validate`: every problem of a bundle with its JSON path, exit 2 if there is one; else what its lists
    allow apart from the programs that they name."""
    try:
        raw = read_regular_file(anchor(namespace.file))
    except OSError as error:
        raise UsageError(f"{namespace.file}: {error.strerror}{hint_at_path(anchor(namespace.file))}") from error
    flags = {key: value for key, value in settings_of_options(namespace).items() if key == _LEVEL}
    found = report_of_bundle(raw, flags, workspace=_workspace(namespace), state_dir=state_dir_of(namespace))
    problems = [{"path": one.path, "message": one.message, "hint": one.hint} for one in found.problems]
    admits = [] if problems else found.admits
    result = {"valid": not problems, "problems": problems, "admits": admits, "sandboxLevel": found.level}
    lines = (f"{_line(one)}\n" for one in found.problems or (found.summary, *found.admits))
    answer_in(namespace.output, result, lines)
    for one in found.suspicions:
        notice(f"{namespace.file}: {one}")
    return exit_codes.USAGE if problems else exit_codes.COMPLETED


def show(namespace: argparse.Namespace) -> int:
    """`policy show`: a built-in policy as a bundle to start from. Raises UsageError for an unknown name."""
    if namespace.name not in BUILT_IN:
        hint = hint_at(namespace.name, BUILT_IN)
        raise UsageError(f"policy show {namespace.name!r}: there is no such built-in{hint}")
    answer(write_template(namespace.name))
    return exit_codes.COMPLETED


def tools(namespace: argparse.Namespace) -> int:
    """`policy tools`: the tools that the model would see, and the party that withholds the others (SK 3.1). With
    `--skill`: while these skills are in use."""
    policy = policy_of_options(namespace)
    skills = policy.skill_limits(namespace.skill)
    for one in skills:
        if one.unknown:
            notice(f"{one.limit.source}: these of its allowed-tools name no tool here: {', '.join(one.unknown)}")
    for line in policy.of_workspace.unusable:
        notice(line)
    rows = policy.tools(frozenset(one.limit for one in skills))
    answer_in(namespace.output, rows, map(_tool_line, rows))
    return exit_codes.COMPLETED


def _tool_line(row: dict[str, Any]) -> str:
    verdict = f"no: {row['reason']}" if row["reason"] else "with approval" if row["requiresApproval"] else "yes"
    if len(row["keptBy"]) > 1:
        verdict += f" (kept by {' and '.join(row['keptBy'])})"
    if row.get("commands"):
        verdict += f", only {', '.join(row['commands'])}"
    return _line(f"{row['toolName']:<16}{row['capability']:<18}{row['riskLevel']:<8}{verdict}") + "\n"


def policy_of_options(namespace: argparse.Namespace) -> Tried:
    """The policy of the command line, for its workspace. Raises UsageError, PolicyBundleInvalid."""
    policy = policy_to_try(policy_only(namespace), workspace=_workspace(namespace), state_dir=state_dir_of(namespace))
    for line in policy.notices:
        notice(line)
    return policy


def _workspace(namespace: argparse.Namespace) -> str:
    warn_if_empty(namespace, "--workspace")
    return existing_workspace(namespace.workspace or ".", "--workspace")


def test(namespace: argparse.Namespace) -> int:
    """`policy test`: compare the decision on each case of a file with the expected one; exit 1 if one differs, 2 if a
    case cannot be read. Results do not depend on the machine: commands are judged without a sandbox, and as on POSIX,
    unless a case or an option sets it."""
    flags = {_LEVEL: "none", **policy_only(namespace)}
    policy = policy_to_try(flags, workspace=_workspace(namespace), state_dir=state_dir_of(namespace))
    report = None if namespace.junit is None else OutputFile("junit", namespace.junit)
    if report is not None:
        check_no_overlap((report,), namespace)
        report.remove_old()
    runs = DryRuns(policy, MACHINE.now())
    lines = enumerate(_lines(namespace.file, "policy test"), start=1)
    found = [_test_case(runs, number, line) for number, line in lines if line.strip()]
    wrong, unread = [one for one in found if one.problem], any(one.error for one in found)
    answer("".join(f"{'error' if one.error else 'FAIL '} {_line(one.name)}: {_line(one.problem)}\n" for one in wrong))
    answer(f"{count_noun(len(found), 'case')}, {len(found) - len(wrong)} as expected\n")
    is_whole = report is None or report.write(junit_of_policy(flags.get("host.policy", "workspace"), found))
    if unread or not found:
        return exit_codes.USAGE
    return exit_codes.FAILED if wrong or not is_whole else exit_codes.COMPLETED


def _test_case(runs: DryRuns, number: int, line: bytes) -> Tested:
    name = f"line {number}"
    try:
        raw, wrong = _parse_json(line)
        if not isinstance(raw, dict):
            raise InvalidCase("a case is a JSON object")
        name += f" ({raw['id']})" if "id" in raw else ""
        expected = raw.pop("expect", None)
        row = {"decision": expected} if isinstance(expected, str) else expected
        if not _is_expectation(row):
            raise InvalidCase(f"expect is one of {', '.join(_CODES)}, or {{decision, rule?}} with one of these")
        if wrong is not None:
            raise InvalidCase(wrong)
        decision, _ = runs.judge_case({"os": "posix", **raw})
    except (orjson.JSONDecodeError, InvalidCase) as error:
        return Tested(name, str(error), error=True)
    if decision.decision == row["decision"] and row.get("rule") in (None, decision.rule):
        return Tested(name)
    rule = f" by {row['rule']}" if row.get("rule") is not None else ""
    actual = f"{decision.decision} by {decision.rule}: {decision.reason}"
    return Tested(name, f"expected {row['decision']}{rule}, is {actual}")


def _is_expectation(row: Any) -> bool:
    if not isinstance(row, dict) or not row.keys() <= {"decision", "rule"}:
        return False
    return row.get("decision") in list(_CODES) and isinstance(row.get("rule"), str | None)  # they may have any type


def _batch(runs: DryRuns, file: str, level: SandboxLevel, *, exit_code: bool) -> int:
    unread, number, seen = 0, 0, set[int]()
    for number, line in enumerate(_lines(file, "--batch"), start=1):
        if not line.strip():
            continue
        row: dict[str, Any] = {}
        try:
            raw, wrong = _parse_json(line)
            if not isinstance(raw, dict):
                raise InvalidCase("a case is a JSON object")
            if "id" in raw:
                row["id"] = raw["id"]
            if wrong is not None:
                raise InvalidCase(wrong)
            decision, level_of_case = runs.judge_case(raw)
        except (orjson.JSONDecodeError, InvalidCase) as error:
            unread += 1
            is_json = not isinstance(error, orjson.JSONDecodeError)
            notice(f"line {number}: {'' if is_json else 'not JSON: '}{error}")
            decision, level_of_case = case_refused(str(error)), level
        seen.add(_CODES[decision.decision])
        answer(json_text.dumps({**row, **_to_wire(decision, level_of_case)}, option=orjson.OPT_APPEND_NEWLINE))
    if not number:
        notice(f"{'standard input' if file == '-' else f'--batch {file}'} is empty: there is no case to judge")
    if unread or not exit_code:
        return exit_codes.USAGE if unread else exit_codes.COMPLETED
    return next(
        (code for code in (exit_codes.FAILED, exit_codes.NEEDED_APPROVAL) if code in seen), exit_codes.COMPLETED
    )


def _parse_json(line: bytes) -> tuple[Any, str | None]:
    """The JSON value of a line, and the problem with it: a name that occurs twice in one object, of which two parsers
    may use different values. Raises orjson.JSONDecodeError."""
    raw = json_text.loads(line)
    twice: list[str] = []

    def pairs(found: list[tuple[str, Any]]) -> None:
        counts = Counter(name for name, _ in found)
        twice.extend(name for name, count in counts.items() if count > 1)

    json.loads(line, object_pairs_hook=pairs, parse_int=str, parse_float=str)
    return raw, f"{twice[0]!r} occurs twice in one object" if twice else None


def _lines(file: str, given_by: str) -> Iterator[bytes]:
    """The lines of `file`, `-` for standard input. Raises UsageError."""
    if file == "-":
        yield from _read_bounded(sys.stdin.buffer)
        return
    try:
        with open(anchor(file), "rb") as handle:
            yield from _read_bounded(handle)
    except OSError as error:
        raise UsageError(f"{given_by} {file}: {error.strerror}") from error


def _read_bounded(handle: Any) -> Iterable[bytes]:
    mark = BOM_UTF8
    while line := handle.readline(_MAX_LINE_BYTES):
        yield line.removeprefix(mark)
        mark = b""


def policy_only(namespace: argparse.Namespace) -> dict[str, Any]:
    """The policy, and the families of tools. `--output` has another meaning here than in a session's settings."""
    return {key: value for key, value in settings_of_options(namespace).items() if key in _OF_POLICY}


def _arguments(text: str) -> dict[str, Any]:
    if not text.strip():
        raise UsageError('the arguments are empty; give a JSON object, such as {"path": "a.txt"}')
    try:
        arguments, wrong = _parse_json(text.encode("utf-8", "surrogateescape"))
    except orjson.JSONDecodeError as error:
        raise UsageError(f"the arguments are not JSON: {error}") from error
    if wrong is not None:
        raise UsageError(f"the arguments cannot be read: {wrong}")
    if not isinstance(arguments, dict):
        raise UsageError('the arguments are a JSON object, such as {"path": "/srv/project/a.txt"}')
    return arguments


def _to_wire(decision: Decision, level: SandboxLevel) -> dict[str, Any]:
    """A decision in its wire form (interface section 3), with commands sandboxed at this level."""
    scope = decision.command_scope
    row = {
        "decision": decision.decision,
        "reason": decision.reason,
        "capability": decision.capability,
        "rule": decision.rule,
        "sandboxLevel": level,
        "ruleId": decision.rule_id,
        "riskLevel": decision.risk_level,
        "commandScope": None if scope is None else scope.to_wire(level),
    }
    return {name: value for name, value in row.items() if value is not None}


def _render(decision: Decision, level: SandboxLevel) -> str:
    risk = "" if decision.risk_level is None else f"\nrisk: {decision.risk_level}"
    reasons = "".join(f"\n  {_line(reason)}" for reason in decision.risks)
    scope = "" if decision.command_scope is None else scope_in_words(decision.command_scope.to_wire(level))
    at_level = f"\nat the sandbox level {level}"
    return f"{decision.decision}: {_line(decision.reason)}\nby {_line(decision.rule)}{at_level}{risk}{reasons}\n{scope}"


def _line(value: object) -> str:
    return escape(str(value), keep="")
