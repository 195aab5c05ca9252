from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.policies import BUILT_IN, template
from policy import ALL_CAPABILITIES
from policy.bundle import BundleProblems, PolicyBundle, bundle_from_trusted
from policy.bundle.builtin import PlaceholderValues, instantiate
from policy.bundle.validate import check_usable, parse_bundle
from policy.decide import check_tool
from policy.facts import CommandFacts, OsFamily
from policy.rules import check_llm
from policy.shell import parse, paths_in_line
from tests.support.rows import each_row

from .helpers import NOW, bundle, bundle_json, path, url

FULL_ENTRIES: list[dict[str, Any]] = [
    {
        "name": "Shell.Exec",
        "blockedPaths": [],
        "allowedCommands": ["git"],
        "commandPolicies": [{"command": "git", "arguments": [{"index": 0, "enum": ["log"]}], "maxArguments": 3}],
        "maxOutputBytes": 1,
        "requiresApproval": True,
        "approvalRuleId": "r",
    },
    {"name": "File.Read", "allowedPaths": ["/w"], "maxFileSizeBytes": 0},
    {"name": "Network.Http", "allowedDomains": ["*.example.com"]},
    {"name": "Workspace.Upload", "blockedPaths": ["/w/a"], "allowedToolNames": ["t"]},
    {"name": "LLM.Call"},
]
FIELDS = sorted({name for entry in FULL_ENTRIES for name in entry})
WHOLE = bundle_json(
    *FULL_ENTRIES,
    approvalRules=[{"approvalRuleId": "r", "title": "T", "description": "D"}],
    mcpServers=[{"name": "m", "transport": "stdio", "command": "x", "args": ["y"]}],
    redactionRules=[{"redactionRuleId": "k", "pattern": "x"}],
)


def problems(raw: Any) -> dict[str, str]:
    with pytest.raises(BundleProblems) as caught:
        parse_bundle(raw)
    return {one.path: f"{one.message} {one.hint}" for one in caught.value.problems}


def test_a_whole_bundle_goes_round() -> None:
    parsed = parse_bundle(json.dumps(WHOLE).encode())
    assert parsed == bundle_from_trusted(WHOLE) == parse_bundle(WHOLE)
    assert parsed.to_json() == WHOLE
    assert parsed.expires_at == datetime(2026, 1, 2, tzinfo=UTC)
    shell, rule = parsed.capability("Shell.Exec"), parsed.approval_rule("r")
    assert shell is parsed.capabilities[0]
    assert rule is parsed.approval_rules[0]
    assert shell.blocked_paths == ()
    assert shell.blocked_commands is None
    assert parsed.capability("File.Delete") is None
    assert parsed.approval_rule("x") is None


def test_every_problem_is_reported_at_once() -> None:
    raw = bundle_json(
        {"name": "File.Wite"},
        {"name": "File.Read", "alowedPaths": [], "allowedPaths": ["src", "/w/*"], "maxFileSizeBytes": "5"},
        {"name": "File.Read", "requiresApproval": 1, "approvalRuleId": "nome", "maxOutputBytes": -1},
        {"name": "Shell.Exec", "allowedCommands": ["rm -rf"], "blocked_commands": [],
         "commandPolicies": [{"command": "a", "arguments": [{"index": True, "pattern": "(?=a)+"}]}]},
        {"name": "Network.Http", "blockedDomains": ["http://x"]},
        cast("dict[str, Any]", 5),
        schemaVersion="2.0",
        expiresAt="2026-01-01T00:00:00",
        approvalRules=[{"approvalRuleId": "none", "title": "t"}],
        mcpServers=[{"name": "m", "transport": "http"}],
        llmPolicy={"allowedModels": [], "maxInputTokens": 0, "maxOutputTokens": True, "maxSessionTokens": 1},
        extra=1,
    )  # fmt: skip
    del raw["tenantId"]
    found = problems(raw)
    assert set(found) == {
        "capabilities[0].name", "capabilities[1].alowedPaths", "capabilities[1].allowedPaths[0]",
        "capabilities[1].allowedPaths[1]", "capabilities[1].maxFileSizeBytes", "capabilities[2].name",
        "capabilities[2].requiresApproval", "capabilities[2].approvalRuleId", "capabilities[2].maxOutputBytes",
        "capabilities[3].allowedCommands[0]", "capabilities[3].blocked_commands",
        "capabilities[3].commandPolicies[0].arguments[0].index",
        "capabilities[3].commandPolicies[0].arguments[0].pattern", "capabilities[4].blockedDomains[0]",
        "capabilities[5]", "schemaVersion", "expiresAt", "approvalRules[0].description", "mcpServers[0].url",
        "llmPolicy.allowedModels", "llmPolicy.maxInputTokens", "llmPolicy.maxOutputTokens", "extra", "tenantId",
    }  # fmt: skip
    assert "did you mean File.Write?" in found["capabilities[0].name"]
    assert "did you mean allowedPaths?" in found["capabilities[1].alowedPaths"]
    assert "did you mean blockedCommands?" in found["capabilities[3].blocked_commands"]
    assert "did you mean none?" in found["capabilities[2].approvalRuleId"]
    assert "capabilities[1]" in found["capabilities[2].name"]


