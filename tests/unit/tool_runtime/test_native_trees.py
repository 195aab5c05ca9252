"""cp__list_files, cp__list_dir, cp__grep through the router, against simple references."""

from __future__ import annotations

import asyncio
import fnmatch
import os
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_host.contracts import ToolConstraints
from agent_host.errors import ErrorCode
from tests.unit.tool_runtime.conftest import error_of, request, until
from tests.unit.tool_runtime.test_native_files import answered
from tool_runtime.files import Scope
from tool_runtime.files.listing import Excludes, Pager, path_of, token_of
from tool_runtime.tool import Abandoned

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agent_host.contracts import ToolResult
    from tests.unit.tool_runtime.conftest import MakeRouter

NAMES = st.lists(st.sampled_from(["a", "b", "a-b", "a.b", "Ż", "zz", "%41", "x y"]), min_size=1, max_size=3)
TREES = st.sets(NAMES.map("/".join), max_size=12)


@pytest.fixture
def call(make_router: MakeRouter) -> Callable[..., Awaitable[ToolResult]]:
    router = make_router(families=("native",))

    async def run(tool: str, constraints: ToolConstraints | None = None, **arguments: Any) -> ToolResult:
        return await router.execute(request(tool, constraints, **arguments))

    return run


def put(root: Path, paths: set[str]) -> None:
    """A file for each path, where no other one has made a directory of it."""
    for path in sorted(paths):
        place = root / path
        if all(not above.is_file() for above in place.parents) and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(path)


def expected(root: Path, *, recursive: bool) -> list[str]:
    """All entries: those of a directory before those below it, in the order of the names."""
    found = [str(one.relative_to(root)) for one in (root.rglob("*") if recursive else root.iterdir())]
    return sorted(found, key=lambda path: (path.split("/")[:-1], path.split("/")[-1]))


def pages(pager: Pager, root: Path, size: int, *, recursive: bool, between: Callable[[int], None]) -> list[str]:
    found: list[str] = []
    token: str | None = None
    count = 0
    while True:
        page = pager.page(str(root), Scope(), Abandoned(), size=size, token=token, recursive=recursive)
        found += [path for path, _ in page.entries]
        if not page.has_more:
            return found
        token = token_of(found[-1], page.root)
        between(count)
        count += 1


@settings(max_examples=30)
@given(TREES, st.integers(1, 4), st.booleans())
def test_pages_together_are_the_listing(paths: set[str], size: int, recursive: bool) -> None:
    with tempfile.TemporaryDirectory() as made:
        root = Path(made).resolve()
        put(root, paths)
        listed = pages(Pager(), root, size, recursive=recursive, between=lambda _: None)
        assert listed == expected(root, recursive=recursive)


@settings(max_examples=30)
@given(st.sets(st.text("abcdef", min_size=1, max_size=2), min_size=3), st.data())
def test_what_comes_and_goes_makes_no_other_entry_appear_twice_or_never(names: set[str], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as made:
        root = Path(made).resolve()
        put(root, names)
        stays = {data.draw(st.sampled_from(sorted(names))) for _ in range(2)}

        def change(number: int) -> None:
            gone = data.draw(st.sampled_from(sorted(names)))
            if gone not in stays:
                (root / gone).unlink(missing_ok=True)
            (root / f"{data.draw(st.sampled_from('abcdef'))}{number}").touch()

        listed = pages(Pager(), root, 2, recursive=False, between=change)
    assert listed == sorted(set(listed))
    assert stays <= set(listed)


@given(st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1))
def test_a_token_is_a_name(name: str) -> None:
    if name not in (".", ".."):
        assert path_of(token_of(name, "/w"), "/w") == name
    assert path_of(token_of("\udcff", "/w"), "/w") == "\udcff"
    assert token_of("plain-name_1.txt", "/w").startswith("plain-name_1.txt~")


