"""The sandbox of a session's commands: the level, and for each command its scope (design, invariant 11)."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from agent_host.safe_open import leads_out
from policy import STRONGEST, CapabilityName, RepositoryFacts, ScopeFacts
from policy.rules.sandbox import NO_WIDENING, command_scope, common_scope, sandbox_denial, server_scope

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from agent_host.judging import Environment
    from policy import CommandScope, Decision, SandboxLevel, Widening
    from policy.bundle import PolicyBundle


def nothing_withheld(_scope: CommandScope, _level: SandboxLevel) -> tuple[str, ...]:
    """For a machine whose disk cannot be looked at."""
    return ()


@dataclass(slots=True, eq=False, repr=False)
class Scoping:
    """The sandbox of commands. `level` is the working level, `wanted` the requested one, and `why` the reason why no
    stronger one works. `gather` returns the facts of this machine, once. `opened` are the user's additions for all
    commands, `blocked_domains` the configuration's blocked hosts. `scripts` is the directory in which scripts of skills
    run. `unheld` are the rules that the level can enforce in no scope, `withheld` returns what it denies although a
    scope allows it. `always`: decisions have the scope even if nothing enforces it. `is_here`: the facts are of this
    machine. `is_untried`: no level works, and a trial failed for another reason. `within`: the bundle of the session's
    mode, whose scope applies as well; `is_of_mode`: the level is the mode's, not the launch's."""

    level: SandboxLevel
    wanted: str
    gather: Callable[[], ScopeFacts]
    why: str = ""
    opened: Widening = NO_WIDENING
    blocked_domains: tuple[str, ...] = ()
    scripts: str | None = None
    unheld: tuple[str, ...] = ()
    withheld: Callable[[CommandScope, SandboxLevel], tuple[str, ...]] = nothing_withheld
    always: bool = False
    is_here: bool = True
    is_untried: bool = False
    within: PolicyBundle | None = None
    is_of_mode: bool = False
    _facts: ScopeFacts | None = field(default=None, init=False)
    _reported: tuple[CommandScope, dict[str, Any]] | None = field(default=None, init=False)
    _plain: tuple[PolicyBundle, ScopeFacts, CommandScope] | None = field(default=None, init=False)

    @property
    def holds(self) -> bool:
        """True if commands are sandboxed."""
        return self.level != "none"

    def denial(self, bundle: PolicyBundle, capability: str) -> Decision | None:
        """The denial of a call that starts a program without the required sandbox; None if it may run."""
        return sandbox_denial(bundle, capability, self.level, self.wanted, self.why, is_untried=self.is_untried)

    def facts(self) -> ScopeFacts:
        """The facts of this machine; its repository is looked at anew each time."""
        if self._facts is None:
            self._facts = self.gather()
        return self._facts._replace(repository=repository_of(self._facts.workspace)) if self.is_here else self._facts

    def scope(
        self, bundle: PolicyBundle, environment: Environment, grant: Widening = NO_WIDENING, *, network: bool = True
    ) -> CommandScope:
        """The scope of a command with this grant. Without `network` it has no network."""
        facts, plain = self.facts(), self._plain
        if grant == NO_WIDENING and plain is not None and plain[0] is bundle and plain[1] == facts:
            found = plain[2]  # as for nearly every command
        else:
            system = environment.os_family
            scope = partial(command_scope, opened=self.opened, blocked_domains=self.blocked_domains, grant=grant)
            found = scope(bundle, facts, system)
            if self.within is not None:
                found = common_scope(found, scope(self.within, facts, system), system)
            level = self.level if self.is_of_mode else None
            found = found._replace(unheld=(*found.unheld, *self.unheld), level=level)
            if grant == NO_WIDENING:
                self._plain = (bundle, facts, found)
        return found if network else found._replace(domains=())

    def server_scope(
        self, bundle: PolicyBundle, environment: Environment, *, write: tuple[str, ...], domains: tuple[str, ...]
    ) -> CommandScope:
        """The scope of an MCP server of the configuration: its entry has its writable places and its hosts."""
        found = server_scope(
            bundle,
            self.facts(),
            environment.os_family,
            write=write,
            domains=domains,
            blocked_domains=self.blocked_domains,
        )
        return found._replace(unheld=(*found.unheld, *self.unheld))

    def report(self, bundle: PolicyBundle, environment: Environment) -> dict[str, Any] | None:
        """{level, wanted, why?, scope?} of the sandbox; None if none is wanted, or no program can start."""
        if self.wanted == "none" and bundle.sandbox is None:
            return None
        if all(bundle.capability(one) is None for one in (CapabilityName.SHELL_EXEC, CapabilityName.TOOL_INVOKE)):
            return None
        found: dict[str, Any] = {"level": self.level, "wanted": self.wanted}
        if self.why:
            found["why"] = self.why
        if self.holds:
            found["scope"] = self.row(bundle, environment)
        return found

    def notice(self, bundle: PolicyBundle, environment: Environment) -> str | None:
        """A line for the user about a missing sandbox and its consequences; None if there is one, or none is wanted."""
        if self.holds or self.report(bundle, environment) is None:
            return None
        required = self.wanted not in ("none", STRONGEST) or (bundle.sandbox is not None and bundle.sandbox.required)
        follows = "only the policy's lists and approvals restrict commands"
        if self.is_untried or required:
            follows = f"commands are denied{'; --sandbox none runs them without one' if self.is_untried else ''}"
        why = f" ({self.why})" if self.why else ""
        return f"no sandbox works here{why}: {follows}"

    def row(self, bundle: PolicyBundle, environment: Environment) -> dict[str, Any]:
        """The sandbox in JSON: the level with the scope of a command that is granted nothing more."""
        if not self.holds:
            return {"level": self.level}
        scope = self.scope(bundle, environment)
        if self._reported is None or self._reported[0] is not scope:
            self._reported = scope, scope.to_wire(self.level, self.withheld(scope, self.level))
        return self._reported[1]


def this_machine(
    environment: Environment, *, temporary: str | None, records: str, steering: tuple[str, ...]
) -> Callable[[], ScopeFacts]:
    """Return a function that gathers the facts of commands in this workspace, when the first of them is judged."""

    return lambda: scope_facts(
        environment.workspace,
        home=environment.home,
        tmp=None if temporary is None else os.path.realpath(temporary),
        environment=environment.environment or os.environ,
        records=(os.path.realpath(records),),
        steering=steering,
    )


def stated_machine(environment: Environment) -> Callable[[], ScopeFacts]:
    """The facts of a stated machine: its system has the usual places, and no other programs."""
    return lambda: usual_facts(environment.workspace, environment.home)


# Facts of this machine for a command's scope: the system's places, the programs on PATH, the repository of the
# workspace. Nothing is started, and no file of the workspace is trusted.

_SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/proc", "/nix", "/snap", "/gnu",
    "/sys/devices/system", "/sys/fs/cgroup", "/sys/kernel/mm/transparent_hugepage", "/run/systemd/resolve",
    "/var/lib/ca-certificates", "/home/linuxbrew", "/System", "/Library", "/Applications", "/private/etc",
    "/private/var/db", "/private/var/select",
)  # fmt: skip
_DEVICES = (
    "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx", "/dev/pts",
    "/dev/shm",  # noqa: S108  the one that the platform has
)  # fmt: skip
"""Devices that programs write to or use as a terminal; /dev/shm contains semaphores and shared memory."""
_SECRETS = (
    "/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/sudoers", "/etc/sudoers.d",
    "/etc/ssl/private", "/etc/krb5.keytab", "/etc/security", "/etc/kubernetes", "/etc/wireguard",
    "/etc/NetworkManager",
)  # fmt: skip
"""Files that only some users may read; a host that runs as root can read them."""
_HOMES = {
    "CARGO_HOME": ".cargo", "RUSTUP_HOME": ".rustup", "NVM_DIR": ".nvm", "PYENV_ROOT": ".pyenv", "RBENV_ROOT": ".rbenv",
    "NODENV_ROOT": ".nodenv", "GOENV_ROOT": ".goenv", "VOLTA_HOME": ".volta", "FNM_DIR": ".local/share/fnm",
    "ASDF_DATA_DIR": ".asdf", "MISE_DATA_DIR": ".local/share/mise", "SDKMAN_DIR": ".sdkman", "BUN_INSTALL": ".bun",
    "DENO_INSTALL": ".deno", "PNPM_HOME": ".local/share/pnpm", "GEM_HOME": ".gem", "GOROOT": "sdk/go", "GOPATH": "go",
    "JAVA_HOME": ".jdks", "DOTNET_ROOT": ".dotnet", "CONDA_PREFIX": "miniconda3",
    "UV_PYTHON_INSTALL_DIR": ".local/share/uv", "PIPX_HOME": ".local/share/pipx",
    "POETRY_HOME": ".local/share/pypoetry", "GHCUP_INSTALL_BASE_PREFIX": ".ghcup",
    "ELAN_HOME": ".elan", "JULIAUP_DEPOT_PATH": ".juliaup", "VIRTUAL_ENV": ".venv",
}  # fmt: skip
"""Program directories of version managers and tools: the variable that names one, and the default below the home."""
_OTHER_HOMES = (".local/bin", ".local/lib", ".local/share/virtualenvs", "bin", ".npm-global", ".yarn/bin", ".ghcup/bin")
_USER_FILES = (".gitconfig", ".config/git/config", ".config/git/ignore", ".config/git/attributes")
"""git's user configuration, which commits need."""
_TOOLCHAIN_SECRETS = (
    ".cargo/credentials", ".cargo/credentials.toml", ".gem/credentials", ".m2/settings.xml",
    ".m2/settings-security.xml", ".config/git/credentials",
)  # fmt: skip
_PROGRAMS = ("python3", "python", "node", "git", "cargo", "go", "java", "ruby", "uv", "make", "gcc")
"""Programs that are searched by name, because a link on PATH may lead to them from an unrelated place."""
_BINARIES = ("bin", "sbin", "shims", "Scripts", "libexec", "cmd")
_MODULES = "node_modules"


