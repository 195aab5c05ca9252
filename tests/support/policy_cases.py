"""Strategies for what policy is asked: bundles, calls with their facts, bundles with less in them, other spellings.

Names come from small sets, so that calls and lists meet often. Bundles are JSON shapes: what is taken away from one is
taken away from what its author wrote.
"""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from hypothesis import strategies as st

from policy import ALL_CAPABILITIES
from policy.facts import CommandFacts, NamedToolFacts, OsFamily, PathFacts, ShellName, UrlFacts
from policy.paths import normalize

if TYPE_CHECKING:
    from policy.facts import ActionFacts

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
Shape = dict[str, Any]

SYSTEMS: st.SearchStrategy[OsFamily] = st.sampled_from(["posix", "windows"])
SHELLS: dict[OsFamily, tuple[ShellName, ...]] = {"posix": ("bash", "sh", "zsh"), "windows": ("cmd", "powershell")}
ROOTS: dict[OsFamily, str] = {"posix": "/", "windows": "C:\\"}
SEPARATORS: dict[OsFamily, str] = {"posix": "/", "windows": "\\"}
HOMES: dict[OsFamily, str] = {"posix": "/home/u", "windows": "C:\\home\\u"}

NAMES = st.sampled_from(
    ["w", "a", "b", "A", ".git", "secret", "SECRET", "wx", "stra\u00dfe", "e\u0301", "\u00e9", "proc"]
)
COMMANDS = ("ls", "cat", "echo", "git", "env", "find", "evil", "sh", "/bin/ls", "./ls")
DOMAINS = ("example.com", "*.example.com", "a.example.com", "127.0.0.1", "localhost", "xn--bcher-kva.example", "::1")
LINES = (
    "ls", "ls -l a", "echo hi && cat a", "cat a | evil", "echo $(evil)", "env A=1 ls", "env evil", "sh -c 'ls; evil'",
    "find . -exec evil {} +", "git status", "git -c core.pager=evil log", "echo a > /w/a", "echo a > b", "", "$x",
    "cat < /w/secret/x", "cd a; echo x > y", "for f in a b; do cat $f; done", "ls; ./ls; /bin/ls", "x=1", "'evil'",
    "dir C:\\w & evil", "Remove-Item x", "cat <<E\n$(evil)\nE",
)  # fmt: skip
URLS = (
    "https://example.com/", "https://a.example.com:8443/x", "http://127.0.0.1/", "http://2130706433", "http://localhost",
    "http://[::1]/", "https://b\u00fccher.example", "https://evil.test", "ftp://example.com", "http://u@example.com",
)  # fmt: skip
ADDRESSES = st.lists(st.sampled_from(["1.1.1.1", "127.0.0.1", "fe80::1", "2606:4700::1"]), max_size=2)


class Call(NamedTuple):
    """One question to policy."""

    capability: str
    facts: ActionFacts
    os: OsFamily


def shape_of(capabilities: list[Shape], **fields: Any) -> Shape:
    """A bundle's JSON shape around its capabilities."""
    return {
        "policyBundleVersion": "2026-01-01.1",
        "schemaVersion": "1.0",
        "tenantId": "t",
        "userId": "u",
        "sessionId": "s",
        "expiresAt": "2026-01-02T00:00:00Z",
        "capabilities": capabilities,
        "llmPolicy": {
            "allowedModels": ["m", "n"],
            "maxInputTokens": 2000,
            "maxOutputTokens": 1000,
            "maxSessionTokens": 9000,
        },
        "approvalRules": [],
        **fields,
    }


# Bundles


def places(os: OsFamily) -> st.SearchStrategy[str]:
    """Absolute paths in normal form."""
    return st.lists(NAMES, max_size=3).map(lambda parts: normalize(ROOTS[os] + SEPARATORS[os].join(parts), os))


COMMAND_POLICIES = st.fixed_dictionaries(
    {"command": st.sampled_from(COMMANDS)},
    optional={
        "maxArguments": st.integers(0, 3),
        "additionalArguments": st.booleans(),
        "subcommands": st.lists(st.sampled_from(["status", "log", "-l"]), max_size=2),
        "arguments": st.lists(
            st.fixed_dictionaries(
                {"index": st.integers(0, 2)},
                optional={"pattern": st.sampled_from(["[a-z]+", "-.*", "a|b"]), "optional": st.booleans()},
            ),
            max_size=2,
        ),
    },
)


_LISTS: dict[str, tuple[str, ...]] = {
    "File.": ("allowedPaths", "blockedPaths"),
    "Workspace.Upload": ("allowedPaths", "blockedPaths", "allowedToolNames"),
    "Shell.Exec": ("allowedCommands", "blockedCommands", "commandPolicies"),
    "Network.Http": ("allowedDomains", "blockedDomains"),
}
_SIZED = ("File.", "Workspace.Upload")


