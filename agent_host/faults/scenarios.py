"""Scenarios of fault runs: a workspace, the model's side of the conversation, and checks of the end. The default is
`Effects`; see docs/faults.md for how to write your own."""

from __future__ import annotations

import collections
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from agent_host.testing.script import Script

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FINAL = "All six are in the log, the note is written and the colour is green."
EFFECTS = ("one", "two", "three", "four", "five", "six")
PATCH = """\
diff --git a/note.txt b/note.txt
new file mode 100644
--- /dev/null
+++ b/note.txt
@@ -0,0 +1 @@
+done
diff --git a/old.txt b/old.txt
deleted file mode 100644
--- a/old.txt
+++ /dev/null
@@ -1 +0,0 @@
-old
diff --git a/settings.ini b/settings.ini
--- a/settings.ini
+++ b/settings.ini
@@ -1 +1 @@
-colour = red
+colour = green
"""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The outcome of a session that has ended. `result` is its result.json, `history` the messages of its whole thread,
    `events` its run log, `text` the stdout of the process that reported the end, `patch` the patch that it printed
    (None with `--output json`)."""

    workspace: Path
    result: Mapping[str, Any]
    history: Sequence[Mapping[str, Any]]
    events: Sequence[Mapping[str, Any]]
    text: str
    patch: str | None


class Scenario:
    """One task for fault runs, whose workspace contains `files` (content by name). The script consists of `turns` and
    selects them by position; a turn after an interrupted call has `when = {last_contains = "TOOL_INTERRUPTED", position
    = N}` and checks the workspace before it repeats anything. At the end each of `effects` is in effects.log once.

    `options` are options of `agent-host run` apart from those that a run sets itself; `exit_code`, `status` and
    `answer` are the outcome of an undisturbed session, and must be that of every disturbed one.
    """

    files: ClassVar[Mapping[str, str]] = {}
    prompt = "Make the effects."
    options: tuple[str, ...] = ("--policy", "ci")
    exit_code = 0
    status = "TASK_COMPLETED"
    answer = ""
    turns: ClassVar[Sequence[Mapping[str, Any]]] = ()
    effects: ClassVar[Sequence[str]] = ()

    def prepare(self, workspace: Path) -> None:
        """Fill the empty `workspace` for the task."""
        for name, content in self.files.items():
            (workspace / name).write_text(content)

    def script(self, workspace: Path) -> Script:  # noqa: ARG002  calls without absolute paths do not depend on it
        """Return the gateway's script."""
        return Script.from_turns(self.turns)

    def check(self, outcome: RunOutcome) -> list[str]:
        """Return the problems of the end, one line each; a run checks thread, totals and answer itself."""
        made = collections.Counter((outcome.workspace / "effects.log").read_text().split())
        names = sorted({*made, *self.effects})
        return [
            f"effect {name!r} was made {made[name]} times" for name in names if made[name] != (name in self.effects)
        ]


def command(line: str) -> dict[str, Any]:
    """Return a RunCommand call for a script."""
    return {"name": "RunCommand", "arguments": {"command": line}}


def append(word: str) -> dict[str, Any]:
    """Return a command that waits 20 ms, so that a random kill may hit it, and then adds `word` to effects.log."""
    return command(f"sleep 0.02 && echo {word} >> effects.log")


def repair(*words: str) -> dict[str, Any]:
    """Return a command that adds those of `words` to effects.log that are not in it."""
    return command("; ".join(f"grep -qx {word} effects.log || echo {word} >> effects.log" for word in words))


Part = tuple["list[dict[str, Any]]", "list[dict[str, Any]]"]


def script_of(parts: Sequence[Part], final: str) -> Script:
    """Return the script of `turns_of` these parts."""
    return Script.from_turns(turns_of(parts, final))


def turns_of(parts: Sequence[Part], final: str) -> list[dict[str, Any]]:
    """Return the turns of a model that makes each part's calls in turn and ends with the text `final`. A part is
    (calls, calls that repair it if some were interrupted), and begins with thinking. Every turn reports a different
    usage, so that no total is right by accident."""
    turns: list[dict[str, Any]] = []
    for position, (calls, mend) in enumerate(parts, 1):
        thought = f"Part {position} is next."
        turn = {"thinking": thought, "text": f"Part {position}.", "tool_calls": calls}
        turns.append({**turn, "usage": _usage(10 * position)})
        mending = {"text": "I look at what is there.", "tool_calls": mend, "usage": _usage(10 * position + 5)}
        turns.append({"when": _interrupted(position + 1), **mending})
    return [*turns, {"text": final, "expect": {"last_role": "user"}, "usage": _usage(10 * len(parts) + 10)}]


def _interrupted(position: int) -> dict[str, Any]:
    return {"position": position, "last_contains": "TOOL_INTERRUPTED"}


