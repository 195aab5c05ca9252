"""All constructs of the grammars that set a variable, crossed with the names that steer programs; and numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from policy import words
from tests.support.rows import each_row

from .helpers import shell

if TYPE_CHECKING:
    from policy.facts import ShellName

STEERING = words(
    "PATH ENV BASH_ENV BASHOPTS SHELLOPTS PS4 PROMPT_COMMAND CDPATH FPATH ZDOTDIR HOME SHELL TMOUT HISTFILE GLOBIGNORE "
    "EXECIGNORE OPTIND POSIXLY_CORRECT NULLCMD path LD_PRELOAD LD_LIBRARY_PATH DYLD_INSERT_LIBRARIES GCONV_PATH "
    "LOCPATH "
    "MALLOC_CHECK_ GLIBC_TUNABLES OPENSSL_CONF PAGER GIT_PAGER EDITOR GIT_EDITOR VISUAL SSH_ASKPASS BROWSER LESSOPEN "
    "RSYNC_RSH GIT_SSH GIT_SSH_COMMAND GIT_CONFIG_COUNT GIT_DIR GIT_EXEC_PATH TAR_OPTIONS UNZIP WGETRC XDG_CONFIG_HOME "
    "KUBECONFIG VIMINIT TERMINFO AWKPATH GCC_EXEC_PREFIX PERL5OPT PERL5LIB RUBYOPT PYTHONSTARTUP JAVA_TOOL_OPTIONS"
)

ANYWHERE = [
    "{n}=3; ls", "{n}=3 ls", "{n}+=3; ls", "export {n}=3; ls", "readonly {n}=3; ls", "export {n}; ls", "read {n}; ls",
    "read -r a {n} < f; ls", "unset {n}; ls", "getopts ab {n}; ls", "for {n} in 3; do ls; done",
    ": ${{{n}:=3}}; ls", ": ${{{n}=3}}; ls", 'ls "${{{n}:=3}}"', "echo ${{x:-${{{n}:=3}}}}; ls",
    "ls $(({n}=3))", ": $(({n} = 3)); ls", "ls $((x={n}=3))", "ls $((1?{n}=3:4))", "ls $(({n}|=3)) $(({n}<<=1))",
    'echo "a$(({n}=3))"; ls', "x=$(({n}=3)); ls", "export x=$(({n}=3)); ls", "x=$(({n}=3)) ls", "$(({n}=3)) ls",
    "cat <<E\n$(({n}=3))\nE\nls", "cat <<E\n${{{n}:=3}}\nE\nls", "case $(({n}=3)) in 3) ls;; esac",
    "case 3 in $(({n}=3))) ls;; esac", "echo > a$(({n}=3)); ls", "for i in $(({n}=3)); do ls; done",
    "echo `echo $(({n}=3))`; ls", "echo $(echo $(({n}=3))); ls", "(: $(({n}=3))); ls", "{{ : $(({n}=3)); }}; ls",
    "! : $(({n}=3)); ls", "f() {{ : $(({n}=3)); }}; f; ls", "sh -c 'ls $(({n}=3))'", "eval 'ls $(({n}=3))'",
    "trap ': $(({n}=3))' EXIT; ls", "while read {n}; do ls; done", "x={n}; ls $(($x=3))", "x='{n}=3'; ls $((x))",
    "x='{n}=3'; y=$x; ls $((y))", "for x in {n}=3; do ls $((x)); done", "set -- {n}=3; ls $(($1))",
    "f() {{ ls $(($1)); }}; f {n}=3", "x=${{y:-{n}=3}}; ls $((x))", "env {n}=3 ls", "command export {n}=3; ls",
    "builtin read {n}; ls", "printf a%n {n}; ls", "printf '%s %5n' a {n}; ls", "printf -- '%ln' {n}; ls",
    "x=%n; printf \"$x\" {n}; ls", "builtin printf %n {n}; ls",
]  # fmt: skip
"""In bash and in POSIX's shells."""

