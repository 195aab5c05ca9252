"""The files that a pipeline takes away from a run: what is in them, and that each is whole or not there."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from tests.support.git import commit_all, git
from tests.support.process import Host, call, gateway, say, shell, use
from tests.support.stopped_outputs import STEPS
from tests.unit.session import test_whole_patch as hostile

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.support.process import Outcome

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="descriptors of directories")

OPTIONS = ("patch", "summary", "junit", "result")
"""In the order in which they are written."""


class Taken:
    """The files in a folder, by option."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder

    def path(self, option: str) -> Path:
        return self.folder / option

    @property
    def options(self) -> list[str]:
        return [word for option in OPTIONS for word in (f"--{option}", str(self.path(option)))]

    @property
    def there(self) -> list[str]:
        return [option for option in OPTIONS if self.path(option).exists()]

    @property
    def patch(self) -> bytes:
        return self.path("patch").read_bytes()

    @property
    def summary(self) -> str:
        return self.path("summary").read_text()

    @property
    def result(self) -> dict[str, Any]:
        value = json.loads(self.path("result").read_bytes())
        assert isinstance(value, dict)
        return value

    @property
    def cases(self) -> list[ET.Element]:
        root = ET.fromstring(self.path("junit").read_bytes())
        cases = list(root.iter("testcase"))
        assert root.get("tests") == str(len(cases))
        for kind, count in (("failure", "failures"), ("skipped", "skipped"), ("error", "errors")):
            assert root.get(count) == str(sum(case.find(kind) is not None for case in cases))
        return cases

    def fill(self, text: str = "of an older run") -> None:
        for option in OPTIONS:
            self.path(option).write_text(text)

    def check_whole(self, options: Iterable[str] = OPTIONS) -> None:
        """What is there can be read to its end."""
        for option in options:
            if option == "patch":
                assert self.patch == b"" or self.patch.startswith(b"diff --git ")
                assert self.patch[-1:] in (b"\n", b"")
            elif option == "summary":
                assert self.summary.startswith("## agent-host: ")
                assert self.summary.endswith("\n")
            elif option == "junit":
                assert self.cases[0].get("name", "").startswith("task: ")
            else:
                assert self.result["sessionId"]


@pytest.fixture
def taken(tmp_path: Path) -> Taken:
    return Taken(tmp_path / "taken")


def tree(root: Path) -> dict[str, tuple[object, bool]]:
    """Content and whether it may be run, or where it leads, by path, without git's folder."""
    found: dict[str, tuple[object, bool]] = {}
    for path in root.rglob("*"):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = (os.readlink(path), False)
        elif path.is_file() and not name.startswith(".git/"):
            found[name] = (path.read_bytes(), bool(path.stat().st_mode & 0o100))
    return found


def is_utf8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


WRITES = use(call("WriteFile", path="a.txt", content="new\n"))


def test_the_patch_makes_fresh_clones_equal(host: Host, taken: Taken) -> None:
    work = host.workspace
    (work / "src").mkdir()
    for name, content in {
        "a.txt": b"one\ntwo", "gone.txt": b"x\n", "src/tool.sh": b"#!/bin/sh\n" * 20, "move.sh": b"\n" * 9,
        "logo.bin": bytes(range(256)), "crlf.txt": b"a\r\nb\r\n",
        "real": b"to be a link\n", "back": b"#!/bin/sh\n", "src/grün": b"gr\xfcn\n", "del.sh": b"#!/bin/sh\n" * 9,
    }.items():  # fmt: skip
        (work / name).write_bytes(content)
    (work / "lnk").symlink_to("a.txt")
    for name in ("del.sh", "move.sh"):
        (work / name).chmod(0o755)
    commit_all(work)
    clones = [host.root / "one", host.root / "two"]
    for clone in clones:
        git(host.root, "clone", "-q", str(work), str(clone))
    line = (
        "chmod +x src/tool.sh && mv src/tool.sh 'src/the \"tool\"' && rm gone.txt real && ln -s src/nowhere real "
        "&& printf '\\0\\1' >> logo.bin && printf 'c\\r\\n' >> crlf.txt && mkdir -p deep/er && : > deep/er/empty "
        "&& ln -sfn elsewhere lnk && printf 'bl\\344u\\n' >> src/grün && printf '#!/bin/sh\\n' > run "
        "&& chmod 755 run && cp -p run back"
    )
    (host.root / "line.sh").write_text(line)
    tools = use(
        call("EditFile", path="a.txt", edits=[{"oldText": "two", "newText": "2"}]),
        call("MoveFile", path="move.sh", newPath="moved.sh"),
        call("DeleteFile", path="del.sh"),
        call("WriteFile", path="again.sh", content="#!/bin/sh\n" * 9),
    )
    with gateway(tools, use(shell("rm back")), use(shell(f"sh {host.root}/line.sh")), say("Done.")) as served:
        outcome = host.task(served.url, *taken.options)
    assert outcome.code == 0
    assert outcome.result["patchOmitted"] == []
    assert outcome.result["patchFile"] == str(taken.path("patch"))
    assert all(row["status"] == "succeeded" for row in outcome.result["toolCalls"]), outcome.result["toolCalls"]
    git(clones[0], "apply", str(taken.path("patch")))
    git(clones[1], "apply", "--3way", str(taken.path("patch")))
    assert (work / "run").exists()
    assert tree(clones[0]) == tree(work)
    assert tree(clones[1]) == tree(work)


