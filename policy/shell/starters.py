"""Programs that start what the line does not show: what a file of the workspace tells them, or a package brings.

Only what is listed as harmless is taken for it; a subcommand, an alias or a script of another name counts as started.
Interpreters are in `code`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from policy.names import words
from policy.shell.tables import RUNNERS

if TYPE_CHECKING:
    from policy.shell.findings import Findings
    from policy.shell.words import Word


class Starter(NamedTuple):
    """What a program starts, in words; the first arguments, or the first two, with which it starts nothing; a
    pattern of arguments with which it does all the same."""

    what: str
    harmless: frozenset[str] = frozenset()
    pairs: frozenset[str] = frozenset()
    unless: str = ""


_BUILD = Starter("the commands of its build files")
_TASKS = Starter("the commands of its task file")
_TESTS = Starter("the commands that its configuration lists")
_STATEMENTS = Starter("what its own language can start")
_ELSEWHERE = Starter("programs in a container or on another machine")
_GIVEN = Starter("the command lines that it is given")
_VERSIONS = Starter("the version of a program that it chooses")
_SYSTEM = Starter("the scripts of packages", words("list search show info"))

STARTERS: dict[str, Starter] = {
    **dict.fromkeys(
        words(
            "make gmake bmake mingw32-make nmake ninja samu cmake ctest cpack meson scons waf bazel bazelisk buck "
            "pants gradle gradlew mvn mvnw mvnd ant sbt mill lein bloop stack cabal dune mix rebar3 zig swift "
            "msbuild xcodebuild configure latexmk autoconf autoreconf automake aclocal autom4te autoheader flutter"
        ),
        _BUILD,
    ),
    **dict.fromkeys(
        words(
            "just task go-task rake thor invoke inv fab doit mage earthly act snakemake nx turbo lerna gulp grunt "
            "npm-run-all run-s run-p foreman honcho overmind hivemind watchman guard bacon moon rails"
        ),
        _TASKS,
    ),
    **dict.fromkeys(words("tox nox pre-commit prek lefthook husky lint-staged"), _TESTS),
    **dict.fromkeys(
        words(
            "sqlite psql mysql mariadb dc gnuplot octave r maxima gp duckdb mongo mongosh guile ghci runghc runhaskell "
            "erl racket sbcl clisp clojure clj bb kotlin jshell swipl ocaml iex csi gsi gforth raku nim crystal"
        ),
        _STATEMENTS,
    ),
    **dict.fromkeys(
        words(
            "docker-compose podman-compose kubectl helm vagrant multipass lxc ansible ansible-playbook terraform tofu "
            "service"
        ),
        _ELSEWHERE,
    ),
    **dict.fromkeys(
        words("docker podman nerdctl"),
        Starter(_ELSEWHERE.what, words("ps images version info logs inspect top stats diff port history search -v")),
    ),
    "systemctl": Starter(_ELSEWHERE.what, words("status show is-active is-enabled list-units list-timers cat")),
    **dict.fromkeys(words("hyperfine concurrently nodemon pm2 watchexec cross-env cross-env-shell dotenvx"), _GIVEN),
    **dict.fromkeys(words("asdf rbenv pyenv nodenv volta fnm nvm corepack rustup mise direnv dotenv"), _VERSIONS),
    **dict.fromkeys(words("apt apt-get dnf yum apk pacman zypper brew snap flatpak dpkg rpm"), _SYSTEM),
    "npm": Starter(
        "scripts of package.json and of packages",
        words("ls list ll la view info show outdated audit query search find help ping whoami prefix root -v"),
        frozenset({"config get", "config ls", "config list", "cache ls", "pkg get"}),
        "fix",
    ),
    "pnpm": Starter(
        "scripts of package.json and of packages",
        words("ls list ll la why outdated audit licenses root bin help -v"),
        frozenset({"config get", "config list", "store path", "store status"}),
    ),
    "yarn": Starter("scripts of package.json and of packages, and the yarn that the workspace names"),
    "bun": Starter("scripts of package.json and of packages", words("-v"), frozenset({"pm ls", "pm bin"})),
    "deno": Starter("scripts, and what an address serves", words("fmt lint info doc types check help -V")),
    "composer": Starter("scripts of packages", words("show why why-not licenses validate outdated search help -V")),
    "pip": Starter(
        "the build scripts of packages",
        words("list show freeze check help debug inspect hash index -V"),
        frozenset({"config list", "config get", "cache list", "cache info", "cache dir"}),
    ),
    "uv": Starter(
        "the build scripts of packages",
        words("version help -V"),
        frozenset({
            "pip list", "pip show", "pip freeze", "pip check", "pip tree", "python list", "python find", "python dir",
            "cache dir", "tool list", "tool dir",
        }),
        r"-p.*|--python.*",
    ),
    "poetry": Starter(
        "the build scripts of packages",
        words("show check version about list -V"),
        frozenset({"env info", "env list"}),
    ),
    "pdm": Starter("the build scripts of packages", words("list show info -V")),
    "pipenv": Starter("the build scripts of packages", words("graph verify")),
    "pipx": Starter("the build scripts of packages", words("list environment")),
    "hatch": Starter("the scripts of its environments", words("version status")),
    "rye": Starter("the build scripts of packages", words("list show version")),
    **dict.fromkeys(
        words("conda mamba micromamba"),
        Starter("the scripts of packages", words("list info search"), frozenset({"env list"})),
    ),
    **dict.fromkeys(words("nix nix-shell nix-build nix-env devenv"), Starter("what its files and packages bring")),
    "hg": Starter("what the configuration of the repository names"),
    "bundle": Starter("the build scripts of packages", words("list show info outdated check")),
    "gem": Starter("the build scripts of packages", words("list info search environment which contents help")),
    "cargo": Starter(
        "build scripts, tests and the compiler that the workspace names",
        words("version help new init add remove rm search locate-project -V"),
    ),
    "go": Starter(
        "what it builds, and the tools that the workspace names",
        words("build install get list mod work env fmt vet doc clean version help"),
        unless=r"--?w(?:=.*)?",
    ),
    "gh": Starter(
        "extensions, aliases and git",
        words("api search status"),
        frozenset(
            f"{kind} {action}"
            for kind, actions in (
                ("pr", "list view status diff checks create comment edit close reopen ready review merge"),
                ("issue", "list view status create comment edit close reopen"),
                ("repo", "list view"), ("run", "list view watch rerun cancel"), ("workflow", "list view"),
                ("release", "list view"), ("gist", "list view"), ("auth", "status"), ("label", "list"),
            )
            for action in actions.split()
        ),
    ),
    "dotnet": Starter("what it builds", words("--list-sdks --list-runtimes --info help")),
}  # fmt: skip
"""By base name in lower case, without a version number unless that is part of the name."""

_ASKS = frozenset({"--version", "--help"})


def judge_starter(program: str, family: str, args: list[Word], found: Findings) -> None:
    """Notes what a program (`family` is its name in the table) starts by its own files or packages."""
    starter = STARTERS.get(family)
    if starter is None:
        return
    texts = [word.text for word in args]
    if len(texts) == 1 and texts[0] in _ASKS:
        return
    if texts and (family, texts[0]) in RUNNERS:
        return  # the program stands behind it, and is judged itself
    if not _is_harmless(starter, texts):
        found.hide(program, starter.what)


def _is_harmless(starter: Starter, texts: list[str | None]) -> bool:
    if not texts or texts[0] is None:
        return False
    if starter.unless and any(text is None or re.fullmatch(starter.unless, text, re.DOTALL) for text in texts):
        return False
    return texts[0] in starter.harmless or (len(texts) > 1 and f"{texts[0]} {texts[1]}" in starter.pairs)
