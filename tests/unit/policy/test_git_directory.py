"""What may be left in a git directory: its names, its configuration, and what git continues with."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policy.rules.protected_paths import (
    MAX_BYTES,
    GitDirectory,
    LeftEntry,
    config_problem,
    find_left_problem,
    find_refused_name,
    git_file_problem,
    is_laid_out,
    settings_of,
    target_of,
    tree_of,
)
from tests.support.rows import each_row

if TYPE_CHECKING:
    from pathlib import Path

OWN = GitDirectory("/w/.git")
TREE = GitDirectory("/w/.git/worktrees/t", "worktree", is_new=True)
NEW = GitDirectory("/w/sub/.git", is_new=True)
BARE = GitDirectory("/w/sub", is_strict=False)
FILE = LeftEntry("file", b"x")
FOLDER = LeftEntry("directory")
LINK = LeftEntry("other")


@each_row(
    ("path", "refused"),
    [
        ("objects/ab/cd", None),
        ("refs/heads/main", None),
        ("refs/heads/main.lock", None),
        ("logs/HEAD", None),
        ("HEAD", None),
        ("HEAD.lock", None),
        ("ORIG_HEAD", None),
        ("index", None),
        ("index.lock", None),
        ("index.stash.12", None),
        ("packed-refs.lock", None),
        ("MERGE_MSG", None),
        ("MERGE_AUTOSTASH", None),
        ("AUTO_MERGE", None),
        ("COMMIT_EDITMSG", None),
        ("BISECT_LOG", None),
        ("shallow", None),
        ("worktrees/t/HEAD", None),
        ("modules/lib/a/index", None),
        ("info/exclude", None),
        ("config", "config"),
        ("config.worktree", "config.worktree"),
        ("commondir", "commondir"),
        ("gitdir", "gitdir"),
        ("hooks/pre-commit", "hooks"),
        ("info/attributes", "info"),
        ("branches/x", "branches"),
        ("remotes/x", "remotes"),
        ("unheard-of", "unheard-of"),
        ("unheard/of", "unheard"),
        ("rebase-merge/git-rebase-todo", "rebase-merge"),
        ("sequencer/todo", "sequencer"),
        ("worktrees/t/config.worktree", "config.worktree"),
        ("worktrees/t/commondir", "commondir"),
        ("worktrees/t", "worktrees"),
        ("modules/lib/config", "config"),
        ("modules/a/b/hooks/x", "hooks"),
        ("modules/a/objects/hooks/x", "hooks"),
        ("modules/lib", "modules"),
        ("index.lock/x", None),
        ("head.evil", "head.evil"),
        ("xindex", "xindex"),
    ],
)
def test_names_that_only_git_writes(path: str, refused: str | None) -> None:
    assert find_refused_name([one.lower() for one in path.split("/")]) == refused


@each_row(
    ("of", "path", "left", "is_refused"),
    [
        (OWN, "commondir", FILE, True),
        (OWN, "unheard-of", FILE, True),
        (OWN, "unheard-of", None, True),
        (OWN, "hooks/pre-commit", FILE, True),
        (OWN, "hooks/x.sample", FILE, True),
        (NEW, "hooks/x.sample", FILE, False),
        (NEW, "hooks/x", FILE, True),
        (NEW, "hooks", FOLDER, False),
        (NEW, "hooks", LINK, True),
        (NEW, "info/exclude", FILE, False),
        (NEW, "info/attributes", FILE, True),
        (NEW, "branches", FOLDER, False),
        (NEW, "branches/x", FILE, True),
        (NEW, "description", FILE, False),
        (OWN, "description", FILE, True),
        (OWN, "HEAD", FILE, False),
        (OWN, "HEAD", LINK, True),
        (OWN, "logs/HEAD", LINK, True),
        (OWN, "index", LINK, True),
        (OWN, "rebase-merge", FOLDER, False),
        (OWN, "rebase-merge", None, False),
        (OWN, "rebase-merge/git-rebase-todo", LINK, True),
        (OWN, "worktrees", FOLDER, False),
        (OWN, "worktrees/t", FILE, True),
        (OWN, "modules/t", FILE, True),
        (OWN, "config", None, True),
        (OWN, "config", LINK, True),
        (OWN, "config", LeftEntry("file", None), True),
        (BARE, "README", FILE, False),
        (BARE, "hooks/x", FILE, True),
        (BARE, "info/attributes", FILE, True),
        (TREE, "commondir", LeftEntry("file", b"../..\n"), False),
        (TREE, "commondir", LeftEntry("file", b"../../../build/c\n"), True),
        (TREE, "gitdir", LeftEntry("file", b"/w/t/.git\n", "/w/t/.git"), False),
        (TREE, "gitdir", LeftEntry("file", b"/etc/.git\n", "/etc/.git"), True),
        (TREE, "gitdir", LeftEntry("file", b"/w/t\n", "/w/t"), True),
        (TREE, "locked", FILE, False),
        (OWN, "locked", FILE, True),
        (TREE, "config.worktree", LeftEntry("file", b"[core]\nbare = false\n"), False),
        (TREE, "config.worktree", LeftEntry("file", b"[core]\nfsmonitor = x\n"), True),
    ],
)
def test_what_is_left_in_a_git_directory(of: GitDirectory, path: str, left: LeftEntry | None, is_refused: bool) -> None:
    assert (find_left_problem(of, path.split("/"), left, None, ["/w"]) is not None) == is_refused


@each_row(
    ("path", "content", "is_refused"),
    [
        ("rebase-merge/git-rebase-todo", "pick 1234 x\nf 123\n# exec x\n\nlabel o\nupdate-ref refs/heads/x\n", False),
        ("rebase-merge/git-rebase-todo", "pick 1234 exec it\n", False),
        ("rebase-merge/git-rebase-todo", "exec make\n", True),
        ("rebase-merge/git-rebase-todo", "noop\n \tx\tmake\n", True),
        ("rebase-merge/git-rebase-todo", "x make", True),
        ("rebase-merge/git-rebase-todo", "x\r\n", True),
        ("rebase-merge/git-rebase-todo.backup", "exec make\n", True),
        ("rebase-merge/done", "exec make\n", True),
        ("rebase-merge/unheard", "exec make\n", False),
        ("rebase-merge/strategy", "ort\n", False),
        ("rebase-merge/strategy", "../../x\n", True),
        ("rebase-merge/author-script", "GIT_AUTHOR_NAME='A'\\''B'\nGIT_AUTHOR_EMAIL='a@b'\nGIT_AUTHOR_DATE='@1 +0'\n",
            False),
        ("rebase-merge/author-script", "GIT_AUTHOR_NAME='A'\nGIT_EXTERNAL_DIFF='x'\n", True),
        ("rebase-merge/author-script", "GIT_AUTHOR_NAME='A';x\n", True),
        ("rebase-merge/author-script", "GIT_AUTHOR_NAME='A'\n" * 40 + "x", True),
        ("rebase-apply/apply-opt", " '-p1' '--whitespace=fix' '--directory=a b'", False),
        ("rebase-apply/apply-opt", "", False),
        ("rebase-apply/apply-opt", " '--unsafe-paths'", True),
        ("rebase-apply/apply-opt", " '--directory=a'" * 40 + "'", True),
        ("rebase-apply/0001", "anything", False),
        ("sequencer/todo", "pick 1 x\nrevert 2 y\n", False),
        ("sequencer/todo", "exec x\n", True),
        ("sequencer/opts", "[options]\n\tstrategy = ort\n\tallow-ff = true\n", False),
        ("sequencer/opts", "[options]\n\tstrategy = evil\n", True),
        ("sequencer/opts", "[core]\n\tfsmonitor = x\n", True),
        ("sequencer/opts", "[", True),
    ],
)  # fmt: skip
def test_what_git_continues_with(path: str, content: str, is_refused: bool) -> None:
    left = LeftEntry("file", content.encode())
    assert (find_left_problem(OWN, path.split("/"), left, None, ["/w"]) is not None) == is_refused


BEFORE = b"[core]\n\tbare = false\n[alias]\n\tst = status\n[user]\n\tname = A\n"


@each_row(
    ("content", "is_refused"),
    [
        (BEFORE, False),
        (BEFORE.replace(b"A", b"B"), False),
        (BEFORE.replace(b"status", b"!x"), True),
        (BEFORE.replace(b"[alias]\n\tst = status\n", b""), True),
        (BEFORE + b"[alias]\n\tst = status\n", True),
        (BEFORE + b'[remote "o"]\nurl = https://example.org/x\nfetch = +refs/*:refs/*\n', False),
        (BEFORE + b'[remote "o"]\nurl = ext::sh -c x\n', True),
        (BEFORE + b'[remote "o"]\nurl = evil::x\n', True),
        (BEFORE + b'[remote "o"]\nurl = --upload-pack=x\n', True),
        (BEFORE + b'[remote "o"]\nurl = git@example.org:x/y.git\n', False),
        (BEFORE + b'[remote "o"]\nurl = ssh://[::1]/x\n', False),
        (BEFORE + b'[remote "o"]\nuploadpack = x\n', True),
        (BEFORE + b'[remote "o"]\nvcs = x\n', True),
        (BEFORE + b'[branch "m"]\nremote = o\nmerge = refs/heads/m\nrebase = true\n', False),
        (BEFORE + b'[branch "m"]\nremote = ext::x\n', True),
        (BEFORE + b'[submodule "m"]\nurl = ../m\nactive = true\n', False),
        (BEFORE + b'[submodule "m"]\nupdate = !x\n', True),
        (BEFORE + b"[pull]rebase=true\n[push] default = simple\n[init]\nDefaultBranch = x\n", False),
        (BEFORE + b"[core]\nworktree = ../../sub\n", True),
        (BEFORE + b"[core]\nworktree = ../sub\n", False),
        (BEFORE + b"[core]\nworktree = /etc\n", True),
        (BEFORE + b"[extensions]\nobjectFormat = sha256\n", False),
        (BEFORE + b"[extensions]\nworktreeConfig = true\n", True),
        (BEFORE + b"[include]\npath = ../x\n", True),
        (BEFORE + b'[includeIf "gitdir:/"]\npath = ../x\n', True),
        (BEFORE + b"[CORE]\nFSMONITOR = x\n", True),
        (BEFORE + b"[core]fsmonitor\n", True),
        (BEFORE + b'[core ""]\nbare = true\n', True),
        (BEFORE + b"[core.x]\nbare = true\n", True),
        (BEFORE + b"[user]\nname = a \\\n[core]\\\nfsmonitor = x\n", False),
        (BEFORE + b"[user]\nname = a # \\\n[core]\nfsmonitor = x\n", True),
        (BEFORE + b"[", True),
        (BEFORE + b"\0", True),
        (b"#" * (MAX_BYTES + 1), True),
    ],
)
def test_what_of_a_configuration_may_change(content: bytes, is_refused: bool) -> None:
    assert (config_problem(content, BEFORE, "/w/.git", ["/w"]) is not None) == is_refused


def test_names_of_settings_are_said() -> None:
    assert config_problem(b"[core]\nfsmonitor = x\n", b"", "/w/.git", ["/w"]) == (
        "a command may not set or remove core.fsmonitor"
    )
    assert config_problem(b"", b"[core]\nhooksPath = x\n", "/w/.git", ["/w"]) == (
        "a command may not set or remove core.hookspath"
    )


def test_where_files_lead() -> None:
    assert target_of(b"gitdir: ../.git/modules/x\n", "/w/sub") == "/w/.git/modules/x"
    assert target_of(b"/w/t/.git\n", "/w/.git/worktrees/t") == "/w/t/.git"
    assert target_of(b"a\nb", "/w") is None
    assert target_of(b"\0", "/w") is None
    assert target_of(None, "/w") is None
    assert tree_of(b"[core]\nworktree = ../x\nworktree = ../y\n", "/w/.git") == "/w/y"
    assert tree_of(b"[core]\n", "/w/.git") is None


def test_a_file_that_is_called_git_leads_to_a_git_directory_that_is_judged() -> None:
    known = ["/w/.git/modules/x"]
    good = LeftEntry("file", b"gitdir: ../.git/modules/x\n", "/w/.git/modules/x")
    assert git_file_problem(good, known) is None
    assert git_file_problem(good._replace(target="/tmp/x"), known) is not None
    assert git_file_problem(LeftEntry("other", None), known) is not None
    assert git_file_problem(LeftEntry("file", b"x", "/w/.git/modules/x"), known) is not None


def test_what_is_laid_out_like_a_git_directory() -> None:
    assert is_laid_out(["HEAD", "objects", "refs"])
    assert is_laid_out(["head", "commondir"])
    assert not is_laid_out(["HEAD", "objects"])
    assert not is_laid_out(["objects", "refs"])


PIECES = st.lists(
    st.sampled_from([
        "[core]", "[Core]", '[remote "a b"]', "[a.b]", '[a "\\"x"]', "[a", "]", "\n", "\r\n", "\r", "\n", "bare", "a-1",
        "Url", "=", " ", "\t", "true", "#", ";", "\\", "\\n", "\\\n", '"', '"x y"', "1", ".", "é", "x y  z", "\ufeff",
    ]),
    max_size=14,
).map("".join)  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=PIECES)
def test_configuration_is_read_as_git_reads_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "c").write_bytes(text.encode())
    argv = ["git", "config", "--file", str(tmp_path / "c"), "--no-includes", "--list", "-z"]
    ended = subprocess.run(argv, capture_output=True, timeout=20, check=False)
    ours = settings_of(text.encode())
    if ended.returncode:
        assert ours is None
        return
    rows = [one.split("\n", 1) for one in ended.stdout.decode().split("\0")[:-1]]
    told = [(name, value[0] if value else None) for name, *value in rows]
    if ours is None:  # git takes a key before any section, and drops it
        assert any("." not in name for name, _ in told)
        return
    assert [(".".join(part for part in one[:3] if part is not None), one.value) for one in ours] == told
