from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy import ALL_CAPABILITIES
from policy.bundle import CommandPolicy, Narrowing, narrow, scope_of_call
from policy.decide import check_tool
from policy.facts import ActionFacts, CommandFacts, NamedToolFacts, PathFacts
from policy.rules import check_llm
from tests.support.rows import each_row

from .helpers import NOW, bundle, path, url

if TYPE_CHECKING:
    from policy import Decision
    from policy.bundle import PolicyBundle

SCOPED = {"allowedPaths": ["/w", "/data"], "blockedPaths": ["/w/secret"], "maxFileSizeBytes": 10}
FILES = bundle(*({"name": f"File.{what}", **SCOPED} for what in ("Read", "Write", "Delete")))


def verdict(capability: str, facts: ActionFacts, held: PolicyBundle = FILES, **options: Any) -> Decision:
    return check_tool(held, capability, facts, now=options.pop("now", NOW), **options)


@each_row("capability", ["File.Read", "File.Write", "File.Delete"])
@each_row(
    ("absolute", "real", "expected", "rule"),
    [
        ("/w/a", "/w/a", "ALLOWED", "allowedPaths: /w"),
        ("/w/../w/a", "/w/a", "ALLOWED", "allowedPaths: /w"),
        ("/wx/a", "/wx/a", "DENIED", "allowedPaths"),
        ("/w/secret", "/w/secret", "DENIED", "blockedPaths: /w/secret"),
        ("/w/secret/a", "/w/secret/a", "DENIED", "blockedPaths: /w/secret"),
        ("/w/secrets", "/w/secrets", "ALLOWED", "allowedPaths: /w"),
        ("/w/link", "/w/secret/a", "DENIED", "blockedPaths: /w/secret"),
        ("/w/secret/link", "/data/a", "DENIED", "blockedPaths: /w/secret"),
        ("/w/link", "/etc/passwd", "DENIED", "allowedPaths"),
        ("/elsewhere/link", "/data/a", "ALLOWED", "allowedPaths: /data"),
    ],
)
def test_paths_are_judged_by_both_spellings(
    capability: str, absolute: str, real: str, expected: str, rule: str
) -> None:
    answer = verdict(capability, path(absolute, real))
    assert (answer.decision, answer.rule) == (expected, f"capabilities[{capability}].{rule}")


@pytest.mark.parametrize(("absolute", "real"), [("a", "/w/a"), ("/w/a", "a"), ("", "/w/a"), ("/w/a\0b", "/w/a\0b")])
def test_paths_that_name_no_single_place_are_denied(absolute: str, real: str) -> None:
    assert verdict("File.Read", path(absolute, real), bundle({"name": "File.Read"})).decision == "DENIED"


def test_windows_paths_fold_case_and_posix_paths_do_not() -> None:
    held = bundle({"name": "File.Read", "allowedPaths": ["C:\\Work"], "blockedPaths": ["C:\\Work\\Secret"]})
    assert verdict("File.Read", path("c:/WORK/a"), held, os="windows").allowed
    assert not verdict("File.Read", path("c:/WORK/SECRET/a"), held, os="windows").allowed
    assert not verdict("File.Read", path("C:\\Work\\a::$DATA"), held, os="windows").allowed
    assert not verdict("File.Read", path("/W/a")).allowed


@pytest.mark.parametrize("share", ["\\\\localhost\\C$\\secret\\a", "\\\\srv\\docs\\a", "//127.0.0.1/c$/secret/a"])
def test_a_share_may_be_a_blocked_place_under_another_name(share: str) -> None:
    blocking = {"name": "File.Read", "blockedPaths": ["C:\\secret"]}
    answer = verdict("File.Read", path(share), bundle(blocking), os="windows")
    assert (answer.decision, answer.rule) == ("DENIED", "capabilities[File.Read].blockedPaths")
    assert verdict("File.Read", path("C:\\link", share), bundle(blocking), os="windows").decision == "DENIED"
    named = bundle({**blocking, "allowedPaths": ["\\\\localhost\\C$", "\\\\srv\\docs", "//127.0.0.1/c$"]})
    assert verdict("File.Read", path(share), named, os="windows").allowed
    assert verdict("File.Read", path(share), bundle({"name": "File.Read"}), os="windows").allowed


