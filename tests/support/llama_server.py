"""llama.cpp's server as a program of its own: `AGENT_HOST_TEST_LLAMA` names the Python that has its packages. They need
no compiler; what they are asked for here is in `llama_server_program`:

    python -m venv /tmp/llama && /tmp/llama/bin/pip install xllamacpp gguf
    AGENT_HOST_TEST_LLAMA=/tmp/llama/bin/python python -m pytest tests/interaction/test_llama_server.py
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

PYTHON = os.environ.get("AGENT_HOST_TEST_LLAMA")
_PROGRAM = Path(__file__).with_name("llama_server_program.py")


@contextlib.contextmanager
def serving(folder: Path, context_tokens: int, model: Path | None = None) -> Iterator[str]:
    """The URL of a server whose model takes so many tokens. Without a file of a `model` it calls ListDirectory behind a
    prompt, and says behind the results that there is one file."""
    with (folder / "llama.log").open("wb") as log:
        process = subprocess.Popen(
            [str(PYTHON), str(_PROGRAM), str(folder), str(context_tokens), *map(str, [model] if model else [])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
    with process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            assert url, (folder / "llama.log").read_text(errors="replace")
            yield url
        finally:
            process.kill()
