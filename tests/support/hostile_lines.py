"""Command lines made to keep a policy busy: one piece over and over, nesting, soup with a fixed seed, awkward sizes.

Each line is about 100 KB, unless its name says that it is small. None names a program but those of `PROGRAMS`.
"""

from __future__ import annotations

import random
import shlex

SIZE = 100_000
PROGRAMS = ("a", "echo", "cat", "sh", "env", "xargs", "sudo", "find", "sed", "export")

_SPELLED = (
    r"""( ) )) $( $(( (( ((1)); (a); (a) $(a) $((1+1))_ $((a $[ $[1] <( >( cat_<( @( !( +(a) ?( a() """
    r"""f()_{_ =( a=( a=(b_ a=() { {_ } {_a;}; {a,b} {a,b}_ {a, {1..9}_ , .. [ [_ ] ]] [a]_ """
    r"""[_a_]_&&_ [_-f_a_]; [[_ [[_a_ [[_a_=~_ [[_a_==_ [[_( =~_ -lt_ -a_ `a`_ ` "`a`" "$( "$(a)"_ """
    r""""${a:- ${ ${a ${a} ${a# ${a[ ${!a ${#a} ${a##*/} ${a:- ${a/b/c} ${a:1:2} $ $a_ $a "$a"_ a$ """
    r"""$@ $* $# $? $1$2 $$ $'a'_ $" ' " '" "' '' "" 'a'_"b"_ a'b'"c" a\_b \ \' \" \n \\n a\\n ~ """
    r"""~a_ * a*_ ? # #_ #_a\n a#b % ^ ! !_ = a= a=b_c; A=1_ A=1; a[1]= a[ + -- 1 1_ 10#1_ a1 é é_ """
    r"""\0 \s x a_ a\n _ ; a; ;; & && &&_ a_&_ a_&&_ a_&&_b_||_ | a| a||b_ a|& a|| |& a|b&&c; < << <<< """
    r"""<a_ <<a <<a_ <<a\n <<-a\n <<<a_ a_<<<a_ <<'E'\n cat_<<'E'\nb\nE\n cat_<<E\nb\nE\n """
    r"""cat_<<E\n$b\nE\n cat_<<-E\n\tb\n\tE\n > >a >a_ >a>b >> >& &> 2> 1>&2_ a>b; a_2>&1| >|a_ """
    r"""if_a;_then_ then_ do_ in_ fi; done; esac; while_a;_do_ until_a;_do_ for_a_in_b;_do_ """
    r"""case_a_in_ case_a_in_a)_ case_a_in_a)_b;;esac; select_a_in_b;_do_ function_ function_a_ """
    r"""coproc_ time_ exec_ eval_ env_ sudo_ xargs_ xargs_a; env_A=1_ find_._-exec_ """
    r"""find_._-exec_a_{}_+; sh_-c_ sh_-c_'a;b'; sh_-c_a; xargs_sh_-c_ export_ export_a=b; """
    r"""declare_ local_ read_a; unset_a; git_ sed_ sed_s/a/b/_a; awk_{}_ cd_a; cd_a>b; echo_a; """
    r"""echo_a>b; ==a)_ a)_ )$' \a)_/ |do_ ${a!-lt_ a)_unset_while_"""
)
_PIECES = _SPELLED.split()
"""`_` stands for a blank, `\\s` for one that the shell does not know."""
_NESTED = (
    ("(", ")"), ("(a;", ";a)"), ("(a|", ")"), ("$(a ", ")"), ('"$(a ', ')"'), ("{ ", "; }"), ("((", "))"),
    ("$((", "))"), ("${a:-", "}"), ('"${a:-', '}"'), ("if a; then ", "; fi"), ("while a; do ", "; done"),
    ("case a in a) ", ";; esac"),
    ("[[ ! ", " ]]"), ("[[ $(", ") ]]"), ("[[ ( ", " ) ]]"), ("<(", ")"), ("cat <(", ")"), ("a=(", ")"), ("@(", ")"),
    ("{a,", "}"), ("`", "`"), ("f() { ", "; }"), ("! ", ""), ("for a in b; do ", "; done"),
)  # fmt: skip
_SOUP = "ls evil;&|()<>{}$`'\"\\\n #=*?[]!~-@%^+:,0"
_FEW = 140


