"""What a command's process may do, of what a bundle says: tables, and properties over random bundles and places."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from hypothesis import strategies as st

from config.policies import BUILT_IN, place_groups, template, template_as_written
from policy import RepositoryFacts, ScopeFacts, Widening
from policy.bundle import Narrowing, narrow
from policy.bundle.builtin import PlaceholderValues, instantiate
from policy.bundle.validate import BuiltIns, parse_file_bundle
from policy.paths import is_under
from policy.rules.sandbox import (
    add_own_places,
    command_scope,
    may_read,
    may_write,
    server_scope,
)
from tests.support.rows import each_row
from tests.unit.policy.helpers import bundle

if TYPE_CHECKING:
    from policy import CommandScope
    from policy.bundle import Capability, PolicyBundle

TMP = "/tmp/agent-host-s1-01234567"
FACTS = ScopeFacts(
    workspace="/w",
    home="/home/u",
    tmp=TMP,
    system=("/usr", "/etc"),
    devices=("/dev/null",),
    secrets=("/etc/shadow",),
    toolchains=("/home/u/.cargo", "/home/u/.gitconfig"),
    toolchain_secrets=("/home/u/.cargo/credentials.toml",),
    records=("/state",),
    steering=("/home/u/.config/agent-host",),
    repository=RepositoryFacts("/w/.git", "/w/.git", "/w/.git"),
)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
READ: dict[str, Any] = {"name": "File.Read"}
WRITE: dict[str, Any] = {"name": "File.Write"}
HTTP: dict[str, Any] = {"name": "Network.Http"}
OF_W = {"allowedPaths": ["/w"]}


def built_in(name: str) -> PolicyBundle:
    return instantiate(
        template(name), PlaceholderValues("/w", "/home/u", "/state", "posix", tmp=TMP), session_id="s1", now=NOW
    )


def of_file(*capabilities: dict[str, Any], **fields: Any) -> PolicyBundle:
    places = PlaceholderValues("/w", "/home/u", "/state", "posix", TMP, place_groups())
    shape = {"extends": "workspace", "capabilities": list(capabilities), **fields}
    return parse_file_bundle(shape, places=places, built_ins=BuiltIns(BUILT_IN, template_as_written), now=NOW)


def scope(*capabilities: dict[str, Any], facts: ScopeFacts = FACTS, **fields: Any) -> CommandScope:
    return command_scope(bundle(*capabilities, **fields), facts, "posix")


def reads(found: CommandScope, path: str) -> bool:
    return may_read(found, path, "posix")


def writes(found: CommandScope, path: str) -> bool:
    return may_write(found, path, "posix")


@each_row(
    ("path", "read_only", "workspace", "ci", "full"),
    # What each built-in lets a command do: r reads, w reads and writes, - neither.
    [
        ("/w/a.py", "r", "w", "w", "w"),
        ("/w/.git/objects/1", "r", "w", "w", "w"),
        ("/w/.git/index", "r", "w", "w", "w"),
        ("/w/.git/hooks/pre-commit", "r", "r", "r", "r"),
        ("/w/.git/config", "r", "r", "r", "r"),
        ("/w/.git/config.worktree", "r", "r", "r", "r"),
        ("/w/.git/info/attributes", "r", "r", "r", "r"),
        ("/w/.agent/config.toml", "r", "r", "r", "r"),
        ("/w/.vscode/tasks.json", "r", "r", "r", "r"),
        (TMP + "/x", "w", "w", "w", "w"),
        ("/tmp/agent-host-s2-01234567/x", "-", "-", "-", "w"),
        ("/tmp/x", "-", "-", "-", "w"),
        ("/usr/bin/python3", "r", "r", "r", "w"),
        ("/etc/shadow", "-", "-", "-", "-"),
        ("/home/u/.cargo/bin/cargo", "r", "r", "r", "w"),
        ("/home/u/.cargo/credentials.toml", "-", "-", "-", "-"),
        ("/home/u/.gitconfig", "r", "r", "r", "r"),
        ("/home/u/.ssh/id_rsa", "-", "-", "-", "-"),
        ("/home/u/.bashrc", "-", "-", "-", "r"),
        ("/home/u/.config/agent-host/config.toml", "-", "-", "-", "r"),
        ("/home/u/notes.txt", "-", "-", "-", "w"),
        ("/state/checkpoints/s1.json", "-", "-", "-", "-"),
        ("/dev/null", "w", "w", "w", "w"),
    ],
)
def test_what_the_built_ins_hold(path: str, read_only: str, workspace: str, ci: str, full: str) -> None:
    names = ("read-only", "workspace", "ci", "full")
    for name, expected in zip(names, (read_only, workspace, ci, full), strict=True):
        found = command_scope(built_in(name), FACTS, "posix")
        may = "w" if writes(found, path) else "r" if reads(found, path) else "-"
        assert may == expected, name


@pytest.mark.parametrize(
    ("capability", "domains"),
    [
        (None, ()),
        (HTTP, None),
        (HTTP | {"requiresApproval": True}, ()),
        (HTTP | {"allowedDomains": ["a.example"]}, ("a.example",)),
        (HTTP | {"allowedDomains": ["a.example"], "requiresApproval": True}, ()),
        (HTTP | {"allowedDomains": []}, ()),
    ],
)
def test_hosts_that_may_be_reached(capability: dict[str, Any] | None, domains: tuple[str, ...] | None) -> None:
    granted = bundle(*([] if capability is None else [capability]))
    assert command_scope(granted, FACTS, "posix").domains == domains
    opened = command_scope(granted, FACTS, "posix", opened=Widening(domains=("pypi.org",)))
    assert opened.domains == (None if domains is None else (*domains, "pypi.org"))


def test_blocked_hosts_stay_blocked() -> None:
    granted = bundle(HTTP | {"allowedDomains": ["*.example"], "blockedDomains": ["x.example"]})
    found = command_scope(
        granted,
        FACTS,
        "posix",
        opened=Widening(domains=("x.example",)),
        blocked_domains=("y.example",),
        grant=Widening(domains=("y.example",)),
    )
    assert found.blocked_domains == ("x.example", "y.example")


@pytest.mark.parametrize(
    ("capability", "mode", "strict"),
    [
        (READ | OF_W, None, True),
        (READ | OF_W, "open", False),
        (READ, None, False),
        (READ, "strict", True),
        (READ | {"requiresApproval": True}, None, True),
        (None, None, True),
    ],
)
def test_whether_reading_is_strict(capability: dict[str, Any] | None, mode: str | None, strict: bool) -> None:
    fields = {} if mode is None else {"sandbox": {"reads": mode}}
    granted = bundle(*([] if capability is None else [capability]), **fields)
    found = command_scope(granted, FACTS, "posix")
    assert (found.reads is not None) == strict
    asked = capability is not None and not capability.get("requiresApproval")
    assert reads(found, "/w/a") == asked
    assert reads(found, "/home/u/notes.txt") == (not strict)
    assert not reads(found, "/etc/shadow")


def test_what_asks_for_an_approval_is_given_to_no_command_by_itself() -> None:
    found = scope(READ | OF_W, WRITE | OF_W | {"requiresApproval": True})
    assert found.writes == ("/dev/null", TMP)
    assert reads(found, "/w/a")


def test_what_is_blocked_wins_over_what_is_allowed_in_it() -> None:
    found = scope(READ, WRITE | {"allowedPaths": ["/w", "/w/out/x"], "blockedPaths": ["/w/out"]})
    assert writes(found, "/w/a")
    assert not writes(found, "/w/out/x/a")
    assert reads(found, "/w/out/x/a")
    hidden = scope(READ | {"allowedPaths": ["/w", "/w/s/x"], "blockedPaths": ["/w/s"]}, WRITE | OF_W)
    assert not reads(hidden, "/w/s/x/a")
    assert not writes(hidden, "/w/s/a")


def test_the_sessions_own_directory_is_added_after_the_blocks() -> None:
    facts = FACTS._replace(tmp="/state/tmp")
    found = scope(READ | {"blockedPaths": ["/state"]}, WRITE | OF_W, facts=facts)
    assert writes(found, "/state/tmp/x")
    assert not reads(found, "/state/checkpoints/x")


@pytest.mark.parametrize("literal", [".git", "${workspace}/.git", "/w/.git"])
def test_a_git_that_is_spelled_out_ends_commits(literal: str) -> None:
    split = of_file({"name": "File.Write", "blockedPaths": ["@steering"]})
    assert writes(command_scope(split, FACTS, "posix"), "/w/.git/index")
    whole = of_file({"name": "File.Write", "blockedPaths": ["@steering", literal]})
    found = command_scope(whole, FACTS, "posix")
    assert not writes(found, "/w/.git/index")
    assert reads(found, "/w/.git/index")


def test_a_git_that_the_configuration_blocks_ends_commits() -> None:
    less = narrow(built_in("workspace"), Narrowing(blocked_paths=("/w/.git",)))
    assert not writes(command_scope(less, FACTS, "posix"), "/w/.git/index")


LINKED = RepositoryFacts("/w/.git", "/main/.git/worktrees/w", "/main/.git", ("/main/.git/modules/lib",))


def test_commits_in_a_linked_working_tree() -> None:
    found = command_scope(built_in("ci"), FACTS._replace(repository=LINKED), "posix")
    for place in ("objects/x", "refs/heads/x", "worktrees/w/index", "modules/lib/index", "logs/HEAD"):
        assert writes(found, f"/main/.git/{place}"), place
    kept = ("hooks/x", "config", "info/exclude", "worktrees/w/commondir", "worktrees/w/config.worktree")
    for place in (*kept, "modules/lib/hooks/x", "modules/lib/config"):
        assert not writes(found, f"/main/.git/{place}"), place
        assert reads(found, f"/main/.git/{place}"), place
    assert not writes(found, "/w/.git")
    assert not writes(found, "/main/src")


def test_what_git_borrows_is_read_where_the_workspace_is() -> None:
    facts = FACTS._replace(repository=RepositoryFacts("/m/.git", "/m/.git", "/m/.git", reads=("/m/.git", "/o/objects")))
    found = command_scope(built_in("ci"), facts, "posix")
    for place in ("/m/.git/refs/heads/main", "/o/objects/pack/x"):
        assert reads(found, place), place
        assert not writes(found, place), place
    assert not reads(found, "/m/README.md")
    assert not reads(scope(READ | {"allowedPaths": ["/e"]}, WRITE | OF_W, facts=facts), "/m/.git/config")
    blocked = command_scope(narrow(built_in("ci"), Narrowing(blocked_paths=("/m",))), facts, "posix")
    assert not reads(blocked, "/m/.git/config")


@pytest.mark.parametrize(
    "capabilities",
    [
        [READ | OF_W, WRITE | OF_W | {"blockedPaths": ["/w/.git"]}],
        [READ | OF_W, WRITE | OF_W | {"blockedPaths": ["/main"]}],
        [READ | OF_W, WRITE | {"allowedPaths": ["/w/src"]}],
        [READ | OF_W],
    ],
)
def test_no_commits_where_the_working_trees_git_is_not_to_be_written(capabilities: list[dict[str, Any]]) -> None:
    found = scope(*capabilities, facts=FACTS._replace(repository=LINKED))
    assert not writes(found, "/main/.git/objects/x")


def test_an_allowed_path_that_names_git_gives_it_whole() -> None:
    found = scope(READ | OF_W, WRITE | {"allowedPaths": ["/w/.git"]})
    assert writes(found, "/w/.git/hooks/pre-commit")
    assert not writes(found, "/w/a")


def test_patterns_are_held_where_they_name_one_place() -> None:
    found = scope(READ | OF_W, WRITE | OF_W | {"blockedPaths": ["/w/**/.envrc", "/w/**/*.sh"]})
    assert not writes(found, "/w/.envrc")
    assert writes(found, "/w/a/.envrc")
    assert [one for one in found.unheld if one.startswith("below /w")] == [
        "below /w, at any depth: .envrc, *.sh; only entries directly in it are protected"
    ]


@pytest.mark.parametrize(
    ("capabilities", "said"),
    [
        ([WRITE | OF_W], "File.Delete is not granted"),
        ([WRITE | OF_W, {"name": "File.Delete", "requiresApproval": True}], "File.Delete asks"),
        ([WRITE | OF_W, {"name": "File.Delete", "allowedPaths": ["/w/x"]}], "File.Delete has allowedPaths"),
        ([READ | OF_W | {"maxFileSizeBytes": 5}], "File.Read.maxFileSizeBytes"),
        ([WRITE | OF_W | {"maxFileSizeBytes": 5}], "File.Write.maxFileSizeBytes"),
        ([WRITE | OF_W], "other repositories"),
    ],
)
def test_what_no_level_holds_is_said(capabilities: list[dict[str, Any]], said: str) -> None:
    assert any(said in one for one in scope(*capabilities).unheld)
    assert not any(said in one for one in scope(READ).unheld)


def test_links_of_lists_count_where_they_lead() -> None:
    granted = bundle(READ | OF_W, WRITE | {"allowedPaths": ["/w", "/data"], "blockedPaths": ["/w/keep"]})
    moved = granted.set_real_places({"allowed": {"/data": "/mnt/data"}, "blocked": {"/w/keep": "/mnt/data/keep"}})
    found = command_scope(moved, FACTS, "posix")
    assert writes(found, "/mnt/data/a")
    assert not writes(found, "/data/a")
    assert not writes(found, "/mnt/data/keep/a")
    assert not writes(found, "/w/keep/a")


def test_agents_are_those_of_the_bundle() -> None:
    assert scope(READ).agents == ()
    assert scope(READ, sandbox={"agents": ["ssh"]}).agents == ("ssh",)


def test_who_signs_by_the_agent_of_gpg_reads_the_public_keys_alone() -> None:
    home = "/home/u/.gnupg"
    for policy in ("workspace", "full"):
        granted = of_file(extends=policy, sandbox={"agents": ["gpg"]})
        found = command_scope(granted, FACTS, "posix")
        assert reads(found, f"{home}/pubring.kbx")
        assert not reads(found, f"{home}/private-keys-v1.d/x.key")
        assert not writes(found, f"{home}/gpg-agent.conf")
        assert not writes(found, f"{home}/private-keys-v1.d/x.key")
        assert not reads(command_scope(of_file(extends=policy), FACTS, "posix"), f"{home}/pubring.kbx")
        spelled = of_file(READ | {"blockedPaths": [home]}, extends=policy, sandbox={"agents": ["gpg"]})
        assert not reads(command_scope(spelled, FACTS, "posix"), f"{home}/pubring.kbx")


def test_a_servers_scope() -> None:
    granted = built_in("workspace")
    found = server_scope(granted, FACTS, "posix", write=("/w/db", "/w/.git", "/w/.vscode"), domains=("a.example",))
    assert writes(found, "/w/db/x")
    assert writes(found, TMP + "/x")
    assert not writes(found, "/w/a")
    assert not writes(found, "/w/.git/hooks/x")
    assert not writes(found, "/w/.vscode/x")
    assert reads(found, "/w/a")
    assert not reads(found, "/home/u/.ssh/id_rsa")
    assert found.domains == ("a.example",)


def test_places_of_the_host_itself() -> None:
    found = add_own_places(scope(READ | OF_W), "posix", reads=("/skills/a",), writes=("/state/sessions/s1/sandbox",))
    assert reads(found, "/skills/a/run.py")
    assert not writes(found, "/skills/a/run.py")
    assert writes(found, "/state/sessions/s1/sandbox/out")
    assert not reads(found, "/state/sessions/s1/events.jsonl")


def test_the_hosts_own_places_stay_within_what_is_hidden_whatever_is_writable() -> None:
    facts = FACTS._replace(tmp="/state/tmp")
    found = add_own_places(command_scope(built_in("full"), facts, "posix"), "posix", writes=("/state/s1/sandbox",))
    assert {"/", "/state/tmp", "/state/s1/sandbox"} <= set(found.writes)
    assert writes(found, "/state/tmp/x")
    assert writes(found, "/state/s1/sandbox/x")
    assert not reads(found, "/state/s1/events.jsonl")


# Properties

NAMES = st.sampled_from(["a", "b", ".git", "hooks"])
PLACES = st.lists(NAMES, min_size=0, max_size=3).map(lambda parts: "/" + "/".join(parts))
LISTS = st.lists(PLACES, max_size=3)


@st.composite
def bundles(draw: st.DrawFn) -> PolicyBundle:
    capabilities = []
    for name in ("File.Read", "File.Write", "File.Delete"):
        entry: dict[str, Any] = {"name": name, "blockedPaths": draw(LISTS), "requiresApproval": draw(st.booleans())}
        if draw(st.booleans()):
            entry["allowedPaths"] = draw(LISTS)
        if draw(st.integers(0, 4)):
            capabilities.append(entry)
    return bundle(*capabilities)


FEW = ScopeFacts(workspace="/a", repository=RepositoryFacts("/a/.git", "/a/.git", "/a/.git"))


def in_any(path: str, places: Any) -> bool:
    return any(is_under(path, one, "posix") for one in places or ())


def given(entry: Capability | None, path: str) -> bool:
    """Whether a capability gives a place by itself."""
    if entry is None or entry.requires_approval:
        return False
    return entry.allowed_paths is None or in_any(path, entry.allowed_paths)


@hypothesis.given(bundles(), PLACES, LISTS)
def test_a_command_may_do_no_more_than_the_file_tools(granted: PolicyBundle, path: str, wider: list[str]) -> None:
    found = command_scope(granted, FEW, "posix", grant=Widening(tuple(wider)))
    read, write, delete = (granted.capability(f"File.{name}") for name in ("Read", "Write", "Delete"))
    if may_write(found, path, "posix"):
        assert may_read(found, path, "posix")
        assert not any(in_any(path, entry.blocked_paths) for entry in (write, delete) if entry is not None)
        assert given(write, path) or in_any(path, wider)
    if may_read(found, path, "posix"):
        assert read is None or not in_any(path, read.blocked_paths)
        assert given(read, path) or in_any(path, found.writes) or in_any(path, found.reads)


@hypothesis.given(bundles(), PLACES, LISTS)
def test_a_wider_call_may_do_what_any_other_may(granted: PolicyBundle, path: str, wider: list[str]) -> None:
    plain = command_scope(granted, FEW, "posix")
    more = command_scope(granted, FEW, "posix", grant=Widening(tuple(wider)))
    for may in (may_read, may_write):
        assert may(more, path, "posix") or not may(plain, path, "posix")


@hypothesis.given(bundles(), LISTS)
def test_no_place_of_a_scope_is_named_twice(granted: PolicyBundle, wider: list[str]) -> None:
    found = command_scope(granted, FACTS, "posix", grant=Widening(tuple(wider)))
    for places in (found.reads or (), found.writes, found.hidden, found.guarded):
        assert len(set(places)) == len(places)
        assert all(one.startswith("/") and ".." not in one for one in places)
