"""Shell.Exec, black box: lines in, verdicts out. Many of the bypasses were published for other agents."""

from __future__ import annotations

import shlex
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.decide import check_tool
from policy.facts import CommandFacts
from policy.shell import parse, paths_in_line
from policy.shell.findings import SimpleCommand
from tests.support.rows import each_row

from .helpers import NOW, bundle, shell

EVERYDAY = [
    "ls",
    "cat",
    "grep",
    "echo",
    "head",
    "sort",
    "wc",
    "git",
    "cd",
    "python3",
    "find",
    "sed",
    "awk",
    "test",
    "[",
    "true",
    "timeout",
    "xargs",
    "env",
    "sh",
    "time",
]


@each_row(
    "command",
    [
        "ls",
        "ls -la 'a b' \"c d\" e\\ f",
        "cat a | grep -v x | sort | head -n 3 2>/dev/null",
        "cd sub && python3 -m unittest discover -q",
        "echo hi > out.txt",
        "echo hi >> sub/out.txt 2>&1",
        "cat < in.txt",
        "ls # && rm -rf /",
        "cat <<'EOF' > notes.md\n$(rm x) `rm y` ; rm z\nEOF",
        "cat <<EOF\nplain; rm x\nEOF\nls",
        "grep -rn 'rm -rf /; $(x)' .",
        "git status && git diff --stat HEAD~1 -- src/*.py",
        "git commit -m 'fix: a && b; c'",
        "git log --oneline -n 5 | cat",
        "find . -name '*.py' -not -path './.git/*' | wc -l",
        "find . -name '*.py' -exec grep -n x {} +",
        "find . -type f -print0 | xargs -0 -n1 wc -l",
        "sed -n '1,20p' a.py",
        "sed -i 's/a/b/g' a.py",
        "awk -F: '{ print $1 }' a",
        "if [ -f a ]; then cat a; else echo none; fi",
        'for f in a b; do wc -l "$f"; done',
        "(cd sub; ls) && { echo done; }",
        "timeout 5 env A=1 ls",
        "sh -c 'ls | wc -l'",
        "A=1 ls",
        "ls \\\n  -l",
        "ls &",
        "! grep -q x a",
        'echo $((1 + 2)) "$HOME" ${A:-b}',
        "time ls",
        "cat <(ls) <(cat a)",
    ],
)
def test_everyday_lines_are_allowed_when_what_they_name_is(command: str) -> None:
    assert shell(command, allowedCommands=EVERYDAY) == "ALLOWED"


UNLISTED = [
    "evil",
    "ls; evil",
    "ls && evil",
    "ls || evil",
    "ls | evil",
    "ls & evil",
    "ls\nevil",
    "ls |& evil",
    "(evil)",
    "{ evil; }",
    "! evil",
    "echo $(evil)",
    "echo `evil`",
    'echo "$(evil)"',
    'echo "${x:-$(evil)}"',
    "cat <(evil)",
    "echo x > $(evil)",
    "A=$(evil)",
    "A=$(evil) ls",
    "cat <<EOF\n$(evil)\nEOF",
    "cat <<< $(evil)",
    "cat <<EOF | evil\nx\nEOF",
    "cat <<EOF; evil\nx\nEOF",
    "cat <<EOF\nx\nEOF\nevil",
    "if true; then evil; fi",
    "if evil; then ls; fi",
    "for x in $(evil); do ls; done",
    "while true; do evil; done",
    "case x in x) evil;; esac",
    "case $(evil) in x) ls;; esac",
    "[ -n $(evil) ]",
    "[[ -n $(evil) ]]",
    "echo $(( $(evil) ))",
    "f() { evil; }; f",
    "> out evil",
    "< in evil",
    "2>/dev/null evil",
    "A=1 evil",
    "time evil",
    "time { evil; }",
    "timeout 5 evil",
    "timeout -s KILL 5 evil",
    "env A=1 evil",
    "env -i evil",
    "xargs evil",
    "find . | xargs -n 1 evil",
    "find . | xargs -I{} evil {}",
    "find . -exec evil {} +",
    "find . -exec evil {} \\;",
    "sh -c evil",
    "sh -c 'ls; evil'",
    "sh -c \"sh -c 'evil'\"",
    "ev''il",
    "'evil'",
    "\\evil",
    'e"vi"l',
    "/usr/bin/evil",
    "./ls",
    "/tmp/evil/ls",
    "../ls",
    "ls -l;evil",
    "coproc evil",
    "exec evil",
    "command evil",
    "builtin evil",
    "nohup evil",
    "sudo evil",
    "e\\\nvil",
    "ls\\\n;evil",
    "function f { evil; }",
    "select x in a; do evil; done",
    "until evil; do ls; done",
    "ls > >(evil)",
]


