"""Rules for calls that start a program, if commands run in a sandbox or must; and the scope of a command's process,
from the grants of a bundle (design, invariant 11). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from config.lean_typing import NamedTuple
from policy import SANDBOX_GRANT, STRONGEST, CommandScope, Widening, is_weaker
from policy import CapabilityName as Name
from policy.paths import NOWHERE, Places, covering, is_absolute, join_nested, normalize, roots, split_nested
from policy.rules import deny, where
from policy.rules.protected_paths import is_called, is_shared_temporary, names_repository
from policy.urls import UrlProblem, canonical_domain, common_domains, covers, domain_rules

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from policy import Decision, RepositoryFacts, SandboxLevel, ScopeFacts
    from policy.bundle import Capability, PolicyBundle
    from policy.facts import OsFamily

RULE = "sandbox.level"
_MAX_REASON = 2_000
_ROOTS = {"posix": ("/",), "windows": ()}
_CONFIG = "config"
_STEERED_BY = ("hooks", _CONFIG, "config.worktree", "info", "objects/info/alternates")
"""Parts of a repository's directory that decide which programs git runs or which other places it reads; changes to all
other parts are judged after the command (`git_directory`)."""
_SECRET_OF_KEYRING = ("private-keys-v1.d", "openpgp-revocs.d", "secring.gpg", "random_seed", "sshcontrol")
_OF_LINKED = ("commondir", "gitdir", "config.worktree")
"""The same parts of a linked working tree's directory."""
NO_WIDENING = Widening()


def sandbox_denial(
    bundle: PolicyBundle, capability: str, level: SandboxLevel, wanted: str, why: str, *, is_untried: bool = False
) -> Decision | None:
    """The denial of a command without the required sandbox, None if it may run. `level` is the working level, `wanted`
    the requested one, possibly `auto`; `why` is the reason why no stronger one works. `is_untried`: the sandbox is not
    missing, but its trial failed for another reason."""
    policy = bundle.sandbox
    because = f": {why}" if why else ""
    if is_untried:
        reason = f"the sandbox could not be tried{because}; --sandbox none runs commands without one"
        return deny(capability, f"{RULE}: {wanted}", reason)
    if wanted != STRONGEST and wanted != level:
        reason = f"the sandbox level {wanted} was asked for and does not work here{because}"
        return deny(capability, f"{RULE}: {wanted}", reason)
    least = None if policy is None else policy.minimum_level
    if least is not None and is_weaker(level, least):
        reason = f"the policy requires at least the sandbox level {least}; here it is {level}{because}"
        return deny(capability, f"sandbox.minimumLevel: {least}", reason)
    if policy is not None and policy.required and level == "none":
        return deny(capability, "sandbox.required: true", f"the policy requires a sandbox for commands{because}")
    return None


def apply_widening(
    decision: Decision, widening: Widening, scope: CommandScope, bundle: PolicyBundle, os: OsFamily
) -> Decision:
    """The decision on a call that requests more than its scope: a person must approve it and is shown the additions.
    Blocked places are never opened, and running without a sandbox requires `allowOff` in the bundle. `scope` is the
    call's scope with the additions."""
    if decision.decision == "DENIED":
        return decision
    problem = _never_opened(widening, scope, bundle, os)
    if problem is not None:
        rule, reason = problem
        return deny(decision.capability, rule, reason)
    return decision._replace(
        decision="APPROVAL_REQUIRED",
        reason="the call asks for more than its sandbox gives",
        rule=SANDBOX_GRANT,
        rule_id=SANDBOX_GRANT,
        risk_level="high",
        risks=(*widening.lines, *decision.risks),
    )


def _never_opened(
    widening: Widening, scope: CommandScope, bundle: PolicyBundle, os: OsFamily
) -> tuple[str, str] | None:
    """The rule against the request, and the reason; None if a person may approve it."""
    if widening.off and (bundle.sandbox is None or not bundle.sandbox.allow_off):
        return "sandbox.allowOff", "the policy lets no command run without a sandbox"
    for name in (Name.FILE_READ, Name.FILE_WRITE, Name.FILE_DELETE):
        entry = bundle.capability(name)
        if entry is None or not entry.blocked_paths:
            continue
        table = roots(entry.blocked_paths, os, "wide", bundle.real_places.get("blocked"))
        for place in widening.write:
            blocked = covering(normalize(place, os), table, os, "wide")
            if blocked is not None:
                return where(entry, "blockedPaths", blocked), f"path is blocked: {place}"
    for place in widening.write:
        if not may_write(scope, place, os):
            return SANDBOX_GRANT, f"path is blocked: {place}"
    for domain in widening.domains:
        hit = next((rule for rule in scope.blocked_domains if covers(domain, domain_rules((rule,)))), None)
        if hit is not None:
            return f"blockedDomains: {hit}", f"domain is blocked: {domain}"
    return None


