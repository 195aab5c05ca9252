"""docs/gateway-errors.md from the tables of errors: `python -m tests.support.gateway_error_page` writes it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agent_host.llm.errors import KINDS, NAMES, STATUSES, WORDS, reading_of
from agent_host.loop.task import _ENDS

if TYPE_CHECKING:
    from agent_host.llm.errors import Kind, Reading

PAGE = Path(__file__).resolve().parents[2] / "docs" / "gateway-errors.md"

# What an error of each kind is called here, and what the host does before it ends anything.
_TITLES: Final[dict[Kind, tuple[str, str]]] = {
    "too_long": ("too long", "the window is cut, and the request is sent once more"),
    "billing": ("no credit", "nothing"),
    "image": ("bad picture", "nothing"),
    "guardrail": ("guardrail", "nothing; a note in the conversation says what was blocked"),
    "model": ("unknown model", "nothing"),
    "parameter": ("bad parameter", "nothing"),
    "too_large": ("too large", "nothing"),
    "rate_limit": ("rate limit", "retries"),
    "loading": ("loading", "as for overloaded"),
    "overloaded": ("overloaded", "retries, then the models of `llm.fallback_models`"),
    "credentials": ("credentials", "nothing"),
    "failed": ("failed", "retries"),
    "refused": ("refused", "nothing"),
}
_OTHERS: Final = (("other 4xx, 2xx and 3xx", 418), ("other 5xx", 500))

_HEAD = """\
# Errors of the gateway

Made from `agent_host/llm/errors.py` by `python -m tests.support.gateway_error_page`.

An error is classified by its meaning: first by its HTTP status, which limits the possible meanings of the body, then by
the types and codes in the body, then by its words. The same applies to an error inside the stream, which has a status
only if it names one, and to an error in the JSON body of a success. The tables are the same for every dialect.

## What follows

| error | first | then the task | `reason` | what to do |
| --- | --- | --- | --- | --- |
"""
_AFTER = """
A task that is paused or can be resumed keeps its session: `agent-host resume` continues it. The message also says what
to do.

**Too long.** Requests omit the oldest half of the conversation, or, if the error gives the model's limit, as much as
brings the rest below half of that limit (`llm_window_cut`). The request is sent once more, and the new window is
recorded. The same is done if a model ends its turn because its context is full: it continues where it stopped, at most
three times in a row.

**Overloaded.** When the retries are used up, the next model of `llm.fallback_models` is asked (`llm_fallback`), each
once a step. It gets the conversation without the data that only the previous model can read. The rest of the task uses
it, after a resume too; the next task starts with its own model. Each name must be in `llmPolicy.allowedModels`;
built-in policies allow those of your configuration.

**Waiting.** If a server is loading its model, or answers 503 or 529, the request is retried for up to `llm.max_wait_s`
(120 s), with any number of attempts; each wait is reported (`llm_retry`). With `llm.max_retries = 0` there is no wait.
If a model of `llm.fallback_models` is left, that one is asked after the usual retries instead.

**Retries.** Other temporary errors are retried `llm.max_retries` times, with back-off, or after the wait that the
answer asks for: `retry-after-ms`, or `Retry-After` in seconds or as a date, at most 120 s. With `x-should-retry: true`
every error is retried except a request that is too long. With `x-should-retry: false` nothing is retried: an error that
would be retried pauses the session at once.

**A success without a stream.** An error in a JSON body counts as an error. A complete answer in JSON is read like its
stream; anything else is rejected, and the message names `--dialect`.

## By status

| status | means | unless the body says |
| --- | --- | --- |
"""
_NAMES = """
Inside a stream, and in the body of a success, any meaning is possible. An unknown error counts as temporary, and is
retried.

## By type or code

Letter case does not matter. The names of the last two rows count after words, because they are unspecific.

| error | types and codes |
| --- | --- |
"""
_WORDS = """
## By words

Patterns are RE2's, letter case does not matter. They are searched in the order of the errors in the row of the status.

| error | who words it so | pattern |
| --- | --- | --- |
"""


def page() -> str:
    """The page as it should be."""
    parts = [_HEAD]
    for kind, meant in KINDS.items():
        title, first = _TITLES[kind]
        status, goes_on = _ENDS[meant.error]
        then = "fails, and can be resumed" if status == "failed" and goes_on else status if goes_on else "fails"
        parts.append(f"| {title} | {first} | {then} | `{meant.code or meant.error.code}` | {meant.advice} |\n")
    parts.append(_AFTER)
    parts.extend(_status_row(str(status), reading) for status, reading in STATUSES.items())
    parts.extend(_status_row(name, reading_of(status)) for name, status in _OTHERS)
    parts.append(_NAMES)
    parts.extend(
        f"| {_TITLES[kind][0]} | {', '.join(f'`{name}`' for name in names)} |\n" for kind, names in NAMES.items()
    )
    parts.append(_WORDS)
    for kind in KINDS:
        parts.extend(
            f"| {_TITLES[kind][0]} | {row.server} | {_code(row.words)} |\n" for row in WORDS if row.kind == kind
        )
    return "".join(parts)


def _status_row(name: str, reading: Reading) -> str:
    may = ", ".join(_TITLES[kind][0] for kind in reading.may)
    return f"| {name} | {_TITLES[reading.otherwise][0]} | {may} |\n"


def _code(pattern: str) -> str:
    """A pattern as code in a table, where a bar would end the cell and a backtick the code."""
    ticks = "`" * (1 + max((len(run) for run in re.findall("`+", pattern)), default=0))
    pad = " " if "`" in pattern else ""
    return f"{ticks}{pad}{pattern}{pad}{ticks}".replace("|", r"\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