@each_row("command", UNLISTED)
def test_no_unlisted_program_rides_along(command: str) -> None:
    assert shell(command, allowedCommands=EVERYDAY) == "DENIED"


@each_row("command", [line for line in UNLISTED if "evil" in line and "/evil/" not in line])
def test_a_blocked_program_is_found_wherever_it_stands(command: str) -> None:
    assert shell(command, blockedCommands=["evil"]) == "DENIED"


UNDECIDABLE = [
    "$X",
    "${X}",
    "$(echo ls)",
    "`echo ls`",
    "l?",
    "{ls,-la}",
    "ls$IFS-la",
    "cat$IFS/etc/passwd",
    "alias ls=evil",
    "shopt -s expand_aliases",
    "hash -p /tmp/evil ls",
    "enable -f evil.so x",
    "export PATH=/tmp:$PATH",
    "PATH=/tmp ls",
    "PATH=/tmp; ls",
    "LD_PRELOAD=/tmp/x.so ls",
    "GIT_SSH_COMMAND=evil git fetch",
    "GIT_PAGER=evil git log",
    "PAGER=evil git log",
    "EDITOR=evil git commit",
    "BASH_ENV=/tmp/x sh -c ls",
    "PYTHONSTARTUP=x python3",
    "env LD_PRELOAD=x ls",
    "env -S 'evil x'",
    "env -C /tmp ls",
    "for PATH in /tmp; do ls; done",
    "read PATH",
    "printf -v PATH x",
    "xargs env",
    "xargs sh",
    "xargs -I{} {} x",
    "xargs find",
    "find . -fprintf /tmp/x y",
    "find . -exec {} \\;",
    "git -c core.pager=evil log",
    "git -c alias.x='!evil' x",
    "git --exec-path=/tmp status",
    "git --config-env=a=b log",
    "git config alias.x '!evil'",
    "git config --global core.pager evil",
    "git difftool -x evil",
    "git merge -s evil x",
    "git merge --strategy=evil x",
    "git merge --strat evil x",
    "git rebase -sevil x",
    "git pull --strategy evil",
    "git cherry-pick --strategy=evil x",
    "sudoedit x",
    "git grep -Oevil x",
    "git bisect visualize",
    "git rebase -x evil",
    "git submodule foreach evil",
    "git clone 'ext::sh -c evil' x",
    "git fetch --upload-pack=evil",
    "git diff --output=/etc/x",
    "git $X",
    "sed '1e evil' a",
    "sed 's/a/b/e' a",
    "sed 's/a/b/w /etc/x' a",
    "sed -n 'w /etc/x' a",
    "sed -f script a",
    'sed "$X" a',
    "awk 'BEGIN { system(\"evil\") }'",
    "awk '{ print > \"/etc/x\" }' a",
    "awk 'BEGIN { \"evil\" | getline }'",
    "awk -f script a",
    "sort -o /etc/x a",
    "sort --compress-program=evil a",
    "echo ${!X}",
    "echo ${X@P}",
    "x='a[$(evil)]'; echo $((x))",
    "x='-v a[$(evil)]'; [ $x ]",
    "test -v 'a[$(evil)]'",
    "a[$(evil)]=1",
    "ls > $X",
    'ls > "$X"',
    "cd $X && echo a > f",
    "cd - && echo a > f",
    "while true; do cd ..; echo a > f; done",
    "ls > /dev/tcp/10.0.0.1/80",
    "ls <> f",
    "echo 'a",
    'echo "a',
    "echo $(ls",
    "ls |",
    "ls\r\nevil",
    "ls\x00",
    "ls\u00a0-l; echo",
    "cat <<$X\na\n$X",
    "time -o /etc/x ls",
    "timeout $X ls",
    "if",
    "}",
    "1a=ls",
    "echo $'\\x41' $(",
]


@each_row("command", UNDECIDABLE)
@each_row("lists", [{"allowedCommands": [*EVERYDAY, "read", "printf", "export", "set", "1a=ls", "echo"]},
                                   {"blockedCommands": ["rm"]}])  # fmt: skip
