"""How risky an action is, and why."""

from __future__ import annotations

from typing import Any

from policy.facts import ActionFacts, CommandFacts, NamedToolFacts, UrlFacts
from policy.rules.narrowing import assess
from tests.support.rows import each_row

from .helpers import bundle, path


def risk(name: str, facts: ActionFacts, *, workspace: str | None = "/w", **fields: Any) -> tuple[str, tuple[str, ...]]:
    entry = bundle({"name": name, **fields}).capability(name)
    assert entry is not None
    return assess(entry, facts, workspace=workspace)


def command(line: str, **real_paths: str) -> CommandFacts:
    return CommandFacts(line, cwd="/w", home="/home/u", real_paths={"/" + name: to for name, to in real_paths.items()})


def test_a_command_tells_every_reason() -> None:
    level, reasons = risk("Shell.Exec", command("evil; ls; evil; ./ls; $x"))
    assert level == "high"
    assert reasons[:2] == ("unknown command: evil", "unknown command: ./ls")
    assert reasons[2].startswith("cannot be decided: ")
    assert len(reasons) == 3
    for line, told in {
        "python -c x": "-c",
        'python "$x"': "…",
        "python -W $x a.py": "…",
        "python -Ic x": "-Ic",
        "python -": "-",
        "python": "what it reads",
    }.items():
        assert risk("Shell.Exec", command(line)) == ("high", (f"runs code in the line: python {told}",))
    assert risk("Shell.Exec", command("python -m pytest")) == ("medium", ())
    assert risk("Shell.Exec", command("make x")) == ("medium", ())
    assert risk("Shell.Exec", command("evil"), allowedCommands=["evil"]) == ("medium", ())
    assert risk("Shell.Exec", command("ls"), allowedCommands=["evil"])[0] == "high"


def test_what_a_command_writes_outside_of_the_project_is_told() -> None:
    outside = "writes outside the project directory: "
    for facts, reasons in (
        (command("ls > /a", a="/w/a"), ()),
        (command("ls > /a", a="/x/a"), (outside + "/a",)),
        (command("ls > /a"), (outside + "/a",)),
        (command("ls < /a", a="/x/a"), ()),
        (command("ls < /a"), ()),
        (command("cd sub; ls > a"), (outside + "/w/a", outside + "/w/sub/a")),
        (command("ls > ~/a"), (outside + "/home/u/a",)),
    ):
        assert risk("Shell.Exec", facts) == ("high" if reasons else "medium", reasons)
        assert risk("Shell.Exec", facts, workspace=None) == ("medium", ())


@each_row(
    ("name", "place", "fields", "workspace", "level"),
    [
        ("File.Write", "/w/a", {}, "/w", "medium"),
        ("File.Write", "/x/a", {}, "/w", "high"),
        ("File.Write", "/x/a", {}, None, "medium"),
        ("File.Write", "/x/a", {"allowedPaths": ["/w", "/x"]}, None, "medium"),
        ("File.Write", "/y/a", {"allowedPaths": ["/w", "/x"]}, None, "high"),
        ("File.Write", "/x/a", {"allowedPaths": ["/x"]}, "/w", "high"),
        ("File.Read", "/x/a", {}, "/w", "low"),
        ("File.Delete", "/w/a", {}, "/w", "high"),
        ("Workspace.Upload", "/x/a", {}, "/w", "low"),
    ],
)
def test_a_write_outside_of_the_project_is_risky(
    name: str, place: str, fields: dict[str, Any], workspace: str | None, level: str
) -> None:
    assert risk(name, path(place), workspace=workspace, **fields)[0] == level


@each_row(
    ("url", "level"),
    [
        ("https://pypi.org/x", "medium"),
        ("https://a.pypi.org/x", "high"),
        ("https://files.pythonhosted.org/x", "medium"),
        ("https://pythonhosted.org/x", "high"),
        ("https://github.com/x", "medium"),
        ("https://api.github.com/x", "medium"),
        ("https://registry.npmjs.org/x", "medium"),
        ("https://npmjs.org/x", "high"),
        ("https://crates.io/x", "medium"),
        ("https://static.crates.io/x", "high"),
        ("https://example.com/x", "high"),
        ("no url", "high"),
    ],
)
def test_a_domain_that_is_not_recognised_is_risky(url: str, level: str) -> None:
    assert risk("Network.Http", UrlFacts(url))[0] == level


def test_domains_that_the_bundle_lists_are_the_recognised_ones() -> None:
    assert risk("Network.Http", UrlFacts("https://example.com"), allowedDomains=["example.com"]) == ("medium", ())
    level, reasons = risk("Network.Http", UrlFacts("https://pypi.org"), allowedDomains=["example.com"])
    assert (level, reasons) == ("high", ("domain is not a recognised one: pypi.org",))
    assert risk("Network.Http", UrlFacts("ftp://x"))[1] == ("scheme ftp is not http or https",)


def test_what_has_no_facts_to_judge_has_the_risk_of_its_capability() -> None:
    assert risk("Tool.Invoke", NamedToolFacts("t")) == ("medium", ())
    assert risk("What.Ever", NamedToolFacts("t")) == ("high", ())
