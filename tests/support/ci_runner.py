"""A runner of GitHub Actions, as far as action.yml needs one: the steps of a composite action with their `env`, `if`
and outputs, the files of a step, artifacts, and an API that has runs, artifacts and comments."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import threading
import zipfile
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = "owner/project"
WORKFLOW = ".github/workflows/agent.yml"
STEP_FILES = ("OUTPUT", "ENV", "PATH", "STATE", "STEP_SUMMARY")
_EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}")


@dataclass
class Job:
    """What a job left: the code of the step that failed, its outputs, its log and its summary; `left` are files of the
    runner that a step wrote."""

    code: int = 0
    failed: str = ""
    outputs: dict[str, str] = field(default_factory=dict)
    log: str = ""
    summary: str = ""
    left: dict[str, str] = field(default_factory=dict)

    @property
    def commands(self) -> list[str]:
        """Lines that the runner obeys."""
        return [line for line in re.split(r"[\r\n]+", self.log) if line.strip().startswith("::")]


@dataclass
class Runner:
    """A machine that runs one job after another. `environment` is what any process has, `artifacts` are those of the
    run, by name."""

    folder: Path
    checkout: Path
    environment: Mapping[str, str]
    artifacts: dict[str, bytes] = field(default_factory=dict)
    api: str = "http://127.0.0.1:9"
    event: str = "push"
    sha: str = ""
    payload: Mapping[str, Any] = field(default_factory=dict)
    run_id: int = 77

    @property
    def temporary(self) -> Path:
        """$RUNNER_TEMP."""
        return self.folder / "_temp"

    def variables(self, action: Path) -> dict[str, str]:
        """The runner's own variables, which no workflow can set."""
        return {
            **self.environment,
            "CI": "true",
            "GITHUB_ACTIONS": "true",
            "GITHUB_ACTION_PATH": str(action),
            "GITHUB_API_URL": self.api,
            "GITHUB_EVENT_NAME": self.event,
            "GITHUB_REPOSITORY": REPOSITORY,
            "GITHUB_RUN_ID": str(self.run_id),
            "GITHUB_SERVER_URL": "https://github.example",
            "GITHUB_SHA": self.sha,
            "GITHUB_WORKFLOW_REF": f"{REPOSITORY}/{WORKFLOW}@refs/heads/main",
            "GITHUB_WORKSPACE": str(self.checkout),
            "RUNNER_TEMP": str(self.temporary),
        }

    def use(self, action: str = "", *, env: Mapping[str, str] = {}, **given: str) -> Job:
        """Run a composite action: `action` is its folder, `given` its inputs with `_` for `-`, `env` that of the step
        which uses it."""
        folder = ROOT / action
        said = yaml.safe_load((folder / "action.yml").read_text())
        inputs = {name: str(one.get("default", "")) for name, one in said["inputs"].items()}
        inputs |= {name.replace("_", "-"): value for name, value in given.items()}
        contexts: dict[str, Any] = {
            "inputs": {name: self._expand(value, {}) for name, value in inputs.items()},
            "steps": {},
            "github": {"event": self.payload, "action_path": str(folder), "token": "the-token"},
            "runner": {"temp": str(self.temporary)},
        }
        job = Job()
        for number, step in enumerate(said["runs"]["steps"]):
            if "if" in step and not self._holds(step["if"], contexts):
                continue
            if "uses" in step:
                self._artifact(step, contexts)
                continue
            assert "${{" not in step["run"], "an expression in a script"
            variables = {name: self._expand(str(value), contexts) for name, value in step.get("env", {}).items()}
            code = self._run(step["run"], {**self.variables(folder), **env, **variables}, number, job)
            contexts["steps"][step.get("id", f"_{number}")] = {"outputs": dict(job.outputs)}
            job.outputs = {}
            if code:
                job.code, job.failed = code, step["name"]
                break
        job.outputs = {name: self._expand(one["value"], contexts) for name, one in (said.get("outputs") or {}).items()}
        return job

    def _run(self, script: str, environment: dict[str, str], number: int, job: Job) -> int:
        commands = self.temporary / "_runner_file_commands"
        commands.mkdir(parents=True, exist_ok=True)
        files = {name: commands / f"{name.lower()}_{number}" for name in STEP_FILES}
        for file in files.values():
            file.write_text("")
        environment |= {f"GITHUB_{name}": str(file) for name, file in files.items()}
        done = subprocess.run(
            ["sh", "-e", "-c", script],
            env=environment,
            cwd=self.checkout,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=300,
        )
        job.log += done.stdout.decode(errors="replace")
        job.summary += files["STEP_SUMMARY"].read_text()
        job.outputs = _outputs_in(files["OUTPUT"].read_text())
        job.left |= {name: text for name in ("ENV", "PATH", "STATE") if (text := files[name].read_text())}
        return done.returncode

    def _artifact(self, step: Mapping[str, Any], contexts: Mapping[str, Any]) -> None:
        action, _, revision = step["uses"].partition("@")
        assert re.fullmatch("[0-9a-f]{40}", revision), step["uses"]
        name, path = step["with"]["name"], Path(self._expand(step["with"]["path"], contexts))
        if action == "actions/upload-artifact":
            if path.exists():
                self.artifacts[name] = _zipped({path.name: path.read_bytes()})
            else:
                assert step["with"].get("if-no-files-found") == "ignore", step
        else:
            assert action == "actions/download-artifact"
            with zipfile.ZipFile(io.BytesIO(self.artifacts[name])) as opened:
                opened.extractall(path)

    def _holds(self, condition: str, contexts: Mapping[str, Any]) -> bool:
        left, wanted, right = re.fullmatch(r"(\S+) (==|!=) '(.*)'", condition).groups()  # type: ignore[union-attr]
        return (_look_up(left, contexts) == right) == (wanted == "==")

    def _expand(self, text: str, contexts: Mapping[str, Any]) -> str:
        def value(found: re.Match[str]) -> str:
            names = found[1].split("||")
            if not contexts:
                return "the-token"
            return next((one for name in names if (one := _look_up(name.strip(), contexts))), "")

        return _EXPRESSION.sub(value, text)