def scope_facts(
    workspace: str,
    *,
    home: str | None,
    tmp: str | None,
    environment: Mapping[str, str],
    records: Iterable[str] = (),
    steering: Iterable[str] = (),
) -> ScopeFacts:
    """The facts of a command in the real directory `workspace`. `environment` is the command's; `records` is the host's
    directory of sessions, `steering` the user's configuration of the host: real paths."""
    system = _existing(_SYSTEM)
    toolchains = tuple(dict.fromkeys(_toolchains(workspace, environment, home, system)))
    # A toolchain on PATH may be in another home directory.
    homes = dict.fromkeys(([] if home is None else [home]) + [os.path.dirname(one) for one in toolchains])
    return ScopeFacts(
        workspace=workspace,
        home=home,
        tmp=tmp,
        system=system,
        devices=tuple(one for one in _DEVICES if os.path.exists(one)),
        secrets=tuple(one for one in _existing(_SECRETS) if os.access(one, os.R_OK)),
        toolchains=toolchains,
        toolchain_secrets=_existing(os.path.join(one, secret) for one in homes for secret in _TOOLCHAIN_SECRETS),
        records=tuple(records),
        steering=tuple(steering),
        repository=repository_of(workspace),
    )


def places_of_program(program: str, home: str | None, workspace: str) -> tuple[str, ...]:
    """The places that a program needs to read, given its absolute path; no home directory and nothing wider is among
    them, and nothing that a link of the workspace leads to, except an interpreter's. A program of Node needs its
    package, and those that are installed beside it."""
    if not os.path.isabs(program) or leads_out(os.path.dirname(program), workspace):
        return ()
    places = (program, os.path.realpath(program)) if _leads_to_its_name(program, workspace) else (program,)
    folders = dict.fromkeys(os.path.realpath(os.path.dirname(one)) for one in places)
    roots = [_root_of(one, home) for one in folders]
    is_of_node = os.path.realpath(program).endswith((".js", ".mjs", ".cjs", ".ts", ".mts"))
    packages = [one for folder in folders for one in _packages(folder, home)] if is_of_node else []
    return tuple(one for one in dict.fromkeys((*roots, *_bases(roots), *packages)) if not _is_wide(one, home))