@each_row(
    ("name", "fields"),
    [
        ("Network.Http", {"allowedPaths": ["/w"], "allowedCommands": []}),
        ("Shell.Exec", {"allowedPaths": ["/w"], "blockedDomains": ["a.example"]}),
        ("Mcp.Invoke", {"allowedDomains": ["a.example"]}),
        ("BackendTool.Invoke", {"blockedPaths": ["/w"]}),
        ("Tool.Invoke", {"blockedCommands": ["rm"]}),
        ("File.Read", {"commandPolicies": [{"command": "git"}], "allowedToolNames": ["ReadFile"]}),
        ("Workspace.Upload", {"allowedDomains": ["a.example"]}),
        ("LLM.Call", {"allowedToolNames": []}),
    ],
)
def test_a_list_that_restricts_nothing_is_an_error(name: str, fields: dict[str, Any]) -> None:
    found = problems(bundle_json({"name": name, **fields}))
    assert set(found) == {f"capabilities[0].{field}" for field in fields}
    assert all(f"restricts nothing in {name}" in said for said in found.values())


@each_row("name", ALL_CAPABILITIES)
def test_fields_that_are_written_down_everywhere_and_say_nothing_are_fine(name: str) -> None:
    lists = ("allowedPaths", "allowedCommands", "allowedDomains", "allowedToolNames")
    empty: dict[str, Any] = {"blockedPaths": [], "blockedCommands": [], "blockedDomains": [], "commandPolicies": []}
    parse_bundle(
        bundle_json({"name": name, **dict.fromkeys(lists), **empty, "maxOutputBytes": 5, "maxFileSizeBytes": 5})
    )


@each_row("command", ["r?", "*", "ls;rm", "a|b", "$X", "`x`", "[a-z]m", "a\0", "a\x7f", "", "a b", "(a)", "a&"])
@each_row("field", ["allowedCommands", "blockedCommands"])
def test_a_command_is_the_name_of_a_program(command: str, field: str) -> None:
    found = problems(bundle_json({"name": "Shell.Exec", field: ["ls", command]}))
    assert set(found) == {f"capabilities[0].{field}[1]"}
    assert "None" not in found[f"capabilities[0].{field}[1]"]


def test_programs_with_odd_names() -> None:
    names = [
        "[",
        "[[",
        ":",
        ".",
        "g++",
        "/usr/bin/python3.11",
        "C:\\tools\\a.exe",
        "./run",
        "Get-ChildItem",
        "a@b",
        "~/x",
    ]
    parse_bundle(bundle_json({"name": "Shell.Exec", "allowedCommands": names}))


@pytest.mark.parametrize("path", ["/w/a\0b", "/w/\x1b[2J", "/w/**", "C:\\w\\*", "w"])
def test_a_path_is_one_place(path: str) -> None:
    assert set(problems(bundle_json({"name": "File.Read", "allowedPaths": [path]}))) == {
        "capabilities[0].allowedPaths[0]"
    }


