"""Skills: folders with a SKILL.md, whose fields name and describe what its text teaches, in the public layout of Agent
Skills (SK 1). Blocking: callers run these in a thread.

A workspace's skills are as hostile as its other files: they are read within the scope of a call, and none takes the
name of one of the user's.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from config.lean_typing import NamedTuple
from config.shapes import meant_name
from tool_runtime.files import Scope, hold_open, open_parent, open_regular
from tool_runtime.files.read import whole_file
from tool_runtime.tool import FaultKind, ToolFault

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tool_runtime.tool import Abandoned

    Value = str | tuple[str, ...]


FILE: Final = "SKILL.md"
NAME: Final = r"[a-z0-9]+(?:-[a-z0-9]+)*"
MAX_NAME: Final = 64
MAX_DESCRIPTION: Final = 1024
MAX_BODY_LINES: Final = 500
MAX_BODY_CHARS: Final = 40_000
MAX_RESOURCE_BYTES: Final = 2_000_000
MAX_EXCERPT_CHARS: Final = 12_000
_MAX_FILE_BYTES: Final = 1024 * 1024
_MAX_FIELDS_BYTES: Final = 64 * 1024  # limit for reading the fields of a skill's file
_MAX_SKILLS: Final = 1000
_MAX_RESOURCES: Final = 200
_FIELDS: Final = ("name", "description", "allowed-tools")
_TOOL: Final = r"[^\s,()]+(?:\([^)]*\))?"


class SkillFolder(NamedTuple):
    """A folder of skills; `of_workspace`: its contents belong to the workspace, not to the user."""

    path: str
    of_workspace: bool


class Skill(NamedTuple):
    """`allowed_tools` are the only tools that it is to be used with, as it names them; None for all."""

    name: str
    description: str
    allowed_tools: tuple[str, ...] | None
    folder: str
    of_workspace: bool


class Skills(NamedTuple):
    """The usable skills, by name, and the problems of others, by the name of their folder."""

    usable: dict[str, Skill]
    unusable: dict[str, str]


class SkillIndex:
    """The skills of these folders. A file that has not changed since the last look is not read again."""

    def __init__(self, folders: Iterable[SkillFolder]) -> None:
        self._folders = tuple(folders)
        self._seen: dict[str, tuple[tuple[int, int, int], Skill | str]] = {}
        self._known: Skills | None = None

    def skills(self) -> Skills:
        """All skills there are now, in the order of the folders and of their names; of two with one name the first."""
        found = Skills({}, {})
        for folder in self._folders:
            base = os.path.realpath(folder.path)
            for name, is_link in _names(base):
                if folder.of_workspace and (is_link or base != folder.path):
                    skill: Skill | str | None = "a workspace's skill must not be a link"
                else:
                    place = os.path.join(base, name)
                    place = os.path.realpath(place) if is_link else place
                    skill = self._skill(name, place, of_workspace=folder.of_workspace)
                if isinstance(skill, Skill):
                    found.usable.setdefault(name, skill)
                elif skill is not None:
                    found.unusable.setdefault(name, skill)
        self._known = found
        return found

    def find(self, name: str) -> Skill:
        """A skill found by the last search. Raises ToolFault(NOT_FOUND) with the reason if it is unusable."""
        skills = self._known or self.skills()
        skill = skills.usable.get(name)
        if skill is None:
            why = skills.unusable.get(name)
            meant = meant_name(name, skills.usable)
            suggestion = f"did you mean {meant}?" if meant else f"there are: {', '.join(skills.usable) or 'none'}"
            message = f"the skill {name} cannot be used: {why}" if why else f"there is no skill {name}; {suggestion}"
            raise ToolFault(FaultKind.NOT_FOUND, message)
        return skill

    def _skill(self, name: str, folder: str, *, of_workspace: bool) -> Skill | str | None:
        """The skill in the real `folder`, or its problem; None for a folder without the skill file."""
        try:
            with open_parent(os.path.join(folder, FILE)) as (directory, leaf):
                fd, status = open_regular(directory, leaf)
            with hold_open(fd):
                stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
                seen = self._seen.get(folder)
                if seen is not None and seen[0] == stamp:
                    return seen[1]
                head = os.read(fd, _MAX_FIELDS_BYTES)
        except FileNotFoundError:
            return _misnamed(folder)
        except NotADirectoryError:
            return None
        except OSError as error:
            return error.strerror or type(error).__name__
        except ToolFault as fault:
            return str(fault)
        try:
            skill: Skill | str = _skill(name, folder, _read(head), of_workspace=of_workspace)
        except ToolFault as fault:
            skill = str(fault)
        self._seen[folder] = stamp, skill
        return skill


def _misnamed(folder: str) -> str | None:
    try:
        names = os.listdir(folder)
    except OSError:
        return None
    other = next((name for name in names if name.lower() == FILE.lower()), None)
    return None if other is None else f"its file is called {other}, and has to be {FILE}"


def body_of(skill: Skill, scope: Scope, abandoned: Abandoned) -> str:
    """The text of a skill, cut to 500 lines and 40,000 characters, and its other files. Raises ToolFault."""
    raw = whole_file(os.path.join(skill.folder, FILE), _scope_of(skill, scope), _MAX_FILE_BYTES, abandoned).data
    body = _read(raw).body.strip("\n")
    lines = body.split("\n")
    shown = "\n".join(lines[:MAX_BODY_LINES])[:MAX_BODY_CHARS]
    if len(shown) < len(body):
        shown += f"\n[The skill goes on: {len(body)} characters in {len(lines)} lines; its file is {FILE}]"
    others = list(_resources(skill.folder))
    if others:
        remainder = f"\n- and {len(others) - _MAX_RESOURCES} more" if len(others) > _MAX_RESOURCES else ""
        shown += "\n\nFiles of the skill:\n" + "\n".join(f"- {name}" for name in others[:_MAX_RESOURCES]) + remainder
    return shown


def resource_of(skill: Skill, path: str, offset: int, scope: Scope, abandoned: Abandoned) -> str:
    """12,000 characters of a text file of the skill, from the character `offset` on. Raises ToolFault."""
    spelled = os.path.normpath(os.path.join(skill.folder, path))
    data = whole_file(spelled, _scope_of(skill, scope), MAX_RESOURCE_BYTES, abandoned).data
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ToolFault(FaultKind.INVALID_ARGUMENT, f"{path} of the skill {skill.name} is not text") from error
    shown = text[offset : offset + MAX_EXCERPT_CHARS]
    end = offset + len(shown)
    return shown if end >= len(text) else f"{shown}\n[{len(text) - end} more characters: offset {end} shows them]"


def _scope_of(skill: Skill, scope: Scope) -> Scope:
    """The scope of reading in a skill: its folder, and for a workspace's skill also limited to the call's scope."""
    if not skill.of_workspace:
        return Scope((skill.folder,))
    if scope.allowed is None or any(
        skill.folder == root or skill.folder.startswith(root.rstrip(os.sep) + os.sep) for root in scope.allowed
    ):
        return Scope((skill.folder,), scope.blocked)
    return scope


def _names(folder: str) -> list[tuple[str, bool]]:
    try:
        with os.scandir(folder) as entries:
            return sorted((entry.name, entry.is_symlink()) for entry in entries if entry.is_dir())[:_MAX_SKILLS]
    except OSError:
        return []


def _skill(name: str, folder: str, document: Document, *, of_workspace: bool) -> Skill:
    """Raises ToolFault with the problem."""
    fields = document.fields
    given, description = fields.get("name", name), fields.get("description", "")
    if given != name or not re.fullmatch(NAME, name) or len(name) > MAX_NAME:
        rule = f"has to be that of its folder, in up to {MAX_NAME} lower-case letters, digits and hyphens"
        raise ToolFault(FaultKind.INVALID_ARGUMENT, f"name: {given!r} {rule}")
    if not isinstance(description, str) or not description.strip():
        meant = [one for one in fields if one not in _FIELDS and meant_name(one, ("description",))]
        hint = f"; {meant[0]} is not known: did you mean description?" if meant else ""
        raise ToolFault(FaultKind.INVALID_ARGUMENT, f"description: is missing{hint}")
    described = " ".join(description.split())[:MAX_DESCRIPTION]
    return Skill(name, described, _tools(fields.get("allowed-tools")), folder, of_workspace)


def _tools(value: Value | None) -> tuple[str, ...] | None:
    if value is None:
        return None
    return tuple(tool for text in ((value,) if isinstance(value, str) else value) for tool in re.findall(_TOOL, text))


def _read(raw: bytes) -> Document:
    try:
        text = raw.decode("utf-8", "strict" if len(raw) != _MAX_FIELDS_BYTES else "replace")
        return split(text.replace("\r\n", "\n"))
    except UnicodeDecodeError as error:
        raise ToolFault(FaultKind.INVALID_ARGUMENT, f"{FILE} is not UTF-8") from error
    except NoFrontMatter as error:
        raise ToolFault(FaultKind.INVALID_ARGUMENT, f"{FILE}: {error}") from error


def _resources(folder: str) -> Iterator[str]:
    count = 0
    for at, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            path = os.path.relpath(os.path.join(at, name), folder).replace(os.sep, "/")
            if path == FILE or name.startswith(".") or os.path.islink(os.path.join(at, name)):
                continue
            count += 1
            if count > 10 * _MAX_RESOURCES:
                return
            yield path


# The fields in front of SKILL.md, between two lines of three hyphens, are YAML, and this reads the part of it that such
# files use: texts, plain, in quotes or in a block (`|`, `>`), and lists of texts. A mapping is passed over. A YAML
# library takes longer to import than the fields of two hundred files to read.

_FIRST: Final = re.compile(r"\ufeff?---[ \t]*\r?\n")
_LAST: Final = re.compile(r"^---[ \t]*\r?$\n?", re.MULTILINE)
_FIELD: Final = re.compile(r"([A-Za-z_][\w-]*)[ \t]*:(?:[ \t]+(.*))?")
_BLOCK: Final = r"([|>])[+-]?[1-9]?[+-]?(?:[ \t]+#.*)?"
_ESCAPES: Final = {"n": "\n", "t": "\t", '"': '"', "\\": "\\", "/": "/", "0": "\0"}


class NoFrontMatter(ValueError):
    """The text does not begin with such fields; `str()` is the reason."""


class Document(NamedTuple):
    """The fields by name, and the text after them."""

    fields: dict[str, Value]
    body: str


def split(text: str) -> Document:
    """The fields and the body. Raises NoFrontMatter."""
    first = _FIRST.match(text)
    if first is None and not text.strip("\ufeff \t\r\n"):
        raise NoFrontMatter("it is empty")
    if first is None:
        raise NoFrontMatter("it does not begin with a line of three hyphens")
    last = _LAST.search(text, first.end())
    if last is None:
        raise NoFrontMatter("no second line of three hyphens ends its fields")
    lines = text[first.end() : last.start()].split("\n")[:-1]
    return Document(_fields([line.rstrip("\r") for line in lines]), text[last.end() :])


def _fields(lines: Sequence[str]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    at = 0
    while at < len(lines):
        field = _FIELD.fullmatch(lines[at])
        at += 1
        if field is None:
            continue
        start = at
        while at < len(lines) and (not lines[at].strip() or lines[at][0] in " \t-"):
            at += 1
        value = _value((field[2] or "").strip(), lines[start:at])
        if value is not None:
            found[field[1]] = value
    return found


def _value(first: str, rest: Sequence[str]) -> Value | None:
    """The value after the colon and below it; None for a mapping."""
    block = re.fullmatch(_BLOCK, first) if first[:1] in ("|", ">") else None
    if block is not None:
        return _block(rest, folded=block[1] == ">")
    if first.startswith("["):
        inside = " ".join((first, *(line.strip() for line in rest))).strip()
        return tuple(_scalar(item) for item in _items(inside[1 : inside.rfind("]")]) if item)
    below = [line.strip() for line in rest if line.strip() and not line.strip().startswith("#")]
    if first in ("", "~", "null") or first.startswith("#"):
        if not below:
            return "" if first == "" or first.startswith("#") else None
        if all(line.startswith("- ") for line in below):
            return tuple(_scalar(line[2:].strip()) for line in below)
        return None if any(_FIELD.fullmatch(line) for line in below) else _scalar(" ".join(below))
    return _scalar(" ".join((first, *below)))


def _block(lines: Sequence[str], *, folded: bool) -> str:
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    text = "\n".join(line[indent:].rstrip() for line in lines).strip("\n")
    return re.sub(r"(?<!\n)\n(?!\n)", " ", text) if folded else text


def _items(text: str) -> list[str]:
    """The items of a list in brackets: commas in quotes or parentheses are no separators."""
    items, quote, depth = [""], "", 0
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in "()":
            depth += 1 if char == "(" else -1
        if char == "," and not quote and depth <= 0:
            items.append("")
        else:
            items[-1] += char
    return [item.strip() for item in items]


def _scalar(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    if len(text) > 1 and text[0] == text[-1] == '"':
        return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[0]), text[1:-1])
    return re.sub(r"(?:^|[ \t])#.*", "", text).rstrip() if "#" in text else text.rstrip()
