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
    r"|UNZIP|ZIPOPT|TAPE|RSH|TAR_RSH|PATCH_GET|GZIP|XZ_OPT|GCC_.*|COMPILER_PATH|CMAKE_.*|AWK.*|XDG_.*|EXINIT|VIMINIT"
    r"|VIMRUNTIME|OPENSSL_.*"
    # bash and zsh read these as numbers, and evaluate what they are given
    r"|S?RANDOM|SECONDS|HISTCMD|LINENO|HISTSIZE|SAVEHIST|HISTFILESIZE|E?[UG]ID|BASHPID|EPOCH.*|TRY_BLOCK_.*|MAILCHECK"
    r"|.*OPTS|.*_OPTIONS|.*_CONFIG_PATH|.*_PLUGIN_PATH|.*_MODULE.*|.*_PRELOAD|.*_LIBRARY_PATH|.*RC",
    re.IGNORECASE,
)
"""Variables that decide which program, library, configuration, pager or editor is used, or whose value is evaluated."""

RESERVED_WORDS = words(
    "if then elif else fi do done case esac while until for in { } ! [[ function select coproc repeat foreach - always"
)

POISONING_BUILTINS = words(
    "eval source . trap alias unalias enable hash bind complete compgen compopt fc history shopt let set "
    "disown suspend disable integer float unhash unfunction zstyle autoload "
    "zmodload emulate setopt unsetopt functions zle sched"
)
"""Builtins that change what later words mean, or run text."""
SAFE_SET = re.compile(r"[-+][efux]+|[-+][efux]*o|pipefail|errexit|nounset|noglob|xtrace")
NAMING_BUILTINS = words(
    "read mapfile readarray getopts export declare typeset readonly local unset wait vared getln private"
)
"""Builtins that take names of variables: a name may carry a subscript, and a subscript is evaluated."""
DIRECTORY_BUILTINS = frozenset({"cd", "pushd", "popd", "chdir"})
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
    "rename prename file-rename perl-rename mlr erb escript sage watch parallel ssh flock "
    "script su runuser pkexec chroot unshare nsenter strace ltrace gdb lldb valgrind "
    "busybox toybox start-stop-daemon systemd-run screen tmux at batch crontab expect unbuffer entr xvfb-run "
    "fakeroot firejail bwrap run-parts proot setarch linux32 linux64 prlimit chrt numactl catchsegv "
    "dbus-run-session sg newgrp perf vi vim nvim view ex ed emacs nano pico less more most lesspipe m4 rlwrap socat nc "
    "ncat netcat scp sftp rsh osascript open xdg-open launchctl wsl cmd cmd.exe powershell powershell.exe pwsh "
    "pwsh.exe logsave sudoedit ftp telnet mail mailx mutt run-mailcap xdotool smbclient cpulimit wish tclsh irb "
    "jrunscript cpan ssh-agent ssh-copy-id sshpass sshfs mosh autossh lftp ncftp chronic ifne pee mispipe zrun lckdo "
    "vipe vidir setpriv capsh choom uclampset coresched schedtool eatmydata faketime datefudge fakechroot cgexec "
    "trickle tsocks torsocks torify proxychains proxychains4 gpg-agent dbus-launch startx xinit xterm uxterm urxvt "
    "rxvt st gnome-terminal konsole alacritty kitty x-terminal-emulator dtach abduco zellij byobu lxc-attach runc "
    "crun buildah "
    "ctr crictl flatpak-spawn toolbox distrobox distrobox-enter guix systemd-cat systemd-inhibit systemd-nspawn "
    "machinectl coredumpctl daemonize daemon run-one solo supervisord runsv chpst setuidgid envdir envuidgid softlimit "
    "setlock pgrphack fghack tini dumb-init su-exec gosu catatonit execlineb sudo-rs please run0 dzdo pfexec wine "
    "wine64 box64 mpirun mpiexec srun salloc bsub uftrace heaptrack rr nsys ncu nvprof bear scan-build intercept-build "
    "compiledb libtool aws-vault chamber op doppler infisical envconsul sops fzf sk i386 x86_64 uname26 runcon reflex "
    "modd air compiledaemon gow rtx zless zmore bzless bzmore xzless xzmore lzless lzmore pg tig lazygit gitui gitk "
    "gdb-multiarch nc.openbsd nc.traditional vim.tiny vim.basic vim.nox vim.gtk vim.athena "
    "vimdiff rvim rview gvim joe jed micro hx unshar radare2 r2 rizin drgn bpftrace rmt"
)

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
    "sort": re.compile(r"-[A-Za-z0-9]*o.*|-T.*"),
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
    **dict.fromkeys(words("restic borg rclone"), re.compile(r"--(?:password-c|rsh|remote-path).*|-o.*")),
    "find": re.compile(r"-delete|-f(?:print|print0|printf|ls)"),
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
    "sort": words("output compress-program temporary-directory"),
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