def _look_up(name: str, contexts: Mapping[str, Any]) -> str:
    value: Any = contexts
    for part in name.split("."):
        value = value.get(part, {}) if isinstance(value, dict) else {}
    return "" if value == {} else str(value)


def _outputs_in(text: str) -> dict[str, str]:
    """As the runner reads the file of a step's outputs."""
    found: dict[str, str] = {}
    lines = iter(text.splitlines())
    for line in lines:
        name, plain, value = line.partition("=")
        if "<<" in name or not plain:
            name, _, end = line.partition("<<")
            value = "\n".join(iter(lambda: next(lines), end))
        found[name] = value
    return found


def _zipped(files: Mapping[str, bytes]) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as made:
        for name, content in files.items():
            made.writestr(name, content)
    return held.getvalue()


@dataclass
class Api:
    """What the API has: the run that is asked for, its artifacts, and the comments that were made; `asked` are the
    paths that were asked for with a token."""

    run: dict[str, Any] = field(default_factory=dict)
    artifacts: dict[int, bytes] = field(default_factory=dict)
    comments: list[tuple[str, str]] = field(default_factory=list)
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    url: str = ""

    def of_run(self, **changes: Any) -> None:
        """The run is one of this repository and workflow, but for the changes."""
        own = {"full_name": REPOSITORY}
        self.run = {"id": 77, "path": WORKFLOW, "repository": own, "head_repository": own, **changes}


@contextlib.contextmanager
def serve_api() -> Iterator[Api]:
    """Serve an API on the loopback."""
    api = Api()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            api.asked.append((self.path, self.headers.get("Authorization")))
            path = self.path.partition("?")[0]
            if path.startswith("/blob/"):
                return self._answer(api.artifacts[int(path.rpartition("/")[2])])
            if path.endswith("/zip"):
                return self._answer(b"", code=302, Location=f"{api.url}/blob/{path.split('/')[-2]}")
            if path.endswith("/artifacts"):
                listed = [{"id": one, "name": "agent-host-state", "expired": False} for one in api.artifacts]
                return self._answer(json.dumps({"artifacts": listed}).encode())
            return self._answer(json.dumps(api.run).encode())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            api.comments.append((self.path, body["body"]))
            self._answer(b"{}", code=201)

        def _answer(self, data: bytes, *, code: int = 200, **headers: str) -> None:
            self.send_response(code)
            for name, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        api.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield api
        finally:
            server.shutdown()
            thread.join()


def commit(checkout: Path, files: Mapping[str, str], *, message: str = "x") -> str:
    """Commit `files` in a repository that is made if there is none; the commit's name."""
    environment = {
        **os.environ,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
        **{f"GIT_{who}_{what}": "x@x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=checkout, env=environment, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    if not (checkout / ".git").exists():
        git("init", "--quiet", "--initial-branch=main")
    for name, text in files.items():
        path = checkout / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git("add", "--all")
    git("commit", "--quiet", "--allow-empty", "--message", message)
    return git("rev-parse", "HEAD")
