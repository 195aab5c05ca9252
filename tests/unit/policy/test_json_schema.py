"""The shipped JSON Schema says what the host's own validation says, as far as a schema can."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.bundle import PolicyBundle, bundle_part, json_names
from policy.json_schema import bundle_schema
from policy.names import ALL_CAPABILITIES
from policy.problems import BundleProblems
from policy.validate import parse_bundle
from tests.support.bundle_schema_file import FILE, content
from tests.support.process import bundle

ROOT = Path(__file__).resolve().parents[3]
VALIDATOR = jsonschema.Draft202012Validator(bundle_schema())


def agree(shape: Any, *, valid: bool) -> None:
    assert VALIDATOR.is_valid(shape) == valid
    if valid:
        parse_bundle(shape)
    else:
        with pytest.raises(BundleProblems):
            parse_bundle(shape)


def test_the_file_is_current() -> None:
    assert FILE.read_text(encoding="utf-8") == content(), "python -m tests.support.bundle_schema_file writes it"
    jsonschema.Draft202012Validator.check_schema(json.loads(content()))


def test_good_bundles() -> None:
    agree(bundle(Path("/srv")), valid=True)
    (example,) = re.findall(r"```json\n(.*?)```", (ROOT / "docs" / "policy.md").read_text(encoding="utf-8"), re.DOTALL)
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


@pytest.mark.parametrize(
    "shape",
    [
        [],
        changed("colour", to="red"),
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
        changed("capabilities", 0, "allowedPaths", to=["src"]),
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


@pytest.mark.parametrize("field", bundle_schema()["required"])
def test_what_is_required(field: str) -> None:
    shape = bundle(Path("/srv"))
    del shape[field]
    agree(shape, valid=False)


@pytest.mark.parametrize(
    "shape",
    [
        changed("llmPolicy", "maxInputTokens", to=5.0),
        changed("capabilities", 0, "blockedCommands", to=[]),
        changed("capabilities", 3, "allowedPaths", to=None),
        changed("mcpServers", to=[{"name": "x", "transport": "http", "url": "HTTPS://a", "command": None}]),
        changed("expiresAt", to="2026-01-02t00:00:00.123456789-05:30"),
    ],
)
def test_what_is_accepted_by_both(shape: Any) -> None:
    agree(shape, valid=True)


WORDS = st.sampled_from(
    ["", "*", "s1", "a b", "r?", "ls", "[", "[x]", "/w", "/w/*", "/w/**", "/w/**/x", "C:\\w", "c:/w", "\\\\h\\s",
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
    for name in json_names(cls):
        part = bundle_part(cls, name)
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
    parts = {name: bundle_part(PolicyBundle, name) for name in json_names(PolicyBundle)}
    good: dict[str, dict[str, Any]] = {
        "approvalRules": {"approvalRuleId": "r", "title": "", "description": ""},
        "mcpServers": {"name": "m", "transport": "stdio", "command": "x"},
        "redactionRules": {"redactionRuleId": "r", "pattern": "x"},
        "capabilities": {"name": "Shell.Exec"},
        "llmPolicy": bundle(Path("/srv"))["llmPolicy"],
    }

    def some(part: type, base: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
        few = st.lists(st.sampled_from(json_names(part)), max_size=2)
        return st.tuples(of_class(part), few).map(lambda it: base | {k: v for k, v in it[0].items() if k in it[1]})

    choices = []
    for name, part in parts.items():
        values: st.SearchStrategy[Any] = SCALARS
        if part is not None:
            values = some(part, good[name]) if name == "llmPolicy" else st.lists(some(part, good[name]), max_size=2)
        choices.append(st.fixed_dictionaries({name: values}))
    return st.one_of(choices)


@settings(max_examples=300)
@given(one_change())
def test_the_schema_never_refuses_what_the_validator_accepts(change: dict[str, Any]) -> None:
    shape = bundle(Path("/srv")) | change
    try:
        parse_bundle(shape)
    except BundleProblems:
        return
    assert list(VALIDATOR.iter_errors(shape)) == []


@pytest.mark.parametrize(
    "shape",
    [
        changed("capabilities", to=[{"name": "LLM.Call"}, {"name": "LLM.Call", "maxOutputBytes": 1}]),
        changed("capabilities", 0, "approvalRuleId", to="nobody"),
        changed("capabilities", to=[{"name": "Network.Http", "allowedDomains": ["http://x"]}]),
        changed("redactionRules", to=[{"redactionRuleId": "r", "pattern": "(?=x)"}]),
        changed("redactionRules", to=[{"redactionRuleId": "r", "pattern": "x*"}]),
        changed("expiresAt", to="2026-02-30T00:00:00Z"),
        changed("capabilities", 3, "commandPolicies", to=[
            {"command": "git", "maxArguments": 1, "arguments": [{"index": 1, "enum": []}]}]),
    ],
)  # fmt: skip
def test_what_only_the_validator_can_say(shape: Any) -> None:
    assert VALIDATOR.is_valid(shape)
    with pytest.raises(BundleProblems):
        parse_bundle(shape)
