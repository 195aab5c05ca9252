"""A real browser for the pages: headless Chromium of the system, driven by playwright."""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.node_packages import FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from playwright.sync_api import Browser, Page

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextlib.contextmanager
def launched() -> Iterator[Browser]:
    """A browser; the test is skipped where there is none."""
    if PROGRAM is None:
        pytest.skip("no Chromium is installed: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=PROGRAM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Watched:
    """A page with what it did on the way: its errors, what its policy refused, and what it asked other places for."""

    def __init__(self, browser: Browser, **options: Any) -> None:
        self.context = browser.new_context(**({"viewport": {"width": 1200, "height": 900}} | options))
        self.page: Page = self.context.new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("dialog", lambda dialog: self.errors.append(f"dialog {dialog.message}"))

    def open(self, url: str) -> Page:
        """Load it."""
        self.page.goto(url)
        return self.page

    @property
    def left(self) -> list[str]:
        """Requests that are none for a local file."""
        return [url for url in self.requests if not url.startswith(("file:", "data:", "http://127.0.0.1:"))]

    def serious(self) -> list[Mapping[str, Any]]:
        """The violations that axe-core calls serious or critical; the test is skipped where it is not installed."""
        script = FOLDER / "axe-core" / "axe.min.js"
        if not script.exists():
            pytest.skip("axe-core is not installed; run `python -m tests.support.node_packages`")
        # The policy of the page allows no script, and this one comes by the protocol of the browser.
        self.page.evaluate(script.read_text("utf-8"))
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            {"id": one["id"], "nodes": [node["html"][:200] for node in one["nodes"][:3]]}
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
        ]