def widening_of(asked: object) -> Widening | str | None:
    """Parse `sandboxGrant`, with paths as spelled: None if absent, or the problem with it, for the model."""
    if asked is None:
        return None
    if not isinstance(asked, dict):
        return "sandboxGrant must be an object: {write, domains, reason}"
    write, domains, off = asked.get("write") or (), asked.get("domains") or (), asked.get("off", False)
    reason = asked.get("reason")
    if not isinstance(reason, str) or not reason.strip():
        return "sandboxGrant.reason must explain why the call needs more than its sandbox allows"
    for name, several in (("write", write), ("domains", domains)):
        if not isinstance(several, list | tuple) or not all(isinstance(one, str) and one for one in several):
            return f"sandboxGrant.{name} must be a list of text"
    if not (write or domains or off is True):
        return "sandboxGrant asks for nothing: name paths in write, or hosts in domains"
    try:
        named = tuple(map(canonical_domain, domains))
    except UrlProblem as error:
        return f"sandboxGrant.domains: {error}"
    if any("\0" in one for one in write):
        return "sandboxGrant.write must not contain a null byte"
    return Widening(tuple(dict.fromkeys(write)), tuple(dict.fromkeys(named)), off is True, reason[:_MAX_REASON])


# Decisions of a CommandScope about paths, which the operating system enforces too (design, invariant 11). Pure; for
# policy, which creates scopes, and for the runtime, which explains denials.

ScopePart = Literal["reads", "writes", "hidden", "guarded"]


def refusal(scope: CommandScope, path: str, os: OsFamily, *, write: bool) -> ScopePart | None:
    """The part of `scope` that denies reading `path`, which is absolute and real, or with `write` writing, creating,
    moving and removing it; None if it is allowed. Of nested places the innermost decides."""
    writes = Places(scope.writes, os).inmost(path)
    reads = 0 if scope.reads is None else Places(scope.reads, os).inmost(path)
    granted = writes if write else max(reads, writes)
    if Places(scope.hidden, os).inmost(path) >= max(granted, 0):
        return "hidden"
    if granted == NOWHERE:
        return "writes" if write else "reads"
    return "guarded" if write and Places(scope.guarded, os).inmost(path) >= granted else None


def may_read(scope: CommandScope, path: str, os: OsFamily) -> bool:
    """True if the scope lets a process read the file at a real path."""
    return refusal(scope, path, os, write=False) is None


def may_write(scope: CommandScope, path: str, os: OsFamily) -> bool:
    """True if the scope lets a process write, make, move and remove the file at a real path."""
    return refusal(scope, path, os, write=True) is None


def command_scope(
    bundle: PolicyBundle,
    facts: ScopeFacts,
    os: OsFamily,
    *,
    opened: Widening = NO_WIDENING,
    blocked_domains: tuple[str, ...] = (),
    grant: Widening = NO_WIDENING,
) -> CommandScope:
    """The scope of each command of a session. `opened` are the user's additions for all commands, `blocked_domains` the
    configuration's blocked hosts; `grant` is a person's approval for one call. Blocked places stay blocked."""
    blocks = _Blocks.collect(bundle, facts, os)
    strict = _reads_strictly(bundle)
    writes = [*_own_roots(bundle, Name.FILE_WRITE, facts, os), *opened.write, *grant.write]
    reads = [*_own_roots(bundle, Name.FILE_READ, facts, os), *facts.system, *facts.toolchains] if strict else None
    keyring = _keyring(bundle, facts, os)
    if reads is not None and keyring is not None:
        reads.append(keyring)
    if strict and _has_strict_reads(bundle):
        reads = [facts.workspace, *(reads or ())]
    if reads is not None and facts.repository is not None and Places(reads, os).contain(facts.workspace):
        reads += facts.repository.reads
    writes += _working_tree_places(facts.repository, writes, blocks, os)
    writable = [one for one in writes if not blocks.refuse_writing(one)]
    kept = [one for one in writes if blocks.refuse_writing(one)] if reads is not None else []
    if reads is not None:
        reads = [one for one in (*reads, *kept) if not blocks.hide(one)]
    own = () if facts.tmp is None else (facts.tmp,)
    writable = [*writable, *facts.devices, *own]
    written, touched = Places(writable, os), Places((*(reads or ()), *writable), os)
    return CommandScope(
        None if reads is None else _outermost(reads, os),
        _outermost(writable, os, (*blocks.hidden, *blocks.guarded)),
        tuple(one for one in blocks.hidden if reads is None or touched.contain(one)),
        tuple(one for one in blocks.guarded if written.contain(one) and not blocks.hide(one)),
        _domains(bundle, (*opened.domains, *grant.domains)),
        tuple(dict.fromkeys((*_list(bundle.capability(Name.NETWORK_HTTP), "blocked_domains"), *blocked_domains))),
        () if bundle.sandbox is None else bundle.sandbox.agents,
        (*blocks.unheld, *_not_enforced(bundle, facts)),
        blocks.nested,
        tuple(one for one in blocks.judged if written.contain(one) and not blocks.hide(one)),
        tuple(_own_roots(bundle, Name.FILE_WRITE, facts, os)),
    )