@pytest.mark.parametrize("given_in", [".", "packages/one"])
def test_a_workspace_below_the_root_of_its_repository(host: Host, taken: Taken, given_in: str) -> None:
    root, work = host.root / "all", host.root / "all/packages/one"
    work.mkdir(parents=True)
    (work / "a.txt").write_text("old\n")
    (root / "a.txt").write_text("of the root\n")
    commit_all(root)
    clone = host.root / "clone"
    git(host.root, "clone", "-q", str(root), str(clone))
    with gateway(
        use(shell("mv a.txt moved.txt"), call("WriteFile", path="new.txt", content="n\n")), say("Done.")
    ) as served:
        outcome = host.task(served.url, *taken.options, "--workspace", str(work))
    assert outcome.result["patchOmitted"] == []
    git(clone / given_in, "apply", str(taken.path("patch")))
    assert tree(clone) == tree(root)
    assert (clone / "packages/one/moved.txt").read_text() == "old\n"


HOSTILE = [name for name, trees in hostile.TREES.items() if all(is_utf8(path) for tree in trees for path in tree)]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["at once", "over nothing", "there and back"])
@pytest.mark.parametrize("name", HOSTILE)
def test_what_commands_make_of_a_hostile_tree(host: Host, taken: Taken, name: str, way: str) -> None:
    before, after = hostile.TREES[name]
    work, clones = host.workspace, [host.root / "one", host.root / "two"]
    hostile.make(work, before)
    commit_all(work)
    for clone in clones:
        git(host.root, "clone", "-q", str(work), str(clone))
    stages = {"at once": [after], "over nothing": [{}, after], "there and back": [after, before]}[way]
    calls = []
    for number, tree_then in enumerate(stages):
        stage, script = host.root / f"stage{number}", host.root / f"to{number}.sh"
        stage.mkdir()
        hostile.make(stage, tree_then)
        script.write_text(f"find . -mindepth 1 -maxdepth 1 ! -name .git -exec rm -rf {{}} + && cp -a {stage}/. .")
        calls.append(use(shell(f"sh {script}")))
    with gateway(*calls, say("Done.")) as served:
        outcome = host.task(served.url, *taken.options)
    assert [row.get("exitCode") for row in outcome.result["toolCalls"]] == [0] * len(stages)
    assert outcome.result["patchOmitted"] == []
    if way == "there and back":
        assert taken.patch == b""
    if taken.patch:
        git(clones[0], "apply", str(taken.path("patch")))
        git(clones[1], "apply", "--3way", str(taken.path("patch")))
    assert hostile.read(work) == stages[-1]
    assert hostile.read(clones[0]) == stages[-1], taken.patch
    assert hostile.read(clones[1]) == stages[-1], taken.patch


