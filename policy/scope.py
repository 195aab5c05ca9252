"""The scope of a command's process and of all that it starts; a sandbox enforces it (design, invariant 11)."""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

from config.lean_typing import NamedTuple

SandboxLevel = Literal["none", "landlock", "namespace"]
"""Sandbox of commands: none, kernel rules (Landlock, seccomp), or namespaces as well."""
LEVELS: Final[tuple[SandboxLevel, ...]] = get_args(SandboxLevel)
STRONGEST: Final = "auto"
"""In place of a level: the strongest that works."""


def is_weaker(level: SandboxLevel, than: SandboxLevel) -> bool:
    """True if `level` holds less than another one."""
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
    """Places are absolute real paths, each with all below it; none is a pattern. The operating system holds what a
    level can hold; `unheld` names the rules that no level can, in words for people.

    `reads`: None for every place that is not hidden. `writes` may be read as well. `hidden` may be neither read nor
    written, `guarded` may be read and not written, whatever contains them: of the places that a path lies in, the
    innermost decides (`policy.rules.sandbox.refusal`). `domains`: host names that may be reached,
    as in a bundle's allowedDomains; None for any host, an empty tuple for none. `blocked_domains` always win. `agents`:
    which agents' sockets may be used, `ssh` and `gpg`.

    `nested` are entries `ROOT/**/NAME` of places that are guarded at any depth, as they are found on the disk. In git
    directories below `writes` what a command leaves is judged by `policy.rules.protected_paths`, but for those that one
    of `given`, the bundle's allowed paths for writing, names itself. `judged` are configurations among `guarded` that
    are written and judged so, since everyday commands of git change harmless keys in them. `level` enforces the scope,
    None for the level of the session.
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
        """The scope in JSON (interface section 3); null: no restriction. `withheld`: what the level refuses of it."""
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
    """Facts about a machine from which the scope of commands follows. All paths are absolute and real.

    `system` are the places of the operating system that any program reads, `devices` those that it writes as well,
    `secrets` those of them that are nobody's but the system's. `toolchains` are directories of the programs that PATH
    names outside of the system's places, and files that these read for their user; `toolchain_secrets` what is secret
    in them. `records` is where the host keeps its sessions, `steering` the files that steer the host for its user.
    `repository` is that of the workspace, None where there is none.
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
