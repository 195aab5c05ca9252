"""What is known about programs, builtins and variables of a shell line. Data only.

`WRAPPERS` start another program that stands plainly in their arguments; `OPAQUE_STARTERS` start one in a way that is
not unravelled here; `RISKY_OPTIONS` turn a harmless program into one that runs or writes something else.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from policy.names import words

Grammar = Literal["bash", "posix", "zsh"]

STEERING_VARIABLE = re.compile(
    r"PATH|IFS|ENV|BASH_.*|BASHOPTS|SHELLOPTS|PS[0-4]|PROMPT_COMMAND|CDPATH|FPATH|ZDOTDIR|HOME|SHELL|TMOUT|HISTFILE|INPUTRC"
    r"|GLOBIGNORE|EXECIGNORE|OPTIND|POSIXLY_CORRECT|LD_.*|DYLD_.*|GCONV_PATH|LOCPATH|NLSPATH|HOSTALIASES|RES_OPTIONS"
    r"|LOCALDOMAIN|MALLOC_.*|GIT_.*|.*PAGER|.*EDITOR|VISUAL|BROWSER|.*ASKPASS|PYTHON(?!UNBUFFERED$|DONTWRITEBYTECODE$"
    r"|HASHSEED$|IOENCODING$|UTF8$).*|PYTEST_.*|NODE_(?!ENV$).*|PERL.*|RUBY.*|GEM_.*|BUNDLE_.*|LUA_.*|PHP.*|.*JAVA_.*"
    r"|CLASSPATH|JDK_.*|MAVEN_.*|GRADLE_.*|LESS.*|MAN.*|TERMINFO.*|TERMCAP|RSYNC_.*|CVS_.*|SSH_.*|SUDO_.*|GREP_.*"
    r"|MAKE.*|GNUMAKEFLAGS|CC|CXX|CPP|LD|AR|AS|.*FLAGS|CARGO_.*|RUST.*|GO[A-Z]*|PIP_.*|UV_.*|NPM_.*|YARN_.*|POETRY_.*"
    r"|VIRTUAL_ENV|CONDA_.*|DOCKER_.*|KUBECONFIG|AWS_.*|GOOGLE_.*|AZURE_.*|.*_PROXY|SSL_.*|CURL_.*|WGETRC|REQUESTS_.*"
    r"|UNZIP|ZIPOPT|GZIP|XZ_OPT|GCC_.*|COMPILER_PATH|CMAKE_.*|AWK.*|XDG_.*|EXINIT|VIMINIT|VIMRUNTIME|OPENSSL_.*"
    # bash and zsh read these as numbers, and evaluate what they are given
    r"|S?RANDOM|SECONDS|HISTCMD|LINENO|HISTSIZE|SAVEHIST|HISTFILESIZE|E?[UG]ID|BASHPID|EPOCH.*|TRY_BLOCK_.*|MAILCHECK"
    r"|.*OPTS|.*_OPTIONS|.*_CONFIG_PATH|.*_PLUGIN_PATH|.*_MODULE.*|.*_PRELOAD|.*_LIBRARY_PATH|.*RC",
    re.IGNORECASE,
)
"""Variables that decide which program, library, configuration, pager or editor is used, or whose value is evaluated."""

RESERVED_WORDS = words(
    "if then elif else fi do done case esac while until for in { } ! function select coproc repeat foreach - always"
)

POISONING_BUILTINS = words(
    "eval source . trap alias unalias enable hash bind complete compgen compopt fc history shopt coproc let set "
    "disown suspend disable integer float unhash unfunction zstyle autoload "
    "zmodload emulate setopt unsetopt functions zle sched"
)
"""Builtins that change what later words mean, or run text."""
SAFE_SET = re.compile(r"[-+][efux]+|[-+][efux]*o|pipefail|errexit|nounset|noglob|xtrace")
NAMING_BUILTINS = words(
    "read mapfile readarray printf getopts export declare typeset readonly local unset test [ wait vared"
)
"""Builtins that take names of variables: a name may carry a subscript, and a subscript is evaluated."""
DIRECTORY_BUILTINS = frozenset({"cd", "pushd", "popd", "chdir"})
SHELLS = words("sh bash dash ash zsh ksh mksh fish rbash")
GRAMMAR_OF: dict[str, Grammar] = {"bash": "bash", "rbash": "bash", "zsh": "zsh"}
"""Which grammar a shell's text is read by; the others know POSIX's for certain."""


class Wrapper(NamedTuple):
    """How a wrapper's own arguments end: options without and with a value, words of its own before the program."""

    flags: str = ""
    valued: str = ""
    own_words: int = 0
    assigns: bool = False
    appends: bool = False


