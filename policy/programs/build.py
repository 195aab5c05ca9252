"""Build tools, task runners, compilers, checkers and package managers, with what runs a program of a package."""

from __future__ import annotations

from policy.programs.row import Program, rows

_BUILD = "the commands of its build files"
_TASKS = "the commands of its task file"
_LISTED = "the commands that its configuration lists"
_LINES = "the command lines that it is given"
_OWN = "what its own language can start"
_SCRIPTS = "the scripts of packages"
_VERSION = "the version of a program that it chooses"
_QUIET = "-q,--quiet,--silent -v,--verbose -y,--yes --no --no-install --offline --frozen --locked --no-sync "
_UV = _QUIET + (
    "--with,-w= --with-editable= --with-requirements= --python,-p= --extra= --all-extras --no-extra= --no-dev "
    "--dev --only-dev "
    "--group= --no-group= --only-group= --all-groups --no-default-groups --no-editable --inexact --exact "
    "--isolated --active "
    "--no-project --no-config --refresh --reinstall --upgrade,-U --package= --all-packages --directory= "
    "--project= --from= "
    "--index= --default-index= --index-url,-i= --extra-index-url= --no-index --env-file= --no-env-file "
    "--module,-m:module "
    "--script,-s:module --no-cache,-n --cache-dir= --color= --no-progress --native-tls --managed-python "
    "--no-managed-python "
    "--no-python-downloads --prerelease= --resolution= --link-mode= --exclude-newer= --no-build --no-binary "
    "--compile-bytecode "
    "--show-resolution --python-platform= --torch-backend= --constraints,-c= --overrides= --upgrade-package= "
    "--refresh-package="
)
_NPX = _QUIET + "-p,--package= --prefer-offline --prefer-online --ignore-existing --workspace,-w= --workspaces --bun -b"
_PIPX = (
    _QUIET + "--spec= --python= --with= --pip-args= --index-url,-i= --no-cache --pypackages --backend= "
    "--system-site-packages --fetch-missing-python --editable,-e"
)
_HATCH = _QUIET + "-e,--env= -p,--project="
_CONDA = _QUIET + "-n,--name= -p,--prefix= --cwd= --no-capture-output --live-stream --dev"


def _runs(options: str) -> Program:
    """A program that starts the one after its options; an option that it does not know ends the reading."""
    return Program("behind", options=options, operands="package program", stops=True)


_GLOBAL_UV = (
    _QUIET + "--directory= --project= --no-cache,-n --color= --native-tls --no-config --no-progress "
    "--cache-dir= --python-preference="
)

