"""The shipped JSON Schema says what the host's own validation says, as far as a schema can."""

from __future__ import annotations

import copy
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from config.policies import BUILT_IN, place_groups, template_as_written, write_template
from policy import ALL_CAPABILITIES
from policy.bundle import BundleProblems, LlmPolicy, PolicyBundle, members
from policy.bundle.builtin import PlaceholderValues
from policy.bundle.validate import BuiltIns, parse_file_bundle
from tests.support.bundle_schema import bundle_schema
from tests.support.bundle_schema_file import FILE, content
from tests.support.process import bundle
from tests.support.rows import each_row

ROOT = Path(__file__).resolve().parents[3]
NOW = datetime(2026, 1, 1, tzinfo=UTC)
PLACES = PlaceholderValues("/w", "/home/u", "/state", "posix", "/tmp/own", place_groups())
VALIDATOR = jsonschema.Draft202012Validator(bundle_schema(BUILT_IN))


def parsed(shape: Any) -> PolicyBundle:
    return parse_file_bundle(shape, places=PLACES, built_ins=BuiltIns(BUILT_IN, template_as_written), now=NOW)


def agree(shape: Any, *, valid: bool) -> None:
    assert VALIDATOR.is_valid(shape) == valid
    if valid:
        parsed(shape)
    else:
        with pytest.raises(BundleProblems):
            parsed(shape)


def test_the_file_is_current() -> None:
    assert FILE.read_text(encoding="utf-8") == content(), "python -m tests.support.bundle_schema_file writes it"
    jsonschema.Draft202012Validator.check_schema(json.loads(content()))


def test_good_bundles() -> None:
    agree(bundle(Path("/srv")), valid=True)
    (example,) = re.findall(
        r"```json\n(.*?)```", (ROOT / "docs" / "policy-details.md").read_text(encoding="utf-8"), re.DOTALL
    )
    agree(json.loads(example), valid=True)
    rules = [{"command": "git", "subcommands": ["status"], "arguments": [{"index": 1, "pattern": "[a-z]+"}]}]
    agree(bundle(Path("/srv"), grants={"Shell.Exec": {"commandPolicies": rules, "allowedCommands": None}}), valid=True)


def changed(*path: str | int, to: Any) -> dict[str, Any]:
    shape: Any = copy.deepcopy(bundle(Path("/srv")))
    at = shape
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = to
    result: dict[str, Any] = shape
    return result


@each_row(
    "shape",
    [
        [],
        changed("colour", to="red"),
        changed("approvalTimeoutS", to=0),
        changed("approvalTimeoutS", to="60"),
        changed("sandbox", to=[]),
        changed("sandbox", to={"minimumLevel": "none"}),
        changed("sandbox", to={"reads": "some"}),
        changed("sandbox", to={"agents": ["docker"]}),
        changed("sandbox", to={"colour": "red"}),
        changed("schemaVersion", to="2.0"),
        changed("sessionId", to=""),
        changed("expiresAt", to=5),
        changed("llmPolicy", "allowedModels", to=[]),
        changed("llmPolicy", "maxInputTokens", to=0),
        changed("llmPolicy", "maxInputTokens", to="1"),
        changed("capabilities", 0, "name", to="File.Raed"),
        changed("capabilities", 0, "allowedPaths", to="/srv"),
        changed("capabilities", 0, "maxFileSizeBytes", to=-1),
        changed("capabilities", 0, "requiresApproval", to=1),
        changed("approvalRules", to=[{"approvalRuleId": "x"}]),
        changed("mcpServers", to=[{"name": "x", "transport": "smtp"}]),
        changed("mcpServers", to=[{"name": "x", "transport": "stdio"}]),
        changed("mcpServers", to=[{"name": "x", "transport": "stdio", "command": "x", "url": "http://a"}]),
        changed("mcpServers", to=[{"name": "x", "transport": "http", "url": "ftp://a"}]),
        changed("mcpServers", to=[{"name": "x", "transport": "http", "url": "http://a", "command": "x"}]),
        changed("mcpServers", to=[{"name": "x", "transport": "stdio", "command": "x"}] * 2),
        changed("policyBundleVersion", to=""),
        changed("sessionId", to="../x"),
        changed("expiresAt", to="2026-01-02"),
        changed("expiresAt", to="2026-01-02T00:00:00"),
        changed("llmPolicy", "allowedModels", to=[""]),
        changed("llmPolicy", "maxInputTokens", to=1.5),
        changed("approvalRules", to=[{"approvalRuleId": "", "title": "t", "description": "d"}]),
        changed("redactionRules", to=[{"redactionRuleId": "", "pattern": "x"}]),
        changed("capabilities", 0, "allowedPaths", to=["/srv/*"]),
        changed("capabilities", 0, "allowedPaths", to=["C:\\w\\**"]),
        changed("extends", to="mine"),
        changed("extends", to=None),
        changed("capabilities", 0, "allowedPaths", to=["~/src"]),
        changed("capabilities", 0, "blockedPaths", to=["/srv\0"]),
        changed("capabilities", 0, "allowedDomains", to=["a.example"]),
        changed("capabilities", 0, "allowedCommands", to=[]),
        changed("capabilities", 3, "allowedPaths", to=["/srv"]),
        changed("capabilities", 3, "allowedCommands", to=["r?"]),
        changed("capabilities", 3, "blockedCommands", to=["rm -rf"]),
        changed("capabilities", 3, "commandPolicies", to=[{"command": "a;b"}]),
        changed("capabilities", 4, "allowedToolNames", to=["x"]),
    ],
)
def test_bad_bundles(shape: Any) -> None:
    agree(shape, valid=False)


