"""The patch of a session makes fresh copies of hostile trees equal, by `git apply` and by `git apply --3way`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_host.session.patches import SessionChanges
from agent_host.session.tasks import FirstVersions
from state.blobs import LINK, OVERWRITTEN, PLAIN_FILE, PROGRAM, add_mode, sha256_hex

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from _pytest.mark.structures import ParameterSet

    from agent_host.session.patches import WholePatch

pytestmark = [
    pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed"),
    pytest.mark.skipif(sys.platform == "win32", reason="modes, links and names of bytes are POSIX's"),
]


class Node(NamedTuple):
    """A file, a program or a link; the content of a link is the path that it leads to."""

    content: bytes
    mode: str = PLAIN_FILE


Tree = dict[bytes, Node]


def plain(content: bytes) -> Node:
    return Node(content)


def program(content: bytes) -> Node:
    return Node(content, PROGRAM)


def link(target: bytes) -> Node:
    return Node(target, LINK)


def make(root: Path, tree: Mapping[bytes, Node]) -> None:
    """Have `root` hold `tree` and nothing else besides git's own folder."""
    for name in os.listdir(os.fsencode(root)) if root.exists() else ():
        place = os.path.join(os.fsencode(root), name)
        if name != b".git":
            shutil.rmtree(place) if os.path.isdir(place) and not os.path.islink(place) else os.unlink(place)
    for name, node in tree.items():
        place = os.path.join(os.fsencode(root), name)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        if node.mode == LINK:
            os.symlink(node.content, place)
            continue
        with open(place, "wb") as handle:
            handle.write(node.content)
        os.chmod(place, 0o755 if node.mode == PROGRAM else 0o644)


def read(root: Path) -> Tree:
    """The files and links of `root`."""
    found: Tree = {}
    top = os.fsencode(root)
    for folder, folders, files in os.walk(top):
        if folder == top:
            folders.remove(b".git")
        for name in [*files, *(one for one in folders if os.path.islink(os.path.join(folder, one)))]:
            place = os.path.join(folder, name)
            if os.path.islink(place):
                found[os.path.relpath(place, top)] = link(os.readlink(place))
                continue
            with open(place, "rb") as handle:
                mode = PROGRAM if os.fstat(handle.fileno()).st_mode & 0o100 else PLAIN_FILE
                found[os.path.relpath(place, top)] = Node(handle.read(), mode)
    return found


def git(folder: Path, *arguments: str, feed: bytes | None = None) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", "-c", "core.autocrlf=false", "-c", "core.symlinks=true", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, input=feed, capture_output=True)
    assert done.returncode == 0, (done.stderr.decode(errors="replace"), feed)


def patch_of(
    work: Path,
    before: Tree,
    after: Tree,
    *,
    modes: bool = True,
    clean: Callable[[bytes], bytes] = bytes,
    without: Collection[str] = (),
) -> WholePatch:
    """The patch of a session whose files were `before` and are `after` in `work`. Without `modes` the record has those
    of links alone, as where a file tool wrote."""
    make(work, after)
    first, blobs = dict[str, str | None](), dict[str, bytes]()
    for name in before.keys() | after.keys():
        path, node = os.path.join(str(work), os.fsdecode(name)), before.get(name)
        if node is None:
            first[path] = None
            continue
        version = sha256_hex(node.content)
        blobs[version] = node.content
        first[path] = add_mode(node.mode, version) if modes or node.mode == LINK else version
    return SessionChanges(FirstVersions(first), blobs.get, str(work), clean=clean).whole_patch(without=without)


def check_applies(folder: Path, before: Tree, after: Tree, *, modes: bool = True) -> WholePatch:
    """The patch turns copies of `before` into `after`."""
    work, one, other = folder / "work", folder / "one", folder / "other"
    work.mkdir()
    one.mkdir()
    patch = patch_of(work, before, after, modes=modes)
    assert patch.omitted == []
    make(one, before)
    git(one, "init", "-q")
    git(one, "add", "-A", "-f")
    shutil.copytree(one, other, symlinks=True)
    data = patch.to_bytes()
    if data:
        git(one, "apply", "--3way", "-", feed=data)
        git(other, "apply", "-", feed=data)
    assert read(one) == after, data
    assert read(other) == after, data
    return patch


