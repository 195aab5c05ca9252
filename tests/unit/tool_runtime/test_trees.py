"""ListDirectory, FindFiles and Grep: what they name, what they leave out and count, and how they look."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_host.contracts import ToolConstraints
from tests.support.tools import TOOLS
from tests.unit.tool_runtime.conftest import error_of, request, text_of
from tool_runtime.files import Scope
from tool_runtime.files import tree as trees
from tool_runtime.files.listing import BadGlob, expression, find_files, glob_pattern
from tool_runtime.tool import Abandoned, ToolFault

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.tool_runtime.conftest import Call, MakeRouter

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def make(root: Path, *paths: str, content: str = "needle\n") -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)


async def test_a_directory(call: Call, workspace: Path) -> None:
    make(workspace, "b.txt", "sub/c.txt", ".hidden", content="12345")
    (workspace / "link").symlink_to("b.txt")
    os.mkfifo(workspace / "pipe")
    assert text_of(await call("ListDirectory", None, path=str(workspace))).splitlines() == [
        ".: 5 entries",
        "file  .hidden (5 bytes)",
        "file  b.txt (5 bytes)",
        "link  link -> b.txt",
        "other pipe",
        "dir   sub/",
    ]
    assert text_of(await call("ListDirectory", None, path=f"{workspace}/sub")).splitlines() == [
        "sub: 1 entry",
        "file  c.txt (5 bytes)",
    ]
    deep = text_of(await call("ListDirectory", None, path=str(workspace), depth=2))
    assert deep.splitlines()[-2:] == ["dir   sub/", "file  sub/c.txt (5 bytes)"]


async def test_pages(call: Call, workspace: Path) -> None:
    make(workspace, *(f"f{number}" for number in range(5)))
    first = text_of(await call("ListDirectory", None, path=str(workspace), limit=2))
    assert first.splitlines()[1:] == [
        "file  f0 (7 bytes)", "file  f1 (7 bytes)", "[1 to 2 of 5 shown; offset: 2 goes on]",
    ]  # fmt: skip
    last = text_of(await call("ListDirectory", None, path=str(workspace), offset=4, limit=2))
    assert last.splitlines()[1:] == ["file  f4 (7 bytes)"]
    assert "[There are only 5]" in text_of(await call("ListDirectory", None, path=str(workspace), offset=9))
    found = text_of(await call("FindFiles", None, path=str(workspace), pattern="f*", offset=1, limit=2))
    assert found.splitlines() == ["f1", "f2", "[2 to 3 of 5 shown; offset: 3 goes on]"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.py", ["a.py", "src/b.py", "src/deep/c.py"]),
        ("src/*.py", ["src/b.py"]),
        ("**/*.py", ["a.py", "src/b.py", "src/deep/c.py"]),
        ("src/**", ["src/b.py", "src/d.ts", "src/deep/c.py"]),
        ("src/**/*.{py,ts}", ["src/b.py", "src/d.ts", "src/deep/c.py"]),
        ("[ab].py", ["a.py", "src/b.py"]),
        ("[!a].py", ["src/b.py", "src/deep/c.py"]),
        ("?.ts", ["src/d.ts"]),
        ("./a.py", ["a.py"]),
        ("nothing", []),
    ],
)
async def test_globs(call: Call, workspace: Path, pattern: str, found: list[str]) -> None:
    make(workspace, "a.py", "src/b.py", "src/deep/c.py", "src/d.ts")
    said = text_of(await call("FindFiles", None, path=str(workspace), pattern=pattern))
    assert said.splitlines() == (found or [f"No file fits {pattern}"])


@pytest.mark.parametrize(
    "name",
    ["[locale]", "(auth)", "[[...slug]]", "[user-id]", "[a-e-s]", "{a}", "{a,b}", "[!x]", "a\\b", "[z", "{z"],
)
async def test_a_name_is_found_by_itself(make_router: MakeRouter, workspace: Path, name: str) -> None:
    make(workspace, f"app/{name}/{name}.tsx", "other/zz.tsx", content="found\n")
    router, path = make_router(families=("desktop", "native", "skills")), f"app/{name}/{name}.tsx"
    for pattern in (
        path,
        f"app/{name}/*",
        f"**/{name}/**",
        f"{name}.tsx",
        f"{workspace}/app/{name}/*.tsx",
        f"**/{name}.tsx",
    ):
        asked = request("FindFiles", path=str(workspace), pattern=pattern)
        assert text_of(await router.execute(asked)) == f"{path}\n", pattern
        asked = request("Grep", path=str(workspace), pattern="found", glob=pattern, mode="files")
        assert text_of(await router.execute(asked)) == f"{path}\n", pattern
    asked = request("cp__list_files", dir=str(workspace), recursive=True, exclude=[f"app/{name}"])
    assert orjson.loads(text_of(await router.execute(asked)))["files"] == ["other/zz.tsx"]
    asked = request("cp__list_dir", path=str(workspace), recursive=True, pattern=path)
    assert [row["path"] for row in orjson.loads(text_of(await router.execute(asked)))["entries"]] == [path]
    asked = request("grep", path=str(workspace), pattern="found", glob=f"app/{name}/*")
    assert "other" not in text_of(await router.execute(asked))


async def test_an_absolute_glob_is_read_from_the_directory_that_it_begins_with(call: Call, workspace: Path) -> None:
    make(workspace, "src/b.py", "a.py", content="found\n")
    for below in ("", "/src"):
        at = f"{workspace}{below}"
        said = text_of(await call("FindFiles", None, path=at, pattern=f"{at}/*.py"))
        assert said.splitlines() == ["src/b.py" if below else "a.py"]
        said = text_of(await call("Grep", None, path=at, pattern="found", glob=f"{at}/*.py", mode="files"))
        assert said.splitlines() == ["src/b.py" if below else "a.py"]


async def test_a_glob_that_leads_elsewhere_says_what_to_do(call: Call, workspace: Path) -> None:
    for pattern in ("../*.py", "src/../*.py", f"{workspace}/*.py"):
        make(workspace, "src/b.py")
        code, message = error_of(await call("FindFiles", None, path=f"{workspace}/src", pattern=pattern))
        assert code == "INVALID_REQUEST"
        assert "path" in message


@pytest.mark.parametrize("pattern", ["/", "{a", "./"])
async def test_globs_that_mean_nothing(call: Call, workspace: Path, pattern: str) -> None:
    result = await call("FindFiles", None, path=str(workspace), pattern=pattern)
    if pattern == "{a":  # a brace that nothing closes is a character
        assert text_of(result) == "No file fits {a\n"
    else:
        assert error_of(result)[0] == "INVALID_REQUEST"


async def test_grep(call: Call, workspace: Path) -> None:
    make(workspace, "a.txt", content="one\ntwo\nthree two\nfour\nfive\ntwo\n")
    make(workspace, "sub/b.txt", content="nothing\n")
    (workspace / "binary").write_bytes(b"two\0")
    said = text_of(await call("Grep", None, path=str(workspace), pattern=r"\btwo$", before=1, after=1))
    assert said.splitlines() == [
        "a.txt", "1- one", "2: two", "3: three two", "4- four", "5- five", "6: two",
    ]  # fmt: skip
    said = text_of(await call("Grep", None, path=str(workspace), pattern="^(one|four)"))
    assert said.splitlines() == ["a.txt", "1: one", "--", "4: four"]
    for mode, lines in (("files", ["a.txt"]), ("counts", ["a.txt: 3"])):
        assert text_of(await call("Grep", None, path=str(workspace), pattern="two", mode=mode)).splitlines() == lines
    alone = await call("Grep", None, path=f"{workspace}/a.txt", pattern="TWO", ignoreCase=True, limit=1)
    assert text_of(alone).splitlines() == ["a.txt", "2: two", "[Stopped at the limit of 1; offset: 1 goes on]"]
    more = await call("Grep", None, path=f"{workspace}/a.txt", pattern="two", limit=1, offset=2)
    assert text_of(more).splitlines() == ["a.txt", "6: two"]
    assert text_of(await call("Grep", None, path=str(workspace), pattern="(", literal=True)) == "No match in 3 files\n"
    assert text_of(await call("Grep", None, path=str(workspace), pattern="o", glob="*.md")) == "No match in 0 files\n"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16-le", "utf-16-be"])
async def test_files_with_a_byte_order_mark_are_searched_as_they_are_read(
    call: Call, workspace: Path, encoding: str
) -> None:
    mark = "" if encoding == "utf-8-sig" else "\ufeff"
    (workspace / "marked.txt").write_bytes(f"{mark}naïve\r\nsecond\r\n".encode(encoding))
    said = text_of(await call("Grep", None, path=str(workspace), pattern="^naïve|^second"))
    assert said.splitlines() == ["marked.txt", "1: naïve", "2: second"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("two$", ["2: two"]),
        (r"\s$", []),
        ("^$", ["3: "]),
        (r"one\r", ["1: one"]),
        (r"two[\r]", ["2: two"]),
        ("o.$", []),
    ],
)
async def test_a_line_ends_before_its_return_unless_the_pattern_names_it(
    call: Call, workspace: Path, pattern: str, found: list[str]
) -> None:
    (workspace / "crlf.txt").write_bytes(b"one\r\ntwo\r\n\r\nend")
    said = text_of(await call("Grep", None, path=str(workspace), pattern=pattern))
    assert said.splitlines() == (["crlf.txt", *found] if found else ["No match in 1 file"])


@pytest.mark.parametrize("pattern", ["(", r"(?=a)", r"\1", "a\nb", r"a\nb"])
async def test_patterns_that_are_refused(call: Call, workspace: Path, pattern: str) -> None:
    code, message = error_of(await call("Grep", None, path=str(workspace), pattern=pattern))
    assert code == "INVALID_REQUEST"
    assert message.startswith("$.pattern: ")


async def test_a_pattern_cannot_hang(call: Call, workspace: Path) -> None:
    make(workspace, "a", content="a" * 30_000 + "b\n")
    assert "No match" in text_of(await call("Grep", None, path=str(workspace), pattern="(a+)+$"))
    found = await call("FindFiles", None, path=str(workspace), pattern="*a*a*a*a*a*a*a*a*a*b")
    assert "No file fits" in text_of(found)


async def test_long_lines_are_cut_around_the_match(call: Call, workspace: Path) -> None:
    make(workspace, "a", content="x" * 3000 + "needle" + "y" * 3000 + "\n")
    (line,) = text_of(await call("Grep", None, path=str(workspace), pattern="needle")).splitlines()[1:]
    assert "needle" in line
    assert line.startswith("1: …x")
    assert line.endswith("y… [6006 characters]")
    assert len(line) < 600


async def test_names_that_cannot_be_printed_stay_on_their_line(call: Call, workspace: Path) -> None:
    make(workspace, "a\nb\x1b[31m")
    assert text_of(await call("FindFiles", None, path=str(workspace), pattern="*")) == "a\\nb\\x1b[31m\n"
    (workspace / os.fsdecode(b"\xff")).write_text("needle")
    assert "\\udcff" in text_of(await call("Grep", None, path=str(workspace), pattern="needle"))


# Policy


BLOCKED_TREE = ("open.txt", "secret/key.txt", "sub/.env", "sub/deep/.env/x", "sub/ok.txt")


@pytest.mark.parametrize("tool", ["ListDirectory", "FindFiles", "Grep"])
async def test_what_is_blocked_is_left_out_and_counted(call: Call, workspace: Path, tool: str) -> None:
    make(workspace, *BLOCKED_TREE)
    scope = ToolConstraints(
        allowed_paths=(str(workspace),), blocked_paths=(f"{workspace}/secret", f"{workspace}/**/.env")
    )
    every: dict[str, dict[str, Any]] = {
        "ListDirectory": {"depth": 9},
        "FindFiles": {"pattern": "**"},
        "Grep": {"pattern": "needle"},
    }
    arguments = every[tool]
    said = text_of(await call(tool, scope, path=str(workspace), **arguments))
    assert "open.txt" in said
    assert "sub/ok.txt" in said
    assert "secret" not in said
    assert ".env" not in said
    assert "[Left out by policy: 3 entries]" in said


async def test_only_what_is_allowed_is_seen_from_above(call: Call, workspace: Path) -> None:
    make(workspace, "a/b/mine", "a/other", "c/other")
    scope = ToolConstraints(allowed_paths=(f"{workspace}/a/b", f"{workspace}/c/none"))
    refused = await call("FindFiles", scope, path=str(workspace), pattern="**")
    assert error_of(refused)[0] == "PERMISSION_DENIED"
    inside = await call("FindFiles", scope, path=f"{workspace}/a/b", pattern="**")
    assert text_of(inside) == "a/b/mine\n"


async def test_links_are_not_followed_and_not_named_where_they_lead_out(
    call: Call, workspace: Path, tmp_path: Path
) -> None:
    make(tmp_path, "outside/x")
    make(workspace, "real/x")
    (workspace / "out").symlink_to(tmp_path / "outside")
    (workspace / "in").symlink_to("real")
    scope = ToolConstraints(allowed_paths=(str(workspace),))
    said = text_of(await call("FindFiles", scope, path=str(workspace), pattern="**"))
    assert said.splitlines() == ["in", "real/x", "[Left out by policy: 1 entry]"]
    said = text_of(await call("Grep", scope, path=str(workspace), pattern="needle"))
    assert said.splitlines() == ["real/x", "1: needle", "[Left out by policy: 1 entry]"]


async def test_files_above_the_limit_are_not_searched(call: Call, workspace: Path) -> None:
    make(workspace, "large", content="needle" * 10)
    make(workspace, "small", content="needle")
    scope = ToolConstraints(max_file_size_bytes=10)
    said = text_of(await call("Grep", scope, path=str(workspace), pattern="needle", mode="files"))
    assert said.splitlines() == ["small", "[Not searched for their size: 1 file]"]


async def test_a_walk_stops_at_its_limit_and_says_so(
    call: Call, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(workspace, *(f"d/f{number}" for number in range(9)))
    monkeypatch.setattr(trees.WalkParams.__new__, "__defaults__", (100, False, False, False, 5, None, None))
    said = text_of(await call("FindFiles", None, path=str(workspace), pattern="**"))
    assert said.splitlines()[-1] == "[stopped after 5 entries: name a directory further down]"


async def test_what_cannot_be_read_is_said(call: Call, workspace: Path) -> None:
    assert error_of(await call("ListDirectory", None, path=f"{workspace}/none"))[0] == "FILE_NOT_FOUND"
    make(workspace, "file")
    assert error_of(await call("ListDirectory", None, path=f"{workspace}/file"))[0] == "FILE_NOT_FOUND"
    os.mkfifo(workspace / "pipe")
    assert "not a regular file" in error_of(await call("Grep", None, path=f"{workspace}/pipe", pattern="x"))[1]


# .gitignore


async def test_ignored_files_are_left_out_unless_asked_for(call: Call, workspace: Path) -> None:
    make(workspace, "a.py", "a.pyc", "build/x", "sub/keep.log", "sub/drop.log", ".git/config")
    (workspace / ".gitignore").write_text("*.pyc\nbuild/\n*.log\n")
    (workspace / "sub" / ".gitignore").write_text("!keep.log\n")
    found = text_of(await call("FindFiles", None, path=str(workspace), pattern="**"))
    assert found.splitlines() == [
        ".gitignore", "a.py", "sub/.gitignore", "sub/keep.log",
        "[Left out by .gitignore: 3 entries; includeIgnored: true shows them]",
    ]  # fmt: skip
    everything = text_of(await call("FindFiles", None, path=str(workspace), pattern="**", includeIgnored=True))
    assert {"a.pyc", "build/x", "sub/drop.log", ".git/config"} <= set(everything.splitlines())
    searched = text_of(await call("Grep", None, path=f"{workspace}/build", pattern="needle"))
    assert searched.splitlines() == ["build/x", "1: needle"], "what is named itself is searched"
    listed = text_of(await call("ListDirectory", None, path=str(workspace)))
    assert "a.pyc" in listed


async def test_files_above_the_root_count(call: Call, workspace: Path) -> None:
    make(workspace, "sub/a.log", "sub/b.txt", "sub/c.tmp", ".git/info/exclude")
    (workspace / ".gitignore").write_text("sub/*.log\n")
    (workspace / ".git" / "info" / "exclude").write_text("*.tmp\n")
    found = text_of(await call("FindFiles", None, path=f"{workspace}/sub", pattern="**"))
    assert found.splitlines()[0] == "sub/b.txt"
    assert "3 entries" not in found
    assert "Left out by .gitignore: 2 entries" in found


NAMES = st.sampled_from(["a", "b", "a.log", "x y"])
FILES = st.lists(st.lists(NAMES, min_size=1, max_size=3).map("/".join), min_size=1, max_size=6, unique=True)
IGNORING = ["a", "a/", "/a", "*", "*.log", "!a.log", "!a", "a/b", "**/b", "a/**", "!*/", "b/*", "[ab]", "?", "# x"]
IGNORING += ["\\#", "x y ", "!b/a", "a/**/b", "*.lo[g]"]
PATTERNS = st.lists(st.sampled_from(IGNORING), max_size=4)


@needs_git
@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(FILES, PATTERNS, PATTERNS)
def test_git_agrees_on_what_is_ignored(
    tmp_path_factory: pytest.TempPathFactory, files: list[str], above: list[str], below: list[str]
) -> None:
    root = tmp_path_factory.mktemp("repository")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    for path in files:
        if not any((root / part).is_file() for part in _above(path)) and not (root / path).is_dir():
            make(root, path)
    (root / ".gitignore").write_text("\n".join(above))
    if (root / "a").is_dir():
        (root / "a" / ".gitignore").write_text("\n".join(below))
    listed = ["git", "-C", str(root), "ls-files", "-co", "--exclude-standard", "-z"]
    expected = subprocess.run(listed, check=True, capture_output=True).stdout.decode().split("\0")[:-1]
    found = find_files(str(root), Scope(), Abandoned(), "**", limit=1000)
    assert sorted(one.path for one in found.page) == sorted(expected)
    shutil.rmtree(root)


def _above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


@given(st.text(alphabet="ab*?[]{},/!\\-.", max_size=12))
def test_any_glob_is_compiled_or_refused(pattern: str) -> None:
    try:
        written = expression(pattern)
    except BadGlob:
        return
    assert written
    with contextlib.suppress(ToolFault):
        glob_pattern(pattern)


def test_a_tool_without_a_path_means_the_workspace(workspace: Path) -> None:
    spec = TOOLS["Grep"]
    assert spec.complete({"pattern": "x"}, str(workspace)) == {"pattern": "x", "path": str(workspace)}
    assert spec.complete({"pattern": "x", "path": "a"}, "/w") == {"pattern": "x", "path": "a"}
    assert TOOLS["ReadFile"].complete({}, "/w") == {}
    assert (spec.summary({"pattern": "x"}), spec.summary({"pattern": "x", "path": "a"})) == ("x", "x in a")


@pytest.mark.parametrize("way", ["default", "XDG_CONFIG_HOME", "excludesFile", "link"])
async def test_what_the_user_ignores_everywhere_is_left_out(
    call: Call, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    home, config = tmp_path / "home", tmp_path / ("xdg" if way == "XDG_CONFIG_HOME" else "home/.config")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    make(home, "dotfiles/ignore", content="everywhere.txt\n!taken-back.txt\n")
    (config / "git").mkdir(parents=True)
    if way == "XDG_CONFIG_HOME":
        monkeypatch.setenv(way, str(config))
    if way == "excludesFile":
        (home / ".gitconfig").write_text('[core]\n\texcludesFile = "~/dotfiles/ignore" ; mine\n')
        (config / "git" / "ignore").write_text("a.txt\n")
    elif way == "link":
        (config / "git" / "ignore").symlink_to(home / "dotfiles" / "ignore")
    else:
        shutil.copy(home / "dotfiles" / "ignore", config / "git" / "ignore")
    make(workspace, "everywhere.txt", "a.txt", "sub/everywhere.txt", "kept/everywhere.txt")
    (workspace / "kept" / ".gitignore").write_text("!everywhere.txt\n")
    asked = {"path": str(workspace), "pattern": "*.txt"}
    assert "everywhere.txt" in text_of(await call("FindFiles", None, **asked))  # no repository
    (workspace / ".git").mkdir()
    found = text_of(await call("FindFiles", None, **asked)).splitlines()
    assert [line for line in found if line.endswith(".txt")] == ["a.txt", "kept/everywhere.txt"]


async def test_a_file_of_patterns_of_the_user_that_no_path_names_is_none(
    call: Call, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    (tmp_path / ".gitconfig").write_text("[core]\n\texcludesFile = /a\0b\n")
    make(workspace, "a.txt")
    (workspace / ".git").mkdir()
    assert "a.txt" in text_of(await call("FindFiles", None, path=str(workspace), pattern="*.txt"))
