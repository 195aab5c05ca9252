"""run_script through the router, with real processes; and which script a name leads to."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_host.contracts import ToolError
from agent_host.errors import ErrorCode
from agent_host.ids import MACHINE
from tests.unit.tool_runtime.conftest import error_of, request, until
from tests.unit.tool_runtime.test_skills_files import answered
from tool_runtime.families import skills as specs
from tool_runtime.files.skills import SkillFolder, SkillIndex
from tool_runtime.processes.command import LocalCommand
from tool_runtime.processes.scripts import SkillScripts
from tool_runtime.router import LocalToolRouter
from tool_runtime.tool import FaultKind, RuntimeSettings, ToolFault

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from agent_host.contracts import ToolResult
    from policy.facts import ScriptFacts

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX programs")


class Place:
    """A workspace with the skill `forms`, and a router that runs its scripts."""

    def __init__(self, folder: Path) -> None:
        self.root = root = folder.resolve()
        self.workspace = root / "ws"
        self.skill = self.workspace / "skills" / "forms"
        (self.skill / "scripts").mkdir(parents=True)
        (self.skill / "SKILL.md").write_text("---\nname: forms\ndescription: Fills in forms.\n---\nText.\n")
        self.sandbox = root / "state" / "sandbox"
        index = SkillIndex([SkillFolder(str(self.workspace / "skills"), of_workspace=True)])
        # The Python of these tests first: a shim of a version manager sets variables of its own.
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
        self.scripts = SkillScripts(index, path, str(self.sandbox), 6)
        self.shown: list[bytes] = []
        self.router = LocalToolRouter(
            RuntimeSettings(
                outside=MACHINE,
                workspace=str(self.workspace),
                families=("skills",),
                kill_grace_s=0.05,
                script_timeout_s=20,
                on_output=lambda _request, _stream, chunk: self.shown.append(chunk),
            ),
            LocalCommand,
            scripts=self.scripts,
        )

    def script(self, text: str, name: str = "a.py") -> Path:
        file = self.skill / "scripts" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    async def run(self, *args: str, path: str = "scripts/a.py", judged: str | None = None, **more: Any) -> ToolResult:
        asked = request("run_script", skill="forms", relative_path=path, args=list(args), **more)
        return await self.router.execute(asked._replace(judged=judged))

    def found(self, path: str) -> ScriptFacts:
        return self.scripts.find("forms", path)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    made = Place(tmp_path)
    yield made
    await made.router.aclose()


async def test_a_script_with_its_arguments_and_no_shell(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty directory of its own, with hardly an environment."""
    for name, value in (("USER", "u"), ("LANG", "C.UTF-8"), ("LC_ALL", "C.UTF-8"), ("SOME_TOKEN", "s"), ("OTHER", "o")):
        monkeypatch.setenv(name, value)
    place.script(
        "import json, os, sys\n"
        "print(json.dumps([sys.argv[1:], os.getcwd(), os.listdir(), sorted(os.environ)]))\n"
        "print('odd', file=sys.stderr)\n"
    )
    result = await place.run("$(id)", "a b;*", "")
    answer = answered(result)
    assert answer.pop("duration_ms") > 0
    args, cwd, names, variables = json.loads(answer.pop("stdout"))
    assert answer == {
        "exit_code": 0, "timeout": False, "stdout_truncated": False, "stderr": "odd\n", "stderr_truncated": False,
    }  # fmt: skip
    assert (args, names) == (["$(id)", "a b;*", ""], [])
    assert os.path.dirname(cwd) == str(place.sandbox)
    # What finds the processes of a call again, and what Python sets for itself where nobody says a language.
    assert set(variables) - {"AGENT_HOST_CALL_MARK", "LC_CTYPE"} == {"PATH", "HOME", "USER", "LANG", "LC_ALL"}
    assert result.exit_code == 0
    assert os.listdir(place.sandbox) == []  # it had left nothing
    assert b"odd\n" in place.shown


async def test_what_a_script_leaves_is_named(place: Place) -> None:
    place.script("open('out.txt', 'w').write('x')")
    first, second = [answered(await place.run()) for _ in range(2)]
    assert first["files"] == second["files"] == ["out.txt"]
    assert first["sandbox"] != second["sandbox"]
    assert sorted(os.listdir(place.sandbox)) == sorted(os.path.basename(one["sandbox"]) for one in (first, second))
    assert os.stat(first["sandbox"]).st_mode & 0o777 == 0o700


