"""Which tools are shown: held against what policy says of the calls (SK 3.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy import RISK_LEVELS
from policy.decide import check_tool
from policy.facts import CommandFacts, NamedToolFacts, PathFacts, UrlFacts
from policy.rules import NO_LIMITS, Limits, TaskOptions, ToolLimit
from policy.rules.narrowing import apply_risk_ceiling, apply_task_options
from policy.rules.toolset import DEFAULT_RISK, merge, why_not_offered, withheld_by
from tests.support.rows import each_row
from tests.unit.policy.helpers import NOW, apply, bundle

if TYPE_CHECKING:
    from policy.bundle import PolicyBundle
    from policy.facts import ActionFacts

TOOLS = {
    "ReadFile": "File.Read",
    "WriteFile": "File.Write",
    "DeleteFile": "File.Delete",
    "RunCommand": "Shell.Exec",
    "HttpRequest": "Network.Http",
    "UploadArtifact": "Workspace.Upload",
}
PLACES = ["/w", "/w/a", "/x", "/"]
PROGRAMS = ["ls", "make"]
DOMAINS = ["github.com", "*.github.com", "pypi.org"]

# Any call that the lists below could be about, and one outside each.
CALLS: dict[str, list[ActionFacts]] = {
    **{
        name: [
            PathFacts(place, place, place, "missing", size_bytes=0, new_size_bytes=0)
            for place in ("/w/f", "/w/a/f", "/w/b", "/x/f", "/y", "/zz/f")
        ]
        for name in ("File.Read", "File.Write", "File.Delete")
    },
    "Shell.Exec": [CommandFacts(line, "/w", home="/h") for line in ("ls", "make", "pwd", "ls; make", "A=1", "zz")],
    "Network.Http": [
        UrlFacts(f"https://{host}/") for host in ("github.com", "api.github.com", "pypi.org", "zz.example")
    ],
    "Workspace.Upload": [
        NamedToolFacts("UploadArtifact"),
        PathFacts("/w/f", "/w/f", "/w/f", "file", size_bytes=0, tool_name="UploadArtifact"),
    ],
}

names = st.sampled_from([*TOOLS, "Other"])
limits = st.frozensets(
    st.builds(
        ToolLimit,
        st.sampled_from(["user", "workspace", "skill"]),
        st.none() | st.frozensets(names, max_size=4),
        st.frozensets(names, max_size=2),
        st.none() | st.sampled_from(RISK_LEVELS),
    ),
    max_size=3,
)


def some(values: list[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(values), max_size=2, unique=True)


def entry(name: str, **lists: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    optional = {field: some(values) for field, values in lists.items()}
    return st.fixed_dictionaries(
        {"name": st.just(name)},
        optional={**optional, "requiresApproval": st.booleans(), "maxFileSizeBytes": st.just(0)},
    )


entries = st.tuples(
    *(
        entry(name, allowedPaths=PLACES, blockedPaths=[*PLACES, "relative"])
        for name in CALLS
        if name.startswith("File")
    ),
    entry("Shell.Exec", allowedCommands=PROGRAMS, blockedCommands=PROGRAMS),
    entry("Network.Http", allowedDomains=DOMAINS, blockedDomains=[*DOMAINS, "not a domain"]),
    entry("Workspace.Upload", allowedToolNames=["UploadArtifact", "Other"]),
)
bundles = st.tuples(entries, st.sets(st.integers(0, 5))).map(
    lambda drawn: bundle(*(one for place, one in enumerate(drawn[0]) if place not in drawn[1]))
)
options = st.builds(
    TaskOptions, st.none() | st.sampled_from(["always", "on_risky_actions", "never"]), st.none() | st.booleans()
)


def verdict(held: PolicyBundle, capability: str, facts: ActionFacts, limit: Limits, option: TaskOptions) -> str:
    """What becomes of a call, as the loop finds it out."""
    decision = check_tool(held, capability, facts, now=NOW, workspace="/w")
    decision = apply(apply_task_options, decision, held, facts, options=option, has_side_effects=True, workspace="/w")
    return apply(apply_risk_ceiling, decision, held, facts, limits=limit, workspace="/w").decision


@pytest.mark.slow
@settings(max_examples=400)
@given(bundles, limits, options)
def test_a_tool_is_shown_exactly_when_a_call_of_it_could_be_allowed(
    held: PolicyBundle, limit: Limits, option: TaskOptions
) -> None:
    for tool, capability in TOOLS.items():
        why_not = why_not_offered(held, tool, capability, limits=limit, options=option, workspace="/w")
        withheld = withheld_by(limit, tool, capability)
        could = withheld is None and any(
            verdict(held, capability, facts, limit, option) != "DENIED" for facts in CALLS[capability]
        )
        assert (why_not is None) == could, (tool, why_not, held.capability(capability))


ONLY_OUTSIDE = "its risk is high, and user admits medium at most"


@each_row(
    ("lists", "why"),
    [
        ({}, None),
        ({"allowedPaths": ["/"]}, None),
        ({"allowedPaths": ["/x", "/"]}, None),
        ({"allowedPaths": ["/x", "/w/a"]}, None),
        ({"allowedPaths": ["/x", "/w"], "blockedPaths": ["/w/a"]}, None),
        ({"allowedPaths": ["/x"]}, ONLY_OUTSIDE),
        ({"allowedPaths": ["/wider"]}, ONLY_OUTSIDE),
        ({"allowedPaths": ["/x", "/w/a"], "blockedPaths": ["/w/a"]}, ONLY_OUTSIDE),
        ({"blockedPaths": ["/w"]}, ONLY_OUTSIDE),
        ({"blockedPaths": ["/W"]}, ONLY_OUTSIDE),
        ({"allowedPaths": ["/x", "/w/A"], "blockedPaths": ["/w/a"]}, ONLY_OUTSIDE),
    ],
)
def test_what_can_only_be_written_outside_of_the_project_is_risky(lists: dict[str, Any], why: str | None) -> None:
    limit = frozenset({ToolLimit("user", risk_ceiling="medium")})
    for name in ("File.Write", "File.Read"):
        held = bundle({"name": name, **lists})
        told = why_not_offered(held, "T", name, limits=limit, workspace="/w")
        assert told == (why if name == "File.Write" else None)
        assert why_not_offered(held, "T", name, limits=limit) is None
        assert why_not_offered(held, "T", name, workspace="/w") is None


@given(limits, limits, limits)
def test_limits_are_put_together_in_any_order(one: Limits, two: Limits, three: Limits) -> None:
    assert merge([one, two]) == merge([two, one])
    assert merge([merge([one, two]), three]) == merge([one, merge([two, three])])
    assert merge([one, one]) == merge([one]) == one == merge([one, NO_LIMITS])
    assert merge([]) == NO_LIMITS


@pytest.mark.slow
@given(bundles, limits, limits, options)
def test_one_limit_more_never_shows_more(held: PolicyBundle, one: Limits, two: Limits, option: TaskOptions) -> None:
    both = merge([one, two])
    for tool, capability in TOOLS.items():
        if why_not_offered(held, tool, capability, limits=both, options=option) is None:
            for fewer in (one, two, NO_LIMITS):
                assert why_not_offered(held, tool, capability, limits=fewer, options=option) is None


@given(limits, limits)
def test_the_answer_does_not_depend_on_the_order(one: Limits, two: Limits) -> None:
    for tool, capability in TOOLS.items():
        assert withheld_by(merge([one, two]), tool, capability) == withheld_by(merge([two, one]), tool, capability)


@pytest.mark.slow
@given(bundles, limits, limits)
def test_a_ceiling_more_never_allows_more(held: PolicyBundle, one: Limits, two: Limits) -> None:
    for capability, calls in CALLS.items():
        for facts in calls:
            decision = check_tool(held, capability, facts, now=NOW, workspace="/w")
            under_one = apply(apply_risk_ceiling, decision, held, facts, limits=one, workspace="/w")
            under_both = apply(apply_risk_ceiling, decision, held, facts, limits=merge([one, two]), workspace="/w")
            assert under_one.decision in {decision.decision, "DENIED"}
            assert under_both.decision in {under_one.decision, "DENIED"}


@pytest.mark.parametrize(
    ("ceiling", "shown"),
    [
        ("low", {"ReadFile", "UploadArtifact"}),
        ("medium", {"ReadFile", "UploadArtifact", "WriteFile", "RunCommand", "HttpRequest"}),
        ("high", set(TOOLS)),
    ],
)
def test_a_ceiling_hides_what_is_riskier_in_any_case(ceiling: Any, shown: set[str]) -> None:
    held = bundle(*({"name": name} for name in TOOLS.values()))
    limit = frozenset({ToolLimit("policy.risk_ceiling", risk_ceiling=ceiling)})
    found = {tool for tool, name in TOOLS.items() if why_not_offered(held, tool, name, limits=limit) is None}
    assert found == shown
    assert all(DEFAULT_RISK[TOOLS[tool]] in RISK_LEVELS[: RISK_LEVELS.index(ceiling) + 1] for tool in shown)


@pytest.mark.parametrize(
    ("capability", "mild", "risky"),
    [
        ("File.Write", PathFacts("/w/a", "/w/a", "/w/a"), PathFacts("/x/a", "/x/a", "/x/a")),
        ("Shell.Exec", CommandFacts("ls", "/w"), CommandFacts("frobnicate", "/w")),
        ("Network.Http", UrlFacts("https://pypi.org/"), UrlFacts("https://h.example/")),
    ],
)
def test_a_ceiling_denies_the_riskier_call_of_a_tool_that_is_shown(
    capability: str, mild: ActionFacts, risky: ActionFacts
) -> None:
    held = bundle({"name": capability})
    limit = frozenset({ToolLimit("policy.risk_ceiling", risk_ceiling="medium")})

    def judged(facts: ActionFacts) -> Any:
        decision = check_tool(held, capability, facts, now=NOW, workspace="/w")
        return apply(apply_risk_ceiling, decision, held, facts, limits=limit, workspace="/w")

    assert judged(mild).decision == "ALLOWED"
    denial = judged(risky)
    assert (denial.decision, denial.rule, denial.risk_level) == ("DENIED", "policy.risk_ceiling", "high")
    assert denial.reason.startswith("its risk is high, and policy.risk_ceiling admits medium at most; ")


def test_each_narrowing_says_whose_it_is() -> None:
    held = bundle({"name": "File.Read"}, {"name": "Shell.Exec", "requiresApproval": True})
    limit = frozenset({ToolLimit("the user", withheld=frozenset({"ReadFile"})), ToolLimit("a skill", frozenset())})
    assert why_not_offered(held, "ReadFile", "File.Read", limits=limit) == "a skill does not list it"
    assert withheld_by(limit - {ToolLimit("a skill", frozenset())}, "ReadFile", "File.Read") == "the user"
    assert why_not_offered(held, "WriteFile", "File.Write") == "the bundle does not grant File.Write"
    asks_nobody = why_not_offered(held, "RunCommand", "Shell.Exec", options=TaskOptions("never"))
    assert asks_nobody == "it needs an approval, and the task must not ask for one"
    assert why_not_offered(held, "RunCommand", "Shell.Exec") is None


@each_row(
    ("grant", "why"),
    [
        ({"name": "File.Read", "allowedPaths": []}, "File.Read.allowedPaths of the bundle is empty"),
        (
            {"name": "File.Read", "allowedPaths": ["/w"], "blockedPaths": ["/W"]},
            "every path that File.Read of the bundle allows is blocked",
        ),
        (
            {"name": "File.Read", "allowedPaths": ["/W"], "blockedPaths": ["/w"]},
            "every path that File.Read of the bundle allows is blocked",
        ),
        ({"name": "File.Read", "blockedPaths": ["/"]}, "every path that File.Read of the bundle allows is blocked"),
        ({"name": "File.Read", "blockedPaths": ["/xx", "/w"]}, None),
        (
            {"name": "File.Read", "blockedPaths": ["/w", "w"]},
            "an entry of File.Read.blockedPaths of the bundle cannot be read, so that all is refused",
        ),
        ({"name": "Network.Http", "allowedDomains": []}, "Network.Http.allowedDomains of the bundle is empty"),
        (
            {"name": "Network.Http", "blockedDomains": ["a.example", "a b"]},
            "an entry of Network.Http.blockedDomains of the bundle cannot be read, so that all is refused",
        ),
        (
            {"name": "Network.Http", "allowedDomains": ["a.example"], "blockedDomains": ["a.example"]},
            "every domain that Network.Http of the bundle allows is blocked",
        ),
        (
            {"name": "Network.Http", "allowedDomains": ["*.a.example"], "blockedDomains": ["*.example"]},
            "every domain that Network.Http of the bundle allows is blocked",
        ),
        (
            {"name": "Network.Http", "allowedDomains": ["a b"], "blockedDomains": ["a.example"]},
            "every domain that Network.Http of the bundle allows is blocked",
        ),
        ({"name": "Network.Http", "allowedDomains": ["*.a.example"], "blockedDomains": ["b.a.example"]}, None),
        ({"name": "Network.Http", "blockedDomains": ["*.example"]}, None),
        ({"name": "Shell.Exec", "allowedCommands": []}, "Shell.Exec.allowedCommands of the bundle is empty"),
        (
            {"name": "Workspace.Upload", "allowedToolNames": ["x"]},
            "Workspace.Upload.allowedToolNames of the bundle does not list it",
        ),
    ],
)
def test_a_grant_of_nothing_says_so(grant: dict[str, Any], why: str | None) -> None:
    (tool,) = (tool for tool, name in TOOLS.items() if name == grant["name"])
    assert why_not_offered(bundle(grant), tool, grant["name"]) == why


def test_a_block_of_one_root_blocks_no_other_drive() -> None:
    held = bundle({"name": "File.Read", "blockedPaths": ["C:\\"]})
    assert why_not_offered(held, "ReadFile", "File.Read", os="windows") is None