LINES = b"".join(b"line %d\n" % number for number in range(40))
EDITED = LINES.replace(b"line 7\n", b"line seven\n")
BINARY = bytes(range(256)) * 40
TREES: dict[str, tuple[Tree, Tree]] = {
    "edit": ({b"a": plain(LINES)}, {b"a": plain(EDITED)}),
    "edit of a program": ({b"a": program(LINES)}, {b"a": program(EDITED)}),
    "chmod +x": ({b"a": plain(LINES)}, {b"a": program(LINES)}),
    "chmod -x": ({b"a": program(LINES)}, {b"a": plain(LINES)}),
    "chmod of an empty file": ({b"a": plain(b"")}, {b"a": program(b"")}),
    "chmod +x and edit": ({b"a": plain(LINES)}, {b"a": program(EDITED)}),
    "chmod -x and edit": ({b"a": program(LINES)}, {b"a": plain(EDITED)}),
    "chmod of binary": ({b"a": plain(BINARY)}, {b"a": program(BINARY)}),
    "chmod and edit of binary": ({b"a": program(BINARY)}, {b"a": plain(BINARY[1:])}),
    "new program": ({}, {b"a": program(b"#!/bin/sh\n")}),
    "gone program": ({b"a": program(b"#!/bin/sh\n"), b"b": plain(b"")}, {b"b": plain(b"")}),
    "new link": ({}, {b"l": link(b"some/where")}),
    "gone link": ({b"l": link(b"some/where")}, {}),
    "link elsewhere": ({b"l": link(b"one")}, {b"l": link(b"two")}),
    "file to link": ({b"a": plain(LINES)}, {b"a": link(b"b")}),
    "program to link": ({b"a": program(LINES)}, {b"a": link(b"b")}),
    "link to file": ({b"a": link(b"b")}, {b"a": plain(LINES)}),
    "link to program": ({b"a": link(b"b")}, {b"a": program(LINES)}),
    "binary to link": ({b"a": plain(BINARY)}, {b"a": link(b"b")}),
    "link to binary": ({b"a": link(b"b")}, {b"a": plain(BINARY)}),
    "empty file to link": ({b"a": plain(b"")}, {b"a": link(b"b")}),
    "link to itself, target in bytes": ({}, {b"l": link(b"l"), b"m": link(b"\xff\xfe n")}),
    "moved link": ({b"l": link(b"target")}, {b"m": link(b"target")}),
    "file with the content of a gone link": ({b"l": link(b"target")}, {b"m": plain(b"target")}),
    "link to folder becomes folder": (
        {b"d": link(b"e"), b"e/x": plain(LINES)},
        {b"d/x": plain(b"other\n"), b"e/x": plain(LINES)},
    ),
    "folder becomes link": (
        {b"d/x": plain(b"other\n"), b"e/x": plain(LINES)},
        {b"d": link(b"e"), b"e/x": plain(LINES)},
    ),
    "binary edit": ({b"b": plain(BINARY)}, {b"b": plain(BINARY[:5000] + b"!" + BINARY[5000:])}),
    "binary new and gone": ({b"b": plain(BINARY)}, {b"c": plain(BINARY[::-1])}),
    "binary to text": ({b"b": plain(BINARY)}, {b"b": plain(LINES)}),
    "latin-1": ({b"b": plain(b"gr\xfcn\n")}, {b"b": plain(b"bl\xe4u\n")}),
    "rename": ({b"a": plain(LINES)}, {b"sub/b": plain(LINES)}),
    "rename of a program": ({b"a": program(LINES)}, {b"b": program(LINES)}),
    "rename with edit": ({b"a": plain(LINES)}, {b"b": plain(EDITED)}),
    "rename of a program with edit": ({b"a": program(LINES)}, {b"b": program(EDITED)}),
    "rename and chmod +x": ({b"a": plain(LINES)}, {b"b": program(LINES)}),
    "rename and chmod -x": ({b"a": program(LINES)}, {b"b": plain(LINES)}),
    "rename, edit and chmod": ({b"a": program(LINES)}, {b"b": plain(EDITED)}),
    "rename of binary": ({b"a": plain(BINARY)}, {b"b": plain(BINARY)}),
    "rename of binary and chmod": ({b"a": plain(BINARY)}, {b"b": program(BINARY)}),
    "renames in a circle": (
        {b"a": plain(LINES), b"b": plain(EDITED), b"c": plain(b"3\n" * 9)},
        {b"a": plain(EDITED), b"b": plain(b"3\n" * 9), b"c": plain(LINES)},
    ),
    "rename in the place of another": (
        {b"a": plain(LINES), b"b": plain(b"gone\n")},
        {b"b": plain(LINES)},
    ),
    "one of two equal files is renamed": (
        {b"a": plain(LINES), b"b": plain(LINES)},
        {b"b": plain(LINES), b"c": plain(LINES)},
    ),
    "renamed into a folder of its name": ({b"a": plain(LINES)}, {b"a/a": plain(LINES)}),
    "renamed out of a folder to its name": ({b"a/a": plain(LINES)}, {b"a": plain(LINES)}),
    "rename of odd names": ({b'q"\n': plain(LINES)}, {b"w \xff\t": plain(EDITED)}),
    "crlf": ({b"a": plain(b"a\r\nb\r\n")}, {b"a": plain(b"a\r\nc\r\n")}),
    "crlf to lf": ({b"a": plain(b"a\r\nb\r\n")}, {b"a": plain(b"a\nb\n")}),
    "cr alone": ({b"a": plain(b"a\rb\rc")}, {b"a": plain(b"a\rB\rc\r")}),
    "loses the newline at the end": ({b"a": plain(b"a\nb\n")}, {b"a": plain(b"a\nb")}),
    "gets a newline at the end": ({b"a": plain(b"a\nb")}, {b"a": plain(b"a\nb\n")}),
    "no newline on both sides": ({b"a": plain(b"a\nb")}, {b"a": plain(b"a\nc")}),
    "white space alone": ({b"a": plain(b" \n\t\n")}, {b"a": plain(b" \t \n\n \n")}),
    "empty new and gone": ({b"a": plain(b"")}, {b"b": plain(b""), b"sub/c": plain(b"")}),
    "filled and emptied": ({b"a": plain(b""), b"b": plain(b"x\n")}, {b"a": plain(b"x\n"), b"b": plain(b"")}),
    "file becomes folder": ({b"a": plain(LINES)}, {b"a/b/c": plain(b"deep\n")}),
    "folder becomes file": ({b"a/b/c": plain(b"deep\n"), b"a/d": plain(b"")}, {b"a": plain(b"flat\n")}),
    "deleted folder": (
        {b"d/one": plain(LINES), b"d/e/two": plain(BINARY), b"d/e/f/three": program(b""), b"z": plain(b"")},
        {b"z": plain(b"")},
    ),
    "deep folders": ({}, {b"/".join([b"deep"] * 60) + b"/file": plain(b"x\n")}),
    "very long line": ({b"a": plain(b"x" * 300_000)}, {b"a": plain(b"x" * 299_999 + b"y")}),
    "text that looks like a patch": (
        {b"a": plain(b"--- a/a\n+++ b/a\n@@ -1 +1 @@\n-x\n+y\n")},
        {b"a": plain(b"--- a/b\n+++ b/a\n@@ -1 +1 @@\n-y\n\\ No newline at end of file\n-- \n")},
    ),
    "odd breaks": ({b"a": plain("a\u2028b\x0cc\x85\n".encode())}, {b"a": plain("a\u2028b\x0bc\x85d\n".encode())}),
    "nothing": ({b"a": plain(LINES)}, {b"a": plain(LINES)}),
}
NAMES = {
    "spaces": b" lead in trail ",
    "tab": b"a\tb\t",
    "quotes": b"'q\"u\\o`te",
    "newline": b"new\nline\n",
    "not utf-8": b"\xff\xfe\x80.bin",
    "latin-1": b"gr\xfcn",
    "utf-8": "grün 漢字 \U0001f600".encode(),
    "invisible": "a\u200b\u202eb\u2028".encode(),
    "control": b"\x01\x1b[31m\x7f",
    "like a prefix": b"a/b/a",
    "like a header": b"x b/x",
    "like two names": b"a b/a b",
    "like a null device": b"dev/null",
    "dashes": b"-n",
    "trailing slash-like": b"a.orig/\\",
    "glob": b":(glob)*?[x]",
    "long": b"n" * 255,
}