def _piece(spelled: str) -> str:
    return (
        spelled.replace("_", " ")
        .replace("\\n", "\n")
        .replace("\\t", "\t")
        .replace("\\0", "\0")
        .replace("\\s", "\u00a0")
    )


def _soups() -> dict[str, str]:
    pieces = [_piece(one) for one in _PIECES]
    lines: dict[str, str] = {}
    for seed in range(8):
        dice = random.Random(seed)
        lines[f"letters, seed {seed}"] = "".join(dice.choices(_SOUP, k=SIZE))
        for kinds in (2, 4, 32):
            chosen = dice.sample(pieces, kinds)
            lines[f"{kinds} kinds of pieces, seed {seed}"] = "".join(dice.choices(chosen, k=SIZE))[:SIZE]
    return lines


def _inner_shells() -> str:
    line = "a"
    while len(quoted := shlex.quote(f"sh -c {line}")) < SIZE:
        line = quoted
    return f"sh -c {line}"


def _awkward() -> dict[str, str]:
    """What costs something behind the parser."""
    deep = "a/" * 2_000
    return {
        "shells in shells": _inner_shells(),
        "a long line for a shell in a shell": "sh -c " + shlex.quote("sh -c " + shlex.quote("a;" * (SIZE // 2))),
        "files below a deep directory": f"cd {deep};" + "echo a>b;" * 8_000,
        "files below eight directories": "".join(f"cd {'a' * 900}{n};" for n in range(7)) + "echo a>b;" * 8_000,
        "one end for many -exec": "find . " + "-exec a " * 12_000 + "+",
        "one end for fewer -exec": "find . " + "-exec a " * 5_000 + "+",
        "a name like many": "export '" + "JAVA_" * (SIZE // 5) + "\n=a'",
        "an option over and over": "sort '-" + "o" * SIZE + "\n'",
        "another option over and over": "git clone '-" + "c" * SIZE + "\n'",
        "a version that is none": "1" * SIZE + "x",
        "a number behind env": "env " + "1" * SIZE + "x",
        "a sed script of blanks": "sed '" + " " * SIZE + "x'",
        "a sed script of lines": "sed '" + "p\n" * (SIZE // 2) + "x'",
        "an awk script of prints": "awk '" + "print>" * (SIZE // 6) + "'",
        "many options of env": "env " + "-u a " * (SIZE // 5) + "a",
        "32 here-documents on one line": "cat " + "".join(f"<<-E{n} " for n in range(32)) + "\n" * SIZE,
        "[[ with many operands": "[[ " + "a && " * (SIZE // 5) + "a ]]",
        "[[ with long operands": "[[ " + f"{'a' * 400} && " * (SIZE // 400) + "a ]]",
        "quotes in front of many brackets": "echo " + "'a'\"b\"" * 8_000 + "(" * (SIZE // 2),
        "brackets in quotes that are none": 'echo "\'" ' + "==a) " * (SIZE // 5) + '"\'"',
        "one word of many quotes": "echo " + "'a'" * (SIZE // 3),
        "one word of many escapes": "echo " + "\\a" * (SIZE // 2),
        "a program's name of 100 KB": "a" * SIZE,
        "arithmetic of one long name": "((" + "a" * SIZE + "))",
        "arithmetic of long names": "echo $((" + "$aaaaaaaa" * (SIZE // 9) + "'))",
        "arithmetic of names and operators": "((" + "a-" * (SIZE // 2) + "a))",
        "arithmetic of an unknown and a list of names": "read x; ((x)); echo '" + "LD_PATH " * (SIZE // 8) + "'",
        "numbers of numbers": "".join(f'n{n}="$n{n + 1}$n{n + 1}";' for n in range(900)) + "((n0))",
        "one number in many places": "n=$x;" * 1_200 + "((n));" * 800,
        "cats in front of a shell": "echo a | " + "cat - - - - | " * 40 + "sh",
        "many shells of one here-document": "{ " + "sh; " * 2_000 + "} <<E\n" + "x " * (SIZE // 3) + "\nE",
        "a text with many unknown parts": 'bash -c "' + "ls $x;" * 1_500 + '"',
        "a variable of many programs": "c=ls;" * 1_200 + "$c;" * 1_200,
        "an array that many commands are given": "a=(" + "x " * 400 + ");" + 'ls "${a[@]}";' * 800,
        "braces of commas": "rm {" + "," * SIZE,
        "braces of braces": "rm " + "{a,b}" * 20 + "{" + "a," * (SIZE // 2) + "b}",
        "many variables": "".join(f"v{n}=a;" for n in range(1_000)) + "".join(f"echo $v{n};" for n in range(1_000)),
        "many assignments of one": "v=a;" * (SIZE // 8) + "echo $v;" * 1_000,
        "variables of variables": "".join(f"v{n}=$v{n + 1}$v{n + 1};" for n in range(1_000)),
        "values that grow": "v0=aaaaaaaa;" + "".join(f"v{n + 1}=$v{n}$v{n}$v{n}$v{n};" for n in range(1_000)),
        "many functions": "".join(f"f{n}() {{ ls; }};" for n in range(500)) + "f0;" * 1_000,
        "lists in lists": "a=b" + " && x=$a" * 1_000 + "; echo > $x",
        "many loops": "for x in *; do rm $x; done;" * 400,
        "operands of rm": "rm -rf " + "a* " * (SIZE // 3),
        "operands of cp": "cp -r " + "a* " * (SIZE // 3) + "b",
        "operands of find": "find " + "a " * (SIZE // 2) + "-delete",
    }


def hostile() -> dict[str, str]:
    """Lines by name, always the same."""
    lines: dict[str, str] = {}
    for spelled in _PIECES:
        piece = _piece(spelled)
        lines[f"{piece!r} over and over"] = piece * (SIZE // len(piece))
    for spelled in _PIECES[::3]:
        piece = _piece(spelled)
        lines[f"{piece!r} some times, and a long word"] = (piece * _FEW).ljust(SIZE, "x")
        lines[f"{piece!r} some times, and many words"] = piece * _FEW + "a " * ((SIZE - len(piece) * _FEW) // 2)
    for opened, closed in _NESTED:
        deep = (SIZE - 1) // (len(opened) + len(closed))
        lines[f"{opened!r} nested"] = opened * deep + "a" + closed * deep
        lines[f"{opened!r} nested 500 times, small"] = opened * 500 + "a" + closed * 500
    return {**lines, **_soups(), **_awkward()}


def useful() -> dict[str, str]:
    """Large lines that a policy has to allow: they name `echo`, `cat` and a file `f`, and nothing is expanded."""
    code = "def f(x):\n    return {'a': [x, (1, 2)]}  # it's `so` $(x) \\ | ; <<E\n"
    return {
        "2,000 segments with &&": " && ".join(["echo a"] * 2_000),
        "2,000 segments with ;": "; ".join(["echo a"] * 2_000),
        "a single-quoted argument of 100 KB": "echo '" + "b" * SIZE + "'",
        "a single-quoted argument of code": "echo " + shlex.quote((code * 1_500)[:SIZE].replace("'", '"')),
        "a double-quoted argument of 100 KB": 'echo "' + "b (c) " * (SIZE // 6) + '"',
        "a here-document of 64 KB": "cat > f <<'EOF'\n" + code * (65_536 // len(code)) + "EOF",
        "a here-document of 64 KB that would expand": "cat > f <<EOF\n" + "some text (here)\n" * 3_800 + "EOF",
        "ten here-documents": "".join(f"cat > f <<'E{n}'\n{code * 80}E{n}\n" for n in range(10)),
    }