def server_scope(
    bundle: PolicyBundle,
    facts: ScopeFacts,
    os: OsFamily,
    *,
    write: tuple[str, ...],
    domains: tuple[str, ...],
    blocked_domains: tuple[str, ...] = (),
) -> CommandScope:
    """The scope of an MCP server that the user's configuration starts: it reads what a command reads, and writes and
    connects as its entry allows. The bundle's blocked places stay blocked."""
    widest = command_scope(bundle, facts, os, opened=Widening(write), blocked_domains=blocked_domains)
    own = () if facts.tmp is None else (facts.tmp,)
    places = [one for one in (*write, *facts.devices) if may_write(widest, one, os)]
    lost = () if widest.reads is None else tuple(one for one in widest.writes if one not in (*places, *own))
    return widest._replace(
        reads=None if widest.reads is None else _outermost((*widest.reads, *lost), os),
        writes=_outermost((*places, *own), os),
        guarded=tuple(filter(Places(places, os).contain, widest.guarded)),
        domains=domains,
    )


def common_scope(one: CommandScope, other: CommandScope, os: OsFamily) -> CommandScope:
    """The scope of what both give, and no more: a place counts if the other one allows it as well."""

    def shared(first: Iterable[str], second: Iterable[str], *, write: bool) -> tuple[str, ...]:
        of_first = (place for place in first if refusal(other, place, os, write=write) is None)
        of_second = (place for place in second if refusal(one, place, os, write=write) is None)
        return tuple(dict.fromkeys((*of_first, *of_second)))

    hidden = tuple(dict.fromkeys((*one.hidden, *other.hidden)))
    reads: tuple[str, ...] | None = shared(
        (*(one.reads or ()), *one.writes), (*(other.reads or ()), *other.writes), write=False
    )
    if one.reads is None and other.reads is None:
        within = tuple(filter(Places(hidden, os).contain, reads or ()))  # only a list can open these
        reads = (*_ROOTS[os], *within) if within and _ROOTS[os] else None
    guarded = dict.fromkeys((*one.guarded, *other.guarded))
    unchangeable = {*one.unchangeable, *other.unchangeable}
    return CommandScope(
        reads,
        shared(one.writes, other.writes, write=True),
        hidden,
        tuple(guarded),
        common_domains(one.domains, other.domains),
        tuple(dict.fromkeys((*one.blocked_domains, *other.blocked_domains))),
        tuple(agent for agent in one.agents if agent in other.agents),
        tuple(dict.fromkeys((*one.unheld, *other.unheld))),
        tuple(dict.fromkeys((*one.nested, *other.nested))),
        tuple(place for place in dict.fromkeys((*one.judged, *other.judged)) if place not in unchangeable),
        tuple(place for place in one.given if place in other.given),
        other.level or one.level,
    )


def add_own_places(
    scope: CommandScope, os: OsFamily, *, reads: tuple[str, ...] = (), writes: tuple[str, ...] = ()
) -> CommandScope:
    """The scope with places that the host adds for a call. They may be in hidden places."""
    blocked = (*scope.hidden, *scope.guarded)
    readable = None if scope.reads is None else _outermost((*scope.reads, *reads), os, blocked)
    return scope._replace(reads=readable, writes=_outermost((*scope.writes, *writes), os, blocked))


def is_hidden(scope: CommandScope, path: str, os: OsFamily) -> bool:
    """True if a place is in a hidden one."""
    return Places(scope.hidden, os).contain(path)


# What may be read and written


def _reads_strictly(bundle: PolicyBundle) -> bool:
    if bundle.sandbox is not None and bundle.sandbox.reads is not None:
        return bundle.sandbox.reads == "strict"
    entry = bundle.capability(Name.FILE_READ)
    return entry is None or entry.requires_approval or entry.allowed_paths is not None


