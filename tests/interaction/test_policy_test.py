"""`policy check --exit-code` and `policy test FILE`: a decision as an exit code, and a file of expected decisions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from tests.support.process import Host

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.process import Outcome


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    made = Host(tmp_path_factory.mktemp("machine"))
    made.policy(without=("File.Delete",), grants={"Shell.Exec": {"requiresApproval": True}})
    yield made
    made.close()


def policy_of(host: Host) -> tuple[str, str]:
    return ("--policy", str(host.root / "policy.json"))


ALLOWED = {"toolName": "ReadFile", "arguments": {"path": "a.txt"}}
DENIED = {"toolName": "DeleteFile", "arguments": {"path": "a.txt"}}
ASKED = {"toolName": "RunCommand", "arguments": {"command": "make"}}
BROKEN = {"toolName": 5}


def lines(*cases: object) -> bytes:
    return b"".join(one if isinstance(one, bytes) else json.dumps(one).encode() + b"\n" for one in cases)


# check --exit-code


@pytest.mark.parametrize(("case", "code"), [(ALLOWED, 0), (DENIED, 1), (ASKED, 4)])
@pytest.mark.parametrize("output", ["json", pytest.param("text", marks=pytest.mark.slow)])
def test_a_decision_has_a_code_of_its_own(host: Host, case: dict[str, Any], code: int, output: str) -> None:
    asked = ("policy", "check", *policy_of(host), "--output", output, case["toolName"], json.dumps(case["arguments"]))
    told, untold = host.run(*asked, "--exit-code"), host.run(*asked)
    assert (told.code, untold.code) == (code, 0)
    assert told.stdout == untold.stdout


@pytest.mark.parametrize("arguments", ["{", "[]", '{"path": 1, "path": 2}'])
def test_a_call_that_cannot_be_read_is_2(host: Host, arguments: str) -> None:
    outcome = host.run("policy", "check", *policy_of(host), "--exit-code", "ReadFile", arguments)
    assert outcome.code == 2
    assert outcome.stdout == b""


BATCHES = [
    ((ALLOWED, ALLOWED), 0),
    ((ALLOWED, ASKED), 4),
    ((ASKED, DENIED, ALLOWED), 1),
    ((ASKED, ALLOWED, DENIED, b"{\n"), 2),
    ((BROKEN,), 2),
    ((), 0),
]


@pytest.mark.parametrize(("cases", "code"), BATCHES)
def test_many_have_the_first_of_2_1_4(host: Host, cases: tuple[object, ...], code: int) -> None:
    asked = ("policy", "check", *policy_of(host), "--batch", "-")
    outcome = host.run(*asked, "--exit-code", stdin=lines(*cases))
    assert outcome.code == code
    assert len(outcome.stdout.splitlines()) == len(cases)
    if code != 2:
        assert host.run(*asked, stdin=lines(*cases)).code == 0


# test


def tried(host: Host, *cases: object, options: tuple[str, ...] = ()) -> Outcome:
    return host.run("policy", "test", "-", *policy_of(host), *options, stdin=lines(*cases))


def rule_of(host: Host, case: dict[str, Any]) -> str:
    outcome = host.run("policy", "check", *policy_of(host), "--batch", "-", stdin=lines(case))
    rule = outcome.result["rule"]
    assert isinstance(rule, str)
    return rule


def test_cases_that_are_as_expected(host: Host) -> None:
    rule = rule_of(host, DENIED)
    outcome = tried(
        host,
        {**ALLOWED, "expect": "ALLOWED"},
        b"\n",
        {**DENIED, "id": "no deletes", "expect": {"decision": "DENIED", "rule": rule}},
        {**ASKED, "expect": {"decision": "APPROVAL_REQUIRED"}},
    )
    assert outcome.code == 0
    assert outcome.text == "3 cases, 3 as expected\n"


def test_one_that_is_not_is_named_with_what_it_is(host: Host) -> None:
    outcome = tried(
        host,
        {**ALLOWED, "expect": "ALLOWED"},
        {**DENIED, "id": "x\x1b[31m\ny", "expect": "ALLOWED"},
        {**DENIED, "expect": {"decision": "DENIED", "rule": "another"}},
    )
    assert outcome.code == 1
    first, second, last = outcome.text.splitlines()
    assert first.startswith("FAIL  line 2 (x")
    assert "\x1b" not in first
    assert "expected ALLOWED, is DENIED by " in first
    assert "expected DENIED by another, is DENIED by " in second
    assert last == "3 cases, 1 as expected"


UNUSABLE: dict[str, object] = {
    "without what is expected": ALLOWED,
    "null": {**ALLOWED, "expect": None},
    "another word": {**ALLOWED, "expect": "allowed"},
    "a list": {**ALLOWED, "expect": ["ALLOWED"]},
    "a number": {**ALLOWED, "expect": 1},
    "an object without a decision": {**ALLOWED, "expect": {"rule": "x"}},
    "a decision that is a list": {**ALLOWED, "expect": {"decision": ["ALLOWED"]}},
    "a decision that is an object": {**ALLOWED, "expect": {"decision": {}}},
    "a rule that is no text": {**ALLOWED, "expect": {"decision": "ALLOWED", "rule": 5}},
    "more than that": {**ALLOWED, "expect": {"decision": "ALLOWED", "reason": "x"}},
    "twice": b'{"toolName": "ReadFile", "arguments": {"path": "a"}, "expect": "ALLOWED", "expect": "DENIED"}\n',
    "no tool": {"arguments": {}, "expect": "ALLOWED"},
    "arguments that are none": {**ALLOWED, "arguments": [], "expect": "ALLOWED"},
    "a key of none": {**ALLOWED, "workspac": "/", "expect": "ALLOWED"},
    "no object": [],
    "no JSON": b"{\n",
    "no UTF-8": b'{"toolName": "\xff"}\n',
    "too deep": b'{"expect": ' + b"[" * 3000 + b"]" * 3000 + b"}\n",
    "rather deep": b'{"toolName": "ReadFile", "expect": "DENIED", "arguments": '
    + b'{"a":' * 190
    + b"1"
    + b"}" * 190
    + b"}\n",
    "an unknown system": {**ALLOWED, "os": "beos", "expect": "ALLOWED"},
    "an unknown level": {**ALLOWED, "sandbox": "steel", "expect": "ALLOWED"},
}
MAY_BE_JUDGED = {"rather deep"}


def test_one_that_cannot_be_used_is_named_and_the_others_are_judged(host: Host) -> None:
    good = {**ALLOWED, "expect": "ALLOWED"}
    outcome = tried(host, good, *UNUSABLE.values(), good)
    assert outcome.code == 2
    *shown, last = outcome.text.splitlines()
    found = {int(line.split()[2].rstrip(":")): line for line in shown}
    for number, name in enumerate(UNUSABLE, 2):
        if name not in MAY_BE_JUDGED:
            assert found[number].startswith("error line "), (name, shown)
    assert last.startswith(f"{len(UNUSABLE) + 2} cases, ")


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in UNUSABLE])
def test_one_that_cannot_be_used_is_2(host: Host, name: str) -> None:
    outcome = tried(host, {**DENIED, "expect": "ALLOWED"}, UNUSABLE[name])
    assert outcome.code == (1 if name in MAY_BE_JUDGED else 2)


def test_a_file_of_no_case_tests_nothing(host: Host) -> None:
    for data in (b"", b"\n \n"):
        outcome = tried(host, data)
        assert outcome.code == 2
        assert outcome.text == "0 cases, 0 as expected\n"


def test_a_file_that_is_not_there(host: Host) -> None:
    outcome = host.run("policy", "test", "none.jsonl", *policy_of(host))
    assert outcome.code == 2
    assert "none.jsonl: No such file or directory" in outcome.error
    assert "--batch" not in outcome.error


def test_an_answer_is_the_same_on_any_machine(host: Host) -> None:
    """A level and a system that the machine or its configuration may have are not those of a case."""
    host.configure(sandbox="auto")
    line = {"toolName": "RunCommand", "arguments": {"command": "curl http://x.example"}}
    windows = {"toolName": "RunCommand", "arguments": {"command": "del /q a"}, "os": "windows"}
    asked = ("policy", "check", "--policy", "ci", "--batch", "-")
    try:
        plain = host.run(*asked, "--sandbox", "none", stdin=lines({**line, "os": "posix"}, windows))
        expected = [json.loads(row)["decision"] for row in plain.stdout.splitlines()]
        cases = [{**one, "expect": word} for one, word in zip((line, windows), expected, strict=True)]
        outcome = host.run("policy", "test", "-", "--policy", "ci", stdin=lines(*cases))
    finally:
        host.configure()
    assert (outcome.code, outcome.text) == (0, "2 cases, 2 as expected\n")


def test_the_report_has_a_case_for_each(host: Host, tmp_path: Path) -> None:
    report = tmp_path / "policy.xml"
    report.write_text("of an older run")
    cases = (
        {**ALLOWED, "id": "reads", "expect": "ALLOWED"},
        {**DENIED, "id": "<b>\x00\x1b", "expect": "ALLOWED"},
        {**DENIED, "id": "unread"},
    )
    outcome = tried(host, *cases, options=("--junit", str(report)))
    assert outcome.code == 2
    root = ET.fromstring(report.read_bytes())
    assert (root.get("tests"), root.get("failures"), root.get("errors"), root.get("skipped")) == ("3", "1", "1", "0")
    found = list(root.iter("testcase"))
    assert [[child.tag for child in case] for case in found] == [[], ["failure"], ["error"]]
    assert "reads" in found[0].get("name", "")
    assert "<b>" in found[1].get("name", "")
    assert "expected ALLOWED, is DENIED" in found[1][0].get("message", "")


def test_a_report_that_cannot_be_written_is_said_before_a_case_is_judged(host: Host, tmp_path: Path) -> None:
    outcome = tried(host, {**ALLOWED, "expect": "ALLOWED"}, options=("--junit", str(tmp_path / "none" / "x")))
    assert outcome.code == 2
    assert "--junit" in outcome.error
    assert outcome.stdout == b""


def test_a_report_takes_the_place_of_no_file_that_is_read(host: Host) -> None:
    cases, policy = host.root / "own.jsonl", host.root / "policy.json"
    cases.write_bytes(lines({**ALLOWED, "expect": "allowed"}))
    for path, said in ((cases, "FILE"), (policy, "--policy")):
        before = path.read_bytes()
        outcome = host.run("policy", "test", *policy_of(host), "--junit", path, cases)
        assert (outcome.code, outcome.stdout) == (2, b"")
        assert f"--junit {path}: {said} is read from there" in outcome.stderr
        assert path.read_bytes() == before
