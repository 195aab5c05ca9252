"""docs/conformance.md from the rows beside this file: `python -m tests.support.conformance_page` writes it.

A file of `tests/support/conformance` stands for one specification: `title`, `name` (as comments cite it), then
`[[section]]` with `at` and `title`, and its `[[section.row]]`: `says` is the requirement in words of this project, and
what else stands there is its state:

    tests = ["tests/…/test_x.py::test_y"]    met, as these tests show
    tests = [...], differs = "why"           met in another form
    not_here = "why"                         does not apply
    open = "what is missing"                 not met yet

Only the tests that a row names show that it is met, so each has to look at the behaviour itself.
"""

from __future__ import annotations

import ast
import functools
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "conformance.md"
ROWS: Final = Path(__file__).resolve().parent / "conformance"
SPECS: Final = ("ah", "tr", "sk", "nt", "bt")
"""The files of rows, in the order of the page."""
_STATES: Final = ({"tests"}, {"tests", "differs"}, {"not_here"}, {"open"})


class Row(NamedTuple):
    """One requirement. `state` is `met`, `differs`, `not_here` or `open`; `why` is empty for `met`."""

    says: str
    state: str
    why: str
    tests: tuple[str, ...]


class Section(NamedTuple):
    """A part of a specification: its number or heading there, what it is about, and the rows."""

    at: str
    title: str
    rows: tuple[Row, ...]


class Spec(NamedTuple):
    """One specification with all its rows."""

    name: str
    title: str
    sections: tuple[Section, ...]

    def count(self, state: str) -> int:
        """How many rows have this state."""
        return sum(row.state == state for section in self.sections for row in section.rows)


def read(path: Path) -> Spec:
    """The rows of a file. Raises ValueError with the place of a row that has no state, or two."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    sections = tuple(
        Section(part["at"], part["title"], tuple(_row(f"{path.name} {part['at']}", one) for one in part["row"]))
        for part in data["section"]
    )
    return Spec(data["name"], data["title"], sections)


def _row(place: str, one: dict[str, Any]) -> Row:
    keys = one.keys() - {"says"}
    if "says" not in one or keys not in _STATES:
        raise ValueError(f"{place}: {one}: a row has `says` and one of tests, tests with differs, not_here, open")
    state = next((key for key in ("differs", "not_here", "open") if key in one), "met")
    return Row(one["says"], state, one.get(state, ""), tuple(one.get("tests", ())))


def specs() -> list[Spec]:
    """All specifications, in the order of the page."""
    return [read(ROWS / f"{name}.toml") for name in SPECS]


def problems(spec: Spec, root: Path) -> Iterator[str]:
    """What is wrong with the rows: what stands there twice, is empty or spoils the table, and tests that are not in the
    files below `root`, or that never run."""
    seen: set[str] = set()
    places: set[str] = set()
    for section in spec.sections:
        if section.at in places:
            yield f"{spec.name} {section.at}: the section stands there twice"
        places.add(section.at)
        for row in section.rows:
            place = f"{spec.name} {section.at}: {row.says!r}"
            if row.says in seen:
                yield f"{place} stands there twice"
            seen.add(row.says)
            if "|" in row.says + row.why:
                yield f"{place}: a | ends the cell of a table"
            if row.state in ("met", "differs") and not row.tests:
                yield f"{place} names no test"
            if len(set(row.tests)) < len(row.tests):
                yield f"{place} names a test twice"
            for node in row.tests:
                file, _, name = node.partition("::")
                if name not in tests_of(root / file):
                    yield f"{place}: there is no test {node} that runs"


@functools.cache
def tests_of(path: Path) -> frozenset[str]:
    """The tests of a file as node ids name them, without those that are always skipped. No file has none."""
    if not path.is_file():
        return frozenset()
    return frozenset(_tests(ast.parse(path.read_text(encoding="utf-8")).body, ""))


def _tests(body: Sequence[ast.stmt], prefix: str) -> Iterator[str]:
    for one in body:
        if isinstance(one, ast.ClassDef) and one.name.startswith("Test"):
            yield from _tests(one.body, f"{prefix}{one.name}::")
        elif isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name.startswith("test_"):
            if not any(ast.unparse(mark).partition("(")[0] == "pytest.mark.skip" for mark in one.decorator_list):
                yield prefix + one.name
        elif isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name):
            name = one.targets[0].id  # hypothesis machines become a test by their class: `TestX = Machine.TestCase`
            if name.startswith("Test"):
                yield prefix + name


_HEAD: Final = """\
# Conformance

Made from `tests/support/conformance` by `python -m tests.support.conformance_page`.

What the five specifications ask for, in words of this project, and the tests of it. A row without a test names
why: it does not apply here, or it is open. **Otherwise** marks what is met in another form, since the external
interface decides where specifications disagree, or since this form is safer. `make test-all` runs every test that is
named here.

"""
_WORDS: Final = {"not_here": "*Does not apply:* ", "open": "**Open:** ", "differs": "**Otherwise:** "}


def page(made_of: Sequence[Spec] | None = None) -> str:
    """The page as it should be."""
    all_specs = specs() if made_of is None else made_of
    parts = [
        _HEAD,
        "| specification | met | met otherwise | does not apply | open |\n| --- | --- | --- | --- | --- |\n",
    ]
    states = ("met", "differs", "not_here", "open")
    for spec in all_specs:
        counts = " | ".join(str(spec.count(state)) for state in states)
        parts.append(f"| [{spec.name}](#{_anchor(spec)}): {spec.title} | {counts} |\n")
    parts.append(f"| all | {' | '.join(str(sum(one.count(state) for one in all_specs)) for state in states)} |\n")
    for spec in all_specs:
        parts.append(f"\n## {spec.name}: {spec.title}\n")
        for section in spec.sections:
            parts.append(f"\n### {spec.name} {section.at}: {section.title}\n\n| requirement | tests |\n| --- | --- |\n")
            parts.extend(f"| {row.says} | {_tests_of(row)} |\n" for row in section.rows)
    return "".join(parts)


def _anchor(spec: Spec) -> str:
    kept = "".join(char for char in f"{spec.name} {spec.title}".lower() if char.isalnum() or char in " -")
    return kept.replace(" ", "-")


def _tests_of(row: Row) -> str:
    why = _WORDS[row.state] + row.why if row.state in _WORDS else ""
    return "; ".join(filter(None, (why, ", ".join(map(_link, row.tests)))))


def _link(node: str) -> str:
    file, _, name = node.partition("::")
    return f"[{name.rpartition('::')[2].removeprefix('test_')}](../{file})"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
