"""One scenario through all three families: the same effects on disk, the same decisions of policy."""

from __future__ import annotations

import json
import shutil
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.interaction.test_skills import in_workspace, plain, skill
from tests.support.process import call, gateway, say, use

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.process import Host

Calls = list[dict[str, Any]]
COPY = "import shutil, sys; shutil.copy(sys.argv[1], sys.argv[2])\n"


def desktop(at: Path, program: list[str]) -> Calls:
    return [
        call("ReadFile", path=f"{at}/in.txt"),
        call("ListDirectory", path=f"{at}/d"),
        call("Grep", path=str(at), pattern="needle"),
        call("WriteFile", path=f"{at}/new/out.txt", content="written\n"),
        call("DeleteFile", path=f"{at}/old.txt"),
        call("RunCommand", command=" ".join(program)),
        call("ReadFile", path="/etc/hostname"),
        call("WriteFile", path="/etc/out.txt", content="x"),
        call("DeleteFile", path=f"{at}/kept.txt"),
        call("ReadFile", path=f"{at}/missing.txt"),
    ]


def native(at: Path, program: list[str]) -> Calls:
    return [
        call("cp__read_file", path=f"{at}/in.txt"),
        call("cp__list_dir", path=f"{at}/d"),
        call("cp__grep", path=str(at), pattern="needle"),
        call("cp__write_file", path=f"{at}/new/out.txt", content="written\n"),
        call("cp__delete_file", path=f"{at}/old.txt"),
        call("cp__exec", command=program[0], args=program[1:]),
        call("cp__read_file", path="/etc/hostname"),
        call("cp__write_file", path="/etc/out.txt", content="x"),
        call("cp__delete_file", path=f"{at}/kept.txt"),
        call("cp__read_file", path=f"{at}/missing.txt"),
    ]


def skills(at: Path, program: list[str]) -> Calls:
    return [
        call("read_file", path=f"{at}/in.txt"),
        call("list_dir", path=f"{at}/d"),
        call("grep", path=str(at), pattern="needle"),
        call("write_file", path=f"{at}/new/out.txt", content="written\n"),
        call("delete_file", path=f"{at}/old.txt"),
        call("run_script", skill="s", relative_path="scripts/copy.py", args=program[2:]),
        call("read_file", path="/etc/hostname"),
        call("write_file", path="/etc/out.txt", content="x"),
        call("delete_file", path=f"{at}/kept.txt"),
        call("read_file", path=f"{at}/missing.txt"),
    ]


FAMILIES: dict[str, Callable[[Path, list[str]], Calls]] = {"desktop": desktop, "native": native, "skills": skills}
# Guarded tools are approved by their names alone.
APPROVED = {"desktop": ["ask"], "native": ["ask"], "skills": ["write_file", "delete_file", "run_script"]}
RULES = [{"approvalRuleId": "ask", "title": "Act", "description": "Does something."}]
ASKS = {"requiresApproval": True, "approvalRuleId": "ask"}
# What the one scenario gives: (decision, code, what the model finds in the answer).
EXPECTED: list[tuple[str, str | None, str]] = [
    ("ALLOWED", None, "here is a needle"),
    ("ALLOWED", None, "inner.txt"),
    ("ALLOWED", None, "here is a needle"),
    ("APPROVAL_REQUIRED", None, ""),
    ("APPROVAL_REQUIRED", None, ""),
    ("APPROVAL_REQUIRED", None, ""),
    ("DENIED", "CAPABILITY_DENIED", "allowedPaths"),
    ("DENIED", "CAPABILITY_DENIED", "allowedPaths"),
    ("DENIED", "CAPABILITY_DENIED", "blockedPaths"),
    ("ALLOWED", "FILE_NOT_FOUND", "missing.txt"),
]


def prepared(host: Host) -> list[str]:
    """A workspace that has everything; gives the program that copies a file, with its arguments."""
    at = host.workspace
    for name, text in {"in.txt": "here is a needle\n", "d/inner.txt": "", "old.txt": "", "kept.txt": ""}.items():
        (at / name).parent.mkdir(exist_ok=True)
        (at / name).write_text(text)
    made = skill(in_workspace(host), "s", plain("s"), **{"scripts/copy.py": COPY})
    python = shutil.which("python3") or sys.executable
    with (host.root / "user.toml").open("a") as file:
        file.write('[skills]\nenabled_tools = ["run_script", "write_file", "delete_file"]\n')
        file.write(f"[[native.exec]]\ncommand = {json.dumps(python)}\n")
    return [python, str(made / "scripts" / "copy.py"), str(at / "in.txt"), str(at / "copied.txt")]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_effects_and_the_same_decisions(host: Host, family: str) -> None:
    at = host.workspace
    calls = FAMILIES[family](at, prepared(host))
    blocked = {"blockedPaths": [str(at / "kept.txt")]}
    grants = {"File.Write": ASKS, "File.Delete": {**ASKS, **blocked}, "Shell.Exec": ASKS}
    policy = host.policy(grants=grants, approvalRules=RULES)
    approved = [option for name in APPROVED[family] for option in ("--approve", name)]
    with gateway(use(*calls), say("Done.")) as model:
        outcome = host.task(model.url, "--session-id", "s", "--toolset", family, *approved, policy=policy)
        answers = [answer.text for answer in model.results()]
    assert outcome.code == 0, outcome
    asked = [event["payload"] for event in host.event_log("s") if event["eventType"] == "tool_requested"]
    decisions = list({event["toolCallId"]: event["decision"] for event in asked}.values())
    codes = [one.get("code") for one in outcome.result["toolCalls"]]
    assert list(zip(decisions, codes, strict=True)) == [(decision, code) for decision, code, _ in EXPECTED]
    for (_, _, found), answer in zip(EXPECTED, answers, strict=True):
        assert found in answer
    assert (at / "new" / "out.txt").read_text() == "written\n"
    assert (at / "copied.txt").read_text() == "here is a needle\n"
    left = sorted(str(path.relative_to(at)) for path in at.rglob("*") if path.is_file() and ".agent" not in path.parts)
    assert left == ["copied.txt", "d/inner.txt", "in.txt", "kept.txt", "new/out.txt"]
    changed = {str(at / name) for name in ("copied.txt", "new/out.txt", "old.txt")}
    assert changed == set(outcome.result["filesChanged"])
