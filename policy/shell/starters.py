"""Programs that start what the line does not show: what a file of the workspace has them run, or a package brings.

Who lists one consents to that, unless an entry of commandPolicies says `startsPrograms: false`. Interpreters are in
`code`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from policy.names import words
from policy.shell.tables import RUNNERS

if TYPE_CHECKING:
    from policy.shell.findings import Findings
    from policy.shell.words import Word

_NAMES: dict[str, str] = {
    "the commands of its build files": (
        "make gmake bmake mingw32-make nmake ninja samu cmake ctest cpack meson scons waf bazel bazelisk buck pants "
        "gradle gradlew mvn mvnw mvnd ant sbt mill lein bloop stack cabal dune mix rebar3 zig swift msbuild xcodebuild "
        "configure latexmk autoconf autoreconf automake aclocal autom4te autoheader flutter dotnet cargo go"
    ),
    "the commands of its task file": (
        "just task go-task rake thor invoke inv fab doit mage earthly act snakemake nx turbo lerna gulp grunt "
        "npm-run-all run-s run-p foreman honcho overmind hivemind watchman guard bacon moon rails"
    ),
    "the commands that its configuration lists": "tox nox pre-commit prek lefthook husky lint-staged hg",
    "what its own language can start": (
        "sqlite psql mysql mariadb dc gnuplot octave r maxima gp duckdb mongo mongosh guile ghci runghc runhaskell erl "
        "racket sbcl clisp clojure clj bb kotlin jshell swipl ocaml iex csi gsi gforth raku nim crystal"
    ),
    "programs in a container or on another machine": (
        "docker podman nerdctl docker-compose podman-compose kubectl helm vagrant multipass lxc ansible "
        "ansible-playbook terraform tofu service systemctl"
    ),
    "the command lines that it is given": (
        "hyperfine concurrently nodemon pm2 watchexec cross-env cross-env-shell dotenvx"
    ),
    "the version of a program that it chooses": (
        "asdf rbenv pyenv nodenv volta fnm nvm corepack rustup mise direnv dotenv"
    ),
    "the scripts of packages": (
        "apt apt-get dnf yum apk pacman zypper brew snap flatpak dpkg rpm npm pnpm yarn bun deno composer pip uv "
        "poetry pdm pipenv pipx hatch rye conda mamba micromamba nix nix-shell nix-build nix-env devenv bundle gem gh"
    ),
}
STARTERS: dict[str, str] = {name: what for what, names in _NAMES.items() for name in sorted(words(names))}
"""What a program starts, by its base name in lower case, without a version number unless that is part of the name."""
_ASKS = words("--version --help -V -v version help")


def judge_starter(program: str, family: str, args: list[Word], found: Findings) -> None:
    """Notes what a program (`family` is its name in the table) starts by its own files or packages."""
    what = STARTERS.get(family)
    texts = [word.text for word in args]
    if what is None or (len(texts) == 1 and texts[0] in _ASKS):
        return
    if texts and (family, texts[0]) in RUNNERS:
        return  # the program stands behind it, and is judged itself
    found.mark_opaque(program, what)
