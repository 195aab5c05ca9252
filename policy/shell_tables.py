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
    r"PATH|IFS|ENV|BASH_.*|PS[0-4]|PROMPT_COMMAND|CDPATH|FPATH|ZDOTDIR|HOME|SHELL|TMOUT|HISTFILE"
    r"|GLOBIGNORE|EXECIGNORE|OPTIND|POSIXLY_CORRECT|LD_.*|DYLD_.*|GCONV_PATH|LOCPATH|NLSPATH|HOSTALIASES"
    r"|LOCALDOMAIN|MALLOC_.*|GIT_.*|.*PAGER|.*EDITOR|VISUAL|BROWSER|.*ASKPASS|PYTHON(?!UNBUFFERED$|DONTWRITEBYTECODE$"
    r"|HASHSEED$|IOENCODING$|UTF8$).*|PYTEST_.*|NODE_(?!ENV$).*|PERL.*|RUBY.*|GEM_.*|BUNDLE_.*|LUA_.*|PHP.*|.*JAVA_.*"
    r"|CLASSPATH|JDK_.*|MAVEN_.*|GRADLE_.*|LESS.*|MAN.*|TERMINFO.*|TERMCAP|RSYNC_.*|CVS_.*|SSH_.*|SUDO_.*|GREP_.*"
    r"|MAKE.*|CC|CXX|CPP|LD|AR|AS|.*FLAGS|CARGO_.*|RUST.*|GO[A-Z]*|PIP_.*|UV_.*|NPM_.*|YARN_.*|POETRY_.*"
    r"|VIRTUAL_ENV|CONDA_.*|DOCKER_.*|KUBECONFIG|AWS_.*|GOOGLE_.*|AZURE_.*|.*_PROXY|SSL_.*|CURL_.*|REQUESTS_.*"
    r"|UNZIP|ZIPOPT|GZIP|XZ_OPT|GCC_.*|COMPILER_PATH|CMAKE_.*|AWK.*|XDG_.*|EXINIT|VIMINIT|VIMRUNTIME|OPENSSL_.*"
    r"|.*OPTS|.*_OPTIONS|.*_CONFIG_PATH|.*_PLUGIN_PATH|.*_MODULE.*|.*_PRELOAD|.*_LIBRARY_PATH|.*RC",
    re.IGNORECASE,
)
"""Variables that decide which program, library, configuration, pager or editor is used."""

RESERVED_WORDS = words(
    "if then elif else fi do done case esac while until for in { } ! function select coproc repeat foreach - always"
)

POISONING_BUILTINS = words(
    "eval source . trap alias unalias enable hash bind complete compgen compopt fc history shopt let set "
    "disown suspend disable integer float unhash unfunction zstyle autoload "
    "zmodload emulate setopt unsetopt functions zle sched"
)
"""Builtins that change what later words mean, or run text."""
SAFE_SET = re.compile(r"[-+][efux]+|[-+][efux]*o|pipefail|errexit|nounset|noglob|xtrace")
NAMING_BUILTINS = words("read mapfile readarray getopts export declare typeset readonly local unset wait vared")
"""Builtins that take names of variables: a name may carry a subscript, and a subscript is evaluated."""
DIRECTORY_BUILTINS = frozenset({"cd", "pushd", "popd", "chdir"})
SHELLS = words("sh bash dash ash zsh ksh mksh fish rbash")
GRAMMAR_OF: dict[str, Grammar] = {"bash": "bash", "rbash": "bash", "zsh": "zsh"}
"""Which grammar a shell's text is read by; the others know POSIX's for certain."""


class Wrapper(NamedTuple):
    """How a wrapper's own arguments end: options without and with a value (one with `=` has it there or nowhere), words
    of its own before the program."""

    flags: str = ""
    valued: str = ""
    own_words: int = 0
    assigns: bool = False
    appends: bool = False