async def test_a_page_of_a_directory_with_its_token(call: Any, workspace: Path) -> None:
    for name in "abcde":
        (workspace / name).touch()
    (workspace / "c2").mkdir()
    first = answered(await call("cp__list_dir", path=str(workspace), page_size=3))
    assert first == {
        "entries": [{"path": name, "type": "file"} for name in "abc"],
        "next_page_token": token_of("c", str(workspace)),
    }
    (workspace / "c").unlink()
    (workspace / "a0").touch()
    second = answered(await call("cp__list_dir", path=str(workspace), page_size=3, page_token=first["next_page_token"]))
    assert [entry["path"] for entry in second["entries"]] == ["c2", "d", "e"]
    assert "next_page_token" not in second


async def test_entries_by_kind_and_pattern(call: Any, workspace: Path) -> None:
    put(workspace, {"src/a.py", "src/b.js", "c.py"})

    async def listed(**how: Any) -> list[str]:
        answer = answered(await call("cp__list_dir", path=str(workspace), **how))
        return [entry["path"] for entry in answer["entries"]]

    assert await listed(recursive=True) == ["c.py", "src", "src/a.py", "src/b.js"]
    assert await listed(recursive=True, include_dirs=False) == ["c.py", "src/a.py", "src/b.js"]
    assert await listed(recursive=True, include_files=False) == ["src"]
    assert await listed(recursive=True, pattern="*.{py,ts}") == ["c.py", "src/a.py"]


async def test_what_policy_hides_is_on_no_page(call: Any, workspace: Path) -> None:
    put(workspace, {"a", "b", "c", "d"})
    scope = ToolConstraints(blocked_paths=(str(workspace / "b"),))
    answer = answered(await call("cp__list_dir", scope, path=str(workspace), page_size=2))
    assert [entry["path"] for entry in answer["entries"]] == ["a", "c"]


async def test_a_directory_that_changes_is_read_again(workspace: Path) -> None:
    """Also where its names are kept from the page before."""
    put(workspace, {"a", "b", "c"})
    os.utime(workspace, (1, 1))
    pager, place = Pager(), (str(workspace), Scope(), Abandoned())
    assert [path for path, _ in pager.page(*place, size=2).entries] == ["a", "b"]
    (workspace / "b2").touch()
    later = pager.page(*place, size=2, token=token_of("b", str(workspace)))
    assert [path for path, _ in later.entries] == ["b2", "c"]


@pytest.mark.parametrize("token", ["../x", "%00", ".", "a", "a~", "a~00000000", "\ud800~0", token_of("a", "/w")])
async def test_a_token_that_is_none_of_the_directory_is_refused(call: Any, workspace: Path, token: str) -> None:
    put(workspace, {"a", "b"})
    code, said = error_of(await call("cp__list_dir", path=str(workspace), page_token=token))
    assert code == ErrorCode.INVALID_REQUEST
    assert said.startswith("$.page_token: ")


async def test_arguments_do_not_raise_a_ceiling(call: Any, workspace: Path) -> None:
    for tool, more in (
        ("cp__list_dir", {"page_size": 10_001}),
        ("cp__grep", {"pattern": "x", "max_results": 1_001}),
        ("cp__grep", {"pattern": "x", "max_files_visited": 10_001}),
        ("cp__grep", {"pattern": "x", "max_file_bytes": 1024 * 1024 + 1}),
        ("cp__exec", {"command": "/bin/ls", "timeout_ms": 30_001}),
    ):
        arguments = {"path": str(workspace)} if tool != "cp__exec" else {}
        assert error_of(await call(tool, **arguments, **more))[0] == ErrorCode.INVALID_REQUEST