def test_rules_for_arguments_say_something_that_can_be_true() -> None:
    rules = [{"index": 0}, {"index": 2, "pattern": "a"}, {"index": 1, "enum": []}, {"index": 1, "enum": ["x"]}]
    policy = {"command": "git", "maxArguments": 2, "arguments": rules}
    at = "capabilities[0].commandPolicies[0].arguments"
    found = problems(bundle_json({"name": "Shell.Exec", "commandPolicies": [policy]}))
    assert set(found) == {f"{at}[0]", f"{at}[1].index"}
    assert "give a pattern or an enum" in found[f"{at}[0]"]


@pytest.mark.parametrize(
    ("server", "field"),
    [
        ({"transport": "stdio"}, "command"),
        ({"transport": "stdio", "command": ""}, "command"),
        ({"transport": "stdio", "command": "x", "url": "https://a.example"}, "url"),
        ({"transport": "http"}, "url"),
        ({"transport": "http", "url": "file:///etc/passwd"}, "url"),
        ({"transport": "http", "url": "https://a.example", "command": "x"}, "command"),
    ],
)
def test_what_a_server_has_follows_its_transport(server: dict[str, Any], field: str) -> None:
    assert set(problems(bundle_json(mcpServers=[{"name": "m", **server}]))) == {f"mcpServers[0].{field}"}


@pytest.mark.parametrize("session", ["", "a b", "../x", "a" * 129, "**", "a\n"])
def test_a_session_has_a_name_that_it_can_have(session: str) -> None:
    assert set(problems(bundle_json(sessionId=session))) == {"sessionId"}


def test_names_are_not_empty() -> None:
    llm = {"allowedModels": [""], "maxInputTokens": 1, "maxOutputTokens": 1, "maxSessionTokens": 1}
    rules = [{"approvalRuleId": "", "title": "", "description": ""}]
    assert set(problems(bundle_json(policyBundleVersion="", llmPolicy=llm, approvalRules=rules))) == {
        "policyBundleVersion",
        "llmPolicy.allowedModels[0]",
        "approvalRules[0].approvalRuleId",
    }


def test_one_thing_that_is_wrong_is_one_problem_with_a_hint() -> None:
    with pytest.raises(BundleProblems) as caught:
        parse_bundle(
            bundle_json(
                {"name": "File.Read", "maxFileSizeBytes": -1, "requiresApproval": "true", "allowedPaths": "/w"},
                schemaVersion=1.0,
                expiresAt="soon",
                userId=5,
                llmPolicy={"allowedModels": ["m"], "maxInputTokens": 0, "maxOutputTokens": 1.5},
            )
        )
    found = caught.value.problems
    assert len({one.path for one in found}) == len(found) == 9
    assert all(one.hint and one.hint not in one.message for one in found)


def test_every_required_field_has_an_example() -> None:
    assert "(None" not in str(found := problems({}))
    assert '"1.0"' in found["schemaVersion"]


def test_a_whole_number_may_be_written_with_a_point() -> None:
    raw = json.dumps(bundle_json({"name": "File.Read", "maxFileSizeBytes": 5.0})).encode()
    held = parse_bundle(raw).capabilities[0].max_file_size_bytes
    assert (held, type(held)) == (5, int)
    assert set(problems(bundle_json({"name": "File.Read", "maxFileSizeBytes": -5.0}))) == {
        "capabilities[0].maxFileSizeBytes"
    }


def test_a_field_that_stands_twice_is_told_beside_its_value() -> None:
    raw = json.dumps(bundle_json()).replace('"schemaVersion": "1.0"', '"schemaVersion": "1", "schemaVersion": "2"')
    with pytest.raises(BundleProblems) as caught:
        parse_bundle(raw.encode())
    assert [one.path for one in caught.value.problems] == ["schemaVersion", "schemaVersion"]