def test_what_cannot_be_decided_is_denied_where_a_list_decides(command: str, lists: dict[str, Any]) -> None:
    assert shell(command, **lists) == "DENIED"


def test_what_cannot_be_decided_is_asked_about_or_left_to_a_bundle_without_lists() -> None:
    assert shell("eval $X", requiresApproval=True) == "APPROVAL_REQUIRED"
    assert shell("eval $X") == "ALLOWED"
    assert shell("eval $X", requiresApproval=True, allowedCommands=["eval"]) == "DENIED"


def test_tokens_of_the_grammar_are_words_where_they_are_arguments() -> None:
    arguments = parse('ls == a =~ ^b[0-9]+$ $ $"c" $').commands[0].arguments
    assert arguments == ("==", "a", "=~", None, "$", None, "$")
    assert parse("ls a =~ ^b[0-9]+$ ]]").commands[0].arguments == ("a", "=~", None, "]]")


def test_xargs_without_a_program_runs_echo() -> None:
    assert shell("ls | xargs", allowedCommands=["ls", "xargs"]) == "DENIED"
    assert shell("ls | xargs", allowedCommands=["ls", "xargs", "echo"]) == "ALLOWED"


def test_lists_absent_and_empty() -> None:
    assert shell("anything") == "ALLOWED"
    assert shell("ls", allowedCommands=[]) == "DENIED"
    assert shell("# nothing", allowedCommands=[]) == "DENIED"
    assert shell("ls $X", blockedCommands=[]) == "ALLOWED"
    assert shell("", allowedCommands=["ls"]) == "DENIED"


def test_blocked_comes_before_allowed_and_ignores_directory_and_case() -> None:
    assert shell("rm x", allowedCommands=["rm"], blockedCommands=["rm"]) == "DENIED"
    assert shell("/bin/RM x", blockedCommands=["rm"]) == "DENIED"
    assert shell("rm x", blockedCommands=["/bin/rm"]) == "DENIED"


def test_a_path_qualified_program_is_admitted_as_it_is_listed() -> None:
    assert shell("./tool x", allowedCommands=["./tool"]) == "ALLOWED"
    assert shell("/usr/bin/ls", allowedCommands=["/usr/bin/ls"]) == "ALLOWED"
    assert shell("ls", allowedCommands=["/usr/bin/ls"]) == "DENIED"


@each_row(
    ("command", "links"),
    [
        ("echo x > /etc/passwd", {}),
        ("echo x > ../out", {}),
        ("echo x > ~/.bashrc", {}),
        ("cd .. && echo x > out", {}),
        ("cd /tmp; echo x > out", {}),
        ("cd link && echo x > ../out", {"/w/link/../out": "/etc/out"}),
        ("cd link/.. && echo x > out", {"/w/link/../out": "/etc/out"}),
        ("cd link; cd ..; echo x > out", {"/w/link/../out": "/etc/out"}),
        ("cd a; cd ..; echo x > out", {}),
        ("cd a || true && cd .. && echo x > out", {}),
        ("(cd a) && cd .. && echo x > out", {}),
        ("cd a && eval 'cd ..' && cd .. && echo x > out", {}),
        ("cd a && cd ../.. && echo x > out", {}),
        ("ln -s /etc a && cd a && cd .. && echo x > out", {}),
        ("echo x > link/out", {"/w/link/out": "/etc/out"}),
        ("cat < /etc/shadow", {}),
        ("ls &> /etc/x", {}),
        ("ls >| /etc/x", {}),
        ("ls >& /etc/x", {}),
        ("> /etc/x", {}),
        ("{ ls; } > /etc/x", {}),
        ("sh -c 'echo x > /etc/x'", {}),
        ("cat <<EOF > /etc/x\na\nEOF", {}),
        ("exec > /etc/x", {}),
    ],
)
@each_row("lists", [{"allowedCommands": [*EVERYDAY, "exec"]}, {}])
def test_a_redirection_is_judged_as_the_file_access_it_is(
    command: str, links: dict[str, str], lists: dict[str, Any]
) -> None:
    assert shell(command, links=links, **lists) == "DENIED"


def test_redirections_need_the_file_capability_and_a_looked_up_place() -> None:
    assert shell("ls > out", files=False) == "DENIED"
    assert shell("ls > /dev/null 2>&1 < /dev/null", files=False) == "ALLOWED"