def _packages(folder: str, home: str | None) -> Iterator[str]:
    """The outermost `node_modules` that contains the folder; else the package, by its package.json."""
    parts = folder.split(os.sep)
    if _MODULES in parts:
        yield os.sep.join(parts[: parts.index(_MODULES) + 1])
        return
    while not _is_wide(folder, home):
        if os.path.isfile(os.path.join(folder, "package.json")):
            yield folder
            return
        folder = os.path.dirname(folder)


def usual_facts(workspace: str, home: str | None) -> ScopeFacts:
    """The facts of an unknown machine: Linux, with a repository in the workspace."""
    top = f"{workspace.rstrip('/')}/.git"
    return ScopeFacts(workspace, home, system=_SYSTEM, devices=_DEVICES, repository=RepositoryFacts(top, top, top))


def _existing(places: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(os.path.realpath(one) for one in places if os.path.exists(one)))


def _is_in(path: str, places: Iterable[str]) -> bool:
    return any(path == one or path.startswith(one.rstrip(os.sep) + os.sep) for one in places)


# Programs


def _toolchains(
    workspace: str, environment: Mapping[str, str], home: str | None, system: tuple[str, ...]
) -> Iterator[str]:
    """Directories of the programs on PATH outside of the system's places, and files that these read for their user. A
    link in the workspace opens only the place of a program of its name: an interpreter's, for a virtual environment."""
    path = environment.get("PATH", "")
    named = list(_directories(path.split(os.pathsep), workspace))
    found = {one: _found(one, named) for one in _PROGRAMS}
    present = [one for one in found.values() if one is not None]
    programs = [os.path.dirname(os.path.realpath(one)) for one in present if _leads_to_its_name(one, workspace)]
    outside = [one for one in dict.fromkeys((*named, *programs)) if not _is_in(one, system)]
    known = list(_usual_places(workspace, environment, home))
    roots = list(dict.fromkeys(_root_of(one, home) for one in outside))
    used = [one for one in known if any(_is_in(place, (one,)) for place in outside)]
    if home is not None and any(_is_in(one, (os.path.join(home, ".cargo"),)) for one in used):
        used += [one for one in known if one.endswith("rustup")]
    if home is not None and any(_is_in(one, (os.path.join(home, ".local", "bin"),)) for one in outside):
        used += [one for one in known if _is_in(one, (os.path.join(home, ".local"),))]
    yield from (one for one in (*used, *roots, *_bases(roots)) if not _is_in(one, system) and not _is_wide(one, home))
    if home is not None and found["git"] is not None:
        yield from _existing(os.path.join(home, one) for one in _USER_FILES)


