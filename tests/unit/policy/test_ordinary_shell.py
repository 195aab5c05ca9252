"""Arithmetic, arrays, functions and variables of a line: read where they are plain, refused where they may hide."""

from __future__ import annotations

from policy.decide import check_tool
from policy.facts import CommandFacts, ShellName
from policy.shell import parse, parse_line, paths_in_line
from policy.shell.findings import SimpleCommand
from policy.shell.variables import names_read
from tests.support.rows import each_row

from .helpers import NOW, bundle, shell

LISTED = [
    "ls", "cat", "echo", "cd", "rg", "read", "declare", "local", "export", "unset", "printf", "set", "shopt",
    "eval", "trap", "bash", "command", "time", "readonly", "sh", "cut", "[", "seq", "env", "true", "sort",
    "mapfile", "wait", "git", "while",
]  # fmt: skip

ORDINARY = [
    "i=1; echo $((i + 1))",
    "n=$(ls | cat); echo $((n * 2)) $((n > 1 ? 1 : 0))",
    "((i++)); ((i += 2)); ((a[1] == 2)) && ls",
    "for ((i = 0; i < 10; i++)); do echo $i; done",
    "echo ${x:0:3} ${x:1} ${x:1:2} ${#x}",
    "echo ${x/a/b} ${x//a/b} ${x/#a/b} ${x/%a/b} ${x// /_}",
    "echo ${x^} ${x^^} ${x,} ${x,,} ${x@Q} ${x:?unset} ${x:+set}",
    "a=(1 'b c' $x); a+=(d); echo ${a[0]} ${a[@]} ${#a[@]} ${!a[@]} ${a[$i]}; a[1]=x",
    "declare -a a=(1 2); declare -A m; m[k]=v; echo ${m[k]}",
    "f() { local x=$1; ls $x; }; f a; f b",
    "function f { ls; }\nf | cat",
    "f() { ls; }; trap f EXIT; trap 'ls a; cat b' INT TERM; trap - EXIT",
    "eval 'ls; cat a'",
    "eval ls a",
    "while read -r line; do echo $line; done < a",
    "while IFS= read -r -d '' x; do ls $x; done",
    "IFS=,; read -ra parts <<< $x",
    "mapfile -t lines < a; echo ${lines[0]}",
    "[[ $n -gt 3 && ${#a[@]} -lt 2 ]] && ls",
    '[ "$n" -gt 3 ] || ls',
    "[ $x = y ] && ls",
    "set -euo pipefail; set -- a b; echo $1",
    "shopt -s globstar nullglob; ls **/*.py",
    "printf '\\033[1m%s' x; n=0; n=$((n + 1)); [[ $n -eq 1 ]]",
    "SECONDS=0; ls; echo $SECONDS",
    "echo ${x:=a}",
    "wait $pid",
    'declare -a x=(a b); local y=$1; export z="$HOME/a"; readonly w=b',
    "i=0; while [ $i -lt 3 ]; do i=$((i+1)); done",
    "[[ $(cat f | sort) -gt 3 ]] && ls",
    "if [[ $(cut -f1 a) -lt 12 ]]; then ls | cat '^(a|$)'; fi",
    "x=5; f() { echo $(($1 + x)); }; f 3",
    "src=a; SRC=b; crc=c; good=d; MANIFEST=e; lessons=f; ls",
    "GOOS=linux PYTHONPATH=src CC=clang NODE_OPTIONS=--x ls",
    "git -c user.name=a -c core.quotepath=off log",
    "git config --global user.email a@b",
    "git checkout $(git rev-parse HEAD)",
    'sort "$x"; rg "$x" a; for f in *.txt; do sort "$f"; done',
]


@each_row("line", ORDINARY)
def test_ordinary_shell_is_read(line: str) -> None:
    assert parse(line).dynamic == ()
    assert shell(line, allowedCommands=LISTED) == "ALLOWED"


