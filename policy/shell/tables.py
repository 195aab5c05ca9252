"""Builtins, words and variables of the shell. Data only; programs are rows of `policy.programs`."""

from __future__ import annotations

import re
from typing import Literal

from policy import words

Grammar = Literal["bash", "posix", "zsh"]

STEERING_VARIABLE = re.compile(
    # a shell's search path, and files and commands that it reads or runs by itself
    r"PATH|ENV|BASH_.*|BASHOPTS|SHELLOPTS|PS[0-4]|PROMPT_COMMAND|CDPATH|FPATH|ZDOTDIR|HOME|SHELL|TMOUT|HISTFILE"
    r"|GLOBIGNORE|EXECIGNORE|OPTIND|POSIXLY_CORRECT|NULLCMD|READNULLCMD|path|fpath|cdpath|module_path|psvar|prompt"
    # libraries loaded into every program
    r"|LD_.*|DYLD_.*|GCONV_PATH|LOCPATH|NLSPATH|HOSTALIASES|LOCALDOMAIN|MALLOC_.*|GLIBC_TUNABLES"
    r"|OPENSSL_(?:CONF|ENGINES|MODULES)|CURL_HOME|GNUPGHOME|SYSTEM_WGETRC"
    # programs that other programs start
    r"|(?:[A-Z0-9]+_)?(?:PAGER|EDITOR|ASKPASS|BROWSER)|VISUAL|LESS|LESSOPEN|LESSCLOSE|MANROFFOPT|RSYNC_RSH|CVS_RSH|RSH"
    r"|GIT_(?:SSH.*|SEQUENCE_EDITOR|EXTERNAL_DIFF|PROXY_COMMAND|CONFIG.*|DIR|COMMON_DIR|WORK_TREE|EXEC_PATH|TEMPLATE_DIR|TRACE.*"
    r"|ALLOW_PROTOCOL|PROTOCOL_FROM_USER|OBJECT_DIRECTORY|ALTERNATE_OBJECT_DIRECTORIES|ATTR_SOURCE|NAMESPACE|INDEX_FILE)"
    r"|TAR_OPTIONS|TAR_RSH|TAPE|UNZIP|UNZIPOPT|ZIPOPT|XZ_DEFAULTS|XZ_OPT|SIMPLE_BACKUP_SUFFIX|PATCH_GET|WGETRC|RIPGREP_CONFIG_PATH|XDG_CONFIG_(?:HOME|DIRS)|KUBECONFIG"
    r"|EXINIT|VIMINIT|VIMRUNTIME|MYVIMRC|TERMINFO|TERMINFO_DIRS|TERMCAP|AWKPATH|AWKLIBPATH|GCC_EXEC_PREFIX|COMPILER_PATH"
    # code for the interpreter of programs that do not look like scripts
    r"|PERL5(?:OPT|LIB|DB)|PERLLIB|PERL5SHELL|RUBY(?:OPT|LIB|SHELL)|PYTHONSTARTUP|PYTHONBREAKPOINT"
    r"|DOTNET_STARTUP_HOOKS|(?:CORECLR|COR)_(?:ENABLE_PROFILING|PROFILER.*)|_JAVA_OPTIONS|JAVA_TOOL_OPTIONS|JDK_JAVA_OPTIONS"
)
"""Variables by which a program that is listed starts one that is not: exact names, in their own case."""
HARMLESS_VARIABLE = re.compile(
    # locale, time zone, colours and the terminal
    r"LANG|LANGUAGE|LC_[A-Z]+|TZ|NO_COLOR|FORCE_COLOR|CLICOLOR|CLICOLOR_FORCE|COLORTERM|TERM|COLUMNS|LINES|GREP_COLORS?|LS_COLORS"
    # a program's verbosity and directory
    r"|CI|DEBUG|VERBOSE|QUIET|PORT|HOST|LOG_LEVEL|RUST_LOG|RUST_BACKTRACE|NODE_ENV|RAILS_ENV|APP_ENV|ENVIRONMENT"
    r"|PYTHON(?:UNBUFFERED|DONTWRITEBYTECODE|HASHSEED|UTF8)|SOURCE_DATE_EPOCH|DEBIAN_FRONTEND|GIT_TERMINAL_PROMPT"
)
"""Variables that no program takes for a program, a file or an option."""
NUMBER_VARIABLE = re.compile(
    r"S?RANDOM|SECONDS|HISTCMD|LINENO|HISTSIZE|SAVEHIST|HISTFILESIZE|E?[UG]ID|BASHPID|EPOCH[A-Z]*|TRY_BLOCK_[A-Z]*|MAILCHECK"
)
"""Variables that bash or zsh treat as numbers: assigned values are evaluated."""

RESERVED_WORDS = words(
    "if then elif else fi do done case esac while until for in { } ! [[ function select coproc repeat foreach - always"
)

POISONING_BUILTINS = words(
    "alias unalias enable hash bind complete compgen compopt fc history shopt let set disown suspend disable integer "
    "float unhash unfunction zstyle autoload zmodload emulate setopt unsetopt functions zle sched"
)
RUNS_TEXT = words("eval trap")
SIGNALS = words("EXIT 0 INT 2 TERM 15 HUP 1 QUIT 3 PIPE SIGINT SIGTERM SIGHUP SIGQUIT")
"""Trap conditions that do not fire at commands of the line itself."""
READS_FILES = words("source .")
HARMLESS_SHOPT = words("-s -u -q -p globstar nullglob failglob inherit_errexit lastpipe nocaseglob nocasematch")
SAFE_SET = re.compile(r"[-+][efux]+|[-+][efux]*o|pipefail|errexit|nounset|noglob|xtrace")
NAMING_BUILTINS = words(
    "read mapfile readarray getopts export declare typeset readonly local unset wait vared getln private"
)
"""Builtins that take names of variables: a name may carry a subscript, and a subscript is evaluated."""
DECLARING_FLAGS = re.compile(r"-[aAfFglprux]+")
"""Permitted flags of `declare` and its like: not -n, which makes a name refer to another, nor -i, which evaluates."""
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
OPTIONS_FOLLOW = words("sh bash dash ash rbash")
"""Shells that accept options between `-c` and the text that they run."""
SHELL_OPTIONS = words("pipefail errexit nounset noglob xtrace")
"""Names after `-o` that do not change the meaning of a line."""
GRAMMAR_OF: dict[str, Grammar] = {"bash": "bash", "rbash": "bash", "zsh": "zsh"}
"""The grammar for each shell's text; all others certainly support POSIX's."""