async def test_a_page_that_does_not_fit_in_a_result_ends_earlier(make_router: MakeRouter, workspace: Path) -> None:
    names = {f"{number:03}" + "n" * 100 for number in range(100)}
    put(workspace, names)
    router = make_router(families=("native",), max_output_bytes=2_000)
    found: list[str] = []
    more: dict[str, Any] = {}
    while True:
        result = await router.execute(request("cp__list_dir", path=str(workspace), **more))
        answer = answered(result)
        assert len((result.output_text or "").encode()) <= 2_000
        found += [entry["path"] for entry in answer["entries"]]
        if "next_page_token" not in answer:
            break
        more = {"page_token": answer["next_page_token"]}
    assert found == sorted(names)


# Excludes


RULES = st.lists(st.sampled_from(["a", "!a", "*.b", "!a/*", "b/**", "{a,zz}", "!zz", "a/b", "**/a.b"]), max_size=4)


def by_hand(path: str, rules: list[str]) -> bool:
    """The last rule that names the path, or a directory above it."""
    parts = path.split("/")
    left_out = False
    for rule in rules:
        glob = rule.removeprefix("!")
        for one in [glob] if "{" not in glob else ["a", "zz"]:
            for count in range(1, len(parts) + 1):
                if is_named("/".join(parts[:count]), one):
                    left_out = not rule.startswith("!")
    return left_out


def is_named(path: str, glob: str) -> bool:
    """For the globs above: those without a slash name at any depth."""
    if "/" not in glob:
        return fnmatch.fnmatchcase(path.rpartition("/")[2], glob)
    if glob.startswith("**/"):
        return path == glob[3:] or path.endswith(glob[2:])
    if glob.endswith("/**"):
        return path.startswith(glob[:-2])
    return path.count("/") == glob.count("/") and fnmatch.fnmatchcase(path, glob)


@given(NAMES.map("/".join), RULES)
def test_excludes_are_as_a_simple_reference(path: str, rules: list[str]) -> None:
    assert Excludes(rules).leave_out(path) == by_hand(path, rules)


async def test_files_are_listed_sorted_without_what_is_left_out(call: Any, workspace: Path) -> None:
    put(workspace, {"b.log", "a.txt", "logs/x.log", "logs/keep.log", "node_modules/m/i.js", "src/z.ts", "src/y.tsx"})
    exclude = ["*.log", "!logs/keep.log", "node_modules", "*.{ts,tsx}", "!z.ts"]
    everything = answered(await call("cp__list_files", dir=str(workspace), recursive=True, exclude=exclude))
    assert everything == {"files": ["a.txt", "logs/keep.log", "src/z.ts"]}
    assert answered(await call("cp__list_files", dir=str(workspace))) == {"files": ["a.txt", "b.log"]}
    assert error_of(await call("cp__list_files", dir=str(workspace), exclude=["!"]))[0] == ErrorCode.INVALID_REQUEST


# Grep


async def test_matches_with_line_and_column(call: Any, workspace: Path) -> None:
    (workspace / "a.txt").write_text("one\nżółw Needle\n")
    put(workspace, {"deep/needle.txt"})
    (workspace / "binary").write_bytes(b"needle\0")
    (workspace / "noise").write_bytes(b"needle" + b"\x01" * 10)
    (workspace / "chinese").write_text("针 needle 针针针针针针针针针针")

    async def found(**how: Any) -> list[tuple[str, int, int]]:
        answer = answered(await call("cp__grep", pattern="needle", path=str(workspace), **how))
        return [(one["file"], one["line"], one["column"]) for one in answer["matches"]]

    assert await found() == [("chinese", 1, 3)]
    assert await found(ignore_case=True) == [("a.txt", 2, 6), ("chinese", 1, 3)]
    assert await found(recursive=True) == [("chinese", 1, 3), ("deep/needle.txt", 1, 6)]


