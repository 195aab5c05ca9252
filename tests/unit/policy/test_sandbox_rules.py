"""What policy says where commands ought to be held, and to calls that ask for more than their sandbox gives."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.policies import BUILT_IN, place_groups, template, template_as_written
from policy import LEVELS, CommandScope, Decision, ScopeFacts, Widening, is_weaker
from policy.bundle.builtin import PlaceholderValues, instantiate
from policy.bundle.validate import BuiltIns, parse_file_bundle
from policy.decide import check_tool
from policy.facts import CommandFacts
from policy.rules.bundle_summary import ends_commits
from policy.rules.canonical import canonical_form
from policy.rules.sandbox import (
    apply_widening,
    command_scope,
    common_scope,
    may_read,
    may_write,
    sandbox_denial,
    widening_of,
)
from policy.shell import parse, paths_in_line
from policy.urls import common_domains, domain_rules, matching_rule
from tests.support.rows import each_row
from tests.unit.policy.helpers import NOW, bundle

if TYPE_CHECKING:
    from policy import SandboxLevel
    from policy.bundle import PolicyBundle

TMP = "/tmp/agent-host-s1-01234567"
SHELL: dict[str, Any] = {"name": "Shell.Exec"}


@each_row(
    ("level", "wanted", "said", "rule"),
    [
        ("none", "none", {}, None),
        ("none", "auto", {}, None),
        ("landlock", "auto", {}, None),
        ("landlock", "landlock", {}, None),
        ("none", "landlock", {}, "sandbox.level: landlock"),
        ("none", "namespace", {}, "sandbox.level: namespace"),
        ("none", "none", {"required": True}, "sandbox.required: true"),
        ("none", "auto", {"required": True}, "sandbox.required: true"),
        ("landlock", "auto", {"required": True}, None),
        ("none", "none", {"minimumLevel": "landlock"}, "sandbox.minimumLevel: landlock"),
        ("landlock", "auto", {"minimumLevel": "landlock"}, None),
        ("landlock", "landlock", {"minimumLevel": "namespace"}, "sandbox.minimumLevel: namespace"),
        ("namespace", "namespace", {"minimumLevel": "landlock", "required": True}, None),
    ],
)
def test_when_no_command_runs(level: SandboxLevel, wanted: str, said: dict[str, Any], rule: str | None) -> None:
    found = sandbox_denial(bundle(SHELL, sandbox=said), "Shell.Exec", level, wanted, "the kernel is old")
    assert (None if found is None else found.rule) == rule
    assert found is None or (found.decision == "DENIED" and "the kernel is old" in found.reason)


def test_levels_are_in_order() -> None:
    assert [one for one in LEVELS if is_weaker(one, "landlock")] == ["none"]
    assert not any(is_weaker("namespace", one) for one in LEVELS)


ALLOWED = Decision("ALLOWED", "granted", "Shell.Exec", "capabilities[Shell.Exec]")
FILES = [
    {"name": "File.Read", "blockedPaths": ["/home/u/.ssh"]},
    {"name": "File.Write", "allowedPaths": ["/w"], "blockedPaths": ["/home/u/.bashrc"]},
    {"name": "Network.Http", "allowedDomains": [], "blockedDomains": ["bad.example"]},
]


def asked(widening: Widening, *, decision: Decision = ALLOWED, **fields: Any) -> Decision:
    granted = bundle(SHELL, *FILES, **fields)
    facts = ScopeFacts("/w", records=("/state",), steering=("/home/u/.config/agent-host",))
    scope = command_scope(granted, facts, "posix", grant=widening)
    return apply_widening(decision, widening, scope, granted, "posix")


@each_row(
    ("widening", "rule"),
    [
        (Widening(("/data",)), None),
        (Widening(("/home/u",)), None),
        (Widening(domains=("pypi.org", "*.example")), None),
        (Widening(("/home/u/.ssh",)), "capabilities[File.Read].blockedPaths: /home/u/.ssh"),
        (Widening(("/data", "/home/u/.ssh/x")), "capabilities[File.Read].blockedPaths: /home/u/.ssh"),
        (Widening(("/home/u/.BASHRC",)), "capabilities[File.Write].blockedPaths: /home/u/.bashrc"),
        (Widening(("/state/checkpoints",)), "sandboxGrant"),
        (Widening(("/home/u/.config/agent-host/config.toml",)), "sandboxGrant"),
        (Widening(domains=("bad.example",)), "blockedDomains: bad.example"),
        (Widening(off=True), "sandbox.allowOff"),
    ],
)
def test_what_may_be_asked_for(widening: Widening, rule: str | None) -> None:
    found = asked(widening)
    if rule is not None:
        assert (found.decision, found.rule) == ("DENIED", rule)
        return
    assert (found.decision, found.rule, found.rule_id) == ("APPROVAL_REQUIRED", "sandboxGrant", "sandboxGrant")
    assert found.risk_level == "high"
    assert set(widening.lines) <= set(found.risks)


def test_no_sandbox_at_all_where_the_bundle_says_so() -> None:
    found = asked(Widening(off=True), sandbox={"allowOff": True})
    assert (found.decision, found.risks) == ("APPROVAL_REQUIRED", ("runs without a sandbox",))


def test_a_denial_stays_one() -> None:
    denial = Decision("DENIED", "no", "Shell.Exec", "x")
    assert asked(Widening(("/data",)), decision=denial) == denial


@each_row(
    ("argument", "found"),
    [
        (None, None),
        ({"write": ["a", "a"], "reason": "r"}, Widening(("a",), reason="r")),
        ({"domains": ["PyPI.org."], "reason": "r"}, Widening(domains=("pypi.org",), reason="r")),
        ({"off": True, "reason": "r"}, Widening(off=True, reason="r")),
        ([], "must be an object"),
        ({"write": ["a"]}, "reason"),
        ({"write": ["a"], "reason": " "}, "reason"),
        ({"reason": "r"}, "asks for nothing"),
        ({"write": [], "off": False, "reason": "r"}, "asks for nothing"),
        ({"write": "a", "reason": "r"}, "sandboxGrant.write"),
        ({"write": [""], "reason": "r"}, "sandboxGrant.write"),
        ({"write": ["a\0"], "reason": "r"}, "null byte"),
        ({"domains": [1], "reason": "r"}, "sandboxGrant.domains"),
        ({"domains": ["http://x"], "reason": "r"}, "sandboxGrant.domains"),
    ],
)
def test_what_a_call_says(argument: Any, found: Widening | str | None) -> None:
    said = widening_of(argument)
    assert found in said if isinstance(found, str) and isinstance(said, str) else said == found


def test_a_grant_is_for_one_scope() -> None:
    """Of two calls of one command that ask for other things one approval is not enough; why they ask does not count."""

    def form(widening: Widening | None) -> tuple[str, ...]:
        return canonical_form(CommandFacts("make", "/w", widening=widening), "posix")

    assert form(Widening(("/a",), reason="x")) == form(Widening(("/a",), reason="y"))
    assert len({form(None), form(Widening(("/a",))), form(Widening(("/b",))), form(Widening(off=True))}) == 4


# The built-ins by level


def built_in(name: str, *, sandboxed: bool, extends: dict[str, Any] | None = None) -> PolicyBundle:
    now = datetime(2025, 12, 31, 13, tzinfo=UTC)
    if extends is None:
        return instantiate(
            template(name),
            PlaceholderValues("/w", "/home/u", "/state", "posix", tmp=TMP),
            session_id="s1",
            now=now,
            sandboxed=sandboxed,
        )
    places = PlaceholderValues("/w", "/home/u", "/state", "posix", TMP, place_groups())
    built_ins = BuiltIns(BUILT_IN, template_as_written)
    return parse_file_bundle(
        {"extends": name, **extends}, places=places, built_ins=built_ins, now=now, sandboxed=sandboxed
    )


def verdict(granted: PolicyBundle, line: str, widening: Widening | None = None) -> str:
    spellings = paths_in_line(parse(line, "bash"), "/w", "/home/u")
    facts = CommandFacts(line, "/w", home="/home/u", real_paths={one: one for one in spellings}, widening=widening)
    return check_tool(granted, "Shell.Exec", facts, now=NOW, workspace="/w").decision


@each_row(
    ("name", "line", "without", "held"),
    [
        ("ci", "unheard-of", "DENIED", "ALLOWED"),
        ("ci", "pytest", "ALLOWED", "ALLOWED"),
        ("ci", 'x=$(date); echo hi > "$x"', "DENIED", "ALLOWED"),
        ("ci", "cat < ~/.ssh/id_rsa", "DENIED", "DENIED"),
        ("ci", "echo x > /etc/hosts", "DENIED", "DENIED"),
        ("workspace", "unheard-of", "APPROVAL_REQUIRED", "ALLOWED"),
        ("workspace", "rm -rf build", "APPROVAL_REQUIRED", "ALLOWED"),
        ("workspace", "cat < ~/.ssh/id_rsa", "DENIED", "DENIED"),
        ("full", "unheard-of", "ALLOWED", "ALLOWED"),
        ("read-only", "ls", "DENIED", "DENIED"),
    ],
)
def test_the_built_ins_by_level(name: str, line: str, without: str, held: str) -> None:
    assert verdict(built_in(name, sandboxed=False), line) == without
    assert verdict(built_in(name, sandboxed=True), line) == held
    assert verdict(built_in(name, sandboxed=True, extends={}), line) == held


def test_a_tool_asks_where_its_command_does_not() -> None:
    for sandboxed in (False, True):
        entry = built_in("workspace", sandboxed=sandboxed).capability("File.Delete")
        assert entry is not None
        assert entry.requires_approval


@pytest.mark.parametrize(
    ("extends", "line", "expected"),
    [
        ({"capabilities": [{"name": "Shell.Exec", "allowedCommands": ["mine"]}]}, "unheard-of", "ALLOWED"),
        ({"capabilities": [{"name": "Shell.Exec", "requiresApproval": True}]}, "ls", "APPROVAL_REQUIRED"),
        ({"capabilities": [{"name": "Shell.Exec", "blockedCommands": ["curl"]}]}, "curl x", "DENIED"),
    ],
)
def test_a_bundle_that_starts_from_one(extends: dict[str, Any], line: str, expected: str) -> None:
    assert verdict(built_in("ci", sandboxed=True, extends=extends), line) == expected


def test_a_bundle_of_its_own_says_what_it_says_at_each_level() -> None:
    lists = {"name": "Shell.Exec", "allowedCommands": ["rm"]}
    asks = {"name": "File.Delete", "allowedPaths": ["/w"], "requiresApproval": True}
    plain = bundle(lists, asks)
    for granted in (plain, plain.keep_known(plain, sandboxed=True)):
        assert verdict(granted, "unheard-of") == "DENIED"
        assert verdict(granted, "rm x") == "APPROVAL_REQUIRED"


def test_a_place_that_is_asked_for_is_no_reason_against_the_line() -> None:
    granted = built_in("ci", sandboxed=True)
    line = "echo x > /data/a"
    assert verdict(granted, line) == "DENIED"
    assert verdict(granted, line, Widening(("/data",))) == "ALLOWED"
    assert verdict(granted, line, Widening(("/other",))) == "DENIED"
    assert verdict(granted, "echo x > ~/.ssh/a", Widening(("/home/u/.ssh",))) == "DENIED"


def test_validate_says_what_ends_commits() -> None:
    literal = {"capabilities": [{"name": "File.Write", "blockedPaths": [".git"]}]}
    (line,) = ends_commits(built_in("ci", sandboxed=False, extends=literal))
    assert line.startswith("/w/.git is blocked by its name")
    assert ends_commits(built_in("ci", sandboxed=False, extends={})) == []
    assert ends_commits(bundle({"name": "File.Write", "blockedPaths": ["/x/.git"]})) != []


PLACES = st.lists(st.sampled_from(["/", "/a", "/a/b", "/a/b/c", "/a/d", "/e"]), max_size=3).map(tuple)
HOSTS = st.none() | st.lists(st.sampled_from(["x.org", "*.x.org", "y.org", "y.org:8080"]), max_size=3).map(tuple)
SCOPES = st.builds(
    CommandScope,
    reads=st.none() | PLACES,
    writes=PLACES,
    hidden=PLACES,
    guarded=PLACES,
    domains=HOSTS,
    blocked_domains=st.just(()),
)


@given(SCOPES, SCOPES, st.sampled_from(["/", "/a/b", "/a/b/c/f", "/a/b/f", "/a/f", "/a/d/f", "/e", "/g"]))
def test_a_common_scope_gives_what_both_give(one: CommandScope, other: CommandScope, path: str) -> None:
    common = common_scope(one, other, "posix")
    for may in (may_read, may_write):
        assert may(common, path, "posix") == (may(one, path, "posix") and may(other, path, "posix"))


@given(HOSTS, HOSTS, st.sampled_from([("x.org", 443), ("a.x.org", 443), ("y.org", 443), ("y.org", 8080)]))
def test_common_domains_are_those_of_both(
    one: tuple[str, ...] | None, other: tuple[str, ...] | None, target: tuple[str, int]
) -> None:
    def reaches(domains: tuple[str, ...] | None) -> bool:
        return domains is None or matching_rule(target[0], domain_rules(domains), target[1]) is not None

    assert reaches(common_domains(one, other)) == (reaches(one) and reaches(other))
