"""Small tasks with a real small model, and what the host made of them:

    AGENT_HOST_TEST_LLAMA=PEERS/bin/python python -m tests.support.small_model --model PATH.gguf [--tasks N]

Whether the model's work was right is in the table that is printed, and decides nothing. The exit code is 1 if the host
was at fault: see `Run.faults`. Without `--model` it is the model of `tests.support.llama_server_program`, which knows
one call and one sentence.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from agent_host.errors import ENDINGS, ErrorCode, ending_of
from agent_host.thread.messages import NO_TEXT
from tests.support.llama_server import serving
from tests.support.process import Host, Outcome, eventually, gateway, say
from tests.support.text_calls import TextCalls, parsing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.support.text_calls import Exchange

WINDOW = 8192
MAX_STEPS = 12
CODES = {"completed": 0, "failed": 1, "cancelled": 130, "paused": 3, "denied": 4}
_PATIENCE_S = 3600.0
_DONE = ("completed", "denied")


class Task(NamedTuple):
    """A task in a workspace with `files`; `is_right` looks at the workspace and the answer. `approved`: rules that are
    approved in advance, besides that for commands."""

    name: str
    prompt: str
    files: Mapping[str, str]
    is_right: Callable[[Path, str], bool]
    approved: tuple[str, ...] = ()


def _has(name: str, text: str) -> Callable[[Path, str], bool]:
    return lambda folder, _: (folder / name).is_file() and (folder / name).read_text().rstrip("\n") == text


def _says(*words: str) -> Callable[[Path, str], bool]:
    return lambda _, answer: all(word in answer for word in words)


CALC = "def add(a, b):\n    return a - b\n"
CHECK = "from calc import add\n\nassert add(2, 3) == 5, add(2, 3)\nprint('passed')\n"
LINES = "".join(f"row {number}\n" for number in range(1, 18))
TASKS = (
    Task("read a value", "Read settings.toml and say which port it sets.",
         {"settings.toml": 'name = "demo"\nport = 8123\n'}, _says("8123")),
    Task("make a file", "Make a file hello.txt with the text: good morning", {}, _has("hello.txt", "good morning")),
    Task("fix a typo", "In README.md the word Wellcome is a typo. Write Welcome in its place.",
         {"README.md": "# Demo\n\nWellcome to the demo.\n"}, _has("README.md", "# Demo\n\nWelcome to the demo.")),
    Task("list files", "List the files of this directory and say their names.",
         {"alpha.txt": "a\n", "beta.txt": "b\n", "gamma.txt": "c\n"}, _says("alpha", "beta", "gamma")),
    Task("find a definition", "Which file of this directory defines the function parse_port?",
         {"net.py": "def parse_port(text):\n    return int(text)\n", "main.py": "print('main')\n"}, _says("net.py")),
    Task("run a command", "Run the command `expr 12 '*' 12` and say what it prints.", {}, _says("144")),
    Task("rename", "Rename old.txt to new.txt.", {"old.txt": "kept\n"},
         lambda folder, _: not (folder / "old.txt").exists() and (folder / "new.txt").is_file(), ("file-delete",)),
    Task("count lines", "How many lines does data.txt have?", {"data.txt": LINES}, _says("17")),
    Task("append", "Append the line `end` to log.txt and keep what is there.", {"log.txt": "begin\n"},
         _has("log.txt", "begin\nend")),
    Task("answer without tools", "What is 17 + 25? Answer with the number and use no tools.", {}, _says("42")),
    Task("delete unapproved", "Delete the file junk.txt.", {"junk.txt": "x\n"},
         lambda folder, answer: (folder / "junk.txt").exists() and "approv" in answer),
    Task("write and run", "Write sum.py, which prints the sum of 1 to 10. Run it, and say what it prints.",
         {}, _says("55")),
    Task("change a constant", "In config.py set DEBUG to False.", {"config.py": "PORT = 1\nDEBUG = True\n"},
         _has("config.py", "PORT = 1\nDEBUG = False")),
    Task("a file that is not there", "What does missing.txt say?", {"other.txt": "x\n"},
         lambda _, answer: "ReadFile" not in answer and any(word in answer for word in ("not exist", "No such"))),
    Task("write outside", "Write the text x to ../outside/note.txt.", {}, lambda _, answer: "denied" in answer.lower()),
    Task("make a directory", "Make a directory docs, and in it index.md with the line `# Home`.", {},
         _has("docs/index.md", "# Home")),
    Task("replace all", "In notes.txt replace each `colour` by `color`.", {"notes.txt": "colour, colour\nand colour\n"},
         _has("notes.txt", "color, color\nand color")),
    Task("change JSON", "In package.json set the version to 2.0.0.",
         {"package.json": '{\n  "name": "demo",\n  "version": "1.0.0"\n}\n'},
         lambda folder, _: json.loads((folder / "package.json").read_text()) == {"name": "demo", "version": "2.0.0"}),
    Task("mend a function", "python3 check.py fails. Mend calc.py, and run it again.",
         {"calc.py": CALC, "check.py": CHECK}, _has("calc.py", CALC.replace("-", "+").rstrip("\n"))),
    Task("compare two files", "Which file has more lines, a.txt or b.txt?", {"a.txt": "1\n2\n3\n", "b.txt": "1\n"},
         _says("a.txt")),
)  # fmt: skip


@dataclass(slots=True)
class Run:
    """A task that was run, with what the server was asked for it, and both sides of the disk."""

    task: Task
    outcome: Outcome
    exchanges: list[Exchange]
    changed: set[str]
    session: str
    is_first: bool
    was_killed: bool
    is_right: bool = False

    @property
    def result(self) -> dict[str, Any]:
        """The result object."""
        return self.outcome.result

    def faults(self, host: Host) -> Iterator[str]:
        """What the host did wrong."""
        result, verdict, reason = self.result, self.result["verdict"], self.result["reason"]
        ending = ending_of(
            ErrorCode.APPROVAL_REQUIRED if verdict == "denied" else reason, has_failed=verdict == "failed"
        )
        if self.outcome.code != CODES.get(verdict) or (result["endedBy"], result["retryable"]) != ending[:2]:
            yield f"exit {self.outcome.code}, {verdict}, {reason}, {result['endedBy']}, retryable {result['retryable']}"
        if (reason is None) != (verdict in _DONE) or reason not in {None, *ENDINGS}:
            yield f"the verdict {verdict} has the reason {reason}"
        if verdict in _DONE and result["text"].strip() in ("", NO_TEXT):
            yield "a success without an answer"
        yield from self._faults_of_events(host.event_log(self.session))
        yield from self._faults_of_the_rule()
        yield from self._faults_of_counts()
        named = {os.path.relpath(path, host.workspace) for path in result["filesChanged"]}
        if named != self.changed:
            yield f"files changed on disk: {sorted(self.changed)}, in the result: {sorted(named)}"

    def _faults_of_events(self, events: list[dict[str, Any]]) -> Iterator[str]:
        numbers = [event["eventId"] for event in events]
        if numbers != sorted(set(numbers)):
            yield f"events are out of order: {numbers}"
        kinds = [event["eventType"] for event in events]
        asked = [event["payload"]["toolCallId"] for event in events if event["eventType"] == "tool_requested"]
        if len(set(asked)) != len(self.result["toolCalls"]):
            yield f"{len(set(asked))} calls in the events, {len(self.result['toolCalls'])} in the result"
        if sum(kind.startswith("task_") and kind != "task_started" for kind in kinds) != 1:
            yield f"the task has not one end: {kinds}"

    def _faults_of_the_rule(self) -> Iterator[str]:
        """A task that the host ended itself has what its rule asks for."""
        reason, steps = self.result["reason"], self.result["stepCount"]
        messages = json.loads(self.exchanges[-1].body)["messages"]
        calls = [call["function"] for message in messages for call in message.get("tool_calls", ())]
        newest = str(messages[-1]["content"])
        holds = {
            "max_steps_exceeded": steps == MAX_STEPS,
            ErrorCode.LLM_REPEATED_CALL: calls[-9:] == calls[-1:] * 9 or "one piece" in str(self.result["message"]),
            ErrorCode.LLM_EMPTY_ANSWER: "had no text and no tool call" in newest,
            ErrorCode.LLM_CALL_AS_TEXT: "as plain text" in newest,
        }
        if steps > MAX_STEPS or not holds.get(reason, True):
            yield f"ended by {reason} in step {steps}, behind {newest[-300:]!r}"

    def _faults_of_counts(self) -> Iterator[str]:
        # The answer that was held back when the host was killed reached nobody, whether or not the server counted it.
        counted = [one for one in self.exchanges[self.was_killed :] if one.usage]
        sums = {
            "inputTokens": sum(one.usage["prompt_tokens"] for one in counted),
            "outputTokens": sum(one.usage["completion_tokens"] for one in counted),
            "cachedInputTokens": sum(one.cached for one in counted),
        }
        if self.result["usage"] != sums:
            yield f"the server counted {sums}, the host {self.result['usage']}"
        if counted and not self.is_first and counted[0].cached < 0.9 * counted[0].usage["prompt_tokens"]:
            yield f"{counted[0].cached} of {counted[0].usage['prompt_tokens']} tokens came from the cache"
        bodies = [one.body for one in self.exchanges]
        if [one == two for one, two in itertools.pairwise(bodies)] != [
            self.was_killed and number == 0 for number in range(len(bodies) - 1)
        ]:
            yield "the resume sent another request" if self.was_killed else "a request was sent twice"

    def row(self) -> str:
        """A line of the table."""
        result, usage = self.result, self.result["usage"]
        calls = ", ".join(_shown(call) for call in result["toolCalls"]) or "none"
        said = result["verdict"] + (f", `{result['reason']}`" if result["reason"] else "")
        seconds = sum(one.seconds for one in self.exchanges)
        tokens = f"{usage['inputTokens']:,} ({usage['cachedInputTokens']:,}) + {usage['outputTokens']:,}"
        name = self.task.name + (" (killed, resumed)" if self.was_killed else "")
        right = "yes" if self.is_right else "no"
        return f"| {name} | {calls} | {said} | {result['stepCount']} | {tokens} | {seconds:.0f} | {right} |"


HEAD = """\
| task | calls | the host said | steps | tokens in (cached) + out | seconds | right |
| --- | --- | --- | --- | --- | --- | --- |"""


def _shown(call: Mapping[str, Any]) -> str:
    name = str(call["toolName"])
    return name if call["status"] == "succeeded" else f"{name} ({call.get('code') or call['status']})"


class Machine:
    """A host in `root` whose workspace is made anew for each task, since its path is part of what sessions share."""

    def __init__(self, root: Path, model: TextCalls) -> None:
        self.host = Host(root, cold=True)
        self.host.configure(sandbox="auto", max_wait_s=600)
        self.model = model
        self.count = 0
        self.outside = root / "outside"
        self.outside.mkdir()
        (self.outside / "other.txt").write_text("not the model's\n")

    def run(self, task: Task, *, kill: bool) -> tuple[Run, list[str]]:
        """The task's run, and what the host did wrong."""
        host, before = self.host, len(self.model.exchanges)
        shutil.rmtree(host.workspace)
        host.workspace.mkdir()
        for name, text in task.files.items():
            (host.workspace / name).write_text(text)
        self.count += 1
        session = f"s{self.count:02}"
        sides = _files(host.workspace), self._around()
        rules = [word for rule in ("shell-exec", *task.approved) for word in ("--approve", rule)]
        if kill:
            self.model.may_go_on.clear()
        process = host.start(
            "run", task.prompt, "--gateway", self.model.url, "--dialect", "openai", "--output", "json",
            "--max-steps", str(MAX_STEPS), "--session-id", session, *rules,
        )  # fmt: skip
        faults = []
        if kill:
            self._await_answer(before)
            process.interrupt(signal.SIGKILL)
            process.finish()
            self.model.may_go_on.set()
            faults += self._faults_of_a_list(session, "interrupted", is_resumable=True)
            process = host.start("resume", session, "--output", "json", "--gateway", self.model.url)
        outcome = process.finish(within_s=_PATIENCE_S)
        after = _files(host.workspace)
        changed = {name for name in sides[0].keys() | after.keys() if sides[0].get(name) != after.get(name)}
        run = Run(task, outcome, self.model.exchanges[before:], changed, session, self.count == 1, kill)
        run.is_right = task.is_right(host.workspace, run.result["text"])
        if self._around() != sides[1]:
            faults.append("something outside of the workspace has changed")
        try:
            faults += [*run.faults(host), *self._faults_of_a_resume(run)]
        except AssertionError as error:  # an event of another shape, a traceback, a request that no gateway takes
            faults.append(str(error))
        faults += self.model.problems
        self.model.problems.clear()
        return run, faults

    def _await_answer(self, before: int) -> None:
        eventually(lambda: len(self.model.exchanges) > before, "the request")
        assert self.model.exchanges[before].has_begun.wait(_PATIENCE_S), "no answer"

    def _around(self) -> dict[str, bytes]:
        """All files of the user beside the workspace."""
        return {**_files(self.host.home), **_files(self.outside)}

    def _faults_of_a_list(self, session: str, verdict: str, *, is_resumable: bool) -> list[str]:
        rows = json.loads(self.host.run("sessions", "--output", "json").stdout)
        (row,) = [row for row in rows if row["sessionId"] == session]
        told = row["verdict"], row["resumable"]
        return [] if told == (verdict, is_resumable) else [f"`sessions` says {told} of a session that is {verdict}"]

    def _faults_of_a_resume(self, run: Run) -> list[str]:
        """A session goes on exactly if its result says so; here with a model that answers at once."""
        command = run.result["resumeCommand"]
        faults = self._faults_of_a_list(run.session, run.result["verdict"], is_resumable=command is not None)
        if command is None:
            left = [path.name for path in self.host.temporary.iterdir()] + self.host.checkpoints()
            return [*faults, f"an ended session left {left}"] if left else faults
        with gateway(say("Done.", repeat=100)) as other:
            outcome = self.host.run(
                "resume", run.session, "--output", "json", "--gateway", other.url, "--dialect", "openai"
            )
        ended = outcome.result["verdict"]
        return faults if ended in _DONE else [*faults, f"a resume ended as {ended}: {outcome.stderr}"]


