"""Output files of a run for a pipeline: `--patch`, `--result`, `--summary` and `--junit`; and pages.

Each is complete or absent: an older file is removed before the first tool runs, and the new one is put in place
atomically, however the task ended. Their directories are opened at the start and used by descriptor, so that no tool
can redirect a file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import stat
from typing import TYPE_CHECKING, Any

import orjson

from agent_host.cli import GITHUB, answer, exit_codes, notice
from agent_host.display_text import escape
from agent_host.errors import AgentHostError, UsageError
from agent_host.host.options import anchor
from config import json_text
from config.policies import names_file
from config.settings import MOCK_PREFIX

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from types import ModuleType

    from agent_host.host.records import Result, WholePatch

OPTIONS = ("patch", "result", "summary", "junit")
_BY_DESCRIPTOR = os.open in os.supports_dir_fd and hasattr(os, "O_DIRECTORY")


class OutputFile:
    """One output file. Raises UsageError if its place is not writable; nothing was removed then."""

    def __init__(self, option: str, path: str) -> None:
        self.option = option
        self.path = anchor(path)
        folder, self._name = os.path.split(self.path)
        self.real_path = os.path.join(os.path.realpath(folder), self._name)
        self._folder: int | None = None
        self._base = folder
        try:
            if not self._name or path.endswith(os.sep):
                raise IsADirectoryError(0, "it is a directory")
            if _BY_DESCRIPTOR:
                self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            with contextlib.suppress(FileNotFoundError):
                mode = os.stat(self._place(self._name), dir_fd=self._folder, follow_symlinks=False).st_mode
                if stat.S_ISDIR(mode):
                    raise IsADirectoryError(0, "it is a directory")
                if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
                    raise OSError(0, "it is not a regular file, and would be replaced by one")
            if not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(0, "its directory cannot be written to")
        except OSError as error:
            self.close()
            raise UsageError(f"--{option} {path}: {error.strerror}") from error

    def remove_old(self) -> None:
        """Remove the file of an earlier run; of a symbolic link only the link. Raises UsageError."""
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._place(self._name), dir_fd=self._folder)
        except OSError as error:
            raise UsageError(f"--{self.option} {self.path}: {error.strerror}") from error

    def write(self, data: bytes) -> bool:
        """Write all of `data` or nothing. If that fails, print a line about it and return False."""
        temporary = f".agent-host-{secrets.token_hex(8)}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        try:
            fd = os.open(self._place(temporary), flags, 0o666, dir_fd=self._folder)
            try:
                with os.fdopen(fd, "wb") as handle:
                    handle.write(data)
                    handle.flush()
                    os.fsync(handle.fileno())
                names = (self._place(temporary), self._place(self._name))
                os.replace(*names, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(self._place(temporary), dir_fd=self._folder)
                raise
        except OSError as error:
            notice(f"error: --{self.option} {self.path} was not written: {error.strerror}")
            return False
        return True

    def close(self) -> None:
        """Close the directory."""
        if self._folder is not None:
            os.close(self._folder)
            self._folder = None

    def _place(self, name: str) -> str:
        return name if self._folder is not None else os.path.join(self._base, name)


def check_no_overlap(files: Iterable[OutputFile], namespace: argparse.Namespace) -> None:
    """Raise UsageError if an output would replace a file that the command reads."""
    named = {"--schema": "schema", "--policy": "policy", "--gateway": "gateway", "FILE": "file"}
    read = [(label, getattr(namespace, name, None)) for label, name in named.items()]
    read += [("RECORDING", path) for path in getattr(namespace, "recordings", ())]
    for label, path in read:
        if path is None or (label == "--policy" and not names_file(path)):
            continue
        for one in files:
            if one.real_path == os.path.realpath(path.removeprefix(MOCK_PREFIX)):
                raise UsageError(f"--{one.option} {one.path}: {label} is read from there")


def write_outputs(
    files: OutputFiles,
    result: Result,
    items: Sequence[Mapping[str, Any]],
    make_patch: Callable[[Collection[str]], WholePatch],
    *,
    code: int,
    resume: str | None,
) -> tuple[Result, bool]:
    """Write the files of a run that ended with `result` and will exit with `code`. Returns the result with its fields
    about the files, and True if all were written. `items` are those of the task's transcript."""
    from agent_host.cli import pipeline  # no run needs the report's XML at its start

    patch, of_files, is_whole = _write_patch(files, result, make_patch)
    result = dataclasses.replace(result, details={**result.details, **of_files})
    prompt = next((item["text"] for item in items if item.get("role") == "user"), "")
    if "summary" in files or files.step_summary:
        text = pipeline.summary_of(result, items, patch, prompt=prompt, resume=resume)
        is_whole &= files.write("summary", text.encode("utf-8", "replace"))
        if files.step_summary:
            pipeline.append_summary(files.step_summary, text)
    if "junit" in files:
        code = code if is_whole else code or exit_codes.FAILED
        is_whole &= files.write("junit", pipeline.junit_of(result, items, code, prompt=prompt, resume=resume))
    again = resume if result.resumable or result.details["deniedApprovals"] else None
    if "result" in files:
        shown = {**result.details, "resumeCommand": resume if result.resumable else None}
        is_whole &= files.write("result", json_text.dumps(shown, option=orjson.OPT_APPEND_NEWLINE))
    if files.step_outputs:
        outputs = {
            "patch-file": str(of_files.get("patchFile", "")),
            "session-id": result.session_id,
            "exit-code": str(code if is_whole else code or exit_codes.FAILED),
            "verdict": str(result.details["verdict"]),
            "resume-command": again or "",
        }
        pipeline.append_outputs(files.step_outputs, outputs)
    return result, is_whole