def test_arguments_are_as_written_but_for_where_cd_would_go() -> None:
    assert parse("ls '~/a' '~'", "bash").commands == (SimpleCommand("ls", ("~/a", "~")),)
    assert parse("cd '~/a'", "bash").commands == (SimpleCommand("cd", ("./~/a",)),)
    assert parse("cd ~/a", "bash").commands == (SimpleCommand("cd", ("~/a",)),)


def test_referenced_paths_leave_links_to_the_file_system() -> None:
    parsed = parse("cd sub && ls > ../a < ~/b 2> /c", "bash")
    assert paths_in_line(parsed, "/w", "/home/u") == ("/w/../a", "/w/sub/../a", "/home/u/b", "/c")
    assert paths_in_line(parse("ls > '~/x'", "bash"), "/w", "/home/u") == ("/w/./~/x",)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("status", "ALLOWED"),
        ("push", "DENIED"),
        ("log -5", "ALLOWED"),
        ("log -55", "DENIED"),
        ("log -5 x", "DENIED"),
        ("log $X", "DENIED"),
        ("", "DENIED"),
    ],
)
def test_command_policies(arguments: str, expected: str) -> None:
    rule = {
        "command": "git",
        "subcommands": ["status", "log"],
        "maxArguments": 3,
        "additionalArguments": False,
        "arguments": [{"index": 1, "pattern": "-[0-9]", "optional": True}],
    }
    assert shell(f"git {arguments}", commandPolicies=[rule]) == expected


def test_patterns_may_repeat_groups_and_one_that_is_not_usable_permits_nothing() -> None:
    def judged(line: str, pattern: str) -> str:
        return shell(line, commandPolicies=[{"command": "ls", "arguments": [{"index": 0, "pattern": pattern}]}])

    assert judged("ls " + "a" * 40, "(a+)+") == "ALLOWED"
    assert judged("ls " + "a" * 400 + "!", "(a+)+") == "DENIED"
    assert judged("ls aa", "(a)\\1") == "DENIED"
    assert judged("ls a/b/c.py", "(?:[a-z]+/)*[a-z]+\\.[a-z]+") == "ALLOWED"


def test_a_pattern_that_does_not_speak_of_a_tilde_permits_none_in_front() -> None:
    def judged(line: str, pattern: str) -> str:
        rule = {"command": "cat", "arguments": [{"index": 0, "pattern": pattern}]}
        return shell(line, allowedCommands=["cat"], commandPolicies=[rule])

    assert judged("cat a/b~", "[^/-].*") == "ALLOWED"
    assert judged("cat ~/.ssh/id_rsa", "[^/-].*") == "DENIED"
    assert judged("cat ~root/x", "[^/-].*") == "DENIED"
    assert judged("cat ~/notes", "~/[a-z]+") == "ALLOWED"


def test_two_rules_for_one_argument_both_have_to_pass() -> None:
    rules = [{"index": 0, "pattern": "a.*"}, {"index": 0, "pattern": ".*b"}]
    for argument, expected in (("ab", "ALLOWED"), ("b", "DENIED"), ("a", "DENIED")):
        assert shell(f"ls {argument}", commandPolicies=[{"command": "ls", "arguments": rules}]) == expected


@each_row(
    "command",
    [
        ";".join(["ls"] * 5_000),
        " | ".join(["ls"] * 2_000),
        "$(" * 500 + "evil" + ")" * 500,
        "(" * 20_000,
        "{ " * 5_000,
        "if true; then " * 3_000,
        "ls 'a" + "b" * 100_000,
        "a=(" * 20_000,
        "a?" * 50_000,
        "a@ " * 30_000,
        "<<a " * 20_000,
        "`" * 50_000,
        '"$(' * 30_000,
        "ls\n" * 30_000 + "evil",
        "xargs " * 15_000 + "evil",
        "x" * 200_000,
    ],
    ids=lambda text: text[:12],
)
def test_hostile_lines_are_denied_quickly(command: str) -> None:
    started = time.process_time()  # what other processes take of the machine does not count
    assert shell(command, allowedCommands=EVERYDAY) == "DENIED"
    assert time.process_time() - started < 1


def test_size_alone_is_no_reason_to_deny() -> None:
    assert shell("echo '" + "b" * 100_000 + "'", allowedCommands=["echo"]) == "ALLOWED"
    assert shell("; ".join(["ls"] * 2_000), allowedCommands=["ls"]) == "ALLOWED"
    assert shell(";".join(["ls"] * 2_000 + ["evil"]), allowedCommands=["ls"]) == "DENIED"