def _wrapper(flags: str = "", valued: str = "", **rest: int) -> Wrapper:
    return Wrapper(flags, valued, rest.get("own_words", 0), bool(rest.get("assigns")), bool(rest.get("appends")))


WRAPPERS: dict[str, Wrapper] = {
    "time": _wrapper("-p"),
    # Not `-i`: without PATH a shell looks where it was built to, which may be the working directory.
    "env": _wrapper("-0 --null", "-u --unset", assigns=1),
    "nice": _wrapper("", "-n --adjustment"),
    "nohup": _wrapper(),
    "setsid": _wrapper("-f -w -c --fork --wait --ctty"),
    "stdbuf": _wrapper("", "-i -o -e --input --output --error"),
    "timeout": _wrapper("--foreground --preserve-status -v --verbose", "-k --kill-after -s --signal", own_words=1),
    "sudo": _wrapper("-n -S -H -b --non-interactive --stdin", "-u -g -p --user --group --prompt", assigns=1),
    "doas": _wrapper("-n", "-u"),
    "command": _wrapper("-p"),
    "builtin": _wrapper(),
    "exec": _wrapper(),
    "noglob": _wrapper(),
    "nocorrect": _wrapper(),
    "ionice": _wrapper("-t --ignore", "-c -n --class --classdata"),
    **dict.fromkeys(("ccache", "sccache", "distcc", "icecc"), _wrapper("-s --show-stats")),
    "taskset": _wrapper("-c --cpu-list", "", own_words=1),
    "xargs": _wrapper(
        "-0 -r -t -x -o --null --no-run-if-empty --verbose --exit",
        "-n -P -L -I -d -s -E -a --max-args --max-procs --max-lines --replace --delimiter --max-chars --arg-file",
        appends=1,
    ),
}

ONE_OPTION = frozenset({"time", "exec"})
"""`-p` may be the first word behind `time`; any other word with a dash names the program, in one shell or another."""

RUNNERS: frozenset[tuple[str, str]] = frozenset(
    {
        ("uv", "run"), ("poetry", "run"), ("pipenv", "run"), ("pdm", "run"), ("hatch", "run"), ("rye", "run"),
        ("bundle", "exec"), ("npm", "exec"), ("pnpm", "exec"), ("pnpm", "dlx"), ("yarn", "exec"), ("yarn", "dlx"),
        ("pipx", "run"), ("conda", "run"), ("mise", "exec"), ("direnv", "exec"), ("dotenv", "run"),
    }
)  # fmt: skip
"""Package managers whose subcommand starts the program that follows."""
SINGLE_RUNNERS = words("npx uvx bunx")
RUNNER_FLAGS = words("-y --yes --no --no-install -q --quiet --silent --offline --frozen --locked --no-sync --")
"""Options in front of the program that take no value in any of them."""

OPAQUE_STARTERS = words(
    "watch parallel ssh flock script su runuser pkexec chroot unshare nsenter strace ltrace gdb lldb valgrind "
    "busybox toybox start-stop-daemon systemd-run screen tmux at batch crontab expect unbuffer entr xvfb-run "
    "fakeroot firejail bwrap run-parts proot setarch linux32 linux64 prlimit chrt numactl catchsegv "
    "dbus-run-session sg newgrp perf vi vim nvim view ex ed emacs nano pico less more most lesspipe m4 rlwrap socat nc "
    "ncat netcat scp sftp rsh osascript open xdg-open launchctl wsl cmd cmd.exe powershell powershell.exe pwsh "
    "pwsh.exe logsave sudoedit ftp telnet mail mailx mutt run-mailcap xdotool smbclient cpulimit wish tclsh irb "
    "jrunscript cpan "
    "ssh-agent ssh-copy-id sshpass sshfs mosh autossh lftp ncftp chronic ifne pee mispipe zrun lckdo vipe vidir "
    "setpriv capsh choom uclampset coresched schedtool eatmydata faketime datefudge fakechroot cgexec trickle tsocks "
    "torsocks torify proxychains proxychains4 gpg-agent dbus-launch startx xinit xterm uxterm urxvt rxvt st gnome- "
    "terminal konsole alacritty kitty x-terminal-emulator dtach abduco zellij byobu lxc-attach runc crun buildah ctr "
    "crictl flatpak-spawn toolbox distrobox distrobox-enter nix nix-shell nix-build nix-env guix systemd-cat systemd- "
    "inhibit systemd-nspawn machinectl coredumpctl daemonize daemon run-one solo supervisord runsv chpst setuidgid "
    "envdir envuidgid softlimit setlock pgrphack fghack tini dumb-init su-exec gosu catatonit execlineb sudo-rs "
    "please run0 dzdo pfexec wine wine64 box64 mpirun mpiexec srun salloc bsub uftrace heaptrack rr nsys ncu nvprof "
    "bear scan-build intercept-build compiledb libtool aws-vault chamber op doppler infisical envconsul sops fzf sk "
    "i386 x86_64 uname26 runcon reflex modd air compiledaemon gow rtx zless zmore bzless bzmore xzless xzmore lzless "
    "lzmore pg tig lazygit gitui gitk vimdiff rvim rview gvim joe jed micro hx unshar radare2 r2 rizin drgn bpftrace "
    "rmt"
)

