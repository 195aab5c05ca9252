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
    # where a shell looks for programs, and what it reads or runs by itself
    r"PATH|ENV|BASH_.*|BASHOPTS|SHELLOPTS|PS[0-4]|PROMPT_COMMAND|CDPATH|FPATH|ZDOTDIR|HOME|SHELL|TMOUT|HISTFILE"
    r"|GLOBIGNORE|EXECIGNORE|OPTIND|POSIXLY_CORRECT|NULLCMD|READNULLCMD|path|fpath|cdpath|module_path|psvar|prompt"
    # what is loaded into every program
    r"|LD_.*|DYLD_.*|GCONV_PATH|LOCPATH|NLSPATH|HOSTALIASES|LOCALDOMAIN|MALLOC_.*|GLIBC_TUNABLES"
    r"|OPENSSL_(?:CONF|ENGINES|MODULES)"
    # programs that other programs start
    r"|(?:[A-Z0-9]+_)?(?:PAGER|EDITOR|ASKPASS|BROWSER)|VISUAL|LESS|LESSOPEN|LESSCLOSE|MANROFFOPT|RSYNC_RSH|CVS_RSH|RSH"
    r"|GIT_(?:SSH.*|EXTERNAL_DIFF|PROXY_COMMAND|CONFIG.*|DIR|COMMON_DIR|WORK_TREE|EXEC_PATH|TEMPLATE_DIR|TRACE.*"
    r"|ALLOW_PROTOCOL|PROTOCOL_FROM_USER|OBJECT_DIRECTORY|ALTERNATE_OBJECT_DIRECTORIES|ATTR_SOURCE|NAMESPACE)"
    r"|TAR_OPTIONS|TAR_RSH|TAPE|UNZIP|ZIPOPT|PATCH_GET|WGETRC|RIPGREP_CONFIG_PATH|XDG_CONFIG_(?:HOME|DIRS)|KUBECONFIG"
    r"|EXINIT|VIMINIT|VIMRUNTIME|MYVIMRC|TERMINFO|TERMINFO_DIRS|TERMCAP|AWKPATH|AWKLIBPATH|GCC_EXEC_PREFIX|COMPILER_PATH"
    # code for the interpreter of programs that nobody takes for scripts
    r"|PERL5(?:OPT|LIB|DB)|PERLLIB|PERL5SHELL|RUBY(?:OPT|LIB|SHELL)|PYTHONSTARTUP|PYTHONBREAKPOINT"
    r"|DOTNET_STARTUP_HOOKS|(?:CORECLR|COR)_(?:ENABLE_PROFILING|PROFILER.*)|_JAVA_OPTIONS|JAVA_TOOL_OPTIONS|JDK_JAVA_OPTIONS"
)
"""Variables by which a program that is listed starts one that is not: exact names, in their own case."""
NUMBER_VARIABLE = re.compile(
    r"S?RANDOM|SECONDS|HISTCMD|LINENO|HISTSIZE|SAVEHIST|HISTFILESIZE|E?[UG]ID|BASHPID|EPOCH[A-Z]*|TRY_BLOCK_[A-Z]*|MAILCHECK"
)
"""Variables that bash or zsh take for numbers: what they are given is evaluated."""

RESERVED_WORDS = words(
    "if then elif else fi do done case esac while until for in { } ! [[ function select coproc repeat foreach - always"
)

