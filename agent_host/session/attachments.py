"""Pictures that come with a prompt: files in the session's temporary directory, which the prompt names.

The model looks at them with its tool for files, as at any picture: policy judges that, the result is on record, and a
model that takes no pictures is told so. So a prompt on record is text, and needs no form of its own in any dialect.
"""

from __future__ import annotations

import base64
import binascii
import os
from typing import TYPE_CHECKING, Any, Final

from agent_host.errors import UsageError
from agent_host.safe_open import open_regular
from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

KINDS: Final = {"image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp"}
"""The media types of pictures with the ends of their names."""
_BEGINS: Final = {
    "image/png": b"\x89PNG\r\n\x1a\n",
    "image/jpeg": b"\xff\xd8\xff",
    "image/gif": b"GIF8",
    "image/webp": b"RIFF",
}


class PromptPicture(NamedTuple):
    """A picture as its file has it."""

    media_type: str
    data: bytes


def picture_in(sent: Mapping[str, Any], path: str) -> PromptPicture:
    """A picture as a client sends it: {mediaType, data in base64}. Raises UsageError, which names it by `path`."""
    try:
        data = base64.b64decode(sent["data"], validate=True)
    except (binascii.Error, ValueError) as error:
        raise UsageError(f"{path}.data: is not base64: {error}") from error
    if not data.startswith(_BEGINS[sent["mediaType"]]):
        raise UsageError(f"{path}: is not of the type {sent['mediaType']}")
    return PromptPicture(sent["mediaType"], data)


def keep_pictures(pictures: Sequence[PromptPicture], folder: str, new_id: Callable[[str], str]) -> str:
    """Write the pictures into `folder` under names of `new_id`, and return the lines that name them to the model. No
    link is followed to it, such as a command may have put in its place. Raises OSError."""
    lines = ["The user attached pictures; look at them with the tool that reads files:"]
    there = os.open(folder, _FOLDER) if os.open in os.supports_dir_fd else None
    try:
        for picture in pictures:
            name = f"{new_id('picture')}.{KINDS[picture.media_type]}"
            path = os.path.join(folder, name)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with open(open_regular(path if there is None else name, flags, there), "wb") as file:
                file.write(picture.data)
            lines.append(f"- {path} ({picture.media_type}, {len(picture.data)} bytes)")
    finally:
        if there is not None:
            os.close(there)
    return "\n".join(lines)


_FOLDER: Final = (
    os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
)
