"""Words by bash's own grammar of them, in the places where the grammar that reads them may end them elsewhere.

Every expansion with every operator, text inside of it that closes what was not opened, quotes and substitutions at any
depth, and the operators of tests as plain words. What stands behind such a word is a program that no list names, so a
word that ends too late for the reader hides it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

_PARAMETERS = ("x", "x", "x", "y", "HOME", "1", "@", "*", "#", "?", "-", "$", "!", "x[0]", "x[@]", "10")
_BEFORE = ("", "", "", "", "", "#", "!")
_OPERATORS = (
    "", ":-", "-", ":=", "=", ":?", "?", ":+", "+", "#", "##", "%", "%%", "%", "%%", "/", "//", "/#", "/%", ":", "^",
    "^^", ",", ",,", "@", "~",
)  # fmt: skip
_LITERALS = (
    "a", "b", ".", "/", "*", "?", "[a]", "[!a]", "@", "=", ":", "~", "#", "!", "%", "+", "-", "1", "é", "a.txt", "..",
)  # fmt: skip
_UNBALANCED = (
    "{", "}", "{", "}", "(", ")", "'", '"', "`", "\\", "\\}", "\\{", "$", "[", "]", "<", ">", ";", "|", "&", "\n", " ",
    "; evil ", " evil ", ";evil #", "\nevil\n", "|evil ", "&&evil ", "<(", "$(", "${", "$((", "))", "'}'", '"}"', "#",
)  # fmt: skip
_TEST_OPERATORS = (
    "=~", "==", "=", "!=", "<", ">", "-eq", "-ne", "-lt", "-n", "-z", "-f", "-v", "-a", "-o", "!", "(", ")", "]]", "[[",
)  # fmt: skip
_SEPARATORS = (";", "; ", "|", "&&", " && ", "||", "&", "\n", ">>out/a;", ">out/a ", "<a.txt;", ";;", "|&")
_FRAMES = (
    "echo {w}", "echo {w} {w}", "echo {w}{s}evil {c}", "echo {w}{s}ls {w}", "(echo {t} {w}{s}evil )", "(echo {t} {w})",
    "(echo a {t} {w}{s}evil {c})", "{ echo {t} {w}{s}evil; }", "echo $(echo {t} {w}{s}evil )", "[ {w} {t} {w} ]",
    "[ {w} {t} {w}{s}evil ]", "[ {t} {w}{s}evil ]", "[[ {w} {t} {w} ]]{s}ls", "[[ {w} {t} {w}{s}evil ]]",
    "test {w} {t} {w}{s}evil", "x={w} ls", "x={w}{s}evil {c}", "x={w}", "ls > out/a{w}", "ls > out/a {w}{s}evil {c}",
    "cat < a.txt {w}", "cat <<E\n{w}\nE", "cat <<< {w}{s}evil {c}", "case {w} in {w}) ls;; esac",
    "case a in {w}{s}evil {c}) ls;; esac", "for x in {w}; do ls; done", "if (echo {t} {w}{s}evil ); then ls; fi",
    "while false; do echo {w}; done", "export x={w}{s}evil {c}", "printf {w} | cat {w}", "! echo {t} {w}{s}evil",
    "bash -c 'echo {w}'", 'echo "{w}"{s}evil "{c}"', "echo `echo {t} {w}{s}evil `", "time echo {w}", "find . -name {w}",
)  # fmt: skip
_STATEFUL = (
    "x={w}; $x a", 'x={w}; "$x" a', "x=ls; x={w}; $x", "if ls; then x={w}; fi; $x a", "x=ls && false || x=evil; $x a",
    "x=ls | x=evil; $x a", "x=ls & x=evil; $x", "(x=ls); $x", "x=ls; (x=evil; $x a)", "x=ls; { x=evil; }; $x",
    "f() { x=evil; }; x=ls; f; $x", "x=ls; f() { $x; }; x=evil; f", "f() { {w}; }; f", "f() { ls {w}; }; f {w}",
    "f() { ls; }; unset -f f; f", "evil() { ls; }; evil", "(evil() { ls; }); evil", "evil; evil() { ls; }",
    "evil() { ls; } | ls; evil", "evil() { ls; }; bash -c evil", "evil() { ls; }; env evil", "$(evil() { ls; }); evil",
    "if ls; then evil() { ls; }; fi; evil", "evil() { ls; }; x=evil; $x", "ls && evil() { ls; }; evil",
    "false && evil() { ls; }; evil", "cd() { ls; }; cd sub; echo a > out/a", "f() { cd sub; }; f; echo a > out/a",
    "f() { echo a > out/a; }; cd sub; f", "x={w}; echo a > $x", 'x=out/a; echo a > "$x"', "x=out; cd $x; echo a > a",
    "x=out/a; cd sub; echo a > $x", "for x in {w} {w}; do echo a > out/$x; done", "eval {w}", "eval 'x=evil'; $x a",
    "x=ls; eval x=evil; $x", "eval 'evil() { ls; }'; evil", "trap {w} EXIT", "trap 'evil {w}' EXIT", "trap evil DEBUG",
    "evil() { ls; }; trap evil EXIT", "trap evil DEBUG; evil() { ls; }; ls", "for x in {w}; do rg $x a; done",
    "for x in --pre=evil; do rg $x a; done", "x=--pre=evil; rg $x a", "for x in *; do echo a > out/$x; done",
    "x=--pre=evil bash -c 'rg $x a'", "export x=--pre=evil; bash -c 'rg $x a'", "read x <<< {w}; $x a",
    "for ((x=0;x<2;x++)); do echo $((x+{w})); done", "for ((x={w};x<1;x++)); do ls; break; done", "echo $((x+{w}))",
    "a=({w} {w}); echo ${a[{w}]}", "a=(ls evil); ${a[1]}", "a[{w}]=1", "a=([{w}]=1)", "x='a[$(evil)]'; echo $((x))",
    "x='a[$(evil)]'; echo $((y=x))", "x='a[$(evil)]'; [[ $x -eq 1 ]]", "x='$(evil)'; echo ${y[a[$x]]}",
    "echo ${x:{w}:{w}}", "x='a[$(evil)]'; echo ${y:x}", "read x <<< 'a[$(evil)]'; echo $((x))", "[[ {w} -eq {w} ]]",
    "printf -v x {w}; $x a", "x=ls; printf -v x evil; $x a", "x=ls; read x <<< evil; $x a", "x=ls; local x=evil; $x a",
    "x=ls; declare -l x; x=EVIL; $x", "x=ls; unset x; ${x:=evil}", "${x:=evil} a", "x=ls; export x=evil; $x a",
    "IFS=x; y=lsxevil; $y", "IFS=v; y=out/av; echo a > $y", "y=ls; IFS=s; $y a", "set -- evil; $1", 'set -- evil; "$@"',
    "shopt -s nullglob; ls {w}", "source a.txt; ls", "x=ls; while ls; do $x; x=evil; break; done", "time x=evil; $x a",
    "{ x=ls; } > out/a; $x a", "x=ls > out/a; $x", "x=ls; case a in a) x=evil;; esac; $x a", "x=ls; ! x=evil; $x a",
    "x=$(echo evil); $x a", "x=evil; y=$x; $y a", "x=evil y=$x; $y a", "x=ls; x+=evil; $x a", "y=x; x=ls; ${!y} a",
    "bash -c {w}", "bash -ec {w}", "bash -lc 'evil {w}'", "bash {w} evil", "xargs bash -c {w}", "bash -c -- {w}",
    "declare -a 'y=([$(evil)]=1)'", "declare -a y='({w} $(evil))'", "local 'y=($(evil))'", "export y='($(evil))'; $y",
    "typeset -A y='([a]=$(evil))'", "set -- 'a[$(evil)]'; echo $(($1))", "set -- 'a[$(evil)]'; [[ $1 -gt {w} ]]",
    "set -- 'a[$(evil)]'; echo ${y:$1}", "eval 'x=a[$(evil)]'; echo $((x))", "eval x='a[\\$(evil)]'; (( x > 1 ))",
    "read <<< 'a[$(evil)]'; echo $((REPLY))", "mapfile -t <<< 'a[$(evil)]'; echo $((MAPFILE))",
    "read -a y <<< 'a[$(evil)]'; echo $((y))", "for x in 'a[$(evil)]'; do echo $((x)); done",
    "f() { ls; }; trap f EXIT; f() { evil; }", "trap f EXIT; f() { evil; }", "trap 'f {w}' DEBUG; f() { evil; }; ls",
    "eval 'f() { evil; }'; f", "f() { ls; }; eval 'f() { evil; }'; f", "trap 'x=evil' DEBUG; x=ls; $x a",
    "while ls; do echo $((x)); x='a[$(evil)]'; break; done; echo $((x))", "x='a[$(evil)]' | echo $((x))",
    "y='a[$(evil)]'; x=y; echo $((x))", "y='$(evil)'; [[ -v a[$y] ]]", "y='a[$(evil)]'; test -v $y",
    "y='a[$(evil)]'; unset $y", "y='a[$(evil)]'; printf -v $y 1", "y='a[$(evil)]'; read $y <<< 1",
    "((PATH=3)); ls", "ls $((PATH=3)); ls a", "[[ PATH=3 -eq {w} ]]; ls", "printf 'a%n' PATH; ls", "((PATH={w})); ls",
    "printf '{w}%3n' PATH; ls", "x='PATH=3'; echo $((x)); ls", "read x <<< PATH=3; ((x)); ls", "ls $((x{w}PATH=3)); ls",
    "set -- PATH=3; (($1)); ls", "x=PATH; (($x=3)); ls", "x=PA; ((${x}TH=3)); ls",
    "for x in PATH=3; do ((x)); ls; done",
    "x=PATH=3; [[ x -eq {w} ]]; ls", "echo ${x:PATH=3}; ls", "a[PATH=3]=1; ls", "x=%n; printf $x PATH; ls",
    "n=3; n=${n//[^0-9]/}; x='a[$(evil)]'; n=$x; echo $((n))", "n='a[$(evil)]'; n=${n//[^0-9]/}; echo $((n))",
    "while read n; do echo $((n)); n=${n//[^0-9]/}; done <<< 'a[$(evil)]'", "n=$(wc -l < names); echo $((n))",
    "bash <<E\nevil {w}\nE", "bash <<'E'\n{w} evil\nE", "echo evil {w} | sh", "echo {w}; evil | sh",
    "echo '{w}' | bash",
    "printf 'ls\\nevil {w}' | sh", "printf '%s %b' {w} evil | bash", "sh <<< 'evil {w}'",
    'bash <<< "{w}"', "sh <<< {w}",
    "bash <(echo evil {w})", "source /dev/stdin <<< 'evil {w}'", 'eval "$(echo evil {w})"', "eval $(echo {w})",
    "sh -c $'evil\\n{w}'", "sh -c $'{w}'", "cat <<E | sh\nevil {w}\nE", "cat <<E | bash\n{w}\nE", 'bash -c "{w} $x"',
    "{ echo ls; echo {w}; } | sh", "while ls; do sh; break; done <<< 'evil {w}'",
    "echo -e 'ls\\n{w}' | bash", "ls {s} {w} | sh",
    "c='evil a'; $c", "c='ls {w}'; $c", "c='{w}'; $c a", 'c=(ls {w}); "${c[@]}"',
    "c=({w} a); ${c[@]}", "c=ls; ls && c={w}; $c a",
    "for c in ls {w}; do $c a; done", 'a=(); "${a[@]}" evil', 'a=({w}); ls "${a[@]}"; "${a[@]}"',
    "c=ls; {w}; $c", "ls {s}; evil",
    "case a in a) ls ;; b) ls {s} evil ;; esac", "ls - 2>{w} evil", "cat - <<E{s}evil\n{w}\nE", "ls >&- {w}{s}evil",
    "y='a[$(evil)]'; echo ${!y}", "y='a[$(evil)]'; z[$y]=1", "y='a[$(evil)]'; let z=$y", "let 'y=a[$(evil)]' {w}",
)  # fmt: skip
"""Lines whose later commands depend on what earlier ones have set: variables, functions, directories, numbers."""
_SHARE_OF_STATE = 0.4
_CLOSERS = ("}", "}", ")", "'", '"', "`", "]", "]]", "a", "")


class Words:
    """Lines around such words; the same `random` gives the same ones."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def line(self) -> str:
        """The next line."""
        parts: dict[str, Callable[[], str]] = {
            "{w}": lambda: self.word(self._random.choice((0, 1, 1, 2))),
            "{t}": lambda: self._pick(_TEST_OPERATORS),
            "{s}": lambda: self._pick(_SEPARATORS),
            "{c}": lambda: self._pick(_CLOSERS),
        }
        line = self._pick(_STATEFUL if self._random.random() < _SHARE_OF_STATE else _FRAMES)
        for mark, make in parts.items():
            first, *others = line.split(mark)
            line = first + "".join(make() + other for other in others)
        return line

    def word(self, depth: int) -> str:
        """One word, or what looks like one."""
        return "".join(self._piece(depth) for _ in range(self._random.choice((1, 1, 1, 2, 3))))

    def _piece(self, depth: int) -> str:
        kind = self._random.random()
        if kind < 0.25 or depth < 0:
            return self._pick(_LITERALS)
        if kind < 0.65:
            return self._expansion(depth)
        if kind < 0.72:
            return self._pick(("'{}'", '"{}"', "$'{}'", '$"{}"')).format(self._inner(depth - 1))
        if kind < 0.82:
            return self._pick(("$(ls {})", "`ls {}`", "<(ls {})", "$(({}))", "$(echo {})", "{{a,{}}}")).format(
                self._inner(depth - 1)
            )
        if kind < 0.9:
            return self._pick(_TEST_OPERATORS)
        return "$" + self._pick(_PARAMETERS[:12])

    def _expansion(self, depth: int) -> str:
        head = "${" + self._pick(_BEFORE) + self._pick(_PARAMETERS)
        operator = self._pick(_OPERATORS)
        inner = self._pick(_UNBALANCED) if self._random.random() < 0.3 else self._inner(depth - 1)
        return f"{head}{operator}{inner if operator else ''}}}"

    def _inner(self, depth: int) -> str:
        """What stands in quotes, substitutions and behind operators, closed or not."""
        made = []
        for _ in range(self._random.choice((0, 1, 1, 2, 3))):
            kind = self._random.random()
            if kind < 0.5:
                made.append(self._pick(_LITERALS))
            elif kind < 0.75:
                made.append(self._pick(_UNBALANCED))
            elif depth >= 0:
                made.append(self._piece(depth))
        return "".join(made)

    def _pick(self, options: Sequence[str]) -> str:
        return options[self._random.randrange(len(options))]