OF_BASH = [
    "(({n}=3)); ls", "(( {n}++ )); ls", "(( --{n} )); ls", "(( {n} += 1 )); ls", "(( a, {n}=1 )); ls",
    "(({n}\n=3)); ls",
    "((a?{n}=1:0)); ls", "((({n})=1)); ls", "(( $x{n}=1 )); ls", "((x[{n}=3])); ls", "((x[0]={n}=3)); ls",
    "if (({n}=0)); then ls; fi", "while (({n}=3)); do ls; done", "(({n}=3)) && ls", "! (({n}=3)); ls",
    "time (({n}=3)); ls", "f() {{ (({n}=3)); }}; f; ls", "bash -c '(({n}=3)); ls'", "eval '(({n}=3)); ls'",
    "trap '(({n}=3))' EXIT; ls", "[[ {n}=3 -eq 3 ]]; ls", "[[ 3 -lt {n}++ ]]; ls", "[[ a && {n}=3 -gt 2 ]]; ls",
    "[[ $(({n}=3)) -eq 3 ]]; ls", "for (({n}=0;{n}<3;{n}++)); do ls; done", "for ((i=0;i<1;{n}=3)); do ls; done",
    "select {n} in a; do ls; done", "coproc {n} {{ cat; }}; ls", "mapfile {n}; ls", "readarray -t {n} < f; ls",
    "read -a {n}; ls", "read -ra {n} <<< 3; ls", "printf -v {n} 3; ls", "printf -v{n} 3; ls", "wait -p {n}; ls",
    "declare {n}=3; ls", "typeset {n}=3; ls", "f() {{ local {n}=3; ls; }}; f", "declare -A {n}=([a]=b); ls",
    "{n}=(3); ls",
    "{n}[0]=3; ls", "{n}+=(3); ls", "a[{n}=3]=1; ls", "a=([{n}=3]=1); ls", "declare a[{n}=3]=1; ls",
    "declare 'a[{n}=3]=1'; ls", "unset 'a[{n}=3]'; ls", "read 'a[{n}=3]'; ls", "[[ -v a[{n}=3] ]]; ls",
    "test -v 'a[{n}=3]'; ls", "echo ${{a[{n}=3]}}; ls", "echo ${{x:{n}=3}}; ls", "echo ${{x:0:{n}=3}}; ls",
    "echo ${{x: {n}++}}; ls", "echo ${{x:$(({n}=3))}}; ls", "echo ${{x/a/$(({n}=3))}}; ls", "let {n}=3; ls",
    "let {n}++; ls", "ls {{{n}}}>f", "ls {{{n}}}<f", "ls {{{n}}}<<<a", "exec {{{n}}}>f; ls", "exec {{{n}}}>&-; ls",
    "{{ ls; }} {{{n}}}>f", "ls $[{n}=3]", "cat <<< $(({n}=3)); ls", "declare -n x={n}; x=3; ls",
    "declare -i x={n}=3; ls", "x={n}; echo ${{!x:=3}}; ls", "x={n}; (( $x = 3 )); ls", "x={n}; read $x; ls",
    "x='{n}=3'; (( x )); ls", "x='{n}=3'; [[ x -eq 3 ]]; ls", "x='{n}=3'; echo ${{y:x}}; ls", "x='{n}=3'; a[x]=1; ls",
    "x={n}; y='=3'; (( $x$y )); ls", "x=3; y={n}; z=$y=$x; (( z )); ls", "x={n}; echo $(( $x$((0))=3 )); ls",
    "[[ ! {n}=3 -eq 3 || a ]]; ls", "[[ x[{n}=3] -eq 1 ]]; ls", "(( x[y[{n}=3]] )); ls", "((x = y = {n} = 3)); ls",
    "printf '%(%Y)T%n' 1 {n}; ls", "printf '%%%n' {n}; ls", "printf $'%\\x6e' {n}; ls", "f=n; printf %$f {n}; ls",
    'printf %n "$(echo {n})"; ls', "x=' {n} = 3'; ((x)); ls", "x=--{n}; ((x)); ls", "x='({n})=3'; ((x)); ls",
    "x={n}$y=3; ((x)); ls", "x='y'; y='{n}=3'; ((x)); ls", "declare -A x; x[a]={n}=3; ((x[a])); ls",
    "read -a x <<< {n}=3; ((x)); ls", "bash <<< '(({n}=3)); ls'", "echo '{n}=3; ls' | sh", 'eval "$(echo {n}=3)"; ls',
    "source /dev/stdin <<< {n}=3; ls", "while ls; do :; done {{{n}}}<f", "select {n}; do ls; done",
    "read x <<< {n}=3; (( x )); ls", "mapfile -t x <<< {n}=3; (( x )); ls", "echo {{1..$(({n}=3))}}; ls",
]  # fmt: skip