POISONING_BUILTINS = words(
    "alias unalias enable hash bind complete compgen compopt fc history shopt let set "
    "disown suspend disable integer float unhash unfunction zstyle autoload "
    "zmodload emulate setopt unsetopt functions zle sched"
)
"""Builtins that change what later words mean."""
RUNS_TEXT = words("eval trap")
SIGNALS = words("EXIT 0 INT 2 TERM 15 HUP 1 QUIT 3 PIPE SIGINT SIGTERM SIGHUP SIGQUIT")
"""When a trap runs its text, other than at commands of the line itself."""
READS_FILES = words("source .")
HARMLESS_SHOPT = words("-s -u -q -p globstar nullglob failglob inherit_errexit lastpipe nocaseglob nocasematch")
SAFE_SET = re.compile(r"[-+][efux]+|[-+][efux]*o|pipefail|errexit|nounset|noglob|xtrace")
NAMING_BUILTINS = words(
    "read mapfile readarray getopts export declare typeset readonly local unset wait vared getln private"
)
"""Builtins that take names of variables: a name may carry a subscript, and a subscript is evaluated."""
DECLARING_FLAGS = re.compile(r"-[aAfFglprux]+")
"""What `declare` and its like may be given: not -n, by which a name stands for another, and not -i, which evaluates."""
NAMING_FLAGS: dict[str, re.Pattern[str]] = {
    "read": re.compile(r"-[rsenitudpaN]+[0-9.]*"),
    **dict.fromkeys(("mapfile", "readarray"), re.compile(r"-[tdnsuO]+[0-9]*")),
    "unset": re.compile(r"-[vf]"),
}
DIRECTORY_BUILTINS = frozenset({"cd", "pushd", "popd", "chdir"})
BUILTINS_THAT_MATTER = (
    POISONING_BUILTINS
    | RUNS_TEXT
    | READS_FILES
    | NAMING_BUILTINS
    | DIRECTORY_BUILTINS
    | RESERVED_WORDS
    | words("command builtin exec time env test printf exit return set xargs find sudo timeout")
)
"""Names whose meaning the reading of a line rests on: no function may take them."""
UNREAD_SHELLS = words("fish csh tcsh nu elvish xonsh osh ysh yash")
"""Shells whose language, or whose options, are not read."""
SHELLS = words("sh bash dash ash zsh ksh mksh rbash") | UNREAD_SHELLS
OPTIONS_FOLLOW = words("sh bash dash ash rbash")
"""Shells that are known to take options between `-c` and the text that they run."""
SHELL_OPTIONS = words("pipefail errexit nounset noglob xtrace")
"""Names behind `-o` that leave the meaning of a line as it is."""
GRAMMAR_OF: dict[str, Grammar] = {"bash": "bash", "rbash": "bash", "zsh": "zsh"}
"""Which grammar a shell's text is read by; the others know POSIX's for certain."""


class Wrapper(NamedTuple):
    """How a wrapper's own arguments end: options without and with a value, words of its own before the program.
    `attached` are long options whose value, if they have one, stands behind `=` and never in the next word."""

    flags: str = ""
    valued: str = ""
    own_words: int = 0
    assigns: bool = False
    appends: bool = False
    attached: str = ""


WRAPPERS: dict[str, Wrapper] = {
    "time": Wrapper("-p"),
    # Not `-i`: without PATH a shell looks where it was built to, which may be the working directory.
    "env": Wrapper("-0 --null", "-u --unset", assigns=True),
    "nice": Wrapper(valued="-n --adjustment"),
    "setsid": Wrapper("-f -w -c --fork --wait --ctty"),
    "stdbuf": Wrapper(valued="-i -o -e --input --output --error"),
    "timeout": Wrapper("--foreground --preserve-status -v --verbose", "-k --kill-after -s --signal", own_words=1),
    "sudo": Wrapper("-n -S -H -b --non-interactive --stdin", "-u -g -p --user --group --prompt", assigns=True),
    "doas": Wrapper("-n", "-u"),
    "command": Wrapper("-p"),
    "ionice": Wrapper("-t --ignore", "-c -n --class --classdata"),
    **dict.fromkeys(words("nohup builtin exec noglob nocorrect"), Wrapper()),
    **dict.fromkeys(words("ccache sccache distcc icecc"), Wrapper("-s --show-stats")),
    "xvfb-run": Wrapper(
        "-a -l --auto-servernum --listen-tcp",
        "-e -f -n -p -s -w --error-file --auth-file --server-num --xauth-protocol --server-args --wait",
    ),
    "taskset": Wrapper("-c --cpu-list", own_words=1),
    "xargs": Wrapper(
        "-0 -r -t -x -o --null --no-run-if-empty --verbose --exit",
        "-n -P -L -I -d -s -E -a --max-args --max-procs --delimiter --max-chars --arg-file",
        appends=True,
        attached="--max-lines --replace --eof",
    ),
}

ONE_OPTION = frozenset({"time", "exec"})
"""`-p`, as it is written, may be the first word behind `time`; any other word with a dash names the program, in one
shell or another."""

