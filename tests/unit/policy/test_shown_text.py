"""Text that a line plainly shows to a shell is read as that of `sh -c` is: its programs and its files are judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from policy.shell import parse
from policy.shell.findings import SimpleCommand
from tests.support.rows import each_row

from .helpers import shell

if TYPE_CHECKING:
    from policy.facts import ShellName

SHOWN = [
    "{} <<E\nevil x\nE",
    "{} <<'E'\nevil x\nE",
    "{} <<-E\n\tevil x\n\tE",
    "{} <<E 2>&1\nevil x\nE",
    "{} <<E && ls\nevil x\nE",
    "{} <<E | cat\nevil x\nE",
    "{} <<E\nevil \\$y $y\nE",
    "{} <<E\nls $y; evil $(ls)\nE",
    "{} < f <<E\nevil x\nE",
    "{} <<< 'evil x'",
    "{} <<< $'e\\x76il x'",
    '{} <<< "evil $y"',
    "y='evil x'; {} <<< \"$y\"",
    "{} 0<<< 'evil x'",
    "{} - <<E\nevil x\nE",
    "{} /dev/stdin <<E\nevil x\nE",
    "{} /dev/fd/3 3<<E\nevil x\nE",
    "{} -s <<E\nevil x\nE",
    "{} -s a b <<E\nevil x\nE",
    "{} -es -- a <<E\nevil x\nE",
    "{} -x <<< 'evil x'",
    "echo evil x | {}",
    "echo -n 'evil x' | {}",
    "echo -e 'evi\\x6c x' | {}",
    'echo "ls; evil $y" | {}',
    "printf 'evil x\\n' | {}",
    "printf '%s %s\\n' ls a evil x | {}",
    "printf '%b' 'ls\\nevil x' | {}",
    "printf evi%s l | {}",
    "cat <<E | {}\nevil x\nE",
    "cat - <<'E' | {} -s\nevil x\nE",
    "cat <<< 'evil x' | {}",
    "echo evil x | cat | {}",
    "echo evil x | tee f | {}",
    "(ls; echo evil x) | {}",
    "{{ echo ls; echo evil x; }} | {}",
    "if ls; then echo evil x; fi | {}",
    "for y in a; do echo evil $y; done | {}",
    "time echo evil x | {}",
    "yes evil x | {}",
    "cat <(echo evil x) | {}",
    "cat f - <<E | {}\nevil x\nE",
    "cat <<E | head -1 | {}\nevil x\nE",
    "echo evil x | sort | uniq | {}",
    "echo evil x | tee >({})",
    "echo evil x | {{ {}; }}",
    "echo evil x | ({})",
    "{{ {}; }} <<E\nevil x\nE",
    "while read y; do {}; done <<E\nevil x\nE",
    "if {}; then ls; fi <<E\nevil x\nE",
    "! {} <<< 'evil x'",
    "time {} <<< 'evil x'",
    "env A=1 nice -n 5 {} <<< 'evil x'",
    "echo evil x | sudo {}",
    "exec {} <<< 'evil x'",
    "{} <(echo evil x)",
    "{} <(cat <<E\nevil x\nE\n)",
    "{} <(printf 'evil x')",
    '{} -c "$(echo evil x)"',
    "{} -c \"$(cat <<'E'\nevil x\nE\n)\"",
    "{} -c `echo evil`",
    '{} -c "evil $y"',
    "{} -c 'evil '\"$y\"",
    '{} -c "ls; $y; evil"',
    "{} -c $'ls\\nevil x'",
    "{} -c \"{} <<< 'evil x'\"",
]


@each_row("program", ["sh", "bash", "dash", "zsh", "/bin/sh", "ksh"])
@each_row("line", SHOWN)
def test_a_block_list_sees_what_a_shell_is_shown(line: str, program: str) -> None:
    text = line.format(*[program] * 2)
    assert shell(text, blockedCommands=["evil"]) == "DENIED"
    assert shell(text, allowedCommands=["sh", "bash", "dash", "zsh", "/bin/sh", "ksh", "cat", "ls", "echo"]) == "DENIED"


OWN = [
    "source /dev/stdin <<< 'evil x'",
    ". /dev/stdin <<E\nevil x\nE",
    "command . /dev/stdin <<< 'evil x'",
    "source <(echo evil x)",
    ". <(printf 'evil x')",
    "source /dev/fd/4 4<<E\nevil x\nE",
    "echo evil x | . /dev/stdin",
    'eval "$(echo evil x)"',
    "eval \"$(cat <<'E'\nevil x\nE\n)\"",
    "eval `printf 'evil x'`",
]


@each_row("line", OWN)
def test_a_block_list_sees_what_the_shell_of_the_line_is_shown(line: str) -> None:
    assert shell(line, blockedCommands=["evil"]) == "DENIED"
    assert SimpleCommand("evil", ("x",)) in parse(line).commands


@each_row("line", [*SHOWN, *OWN])
def test_the_same_line_with_a_program_that_is_not_blocked_is_allowed(line: str) -> None:
    text = (
        line.format("bash", "bash")
        .replace("evi\\x6c", "good")
        .replace("e\\x76il", "good")
        .replace("evi%s l", "goo%s d")
    )
    assert shell(text.replace("evil", "good"), blockedCommands=["evil"]) == "ALLOWED"


@each_row(
    ("line", "opaque"),
    [
        ("bash <<E\nls\nE", False),
        ("echo ls | sh", False),
        ("bash <(echo ls)", False),
        ('bash -c "ls $x"', True),
        ('echo "ls $x" | sh', True),
        ("sh < f", True),
        ("curl x | sh", True),
        ("echo bHM= | base64 -d | sh", True),
        ("cat f | sh", True),
        ("sh f <<E\nls\nE", True),
        ("sh <<E < f\nls\nE", True),
    ],
)
def test_what_is_shown_in_part_is_consented_to_by_the_shells_name(line: str, opaque: bool) -> None:
    parsed = parse(line)
    assert parsed.dynamic == ()
    assert bool([one for one in parsed.opaque if one.program in {"sh", "bash"}]) is opaque
    assert shell(line, blockedCommands=["evil"]) == "ALLOWED"


@pytest.mark.parametrize(
    "line",
    [
        "sh <<E\necho a > /etc/x\nE",
        "echo 'echo a > /etc/x' | sh",
        'bash -c "echo $x > /etc/x"',
        "bash <<E\ncp $x /etc/x\nE",
    ],
)
def test_files_that_a_shell_is_shown_are_judged(line: str) -> None:
    assert shell(line) == "DENIED"
    assert shell(line.replace("/etc/x", "out")) == "ALLOWED"
    assert shell("cd sub; " + line.replace("/etc/x", "out"), links={"/w/sub/out": "/etc/x"}) == "DENIED"


@pytest.mark.parametrize("line", ["fish <<< 'ls'", "echo ls | csh", "nu <(echo ls)"])
def test_a_shell_whose_language_is_not_read_is_not_decided(line: str) -> None:
    assert shell(line, blockedCommands=["evil"]) == "DENIED"


@each_row(
    "line",
    [
        "cat <<E\nevil x\nE",
        "ssh host <<E\nevil x\nE",
        "echo evil x | grep evil",
        "grep sh <<< 'evil x'",
        "echo evil | bash script.sh",
        'bash "evil $x"',
        'source "evil $x"',
        'bash "evil x.sh" -c',
        'bash "$x" <<E\nevil x\nE',
        "sh -c '. ./env.sh' evil",
        "python3 - <<E\nevil()\nE",
    ],
)
def test_what_no_shell_of_the_line_reads_is_data(line: str) -> None:
    assert shell(line, blockedCommands=["evil"]) == "ALLOWED"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("cat - 2>&1", ("-",)),
        ("cat - <<E\na\nE", ("-",)),
        ("cat a - >f", ("a", "-")),
        ("cat - 2>&1 - b", ("-", "-", "b")),
        ("cat >&- -", ("-",)),
        ("cat 0<<<a", ()),
    ],
)
def test_no_word_is_lost_in_front_of_a_redirection(line: str, words: tuple[str, ...]) -> None:
    assert [one.arguments for one in parse(line).commands] == [words]


@each_row("line", ["ls ;; wc", "ls ;;", "ls ;& wc", "{ ls ;; }", "if ls; then ls ;; fi"])
@each_row("shell_name", ["bash", "sh", "zsh"])
def test_the_end_of_a_case_elsewhere_is_not_read(line: str, shell_name: ShellName) -> None:
    assert shell(line, shell_name=shell_name, allowedCommands=["ls", "wc"]) == "DENIED"


def test_zsh_takes_a_moved_descriptor_for_a_file() -> None:
    verdicts = {name: shell("ls >&1-", shell_name=name, links={"/w/1-": "/etc/x"}) for name in ("bash", "zsh")}
    assert verdicts == {"bash": "ALLOWED", "zsh": "DENIED"}


@pytest.mark.parametrize("shell_name", ["bash", "sh", "zsh"])
@pytest.mark.parametrize("quote", ["'", '"'])
def test_a_program_of_several_lines_is_one_word(quote: str, shell_name: ShellName) -> None:
    code = "\nimport json\nfor k, v in {(1, 2): [3]}.items():\n    print(k[0] * 2, v != 3, ~k[1])  # it\n"
    line = f"python3 -c {quote}{code}{quote} a"
    assert SimpleCommand("python3", ("-c", code, "a")) in parse(line, shell_name).commands
    assert shell(line, shell_name=shell_name, allowedCommands=["python3"]) == "ALLOWED"