@pytest.mark.parametrize(
    ("raw", "path", "words"),
    [
        (b"{", "", "not JSON"),
        (b"\xff", "", "not UTF-8"),
        (b"[]", "", "not a JSON object"),
        (b"[" * 100_000, "", "not JSON"),
        (b'{"tenantId": "a", "tenantId": "b"}', "tenantId", "twice"),
        (b'{"a": NaN}', "", "NaN"),
    ],
)
def test_text_that_is_no_bundle(raw: bytes, path: str, words: str) -> None:
    assert words in problems(raw)[path]


@pytest.mark.parametrize(
    "moment", ["2026-01-02", 1767312000, "2026-01-02T00:00:00", "tomorrow", "2026-13-02T00:00:00Z", None]
)
def test_expiry_is_rfc_3339_with_a_zone(moment: Any) -> None:
    assert "expiresAt" in problems({**WHOLE, "expiresAt": moment})


def test_a_zone_other_than_utc_is_understood() -> None:
    moment = parse_bundle({**WHOLE, "expiresAt": "2026-01-02T02:00:00.5+02:00"}).expires_at
    assert moment == datetime(2026, 1, 2, 0, 0, 0, 500_000, tzinfo=UTC)


def test_approval_without_a_rule_is_valid() -> None:
    parse_bundle(bundle_json({"name": "Shell.Exec", "requiresApproval": True}))


def test_usable_now_for_this_session() -> None:
    held = bundle()
    assert check_usable(held, session_id="s1", now=NOW) == []
    assert [one.path for one in check_usable(held, session_id="s2", now=held.expires_at)] == ["expiresAt", "sessionId"]
    assert check_usable(bundle(sessionId="*"), session_id="any", now=NOW) == []
    assert [one.path for one in check_usable(bundle(schemaVersion="9"), session_id="s1", now=NOW)] == ["schemaVersion"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*WHOLE, *FIELDS]), inner),
    max_leaves=20,
)


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(list(WHOLE)), JSON))
def test_no_shape_raises_anything_else(changes: dict[str, Any]) -> None:
    try:
        parse_bundle({**WHOLE, **changes})
    except BundleProblems:
        return


# Built-ins

PLACES: dict[OsFamily, PlaceholderValues] = {
    "posix": PlaceholderValues("/home/u/w", "/home/u", "/home/u/.state", "posix"),
    "windows": PlaceholderValues("C:\\w", "C:\\Users\\u", "C:\\state", "windows"),
}


def builtin(name: str, os: OsFamily = "posix", **changes: Any) -> PolicyBundle:
    own = {name: changes.pop(name) for name in PlaceholderValues._fields if name in changes}
    return instantiate(template(name), PLACES[os]._replace(**own), **{"session_id": "s1", "now": NOW, **changes})


PATTERN = {"posix": "/home/u/w/**", "windows": "C:\\w\\**"}


@each_row("name", BUILT_IN)
@each_row("os", ["posix", "windows"])
def test_built_ins_are_valid_bundles(name: str, os: OsFamily) -> None:
    held = builtin(name, os)
    shape = held.to_json()
    for entry in shape["capabilities"]:  # programs of the workspace, which no bundle from outside may name by a pattern
        listed = entry.get("allowedCommands", [])
        entry.update({"allowedCommands": [one for one in listed if "*" not in one]} if listed else {})
        assert [one for one in listed if "*" in one] == ([PATTERN[os]] if listed else [])
    assert parse_bundle(shape).to_json() == shape
    assert held.expires_at == NOW + timedelta(hours=24)
    assert check_usable(held, session_id="s1", now=NOW) == []
    assert check_llm(held, model=held.llm_policy.allowed_models[0], now=NOW).allowed
    assert held.llm_policy.allowed_models[0].startswith("claude-")


def test_models_of_the_user_come_first() -> None:
    models = builtin("ci", models=("mine", "gpt-5")).llm_policy.allowed_models
    assert models[:2] == ("mine", "gpt-5")
    assert models.count("gpt-5") == 1


def test_more_models_of_the_user_come_last() -> None:
    models = builtin("ci", models=("mine",), more_models=("gpt-5", "mine", "other")).llm_policy.allowed_models
    assert (models[0], models[-1]) == ("mine", "other")
    assert len(set(models)) == len(models)