@pytest.mark.skipif(sys.platform == "win32", reason="links")
async def test_what_lies_where_a_script_put_a_link_is_not_named(place: Place, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("x")
    place.script(f"import os\nhere = os.getcwd()\nos.rmdir(here)\nos.symlink({str(outside)!r}, here)")
    answer = answered(await place.run())
    assert "files" not in answer
    assert os.listdir(outside) == ["secret"]


async def test_it_may_start_in_its_skill(place: Place) -> None:
    place.script("import os; print(os.getcwd()); print(os.path.dirname(__file__))")
    answer = answered(await place.run(cwd="skill"))
    assert answer["stdout"] == f"{place.skill}\n{place.skill}/scripts\n"
    assert not place.sandbox.exists()


async def test_another_exit_code_is_a_failure_with_what_was_printed(place: Place) -> None:
    place.script("import sys; print('out'); sys.exit('wrong input')")
    result = await place.run()
    assert error_of(result) == (
        ErrorCode.TOOL_EXECUTION_FAILED, "scripts/a.py of the skill forms ended with exit code 1",
    )  # fmt: skip
    assert result.error is not None
    assert result.error.name == "ExitNonZero"
    assert result.exit_code == 1
    answer = json.loads(result.output_text or "")
    assert (answer["stdout"], answer["stderr"], answer["exit_code"]) == ("out\n", "wrong input\n", 1)


@pytest.mark.slow
async def test_a_time_out_ends_the_tree(place: Place) -> None:
    place.script("import os, time\nprint(os.getpid(), flush=True)\nos.fork()\ntime.sleep(60)\n")
    result = await place.run(timeout_s=1)
    assert error_of(result)[0] == ErrorCode.TOOL_EXECUTION_TIMEOUT
    answer = json.loads(result.output_text or "")
    assert answer["timeout"]
    pid = int(answer["stdout"])
    await until(lambda: not os.path.exists(f"/proc/{pid}"))


async def test_a_script_has_no_more_time_than_the_configuration_gives(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.script("import time; time.sleep(60)")
    router = LocalToolRouter(
        RuntimeSettings(
            outside=MACHINE,
            workspace=str(place.workspace),
            families=("skills",),
            script_timeout_s=0.2,
            kill_grace_s=0.05,
        ),
        LocalCommand,
        scripts=place.scripts,
    )
    (spec,) = [one for one in await router.tools() if one.name == "run_script"]
    assert "at most: 0.2" in spec.input_schema["properties"]["timeout_s"]["description"]
    result = await router.execute(request("run_script", skill="forms", relative_path="scripts/a.py", timeout_s=3600))
    assert error_of(result)[0] == ErrorCode.TOOL_EXECUTION_TIMEOUT
    await router.aclose()
    await place.router.aclose()


async def test_long_output_is_cut_and_kept_whole(place: Place) -> None:
    place.script("import sys; print('ü' * 60_000); print('y' * 10_001, file=sys.stderr); print('end')")
    result = await place.run()
    answer = answered(result)
    for name in ("stdout", "stderr"):
        assert answer[f"{name}_truncated"]
        assert specs.OUTPUT_CHARS < len(answer[name]) < specs.OUTPUT_CHARS + 100
    assert answer["stdout"].endswith("end\n")
    kept = {one.ref_field: one for one in result.artifacts}
    assert kept["stdout_ref"].data.decode() == "ü" * 60_000 + "\nend\n"
    assert kept["stderr_ref"].size == 10_002
    assert [one.hash_field for one in result.artifacts] == ["stdout_sha256", "stderr_sha256"]
    for one in result.artifacts:
        one.close()


async def test_cancelling_ends_it(place: Place) -> None:
    place.script("import os, time\nopen('/proc/self/comm'); print(os.getpid(), flush=True); time.sleep(60)\n")
    task = asyncio.ensure_future(place.run())
    await until(lambda: bool(place.shown))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    pid = int(b"".join(place.shown))
    await until(lambda: not os.path.exists(f"/proc/{pid}"))


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ("#!/bin/sh\necho by $0", "a", "by"),
        ("#!/usr/bin/env bash\necho ${BASH_VERSION:+by} $0", "a.py", "by"),
        ("echo by $0", "deep/a.sh", "by"),
    ],
)
async def test_the_first_line_or_the_name_says_what_runs_it(place: Place, text: str, name: str, said: str) -> None:
    file = place.script(text, name)
    file.chmod(0o600)  # it need not be executable
    answer = answered(await place.run(path=f"scripts/{name}"))
    assert answer["stdout"] == f"{said} {file}\n"


async def test_only_what_policy_has_judged_runs(place: Place) -> None:
    file = place.script("print('one')")
    judged = place.found("scripts/a.py").identity
    assert answered(await place.run(judged=judged))["stdout"] == "one\n"
    file.write_text("print('two')")
    changed = await place.run(judged=judged)
    assert error_of(changed)[0] == ErrorCode.PERMISSION_DENIED
    assert "has changed since it was judged" in error_of(changed)[1]


# Which file it is


def outside(place: Place) -> None:
    (place.root / "evil.py").write_text("print('evil')")
    (place.skill / "evil.py").write_text("print('evil')")
    scripts = place.skill / "scripts"
    place.script("print('good')")
    (scripts / "link.py").symlink_to(place.root / "evil.py")
    (scripts / "up").symlink_to(place.root)
    (scripts / "same.py").symlink_to("a.py")


