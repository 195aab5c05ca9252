"""action.yml step by step, as a runner runs it: real scripts, a real program, a scripted gateway, and a model, a
repository and an API that may be hostile."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from markdown_it import MarkdownIt

from tests.support.ci_runner import ROOT, WORKFLOW, Runner, commit, serve_api
from tests.support.process import call, gateway, say, shell, use

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.support.ci_runner import Api, Job
    from tests.support.process import Host

pytestmark = pytest.mark.slow

PROGRAM = str(Path(sys.executable).parent / "agent-host")
HOSTILE = (
    "::error file=a.py,line=1::x\n::stop-commands::x\n::add-mask::y\n@owner <img src=x onerror=alert(1)>\n"
    "![p](https://evil.example/p.png) [l](javascript:alert(1))\n```\n@team\n````\n<b>x</b>\r::set-output name=a::b"
)
POLICY = {"extends": "ci", "capabilities": [{"name": "Shell.Exec", "blockedCommands": ["touch"]}]}


@pytest.fixture
def runner(host: Host) -> Runner:
    """A checkout with one commit, on a machine with nothing else."""
    sha = commit(host.workspace, {"README": "x\n"})
    return Runner(host.root / "runner", host.workspace, host.environment(), sha=sha)


def run(runner: Runner, url: str, **given: str) -> Job:
    inputs = {"prompt": "Do it.", "gateway": url, "program": PROGRAM, **given}
    return runner.use(env={"LLM_GATEWAY_AUTH_TOKEN": "key"}, **inputs)


def test_a_task_leaves_its_patch_its_summary_and_its_annotations(host: Host, runner: Runner) -> None:
    broken = call("WriteFile", path="src/a.py", content="def f():\n    return 1 / 0\n\n\nf()\n")
    with gateway(use(broken, shell("python3 src/a.py"), text=HOSTILE), say(HOSTILE)) as model:
        job = run(runner, model.url)
    assert job.code == 0, job.log
    assert (job.outputs["exit-code"], job.outputs["verdict"]) == ("0", "completed")
    assert re.fullmatch(r"sess_\w+", job.outputs["session-id"])
    assert Path(job.outputs["patch-file"]).read_text().count("+++ b/src/a.py") == 1
    assert job.commands == [
        "::group::step 1",
        "::endgroup::",
        "::group::step 2",
        "::endgroup::",
        "::error file=src/a.py,line=2::ZeroDivisionError: division by zero",
    ]
    assert job.summary.startswith("## agent-host: ` completed")
    assert_inert(job.summary)
    assert sorted(runner.artifacts) == ["agent-host-patch", "agent-host-result"]
    patch = zipfile.ZipFile(io.BytesIO(runner.artifacts["agent-host-patch"])).read("session.patch")
    copy = host.root / "copy"
    commit_of_copy = subprocess.run(["git", "clone", "-q", host.workspace, copy], check=False)
    assert commit_of_copy.returncode == 0
    subprocess.run(["git", "apply", "-"], cwd=copy, input=patch, check=True)
    assert (copy / "src/a.py").read_text() == (host.workspace / "src/a.py").read_text()


def assert_inert(markdown: str) -> None:
    """Nothing of HOSTILE means anything: all of it is code."""
    outside = []
    for token in MarkdownIt("commonmark").parse(markdown):
        assert token.type != "html_block", token
        for part in token.children or []:
            assert part.type in ("text", "code_inline", "softbreak", "strong_open", "strong_close", "link_open",
                                 "link_close"), part  # fmt: skip
            assert part.type != "link_open" or str(part.attrs["href"]).startswith("https://github.example/"), part
            outside += [part.content] if part.type == "text" else []
    assert not [text for text in outside if "@" in text or "evil" in text], outside


# Which policy, and which checkout


def test_the_policy_is_that_of_the_base_revision(host: Host, runner: Runner) -> None:
    own = "ci/policy.json"
    base = commit(host.workspace, {own: json.dumps(POLICY)})
    runner.sha = commit(host.workspace, {own: json.dumps({"extends": "ci"})})
    runner.event, runner.payload = "pull_request", {"pull_request": {"base": {"sha": base}, "number": 5}}
    work = use(shell("touch made")), say("Done.")
    with gateway(*work) as model:
        job = run(runner, model.url, policy=own)
    assert job.code == 0, job.log
    assert "RunCommand touch made — denied CAPABILITY_DENIED" in job.log
    assert not (host.workspace / "made").exists()
    runner.event, runner.payload = "push", {}
    (host.workspace / own).write_text("of no revision")
    with gateway(*work) as model:
        job = run(runner, model.url, policy=f"./{own}")
    assert job.code == 0, job.log
    assert (host.workspace / "made").exists()


def refused(runner: Runner, **given: str) -> str:
    job = run(runner, "http://127.0.0.1:9", **given)
    assert (job.code, job.failed) == (2, "Check the event, the checkout and the policy"), job.log
    (said,) = job.commands
    assert not list(runner.temporary.glob("agent-host.*/program"))
    return said


@pytest.mark.parametrize("event", ["pull_request_target", "workflow_run", "issue_comment"])
def test_a_head_with_the_secrets_of_the_base_is_refused(host: Host, runner: Runner, event: str) -> None:
    runner.event = event
    commit(host.workspace, {"evil": "x"})
    assert f"on {event} only the base revision may be checked out" in refused(runner)


def test_a_head_beside_the_base_is_refused(host: Host, runner: Runner) -> None:
    runner.event = "pull_request_target"
    (host.workspace / "head").mkdir()
    commit(host.workspace / "head", {"evil": "x"})
    assert "there is another checkout in" in refused(runner)
    assert "only the base revision" in refused(runner, workspace="head")
    shutil.rmtree(host.workspace / "head")
    (host.workspace / "unpacked").write_text("of the head")
    assert "it has new or changed files" in refused(runner)
    (host.workspace / "unpacked").unlink()
    (host.workspace / "README").write_text("of the head")
    assert "it has new or changed files" in refused(runner)


def test_the_base_itself_may_be_worked_on_with_its_secrets(runner: Runner) -> None:
    runner.event = "pull_request_target"
    with gateway(say("Done.")) as model:
        assert run(runner, model.url).code == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("http.https://github.com/.extraheader", "AUTHORIZATION: basic eA=="),
        ("remote.origin.url", "https://x:token@github.com/owner/project"),
        ("credential.helper", "store"),
    ],
)
def test_a_credential_that_git_keeps_is_refused(host: Host, runner: Runner, name: str, value: str) -> None:
    subprocess.run(["git", "config", "--local", name, value], cwd=host.workspace, check=True)
    assert "persist-credentials" in refused(runner)


def test_a_credential_in_a_file_that_the_checkout_includes_is_refused(host: Host, runner: Runner) -> None:
    (host.root / "kept").write_text('[http "https://github.com/"]\n\textraheader = AUTHORIZATION: basic eA==\n')
    words = ["git", "config", "--local", f"includeIf.gitdir:{host.workspace}/.git.path", str(host.root / "kept")]
    subprocess.run(words, cwd=host.workspace, check=True)
    assert "persist-credentials" in refused(runner)


@pytest.mark.parametrize("policy", ["", "/etc/passwd", "../x.json", "a/../../x", "HEAD:x", "a\\b", "not-there.json"])
def test_a_policy_of_elsewhere_is_refused(runner: Runner, policy: str) -> None:
    assert "::error title=agent-host::policy: " in refused(runner, policy=policy)


def test_a_name_of_an_input_gives_no_command(runner: Runner) -> None:
    said = refused(runner, workspace="x\n::add-mask::y\r%0A::error::z")
    assert said.count("::") == 6
    assert "%250A" in said


def test_a_program_of_the_checkout_is_refused(host: Host, runner: Runner) -> None:
    (host.workspace / "agent-host").symlink_to(PROGRAM)
    for program in (str(host.workspace / "agent-host"), "agent-host"):
        job = run(runner, "http://127.0.0.1:9", program=program)
        assert (job.code, job.failed) == (2, "Install agent-host")


def test_a_wrong_option_is_the_exit_code_of_the_step(runner: Runner) -> None:
    job = run(runner, "http://127.0.0.1:9", max_steps="no")
    assert (job.code, job.failed, job.outputs["exit-code"]) == (2, "End as the task ended", "2")


@pytest.mark.slow
def test_the_action_installs_its_own_version_and_nothing_of_the_checkout(host: Host, runner: Runner) -> None:
    """Needs a package index."""
    runner.sha = commit(
        host.workspace, {f"{name}.py": "raise SystemExit(9)\n" for name in ("pip", "venv", "agent_host")}
    )
    names = ("PIP_CERT", "PIP_CONFIG_FILE", "PIP_FIND_LINKS", "PIP_INDEX_URL", "SSL_CERT_FILE")
    runner.environment = {
        **runner.environment, **{name: os.environ[name] for name in names if name in os.environ}, "PYTHONPATH": ".",
    }  # fmt: skip
    with gateway(say("Done.")) as model:
        job = run(runner, model.url, program="")
    if job.failed == "Install agent-host" and "Could not find a version" in job.log:
        pytest.skip("there is no package index")
    assert job.code == 0, job.log
    assert list(runner.temporary.glob("agent-host.*/program/bin/python"))


# The files of the step


@pytest.mark.parametrize("policy", ["ci", "full"])
def test_commands_and_tools_write_no_file_of_the_step(host: Host, runner: Runner, policy: str) -> None:
    commands = runner.temporary / "_runner_file_commands"
    tries = use(
        shell('echo A=b >> "$GITHUB_ENV"'),
        shell('echo /evil >> "$GITHUB_PATH"'),
        shell('echo verdict=x >> "$GITHUB_OUTPUT"'),
        call("WriteFile", path=str(commands / "env_3"), content="A=b\n"),
    )
    with gateway(tries, say("Done.")) as model:
        job = run(runner, model.url, policy=policy)
        answers = model.results()
    assert job.code == 0, job.log
    assert job.left == {}
    assert job.outputs["verdict"] == "completed"
    assert all(answer.is_error for answer in answers), answers


def test_what_got_into_them_all_the_same_is_taken_back(host: Host, runner: Runner) -> None:
    line = f"python3 -c \"open('{runner.temporary}/_runner_file_commands/env_3', 'a').write('A=b')\""
    with gateway(use(shell(line)), say("Done.")) as model:
        job = run(runner, model.url, policy="full", sandbox="none")
    assert (job.code, job.left) == (1, {}), job.log
    assert "wrote variables of later steps" in job.commands[-1]


# Approve later

ASKS = {
    "extends": "ci",
    "capabilities": [{"name": "Shell.Exec", "requiresApproval": True, "approvalRuleId": "shell"}],
    "approvalRules": [{"approvalRuleId": "shell", "title": "Shell", "description": "Commands"}],
}


def waiting(host: Host, runner: Runner) -> tuple[Job, str]:
    """A run that needed an approval, and the id of it."""
    runner.sha = commit(host.workspace, {"policy.json": json.dumps(ASKS)})
    write = call("WriteFile", path="new.txt", content="new\n")
    with gateway(use(write, shell("echo yes > made")), say("I could not.")) as model:
        job = run(runner, model.url, policy="policy.json", accept_codes="0 3 4")
    assert (job.code, job.outputs["exit-code"], job.outputs["has-state"]) == (0, "4", "true"), job.log
    (named,) = [line for line in job.commands if line.startswith("::warning ")]
    (replay,) = re.findall(r"--approve (\S+)", named)
    assert f"-f resume-sha256={job.outputs['state-sha256']}" in job.summary
    return job, replay


@pytest.fixture
def api() -> Iterator[Api]:
    with serve_api() as served:
        served.of_run()
        yield served


def later(host: Host, runner: Runner, api: Api, first: Job, url: str, **given: str) -> Job:
    """A run on a new machine, of the same commit, that resumes the first one."""
    api.artifacts = {3: runner.artifacts["agent-host-state"]}
    for path in (runner.temporary, host.state):
        shutil.rmtree(path, ignore_errors=True)
    subprocess.run(["git", "clean", "-qfd"], cwd=host.workspace, check=True)
    runner.api, runner.artifacts, runner.event = api.url, {}, "workflow_dispatch"
    inputs = {
        "resume_run": "77",
        "resume_session": first.outputs["session-id"],
        "resume_sha256": first.outputs["state-sha256"],
        "policy": "policy.json",
        **given,
    }
    return run(runner, url, **inputs)


def test_a_later_run_approves_what_the_first_was_denied(host: Host, runner: Runner, api: Api) -> None:
    first, replay = waiting(host, runner)
    with gateway(*[say("Now it is done.")] * 4) as model:
        job = later(host, runner, api, first, model.url, approve=replay)
    assert (job.code, job.outputs["verdict"]) == (0, "completed"), job.log
    assert (host.workspace / "made").read_text() == "yes\n"
    assert (host.workspace / "new.txt").read_text() == "new\n"
    assert job.outputs["has-state"] == ""
    assert {token for path, token in api.asked if path.startswith("/blob/")} == {None}
    assert {token for path, token in api.asked if not path.startswith("/blob/")} == {"Bearer the-token"}


FOREIGN = {"full_name": "evil/project"}


@pytest.mark.parametrize(
    ("run_of", "given", "why"),
    [
        ({"repository": FOREIGN}, {}, "belongs to evil/project"),
        ({"head_repository": FOREIGN}, {}, "belongs to evil/project"),
        ({"head_repository": None}, {}, "belongs to None"),
        ({"path": ".github/workflows/other.yml"}, {}, "not of this workflow"),
        ({"path": f"{WORKFLOW}.yml"}, {}, "not of this workflow"),
        ({}, {"resume_sha256": "0" * 64}, "has the SHA-256"),
        ({}, {"resume_sha256": ""}, "resume-sha256: "),
        ({}, {"resume_run": "../../x"}, "resume-run: "),
    ],
)
@pytest.mark.slow
def test_a_state_of_elsewhere_is_refused(
    host: Host, runner: Runner, api: Api, run_of: Mapping[str, Any], given: Mapping[str, str], why: str
) -> None:
    first, replay = waiting(host, runner)
    api.of_run(**run_of)
    job = later(host, runner, api, first, "http://127.0.0.1:9", approve=replay, **given)
    assert (job.code, job.failed) == (2, "Take the state of the session"), job.log
    assert why in job.commands[-1]
    assert not (host.workspace / "new.txt").exists()


@pytest.mark.slow
def test_a_state_is_not_put_onto_another_commit(host: Host, runner: Runner, api: Api) -> None:
    first, replay = waiting(host, runner)
    commit(host.workspace, {"other": "x"})
    job = later(host, runner, api, first, "http://127.0.0.1:9", approve=replay)
    assert (job.code, job.failed) == (2, "Take the state of the session"), job.log


@pytest.mark.parametrize("name", ["../evil", "/evil", "state/../../evil", "state/link", "other"])
def test_a_state_has_no_entry_of_another_place(tmp_path: Path, name: str, api: Api) -> None:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as tar:
        member = tarfile.TarInfo(name)
        member.type = tarfile.SYMTYPE if name.endswith("link") else tarfile.REGTYPE
        member.linkname = "/etc"
        tar.addfile(member)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("agent-host-state.tar", held.getvalue())
    api.artifacts = {1: archive.getvalue()}
    runner = Runner(tmp_path, tmp_path, {"PATH": "/usr/bin:/bin"}, api=api.url)
    wanted = {"AH_RUN": "77", "AH_SHA256": hashlib.sha256(held.getvalue()).hexdigest(), "AH_TOKEN": "t"}
    (tmp_path / "to").mkdir()
    done = subprocess.run(
        [sys.executable, "-I", ROOT / "ci/action/state.py", "restore", tmp_path / "to"],
        env={**runner.variables(ROOT), **wanted},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "an entry that it cannot have" in done.stdout
    assert list((tmp_path / "to").iterdir()) == []


# The comment


def comment(runner: Runner, api: Api, result: Any, number: Any = 5) -> Job:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as made:
        made.writestr("result.json", json.dumps(result))
    runner.artifacts, runner.api = {"agent-host-result": held.getvalue()}, api.url
    runner.payload = {"pull_request": {"number": number}}
    return runner.use("ci/comment")


def test_a_comment_shows_the_models_text_and_does_nothing_with_it(tmp_path: Path, api: Api) -> None:
    runner = Runner(tmp_path, tmp_path, {"PATH": "/usr/bin:/bin"})
    result = {
        "verdict": "completed", "text": HOSTILE, "message": HOSTILE, "filesChanged": ["a.py", HOSTILE],
        "resumeCommand": f"agent-host resume {HOSTILE}",
    }  # fmt: skip
    assert comment(runner, api, result).code == 0
    ((path, text),) = api.comments
    assert path == "/repos/owner/project/issues/5/comments"
    assert "evil.example" in text
    assert_inert(text)


@pytest.mark.parametrize(
    "result", [{}, {"verdict": HOSTILE}, {"text": ["x"], "filesChanged": "y"}, {"text": "`" * 30_000 + "\n@x"}]
)
def test_a_comment_trusts_no_field(tmp_path: Path, api: Api, result: Any) -> None:
    assert comment(Runner(tmp_path, tmp_path, {"PATH": "/usr/bin:/bin"}), api, result).code == 0
    assert_inert(api.comments[0][1])
    assert len(api.comments[0][1]) < 65_536


def test_there_is_no_comment_without_a_pull_request_or_a_result(tmp_path: Path, api: Api) -> None:
    runner = Runner(tmp_path, tmp_path, {"PATH": "/usr/bin:/bin"})
    assert comment(runner, api, {}, number="").code == 2
    assert comment(runner, api, {}, number="5/../x").code == 2
    assert comment(runner, api, [1]).code == 1
    assert api.comments == []


# What the files say


def workflows() -> list[tuple[str, dict[str, Any]]]:
    return [(path.name, yaml.safe_load(path.read_text())) for path in (ROOT / "examples/ci").glob("github*.yml")]


def test_the_jobs_of_the_examples_have_what_they_need_and_no_more() -> None:
    seen = 0
    for name, workflow in workflows():
        assert workflow["permissions"] == {}, name
        for job in workflow["jobs"].values():
            used = [step["uses"] for step in job["steps"]]
            agent = any(one.startswith("OWNER/agent-host@") for one in used)
            seen += 1
            if agent:
                assert job["permissions"].pop("contents") == "read"
                assert job["permissions"] in ({}, {"actions": "read"})
                (checkout,) = [step for step in job["steps"] if step["uses"].startswith("actions/checkout@")]
                assert checkout["with"]["persist-credentials"] is False
            else:
                assert job["permissions"] == {"pull-requests": "write"}
                assert used == ["OWNER/agent-host/ci/comment@COMMIT"]
                assert "env" not in job
            assert all("run" not in step for step in job["steps"])
    assert seen == 4


def test_the_examples_know_the_inputs_and_outputs() -> None:
    said = yaml.safe_load((ROOT / "action.yml").read_text())
    for name, workflow in workflows():
        for job in workflow["jobs"].values():
            for step in job["steps"]:
                if step["uses"].startswith("OWNER/agent-host@"):
                    assert set(step["with"]) <= set(said["inputs"]), name
            for value in job.get("outputs", {}).values():
                assert value.split(".")[-1].rstrip(" }") in said["outputs"], name


GITLAB = ROOT / "examples/ci/gitlab.yml"


def gitlab_job(name: str, checkout: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a job of the example as a runner of GitLab does: variables, then the lines of both scripts in one shell."""
    said = yaml.safe_load(GITLAB.read_text())
    job = {**said[".agent"], **said[name]}
    known = {"CI": "true", "GITLAB_CI": "true", "CI_PROJECT_DIR": str(checkout), **env}
    own = {key: re.sub(r"\$(\w+)", lambda found: known[found[1]], value) for key, value in job["variables"].items()}
    script = "\n".join([*job["before_script"], *job["script"]])
    return subprocess.run(
        ["sh", "-e", "-c", script], cwd=checkout, env={**own, **known}, capture_output=True, text=True, timeout=120
    )