def test_each_file_says_what_happened(host: Host, taken: Taken) -> None:
    policy = host.policy(grants={"File.Delete": {"requiresApproval": True}})
    fails, hostile = shell("echo '<b>`|' && exit 3"), shell("true # `x` | <script>")
    turns = (use(fails, hostile), WRITES, use(call("DeleteFile", path="a.txt")), say("All ``` <i>done</i> \x07."))
    with gateway(*turns) as served:
        outcome = host.task(served.url, *taken.options, policy=policy)
    assert outcome.code == 4
    assert taken.result == outcome.result
    replay = outcome.result["deniedApprovals"][0]["replay"]["id"]
    summary = taken.summary
    assert "exit code 3 |" in summary
    assert "exit code 0 |" in summary
    assert "` a.txt ` added, +1 -0" in summary
    assert re.search(rf"agent-host resume \S+ .*--approve {re.escape(replay)}", summary)
    assert "tokens in" in summary
    rows = [row for row in summary.splitlines() if row.startswith("| exit code")]
    assert all(row.count("|") == 3 for row in rows[1:]), rows
    task, *others = taken.cases
    failure = task.find("failure")
    assert failure is not None
    assert "exit code 4" in failure.get("message", "")
    commands = [case for case in others if case.get("classname") == "agent-host.command"]
    denied = [case for case in others if case.get("classname") == "agent-host.denied"]
    assert [case.findtext("system-out", "").splitlines()[0] for case in commands] == ["exit code 3", "exit code 0"]
    assert "<b>`|" in commands[0].findtext("system-out", "")
    assert all(case.find("failure") is None and case.find("skipped") is None for case in commands)
    skipped = [case.find("skipped") for case in denied]
    assert len(skipped) == 1
    assert skipped[0] is not None
    assert "approv" in skipped[0].get("message", "")


def test_a_command_that_fails_on_the_way_fails_no_case(host: Host, taken: Taken) -> None:
    with gateway(use(shell("exit 1")), use(shell("exit 0")), say("Green.")) as served:
        outcome = host.task(served.url, *taken.options)
    assert outcome.code == 0
    assert [case.find("failure") for case in taken.cases] == [None, None, None]


def test_a_patch_of_nothing_is_an_empty_file(host: Host, taken: Taken) -> None:
    with gateway(use(shell("true")), say("Nothing to do.")) as served:
        outcome = host.task(served.url, *taken.options)
    assert outcome.code == 0
    assert taken.patch == b""
    assert (outcome.result["patchFile"], outcome.result["patchOmitted"]) == (str(taken.path("patch")), [])
    assert "No file was changed." in taken.summary


def test_the_files_are_no_part_of_the_patch(host: Host) -> None:
    commit_all(host.workspace)
    inside = Taken(host.workspace / "out")
    inside.fill()
    commit_all(host.workspace)
    line = "; ".join(f"echo of a tool > out/{name}" for name in (*OPTIONS, "other"))
    with gateway(use(shell(line)), say("Done.")) as served:
        outcome = host.task(served.url, *inside.options)
    assert outcome.code == 0
    assert re.findall(rb"^diff --git (.*)$", inside.patch, re.MULTILINE) == [b"a/out/other b/out/other"]
    inside.check_whole()


# Every end of a task


def test_a_task_that_fails_leaves_all(host: Host, taken: Taken) -> None:
    taken.fill()
    with gateway(WRITES, use(shell("true"))) as served:
        outcome = host.task(served.url, "--max-steps", "1", *taken.options)
    assert outcome.code == 1
    assert taken.result == outcome.result
    assert b"+new" in taken.patch
    assert taken.cases[0].find("failure") is not None
    assert "failed" in taken.summary.splitlines()[0]
    assert "max_steps_exceeded" in taken.summary


def test_steps_that_are_used_up_say_how_to_go_on(host: Host) -> None:
    with gateway(WRITES, use(shell("true"))) as served:
        outcome = host.task(served.url, "--max-steps", "1")
    assert outcome.result["reason"] == "max_steps_exceeded"
    assert "resume" in outcome.stderr
    assert "--max-steps" in outcome.stderr


