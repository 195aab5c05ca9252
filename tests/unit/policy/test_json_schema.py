"""The shipped JSON Schema says what the host's own validation says, as far as a schema can."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from policy.json_schema import bundle_schema
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
    ],
    ids=repr,
)
def test_bad_bundles(shape: Any) -> None:
    agree(shape, valid=False)


@pytest.mark.parametrize("field", bundle_schema()["required"])
def test_what_is_required(field: str) -> None:
    shape = bundle(Path("/srv"))
    del shape[field]
    agree(shape, valid=False)
