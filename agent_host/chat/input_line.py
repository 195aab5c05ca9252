"""Help for the input line: completion of commands and of workspace paths, and the history of prompts of all
conversations. A path is only named: the model reads it, under policy."""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, Final

from prompt_toolkit.completion import Completer, Completion
from prompt_toolkit.history import History

from agent_host.chat.commands import COMMANDS
from agent_host.safe_open import open_regular
from config.policies import BUILT_IN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document

_MOST_LOOKED_AT: Final = 20_000
_MOST_SHOWN: Final = 50
_PATH: Final = re.compile(r"(?:^|\s)@(\S*)$")
_PASSED_OVER: Final = frozenset({".git", "node_modules", "__pycache__", ".venv"})
_PICTURES: Final = (".png", ".jpg", ".jpeg", ".gif", ".webp")


class ChatCompleter(Completer):
    """See the module."""

    def __init__(self, workspace: str) -> None:
        self._workspace = workspace

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """See Completer."""
        del complete_event
        text = document.text_before_cursor
        if text.startswith("/") and "\n" not in document.text:
            yield from _commands(text)
        elif (found := _PATH.search(text)) is not None:
            yield from self._paths(found[1])

    def _paths(self, start: str) -> Iterator[Completion]:
        folder, _, name = start.rpartition("/")
        place = os.path.join(self._workspace, folder) if folder else self._workspace
        shown = 0
        for path, is_folder in sorted(_entries(place)):
            if path.casefold().startswith(name.casefold()) and (name.startswith(".") or not path.startswith(".")):
                shown += 1
                if shown > _MOST_SHOWN:
                    return
                yield Completion(f"{path}/" if is_folder else path, start_position=-len(name))


def _entries(place: str) -> Iterator[tuple[str, bool]]:
    try:
        with os.scandir(place) as entries:
            for _, entry in zip(range(_MOST_LOOKED_AT), entries, strict=False):
                if entry.name not in _PASSED_OVER and entry.name.isprintable() and " " not in entry.name:
                    yield entry.name, entry.is_dir(follow_symlinks=False)
    except OSError:
        return


def _commands(text: str) -> Iterator[Completion]:
    name, space, argument = text[1:].partition(" ")
    if space:
        for value in BUILT_IN if name == "policy" else ():
            if value.startswith(argument):
                yield Completion(value, start_position=-len(argument))
        return
    for command, row in COMMANDS.items():
        if command.startswith(name):
            shown = f"/{command} {row.argument}".rstrip()
            yield Completion(command, start_position=-len(name), display=shown, display_meta=row.about)


def named_picture(pasted: str, workspace: str) -> str | None:
    """The mention of a picture whose path was pasted, as terminals do for a dropped file; None for any other text."""
    text = pasted.strip()
    if "\n" in text or not text.lower().rstrip("'\"").endswith(_PICTURES):
        return None
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    path = text.removeprefix("file://").replace("\\ ", " ")
    if not os.path.isabs(path) or not os.path.isfile(path):
        return None
    inside = workspace.rstrip(os.sep) + os.sep
    return f"@{path.removeprefix(inside)} "


NAME: Final = "chat-history"
_MOST_BYTES: Final = 1024 * 1024
_KEPT_BYTES: Final = 512 * 1024
_END: Final = "\x1e"


class PromptHistory(History):
    """Prompts without their secrets, which `clean` removes."""

    def __init__(self, state_dir: str, clean: Callable[[str], str]) -> None:
        super().__init__()
        self._path = os.path.join(state_dir, NAME)
        self._clean = clean

    def load_history_strings(self) -> Iterable[str]:
        """See History: newest first."""
        prompts = [one.strip("\n") for one in self._read().split(_END)]
        return reversed([one for one in prompts if one])

    def store_string(self, string: str) -> None:
        """See History. A disk failure is ignored; the prompt is then missing from the history."""
        text = f"{self._clean(string).replace(_END, ' ')}\n{_END}\n"
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            if os.path.exists(self._path) and os.path.getsize(self._path) > _MOST_BYTES:
                kept = self._read()[-_KEPT_BYTES:].partition(_END)[2]
                with open(open_regular(self._path, os.O_WRONLY | os.O_TRUNC), "wb") as file:
                    file.write(kept.encode("utf-8", "replace"))
            with open(open_regular(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as file:
                file.write(text.encode("utf-8", "replace"))

    def _read(self) -> str:
        try:
            with open(open_regular(self._path, os.O_RDONLY), "rb") as file:
                return file.read(2 * _MOST_BYTES).decode("utf-8", "replace")
        except OSError:
            return ""
