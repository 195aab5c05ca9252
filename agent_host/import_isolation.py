"""Keep the workspace off `sys.path`, so that a model cannot shadow our packages.

`config`, `policy`, `state` and `tool_runtime` are top-level packages, and a model may write a `config.py`, or a
`json.py`, into the workspace. So the program removes the workspace from `sys.path` before it imports anything else, and
finds these four packages next to itself. In an embedding program nothing is changed; if that program has another
`config`, the import fails with a message.

This module is imported before all others and imports only modules that the interpreter has already loaded, so not even
`__future__`. Imports of the interpreter itself (for `-m`, and for a `sitecustomize`) are protected from PYTHONPATH only
by its options `-P` and `-I`.
"""

import os
import sys

TYPE_CHECKING = False  # importing it from typing would be the first import from a path that is not looked at yet
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from importlib.machinery import ModuleSpec

PACKAGES = ("config", "policy", "state", "tool_runtime")
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The directory of this distribution."""
_OF_ENVIRONMENTS = ("bin", "lib", "lib64", "Lib", "Scripts", "pyvenv.cfg")
"""Entries of a virtual environment that was made in the project's directory itself."""
_inside: "dict[str, tuple[str, ...]]" = {}
"""Results of `places_in`, by workspace."""
_COMMAND = "agent-host"
_WORKSPACE_OPTION = "--workspace"
_FIRST = None if sys.flags.safe_path or not sys.path else sys.path[0]
"""The entry that Python put on the path at the start: the working directory, or that of the script."""


def settle() -> None:
    """On the first import of `agent_host`: in our own program, exclude the workspace; in another one, change nothing.
    Raises ImportError if packages of the other program have our names."""
    if is_program():
        keep_out(*_workspaces_in(sys.argv))
        sys.meta_path.insert(0, _OwnPackages)
    else:
        refuse_others()


def is_program() -> bool:
    """True if this process is `agent-host`, or a module of it run with `-m`, and no program that embeds it."""
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    if name.removesuffix(".exe").removesuffix("-script.py") == _COMMAND:
        return True
    module = _module_run(sys.orig_argv[1:])
    return module is not None and module.partition(".")[0] == "agent_host"


def _module_run(options: "Sequence[str]") -> "str | None":
    """The module after the interpreter's option `-m`, joined or not; None if it runs something else."""
    words = iter(options)
    for word in words:
        if word.startswith("--"):
            next(words, None)  # the only long option, --check-hash-based-pycs, has a value
            continue
        if not word.startswith("-"):
            return None
        for place, letter in enumerate(word[1:], 2):
            if letter == "c":
                return None
            if letter in "mWX":
                value = word[place:] or next(words, None)
                if letter == "m":
                    return value
                break
    return None


def keep_out(*workspaces: str) -> None:
    """Remove entries in one of `workspaces`, or in the working directory, from `sys.path`: entries of PYTHONPATH, the
    working directory itself, the directory of the script. If this distribution is there, its entry is moved to the end.

    Does nothing in an embedding program.
    """
    if not is_program():
        return
    roots = {_real(one) for one in (*workspaces, *_working_directory())}
    kept, last = [], []
    for entry in sys.path:
        real = _real(entry)
        if not (_is_given(entry) and any(_is_in(real, root) for root in roots)):
            kept.append(entry)
        elif real == os.path.realpath(ROOT):
            last.append(entry)
    sys.path[:] = [*kept, *last]


def refuse_others() -> None:
    """Raise ImportError if one of our packages has the name of another module of the program."""
    for name in PACKAGES:
        found = _place_of(name)
        expected = os.path.join(ROOT, name)
        if found is not None and os.path.realpath(found) != os.path.realpath(expected):
            sys.modules.pop(__name__, None)
            raise ImportError(
                f"agent_host has a package {name!r} at {expected}, and this program has another one at {found}: they "
                "cannot be imported together. Start `agent-host serve` as a process of its own and talk JSON-RPC to "
                "it, or give yours another name",
                name=name,
                path=found,
            )


def places_in(workspace: str) -> "tuple[str, ...]":
    """Return the parts of this program in `workspace`, a real path: its interpreter with installed packages, and our
    packages. Writing there changes this program."""
    if workspace in _inside:
        return _inside[workspace]
    found = []
    for prefix in map(_real, dict.fromkeys((sys.prefix, sys.base_prefix))):
        if prefix == workspace:
            found += [os.path.join(prefix, one) for one in _OF_ENVIRONMENTS]
        elif _is_in(prefix, workspace):
            found.append(prefix)
    found += [os.path.abspath(sys.executable), _real(sys.executable)]
    found += [os.path.join(_real(ROOT), one) for one in ("agent_host", *PACKAGES)]
    inside = [one for one in dict.fromkeys(found) if _is_in(_real(os.path.dirname(one)), workspace)]
    _inside[workspace] = tuple(one for one in inside if os.path.lexists(one))
    return _inside[workspace]


def _working_directory() -> list[str]:
    try:
        return [os.getcwd()]
    except OSError:  # it was removed
        return []


def _real(path: str) -> str:
    try:
        return os.path.realpath(path)
    except OSError:  # a relative one, and the working directory was removed
        return path


def _workspaces_in(arguments: "Sequence[str]") -> "Iterator[str]":
    for place, word in enumerate(arguments):
        if word == _WORKSPACE_OPTION and place + 1 < len(arguments):
            yield arguments[place + 1]
        elif word.startswith(_WORKSPACE_OPTION + "="):
            yield word.partition("=")[2]


def _is_given(entry: str) -> bool:
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return not entry or entry == _FIRST or _real(entry) in map(_real, filter(None, given))


def _is_in(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)


def _place_of(name: str) -> str | None:
    """The place of the module `name`, found or to be found: a package's directory, or a file."""
    module = sys.modules.get(name)
    if module is None:
        found = (finder.find_spec(name, None) for finder in sys.meta_path)
        spec = next((one for one in found if one is not None), None)
    else:
        spec = getattr(module, "__spec__", None)
    if spec is not None and spec.submodule_search_locations:
        return next(iter(spec.submodule_search_locations))
    return getattr(module, "__file__", None) if spec is None else spec.origin


class _OwnPackages:
    """Finds our top-level packages in this distribution, whatever `sys.path` has of the same names."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> "ModuleSpec | None":
        if name not in PACKAGES:
            return None
        by_path = next(one for one in sys.meta_path if getattr(one, "__name__", "") == "PathFinder")
        return by_path.find_spec(name, [ROOT])
