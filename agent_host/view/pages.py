"""The pages: their templates, style and scripts, and those of many sessions; `agent_host.view.session` has one session.

Each is one HTML file that asks for nothing else. A page's own style and script are the only ones that run: its policy
names their hashes. Everything of a session passes the template's escape, or that of `agent_host.view.text`.
"""

from __future__ import annotations

import functools
import hashlib
import os
from base64 import b64encode
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from agent_host import __version__
from agent_host.display_text import count_noun, escape, one_line
from agent_host.host.options import state_option
from agent_host.view.timeline import duration_text, spread_chart

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from agent_host.host.records import StoredSession

_FOLDER: Final = os.path.join(os.path.dirname(__file__), "templates")


@functools.cache
def environment() -> jinja2.Environment:
    """The templates, whose every value is escaped, and in which a missing one is an error."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {"version": __version__, "duration": duration_text}
    return made


@functools.cache
def read_asset(name: str) -> Markup:
    """A style or script of the pages, as it stands in them."""
    with open(os.path.join(_FOLDER, name), encoding="utf-8") as file:
        return Markup(file.read())  # noqa: S704  a file of this package


def hash_of(asset: str) -> str:
    """The hash of an asset as a policy of content names it."""
    return f"'sha256-{b64encode(hashlib.sha256(asset.encode()).digest()).decode()}'"


def assets() -> dict[str, Any]:
    """Parts that a standalone file needs besides its content: style, script, and the policy that names them."""
    style, script = read_asset("page.css"), read_asset("page.js")
    policy = (
        f"default-src 'none'; style-src {hash_of(style)}; script-src {hash_of(script)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return {"style": style, "script": script, "policy": Markup(policy)}  # noqa: S704  hashes


# Many sessions


class SessionLine(NamedTuple):
    """A row of a table of sessions. `href` leads to its page, else `command` makes one."""

    session_id: str
    href: str
    command: str
    title: str
    verdict: str
    tone: str
    ended_by: str
    workspace: str
    updated: str
    steps: int
    spent_s: float | None
    tokens: int | None
    cost: float | None
    currency: str
    waits: str


def session_lines(rows: Iterable[StoredSession], *, state_dir: str, href: str | None) -> list[SessionLine]:
    """The rows of a table; `href` is the address of a page with `{}` for the id. Words of a session are its metadata
    alone: its title, its place, and how it ended."""
    option = state_option(state_dir)
    return [_session_line(row, option, href) for row in rows]


def _session_line(row: StoredSession, option: str, href: str | None) -> SessionLine:
    usage = row.usage or {}
    by = row.ending.get("endedBy")
    why = "" if row.reason in (None, row.verdict) else f"{row.reason}, "
    return SessionLine(
        row.session_id,
        "" if href is None else href.format(row.session_id),
        f"agent-host show {row.session_id}{option} --html {row.session_id}.html",
        one_line(row.title, 200),
        row.verdict,
        _VERDICT_TONES.get(row.verdict, ""),
        escape(f"{why}by {by}" if by else "", keep=""),
        escape(row.workspace, keep=""),
        row.updated_at,
        row.step_count,
        None if row.duration_ms is None else row.duration_ms / 1000,
        row.total_tokens,
        usage.get("cost"),
        str(usage.get("costCurrency", "")),
        f"agent-host resume {row.session_id}{option}" if row.resumable and row.verdict != "running" else "",
    )


_VERDICT_TONES: Final[Mapping[str, str]] = {
    "completed": "good", "failed": "bad", "denied": "bad", "interrupted": "bad", "paused": "warn", "cancelled": "warn",
}  # fmt: skip


def sessions_page(rows: Sequence[StoredSession], *, state_dir: str, folder: str | None) -> bytes:
    """The page of many sessions. `folder` is where their own pages are, from the place of this one; None for none."""
    href = None if folder is None else f"{quote(folder)}/{{}}.html"
    lines = session_lines(rows, state_dir=state_dir, href=href)
    values = {
        "lines": lines,
        "counts": [(verdict, sum(1 for one in lines if one.verdict == verdict), tone) for verdict, tone in _COUNTED],
        "charts": [one for one in (
            spread_chart("Cost of a session", [one.cost for one in lines], lambda value: f"{value:.3g}"),
            spread_chart("Time of the last task", [one.spent_s for one in lines], duration_text),
            spread_chart("Tokens of a session", [one.tokens for one in lines], lambda value: f"{value:,.0f}"),
        ) if one],
    }  # fmt: skip
    return environment().get_template("sessions.html").render(c=values, **assets()).encode("utf-8", "replace")


_COUNTED: Final = (*_VERDICT_TONES.items(), ("running", ""))


def list_body(rows: Sequence[StoredSession], asked: Collection[str], *, state_dir: str) -> dict[str, Any]:
    """The list of a live page in its parts: sessions that wait for a person come first, the others newest first;
    `asked` are those with an open question."""
    parts: Any = environment().get_template("parts.html").module
    lines = session_lines(rows, state_dir=state_dir, href="/s/{}")
    lines = [
        one._replace(waits="waits for an answer", tone="warn") if one.session_id in asked else one for one in lines
    ]
    lines.sort(key=lambda one: 0 if one.session_id in asked else 1 if one.waits else 2)
    count = sum(1 for one in lines if one.session_id in asked)
    title = f"{f'({count}) ' if count else ''}{count_noun(len(lines), 'session')}"
    return {"title": title, "parts": {"head": str(parts.list_head(title, count)), "more": str(parts.table(lines))}}


def live_shell() -> tuple[bytes, Markup, tuple[Markup, ...]]:
    """The page that a live view loads, which has no data, its style and its scripts."""
    style, scripts = read_asset("page.css"), (read_asset("page.js"), read_asset("live.js"))
    page = environment().get_template("live.html").render(style=style, scripts=scripts)
    return page.encode(), style, scripts