def _has_strict_reads(bundle: PolicyBundle) -> bool:
    """True if reading is strict although File.Read lists nothing, which then means the workspace."""
    entry = bundle.capability(Name.FILE_READ)
    return entry is not None and not entry.requires_approval and entry.allowed_paths is None


def _own_roots(bundle: PolicyBundle, name: str, facts: ScopeFacts, os: OsFamily) -> list[str]:
    """The places that a capability gives by itself, but not a directory that all sessions have theirs in."""
    entry = bundle.capability(name)
    if entry is None or entry.requires_approval:
        return []
    if entry.allowed_paths is None:
        return list(_ROOTS[os]) if name == Name.FILE_WRITE else []
    real = bundle.real_places.get("allowed", {})
    places = [normalize(real.get(one, one), os) for one in entry.allowed_paths if is_absolute(one, os)]
    return [one for one in places if not is_shared_temporary(one, facts.tmp, os)]


def _list(entry: Capability | None, field: str) -> tuple[str, ...]:
    return () if entry is None else getattr(entry, field) or ()


def _domains(bundle: PolicyBundle, extra: tuple[str, ...]) -> tuple[str, ...] | None:
    entry = bundle.capability(Name.NETWORK_HTTP)
    if entry is None or entry.requires_approval:
        return tuple(dict.fromkeys(extra))
    return None if entry.allowed_domains is None else tuple(dict.fromkeys((*entry.allowed_domains, *extra)))


def _outermost(places: Iterable[str], os: OsFamily, blocked: Sequence[str] = ()) -> tuple[str, ...]:
    """Each place once, in order, without places inside others, unless something `blocked` is between the two."""
    several = tuple(dict.fromkeys(places))
    given, refused = Places(several, os), Places(blocked, os)
    return tuple(one for one in several if given.around(one) <= refused.inmost(one))


# What is blocked


class _Blocks(NamedTuple):
    """Places that no command reads (`hidden`) and that none changes (`guarded`), with the list entries that no sandbox
    can enforce. `nested` are names that are guarded at any depth, `judged` configurations of git that no list names.
    `ends_commits`: the `.git` of the workspace is blocked whole. `unread` and `unchanged` answer for both lists."""

    hidden: tuple[str, ...]
    guarded: tuple[str, ...]
    unheld: tuple[str, ...]
    nested: tuple[str, ...]
    judged: tuple[str, ...]
    ends_commits: bool
    unread: Places
    unchanged: Places

    @classmethod
    def collect(cls, bundle: PolicyBundle, facts: ScopeFacts, os: OsFamily) -> _Blocks:
        patterns: dict[str, list[str]] = {}
        reading = _block_list(bundle, (Name.FILE_READ,), patterns, os)
        by_name: dict[str, list[str]] = {}
        changing = _block_list(bundle, (Name.FILE_WRITE, Name.FILE_DELETE), by_name, os)
        for root, names in by_name.items():
            patterns[root] = list(dict.fromkeys((*patterns.get(root, ()), *names)))
        nested = tuple(join_nested(root, name, os) for root, names in by_name.items() for name in names)
        keyring = _keyring(bundle, facts, os)
        if keyring is not None and keyring in reading:
            reading = [one for one in reading if one != keyring] + [f"{keyring}/{name}" for name in _SECRET_OF_KEYRING]
            changing = [*changing, keyring]
        hidden = [*reading, *facts.secrets, *facts.toolchain_secrets, *facts.records]
        split = _split_repository(bundle, changing, facts, os)
        ends_commits = Places(split, os).contain(_git_of(facts, os))
        steering = _steering_of(facts.repository, bundle, os)
        guarded = [*split, *facts.steering, *steering]
        named = Places((one for one in changing if one not in bundle.by_groups), os)
        configs = (one for one in (*split, *steering) if one not in changing and is_called(one, _CONFIG, os))
        judged = tuple(one for one in dict.fromkeys(configs) if not named.contain(one))
        unheld = tuple(
            f"below {root}, at any depth: {', '.join(names)}; only entries directly in it are protected"
            for root, names in patterns.items()
        )
        unread, unchanged = Places(hidden, os), Places(guarded, os)
        return cls(
            _outermost(hidden, os), _outermost(guarded, os), unheld, nested, judged, ends_commits, unread, unchanged
        )

    def hide(self, place: str) -> bool:
        """True if nothing of the place may be read."""
        return self.unread.contain(place)

    def refuse_writing(self, place: str) -> bool:
        """True if nothing of the place may be written."""
        return self.hide(place) or self.unchanged.contain(place)