@each_row(
    ("name", "command", "expected"),
    [
        ("cmd", "dir /b src", "ALLOWED"),
        ("cmd", "DIR.EXE", "ALLOWED"),
        ("cmd", "dir & evil", "DENIED"),
        ("cmd", "dir %X%", "DENIED"),
        ("cmd", "dir > x", "DENIED"),
        ("cmd", "d^ir", "DENIED"),
        ("cmd", "C:\\tmp\\dir", "DENIED"),
        ("cmd", "dir,evil", "DENIED"),
        ("cmd", "dir;evil", "DENIED"),
        ("cmd", "dir\u00a0evil", "DENIED"),
        ("cmd", "dir/b", "DENIED"),
        ("cmd", "dir.", "DENIED"),
        ("cmd", "dir\\x", "DENIED"),
        ("cmd", "@dir", "DENIED"),
        ("cmd", '"dir" x', "DENIED"),
        ("cmd", "dir 'a b'", "DENIED"),
        ("cmd", 'dir "a b" c', "ALLOWED"),
        ("cmd", "dir (x)", "DENIED"),
        ("cmd", "dir !X!", "DENIED"),
        ("cmd", "dir\nevil", "DENIED"),
        ("cmd", "cmd /c dir", "DENIED"),
        ("cmd", "start dir", "DENIED"),
        ("cmd", "python a.py -c x", "ALLOWED"),
        ("cmd", "C:\\Python\\python.exe a.py", "DENIED"),
        ("cmd", "python -c x", "ALLOWED"),
        ("cmd", "PYTHON.EXE -c x", "ALLOWED"),
        ("cmd", "py -3 -c x", "ALLOWED"),
        ("cmd", "py -3 a.py", "ALLOWED"),
        ("cmd", "npm run x", "ALLOWED"),
        ("cmd", "npm ls", "ALLOWED"),
        ("cmd", "git -c alias.x=!evil x", "DENIED"),
        ("cmd", "git log -5", "ALLOWED"),
        ("cmd", "env evil", "DENIED"),
        ("cmd", "npx evil", "DENIED"),
        ("cmd", "find /i x a.txt", "ALLOWED"),
        ("powershell", "dir `evil", "DENIED"),
        ("powershell", "& dir", "DENIED"),
        ("powershell", ". dir", "DENIED"),
        ("powershell", "dir | evil", "DENIED"),
        ("powershell", "dir {evil}", "DENIED"),
        ("powershell", "dir @x", "DENIED"),
        ("powershell", "dir $x", "DENIED"),
        ("powershell", "[IO.File]::Delete", "DENIED"),
        ("powershell", "return dir", "DENIED"),
        ("powershell", "new-alias dir evil", "DENIED"),
        ("powershell", "powershell -enc x", "DENIED"),
        ("powershell", "cmd /c dir", "DENIED"),
        ("powershell", "python -c x", "ALLOWED"),
        ("powershell", "dir 'a b' \"c\"", "ALLOWED"),
        ("powershell", "dir src", "ALLOWED"),
        ("powershell", "dir; evil", "DENIED"),
        ("powershell", "dir $(evil)", "DENIED"),
        ("powershell", "iex dir", "DENIED"),
        ("powershell", '"dir', "DENIED"),
        ("zsh", "dir 'a b' | dir", "ALLOWED"),
        ("zsh", "dir *(e:evil:)", "DENIED"),
        ("zsh", "=dir", "DENIED"),
    ],
)
def test_other_shells(name: str, command: str, expected: str) -> None:
    listed = [
        "dir",
        "iex",
        "python",
        "py",
        "npm",
        "npx",
        "git",
        "env",
        "find",
        "cmd",
        "start",
        "return",
        "new-alias",
        ".",
    ]
    assert shell(command, shell_name=name, allowedCommands=listed) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("command", "blocked"),
    [("erase x", "del"), ("del x", "erase"), ("rd /s x", "rmdir"), ("DEL.EXE x", "del"), ("del/q x", "del")],
)
def test_second_names_of_cmd_do_not_hide_a_blocked_command(command: str, blocked: str) -> None:
    assert shell(command, shell_name="cmd", blockedCommands=[blocked]) == "DENIED"
    assert shell("copy a b", shell_name="cmd", blockedCommands=[blocked]) == "ALLOWED"