def run(held: PolicyBundle, command: str) -> str:
    spellings = paths_in_line(parse(command, "bash"), "/home/u/w", "/home/u")
    facts = CommandFacts(command, cwd="/home/u/w", home="/home/u", real_paths={one: one for one in spellings})
    return check_tool(held, "Shell.Exec", facts, now=NOW).decision


ASK, YES, NO = "APPROVAL_REQUIRED", "ALLOWED", "DENIED"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("read-only", [YES, NO, NO, NO, NO, NO, NO]),
        ("workspace", [YES, NO, YES, NO, ASK, ASK, ASK]),
        ("ci", [YES, NO, YES, NO, YES, YES, NO]),
        ("full", [YES, YES, YES, YES, YES, YES, YES]),
    ],
)
def test_what_the_built_ins_grant(name: str, expected: list[str]) -> None:
    held = builtin(name)
    inside, outside = path("/home/u/w/a"), path("/home/u/other/a")
    given_ = [
        check_tool(held, "File.Read", inside, now=NOW).decision,
        check_tool(held, "File.Read", outside, now=NOW).decision,
        check_tool(held, "File.Write", inside, now=NOW).decision,
        check_tool(held, "File.Write", outside, now=NOW).decision,
        check_tool(held, "File.Delete", inside, now=NOW).decision,
        run(held, "cd sub && python3 -m unittest 2>&1 | tail -n 5"),
        check_tool(held, "Network.Http", url("https://pypi.org"), now=NOW).decision,
    ]
    assert given_ == expected


@each_row(
    ("name", "place", "expected"),
    [
        ("ci", "/tmp", [YES, YES, YES]),
        ("ci", "/tmp/x/y", [YES, YES, YES]),
        ("ci", "/var/scratch/agent-host-s1-0a1b2c3d/x", [YES, YES, YES]),
        ("ci", "/var/scratch/agent-host-s2-0a1b2c3d/x", [NO, NO, NO]),
        ("ci", "/tmp/agent-host-s2-0a1b2c3d/x", [NO, NO, NO]),
        ("ci", "/var/tmp/x", [NO, NO, NO]),
        ("workspace", "/var/scratch/agent-host-s1-0a1b2c3d/x", [YES, YES, ASK]),
        ("workspace", "/tmp/x", [NO, NO, NO]),
        ("read-only", "/var/scratch/agent-host-s1-0a1b2c3d/x", [NO, NO, NO]),
        ("full", "/var/scratch/agent-host-s1-0a1b2c3d/x", [YES, YES, YES]),
    ],
)
def test_temporary_files_under_the_built_ins(name: str, place: str, expected: list[str]) -> None:
    held = builtin(name, tmp="/var/scratch/agent-host-s1-0a1b2c3d")
    names = ("File.Read", "File.Write", "File.Delete")
    assert [check_tool(held, one, path(place), now=NOW).decision for one in names] == expected


def test_temporary_files_on_windows() -> None:
    entry = builtin("ci", "windows", tmp="C:\\t\\agent-host-s1-0a1b2c3d").capability("File.Write")
    assert entry is not None
    assert entry.allowed_paths == ("C:\\w", "C:\\t\\agent-host-s1-0a1b2c3d")


def test_approval_rules_of_the_workspace_bundle_have_words() -> None:
    held = builtin("workspace")
    for name in ("File.Delete", "Shell.Exec", "Network.Http"):
        entry = held.capability(name)
        assert entry is not None
        assert entry.approval_rule_id is not None
        rule = held.approval_rule(entry.approval_rule_id)
        assert rule is not None
        assert rule.title
        assert rule.description


def test_full_grants_everything() -> None:
    assert {entry.name for entry in builtin("full").capabilities} == set(ALL_CAPABILITIES)


SECRETS = [".state/x", ".ssh/authorized_keys", ".aws/credentials", ".config/gcloud/x", ".kube/config", ".gnupg/x"]
STEERING = [
    ".bashrc", ".profile", ".zshrc", ".vimrc", ".claude/settings.json", ".codex/config.toml", ".cargo/env",
    ".git/hooks/pre-commit", ".git/config", ".agent/config.toml",
]  # fmt: skip


