"""Programs that run code: shells, interpreters, programs with a language of their own, those that start the program
behind them, build tools, task runners, compilers, checkers and package managers, with what runs a program of a
package."""

from __future__ import annotations

from policy.programs.row import Program, rows

_ENV = "-u,--unset=unset -0,--null"
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
        "time": Program("behind", options="-p", operands="program", stops=True, one_option=True),
        # Not `-i`: without PATH a shell looks where it was built to, which may be the working directory.
        "env": Program("behind", options=_ENV, operands="set program", stops=True),
        "nice": Program("behind", options="-n,--adjustment= -#", operands="program", stops=True),
        "setsid": Program("behind", options="-f,--fork -w,--wait -c,--ctty", operands="program", stops=True),
        "stdbuf": Program("behind", options="-i,--input= -o,--output= -e,--error=", operands="program", stops=True),
        "timeout": Program(
            "behind",
            options="--foreground --preserve-status -v,--verbose -k,--kill-after= -s,--signal=",
            operands="skip program",
            stops=True,
        ),
        "sudo": Program(
            "behind",
            options="-n,--non-interactive -S,--stdin -H -b -u,--user= -g,--group= -p,--prompt=",
            operands="set program",
            stops=True,
        ),
        "doas": Program("behind", options="-n -u=", operands="program", stops=True),
        "command": Program("behind", options="-p -v,-V:asks", operands="program", stops=True),
        "ionice": Program("behind", options="-t,--ignore -c,--class= -n,--classdata=", operands="program", stops=True),
        "exec": Program("behind", operands="program", stops=True, one_option=True),
        "nohup builtin noglob nocorrect": Program("behind", operands="program", stops=True),
        "ccache sccache distcc icecc": Program("behind", options="-s,--show-stats", operands="program", stops=True),
        "valgrind": Program(
            "behind",
            options="-q,--quiet -v,--verbose --tool= --leak-check= --track-origins= --error-exitcode= "
            "--num-callers= "
            "--show-leak-kinds= --show-reachable= --suppressions= --gen-suppressions= --trace-children= "
            "--errors-for-leak-kinds= "
            "--undef-value-errors= --vgdb= --read-var-info= --xml= --child-silent-after-fork= --max-stackframe= "
            "--keep-stacktraces= "
            "--log-file=write --xml-file=write --callgrind-out-file=write --massif-out-file=write "
            "--cachegrind-out-file=write "
            "--dump-instr= --collect-jumps= --instr-atstart= --cache-sim= --branch-sim= --time-unit= --fair-sched=",
            operands="program",
            stops=True,
        ),
        "xvfb-run": Program(
            "behind",
            options="-a,--auto-servernum -l,--listen-tcp -e,--error-file= -f,--auth-file= "
            "-n,--server-num= -p,--xauth-protocol= "
            "-s,--server-args= -w,--wait=",
            operands="program",
            stops=True,
        ),
        "taskset": Program("behind", options="-c,--cpu-list", operands="skip program", stops=True),
        "xargs": Program(
            "behind",
            options="-0,--null -r,--no-run-if-empty -t,--verbose -x,--exit -o -n,--max-args= -P,--max-procs= -L= "
            "-d,--delimiter= "
            "-s,--max-chars= -E= -a,--arg-file= -I=marker --replace?marker --max-lines? --eof?",
            operands="program input",
            stops=True,
        ),
        "sh bash dash ash zsh ksh mksh rbash": Program("shell"),
        "fish csh tcsh nu elvish xonsh osh ysh yash": Program("unread shell"),
        "python pythonw pypy py micropython jython graalpy bpython ptpython": Program(
            "code",
            options="-c=code -m=module -W= -X= --check-hash-based-pycs= -b -B -d -E -h -i -I -O -P -q -R "
            "-s -S -u -v -V -x",
            stops=True,
        ),
        "ipython perl ruby node nodejs tsx ts-node php lua luajit rscript julia elixir groovy scala": Program("code"),
        "ssh scp sftp": Program(
            "language",
            risky=r"(?i)(?:-[a-z0-9]*o)?\s*(?:(?:proxy|local|knownhosts)command|(?:pkcs11|securitykey)provider)[\s=].*",
            network=True,
        ),
        "vi vim nvim view ex ed emacs nano pico less more most irb wish tclsh osascript open xdg-open vim.tiny "
        "vim.basic vim.nox "
        "vim.gtk vim.athena vimdiff rvim rview gvim joe jed micro zless zmore bzless bzmore xzless xzmore lzless "
        "lzmore pg tig "
        "lazygit gitui gitk crictl ctr buildah jrunscript cpan expect": Program("language"),
        "telnet ftp lftp ncftp mail mailx mutt ssh-copy-id": Program("language", network=True),
        "smbclient": Program("language"),
        # A session of its own, with a policy of its own, and answers to open questions.
        "agent-host": Program("language"),
        # What stands somewhere in their arguments is started; it is not looked for.
        "rename prename file-rename perl-rename mlr erb escript sage watch parallel flock script su runuser "
        "pkexec chroot "
        "unshare nsenter strace ltrace busybox toybox start-stop-daemon systemd-run screen tmux at batch crontab "
        "unbuffer entr "
        "fakeroot firejail bwrap run-parts proot setarch linux32 linux64 prlimit chrt numactl catchsegv "
        "dbus-run-session sg newgrp "
        "lesspipe rlwrap launchctl wsl cmd cmd.exe logsave sudoedit run-mailcap xdotool cpulimit ssh-agent "
        "sshpass chronic ifne pee "
        "mispipe zrun lckdo vipe vidir setpriv capsh choom uclampset coresched schedtool eatmydata faketime "
        "datefudge fakechroot "
        "cgexec trickle tsocks torsocks torify proxychains proxychains4 gpg-agent dbus-launch startx xinit xterm "
        "uxterm urxvt rxvt "
        "st gnome-terminal konsole alacritty kitty x-terminal-emulator dtach abduco zellij byobu lxc-attach runc "
        "crun flatpak-spawn "
        "toolbox distrobox distrobox-enter guix systemd-cat systemd-inhibit systemd-nspawn machinectl coredumpctl "
        "daemonize daemon "
        "run-one solo supervisord runsv chpst setuidgid envdir envuidgid softlimit setlock pgrphack fghack tini "
        "dumb-init su-exec "
        "gosu catatonit execlineb sudo-rs please run0 dzdo pfexec wine wine64 box64 mpirun mpiexec srun salloc "
        "bsub uftrace heaptrack "
        "rr nsys ncu nvprof bear scan-build intercept-build compiledb libtool aws-vault chamber op doppler "
        "infisical envconsul sops "
        "fzf sk i386 x86_64 uname26 runcon reflex modd air compiledaemon gow rtx hx unshar radare2 r2 rizin drgn "
        "bpftrace rmt "
        "powershell powershell.exe pwsh pwsh.exe lldb perf": Program("somewhere"),
        "gdb gdb-multiarch": Program(
            options="-batch,--batch -q,-quiet,--quiet -nx,--nx -nh,--nh -n -ex,--ex,-eval-command=command "
            "-iex=command -args,--args:args "
            "-return-child-result,--return-child-result",
            operands="gdb",
            stops=True,
        ),
        "sshfs socat nc ncat netcat rsh mosh autossh nc.openbsd nc.traditional": Program("somewhere", network=True),
        # Build tools and package managers.
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
