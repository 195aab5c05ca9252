"""What holds for every bundle and every call, whatever they are."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_host.host.environment import BUILT_IN
from agent_host.judging import Environment
from agent_host.judging.dry_run import DryRunCase, StatedFacts, judge_case
from policy import ALL_CAPABILITIES
from policy.bundle import BundleProblems, bundle_from_trusted, camel
from policy.bundle.validate import parse_bundle
from policy.decide import check_tool
from policy.facts import CommandFacts, NamedToolFacts, PathFacts, UrlFacts
from policy.rules import PROCESS_RULE, REPOSITORY_RULE, SESSION_RULE, check_llm
from tests.support import policy_cases as cases
from tests.support.policy_cases import NOW, Call, Shape
from tests.support.tools import TOOLS

if TYPE_CHECKING:
    from policy import Decision
    from policy.bundle import PolicyBundle
    from policy.facts import OsFamily, ShellName

RANK = {"DENIED": 0, "APPROVAL_REQUIRED": 1, "ALLOWED": 2}
ANY_TEXT = st.text(st.characters(exclude_categories=())) | st.text(
    "/\\.:~*?$()`'\"|&;<>{}[]!#%^@-= \t\n\r\0aA1\u00df\ud800"
)
ALL_SHELLS = (*cases.SHELLS["posix"], *cases.SHELLS["windows"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4),
    max_leaves=12,
)


def answer(shape: Shape, call: Call) -> Decision:
    return check_tool(bundle_from_trusted(shape), call.capability, call.facts, now=NOW, os=call.os)


# Narrowing


@pytest.mark.slow
@settings(max_examples=200)
@given(st.data(), cases.SYSTEMS)
def test_less_in_a_bundle_never_allows_more(data: st.DataObject, os: OsFamily) -> None:
    call = data.draw(cases.calls(os))
    shape = data.draw(cases.bundles(os, call.capability))
    less = data.draw(cases.narrowed(shape, os))
    before, after = answer(shape, call), answer(less, call)
    if asks_about_commands(less) and not asks_about_commands(shape):
        # Somebody is asked by now about a line of which nobody can say which files it opens.
        assert after.decision != "ALLOWED"
    else:
        assert RANK[after.decision] <= RANK[before.decision], (before, after)


def asks_about_commands(shape: Shape) -> bool:
    return any(entry["name"] == "Shell.Exec" and entry.get("requiresApproval") for entry in shape["capabilities"])


@given(st.data(), cases.SYSTEMS)
def test_what_wants_an_approval_is_never_simply_allowed(data: st.DataObject, os: OsFamily) -> None:
    call = data.draw(cases.calls(os))
    shape = data.draw(cases.bundles(os, call.capability))
    for entry in shape["capabilities"]:
        entry["requiresApproval"] = True
    assert answer(shape, call).decision in {"DENIED", "APPROVAL_REQUIRED"}


@given(st.data(), st.sampled_from(["m", "n", "o"]))
def test_less_in_a_bundle_never_lets_more_models_be_asked(data: st.DataObject, model: str) -> None:
    shape = cases.shape_of([data.draw(cases.capabilities("posix", "LLM.Call"))])
    less = data.draw(cases.narrowed(shape, "posix"))
    less["llmPolicy"] = {**shape["llmPolicy"], "allowedModels": data.draw(st.lists(st.sampled_from("mn"), max_size=2))}
    before = check_llm(bundle_from_trusted(shape), model=model, now=NOW)
    after = check_llm(bundle_from_trusted(less), model=model, now=NOW)
    assert RANK[after.decision] <= RANK[before.decision]


# Spelling


def judge(shape: Shape, tool: str, os: OsFamily, arguments: Shape, shell: ShellName = "bash") -> str:
    """The verdict on a call of which only the spelling is known."""
    here = Environment(cases.ROOTS[os] + "w", cases.HOMES[os], os, shell)
    case = DryRunCase(tool, arguments, os=os, shell=shell, facts=StatedFacts(), cwd=here.workspace, home=here.home)
    return judge_case(bundle_from_trusted(shape), case, here, BUILT_IN, now=NOW).decision


@pytest.mark.slow
@settings(max_examples=120)
@given(st.data(), cases.SYSTEMS, st.sampled_from(["ReadFile", "WriteFile", "DeleteFile", "UploadArtifact"]))
def test_the_spelling_of_a_path_does_not_change_the_verdict(data: st.DataObject, os: OsFamily, tool: str) -> None:
    below_home = st.lists(cases.NAMES, min_size=1, max_size=2).map(
        lambda parts: cases.SEPARATORS[os].join([cases.HOMES[os], *parts])
    )
    place = data.draw(cases.places(os) | below_home)
    shape = data.draw(cases.bundles_near(os, TOOLS[tool].capability, place))
    content = {"content": "12345"} if tool == "WriteFile" else {}
    spelled = data.draw(cases.path_spellings(place, os))
    verdict, of_spelled = (judge(shape, tool, os, {"path": path, **content}) for path in (place, spelled))
    is_no_file = spelled.endswith(("/", cases.SEPARATORS[os]))
    assert of_spelled in ({verdict, "DENIED"} if is_no_file else {verdict}), spelled


HOSTS = (
    "example.com",
    "a.example.com",
    "127.0.0.1",
    "1.1.1.1",
    "8.8.4.4",
    "xn--bcher-kva.example",
    "::1",
    "2606:4700::1",
)


@settings(max_examples=120)
@given(st.data(), st.sampled_from(HOSTS), st.sampled_from([("http", ":80"), ("https", ":443"), ("HTTPS", "")]))
def test_the_spelling_of_a_host_does_not_change_the_verdict(
    data: st.DataObject, host: str, scheme: tuple[str, str]
) -> None:
    shape = cases.shape_of([data.draw(cases.capabilities("posix", "Network.Http"))])
    plain = f"{scheme[0].lower()}://[{host}]/x" if ":" in host else f"{scheme[0].lower()}://{host}/x"
    port = data.draw(st.sampled_from(["", scheme[1]]))
    spelled = f"{scheme[0]}://{data.draw(cases.host_spellings(host))}{port}/x"
    verdicts = {judge(shape, "HttpRequest", "posix", {"url": url}) for url in (plain, spelled)}
    assert len(verdicts) == 1, spelled


WORDS = st.lists(st.sampled_from(["-l", "a", "src/b.py", "--x=1", "status", "evil", "."]), max_size=3)


@settings(max_examples=120)
@given(st.data(), st.sampled_from(["bash", "sh"]))
def test_the_spelling_of_a_line_does_not_change_the_verdict(data: st.DataObject, shell: ShellName) -> None:
    program = st.sampled_from(["ls", "cat", "echo", "git", "env", "find", "evil", "./ls", "/bin/ls"])
    commands = data.draw(
        st.lists(st.tuples(program, WORDS).map(lambda pair: [pair[0], *pair[1]]), min_size=1, max_size=3)
    )
    operators = data.draw(st.lists(st.sampled_from(["|", "&&", "||", ";"]), min_size=3, max_size=3))
    plain = ""
    for place, words in enumerate(commands):
        plain += " ".join(words) + (f" {operators[place]} " if place < len(commands) - 1 else "")
    spelled = data.draw(cases.line_spellings(commands, operators))
    shape = cases.shape_of([data.draw(cases.capabilities("posix", "Shell.Exec"))])
    verdicts = {judge(shape, "RunCommand", "posix", {"command": line}, shell) for line in (plain, spelled)}
    assert len(verdicts) == 1, (plain, spelled)


# Whatever comes


@pytest.mark.slow
@settings(max_examples=120)
@given(st.data(), cases.SYSTEMS, ANY_TEXT, ANY_TEXT)
def test_no_text_raises(data: st.DataObject, os: OsFamily, text: str, other: str) -> None:
    capability = data.draw(st.sampled_from(ALL_CAPABILITIES))
    shape = data.draw(cases.bundles(os, capability))
    for facts in (
        PathFacts(text, other, text),
        PathFacts(text, text, text, "file", size_bytes=3, tool_name=other),
        CommandFacts(text, cases.ROOTS[os] + "w", data.draw(st.sampled_from(ALL_SHELLS)), other, {text: other}),
        UrlFacts(text, other, (other, text)),
        UrlFacts("https://" + text, "GET", (other,)),
        NamedToolFacts(text),
    ):
        for asked in (capability, "Shell.Exec", text):
            answer(shape, Call(asked, facts, os))


@pytest.mark.parametrize("shell", ALL_SHELLS)
def test_half_a_character_is_never_decided(shell: ShellName) -> None:
    """JSON can hold one; as text it cannot be handed to a shell, and the parser cuts it in the middle."""
    listed = cases.shape_of([{"name": "Shell.Exec", "allowedCommands": ["ls"]}])
    for line in ("\ud800", "ls \udfff", "ls '\ud800'"):
        assert answer(listed, Call("Shell.Exec", CommandFacts(line, "/w", shell), "posix")).decision == "DENIED"


@pytest.mark.slow
@settings(max_examples=120)
@given(
    st.sampled_from(["ReadFile", "WriteFile", "RunCommand", "HttpRequest", "UploadArtifact"]), cases.SYSTEMS, st.data()
)
def test_no_arguments_raise(tool: str, os: OsFamily, data: st.DataObject) -> None:
    names = st.sampled_from(["path", "content", "command", "cwd", "url", "method", "x"])
    arguments = data.draw(st.dictionaries(names, ANY_TEXT | JSON, max_size=4))
    shape = data.draw(cases.bundles(os, TOOLS[tool].capability))
    judge(shape, tool, os, arguments, data.draw(st.sampled_from(cases.SHELLS[os])))


@settings(max_examples=120)
@given(JSON | st.binary(max_size=40) | ANY_TEXT)
def test_what_is_no_bundle_has_problems_and_nothing_else(raw: Any) -> None:
    for form in (raw, json.dumps(raw).encode() if not isinstance(raw, bytes) else raw):
        with pytest.raises(BundleProblems) as caught:
            parse_bundle(form)
        assert caught.value.problems


@st.composite
def spoilt(draw: st.DrawFn) -> Shape:
    """A bundle in which one value, somewhere, is another."""
    shape = draw(cases.bundles("posix", draw(st.sampled_from(ALL_CAPABILITIES))))
    target: Any = shape
    while True:
        step = draw(st.sampled_from(sorted(target) if isinstance(target, dict) else range(len(target))))
        inner = target[step]
        if not isinstance(inner, (dict, list)) or not inner or draw(st.booleans()):
            target[step] = draw(JSON)
            return shape
        target = inner


@pytest.mark.slow
@settings(max_examples=150)
@given(spoilt())
def test_a_spoilt_bundle_has_problems_or_decides(shape: Shape) -> None:
    try:
        held = parse_bundle(shape)
    except BundleProblems:
        return
    for facts in (PathFacts("/w/a", "/w/a", "/w/a"), CommandFacts("ls a", "/w"), UrlFacts("https://example.com")):
        for capability in ALL_CAPABILITIES:
            check_tool(held, capability, facts, now=NOW)


# Explaining


RULE = re.compile(r"capabilities\[(?P<name>[A-Za-z.]+)\](?:\.(?P<field>[A-Za-z]+)(?:: (?P<value>.*))?)?", re.DOTALL)
OF_NO_ENTRY = ("capabilities", "expiresAt: ", PROCESS_RULE + ": ", REPOSITORY_RULE + ": ", SESSION_RULE + ": ")


@pytest.mark.slow
@settings(max_examples=120)
@given(st.data(), cases.SYSTEMS)
def test_every_decision_names_an_entry_of_the_bundle(data: st.DataObject, os: OsFamily) -> None:
    call = data.draw(cases.calls(os))
    shape = data.draw(cases.bundles(os, call.capability))
    held = bundle_from_trusted(shape)
    decision = answer(shape, call)
    assert decision.reason
    assert (decision.risk_level is not None) is (decision.decision == "APPROVAL_REQUIRED")
    if not decision.rule.startswith(OF_NO_ENTRY) or decision.rule.startswith("capabilities["):
        assert_names_an_entry(held, decision)
    else:
        assert decision.decision == "DENIED"


def assert_names_an_entry(held: PolicyBundle, decision: Decision) -> None:
    named = RULE.fullmatch(decision.rule)
    assert named, decision.rule
    entry = held.capability(named["name"])
    assert entry is not None, decision.rule
    if named["field"] is None:
        return
    values = {camel(field): getattr(entry, field) for field in entry._fields}
    assert values[named["field"]] is not None, decision.rule
    if named["value"] is not None and named["field"] in {"allowedPaths", "blockedPaths", "allowedDomains"}:
        assert named["value"] in values[named["field"]]
    if named["value"] is not None and named["field"] in {"blockedDomains", "blockedCommands", "allowedToolNames"}:
        assert named["value"] in values[named["field"]]
