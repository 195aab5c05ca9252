"""Completion of commands and of paths of the workspace. A path is only named: the model reads it, under policy."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from prompt_toolkit.completion import Completer, Completion

from agent_host.chat.commands import COMMANDS
from config.policies import BUILT_IN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
    """The mention of a picture whose path was pasted, as terminals do it for a file that is dropped on them; None for
    any other text."""
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