@each_row("name", ["workspace", "ci", "full"])
@each_row("place", [*SECRETS, *STEERING])
def test_sensitive_places_are_blocked_even_inside_an_allowed_root(name: str, place: str) -> None:
    held = builtin(name, workspace="/home/u")
    target = path("/home/u/" + place)
    for capability in ("File.Write", "File.Delete"):
        assert "blockedPaths" in check_tool(held, capability, target, now=NOW).rule
    assert check_tool(held, "File.Read", target, now=NOW).allowed is (place in STEERING)


def test_full_still_sees_a_redirection_to_a_sensitive_place() -> None:
    assert run(builtin("full"), "echo x | cat $Y >> ~/.bashrc") == "DENIED"
    assert run(builtin("full"), "eval $X; echo x > a") == "ALLOWED"


@pytest.mark.parametrize("command", ["git push | ssh x", "rm -rf /; bash", "cat ~/x > /etc/x", "echo $(ssh x)"])
def test_ci_refuses_what_is_not_listed(command: str) -> None:
    assert run(builtin("ci"), command) == "DENIED"


def test_placeholders_without_a_value() -> None:
    held = builtin("full", home=None)
    entry = held.capability("File.Read")
    assert entry is not None
    assert entry.blocked_paths == ("/home/u/.state",)
    raw = template("ci")
    raw["capabilities"][0]["allowedPaths"] = ["${home}"]
    with pytest.raises(ValueError, match="allowedPaths"):
        instantiate(raw, PLACES["posix"]._replace(home=None), session_id="s", now=NOW)


def test_what_a_start_loads_of_policy_stays_cheap() -> None:
    heavy = ["pydantic", "tree_sitter", "asyncio", "httpx", "ipaddress", "policy.shell", "policy.decide"]
    code = f"import sys, agent_host.judging, policy.bundle.builtin; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_template_says_how_long_it_holds_and_where() -> None:
    raw = template("ci")
    places: dict[str, Any] = {"places": PLACES["posix"], "session_id": "s", "now": NOW}
    assert instantiate({**raw, "expiresInS": 60}, **places).expires_at == NOW + timedelta(seconds=60)
    del raw["expiresInS"]
    assert instantiate(raw, **places).expires_at == NOW + timedelta(hours=24)
    raw["capabilities"] = [
        {"name": "File.Read", "allowedPaths": ["${workspace}/a/../b}", "/etc", "${workspace}"], "blockedPaths": ["/x"]},
        {"name": "File.Write", "blockedPaths": ["${home}/.x", "${stateDir}"]},
        {"name": "File.Delete"},
        {"name": "Shell.Exec"},
    ]
    held = instantiate(raw, **places, unchanged=("/u", "/v"))
    read, write, delete, shell = held.capabilities
    assert (read.allowed_paths, read.blocked_paths) == (("/home/u/w/b}", "/etc", "/home/u/w"), ("/x",))
    assert write.blocked_paths == ("/home/u/.x", "/home/u/.state", "/u", "/v")
    assert delete.blocked_paths == ("/u", "/v")
    assert shell.blocked_paths is None
    assert write.allowed_paths is None
    assert held.session_id == "s"


@each_row(
    ("entry", "path"),
    [
        ({"name": "File.Read", "allowedPaths": ["/w/*"]}, "allowedPaths[0]"),
        ({"name": "File.Read", "allowedPaths": ["/w", "/w/**"]}, "allowedPaths[1]"),
        ({"name": "File.Read", "blockedPaths": ["w"]}, "blockedPaths[0]"),
        ({"name": "Shell.Exec", "allowedCommands": [""]}, "allowedCommands[0]"),
        ({"name": "Shell.Exec", "blockedCommands": [" ls"]}, "blockedCommands[0]"),
        ({"name": "Shell.Exec", "blockedCommands": ["ls "]}, "blockedCommands[0]"),
        ({"name": "Shell.Exec", "blockedCommands": ["a\tb"]}, "blockedCommands[0]"),
        ({"name": "Network.Http", "allowedDomains": ["http://x"]}, "allowedDomains[0]"),
        ({"name": "Network.Http", "blockedDomains": ["a..b"]}, "blockedDomains[0]"),
        ({"name": "File.Read", "maxFileSizeBytes": -1}, "maxFileSizeBytes"),
        ({"name": "File.Read", "maxOutputBytes": -1}, "maxOutputBytes"),
        ({"name": "Shell.Exec", "approvalRuleId": "r"}, "approvalRuleId"),
    ],
)  # fmt: skip
def test_an_entry_that_means_nothing_is_a_problem(entry: dict[str, Any], path: str) -> None:
    assert set(problems(bundle_json(entry))) == {f"capabilities[0].{path}"}