SAME_PROGRAM: dict[str, str] = {
    "fdfind": "fd", "gsort": "sort", "batcat": "bat", "gtar": "tar", "bsdtar": "tar", "gfind": "find", "gsed": "sed",
    **dict.fromkeys(("cc", "c++", "g++", "clang", "clang++", "cpp", "gfortran", "gdc", "gccgo"), "gcc"),
    "ld.gold": "ld", "ld.bfd": "ld", "ld.lld": "ld", "lld": "ld", "php-cgi": "php", "phpdbg": "php", "texlua": "lua",
    **dict.fromkeys(("pdflatex", "xelatex", "lualatex", "tex", "pdftex", "xetex", "luatex"), "latex"),
}  # fmt: skip
"""Other names of programs, by base name."""
CROSS_TOOL = re.compile(
    r"^[a-z0-9_]+(?:-[a-z0-9_]+){1,3}-(?=(?:gcc|g\+\+|cc|c\+\+|clang|clang\+\+|cpp|gfortran|ld|ar|nm|strip)$)"
)
"""What stands in front of the name of a compiler for another machine."""


def _shortened(name: str, least: int) -> str:
    """A pattern for a long option in every spelling that git and GNU programs take for it, and its value."""
    return (
        f"--{name[:least]}"
        + "".join(f"(?:{letter}" for letter in name[least:])
        + ")?" * (len(name) - least)
        + "(?:=.*)?"
    )