@each_row("capability", ["File.Read", "File.Write", "File.Delete"])
@each_row(
    ("absolute", "expected", "rule"),
    [
        ("/w/SECRET/a", "DENIED", "blockedPaths: /w/secret"),
        ("/w/Secret", "DENIED", "blockedPaths: /w/secret"),
        ("/w/\u017fecret/a", "DENIED", "blockedPaths: /w/secret"),
        ("/W/a", "DENIED", "allowedPaths"),
        ("/w/SECRETS", "ALLOWED", "allowedPaths: /w"),
    ],
)
def test_a_block_entry_folds_case_on_every_system_and_an_allow_entry_does_not(
    capability: str, absolute: str, expected: str, rule: str
) -> None:
    for facts in (path(absolute), path("/w/a", absolute)):
        answer = verdict(capability, facts)
        assert (answer.decision, answer.rule) == (expected, f"capabilities[{capability}].{rule}")


@each_row("capability", ["File.Read", "File.Write", "File.Delete"])
@each_row(
    ("allowed", "facts", "expected"),
    [
        (None, path("/proc/self/environ", "/proc/7/environ"), "DENIED"),
        (None, path("/w/link", "/proc/7/environ"), "DENIED"),
        (None, path("/proc/self/cwd/a", "/w/a"), "DENIED"),
        (None, path("/dev/fd/3", "/w/a"), "DENIED"),
        (None, path("/w/proc/a"), "ALLOWED"),
        (["/"], path("/proc/7/environ"), "DENIED"),
        (["/", "/proc/cpuinfo"], path("/proc/7/environ"), "DENIED"),
        (["/", "/proc/cpuinfo"], path("/proc/cpuinfo"), "ALLOWED"),
        (["/proc"], path("/proc/self/environ", "/proc/7/environ"), "ALLOWED"),
        (["/w", "/proc"], path("/w/link", "/proc/7/environ"), "ALLOWED"),
    ],
)
def test_proc_is_only_for_who_is_allowed_a_place_in_it_by_name(
    capability: str, allowed: list[str] | None, facts: PathFacts, expected: str
) -> None:
    held = bundle({"name": capability} | ({} if allowed is None else {"allowedPaths": allowed}))
    answer = verdict(capability, facts, held)
    assert answer.decision == expected
    assert expected == "ALLOWED" or answer.rule.startswith("builtin.processPlaces: /")


def test_lists_absent_and_empty() -> None:
    assert verdict("File.Read", path("/any"), bundle({"name": "File.Read"})).allowed
    assert not verdict("File.Read", path("/any"), bundle({"name": "File.Read", "allowedPaths": []})).allowed
    assert verdict("File.Read", path("/any"), bundle({"name": "File.Read", "blockedPaths": []})).allowed


def test_a_block_entry_that_cannot_be_matched_refuses_everything() -> None:
    assert not verdict("File.Read", path("/any"), bundle({"name": "File.Read", "blockedPaths": ["secret"]})).allowed


@pytest.mark.parametrize("kind", ["directory", "other"])
def test_only_regular_files_are_changed(kind: Any) -> None:
    assert verdict("File.Read", path("/w/a", kind=kind)).allowed
    assert not verdict("File.Write", path("/w/a", kind=kind)).allowed
    assert not verdict("File.Delete", path("/w/a", kind=kind)).allowed


def test_size_limits_look_at_what_is_read_and_at_what_will_be_written() -> None:
    assert verdict("File.Read", path("/w/a", size_bytes=10, new_size_bytes=99)).allowed
    answer = verdict("File.Read", path("/w/a", size_bytes=11))
    assert (answer.decision, answer.rule) == ("DENIED", "capabilities[File.Read].maxFileSizeBytes: 10")
    assert verdict("File.Write", path("/w/a", size_bytes=99, new_size_bytes=10)).allowed
    assert not verdict("File.Write", path("/w/a", new_size_bytes=11)).allowed
    assert verdict("File.Delete", path("/w/a", size_bytes=99)).allowed


def test_what_is_not_granted_is_denied() -> None:
    for name in ("Shell.Exec", "shell.exec", "Nothing", ""):
        answer = verdict(name, CommandFacts("ls", cwd="/"))
        assert (answer.decision, answer.rule, answer.expired) == ("DENIED", "capabilities", False)


def test_expiry_comes_first_and_is_marked() -> None:
    for moment, expired in ((FILES.expires_at - timedelta(microseconds=1), False), (FILES.expires_at, True)):
        for answer in (
            verdict("Nothing", path("/w/a"), now=moment),
            check_llm(FILES, model="m", now=moment),
        ):
            assert answer.expired is expired
            assert answer.decision == "DENIED"
        assert verdict("File.Read", path("/w/a"), now=moment).expired is expired


@each_row("capability", ALL_CAPABILITIES)
def test_facts_that_do_not_fit_are_denied(capability: str) -> None:
    held = bundle({"name": capability})
    fitting = 0
    for facts in (path("/w/a"), CommandFacts("ls", cwd="/w"), url("https://a.com"), NamedToolFacts("t")):
        fitting += verdict(capability, facts, held).allowed
    assert fitting == (0 if capability == "LLM.Call" else 1)


