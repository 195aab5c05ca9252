"""A comment on a pull request about a result of `agent-host run --result`.

All text of the model, and all names that it chose, stand in fences that they cannot end, so that nothing in them is a
mention, a link, a picture or HTML. Only the standard library; run with `-I`.
"""

from __future__ import annotations

import json
import os
import re
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

MAX_RESULT_BYTES = 16 * 1024**2
MAX_TEXT_CHARS = 20_000
MAX_FILES = 100
TIMEOUT_S = 60
VERDICTS = {"completed", "failed", "cancelled", "paused", "denied", "interrupted", "running"}


def comment_of(result: dict[str, Any], run_url: str) -> str:
    """The comment in Markdown; `result` is not trusted."""
    verdict = result.get("verdict")
    lines = [f"**agent-host: {verdict if verdict in VERDICTS else 'unknown'}** ([log]({run_url}))"]
    reason = result.get("message") or result.get("reason")
    if reason:
        lines += ["", *_fenced(str(reason), 2000)]
    text = result.get("text")
    if text:
        lines += ["", *_fenced(str(text), MAX_TEXT_CHARS)]
    names = result.get("filesChanged")
    if isinstance(names, list) and names:
        shown = [str(name).replace("\n", "?")[:300] for name in names[:MAX_FILES]]
        more = [f"and {len(names) - MAX_FILES} more"] if len(names) > MAX_FILES else []
        lines += ["", f"Files changed: {len(names)}", "", *_fenced("\n".join([*shown, *more]), MAX_TEXT_CHARS)]
    if result.get("resumeCommand"):
        lines += ["", "It waits for an answer: the summary of the run says how to give it."]
    return "\n".join(lines) + "\n"


def _fenced(text: str, most_chars: int) -> list[str]:
    text = "".join(char if char.isprintable() or char in "\n\t" else "?" for char in text.replace("\r\n", "\n"))
    if len(text) > most_chars:
        text = f"{text[:most_chars]}\n[… {len(text) - most_chars} more characters]"
    ticks = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return [f"{ticks}text", *text.split("\n"), ticks]


def post(text: str) -> None:
    """Add the comment to the pull request AH_PULL. Raises OSError."""
    url = "{GITHUB_API_URL}/repos/{GITHUB_REPOSITORY}/issues/{AH_PULL}/comments".format(**os.environ)
    request = urllib.request.Request(  # noqa: S310  the runner's own address
        url,
        data=json.dumps({"body": text}).encode(),
        headers={
            "Accept": "application/vnd.github+json",
            "Authorization": f"Bearer {os.environ['AH_TOKEN']}",
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S):  # noqa: S310  see above
        pass


def main() -> int:
    """Read the result, and comment."""
    try:
        with Path(sys.argv[1]).open("rb") as file:
            result = json.loads(file.read(MAX_RESULT_BYTES))
        if not isinstance(result, dict):
            raise ValueError("it is no object")
    except (OSError, ValueError) as error:
        print(f"::error title=agent-host::there is no result to comment on ({type(error).__name__})")
        return 1
    run_url = "{GITHUB_SERVER_URL}/{GITHUB_REPOSITORY}/actions/runs/{GITHUB_RUN_ID}".format(**os.environ)
    try:
        post(comment_of(result, run_url))
    except urllib.error.HTTPError as error:
        print(f"::error title=agent-host::the comment was refused ({error.code}): the job needs pull-requests%3A write")
        return 1
    except OSError as error:
        print(f"::error title=agent-host::the comment could not be made ({type(error).__name__})")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