@pytest.mark.parametrize(
    ("policy", "path"),
    [
        ({"command": "a b"}, "command"),
        ({"command": "a", "maxArguments": -1}, "maxArguments"),
        ({"command": "a", "arguments": [{"index": -1, "enum": ["b"]}]}, "arguments[0].index"),
        (
            {"command": "a", "arguments": [{"index": 0, "enum": []}, {"index": 1, "pattern": "("}]},
            "arguments[1].pattern",
        ),
    ],
)
def test_a_rule_for_arguments_that_means_nothing_is_a_problem(policy: dict[str, Any], path: str) -> None:
    entry = {"name": "Shell.Exec", "commandPolicies": [{"command": "b"}, policy]}
    assert set(problems(bundle_json(entry))) == {f"capabilities[0].commandPolicies[1].{path}"}


RULE = {"index": 0, "pattern": "b"}


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "File.Read", "allowedPaths": ["/", "C:\\", "/w/a*b"], "maxFileSizeBytes": 0, "maxOutputBytes": 0},
        {"name": "Shell.Exec", "commandPolicies": [{"command": "a", "maxArguments": 1, "arguments": [RULE]}]},
        {"name": "Network.Http", "allowedDomains": ["*.a.com", "::1", "1.2.3.4"], "blockedDomains": ["a.com."]},
    ],
)
def test_an_entry_at_its_limits_is_fine(entry: dict[str, Any]) -> None:
    parse_bundle(bundle_json(entry))


@pytest.mark.parametrize("field", ["maxInputTokens", "maxOutputTokens", "maxSessionTokens"])
def test_a_limit_of_tokens_is_at_least_one(field: str) -> None:
    policy = WHOLE["llmPolicy"]
    assert set(problems({**WHOLE, "llmPolicy": {**policy, field: 0}})) == {f"llmPolicy.{field}"}
    parse_bundle({**WHOLE, "llmPolicy": {**policy, field: 1}})


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"sessionId": ""}, "sessionId"),
        ({"schemaVersion": "1.1"}, "schemaVersion"),
        ({"mcpServers": [{"name": "m", "transport": "stdio"}]}, "mcpServers[0].command"),
        ({"mcpServers": [{"name": "m", "transport": "http", "url": ""}]}, "mcpServers[0].url"),
        ({"mcpServers": [{"name": "m", "transport": "x"}]}, "mcpServers[0].transport"),
        ({"redactionRules": [{"redactionRuleId": "", "pattern": "x"}]}, "redactionRules[0].redactionRuleId"),
        ({"redactionRules": [{"redactionRuleId": "a", "pattern": "("}]}, "redactionRules[0].pattern"),
    ],
)
def test_other_parts_that_mean_nothing(changes: dict[str, Any], path: str) -> None:
    assert set(problems({**WHOLE, **changes})) == {path}


def test_what_stands_twice_is_told_at_the_second_place() -> None:
    server = {"name": "m", "transport": "http", "url": "https://a.example"}
    redaction = {"redactionRuleId": "k", "pattern": "x"}
    rule = {"approvalRuleId": "r", "title": "T", "description": "D"}
    twice = {"mcpServers": [server] * 2, "redactionRules": [redaction] * 3, "approvalRules": [rule] * 2}
    assert set(problems({**WHOLE, **twice})) == {
        "mcpServers[1].name",
        "redactionRules[1].redactionRuleId",
        "redactionRules[2].redactionRuleId",
        "approvalRules[1].approvalRuleId",
    }