@pytest.mark.parametrize("name", ["CommandOutput", "StopCommand"])
def test_what_follows_a_command_needs_the_grant_and_no_other_decision(name: str) -> None:
    """Its line was judged, and approved, when it started; an expired bundle, and one without commands, allow none."""
    facts = NamedToolFacts(name)
    shell = {"name": "Shell.Exec", "allowedCommands": ["ls"], "requiresApproval": True, "approvalRuleId": "r"}
    held = bundle(shell, approvalRules=[{"approvalRuleId": "r", "title": "t", "description": "d"}])
    answer = verdict("Shell.Exec", facts, held)
    assert (answer.decision, answer.rule) == ("ALLOWED", "capabilities[Shell.Exec]")
    assert verdict("Shell.Exec", facts, held, now=held.expires_at).expired
    assert verdict("Shell.Exec", facts, bundle({"name": "File.Read"})).rule == "capabilities"
    for other in ("RunCommand", "commandoutput", "UploadArtifact", ""):
        assert verdict("Shell.Exec", NamedToolFacts(other), held).decision == "DENIED"
    for capability in ("File.Read", "Network.Http"):
        assert verdict(capability, facts, bundle({"name": capability})).decision == "DENIED"


@pytest.mark.parametrize("capability", ["BackendTool.Invoke", "Mcp.Invoke", "Tool.Invoke", "Workspace.Upload"])
def test_named_tools(capability: str) -> None:
    held = bundle({"name": capability, "allowedToolNames": ["a"]})
    assert verdict(capability, NamedToolFacts("a"), held).rule == f"capabilities[{capability}].allowedToolNames: a"
    assert not verdict(capability, NamedToolFacts("A"), held).allowed
    assert not verdict(capability, NamedToolFacts("a"), bundle({"name": capability, "allowedToolNames": []})).allowed
    assert verdict(capability, NamedToolFacts("x"), bundle({"name": capability})).allowed


UPLOAD = {"name": "Workspace.Upload"}
READ = {"name": "File.Read"}


@each_row(
    ("upload", "read", "place", "decision", "decided"),
    [
        ({}, {}, "/w/a", "ALLOWED", "capabilities[Workspace.Upload]"),
        ({}, None, "/w/a", "DENIED", "capabilities"),
        ({}, {"allowedPaths": ["/w"]}, "/x", "DENIED", "capabilities[File.Read].allowedPaths"),
        ({}, {"blockedPaths": ["/w/.env"]}, "/w/.env", "DENIED", "capabilities[File.Read].blockedPaths: /w/.env"),
        ({}, {"maxFileSizeBytes": 9}, "/w/a", "DENIED", "capabilities[File.Read].maxFileSizeBytes: 9"),
        ({"maxFileSizeBytes": 9}, {}, "/w/a", "DENIED", "capabilities[Workspace.Upload].maxFileSizeBytes: 9"),
        ({"allowedPaths": ["/w/out"]}, {}, "/w/a", "DENIED", "capabilities[Workspace.Upload].allowedPaths"),
        ({"allowedPaths": ["/w"]}, {}, "/w/a", "ALLOWED", "capabilities[Workspace.Upload].allowedPaths: /w"),
        ({"blockedPaths": ["/w/a"]}, {}, "/w/a", "DENIED", "capabilities[Workspace.Upload].blockedPaths: /w/a"),
        ({"allowedToolNames": []}, {}, "/w/a", "DENIED", "capabilities[Workspace.Upload].allowedToolNames"),
        ({}, {}, "/proc/1/environ", "DENIED", "builtin.processPlaces: /proc"),
        ({}, {"requiresApproval": True}, "/w/a", "APPROVAL_REQUIRED", "capabilities[File.Read].requiresApproval: true"),
        (
            {"requiresApproval": True}, {}, "/w/a",
            "APPROVAL_REQUIRED", "capabilities[Workspace.Upload].requiresApproval: true",
        ),
        ({"requiresApproval": True}, {"allowedPaths": []}, "/w/a", "DENIED", "capabilities[File.Read].allowedPaths"),
    ],
)  # fmt: skip
def test_what_may_not_be_read_may_not_be_uploaded(
    upload: dict[str, Any], read: dict[str, Any] | None, place: str, decision: str, decided: str
) -> None:
    held = bundle(UPLOAD | upload, *([] if read is None else [READ | read]))
    answer = verdict("Workspace.Upload", path(place, kind="file", size_bytes=10, tool_name="UploadArtifact"), held)
    assert (answer.decision, answer.rule) == (decision, decided)