OPTIONAL = ("expiresAt", "mcpServers", "redactionRules", "sandbox", "approvalTimeoutS")


@each_row("field", list(members(PolicyBundle)))
@each_row("extends", [False, True])
def test_what_is_required(field: str, extends: bool) -> None:
    shape = bundle(Path("/srv")) | ({"extends": "ci"} if extends else {})
    shape.pop(field, None)
    agree(shape, valid=extends or field in OPTIONAL)


@pytest.mark.parametrize("field", list(members(LlmPolicy)))
def test_what_is_required_of_the_llm_policy(field: str) -> None:
    shape = bundle(Path("/srv"))
    del shape["llmPolicy"][field]
    agree(shape, valid=False)
    agree({"extends": "ci", "llmPolicy": shape["llmPolicy"]}, valid=True)


@pytest.mark.parametrize("name", BUILT_IN)
def test_bundles_to_start_from(name: str) -> None:
    agree(json.loads(write_template(name)), valid=True)
    agree({"extends": name}, valid=True)


PATHS = ["${workspace}", "${home}/x", "${tmp}", "src", "./build", "../x", ".", "a b/[id]/@x", "/srv", "c:/w", "x*y"]
NO_PATHS = ["", "~/x", "$HOME", "%X%", "C:x", "\\x", "src/**", "*.py", "${workspace}/*", "${x}", "${home", "${home}x"]
AT_ANY_DEPTH = ["${workspace}/**/.vscode", "src/**/*.code-workspace", "**/.agent", "./**/.agent"]
PROGRAMS = ["ls", "${workspace}/**", "${workspace}/*", "${workspace}/.venv/bin/*", "${workspace}/my tools/**"]
NO_PROGRAMS = ["${workspace}", "${workspace}/x", "${workspace}/*/x/*", "${home}/*", "./*", "/srv/*", "${workspace}/a**"]


@each_row(
    ("field", "entry", "valid"),
    [
        *(("allowedPaths", one, one != "x*y") for one in PATHS),
        *(("blockedPaths", one, one != "x*y") for one in [*PATHS, "@credentials", "@steering"]),
        *(("allowedPaths", one, False) for one in [*NO_PATHS, "@credentials"]),
        *(("blockedPaths", one, False) for one in [*NO_PATHS, "@x", "**/a*b", "**/a/*", "*/**/a", "${tmp}/**/"]),
        *(("blockedPaths", one, True) for one in AT_ANY_DEPTH),
        *(("allowedPaths", one, False) for one in AT_ANY_DEPTH),
        *(("allowedCommands", one, True) for one in PROGRAMS),
        *(("allowedCommands", one, False) for one in NO_PROGRAMS),
        *(("blockedCommands", one, one == "ls") for one in PROGRAMS),
    ],
)
def test_forms_of_a_file(field: str, entry: str, valid: bool) -> None:
    agree(changed("capabilities", 3 if "Commands" in field else 0, field, to=[entry]), valid=valid)


@each_row(
    "shape",
    [
        changed("llmPolicy", "maxInputTokens", to=5.0),
        changed("capabilities", 0, "blockedCommands", to=[]),
        changed("capabilities", 3, "allowedPaths", to=None),
        changed("mcpServers", to=[{"name": "x", "transport": "http", "url": "HTTPS://a", "command": None}]),
        changed("expiresAt", to="2026-01-02t00:00:00.123456789-05:30"),
        changed("approvalTimeoutS", to=60),
        changed("approvalTimeoutS", to=0.5),
        changed("sandbox", to={"required": True, "minimumLevel": "namespace", "agents": ["ssh", "gpg"]}),
        changed("sandbox", to={"allowOff": True, "reads": "strict"}),
        changed("sandbox", to=None),
    ],
)
def test_what_is_accepted_by_both(shape: Any) -> None:
    agree(shape, valid=True)