def test_a_task_that_pauses_leaves_all_and_its_resume_leaves_all_again(host: Host, taken: Taken) -> None:
    (host.workspace / "b.txt").write_text("b\n")
    commit_all(host.workspace)
    taken.fill()
    broken = {"status": 503, "times": 20}
    with gateway(WRITES, {**broken, "when": {"last_contains": "a.txt"}}, complains=False) as served:
        outcome = host.task(served.url, "--session-id", "s", *taken.options)
    assert outcome.code == 3
    taken.check_whole()
    assert "agent-host resume s" in taken.summary
    assert "agent-host resume s" in taken.result["resumeCommand"]
    taken.fill("of the run before")
    with gateway(WRITES, use(shell("echo c >> b.txt")), say("Done.")) as served:
        again = host.resume("s", "--gateway", served.url, *taken.options)
    assert again.code == 0
    assert taken.result == again.result
    names = re.findall(rb"^diff --git a/(\S+) ", taken.patch, re.MULTILINE)
    assert names == [b"a.txt", b"b.txt"]


@pytest.mark.parametrize(
    ("signals", "code"),
    [
        ((signal.SIGINT,), 130),
        ((signal.SIGTERM,), 143),
        pytest.param((signal.SIGINT, signal.SIGINT), 130, marks=pytest.mark.slow),
    ],
)
def test_a_task_that_is_cancelled_or_ended_by_force_leaves_all(
    host: Host, taken: Taken, signals: tuple[signal.Signals, ...], code: int
) -> None:
    taken.fill()
    pipe = host.root / "pipe"
    os.mkfifo(pipe)
    line = f"trap '' INT TERM; echo begun; read line < {pipe}" if len(signals) > 1 else f"echo begun; read x < {pipe}"
    with gateway(WRITES, use(shell(line)), say("Done.")) as served:
        process = host.start_task(served.url, "--verbose", *taken.options)
        process.said("begun")
        os.kill(process.pid, signals[0])
        for number in signals[1:]:
            process.said("the same signal again")
            os.kill(process.pid, number)
        if len(signals) == 1:
            with pipe.open("w") as handle:
                handle.write("go on\n")
        outcome = process.finish()
    assert outcome.code == code
    taken.check_whole()
    assert taken.result == outcome.result
    assert b"+new" in taken.patch


def test_a_repeated_run_writes_all_again(host: Host, taken: Taken) -> None:
    once = ("--session-id", "s", "--or-resume", *taken.options)
    with gateway(WRITES, use(shell("true")), say("Done.")) as served:
        first = host.task(served.url, *once)
        kept = {option: taken.path(option).read_bytes() for option in OPTIONS}
        taken.fill()
        second = host.task(served.url, *once)
    assert (first.code, second.code) == (0, 0)
    assert {option: taken.path(option).read_bytes() for option in OPTIONS} == kept
    assert second.result == first.result
    assert served.count == 3


def test_a_repeated_run_of_which_only_the_result_is_left(host: Host, taken: Taken) -> None:
    once = ("--session-id", "s", "--or-resume")
    with gateway(WRITES, say("Done.")) as served:
        first = host.task(served.url, *once)
        host.run("sessions", "--prune", "--max-size", "1")
        patched = host.task(served.url, *once, *taken.options)
        there = taken.there
        others = host.task(served.url, *once, *taken.options[2:])
    assert (first.code, patched.code, others.code) == (0, 1, 0)
    assert there == ["summary", "junit", "result"]
    assert others.result == first.result == patched.result
    patched.names_once("there is no patch: there is no session s with its history on this disk")
    taken.check_whole(there)


def test_a_run_that_cannot_begin_leaves_none_of_an_older_one(host: Host, taken: Taken) -> None:
    taken.fill()
    outcome = host.task("http://127.0.0.1:9", *taken.options, policy=str(host.root / "none.json"))
    assert outcome.code == 2
    assert taken.there == []


# Secrets


def test_a_file_with_a_secret_is_left_out_and_named(host: Host, taken: Taken) -> None:
    token = "gh" + "p_" + "a1B2" * 9
    (host.workspace / "old.env").write_text(f"TOKEN={token}\n")
    changes = use(call("WriteFile", path="new.env", content=f"TOKEN={token}\n"), shell("echo more >> old.env"))
    with gateway(changes, WRITES, say("Done.")) as served:
        outcome = host.task(served.url, *taken.options)
    assert outcome.code == 0
    omitted = outcome.result["patchOmitted"]
    assert [row["path"] for row in omitted] == ["new.env", "old.env"]
    assert taken.result["patchOmitted"] == omitted
    for name in ("new.env", "old.env"):
        outcome.names_once(f"{name} is not in the patch")
        assert f"` {name} ` is **not in the patch**" in taken.summary
    assert re.findall(rb"^diff --git a/(\S+) ", taken.patch, re.MULTILINE) == [b"a.txt"]
    for option in OPTIONS:
        content = taken.path(option).read_bytes()
        assert token.encode() not in content
    assert b"redacted:" not in taken.patch


