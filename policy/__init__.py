"""Policy: the permissions of a session. This module has the names of capabilities (AH 8.5 and those of tool services
and projects), decisions (AH 8.2) and the scope of a command's process, which a sandbox enforces (design, invariant
11)."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


RiskLevel = Literal["low", "medium", "high"]
Verdict = Literal["ALLOWED", "DENIED", "APPROVAL_REQUIRED"]
RISK_LEVELS: Final[tuple[RiskLevel, ...]] = get_args(RiskLevel)
_STRICTNESS: Final[dict[Verdict, int]] = {"ALLOWED": 0, "APPROVAL_REQUIRED": 1, "DENIED": 2}
SandboxLevel = Literal["none", "landlock", "namespace"]
"""Sandbox of commands: none, kernel rules (Landlock, seccomp), or namespaces as well."""
LEVELS: Final[tuple[SandboxLevel, ...]] = get_args(SandboxLevel)
STRONGEST: Final = "auto"
"""In place of a level: the strongest that works."""


class CapabilityName(StrEnum):
    """Every capability that a bundle can grant."""

    FILE_READ = "File.Read"
    FILE_WRITE = "File.Write"
    FILE_DELETE = "File.Delete"
    SHELL_EXEC = "Shell.Exec"
    NETWORK_HTTP = "Network.Http"
    WORKSPACE_UPLOAD = "Workspace.Upload"
    BACKEND_TOOL_INVOKE = "BackendTool.Invoke"
    MCP_INVOKE = "Mcp.Invoke"
    TOOL_INVOKE = "Tool.Invoke"
    LLM_CALL = "LLM.Call"


ALL_CAPABILITIES: tuple[str, ...] = tuple(name.value for name in CapabilityName)
CHANGING: frozenset[str] = frozenset({"File.Write", "File.Delete"})
FILE_CAPABILITIES: frozenset[str] = frozenset({"File.Read", "File.Write", "File.Delete"})
SIZED_CAPABILITIES: frozenset[str] = FILE_CAPABILITIES | {"Workspace.Upload"}
"""Those that maxFileSizeBytes means something to."""
READS_TOO: frozenset[str] = frozenset({"Workspace.Upload"})
"""Those that take a file from the disk to somewhere else: File.Read has to allow it as well."""
FOLLOW_COMMANDS: frozenset[str] = frozenset({"CommandOutput", "StopCommand"})
READ_SKILLS: frozenset[str] = frozenset({"load_skill"})
"""Tools that act on a command of the session that Shell.Exec was asked about when it started."""
SANDBOX_GRANT = "sandboxGrant"
"""The argument in which a call of a program asks for more than its sandbox gives, and the rule that it is asked by."""
SCHEMA_VERSION = "1.0"
ANY_SESSION = "*"


def words(text: str) -> frozenset[str]:
    """The words of a text, for tables of names."""
    return frozenset(text.split())


_GNU = words(
    "[ awk b2sum base32 base64 basename cat chcon chgrp chmod chown chroot cksum comm cp csplit cut date dd df dir "
    "dirname du echo egrep env expand expr factor false fgrep find fmt fold grep head hostid id install join kill "
    "link ln locate logname ls make md5sum mkdir mkfifo mknod mktemp mv nice nl nohup nproc numfmt od paste patch "
    "pathchk pr printenv printf ptx pwd readlink realpath rm rmdir runcon sed seq sha1sum sha256sum sha512sum shred "
    "shuf sleep sort split stat stdbuf stty sum sync tac tail tar tee test time timeout touch tr true truncate tsort "
    "tty uname unexpand uniq unlink uptime users vdir wc who whoami xargs yes"
)


def strip_g(name: str) -> str:
    """The name of a GNU program (lower case) without the `g` that some systems put in front, as in `gtimeout`."""
    return name[1:] if name[:1] == "g" and name[1:] in _GNU else name


class Decision(NamedTuple):
    """One verdict and its reason.

    `rule` is the deciding entry of the bundle, as a JSON path with its value if it has one
    (`capabilities[Shell.Exec].blockedCommands: rm`). `expired` marks a denial that pauses the session (AH 8.6). `risks`
    are the reasons for `risk_level`, in words for the approving person. `no_approver` marks the denial of a call that
    needs approval in a task without approvals (see `policy.rules.toolset`). `by_name`: an approval in advance must name
    the tool (see `policy.rules.toolset`). `command_scope` is the scope of a sandboxed command's process.
    """

    decision: Verdict
    reason: str
    capability: str
    rule: str
    rule_id: str | None = None
    risk_level: RiskLevel | None = None
    risks: tuple[str, ...] = ()
    expired: bool = False
    no_approver: bool = False
    by_name: bool = False
    command_scope: CommandScope | None = None

    @property
    def allowed(self) -> bool:
        """True for ALLOWED only."""
        return self.decision == "ALLOWED"


def strictest(decisions: Sequence[Decision]) -> Decision:
    """One decision for a call that needs several capabilities: the first of those that are strictest, with the highest
    risk and all risks of those that are as strict. `decisions` are in the order of the capabilities, at least one."""
    first = max(decisions, key=lambda one: _STRICTNESS[one.decision])
    equal = [one for one in decisions if one.decision == first.decision]
    levels = [one.risk_level for one in equal if one.risk_level is not None]
    if first.decision == "DENIED" or not levels:
        return first
    risks = tuple(dict.fromkeys(risk for one in equal for risk in one.risks))
    return first._replace(risk_level=max(levels, key=RISK_LEVELS.index), risks=risks)


def is_of_place(decision: Decision) -> bool:
    """True if a denial concerns the call's paths and hosts, and not the programs that it would start."""
    return decision.decision == "DENIED" and any(word in decision.rule for word in ("Paths", "Places", "roots"))


