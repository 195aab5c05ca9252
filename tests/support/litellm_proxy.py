"""LiteLLM's proxy as a program of its own, in front of the scripted gateway: `AGENT_HOST_TEST_LITELLM` names it, or it
is found on the path. Its packages are many, and some exclude ours, so it lives in an environment of its own:

    python -m venv /tmp/litellm && /tmp/litellm/bin/pip install 'litellm[proxy]'
    AGENT_HOST_TEST_LITELLM=/tmp/litellm/bin/litellm python -m pytest tests/interaction/test_litellm.py
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

from tests.support.process import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROGRAM = os.environ.get("AGENT_HOST_TEST_LITELLM") or shutil.which("litellm")
KEY = "sk-0123456789abcdef0123456789abcdef"
_START_S = 120.0


@contextlib.contextmanager
def proxy(folder: Path, upstream: str) -> Iterator[str]:
    """The URL of a proxy whose models `gpt-test` and `claude-test` are served by `upstream`, each in its own wire."""
    models = {"gpt-test": ("openai/gpt-test", f"{upstream}/v1"), "claude-test": ("anthropic/claude-test", upstream)}
    rows = [
        f"  - model_name: {name}\n    litellm_params: {{model: {model}, api_base: {url}, api_key: x, max_retries: 0}}\n"
        for name, (model, url) in models.items()
    ]
    config = folder / "litellm.yaml"
    config.write_text("model_list:\n" + "".join(rows))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(folder), "LITELLM_MASTER_KEY": KEY, "NO_PROXY": "*",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False",
    }  # fmt: skip
    log = folder / "litellm.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(PROGRAM), "--config", str(config), "--port", str(port), "--host", "127.0.0.1"],
            env=environment, stdout=out, stderr=out, cwd=folder,
        )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        eventually(lambda: process.poll() is not None or _answers(url), "LiteLLM answers", within_s=_START_S)
        assert process.poll() is None, log.read_text(errors="replace")
        yield url
    finally:
        process.terminate()
        process.wait(30)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health/liveliness", timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False
