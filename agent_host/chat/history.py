"""The prompts of all conversations, for the arrow keys: a file of the state directory, for its owner alone."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final

from prompt_toolkit.history import History

from agent_host.safe_open import open_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

NAME: Final = "chat-history"
_MOST_BYTES: Final = 1024 * 1024
_KEPT_BYTES: Final = 512 * 1024
_END: Final = "\x1e"


class PromptHistory(History):
    """Prompts without their secrets, which `clean` takes out."""

    def __init__(self, state_dir: str, clean: Callable[[str], str]) -> None:
        super().__init__()
        self._path = os.path.join(state_dir, NAME)
        self._clean = clean

    def load_history_strings(self) -> Iterable[str]:
        """See History: newest first."""
        prompts = [one.strip("\n") for one in self._read().split(_END)]
        return reversed([one for one in prompts if one])

    def store_string(self, string: str) -> None:
        """See History. What the disk refuses is no history, and no error."""
        text = f"{self._clean(string).replace(_END, ' ')}\n{_END}\n"
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            if os.path.exists(self._path) and os.path.getsize(self._path) > _MOST_BYTES:
                self._shorten()
            fd = open_regular(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            with open(fd, "ab") as file:
                file.write(text.encode("utf-8", "replace"))

    def _shorten(self) -> None:
        kept = self._read()[-_KEPT_BYTES:].partition(_END)[2]
        fd = open_regular(self._path, os.O_WRONLY | os.O_TRUNC)
        with open(fd, "wb") as file:
            file.write(kept.encode("utf-8", "replace"))

    def _read(self) -> str:
        try:
            with open(open_regular(self._path, os.O_RDONLY), "rb") as file:
                return file.read(2 * _MOST_BYTES).decode("utf-8", "replace")
        except OSError:
            return ""
