"""Draw two corpora of shell lines out of source archives: `python -m tests.support.corpus_sources FOLDER`.

`FOLDER/build` and `FOLDER/docs` hold source archives of different projects (`pip download --no-binary`, `npm pack`). Of
`build` come the steps of workflows, the recipes of makefiles and the scripts of package.json; of `docs` the commands in
READMEs and guides for contributors, and shell scripts. The same archives and seed give the same files.
"""

from __future__ import annotations

import json
import random
import re
import sys
import tarfile
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.support.corpus_draw import MOST_CHARACTERS, TEMPLATE, Entry, has_command, in_pieces, without_secrets

SEED = 33
LINES = 100
MOST_OF_A_FILE = 4
MOST_OF_AN_ARCHIVE = 7
FOLDER = Path(__file__).resolve().parents[1] / "unit" / "policy" / "corpus"

_SHELLS = ("", "bash", "sh", "zsh")
_MARKED = r"(?:bash|sh|shell|zsh|console|shell-session)\b[^\n]*\n"
_BLOCK = re.compile(
    rf"^ *```+ *{_MARKED}(?P<fenced>.*?)^ *```"
    rf"|^(?P<dent> *)\.\. (?:code-block|code|sourcecode|prompt):: *{_MARKED}"
    r"(?P<indented>(?:(?P=dent) +[^\n]*\n|[ \t]*\n)+)",
    re.DOTALL | re.MULTILINE,
)
_OPTION = re.compile(r"^ *:[\w-]+:.*$", re.MULTILINE)
_PROMPT = re.compile(r"^(?:\([\w.-]+\) ?)?[$%] ")
# Make fills in its variables before the shell sees the line; `$$` is the shell's own.
_DEFINITION = re.compile(r"^(?P<name>\w+) *[:?+]?= *(?P<text>(?:.*\\\n)*.*)$", re.MULTILINE)
_VARIABLE = re.compile(r"\$(?:\((?P<name>[^()]*(?:\([^()]*\)[^()]*)*)\)|\{(?P<other>[^{}]*)\}|[@<^*+?%])")
_RECIPE = re.compile(r"^\t[@+-]*[ \t]*(?P<line>(?:.*\\\n)*.*)$", re.MULTILINE)
_GUIDE = re.compile(r"(?:readme|contribut|develop|hacking|install|build)[^/]*\.(?:md|rst)$", re.IGNORECASE)

Reader = Callable[[str], Iterable[str]]


def draw(archives: Path, kind: str) -> list[dict[str, str]]:
    """The drawn lines of one kind, with ids in the order of the draw."""
    entries: dict[str, Entry] = {}
    for archive in sorted(archives.iterdir()):
        for entry in _entries(archive, kind):
            entries.setdefault(entry.line, entry)
    shuffled = list(entries.values())
    random.Random(SEED).shuffle(shuffled)
    taken: Counter[str] = Counter()
    rows: list[dict[str, str]] = []
    for entry in shuffled:
        archive_name = entry.source.split()[0]
        if len(rows) < LINES and taken[entry.source] < MOST_OF_A_FILE and taken[archive_name] < MOST_OF_AN_ARCHIVE:
            taken.update((entry.source, archive_name))
            rows.append({"id": f"{kind}-{len(rows) + 1:03}", "source": entry.source, "line": entry.line})
    return rows


def _entries(archive: Path, kind: str) -> Iterator[Entry]:
    name = re.sub(r"\.(?:tgz|tar\.gz)$", "", archive.name)
    with tarfile.open(archive) as tar:
        for member in sorted(tar.getmembers(), key=lambda one: one.name):
            path = member.name.partition("/")[2]
            reader, file = _reader(path, kind), tar.extractfile(member) if member.isfile() else None
            if reader is None or file is None or "node_modules/" in path:
                continue
            for line in reader(file.read().decode("utf-8", "replace").replace("\r\n", "\n")):
                if has_command(line) and len(line) <= MOST_CHARACTERS:
                    yield Entry(f"{name} {path}", without_secrets(line))


def _reader(path: str, kind: str) -> Reader | None:
    name = path.rpartition("/")[2]
    if kind == "docs":
        return in_pieces if name.endswith(".sh") else _guide if _GUIDE.fullmatch(name) else None
    if path.startswith(".github/workflows/") and name.endswith((".yml", ".yaml")):
        return _steps
    return {"Makefile": _recipes, "GNUmakefile": _recipes, "package.json": _scripts}.get(name)


def _steps(text: str) -> Iterator[str]:
    jobs: dict[str, Any] = yaml.safe_load(text).get("jobs") or {}
    for job in jobs.values():
        usual = "pwsh" if "windows" in str(job.get("runs-on")) else ""
        usual = ((job.get("defaults") or {}).get("run") or {}).get("shell", usual)
        for step in job.get("steps") or ():
            if "run" in step and step.get("shell", usual) in _SHELLS:
                yield from in_pieces(TEMPLATE.sub("value", str(step["run"])).strip("\n"))


def _recipes(text: str) -> Iterator[str]:
    values = {found["name"]: found["text"] for found in _DEFINITION.finditer(text) if "\n" not in found["text"]}

    def value(found: re.Match[str]) -> str:
        text = values.get(found["name"] or found["other"] or "", "value")
        return _VARIABLE.sub("value", text)

    for found in _RECIPE.finditer(_DEFINITION.sub("", text)):
        yield _VARIABLE.sub(value, found["line"].replace("$$", "\0")).replace("\0", "$").replace("\\\n\t", "\\\n")


def _scripts(text: str) -> Iterator[str]:
    yield from (one for one in (json.loads(text).get("scripts") or {}).values() if isinstance(one, str))


def _guide(text: str) -> Iterator[str]:
    for found in _BLOCK.finditer(text):
        block = textwrap.dedent(_OPTION.sub("", found["fenced"] or found["indented"] or "")).strip("\n")
        lines = block.split("\n")
        if any(_PROMPT.match(line) for line in lines):  # what has no prompt is what the program has printed
            block = "\n".join(_PROMPT.sub("", line) for line in lines if _PROMPT.match(line))
        yield from in_pieces(block)


def main(folder: str) -> None:
    """Write a file for each kind, an object a line."""
    for kind in ("build", "docs"):
        rows = draw(Path(folder, kind), kind)
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (FOLDER / f"{kind}.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