def test_the_example_for_gitlab_denies_and_approves_later(host: Host) -> None:
    base = commit(host.workspace, {"ci/agent-policy.json": json.dumps(ASKS)})
    commit(host.workspace, {"ci/agent-policy.json": json.dumps({"extends": "full"})})
    subprocess.run(["git", "remote", "add", "origin", "https://x:token@h/o/p.git"], cwd=host.workspace, check=True)
    env = {
        **host.environment({"PATH": f"{Path(PROGRAM).parent}:{host.environment()['PATH']}"}),
        "CI_MERGE_REQUEST_DIFF_BASE_SHA": base, "CI_COMMIT_SHA": base, "CI_JOB_TOKEN": "t",
        "CI_SERVER_URL": "https://h", "CI_PROJECT_PATH": "o/p",
    }  # fmt: skip
    env.pop("AGENT_HOST_STATE_DIR")
    write = call("WriteFile", path="new.txt", content="new\n")
    with gateway(use(write, shell("echo yes > made")), say("I could not.")) as model:
        first = gitlab_job("agent", host.workspace, {**env, "LLM_GATEWAY_ENDPOINT": model.url})
    assert first.returncode == 4, first
    remote = subprocess.run(["git", "remote", "get-url", "origin"], cwd=host.workspace, capture_output=True, check=True)
    assert remote.stdout == b"https://h/o/p.git\n"
    assert not (host.workspace / "made").exists()
    (replay,) = re.findall(r"run that call after all .* --approve (\S+)", first.stderr)
    for name in ("new.txt", "agent.json", "agent.xml"):
        (host.workspace / name).unlink()
    shutil.rmtree(f"{host.workspace}.state")
    reported = dict(line.split("=", 1) for line in (host.workspace / "agent.env").read_text().splitlines())
    with gateway(*[say("Done.")] * 4) as model:
        later_env = {**env, **reported, "LLM_GATEWAY_ENDPOINT": model.url, "APPROVE": replay}
        wrong = gitlab_job("approve", host.workspace, {**later_env, "STATE_SHA256": "0" * 64})
        assert (wrong.returncode, (host.workspace / "new.txt").exists()) == (1, False)
        second = gitlab_job("approve", host.workspace, later_env)
    assert second.returncode == 0, second
    assert (host.workspace / "made").read_text() == "yes\n"
    assert (host.workspace / "new.txt").read_text() == "new\n"


@pytest.mark.parametrize("path", ["action.yml", "ci/comment/action.yml"])
def test_inputs_reach_a_script_by_variables_alone(path: str) -> None:
    for step in yaml.safe_load((ROOT / path).read_text())["runs"]["steps"]:
        assert "${{" not in step.get("run", "")
        assert ("run" in step) != ("uses" in step)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_the_scripts_pass_shellcheck() -> None:
    scripts = [str(path) for path in sorted((ROOT / "ci/action").glob("*.sh"))]
    words = ["shellcheck", "--shell=sh", "--external-sources", f"--source-path={ROOT / 'ci/action'}", *scripts]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "")