def test_text_needs_no_right_to_read() -> None:
    assert verdict("Workspace.Upload", NamedToolFacts("UploadArtifact"), bundle(UPLOAD)).allowed


def test_the_scope_of_an_upload_is_what_both_allow() -> None:
    held = bundle(
        {**UPLOAD, "allowedPaths": ["/w/out", "/x", "/both"], "blockedPaths": ["/w/out/a"], "maxFileSizeBytes": 5},
        {**READ, "allowedPaths": ["/w", "/x/deep", "/both"], "blockedPaths": ["/w/b"], "maxFileSizeBytes": 3},
    )
    scope = scope_of_call(held, "Workspace.Upload", "posix")
    assert scope is not None
    assert set(scope.allowed_paths or ()) == {"/w/out", "/x/deep", "/both"}
    assert scope.blocked_paths == ("/w/out/a", "/w/b")
    assert scope.max_file_size_bytes == 3
    assert scope_of_call(held, "File.Read", "posix") is held.capability("File.Read")
    assert scope_of_call(held, "File.Write", "posix") is None
    apart = bundle({**UPLOAD, "allowedPaths": ["/a"]}, {**READ, "allowedPaths": ["/b"]})
    nothing = scope_of_call(apart, "Workspace.Upload", "posix")
    assert nothing is not None
    assert nothing.allowed_paths == ()
    one_sided = scope_of_call(bundle(UPLOAD, {**READ, "allowedPaths": ["C:\\w"]}), "Workspace.Upload", "windows")
    assert one_sided is not None
    assert one_sided.allowed_paths == ("C:\\w",)


def test_approval_comes_after_scope_and_carries_rule_and_risk() -> None:
    held = bundle({"name": "File.Write", "requiresApproval": True, "approvalRuleId": "r", "allowedPaths": ["/w"]})
    assert verdict("File.Write", path("/x"), held).decision == "DENIED"
    answer = verdict("File.Write", path("/w/a"), held)
    assert (answer.decision, answer.rule_id, answer.risk_level) == ("APPROVAL_REQUIRED", "r", "medium")
    assert answer.rule == "capabilities[File.Write].requiresApproval: true"
    assert verdict("File.Write", path("/w/a"), bundle({"name": "File.Write", "requiresApproval": True})).rule_id is None


@each_row(
    ("capability", "facts", "fields", "level"),
    [
        ("File.Read", path("/x"), {}, "low"),
        ("File.Write", path("/w/a"), {}, "medium"),
        ("File.Write", path("/x"), {}, "high"),
        ("File.Delete", path("/w/a"), {}, "high"),
        ("Shell.Exec", CommandFacts("ls -l | wc", cwd="/w"), {}, "medium"),
        ("Shell.Exec", CommandFacts("ls; strange", cwd="/w"), {}, "high"),
        ("Shell.Exec", CommandFacts("ls $(pwd) $X | eval x", cwd="/w"), {}, "high"),
        ("Shell.Exec", CommandFacts("strange", cwd="/w"), {"allowedCommands": ["strange"]}, "medium"),
        ("Network.Http", url("https://pypi.org/simple"), {}, "medium"),
        ("Network.Http", url("https://strange.org"), {}, "high"),
        ("Network.Http", url("https://strange.org"), {"allowedDomains": ["strange.org"]}, "medium"),
        ("Workspace.Upload", NamedToolFacts("t"), {}, "low"),
        ("Mcp.Invoke", NamedToolFacts("t"), {}, "medium"),
    ],
)
def test_risk(capability: str, facts: ActionFacts, fields: dict[str, Any], level: str) -> None:
    held = bundle({"name": capability, "requiresApproval": True, **fields})
    answer = verdict(capability, facts, held, workspace="/w")
    assert (answer.decision, answer.risk_level) == ("APPROVAL_REQUIRED", level)
    assert bool(answer.risks) == (level == "high" and capability != "File.Delete")


def test_a_redirection_to_a_file_that_needs_approval_needs_it_for_the_line() -> None:
    held = bundle(
        {"name": "Shell.Exec"},
        {"name": "File.Write", "requiresApproval": True, "approvalRuleId": "w", "blockedPaths": ["/etc"]},
    )
    facts = CommandFacts("ls > a", cwd="/w", real_paths={"/w/a": "/w/a"})
    answer = verdict("Shell.Exec", facts, held)
    assert (answer.decision, answer.rule_id, answer.capability) == ("APPROVAL_REQUIRED", "w", "Shell.Exec")
    assert answer.rule == "capabilities[File.Write].requiresApproval: true"
    linked = CommandFacts("ls > a", cwd="/w", real_paths={"/w/a": "/etc/a"})
    assert verdict("Shell.Exec", linked, held).rule == "capabilities[File.Write].blockedPaths: /etc"
    assert verdict("Shell.Exec", CommandFacts("ls > a", cwd="/w"), held).decision == "DENIED"