ROWS = rows(
    {
        "make gmake bmake mingw32-make nmake ninja samu cmake ctest cpack meson scons waf bazel bazelisk buck "
        "pants gradle gradlew "
        "mvn mvnw mvnd ant sbt mill lein bloop stack cabal dune mix rebar3 zig swift msbuild xcodebuild configure "
        "latexmk "
        "autoconf autoreconf automake aclocal autom4te autoheader flutter dotnet": Program("files", _BUILD),
        "cargo": Program("files", _BUILD, risky=r"--config.*", online="install fetch update publish search"),
        "go": Program(
            "files",
            _BUILD,
            options="-o=write",
            risky=r"--?(?:toolexec|exec|vettool).*|--?w(?:=.*)?|.*-extld.*|--?gccgoflags.*",
            online="get install",
        ),
        "just task go-task rake thor invoke inv fab doit mage earthly act snakemake nx turbo lerna gulp grunt "
        "npm-run-all run-s "
        "run-p foreman honcho overmind hivemind watchman guard bacon moon rails": Program("files", _TASKS),
        "tox nox pre-commit prek lefthook husky lint-staged": Program("files", _LISTED),
        "hyperfine concurrently nodemon pm2 watchexec cross-env cross-env-shell dotenvx": Program("files", _LINES),
        "prove": Program("files", "the tests that it is given", options="-e,--exec=! -P=! --source=!"),
        "strip": Program(options="-o=write", risky=r"--?plugin.*|@.*"),
        "objcopy": Program(
            options="-O= -I= -B= -F= -j= -R= -K= -N= -G= -W= -L=", risky=r"--?plugin.*|@.*", operands="write write"
        ),
        "sqlite psql mysql mariadb dc gnuplot octave r maxima gp duckdb mongo mongosh guile ghci runghc "
        "runhaskell erl racket "
        "sbcl clisp clojure clj bb kotlin jshell swipl ocaml iex csi gsi gforth raku nim crystal": Program(
            "files", _OWN
        ),
        "gcc cc c++ g++ clang clang++ cpp gfortran gdc gccgo": Program(
            options="-o=write -MF=write",
            risky=r"-wrapper|--?f?(?:pass-)?plugin.*|-iplugindir.*|-W[alp],.*(?:@|plugin|specs).*|-B.*|--prefix.*|-?-specs.*|@.*"
            r"|-fuse-ld=.*/.*|--ld-path.*|-load|--config.*|--gcc-(?:toolchain|install-dir).*|-ccc-.*",
        ),
        "ld ld.gold ld.bfd ld.lld lld": Program(options="-o=write -Map=write", risky=r"--?plugin.*|@.*"),
        "ar": Program(options="--output=into", risky=r"--?plugin.*|@.*", operands="ar"),
        "nm objdump ranlib size readelf": Program(risky=r"--?plugin.*|@.*"),
        "rustc": Program(options="-o=write", risky=r"(?:-[A-Za-z0-9]*C ?|--codegen=)?link(?:er|[-_]arg).*|-Z.*|@.*"),
        "rustdoc": Program(risky=r"--te.*|--runtool.*|(?:-[A-Za-z0-9]*C ?|--codegen=)?link(?:er|[-_]arg).*|-Z.*|@.*"),
        "java": Program("code", risky=r"-XX:On.*|-XX:Flags.*|-XX:VMOptionsFile.*|-agent.*|-javaagent.*|@.*"),
        "javac": Program(options="-d=into", risky=r"-J.*|-?-processor.*|-Xplugin.*|@.*"),
        "ghc": Program(options="-o=write", risky=r"-e.*|--interactive|-pgm.*|-F"),
        "bison": Program(options="-o,--output=write --skeleton=! -S=!"),
        "protoc": Program(
            risky=r"--plugin.*|@.*|--(?!(?:cpp|csharp|java|kotlin|objc|php|pyi|python|ruby|rust|descriptor_set)_out)\w+_out.*"
        ),
        "cppcheck": Program(risky=r"--addon.*|--clang.*"),
        "clang-tidy clang-query": Program(risky=r"--?load.*"),
        "pylint": Program("files", "code that its configuration names", options="--init-hook=!"),
        "mypy": Program(
            "files", "code that its configuration names", options="--python-executable=! --install-types:!"
        ),
        "virtualenv": Program(options="-p,--python=!", risky=r"-p.*"),
        "gofmt rustfmt clang-format shellcheck shfmt pkg-config cmp gcov lcov ctags": Program(),
        "uv": Program(
            "files",
            _SCRIPTS,
            options=_GLOBAL_UV,
            stops=True,
            online="pip add sync lock publish tool",
            subcommands=(
                ("run", _runs(_UV)),
                ("tool", Program("files", _SCRIPTS, stops=True, subcommands=(("run", _runs(_UV)),))),
            ),
        ),
        "uvx": _runs(_UV),
        "npx bunx": _runs(_NPX),
        "poetry": Program(
            "files",
            _SCRIPTS,
            options=_QUIET + "-n,--no-interaction -C,--directory= -P,--project= --no-ansi --no-plugins --no-cache",
            stops=True,
            online="add install update publish lock",
            subcommands=(("run", _runs(_QUIET)),),
        ),
        "pipenv": Program(
            "files", _SCRIPTS, options=_QUIET, stops=True, subcommands=(("run", _runs(_QUIET + "--system")),)
        ),
        "pdm": Program(
            "files",
            _SCRIPTS,
            options=_QUIET + "-p,--project=",
            stops=True,
            subcommands=(("run", _runs(_QUIET + "-p,--project= -s,--site-packages -g,--global --venv= --env-file=")),),
        ),
        "hatch": Program("files", _SCRIPTS, options=_HATCH, stops=True, subcommands=(("run", _runs(_QUIET)),)),
        "rye": Program(
            "files", _SCRIPTS, options=_QUIET, stops=True, subcommands=(("run", _runs(_QUIET + "--pyproject=")),)
        ),
        "bundle": Program(
            "files",
            _SCRIPTS,
            options=_QUIET,
            stops=True,
            subcommands=(("exec", _runs(_QUIET + "--keep-file-descriptors --gemfile=")),),
        ),
        "npm": Program(
            "files",
            _SCRIPTS,
            options=_QUIET + "--script-shell=! --node-options=! --git=! --browser=! --viewer=! "
            "--editor=! --shell=! "
            "--userconfig=! --globalconfig=! --git-tag-version --no-git-tag-version --global -g --prefix=into -C=into",
            stops=True,
            online="install i ci add update publish view search audit",
            subcommands=(("exec", _runs(_NPX)),),
        ),
        "pnpm": Program(
            "files",
            _SCRIPTS,
            options=_QUIET + "-C,--dir= -r,--recursive --filter,-F=",
            stops=True,
            online="install i add update publish dlx",
            subcommands=(("exec", _runs(_QUIET)), ("dlx", _runs(_NPX))),
        ),
        "yarn": Program(
            "files",
            _SCRIPTS,
            options=_QUIET + "--cwd=",
            stops=True,
            online="install add upgrade publish dlx",
            subcommands=(("exec", _runs(_QUIET)), ("dlx", _runs(_NPX))),
        ),
        "pipx": Program("files", _SCRIPTS, options=_QUIET, stops=True, subcommands=(("run", _runs(_PIPX)),)),
        "conda mamba micromamba": Program(
            "files", _SCRIPTS, options=_QUIET, stops=True, subcommands=(("run", _runs(_CONDA)),)
        ),
        "pip": Program("files", _SCRIPTS, online="install download index search"),
        "gem": Program("files", _SCRIPTS, online="install update push fetch"),
        "apt": Program("files", _SCRIPTS, online="install update upgrade"),
        "apt-get": Program("files", _SCRIPTS, online="install update upgrade download"),
        "brew": Program("files", _SCRIPTS, online="install update upgrade fetch"),
        "gh": Program("files", _SCRIPTS, network=True),
        "dnf yum apk pacman zypper snap flatpak dpkg rpm bun deno composer nix nix-shell nix-build "
        "nix-env devenv": Program("files", _SCRIPTS),
        "mise": Program("files", _VERSION, options=_QUIET, stops=True, subcommands=(("exec", _runs(_QUIET)),)),
        "direnv": Program(
            "files",
            _VERSION,
            stops=True,
            subcommands=(("exec", Program("behind", operands="skip program", stops=True)),),
        ),
        "dotenv": Program(
            "files",
            _VERSION,
            options=_QUIET + "-f,--file= -e,--export -q,--quote= -i,--interpolate",
            stops=True,
            subcommands=(("run", _runs(_QUIET + "--override --no-override")),),
        ),
        "asdf rbenv pyenv nodenv volta fnm nvm corepack rustup": Program("files", _VERSION),
    }
)