def list_fields(os: OsFamily, name: str) -> dict[str, st.SearchStrategy[Any]]:
    """What one entry of each list field that means something to a capability may be."""
    entries: dict[str, st.SearchStrategy[Any]] = {
        "allowedPaths": places(os),
        "blockedPaths": places(os),
        "allowedCommands": st.sampled_from(COMMANDS),
        "blockedCommands": st.sampled_from(COMMANDS),
        "commandPolicies": COMMAND_POLICIES,
        "allowedDomains": st.sampled_from(DOMAINS),
        "blockedDomains": st.sampled_from(DOMAINS),
        "allowedToolNames": st.sampled_from(["T", "U", "UploadArtifact"]),
    }
    fields = next((fields for start, fields in _LISTS.items() if name.startswith(start)), ("allowedToolNames",))
    return {field: entries[field] for field in fields}


def capabilities(os: OsFamily, name: str) -> st.SearchStrategy[Shape]:
    """One capability with any of the limits that mean something to it."""
    optional: dict[str, st.SearchStrategy[Any]] = {
        field: st.lists(entry, max_size=3) for field, entry in list_fields(os, name).items()
    }
    optional["requiresApproval"] = st.booleans()
    if name.startswith(_SIZED):
        optional["maxFileSizeBytes"] = st.integers(0, 20)
    return st.fixed_dictionaries({"name": st.just(name)}, optional=optional)


@st.composite
def bundles(draw: st.DrawFn, os: OsFamily, about: str) -> Shape:
    """A bundle's shape with the capability `about` in it, mostly, and those that a call under it may need as well."""
    names = {name for name in (about, "File.Read", "File.Write") if draw(st.integers(0, 7)) > 0}
    return shape_of([draw(capabilities(os, name)) for name in sorted(names)])


@st.composite
def bundles_near(draw: st.DrawFn, os: OsFamily, about: str, place: str) -> Shape:
    """A bundle whose path lists are made of the places above `place`, itself, and its siblings."""
    above = [normalize(place + SEPARATORS[os] + ".." * steps, os) for steps in (0, 1)]
    near = st.sampled_from([place, *above, place + "x", ROOTS[os] + "w", ROOTS[os] + "home"])
    entries = [draw(capabilities(os, name)) for name in dict.fromkeys((about, "File.Read"))]
    for entry in entries:
        for field in ("allowedPaths", "blockedPaths"):
            if field in entry or draw(st.booleans()):
                entry[field] = draw(st.lists(near, max_size=2))
    return shape_of(entries)


# Calls


@st.composite
def calls(draw: st.DrawFn, os: OsFamily) -> Call:
    """A call of any capability that a tool can need, with facts that fit it."""
    capability = draw(st.sampled_from([name for name in ALL_CAPABILITIES if name != "LLM.Call"]))
    if capability == "Shell.Exec":
        real = st.dictionaries(places(os), places(os), max_size=2)
        shell = draw(st.sampled_from(SHELLS[os]))
        line = draw(st.sampled_from(LINES))
        looked_up = {"/w/a": "/w/a", "/w/b": "/w/b", "/w/secret/x": "/w/secret/x", "/w/a/y": "/w/y", **draw(real)}
        return Call(capability, CommandFacts(line, ROOTS[os] + "w", shell, HOMES[os], looked_up), os)
    if capability == "Network.Http":
        return Call(capability, UrlFacts(draw(st.sampled_from(URLS)), "GET", tuple(draw(ADDRESSES))), os)
    if capability.startswith("File.") or (capability == "Workspace.Upload" and draw(st.booleans())):
        return Call(capability, draw(path_facts(os)), os)
    return Call(capability, NamedToolFacts(draw(st.sampled_from(["T", "U", "V", "UploadArtifact"]))), os)


@st.composite
def path_facts(draw: st.DrawFn, os: OsFamily) -> PathFacts:
    """A path, where it really leads, and what is there."""
    place = draw(places(os))
    size = st.none() | st.integers(0, 30)
    return PathFacts(
        place,
        place,
        draw(st.just(place) | places(os)),
        draw(st.sampled_from(["file", "directory", "other", "missing"])),
        is_symlink=draw(st.booleans()),
        size_bytes=draw(size),
        new_size_bytes=draw(size),
        tool_name=draw(st.none() | st.sampled_from(["T", "UploadArtifact"])),
    )


# Less


_NEVER_ADDED = frozenset({"allowedPaths", "allowedCommands", "allowedDomains", "allowedToolNames"})