RISKY_OPTIONS: dict[str, re.Pattern[str]] = {
    "jobs": re.compile(r"-[a-z]*x.*"),
    "sort": re.compile(r"-[A-Za-z]*o.*|--o.*|--co.*|-T.*"),
    "rg": re.compile(r"--pre(=.*)?|--hostname-bin.*|-[A-Za-z.]*z.*|--search-zip"),
    "ag": re.compile(r"--pag.*"),
    "bat": re.compile(r"--pager.*|--diff"),
    "fd": re.compile(r"-[A-Za-z]*[xX].*|--exec.*"),
    "tar": re.compile(
        r"--to-c.*|--checkpoint-.*|--use.*|--rs.*|--rm.*|--inf.*|--new-.*|-[A-Za-z]*[IF].*"
        r"|--fi[a-z]*=[^/]*:.*|-[A-Za-z]*f[^/]*:.*|[^-/][^/]*:.*"  # an archive on another machine
    ),
    "zip": re.compile(r"-[A-Za-z]*T.*|--tes.*|--unz.*"),
    "man": re.compile(r"-[A-Za-z]*[PHLXC].*|--pag.*|--ht.*|--gx.*|--con.*"),
    "rsync": re.compile(r"-[A-Za-z]*e.*|--rsh.*|--rsync-path.*|--daemon|--config.*|--password-command.*"),
    "wget": re.compile(r"--use-a.*|-[bdFcqvnNSxrEkKmpHL46]*e.*|--exe.*|--conf.*"),
    "curl": re.compile(r"-[A-Za-z]*K.*|--conf.*|--eng.*"),
    "split": re.compile(r"--f.*"),
    "tree": re.compile(r"-[A-Za-z]*[oR].*"),
    "tcpdump": re.compile(r"-[A-Za-z]*z.*"),
    "ip": re.compile(r"-b.*|-force|netns|exec"),
    "npm": re.compile(r"--(?:script-s|node-o|git?$|git=|br|vi|ed|sh|us|globalc).*"),
    "go": re.compile(r"--?(?:toolexec|exec|vettool)\b.*|--?w(?:=.*)?|.*-extld\b.*"),
    "gcc": re.compile(
        r"-wrapper|--?f?(?:pass-)?plugin.*|-iplugindir.*|-Wl,.*plugin.*|-B.*|--prefix.*|-?-specs.*|@.*|-fuse-ld=.*/.*"
        r"|--ld-path.*|-load|--config.*|--gcc-(?:toolchain|install-dir).*|-ccc-.*"
    ),
    "rustc": re.compile(r"(?:-C ?|--codegen=)?link(?:er|[-_]arg).*|-Z.*|@.*"),
    "java": re.compile(r"-XX:On.*|-XX:Flags.*|-XX:VMOptionsFile.*|-agent.*|-javaagent.*|@.*"),
    "javac": re.compile(r"-J.*|-?-processor.*|-Xplugin.*|@.*"),
    "patch": re.compile(r"-[A-Za-z]*e.*|--ed"),
    "exiftool": re.compile(r"-if.*|-config.*|-p|-@"),
    "cpio": re.compile(r"--rs.*|-[A-Za-z]*F.*|--fil.*|-[A-Za-z]*[IO][^/]*:.*|[^-/][^/]*:.*"),
    "latex": re.compile(r"--?(?:sh|en|write18).*"),
    "cargo": re.compile(r"--config.*"),
    "rustdoc": re.compile(r"--te.*|--runtool.*|(?:-C ?|--codegen=)?link(?:er|[-_]arg).*|-Z.*|@.*"),
    **dict.fromkeys(words("ld ar nm objdump ranlib strip size"), re.compile(r"--?plugin.*|@.*")),
    **dict.fromkeys(words("clang-tidy clang-query"), re.compile(r"--?load.*")),
    "install": re.compile(r"--strip-.*"),
    **dict.fromkeys(words("diff sdiff"), re.compile(r"--di.*")),  # diff3's
    "ssh-keygen": re.compile(r"-[A-Za-z]*[Dw].*"),
    "ssh-add": re.compile(r"-[A-Za-z]*[sS].*"),
    "openssl": re.compile(r"engine|--?(?:engine|provider|config|pre).*"),
    "gs": re.compile(r"-c|-dNOSAFER.*|.*%pipe%.*|.*=\|.*|--permit.*"),
    "groff": re.compile(r"-[A-Za-z]*[UXl].*"),
    "dvips": re.compile(r"-R0|-o[|!].*|[|!].*"),
    "pandoc": re.compile(r"--filter.*|-[A-Za-z]*[FLd].*|--lua-f.*|--pdf-e.*|--def.*"),
    "bison": re.compile(r"-S.*|--sk.*"),
    "ghc": re.compile(r"-e.*|--interactive|-pgm.*|-F"),
    "protoc": re.compile(
        r"--plugin.*|@.*|--(?!(?:cpp|csharp|java|kotlin|objc|php|pyi|python|ruby|rust|descriptor_set)_out)\w+_out.*"
    ),
    "pylint": re.compile(r"--ini.*"),
    "mypy": re.compile(r"--python-e.*|--inst.*"),
    "cppcheck": re.compile(r"--addon.*|--clang.*"),
    "virtualenv": re.compile(r"-p.*|--py.*"),
    "gpg": re.compile(r"--(?:photo-v|exec-p|agent-p|dirmngr-p|keyserver-o).*"),
    "hg": re.compile(r"--conf.*|--comm.*|-c.*|--to.*|-t.*|--remotec.*|--ssh.*|-e.*|--deb.*"),
    "svn": re.compile(r"--(?:diff3?-c|editor-c|config-).*"),
    "jj": re.compile(r"--config.*|exec|--tool.*"),
    "aws": re.compile(r".*(?:credential_process|cli_pager).*"),
    "cloc": re.compile(r"--(?:extract-w|vcs).*"),
    "ack": re.compile(r"--pag.*"),
    **dict.fromkeys(words("ugrep ug"), re.compile(r"--(?:pag|filter|vi).*")),
    "aria2c": re.compile(r"--on-.*|--conf.*"),
    **dict.fromkeys(
        words("yt-dlp youtube-dl"), re.compile(r"--exec.*|--(?:external-)?downloader.*|--config.*|--netrc-cmd.*")
    ),
    **dict.fromkeys(words("restic borg rclone"), re.compile(r"--(?:password-c|rsh|remote-path).*|-o.*")),
    "date": re.compile(r"-s.*|--set.*"),
    "find": re.compile(r"-delete|-f(?:print|print0|printf|ls)"),
}
"""Full match of one argument: the option runs something, or writes where no redirection shows it."""