WORDS = st.sampled_from(
    ["", "*", "s1", "a b", "r?", "ls", "[", "[x]", "/w", "/w/*", "/w/**", "/w/**/x", "src",
     "./a", "${workspace}", "${home}/x", "${tmp}/*", "${x}", "@credentials", "@x", "~/x", "a*", "C:x",
     "${workspace}/**", "${workspace}/a/*", "C:\\w", "c:/w", "\\\\h\\s",
     "\\/h\\s", "\\\\h\\s\\*", "a.example", "*.a.example", "::1", "[::1]", "10.0.0.1", "0x7f.1", "bücher.example",
     "a。example", "%61.example", "a/b", "http://a", "HTTPS://a", "ftp://a", "x" * 129, "(?=a)", "[a-z]+", "a*", "git",
     "/usr/bin/git", "g++", "C:\\a.exe", "2026-01-02T00:00:00Z", "2026-02-30T00:00:00Z", "2026-01-02 00:00:00.5+01:00",
     "2026-01-02T24:00:00Z", "2026-01-02t00:00:00z", "stdio", "http", "1.0", *ALL_CAPABILITIES]
)  # fmt: skip
TEXTS = WORDS | st.text(max_size=8) | st.text("/\\*.:[]x ~@\x7f\u2028\u3002\xa0", max_size=6)
NUMBERS = st.integers(-2, 4) | st.sampled_from([1.0, 0.0, -1.0, 2.5, 1e30])
SCALARS = st.none() | st.booleans() | NUMBERS | TEXTS


def of_class(cls: type) -> st.SearchStrategy[dict[str, Any]]:
    """Objects of a bundle's class whose fields may hold anything that some field may."""
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for name in list(members(cls)):
        part = members(cls)[name].part
        fields[name] = SCALARS | st.lists(TEXTS, max_size=2)
        if part is not None:
            fields[name] = st.lists(of_class(part), max_size=2)
        elif name == "name":
            fields[name] = st.sampled_from(ALL_CAPABILITIES)
        elif name.startswith(("allowed", "blocked", "sub", "enum", "args", "environment")):
            fields[name] = st.lists(TEXTS, max_size=2) | st.none()
        elif name.startswith("max") or name == "index":
            fields[name] = NUMBERS | st.none()
        elif name in ("command", "url", "pattern"):
            fields[name] = TEXTS | st.none()
    return st.fixed_dictionaries({}, optional=fields)


def one_change() -> st.SearchStrategy[dict[str, Any]]:
    """A good bundle in which one part is another, or has other fields."""
    parts = {name: member.part for name, member in members(PolicyBundle).items()}
    good: dict[str, dict[str, Any]] = {
        "approvalRules": {"approvalRuleId": "r", "title": "", "description": ""},
        "mcpServers": {"name": "m", "transport": "stdio", "command": "x"},
        "redactionRules": {"redactionRuleId": "r", "pattern": "x"},
        "capabilities": {"name": "Shell.Exec"},
        "llmPolicy": bundle(Path("/srv"))["llmPolicy"],
        "sandbox": {"required": True, "minimumLevel": "landlock", "reads": "open", "agents": ["ssh"]},
    }
    objects = ("llmPolicy", "sandbox")

    def some(part: type, base: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
        few = st.lists(st.sampled_from(list(members(part))), max_size=2)
        return st.tuples(of_class(part), few).map(lambda it: base | {k: v for k, v in it[0].items() if k in it[1]})

    choices = []
    for name, part in parts.items():
        values: st.SearchStrategy[Any] = SCALARS
        if part is not None:
            values = some(part, good[name]) if name in objects else st.lists(some(part, good[name]), max_size=2)
        choices.append(st.fixed_dictionaries({name: values}))
    return st.one_of(choices)


@settings(max_examples=300)
@given(one_change())
def test_the_schema_never_refuses_what_the_validator_accepts(change: dict[str, Any]) -> None:
    for shape in (bundle(Path("/srv")) | change, {"extends": "ci"} | change):
        never_refused(shape)


def never_refused(shape: dict[str, Any]) -> None:
    try:
        parsed(shape)
    except BundleProblems:
        return
    assert list(VALIDATOR.iter_errors(shape)) == []


@each_row(
    "shape",
    [
        changed("capabilities", to=[{"name": "LLM.Call"}, {"name": "LLM.Call", "maxOutputBytes": 1}]),
        changed("capabilities", 0, "approvalRuleId", to="nobody"),
        changed("capabilities", to=[{"name": "Network.Http", "allowedDomains": ["http://x"]}]),
        changed("redactionRules", to=[{"redactionRuleId": "r", "pattern": "(?=x)"}]),
        changed("redactionRules", to=[{"redactionRuleId": "r", "pattern": "x*"}]),
        changed("expiresAt", to="2026-02-30T00:00:00Z"),
        changed("sandbox", to={"required": True, "allowOff": True}),
        changed("capabilities", 3, "commandPolicies", to=[
            {"command": "git", "maxArguments": 1, "arguments": [{"index": 1, "enum": []}]}]),
    ],
)  # fmt: skip
def test_what_only_the_validator_can_say(shape: Any) -> None:
    assert VALIDATOR.is_valid(shape)
    with pytest.raises(BundleProblems):
        parsed(shape)
