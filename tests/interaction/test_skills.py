"""Skills: folders of instructions that the model reads when it is to use them, in any family."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.faults.crash_run import KILLED
from tests.support.process import call, gateway, say, shell, use

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.process import Host

# As the skills of public repositories are laid out.
PDF = """\
---
name: pdf-forms
description: >-
  Fill in PDF forms. Use when the user
  names a form.
license: Apache-2.0
allowed-tools: Read, Grep, Bash(git log:*), Bash(python3 scripts/fill.py:*), Telepathy
metadata:
  version: "1.0"
---

# Forms

Run `scripts/fill.py`. See [reference](reference/fields.md).
"""


def skill(folder: Path, name: str, text: str, **files: str) -> Path:
    at = folder / name
    at.mkdir(parents=True)
    (at / "SKILL.md").write_text(text)
    for path, content in files.items():
        file = at / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return at


def plain(name: str, description: str = "What it does.", more: str = "") -> str:
    return f"---\nname: {name}\ndescription: {description}\n{more}---\nBody of {name}.\n"


def in_workspace(host: Host) -> Path:
    return host.workspace / ".agent" / "skills"


def texts(body: dict[str, Any]) -> list[str]:
    return [str(block["content"]) for block in body["messages"][-1]["content"] if block["type"] == "tool_result"]


def offered(body: dict[str, Any]) -> list[str]:
    return [tool["name"] for tool in body["tools"]]


def test_a_skill_is_listed_read_when_used_and_limits_the_tools_of_its_task(host: Host) -> None:
    skill(
        in_workspace(host), "pdf-forms", PDF, **{"reference/fields.md": "Fields.", "scripts/fill.py": "print('filled')"}
    )
    written = host.workspace / "f"
    turns = [
        use(call("load_skill", name="pdf-forms")),
        use(
            call("WriteFile", path=str(written), content="x"),
            shell("git log --oneline; touch made"),
            shell("git status"),
            shell("echo $(touch made)"),
            call("load_skill", name="pdf-forms", file="reference/fields.md"),
        ),
        say("Done."),
        say("Next."),
    ]
    with gateway(*turns) as model:
        result = host.run("run", "Do it.", "--gateway", model.url, "--policy", "full", "--output", "json")
        assert result.code == 0
        first, second, third = model.bodies
    (listed,) = [tool["description"] for tool in first["tools"] if tool["name"] == "load_skill"]
    assert "- pdf-forms: Fill in PDF forms. Use when the user names a form." in listed
    (read,) = texts(second)
    assert read.startswith("# Forms\n\nRun `scripts/fill.py`.")
    assert "- reference/fields.md\n- scripts/fill.py" in read
    assert "name no tool here: Telepathy" in read
    assert "WriteFile" in offered(first)
    assert set(offered(second)) == {"ReadFile", "Grep", "RunCommand", "CommandOutput", "StopCommand", "ReadOutput",
                                    "load_skill"}  # fmt: skip
    write, two, status, hidden, resource = texts(third)
    assert "CAPABILITY_DENIED" in write
    assert "the skill pdf-forms" in write
    assert "does not name touch" in two
    assert "does not name git" in status
    assert "CAPABILITY_DENIED" in hidden
    assert resource == "Fields."
    assert not written.exists()
    assert not (host.workspace / "made").exists()


def test_the_next_task_has_all_tools_again(host: Host) -> None:
    skill(in_workspace(host), "reads", plain("reads", more="allowed-tools: [Read]\n"))
    with gateway(use(call("load_skill", name="reads")), say("One."), say("Two.")) as model:
        assert host.run("run", "First.", "--gateway", model.url, "--session-id", "s").code == 0
        assert host.run("resume", "s", "Second.", "--gateway", model.url).code == 0
        bodies = model.bodies
    assert "WriteFile" not in offered(bodies[1])
    assert "WriteFile" in offered(bodies[2])


def test_a_resume_knows_the_skills_in_use(host: Host) -> None:
    skill(in_workspace(host), "reads", plain("reads", more="allowed-tools: [Read]\n"))
    turns = [use(call("load_skill", name="reads")), use(call("WriteFile", path="f", content="x")), say("Done.")]
    with gateway(*turns) as model:
        run = ["run", "Do it.", "--gateway", model.url, "--session-id", "s"]
        ended = host.start("--after-record", "3", *run, program="agent_host.faults.crash").finish()
        assert (ended.code, len(model.bodies)) == (KILLED, 1)
        assert host.run("resume", "s", "--gateway", model.url).code == 0
        assert "WriteFile" not in offered(model.bodies[1])
        assert "CAPABILITY_DENIED" in texts(model.bodies[2])[0]
    assert not (host.workspace / "f").exists()


def test_the_users_skills_come_first_and_need_no_path_in_the_bundle(host: Host, tmp_path: Path) -> None:
    own = tmp_path / "config"
    skill(own / "skills", "shared", plain("shared", "The user's."), notes="N" * 30_000)
    skill(in_workspace(host), "shared", plain("shared", "The workspace's."))
    (own / "agent.toml").write_text("")
    turns = [use(call("load_skill", name="shared"), call("load_skill", name="shared", file="notes"),
                 call("load_skill", name="shared", file="../../agent.toml"), call("load_skill", name="other")),
             say("Done.")]  # fmt: skip
    with gateway(*turns) as model:
        ended = host.run(
            "run", "Do it.", "--gateway", model.url, "--policy", "read-only",
            env={"AGENT_HOST_CONFIG": str(own / "agent.toml")},
        )  # fmt: skip
        assert ended.code == 0
        (listed,) = [tool["description"] for tool in model.bodies[0]["tools"] if tool["name"] == "load_skill"]
        body, notes, outside, unknown = texts(model.bodies[1])
    assert "The user's." in listed
    assert "The workspace's." not in listed
    assert body.startswith("Body of shared.")
    assert notes.count("N") == 12_000
    assert "offset 12000" in notes
    assert "PERMISSION_DENIED" in outside
    assert "there is no skill other; there are: shared" in unknown


def test_a_workspaces_skill_leads_nowhere_else(host: Host, tmp_path: Path) -> None:
    elsewhere = skill(tmp_path, "elsewhere", plain("elsewhere"), secret="S3")
    linked = in_workspace(host)
    linked.mkdir(parents=True)
    (linked / "elsewhere").symlink_to(elsewhere)
    inside = skill(linked, "inside", plain("inside"))
    (inside / "link").symlink_to(elsewhere / "secret")
    turns = [use(call("load_skill", name="elsewhere"), call("load_skill", name="inside", file="link")), say("Done.")]
    with gateway(*turns) as model:
        assert host.run("run", "Do it.", "--gateway", model.url).code == 0
        refused, link = texts(model.bodies[1])
    assert "cannot be used: a workspace's skill must not be a link" in refused
    assert "PERMISSION_DENIED" in link
    assert "S3" not in json.dumps(model.bodies[-1])


@pytest.mark.many_rows(2)
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("No fields.", "does not begin with a line of three hyphens"),
        ("---\nname: odd\n", "no second line of three hyphens"),
        ("---\nname: Odd\ndescription: x\n---\n", "has to be that of its folder"),
        ("---\nname: odd\n---\n", "description: is missing"),
    ],
)
def test_a_skill_that_cannot_be_used_says_why(host: Host, text: str, says: str) -> None:
    skill(in_workspace(host), "odd", text)
    skill(in_workspace(host), "good", plain("good"))
    with gateway(use(call("load_skill", name="odd")), say("Done.")) as model:
        assert host.run("run", "Do it.", "--gateway", model.url).code == 0
        (refused,) = texts(model.bodies[1])
    assert says in refused


def test_without_skills_there_is_no_tool_for_them(host: Host) -> None:
    in_workspace(host).mkdir(parents=True)
    with gateway(say("Done.")) as model:
        assert host.run("run", "Do it.", "--gateway", model.url).code == 0
        assert "load_skill" not in offered(model.bodies[0])
