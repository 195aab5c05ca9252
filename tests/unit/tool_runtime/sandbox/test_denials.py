"""What outputs tell of a sandbox's refusals: a corpus of messages as programs print them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import pytest

from agent_host.contracts import Denial
from policy import CommandScope
from policy.rules.sandbox import refusal
from tests.support.rows import each_row
from tool_runtime.processes.command import report
from tool_runtime.sandbox.denials import Disk, denials_in, filter_denials

HOME, CWD = "/home/u", "/home/u/ws"
SCOPE = CommandScope(
    writes=(CWD, "/tmp/p"),
    hidden=("/home/u/.ssh", "/home/u/.aws/credentials", "/home/u/ws/.env"),
    guarded=("/home/u/ws/.git/hooks", "/home/u/ws/.git/config"),
)


class World(Disk):
    """A disk that the corpus is about, seen by a plain user."""

    folders = (
        "/", "/etc", "/usr", "/usr/bin", "/usr/local/bin", "/usr/local/lib", "/var", "/var/lib", "/var/private",
        "/home", "/home/u", "/home/u/.ssh", "/home/u/.aws", "/home/u/ws", "/home/u/ws/.git", "/home/u/ws/.git/hooks",
        "/home/u/ws/locked", "/opt/mine", "/media/disk", "/media/ro", "/tmp/p", "/home/u/.npm", "/home/u/go",
        "/home/u/.cache", "/home/u/.cargo", "/home/u/.m2", "/home/u/.gradle", "/home/u/other/.git", "/home/u/.config",
        "/home/u/.local", "/home/u/ws2", "/proc/sys/kernel",
    )  # fmt: skip
    files = (
        "/etc/hosts", "/etc/shadow", "/etc/sudoers", "/usr/bin/true", "/usr/bin/ld", "/home/u/.ssh/id_rsa",
        "/home/u/.ssh/config", "/home/u/.aws/credentials", "/home/u/ws/.env", "/home/u/notes.txt", "/home/u/script.sh",
        "/home/u/plain", "/home/u/ws/script.sh", "/home/u/ws/a.py", "/home/u/ws/.git/config",
        "/home/u/ws/locked/secret", "/home/u/.gitconfig",
    )  # fmt: skip

    def real(self, path: str) -> str:
        return "/home/u/.ssh/id_rsa" if path == "/home/u/link-to-key" else path

    def may(self, path: str, *, write: bool) -> bool:
        if path.startswith(("/home/u/ws/locked/", "/etc/shadow", "/var/private", "/media/ro")):
            return False
        if not self.is_there(path):
            return write and self.is_there(os.path.dirname(path)) and self.may(os.path.dirname(path), write=True)
        return not write or path.startswith(("/home/u", "/opt/mine", "/tmp/p", "/media/disk"))

    def is_plain_file(self, path: str) -> bool:
        return path in self.files and not path.startswith("/usr/bin/")

    def is_there(self, path: str) -> bool:
        return path in self.folders or path in self.files

    def same_device(self, one: str, other: str) -> bool:
        return one.startswith("/media/") == other.startswith("/media/")


class Case(NamedTuple):
    exit_code: int
    expected: tuple[tuple[str, str], ...]
    output: str


def cases() -> list[Case]:
    text = (Path(__file__).parent / "refusals.txt").read_text(encoding="utf-8")
    found = []
    for line in text.splitlines():
        if line[:1].isdigit():
            code, expected, output = line.split(" | ", 2)
            pairs = () if expected == "-" else tuple(tuple(one.split(" ", 1)) for one in expected.split("; "))
            found.append(Case(int(code), pairs, output.replace("\\n", "\n")))  # type: ignore[arg-type]  # two words each
    return found


def told(case: Case, monkeypatch: pytest.MonkeyPatch) -> tuple[tuple[str, str], ...]:
    monkeypatch.setenv("HOME", HOME)
    found = denials_in(case.output, case.exit_code, SCOPE, CWD, World())
    return tuple((denial.action[0], denial.what) for denial in found)


def test_the_corpus_is_told_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = cases()
    assert len(corpus) >= 200
    false_alarms = [case for case in corpus if set(told(case, monkeypatch)) - set(case.expected)]
    missed = [case for case in corpus if set(case.expected) - set(told(case, monkeypatch))]
    expected = [case for case in corpus if case.expected]
    assert len(false_alarms) <= len(corpus) // 100, false_alarms
    assert len(missed) <= len(expected) // 10, missed


def test_nothing_is_claimed_of_a_command_that_succeeded(monkeypatch: pytest.MonkeyPatch) -> None:
    for case in cases():
        assert not told(case._replace(exit_code=0), monkeypatch)


def test_the_real_disk_answers_by_plain_permissions(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "file").chmod(0o600)
    disk = Disk()
    path = str(tmp_path / "file")
    assert disk.may(path, write=True)
    assert disk.may(path, write=False)
    assert disk.may(str(tmp_path / "new"), write=True)
    assert not disk.may(str(tmp_path / "new"), write=False)
    assert not disk.may(str(tmp_path / "no/new"), write=True)
    assert disk.is_plain_file(path)
    assert not disk.is_plain_file(str(tmp_path))
    assert disk.same_device(path, str(tmp_path / "new"))


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("curl: (6) Could not resolve host: example.com", "example.com"),
        ("npm error getaddrinfo EAI_AGAIN registry.npmjs.org", "registry.npmjs.org"),
        ("dial tcp: lookup proxy.golang.org: connection refused", "proxy.golang.org"),
        ("fatal: unable to access 'https://a.b/': Could not resolve host: a.b", "a.b"),
        ("[Errno -3] Temporary failure in name resolution", None),
    ],
)
def test_a_refused_look_up_names_its_host(text: str, host: str | None) -> None:
    refused = Denial("socket", "UDP", "network", "look up names by")
    found = filter_denials([refused], text)
    assert found == [refused if host is None else Denial("host", host, "network", "connect")]


@pytest.mark.parametrize(
    "text",
    [
        "curl: (6) Could not resolve host: example.com",
        "ERROR: No matching distribution found for requests",
        "socket.gaierror: [Errno -2] Name or service not known",
        "connection broken by 'NewConnectionError(': [Errno -3] Temporary failure in name resolution')'",
        "npm error getaddrinfo EAI_AGAIN registry.npmjs.org",
    ],
)
def test_a_look_up_that_was_missed_is_told(text: str) -> None:
    refused = Denial("socket", "UDP", "network", "look up names by")
    assert filter_denials([refused], text)
    assert not filter_denials([refused], "1 test failed")
    assert filter_denials([refused], "", was_ended=True) == [refused]


@pytest.mark.parametrize(("is_allowed", "rule"), [(True, "proxy"), (False, "domains")])
def test_a_look_up_past_the_proxy_is_told_from_a_host_that_is_not_allowed(is_allowed: bool, rule: str) -> None:
    refused = Denial("socket", "UDP", "proxy", "look up names by")
    (found,) = filter_denials([refused], "getaddrinfo EAI_AGAIN a.b", lambda _: is_allowed)
    assert found == Denial("host", "a.b", rule, "connect")
    assert ("HTTP_PROXY" in found.note()) == is_allowed


def test_a_report_names_ten_and_counts_the_rest() -> None:
    denials = [Denial("path", f"/x/{number}", "writes", "write") for number in range(12)]
    text = report(denials, SCOPE)
    assert text.count("refused") == 10
    assert "and 2 more" in text
    assert "Commands may write in: /home/u/ws, /tmp/p" in text
    assert report([], SCOPE) == ""


@each_row(
    ("path", "read", "write"),
    [
        ("/home/u/ws", None, None),
        ("/home/u/ws/a", None, None),
        ("/home/u/wsx", None, "writes"),
        ("/home/u/ws/.env", "hidden", "hidden"),
        ("/home/u/ws/.envrc", None, None),
        ("/home/u/ws/.git/hooks", None, "guarded"),
        ("/home/u/ws/.git/hooks/a/b", None, "guarded"),
        ("/home/u/ws/.git", None, None),
        ("/home/u/.ssh/x", "hidden", "hidden"),
        ("/etc/hosts", None, "writes"),
    ],
)
def test_the_scope_says_what_it_refuses(path: str, read: str | None, write: str | None) -> None:
    assert (refusal(SCOPE, path, "posix", write=False), refusal(SCOPE, path, "posix", write=True)) == (read, write)


def test_the_inmost_place_decides() -> None:
    scope = CommandScope(reads=("/a",), writes=("/a/h/w",), hidden=("/a/h", "/a/h/w/x"), guarded=("/a/h/w/g",))
    assert refusal(scope, "/a/h/file", "posix", write=False) == "hidden"
    assert refusal(scope, "/a/h/w/file", "posix", write=True) is None
    assert refusal(scope, "/a/h/w/x/y", "posix", write=False) == "hidden"
    assert refusal(scope, "/a/h/w/g", "posix", write=True) == "guarded"
    assert refusal(scope, "/b", "posix", write=False) == "reads"
