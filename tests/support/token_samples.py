"""Texts of many kinds with the tokens that OpenAI's encodings make of them, for tests of the estimate: what is in
tests/fixtures/tokens/samples.json. Tests read that file and need no rank file.

`TIKTOKEN_CACHE_DIR=DIR python -m tests.support.token_samples` counts anew, with the rank files in DIR.
"""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

FILE = Path(__file__).resolve().parents[1] / "fixtures" / "tokens" / "samples.json"
_ROOT = Path(__file__).resolve().parents[2]
_CHARS = 2000
_WORDS = ("main", "index", "config", "helpers", "README", "test_loop", "parser", "utils", "lifecycle", "schema")
_ENDS = (".py", ".ts", ".md", ".toml", ".json", ".go")


class Sample(NamedTuple):
    """One text and its tokens in two encodings."""

    kind: str
    text: str
    o200k: int
    cl100k: int


def samples() -> dict[str, Sample]:
    """All of the file, by kind."""
    return {row["kind"]: Sample(**row) for row in json.loads(FILE.read_text(encoding="utf-8"))}


def _excerpt(path: str, start: str = "") -> str:
    text = (_ROOT / path).read_text(encoding="utf-8")
    return text[text.index(start) :][:_CHARS]


def _texts() -> dict[str, str]:
    chance = random.Random(54)

    def lines(make: Callable[[int], str], count: int = 60) -> str:
        return "\n".join(map(make, range(count)))[:_CHARS] + "\n"

    def one() -> str:
        return chance.choice(_WORDS)

    def name() -> str:
        return one() + chance.choice(_ENDS)

    def at() -> str:
        day, hour, minute, ms = (chance.randint(*span) for span in ((10, 28), (10, 23), (10, 59), (100, 999)))
        return f"2026-11-{day}T{hour}:{minute}:07.{ms}Z"

    def of_c(number: int) -> str:
        head = f"static int {one()}_{number}(struct bar *b, size_t len)"
        return f"{head}\n{{\n\tif (!b || len > MAX_LEN)\n\t\treturn -EINVAL;\n\treturn b->len + {number};\n}}\n"

    words = _excerpt("docs/architecture.md", "## What is on disk").split()
    some_bytes = chance.randbytes(1500)
    rows = [{"id": n, "name": chance.choice(words), "path": f"src/{name()}", "ok": n % 3 == 0} for n in range(40)]
    url = "/api/v1/users"
    frame = '  File "/usr/lib/python3.11/{}", line {}, in _run\n    return self.{}(*args)'
    link = '<li class="item-{}"><a href="/docs/{}?page={}">{}</a></li>'
    return {
        "prose": _excerpt("docs/faults.md", "\n\n"),
        "markdown": _excerpt("docs/limits.md", "## The calls"),
        "python": _excerpt("agent_host/thread/__init__.py"),
        "typescript": _excerpt("docs/clients/client.ts", "\n\n"),
        "toml": _excerpt("config/defaults.toml", "[llm]"),
        "schema": _excerpt("config/policy-bundle.schema.json"),
        "json": json.dumps(rows, indent=2)[:_CHARS],
        "json in one line": json.dumps(rows, separators=(",", ":"))[:_CHARS],
        "listing": lines(
            lambda n: f"-rw-r--r-- 1 root root {chance.randint(10, 99_999):6} Nov {n % 30:2} 02:{n:02} {name()}"
        ),
        "paths": lines(lambda _: f"/home/user/project/{one()}/{one()}/{name()}"),
        "search": lines(lambda n: f"src/{name()}:{n * 7}:    return self._{one()}({chance.choice(words)!r})"),
        "diff": lines(lambda n: f"{'+- '[n % 3]}    {one()} = {chance.choice(words)}({n}, key={n * 3})"),
        "tests": lines(lambda n: f"tests/unit/loop/test_{one()}.py::test_it_{n} PASSED [{n:3}%]"),
        "log": lines(lambda n: f"{at()} INFO  [worker-{n % 9}] GET {url}/{chance.randint(1, 99_999)} 200 {n}ms"),
        "traceback": lines(lambda n: frame.format(name(), n * 13, one()), 30),
        "csv": lines(
            lambda n: f"{n},{chance.choice(words)},{chance.random() * 1000:.2f},2026-{n % 12 + 1:02}-11,{one()}"
        ),
        "numbers": lines(lambda _: " ".join(str(chance.randint(0, 10 ** chance.randint(1, 9))) for _ in range(6))),
        "hex": some_bytes.hex()[:_CHARS],
        "hex dump": lines(lambda n: f"{n * 16:08x}: " + " ".join(chance.randbytes(2).hex() for _ in range(8))),
        "hashes": lines(lambda _: f"{chance.randbytes(32).hex()}  {name()}"),
        "base64": base64.encodebytes(some_bytes).decode()[:_CHARS],
        "html": lines(lambda n: link.format(n, one(), n, chance.choice(words))),
        "c": lines(of_c, 20),
        "chinese": ("检查点在每个步骤之后写入磁盘，然后才调用模型。" + "下一个进程会从停止的地方继续。") * 25,
        "german": "Jeder Aufruf eines Werkzeugs wird zuerst geprüft, und jedes Ergebnis wird sofort festgehalten. "
        * 15,
        "russian": "Каждый вызов инструмента сначала проверяется, и каждый результат сразу записывается. " * 15,
    }


def main() -> None:
    """Write the file."""
    import tiktoken

    encodings = {name: tiktoken.get_encoding(f"{name}_base") for name in ("o200k", "cl100k")}
    rows = [
        {"kind": kind, "text": text, **{name: len(one.encode_ordinary(text)) for name, one in encodings.items()}}
        for kind, text in _texts().items()
    ]
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(json.dumps(rows, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