async def test_a_limit_that_is_reached_ends_the_search_and_is_said(call: Any, workspace: Path) -> None:
    put(workspace, {"a", "b", "c"})
    (workspace / "d").write_text("a" * 100)
    base = {"pattern": "[a-d]", "path": str(workspace)}
    first = answered(await call("cp__grep", **base, max_results=2))
    assert ([one["file"] for one in first["matches"]], first["truncated"]) == (["a", "b"], True)
    visited = answered(await call("cp__grep", **base, max_files_visited=1))
    assert ([one["file"] for one in visited["matches"]], visited["stopped"]) == (["a"], "stopped after 1 files")
    small = answered(await call("cp__grep", **base, max_file_bytes=10))
    assert ([one["file"] for one in small["matches"]], small["passed_over"]) == (["a", "b", "c"], 1)
    assert "stopped" not in answered(await call("cp__grep", **base))


@pytest.mark.parametrize("tool", ["cp__list_files", "cp__list_dir", "cp__grep"])
async def test_a_search_nobody_waits_for_ends(
    call: Any, workspace: Path, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    """It is cancelled in its first directory, and looks into no more than the next one."""
    put(workspace, {f"{number:02}/f" for number in range(50)})
    reached, go_on, asked = threading.Event(), threading.Event(), list[str]()
    honest = os.scandir

    def slow(path: Any = ".") -> Any:
        asked.append(str(path))
        if len(asked) == 2:
            reached.set()
            go_on.wait(10)
        return honest(path)

    monkeypatch.setattr(os, "scandir", slow)
    where = {"dir" if tool == "cp__list_files" else "path": str(workspace)}
    more = {"pattern": "x"} if tool == "cp__grep" else {}
    task = asyncio.ensure_future(call(tool, **where, **more, recursive=True))
    await until(reached.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go_on.set()
    again = await call("cp__list_dir", path=str(workspace))
    assert len(answered(again)["entries"]) == 50
    assert len([one for one in asked if one != str(workspace)]) < 10


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    lines=st.lists(st.integers(0, 4), max_size=8),
    results=st.integers(1, 12),
    files=st.integers(1, 10),
    largest=st.integers(1, 40),
)
async def test_limits_leave_a_beginning_of_what_there_is(
    call: Any, workspace: Path, lines: list[int], results: int, files: int,
    largest: int,
) -> None:  # fmt: skip
    """Of files with so many lines that match, whatever the three limits are; and where one was met, that is said."""
    place = Path(tempfile.mkdtemp(dir=workspace))
    for number, count in enumerate(lines):
        (place / f"{number}").write_text("needle\n" * count + "other\n")
    answer = answered(
        await call(
            "cp__grep",
            pattern="needle",
            path=str(place),
            max_results=results,
            max_files_visited=files,
            max_file_bytes=largest,
        )
    )
    small = [number for number in range(len(lines)) if (place / f"{number}").stat().st_size <= largest]
    everything = [(str(number), line + 1) for number in small[:files] for line in range(lines[number])]
    found = [(one["file"], one["line"]) for one in answer["matches"]]
    assert found == everything[:results]
    if len(found) < len(everything):
        assert answer["truncated"]
    elif len(small) > files:
        assert answer["stopped"] == f"stopped after {files} files"


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(count=st.integers(0, 12), size=st.integers(1, 12), room=st.integers(300, 700))
async def test_pages_of_any_size_under_any_limit_of_output_join_to_the_listing(
    make_router: MakeRouter, workspace: Path, count: int, size: int, room: int
) -> None:
    place = Path(tempfile.mkdtemp(dir=workspace))
    names = {f"{number:02}-{'n' * 40}" for number in range(count)}
    put(place, names)
    router = make_router(families=("native",), max_output_bytes=room)
    found: list[str] = []
    more: dict[str, Any] = {}
    while True:
        result = await router.execute(request("cp__list_dir", path=str(place), page_size=size, **more))
        assert len((result.output_text or "").encode()) <= room
        answer = answered(result)
        assert len(answer["entries"]) <= size
        found += [entry["path"] for entry in answer["entries"]]
        if "next_page_token" not in answer:
            break
        more = {"page_token": answer["next_page_token"]}
    assert found == sorted(names)