def is_weaker(level: SandboxLevel, than: SandboxLevel) -> bool:
    """True if `level` restricts less than another one."""
    return LEVELS.index(level) < LEVELS.index(than)


class Widening(NamedTuple):
    """Access beyond a call's scope, which the call asks for, or which the user opens for all commands: real places to
    write to, and domains as in a bundle. `off`: no sandbox at all. `reason` is why, in the model's words."""

    write: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    off: bool = False
    reason: str = ""

    @property
    def lines(self) -> tuple[str, ...]:
        """The access that it opens, in lines for the person who approves it."""
        off = ("runs without a sandbox",) if self.off else ()
        return (
            *off,
            *(f"also writes to {one}" for one in self.write),
            *(f"also reaches {one}" for one in self.domains),
        )


class CommandScope(NamedTuple):
    """Places are absolute real paths, each including everything below it; none is a pattern. The operating system
    enforces what a level can enforce; `unheld` lists the rules that no level can, in words for people.

    `reads`: None for every place that is not hidden. `writes` may be read as well. `hidden` may be neither read nor
    written, `guarded` may be read but not written: of the places that contain a path, the innermost decides
    (`policy.rules.sandbox.refusal`). `domains`: allowed host names, as in a bundle's allowedDomains; None for any host,
    an empty tuple for none. `blocked_domains` take precedence. `agents`: the agents whose sockets may be used, `ssh`
    and `gpg`.

    `nested` are entries `ROOT/**/NAME` of guarded places at any depth, as found on the disk. In git directories below
    `writes`, `policy.rules.protected_paths` judges the leftovers of a command, except in those that an entry of
    `given`, the bundle's allowed paths for writing, names itself. `judged` are configurations among `guarded` that may
    be written and are judged afterwards, because everyday commands of git change harmless keys in them. `level`
    enforces the scope, None for the level of the session.
    """

    reads: tuple[str, ...] | None = None
    writes: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    guarded: tuple[str, ...] = ()
    domains: tuple[str, ...] | None = ()
    blocked_domains: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    unheld: tuple[str, ...] = ()
    nested: tuple[str, ...] = ()
    judged: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    level: SandboxLevel | None = None

    @property
    def unchangeable(self) -> tuple[str, ...]:
        """The guarded places of which a command may leave no change at all."""
        return tuple(one for one in self.guarded if one not in self.judged)

    def to_wire(self, level: SandboxLevel, withheld: tuple[str, ...] = ()) -> dict[str, Any]:
        """The scope in JSON (interface section 3); null: no restriction. `withheld`: the parts that the level
        denies."""
        return {
            "level": level,
            "reads": None if self.reads is None else list(self.reads),
            "writes": list(self.writes),
            "hidden": list(self.hidden),
            "guarded": list(self.guarded),
            "domains": None if self.domains is None else list(self.domains),
            "blockedDomains": list(self.blocked_domains),
            "agents": list(self.agents),
            "unheld": list(self.unheld),
            **({"withheld": list(withheld)} if withheld else {}),
        }


class RepositoryFacts(NamedTuple):
    """The git repository of the workspace, as it is on the disk now. `top` is the path of its `.git` in the workspace;
    `own` the directory that this working tree has of it, `common` the one that all of its working trees share: both are
    `top` unless `top` is a file or a link that names them. All are real paths. `modules` are the directories that
    submodules have in `common`. `reads` is what git only reads: the repository around a workspace that has none of its
    own, and folders of objects that the repository borrows."""

    top: str
    own: str
    common: str
    modules: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()


class ScopeFacts(NamedTuple):
    """Facts about a machine that determine the scope of commands. All paths are absolute and real.

    `system` are the places of the operating system that any program reads, `devices` those that it writes as well,
    `secrets` the system's secret files among them. `toolchains` are directories of programs on PATH outside of the
    system's places, and files that these read for their user; `toolchain_secrets` the secret files in them. `records`
    is the host's directory of sessions, `steering` the files that configure the host for its user. `repository` is that
    of the workspace, None if there is none.
    """

    workspace: str
    home: str | None = None
    tmp: str | None = None
    system: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    toolchains: tuple[str, ...] = ()
    toolchain_secrets: tuple[str, ...] = ()
    records: tuple[str, ...] = ()
    steering: tuple[str, ...] = ()
    repository: RepositoryFacts | None = None
