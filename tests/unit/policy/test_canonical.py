"""When two actions are the same one, and when they only look alike (SK 3.3)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.bundle import PolicyBundle, bundle_from_trusted, policy_hash
from policy.facts import CommandFacts, NamedToolFacts, OsFamily, PathFacts, ShellName, UrlFacts
from policy.rules.canonical import canonical_form, canonical_url
from tests.support.rows import each_row
from tests.unit.policy.helpers import bundle, bundle_json


def of_path(real: str, os: OsFamily = "posix", asked: str | None = None) -> tuple[str, ...]:
    return canonical_form(PathFacts(asked or real, asked or real, real), os)


def of_line(line: str, shell: ShellName = "bash", cwd: str = "/w") -> tuple[str, ...]:
    return canonical_form(CommandFacts(line, cwd, shell), "posix")


def test_a_file_by_its_form() -> None:
    assert of_path("/w/./a", asked="/w/link") == of_path("/w/a") == ("path", "/w/a")
    assert of_path("c:/w/A", "windows") == of_path("C:\\W\\a", "windows") == ("path", "c:\\w\\a")


def test_a_command_is_its_line_its_shell_and_its_directory() -> None:
    assert of_line(" ls  -l\ta ") == ("command", "bash", "/w", "ls -l a")
    assert canonical_form(CommandFacts("ls  -l a", "/w"), "posix") == of_line("ls -l a")
    assert of_line("ls  'a  b' ")[3] == "ls  'a  b' "
    assert [of_line(line)[3] for line in ("ls\na", "ls  a;b", "'  a")] == ["ls\na", "ls  a;b", "'  a"]


def test_a_request_is_its_method_and_url_and_a_tool_its_name() -> None:
    put = canonical_form(UrlFacts("https://A.example", "PUT"), "posix")
    assert put == ("request", "PUT", "https://a.example/")
    assert canonical_form(UrlFacts("https://a.example/b"), "posix") == ("request", "GET", "https://a.example/b")
    assert canonical_form(NamedToolFacts("t"), "posix") == ("tool", "t")


@pytest.mark.parametrize(
    ("one", "other", "os"),
    [
        ("/w/a", "/w/./a", "posix"),
        ("/w/a", "/w//b/../a", "posix"),
        ("C:\\w\\a", "c:/W/A", "windows"),
        ("C:\\w\\É", "C:\\w\\é", "windows"),
    ],
)
def test_one_file_in_two_spellings(one: str, other: str, os: OsFamily) -> None:
    assert of_path(one, os) == of_path(other, os)


@each_row(
    ("one", "other", "os"),
    [
        ("/w/a", "/w/A", "posix"),
        ("/w/a", "/w/a ", "posix"),
        ("/w/é", "/w/e\u0301", "posix"),
        ("/w/a", "/w/a/b", "posix"),
        ("/w/a", "/w/a\n", "posix"),
        ("C:\\w\\a", "D:\\w\\a", "windows"),
        ("C:\\w\\straße", "C:\\w\\strasse", "windows"),
        ("C:\\w\\a", "\\\\h\\w\\a", "windows"),
    ],
)
def test_two_files(one: str, other: str, os: OsFamily) -> None:
    assert of_path(one, os) != of_path(other, os)


def test_a_file_is_where_it_really_is() -> None:
    assert of_path("/w/real", asked="/w/link") == of_path("/w/real")
    assert of_path("/w/real", asked="/w/link") != of_path("/w/link")


@each_row("shell", ["bash", "sh", "zsh"])
@each_row("same", ["make all", "  make   all ", "make\tall", "make all\n"])
def test_blanks_between_plain_words_do_not_count(same: str, shell: ShellName) -> None:
    assert of_line(same, shell) == of_line("make all", shell)


@each_row(
    ("one", "other"),
    [
        ("echo 'a b'", "echo 'a  b'"),
        ('echo "a b"', 'echo "a\tb"'),
        ("echo a\\ ", "echo a\\"),
        ("make all", "make\nall"),
        ("make all", "make all\nrm x"),
        ("make all", "make\u00a0all"),
        ("make all", "make all\u00a0"),
        ("make all", "make all\r"),
        ("make all", "make all\x1c"),
        ("make all", "make allx"),
        ("make all", "make 'all'"),
        ("make all;", "make all"),
        ("echo a #b", "echo a"),
        ("cat <<E\n a\nE", "cat <<E\na\nE"),
        ("a=$(x  y)", "a=$(x y)"),
    ],
)
def test_two_commands_that_look_alike(one: str, other: str) -> None:
    assert of_line(one) != of_line(other)


@pytest.mark.parametrize("shell", ["cmd", "powershell"])
def test_on_windows_a_program_gets_the_line_as_it_is(shell: ShellName) -> None:
    assert of_line("echo a  b", shell) != of_line("echo a b", shell)


def test_the_directory_and_the_shell_count() -> None:
    assert of_line("make", cwd="/w") != of_line("make", cwd="/w/b")
    assert of_line("make", "sh") != of_line("make", "bash")


@each_row(
    "same",
    [
        "https://example.com/a?b=C",
        "HTTPS://EXAMPLE.com/a?b=C",
        "https://example.com:443/a?b=C",
        "https://example.com./a?b=C",
        "https://example.com:0443/a?b=C",
        "https://example.com:/a?b=C",
        "https://example.com/a?b=C#part",
        "https://ｅxample。com/a?b=C",
    ],
)
def test_one_url_in_many_spellings(same: str) -> None:
    assert canonical_url(same) == "https://example.com/a?b=C"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://bücher.example", "http://xn--bcher-kva.example/"),
        ("http://h.example?x", "http://h.example/?x"),
        ("http://h.example:80", "http://h.example/"),
        ("http://[::1]:80/", "http://[0:0::1]/"),
        ("http://127.1/", "http://127.0.0.1"),
    ],
)
def test_two_spellings_of_a_url(one: str, other: str) -> None:
    assert canonical_url(one) == canonical_url(other)


@each_row(
    ("one", "other"),
    [
        ("http://h.example/", "https://h.example/"),
        ("http://h.example/", "http://h.example:443/"),
        ("http://h.example/", "http://i.example/"),
        ("http://h.example/a", "http://h.example/A"),
        ("http://h.example/a", "http://h.example/a/"),
        ("http://h.example/a?b", "http://h.example/a?c"),
        ("http://h.example/a%2fb", "http://h.example/a/b"),
        ("http://h.example/a?b#c", "http://h.example/a?b%23c"),
        ("http://h.example/a", "http://h.example/a\nb"),
        ("http://u@h.example/a", "http://h.example/a"),
    ],
)
def test_two_urls(one: str, other: str) -> None:
    assert canonical_url(one) != canonical_url(other)


def test_the_method_of_a_request_counts() -> None:
    get, post = (canonical_form(UrlFacts("http://h.example/", method), "posix") for method in ("GET", "POST"))
    assert get != post


def test_kinds_of_actions_are_never_the_same() -> None:
    forms = {of_path("/w"), of_line("/w"), canonical_form(NamedToolFacts("/w"), "posix")}
    assert len(forms) == 3


@given(st.text(max_size=30))
def test_a_url_is_canonical_once_it_is(text: str) -> None:
    for url in (text, f"http://h.example/{text}", f"http://{text}"):
        assert canonical_url(canonical_url(url)) == canonical_url(url)


@given(st.text(max_size=20), st.text(max_size=20))
def test_only_blanks_make_two_lines_the_same(one: str, other: str) -> None:
    if of_line(one) == of_line(other):
        assert "".join(one.split()) == "".join(other.split())


# Under which policy


def test_a_policy_that_is_only_renewed_is_the_same() -> None:
    held = bundle({"name": "File.Read", "allowedPaths": ["/w"]})
    renewed = held._replace(expires_at=held.expires_at + timedelta(days=9), session_id="another")
    assert policy_hash(fresh(renewed)) == policy_hash(held)
    assert len(policy_hash(held)) == 64


def fresh(held: PolicyBundle) -> PolicyBundle:
    """Read anew: without what was remembered of it."""
    return bundle_from_trusted(held.to_json())


@pytest.mark.parametrize(
    "changes",
    [
        {"policyBundleVersion": "2"},
        {"tenantId": "other"},
        {"redactionRules": [{"redactionRuleId": "r", "pattern": "x"}]},
        {"approvalRules": [{"approvalRuleId": "a", "title": "t", "description": "d"}]},
        {"capabilities": [{"name": "File.Read", "allowedPaths": ["/w", "/x"]}]},
        {"capabilities": [{"name": "File.Read", "allowedPaths": ["/w"], "requiresApproval": True}]},
        {"capabilities": []},
    ],
)
def test_a_policy_that_says_something_else_is_another(changes: dict[str, object]) -> None:
    held = bundle_json({"name": "File.Read", "allowedPaths": ["/w"]})
    assert policy_hash(bundle_from_trusted({**held, **changes})) != policy_hash(bundle_from_trusted(held))