OF_ZSH = [
    "{n}=3; ls", "export {n}=3; ls", "read {n}; ls", "vared {n}; ls", "integer {n}=3; ls", "float {n}=3; ls",
    "typeset -i {n}=3; ls", "(({n}=3)); ls", "ls $(({n}=3))", "let {n}=3; ls", "print -v {n} 3; ls",
    "printf -v {n} 3; ls", "printf a%n {n}; ls", "zparseopts -A {n} a; ls", "zparseopts a={n}; ls", "read -A {n}; ls",
    "getln {n}; ls", "zformat -f {n} %a a:b; ls", "strftime -s {n} %s; ls", "sysread {n}; ls", "zstat -A {n} f; ls",
    "zselect -a {n}; ls", "pcre_match -a {n} x; ls", "compadd -O {n} a; ls", "for {n} in 3; do ls; done",
    "for {n} (3) ls", "foreach {n} (3); ls; end", "select {n} in 3; do ls; done", "[[ {n}=3 -eq 3 ]]; ls",
    "[ {n}=3 -eq 3 ]; ls", "f() {{ return {n}=3; }}; f; ls", "shift {n}=3; ls", "a[{n}=3]=1; ls", "ls {{{n}}}>f",
    ": ${{{n}::=3}}; ls", ": ${{{n}:=3}}; ls", "repeat {n}=3 ls", "coproc {n} ls", "private {n}=3; ls",
    "local {n}=3; ls",
    "exec {{{n}}}>f; ls", "test {n}=3 -gt 2; ls", "printf %d {n}=3; ls", "zregexparse {n} x a; ls",
    "set -A {n} 3; ls", "zsystem flock -f {n} f; ls", "ztcp -d {n} x; ls", "zpty -r a {n}; ls", "print -C {n}=3 a; ls",
]  # fmt: skip


def _cases() -> list[tuple[ShellName, str]]:
    forms: list[tuple[ShellName, list[str]]] = [("bash", ANYWHERE + OF_BASH), ("sh", ANYWHERE), ("zsh", OF_ZSH)]
    return [(name, form) for name, lines in forms for form in lines]


@pytest.mark.many_rows(60)
@pytest.mark.parametrize(("shell_name", "form"), _cases())
def test_what_a_construct_sets_is_judged_by_its_name(shell_name: ShellName, form: str) -> None:
    judged = {name: shell(form.format(n=name), shell_name=shell_name, blockedCommands=["evil"]) for name in STEERING}
    assert [name for name, verdict in judged.items() if verdict != "DENIED"] == []


HARMLESS = [
    "{n}=3; ls", "export {n}=3; ls", "read {n}; ls", "for {n} in 3; do ls; done", ": ${{{n}:=3}}; ls", "ls $(({n}=3))",
    "(({n}=3)); ls", "(( {n}++ )); ls", "[[ {n} -eq 3 ]]; ls", "for (({n}=0;{n}<3;{n}++)); do ls; done", "a[{n}]=1; ls",
    "printf a%n {n}; ls", "printf '%%n %s' {s}; ls", "mapfile -t {n} < f; ls", "ls {{{n}}}>f", "ls $(({s}))",
    "(( {s} > 3 )) && ls", "echo '{s}=3'", "x=3; echo '{s}=3' $((x))", "shift $(({s} - 1))", "echo ${{{s}:-3}}",
    "echo {s}=3 | grep {s}=", "[[ {s} == 3 ]] || ls", "echo $(({s} == 3)) $(({s} <= 3)) $(({s} >= 3)) $(({s} != 3))",
    "printf '%s\\n' {s}",
]  # fmt: skip


@each_row("form", HARMLESS)
def test_other_names_and_reading_one_that_steers_are_no_matter(form: str) -> None:
    for name in ("count", "n", "PATHS", "MY_PATH"):
        assert shell(form.format(n=name, s="PATH"), blockedCommands=["evil"]) == "ALLOWED"


# Numbers

LISTED = words(
    "echo ls cat wc date grep tr sed read mapfile seq cd true printf test [ export declare local set shift git "
    "expr awk stat"
)

NUMBERS = [
    "n=$(wc -l < f); echo $((n+1))", "n=`date +%s`; echo $((n+1))", "n=$(cat f); n=${n//[^0-9]/}; echo $((n+1))",
    "n=$(cat f | tr -cd 0-9); echo $((n+1))", "echo $(( $(date +%s) - 5 ))",
    "s=$(date +%s); ls; e=$(date +%s); echo $((e - s))", "n=$(ls | wc -l); [[ $n -gt 3 ]] && ls",
    "i=0; while [ $i -lt 3 ]; do i=$((i+1)); done", "for i in $(seq 1 5); do echo $((i*2)); done",
    "for i in 1 2 3; do echo $((i*2)); done", "for ((i=0;i<3;i++)); do echo $((i)); done",
    "echo $(($# + 1)) $(($? + 1))",
    "while read n; do n=${n//[!0-9]/}; echo $((n+1)); done < f", "a=(1 2 3); echo ${a[0]} ${#a[@]}",
    "x=abc; echo ${x:0:2} ${x:1}", "n=$(awk 'END {print NR}' f); echo $((n))", "n=$(stat -c %s f); echo $((n))",
    "n=$(grep -c x f); ((n > 3)) && ls", "n=$(git rev-list --count HEAD); echo $((n))", "echo $((RANDOM % 6 + 1))",
    "n=$(expr 1 + 2); echo $((n))", "c=0; for f in *.py; do c=$((c+1)); ((c++)); done; echo $c",
    "n=10; m=$n; echo $((m / 2))", "n=${#x}; echo $((n))",
    'n="$(wc -l < f)"; echo "$((n * 100 / 7))%"', "declare -A m; m[a]=1; echo ${m[a]}", "shift $((OPTIND - 1))",
    "f() { local n=${1//[!0-9]/}; echo $((n)); }; f 3", "n=$(cat f); echo $((${#n} + 1))",
    "n=$(sed 's/[^0-9]//g' f | sed 's/[^0-9]//g'); echo $((n))", "n=$(cd a && wc -l < f); echo $((n))",
]  # fmt: skip

