"""What rm, cp, mv and their like are given: files that the bundle's File entries decide about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from policy.decide import check_tool
from policy.facts import CommandFacts
from policy.shell import parse, paths_in_line
from policy.shell.findings import FileUse
from tests.support.rows import each_row

from .helpers import NOW, bundle

if TYPE_CHECKING:
    from policy import Decision

LISTED: dict[str, Any] = {"name": "Shell.Exec", "allowedCommands": [
    "rm", "rmdir", "mv", "cp", "ln", "chmod", "tee", "dd", "touch", "mkdir", "sed", "sort", "find", "cat", "sudo",
    "xargs", "env", "cd", "ls", "bash", "eval", "trap", "read", "install", "grep", "truncate", "unlink", "for", "echo",
]}  # fmt: skip
READ: dict[str, Any] = {"name": "File.Read", "allowedPaths": ["/w", "/read"]}
WRITE: dict[str, Any] = {"name": "File.Write", "allowedPaths": ["/w", "/write"], "blockedPaths": ["/w/.git", "/w/.x/y"]}
DELETE: dict[str, Any] = {"name": "File.Delete", "allowedPaths": ["/w"], "blockedPaths": ["/w/.git", "/w/a/kept"]}


def judged(line: str, *grants: dict[str, Any], links: dict[str, str] | None = None) -> Decision:
    held = bundle(*(grants or (LISTED, READ, WRITE, DELETE)))
    spellings = paths_in_line(parse(line), "/w", "/home/u")
    real = {one: (links or {}).get(one, one) for one in spellings}
    facts = CommandFacts(line, cwd="/w", home="/home/u", real_paths=real)
    return check_tool(held, "Shell.Exec", facts, now=NOW)


ALLOWED = [
    "rm a b -f",
    "rm -rf build dist",
    "rm -- -f",
    "rm -rf *.pyc build/*",
    "rm b{1..3}.txt {c,d}/*.o",
    "rm -rf b*/kept/x c?/config",
    "for d in b c; do mkdir -p $d/src; done",
    'for i in 1 2 3; do touch "f$i.txt"; done',
    "find . -name '*.py' -exec sed -i s/a/b/ {} +",
    "find b -name x -not -path b/c -exec rm {} +",
    "install -m 755 -D a sub/b; cp -T b c",
    "ln -s b g; rm h; ls > i",
    "rm -rf */keptx",
    "rm .gitignore",
    "rm -f 'a b' \"c\"",
    "rmdir sub; unlink x",
    "mv b c; mv b c d sub; mv -t sub b c; mv --target-directory=sub b",
    "cp /read/a b; cp -r src dst; cp -at sub /read/a; cp a /write/b; cp -S .bak a b",
    "cp -r public/* .",
    "ln -s a b; ln c d; ln -sf ../w/a sub/b",
    "chmod +x a; chmod -R 755 src; chmod --reference=a b",
    "cat a | tee b -a c",
    "ls | tee >(grep a)",
    "chmod -x a; chmod u=rw,go-w a",
    "dd if=/read/a of=b bs=1",
    "touch a -d yesterday; mkdir -p a/{b,c} -m 700; truncate -s 0 a",
    "sed -i s/a/b/ a; sed -i -e p -e q a; sed -n p /etc/x",
    "sort -o b a; sort --output=b a; sort -k 1 /etc/x",
    "find . -name '*.pyc' -delete; find sub -type f -delete; find /etc -name a",
    "find . -name '*.pyc' -exec rm {} +",
    "rm -f /dev/null; cat a | tee /dev/stderr",
    "cd sub && rm -rf x",
    'for f in *.tmp; do rm "$f"; done',
    "x=build; rm -rf $x",
    "install -m 755 a sub/b; install -d sub",
]


@each_row("line", ALLOWED)
def test_what_lies_where_the_bundle_allows_it_is_allowed(line: str) -> None:
    answer = judged(line)
    assert answer.allowed, answer.reason


DENIED = [
    ("rm -rf /home/someone/docs", "rm (File.Delete): path not in allowed paths"),
    ("rm a /etc/x", "rm (File.Delete): path not in allowed paths"),
    ("rm -rf .git", "rm (File.Delete): path is blocked"),
    ("rm -rf .", "rm (File.Delete): . holds /w/.git"),
    ("rm -rf /w", "rm (File.Delete): /w holds /w/.git"),
    ("rm -rf a", "rm (File.Delete): a holds /w/a/kept"),
    ("rm -rf .*", "holds /w/.git"),
    ("rm -rf .g*", "holds /w/.git"),
    ("rm -rf a/*", "holds /w/a/kept"),
    ("rm a/k*", "holds /w/a/kept"),
    ("rm -r ../x", "path not in allowed paths"),
    ("rm ~/x", "path not in allowed paths"),
    ("rm ~root/x", "only known when it runs"),
    ("rm $X", "only known when it runs"),
    ('rm "a/$(cat x)"', "only known when it runs"),
    ("ls | xargs rm", "only known when it runs"),
    ("sudo rm /etc/x", "rm (File.Delete)"),
    ("env A=1 rm /etc/x", "rm (File.Delete)"),
    ("bash -c 'rm /etc/x'", "rm (File.Delete)"),
    ("cd /etc; rm x", "rm (File.Delete)"),
    ("cd $X; rm x", "only known when it runs"),
    ("mv .git x", "path is blocked"),
    ("mv /read/a b", "mv (File.Delete)"),
    ("mv b /etc/x", "mv (File.Write)"),
    ("mv -t /etc b", "mv (File.Write)"),
    ("mv b c /etc", "mv (File.Write)"),
    ("cp /etc/passwd a", "cp (File.Read)"),
    ("cp a /etc/x", "cp (File.Write)"),
    ("cp --target-dir /etc a", "cp (File.Write)"),
    ("cp -t/etc a", "cp (File.Write)"),
    ("cp x/.git .", "path is blocked"),
    ("cp -r x/. .", "holds /w/.git"),
    ("cp -r x/.* .", "holds /w/.git"),
    ("ln -s /etc/passwd a", "ln (File.Read)"),
    ("ln a /etc/x", "ln (File.Write)"),
    ("chmod +x /etc/x", "chmod (File.Write)"),
    ("chmod -x /etc/x", "chmod (File.Write)"),
    ("chmod 755 /etc/x", "chmod (File.Write)"),
    ("cp -r x/ .", "holds /w/.git"),
    ("cd /etc; ln -s /read/a", "ln (File.Write)"),
    ("chmod -R 777 .", "holds /w/.git"),
    ("echo x | tee a /etc/x", "tee (File.Write)"),
    ("dd if=a of=/etc/x", "dd (File.Write)"),
    ("dd if=/etc/shadow of=a", "dd (File.Read)"),
    ('dd of="$X"', "only known when it runs"),
    ("touch /etc/x", "touch (File.Write)"),
    ("mkdir -p {a,/etc/b}", "mkdir (File.Write)"),
    ("mkdir -p {a,{b,/etc/b}}", "mkdir (File.Write)"),
    ("rm {a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,/etc/x}", "only known when it runs"),
    ("rm /etc/{1..3}", "rm (File.Delete)"),
    ("sed -i s/a/b/ /etc/x", "sed (File.Write)"),
    ("sed -ne p -i.bak /etc/x", "sed (File.Write)"),
    ("sort -ro /etc/x a", "sort (File.Write)"),
    ("sort --outp=/etc/x a", "sort (File.Write)"),
    ("find /etc -delete", "find (File.Delete)"),
    ("find . -delete", "holds /w/.git"),
    ("find -type d -delete", "holds /w/.git"),
    ("find . -name '.g*' -delete", "holds /w/.git"),
    ("find . ! -name a -delete", "holds /w/.git"),
    ("find /etc -name x -exec rm {} \\;", "rm (File.Delete)"),
    ("find . -exec rm -rf {} +", "holds /w/.git"),
    ("find . -name a -exec cp {} /etc \\;", "cp (File.Write)"),
    ("find . -fprint /etc/x", "find (File.Write)"),
    ("rm .gi?/config", "holds /w/.git"),
    ("rm -rf .gi*/hooks", "holds /w/.git"),
    ("rm -rf a/k*/x", "holds /w/a/kept"),
    ("touch .x/[y]/f", "holds /w/.x/y"),
    ("cp f .gi*/config", "holds /w/.git"),
    ("tee .gi*/config < f", "holds /w/.git"),
    ("sed -i s/o/p/ .x/*/f", "holds /w/.x/y"),
    ('for d in .x*; do sort -o "$d/y/f" f; done', "holds /w/.x/y"),
    ("for f in .gi*; do echo x > $f/config; done", "holds /w/.git"),
    ("rm */../../outside/p", "only known when it runs"),
    ("rm {a..c}/../../outside/p", "only known when it runs"),
    ("rm -rf */../.git", "only known when it runs"),
    ("rm -rf */./k*", "only known when it runs"),
    ("for f in *; do rm -rf $f/../.git; done", "only known when it runs"),
    ('for f in *; do echo x > "$f"/../../outside/p; done', "a redirection to an expansion"),
    ("rm -rf .[^.]*", "holds /w/.git"),
    ("rm -rf a/[^b]ept", "holds /w/a/kept"),
    ("rm -rf a/[[:alpha:]]ept", "holds /w/a/kept"),
    ("cp -r sub/.[^.]* .", "holds /w/.git"),
    ("find . -name 'kep\\t' -exec rm -rf {} +", "holds /w"),
    ("find . -name '[^b]ept' -delete", "holds /w/a/kept"),
    ("find . -name '[[:alpha:]]ept' -delete", "holds /w"),
    ("find a -delete -name zzz", "holds /w/a/kept"),
    ("find a -exec rm -rf {} + -name zzz", "holds /w/a/kept"),
    ("find a -exec echo -name zzz \\; -delete", "holds /w/a/kept"),
    ("find a -newer -name -name k* -delete", "holds /w/a/kept"),
    ("find a -newer -name -delete", "holds /w/a/kept"),
    ("find . -name config -exec cp f {} \\;", "holds /w/.git"),
    ("find . -name config -exec tee {} +", "holds /w/.git"),
    ("find /outside -name p -execdir rm p \\;", "only known when it runs"),
    ("find a -execdir rm -rf kept \\;", "only known when it runs"),
    ("find /outside -execdir bash -c 'rm p' \\;", "only known when it runs"),
    ('for d in ../outsid*; do find "$d" -name p -delete; done', "path not in allowed paths"),
    ("for d in a*; do find $d -mindepth 1 -delete; done", "holds /w/a/kept"),
    ("find $X -delete", "only known when it runs"),
    ("for v in of=/outside/p; do dd if=f $v; done", "only known when it runs"),
    ("echo of=/outside/p | xargs dd if=f", "only known when it runs"),
    ("install -dv .x/y/n b", "path is blocked"),
    ("install -vd .git/n b", "path is blocked"),
    ("install -dm 700 .git/n b", "path is blocked"),
    ("install --dir .git/n b", "path is blocked"),
    ("cp -rT sub .", "holds /w/.git"),
    ("cp -a --no-target-directory sub .", "holds /w/.git"),
    ("cp -r s*/. .", "only known when it runs"),
    ("chmod -r g-dir/../../outside/p", "path not in allowed paths"),
    ("chmod g-dir/../../outside/p", "path not in allowed paths"),
    ("ln -s b g; rm g/f", "below a link"),
    ("ln -s .y g; touch g/y/f", "below a link"),
    ("ln -s b g; echo > g/new", "below a link"),
    ("ln -sf b /w/g; cd g; rm f", "below a link"),
    ("cp -rs sub g; rm g/f", "below a link"),
    ("REPLY=q; read < f; rm $REPLY", "only known when it runs"),
    ("IFS=:; eval 'x=q:/outside/p; rm $x'", "only known when it runs"),
    ("trap 'x=q:/outside/p; rm $x' EXIT; IFS=:", "only known when it runs"),
    ('for f in .*; do rm -r "$f"; done', "holds /w/.git"),
]


@each_row(("line", "reason"), DENIED)
def test_what_does_not_is_denied_and_says_why(line: str, reason: str) -> None:
    answer = judged(line)
    assert answer.decision == "DENIED"
    assert reason in answer.reason


def test_without_an_entry_the_listed_program_suffices() -> None:
    assert judged("rm -rf /etc; cp /etc/a /etc/b; rm $X", LISTED).allowed
    assert judged("mv /read/a b", LISTED, READ, WRITE).allowed
    assert judged("cp a /etc/b", LISTED, READ).allowed
    assert not judged("cp /etc/a b", LISTED, READ).allowed


def test_an_operand_that_only_the_run_knows_passes_where_no_place_is_prescribed() -> None:
    blocks = {"name": "File.Delete", "blockedPaths": ["/w/.git"]}
    assert judged("ls | xargs rm", LISTED, blocks).allowed
    assert judged("rm $X", {**LISTED, "requiresApproval": True}, DELETE).decision == "APPROVAL_REQUIRED"


def test_a_link_counts_for_where_it_leads() -> None:
    assert judged("rm a/x", links={"/w/a/x": "/etc/x"}).decision == "DENIED"
    assert judged("rm -rf a/x", links={"/w/a/x": "/w"}).reason.endswith("name what is meant instead")


def test_approvals_of_operands_become_one_and_denials_come_first() -> None:
    asks = {**DELETE, "requiresApproval": True}
    answer = judged("rm a b; touch c", LISTED, WRITE, asks)
    assert (answer.decision, answer.capability) == ("APPROVAL_REQUIRED", "Shell.Exec")
    assert answer.reason.startswith("rm (File.Delete): ")
    assert judged("rm a; touch /etc/x", LISTED, WRITE, asks).decision == "DENIED"


def test_what_holds_the_directories_of_other_sessions_is_not_deleted() -> None:
    own = "/tmp/agent-host-s-0123abcd"
    grant = {"name": "File.Delete", "allowedPaths": ["/w", "/tmp", own]}
    for line in (
        "rm -rf /tmp",
        "rm -rf /tmp/*",
        "rm -rf /tmp/agent*",
        "find /tmp -delete",
        "rm -rf /tmp/agent-host-x-1",
    ):
        assert judged(line, LISTED, grant).decision == "DENIED", line
    for line in ("rm -rf /tmp/x*", "rm -rf /tmp/build", f"rm -rf {own}/*", f"rm {own}/a", "find /tmp -name a -delete"):
        assert judged(line, LISTED, grant).allowed, line


def test_their_names_are_known_with_a_directory_and_as_they_are_elsewhere() -> None:
    for name in ("/bin/rm", "grm", "RM"):
        held = {**LISTED, "allowedCommands": [name]}
        assert judged(f"{name} /etc/x", held, DELETE).reason.startswith(f"{name} (File.Delete)")


def test_what_the_line_names_is_kept_as_it_is_spelled() -> None:
    assert parse("cp -r a ~/b/*.c d").operands == (
        FileUse("read", "a", program="cp", tree=True, step=1),
        FileUse("read", "~/b/", program="cp", tree=True, pattern="*.c", step=1),
        FileUse("write", "d", program="cp", step=1),
        FileUse("write", "d/a", program="cp", made="tree", source="a", step=1),
        FileUse("write", "d", program="cp", tree=True, pattern="*.c", made="tree", step=1),
    )
    spelled = parse("ls; rm '~/a' '*'").operands
    assert spelled == (FileUse("delete", "./~/a", program="rm", step=2), FileUse("delete", "*", program="rm", step=2))


PLACES: dict[str, Any] = {
    "name": "Shell.Exec",
    "allowedCommands": ["/w/**", "/opt/x/*", "cd", "ls", "eval", "ln", "find"],
}


@each_row(
    ("line", "expected"),
    [
        ("./gradlew build", "ALLOWED"),
        ("scripts/a/b.sh", "ALLOWED"),
        ("/w/x", "ALLOWED"),
        ("/opt/x/y", "ALLOWED"),
        ("cd sub; ./x", "ALLOWED"),
        ("x=/w/y; $x", "ALLOWED"),
        ("/opt/x/y/z", "DENIED"),
        ("/opt/x/../evil", "DENIED"),
        ("../evil", "DENIED"),
        ("~/evil", "DENIED"),
        ("cd /etc; ./x", "DENIED"),
        ("cd $X; ./x", "DENIED"),
        ("while ls; do ./x; cd ..; done", "DENIED"),
        ("f() { ./x; }; cd /etc; f", "DENIED"),
        ("x", "DENIED"),
        ("./..", "DENIED"),
        ("find . -execdir ./x \\;", "DENIED"),
        ("ln -s ../evil bin/evil; bin/evil", "DENIED"),
        ("ln -s /etc bin/e; bin/e/evil", "DENIED"),
        ("ln -s /etc bin/e; /w/bin/e/evil", "DENIED"),
        ("ln -s a b; bin/x", "ALLOWED"),
    ],
)
def test_an_entry_for_a_place_admits_the_programs_that_really_are_there(line: str, expected: str) -> None:
    assert judged(line, PLACES, links={"/opt/x/..": "/opt"}).decision == expected


def test_a_link_to_another_directory_takes_a_program_out_of_the_place() -> None:
    assert judged("sub/x", PLACES).allowed
    assert judged("sub/x", PLACES, links={"/w/sub": "/etc"}).decision == "DENIED"


@pytest.mark.parametrize(
    "line",
    [
        "cd src && make && cd .. && rm a",
        "cd src && touch a > log && cd .. && rm a",
        "mkdir -p b && cd b && touch c && cd ..; rm a",
    ],
)
def test_a_directory_that_the_line_leaves_again(line: str) -> None:
    listed = {**LISTED, "allowedCommands": [*LISTED["allowedCommands"], "make"]}
    assert judged(line, listed, READ, WRITE, DELETE).allowed
    link = judged(line, listed, READ, WRITE, DELETE, links={"/w/src/../a": "/a", "/w/b/../a": "/a"})
    assert not link.allowed