def _usage(number: int) -> dict[str, int]:
    return {"input_tokens": 1000 + number, "output_tokens": number, "cache_read_input_tokens": number // 2}


_LOG = {"effects.log": ""}
_SECOND_NAME = ".cache/settings.ini"  # in a folder that is not searched for changes by commands


class Effects(Scenario):
    """Six commands that each append a word to a file, parallel calls, a file that is created, one that is deleted, and
    one that is written twice, so that the patch needs the version before the first write. That file has a second name,
    so that it is written in place."""

    files: ClassVar[Mapping[str, str]] = {**_LOG, "old.txt": "old\n", "settings.ini": "colour = red\n"}
    answer = FINAL
    effects = EFFECTS

    def prepare(self, workspace: Path) -> None:
        """See Scenario."""
        super().prepare(workspace)
        (workspace / _SECOND_NAME).parent.mkdir()
        (workspace / _SECOND_NAME).hardlink_to(workspace / "settings.ini")

    def script(self, workspace: Path) -> Script:
        """See Scenario."""
        note = _write(workspace / "note.txt", "done\n")
        blue, green = (_write(workspace / "settings.ini", f"colour = {colour}\n") for colour in ("blue", "green"))
        delete = {"name": "DeleteFile", "arguments": {"path": f"{workspace}/old.txt"}}
        read = {"name": "ReadFile", "arguments": {"path": f"{workspace}/effects.log"}}
        parts: list[Part] = [
            ([append("one"), append("two"), append("three")], [repair("one", "two", "three")]),
            ([note, append("four")], [note, repair("four")]),
            ([read, append("five"), delete], [repair("five"), command("rm -f old.txt")]),
            ([append("six"), blue], [repair("six"), blue]),
            ([green], [green]),
        ]
        return script_of(parts, FINAL)

    def check(self, outcome: RunOutcome) -> list[str]:
        """See Scenario."""
        workspace = outcome.workspace
        problems = super().check(outcome)
        for name, content in (("note.txt", "done\n"), ("settings.ini", "colour = green\n")):
            found = (workspace / name).read_text() if (workspace / name).exists() else None
            if found != content:
                problems.append(f"{name} holds {found!r}, not {content!r}")
        if not (workspace / _SECOND_NAME).samefile(workspace / "settings.ini"):
            problems.append("settings.ini is another file than it was")
        if (workspace / "old.txt").exists():
            problems.append("old.txt is still there")
        if outcome.patch is not None and outcome.patch != PATCH:
            problems.append(f"the patch is not that of an undisturbed session: {outcome.patch!r}")
        return problems


def _write(path: Path, content: str) -> dict[str, Any]:
    return {"name": "WriteFile", "arguments": {"path": str(path), "content": content}}


class Brief(Scenario):
    """Three effects in two steps, for faults that have many variants."""

    files = _LOG
    answer = "All three are in the log."
    effects = EFFECTS[:3]
    turns = turns_of(
        [([append("one"), append("two")], [repair("one", "two")]), ([append("three")], [repair("three")])], answer
    )


class StepLimit(Scenario):
    """A model that never finishes: no matter how often the process is killed, the task gets exactly `--max-steps`
    steps."""

    files = _LOG
    steps = 3
    options = ("--policy", "ci", "--max-steps", str(steps))
    exit_code = 1
    status = "TASK_FAILED"
    turns = ({"text": "Again.", "tool_calls": [append("tick")], "repeat": 4 * steps},)

    def check(self, outcome: RunOutcome) -> list[str]:
        """See Scenario."""
        result = outcome.result
        ends = (result["reason"], result["stepCount"])
        problems = [] if ends == ("max_steps_exceeded", self.steps) else [f"it ended with {ends}"]
        statuses = [call["status"] for call in result["toolCalls"]]
        made = len((outcome.workspace / "effects.log").read_text().split())
        if not statuses.count("succeeded") <= made <= len(statuses):
            problems.append(f"{made} effects of {statuses.count('succeeded')} calls that succeeded of {len(statuses)}")
        return problems


class CutAnswer(Scenario):
    """An answer that is cut at the output limit, once before a call and once at the end: the step is then open without
    a call, and the model is asked to continue."""

    files = _LOG
    answer = "Both halves are there."
    effects = EFFECTS[:1]
    turns = (
        {"text": "First I", "stop_reason": "max_tokens", "expect": {"message_count": 1}, "usage": _usage(10)},
        {"text": " act.", "tool_calls": [append("one")], "expect": {"message_count": 3}, "usage": _usage(20)},
        {"when": _interrupted(3), "text": "I look.", "tool_calls": [repair("one")], "usage": _usage(25)},
        {"text": "Both halves", "stop_reason": "max_tokens", "usage": _usage(30)},
        {"text": " are there.", "expect": {"last_role": "user"}, "usage": _usage(40)},
    )


def _edit(old: str, new: str) -> dict[str, Any]:
    edits = [{"oldText": old, "newText": new}]
    return {"name": "EditFile", "arguments": {"path": "settings.ini", "edits": edits}}


def _move(path: str, new_path: str) -> dict[str, Any]:
    return {"name": "MoveFile", "arguments": {"path": path, "newPath": new_path}}


class FilesScenario(Scenario):
    """A file that is edited twice and then moved, and another that is moved: a resume compares edits and moves with the
    disk."""

    files: ClassVar[Mapping[str, str]] = {"old.txt": "old\n", "settings.ini": "colour = red\n"}
    answer = "Both are in their place."
    _parts = (
        [_edit("red", "blue"), _move("old.txt", "kept/old.txt")],
        [_edit("blue", "green")],
        [_move("settings.ini", "kept/settings.ini")],
    )
    # A part is repaired by repeating it, because a call that is already done only fails.
    turns = turns_of([(calls, calls) for calls in _parts], answer)

    def check(self, outcome: RunOutcome) -> list[str]:
        """See Scenario."""
        files = sorted(path for path in outcome.workspace.rglob("*") if path.is_file())
        found = {str(path.relative_to(outcome.workspace)): path.read_text() for path in files}
        wanted = {"kept/old.txt": "old\n", "kept/settings.ini": "colour = green\n"}
        return [] if found == wanted else [f"there is {found}, not {wanted}"]


def _in_background(line: str) -> dict[str, Any]:
    return {"name": "RunCommand", "arguments": {"command": line, "background": True}}


class BackgroundScenario(Scenario):
    """A background command that runs during another command: it is started once, and has ended at the end."""

    files: ClassVar[Mapping[str, str]] = {**_LOG, "pids.log": ""}
    answer = "The server ran, and both steps are done."
    _line = "echo $$ >> pids.log; echo one >> effects.log; exec sleep 60307"
    _mending: ClassVar[dict[str, Any]] = {"tool_calls": [repair("two")], "usage": _usage(25)}
    turns = (
        {"text": "First the server.", "tool_calls": [_in_background(_line)], "usage": _usage(10)},
        {"text": "Then the rest.", "tool_calls": [append("two")], "usage": _usage(20)},
        {"when": _interrupted(3), **_mending},
        # The note about the server follows the results.
        {"when": {"position": 3, "last_contains": "cmd_1"}, **_mending},
        {"text": answer, "expect": {"last_role": "user"}, "usage": _usage(30)},
    )

    def check(self, outcome: RunOutcome) -> list[str]:
        """See Scenario. The kill may come before its first effect."""
        made = (outcome.workspace / "effects.log").read_text().split()
        problems = [] if made.count("one") <= 1 else [f"the background command ran {made.count('one')} times"]
        if made.count("two") != 1:
            problems.append(f"effect 'two' was made {made.count('two')} times")
        pids = (outcome.workspace / "pids.log").read_text().split()
        return problems + [f"the background command {pid} still runs" for pid in pids if _runs(int(pid), "60307")]


def _runs(pid: int, argument: str) -> bool:
    """True if the process `pid` was started with `argument`; without /proc, true if it exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return argument.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return not os.path.isdir("/proc")


class Helpers(Scenario):
    """Twelve commands and one in the background, with some time before each in which a helper process may be killed."""

    files = _LOG
    options = ("--policy", "ci", "--sandbox", "auto")
    answer = "All twelve are in the log."
    _words = tuple(f"word{number}" for number in range(12))

    turns = (
        {"text": "First the server.", "tool_calls": [_in_background("exec sleep 60311")], "usage": _usage(5)},
        *(
            {"text": f"{word}.", "tool_calls": [append(word)], "delay_ms": 60, "usage": _usage(10 + number)}
            for number, word in enumerate(_words)
        ),
        {"text": answer, "delay_ms": 60, "usage": _usage(500)},
    )

    def check(self, outcome: RunOutcome) -> list[str]:
        """See Scenario. On a busy machine a command may be killed as it starts; its result then reports that."""
        made = collections.Counter((outcome.workspace / "effects.log").read_text().split())
        results = [message for message in outcome.history if message["role"] == "tool"][1:]
        reported = {word: "Exit code: 137" in one["content"] for word, one in zip(self._words, results, strict=True)}
        return [
            f"effect {word!r} was made {made[word]} times"
            for word in self._words
            if made[word] > 1 or not (made[word] or reported[word])
        ]


SCENARIOS: Mapping[str, type[Scenario]] = {
    "effects": Effects,
    "brief": Brief,
    "step-limit": StepLimit,
    "cut-answer": CutAnswer,
    "files": FilesScenario,
    "background": BackgroundScenario,
    "helpers": Helpers,
}