def test_llm_calls() -> None:
    held = bundle({"name": "LLM.Call"})
    assert check_llm(held, model="m", now=NOW).reason == "granted"
    assert check_llm(held, model="m", now=NOW).rule == "llmPolicy.allowedModels: m"
    assert check_llm(held, model="m", now=held.expires_at).expired
    assert check_llm(held, model="other", now=NOW).rule == "llmPolicy.allowedModels"
    assert check_llm(bundle(), model="m", now=NOW).rule == "capabilities"
    asks = bundle({"name": "LLM.Call", "requiresApproval": True})
    answer = check_llm(asks, model="m", now=NOW)
    assert (answer.decision, answer.risk_level, answer.risks) == ("APPROVAL_REQUIRED", "low", ())


# Narrowing

PLACES = st.sampled_from(["/w", "/w/a", "/w/a/b", "/w/b", "/etc", "/"])
PROGRAMS = st.sampled_from(["ls", "rm", "cat", "make"])
HOSTS = st.sampled_from(["a.com", "*.a.com", "b.a.com"])
LISTS = {"Paths": PLACES, "Commands": PROGRAMS, "Domains": HOSTS}
LIMITS = st.none() | st.integers(0, 20)
ENTRIES = [{"command": "make", "startsPrograms": True}, {"command": "ls", "maxArguments": 0}]
POLICIES = [CommandPolicy("ls", max_arguments=0), CommandPolicy("make"), CommandPolicy("rm", subcommands=("y",))]


@st.composite
def bundles(draw: st.DrawFn) -> PolicyBundle:
    entries = []
    for name in draw(st.sets(st.sampled_from(ALL_CAPABILITIES))):
        entry: dict[str, Any] = {"name": name, "requiresApproval": draw(st.booleans())}
        for kind, items in LISTS.items():
            for which in ("allowed", "blocked"):
                if (drawn := draw(st.none() | st.lists(items, max_size=2))) is not None:
                    entry[which + kind] = drawn
        if draw(st.booleans()):
            entry["commandPolicies"] = draw(st.lists(st.sampled_from(ENTRIES), max_size=2))
        if (limit := draw(LIMITS)) is not None:
            entry["maxFileSizeBytes"] = limit
        entries.append(entry)
    return bundle(*entries)


NARROWINGS = st.builds(
    Narrowing,
    blocked_paths=st.lists(PLACES, max_size=2).map(tuple),
    blocked_commands=st.lists(PROGRAMS, max_size=2).map(tuple),
    blocked_domains=st.lists(HOSTS, max_size=2).map(tuple),
    disabled_capabilities=st.lists(st.sampled_from(ALL_CAPABILITIES), max_size=2).map(tuple),
    max_file_size_bytes=LIMITS,
    max_output_bytes=LIMITS,
    max_input_tokens=LIMITS,
    command_policies=st.lists(st.sampled_from(POLICIES), max_size=2).map(tuple),
)
COMMANDS = st.sampled_from(["ls", "rm x", "ls > /w/a/x", "cat < /etc/x", "ls $(rm x)", "eval $X", "ls; cat", "make"])
FACTS = st.one_of(
    st.builds(path, PLACES, PLACES, size_bytes=st.integers(0, 20), new_size_bytes=st.integers(0, 20)),
    st.builds(CommandFacts, COMMANDS, cwd=st.just("/w"), real_paths=st.just({"/w/a/x": "/w/a/x", "/etc/x": "/etc/x"})),
    st.builds(url, st.sampled_from(["http://a.com", "http://b.a.com", "http://c.com"])),
    st.just(NamedToolFacts("t")),
)
ORDER = {"DENIED": 0, "APPROVAL_REQUIRED": 1, "ALLOWED": 2}


@pytest.mark.slow
@given(bundles(), NARROWINGS, st.sampled_from(ALL_CAPABILITIES), FACTS)
def test_narrowing_never_widens(held: PolicyBundle, narrowing: Narrowing, capability: str, facts: ActionFacts) -> None:
    before = verdict(capability, facts, held)
    narrowed = narrow(held, narrowing)
    assert ORDER[verdict(capability, facts, narrowed).decision] <= ORDER[before.decision]
    assert narrow(narrowed, narrowing) == narrowed