@each_row(
    "command",
    [
        "dir 'a $b `c` *(e:x:)' | dir",
        "PORT=1 dir",
        'dir "$HOME/x" $HOME ~/x',
        "dir *.py src/?",
        'x=$(dir); dir "$x"',
        "dir --a=b && ! dir",
        "[ -f a ] || dir > out 2>&1",
        "for f in *.py; do dir $f; done",
        '[ -n "$x" ] && dir; printf "%s %b" "$x" a; printf %5d 1; exit 1',
        "[ 1 -eq 2 ]; COLUMNS=80 dir",
    ],
)
def test_zsh_is_decided_where_it_reads_like_bash(command: str) -> None:
    assert shell(command, shell_name="zsh", allowedCommands=["dir", "[", "printf", "exit"]) == "ALLOWED"


@each_row(
    "command",
    [
        "dir *(e:evil:)", "dir x*(#qe:evil:)", "=dir", "dir =evil", "dir $x[$(evil)]", 'dir "$x[1]"', "dir $x:h",
        "dir ${(e)x}",
        "dir $~x", "dir $=x", "dir ~evil", "dir ~[evil]", "dir <1-5>", "dir **/*(.)", "- dir", "repeat 3 dir",
        "noglob evil",
        "foreach x (a) dir; end", "dir {a..b}", "dir $((x))", "dir `evil`", "dir 'a' # don't; evil",
        "dir <<'E'\n'\nE\nevil",
        "integer x", "if [[ a ]] { dir }", "() { evil }", "dir $'a\\'b'", "dir x^y", "dir \\'*(e:evil:)\\'",
        "[ 'a[$(evil)]' -eq 1 ]", '[ "$x" -eq 1 ]', "test 1 -lt 'a[`evil`]'", "printf %d 'a[$(evil)]'",
        'printf %5.2f "$x"',
        "printf '%*s' 'a[$(evil)]' x", "exit 'a[$(evil)]'", "COLUMNS='a[$(evil)]' dir", "LINES='a[$(evil)]'",
        "dir \"$(dir '\"')\" *(e:evil:) '", "dir 'a'*(e:evil:)", "dir a#'\n*(e:evil:)'", "dir `dir '`' *(e:evil:)'",
    ],
)  # fmt: skip
@each_row(
    "lists",
    [
        {"allowedCommands": ["dir", "-", "repeat", "integer", "[", "test", "printf", "exit"]},
        {"blockedCommands": ["evil"]},
    ],
)
def test_what_zsh_reads_differently_is_not_decided(command: str, lists: dict[str, Any]) -> None:
    assert shell(command, shell_name="zsh", **lists) == "DENIED"


def test_powershell_aliases_do_not_hide_a_blocked_command() -> None:
    assert shell("rm x", shell_name="powershell", blockedCommands=["Remove-Item"]) == "DENIED"
    assert shell("ri x", shell_name="powershell", blockedCommands=["rm"]) == "DENIED"
    assert shell("Remove-Item x", shell_name="powershell", blockedCommands=["ri"]) == "DENIED"
    full = "Microsoft.PowerShell.Management\\Remove-Item x"
    assert shell(full, shell_name="powershell", blockedCommands=["rm"]) == "DENIED"


@settings(max_examples=300)
@given(st.text(alphabet="ls evil;&|()<>{}$`'\"\\\n #=*?[]!~-@%^+:,0", max_size=60))
def test_no_line_raises_and_a_split_line_agrees_with_the_tree(line: str) -> None:
    parsed = parse(line, "bash")
    if parsed.dynamic or set(line) & set("\n#$`(){}!*?[]=<>~'\"\\"):
        return
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    words, starts, first = list(lexer), [], True
    for word in words:
        if set(word) <= set(";&|"):
            first = True
        elif first:
            starts.append(word)
            first = False
    assert [one.program for one in parsed.commands] == starts


WORDS = st.text(alphabet="abc $`'\"\\;&|<>(){}*?[]~#!=\n", max_size=12)


@settings(max_examples=300)
@given(st.lists(WORDS, max_size=5))
def test_quoted_arguments_are_read_back_as_they_were(arguments: list[str]) -> None:
    quoted = [shlex.quote(one) if one.strip("=") else f"'{one}'" for one in arguments]  # the grammar reads no bare `==`
    parsed = parse(" ".join(["ls", *quoted]), "bash")
    assert parsed.dynamic == ()
    assert [(one.program, one.arguments) for one in parsed.commands] == [("ls", tuple(arguments))]


