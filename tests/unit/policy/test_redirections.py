"""The files that a line opens, and every place where they may be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from policy.decide import check_tool
from policy.facts import CommandFacts
from policy.shell import parse, paths_in_line
from policy.shell.findings import FileUse, SimpleCommand
from tests.support.rows import each_row

from .helpers import NOW, bundle, shell

if TYPE_CHECKING:
    from policy import Decision
    from policy.facts import ShellName

HERE = ("",)


def opened(line: str, shell_name: ShellName = "bash") -> list[tuple[str | None, str, tuple[str, ...]]]:
    return [(one.path, one.mode, one.directories) for one in parse(line, shell_name).redirections]


@each_row(
    ("line", "expected"),
    [
        ("ls > a", [("a", "write", HERE)]),
        ("ls >> a", [("a", "write", HERE)]),
        ("ls >| a", [("a", "write", HERE)]),
        ("ls &> a", [("a", "write", HERE)]),
        ("ls &>> a", [("a", "write", HERE)]),
        ("ls >& a", [("a", "write", HERE)]),
        ("ls < a", [("a", "read", HERE)]),
        ("ls 2> a < b", [("a", "write", HERE), ("b", "read", HERE)]),
        ("ls >&2 2>&1 <&0 2>&- 3>&1-", []),
        ("ls >& 2a", [("2a", "write", HERE)]),
        ("ls >& a-", [("a-", "write", HERE)]),
        ("ls >& 1-2", [("1-2", "write", HERE)]),
        ("ls >& -", []),
        ("pushd x; ls > /b", [("/b", "write", HERE)]),
        ("ls > 2", [("2", "write", HERE)]),
        ("ls > -", [("-", "write", HERE)]),
        ("ls > ~/a", [("~/a", "write", HERE)]),
        ("ls > ~", [("~", "write", HERE)]),
        ("ls > '~/a'", [("./~/a", "write", HERE)]),
        ("ls > '~'", [("./~", "write", HERE)]),
        ("ls > /dev/null 2> /dev/stderr > /dev/stdout < /dev/stdin", []),
        ("ls > /dev/nullx", [("/dev/nullx", "write", HERE)]),
        ("cd a; ls > b", [("b", "write", ("", "a"))]),
        ("cd a; cd b; ls > c", [("c", "write", ("", "a", "b", "a/b"))]),
        ("cd a; ls > /b", [("/b", "write", ("", "a"))]),
        ("cd /a; ls > b", [("b", "write", ("", "/a"))]),
        ("cd /a/; ls > b", [("b", "write", ("", "/a/"))]),
        ("cd; ls > /b", [("/b", "write", ("", "~"))]),
        ("cd ~; ls > b", [("b", "write", ("", "~"))]),
        ("cd ~/a; ls > b", [("b", "write", ("", "~/a"))]),
        ("cd -- a; ls > b", [("b", "write", ("", "a"))]),
        ("cd --; ls > b", [("b", "write", ("", "~"))]),
        ("chdir a; ls > b", [("b", "write", ("", "a"))]),
        ("cd ..; ls > b", [("b", "write", ("", ".."))]),
        ("cd ../..; ls > b", [("b", "write", ("", "../.."))]),
        ("cd a/..; ls > b", [("b", "write", ("", "a/.."))]),
        ("cd ../a/..; ls > b", [("b", "write", ("", "../a/..", ".."))]),
        ("cd a; cd ..; ls > b", [("b", "write", ("", "a", "..", "a/.."))]),
        ("cd a && cd ..; ls > b", [("b", "write", ("", "a", "a/.."))]),
        ("cd a && ls > x && cd ..; ls > b", [("x", "write", ("", "a")), ("b", "write", ("", "a", "a/.."))]),
        ("cd a && cd b && cd ../..; ls > c", [("c", "write", ("", "a", "a/b", "a/b/../.."))]),
        ("cd a && cd .. && cd c; ls > b", [("b", "write", ("", "a", "a/..", "a/../c", "c"))]),
        ("cd a.; ls > b", [("b", "write", ("", "a."))]),
        ("cd a-; ls > b", [("b", "write", ("", "a-"))]),
        ("pushd a; ls > /b", [("/b", "write", HERE)]),
        ("pushd a; ls > ~/b", [("~/b", "write", HERE)]),
    ],
)
def test_files_are_told_with_every_directory_that_they_may_be_in(
    line: str, expected: list[tuple[str | None, str, tuple[str, ...]]]
) -> None:
    assert opened(line) == expected
    assert not any("redirection" in reason for reason in parse(line).dynamic)


@each_row(
    "line",
    [
        "pushd a; ls > b",
        "popd; ls > b",
        "cd -; ls > b",
        "cd ~+; ls > b",
        "cd ~-; ls > b",
        "cd ''; ls > b",
        "cd $x; ls > b",
        "cd a b; ls > b",
        "cd -- a b; ls > b",
        "cd -P a; ls > b",
        "cd ~/..; ls > b",
        "cd ~; cd ..; ls > b",
        "for x in a; do cd a; done; ls > b",
        "cd a; cd b; cd c; cd d; ls > b",
        "while x; do ls > b; pushd a; done",
        "f() { ls > b; }; cd a; f",
        "trap 'ls > b' EXIT; cd a",
        "for x in a; do eval 'cd a'; ls > b; done",
    ],
)
def test_a_directory_that_is_not_followed_leaves_relative_files_undecided(line: str) -> None:
    assert opened(line) == [(None, "write", directories) for _, _, directories in opened(line)]
    assert "a relative redirection after a change of directory that is not followed" in parse(line).dynamic


def test_a_file_that_is_opened_before_the_change_is_where_it_seems() -> None:
    assert opened("ls > b; pushd a; ls > c")[0][:2] == ("b", "write")
    assert opened("ls > b; pushd a; ls > c")[1][0] is None


def test_eight_places_are_followed_and_no_more() -> None:
    assert len(opened("cd a; cd b; cd c; ls > d")[0][2]) == 8
    assert opened("cd a; cd b; cd c; cd a; ls > d")[0][0] is None
    assert opened("cd a; cd b; cd c; cd /x; ls > d")[0][0] is None
    assert len(opened("cd a; cd b; cd /x; cd /y; cd /z; ls > d")[0][2]) == 7


def test_an_absolute_file_stays_decided_beside_a_relative_one() -> None:
    assert [path for path, _, _ in opened("pushd a; ls > b > /c > ~/d")] == [None, "/c", "~/d"]


def test_a_directory_of_4096_characters_is_followed_and_no_longer_one() -> None:
    assert opened(f"cd {'a' * 4_096}; ls > /b")[0][2] == ("", "a" * 4_096)
    assert opened(f"cd {'a' * 4_097}; ls > b")[0][0] is None
    assert opened(f"cd a; cd {'b' * 4_095}; ls > b")[0][0] is None
    assert opened(f"cd a; cd {'b' * 4_094}; ls > b")[0][0] == "b"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("ls > $x", "a redirection to an expansion"),
        ("ls > ~x", "a redirection to somebody's home directory"),
        ("ls > ~x/~/", "a redirection to somebody's home directory"),
        ("ls > /dev/tcp/h/1", "a redirection that opens a network connection"),
        ("ls > /dev/udp/h/1", "a redirection that opens a network connection"),
    ],
)
def test_what_is_not_followed_is_told(line: str, reason: str) -> None:
    assert parse(line).dynamic == (reason,)


def test_a_place_that_only_ends_like_a_connection_is_a_file() -> None:
    assert parse("ls > a/dev/tcp/").dynamic == ()
    assert parse("ls > /dev/tcp").dynamic == ()


def test_the_paths_of_a_line_add_up_to_64_kib_at_most() -> None:
    for length, count, is_fine in ((896, 64, True), (897, 64, False), (1, 508, True), (1, 509, False)):
        line = "ls" + f" > {'a' * length}" * count
        parsed = parse(line)
        assert (parsed.dynamic == ()) is is_fine, (length, count)
        assert (len(parsed.redirections) == count) is is_fine
    assert "the line opens more files than are followed" in parse("ls" + " > $x" * 513).dynamic
    assert "the line opens more files than are followed" not in parse("ls" + " > $x" * 512).dynamic
    assert parse(f"cd {'b' * 63}; ls" + " > a" * 200).dynamic == ()
    assert parse(f"cd {'b' * 80}; ls" + " > a" * 203).dynamic != ()


def test_spellings_are_absolute_with_links_and_dots_left_in() -> None:
    assert paths_in_line(parse("cd a; ls > ../b"), "/w", "/h") == ("/w/../b", "/w/a/../b")
    assert paths_in_line(parse("cd /a/; ls > b"), "/w/", "/h") == ("/w/b", "/a/b")
    assert paths_in_line(parse("cd /XX; ls > b"), "/w", "/h") == ("/w/b", "/XX/b")
    assert paths_in_line(parse("cd; ls > b > ~/c > ~ < /d"), "/w", "/h") == ("/w/b", "/h/b", "/h/c", "/h", "/d")
    assert paths_in_line(parse("ls > ~/b"), "/w", None) == ()
    assert paths_in_line(parse("cd; ls > b > /c"), "/w", None) == ("/c",)
    assert paths_in_line(parse("cd a; ls > /b"), "/w", None) == ("/b",)
    assert FileUse("read", "a").spellings("/w", None) == ("/w/a",)
    assert FileUse("read", "~").spellings("/w", None) == ()
    assert FileUse("read", None).spellings("/w", "/h") == ()
    assert paths_in_line(parse("ls > b > b > $x"), "/w", None) == ("/w/b",)


def test_a_program_has_a_name_without_its_directory() -> None:
    assert SimpleCommand("/usr/bin/ls").name == "ls"
    assert SimpleCommand("ls").name == "ls"
    assert SimpleCommand(None).name is None


def test_4000_commands_are_read_and_no_more() -> None:
    """Most are started through each other, since so many beside each other are too much work before that."""
    at_most = (";".join(["nice " * 15 + "a"] * 250)) + ";"
    assert len(parse(at_most).commands) == 4_000
    assert parse(at_most).dynamic == ()
    more = parse(at_most + "b; c")
    assert more.dynamic == ("the line has more than 4000 commands",)
    assert more.commands[4_000:] == (SimpleCommand("b"),)


def test_shells_in_shells_are_read_eight_deep() -> None:
    for line in ("sh -c a", "sh -c 'sh -c a'"):
        assert parse(line).commands[-1] == SimpleCommand("a")
    deep = "eight"
    for _ in range(8):
        deep = "sh -c " + deep.replace("\\", "\\\\").replace(" ", "\\ ")
    assert parse(deep, "bash").dynamic == ()
    assert parse(deep).commands[-1] == SimpleCommand("eight")
    too_deep = "sh -c " + deep.replace("\\", "\\\\").replace(" ", "\\ ")
    assert "shells inside shells" in parse(too_deep).dynamic
    assert SimpleCommand("eight") not in parse(too_deep).commands


@each_row(
    ("entry", "line", "decision", "rule"),
    [
        ({"allowedPaths": ["/w"]}, "ls > a", "ALLOWED", "capabilities[Shell.Exec]"),
        ({"allowedPaths": ["/w"]}, "ls > /x", "DENIED", "capabilities[File.Write].allowedPaths"),
        ({"allowedPaths": []}, "ls > $x", "DENIED", "capabilities[Shell.Exec].allowedPaths"),
        ({"blockedPaths": ["/w"]}, "ls > $x", "DENIED", "capabilities[Shell.Exec].blockedPaths"),
        ({"blockedPaths": []}, "ls > $x", "ALLOWED", "capabilities[Shell.Exec]"),
        ({"requiresApproval": True}, "ls > $x", "APPROVAL_REQUIRED", "capabilities[File.Write].requiresApproval: true"),
        ({"requiresApproval": True}, "ls > a", "APPROVAL_REQUIRED", "capabilities[File.Write].requiresApproval: true"),
        ({}, "ls > /proc/self/mem", "DENIED", "builtin.processPlaces: /proc"),
        ({}, "ls < $x", "DENIED", "capabilities"),
        ({}, "ls < a", "DENIED", "capabilities"),
    ],
)
def test_a_redirection_is_judged_as_access_to_its_file(
    entry: dict[str, object], line: str, decision: str, rule: str
) -> None:
    held = bundle({"name": "Shell.Exec"}, {"name": "File.Write", **entry})
    real = {one: one for one in paths_in_line(parse(line), "/w", "/h")}
    answer = check_tool(held, "Shell.Exec", CommandFacts(line, cwd="/w", home="/h", real_paths=real), now=NOW)
    assert (answer.decision, answer.capability) == (decision, "Shell.Exec")
    assert answer.rule.replace("capabilities[Shell.Exec].", "capabilities[File.Write].") == rule.replace(
        "capabilities[Shell.Exec].", "capabilities[File.Write]."
    )
    if decision == "DENIED":
        assert answer.reason.startswith("redirection (File.")
    if decision == "APPROVAL_REQUIRED":
        assert answer.risk_level == ("high" if "$" in line else "medium")


def test_where_nobody_looked_nothing_is_written() -> None:
    held = bundle({"name": "Shell.Exec"}, {"name": "File.Write"})
    for line, home in (("ls > a", "/h"), ("ls > ~/a", None)):
        answer = check_tool(held, "Shell.Exec", CommandFacts(line, cwd="/w", home=home), now=NOW)
        assert (answer.decision, answer.rule) == ("DENIED", "capabilities[Shell.Exec]")
    assert shell("ls > a", links={"/w/a": "/proc/1/mem"}) == "DENIED"
    assert shell("ls > a", links={"/w/a": "/etc/x"}) == "DENIED"
    assert shell("cd sub; ls > a", links={"/w/a": "/etc/x"}) == "DENIED"
    assert shell("cd sub; ls > a", links={"/w/sub/a": "/etc/x"}) == "DENIED"
    assert shell("cd sub; ls > a") == "ALLOWED"


def test_a_denial_of_one_file_goes_before_the_approval_of_another() -> None:
    asking = {"name": "File.Read", "requiresApproval": True}
    held = bundle({"name": "Shell.Exec"}, asking, {"name": "File.Write", "allowedPaths": ["/w"]})
    for line, decision in (("ls < a > /x", "DENIED"), ("ls > /x < a", "DENIED"), ("ls < a > b", "APPROVAL_REQUIRED")):
        real = {one: one for one in paths_in_line(parse(line), "/w", None)}
        answer = check_tool(held, "Shell.Exec", CommandFacts(line, cwd="/w", real_paths=real), now=NOW)
        assert answer.decision == decision, line


def judged(line: str, *entries: dict[str, Any], asks: bool = False, links: dict[str, str] | None = None) -> Decision:
    held = bundle({"name": "Shell.Exec", "requiresApproval": asks}, *entries)
    places = {one: (links or {}).get(one, one) for one in paths_in_line(parse(line), "/w", None)}
    return check_tool(held, "Shell.Exec", CommandFacts(line, cwd="/w", real_paths=places), now=NOW)


def test_each_place_where_a_file_may_be_is_judged_before_an_approval_is_asked_for() -> None:
    write: dict[str, Any] = {"name": "File.Write", "requiresApproval": True}
    assert judged("cd sub; ls > a", write).decision == "APPROVAL_REQUIRED"
    for blocked in ("/w/a", "/w/sub/a"):
        answer = judged("cd sub; ls > a", {**write, "blockedPaths": [blocked]})
        assert (answer.decision, answer.rule) == ("DENIED", f"capabilities[File.Write].blockedPaths: {blocked}")


def test_a_place_of_processes_is_another_one_for_the_program_whoever_names_it() -> None:
    named: dict[str, Any] = {"name": "File.Write", "allowedPaths": ["/w", "/proc"]}
    for line, links in (
        ("ls > link", {"/w/link": "/proc/7/x"}),
        ("ls > /proc/self/cwd/a", {"/proc/self/cwd/a": "/w/a"}),
    ):
        answer = judged(line, named, links=links)
        assert (answer.decision, answer.rule) == ("DENIED", "builtin.processPlaces: /proc"), line


@pytest.mark.parametrize(("line", "name"), [("ls > $x", "File.Write"), ("ls < $x", "File.Read")])
def test_who_approves_the_line_approves_a_file_that_nobody_knows(line: str, name: str) -> None:
    lists: tuple[list[dict[str, Any]], ...] = (
        [],
        [{"name": name, "allowedPaths": ["/w"]}],
        [{"name": name, "blockedPaths": ["/x"]}],
    )
    for entries in lists:
        answer = judged(line, *entries, asks=True)
        assert (answer.decision, answer.rule) == (
            "APPROVAL_REQUIRED",
            "capabilities[Shell.Exec].requiresApproval: true",
        )
        assert judged(line, *entries).decision == "DENIED"


@pytest.mark.parametrize("line", ["ls >", "ls )", "echo 'a"])
def test_a_line_that_cannot_be_read_may_open_any_file(line: str) -> None:
    read: dict[str, Any] = {"name": "File.Read"}
    write: dict[str, Any] = {"name": "File.Write"}
    assert parse(line).dynamic[0] == "the line cannot be parsed"
    assert judged(line, read, write).allowed
    for entries, name, field in (
        ([read, {**write, "allowedPaths": ["/w"]}], "File.Write", "allowedPaths"),
        ([{**read, "blockedPaths": ["/x"]}, write], "File.Read", "blockedPaths"),
    ):
        answer = judged(line, *entries)
        assert (answer.decision, answer.rule) == ("DENIED", f"capabilities[{name}].{field}")
        assert answer.reason.startswith(f"redirection ({name}): its target is only known when it runs; write the path")
    assert judged(line, read).rule == judged(line, write).rule == "capabilities"