def _directories(paths: Iterable[str], workspace: str) -> Iterator[str]:
    """The real directories at these paths, except those that something in the workspace leads to."""
    for one in paths:
        if os.path.isabs(one) and os.path.isdir(one) and not leads_out(one, workspace):
            yield os.path.realpath(one)


def _found(program: str, directories: Iterable[str]) -> str | None:
    """The first program of this name. `shutil.which` does the same, and is a good part of a start."""
    places = (os.path.join(directory, program) for directory in directories)
    return next((one for one in places if _is_program(one)), None)


def _is_program(path: str) -> bool:
    return os.access(path, os.X_OK) and os.path.isfile(path)


def _has_interpreter(directory: str) -> bool:
    with contextlib.suppress(OSError):
        names = filter(re.compile(r"(?:python|pypy)[0-9.]*[tdm]*(?:\.exe)?").fullmatch, os.listdir(directory))
        return any(_is_program(os.path.join(directory, name)) for name in names)
    return False


def _leads_to_its_name(program: str, workspace: str) -> bool:
    """True unless the workspace makes a program another one outside of it; `python3` may lead to `python3.12`."""
    if not leads_out(program, workspace):
        return True
    name, real = os.path.basename(program).rstrip("0123456789."), os.path.realpath(program)
    return bool(re.fullmatch(re.escape(name) + "[0-9.]*", os.path.basename(real))) and _is_program(real)