HIDING = [
    "x='a[$(evil)]'; echo $((x))",
    "x='a[$(evil)]'; echo $((y = x + 1))",
    "read x <<< 'a[`evil`]'; ((x))",
    'x="a[\\$(evil)]"; [[ $x -gt 1 ]]',
    "x=$'a[\\x24(evil)]'; echo ${y:x}",
    "x='a[$'; y='(evil)]'; z=$x$y; echo $((z))",
    "declare -i x; x='a[$(evil)]'",
    "declare -n x=PATH",
    "a=([$(evil)]=1)",
    "a['$(evil)']=1",
    "echo ${a['$(evil)']}",
    "echo ${x@P} ${!x}",
    "echo $((evil) )",
    "((evil) )",
    "echo 'a[$(evil)]' > f; [[ $(cat f) -gt 1 ]]",
    "[[ $(cat f) -gt 1 ]] & echo 'a[$(evil)]' > f",
    "{ ls; [[ $(cat f) -gt 1 ]]; } | echo 'a[$(evil)]' > f",
    "for i in 1 2; do [[ $(cat f) -gt 1 ]]; echo 'a[$(evil)]' > f; done",
    "f() { [[ $(cat f) -gt 1 ]]; }; echo 'a[$(evil)]' > f; f",
    "declare -a 'x=($(evil))'",
    "declare -A 'x=(`evil`)'",
    "declare -a x='($(evil))'",
    "declare -a x=\\(\\$\\(evil\\)\\)",
    "x=(a); declare x='($(evil))'",
    "y='($(evil))'; declare -a x=\"$y\"",
    "f() { local -a 'x=($(evil))'; }; f",
    "export -a 'x+=($(evil))'",
    "set -- 'a[$(evil)]'; echo $(($1))",
    "f() { echo $(($1)); }; f 'a[$(evil)]'",
    "x='a[$(evil)]'; eval 'echo $((x))'",
    "x='a[$(evil)]'; eval '((x))'",
    "x='a[$(evil)]'; eval '[[ x -eq 1 ]]'",
    "x='a[$(evil)]'; trap 'echo ${y[x]}' EXIT",
    "x='a[$(evil)]' bash -c 'echo $((x))'",
    "export x='a[$(evil)]'; bash -c 'for ((i=x;i<1;i++)); do ls; done'",
    "bash -c 'echo $(($1))' x 'a[$(evil)]'",
    "z=\"a[0$\"'(evil)]'; echo $((z))",
    "p='$a'; z=\"b[0${p%a}(evil)]\"; echo $((z))",
    "q='$x(evil)]'; z=a[0${q/x}; echo $((z))",
    "read d r <<< '$ a'; z=\"b[0$d(evil)]\"; echo $((z))",
    "z=$(printf 'b[0%s(evil)]' '$'); echo $((z))",
    'p=$; z="b[0$p(evil)]"; echo $((z))',
    "false && evil() { ls; }; trap evil EXIT",
    "(evil() { ls; }); trap evil EXIT",
    "trap evil EXIT; f() { evil() { ls; }; }",
    "trap evil EXIT; set -e; false; evil() { ls; }",
    "bash -c 'evil() { ls; }'; trap evil EXIT",
    "evil() { ls; }; bash -c 'trap evil EXIT'",
    "evil() { ls; }; trap 'unset -f evil; evil' EXIT",
    "evil() { ls; }; eval 'un\\set -f evil'; evil",
    "evil() { ls; }; eval un'set -f evil'; evil",
    "evil() { ls; }; eval 'un\"\"set -f evil'; evil",
    "evil() { ls; }; trap 'un\\set -f evil' DEBUG; evil",
    "REPLY=ls; read < names; $REPLY",
    "MAPFILE=ls; mapfile -t < names; $MAPFILE",
    "FUNCNAME=ls; evil() { env $FUNCNAME; }; evil",
    "GROUPS=ls; $GROUPS",
    "histchars=ls; $histchars",
    "IFS=o; eval 'x=ls; $x'",
    "readonly x=evil; eval 'export x=ls; $x'",
    "declare -u x; eval 'x=ls; $x'",
    "f() (evil)",
    'f() { "$@"; }; f evil',
    "f() { evil; }; f",
    "evil; evil() { ls; }",
    "evil() { ls; } | ls; evil",
    "(evil() { ls; }); evil",
    "if ls; then evil() { ls; }; fi; evil",
    "ls && evil() { ls; }; evil",
    "evil() { ls; }; env evil",
    "evil() { ls; }; bash -c evil",
    "evil() { ls; }; unset -f evil; evil",
    "evil() { ls; }; eval 'unset evil'; evil",
    "cd() { ls; }",
    "trap evil DEBUG; evil() { ls; }",
    'trap "$x" EXIT',
    'eval "$x"',
    "eval 'evil'",
    "x=evil; $x",
    "x=ls; x=evil; $x",
    "x=ls; false && x=evil; $x",
    "x=evil y=$x; $y",
    "x=ls | ls; $x",
    "x=ls & $x",
    "(x=ls); $x",
    "if ls; then x=ls; fi; $x",
    "ls || x=ls; $x",
    "f() { x=evil; }; x=ls; f; $x",
    "x=ls; read x; $x",
    "x=ls; printf -v x evil; $x",
    "x=ls; eval x=evil; $x",
    "declare -u x; x=ls; $x",
    "IFS=v; x=lsvil; $x",
    "r=read; x=ls; $r x <<< evil; $x",
    "r=read; x=ls; command $r x <<< evil; $x",
    "x=ls; command read x <<< evil; $x",
    "x=ls; time read x <<< evil; $x",
    "x=ls; command -p read x <<< evil; $x",
    "evil() { ls; }; command unset -f evil; evil",
    "evil() { ls; }; f=evil; unset $f; evil",
    "for x in --pre=evil; do rg $x a; done",
    "x=--pre=evil; rg $x a",
    "export x=--pre=evil; bash -c 'rg $x a'",
    "x=--pre=evil bash -c 'rg $x a'",
    "rg $(echo --pre=evil) a",
    "git -c core.pager=evil log",
    "git config core.hooksPath evil",
    "RANDOM='a[$(evil)]'",
    "SECONDS=a[0]",
]