RUNNERS: frozenset[tuple[str, str]] = frozenset(
    {
        ("uv", "run"), ("poetry", "run"), ("pipenv", "run"), ("pdm", "run"), ("hatch", "run"), ("rye", "run"),
        ("bundle", "exec"), ("npm", "exec"), ("pnpm", "exec"), ("pnpm", "dlx"), ("yarn", "exec"), ("yarn", "dlx"),
        ("pipx", "run"), ("conda", "run"), ("mise", "exec"), ("direnv", "exec"), ("dotenv", "run"), ("mamba", "run"),
        ("micromamba", "run"),
    }
)  # fmt: skip
"""Package managers whose subcommand starts the program that follows."""
SINGLE_RUNNERS = words("npx uvx bunx")
RUNNER_FLAGS = words("-y --yes --no --no-install -q --quiet --silent --offline --frozen --locked --no-sync --")
"""Options in front of the program that take no value in any of them."""

OPAQUE_STARTERS = words(
    "rename prename file-rename perl-rename mlr erb escript sage watch parallel flock script su runuser pkexec "
    "chroot unshare nsenter strace ltrace valgrind busybox toybox start-stop-daemon systemd-run screen tmux at "
    "batch crontab unbuffer entr fakeroot firejail bwrap run-parts proot setarch linux32 linux64 prlimit "
    "chrt numactl catchsegv dbus-run-session sg newgrp lesspipe rlwrap socat nc ncat netcat rsh launchctl wsl cmd "
    "cmd.exe logsave sudoedit run-mailcap xdotool cpulimit ssh-agent sshpass sshfs mosh autossh chronic ifne pee "
    "mispipe zrun lckdo vipe vidir setpriv capsh choom uclampset coresched schedtool eatmydata faketime datefudge "
    "fakechroot cgexec trickle tsocks torsocks torify proxychains proxychains4 gpg-agent dbus-launch startx xinit "
    "xterm uxterm urxvt rxvt st gnome-terminal konsole alacritty kitty x-terminal-emulator dtach abduco zellij "
    "byobu lxc-attach runc crun flatpak-spawn toolbox distrobox distrobox-enter guix systemd-cat systemd-inhibit "
    "systemd-nspawn machinectl coredumpctl daemonize daemon run-one solo supervisord runsv chpst setuidgid envdir "
    "envuidgid softlimit setlock pgrphack fghack tini dumb-init su-exec gosu catatonit execlineb sudo-rs please "
    "run0 dzdo pfexec wine wine64 box64 mpirun mpiexec srun salloc bsub uftrace heaptrack rr nsys ncu nvprof bear "
    "scan-build intercept-build compiledb libtool aws-vault chamber op doppler infisical envconsul sops fzf sk "
    "i386 x86_64 uname26 runcon reflex modd air compiledaemon gow rtx gdb-multiarch nc.openbsd nc.traditional hx "
    "unshar radare2 r2 rizin drgn bpftrace rmt powershell powershell.exe pwsh pwsh.exe gdb lldb perf"
)
"""Programs that start another one which stands somewhere in their arguments; it is not looked for."""
OWN_LANGUAGES = words(
    "ssh scp sftp vi vim nvim view ex ed emacs nano pico less more most m4 irb wish tclsh osascript open xdg-open "
    "telnet ftp lftp ncftp mail mailx mutt expect vim.tiny vim.basic vim.nox vim.gtk vim.athena vimdiff rvim "
    "rview gvim joe jed micro zless zmore bzless bzmore xzless xzmore lzless lzmore pg tig lazygit gitui gitk "
    "crictl ctr buildah ssh-copy-id smbclient jrunscript cpan"
)
"""Programs with commands of their own, or a machine at the other end, that can start anything."""