UNKNOWN = [
    "n=$(cat f); echo $((n+1))", "n=`cat f`; ((n)) && ls", "read n < f; echo $((n))",
    "mapfile -t a < f; echo $((a[0]))",
    "echo $(( $(cat f) ))", "n=$1; echo $((n))", "echo $(($1))", "echo $(( $* ))", "n=${1:-10}; echo $((n))",
    "n=$(cat f); [[ $n -gt 3 ]] && ls", "n=$(cat f); n=${n//[^0-9]/}; n=$(cat f); echo $((n))",
    "n=${x//[^0-9]/}; read n < f; echo $((n))", "n=$(cat f); a[$n]=1", "n=$(cat f); echo ${x:n}",
    "n=$(cat f); a=(1); echo ${a[n]}", "while read n; do echo $((n)); n=${n//[^0-9]/}; done < f",
    "f() { n=$(cat f); }; n=1; f; echo $((n))", "wc() { cat f; }; n=$(wc -l); echo $((n))",
    "n=$(wc -l f); n=$(cat f); echo $((n))", "n=$(date); echo $((n))", 'n=$(date "+$x"); echo $((n))',
    "n=$(grep -rc x d); echo $((n))", "n=$(echo $(cat f)); echo $((n))", "n=$(cat f); m=$n; echo $((m))",
    "n=x; echo $((n))", "read; echo $((REPLY))", "[[ x =~ (.*) ]]; echo $((BASH_REMATCH))",
    "if ls; then n=${n//[^0-9]/}; fi; n=$(cat f); echo $((n))", "n=$(cat f); ls && n=${n//[^0-9]/} || ls; echo $((n))",
    "n=$(cat f); n=${n//[^0-9]/} ls; echo $((n))", "n=$(cat f); (n=${n//[^0-9]/}); echo $((n))",
    "for n in $(cat f); do echo $((n)); done", "n=$(tr -cd 0-9a < f); echo $((n))",
    "read x < f; n=$(seq $x); echo $((n))",
    "n=$(wc -l < f; cat f); echo $((n))", "n=$(cat f || wc -l < f); echo $((n))", "n=1$(cat f); echo $((n))",
    "for ((i=0; i<$(cat f); i++)); do ls; done", "n=$(cat f); for ((i=0; i<n; i++)); do ls; done",
    "n=$(awk '{s+=$1} END {print s}' f); echo $((n))", "n=$(grep -c x a*); echo $((n))",
    "n=$(stat -f %s f); echo $((n))", "n=$(echo 1; cd -); echo $((n))", "n=$(grep -c x $f); echo $((n))",
    'for i in "${!m[@]}"; do echo $((i)); done',
    "n=$(cat f); export m=$n; echo $((m))", "n=$(cat f) && echo $((n))", "cat f | while read n; do echo $((n)); done",
]  # fmt: skip


@each_row("line", NUMBERS)
def test_what_a_line_makes_a_number_is_one(line: str) -> None:
    assert shell(line, allowedCommands=sorted(LISTED)) == "ALLOWED"


@each_row("line", UNKNOWN)
def test_a_value_from_elsewhere_is_no_number_where_no_interpreter_is_listed(line: str) -> None:
    assert shell(line, allowedCommands=sorted(LISTED)) == "DENIED"
    assert shell(line, allowedCommands=[*LISTED, "eval", "trap"]) == "DENIED"


@each_row("interpreter", ["python3", "bash", "make", "npm", "source", "/w/bin/*"])
@each_row("line", [UNKNOWN[0], UNKNOWN[2], UNKNOWN[8]])
def test_who_lists_an_interpreter_consents_to_what_text_may_be(line: str, interpreter: str) -> None:
    assert shell(line, allowedCommands=[*LISTED, interpreter]) == "ALLOWED"
    assert shell(line, blockedCommands=["evil"]) == "ALLOWED"