QUICK = {
    "folder becomes link", "link to binary", "link to folder becomes folder", "moved link", "rename and chmod +x",
    "rename of binary and chmod", "rename, edit and chmod", "renamed into a folder of its name",
    "like a header", "newline", "not utf-8", "spaces",
}  # fmt: skip


def rows(names: Collection[str]) -> list[ParameterSet]:
    """The names, all but the quick ones slow."""
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", rows(TREES))
def test_git_makes_a_copy_equal(tmp_path: Path, name: str) -> None:
    check_applies(tmp_path, *TREES[name])


def test_git_makes_a_copy_of_all_trees_in_one_equal(tmp_path: Path) -> None:
    """Equal files of several trees are taken for renamed ones, whichever they are."""
    whole: tuple[Tree, Tree] = ({}, {})
    for number, trees in enumerate(TREES.values()):
        for tree, found in zip(trees, whole, strict=True):
            found |= {b"%d/%s" % (number, name): node for name, node in tree.items()}
    check_applies(tmp_path, *whole)


@pytest.mark.parametrize("name", rows(NAMES))
def test_a_file_of_any_name(tmp_path: Path, name: str) -> None:
    """One that is new and empty, one that is edited, a program, a link, one that is gone: five kinds of headers."""
    file = NAMES[name]
    before = {
        b"1/" + file: plain(LINES),
        b"2/" + file: plain(b"x\n"),
        b"3/" + file: plain(b""),
        b"4/" + file: link(b"x"),
    }
    after = {
        b"0/" + file: plain(b""),
        b"1/" + file: plain(EDITED),
        b"3/" + file: program(b""),
        b"4/" + file: link(file),
    }
    patch = check_applies(tmp_path, before, after)
    assert {os.fsencode(one.name) for one in patch.files} == before.keys() | after.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_any_name_at_the_top(tmp_path: Path, name: str) -> None:
    file = NAMES[name]
    check_applies(tmp_path, {}, {file: plain(b"")})
    shutil.rmtree(tmp_path / "work")
    shutil.rmtree(tmp_path / "one")
    shutil.rmtree(tmp_path / "other")
    check_applies(tmp_path, {file: plain(b"x\n")}, {file: program(b"x\n")})