SAME_PROGRAM: dict[str, str] = {
    "fdfind": "fd", "batcat": "bat", "bsdtar": "tar", "bfs": "find",
    **dict.fromkeys(("cc", "c++", "g++", "clang", "clang++", "cpp", "gfortran", "gdc", "gccgo"), "gcc"),
    "ld.gold": "ld", "ld.bfd": "ld", "ld.lld": "ld", "lld": "ld", "php-cgi": "php", "phpdbg": "php", "texlua": "lua",
    **dict.fromkeys(("pdflatex", "xelatex", "lualatex", "tex", "pdftex", "xetex", "luatex"), "latex"),
}  # fmt: skip
"""Other names of programs, by base name."""
CROSS_TOOL = re.compile(
    r"^[a-z0-9_]+(?:-[a-z0-9_]+){1,3}-(?=(?:gcc|g\+\+|cc|c\+\+|clang|clang\+\+|cpp|gfortran|ld|ar|nm|strip)$)"
)
"""What stands in front of the name of a compiler for another machine."""

RISKY_OPTIONS: dict[str, re.Pattern[str]] = {
    "shuf": re.compile(r"-[A-Za-z0-9]*o.*"),
    "rg": re.compile(r"--pre(=.*)?|--hostname-bin.*|-[A-Za-z0-9.]*z.*|--search-zip"),
    "bat": re.compile(r"--pager.*|--diff"),
    "fd": re.compile(r"-[A-Za-z0-9]*[xX].*|--exec.*"),
    "tar": re.compile(r"-[A-Za-z0-9]*[IF].*"),
    "zip": re.compile(r"-[A-Za-z0-9]*T.*"),
    "man": re.compile(r"-[A-Za-z0-9]*[PHLCX].*"),
    "rsync": re.compile(r"-[A-Za-z0-9]*e.*"),
    "wget": re.compile(r"-[bdFcqvnNSxrEkKmpHL46]*e.*"),
    "curl": re.compile(r"-[A-Za-z0-9]*K.*"),
    "tree": re.compile(r"-[A-Za-z0-9]*[oR].*"),
    "tcpdump": re.compile(r"-[A-Za-z0-9]*z.*"),
    "ip": re.compile(r"-b.*|-force"),
    "go": re.compile(r"--?(?:toolexec|exec|vettool).*|--?w(?:=.*)?|.*-extld.*|--?gccgoflags.*"),
    "gcc": re.compile(
        r"-wrapper|--?f?(?:pass-)?plugin.*|-iplugindir.*|-W[alp],.*(?:@|plugin|specs).*|-B.*|--prefix.*|-?-specs.*|@.*|-fuse-ld=.*/.*"
        r"|--ld-path.*|-load|--config.*|--gcc-(?:toolchain|install-dir).*|-ccc-.*"
    ),
    "rustc": re.compile(r"(?:-[A-Za-z0-9]*C ?|--codegen=)?link(?:er|[-_]arg).*|-Z.*|@.*"),
    "java": re.compile(r"-XX:On.*|-XX:Flags.*|-XX:VMOptionsFile.*|-agent.*|-javaagent.*|@.*"),
    "javac": re.compile(r"-J.*|-?-processor.*|-Xplugin.*|@.*"),
    "patch": re.compile(r"-[A-Za-z0-9]*e.*|-g.*"),
    "exiftool": re.compile(r"-if.*|-config.*|-p|-@"),
    "cpio": re.compile(r"-[A-Za-z0-9]*F.*|-[A-Za-z0-9]*[IO][^/]*:.*|[^-/][^/]*:.*"),
    "latex": re.compile(r"--?(?:sh|en|write18).*"),
    "cargo": re.compile(r"--config.*"),
    "date": re.compile(r"-s.*"),
    "jobs": re.compile(r"-[A-Za-z0-9]*x.*"),
    "svn": re.compile(r"svn\+.*"),
    "pandoc": re.compile(r"-[hisvpN]*[FLd].*|.*\.lua"),
    "bison": re.compile(r"-S.*"),
    "virtualenv": re.compile(r"-p.*"),
    "hg": re.compile(r"-[cte].*"),
    "rustdoc": re.compile(r"--te.*|--runtool.*|(?:-[A-Za-z0-9]*C ?|--codegen=)?link(?:er|[-_]arg).*|-Z.*|@.*"),
    **dict.fromkeys(words("ld ar nm objdump ranlib strip size"), re.compile(r"--?plugin.*|@.*")),
    **dict.fromkeys(words("clang-tidy clang-query"), re.compile(r"--?load.*")),
    **dict.fromkeys(
        words("ssh scp sftp"),
        re.compile(
            r"(?:-[A-Za-z0-9]*o)?\s*(?:proxy|local|knownhosts)command[\s=].*"
            r"|(?:-[A-Za-z0-9]*o)?\s*(?:pkcs11|securitykey)provider[\s=].*",
            re.IGNORECASE,
        ),
    ),
    "ssh-keygen": re.compile(r"-[A-Za-z0-9]*[Dw].*"),
    "ssh-add": re.compile(r"-[A-Za-z0-9]*[sS].*"),
    "openssl": re.compile(r"--?(?:engine|provider|config).*"),
    "gs": re.compile(r"-c|-dNOSAFER.*|.*%pipe%.*|.*=\|.*|--permit.*"),
    "groff": re.compile(r"-[A-Za-z0-9]*[UXl].*"),
    "dvips": re.compile(r"-R0|-o[|!].*|[|!].*"),
    "ghc": re.compile(r"-e.*|--interactive|-pgm.*|-F"),
    "protoc": re.compile(
        r"--plugin.*|@.*|--(?!(?:cpp|csharp|java|kotlin|objc|php|pyi|python|ruby|rust|descriptor_set)_out)\w+_out.*"
    ),
    "cppcheck": re.compile(r"--addon.*|--clang.*"),
    "jj": re.compile(r"--config.*|--tool.*"),
    "aws": re.compile(r".*(?:credential_process|cli_pager).*"),
    **dict.fromkeys(words("ugrep ug"), re.compile(r"--(?:pag|filter|vi).*")),
    "aria2c": re.compile(r"--on-.*|--conf.*"),
    "find": re.compile(r"(?!)"),  # an expansion may become -exec
    **dict.fromkeys(words("restic borg rclone"), re.compile(r"--(?:password-c|rsh|remote-path).*|-o.*")),
}
"""Full match of one argument: the option runs something, or writes where no redirection shows it. Long options that
may be abbreviated are in `LONG_OPTIONS`."""