def _block_list(bundle: PolicyBundle, names: Iterable[str], patterns: dict[str, list[str]], os: OsFamily) -> list[str]:
    """The places that these capabilities block, as spelled and as real paths. Patterns are added to `patterns`, their
    names by root; a name directly in the root is a place."""
    real, found = bundle.real_places.get("blocked", {}), []
    for entry in (one for name in names for one in _list(bundle.capability(name), "blocked_paths")):
        if not is_absolute(entry, os):
            continue
        spelled = normalize(entry, os)
        nested = split_nested(spelled, os)
        if nested is None:
            found += [spelled, normalize(real.get(entry, spelled), os)]
            continue
        root, name = nested
        at_root = patterns.setdefault(root, [])
        if name not in at_root:
            at_root.append(name)
        if not name.startswith("*"):
            direct = normalize(f"{root}/{name}", os)
            found += [direct, normalize(real.get(direct, direct), os)]
    return list(dict.fromkeys(found))


def _keyring(bundle: PolicyBundle, facts: ScopeFacts, os: OsFamily) -> str | None:
    """The directory of the user's GnuPG keys, if the bundle grants its agent and does not spell that place out: who
    signs by the agent reads the public keys, and the secret ones stay hidden."""
    if facts.home is None or bundle.sandbox is None or "gpg" not in bundle.sandbox.agents:
        return None
    place = normalize(f"{facts.home}/.gnupg", os)
    blocked = _list(bundle.capability(Name.FILE_READ), "blocked_paths")
    return place if place not in blocked or place in bundle.by_groups else None


# The repository of the workspace


def _split_repository(bundle: PolicyBundle, blocked: list[str], facts: ScopeFacts, os: OsFamily) -> list[str]:
    """`.git` in @steering is blocked for the file tools; for a command only the files in it that steer git are. Spelled
    out in a bundle it is blocked entirely, and no command can commit. In the workspace's own repository it depends on
    its layout."""
    split: list[str] = []
    for one in blocked:
        if one not in bundle.by_groups or not is_called(one, ".git", os):
            split.append(one)
        elif one != _git_of(facts, os):
            split += _steering_in(one, os)
    return split


def _git_of(facts: ScopeFacts, os: OsFamily) -> str:
    return normalize(f"{facts.workspace}/.git", os)


def _steering_in(directory: str, os: OsFamily) -> list[str]:
    return [normalize(f"{directory}/{name}", os) for name in _STEERED_BY]


def _steering_of(repository: RepositoryFacts | None, bundle: PolicyBundle, os: OsFamily) -> list[str]:
    """Places that decide which programs git runs in the workspace's repository, unless an allowed path names its
    `.git`. A repository that a command makes has none of it yet."""
    if repository is None:
        return []
    places = [place for one in (repository.common, *repository.modules) for place in _steering_in(one, os)]
    if repository.top != repository.own:  # a file with the directory's path, and so are these
        places += [repository.top, *(normalize(f"{repository.own}/{name}", os) for name in _OF_LINKED)]
    allowed = _list(bundle.capability(Name.FILE_WRITE), "allowed_paths")
    return [one for one in places if not names_repository(one, allowed, os)]


def _working_tree_places(
    repository: RepositoryFacts | None, writes: Sequence[str], blocks: _Blocks, os: OsFamily
) -> list[str]:
    """The places outside of the workspace that a commit of a linked working tree writes to."""
    if repository is None or not Places(writes, os).contain(repository.top):
        return []
    if repository.top == repository.own or blocks.ends_commits:
        return []
    return [repository.common, repository.own]


# What is not held


def _not_enforced(bundle: PolicyBundle, facts: ScopeFacts) -> Iterable[str]:
    writing, deleting = bundle.capability(Name.FILE_WRITE), bundle.capability(Name.FILE_DELETE)
    writes = writing is not None and not writing.requires_approval
    why = None
    if deleting is None:
        why = "is not granted"
    elif deleting.requires_approval:
        why = "asks for an approval"
    elif writing is not None and deleting.allowed_paths not in (None, writing.allowed_paths):
        why = "has allowedPaths of its own"
    if writes and why is not None:
        yield f"File.Delete {why}: what may be written may be removed as well"
    for entry in (bundle.capability(Name.FILE_READ), writing):
        if entry is not None and entry.max_file_size_bytes is not None:
            yield f"{entry.name}.maxFileSizeBytes: a command may take files of any size"
    if writes and facts.repository is not None:
        yield "hooks and configuration of other repositories outside of the workspace"