WRAPPERS: dict[str, Wrapper] = {
    "time": Wrapper("-p"),
    # Not `-i`: without PATH a shell looks where it was built to, which may be the working directory.
    "env": Wrapper("-0 --null", "-u --unset", assigns=True),
    "nice": Wrapper(valued="-n --adjustment"),
    "nohup": Wrapper(),
    "setsid": Wrapper("-f -w -c --fork --wait --ctty"),
    "stdbuf": Wrapper(valued="-i -o -e --input --output --error"),
    "timeout": Wrapper("--foreground --preserve-status -v --verbose", "-k --kill-after -s --signal", own_words=1),
    "sudo": Wrapper("-n -S -H -b --non-interactive --stdin", "-u -g -p --user --group --prompt", assigns=True),
    "doas": Wrapper("-n", "-u"),
    "command": Wrapper("-p"),
    "builtin": Wrapper(),
    "exec": Wrapper(),
    "noglob": Wrapper(),
    "nocorrect": Wrapper(),
    "ionice": Wrapper("-t --ignore", "-c -n --class --classdata"),
    "taskset": Wrapper("-c --cpu-list", own_words=1),
    "xargs": Wrapper(
        "-0 -r -t -x -o --null --no-run-if-empty --verbose --exit",
        "-n -P -L -I -d -s -E -a --max-args --max-procs --max-lines= --replace= --delimiter --max-chars --arg-file",
        appends=True,
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
    "jrunscript cpan"
)

SAME_PROGRAM: dict[str, str] = {
    "fdfind": "fd", "gsort": "sort", "batcat": "bat", "gtar": "tar", "bsdtar": "tar", "gfind": "find", "gsed": "sed",
    **dict.fromkeys(("cc", "c++", "g++", "clang", "clang++"), "gcc"),
    **dict.fromkeys(("pdflatex", "xelatex", "lualatex", "tex", "pdftex", "xetex", "luatex"), "latex"),
}  # fmt: skip
"""Other names of programs, by base name."""

RISKY_OPTIONS: dict[str, re.Pattern[str]] = {
    "sort": re.compile(r"-[A-Za-z]*o.*|--o.*|--co.*|-T.*"),
    "rg": re.compile(r"--pre(=.*)?|--hostname-bin.*|-[A-Za-z.]*z.*|--search-zip"),
    "ag": re.compile(r"--pager.*"),
    "bat": re.compile(r"--pager.*|--diff"),
    "fd": re.compile(r"-[A-Za-z]*[xX].*|--exec.*"),
    "tar": re.compile(r"--to-c.*|--checkpoint-a.*|--use-c.*|--rsh.*|--rmt.*|--info-s.*|--new-v.*|-[A-Za-z]*[IF].*"),
    "zip": re.compile(r"-[A-Za-z]*T.*|--unzip-command.*"),
    "man": re.compile(r"-[A-Za-z]*[PHL].*|--pager.*|--html.*"),
    "rsync": re.compile(r"-[A-Za-z]*e.*|--rsh.*|--rsync-path.*"),
    "wget": re.compile(r"--use-askpass.*|-e.*|--execute.*|--config.*"),
    "curl": re.compile(r"-[A-Za-z]*K.*|--config.*|--engine.*"),
    "split": re.compile(r"--f.*"),
    "tree": re.compile(r"-[A-Za-z]*[oR].*"),
    "tcpdump": re.compile(r"-[A-Za-z]*z.*"),
    "ip": re.compile(r"-b.*|-force|netns|exec"),
    "npm": re.compile(r"--script-shell.*|--node-options.*"),
    "go": re.compile(r"-toolexec.*|-exec.*|-vettool.*"),
    "gcc": re.compile(r"-wrapper|-fplugin.*|-B.*|-?-specs.*|@.*"),
    "rustc": re.compile(r"-C ?linker.*|(?:--codegen=)?linker.*|@.*"),
    "java": re.compile(r"-XX:On.*|-XX:Flags.*|-XX:VMOptionsFile.*|-agent.*|-javaagent.*|@.*"),
    "javac": re.compile(r"-J.*|-?-processor.*|-Xplugin.*|@.*"),
    "patch": re.compile(r"-[A-Za-z]*e.*|--ed"),
    "exiftool": re.compile(r"-if.*|-config.*|-p|-@"),
    "cpio": re.compile(r"--rsh-c.*|-[A-Za-z]*F.*|--file.*"),
    "latex": re.compile(r"--?(?:shell-e|enable-w).*"),
    "cargo": re.compile(r"--config.*"),
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
GIT_RISKY = re.compile(
    r"--ex.*|-x.*|-O.*|--open-f.*|--upload-p.*|--receive-p.*|--output(?:=.*)?|--textconv|-u.*|-c.*|--conf.*|--templ.*"
    r"|--remote(?:=.*)?|-i|--interactive|--help|--unsa.*"
)
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
_STRATEGY = r"--str(?!ategy-option|ategy=(?:ort|ours|resolve|recursive|octopus|subtree)$).*"
"""A merge strategy of another name is a program, `git-merge-NAME`."""
_SHORT_STRATEGY = r"-s.*|" + _STRATEGY
GIT_RULES: dict[str, re.Pattern[str]] = {
    "bisect": re.compile(r"run|visualize|view"),
    "submodule": re.compile(r"foreach|" + _REMOTE_HELPER),
    "rebase": re.compile(r"-[A-Za-z]*[xi].*|" + _SHORT_STRATEGY),
    "merge": re.compile(_SHORT_STRATEGY),
    "grep": re.compile(r"-[A-Za-z]*O.*"),
    "archive": re.compile(r"-o.*"),
    "clone": re.compile(r"-[A-Za-z]*[uc].*|" + _REMOTE_HELPER),
    "pull": re.compile(_REMOTE_HELPER + "|" + _SHORT_STRATEGY),
    **dict.fromkeys(("cherry-pick", "revert"), re.compile(_STRATEGY)),
    **dict.fromkeys(("fetch", "push", "remote", "ls-remote"), re.compile(_REMOTE_HELPER)),
}
"""Refused arguments of single subcommands."""
GIT_CONFIG_READS = frozenset({"--get", "--get-all", "--get-regexp", "--list", "-l", "get", "list"})
GIT_CONFIG_SCOPES = frozenset({"--global", "--local", "--system", "--show-origin", "--show-scope", "-z", "--null"})
GIT_CONFIG_HARMLESS = frozenset({"user.name", "user.email", "init.defaultBranch", "core.autocrlf"})