def _write_patch(
    files: OutputFiles, result: Result, make_patch: Callable[[Collection[str]], WholePatch]
) -> tuple[WholePatch | None, dict[str, Any], bool]:
    """Make the patch if an output reports on it, and write it if requested. Returns the patch, the result's fields
    about it, and False if it is missing."""
    wanted, of_files = "patch" in files, dict[str, Any]()
    if not (wanted or "summary" in files or files.step_summary):
        return None, of_files, True
    try:
        patch = make_patch(files.places)
    except AgentHostError as error:
        if wanted or "summary" in files:
            notice(f"error: there is no patch: {error}")
        return None, of_files, not wanted
    if not wanted:
        return patch, of_files, True
    for row in patch.omitted:
        notice(f"{escape(row['path'], keep='')} is not in the patch: {escape(row['why'], keep='')}")
    if "changesUnseen" in result.details:
        notice(f"the patch may lack changes by commands: {escape(result.details['changesUnseen'], keep='')}")
    of_files["patchOmitted"] = patch.omitted
    is_whole = files.write("patch", patch.to_bytes())
    if is_whole:
        of_files["patchFile"] = files["patch"].path
    return patch, of_files, is_whole


class OutputFiles(dict[str, OutputFile]):
    """All output files by option; those of an earlier run are removed. Raises UsageError.

    `step_summary` and `step_outputs` are files of the GitHub Actions step of this run, None outside of one: the summary
    unless `--no-summary`, the outputs with `--patch`.
    """

    def __init__(self, namespace: argparse.Namespace) -> None:
        super().__init__()
        step = os.environ if os.environ.get(GITHUB) else dict[str, str]()
        summarizes = not getattr(namespace, "no_summary", True)
        self.step_summary = step.get("GITHUB_STEP_SUMMARY") or None if summarizes else None
        self.step_outputs = step.get("GITHUB_OUTPUT") or None if getattr(namespace, "patch", None) else None
        given = {option: getattr(namespace, option, None) for option in OPTIONS}
        try:
            for option, path in given.items():
                if path is not None:
                    self[option] = OutputFile(option, path)
            self.places = frozenset(one.real_path for one in self.values())
            """The real paths, which a patch must not contain."""
            if len(self.places) < len(self):
                raise UsageError(f"{' and '.join(f'--{one}' for one in self)}: each needs a file of its own")
            check_no_overlap(self.values(), namespace)
            for one in self.values():
                one.remove_old()
        except UsageError:
            self.close()
            raise

    def __bool__(self) -> bool:
        return bool(len(self) or self.step_summary)

    def write(self, option: str, data: bytes) -> bool:
        """Write a file if it was requested; True if it was written or was not requested."""
        return option not in self or self[option].write(data)

    def close(self) -> None:
        """Close all directories."""
        for one in self.values():
            one.close()


def import_view() -> ModuleType:
    """Import `agent_host.view`, which makes the page of many sessions, and its module `session`, which makes that of
    one. Raises UsageError without the extra `report`."""
    try:
        import agent_host.view.session
    except ImportError as error:
        raise UsageError("--html needs Jinja: install agent-host[report]") from error
    return agent_host.view


def write_page(path: str, render: Callable[[], bytes], *, quiet: bool = False) -> int:
    """Write the result of `render` to `path`, completely or not at all, and report it unless `quiet`. Raises UsageError
    if the place is not writable."""
    file = OutputFile("html", path)
    try:
        if not file.write(render()):
            return exit_codes.FAILED
    finally:
        file.close()
    if not quiet:
        answer(f"wrote {escape(file.path, keep='')}\n")
    return exit_codes.COMPLETED