def _usual_places(workspace: str, environment: Mapping[str, str], home: str | None) -> Iterator[str]:
    for variable, usual in _HOMES.items():
        place = environment.get(variable) or ("" if home is None else os.path.join(home, usual))
        yield from _directories((place,), workspace)
    for usual in _OTHER_HOMES if home is not None else ():
        yield from _directories((os.path.join(home or "", usual),), workspace)


def _root_of(directory: str, home: str | None) -> str:
    """The directory of an installation that has its programs here: `X` for `X/bin`, unless that is a home or wider."""
    above, name = os.path.split(directory)
    return above if name in _BINARIES and not _is_wide(above, home) else directory


def _is_wide(place: str, home: str | None) -> bool:
    """True if a place contains more than programs: a home directory or its `.local`, or a directory of homes."""
    if place == os.sep or os.path.dirname(place) == os.sep:
        return True
    return home is not None and (_is_in(home, (place,)) or place == os.path.join(home, ".local"))


def _bases(roots: Iterable[str]) -> Iterator[str]:
    """The installations that Python's virtual environments are made of. A directory without an interpreter is none."""
    for root in roots:
        home = _value(os.path.join(root, "pyvenv.cfg"), "home")
        if home is not None and os.path.isabs(home) and _has_interpreter(home):
            yield _root_of(os.path.realpath(home), None)


def _value(path: str, name: str) -> str | None:
    """The value of a line `name = value` of a small file, None if there is none."""
    for line in _head(path).splitlines():
        key, equals, value = line.partition("=")
        if equals and key.strip() == name:
            return value.strip()
    return None


def _head(path: str) -> str:
    """The beginning of a small regular file; empty if there is none, and without characters that no path contains."""
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except (OSError, ValueError):
        return ""
    with os.fdopen(fd, "rb") as handle:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return ""
        return os.fsdecode(handle.read(4096)).replace("\0", "")


# The repository


def repository_of(workspace: str) -> RepositoryFacts | None:
    """The git repository of `workspace`: its own, or the one around it (except the user's home), which is only read. A
    `.git` that is a file or a link belongs to the workspace, whose author is not the user: its target counts only if
    that names the workspace in turn, or is a git directory made for a separate working tree. None if there is no
    repository, or no trustworthy one."""
    if os.path.lexists(os.path.join(workspace, ".git")):
        found = _repository_at(workspace)
        return None if found is None else found._replace(reads=_alternates(found.common))
    above = os.path.dirname(workspace)
    while above != os.path.dirname(above) and not os.path.lexists(os.path.join(above, ".git")):
        above = os.path.dirname(above)
    if above == os.path.realpath(os.path.expanduser("~")):  # it keeps the settings of all programs of the user
        return None
    found = _repository_at(above)
    if found is None or not all(map(_is_users, (above, found.own, found.common))):
        return None
    return found._replace(reads=(found.top, found.own, found.common, *_alternates(found.common)))