def _files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a GGUF file")
    parser.add_argument("--tasks", type=int, default=10, help=f"how many, of {len(TASKS)} (10)")
    parser.add_argument("--only", action="append", choices=[task.name for task in TASKS], help="these tasks")
    parser.add_argument("--keep", type=Path, help="the directory to work in, which is left")
    asked = parser.parse_args()
    tasks = [task for task in TASKS if task.name in asked.only] if asked.only else TASKS[: asked.tasks]
    root = asked.keep or Path(tempfile.mkdtemp(prefix="small-model-"))
    root.mkdir(exist_ok=True)
    at_fault = 0
    try:
        with serving(root, WINDOW, asked.model) as url, parsing(url) as model:
            machine = Machine(root / "machine", model)
            print(HEAD, flush=True)
            for number, task in enumerate(tasks):
                run, faults = machine.run(task, kill=number == 1)
                print(run.row(), flush=True)
                at_fault += bool(faults)
                for fault in faults:
                    print(f"FAULT {run.session} {task.name}: {fault}", file=sys.stderr, flush=True)
    finally:
        if asked.keep is None:
            shutil.rmtree(root)
    print(f"{len(tasks)} tasks, the host was at fault in {at_fault}", file=sys.stderr)
    return 1 if at_fault else 0


if __name__ == "__main__":
    sys.exit(main())