def test_narrowing_takes_the_smaller_limits_and_all_blocks() -> None:
    held = bundle(
        {"name": "File.Read", "blockedPaths": ["/a"], "maxFileSizeBytes": 5},
        {"name": "Shell.Exec", "maxOutputBytes": 100},
        {"name": "Network.Http"},
    )
    less = narrow(
        held,
        Narrowing(
            blocked_paths=("/b",), blocked_commands=("rm",), blocked_domains=("a.com",), max_file_size_bytes=9,
            max_output_bytes=50, max_input_tokens=7, max_output_tokens=10**9, max_session_tokens=8,
            disabled_capabilities=("LLM.Call",),
        ),
    )  # fmt: skip
    read, shell, network = (less.capability(name) for name in ("File.Read", "Shell.Exec", "Network.Http"))
    assert read
    assert shell
    assert network
    assert (read.blocked_paths, read.max_file_size_bytes, read.blocked_commands) == (("/a", "/b"), 5, None)
    assert (shell.blocked_commands, shell.max_output_bytes, shell.blocked_paths) == (("rm",), 50, None)
    assert network.blocked_domains == ("a.com",)
    policy = less.llm_policy
    assert (policy.max_input_tokens, policy.max_output_tokens, policy.max_session_tokens) == (7, 16_384, 8)
    assert narrow(bundle({"name": "LLM.Call"}), Narrowing(disabled_capabilities=("LLM.Call",))).capabilities == ()


def test_rules_for_arguments_append_and_replace_none() -> None:
    mine, more = CommandPolicy("ls", max_arguments=5), CommandPolicy("ls", max_arguments=1)
    held = bundle(
        {"name": "Shell.Exec", "commandPolicies": [{"command": "ls", "maxArguments": 5}]}, {"name": "LLM.Call"}
    )
    narrowed = narrow(held, Narrowing(command_policies=(more, more)))
    assert [entry.command_policies for entry in narrowed.capabilities] == [(mine, more), None]
    assert narrow(narrowed, Narrowing(command_policies=(more,))) == narrowed
    assert narrow(held, Narrowing()) == held


def test_a_path_decision_does_not_follow_the_number_of_entries() -> None:
    held = bundle({"name": "File.Read", "allowedPaths": [f"/p{n}" for n in range(1000)], "blockedPaths": ["/p7/x"]})
    assert verdict("File.Read", path("/p999/a"), held).allowed
    assert not verdict("File.Read", path("/p7/x/a"), held).allowed
    assert not verdict("File.Read", path("/p1000/a"), held).allowed


@each_row(
    "changed",
    [
        "/w/.git/hooks/pre-commit",
        "/w/sub/.git/config",
        "/w/.git/modules/x/hooks/post-checkout",
        "/w/.git/worktrees/y/config.worktree",
        "/w/.git/worktrees/y/commondir",
        "/w/.git/worktrees/y/gitdir",
        "/w/.git/modules/x/commondir",
        "/w/.git/CommonDir",
        "/w/sub/.git",
        "/w/.GIT/Config",
        "/w/.g\u200cit/hooks/a",
    ],
)
@each_row("capability", ["File.Write", "File.Delete"])
def test_what_git_runs_is_not_changed_in_passing(changed: str, capability: str) -> None:
    for grant in ({"allowedPaths": ["/w"]}, {}):
        decision = verdict(capability, path(changed), bundle({"name": capability, **grant}))
        assert (decision.decision, decision.rule.partition(":")[0]) == ("DENIED", "builtin.repositoryPlaces")


@pytest.mark.parametrize("capability", ["File.Read", "File.Write", "File.Delete"])
def test_the_temporary_directories_of_other_sessions(capability: str) -> None:
    held = bundle({"name": capability, "allowedPaths": ["/w", "/tmp", "/tmp/agent-host-s1-0a1b2c3d"]})
    assert verdict(capability, path("/tmp/agent-host-s1-0a1b2c3d/x"), held).allowed
    assert verdict(capability, path("/tmp/x"), held).allowed
    for real in ("/tmp/agent-host-s2-0a1b2c3d/x", "/tmp/agent-host-s2-0a1b2c3d"):
        decision = verdict(capability, path("/w/link", real), held)
        assert decision.rule == "builtin.sessionPlaces: /tmp/agent-host-s2-0a1b2c3d"
        assert decision.reason == (
            "/tmp/agent-host-s2-0a1b2c3d is the temporary directory of another session, and no allowed path names it"
        )
    led = held.set_real_places({"allowed": {"/w": "/tmp/agent-host-s2-0a1b2c3d/w"}})
    assert verdict(capability, path("/w/a", "/tmp/agent-host-s2-0a1b2c3d/w/a"), led).allowed
    assert not verdict(capability, path("/w/a", "/tmp/agent-host-s2-0a1b2c3d/a"), led).allowed
    anywhere = bundle({"name": capability})
    assert verdict(capability, path("/tmp/agent-host-s2-0a1b2c3d/x"), anywhere).allowed