@pytest.mark.parametrize("name", ["edit of a program", "gone program", "new program", "rename and chmod +x"])
def test_a_mode_need_not_be_on_record_where_nothing_changed_it_or_of_a_plain_file(tmp_path: Path, name: str) -> None:
    check_applies(tmp_path, *TREES[name], modes=False)


CONTENTS = st.one_of(
    st.binary(max_size=40),
    st.lists(st.sampled_from([b"a\n", b"b\n", b"c\r\n", b"\n", b"d", b"\0", b"\xff\n"]), max_size=12).map(b"".join),
    st.just(LINES),
    st.just(EDITED),
)
NODES = st.one_of(
    st.builds(Node, CONTENTS, st.sampled_from([PLAIN_FILE, PROGRAM])),
    st.sampled_from([link(b"f"), link(b"x"), link(b"../x y"), link(b"\xff")]),  # git knows no way around a loop
)
PATHS = st.sampled_from([b"a", b"b c", b"d/a", b"d/e/a", b"d", b'"', b"\xff", b"f/a", b"f/g"])


def _is_tree(tree: Tree) -> bool:
    return not any(other.startswith(name + b"/") for name in tree for other in tree)


TREE = st.dictionaries(PATHS, NODES, max_size=6).filter(_is_tree)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=TREE, after=TREE)
def test_git_makes_a_copy_of_any_tree_equal(
    tmp_path_factory: pytest.TempPathFactory, before: Tree, after: Tree
) -> None:
    folder = tmp_path_factory.mktemp("trees")
    check_applies(folder, before, after)
    shutil.rmtree(folder)