RISKY_WORDS: dict[str, frozenset[str]] = {
    "ip": words("netns exec"),
    "svn": words("propedit pedit pe"),
    "openssl": words("engine"),
    "jj": words("exec"),
}
"""Words without a dash that do the same, wherever they stand."""

LONG_OPTIONS: dict[str, frozenset[str]] = {
    "sort": words("compress-program"),
    "shuf": words("output"),
    "tar": words(
        "to-command checkpoint-action use-compress-program rsh-command rmt-command info-script new-volume-script "
        "index-file"
    ),
    "zip": words("unzip-command test"),
    "man": words("pager html gxditview config-file locale"),
    "rsync": words("rsh rsync-path daemon config password-command"),
    "wget": words("use-askpass execute config"),
    "curl": words("config engine"),
    "split": words("filter"),
    **dict.fromkeys(words("ag ack"), words("pager")),
    "npm": words("script-shell node-options git browser viewer editor shell userconfig globalconfig"),
    "patch": words("ed get"),
    "cpio": words("rsh-command file"),
    "date": words("set"),
    "install": words("strip-program"),
    **dict.fromkeys(words("diff sdiff"), words("diff-program output")),  # diff3's
    "svn": words("diff-cmd diff3-cmd merge-cmd editor-cmd config-dir config-option"),
    "pandoc": words("filter lua-filter defaults pdf-engine data-dir"),
    "bison": words("skeleton"),
    "pylint": words("init-hook"),
    "mypy": words("python-executable install-types"),
    "virtualenv": words("python"),
    "gpg": words("photo-viewer exec-path agent-program dirmngr-program keyserver-options"),
    "hg": words("config command tool remotecmd ssh debugger"),
    "cloc": words("extract-with vcs"),
    **dict.fromkeys(words("yt-dlp youtube-dl"), words("exec downloader external-downloader config netrc-cmd")),
}
"""The full names of long options that run something or write where no redirection shows it, for programs that take any
beginning of a name for the whole of it."""
WHOLE_NAMES: dict[str, frozenset[str]] = {"tar": frozenset({"checkpoint"}), "npm": words("no global git-tag-version")}
"""Beginnings of such names that are options of their own, without harm."""
