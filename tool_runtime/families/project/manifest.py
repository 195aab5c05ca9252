"""Manifests of a project's own tools, `.agent/tools/NAME.toml`, and what a tool consists of (NT, interface section 1).

A manifest is the workspace's, and hostile like its other files: it is read with bounds, cannot take the name of another
tool, and its tool runs only where policy lists it and a person has approved what it consists of.
"""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from config.shapes import ANYTHING, FLAG, TEXT, ListOf, MapOf, Record, first_problem, number, one_of
from tool_runtime.families.catalogue import RESERVED
from tool_runtime.families.python_tools import NAME
from tool_runtime.files.paths import Scope
from tool_runtime.files.read import read_bytes
from tool_runtime.tool import Abandoned, FaultKind, ToolFault

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FOLDER: Final = os.path.join(".agent", "tools")
_SUFFIX: Final = ".toml"
_MAX_MANIFEST_BYTES: Final = 256 * 1024
_MAX_PROGRAM_BYTES: Final = 64 * 1024 * 1024
_MAX_TOOLS: Final = 100
_MAX_DESCRIPTION: Final = 4096
_EFFECTS: Final = ("none", "replace", "edit", "delete", "other")
_ANY: Final = MapOf(ANYTHING)
_SHAPE: Final = Record(
    {"name": TEXT, "description": TEXT, "argv": ListOf(TEXT), "side_effects": FLAG, "input": _ANY},
    {"timeout_s": number(0.1, 86_400), "effect": one_of(*_EFFECTS), "output": _ANY},
    closed=True,
)


class Manifest(NamedTuple):
    """A manifest. `timeout_s` None leaves it to the settings; `output` None promises nothing."""

    name: str
    description: str
    argv: tuple[str, ...]
    side_effects: bool
    effect: Literal["none", "other"]
    timeout_s: float | None
    input: Mapping[str, Any]
    output: Mapping[str, Any] | None


class ProjectTool(NamedTuple):
    """A tool, and the SHA-256 of all that it consists of: the manifest, and each element of its argv that is a file of
    the workspace, by its real path and its content."""

    manifest: Manifest
    identity: str


def tools_in(workspace: str) -> tuple[dict[str, ProjectTool], dict[str, str]]:
    """The tools of a workspace, by name, and what is wrong with the other manifests, by their names. Blocking."""
    usable: dict[str, ProjectTool] = {}
    unusable: dict[str, str] = {}
    for name in _names(os.path.join(workspace, FOLDER)):
        try:
            usable[name] = project_tool(workspace, name)
        except ToolFault as fault:
            unusable[name] = str(fault)
    return usable, unusable


def project_tool(workspace: str, name: str) -> ProjectTool:
    """The tool of a manifest, as it is now. Raises ToolFault with what is wrong."""
    scope, nobody = Scope((workspace,)), Abandoned()
    raw = read_bytes(os.path.join(workspace, FOLDER, name + _SUFFIX), scope, _MAX_MANIFEST_BYTES, nobody)
    manifest = _manifest(name, raw)
    digest = hashlib.sha256(b"manifest\0" + hashlib.sha256(raw).digest())
    for number_, element in enumerate(manifest.argv):
        spelled = os.path.normpath(os.path.join(workspace, element))
        if not _is_file_of(workspace, spelled):
            continue
        content = read_bytes(spelled, Scope(None), _MAX_PROGRAM_BYTES, nobody)
        real = os.fsencode(os.path.realpath(spelled))
        digest.update(b"%d\0%s\0%s" % (number_, real, hashlib.sha256(content).digest()))
    return ProjectTool(manifest, digest.hexdigest())


def program_of(workspace: str, manifest: Manifest) -> list[str]:
    """The command line of a call: a program that is a path of the workspace is made absolute."""
    program, *others = manifest.argv
    at = os.path.normpath(os.path.join(workspace, program))
    return [at if os.sep in program and _is_file_of(workspace, at) else program, *others]


def _is_file_of(workspace: str, path: str) -> bool:
    """True if a path in the workspace is a file there, a link to one elsewhere included."""
    return path.startswith(workspace.rstrip(os.sep) + os.sep) and os.path.isfile(path)


def _names(folder: str) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            found = sorted(entry.name for entry in entries if entry.name.endswith(_SUFFIX))
    except OSError:
        return
    yield from (name.removesuffix(_SUFFIX) for name in found[:_MAX_TOOLS])


def _manifest(name: str, raw: bytes) -> Manifest:
    try:
        said = tomllib.loads(raw.decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ToolFault(FaultKind.INVALID_ARGUMENT, f"not valid TOML: {error}") from error
    problem = first_problem(_SHAPE, said, "$")
    if problem is not None:
        raise ToolFault(FaultKind.INVALID_ARGUMENT, str(problem))
    effect = said.get("effect", "other" if said["side_effects"] else "none")
    for is_wrong, why in (
        (said["name"] != name, f"$.name: has to be that of its file, {name}"),
        (not re.fullmatch(NAME, name) or name.startswith(RESERVED), f"$.name: {name!r} cannot be the name of a tool"),
        (not said["description"].strip(), "$.description: is empty"),
        (len(said["description"]) > _MAX_DESCRIPTION, f"$.description: at most {_MAX_DESCRIPTION} characters"),
        (not said["argv"] or not all(said["argv"]), "$.argv: names a program and its arguments, none of them empty"),
        (any("\0" in one for one in said["argv"]), "$.argv: holds a NUL character"),
        (
            (effect == "none") is said["side_effects"],
            "$.effect: none is for a tool without side effects, and only for it",
        ),
        (said["input"].get("type") != "object", '$.input: is the schema of an object: type = "object"'),
        (not _is_json(said), "$: a date or a time has to be a text"),
    ):
        if is_wrong:
            raise ToolFault(FaultKind.INVALID_ARGUMENT, why)
    return Manifest(
        name,
        said["description"],
        tuple(said["argv"]),
        said["side_effects"],
        "none" if effect == "none" else "other",
        said.get("timeout_s"),
        said["input"],
        said.get("output"),
    )


def _is_json(value: Any) -> bool:
    """TOML has dates, and JSON Schema has not."""
    if isinstance(value, dict):
        return all(map(_is_json, value.values()))
    if isinstance(value, list):
        return all(map(_is_json, value))
    return isinstance(value, str | int | float)