@each_row("line", HIDING)
def test_what_they_could_hide_is_refused(line: str) -> None:
    assert shell(line, allowedCommands=LISTED) == "DENIED"


@each_row(
    ("line", "program"),
    [
        ("x=ls; $x a", "ls"),
        ("x=ls && $x a", "ls"),
        ("cat b && x=ls && $x a", "ls"),
        ("{ x=ls; $x a; }", "ls"),
        ("export x=ls; $x a", "ls"),
        ("x=l; y=${x}s; $y a", "ls"),
        ("x=ls; f() { $x a; }; f", "ls"),
        ("x=ls; (true; $x a)", "ls"),
        ("x=ls; echo $($x a)", "ls"),
        ("x=ls; if true; then $x a; fi", "ls"),
        ("if true; then x=ls; $x a; else true; fi", "ls"),
    ],
)
def test_a_variable_that_nothing_else_sets_is_known(line: str, program: str) -> None:
    assert SimpleCommand(program, ("a",)) in parse(line).commands
    assert parse(line).dynamic == ()


def judged(line: str, environment: dict[str, str], shell_name: ShellName = "bash") -> str:
    held = bundle(
        {"name": "Shell.Exec", "allowedCommands": ["ls", "cd", "echo"]}, {"name": "File.Write", "allowedPaths": ["/w"]}
    )
    facts = CommandFacts(line, "/w", shell_name, "/home/u", environment=environment)
    paths = paths_in_line(parse_line(facts), "/w", "/home/u")
    answer = check_tool(held, "Shell.Exec", facts._replace(real_paths={one: one for one in paths}), now=NOW)
    return answer.decision


@each_row(
    ("line", "value", "expected"),
    [
        ("ls > $X", "/w/a", "ALLOWED"),
        ('ls > "$X/b"', "/w/a", "ALLOWED"),
        ("ls > ${X}.txt", "a", "ALLOWED"),
        ("cd $X; ls > a", "/w/sub", "ALLOWED"),
        ("ls > $X", "/etc/a", "DENIED"),
        ("cd $X; ls > a", "/etc", "DENIED"),
        ("ls > $X", "a b", "DENIED"),
        ('ls > "$X"', "a b", "ALLOWED"),
        ("ls > $X", "", "DENIED"),
        ('ls > "a$X"', "", "ALLOWED"),
        ("X=/etc/a; ls > $X", "/w/a", "DENIED"),
        ("ls > $X; X=/etc/a", "/w/a", "DENIED"),
        ("bash -c 'ls > $X'", "/w/a", "DENIED"),
        ("$X a", "ls", "ALLOWED"),
        ("$X a", "evil", "DENIED"),
        ("ls > $PWD/a", "/w", "DENIED"),
    ],
)
def test_what_the_environment_gives_is_a_fact(line: str, value: str, expected: str) -> None:
    assert judged(line, {"X": value, "PWD": value}) == expected
    assert judged(line, {}) == "DENIED"