def _repository_at(tree: str) -> RepositoryFacts | None:
    top = os.path.join(tree, ".git")
    if os.path.islink(top):
        own = os.path.realpath(top)
        return RepositoryFacts(top, own, own, _modules(own)) if _is_separate_git_dir(own, tree) else None
    if os.path.isdir(top):
        return RepositoryFacts(top, top, top, _modules(top))
    named = _first_line(top)
    if named is None or not named.startswith("gitdir: "):
        return None
    own = os.path.realpath(os.path.join(tree, named.removeprefix("gitdir: ")))
    common = _common_of(own, top)
    if common is None:
        common = own if _is_module_of(own, tree) or _is_separate_git_dir(own, tree) else None
    return None if common is None else RepositoryFacts(top, own, common, _modules(common))


def _is_separate_git_dir(own: str, tree: str) -> bool:
    """True if the directory is one that git keeps apart from its working tree (`--separate-git-dir`), which nothing in
    it names. It is no other working tree's `.git`, no submodule's, no linked working tree's and no bare repository."""
    if os.path.basename(own).lower() == ".git" or f"{os.sep}.git{os.sep}" in own or not _is_repository(own):
        return False
    config = os.path.join(own, "config")
    named = _value(config, "worktree")
    is_of_tree = named is None or os.path.realpath(os.path.join(own, named)) == tree
    return is_of_tree and _value(config, "bare") == "false" and _is_users(own)


def _alternates(common: str) -> tuple[str, ...]:
    """The folders of objects that a repository borrows of others of the same user, and they in turn (alternates)."""
    found: list[str] = []
    waiting = [os.path.join(common, "objects")]
    while waiting and len(found) < 16:
        objects = waiting.pop()
        for line in _head(os.path.join(objects, "info", "alternates")).splitlines():
            other = os.path.realpath(os.path.join(objects, line))
            is_one = os.path.basename(other) == "objects" and _is_repository(os.path.dirname(other))
            if line and not line.startswith("#") and other not in found and is_one and _is_users(other):
                found.append(other)
                waiting.append(other)
    return tuple(found)


def _is_users(path: str) -> bool:
    """True if a place belongs to the user, as git wants it of a repository; some systems have no owners."""
    try:
        return not hasattr(os, "getuid") or os.stat(path).st_uid == os.getuid()
    except OSError:
        return False


def _common_of(own: str, top: str) -> str | None:
    """The repository of which the directory `own` has the linked working tree with the `.git` file `top`."""
    back, shared = _first_line(os.path.join(own, "gitdir")), _first_line(os.path.join(own, "commondir"))
    if back is None or shared is None or os.path.realpath(os.path.join(own, back)) != os.path.realpath(top):
        return None
    common = os.path.realpath(os.path.join(own, shared))
    is_inside = os.path.dirname(own) == os.path.join(common, "worktrees")
    return common if is_inside and _is_repository(common) else None


def _is_module_of(own: str, workspace: str) -> bool:
    """True if the directory is a submodule's in the surrounding repository, with this as its working tree."""
    if f"{os.sep}.git{os.sep}modules{os.sep}" not in own or not _is_repository(own):
        return False
    named = _value(os.path.join(own, "config"), "worktree")
    return named is not None and os.path.realpath(os.path.join(own, named)) == workspace


def _is_repository(directory: str) -> bool:
    return all(os.path.exists(os.path.join(directory, name)) for name in ("HEAD", "objects", "refs"))


def _first_line(path: str) -> str | None:
    return _head(path).partition("\n")[0].rstrip("\r") or None


def _modules(common: str) -> tuple[str, ...]:
    """The directories of the submodules, whose names may have slashes; no more than some hundred are looked for."""
    found: list[str] = []
    waiting = [os.path.join(common, "modules")]
    looked = 0
    while waiting and looked < 200:
        directory, looked = waiting.pop(), looked + 1
        with contextlib.suppress(OSError), os.scandir(directory) as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    continue
                if os.path.exists(os.path.join(entry.path, "HEAD")):
                    found.append(entry.path)
                    waiting.append(os.path.join(entry.path, "modules"))
                else:
                    waiting.append(entry.path)
    return tuple(sorted(found))
