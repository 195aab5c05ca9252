"""What a skill's allowed-tools leave."""

from __future__ import annotations

from policy import Decision
from policy.facts import CommandFacts, NamedToolFacts, ScriptFacts
from policy.rules.skills import apply_skill_limits, skill_tools
from policy.rules.toolset import withheld_by
from tests.support.rows import each_row
from tests.unit.policy.helpers import apply, bundle

KNOWN = frozenset({"ReadFile", "RunCommand", "HttpRequest", "lookup"})
ALLOWED = Decision("ALLOWED", "granted", "Shell.Exec", "capabilities")
GRANT = bundle({"name": "Shell.Exec"})


def admits(line: str, *entries: str) -> bool:
    limit = skill_tools("s", entries, KNOWN).limit
    decided = apply(
        apply_skill_limits, ALLOWED, GRANT, CommandFacts(line, "/w", "bash", "/h"), limits=frozenset({limit})
    )
    assert decided.decision in ("ALLOWED", "DENIED")
    return decided.decision == "ALLOWED"


@each_row(
    ("line", "pattern", "is_admitted"),
    [
        ("git log", "git log:*", True),
        ("git log -3", "git log:*", True),
        ("git logs", "git log:*", False),
        ("git status", "git log:*", False),
        ("git", "git log:*", False),
        ("git log -3", "git log *", True),
        ("npm run test-unit", "npm run test*", True),
        ("npm run build", "npm run test*", False),
        ("make check", "make check", True),
        ("make check all", "make check", False),
        ("anything at all", "*", True),
        ("git log && rm x", "git log:*", False),
        ("git log | cat", "git log:*", False),
        ("git log; git log", "git log:*", True),
        ('"git log" x', "git log:*", False),
        ("git log $(rm x)", "git log:*", False),
        ("git $what", "git log:*", False),
        ("make $what", "make check", False),
        ("$git log", "git log:*", False),
        ("", "git log:*", True),
    ],
)
def test_commands(line: str, pattern: str, is_admitted: bool) -> None:
    assert admits(line, f"Bash({pattern})") is is_admitted


def test_several_patterns_each_admit() -> None:
    assert admits("git log && ls -l", "Bash(git log:*)", "Bash(ls:*)")
    assert admits("rm x", "Bash(ls:*)", "Bash")
    assert not admits("ls", "Read")


def test_names_mean_tools_and_unknown_ones_nothing() -> None:
    tools = skill_tools("s", ["Read", "lookup", "Telepathy", "Read(/x)", "Bash(a*b)", "read"], KNOWN)
    assert tools.unknown == ("Telepathy", "Read(/x)", "Bash(a*b)", "read")
    limits = frozenset({tools.limit})
    for name in ("ReadFile", "read_file", "cp__read_file", "lookup", "load_skill", "ReadOutput"):
        assert withheld_by(limits, name, "File.Read") is None
    for name in ("WriteFile", "RunCommand", "HttpRequest", "Telepathy"):
        assert withheld_by(limits, name, "File.Write") == "the skill s does not list it"


def test_a_pattern_that_leaves_everything_is_as_none() -> None:
    """As skills of public repositories write it: `Read(*)`."""
    tools = skill_tools("s", ["Read(*)", "Write(:*)", "Bash(*)", "lookup( * )"], KNOWN)
    assert tools.unknown == ()
    for name in ("ReadFile", "read_file", "WriteFile", "lookup", "RunCommand"):
        assert withheld_by(frozenset({tools.limit}), name, "File.Read") is None
    assert withheld_by(frozenset({tools.limit}), "Grep", "File.Read") is not None
    assert admits("anything at all", "Read(*)", "Bash(*)")


def test_only_commands_are_judged_by_their_words() -> None:
    limits = frozenset({skill_tools("s", ["Bash(ls:*)"], KNOWN).limit})
    assert apply(apply_skill_limits, ALLOWED, GRANT, NamedToolFacts("CommandOutput"), limits=limits) == ALLOWED


def test_of_two_skills_both_hold() -> None:
    one, two = (skill_tools(name, [f"Bash({name}:*)"], KNOWN).limit for name in ("git", "ls"))
    decided = apply(
        apply_skill_limits, ALLOWED, GRANT, CommandFacts("git log", "/w", "bash", "/h"), limits=frozenset({one, two})
    )
    assert decided.decision == "DENIED"
    assert decided.rule == "the skill ls"


# Scripts of skills


def admits_script(interpreter: str, *entries: str, skill: str = "s", path: str = "scripts/fill.py") -> bool:
    """Whether the skill `s` with these entries admits its script, or that of another skill, with the argument `x`."""
    limit = skill_tools("s", entries, KNOWN).limit
    script = ScriptFacts(skill, path, "/skills/s", f"/skills/s/{path}", (f"/usr/bin/{interpreter}",), "ab")
    facts = CommandFacts(f"{interpreter} {script.path} x", "/run", "sh", "/h", argv=("x",), script=script)
    return apply(apply_skill_limits, ALLOWED, GRANT, facts, limits=frozenset({limit})).allowed


@each_row(
    ("interpreter", "pattern", "is_admitted"),
    [
        ("python3", "python3 scripts/fill.py:*", True),
        ("python3", "python3 ./scripts/fill.py:*", True),
        ("python3", "python scripts/fill.py:*", True),
        ("python3", "python:*", True),
        ("python3", "scripts/fill.py:*", True),
        ("python3", "./scripts/fill.py x", True),
        ("python3", "python3 /skills/s/scripts/fill.py:*", True),
        ("python3", "python3 scripts/other.py:*", False),
        ("python3", "python3 fill.py:*", False),
        ("python3", "scripts/fill.py", False),
        ("python3", "node:*", False),
        ("bash", "python3 scripts/fill.py:*", False),
        ("uv", "python3 scripts/fill.py:*", False),
    ],
)
def test_a_skill_names_its_scripts_as_its_text_does(interpreter: str, pattern: str, is_admitted: bool) -> None:
    assert admits_script(interpreter, f"Bash({pattern})") is is_admitted


def test_the_script_of_another_skill_is_none_of_its_own() -> None:
    assert not admits_script("python3", "Bash(python3 scripts/fill.py:*)", skill="other")
    assert admits_script("python3", "Bash(python3:*)", skill="other")
    assert admits_script("python3", "run_script") is False  # no tool here has that name