def test_it_is_changed_where_an_allowed_path_names_it() -> None:
    held = bundle({"name": "File.Write", "allowedPaths": ["/w", "/w/.git"]})
    assert verdict("File.Write", path("/w/.git/config"), held).allowed
    assert not verdict("File.Write", path("/w/sub/.git/config"), held).allowed


@pytest.mark.parametrize("changed", ["/w/.gitignore", "/w/.github/hooks/a", "/w/.git/info/exclude", "/w/git/config"])
def test_other_files_of_a_repository_are_files(changed: str) -> None:
    assert verdict("File.Write", path(changed)).allowed
    assert verdict("File.Read", path("/w/.git/config")).allowed


def test_an_allowed_call_says_so_and_has_no_risk_to_tell() -> None:
    answer = verdict("File.Read", path("/w/a"))
    assert (answer.reason, answer.risk_level, answer.risks, answer.rule_id) == ("granted", None, (), None)


def test_the_risk_of_what_is_asked_is_told_for_the_system_it_is_on() -> None:
    held = bundle({"name": "File.Write", "requiresApproval": True})
    facts = path("C:\\W\\a")
    inside = verdict("File.Write", facts, held, os="windows", workspace="c:\\w")
    assert (inside.decision, inside.risk_level, inside.risks) == ("APPROVAL_REQUIRED", "medium", ())
    outside = verdict("File.Write", facts, held, os="windows", workspace="c:\\v")
    assert (outside.risk_level, len(outside.risks)) == ("high", 1)


def test_an_approval_that_reading_needs_has_the_risks_of_both() -> None:
    held = bundle({"name": "Workspace.Upload"}, {"name": "File.Read", "requiresApproval": True})
    answer = verdict("Workspace.Upload", path("/w/a"), held)
    assert (answer.decision, answer.capability, answer.risk_level) == ("APPROVAL_REQUIRED", "File.Read", "low")
    shell = bundle({"name": "Shell.Exec"}, {"name": "File.Write", "requiresApproval": True})
    facts = CommandFacts("evil > a", cwd="/w", real_paths={"/w/a": "/v/a"})
    asked = verdict("Shell.Exec", facts, shell, workspace="/w")
    assert asked.risks == ("unknown command: evil", "writes outside the project directory: /w/a")
    assert asked.risk_level == "high"


def test_an_upload_is_compared_as_its_system_does() -> None:
    held = bundle({"name": "Workspace.Upload"}, {"name": "File.Read", "allowedPaths": ["C:\\w"]})
    assert verdict("Workspace.Upload", path("c:\\W\\a"), held, os="windows").allowed
    assert not verdict("Workspace.Upload", path("c:\\v\\a"), held, os="windows").allowed


def test_narrow_permits_and_wide_refuses_whichever_of_them_is_asked_first() -> None:
    fields = {"name": "File.Read", "allowedPaths": ["/w"], "blockedPaths": ["/w/b"]}
    for order in (("/W/a", "/w/B/a", "/w/a"), ("/w/a", "/w/B/a", "/W/a"), ("/w/B/a", "/W/a", "/w/a")):
        held = bundle(fields)
        found = {one: verdict("File.Read", path(one), held).decision for one in order}
        assert found == {"/W/a": "DENIED", "/w/B/a": "DENIED", "/w/a": "ALLOWED"}


def test_a_bundle_answers_alike_for_both_systems() -> None:
    held = bundle({"name": "File.Read", "allowedPaths": ["/w", "C:\\w"]})
    assert verdict("File.Read", path("/w/a"), held).allowed
    assert verdict("File.Read", path("C:\\w\\a"), held, os="windows").allowed
    assert not verdict("File.Read", path("/w/a"), held, os="windows").allowed
    assert verdict("File.Read", path("/w/a"), held).allowed


def test_domains_keep_their_tables_apart() -> None:
    held = bundle({"name": "Network.Http", "allowedDomains": ["*.com"], "blockedDomains": ["b.com"]})
    for _ in range(2):
        assert verdict("Network.Http", url("https://a.com"), held).allowed
        assert not verdict("Network.Http", url("https://b.com"), held).allowed
        assert not verdict("Network.Http", url("https://a.org"), held).allowed


def test_a_tool_of_files_may_be_listed_by_name() -> None:
    held = bundle({"name": "File.Read", "allowedToolNames": ["Read"]})
    assert verdict("File.Read", path("/w/a", tool_name="Read"), held).allowed
    assert not verdict("File.Read", path("/w/a", tool_name="Other"), held).allowed
    assert verdict("File.Read", path("/w/a"), held).allowed


