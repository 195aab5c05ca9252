"""What the model is told of its place and of the policy's lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from agent_host.thread.prompt import policy_lines, system_prompt
from config.policies import template
from policy.bundle import bundle_from_trusted
from policy.bundle.builtin import PlaceholderValues, instantiate
from tests.support.policy_cases import NOW, shape_of
from tests.support.rows import each_row

if TYPE_CHECKING:
    from policy.bundle import PolicyBundle


def bundle(*capabilities: dict[str, Any]) -> PolicyBundle:
    return bundle_from_trusted(shape_of(list(capabilities)))


def built_in(name: str) -> PolicyBundle:
    return instantiate(
        template(name), PlaceholderValues("/ws", "/home/u", "/state", "posix", tmp="/tmp/own"), session_id="s", now=NOW
    )


def prompt(held: PolicyBundle) -> str:
    return system_prompt(workspace="/ws", os_family="posix", shell="bash", bundle=held)


FILES = {"allowedPaths": ["/ws", "/tmp"], "blockedPaths": ["/ws/secret"]}


@each_row(
    ("capabilities", "lines"),
    [
        ([], []),
        ([{"name": "File.Read"}, {"name": "File.Write"}, {"name": "Shell.Exec"}, {"name": "Network.Http"}], []),
        ([{"name": "Shell.Exec", "allowedCommands": ["ls", "make"], "blockedCommands": ["rm"]}],
         ["Commands may start only these programs: ls, make"]),
        ([{"name": "File.Read", **FILES}, {"name": "File.Write", **FILES}],
         ["Files may be read and written only in: /ws, /tmp"]),
        ([{"name": "File.Read", **FILES}, {"name": "File.Write", "allowedPaths": ["/ws"]}],
         ["Files may be read only in: /ws, /tmp", "Files may be written only in: /ws"]),
        ([{"name": "File.Read"}, {"name": "File.Write", "allowedPaths": ["/ws"]}],
         ["Files may be written only in: /ws"]),
        ([{"name": "File.Read", **FILES}], ["Files may be read only in: /ws, /tmp"]),
        ([{"name": "Network.Http", "allowedDomains": ["a.example", "*.b.example"], "blockedDomains": ["c.b.example"]}],
         ["Requests may go only to: a.example, *.b.example"]),
        ([{"name": "File.Read", "allowedPaths": []}, {"name": "Shell.Exec", "allowedCommands": []},
          {"name": "Network.Http", "allowedDomains": []}], []),
    ],
)  # fmt: skip
def test_only_what_the_lists_allow_is_told(capabilities: list[dict[str, Any]], lines: list[str]) -> None:
    held = bundle(*capabilities)
    assert policy_lines(held) == lines
    text = prompt(held)
    assert ("What the policy allows:" in text) == bool(lines)
    assert all(f"\n- {line}\n" in text for line in lines)


def test_a_long_list_is_cut_and_says_so() -> None:
    names = [f"program-{number:04}" for number in range(100)]
    (line,) = policy_lines(bundle({"name": "Shell.Exec", "allowedCommands": names}))
    told = line.partition(": ")[2]
    assert len(told) < 620
    assert told.endswith(", program-0042 and 57 more")
    (whole,) = policy_lines(bundle({"name": "Shell.Exec", "allowedCommands": names[:43]}))
    assert "more" not in whole
    (one,) = policy_lines(bundle({"name": "File.Read", "allowedPaths": ["/" + "x" * 700, "/y"]}))
    assert one.endswith("x and 1 more")


def test_the_built_ins() -> None:
    assert "What the policy allows:" not in prompt(built_in("full"))
    assert policy_lines(built_in("workspace")) == ["Files may be read and written only in: /ws, /tmp/own"]
    programs, files = policy_lines(built_in("ci"))
    assert files == "Files may be read and written only in: /ws, /tmp/own, /tmp"
    assert {"/ws/**", "git", "pytest", "npm"} <= set(programs.partition(": ")[2].split(", "))
    assert " more" in programs
    for text in map(prompt, map(built_in, ("read-only", "workspace", "ci", "full"))):
        assert "Workspace: /ws" in text
        assert ".ssh" not in text
        assert "/state" not in text
        assert len(text) < 3000


@pytest.mark.parametrize("workspace", ["/home/u/.claude", "/home/u/.claude/worktrees/x"])
def test_a_workspace_in_which_nothing_may_be_written_is_told(workspace: str) -> None:
    held = bundle({"name": "File.Write", "allowedPaths": [workspace], "blockedPaths": ["/home/u/.claude"]})
    said = system_prompt(workspace=workspace, os_family="posix", shell="bash", bundle=held)
    assert "Nothing in the workspace may be written, since it lies in /home/u/.claude\n" in said
    elsewhere = system_prompt(workspace="/home/u/project", os_family="posix", shell="bash", bundle=held)
    assert "Nothing in the workspace" not in elsewhere
