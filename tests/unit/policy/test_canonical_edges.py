"""When two actions are the same: one spelling for what is the same, another for what is not."""

from __future__ import annotations

import pytest

from policy.bundle import policy_hash
from policy.facts import ActionFacts, CommandFacts, NamedToolFacts, UrlFacts
from policy.rules.canonical import canonical_form, canonical_url
from tests.support.rows import each_row

from .helpers import bundle, path


def form(facts: ActionFacts) -> tuple[str, ...]:
    return canonical_form(facts, "posix")


def test_a_file_is_where_it_really_is() -> None:
    assert form(path("/w/link", "/w/./a")) == form(path("/w/a")) == ("path", "/w/a")
    assert form(path("/w/A")) != form(path("/w/a"))
    windows = canonical_form(path("C:\\W\\a"), "windows")
    assert windows == canonical_form(path("c:/w/A"), "windows") == ("path", "c:\\w\\a")
    assert canonical_form(path("C:\\stra\u00dfe"), "windows") != canonical_form(path("C:\\strasse"), "windows")


def test_a_command_is_its_line_its_shell_and_its_directory() -> None:
    assert form(CommandFacts(" ls  -l\ta ", cwd="/w")) == ("command", "bash", "/w", "ls -l a")
    assert form(CommandFacts("ls  'a  b' ", cwd="/w")) == ("command", "bash", "/w", "ls  'a  b' ")
    assert form(CommandFacts("ls\na", cwd="/w"))[3] == "ls\na"
    assert form(CommandFacts("ls  a;b", cwd="/w"))[3] == "ls  a;b"
    assert form(CommandFacts("'  a", cwd="/w"))[3] == "'  a"
    assert form(CommandFacts("ls", cwd="/v")) != form(CommandFacts("ls", cwd="/w"))
    assert form(CommandFacts("ls", cwd="/w", shell="sh")) != form(CommandFacts("ls", cwd="/w"))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("rm a", " rm\ta ", True),
        ("rm a\n", "rm a", True),
        ("rm a\u00a0", "rm a", False),
        ("rm a\u3000", "rm a", False),
        ("rm a\\ ", "rm a\\", False),
        ("rm a\x1f", "rm a", False),
        ("rm a\n\nb", "rm a b", False),
    ],
)
def test_a_blank_that_is_part_of_a_word_or_ends_a_command_counts(one: str, other: str, same: bool) -> None:
    assert (form(CommandFacts(one, cwd="/w")) == form(CommandFacts(other, cwd="/w"))) is same


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("C:\\Work\\É", "c:\\work\\é", True),
        ("C:\\wor\u212a", "C:\\work", False),  # the sign for Kelvin
        ("C:\\\u0130", "C:\\i\u0307", False),
        ("C:\\stra\u1e9ee", "C:\\straße", False),
    ],
)
def test_windows_names_are_one_as_far_as_ntfs_takes_them_for_one(one: str, other: str, same: bool) -> None:
    assert (canonical_form(path(one), "windows") == canonical_form(path(other), "windows")) is same


def test_a_request_is_its_method_and_url_and_a_tool_its_name() -> None:
    assert form(UrlFacts("https://A.example", "PUT")) == ("request", "PUT", "https://a.example/")
    assert form(NamedToolFacts("t")) == ("tool", "t")


@each_row(
    ("url", "same"),
    [
        ("HTTPS://Example.COM.:443/A?b=C#d", "https://example.com/A?b=C"),
        ("http://example.com:80", "http://example.com/"),
        ("http://example.com:443/", "http://example.com:443/"),
        ("https://example.com:80/", "https://example.com:80/"),
        ("https://example.com:8443/a", "https://example.com:8443/a"),
        ("https://example.com?q", "https://example.com/?q"),
        ("http://[::FFFF:1.1.1.1]:81/a", "http://[::ffff:101:101]:81/a"),
        ("http://127.1/", "http://127.0.0.1/"),
        ("x http://a.example/b", "x http://a.example/b"),
        ("ftp://A.example/B", "ftp://A.example/B"),
        ("no url", "no url"),
    ],
)
def test_a_url_has_one_spelling(url: str, same: str) -> None:
    assert canonical_url(url) == same


def test_a_policy_is_what_it_says_whoever_it_is_for_and_however_long() -> None:
    one = bundle({"name": "File.Read", "allowedPaths": ["/w/\ud800"]})
    assert policy_hash(one) == policy_hash(one)
    assert len(bytes.fromhex(policy_hash(one))) == 32
    entry = {"allowedPaths": ["/w/\ud800"], "name": "File.Read"}
    assert policy_hash(bundle(entry, expiresAt="2030-01-01T00:00:00Z", sessionId="*")) == policy_hash(one)
    assert policy_hash(bundle(entry, userId="v")) != policy_hash(one)
    assert policy_hash(bundle({"name": "File.Read"})) != policy_hash(one)
    assert policy_hash(bundle(entry, policyBundleVersion="2")) != policy_hash(one)