AWK_RISKY = re.compile(r"system|getline|@|\|")

GIT_GLOBAL_FLAGS = frozenset({"--no-pager", "-P", "--no-optional-locks", "--literal-pathspecs", "--version", "--help"})
GIT_SUBCOMMANDS = words(
    "add am annotate apply archive bisect blame branch bundle cat-file check-attr check-ignore checkout cherry "
    "cherry-pick clean clone commit config count-objects describe diff diff-files diff-index diff-tree fetch "
    "for-each-ref format-patch fsck gc grep hash-object init log ls-files ls-remote ls-tree merge merge-base mv "
    "name-rev notes prune pull push range-diff rebase reflog remote reset restore rev-list rev-parse revert rm "
    "shortlog show show-branch show-ref sparse-checkout stash status submodule switch symbolic-ref tag "
    "update-index verify-commit version whatchanged worktree"
)
"""Subcommands that no alias can replace. `help`, `difftool` and others that start programs are left out."""
GIT_VALUE_FOLLOWS = frozenset({"-m", "--message"})
GIT_MESSAGES = frozenset({"commit", "tag", "notes"})
"""Where what follows `-m` is a message, and no option starts anything. Of others `-m` may take no value, or be itself
the value of an option."""

GIT_BEFORE_MESSAGE = words("--no-ff --ff --ff-only --squash --no-commit --no-edit --quiet -q")
"""Options that may stand in front of the `-m` of merge and take no value."""


GIT_RISKY = re.compile(
    r"--ex.*|-x.*|-O.*|-u.*|-c.*|--output(?:=.*)?|--remote(?:=.*)?|-i|--help|--unsa.*|--e(?:=.*)?|"
    + "|".join(
        _shortened(name, least)
        for name, least in (
            ("open-files-in-pager", 1), ("upload-pack", 2), ("receive-pack", 3), ("textconv", 5), ("config", 2),
            ("template", 2), ("interactive", 3),
        )
    )
)  # fmt: skip
GIT_HARMLESS: tuple[tuple[str, frozenset[str]], ...] = (
    ("-x", frozenset({"clean", "cherry-pick"})),
    ("-u", words("push add commit stash status diff log show submodule branch checkout")),
    ("-c", words("checkout switch commit log diff show")),
    ("-i", words("grep log branch")),
    ("-O", frozenset({"diff", "log", "show"})),
    ("--exclude", words("clean ls-files describe")),
)
"""Spellings of `GIT_RISKY` that mean something else for these subcommands."""
_REMOTE_HELPER = r"[A-Za-z0-9]+::.*"
_STRATEGY = r"-[nqve]*s.*|--str(?!ategy-option|ategy=(?:ort|ours|resolve|recursive|octopus|subtree)$).*"
"""A merge strategy of another name is a program, `git-merge-NAME`."""
GIT_RULES: dict[str, re.Pattern[str]] = {
    "bisect": re.compile(r"run|visualize|view"),
    "submodule": re.compile(r"foreach|" + _REMOTE_HELPER),
    "rebase": re.compile(r"-[A-Za-z]*[xi].*|" + _STRATEGY),
    "merge": re.compile(_STRATEGY),
    "grep": re.compile(r"-[A-Za-z]*O.*"),
    "archive": re.compile(r"-o.*|" + _REMOTE_HELPER),
    "diff": re.compile(r"--ext-diff"),
    "clone": re.compile(r"-[A-Za-z]*[uc].*|" + _REMOTE_HELPER),
    "pull": re.compile(_REMOTE_HELPER + "|" + _STRATEGY),
    **dict.fromkeys(("cherry-pick", "revert"), re.compile(_STRATEGY.removeprefix("-[nqve]*s.*|"))),
    **dict.fromkeys(("fetch", "push", "remote", "ls-remote"), re.compile(_REMOTE_HELPER)),
}
"""Refused arguments of single subcommands."""
GIT_ADDRESS = re.compile(_REMOTE_HELPER)
GIT_ADDRESSED = words("archive clone fetch ls-remote pull push remote submodule")
"""Subcommands that take an address, which starts `git-remote-NAME` wherever it stands."""
GIT_CONFIG_READS = frozenset({"--get", "--get-all", "--get-regexp", "--list", "-l", "get", "list"})
GIT_CONFIG_SCOPES = frozenset({"--global", "--local", "--system", "--show-origin", "--show-scope", "-z", "--null"})
GIT_CONFIG_HARMLESS = frozenset({"user.name", "user.email", "init.defaultBranch", "core.autocrlf"})