def test_an_element_of_an_array_is_the_name_of_a_program_to_sh() -> None:
    assert shell("a[1]=b ls", allowedCommands=LISTED) == "ALLOWED"
    assert shell("a[1]=b ls", shell_name="sh", allowedCommands=LISTED) == "DENIED"


def test_zsh_has_variables_of_its_own() -> None:
    assert judged("ls > $X", {"X": "/w/a"}, "zsh") == "DENIED"


def test_the_names_that_a_line_reads_are_all_that_is_asked_for() -> None:
    assert names_read("ls $A ${B} ${#C} ${D:-x} '$E' $1 $? \\$F") == {"A", "B", "C", "D", "E", "F"}
    assert names_read("ls A") == frozenset()


@each_row(
    ("line", "commands"),
    [
        ("c='ls -la'; $c x", [("ls", "-la", "x")]),
        ('c="ls -la"; $c', [("ls", "-la")]),
        ('c="ls -la"; timeout 5 $c x', [("timeout", "5", "ls", "-la", "x"), ("ls", "-la", "x")]),
        ("o='-l -a'; ls $o b", [("ls", "-l", "-a", "b")]),
        ('c=(ls "a b"); "${c[@]}" x', [("ls", "a b", "x")]),
        ("c=(ls -la); ${c[@]} x", [("ls", "-la", "x")]),
        ('a=(); ls "${a[@]}" b', [("ls", "b")]),
        ("c=ls; test a && c=cat; $c a", [("test", "a"), ("ls", "a"), ("cat", "a")]),
        ('c=ls; if test a; then c="cat -n"; fi; $c a', [("test", "a"), ("ls", "a"), ("cat", "-n", "a")]),
        ("for c in ls cat; do $c a; done", [("ls", "a"), ("cat", "a")]),
        ("c=ls; readonly d=$c; $d", [("readonly", None), ("ls",)]),
        ("(cd build && ../configure)", [("cd", "build"), ("../configure",)]),
    ],
)
def test_a_command_in_a_variable_that_the_line_sets_is_known(line: str, commands: list[tuple[str, ...]]) -> None:
    assert [(one.program, *one.arguments) for one in parse(line).commands] == commands
    assert parse(line).dynamic == ()


@each_row(
    "line",
    [
        "c=ls; c=$(cat b); $c",
        "test a && c=ls; $c evil",
        "c=; test a && c=ls; $c evil",
        "c=ls; read c; $c",
        "c=ls; f() { c=evil; }; read c; f; $c",
        "c='ls *'; $c",
        "c='ls; evil'; $c",
        "IFS=,; c='ls,a'; $c",
        '(c="ls -la"); $c',
        "c=(ls); c+=(evil); ${c[@]}",
        "c=('ls a' b); ${c[@]}",
        'c=(ls b); "${c[*]}"',
        'a=(); "${a[@]}" evil',
        "c=ls; test a && c=evil; $c a",
        "for c in ls evil; do $c a; done",
        "for c in ls; do $c; done; $c evil",
        "for c in ls; do c=evil; $c; done",
        "c='evil a'; $c",
        "c='cd b'; $c",
        "unset c; c=ls; unset c; $c evil",
        "c=ls; { $c a; }; declare c=evil; $c",
    ],
)
def test_one_that_is_not_certain_is_not(line: str) -> None:
    assert shell(line, allowedCommands=LISTED) == "DENIED"


@each_row(
    "operand", ["#refs/tags/", "#refs\\/tags\\/", "//\\//-", "%\\.py", "/\\*/x", "##*\\/", "//\\\\./_", "//\\ /_"]
)
def test_an_expansion_may_have_escapes(operand: str) -> None:
    for line in (f"echo ${{X{operand}}}", f'echo "${{X{operand}}}"', f"y=${{X{operand}}}; echo $y"):
        assert shell(line, allowedCommands=["echo"]) == ("DENIED" if "\\\\" in operand else "ALLOWED")
