"""Facts about the world, gathered by the host and handed to policy as values: policy itself does no I/O (AH 8).

Every path has three forms for different questions: the model's spelling, the normalised path by spelling alone, and the
real path after following symbolic links.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Literal

from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from policy import Widening

PathKind = Literal["file", "directory", "link", "other", "missing"]
OsFamily = Literal["posix", "windows"]
ShellName = Literal["bash", "sh", "zsh", "cmd", "powershell"]


class PathFacts(NamedTuple):
    """One path that a call would access.

    `real_path` is the real path of the deepest existing ancestor plus the nonexistent rest. For a call that deletes or
    moves a name it is the path of the name, and a symbolic link there has the kind `link`. `size_bytes` is the present
    size of a file; `new_size_bytes` the size after a write. `tool_name` is set if the capability can list tools by
    name. `in_repository`: a directory above the path is laid out like a git repository (has HEAD, objects and refs) and
    is not called `.git`; only looked up for possible hooks and configurations. `makes_repository` is a directory that
    the path would complete to one. `tree`: it is a directory, and the call acts on everything in it. `also` are the
    other paths of the call, or this one again, each with the capability that it needs there; a path in `also` has no
    `also` itself.
    """

    requested: str
    absolute: str
    real_path: str
    kind: PathKind = "missing"
    is_symlink: bool = False
    size_bytes: int | None = None
    new_size_bytes: int | None = None
    tool_name: str | None = None
    in_repository: bool = False
    tree: bool = False
    also: tuple[tuple[str, PathFacts], ...] = ()
    makes_repository: str | None = None

    @property
    def real_paths(self) -> tuple[str, ...]:
        """The real paths on which the call acts, each once, this one first."""
        return tuple(dict.fromkeys((self.real_path, *(facts.real_path for _, facts in self.also))))


class ScriptFacts(NamedTuple):
    """A script of a skill. `folder` is the skill's, and `path` the target of `relative_path` in it, both real. `argv`
    is its interpreter with the arguments before the script; empty, and without the `sha256` of its content, for a
    script outside of the directories for scripts. `allowed_tools` is the list of the skill, None for a skill without
    one."""

    skill: str
    relative_path: str
    folder: str
    path: str
    argv: tuple[str, ...] = ()
    sha256: str | None = None
    allowed_tools: tuple[str, ...] | None = None

    @property
    def identity(self) -> str:
        """SHA-256, in hex, of all that decides what runs: an approval, and a call that starts, are bound to it."""
        parts = "\0".join((*self.argv, self.path, self.sha256 or ""))
        return sha256(parts.encode("utf-8", "surrogatepass")).hexdigest()


class CommandFacts(NamedTuple):
    """One shell command line. `cwd` and `home` are real paths; `real_paths` maps each path that the line opens or
    passes to a program that changes files, and the directory of each program that is a path (as absolute spellings), to
    its real path, if looked up. `environment` has the variables that the line reads, as far as they are known and
    contain no secret. `argv` is a program with its arguments that is started without a shell, and `command` the
    equivalent line; `variables` are additions to its environment, by name. `script` is the skill's script that it runs,
    `widening` the requested additions to its scope. `below` lists, for directories on which the line acts as a whole
    (by their real paths), the names in them that are blocked at any depth, as relative paths; None for a directory that
    was too large to search. `through` lists, for a directory and a pattern, the real paths of its matches by way of a
    link."""

    command: str
    cwd: str
    shell: ShellName = "bash"
    home: str | None = None
    real_paths: Mapping[str, str] = {}
    environment: Mapping[str, str] = {}
    argv: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    script: ScriptFacts | None = None
    widening: Widening | None = None
    below: Mapping[str, tuple[str, ...] | None] = {}
    through: Mapping[tuple[str, str], tuple[str, ...]] = {}


class UrlFacts(NamedTuple):
    """One outbound request. `resolved_addresses` are the addresses of its host, if looked up. `also` are the files that
    it sends or saves, each with the capability that it needs there."""

    url: str
    method: str = "GET"
    resolved_addresses: tuple[str, ...] = ()
    also: tuple[tuple[str, PathFacts], ...] = ()

    @property
    def real_paths(self) -> tuple[str, ...]:
        """The real paths of the request's files, each once."""
        return tuple(dict.fromkeys(facts.real_path for _, facts in self.also))


class NamedToolFacts(NamedTuple):
    """A tool that is judged by its name: BackendTool.Invoke, Mcp.Invoke, Tool.Invoke, and Workspace.Upload without a
    file. `identity` is the SHA-256 of the tool's parts, if these may change; `is_approved`: a person has approved this
    version. `elsewhere`: the call goes over the network. `also` are its facts for other capabilities: a remote tool in
    place of a local one needs the local one's capabilities. `widening` are the requested additions to the scope of the
    program that it starts."""

    tool_name: str
    identity: str | None = None
    is_approved: bool = True
    elsewhere: bool = False
    also: tuple[tuple[str, ActionFacts], ...] = ()
    widening: Widening | None = None


class OutputFacts(NamedTuple):
    """The output of an earlier call of the session; `tool_name` is that call's."""

    tool_name: str


ActionFacts = PathFacts | CommandFacts | UrlFacts | NamedToolFacts | OutputFacts