def test_a_copy_that_has_moved_on_is_merged_with(tmp_path: Path) -> None:
    work, copy = tmp_path / "work", tmp_path / "copy"
    work.mkdir()
    copy.mkdir()
    before: Tree = {b"a": plain(LINES), b"b": plain(LINES.upper())}
    data = patch_of(work, before, {b"a": plain(EDITED), b"c": plain(LINES.upper())}).to_bytes()
    make(copy, before)
    git(copy, "init", "-q")
    git(copy, "add", "-A")
    theirs = LINES.replace(b"line 10\n", b"line ten\n")  # within the context of the hunk
    make(copy, {**before, b"a": plain(theirs)})
    git(copy, "add", "-A")
    git(copy, "apply", "--3way", "-", feed=data)
    merged = theirs.replace(b"line 7\n", b"line seven\n")
    assert read(copy) == {b"a": plain(merged), b"c": plain(LINES.upper())}


# What is not in it


def redact(content: bytes) -> bytes:
    return content.replace(b"hunter2", b"[redacted:password:0123ab]")


SECRET = b"password = hunter2\n"
OF_SECRETS: dict[str, tuple[Tree, Tree]] = {
    "new": ({}, {b"s": plain(SECRET)}),
    "edited": ({b"s": plain(b"none\n")}, {b"s": plain(SECRET)}),
    "gone from the disk": ({b"s": plain(redact(SECRET))}, {b"s": plain(b"none\n")}),
    "edited beside it": ({b"s": plain(redact(SECRET))}, {b"s": plain(SECRET + b"more\n")}),
    "deleted": ({b"s": plain(redact(SECRET))}, {}),
    "a link": ({}, {b"s": link(b"/hunter2")}),
    "binary": ({b"s": plain(b"\0")}, {b"s": plain(b"\0" + SECRET)}),
}


@pytest.mark.parametrize("name", OF_SECRETS)
def test_a_file_with_a_secret_is_left_out_and_named(tmp_path: Path, name: str) -> None:
    before, after = OF_SECRETS[name]
    before, after = {**before, b"a": plain(LINES)}, {**after, b"a": plain(EDITED)}
    patch = patch_of(tmp_path, before, after, clean=redact)
    assert patch.omitted == [{"path": "s", "why": "a secret was found in it"}]
    assert [one.name for one in patch.files] == ["a"]
    assert "hunter2" not in patch.text
    assert "redacted" not in patch.text


def test_a_renamed_file_with_a_secret_is_left_out_on_both_sides(tmp_path: Path) -> None:
    patch = patch_of(tmp_path, {b"old": plain(redact(LINES + SECRET))}, {b"new": plain(LINES + SECRET)}, clean=redact)
    assert [row["path"] for row in patch.omitted] == ["new", "old"]
    assert patch.to_bytes() == b""


def test_what_is_passed_over_is_nowhere(tmp_path: Path) -> None:
    patch = patch_of(
        tmp_path,
        {b"out.patch": plain(b"old\n")},
        {b"out.patch": plain(b"new\n")},
        without={str(tmp_path / "out.patch")},
    )
    assert patch == ("", [], [])


def test_what_was_not_kept_and_what_is_no_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"now\n")
    os.mkfifo(tmp_path / "pipe")
    first = {str(tmp_path / "a"): OVERWRITTEN, str(tmp_path / "pipe"): None, "/elsewhere/b": None}
    patch = SessionChanges(FirstVersions(first), lambda _: None, str(tmp_path)).whole_patch()
    assert {row["path"]: row["why"] for row in patch.omitted} == {
        "a": "changed by a command; its earlier content was not kept",
        "pipe": "cannot be read: it is not a regular file",
    }
    assert patch.to_bytes() == b""


def test_what_lies_outside_of_the_workspace_is_named(tmp_path: Path) -> None:
    work, outside = tmp_path / "work", tmp_path / "outside"
    work.mkdir()
    outside.write_bytes(b"new\n")
    patch = SessionChanges(FirstVersions({str(outside): None}), lambda _: None, str(work)).whole_patch()
    assert patch.omitted == [{"path": str(outside), "why": "it is outside of the workspace"}]
    assert patch.to_bytes() == b""