@settings(max_examples=200)
@given(
    st.lists(
        st.sampled_from(
            ["ls", "evil", ";", "&&", "|", "\n", "$(", ")", "`", '"', "{ ", " }", "'", " ", "<<E\n", "\nE\n"]
        ),
        max_size=14,
    )
)
def test_an_allowed_line_has_no_unlisted_word_in_command_position(pieces: list[str]) -> None:
    line = "".join(pieces)
    if shell(line, allowedCommands=["ls"]) == "ALLOWED":
        assert all(one.program == "ls" for one in parse(line, "bash").commands)


@each_row("line", ["echo a > $f", 'echo a >> "$HOME/x"', "cat < $f", "cd $d; echo a > f"])
@each_row(
    ("scope", "expected"),
    [({}, "ALLOWED"), ({"allowedPaths": ["/w"]}, "DENIED"), ({"blockedPaths": ["/x"]}, "DENIED"), (None, "DENIED")],
)
def test_a_redirection_to_an_unknown_file_is_allowed_only_where_any_file_is(
    line: str, scope: dict[str, object] | None, expected: str
) -> None:
    files = () if scope is None else ({"name": f"File.{what}", **scope} for what in ("Read", "Write"))
    held = bundle({"name": "Shell.Exec"}, *files)
    facts = CommandFacts(line, cwd="/w", home="/home/u")
    assert check_tool(held, "Shell.Exec", facts, now=NOW).decision == expected


def test_a_redirection_to_an_unknown_file_is_asked_about_where_files_are() -> None:
    held = bundle({"name": "Shell.Exec"}, {"name": "File.Write", "requiresApproval": True})
    decision = check_tool(held, "Shell.Exec", CommandFacts("echo a > $f", cwd="/w"), now=NOW)
    assert (decision.decision, decision.rule) == (
        "APPROVAL_REQUIRED",
        "capabilities[File.Write].requiresApproval: true",
    )


def test_a_redirection_that_may_lead_to_two_places_is_denied_where_one_of_them_is() -> None:
    held = bundle({"name": "Shell.Exec"}, {"name": "File.Write", "allowedPaths": ["/w"], "requiresApproval": True})
    real_paths = {"/w/f": "/w/f", "/out/f": "/out/f"}
    facts = CommandFacts("cd /out; echo a > f", cwd="/w", real_paths=real_paths)
    assert check_tool(held, "Shell.Exec", facts, now=NOW).decision == "DENIED"


@pytest.mark.parametrize("name", ["bash", "sh", "zsh", "cmd", "powershell"])
def test_what_is_too_much_to_look_at_is_denied_whatever_the_bundle_says(name: Any) -> None:
    for line in ("echo " + "a" * 200_000, "echo a " * 5_000):
        facts = CommandFacts(line, cwd="/w", shell=name)
        for held in (bundle({"name": "Shell.Exec"}), bundle({"name": "Shell.Exec", "requiresApproval": True})):
            decision = check_tool(held, "Shell.Exec", facts, now=NOW)
            assert (decision.decision, decision.rule) == ("DENIED", "capabilities[Shell.Exec]")


@pytest.mark.parametrize("line", ["cat <> secret", "if then", "echo a > $f", "echo \x01"])
def test_a_line_that_may_open_any_file_is_allowed_where_any_may_be_opened(line: str) -> None:
    facts = CommandFacts(line, cwd="/w", real_paths={"/w/secret": "/w/secret"})
    files: list[dict[str, Any]] = [{"name": "File.Write"}, {"name": "File.Read"}]
    assert check_tool(bundle({"name": "Shell.Exec"}, *files), "Shell.Exec", facts, now=NOW).allowed
    asked = bundle({"name": "Shell.Exec", "requiresApproval": True}, {"name": "File.Write", "allowedPaths": ["/w"]})
    assert check_tool(asked, "Shell.Exec", facts, now=NOW).decision == "APPROVAL_REQUIRED"
    held = bundle({"name": "Shell.Exec"}, {"name": "File.Write", "blockedPaths": ["/w/secret"]}, files[1])
    assert check_tool(held, "Shell.Exec", facts, now=NOW).rule.startswith("capabilities[File.Write].blockedPaths")