def test_a_field_that_stands_twice_is_told_once_with_its_name() -> None:
    raw = json.dumps(WHOLE)[:-1] + ', "userId": "v", "userId": "w"}'
    assert set(problems(raw.encode())) == {"userId"}
    assert "{}" not in str(problems(b'{"a": 1, "b": 2, "b": 3}').get("a", ""))
    with pytest.raises(BundleProblems) as caught:
        parse_bundle(raw.encode())
    assert len(caught.value.problems) == 1
    assert str(caught.value.problems[0]) == "userId: the field occurs twice in one object"
    assert str(caught.value) == str(caught.value.problems[0])


def test_a_text_is_read_up_to_16_mib() -> None:
    raw = json.dumps(WHOLE).encode()
    limit = 16 * 1024 * 1024
    assert parse_bundle(raw + b" " * (limit - len(raw))) == parse_bundle(raw)
    assert "longer" in problems(raw + b" " * (limit - len(raw) + 1))[""]


@pytest.mark.parametrize(
    "moment",
    ["2026-01-02T00:00:00Z", "2026-01-02t00:00:00z", "2026-01-02 00:00:00Z", "2026-01-02T02:00:00+02:00",
     "2026-01-01T22:00:00.000-02:00"],
)  # fmt: skip
def test_a_moment_may_be_spelled_as_rfc_3339_does(moment: str) -> None:
    assert parse_bundle({**WHOLE, "expiresAt": moment}).expires_at == datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    "moment",
    ["2026-01-02T00:00:00ZZ", "x2026-01-02T00:00:00Z", "2026-01-02T00:00Z", "2026-01-02T00:00:00.Z",
     "2026-1-02T00:00:00Z"],
)  # fmt: skip
def test_what_only_looks_like_a_moment_is_none(moment: str) -> None:
    assert set(problems({**WHOLE, "expiresAt": moment})) == {"expiresAt"}


def test_a_hint_names_the_nearest_field_or_all_of_them() -> None:
    found = problems({**WHOLE, "capabilities": [{"name": "LLM.Call", "max_output_bytes": 1, "zzz": 1}], "tenant": "x"})
    assert "did you mean maxOutputBytes?" in found["capabilities[0].max_output_bytes"]
    assert "known are name, allowedPaths" in found["capabilities[0].zzz"]
    assert "did you mean tenantId?" in found["tenant"]
    policies = [{"command": "a", "arguments": [{"index": 0, "enumm": []}]}]
    nested = problems(bundle_json({"name": "Shell.Exec", "commandPolicies": policies}))
    assert "did you mean enum?" in nested["capabilities[0].commandPolicies[0].arguments[0].enumm"]
    assert "did you mean maxInputTokens?" in problems(
        {**WHOLE, "llmPolicy": {**WHOLE["llmPolicy"], "maxInputToken": 1}}
    )["llmPolicy.maxInputToken"]  # fmt: skip


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"name": 5}, "must be text"),
        ({"name": "File.Read", "allowedPaths": "x"}, "must be a list"),
        ({"name": "LLM.Call", "requiresApproval": "x"}, "must be true or false"),
        ({"name": "LLM.Call", "maxOutputBytes": "x"}, "must be a whole number"),
        ({"name": "LLM.Call", "x": 1}, "is not a field of this object"),
        ({}, "is missing"),
        (5, "must be an object"),
    ],
)
def test_types_are_told_in_plain_words(entry: Any, message: str) -> None:
    (said,) = problems(bundle_json(entry)).values()
    assert said.startswith(message)


def test_the_built_ins_are_these() -> None:
    assert BUILT_IN == ("read-only", "workspace", "ci", "full")


def test_bundles_that_say_the_same_are_equal_whatever_they_were_asked() -> None:
    one, other = (bundle({"name": "File.Read", "allowedPaths": ["/w"]}) for _ in range(2))
    check_tool(one, "File.Read", path("/w/a"), now=NOW)
    assert {one} == {other}
    assert one.memo
    assert "memo" not in repr(one)
    assert "_index" not in repr(one)
