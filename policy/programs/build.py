"""Build tools, task runners, compilers and checkers."""

from __future__ import annotations

from policy.programs.row import Program, rows

_BUILD = "the commands of its build files"
_TASKS = "the commands of its task file"
_LISTED = "the commands that its configuration lists"
_LINES = "the command lines that it is given"
_OWN = "what its own language can start"

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
    }
)