def test_a_file_whose_name_no_record_can_hold_is_at_least_said(host: Host, taken: Taken) -> None:
    (host.root / "line.sh").write_bytes(b"echo x > gr\xfcn\n")
    with gateway(use(shell(f"sh {host.root}/line.sh")), say("Done.")) as served:
        outcome = host.task(served.url, *taken.options)
    assert outcome.code == 0
    outcome.names_once("the patch may lack changes", "1 file(s) changed whose names are not UTF-8")
    assert "**not all changes** by commands are known" in taken.summary


# Where the files lie


def test_a_link_is_replaced_and_not_followed(host: Host, taken: Taken) -> None:
    precious = host.root / "precious"
    precious.write_text("precious")
    for option in OPTIONS:
        taken.path(option).symlink_to(precious)
    relink = "; ".join(f"ln -s {precious} {taken.path(option)}" for option in OPTIONS)
    with gateway(use(shell(relink)), say("Done.")) as served:
        assert host.task(served.url, *taken.options).code == 0
    assert precious.read_text() == "precious"
    assert not any(taken.path(option).is_symlink() for option in OPTIONS)
    taken.check_whole()


def test_a_directory_that_a_tool_moves_away_gets_the_files_all_the_same(host: Host) -> None:
    inside, elsewhere = Taken(host.workspace / "out"), host.root / "elsewhere"
    elsewhere.mkdir()
    with gateway(use(shell("mv out away"), shell(f"ln -s {elsewhere} out")), say("Done.")) as served:
        assert host.task(served.url, *inside.options).code == 0
    assert list(elsewhere.iterdir()) == []
    assert Taken(host.workspace / "away").there == list(OPTIONS)


def test_a_directory_that_a_tool_removes_fails_the_run_and_the_report_says_so(host: Host, taken: Taken) -> None:
    lost = host.workspace / "lost"
    lost.mkdir()
    with gateway(use(shell("rmdir lost")), say("Done.")) as served:
        outcome = host.task(served.url, *taken.options, "--patch", str(lost / "patch"))
    assert outcome.code == 1
    assert "patchFile" not in outcome.result
    outcome.names_once("--patch", "was not written")
    failure = taken.cases[0].find("failure")
    assert failure is not None
    assert "exit code 1" in failure.get("message", "")


def test_a_file_of_the_longest_name(host: Host, taken: Taken) -> None:
    name = "名" * 85
    with gateway(say("Done.")) as served:
        outcome = host.task(served.url, "--summary", str(taken.folder / name))
    assert outcome.code == 0
    assert os.listdir(taken.folder) == [name]


def unusable(taken: Taken) -> dict[str, list[str]]:
    (taken.folder / "folder").mkdir()
    os.mkfifo(taken.folder / "pipe")
    (taken.folder / "link").symlink_to(taken.folder)
    return {
        "a directory": ["--junit", str(taken.folder / "folder")],
        "a name that ends as one": ["--junit", f"{taken.folder}/new/"],
        "no directory": ["--junit", str(taken.folder / "none" / "x")],
        "a file as directory": ["--junit", str(taken.path("result") / "x")],
        "a pipe": ["--junit", str(taken.folder / "pipe")],
        "the same twice": ["--junit", str(taken.folder / "link" / "result")],
        "nothing": ["--junit", ""],
    }


def test_none_takes_the_place_of_a_file_that_is_read(host: Host, taken: Taken) -> None:
    read = {"schema": b'{"type": "object"}', "policy": host.policy().read_bytes(), "gateway": b""}
    paths = {name: host.root / f"{name}.json" for name in read}
    for name, content in read.items():
        paths[name].write_bytes(content)
    given = ("--schema", paths["schema"], "--policy", paths["policy"], "--gateway", f"mock:{paths['gateway']}")
    taken.fill()
    for name, path in paths.items():
        outcome = host.run("run", "Do it.", *given, *taken.options[:-2], "--junit", path)
        assert (outcome.code, outcome.stdout) == (2, b"")
        assert f"--junit {path}: --{name} is read from there" in outcome.stderr
    assert {name: path.read_bytes() for name, path in paths.items()} == read
    assert taken.there == list(OPTIONS)