@pytest.mark.parametrize(
    "path",
    [
        "scripts/../evil.py", "evil.py", "scripts/link.py", "scripts/up/evil.py", "scripts/../../../../evil.py",
        "scripts", "scripts/", ".", "/etc/hostname", "scripts/up",
    ],
)  # fmt: skip
async def test_nothing_outside_of_the_scripts_runs(place: Place, path: str) -> None:
    outside(place)
    found = place.found(path)
    assert (found.argv, found.sha256) == ((), None)
    result = await place.run(path=path)
    assert error_of(result)[0] == ErrorCode.PERMISSION_DENIED
    assert place.shown == []


@pytest.mark.parametrize("path", ["scripts/a.py", "./scripts/a.py", "scripts/../scripts/a.py", "scripts/same.py"])
async def test_what_stays_inside_does(place: Place, path: str) -> None:
    outside(place)
    assert answered(await place.run(path=path))["stdout"] == "good\n"


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(parts=st.lists(st.sampled_from(["..", ".", "scripts", "up", "link.py", "a.py", "", "ws", "~", "evil.py", "/"])))
def test_no_spelling_leads_out(place: Place, parts: list[str]) -> None:
    if not (place.skill / "evil.py").exists():
        outside(place)
    try:
        found = place.found("/".join(parts))
    except ToolFault:
        return
    assert found.argv == () or found.path == str(place.skill / "scripts" / "a.py")


def test_the_folder_of_scripts_is_no_link(place: Place) -> None:
    elsewhere = place.root / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "a.py").write_text("print('evil')")
    (place.skill / "scripts").rmdir()
    (place.skill / "scripts").symlink_to(elsewhere)
    assert place.found("scripts/a.py").argv == ()


@pytest.mark.parametrize(
    ("skill", "path", "kind", "says"),
    [
        ("other", "scripts/a.py", FaultKind.NOT_FOUND, "there is no skill other; there are: forms"),
        ("../forms", "scripts/a.py", FaultKind.NOT_FOUND, "there is no skill"),
        ("forms", "scripts/none.py", FaultKind.NOT_FOUND, "No such file"),
        ("forms", "scripts/odd", FaultKind.INVALID_ARGUMENT, "no known ending"),
        ("forms", "scripts/a\0", FaultKind.INVALID_ARGUMENT, "NUL"),
        ("forms", "scripts/\ud800", FaultKind.INVALID_ARGUMENT, "surrogate"),
        ("forms", "scripts/d", FaultKind.IS_DIRECTORY, "directory"),
        ("forms", "scripts/none", FaultKind.NOT_FOUND, "there is no program no-such-program"),
        ("forms", "scripts/large.py", FaultKind.TOO_LARGE, "exceed"),
        ("forms", "scripts/pipe.py", FaultKind.NOT_REGULAR, "not a regular file"),
    ],
)
def test_a_script_that_cannot_run_says_why(place: Place, skill: str, path: str, kind: FaultKind, says: str) -> None:
    place.script("", "odd")
    if path == "scripts/none":
        place.script("#!/usr/bin/env no-such-program\n", "none")
    (place.skill / "scripts" / "d").mkdir()
    place.script("#" * (specs.FILE_BYTES + 1), "large.py")
    os.mkfifo(place.skill / "scripts" / "pipe.py")
    with pytest.raises(ToolFault) as caught:
        place.scripts.find(skill, path)
    assert (caught.value.kind, says in str(caught.value)) == (kind, True), caught.value
    unusable = place.scripts.look_up(skill, path)
    assert isinstance(unusable, ToolError)
    codes = {FaultKind.INVALID_ARGUMENT: ErrorCode.INVALID_REQUEST, FaultKind.TOO_LARGE: ErrorCode.FILE_TOO_LARGE}
    assert unusable == ToolError(codes.get(kind, ErrorCode.FILE_NOT_FOUND), str(caught.value))


async def test_what_no_program_can_be_given(place: Place) -> None:
    place.script("")
    for args in (["a\0"], ["\ud800"], ["x" * (specs.ARGUMENT_CHARS + 1)], ["x"] * (specs.ARGUMENTS + 1)):
        assert error_of(await place.run(*args))[0] == ErrorCode.INVALID_REQUEST
    assert not place.sandbox.exists()


async def test_without_skills_there_is_no_script(tmp_path: Path) -> None:
    router = LocalToolRouter(
        RuntimeSettings(outside=MACHINE, workspace=str(tmp_path), families=("skills",)), LocalCommand
    )
    result = await router.execute(request("run_script", skill="forms", relative_path="scripts/a.py"))
    assert error_of(result)[0] == ErrorCode.FILE_NOT_FOUND
    await router.aclose()