def test_each_limit_holds_for_its_kind_of_file_access() -> None:
    limit = {"maxFileSizeBytes": 10}
    cases: tuple[tuple[str, dict[str, Any], bool], ...] = (
        ("File.Read", {"size_bytes": 11}, False),
        ("File.Read", {"new_size_bytes": 11}, True),
        ("File.Write", {"new_size_bytes": 11}, False),
        ("File.Write", {"size_bytes": 11}, True),
        ("File.Delete", {"size_bytes": 11}, True),
        ("Workspace.Upload", {"size_bytes": 11}, False),
        ("Workspace.Upload", {"size_bytes": 10}, True),
        ("File.Read", {}, True),
    )
    for name, fields, allowed in cases:
        held = bundle({"name": name, **limit}, *([{"name": "File.Read"}] if name == "Workspace.Upload" else []))
        assert verdict(name, path("/w/a", **fields), held).allowed is allowed, (name, fields)


def test_what_is_written_or_deleted_is_a_file_or_missing() -> None:
    for name in ("File.Write", "File.Delete", "File.Read"):
        held = bundle({"name": name})
        for kind in ("file", "missing", "directory", "other"):
            allowed = name == "File.Read" or kind in {"file", "missing"}
            answer = verdict(name, path("/w/a", kind=kind), held)
            assert answer.allowed is allowed
            assert allowed or answer.rule == f"capabilities[{name}]"


def test_the_scope_of_two_lists_is_the_inner_of_nested_places() -> None:
    def scope(upload: dict[str, Any], read: dict[str, Any]) -> Any:
        held = bundle({"name": "Workspace.Upload", **upload}, {"name": "File.Read", **read})
        return scope_of_call(held, "Workspace.Upload", "posix")

    assert scope({"allowedPaths": ["/a", "/b/c"]}, {"allowedPaths": ["/a/x", "/b"]}).allowed_paths == ("/b/c", "/a/x")
    assert scope({}, {"allowedPaths": ["/a"]}).allowed_paths == ("/a",)
    assert scope({"allowedPaths": ["/a"]}, {}).allowed_paths == ("/a",)
    assert scope({}, {}).allowed_paths is None
    assert scope({"blockedPaths": ["/a"]}, {"blockedPaths": ["/b", "/a"]}).blocked_paths == ("/a", "/b")
    assert scope({}, {}).blocked_paths is None
    assert scope({"maxFileSizeBytes": 5}, {"maxFileSizeBytes": 3}).max_file_size_bytes == 3
    assert scope({}, {"maxFileSizeBytes": 3}).max_file_size_bytes == 3
    assert scope({"maxFileSizeBytes": 5}, {}).max_file_size_bytes == 5
    alone = bundle({"name": "Workspace.Upload"}, {"name": "File.Write", "allowedPaths": ["/a"]})
    assert scope_of_call(alone, "Workspace.Upload", "posix") == alone.capability("Workspace.Upload")
    assert scope_of_call(alone, "File.Write", "posix") == alone.capability("File.Write")
    assert scope_of_call(alone, "File.Read", "posix") is None


def test_narrowing_takes_each_kind_from_where_it_belongs() -> None:
    every = bundle(*({"name": name} for name in ALL_CAPABILITIES))
    less = narrow(
        every,
        Narrowing(
            blocked_paths=("/b",), blocked_commands=("rm",), blocked_domains=("a.com",), max_file_size_bytes=9,
            max_output_bytes=50, max_output_tokens=7,
        ),
    )  # fmt: skip
    files = {"File.Read", "File.Write", "File.Delete"}
    for entry in less.capabilities:
        assert entry.blocked_paths == (("/b",) if entry.name in files else None)
        assert entry.max_file_size_bytes == (9 if entry.name in files else None)
        assert entry.blocked_commands == (("rm",) if entry.name == "Shell.Exec" else None)
        assert entry.blocked_domains == (("a.com",) if entry.name == "Network.Http" else None)
        assert entry.max_output_bytes == 50
    policy = less.llm_policy
    assert (policy.max_input_tokens, policy.max_output_tokens, policy.max_session_tokens) == (200_000, 7, 1_000_000)


def test_an_entry_with_capitals_is_folded_to_refuse_and_not_to_permit() -> None:
    held = bundle({"name": "File.Read", "allowedPaths": ["/W"], "blockedPaths": ["/W/Secret"]})
    found = [verdict("File.Read", path(one), held).allowed for one in ("/W/a", "/w/a", "/W/secret", "/W/SECRET/a")]
    assert found == [True, False, False, False]