def test_a_place_that_cannot_be_written_to_is_said_before_anything_is_removed(host: Host, taken: Taken) -> None:
    taken.path("result").write_text("of an older run")
    for why, options in unusable(taken).items():
        outcome = host.task("http://127.0.0.1:9", "--result", str(taken.path("result")), *options)
        assert outcome.code == 2, why
        assert "--junit" in outcome.error
        assert taken.path("result").read_text() == "of an older run", why
    assert host.checkpoints() == []


# Stopped while they are written


def stopped(host: Host, url: str, taken: Taken, plan: str) -> Outcome:
    task = ("run", "Do it.", "--gateway", url, "--policy", "full", "--output", "json", "--session-id", "s")
    arguments, env = (*task, *taken.options), {"STOP_AT": plan}
    return host.start(*arguments, env=env, program="tests.support.stopped_outputs").finish()


ALL_STEPS = range(1, len(OPTIONS) * len(STEPS) + 1)
QUICK_STEPS = (2, 9, 20)


@pytest.mark.parametrize(
    "step", [pytest.param(one, marks=() if one in QUICK_STEPS else pytest.mark.slow) for one in ALL_STEPS]
)
def test_a_process_that_is_killed_leaves_whole_files_or_none(host: Host, taken: Taken, step: int) -> None:
    taken.fill()
    with gateway(WRITES, say("Done.")) as served:
        outcome = stopped(host, served.url, taken, f"kill {step}")
    assert outcome.code == -signal.SIGKILL
    assert taken.there == list(OPTIONS[: step // len(STEPS)])
    taken.check_whole(taken.there)
    with gateway(WRITES, say("Done.")) as served:
        again = host.task(served.url, "--session-id", "s", "--or-resume", *taken.options)
    assert again.code == 0
    assert taken.there == list(OPTIONS)
    taken.check_whole()
    assert b"+new" in taken.patch


@pytest.mark.parametrize(
    "step", [pytest.param(one, marks=() if one == 7 else pytest.mark.slow) for one in range(2, 21, 5)]
)
def test_a_signal_while_they_are_written_leaves_all(host: Host, taken: Taken, step: int) -> None:
    taken.fill()
    with gateway(WRITES, say("Done.")) as served:
        outcome = stopped(host, served.url, taken, f"term {step}")
    assert outcome.code in (0, 143)
    assert taken.there == list(OPTIONS)
    taken.check_whole()
    assert taken.result == outcome.result


@pytest.mark.parametrize(
    "step", [pytest.param(one, marks=() if one == 4 else pytest.mark.slow) for one in range(1, 13)]
)
def test_a_full_disk_leaves_whole_files_or_none_and_the_run_says_so(host: Host, taken: Taken, step: int) -> None:
    taken.fill()
    with gateway(WRITES, say("Done.")) as served:
        outcome = stopped(host, served.url, taken, f"full {step}")
    assert outcome.code == 1
    there = list(OPTIONS[: (step - 1) // 3])
    assert sorted(os.listdir(taken.folder)) == sorted(there)
    taken.check_whole(there)
    assert outcome.result["text"] == "Done."
    for option in OPTIONS[len(there) :]:
        outcome.names_once(f"--{option}", "No space left on device")


@pytest.mark.slow
def test_a_real_disk_that_is_full(host: Host, taken: Taken) -> None:
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(taken.folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("no right to mount")
    try:
        big = "".join(f"{os.urandom(24).hex()}\n" for _ in range(4000))
        turns = (use(call("WriteFile", path="big.txt", content=big)), say("Done."))
        with gateway(*turns) as served:
            outcome = host.task(served.url, *taken.options)
        assert outcome.code == 1
        assert taken.there == ["summary", "junit", "result"]
        taken.check_whole(taken.there)
        outcome.names_once("--patch", "No space left on device")
    finally:
        subprocess.run(["umount", str(taken.folder)], check=True)
