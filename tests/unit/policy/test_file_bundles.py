"""Bundles given by file: places of the session, what may be left out, and what they build on."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from config.policies import BUILT_IN, place_groups, template, template_as_written, write_template
from policy.bundle import BundleProblems
from policy.bundle.builtin import PlaceholderValues, instantiate, step_files
from policy.bundle.validate import BuiltIns, parse_bundle, parse_file_bundle
from policy.decide import check_tool
from tests.support.rows import each_row

from .helpers import NOW, bundle_json, path, url
from .test_bundle import run

if TYPE_CHECKING:
    from policy.bundle import Capability, PolicyBundle
    from policy.facts import OsFamily

POSIX = PlaceholderValues("/home/u/w", "/home/u", "/home/u/.state", "posix", "/tmp/own", place_groups())
WINDOWS = PlaceholderValues("C:\\w", "C:\\Users\\u", "C:\\state", "windows", "C:\\Temp\\own", place_groups())
BUILT_INS = BuiltIns(BUILT_IN, template_as_written, ("mine",), ("other", "mine"))


def parsed(raw: Any, places: PlaceholderValues = POSIX) -> PolicyBundle:
    return parse_file_bundle(raw, places=places, built_ins=BUILT_INS, now=NOW)


def problems(raw: Any, places: PlaceholderValues = POSIX) -> list[str]:
    with pytest.raises(BundleProblems) as raised:
        parsed(raw, places)
    return [str(one) for one in raised.value.problems]


def grant(bundle: PolicyBundle, name: str) -> Capability:
    found = bundle.capability(name)
    assert found is not None
    return found


def reading(*allowed: str, blocked: tuple[str, ...] = ()) -> dict[str, Any]:
    return bundle_json({"name": "File.Read", "allowedPaths": list(allowed), "blockedPaths": list(blocked)})


# Places


@each_row(
    ("entry", "posix", "windows"),
    [
        ("${workspace}", "/home/u/w", "C:\\w"),
        ("${workspace}/a/../b", "/home/u/w/b", "C:\\w\\b"),
        ("${home}/.cache", "/home/u/.cache", "C:\\Users\\u\\.cache"),
        ("${tmp}", "/tmp/own", "C:\\Temp\\own"),
        ("${tmp}/x", "/tmp/own/x", "C:\\Temp\\own\\x"),
        ("src", "/home/u/w/src", "C:\\w\\src"),
        ("./build", "/home/u/w/build", "C:\\w\\build"),
        (".", "/home/u/w", "C:\\w"),
        ("../lib", "/home/u/lib", "C:\\lib"),
        ("a b/[id]/@x", "/home/u/w/a b/[id]/@x", "C:\\w\\a b\\[id]\\@x"),
        ("/srv/x", "/srv/x", "/srv/x"),
        ("D:\\x", "D:\\x", "D:\\x"),
    ],
)
def test_paths_of_this_session(entry: str, posix: str, windows: str) -> None:
    for places, expected in ((POSIX, posix), (WINDOWS, windows)):
        found = grant(parsed(reading(entry, blocked=(entry,)), places), "File.Read")
        assert (found.allowed_paths, found.blocked_paths) == ((expected,), (expected,))


def test_groups_stand_for_the_places_that_the_built_ins_block() -> None:
    found = grant(parsed(reading("${workspace}", blocked=("@credentials", "@steering", "keys"))), "File.Read")
    assert found.blocked_paths is not None
    assert {"/home/u/.state", "/home/u/.ssh", "/home/u/.bashrc", "/home/u/w/.git", "/home/u/w/keys"} <= {
        *found.blocked_paths
    }


def test_names_at_any_depth_are_blocked_below_the_workspace() -> None:
    entries = ("${workspace}/**/.vscode", "src/**/*.code-workspace", "**/.agent")
    assert grant(parsed(reading("/x", blocked=entries)), "File.Read").blocked_paths == (
        "/home/u/w/**/.vscode", "/home/u/w/src/**/*.code-workspace", "/home/u/w/**/.agent",
    )  # fmt: skip
    assert len(problems(reading(*entries))) == 3


def test_what_has_no_value_on_this_machine() -> None:
    homeless = POSIX._replace(home=None, tmp=None)
    found = grant(parsed(reading("/x", blocked=("@credentials", "${home}/x")), homeless), "File.Read")
    assert found.blocked_paths == ("/home/u/.state",)
    assert problems(reading("${home}/x", "${tmp}"), homeless) == [
        "capabilities[0].allowedPaths[0]: '${home}/x' has no value on this machine (name the path)",
        "capabilities[0].allowedPaths[1]: '${tmp}' has no value on this machine (name the path)",
    ]


@each_row(
    ("entry", "said"),
    [
        ("${workspce}", "${workspce} is not a placeholder (did you mean ${workspace}?)"),
        ("${stateDir}/x", "is not a placeholder"),
        ("${TMP}", "did you mean ${tmp}?"),
        ("${home", "cannot be read"),
        ("${home}x", "cannot be read (a placeholder is closed, and a / follows"),
        ("${home}\\x", "cannot be read"),
        ("${home}/${tmp}", "has a placeholder inside"),
        ("/srv/${home}", "has a placeholder inside (a placeholder must be at the beginning"),
        ("src/${home}", "has a placeholder inside"),
        ("", "is empty"),
        ("~/x", "is not absolute (no shell reads it: the home directory is ${home})"),
        ("$HOME/x", "is not absolute"),
        ("%USERPROFILE%\\x", "is not absolute"),
        ("C:x", "is not absolute"),
        ("\\x", "is not absolute"),
        ("src/**", "is a pattern"),
        ("*.py", "is a pattern"),
        ("${workspace}/*", "is a pattern"),
        ("/srv/*", "is a pattern"),
        ("a\nb", "has control characters"),
    ],
)
def test_paths_that_are_none(entry: str, said: str) -> None:
    for number, text in enumerate(problems(reading(entry, blocked=("x", entry)))):
        place = "blockedPaths[1]" if number else "allowedPaths[0]"
        assert text.startswith(f"capabilities[0].{place}: ")
        assert said in text


def test_groups_that_are_none() -> None:
    assert problems(reading("@credentials", blocked=("@credential", "@x"))) == [
        (
            "capabilities[0].allowedPaths[0]: '@credentials' is a group of places to block "
            "(name the paths themselves, or use it in blockedPaths)"
        ),
        "capabilities[0].blockedPaths[0]: '@credential' is not a group of places (did you mean @credentials?)",
        "capabilities[0].blockedPaths[1]: '@x' is not a group of places (known are @credentials, @steering)",
    ]


@pytest.mark.parametrize("entry", ["${workspace}", "src", "@credentials"])
def test_a_bundle_from_outside_needs_absolute_paths(entry: str) -> None:
    with pytest.raises(BundleProblems, match="is not absolute"):
        parse_bundle(reading("/x", blocked=(entry,)))


# Programs of the workspace


@pytest.mark.parametrize(
    ("entry", "posix", "windows"),
    [
        ("${workspace}/**", "/home/u/w/**", "C:\\w\\**"),
        ("${workspace}/*", "/home/u/w/*", "C:\\w\\*"),
        ("${workspace}/.venv/bin/*", "/home/u/w/.venv/bin/*", "C:\\w\\.venv\\bin\\*"),
        ("${workspace}/my tools/**", "/home/u/w/my tools/**", "C:\\w\\my tools\\**"),
        ("make", "make", "make"),
    ],
)
def test_programs_of_the_workspace(entry: str, posix: str, windows: str) -> None:
    raw = bundle_json({"name": "Shell.Exec", "allowedCommands": [entry]})
    assert grant(parsed(raw), "Shell.Exec").allowed_commands == (posix,)
    assert grant(parsed(raw, WINDOWS), "Shell.Exec").allowed_commands == (windows,)


@each_row(
    "entry",
    [
        "${workspace}", "${workspace}/gradlew", "${workspace}/*/bin/*", "${workspace}/../x/*", "${home}/bin/*",
        "${workspace}x/*", "/home/u/w/**", "./*", "a b", "${workspace}/a\n/*", "${workspace}/$x/*",
    ],
)  # fmt: skip
def test_programs_that_are_none(entry: str) -> None:
    (said,) = problems(bundle_json({"name": "Shell.Exec", "allowedCommands": [entry]}))
    assert said.startswith("capabilities[0].allowedCommands[0]: ")


def test_programs_are_patterns_in_that_list_of_a_file_only() -> None:
    entry = "${workspace}/**"
    raw = {"name": "Shell.Exec", "blockedCommands": [entry], "commandPolicies": [{"command": entry}]}
    assert len(problems(bundle_json(raw))) == 2
    for one in (entry, "/home/u/w/**"):
        with pytest.raises(BundleProblems, match=re.escape("allowedCommands[0]")):
            parse_bundle(bundle_json({"name": "Shell.Exec", "allowedCommands": [one]}))


# What may be left out


def test_without_an_end_it_holds_as_long_as_a_built_in() -> None:
    raw = bundle_json({"name": "LLM.Call"})
    assert parsed(raw).expires_at == datetime.fromisoformat("2026-01-02T00:00:00+00:00")
    del raw["expiresAt"]
    assert parsed(raw).expires_at == NOW + timedelta(hours=24)
    assert parsed(json.dumps(raw).encode()) == parsed(raw)
    with pytest.raises(BundleProblems, match="expiresAt: is missing"):
        parse_bundle(raw)
    assert problems({**raw, "expiresAt": None}) == [
        "expiresAt: must be an RFC 3339 time with a zone (such as 2026-01-31T12:00:00Z)"
    ]


def test_nothing_else_may_be_missing() -> None:
    said = [text.partition(":")[0] for text in problems({})]
    assert said == [
        "policyBundleVersion", "schemaVersion", "tenantId", "userId", "sessionId", "capabilities", "llmPolicy",
        "approvalRules",
    ]  # fmt: skip


# Building on a built-in


@pytest.mark.parametrize("name", BUILT_IN)
def test_what_only_extends_is_the_built_in_with_a_version_of_its_own(name: str) -> None:
    found = parsed({"extends": name})
    base = built_in(name)
    assert found.capabilities == base.capabilities
    assert (found.approval_rules, found.llm_policy, found.tenant_id) == (base.approval_rules, base.llm_policy, "local")
    assert re.fullmatch(rf"builtin\.{name}\+[0-9a-f]{{8}}", found.policy_bundle_version)
    assert (found.session_id, found.expires_at) == ("*", NOW + timedelta(hours=24))
    models = found.llm_policy.allowed_models
    assert (models[0], models[-1], models.count("mine")) == ("mine", "other", 1)


def test_the_version_follows_what_the_file_says_and_not_how_it_is_laid_out() -> None:
    one, same = b'{"extends": "ci", "tenantId": "t"}', b'{"tenantId":"t",\n"extends":"ci"}'
    other = b'{"extends": "ci", "tenantId": "u"}'
    versions = [parsed(raw).policy_bundle_version for raw in (one, same, other)]
    assert versions[0] == versions[1] != versions[2]
    assert parsed({"extends": "ci", "policyBundleVersion": "v"}).policy_bundle_version == "v"


def test_scalars_replace_and_lists_are_added_to() -> None:
    found = parsed(
        {
            "extends": "ci",
            "tenantId": "acme",
            "sessionId": "s9",
            "expiresAt": "2026-01-01T13:00:00Z",
            "capabilities": [
                {"name": "Shell.Exec", "allowedCommands": ["terraform", "ls", "terraform"], "maxOutputBytes": 5},
                {"name": "File.Read", "allowedPaths": ["/opt", "${workspace}"], "requiresApproval": True},
                {"name": "File.Write", "allowedPaths": None, "blockedPaths": ["keys"]},
                {"name": "Network.Http", "allowedDomains": ["pypi.org"]},
            ],
            "llmPolicy": {"allowedModels": ["m9", "gpt-5"], "maxSessionTokens": 5},
            "redactionRules": [{"redactionRuleId": "r", "pattern": "x1"}],
            "mcpServers": [{"name": "s", "transport": "stdio", "command": "c"}],
        }
    )
    base = built_in("ci")
    shell, read, write = (grant(found, name) for name in ("Shell.Exec", "File.Read", "File.Write"))
    assert shell.allowed_commands == (*(grant(base, "Shell.Exec").allowed_commands or ()), "terraform")
    assert (shell.max_output_bytes, shell.requires_approval) == (5, False)
    assert read.allowed_paths == (*(grant(base, "File.Read").allowed_paths or ()), "/opt")
    assert read.requires_approval
    assert write.allowed_paths == grant(base, "File.Write").allowed_paths
    assert write.blocked_paths == (*(grant(base, "File.Write").blocked_paths or ()), "/home/u/w/keys")
    assert grant(found, "Network.Http").allowed_domains == ("pypi.org",)
    assert [entry.name for entry in found.capabilities] == [
        *(entry.name for entry in base.capabilities), "Network.Http",
    ]  # fmt: skip
    assert found.llm_policy.allowed_models == (*base.llm_policy.allowed_models, "m9")
    assert (found.llm_policy.max_session_tokens, found.llm_policy.max_input_tokens) == (5, 200_000)
    assert (found.tenant_id, found.user_id, found.session_id) == ("acme", "local", "s9")
    assert found.expires_at == NOW + timedelta(hours=1)
    assert [one.redaction_rule_id for one in found.redaction_rules] == ["r"]
    assert [one.name for one in found.mcp_servers] == ["s"]


def test_rules_of_the_same_id_replace() -> None:
    rule = {"approvalRuleId": "shell-exec", "title": "T", "description": "D"}
    more = {"approvalRuleId": "more", "title": "T2", "description": "D2"}
    found = parsed(
        {
            "extends": "workspace",
            "approvalRules": [rule, more],
            "capabilities": [
                {"name": "File.Read", "requiresApproval": True, "approvalRuleId": "file-delete"},
                {"name": "File.Delete", "requiresApproval": False, "approvalRuleId": None},
            ],
        }
    )
    assert [one.approval_rule_id for one in found.approval_rules] == [
        "file-delete",
        "shell-exec",
        "network-http",
        "mcp-tool",
        "added-tool",
        "more",
    ]
    changed = found.approval_rule("shell-exec")
    assert changed is not None
    assert changed.title == "T"
    assert grant(found, "File.Read").approval_rule_id == "file-delete"
    assert (grant(found, "File.Delete").requires_approval, grant(found, "File.Delete").approval_rule_id) == (
        False,
        None,
    )


@each_row(
    ("raw", "said"),
    [
        ({"extends": "cis"}, ["extends: 'cis' is not a built-in (did you mean ci?)"]),
        ({"extends": "mine"}, ["extends: 'mine' is not a built-in (known are read-only, workspace, ci, full)"]),
        ({"extends": 5}, ["extends: must be text (the name of a built-in: read-only, workspace, ci, full)"]),
        ({"extends": "ci", "capabilites": []}, [
            "capabilites: is not a field of this object (did you mean capabilities?)"
        ]),
        (bundle_json(extend="ci"), ["extend: is not a field of this object (did you mean extends?)"]),
        ({"extends": "ci", "llmPolicy": {"maxTokens": 5}}, [
            "llmPolicy.maxTokens: is not a field of this object (did you mean maxInputTokens?)"
        ]),
        ({"extends": "ci", "llmPolicy": {"allowedModels": []}}, ["llmPolicy.allowedModels: is empty"]),
        ({"extends": "ci", "capabilities": [{"allowedPaths": ["/x"]}]}, ["capabilities[0].name: is missing"]),
        ({"extends": "ci", "capabilities": [
            {"name": "Network.Http", "approvalRuleId": "net"}, {"name": "File.Red"},
            {"name": "Shell.Exec", "allowedPaths": ["x"]}, {"name": "LLM.Call"}, {"name": "LLM.Call"},
        ]}, [
            "capabilities[0].approvalRuleId: 'net' is not in approvalRules",
            "capabilities[1].name: 'File.Red' is not a capability (did you mean File.Read?)",
            "capabilities[2].allowedPaths: restricts nothing in Shell.Exec",
            "capabilities[4].name: 'LLM.Call' is already at capabilities[3] (merge the two)",
        ]),
        ({"extends": "ci", "approvalRules": [{"approvalRuleId": "a", "title": "t"}]}, [
            "approvalRules[0].description: is missing"
        ]),
        (b'{"extends": "ci", "extends": "full"}', ["extends: the field occurs twice in one object"]),
        (b"[]", ["the bundle: is not a JSON object, but a list"]),
    ],
)  # fmt: skip
def test_problems_name_the_path_in_the_file(raw: Any, said: list[str]) -> None:
    found = problems(raw)
    assert len(found) == len(said), found
    assert all(any(text.startswith(start) for text in found) for start in said), found


def test_only_a_file_extends() -> None:
    with pytest.raises(BundleProblems, match="extends: is not a field of this object"):
        parse_bundle({**bundle_json(), "extends": "ci"})


# What `policy show` prints


def built_in(name: str, os: OsFamily = "posix") -> PolicyBundle:
    places = POSIX if os == "posix" else WINDOWS
    return instantiate(template(name), places, session_id="s1", now=NOW, models=("mine",), more_models=("other",))


PATHS = (
    "/home/u/w/a", "/home/u/w/.git/config", "/home/u/w/.agent/config.toml", "/home/u/.ssh/id", "/home/u/.bashrc",
    "/etc/x", "/home/u/.state/x", "/proc/1/environ", "/tmp/x", "/tmp/own/x", "/home/u/other",
)  # fmt: skip
LINES = (
    "ls", "make", "curl x", "python -c x", "cat a > b", "echo x > ~/.bashrc", "$x", "echo x > /etc/x", "sudo ls",
    "a | b", "./gradlew", "bash -c ls", "rm -rf x",
)  # fmt: skip


def decisions(bundle: PolicyBundle) -> list[tuple[str, ...]]:
    found = []
    for name in ("File.Read", "File.Write", "File.Delete", "Workspace.Upload"):
        found += [check_tool(bundle, name, path(one, kind="file"), now=NOW) for one in PATHS]
    found += [check_tool(bundle, "Network.Http", url(one), now=NOW) for one in ("https://pypi.org", "http://127.0.0.1")]
    told: list[tuple[str, ...]] = [(one.decision, one.reason, one.rule, str(one.rule_id)) for one in found]
    return told + [(line, run(bundle, line)) for line in LINES]


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_that_is_shown_decides_alike(name: str) -> None:
    text = write_template(name)
    shown, own = parsed(text.encode()), built_in(name)
    assert json.loads(text)["policyBundleVersion"] == shown.policy_bundle_version == f"local.{name}"
    assert "${workspace}" in text or name == "full"
    assert "@credentials" in text
    assert "/home/u" not in text
    assert decisions(shown) == decisions(own)
    assert shown.capabilities == own.capabilities
    assert shown.expires_at == own.expires_at


@each_row(
    ("value", "os", "found"),
    [
        ("/r/_temp/_runner_file_commands/set_output_1", "posix", "/r/_temp/_runner_file_commands"),
        ("D:\\a\\_temp\\_runner_file_commands\\set_output_1", "windows", "D:\\a\\_temp\\_runner_file_commands"),
        ("/etc/passwd", "posix", None),
        ("/x", "posix", None),
        ("_runner_file_commands/x", "posix", None),
        ("/_runner_file_commands/../etc/x", "posix", None),
        ("/r/_runner_file_commands/..", "posix", "/r/_runner_file_commands"),
        ("", "posix", None),
    ],
)
def test_where_a_step_of_github_actions_leaves_files(value: str, os: OsFamily, found: str | None) -> None:
    assert step_files({"GITHUB_OUTPUT": value}, os) == found
    assert step_files({"GITHUB_ENV": value}, os) is None


def test_a_bundle_may_name_the_files_of_a_step_where_there_is_none() -> None:
    places = POSIX._replace(step_files="/r/_temp/_runner_file_commands")
    raw = {"extends": "ci", "capabilities": [{"name": "File.Write", "allowedPaths": ["${stepFiles}"]}]}
    for held, count in ((places, 1), (POSIX, 0)):
        entry = grant(parsed(raw, held), "File.Write")
        assert sum("_runner_file" in path for path in entry.allowed_paths or ()) == count