@st.composite
def narrowed(draw: st.DrawFn, shape: Shape, os: OsFamily) -> Shape:
    """The same bundle with less in it: entries gone from what is allowed, more blocked, limits set or lowered, an
    approval asked for, a capability taken away, an earlier end."""
    less = copy.deepcopy(shape)
    for _ in range(draw(st.integers(1, 4))):
        step = draw(st.sampled_from(["drop", "shrink", "block", "limit", "approve", "expire"]))
        if step == "expire":
            less["expiresAt"] = draw(st.sampled_from(["2026-01-01T12:00:01Z", "2026-01-01T12:00:00Z"]))
        if not less["capabilities"]:
            continue
        entry = draw(st.sampled_from(less["capabilities"]))
        if step == "drop":
            less["capabilities"].remove(entry)
        elif step == "shrink":
            _shrink(draw, entry)
        elif step == "block":
            _block(draw, entry, os)
        elif step == "limit":
            entry["maxFileSizeBytes"] = draw(st.integers(0, entry.get("maxFileSizeBytes", 20)))
        elif step == "approve":
            entry["requiresApproval"] = True
    return less


def _block(draw: st.DrawFn, entry: Shape, os: OsFamily) -> None:
    fields = {name: one for name, one in list_fields(os, entry["name"]).items() if name not in _NEVER_ADDED}
    for field in fields and [draw(st.sampled_from(sorted(fields)))]:
        entry[field] = [*entry.get(field, []), draw(fields[field])]


def _shrink(draw: st.DrawFn, entry: Shape) -> None:
    fields = sorted(field for field in _NEVER_ADDED if entry.get(field))
    if fields:
        field = draw(st.sampled_from(fields))
        gone = draw(st.integers(0, len(entry[field]) - 1))
        entry[field] = [*entry[field][:gone], *entry[field][gone + 1 :]]


# Other spellings of the same


@st.composite
def path_spellings(draw: st.DrawFn, path: str, os: OsFamily) -> str:
    """Another spelling of an absolute path in normal form, one that the system takes for the same by spelling alone."""
    home = HOMES[os]
    separator = SEPARATORS[os]
    root = ROOTS[os]
    if path.startswith(home + separator) and draw(st.booleans()):
        root, path = "~" + separator, path[len(home) + 1 :]
    else:
        path = path[len(root) :]
    spelled = root
    for part in path.split(separator) if path else []:
        detour = draw(st.sampled_from(["", ".", "x/..", "x/y/../..", "./.", "x/./.."])).replace("/", separator)
        spelled += (detour + separator if detour else "") + part + separator * draw(st.integers(1, 2))
    if not draw(st.booleans()) and len(spelled) > len(root):
        spelled = spelled.rstrip(separator)
    return _with_twins(draw, spelled, {"\\": "/"}) if os == "windows" else spelled


def _with_twins(draw: st.DrawFn, text: str, twins: dict[str, str]) -> str:
    """Some characters replaced by their twin; that of an ASCII letter is the letter in the other case."""
    chosen = draw(st.integers(0, 2 ** len(text) - 1))  # one draw for all: a draw for each character takes long
    return "".join(
        (twins.get(one) or (one.swapcase() if one.isascii() else one)) if chosen >> place & 1 else one
        for place, one in enumerate(text)
    )


@st.composite
def host_spellings(draw: st.DrawFn, host: str) -> str:
    """Another spelling of a canonical host, as it stands in a URL, with a default port or none."""
    if ":" in host:
        from ipaddress import IPv6Address

        text = draw(st.sampled_from([host, IPv6Address(host).exploded]))
        spelled = "[" + draw(st.sampled_from([text, text.upper()])) + "]"
    elif host.rpartition(".")[2].isdecimal():
        spelled = draw(_v4_spellings([int(part) for part in host.split(".")]))
    else:
        unicode = host.encode("ascii").decode("idna")
        spelled = _with_twins(draw, draw(st.sampled_from([host, unicode])), {".": "\u3002", "\u00fc": "\u00dc"})
    return spelled + draw(st.sampled_from(["", "."] if not spelled.endswith("]") else [""]))


@st.composite
def _v4_spellings(draw: st.DrawFn, parts: list[int]) -> str:
    notation = st.sampled_from(["{}", "0x{:x}", "0X{:X}", "0{:o}"])
    whole = draw(st.integers(1, 4))
    tail = int.from_bytes(bytes(parts[whole - 1 :]), "big")
    return ".".join(draw(notation).format(number) for number in [*parts[: whole - 1], tail])


@st.composite
def line_spellings(draw: st.DrawFn, commands: list[list[str]], operators: list[str]) -> str:
    """A line of plain words, with more blanks, quotes around words and folded line breaks, and an end that means
    nothing. Operators stand between the commands."""
    blank = st.sampled_from([" ", "  ", "\t", " \\\n", " \\\n  "])
    quoted = st.sampled_from(["{}", "'{}'", '"{}"'])
    line = draw(st.sampled_from(["", " "]))
    for place, command in enumerate(commands):
        line += draw(blank).join(draw(quoted).format(word) for word in command)
        if place < len(commands) - 1:
            line += draw(blank) + operators[place] + draw(blank)
    return line + draw(st.sampled_from(["", " ", ";", " ;", " # and no more", "\n"]))
