"""Draw the corpus of shell lines out of a folder of raw entries: `python -m tests.support.corpus_draw RAW OUT`.

The folder has a file a source in `ci/` and in `agent/`: a line `source: owner/name path`, a line `commit: hash`, then
the blocks, each after a line `@@@`. The same folder and the same seed give the same file.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import NamedTuple

SEED = 13
QUOTAS = {"ci": 320, "agent": 160}
AT_MOST_FROM_ONE_SOURCE = 12
MOST_LINES = 6
MOST_CHARACTERS = 4_000

_MARK = "@@@"
# What the runner puts in before the shell sees the text: `${{ matrix.os }}`, and CircleCI's `<< parameters.args >>`.
TEMPLATE = re.compile(r"\$\{\{.*?\}\}|<<\s*\w+(?:\.[\w-]+)+\s*>>", re.DOTALL)
_SECRET = re.compile(
    r"\b(?:gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}|sk-[\w-]{20,}|xox[abp]-[\w-]{10,}|npm_\w{30,}"
    r"|AKIA[0-9A-Z]{16}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]+)"
)
_NAMED_SECRET = re.compile(r"(?i)\b(\w*(?:PRIVATE_KEY|TOKEN|SECRET|PASSWORD)=)(?:0x)?[0-9a-f]{32,}\b")


class Entry(NamedTuple):
    """One shell invocation, and where it was found."""

    source: str
    line: str


def draw(raw: Path) -> list[dict[str, str]]:
    """The drawn lines of every kind, sorted by their id."""
    chance = random.Random(SEED)
    rows: list[dict[str, str]] = []
    for kind, quota in QUOTAS.items():
        entries = _unlike(chain.from_iterable(_entries(file, kind) for file in sorted((raw / kind).glob("*.txt"))))
        chance.shuffle(entries)
        taken: Counter[str] = Counter()
        kept: list[Entry] = []
        for entry in entries:
            if len(kept) < quota and taken[entry.source] < AT_MOST_FROM_ONE_SOURCE:
                taken[entry.source] += 1
                kept.append(entry)
        rows += [
            {"id": f"{kind}-{number:03}", "source": entry.source, "line": entry.line}
            for number, entry in enumerate(kept, 1)
        ]
    return sorted(rows, key=lambda row: row["id"])


def _entries(file: Path, kind: str) -> list[Entry]:
    """The entries of one raw file, in its order."""
    head, *blocks = re.split(rf"^{_MARK}\n", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    source = head.splitlines()[0].removeprefix("source: ")
    texts = [block.strip("\n") for block in blocks]
    if kind == "ci":
        texts = list(chain.from_iterable(in_pieces(TEMPLATE.sub("value", text)) for text in texts))
    return [
        Entry(source, without_secrets(text)) for text in texts if has_command(text) and len(text) <= MOST_CHARACTERS
    ]


def in_pieces(block: str) -> list[str]:
    """Split a long block into paragraphs, and these into groups of whole statements; a short one stays whole."""
    if block.count("\n") < MOST_LINES:
        return [block]
    pieces: list[list[str]] = [[]]
    for statement in _statements(block.split("\n")):
        if not statement[0].strip():
            pieces.append([])
            continue
        if len(pieces[-1]) + len(statement) > MOST_LINES:
            pieces.append([])
        pieces[-1] += statement
    return ["\n".join(piece).rstrip("\n") for piece in pieces if piece]


def _statements(lines: list[str]) -> list[list[str]]:
    """The lines in the smallest runs that bash reads to their end, a comment with what comes after it."""
    statements: list[list[str]] = []
    run: list[str] = []
    for line in lines:
        run.append(line)
        text = "\n".join(run)
        if _is_whole(text) and (has_command(text) or not line.strip()):
            statements.append(run)
            run = []
    return [*statements, run] if run else statements


def _is_whole(text: str) -> bool:
    """Whether bash, which reads but does not run it, finds nothing open: no loop, here-document, quote or next line."""
    if re.search(r"(?<!\\)(?:\\\\)*\\\Z", text):
        return False
    read = subprocess.run(["bash", "-n"], input=text + "\n", capture_output=True, text=True, check=False)
    return read.returncode == 0 and not read.stderr


def has_command(text: str) -> bool:
    """True if there is more in it than comments and blank lines."""
    return any(line.strip() and not line.lstrip().startswith("#") for line in text.split("\n"))


def without_secrets(text: str) -> str:
    return _NAMED_SECRET.sub(r"\1x", _SECRET.sub("x", text))


def _unlike(entries: chain[Entry]) -> list[Entry]:
    """The entries without those whose text came before."""
    found: dict[str, Entry] = {}
    for entry in entries:
        found.setdefault(entry.line, entry)
    return list(found.values())


def main(raw: str, out: str) -> None:
    """Write the corpus, an object a line."""
    with Path(out).open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in draw(Path(raw)))


if __name__ == "__main__":
    main(*sys.argv[1:])
